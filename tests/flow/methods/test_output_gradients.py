"""What errors of weights do at the outputs: gradients against differences of the float model
itself.
"""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization import plan_model, prepare_model, refine_weights
from lingeronnx.quantization.lower import lower
from lingeronnx.quantization.methods.output_gradients import OutputMoments, compute_output_moments
from lingeronnx.quantization.methods.refine import RefinementOptions, find_refinable_layers
from lingeronnx.runtime.metrics import Agreement
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.runtime.session import Session
from tests.flow.methods.test_refine import net, smooth
from tests.nets import Net


def branching():
    """Groups, dilations, strides, asymmetric pads, bounds, both poolings, two branches and one
    output of two values.
    """
    n = Net(4, 11, 9, seed=5)
    a = n.node("Relu", n.conv("x", (4, 2, 3, 1), pads=[1, 0, 2, 1], strides=[2, 1], group=2))
    b = n.conv(a, (4, 1, 3, 3), pads=[2, 2, 2, 2], dilations=[2, 2], group=4)
    s = n.node("Add", n.node("Clip", b, n.const(np.float32(-0.5)), n.const(np.float32(0.5))), a)
    m = n.node("MaxPool", s, kernel_shape=[2, 2], strides=[2, 2])
    n.linear(
        n.node("Flatten", n.node("GlobalAveragePool", n.conv(m, (3, 4, 2, 1)))), (3, 2), out="y"
    )
    return n.graph("y")


def _prepared(graph, feed):
    planned = plan_model(
        prepare_model(graph, feed, None, {"platform": "generic", "effort": "fast"})
    )
    return planned.graph, find_refinable_layers(planned.partition)


def _changed(graph, node, weight, bias):
    """Return the graph with so much added to a layer's weight and bias."""
    copy = graph.clone()
    other = next(each for each in copy.graph if each.name == node.name)
    for index, change in ((1, weight), (2, bias)):
        old = ir.require_const_value(other.inputs[index])
        ir.set_constant_input(copy, other, index, (old + change).astype(np.float32), "changed")
    return copy


def _tensor(graph, feed, name):
    return next(array for _, array, _ in FloatRunner(graph, [name]).run(feed)).astype(np.float64)


def _moved(graph, node, feed, change, before):
    """Return by how much a change of the weights moves the output, its mean made up for by the
    bias; by differences.

    before : the layer's output without the change.
    """
    name, none = ir.output_name(node), np.zeros(len(change))
    moved = _tensor(_changed(graph, node, change, none), feed, name) - before
    mean = moved.mean(axis=tuple(axis for axis in range(moved.ndim) if axis != 1))
    ends = [
        _tensor(_changed(graph, node, sign * change, -sign * mean), feed, "y") for sign in (1, -1)
    ]
    return (ends[0] - ends[1]) / 2


def test_gradients_say_how_far_a_weight_moves_the_outputs(monkeypatch):
    """The diagonals of H and G are summed squares of what single weights do to the outputs, told by
    differences.
    """
    graph, mixtures, step = branching(), 1500, 2e-3
    feed = {"x": np.random.default_rng(2).standard_normal((2, 4, 11, 9)).astype(np.float32)}
    monkeypatch.setattr(
        "lingeronnx.quantization.methods.output_gradients._PROJECTIONS_PER_SAMPLE", mixtures
    )
    planned = plan_model(
        prepare_model(graph, feed, None, {"platform": "generic", "effort": "fast"})
    )
    model, layers = planned.graph, find_refinable_layers(planned.partition)
    power = np.square(_tensor(model, feed, "y")).sum()
    found = compute_output_moments(model, layers, ["y"], [feed])
    assert found.keys() == layers.keys()
    assert len(layers) == 4
    for name, node in layers.items():
        shape = ir.require_const_value(node.inputs[1]).shape
        squares, before = np.zeros(shape), _tensor(model, feed, ir.output_name(node))
        for place in np.ndindex(shape):
            change = np.zeros(shape)
            change[place] = step
            squares[place] = (
                np.square(_moved(model, node, feed, change, before) / step).sum() / power * mixtures
            )
        moments = found[name]
        want = squares.reshape(*moments.of_outputs.shape[:2], -1)
        for have, sums in (
            (moments.of_inputs, want.sum(axis=1)),
            (moments.of_outputs, want.sum(axis=2)),
        ):
            diagonal = np.diagonal(have, axis1=1, axis2=2)
            assert np.allclose(diagonal, sums, rtol=0.2, atol=0.02 * sums.max()), name


def test_a_layer_in_front_of_an_unknown_operator_has_none():
    """Gradients that would lack a way are not taken for whole ones; what lies behind is known."""
    n = Net(3, 8, 8, seed=2)
    a = n.conv("x", (4, 3, 3, 3))
    s = n.node("Add", n.node("Relu", a), n.node("Sin", a))
    n.linear(n.node("Flatten", n.conv(s, (4, 4, 3, 3), out="behind")), (64, 2), out="y")
    graph = n.graph("y")
    feed = {"x": smooth(16, 0)}
    planned = plan_model(prepare_model(graph, feed, None, {"platform": "generic"}))
    layers = find_refinable_layers(planned.partition)
    assert len(layers) == 3
    assert compute_output_moments(planned.graph, layers, ["y"], [feed]).keys() == layers.keys() - {
        a
    }


def test_a_mix_keeps_traces_and_falls_back_on_the_inputs():
    """Each group counts once; where no gradient was seen the inputs alone speak."""
    rng = np.random.default_rng(3)
    gradients = rng.standard_normal((2, 5, 3, 4)) * np.array([1.0, 0.0])[:, None, None, None]
    moments = OutputMoments.from_gradients(gradients)
    inputs = np.stack([np.diag([1.0, 2, 3, 4]), np.diag([4.0, 3, 2, 1])])
    mixed = moments.blend_input_moments(inputs)
    assert np.allclose(np.trace(mixed, axis1=1, axis2=2), 1)
    assert np.allclose(mixed[1], inputs[1] / 10)
    assert not np.allclose(mixed[0], inputs[0] / 10)
    metric = moments.metric
    assert metric.shape == (6, 6)
    assert not metric[:3, 3:].any()
    assert np.linalg.eigvalsh(metric).min() > 0


@pytest.mark.parametrize("bits", [4, 8])
def test_outputs_come_nearer_on_unseen_data(bits):
    """With 4 bits they do, on other samples than those that were rounded for; wider weights are
    left as they were.
    """
    graph, test = net(), {"x": smooth(128, 1)}
    planned = plan_model(
        prepare_model(
            graph, {"x": smooth(64, 0)}, None, {"platform": "generic", "weight_bits": bits}
        )
    )
    methods = RefinementOptions(outputs=True)
    assert RefinementOptions().is_equivalent(methods, planned.partition, planned.plan) == (
        bits == 8
    )
    graphs = [refine_weights(planned, each) for each in (RefinementOptions(), methods)]
    if bits == 8:
        both = [
            [value.const_value.numpy() for value in each.graph.initializers.values()]
            for each in graphs
        ]
        assert all(np.array_equal(*pair) for pair in zip(*both, strict=True))
        return
    errors = []
    for each in graphs:
        measure = Agreement()
        session = Session(
            lower(planned.partition.with_graph(each), planned.plan, planned.prepared.target).graph
        )
        measure.add(_tensor(graph, test, "y"), session.run(["y"], test)[0])
        errors.append(measure.mse)
    assert errors[1] < errors[0]
