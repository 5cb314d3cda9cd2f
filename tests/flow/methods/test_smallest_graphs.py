"""Each accuracy method by itself, on the smallest graph that shows it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.common.errors import ConfigError
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Plan
from lingeronnx.quantization.calibration import collect_stats
from lingeronnx.quantization.factor_groups import HOST_SCALING_REASON, group_tensors_by_factor
from lingeronnx.quantization.methods import factors
from lingeronnx.quantization.methods.equalize import equalize_channels
from lingeronnx.quantization.methods.host_scaling import insert_host_scaling, set_host_factors
from lingeronnx.quantization.methods.range_fitting import fit_range_factors
from lingeronnx.quantization.methods.refine import refine_layers
from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.partition import partition_graph
from lingeronnx.quantization.scales import ScalePolicy, assign_qparams, group_shared_scales
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.targets import get_target
from tests.nets import Net, samples
from tests.passes.helpers import ops, outputs

VENUS, GENERIC = get_target("venus"), get_target("generic")
PLAIN = ScalePolicy("q-value", 8, 8, "mse", 100.0, {})


def chain(gain_in=1.0, gain_out=1.0, bias=True):
    """Conv, Relu, Conv whose input and output are `gain` times what they would be."""
    net = Net(3, 6, 6, seed=4)
    a = net.node("Relu", net.conv("x", (8, 3, 3, 3), bias=bias, gain=1 / gain_in), out="a")
    net.conv(a, (4, 8, 1, 1), bias=bias, gain=gain_out, out="y")
    return net.graph("y")


def ready(model, gain=1.0, count=16):
    """Return (the samples, the partition, the statistics) of a model that is normalised in
    place.
    """
    x = gain * np.random.default_rng(3).standard_normal((count, 3, 6, 6))
    feed = {"x": x.astype(np.float32)}
    for run in (lambda: None, lambda: normalize(model)):
        run()
        trace_shapes(model, {"x": feed["x"][:1]})
    parts = partition_graph(model, VENUS, {})
    return feed, parts, collect_stats(FloatRunner(model), [(feed, None)], set(parts.activations))


# ---- factors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", ([4.0], [2.0, 0.5, 1.0, 3.0, 0.25, 1.0, 7.0, 1.0]))
def test_factors_move_into_the_weights(factor):
    """The tensor is multiplied by its factor, one or one per channel; nothing behind it changes."""
    model = chain()
    feed, parts, _ = ready(model)
    before = {name: array for name, array, _ in FloatRunner(model).run(feed)}
    made = {
        "a": np.array(factor),
        next(str(n.outputs[0].name) for n in model.graph): np.array(factor),
    }
    factors.apply_factors(parts, made)
    after = {name: array for name, array, _ in FloatRunner(model).run(feed)}
    np.testing.assert_allclose(
        after["a"], before["a"] * np.reshape(factor, (-1, 1, 1)), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(after["y"], before["y"], rtol=1e-4, atol=1e-5)


def test_factors_combine():
    """Two sets one after the other are their product."""
    found = factors.multiply_factors(
        {"a": np.array([2.0]), "b": np.array([3.0])}, {"b": np.array([1.0, 5.0])}
    )
    assert {name: list(value) for name, value in found.items()} == {"a": [2.0], "b": [3.0, 15.0]}


# ---- equalize ------------------------------------------------------------------------------------------------------


def test_an_even_net_is_left_alone():
    """Where all channels have one range there is nothing to gain."""
    net = Net(3, 6, 6)
    ones = [net.const(np.ones(shape, np.float32)) for shape in ((4, 3, 1, 1), (4, 4, 1, 1))]
    net.node("Conv", net.node("Relu", net.node("Conv", "x", ones[0])), ones[1], out="y")
    model = net.graph("y")
    feed, parts, _ = ready(model)
    assert equalize_channels(parts, [feed]) == {}


def test_a_tensor_that_leaves_is_left_alone():
    """Its name and meaning are the user's: no factor, the weights stay."""
    net = Net(3, 6, 6, seed=4)
    a = net.node("Relu", net.conv("x", (8, 3, 3, 3)), out="a")
    net.conv(a, (4, 8, 1, 1), out="y")
    model = net.graph("y", "a")
    feed, parts, _ = ready(model)
    assert equalize_channels(parts, [feed]) == {}


