"""The table has a case for each public operation and layer of Keras, to be written as IR.

`OPERATIONS` and `LAYERS` have functions and their arguments. Aliases share the case of one name.
"""

import functools

import keras
import numpy as np

K, L, I = keras.ops, keras.layers, keras.ops.image  # noqa: E741


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def unit(*shape, seed=0):
    """Numbers between 0.1 and 0.9."""
    return (np.random.default_rng([seed, *shape]).random(shape) * 0.8 + 0.1).astype(np.float32)


def below(limit, *shape, seed=0):
    return np.random.default_rng([seed, *shape]).integers(0, limit, shape).astype(np.int32)


A, B, P, N = normal(3, 4), normal(3, 4, seed=1), unit(3, 4), below(5, 3, 4)
Q = unit(3, 4, seed=1)
CUBE, IMAGES = normal(2, 3, 4), unit(2, 8, 8, 3)
SQUARE = normal(2, 3, 3)
POSITIVE = SQUARE @ SQUARE.transpose(0, 2, 1) + 3 * np.eye(3, dtype=np.float32)
ATTENTION = normal(2, 5, 2, 3)
KERNEL = normal(2, 2, 3, 4, seed=1)
BOUNDS = np.float32([-0.5, 0.0, 0.5])

# --- Operations -----------------------------------------------------------------------------------

_OF_ONE = """
abs absolute all amax amin angle any arcsinh arctan argmax argmin argsort average cbrt ceil conj
conjugate copy cos cosh count_nonzero cumprod cumsum deg2rad diag diagflat diagonal diff
empty_like exp exp2 expm1 fabs flip fliplr flipud floor i0 imag isfinite isinf isnan isneginf
isposinf isreal logical_not logsumexp max mean median min nan_to_num nanargmax nanargmin
nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod nanstd nansum nanvar ndim negative
nonzero ones_like prod ptp rad2deg ravel real reciprocal rot90 round shape sign signbit sin sinc
sinh size sort square std stop_gradient sum tan tanh trace transpose trapezoid tril triu trunc
unique var zeros_like celu elu gelu glu hard_shrink hard_sigmoid hard_silu hard_tanh leaky_relu
log_sigmoid log_softmax normalize relu relu6 selu sigmoid silu soft_shrink softmax softplus
softsign sparse_plus sparse_sigmoid sparsemax squareplus tanh_shrink erf erfc norm
rms_normalization layer_normalization
""".split()
_OF_UNIT = "arccos arcsin arctanh erfinv log log10 log1p log2 rsqrt sqrt".split()
_OF_TWO = """
add append arctan2 array_equal copysign cdist divide divide_no_nan equal floor_divide fmax fmin fmod
greater greater_equal hypot inner isclose allclose less less_equal logaddexp logaddexp2 logical_and
logical_or logical_xor maximum minimum mod multiply nextafter not_equal outer subtract true_divide
vdot dstack hstack vstack stack concatenate meshgrid
""".split()
_OF_INTEGERS = """
bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm left_shift
right_shift
""".split()
_OF_SQUARES = "cholesky det inv slogdet".split()
_OF_LISTS = "concatenate dstack hstack stack vstack".split()

OPERATIONS = {}
for _name in _OF_ONE:
    OPERATIONS[_name] = getattr(K, _name), A
for _name in _OF_UNIT:
    OPERATIONS[_name] = getattr(K, _name), P
for _name in _OF_TWO:
    if hasattr(K, _name):
        OPERATIONS[_name] = getattr(K, _name), A, B
for _name in _OF_LISTS:
    OPERATIONS[_name] = lambda x, y, name=_name: getattr(K, name)([x, y]), A, B
for _name in _OF_INTEGERS:
    OPERATIONS[_name] = getattr(K, _name), N + 1, below(4, 3, 4, seed=1) + 1
for _name in _OF_SQUARES:
    OPERATIONS[_name] = getattr(K, _name), POSITIVE
for _name in "segment_max segment_min segment_prod segment_sum".split():
    if hasattr(K, _name):
        OPERATIONS[_name] = (
            lambda x, k, name=_name: getattr(K, name)(x, k, 3),
            A,
            np.int32([0, 0, 1]),
        )
