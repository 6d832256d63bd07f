"""`tf_ti.openvino.save`: a function of TensorFlow as an IR."""

import contextlib
import inspect
import itertools
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO
from xml.etree import ElementTree

import numpy as np
import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

import tf_ti
from tf_ti import _tf
from tf_ti.openvino.errors import IRError, shown
from tf_ti.openvino.module import IRModule
from tf_ti.openvino.writer import (  # noqa: F401 - they fill the table of `writes`
    bits,
    complex_numbers,
    conditional,
    convolution,
    counts,
    elementwise,
    images,
    iteration,
    lists,
    losses,
    matrices,
    partition,
    pooling,
    reductions,
    scattering,
    search,
    sequences,
    shapes,
    special,
    variables,
    while_loops,
)
from tf_ti.openvino.writer.conversion import Complex, Conversion, Value
from tf_ti.openvino.writer.network import (
    Network,
    Port,
    Weights,
    clean,
    element_type_of,
    free,
    shape_of,
)
from tf_ti.openvino.writer.rewriting import rewritten
from tf_ti.openvino.writer.states import States


@_tf.public
def save(
    function: Callable[..., Any],
    path: str | os.PathLike[str],
    input_signature: Sequence[Any] | None = None,
) -> None:
    """Writes a function as OpenVINO's IR, version 11: an .xml file, and beside it a .bin file.

    It means, for what OpenVINO computes:

        module = openvino.compile_model(path)
        assert_allclose(list(module(inputs).values()), tf.nest.flatten(function(*inputs)))

    but for the order of dictionaries, and `tf_ti.openvino.load` returns the function. The file has
    only the forward pass.

    Variables become constants with their present values. One that the function reads and assigns,
    and that results depend on, becomes a state, with a ReadValue that begins with the present
    value, and an Assign: calls of one infer request follow one another as calls of the function
    do. (OpenVINO's CPU plugin holds no int64 and no float64: these states are int32 and float32.)
    A loop's body assigns none.

    An `IRModule` without a signature is written as it was read, with the present values of its
    constants: all layers, names and states are those of its file. The states begin as in the file.

    Loops of tf_ti become TensorIterator and Loop, those of TensorFlow Loop; recurrent sequences,
    those of Keras's layers in a model too, LSTMSequence, GRUSequence and RNNSequence; embedding
    bags OpenVINO's bags, or what they mean where OpenVINO lacks an option. A sequence becomes a
    TensorIterator of the cell's steps if it has a mask, an activation that OpenVINO's cells lack,
    or lengths while a shape is unknown. The last states of a sequence of length 0, which OpenVINO's
    operations set to zero, stay what they are in tf_ti: the initial ones. Around and inside of
    these there may be:

    - arithmetic, comparisons, logic, bits, tf.where, tf.cast, and the functions of tf.math and
      tf.nn on elements;
    - products (tf.matmul, tf.tensordot, tf.einsum), reductions, tf.nn.softmax, tf.cumsum,
      tf.math.cumprod, tf.argmax, tf.math.top_k, tf.math.bincount, tf.unique, losses of logits;
    - slices, tf.gather, tf.concat, tf.stack, tf.split, tf.reshape, tf.transpose, tf.pad, tf.tile,
      tf.roll, tf.broadcast_to, tf.one_hot, tf.range, tf.reverse, tf.shape and their like, scatters
      (tf.scatter_nd, tf.tensor_scatter_nd_update and its like) and updates of slices;
    - bands and diagonals of matrices (causal masks), determinants, inverses, solutions and Cholesky
      roots, which OpenVINO then computes by elimination in a loop;
    - Fourier transforms, tf.signal.stft and its inverse, and arithmetic of complex numbers in
      between: pairs of real ones, so that inputs and outputs are real;
    - convolutions with one to three spatial axes, transposed ones, those of groups and of single
      channels, pools, norms of batches outside of training, tf.nn.lrn, tf.nn.depth_to_space,
      tf.space_to_batch, and their like;
    - tf.image.resize by all methods, patches, projective transforms, and changes of colours;
    - tf.cond, tf.switch_case, tf.while_loop, TensorArrays, tf.map_fn, and calls of functions.

    An operation without a layer in IR is composed of several layers. Operations that cannot be
    composed are refused by name: singular values, eigenvalues and QR, strings, random numbers.

    In OpenVINO, the channels of convolutions and pools are second. Where they are last, Transposes
    lead there and back: around all that follow one another, not around each.

    Assertions are left out.

    Args:
        function: a `tf.function`, a `ConcreteFunction`, a model of Keras (as it is when it does not
            train), a `tf.Module`, an `IRModule` or another callable. Its inputs and outputs are
            tensors, or nested structures of them.
        path: the .xml file. Existing files are replaced once all is written.
        input_signature: for each argument of the function a `tf.TensorSpec`, or an example, a
            tensor or an array that has the shape; or structures of these. None for a function that
            has a signature: a `ConcreteFunction`, a `tf.function` with an `input_signature`, a
            model of Keras that has been built, an `IRModule`.

    The file's inputs have the names of the signature's specs, or of the function's parameters. Its
    outputs have the keys of the dictionary that the function returns (with a number if an input has
    that name), in its order, or `output_0`, `output_1`. A dimension that the signature leaves open
    may have any extent in the file too. But if a loop or a sequence then has no step, OpenVINO
    2026.4 refuses to run it or returns undefined values; `tf_ti.openvino.load` returns the right
    ones.

    Raises:
        tf_ti.openvino.IRError: the function has operations that IR cannot express, or that are not
            supported: effects other than assignments, random numbers, and so on. The message names
            all of them, with the lines that made them, and nothing is written. Or the files cannot
            be written, and none is left.
        TypeError, ValueError: there is no signature, or it does not fit the function.

    Example:

        >>> def running_sum(x):
        ...     return tf_ti.scan(lambda total, row: (total + row, total + row), tf.zeros([2]), x)
        >>> path = os.path.join(tempfile.mkdtemp(), "model.xml")
        >>> tf_ti.openvino.save(running_sum, path, [tf.TensorSpec([None, 2], name="x")])
        >>> total, sums = tf_ti.openvino.load(path)(x=[[1.0, 2.0], [3.0, 4.0]])
        >>> sums.numpy().tolist()
        [[1.0, 2.0], [4.0, 6.0]]
    """
    path = os.fsdecode(path)
    if not path.endswith(".xml"):
        raise ValueError(f"path must end in .xml, got {path!r}")
    if isinstance(function, IRModule) and input_signature is None:
        weights = Weights()
        root = rewritten(function.graph, function.constants, weights)
    else:
        concrete = _concrete_function(function, input_signature)
        conversion, network = _converted(concrete)
        weights = conversion.weights
        root = ElementTree.Element("net", name=_model_name(concrete), version="11")
        network.write(root)
        ElementTree.SubElement(root, "rt_info")
        ElementTree.indent(root)
    document = ElementTree.ElementTree(root)
    _write_files(
        {
            path[: -len(".xml")] + ".bin": weights.write,
            path: lambda file: document.write(file, "utf-8", xml_declaration=True),
        }
    )


