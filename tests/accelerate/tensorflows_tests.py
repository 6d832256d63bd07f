"""Runs TensorFlow's own tests of control flow without and with `tf_ti.accelerate`.

TensorFlow's wheel does not have them. Put files of its sources into a folder, from
tensorflow/python/kernel_tests/control_flow, ops/ragged and autograph/operators, and run

    python tests/accelerate/tensorflows_tests.py FOLDER

It prints the tests that fail with tf_ti's loops alone, and exits with 1 if one is not EXPLAINED.
"""

import importlib
import pathlib
import sys
import unittest

import tf_ti

_INSIDES = "it looks for operations of the type While, or into their bodies"
# Tests that fail, each with the reason. A name is that of a method, or of a class and a method.
EXPLAINED = {
    "testDoNotAccumulateForwardTensorsForReductionOps": _INSIDES,
    "testDoNotAccumulateForwardTensorsForTensorListReductionOps": _INSIDES,
    "testMultipleWhileLoopsGradStateless": _INSIDES,
    "testMultipleWhileLoopsWithDeps": _INSIDES,
    "testMultipleWhileLoopsWithFunc": _INSIDES,
    "testMultipleWhileLoopsWithVarsDeps": _INSIDES,
    "ForLoopTest.test_range_tensor": _INSIDES,
    "ForLoopTest.test_range_tensor_explicit_limit_delta": _INSIDES,
    "ForLoopTest.test_range_tensor_explicit_limit_negative_delta": _INSIDES,
    "ForLoopTest.test_range_tensor_random_delta": _INSIDES,
    "ForLoopTest.test_range_tensor_random_negative_delta": _INSIDES,
    "ForLoopTest.test_tensor_with_extra_test_object_vars": _INSIDES,
    "ForLoopTest.test_tf_ragged_tensor": _INSIDES,
    "ForLoopTest.test_tf_ragged_tensor_higher_dimensional": _INSIDES,
    "ForLoopTest.test_tf_ragged_tensor_no_loop_vars": _INSIDES,
    "WhileLoopTest.test_tensor": _INSIDES,
    "WhileLoopTest.test_tensor_creating_complex_variable": _INSIDES,
    "WhileLoopTest.test_tensor_creating_variable": _INSIDES,
    "WhileLoopTest.test_tensor_creating_variable_of_dynamic_shape": _INSIDES,
    "WhileLoopTest.test_tensor_with_python_state": _INSIDES,
    "WhileLoopTest.test_tensor_with_side_effecting_condition": _INSIDES,
}


def failures(module, is_on):
    """The names of the tests of a module that fail, and the number of those that ran."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    with tf_ti.accelerate(is_on):
        result = unittest.TextTestRunner(verbosity=0).run(suite)
    failed = [test.id().split(" ")[0] for test, _ in result.failures + result.errors]
    return set(failed), result.testsRun


def main(folder):
    sys.path.insert(0, str(folder))
    unexplained = 0
    for path in sorted(pathlib.Path(folder).glob("*_test.py")):
        module = importlib.import_module(path.stem)
        without, count = failures(module, False)
        only_with = failures(module, True)[0] - without
        print(f"{path.stem}: {count} ran, {len(without)} fail anyway, {len(only_with)} with tf_ti")
        for name in sorted(only_with):
            parts = name.split(".")
            reason = EXPLAINED.get(parts[-1]) or EXPLAINED.get(".".join(parts[-2:]))
            unexplained += reason is None
            print(f"  {name}: {reason or 'NOT EXPLAINED'}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
