"""Unexpected exceptions on invalid models are reported as what ONNX's checker says of the model."""

import onnx
import pytest
from onnx import TensorProto, helper

import lingeronnx as lo
from lingeronnx.operators.invalid_models import explain_invalid_models
from tests.cli.conftest import here  # noqa: F401 - a fixture


def make_model(declared_columns: int) -> onnx.ModelProto:
    """Return a Relu of a 1x4 input whose output is declared as 1 x `declared_columns`."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, declared_columns])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "relu")], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@explain_invalid_models
def fail(*arguments: object, error: Exception, **options: object) -> None:
    """Raise `error`, whatever the model is."""
    raise error


@pytest.mark.parametrize("is_path", [False, True])
def test_the_checker_explains_a_failure(tmp_path, is_path):
    model = make_model(5)
    if is_path:
        path = tmp_path / "net.onnx"
        onnx.save(model, path)
    with pytest.raises(lo.ModelError) as caught:
        fail(3, path if is_path else model, error=KeyError("x"))
    text = str(caught.value)
    assert text.startswith("net.onnx is not" if is_path else "the model is not")
    assert "(4) vs (5)" in text
    assert "KeyError in test_invalid_models.py, line" in text
    assert "\n" not in text
    assert isinstance(caught.value.__cause__, KeyError)


def test_named_arguments_and_words_of_a_command(tmp_path):
    onnx.save(make_model(5), tmp_path / "net.onnx")
    for options in ({"model": make_model(5)}, {"word": f"--model={tmp_path / 'net.onnx'}"}):
        with pytest.raises(lo.ModelError, match="not a valid ONNX model"):
            fail(error=ValueError(), **options)


@pytest.mark.parametrize(
    "error", [KeyError("x"), MemoryError(), OSError("disk"), lo.DataError("d")]
)
def test_other_errors_stay(tmp_path, error):
    """A bug with a valid model stays a bug, and errors of user and system stay in any case."""
    model = make_model(4 if isinstance(error, KeyError) else 5)
    with pytest.raises(type(error)) as caught:
        fail(model, tmp_path / "missing.onnx", "x" * 5000 + ".onnx", "\0.onnx", error=error)
    assert caught.value is error


def test_a_failure_of_the_checker_hides_nothing(monkeypatch):
    def broken(model: object) -> None:
        raise RuntimeError("the checker itself")

    monkeypatch.setattr("lingeronnx.operators.schemas.check_model", broken)
    with pytest.raises(KeyError):
        fail(make_model(5), error=KeyError("x"))


@pytest.mark.parametrize(("columns", "code"), [(4, 70), (5, 1)])
def test_commands(here, monkeypatch, columns, code):  # noqa: F811 - the fixture
    def broken(*_: object, **__: object) -> None:
        raise KeyError("x")

    onnx.save(make_model(columns), "net.onnx")
    monkeypatch.setattr("lingeronnx.analysis.check.check.normalize_model", broken)
    result = here("check", "net.onnx")
    assert result.exit_code == code
    if code == 1:
        assert result.stderr.startswith("error: net.onnx is not a valid ONNX model, and an ")
        assert result.stderr.count("\n") == 1
    else:
        assert "this is a bug in lingeronnx" in result.stderr
