"""Other tests are skipped where an oracle is missing: one that is installed must not be."""

import importlib
import importlib.metadata

import pytest

ORACLES = ["jax", "onnx", "onnxruntime", "openvino", "torch"]


@pytest.mark.parametrize("name", ORACLES)
def test_an_oracle_that_is_installed_can_be_imported(name):
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed: `make oracles` does it")
    importlib.import_module(name)