# --- The function ---------------------------------------------------------------------------------


def _concrete_function(function: Any, signature: Sequence[Any] | None) -> ConcreteFunction:
    if isinstance(function, ConcreteFunction):
        if signature is not None:
            raise ValueError("a ConcreteFunction has a signature: input_signature must be None")
        return function
    if not callable(function):
        raise TypeError(f"function must be callable, got {function!r}")
    if isinstance(signature, str) or not isinstance(signature, Sequence | None):
        raise TypeError(
            f"input_signature must be a list with an element for each argument, got {signature!r}"
        )
    specs = None if signature is None else tf.nest.map_structure(_to_spec, list(signature))
    if any(base.__module__.startswith("keras.") for base in type(function).__mro__):
        return _of_keras(function, specs)
    if not hasattr(function, "get_concrete_function"):
        call = function.__call__  # a module's may be a tf.function
        function = call if hasattr(call, "get_concrete_function") else tf.function(function)
    if specs is not None:
        return function.get_concrete_function(*specs)
    try:
        return function.get_concrete_function()
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"input_signature must be given: the function has none of its own ({error})"
        ) from error


def _of_keras(model: Any, specs: Sequence[Any] | None) -> ConcreteFunction:
    """The function of a model or a layer of Keras, as it is when it does not train."""
    inputs = getattr(model, "inputs", None)
    if specs is None and not inputs:
        specs = _built_specs(model)
    if specs is not None:
        names = [*inspect.signature(model.call).parameters][: len(specs)]
        specs = [_with_name(spec, name) for spec, name in itertools.zip_longest(specs, names)]

        def arguments(*given: Any) -> Sequence[Any]:
            return given

    else:
        assert inputs is not None
        specs = [tf.TensorSpec(x.shape, x.dtype, _identifier(x.name)) for x in inputs]
        # A Sequential model, which has one input, may lack `input`.
        structure = getattr(model, "input", inputs[0])

        def arguments(*given: Any) -> Sequence[Any]:
            # By identity: Keras and TensorFlow flatten an OrderedDict in different orders.
            by_id = {id(own): tensor for own, tensor in zip(inputs, given)}
            return [tf.nest.map_structure(lambda own: by_id[id(own)], structure)]

    def call(*given: Any) -> Any:
        # Where there is a GPU, Keras's loops run, unless a CPU is asked for.
        with _our_loops(model), tf.device("CPU"):
            return model(*arguments(*given), training=False)

    call.__name__ = _identifier(model.name)
    return tf.function(call, autograph=False).get_concrete_function(*specs)


