"""Refinement: on the plan's grid, with less mean error and less error altogether."""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.luna import VENUS
from lingeronnx.operators.chip_part import extract_chip_part
from lingeronnx.quantization import plan_model, prepare_model, refine_weights
from lingeronnx.quantization.lower import lower
from lingeronnx.quantization.methods.refine import RefinementOptions
from lingeronnx.quantization.partition import Partition
from lingeronnx.runtime.metrics import Agreement
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.runtime.session import Session
from tests import nets
from tests.nets import Net


def net():
    """Two convolutions, a sum and a linear layer; inputs of neighbouring values as in images."""
    n = Net(3, 8, 8, seed=11)
    a = n.node("Relu", n.conv("x", (8, 3, 3, 3), pads=[1, 1, 1, 1]))
    b = n.conv(a, (8, 8, 3, 3), pads=[1, 1, 1, 1])
    s = n.node("Relu", n.node("Add", a, b))
    f = n.node("Flatten", n.node("GlobalAveragePool", n.conv(s, (12, 8, 3, 3), pads=[1, 1, 1, 1])))
    n.linear(f, (12, 5), out="y")
    return n.graph("y")


def smooth(count, seed):
    """Random images whose neighbouring pixels are alike."""
    x = np.random.default_rng(seed).standard_normal((count, 3, 4, 4))
    return x.repeat(2, 2).repeat(2, 3).astype(np.float32)


def test_refined_integers_are_closer_on_unseen_data():
    """Refinement on some samples helps on others."""
    graph = net()
    calib, test = {"x": smooth(64, 0)}, {"x": smooth(256, 1)}
    result = quantize(graph, calib)
    plain = Session(
        lower(
            Partition.build(result.float_graph, result.plan.floats, VENUS), result.plan, VENUS
        ).graph
    )
    want = next(a for n, a, _ in FloatRunner(graph, ["y"]).run(test))
    errors = []
    for session in (plain, result.session()):
        measure = Agreement()
        measure.add(want, session.run(["y"], test)[0])
        errors.append(measure.mse)
    assert errors[1] < 0.8 * errors[0]


def _weights(planned, methods):
    constants = refine_weights(planned, methods).graph.initializers
    return {name: value.const_value.numpy().tobytes() for name, value in constants.items()}


@pytest.mark.parametrize(
    ("model", "bits", "idle"),
    [
        (net, 4, {"match_float_outputs", "compensate_summands", "coordinate_descent"}),
        (net, 8, set()),
        (nets.plain, 8, {"compensate_summands"}),
    ],
)
def test_methods_that_are_alike_leave_the_same_weights(model, bits, idle):
    """With 4 bits all but `block` is done anyway; without a sum there is nothing to make up for."""
    graph = model()
    feed = {"x": smooth(16, 0)} if model is net else nets.samples(graph, 16)
    planned = plan_model(
        prepare_model(graph, feed, None, {"platform": "generic", "weight_bits": bits})
    )
    plain = _weights(planned, RefinementOptions())
    methods = {
        switch: RefinementOptions(**{switch: True})
        for switch in (
            "match_float_outputs",
            "compensate_summands",
            "coordinate_descent",
            "block_reconstruction",
        )
    }
    assert {
        name
        for name, other in methods.items()
        if RefinementOptions().is_equivalent(other, planned.partition, planned.plan)
    } == idle
    assert all(_weights(planned, methods[name]) == plain for name in idle)
    if bits == 8:
        assert _weights(planned, methods["coordinate_descent"]) != plain


def test_one_layer_of_8_bits_makes_a_difference():
    """Where a single weight has more bits than 4, methods that move it are another thing."""
    settings = {"platform": "generic", "weight_bits": 4, "overrides": {"y": {"weight_bits": 8}}}
    planned = plan_model(prepare_model(net(), {"x": smooth(32, 0)}, None, settings))
    assert not RefinementOptions().is_equivalent(
        RefinementOptions(match_float_outputs=True), planned.partition, planned.plan
    )
    assert RefinementOptions().is_equivalent(
        RefinementOptions(compensate_summands=True), planned.partition, planned.plan
    )  # the last layer feeds no sum


def test_effort_best_tries_no_method_twice():
    """With weights of 4 bits what refinement does anyway is not tried, and not told of."""
    settings = {"weight_bits": 4, "mode": "q-value", "weight_scales": "tensor"}
    made = quantize(net(), {"x": smooth(16, 0)}, platform="generic", effort="best", **settings)
    lines = [note for note in made.report.notes if note.startswith("effort best: ")]
    assert lines
    assert not [
        line for line in lines if "float outputs" in line or "descent" in line or "summand" in line
    ]
    assert [line for line in lines if "after the next layer" in line]


def test_layers_are_told_one_by_one():
    """Progress says which of how many layers is refined."""
    told = []
    quantize(net(), {"x": smooth(8, 0)}, progress=lambda *said: told.append(said))
    assert [said[1:] for said in told if said[0] == "refining"] == [
        (number, 4) for number in range(4)
    ]


def test_scales_are_the_plans():
    """Refinement changes integers, no scale: the plan read back from the graph is the plan."""
    from lingeronnx.quantization.lower import extract_plan

    result = quantize(net(), {"x": smooth(32, 0)})
    read = extract_plan(result.graph).tensors
    assert {name: read[name] for name in result.plan.tensors if name in read} == {
        name: q for name, q in result.plan.tensors.items() if name in read
    }


def test_the_chip_part_computes_the_same():
    """Without its host part a graph takes and gives the border tensors, and the integers stay."""
    n = Net(3, 8, 8, seed=3)
    scaled = n.node("Sin", "x")
    c = n.node("Relu", n.conv(scaled, (8, 3, 3, 3)))
    y = n.conv(c, (4, 8, 1, 1), out="logits")
    n.node("Softmax", y, axis=1, out="p")
    result = quantize(n.graph("p"), {"x": smooth(16, 0)}, effort="fast")
    part = Session(extract_chip_part(result.graph, result.platform))
    source, target = part.get_inputs()[0].name, part.get_outputs()[0].name
    assert target == "logits"
    assert {node.op_type for node in part.model.graph} == {
        "Quant",
        "Conv2dInt",
        "Relu",
        "Dequant",
    }
    taps = {n: a for n, a, _ in result.session().taps({"x": smooth(5, 2)}, [source, target])}
    assert np.array_equal(part.run(None, {source: taps[source]})[0], taps[target])


def test_corrections_beyond_int32_saturate():
    """Data of 1e-30 give scales at which the mean error has more than 63 bits."""
    result = quantize(net(), {"x": smooth(24, 0) * np.float32(1e-30)}, platform="venus")
    biases = [
        node.inputs[2].const_value.numpy()
        for node in result.graph.graph
        if node.op_type in ("Conv2dInt", "LinearInt") and len(node.inputs) > 2
    ]
    assert {bias.dtype for bias in biases} == {np.dtype(np.int32)}
    assert any(np.abs(bias.astype(np.int64)).max() >= 2**31 - 1 for bias in biases)