for _name in "blackman hamming hanning".split():
    OPERATIONS[_name] = lambda x, name=_name: x * getattr(K, name)(4), A

OPERATIONS |= {
    # Numbers and their parts.
    "arccosh": (K.arccosh, P + 1),
    "bitwise_invert": (K.bitwise_invert, N),
    "bitwise_not": (K.bitwise_not, N),
    "cast": (lambda x: [K.cast(x, dtype) for dtype in ("int32", "float16", "bool")], 3 * A),
    "clip": (lambda x: K.clip(x, -0.5, 0.5), A),
    "threshold": (lambda x: K.threshold(x, 0.1, 0.0), A),
    "heaviside": (lambda x: K.heaviside(x, 0.5), A),
    "kaiser": (lambda x: x * K.kaiser(4, 2.0), A),
    "ldexp": (K.ldexp, A, N),
    "polar": (lambda x, y: K.real(K.polar(x, y)), P, A),
    "power": (K.power, P, A),
    "saturate_cast": (lambda x: K.saturate_cast(x, "uint8"), 300 * A),
    "view": (lambda x: K.view(x, "int32"), A),
    "view_as_complex": (lambda x: K.imag(K.view_as_complex(x)), normal(3, 4, 2)),
    "view_as_real": (lambda x: K.view_as_real(K.cast(x, "complex64")), A),
    # New arrays.
    "arange": (lambda x: x + K.arange(4, dtype="float32"), A),
    "array": (lambda x: x + K.array([1.0, 2.0, 3.0, 4.0]), A),
    "convert_to_tensor": (lambda x: x + K.convert_to_tensor(B), A),
    "empty": (lambda x: x + 0 * K.zeros_like(K.empty((3, 4))), A),
    "eye": (lambda x: [K.eye(4, 5, 1) + x[0, 0], K.eye(K.shape(x)[0])], A),
    "full": (lambda x: K.full((2, 2), x[0, 0]), A),
    "full_like": (lambda x: K.full_like(x, 2.0), A),
    "geomspace": (lambda x: K.geomspace(x, x + 1, 4), P),
    "identity": (lambda x: x @ K.identity(4), A),
    "linspace": (lambda x: K.linspace(x, x + 1, 5, axis=-1), A),
    "logspace": (lambda x: K.logspace(x, x + 1, 5), A),
    "ones": (lambda x: K.ones(K.shape(x)), A),
    "tri": (lambda x: x @ K.tri(4), A),
    "vander": (lambda x: K.vander(x[0], 3), A),
    "zeros": (lambda x: K.zeros(K.shape(x)), A),
    # Axes and places.
    "argpartition": (lambda x: K.argpartition(x, 2)[:, :1], A),
    "array_split": (lambda x: K.array_split(x, 3, axis=1), A),
    "broadcast_to": (lambda x: K.broadcast_to(x[:1], (3, 4)), A),
    "dsplit": (lambda x: K.dsplit(x, 2), CUBE),
    "expand_dims": (lambda x: K.expand_dims(x, 1), A),
    "get_item": (lambda x: K.get_item(x, (slice(None), slice(1, 3))), A),
    "hsplit": (lambda x: K.hsplit(x, 2), A),
    "moveaxis": (lambda x: K.moveaxis(x, 0, 2), CUBE),
    "multi_hot": (lambda k: K.multi_hot(k, 5), N),
    "one_hot": (lambda k: K.one_hot(k, 5), N),
    "pad": (lambda x: [K.pad(x, ((0, 1), (1, 1))), K.pad(x, ((0, 0), (1, 1)), "reflect")], A),
    "rearrange": (lambda x: K.rearrange(x, "b (h w) -> b h w", h=2), A),
    "repeat": (lambda x: [K.repeat(x, 2, 1), K.repeat(x, [1, 2, 0, 1], 1)], A),
    "reshape": (lambda x: K.reshape(x, (-1, 2)), A),
    "roll": (lambda x: K.roll(x, 1, 1), A),
    "scatter": (lambda y: K.scatter(np.array([[0], [2]]), y, (4, 4)), A[:2]),
    "scatter_update": (lambda x, y: K.scatter_update(x, np.array([[0], [2]]), y), A, B[:2]),
    "searchsorted": (lambda x: K.searchsorted(BOUNDS, x[0]), A),
    "select": (lambda x: K.select([x > 0, x < -1], [x, -x], 0.0), A),
    "slice": (lambda x, k: K.slice(x, (k[0], 0), (1, 2)), A, below(2, 1)),
    "slice_update": (lambda x, y: K.slice_update(x, (1, 1), y), A, normal(2, 2)),
    "split": (lambda x: [K.split(x, 2, 1), K.split(x, [1, 3], 1)], A),
    "squeeze": (lambda x: K.squeeze(x, 1), normal(3, 1)),
    "swapaxes": (lambda x: K.swapaxes(x, 0, 1), A),
    "take": (lambda x, k: K.take(x, k, 0), A, below(3, 2, 2)),
    "take_along_axis": (lambda x, k: K.take_along_axis(x, k, 1), A, below(4, 3, 2)),
    "tile": (lambda x: K.tile(x, (2, 3)), A),
    "unravel_index": (lambda k: K.unravel_index(k, (3, 4)), below(12, 5)),
    "unstack": (lambda x: K.unstack(x, axis=1), A),
    "vsplit": (lambda x: K.vsplit(x, 2), normal(4, 3)),
    "where": (lambda x, y: K.where(x > 0, x, y), A, B),
    # Counts and parts of distributions.
    "bincount": (lambda k: K.bincount(k, minlength=6), below(6, 9)),
    "correlate": (lambda x, y: K.correlate(x[0], y[0]), A, B),
    "digitize": (lambda x: K.digitize(x, BOUNDS), A),
    "histogram": (lambda x: K.histogram(x, 4, (-2.0, 2.0)), normal(12)),
    "in_top_k": (lambda x, k: K.in_top_k(k, x, 2), A, below(4, 3)),
    "moments": (lambda x: K.moments(x, (1,)), A),
    "percentile": (lambda x: K.percentile(x, 30.0, axis=1), A),
    "quantile": (lambda x: K.quantile(x, 0.3, axis=1), A),
    "top_k": (lambda x: K.top_k(x, 2), A),
    # Products and matrices.
    "cholesky_inverse": (K.cholesky_inverse, np.tril(POSITIVE)),
    "cross": (lambda x, y: K.cross(x[:, :3], y[:, :3]), A, B),
    "dot": (K.dot, A, normal(4, 5)),
    "eig": (lambda x: K.abs(K.eig(x)[0]), SQUARE),
    "eigh": (lambda x: K.eigh(x)[0], POSITIVE),
    "einsum": (lambda x, y: K.einsum("bij,bkj->bik", x, y), CUBE, normal(2, 5, 4)),
    "logdet": (K.logdet, POSITIVE),
    "lstsq": (K.lstsq, normal(5, 3), normal(5, 2)),
    "matmul": (K.matmul, CUBE, normal(2, 4, 5)),
    "matrix_rank": (K.matrix_rank, POSITIVE),
    "pinv": (K.pinv, POSITIVE),
    "qr": (lambda x: K.abs(K.qr(x)[1]), SQUARE),
    "solve": (K.solve, POSITIVE, normal(2, 3, 2)),
    "solve_triangular": (lambda x, y: K.solve_triangular(x, y, lower=True), POSITIVE, SQUARE),
    "svd": (lambda x: K.svd(x)[1], SQUARE),
    "tensordot": (lambda x, y: K.tensordot(x, y, 1), CUBE, normal(4, 5)),
    # Fourier's transforms.
    "extract_sequences": (lambda x: K.extract_sequences(x, 4, 2), normal(2, 12)),
    "fft": (lambda x: K.fft((x, 0 * x)), A),
    "fft2": (lambda x: K.fft2((x, 0 * x)), A),
    "ifft2": (lambda x: K.ifft2((x, 0 * x)), A),
    "irfft": (lambda x, y: K.irfft((x, y)), A, B),
    "istft": (lambda x, y: K.istft((x, y), 16, 8, 16), normal(2, 5, 9), normal(2, 5, 9, seed=1)),
    "rfft": (K.rfft, A),
    "stft": (lambda x: K.stft(x, 16, 8, 16), normal(2, 64)),
    # Networks.
    "adaptive_average_pool": (lambda x: K.adaptive_average_pool(x, 3), IMAGES),
    "adaptive_max_pool": (lambda x: K.adaptive_max_pool(x, 3), IMAGES),
    "average_pool": (lambda x: K.average_pool(x, 3, 2, "same"), IMAGES),
    "batch_normalization": (lambda x: K.batch_normalization(x, A[0], P[0], -1), B),
    "binary_crossentropy": (K.binary_crossentropy, P, Q),
    "categorical_crossentropy": (K.categorical_crossentropy, P, Q),
    "conv": (lambda x: K.conv(x, KERNEL, padding="same"), IMAGES),
    "conv_transpose": (lambda x: K.conv_transpose(x, normal(2, 2, 4, 3), 2), IMAGES),
    "ctc_decode": (lambda x: K.ctc_decode(x, np.array([6, 6]), "greedy"), normal(2, 6, 4)),
    "ctc_loss": (
        lambda y, x: K.ctc_loss(y, x, np.array([2, 2]), np.array([6, 6])),
        below(3, 2, 2) + 1,
        normal(2, 6, 4),
    ),
    "depth_to_space": (lambda x: K.depth_to_space(x, 2), normal(2, 4, 4, 8)),
    "depthwise_conv": (lambda x: K.depthwise_conv(x, KERNEL), IMAGES),
    "dot_product_attention": (
        lambda q: [K.dot_product_attention(q, q, q, is_causal=causal) for causal in (False, True)],
        ATTENTION,
    ),
    "fold": (lambda x: K.fold(x, (5, 5), 2), normal(2, 12, 16)),
    "max_pool": (lambda x: K.max_pool(x, 2), IMAGES),
    "psnr": (lambda x, y: K.psnr(x, y, 1.0), P, Q),
    "separable_conv": (lambda x: K.separable_conv(x, KERNEL, normal(1, 1, 12, 2)), IMAGES),
    "space_to_depth": (lambda x: K.space_to_depth(x, 2), IMAGES),
    "sparse_categorical_crossentropy": (K.sparse_categorical_crossentropy, below(4, 3), P),
    "unfold": (lambda x: K.unfold(x, 2), normal(2, 3, 5, 5)),
    # Functions of functions.
    "associative_scan": (lambda x: K.associative_scan(lambda p, q: p + q, x), normal(4, 3)),
    "cond": (lambda x: K.cond(K.sum(x) > 0, lambda: x * 2, lambda: x - 1), A),
    "custom_gradient": (lambda x: K.custom_gradient(lambda y: (y * 2, lambda *_: 1.0))(x), A),
    "fori_loop": (lambda x: K.fori_loop(0, 3, lambda k, y: y * 0.5 + 1, x), A),
    "map": (lambda x: K.map(lambda row: row * 2 + K.sum(row), x), A),
    "scan": (lambda x: K.scan(lambda s, row: (s + row, s * row), K.zeros((4,)), x), A),
    "switch": (
        lambda x, k: K.switch(k[0], [lambda y: y, lambda y: y * 2, lambda y: y - 1], x),
        A,
        below(3, 1),
    ),
    "vectorized_map": (lambda x: K.vectorized_map(lambda row: row * 2 + K.sum(row), x), A),
    "while_loop": (
        lambda x: K.while_loop(lambda k, y: k < 3, lambda k, y: (k + 1, y * 0.5), (0, x)),
        A,
    ),
}

