"""A part of `onnx_nodes`, see there."""

import importlib

import pytest

pytest.importorskip("onnx", reason="onnx is not installed: run `make oracles`")
onnx_nodes = importlib.import_module("onnx_nodes")


@pytest.mark.slow
def test_every_24th_test_of_onnx_is_answered_as_openvino_answers_it(tmp_path):
    answered = [onnx_nodes.answer(test, tmp_path) for test in onnx_nodes.tests()[::24]]
    answered = [each for each in answered if each is not None]
    assert len(answered) > 40
    outcomes = {each.path.stem: onnx_nodes.attempt(each) for each in answered}
    assert {name: what for name, what in outcomes.items() if what[0] != "pass"} == {}
