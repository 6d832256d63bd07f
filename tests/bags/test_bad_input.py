"""Wrong calls of the bags: errors that name input, position and value, and change nothing."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

InvalidArgument = tf.errors.InvalidArgumentError
ERRORS = (ValueError, TypeError, InvalidArgument)
PYTHON_ERRORS = (ValueError, TypeError)

TABLE = np.arange(15, dtype=np.float32).reshape(5, 3)


@pytest.fixture(autouse=True)
def the_next_correct_call_is_right():
    yield
    y = tf_ti.embedding_bag_offsets_sum(tf.constant(TABLE), [0, 2, 2, 4], [0, 0, 3], 1)
    np.testing.assert_array_equal(y, [[3, 4, 5], [12, 15, 18], [12, 13, 14]])


def names(error, name, *values):
    """Checks that the message has the input's name and each value, as words of their own."""
    message = str(error.value)
    assert re.search(rf"\b({name})\b", message), message
    for value in values:
        assert re.search(rf"(?<![\w.-]){re.escape(str(value))}(?![\w.]*\d)", message), (
            value,
            message,
        )


def refused(call, table, name, *values, kinds=InvalidArgument):
    """The call on a table raises, with the names and values, and leaves the table as it was."""
    for make in (tf.constant, tf.Variable):
        held = make(table)
        with pytest.raises(kinds) as error:
            call(held)
        names(error, name, *values)
        np.testing.assert_array_equal(held, table)


def in_mode(mode, call, *inputs):
    """Calls eagerly, in a graph with static shapes, or in one that knows no dimension."""
    if mode == "eager":
        return call(*inputs)
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    if mode == "static":
        return tf.function(call)(*inputs)
    signature = [
        tf.TensorSpec(None if mode == "unknown" else [None] * x.ndim, x.dtype) for x in inputs
    ]
    return tf.function(call, input_signature=signature)(*inputs)


each_mode = pytest.mark.parametrize("mode", ["eager", "static", "dimensions", "unknown"])
early_and_late = pytest.mark.parametrize("mode", ["eager", "unknown"])


def typed(names, cases, numbers=lambda case: case):
    """Parametrizes with each case, as int32 where its numbers are, and as int64."""
    some = [
        (index_type, *(case if isinstance(case, tuple) else (case,)))
        for index_type in (np.int32, np.int64)
        for case in cases
        if np.all(np.abs(np.array(numbers(case), np.float64) + 0.5) < np.iinfo(index_type).max + 1)
    ]
    return pytest.mark.parametrize(f"index_type, {names}", some)


ENDS = [2**31 - 1, -(2**31), 2**31, 2**32 + 1, -(2**32) + 1, 2**63 - 1, -(2**63)]


# Ids


@pytest.mark.needs_checked_ids
@each_mode
@typed("value", [5, -1, *ENDS])
def test_an_id_that_is_no_row_is_named(mode, value, index_type):
    indices = np.array([0, 1, value, 1], index_type)
    offsets = np.array([0, 1, 3], index_type)
    refused(
        lambda table: in_mode(
            mode,
            lambda i, o: tf_ti.embedding_bag_offsets_sum(table, i, o),
            indices,
            offsets,
        ),
        TABLE,
        "indices",
        2,
        value,
        5,
    )


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("value", [5, -1])
def test_an_id_that_is_no_row_is_named_by_every_function(value):
    def offsets(table, **more):
        return tf_ti.embedding_bag_offsets_sum(table, [0, 1, 1, value], [0, 1], **more)

    refused(offsets, TABLE, "indices", 3, value)
    for reduction in ("mean", "max"):
        refused(
            lambda t, reduction=reduction: tf_ti.embedding_bag_offsets(
                t, [0, 1, 1, value], [0, 1], reduction=reduction
            ),
            TABLE,
            "indices",
            3,
            value,
        )
    refused(lambda t: offsets(t, max_norm=1.0), TABLE, "indices", 3, value)
    refused(lambda t: offsets(t, padding_idx=2), TABLE, "indices", 3, value)
    weights = [1.0, 2.0, 3.0, 4.0]
    refused(lambda t: offsets(t, per_sample_weights=weights), TABLE, "indices", 3, value)
    refused(lambda t: tf_ti.embedding_bag_packed(t, [[0, 1], [1, value]]), TABLE, "indices", value)
    refused(
        lambda t: tf_ti.embedding_segments_sum(t, [0, 1, 1, value], [0, 0, 1, 1], 2),
        TABLE,
        "indices",
        3,
        value,
    )
    ids = [[0, 1], [1, value]]
    for form in (
        tf.constant(ids),
        tf.ragged.constant(ids),
        tf.SparseTensor([[0, 0], [0, 1], [1, 0], [1, 1]], [0, 1, 1, value], [2, 2]),
    ):
        for combiner in ("sum", "mean", "sqrtn", "max"):
            refused(
                lambda t, form=form, combiner=combiner: tf_ti.embedding_bag(
                    t, form, combiner=combiner
                ),
                TABLE,
                "indices|ids",
                value,
            )


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("value", [15, -1, 2**40])
def test_an_id_that_no_shard_has_is_named(strategy, value):
    shards = [tf.Variable(TABLE) for _ in range(3)]
    with pytest.raises(InvalidArgument) as error:
        ids = tf.ragged.constant([[1, 2], [value]], dtype=tf.int64)
        tf_ti.embedding_bag(shards, ids, partition_strategy=strategy)
    names(error, "indices|ids", value)


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("width", [0, 1, 3])
def test_an_id_is_looked_at_whatever_the_width(width):
    refused(
        lambda t: tf_ti.embedding_bag_offsets_sum(t, [0, 7], [0]), TABLE[:, :width], "indices", 1, 7
    )


@pytest.mark.needs_checked_ids
def test_an_id_of_a_table_without_rows_is_named():
    refused(lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], [0]), TABLE[:0], "indices", 0)


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("indices", [[9, 0, 1], [0, 1, 9]], ids=["before", "after"])
def test_an_id_that_belongs_to_no_bag_is_looked_at_too(indices):
    refused(
        lambda t: tf_ti.embedding_bag_offsets_sum(t, indices, [1, 2], include_last_offset=True),
        TABLE,
        "indices",
        indices.index(9),
        9,
    )


@pytest.mark.needs_checked_ids
def test_a_wrong_id_among_very_many_is_named():
    indices = np.zeros([300_000], np.int64)
    indices[234_567] = -7
    for offsets in ([0], np.arange(0, 300_000, 10)):
        refused(
            lambda t, offsets=offsets: tf_ti.embedding_bag_offsets_sum(t, indices, offsets),
            TABLE,
            "indices",
            234_567,
            -7,
        )


@pytest.mark.needs_checked_ids
def test_a_wrong_id_where_there_are_weights_of_zero_is_named():
    refused(
        lambda t: tf_ti.embedding_bag_offsets_sum(t, [0, 7], [0], None, [0.0, 0.0]),
        TABLE,
        "indices",
        1,
        7,
    )