IMAGE_OPERATIONS = {
    "affine_transform": (
        lambda x: I.affine_transform(x, np.float32([[1, 0.1, 0, 0, 1, 0, 0, 0]] * 2)),
        IMAGES,
    ),
    "crop_images": (lambda x: I.crop_images(x, 1, 1, 1, 1), IMAGES),
    "elastic_transform": (lambda x: I.elastic_transform(x, seed=1), IMAGES),
    "extract_patches": (lambda x: I.extract_patches(x, 3, 2), IMAGES),
    "extract_patches_3d": (lambda x: I.extract_patches_3d(x, 2), normal(2, 4, 4, 4, 2)),
    "gaussian_blur": (lambda x: I.gaussian_blur(x, (3, 3), (1.0, 1.0)), IMAGES),
    "hsv_to_rgb": (I.hsv_to_rgb, IMAGES),
    "map_coordinates": (
        lambda x: I.map_coordinates(x[0, :, :, 0], np.float32([[0.5, 1.5], [1, 2.5]]), 1),
        IMAGES,
    ),
    "pad_images": (lambda x: I.pad_images(x, 1, 1, 1, 1), IMAGES),
    "perspective_transform": (
        lambda x: I.perspective_transform(
            x,
            np.float32([[[0, 0], [0, 7], [7, 0], [7, 7]]] * 2),
            np.float32([[[0, 1], [0, 6], [7, 0], [7, 7]]] * 2),
        ),
        IMAGES,
    ),
    "resize": (
        lambda x: [I.resize(x, (5, 12), m) for m in ("bilinear", "nearest", "bicubic", "area")],
        IMAGES,
    ),
    "rgb_to_grayscale": (I.rgb_to_grayscale, IMAGES),
    "rgb_to_hsv": (I.rgb_to_hsv, IMAGES),
    "scale_and_translate": (
        lambda x: I.scale_and_translate(
            x, (2, 6, 6, 3), np.float32([0.7, 0.7]), np.float32([0.1, 0.2]), (1, 2), "linear"
        ),
        IMAGES,
    ),
    "sobel_edges": (I.sobel_edges, IMAGES),
    "ssim": (lambda x, y: I.ssim(x, y, 1.0, filter_size=3), IMAGES, unit(2, 8, 8, 3, seed=1)),
}
OPERATIONS |= {f"image.{name}": case for name, case in IMAGE_OPERATIONS.items()}