# ---- host-scale ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gain_in, gain_out, left",
    (
        (1.0, 1.0, ["Conv", "Relu", "Conv"]),
        (1e5, 1.0, ["Mul", "Conv", "Relu", "Conv"]),
        (1.0, 1e5, ["Conv", "Relu", "Conv", "Mul"]),
    ),
)
def test_borders_beyond_the_chip_get_a_product(gain_in, gain_out, left):
    """By 1 at first, which changes nothing; the names of input and output stay, and the statistics
    are there.
    """
    model = chain(gain_in, gain_out, bias=False)
    feed, parts, stats = ready(model, gain_in)
    before = outputs(model, feed)["y"]
    added, alike = insert_host_scaling(
        parts, group_shared_scales(parts, VENUS), stats, VENUS, PLAIN
    )
    assert ops(model) == left
    assert set(alike.values()) <= set(stats)
    assert set(added.values()) <= {HOST_SCALING_REASON}
    assert len(added) == left.count("Mul")
    np.testing.assert_array_equal(outputs(model, feed)["y"], before)
    assert set(parts.with_added_floats(added).activations) <= {*stats, *alike}


def test_a_platform_without_exponents_needs_none():
    """A float scale holds any range."""
    model = chain(1e5, bias=False)
    _, parts, stats = ready(model, 1e5)
    assert insert_host_scaling(
        parts, group_shared_scales(parts, GENERIC), stats, GENERIC, PLAIN
    ) == ({}, {})
    assert ops(model) == ["Conv", "Relu", "Conv"]