@pytest.mark.needs_checked_ids
def test_numbers_beyond_int32_do_not_become_other_ids():
    for ids in ([2**32 + 1], [2**31], [-(2**32) + 1]):
        with pytest.raises((*ERRORS, OverflowError)):
            tf_ti.embedding_bag_offsets_sum(TABLE, ids, [0])
        with pytest.raises((*ERRORS, OverflowError)):
            tf_ti.embedding_bag_offsets_sum(TABLE, tf.constant([1]), [0], ids[0])
        with pytest.raises((*ERRORS, OverflowError)):
            tf_ti.embedding_bag_offsets_sum(TABLE, tf.constant([1]), ids)


LARGEST = np.uint64(2**64 - 1)


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("value", [LARGEST, 2**64 - 2, 2**63, 2**63 + 1])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_ids_beyond_int64_do_not_become_other_ids(value, max_norm):
    options = {"max_norm": max_norm}
    ids = np.array([[0, value]], np.uint64)
    for call in (
        lambda t: tf_ti.embedding_bag_packed(t, ids, padding_idx=-1, **options),
        lambda t: tf_ti.embedding_bag(t, ids, prune_invalid=True, **options),
        lambda t: tf_ti.embedding_bag(t, tf.RaggedTensor.from_tensor(ids), **options),
        lambda t: tf_ti.embedding_bag_packed(t, [[0]], default_index=np.uint64(value), **options),
        lambda t: tf_ti.embedding_bag_offsets_sum(t, [0, 0], ids[0], **options),
        lambda t: tf_ti.embedding_segments_sum(t, [0, 0], ids[0], 9, **options),
    ):
        refused(call, TABLE, "indices|default_index|offsets|segment_ids", 2**63 - 1)


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("value", [-1, 9])
def test_a_wrong_id_in_a_gradient_is_named_before_anything_is_written(value):
    table = tf.Variable(TABLE)
    with pytest.raises(InvalidArgument) as error, tf.GradientTape() as tape:
        y = tf_ti.embedding_bag_packed(table, [[0, value]])
        tape.gradient(y, table)
    names(error, "indices", value)
    np.testing.assert_array_equal(table, TABLE)


# Offsets


@pytest.mark.needs_checked_ids
@early_and_late
@typed(
    "offsets, position, value",
    [
        ([0, 3, 2, 4], 2, 2),
        ([0, 5], 1, 5),
        ([5], 0, 5),
        ([-1, 2], 0, -1),
        ([0, 2, -2], 2, -2),
        ([0, 2**31 - 1], 1, 2**31 - 1),
        ([-(2**31), 0], 0, -(2**31)),
        ([0, 2**63 - 1], 1, 2**63 - 1),
        ([0, 2**32], 1, 2**32),
        ([-(2**63), 0], 0, -(2**63)),
        ([2**63 - 1, -(2**63)], 1, -(2**63)),
    ],
    numbers=lambda case: case[0],
)
@pytest.mark.parametrize("include_last_offset", [False, True])
def test_offsets_that_decrease_or_leave_the_ids_are_named(
    mode, offsets, position, value, index_type, include_last_offset
):
    offsets = np.array(offsets, index_type)
    refused(
        lambda table: in_mode(
            mode,
            lambda i, o: tf_ti.embedding_bag_offsets_sum(
                table, i, o, include_last_offset=include_last_offset
            ),
            np.array([0, 1, 2, 3], index_type),
            offsets,
        ),
        TABLE,
        "offsets",
        position,
        value,
    )


@each_mode
def test_a_last_offset_is_needed_where_it_is_promised(mode):
    def call(table):
        return in_mode(
            mode,
            lambda o: tf_ti.embedding_bag_offsets_sum(table, [0], o, include_last_offset=True),
            np.zeros([0], np.int32),
        )

    refused(call, TABLE, "offsets", kinds=ERRORS)


@pytest.mark.needs_checked_ids
def test_the_first_of_two_wrong_ids_is_named_though_it_is_in_a_giant_bag():
    indices = np.zeros(20_010, np.int64)
    indices[[5, 20_005]] = [99, 98]
    refused(
        lambda t: tf_ti.embedding_bag_offsets_sum(t, indices, np.array([0, 20_000])),
        TABLE,
        "indices",
        5,
        99,
    )


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("padding_idx", [None, 0])
def test_ids_of_no_bag_beside_a_table_without_rows_of_enormous_ones(padding_idx):
    def call():
        return tf_ti.embedding_bag_offsets_sum(
            tf.zeros([0, 2**45]),
            tf.zeros([65536], tf.int32),
            tf.zeros([0], tf.int32),
            padding_idx=padding_idx,
        )

    if padding_idx is None:
        with pytest.raises(InvalidArgument, match=r"indices\[0\] is 0"):
            call()
    else:
        assert call().shape == (0, 2**45)


@pytest.mark.needs_checked_ids
def test_an_offset_of_a_giant_table_of_bags_is_named():
    offsets = np.zeros([100_000], np.int64)
    offsets[77_777] = 3
    indices = np.array([0, 1, 2, 3], np.int64)
    refused(
        lambda t: tf_ti.embedding_bag_offsets_sum(t, indices, offsets),
        TABLE,
        "offsets",
        77_778,
        0,
    )


# Segments


@pytest.mark.needs_checked_ids
@early_and_late
@typed(
    "segment_ids, position, value",
    [
        ([0, 2, 1], 2, 1),
        ([0, 1, 3], 2, 3),
        ([-1, 0, 1], 0, -1),
        ([0, 1, 2**31 - 1], 2, 2**31 - 1),
        ([-(2**31), 0, 1], 0, -(2**31)),
        ([0, 1, 2**32], 2, 2**32),
        ([-(2**63), 0, 2**63 - 1], 0, -(2**63)),
    ],
    numbers=lambda case: case[0],
)
def test_segment_ids_that_are_not_sorted_or_no_segment_are_named(
    mode, segment_ids, position, value, index_type
):
    refused(
        lambda table: in_mode(
            mode,
            lambda i, s: tf_ti.embedding_segments_sum(table, i, s, 3),
            np.array([0, 1, 2], index_type),
            np.array(segment_ids, index_type),
        ),
        TABLE,
        "segment_ids",
        position,
        value,
    )


@each_mode
@pytest.mark.parametrize("count", [-1, -(2**31)])
def test_a_negative_number_of_segments_is_named(mode, count):
    empty = np.zeros([0], np.int32)

    def call(table):
        return in_mode(
            mode,
            lambda count: tf_ti.embedding_segments_sum(table, empty, empty, count),
            np.int32(count),
        )

    refused(call, TABLE, "num_segments", count, kinds=ERRORS)