# --- Layers ---------------------------------------------------------------------------------------

STEPS, VIDEO = normal(2, 6, 4), normal(2, 4, 4, 4, 2)
SPACES = {1: STEPS, 2: IMAGES, 3: VIDEO}
WORDS = below(9, 2, 5)


def _together(layer, *inputs):
    return layer(list(inputs))


# For each layer: how it is made, its inputs, and how it is called if not with the first input.
LAYERS = {
    name: (getattr(L, name), STEPS)
    for name in """
    ActivityRegularization BatchNormalization ELU Flatten Identity LayerNormalization LeakyReLU
    Masking PReLU RMSNormalization ReLU Softmax UnitNormalization
    """.split()
}
for _name in "Add Average Concatenate Maximum Minimum Multiply Subtract".split():
    LAYERS[_name] = getattr(L, _name), STEPS, normal(2, 6, 4, seed=1), _together
for _name in "AlphaDropout Dropout GaussianDropout GaussianNoise".split():
    LAYERS[_name] = functools.partial(getattr(L, _name), 0.2), STEPS
for _name in "GRU LSTM SimpleRNN".split():
    LAYERS[_name] = functools.partial(getattr(L, _name), 3, return_sequences=True), STEPS
    LAYERS[f"{_name}Cell"] = lambda name=_name: L.RNN(getattr(L, f"{name}Cell")(3)), STEPS
