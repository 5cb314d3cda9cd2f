"""`check` and `structure` take files and graphs, float and integer alike, and refuse what they cannot judge."""

import pytest

from lingeronnx.analysis.check.check import check, structure
from lingeronnx.errors import ConfigError
from lingeronnx.graph import ir
from tests.nets import concat, quantized, samples


@pytest.fixture(scope="module")
def made():
    """Return (float graph, what quantize made of it for venus)."""
    model = concat()
    return model, quantized(model, platform="venus")


def test_a_file_and_its_graph_are_judged_alike(made, tmp_path):
    """Law: check(path) == check(graph), of a float model and of an integer graph."""
    model, result = made
    ir.save(model, tmp_path / "m.onnx")
    result.save(tmp_path / "q.onnx")
    for graph, name, kind in ((model, "m.onnx", "float"), (result.graph, "q.onnx", "integer")):
        found = check(tmp_path / name, platform="venus")
        assert found.kind == kind
        assert found.to_dict() == check(graph, platform="venus").to_dict()


def test_the_platform_is_the_graph_s_own(made):
    """An integer graph is judged as what it was made for; a float one as for the default chip."""
    model, result = made
    assert check(model).platform == "venus"
    assert check(quantized(model, platform="arcs").graph).platform == "arcs"
    assert check(result.graph, platform="arcs").platform == "arcs"


def test_packer_arguments_of_a_float_model_are_refused(made):
    with pytest.raises(ConfigError, match="belong to an integer graph"):
        check(made[0], packer_args="-p venus")


def test_structure_of_a_float_model_needs_data(made):
    model, result = made
    with pytest.raises(ConfigError, match="give --calib DATA"):
        structure(model)
    planned, built = structure(model, calib=samples(model, 16)), structure(result)
    assert [row[0] for row in planned.weights] == [row[0] for row in built.weights] != []