@each_mode
@pytest.mark.parametrize("count", [[3], [], [[1]]], ids=str)
def test_a_number_of_segments_that_is_no_scalar_is_refused(mode, count):
    def call(table):
        return in_mode(
            mode,
            lambda count: tf_ti.embedding_segments_sum(table, [0], [0], count),
            np.array(count, np.int32),
        )

    refused(call, TABLE, "num_segments", kinds=ERRORS)


# The default index


@early_and_late
@typed("value", [5, -2, *ENDS])
@pytest.mark.parametrize("offsets", [[0, 1, 1], [0, 1]], ids=["an empty bag", "no empty bag"])
def test_a_default_index_that_is_no_row_is_named(mode, value, index_type, offsets):
    refused(
        lambda table: in_mode(
            mode,
            lambda d: tf_ti.embedding_bag_offsets_sum(
                table, np.array([0, 1], index_type), np.array(offsets, index_type), d
            ),
            index_type(value),
        ),
        TABLE,
        "default_index",
        value,
        kinds=ERRORS,
    )


def test_a_default_index_that_is_no_row_is_named_by_every_function():
    ids = tf.ragged.constant([[0], []])
    for call in (
        lambda t: tf_ti.embedding_bag_offsets(t, [0], [0], 7),
        lambda t: tf_ti.embedding_bag_packed(t, [[0]], default_index=7),
        lambda t: tf_ti.embedding_segments_sum(t, [0], [0], 2, 7),
        lambda t: tf_ti.embedding_bag(t, ids, default_index=7),
        lambda t: tf_ti.embedding_bag(t, ids.to_sparse(), default_index=7),
        lambda t: tf_ti.embedding_bag(t, tf.constant([[0]]), default_index=7),
    ):
        refused(call, TABLE, "default_index", 7, kinds=ERRORS)


def test_a_default_index_of_shards_that_is_no_row_is_named():
    shards = [tf.constant(TABLE)] * 2
    for value in (10, -2):
        with pytest.raises(ERRORS) as error:
            tf_ti.embedding_bag(shards, tf.constant([[1]]), default_index=value)
        names(error, "default_index", value)


def test_a_table_without_rows_has_no_default_row():
    refused(
        lambda t: tf_ti.embedding_bag_offsets_sum(
            t, np.zeros([0], np.int32), np.zeros([1], np.int32), 0
        ),
        TABLE[:0],
        "default_index",
        0,
        kinds=ERRORS,
    )


@each_mode
@pytest.mark.parametrize("value", [[0], [0, 1], [[0]], []], ids=str)
def test_a_default_index_that_is_no_scalar_is_refused(mode, value):
    refused(
        lambda table: in_mode(
            mode,
            lambda d: tf_ti.embedding_bag_offsets_sum(table, [0], [0], d),
            np.array(value, np.int32),
        ),
        TABLE,
        "default_index",
        kinds=ERRORS,
    )


@pytest.mark.parametrize("value", [0.5, 1.0, "1", True, tf.constant(True), object(), [None]])
def test_a_default_index_that_is_no_integer_is_refused(value):
    refused(
        lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], [0], value),
        TABLE,
        "default_index",
        kinds=ERRORS,
    )


# Shapes


SHAPES = {
    "indices of rank 0": (lambda t: tf_ti.embedding_bag_offsets_sum(t, 0, [0]), "indices"),
    "indices of rank 2": (lambda t: tf_ti.embedding_bag_offsets_sum(t, [[0]], [0]), "indices"),
    "offsets of rank 0": (lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], 0), "offsets"),
    "offsets of rank 2": (lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], [[0]]), "offsets"),
    "packed indices of rank 0": (lambda t: tf_ti.embedding_bag_packed(t, 0), "indices"),
    "packed indices of rank 1": (lambda t: tf_ti.embedding_bag_packed(t, [0]), "indices"),
    "packed indices of rank 3": (lambda t: tf_ti.embedding_bag_packed(t, [[[0]]]), "indices"),
    "segments of rank 2": (
        lambda t: tf_ti.embedding_segments_sum(t, [0], [[0]], 1),
        "segment_ids",
    ),
    "more segment ids than ids": (
        lambda t: tf_ti.embedding_segments_sum(t, [0], [0, 0], 1),
        "segment_ids",
    ),
    "fewer segment ids than ids": (
        lambda t: tf_ti.embedding_segments_sum(t, [0, 1], [0], 1),
        "segment_ids",
    ),
    "more weights than ids": (
        lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], [0], None, [1.0, 2.0]),
        "per_sample_weights",
    ),
    "fewer weights than ids": (
        lambda t: tf_ti.embedding_bag_offsets_sum(t, [0, 1], [0], None, [1.0]),
        "per_sample_weights",
    ),
    "weights of rank 0": (
        lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], [0], None, 1.0),
        "per_sample_weights",
    ),
    "weights of rank 2": (
        lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], [0], None, [[1.0]]),
        "per_sample_weights",
    ),
    "packed weights of rank 1": (
        lambda t: tf_ti.embedding_bag_packed(t, [[0, 1]], [1.0, 2.0]),
        "per_sample_weights",
    ),
    "packed weights transposed": (
        lambda t: tf_ti.embedding_bag_packed(t, [[0, 1, 2]], [[1.0], [2.0], [3.0]]),
        "per_sample_weights",
    ),
    "segment weights of another number": (
        lambda t: tf_ti.embedding_segments_sum(t, [0], [0], 1, None, [1.0, 2.0]),
        "per_sample_weights",
    ),
    "weights of dense ids": (
        lambda t: tf_ti.embedding_bag(t, tf.constant([[0, 1]]), tf.constant([[1.0]])),
        "weights",
    ),
    "dense ids of rank 0": (lambda t: tf_ti.embedding_bag(t, tf.constant(0)), "ids"),
}  # fmt: skip


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_that_do_not_fit_are_refused_with_the_inputs_name(case):
    call, name = SHAPES[case]
    refused(call, TABLE, name, kinds=ERRORS)
    table = tf.Variable(TABLE)
    with pytest.raises(ERRORS) as error:
        tf.function(lambda: call(table))()
    names(error, name)


@pytest.mark.parametrize(
    ("i", "o", "w", "name"),
    [
        ([[0, 1]], [0], [1.0, 2.0], "indices"),
        ([0, 1], [[0]], [1.0, 2.0], "offsets"),
        ([0, 1], 0, [1.0, 2.0], "offsets"),
        ([0, 1], [0], [1.0], "per_sample_weights"),
        ([0, 1], [0], [1.0, 2.0, 3.0], "per_sample_weights"),
        ([0, 1], [0], [[1.0, 2.0]], "per_sample_weights"),
        ([0, 1], [0], 1.0, "per_sample_weights"),
    ],
)
def test_shapes_that_are_seen_late_are_refused_too(i, o, w, name):
    refused(
        lambda table: in_mode(
            "unknown",
            lambda i, o, w: tf_ti.embedding_bag_offsets_sum(table, i, o, None, w),
            np.array(i, np.int32),
            np.array(o, np.int32),
            np.array(w, np.float32),
        ),
        TABLE,
        name,
    )