for _d, _x in SPACES.items():
    LAYERS |= {
        f"AdaptiveAveragePooling{_d}D": (
            functools.partial(getattr(L, f"AdaptiveAveragePooling{_d}D"), 3),
            _x,
        ),
        f"AdaptiveMaxPooling{_d}D": (
            functools.partial(getattr(L, f"AdaptiveMaxPooling{_d}D"), 3),
            _x,
        ),
        f"AveragePooling{_d}D": (
            functools.partial(getattr(L, f"AveragePooling{_d}D"), 2, 1, "same"),
            _x,
        ),
        f"Conv{_d}D": (functools.partial(getattr(L, f"Conv{_d}D"), 4, 2, padding="same"), _x),
        f"Conv{_d}DTranspose": (
            functools.partial(getattr(L, f"Conv{_d}DTranspose"), 4, 3, strides=2),
            _x,
        ),
        f"ConvLSTM{_d}D": (
            functools.partial(getattr(L, f"ConvLSTM{_d}D"), 2, 2, padding="same"),
            normal(2, 3, *_x.shape[1:]),
        ),
        f"Cropping{_d}D": (functools.partial(getattr(L, f"Cropping{_d}D"), 1), _x),
        f"GlobalAveragePooling{_d}D": (getattr(L, f"GlobalAveragePooling{_d}D"), _x),
        f"GlobalMaxPooling{_d}D": (getattr(L, f"GlobalMaxPooling{_d}D"), _x),
        f"MaxPooling{_d}D": (functools.partial(getattr(L, f"MaxPooling{_d}D"), 2, 1, "same"), _x),
        f"SpatialDropout{_d}D": (functools.partial(getattr(L, f"SpatialDropout{_d}D"), 0.2), _x),
        f"UpSampling{_d}D": (functools.partial(getattr(L, f"UpSampling{_d}D"), 2), _x),
        f"ZeroPadding{_d}D": (functools.partial(getattr(L, f"ZeroPadding{_d}D"), 1), _x),
    }