@pytest.mark.parametrize("gain_in, gain_out", ((1e5, 1.0), (1.0, 1e5)))
def test_the_constants_are_settled(gain_in, gain_out):
    """With the factors moved into the weights and written into the products, the outputs are the
    same again.
    """
    model = chain(gain_in, gain_out, bias=False)
    feed, parts, stats = ready(model, gain_in)
    before = outputs(model, feed)["y"]
    added, alike = insert_host_scaling(
        parts, group_shared_scales(parts, VENUS), stats, VENUS, PLAIN
    )
    parts, stats = (
        parts.with_added_floats(added),
        {**stats, **{new: stats[name] for new, name in alike.items()}},
    )
    found = fit_range_factors(
        parts, group_shared_scales(parts, VENUS), stats, VENUS, policy=PLAIN, optimize=False
    )
    assert found
    assert all(math.log2(f[0]).is_integer() for f in found.values())
    factors.apply_factors(parts, found)
    set_host_factors(model, added, found)
    scale = np.abs(before).max()
    np.testing.assert_allclose(outputs(model, feed)["y"] / scale, before / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("gain_in, gain_out", ((1e5, 1.0), (1.0, 1e5), (1e5, 1e5)))
def test_a_saved_plan_makes_the_products_again(gain_in, gain_out):
    """Law: the plan's own model under the plan gives the same file, products of the host and
    all.
    """
    model, feed = chain(gain_in, gain_out), {"x": gain_in * samples(chain(), 24)["x"]}
    made = quantize(model, feed)
    assert set(made.plan.scaled.values()) == {
        n for n, gain in (("x", gain_in), ("y", gain_out)) if gain > 1
    }
    plan = Plan.from_json(made.plan.to_json())
    assert plan == made.plan
    again = quantize(model, feed, plan=plan)
    assert ir.to_bytes(again.graph) == ir.to_bytes(made.graph)
    assert again.plan == made.plan


def test_a_plan_with_products_of_another_model_is_refused():
    """One line says which product has no place; a plan without products says nothing of them in its
    file.
    """
    feed = {"x": 1e5 * samples(chain(), 24)["x"]}
    plan = quantize(chain(1e5), feed).plan
    other = replace(plan, scaled={"x_scaled": "elsewhere"})
    with pytest.raises(
        ConfigError,
        match="the plan scales 'x_scaled' for 'elsewhere' on the host; in this model that is",
    ):
        quantize(chain(1e5), feed, plan=other)
    assert '"scaled"' not in quantize(chain(), samples(chain(), 24), effort="fast").plan.to_json()


# ---- refine --------------------------------------------------------------------------------------------------------


def planned(model):
    feed, parts, stats = ready(model)
    return feed, parts, planned_for(parts, stats)


def planned_for(parts, stats):
    return assign_qparams(
        parts,
        group_shared_scales(parts, VENUS),
        stats,
        VENUS,
        ScalePolicy("q-value", 8, 8, "mse", 99.99, {}),
    )[0]


def test_refined_weights_lie_on_the_grid():
    """They are integers over the weight's scale, at most one step from where they were; biases
    move.
    """
    model = chain()
    feed, parts, plan = planned(model)
    before = {
        str(n.name): [ir.const_value(v) for v in n.inputs[1:]]
        for n in model.graph
        if n.op_type == "Conv"
    }
    scales = {
        str(n.name): plan.tensors[ir.input_name(n, 1)].scale
        for n in model.graph
        if n.op_type == "Conv"
    }
    refine_layers(parts, plan, VENUS, feed, FloatRunner(model))
    moved = 0
    for node in model.graph:
        if node.op_type != "Conv":
            continue
        weight, bias = (ir.const_value(v) for v in node.inputs[1:])
        old, scale = before[str(node.name)], scales[str(node.name)]
        if not np.array_equal(weight, old[0]):
            counts = weight * scale
            np.testing.assert_array_equal(counts, np.round(counts))
            assert np.abs(counts - old[0] * scale).max() < 3
        moved += not np.array_equal(bias, old[1])
    assert moved


def test_a_shared_weight_is_not_rounded_again():
    """Two layers that have one weight keep it in common; only their biases move apart."""
    net = Net(4, 6, 6, seed=2)
    w = net.const((0.3 * net.rng.standard_normal((4, 4, 1, 1))).astype(np.float32))
    biases = [net.const(np.full(4, v, np.float32)) for v in (0.1, -0.1)]
    a = net.node("Relu", net.node("Conv", "x", w, biases[0]))
    net.node("Conv", a, w, biases[1], out="y")
    model = net.graph("y")
    feed = {"x": np.random.default_rng(3).standard_normal((16, 4, 6, 6)).astype(np.float32)}
    for run in (lambda: None, lambda: normalize(model)):
        run()
        trace_shapes(model, {"x": feed["x"][:1]})
    parts = partition_graph(model, VENUS, {})
    plan = planned_for(
        parts, collect_stats(FloatRunner(model), [(feed, None)], set(parts.activations))
    )
    old = ir.const_value(next(iter(model.graph)).inputs[1])
    refine_layers(parts, plan, VENUS, feed, FloatRunner(model))
    layers = [n for n in model.graph if n.op_type == "Conv"]
    assert layers[0].inputs[1] is layers[1].inputs[1]
    np.testing.assert_array_equal(ir.const_value(layers[0].inputs[1]), old)


def build_gated_net(gain, square=False):
    """Values of about `gain` times a gate (or themselves), added to what they were, and a layer."""
    net = Net(3, 8, 8, seed=5, batch=1)
    t = net.conv("x", (8, 3, 3, 3), gain=gain, out="t")
    gate = net.node("GlobalAveragePool", net.conv(t, (4, 8, 1, 1), gain=1 / gain))
    gate = net.node("HardSigmoid", net.conv(gate, (8, 4, 1, 1)), out="gate")
    t = net.node("Add", t, net.node("Mul", t, t if square else gate, out="m"), out="s")
    net.conv(t, (4, 8, 1, 1), gain=1 / gain, out="y")
    return net.graph("y")


@pytest.mark.parametrize("chip", ("venus", "arcs", "venusA"))
def test_gated_values_above_the_range_of_a_chip_get_a_factor(chip):
    """A Mul by a gate passes the factor on, so that the layers around it stay in integers."""
    model = build_gated_net(3000.0)
    feed = samples(model, 16)
    result = quantize(model, feed, platform=chip, effort="fast")
    assert result.report.integer_macs == 1
    assert result.report.chip_ready
    (factor,) = result.plan.transforms["m"].factor
    assert factor < 1
    assert math.log2(factor).is_integer()
    assert all(result.plan.transforms[name].factor == (factor,) for name in ("t", "s"))
    assert "gate" not in result.plan.transforms
    small = quantize(build_gated_net(1.0), feed, platform=chip, effort="fast")
    assert not {"t", "m", "s", "gate"} & small.plan.transforms.keys()
    want = next(array for name, array, _ in FloatRunner(model).run(feed, {"y"}) if name == "y")
    (got,) = result.session().run(["y"], feed)
    assert 10 * np.log10(np.square(want).sum() / np.square(got - want).sum()) > 28


def test_a_square_above_the_range_of_a_chip_stays_in_float():
    """The factor of a square is that of its operand, squared: no group has it."""
    model = build_gated_net(3000.0, square=True)
    result = quantize(model, samples(model, 16), platform="venus", effort="fast")
    assert "m" not in result.plan.tensors


def test_a_mul_joins_its_result_to_the_operand_whose_factor_is_free():
    """Two free operands are pinned, as only one factor can pass."""
    net = Net(3, 6, 6, seed=5)
    a, b = (net.conv("x", (8, 3, 3, 3), out=name) for name in "ab")
    ab = net.node("Mul", a, b, out="ab")
    c = net.conv(net.node("Mul", ab, net.conv("x", (8, 3, 3, 3), out="c")), (8, 8, 1, 1))
    d = net.node("Mul", net.conv("x", (8, 3, 3, 3), out="d"), net.node("Sigmoid", c, out="g"))
    net.conv(d, (4, 8, 1, 1), out="y")
    _, parts, _ = ready(net.graph("y"))
    for joins, pinned in ((False, {"a", "b", "ab", "c", "d", "g"}), (True, {"a", "b", "ab", "g"})):
        groups, _ = group_tensors_by_factor(parts, VENUS, 8, joins_products=joins)
        is_pinned = {name: group.pinned for group in groups for name in group.tensors}
        assert {name for name in ("a", "b", "ab", "c", "d", "g") if is_pinned[name]} == pinned