@pytest.mark.parametrize(
    ("i", "s", "name"),
    [([0, 1], [0], "segment_ids"), ([0], [[0]], "segment_ids"), ([[0]], [0], "indices")],
)
def test_segments_whose_shapes_are_seen_late_are_refused_too(i, s, name):
    refused(
        lambda table: in_mode(
            "unknown",
            lambda i, s: tf_ti.embedding_segments_sum(table, i, s, 2),
            np.array(i, np.int32),
            np.array(s, np.int32),
        ),
        TABLE,
        name,
    )


@pytest.mark.parametrize("ids", [[0], 0, [[[0]]]], ids=str)
def test_packed_ids_whose_shape_is_seen_late_are_refused_too(ids):
    refused(
        lambda table: in_mode(
            "unknown", lambda i: tf_ti.embedding_bag_packed(table, i), np.array(ids, np.int32)
        ),
        TABLE,
        "indices",
    )


@each_mode
def test_a_table_of_rank_0_is_refused(mode):
    with pytest.raises(ERRORS) as error:
        in_mode(
            mode, lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], [0]), np.array(1, np.float32)
        )
    names(error, "emb_table")


def test_a_variable_that_turns_out_a_scalar_is_refused():
    table = tf.Variable(TABLE, shape=tf.TensorShape(None))
    call = tf.function(lambda: tf_ti.embedding_bag_offsets_sum(table, [0], [0]))
    call()
    table.assign(1.0)
    with pytest.raises(InvalidArgument) as error:
        call()
    names(error, "emb_table")


# Types


TYPES = {
    "a table of strings": (lambda t: tf_ti.embedding_bag_packed([["a"]], [[0]]), "emb_table"),
    "a table of booleans": (lambda t: tf_ti.embedding_bag_packed([[True]], [[0]]), "emb_table"),
    "a ragged table": (
        lambda t: tf_ti.embedding_bag_packed(tf.ragged.constant([[1.0], []]), [[0]]),
        "emb_table",
    ),
    "a sparse table": (
        lambda t: tf_ti.embedding_bag_packed(tf.sparse.from_dense([[1.0]]), [[0]]),
        "emb_table",
    ),
    "no table": (lambda t: tf_ti.embedding_bag_packed(None, [[0]]), "emb_table"),
    "an object for a table": (lambda t: tf_ti.embedding_bag_packed(object(), [[0]]), "emb_table"),
    "indices of floats": (lambda t: tf_ti.embedding_bag_packed(t, [[0.0]]), "indices"),
    "indices of booleans": (lambda t: tf_ti.embedding_bag_packed(t, [[True]]), "indices"),
    "indices of strings": (lambda t: tf_ti.embedding_bag_packed(t, [["0"]]), "indices"),
    "no indices": (lambda t: tf_ti.embedding_bag_packed(t, None), "indices"),
    "ragged indices": (
        lambda t: tf_ti.embedding_bag_packed(t, tf.ragged.constant([[0], []])),
        "indices",
    ),
    "offsets of floats": (lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], [0.0]), "offsets"),
    "offsets of booleans": (lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], [False]), "offsets"),
    "offsets of a tensor of booleans": (
        lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], tf.constant([False])),
        "offsets",
    ),
    "no offsets": (lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], None), "offsets"),
    "segment ids of floats": (
        lambda t: tf_ti.embedding_segments_sum(t, [0], tf.constant([0.0]), 1),
        "segment_ids",
    ),
    "a number of segments that is a boolean": (
        lambda t: tf_ti.embedding_segments_sum(t, [0], [0], True),
        "num_segments",
    ),
    "a number of segments of floats": (
        lambda t: tf_ti.embedding_segments_sum(t, [0], [0], 1.5),
        "num_segments",
    ),
    "no number of segments": (
        lambda t: tf_ti.embedding_segments_sum(t, [0], [0], None),
        "num_segments",
    ),
    "weights of float64": (
        lambda t: tf_ti.embedding_bag_offsets_sum(
            t, [0], [0], None, tf.constant([1.0], tf.float64)
        ),
        "per_sample_weights",
    ),
    "weights of float16": (
        lambda t: tf_ti.embedding_bag_offsets_sum(
            t, [0], [0], None, tf.constant([1.0], tf.float16)
        ),
        "per_sample_weights",
    ),
    "weights of integers": (
        lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], [0], None, tf.constant([1])),
        "per_sample_weights",
    ),
    "weights of strings": (
        lambda t: tf_ti.embedding_bag_offsets_sum(t, [0], [0], None, ["1"]),
        "per_sample_weights",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TYPES)
def test_types_that_do_not_fit_are_refused_in_python_with_the_inputs_name(case):
    call, name = TYPES[case]
    refused(call, TABLE, name, kinds=PYTHON_ERRORS)


@pytest.mark.parametrize(
    ("table_type", "weights_type"),
    [
        (tf.float64, tf.float32),
        (tf.float16, tf.bfloat16),
        (tf.bfloat16, tf.float16),
        (tf.complex64, tf.float32),
        (tf.int32, tf.float32),
        (tf.int32, tf.int64),
    ],
)
def test_weights_of_a_type_that_is_not_the_tables_are_refused(table_type, weights_type):
    with pytest.raises(PYTHON_ERRORS) as error:
        tf_ti.embedding_bag_packed(tf.cast(TABLE, table_type), [[0]], tf.ones([1, 1], weights_type))
    names(error, "per_sample_weights", table_type.name, weights_type.name)


@pytest.mark.parametrize("dtype", [tf.complex64, tf.complex128])
def test_complex_numbers_have_no_maximum(dtype):
    table = tf.cast(TABLE, dtype)
    for call in (
        lambda: tf_ti.embedding_bag_offsets(table, [0], [0], reduction="max"),
        lambda: tf_ti.embedding_bag_packed(table, [[0]], reduction="max"),
        lambda: tf_ti.embedding_bag(table, tf.constant([[0]]), combiner="max"),
    ):
        with pytest.raises(PYTHON_ERRORS, match=f"max.*{dtype.name}|{dtype.name}.*max"):
            call()


# Options


@pytest.mark.parametrize("reduction", ["mean", "max"])
def test_weights_are_refused_where_the_reduction_is_no_sum(reduction):
    with pytest.raises(ValueError, match=f"per_sample_weights.*{reduction}|{reduction}.*weights"):
        tf_ti.embedding_bag_offsets(TABLE, [0], [0], None, [1.0], reduction)
    with pytest.raises(ValueError, match=f"per_sample_weights.*{reduction}|{reduction}.*weights"):
        tf_ti.embedding_bag_packed(TABLE, [[0]], [[1.0]], reduction)


def test_weights_are_refused_beside_a_maximum():
    with pytest.raises(ValueError, match="weights.*max|max.*weights"):
        tf_ti.embedding_bag(TABLE, tf.constant([[0]]), tf.constant([[1.0]]), "max")