for _d in (1, 2):
    LAYERS |= {
        f"DepthwiseConv{_d}D": (
            functools.partial(getattr(L, f"DepthwiseConv{_d}D"), 3),
            SPACES[_d],
        ),
        f"SeparableConv{_d}D": (
            functools.partial(getattr(L, f"SeparableConv{_d}D"), 4, 3),
            SPACES[_d],
        ),
    }
# Layers that change images in training: their arguments.
_OF_TRAINING = {
    "AutoContrast": (),
    "ContrastLimitedAdaptiveHistogramEqualization": (),
    "CutMix": (),
    "Equalization": (),
    "MixUp": (),
    "RandAugment": (),
    "RandomBrightness": (0.2,),
    "RandomColorDegeneration": (0.2,),
    "RandomColorJitter": (),
    "RandomContrast": (0.2,),
    "RandomCrop": (5, 5),
    "RandomElasticTransform": (),
    "RandomErasing": (),
    "RandomFlip": (),
    "RandomGaussianBlur": (),
    "RandomGrayscale": (),
    "RandomHue": (0.2,),
    "RandomInvert": (),
    "RandomPerspective": (),
    "RandomPosterization": (3,),
    "RandomRotation": (0.2,),
    "RandomSaturation": (0.2,),
    "RandomSharpness": (0.2,),
    "RandomShear": (),
    "RandomTranslation": (0.1, 0.1),
    "RandomZoom": (0.1,),
    "Solarization": (),
}
for _name, _arguments in _OF_TRAINING.items():
    LAYERS[_name] = (
        functools.partial(getattr(L, _name), *_arguments),
        255 * IMAGES,
        lambda layer, x: layer(x, training=False),
    )