def _built_specs(model: Any) -> list[Any]:
    """The signature that a subclassed model was built for, with an open batch, as Keras has it."""
    built = model.get_build_config() if model.built else None
    if not built:
        raise ValueError(
            f"input_signature must be given: {model.name!r} has no inputs of its own, and has not "
            "been built"
        )

    def specs_of(shape: Any) -> Any:
        if isinstance(shape, Mapping):
            return {key: specs_of(part) for key, part in shape.items()}
        if all(extent is None or isinstance(extent, int) for extent in shape):
            return tf.TensorSpec([None, *shape[1:]], model.input_dtype)
        return [specs_of(part) for part in shape]

    signature = inspect.signature(model.call)
    if "input_shape" in built:
        shapes = [built["input_shape"]]
    else:
        by_name = {name.removesuffix("_shape"): of for name, of in built["shapes_dict"].items()}
        shapes = [by_name[name] for name in signature.parameters if name in by_name]
    try:
        signature.bind(*shapes)
    except TypeError as error:
        unknown = str(error)
    else:
        if None not in shapes:
            return list(map(specs_of, shapes))
        unknown = "the shapes of its inputs are unknown"
    raise ValueError(
        f"input_signature must be given: what {model.name!r} was built for does not tell: {unknown}"
    )


def _model_name(concrete: ConcreteFunction) -> str:
    """The name of the Python function, which TensorFlow adds to."""
    found = re.fullmatch(r"__(?:inference|forward)_(.*)_\d+", clean(concrete.name))
    return found[1] if found else clean(concrete.name)


def _with_name(spec: Any, name: str | None) -> Any:
    def named(spec: Any) -> Any:
        if isinstance(spec, tf.TensorSpec) and spec.name is None:
            return tf.TensorSpec(spec.shape, spec.dtype, name)
        return spec

    return tf.nest.map_structure(named, spec)


def _our_loops(model: Any) -> contextlib.AbstractContextManager[Any]:
    try:
        return tf_ti.keras.recurrent.our_loops(model)
    except (ImportError, RuntimeError):  # of a Keras that tf_ti.keras does not know
        return contextlib.nullcontext()


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def _to_spec(value: Any) -> Any:
    if isinstance(value, tf.TypeSpec):
        return value
    return tf.TensorSpec.from_tensor(tf.convert_to_tensor(value))


def _converted(concrete: ConcreteFunction) -> tuple[Conversion, Network]:
    """The conversion of a function, and the network that it gives."""
    try:
        own = concrete.graph.variables
    except AssertionError:  # they are gone, as those of a SavedModel, but for their values
        own = ()
    conversion = Conversion(States(own))
    network = _convert(conversion, concrete)
    if conversion.states.found:  # variables that are assigned
        conversion = Conversion(States(own, frozenset(conversion.states.found)))
        network = _convert(conversion, concrete)
    conversion.check()
    return conversion, network