@pytest.mark.parametrize("reduction", ["prod", "SUM", "", None, 3, "sqrtn"])
def test_a_reduction_that_there_is_not_is_refused(reduction):
    for call in (
        lambda: tf_ti.embedding_bag_offsets(TABLE, [0], [0], reduction=reduction),
        lambda: tf_ti.embedding_bag_packed(TABLE, [[0]], reduction=reduction),
    ):
        with pytest.raises(PYTHON_ERRORS) as error:
            call()
        names(error, "reduction")
        assert repr(reduction) in str(error.value)


@pytest.mark.parametrize("combiner", ["prod", "Mean", "", None, 3])
def test_a_combiner_that_there_is_not_is_refused(combiner):
    with pytest.raises(PYTHON_ERRORS) as error:
        tf_ti.embedding_bag(TABLE, tf.constant([[0]]), combiner=combiner)
    names(error, "combiner")
    assert repr(combiner) in str(error.value)


@pytest.mark.parametrize("value", [1.5, "x", [1], object()])
def test_a_padding_index_that_is_no_integer_is_refused(value):
    for call in (
        lambda: tf_ti.embedding_bag_packed(TABLE, [[0]], padding_idx=value),
        lambda: tf_ti.embedding_bag(TABLE, tf.constant([[0]]), padding_idx=value),
    ):
        with pytest.raises(PYTHON_ERRORS) as error:
            call()
        names(error, "padding_idx")


@pytest.mark.parametrize("value", ["x", [1.0], object(), -1.0, float("nan")])
def test_a_max_norm_that_is_no_norm_is_refused(value):
    for call in (
        lambda: tf_ti.embedding_bag_packed(TABLE, [[0]], max_norm=value),
        lambda: tf_ti.embedding_bag(TABLE, tf.constant([[0]]), max_norm=value),
    ):
        with pytest.raises(PYTHON_ERRORS) as error:
            call()
        names(error, "max_norm")


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), -np.inf, None, "2", True, [2.0], 1j])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_norm_type_that_is_no_norm_is_refused(value, max_norm):
    is_number = isinstance(value, (int, float)) and value is not True
    options = {"max_norm": max_norm, "norm_type": value}
    for call in (
        lambda: tf_ti.embedding_bag_offsets(TABLE, [0], [0], **options),
        lambda: tf_ti.embedding_bag(TABLE, tf.constant([[0]]), **options),
    ):
        with pytest.raises(ValueError if is_number else TypeError) as error:
            call()
        names(error, "norm_type")
        assert repr(value) in str(error.value)


@pytest.mark.parametrize("dtype", [tf.int32, tf.uint8, tf.complex64], ids=lambda d: d.name)
def test_a_max_norm_of_what_is_no_float_is_refused(dtype):
    with pytest.raises(PYTHON_ERRORS) as error:
        tf_ti.embedding_bag_packed(tf.cast([[1, 2]], dtype), [[0]], max_norm=1.0)
    names(error, "max_norm", dtype.name)


# embedding_bag


