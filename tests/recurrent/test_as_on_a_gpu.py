"""Sequences in their loops, as on a GPU: tests of the native op run again on the processor."""

import importlib.util
import pathlib

import numpy as np
import pytest
import recurrent_programs as programs
import tensorflow as tf

import tf_ti

pytestmark = pytest.mark.usefixtures("sequences_as_on_a_gpu")


def again(module, *names):
    """Tests of another file of this folder, which run here with the fixture."""
    path = pathlib.Path(__file__).with_name(f"test_{module}.py")
    spec = importlib.util.spec_from_file_location(f"{module}_as_on_a_gpu", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    for name in names:
        globals()[f"test_{module}_{name}"] = getattr(loaded, f"test_{name}")
    return loaded


rng = again(
    "sequences",
    "a_random_sequence_is_what_the_definition_says",
    "gradients_are_the_numeric_ones",
    "second_gradients_are_the_numeric_ones_of_the_first",
    "what_lengths_and_masks_leave_out_is_not_read",
    "half_precisions_are_rounded_at_the_outputs_only",
    "clipping_stops_gradients",
    "sizes_may_be_zero",
    "lengths_are_of_any_integer_dtype",
    "lengths_of_an_empty_batch_may_be_an_empty_list",
    "gradients_of_no_steps_are_those_of_the_states",
    "all_dimensions_may_be_unknown",
    "a_saved_model_computes_and_trains_what_was_saved",
    "weights_may_be_variables_and_gradients_reach_them",
    "a_sequence_runs_inside_of_a_loop_and_a_dataset",
    "xla_compiles_sequences_and_their_gradients",
    "functions_that_run_eagerly_give_the_same",
    "tangents_go_forward_through_a_sequence",
    "lanes_of_a_map_are_sequences_of_their_own",
).rng  # the fixture of those tests
again(
    "vectorize",
    "lanes_that_share_weights_are_one_batch",
    "lanes_may_differ_in_their_lengths",
    "lanes_with_weights_of_their_own_run_one_by_one",
    "jacobians_are_the_gradients_one_by_one",
)
again(
    "bad_input",
    "a_wrong_size_is_an_error_that_names_both_arguments",
    "a_wrong_size_that_is_known_late_is_an_error_too",
    "a_wrong_rank_is_an_error",
    "a_length_outside_of_the_time_is_an_error_that_names_it",
    "a_length_beyond_32_bits_is_named_as_it_is",
    "lengths_that_are_too_large_for_any_op_are_an_error_too",
    "lengths_are_one_for_each_sequence",
    "a_mask_has_the_layout_of_x",
)
again(
    "recognition",
    "states_of_another_batch_than_the_inputs_are_an_error",
    "unknown_extents",
    "one_row_serves_a_batch_whose_size_is_unknown",
    "batches_that_do_not_fit_are_an_error",
    "no_steps_and_no_rows",
    "types",
    "second_gradients",
    "forward_mode",
    "compiled_by_xla",
    "vectorized_map",
    "a_data_set_maps_it",
    "a_saved_model",
    "states_that_a_mask_holds",
    "a_mask_of_an_unknown_batch",
)


def test_gradients_of_sequences_in_a_while_loop():
    flat = programs.tensors("lstm", 3, 4, 3, 5, np.float64)

    def loss_of(times):
        total = tf.zeros([], tf.float64)
        for _ in times:
            total += tf.reduce_sum(programs.run("lstm", flat[0] + total, flat[1:-3], *flat[-3:])[0])
        return total

    @tf.function  # makes a tf.while_loop of a tensor
    def gradients(times):
        with tf.GradientTape() as tape:
            tape.watch(flat)
            loss = loss_of(times)
        return tape.gradient(loss, flat)

    for found, expected in zip(gradients(tf.range(3)), gradients(range(3)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_debugger_checks_no_tensors_that_the_loop_leaves_out():
    x, h = tf.ones([2, 5, 3]), tf.zeros([2, 1, 4])
    weights = [tf.fill([1, 16, 3], 0.1), tf.fill([1, 16, 4], 0.1), tf.zeros([1, 16])]

    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf_ti.lstm_sequence(x, h, h, None, *weights)[0]
        return y, tape.gradient(y, x)

    expected = tf.function(slope)(x)
    tf.debugging.enable_check_numerics()
    try:
        found = tf.function(slope)(x)
        for each, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(each, other)
        with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
            tf.function(slope)(x * np.nan)
    finally:
        tf.debugging.disable_check_numerics()