def _convert(conversion: Conversion, concrete: ConcreteFunction) -> Network:
    network, graph = conversion.network(), concrete.graph
    captured = concrete.captured_inputs
    given = graph.inputs[: len(graph.inputs) - len(captured)]
    taken: set[str] = set()
    arguments: list[Value] = []
    for tensor in given:
        name = free(clean(_name_of(tensor)), taken)
        try:
            kind = element_type_of(tensor.dtype)
        except IRError as error:
            raise IRError(f"input {shown(name)}: {error}") from None
        port = network.parameter(kind, shape_of(tensor.shape), name)
        port.names.append(name)
        arguments.append(port)
    arguments += [_captured(tensor) for tensor in captured]
    results = conversion.run(network, graph, arguments)
    names = [name or "output_0" for name in _paths(concrete.structured_outputs, sorted)]
    if len(names) != len(results):
        names = [f"output_{i}" for i in range(len(results))]
    outputs = list(zip(names, results))
    own = [name or "output_0" for name in _paths(concrete.structured_outputs, list)]
    if sorted(own) == sorted(set(names)):
        outputs.sort(key=lambda output: own.index(output[0]))
    for name, value in outputs:
        name = free(clean(name), taken)
        if isinstance(value, Complex):
            conversion.problems.append(
                f"output {shown(name)}: OpenVINO has no complex numbers; return their real and "
                "imaginary parts, tf.math.real and tf.math.imag"
            )
            continue
        port = value if isinstance(value, Port) else network.constant(value)
        if port.names or port.layer.type in ("Parameter", "Const"):  # needs a tensor of its own
            shape = port.shape
            (port,) = network.add(
                "Convert", [port], destination_type=port.element_type.name
            ).outputs
            port.shape = shape
        port.names.append(name)
        network.result(port, f"{name}/result")
    conversion.states.finish(network)
    return network


def _captured(tensor: tf.Tensor) -> Value:
    if not isinstance(tensor, _tf.EagerTensor):
        raise IRError(f"the function uses {tensor.name!r}, which belongs to another one")
    if tensor.dtype in (tf.resource, tf.variant):
        return tensor
    value = tensor.numpy()
    return Complex.of(value) if np.iscomplexobj(value) else value


def _name_of(tensor: tf.Tensor) -> str:
    given = tensor.op.node_def.attr.get("_user_specified_name")
    return (given.s.decode() if given is not None else "") or tensor.op.name


def _paths(
    structure: Any, order: Callable[[Mapping[Any, Any]], list[Any]], path: str = ""
) -> Iterator[str]:
    """The names of the tensors in a structure, made of the keys that lead to them.

    Args:
        order: puts the keys of a mapping in order. TensorFlow sorts the keys of its outputs,
            and the user's keys stay in their order.
    """
    if structure is None:
        return
    if isinstance(structure, Mapping):
        parts = [(str(key), structure[key]) for key in order(structure)]
    elif isinstance(structure, list | tuple):
        fields = getattr(structure, "_fields", range(len(structure)))
        parts = list(zip(map(str, fields), structure))
        if not path:
            parts = [(f"output_{i}", part) for i, part in enumerate(structure)]
    else:
        yield path
        return
    for name, part in parts:
        yield from _paths(part, order, f"{path}/{name}" if path else name)


# --- The files ------------------------------------------------------------------------------------


def _write_files(contents: Mapping[str, Callable[[BinaryIO], None]]) -> None:
    """Writes all files under temporary names, and renames them if all were written."""
    temporary = {
        path: os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}.tmp") for path in contents
    }
    for path in contents:
        if os.path.isdir(path):
            raise IRError(f"{path}: cannot be written: it is a directory")
    try:
        for path, write in contents.items():
            with open(temporary[path], "xb") as file:
                write(file)
        for path in contents:
            os.replace(temporary[path], path)
    except OSError as error:
        raise IRError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        for name in temporary.values():
            if os.path.exists(name):
                os.unlink(name)