RAGGED = tf.ragged.constant([[0, 1], [2]])
SPARSE = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [0, 1, 2], [2, 2])
DENSE = tf.constant([[0, 1], [2, 3]])
W = [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        (RAGGED, DENSE),
        (RAGGED, tf.constant(W)),
        (RAGGED, SPARSE.with_values(W)),
        (SPARSE, RAGGED.with_values(tf.constant(W))),
        (SPARSE, tf.constant(W)),
        (DENSE, RAGGED.with_values(tf.constant(W))),
        (DENSE, SPARSE.with_values(W)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_weights_of_another_kind_than_ids_are_refused(ids, weights):
    with pytest.raises(PYTHON_ERRORS) as error:
        tf_ti.embedding_bag(TABLE, ids, weights)
    names(error, "weights")


@pytest.mark.parametrize(
    "weights",
    [
        tf.ragged.constant([[1.0], [2.0, 3.0]]),
        tf.ragged.constant([[1.0, 2.0]]),
        tf.ragged.constant([[1.0, 2.0], [3.0], []]),
        tf.ragged.constant([[1.0, 2.0], [3.0, 4.0]]),
    ],
    ids=lambda value: str(value.to_list()),
)
def test_ragged_weights_of_other_rows_than_ids_are_refused(weights):
    refused(lambda t: tf_ti.embedding_bag(t, RAGGED, weights), TABLE, "weights", kinds=ERRORS)
    spec = tf.RaggedTensorSpec([None, None], tf.float32)
    call = tf.function(
        lambda weights: tf_ti.embedding_bag(TABLE, RAGGED, weights), input_signature=[spec]
    )
    with pytest.raises(ERRORS) as error:
        call(weights)
    names(error, "weights")


@pytest.mark.parametrize(
    "weights",
    [
        tf.SparseTensor([[0, 0], [0, 1], [1, 1]], W, [2, 2]),
        tf.SparseTensor([[0, 0], [1, 0]], W[:2], [2, 2]),
        tf.SparseTensor([[0, 0], [0, 1], [1, 0]], W, [3, 2]),
    ],
    ids=["another place", "another number", "another shape"],
)
def test_sparse_weights_of_other_places_than_ids_are_refused(weights):
    refused(lambda t: tf_ti.embedding_bag(t, SPARSE, weights), TABLE, "weights", kinds=ERRORS)


UNFIT = {
    "offsets": (
        lambda w, **o: tf_ti.embedding_bag_offsets_sum(TABLE, [0, 1, 2], [0], None, w, **o),
        tf.ones([2]),
        ["(3,)", "(2,)"],
    ),
    "packed": (
        lambda w, **o: tf_ti.embedding_bag_packed(TABLE, DENSE, w, **o),
        tf.ones([1, 2]),
        ["(2, 2)", "(1, 2)"],
    ),
    "segments": (
        lambda w, **o: tf_ti.embedding_segments_sum(TABLE, [0], [0], 1, None, w, **o),
        tf.ones([2]),
        ["(1,)", "(2,)"],
    ),
    "dense": (
        lambda w, **o: tf_ti.embedding_bag(TABLE, DENSE, w, "mean", **o),
        tf.ones([1, 2]),
        ["(2, 2)", "(1, 2)"],
    ),
    "dense of rank 3": (
        lambda w, **o: tf_ti.embedding_bag(TABLE, tf.zeros([2, 3, 4], tf.int32), w, **o),
        tf.ones([3, 2, 4]),
        ["(2, 3, 4)", "(3, 2, 4)"],
    ),
    "ragged of another number of values": (
        lambda w, **o: tf_ti.embedding_bag(TABLE, RAGGED, w, **o),
        tf.ragged.constant([[1.0, 2.0], [3.0, 4.0]]),
        ["(3,)", "(4,)"],
    ),
    "ragged of another number of rows": (
        lambda w, **o: tf_ti.embedding_bag(TABLE, RAGGED, w, **o),
        tf.ragged.constant([[1.0, 2.0], [3.0], []]),
        ["(3,)", "(4,)"],  # of the row splits
    ),
    "sparse of another shape": (
        lambda w, **o: tf_ti.embedding_bag(TABLE, SPARSE, w, **o),
        tf.SparseTensor([[0, 0], [0, 1], [1, 0]], W, [3, 2]),
        ["(2, 2)", "(3, 2)"],
    ),
    "sparse of another number of values": (
        lambda w, **o: tf_ti.embedding_bag(TABLE, SPARSE, w, **o),
        tf.SparseTensor([[0, 0], [1, 0]], W[:2], [2, 2]),
        ["(3, 2)", "(2, 2)"],  # of the indices
    ),
}  # fmt: skip


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("options", [{}, {"max_norm": 1.0}], ids=["plain", "max_norm"])
@pytest.mark.parametrize("case", UNFIT)
def test_weights_whose_static_shape_does_not_fit_are_refused_by_both_shapes(
    case, options, is_graph
):
    call, weights, shapes = UNFIT[case]
    with pytest.raises(ValueError) as error:
        if is_graph:
            tf.function(lambda: call(weights, **options)).get_concrete_function()
        else:
            call(weights, **options)
    names(error, "weights|per_sample_weights")
    for shape in shapes:
        assert shape in str(error.value)


@pytest.mark.parametrize("spec", [None, [None, None, None]], ids=str)
@pytest.mark.parametrize("prune", [False, True])
def test_dense_weights_whose_shape_is_seen_late_are_refused_though_they_are_as_many(spec, prune):
    call = tf.function(
        lambda ids, w: tf_ti.embedding_bag(TABLE, ids, w, "mean", prune_invalid=prune),
        input_signature=[tf.TensorSpec(spec, tf.int32), tf.TensorSpec(spec, tf.float32)],
    )
    assert call(tf.zeros([2, 3, 4], tf.int32), tf.ones([2, 3, 4])).shape == [2, 3, 3]
    with pytest.raises(InvalidArgument, match="weights must have the shape of ids"):
        call(tf.zeros([2, 3, 4], tf.int32), tf.ones([3, 2, 4]))


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("strategy", ["eager", "function"])
@pytest.mark.parametrize(
    ("places", "position"),
    [
        ([[1, 0], [0, 0], [0, 1]], 1),
        ([[0, 0], [2, 0], [1, 0]], 2),
    ],
)
def test_a_sparse_tensor_out_of_order_is_refused(places, position, strategy):
    ids = tf.SparseTensor(places, [0, 1, 2], [3, 2])

    def call(table):
        run = tf.function if strategy == "function" else lambda f: f
        return run(lambda: tf_ti.embedding_bag(table, ids))()

    refused(call, TABLE, "ids|segment_ids", position)


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("place", [[2, 0], [-1, 0], [2**40, 0], [-(2**63), 0], [2**63 - 1, 0]])
def test_a_sparse_tensor_that_leaves_its_shape_is_refused(place):
    places = np.array([[0, 0], place] if place[0] >= 0 else [place, [0, 0]], np.int64)
    ids = tf.SparseTensor(places, [0, 1], [2, 2])
    refused(lambda t: tf_ti.embedding_bag(t, ids), TABLE, "ids|segment_ids", place[0])


@pytest.mark.parametrize("place", [[0, 4, 0], [1, -1, 0], [0, 3, 0]])
def test_a_sparse_tensor_that_leaves_its_shape_in_the_middle_is_refused(place):
    # The row of such a place, counted through, is another one's.
    ids = tf.SparseTensor([[0, 0, 0], place], [0, 1], [2, 3, 2])
    refused(lambda t: tf_ti.embedding_bag(t, ids), TABLE, "ids|segment_ids", kinds=ERRORS)


def test_a_sparse_tensor_of_rank_1_is_refused():
    ids = tf.SparseTensor([[0]], [0], [2])
    refused(lambda t: tf_ti.embedding_bag(t, ids), TABLE, "ids", kinds=ERRORS)


def test_a_sparse_tensor_of_rank_1_that_is_seen_late_is_refused():
    call = tf.function(
        lambda ids: tf_ti.embedding_bag(TABLE, ids),
        input_signature=[tf.SparseTensorSpec(None, tf.int32)],
    )
    assert call(tf.SparseTensor([[0, 0]], [0], [1, 1])).shape == [1, 3]
    with pytest.raises(InvalidArgument) as error:
        call(tf.SparseTensor([[0]], [0], [2]))
    names(error, "ids")


@pytest.mark.parametrize(
    "ids",
    [
        *(None, "x", object(), tf.constant([[0.5]]), tf.constant([["a"]]), tf.constant([[True]])),
        *(tf.ragged.constant([[0.5]]), tf.SparseTensor([[0, 0]], [True], [1, 1])),
    ],
    ids=lambda ids: type(ids).__name__,
)
def test_ids_that_are_no_ids_are_refused(ids):
    with pytest.raises(PYTHON_ERRORS) as error:
        tf_ti.embedding_bag(TABLE, ids)
    names(error, "ids")


SHARDS = {
    "none": [],
    "of another dtype": [tf.zeros([2, 3]), tf.zeros([2, 3], tf.float64)],
    "of another width": [tf.zeros([2, 3]), tf.zeros([2, 4])],
    "of another rank": [tf.zeros([2, 3]), tf.zeros([2])],
    "that are none": [None, tf.zeros([2, 3])],
    "of strings": [tf.constant([["a"]]), tf.constant([["b"]])],
}


@pytest.mark.parametrize("shards", SHARDS)
def test_shards_that_do_not_fit_are_refused(shards):
    for weights in (None, tf.constant([[1.0]])):
        with pytest.raises(ERRORS) as error:
            tf_ti.embedding_bag(SHARDS[shards], tf.constant([[0]]), weights)
        names(error, "emb_table")


@pytest.mark.needs_checked_ids
def test_shards_are_only_for_embedding_bag():
    shards = [tf.constant(TABLE), tf.constant(TABLE)]
    for call in (
        lambda: tf_ti.embedding_bag_offsets_sum(shards, [9], [0]),
        lambda: tf_ti.embedding_bag_packed(shards, [[9]]),
        lambda: tf_ti.embedding_segments_sum(shards, [9], [0], 1),
    ):
        with pytest.raises(ERRORS) as error:
            call()
        names(error, "emb_table|indices")


def test_a_sharded_variable_is_no_table_but_for_embedding_bag():
    # As tf.distribute.ParameterServerStrategy makes it, which needs servers.
    parts = [tf.Variable(part) for part in np.array_split(TABLE, 3)]
    sharded = tf.__internal__.distribute.ShardedVariable(parts)
    for call in (
        lambda: tf_ti.embedding_bag([sharded], DENSE),
        lambda: tf_ti.embedding_bag_offsets_sum(sharded, [0], [0]),
        lambda: tf_ti.embedding_bag_packed(sharded, DENSE),
        lambda: tf_ti.embedding_segments_sum(sharded, [0], [0], 1),
    ):
        with pytest.raises(TypeError, match="emb_table.*ShardedVariable.*tf_ti.embedding_bag"):
            call()


@pytest.mark.parametrize("strategy", ["DIV", "row", "", None, 3])
def test_a_partition_strategy_that_there_is_not_is_refused(strategy):
    with pytest.raises(PYTHON_ERRORS) as error:
        tf_ti.embedding_bag([TABLE, TABLE], tf.constant([[0]]), partition_strategy=strategy)
    names(error, "partition_strategy")
    assert repr(strategy) in str(error.value)


@pytest.mark.parametrize("sizes", [(2, 3, 3), (4, 2, 2), (3, 3, 1)])
@pytest.mark.parametrize("is_known", [True, False])
def test_shards_of_unfit_sizes_are_refused(sizes, is_known):
    shards = [tf.Variable(tf.zeros([n, 2]), shape=[n if is_known else None, 2]) for n in sizes]
    with pytest.raises(ValueError if is_known else InvalidArgument) as error:
        tf.function(lambda: tf_ti.embedding_bag(shards, tf.constant([[0]])))()
    names(error, "emb_table", *sizes)


# Variables


@pytest.mark.parametrize(
    "value", [None, 3, TABLE, tf.constant(TABLE), "x"], ids=lambda v: str(type(v))
)
def test_advising_huge_pages_takes_a_variable(value):
    with pytest.raises(PYTHON_ERRORS) as error:
        tf_ti.advise_huge_pages(value)
    names(error, "variable")


def test_a_variable_that_was_not_initialised_is_an_error():
    with tf.Graph().as_default():
        table = tf.compat.v1.get_variable("empty", [3, 2], use_resource=True)
        y = tf_ti.embedding_bag_offsets_sum(table, [0], [0])
        with tf.compat.v1.Session() as session:
            with pytest.raises((tf.errors.FailedPreconditionError, tf.errors.NotFoundError)):
                session.run(y)
            session.run(tf.compat.v1.global_variables_initializer())
            assert session.run(y).shape == (1, 2)


# Random calls, right and wrong: an answer where the definition has one, else an error


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("seed", range(8), indirect=True)
def test_random_calls_are_answered_or_refused_by_the_definition(rng):
    answered = 0
    for _ in range(60):
        rows, count, batch = (int(n) for n in rng.integers([0, 0, 0], [6, 9, 5]))
        width = int(rng.integers(0, 20))
        table = rng.integers(-5, 5, [rows, width]).astype(np.float64)
        index_type = [np.int32, np.int64][rng.integers(0, 2)]
        indices = rng.integers(0, max(rows, 1), count)
        offsets = np.sort(rng.integers(0, count + 1, batch))
        for values in (indices, offsets):
            if len(values) and rng.random() < 0.15:
                ends = [-1, rows, count, count + 1, 2**31 - 1, -(2**31)]
                values[rng.integers(0, len(values))] = ends[rng.integers(0, len(ends))]
        default_index = [None, -1, 0, rows - 1, rows, -2][rng.integers(0, 6)]
        weights = rng.integers(-3, 4, count + (rng.random() < 0.1)).astype(np.float64)
        weights = weights if rng.random() < 0.5 else None
        case = (table.shape, indices, offsets, default_index, weights, index_type)
        bounds = [*offsets, count]
        right = (
            all(0 <= i < rows for i in indices)
            and all(0 <= a <= b <= count for a, b in zip(bounds, bounds[1:]))
            and (default_index is None or -1 <= default_index < rows)
            and (weights is None or len(weights) == count)
        )
        held = [tf.constant, tf.Variable][rng.integers(0, 2)](table)
        try:
            y = tf_ti.embedding_bag_offsets_sum(
                held, indices.astype(index_type), offsets.astype(index_type), default_index, weights
            )
        except ERRORS as error:
            assert not right, (case, error)
            assert re.search("indices|offsets|default_index|per_sample_weights", str(error))
            continue
        assert right, case
        answered += 1
        for at, (a, b) in enumerate(zip(bounds, bounds[1:])):
            expected = np.zeros(width)
            for k in range(a, b):
                expected += table[indices[k]] * (1 if weights is None else weights[k])
            if a == b and default_index not in (None, -1):
                expected = table[default_index]
            np.testing.assert_array_equal(y[at], expected, err_msg=str(case))
    assert 0 < answered < 60


# Nonsense, in a process that may die of it


PROGRAM = """
import os, sys
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # its allocator waits for memory for ten seconds
import numpy as np
import tensorflow as tf
import tf_ti

def expect(call, *kinds):
    try:
        y = call()
    except kinds as error:
        return str(error)
    raise AssertionError(f"no error, but {str(y)[:300]}")
ANY = (ValueError, TypeError, tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError)
table = tf.Variable(tf.ones([5, 3]))
"""


def test_more_bags_than_memory_are_an_error(run_program):
    run_program(
        PROGRAM
        + """
empty = tf.zeros([0], tf.int64)
for count in (2**45, 2**55, 2**62, 2**63 - 1):
    count = tf.constant(count, tf.int64)
    for t in (tf.ones([5, 3]), table):
        expect(lambda: tf_ti.embedding_segments_sum(t, empty, empty, count), *ANY)
        expect(lambda: tf_ti.embedding_segments_sum(t, empty, empty, count, 1), *ANY)
wide = tf.zeros([0, 2**40])
expect(lambda: tf_ti.embedding_bag_offsets_sum(wide, empty, tf.zeros([2**20], tf.int64)), *ANY)
expect(lambda: tf_ti.embedding_bag_packed(wide, tf.zeros([2**10, 0], tf.int64)), *ANY)
for shape in ([2**40, 2], [2**62, 2], [2**31, 2**31, 2**31, 5]):
    ids = tf.SparseTensor(np.zeros([1, len(shape)], np.int64), [0], shape)
    expect(lambda: tf_ti.embedding_bag(table, ids), *ANY)
many = tf.zeros([2**62, 0], tf.int32)  # of no elements
expect(lambda: tf_ti.embedding_bag_packed(table, many), *ANY)
expect(lambda: tf_ti.embedding_bag(table, many), *ANY)
y = tf_ti.embedding_bag_offsets_sum(table, [0, 1], [0])
np.testing.assert_array_equal(y, [[2] * 3])
""",
        is_first=True,
    )


FUZZ = """
import random
from tf_ti._library import ops

FLOATS = [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.complex64]
TYPES = [*FLOATS, tf.int32, tf.int8, tf.uint64]
SHAPES = [[5, 3], [5], [0, 3], [5, 0], [], [5, 2, 2]]
VARIABLES = {t: [tf.Variable(tf.ones(s, t)) for s in SHAPES] for t in TYPES}
HASH_TABLE = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, -1, -2)
HANDLES = [HASH_TABLE.resource_handle, tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[5, 3]),
           tf.raw_ops.StackV2(max_size=3, elem_type=tf.float32)]

def integers(dtype):
    low, high = dtype.min, dtype.max
    values = [
        [0, 2, 4, 1], [4, 4, 4, 4], [0, 1, 5, 2], [-1, 0, 1, 2], [low, 1, 2, 3], [0, 1, 2, high],
        [], [0], [0, 0], [0, 4], [4], [0, 2, 1], [0, 5], [-1, 2], [low, high], [high, low],
        [0, 2, 4], [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 2, high], 0, 1, 2, 3, 4, 5, -1, low, high,
        [[0, 1], [2, 3]], [[0, 1, 2, 3]], [[5, 0]], [[low, high]], [[]], [[0]], [[[0, 1]]]]
    return [tf.constant(value, dtype) for value in values]

INTEGERS = {dtype: integers(dtype) for dtype in (tf.int32, tf.int64)}
ATTRIBUTES = {
    "padding_idx": [[], [0], [4], [-1], [2**63 - 1], [-2**63], [0, 1]],
    "include_last_offset": [False, True],
    "reduction": ["sum", "mean", "sqrtn", "max", "prod"],
    "num_argmax": [0, 1, 2],
    "bags": ["offsets", "packed", "segments", "none"],
}

def mutant(name, value, t, dtype):
    if name in ATTRIBUTES:
        return random.choice(ATTRIBUTES[name])
    if name == "T":
        return random.choice(TYPES)
    if name == "emb_table":
        return tf.ones(random.choice(SHAPES), t)
    if name == "resource":
        return random.choice([*HANDLES, *(v.handle for v in VARIABLES[random.choice([t, *TYPES])])])
    if name == "grad":
        return tf.ones(random.choice([[2, 3], [2], [2, 0], [0, 3], [3, 3], [], [2, 2, 2]]), t)
    if name == "num_emb":
        value = random.choice([0, 1, 4, -1, 2**31, 2**62, 2**63 - 1, -2**63, [5], []])
        return tf.constant(value, tf.int64)
    if name == "num_segments":  # as many as fit into memory, or far too many
        value = random.choice([0, 1, 3, 5, -1, dtype.min, [2], []] + [2**62] * (dtype == tf.int64))
        return tf.constant(value, dtype)
    kind = random.choice([t, t, t, *TYPES]) if name == "per_sample_weights" else None
    def one():
        if kind is None:
            return random.choice(INTEGERS[dtype])
        return tf.ones(random.choice([[4], [2, 2], [], [3], [0], [4, 1]]), kind)
    if isinstance(value, list):
        return [one() for _ in range(random.choice([0, 1, 1, 1, 2]))]
    return one()

def correct(kind, gradient, resource, t, dtype):
    reduction = random.choice(["sum", "mean", "max"] + ["sqrtn"] * (not t.is_integer))
    if kind == "segments" or t.is_complex and reduction == "max":
        reduction = "sum"
    weighted = gradient == "weights" or (reduction != "max" and random.random() < 0.5)
    shape = [2, 2] if kind == "packed" else [4]
    given = {
        "indices": tf.constant([0, 2, 4, 1], dtype, shape),
        "default_index": [tf.constant(3, dtype)] * random.randint(0, 1),
        "per_sample_weights": [tf.ones(shape, t)] * weighted,
        "padding_idx": random.choice([[], [2]]),
    }
    bounds = tf.constant([0, 2] if kind == "offsets" else [0, 0, 1, 1], dtype)
    if gradient != "table":
        if resource:
            given["resource"] = VARIABLES[t][0].handle
        else:
            given["emb_table"] = tf.ones([5, 3], t)
    if gradient is None:
        if resource:
            given["T"] = t
        if kind == "offsets":
            given |= {"offsets": bounds, "include_last_offset": False}
        if kind == "segments":
            given |= {"segment_ids": bounds, "num_segments": tf.constant(2, dtype)}
        else:
            given |= {"reduction": reduction, "num_argmax": int(reduction == "max")}
        name = {"offsets": "embedding_bag_offsets", "packed": "embedding_bag_packed",
                "segments": "embedding_segments_sum"}[kind]
    else:
        given |= {"grad": tf.ones([2, 3], t), "bounds": [bounds] * (kind != "packed"),
                  "bags": kind, "include_last_offset": False,
                  "reduction": "sum" if gradient == "weights" else reduction}
        name = "embedding_bag_weights_grad"
        if gradient == "table":
            name = "embedding_bag_grad"
            given["num_emb"] = tf.constant(5, tf.int64)
            given["argmax"] = [tf.zeros([2, 3], dtype)] * (reduction == "max")
    return "tf_ti_" + ("resource_" if resource and gradient != "table" else "") + name, given

def fuzz(seed):
    random.seed(seed)
    gradient = random.choice([None, None, "table", "weights"])
    t = random.choice(TYPES if gradient is None else FLOATS)
    dtype = random.choice([tf.int32, tf.int64])
    kind = random.choice(["offsets", "packed", "segments"])
    name, given = correct(kind, gradient, random.random() < 0.5, t, dtype)
    for changed in random.sample(sorted(given), random.choice([0, 1, 1, 1, 2, 3])):
        given[changed] = mutant(changed, given[changed], t, dtype)
    shown = {k: [(v.numpy().tolist() if v.dtype in INTEGERS else v.shape, v.dtype.name)
                 if isinstance(v, tf.Tensor) else v for v in tf.nest.flatten(value)]
             for k, value in given.items()}
    print("fuzz", seed, name, shown, file=sys.stderr, flush=True)
    op = getattr(ops, name)

    def in_graph():
        tensors = {k: v for k, v in given.items() if isinstance(v, tf.Tensor)}
        others = {k: v for k, v in given.items() if k not in tensors}
        specs = {k: tf.TensorSpec(None, v.dtype) for k, v in tensors.items()}
        function = tf.function(lambda **tensors: op(**tensors, **others), autograph=False)
        return function.get_concrete_function(**specs)(**tensors)

    try:
        for out in tf.nest.flatten(in_graph() if random.random() < 0.2 else op(**given)):
            str(out)
    except Exception as error:
        assert not isinstance(error, (tf.errors.InternalError, MemoryError)), error
        return 0
    return 1

first, last = map(int, sys.argv[1:3])
answered = sum(fuzz(seed) for seed in range(first, last))
print(answered)
y = ops.tf_ti_embedding_bag_offsets(
    emb_table=tf.ones([5, 3]), indices=tf.constant([0, 1]), offsets=tf.constant([0]),
    default_index=[], per_sample_weights=[], num_argmax=0).output
np.testing.assert_array_equal(y, [[2] * 3])
"""


@pytest.mark.slow
def test_random_nonsense_for_the_raw_ops_ends_no_process(run_program):
    finished = run_program(PROGRAM + FUZZ, 0, 1000, check=False, is_first=True)
    # The last line before a crash tells the call.
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert 300 < int(finished.stdout) < 900
