"""Refinement: on the plan's grid, with less mean error and less error altogether."""

import numpy as np

from lingeronnx.api import quantize
from lingeronnx.flow.lower import lower
from lingeronnx.flow.partition import Partition
from lingeronnx.run.metrics import Agreement
from lingeronnx.run.part import chip_part
from lingeronnx.run.runners import FloatRunner
from lingeronnx.run.session import Session
from lingeronnx.targets.luna import VENUS
from tests.nets import Net


def net():
    """Two convolutions, a sum and a linear layer; inputs of neighbouring values as in images."""
    n = Net(3, 12, 12, seed=11)
    a = n.node("Relu", n.conv("x", (16, 3, 3, 3), pads=[1, 1, 1, 1]))
    b = n.conv(a, (16, 16, 3, 3), pads=[1, 1, 1, 1])
    s = n.node("Relu", n.node("Add", a, b))
    f = n.node("Flatten", n.node("GlobalAveragePool", n.conv(s, (24, 16, 3, 3), pads=[1, 1, 1, 1])))
    n.linear(f, (24, 5), out="y")
    return n.graph("y")


def smooth(count, seed):
    """Random images whose neighbouring pixels are alike."""
    x = np.random.default_rng(seed).standard_normal((count, 3, 6, 6))
    return x.repeat(2, 2).repeat(2, 3).astype(np.float32)


def test_refined_integers_are_closer_on_unseen_data():
    """Refinement on some samples helps on others."""
    graph = net()
    calib, test = {"x": smooth(64, 0)}, {"x": smooth(256, 1)}
    result = quantize(graph, calib)
    plain = Session(lower(Partition.of(result.float_graph, result.plan.floats, VENUS), result.plan, VENUS).graph)
    want = next(a for n, a, _ in FloatRunner(graph, ["y"]).run(test))
    errors = []
    for session in (plain, result.session()):
        measure = Agreement()
        measure.add(want, session.run(["y"], test)[0])
        errors.append(measure.mse)
    assert errors[1] < 0.8 * errors[0]


def test_layers_are_told_one_by_one():
    """Progress says which of how many layers is refined."""
    told = []
    quantize(net(), {"x": smooth(8, 0)}, progress=lambda *said: told.append(said))
    assert [said[1:] for said in told if said[0] == "refining"] == [(number, 4) for number in range(4)]


def test_scales_are_the_plans():
    """Refinement changes integers, no scale: the plan read back from the graph is the plan."""
    from lingeronnx.flow.lower import plan_of

    result = quantize(net(), {"x": smooth(32, 0)})
    read = plan_of(result.graph).tensors
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
    result = quantize(n.graph("p"), {"x": smooth(16, 0)[:, :, :8, :8]}, effort="fast")
    part = Session(chip_part(result.graph, result.platform))
    source, target = part.get_inputs()[0].name, part.get_outputs()[0].name
    assert target == "logits"
    assert {node.op_type for node in part.model.graph} == {
        "Quant",
        "Conv2dInt",
        "Relu",
        "Dequant",
    }
    taps = {n: a for n, a, _ in result.session().taps({"x": smooth(5, 2)[:, :, :8, :8]}, [source, target])}
    assert np.array_equal(part.run(None, {source: taps[source]})[0], taps[target])
