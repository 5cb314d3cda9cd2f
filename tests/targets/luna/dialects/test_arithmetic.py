"""Which arithmetic a graph means, by its generation and what the caller says; whole networks of the
training side.
"""

import json

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.operators.integer_ops import INTEGER_OPS, find_integer_op
from lingeronnx.runtime.integer.dialects import detect_dialect
from lingeronnx.targets import PLATFORMS
from lingeronnx.targets.arithmetic import Arithmetic, RecurrentArithmetic, Requantization
from tests.run.test_conformance import golden
from tests.targets.luna.dialects.helpers import ADD, THIRD, model, run, some


def test_the_domain_decides():
    """Averages of another scale: the training side rescales them, the executor of venus does
    not.
    """
    x = np.full((1, 1, 2, 2), 10, np.int8)
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2], "scale_x": 16.0, "scale_o": 32.0}
    assert run("QAvgPool2d", attrs, x).item() == 20
    assert run("QAvgPool2d", attrs, x, arithmetic="executor").item() == 10
    assert run("AvgPool2dInt", attrs, x, domain="thinker").item() == 10
    assert run("AvgPool2dInt", attrs, x, domain="thinker", arithmetic="training").item() == 20


def test_names_of_the_first_generation_keep_the_executor():
    """Domain `linger` with operators called in the old way is generation 1."""
    x = {"x": some(0, 1, 4)}
    for kind, number in (("QAdd", 3), ("iqAdd", 1)):
        graph = model([(kind, ["x", "x"], ["y"], ADD, "linger")], x)
        assert detect_dialect(graph) == number
    assert (
        detect_dialect(
            model(
                [("Quant", ["x"], ["y"], {"scale_x": 1.0}, "linger")],
                {"x": np.zeros((1, 2), np.float32)},
            )
        )
        == 3
    )
    assert (
        detect_dialect(model([("QAdd", ["x", "x"], ["y"], ADD, "thinker")], x, domain="thinker"))
        == 1
    )


def test_the_executor_ignores_the_rounding():
    """3 / 2 down is 1 while training, 2 on the chip."""
    x = np.full((1, 4), 3, np.int8)
    attrs = {**ADD, "scale_y": 8.0, "scale_o": 8.0}
    y = np.zeros((1, 4), np.int8)
    assert run("QAdd", attrs, x, y, mode="floor")[0, 0] == 1
    assert run("QAdd", attrs, x, y, mode="floor", arithmetic="executor")[0, 0] == 2


@pytest.mark.parametrize(
    ("word", "error", "says"),
    [
        ("chip", lo.ConfigError, "'executor' or 'training'"),
        ("training", lo.ModelError, "not known"),
    ],
)
def test_what_is_refused(word, error, says):
    x = {"x": some(0, 1, 4)}
    graph = model([("iqSub", ["x", "x"], ["y"], ADD, "thinker")], x, domain="thinker")
    with pytest.raises(error, match=says):
        lo.Session(graph, word).run(None, x)


def test_a_float_graph_has_no_arithmetic():
    graph = model([("Relu", ["x"], ["y"], {}, "")], {"x": np.zeros((1, 2), np.float32)})
    with pytest.raises(lo.ConfigError, match="no integer operator"):
        lo.Session(graph, "training")


def test_an_unknown_rounding():
    with pytest.raises(lo.ModelError, match="quant_mode = 'down'"):
        run("QAdd", ADD, some(0, 1, 2), some(1, 1, 2), mode="down")


@pytest.mark.parametrize("kind", ("QGelu", "QSwish", "QGlobalAveragePool2d"))
def test_what_the_executor_has_not(kind):
    x = some(0, 1, 2, 3, 3)
    with pytest.raises(
        lo.ModelError, match="venusA has no such operator; it exists only in arithmetic='training'"
    ):
        run(kind, {"scale_x": 16.0, "scale_o": 16.0}, x, platform="venusA", arithmetic="executor")


def test_curves_that_the_first_generation_had_not():
    x = some(0, 1, 4).astype(np.int16)
    attrs = {"scale_x": 2048.0, "scale_o": 128.0}
    run("iqSigmoid", attrs, x, domain="thinker", arithmetic="training")
    with pytest.raises(lo.ModelError, match="arcs, in a graph of generation 1"):
        run("iqSigmoid", attrs, x, domain="thinker", arithmetic="training", platform="arcs")


def test_tables_are_complete():
    """Every operator of generation 3 is computed on every chip; the training side takes no
    executor's word for it.
    """
    for target in PLATFORMS:
        if target.has_packer:
            assert set(THIRD) <= set(target.training[3])
        for table in target.training.values():
            scaled = [
                how for name, how in table.items() if how != Arithmetic() and name != "Requant"
            ]
            assert all(
                how.requantize == Requantization(shifts=True, rounding=None) for how in scaled
            )
            assert all(how.trained for how in scaled if isinstance(how, RecurrentArithmetic))


LINGER3 = golden() / "linger3"


@pytest.mark.slow
@pytest.mark.skipif(not (LINGER3 / "index.json").is_file(), reason="the networks are not at hand")
@pytest.mark.parametrize("number", (0, 1))
def test_network_of_the_training_side(number):
    """Every tensor of every sample, and the real outputs, bit for bit."""
    entry = json.loads((LINGER3 / "index.json").read_text())[number]
    vectors = np.load(LINGER3 / entry["io"])
    session = lo.Session(LINGER3 / entry["model"])
    lo.check_model(LINGER3 / entry["model"])
    (feeds,) = session.get_inputs()
    taps = {
        name: array
        for name, array, _ in session.taps(
            {feeds.name: vectors["input"].reshape(-1, *feeds.shape[1:])}
        )
    }
    assert len(taps[feeds.name]) == entry["samples"]
    writers = {v.name: node for node in session.model.graph for v in node.outputs}
    for name in entry["tensors"]:
        held = writers[name].inputs[0].name if writers[name].op_type == "Dequant" else name
        want = vectors[f"int_{name}"]
        assert np.array_equal(taps[held].reshape(want.shape), want), name
    (output,) = session.get_outputs()
    assert np.array_equal(taps[output.name].reshape(vectors["output"].shape), vectors["output"])


def test_names_of_generation_three():
    """The formats say what generation 3 calls its operators; a node of either name is the same
    operator.
    """
    assert {
        form.name: form.v3_name for form in INTEGER_OPS if form.v3_name not in (None, form.name)
    } == THIRD
    for first, third in THIRD.items():
        (node,) = model([(third, ["x"], ["y"], {}, "linger")], {"x": some(0, 1, 2)}).graph
        assert find_integer_op(node).name == first