LAYERS |= {
    "Activation": (lambda: L.Activation("gelu"), STEPS),
    "AdditiveAttention": (L.AdditiveAttention, STEPS, normal(2, 5, 4), _together),
    "Attention": (
        L.Attention,
        STEPS,
        normal(2, 6, 4, seed=1),
        lambda layer, q, v: layer([q, v], use_causal_mask=True),
    ),
    "Bidirectional": (lambda: L.Bidirectional(L.LSTM(3)), STEPS),
    "CategoryEncoding": (lambda: L.CategoryEncoding(9, "count"), below(9, 4, 3)),
    "CenterCrop": (lambda: L.CenterCrop(5, 4), IMAGES),
    "Dense": (lambda: L.Dense(3), STEPS),
    "Discretization": (lambda: L.Discretization(bin_boundaries=[-0.5, 0.0, 0.5]), A),
    "Dot": (lambda: L.Dot(1, normalize=True), A, B, _together),
    "EinsumDense": (lambda: L.EinsumDense("abc,cd->abd", (None, 3), bias_axes="d"), STEPS),
    "Embedding": (lambda: L.Embedding(9, 4), WORDS),
    "GroupNormalization": (lambda: L.GroupNormalization(2), STEPS),
    "GroupQueryAttention": (
        lambda: L.GroupQueryAttention(3, 4, 2),
        STEPS,
        lambda layer, x: layer(x, x, use_causal_mask=True),
    ),
    "HashedCrossing": (
        lambda: L.HashedCrossing(7),
        below(9, 4, 1),
        below(9, 4, 1, seed=1),
        lambda layer, *inputs: layer(inputs),
    ),
    "Hashing": (lambda: L.Hashing(7), WORDS),
    "IntegerLookup": (lambda: L.IntegerLookup(vocabulary=[3, 5, 7]), WORDS),
    "Lambda": (lambda: L.Lambda(lambda x: 2 * x), STEPS),
    "MelSpectrogram": (
        lambda: L.MelSpectrogram(fft_length=32, sequence_stride=8, num_mel_bins=8),
        normal(2, 64),
    ),
    "MultiHeadAttention": (
        lambda: L.MultiHeadAttention(2, 3),
        STEPS,
        lambda layer, x: layer(x, x, use_causal_mask=True),
    ),
    "Normalization": (lambda: L.Normalization(mean=[1.0] * 4, variance=[2.0] * 4), STEPS),
    "Permute": (lambda: L.Permute((2, 1)), STEPS),
    "Pipeline": (lambda: L.Pipeline([L.Rescaling(0.5)]), IMAGES),
    "RNN": (lambda: L.RNN(L.LSTMCell(3)), STEPS),
    "RepeatVector": (lambda: L.RepeatVector(3), A),
    "Rescaling": (lambda: L.Rescaling(0.5, 1.0), IMAGES),
    "Reshape": (lambda: L.Reshape((4, -1)), STEPS),
    "Resizing": (lambda: L.Resizing(5, 6, "bicubic"), IMAGES),
    "ReversibleEmbedding": (lambda: L.ReversibleEmbedding(9, 4), WORDS),
    "STFTSpectrogram": (
        lambda: L.STFTSpectrogram(frame_length=16, frame_step=8, fft_length=16),
        normal(2, 64, 1),
    ),
    "SpectralNormalization": (lambda: L.SpectralNormalization(L.Dense(3)), A),
    "StackedRNNCells": (
        lambda: L.RNN(L.StackedRNNCells([L.LSTMCell(3), L.GRUCell(2)])),
        STEPS,
    ),
    "TimeDistributed": (lambda: L.TimeDistributed(L.Conv2D(2, 2)), normal(2, 3, 5, 5, 1)),
}

# --- Exceptions -----------------------------------------------------------------------------------

# `save` refuses these, and its error has this text.
REFUSED = {
    **dict.fromkeys(
        ["eig", "eigh", "qr", "svd", "lstsq", "matrix_rank", "pinv"], "before the model"
    ),
    "Hashing": "OpenVINO has no strings",
    "HashedCrossing": "OpenVINO has no strings",
}
# Keras computes these of known shapes alone.
OF_KNOWN_SHAPES = frozenset("associative_scan gcd image.elastic_transform lcm unfold".split())
# These have no part in a graph, or Keras cannot compute them with TensorFlow.
WITHOUT_A_CASE = {
    "convert_to_numpy": "it is eager",
    "dtype": "it gives no tensor",
    "is_tensor": "it gives no tensor",
    "jvp": "it is a derivative",
    **dict.fromkeys(
        "bartlett corrcoef isin kron nanpercentile nanquantile".split(), "Keras cannot trace it"
    ),
    "lu_factor": "Keras fails in it",
    "vectorize": "Keras fails in it",
    # layers
    "Layer": "it is a base class",
    "Wrapper": "it is a base class",
    "InputLayer": "it is an input",
    "InputSpec": "it is no layer",
    "AugMix": "it changes images in training alone, and calls none",
    "FlaxLayer": "it needs Flax",
    "JaxLayer": "it is JAX's",
    "TorchModuleWrapper": "it is torch's",
    "TFSMLayer": "it reads a SavedModel",
    "MaxNumBoundingBoxes": "its inputs are boxes with labels, as training has them",
    "StringLookup": "its inputs are strings, which save refuses",
    "TextVectorization": "its inputs are strings, which save refuses",
}
