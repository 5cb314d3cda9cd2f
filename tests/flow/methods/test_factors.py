"""Equalization and range fitting keep the float function, and make the integers better."""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.quantization.calibration import collect_stats
from lingeronnx.quantization.factor_groups import group_tensors_by_factor
from lingeronnx.quantization.methods import factors
from lingeronnx.quantization.methods.channel_groups import (
    find_channel_groups,
    may_have_free_channels,
)
from lingeronnx.quantization.methods.equalize import equalize_channels
from lingeronnx.quantization.methods.range_fitting import fit_range_factors
from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.partition import partition_graph
from lingeronnx.quantization.scales import ScalePolicy, group_shared_scales
from lingeronnx.runtime.metrics import Agreement
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.targets import get_target
from tests import nets
from tests.nets import Net
from tests.passes.helpers import graph, positive, rand

VENUS = get_target("venus")
PLAIN = ScalePolicy("q-value", 8, 8, "mse", 100.0, {})


def uneven(seed=0, dead=()):
    """Conv, Relu, depthwise Conv, Relu, Conv whose channels differ by up to 2^5 in range, the
    function unharmed.
    """
    net = Net(3, 10, 10, seed=seed)
    rng = np.random.default_rng(seed + 1)
    s1, s2 = 2.0 ** rng.uniform(-2.5, 2.5, 16), 2.0 ** rng.uniform(-2.5, 2.5, 16)
    first = rng.standard_normal((16, 3, 3, 3)) * 0.3 * s1[:, None, None, None]
    first[list(dead)] = 0
    middle = rng.standard_normal((16, 1, 3, 3)) * 0.4 * (s2 / s1)[:, None, None, None]
    last = rng.standard_normal((8, 16, 1, 1)) * 0.3 / s2[None, :, None, None]
    names = [net.const(w.astype(np.float32)) for w in (first, middle, last)]
    a = net.node("Relu", net.node("Conv", "x", names[0], pads=[1, 1, 1, 1]))
    b = net.node("Relu", net.node("Conv", a, names[1], group=16, pads=[1, 1, 1, 1]))
    net.node("Conv", b, names[2], out="y")
    return net.graph("y")


def data(graph, count=32, seed=9):
    shape = [d or 1 for d in ir.get_shape(graph.graph.inputs[0])[1:]]
    return {"x": np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32)}


def prepared(graph, feed):
    one = {name: array[:1] for name, array in feed.items()}
    trace_shapes(graph, one)
    normalize(graph)
    trace_shapes(graph, one)
    return partition_graph(graph, VENUS, {})


def outputs(graph, feed):
    return {
        name: array
        for name, array, _ in FloatRunner(graph, [v.name for v in graph.graph.outputs]).run(feed)
    }


def test_equalize_keeps_the_function_and_evens_the_channels():
    """The float outputs stay; the spread of the channels' ranges shrinks."""
    graph = uneven()
    feed = data(graph)
    parts = prepared(graph, feed)
    before = outputs(graph, feed)["y"]
    found = equalize_channels(parts, [feed])
    assert found
    assert all(np.all(f > 0) for f in found.values())
    np.testing.assert_allclose(outputs(graph, feed)["y"], before, rtol=1e-4, atol=1e-4)
    assert "x" not in found
    assert "y" not in found


def test_equalize_is_what_saves_an_uneven_net():
    """With defaults the integers of the uneven net are far better than without equalization."""
    graph = uneven()
    feed = data(graph)
    want = outputs(graph, feed)["y"]
    got = {}
    for effort in ("fast", "normal"):
        measure = Agreement()
        measure.add(want, quantize(graph, feed, effort=effort).session().run(["y"], feed)[0])
        got[effort] = measure.sqnr
    assert got["normal"] > got["fast"] + 8


def leaky(slopes, octaves=10, seed=0):
    """Conv, PRelu, Conv whose channels differ by up to 2^`octaves` in range."""
    net = Net(3, 10, 10, seed=seed)
    spread = 2.0 ** net.rng.uniform(-octaves / 2, octaves / 2, 16)
    first = net.rng.standard_normal((16, 3, 3, 3)) * 0.3 * spread[:, None, None, None]
    last = net.rng.standard_normal((8, 16, 1, 1)) * 0.3 / spread[None, :, None, None]
    weights = [net.const(w.astype(np.float32)) for w in (first, last)]
    c = net.node("Conv", "x", weights[0], out="c")
    slopes = np.float32(slopes).reshape(-1, 1, 1)
    net.node("Conv", net.node("PRelu", c, net.const(slopes), out="r"), weights[1], out="y")
    return net.graph("y")


@pytest.mark.parametrize("platform", ("generic", "venus"))
@pytest.mark.parametrize("slopes", ([0.1], np.linspace(-0.5, 1.5, 16)))
def test_factors_pass_through_a_leaky_relu(slopes, platform):
    """Both of its tensors get the same factors, and the integers are far better for it."""
    graph = leaky(slopes)
    feed = data(graph)
    parts = prepared(graph, feed)
    before = outputs(graph, feed)["y"]
    found = equalize_channels(parts, [feed])
    assert np.ptp(np.log2(found["c"])) > 4
    np.testing.assert_array_equal(found["c"], found["r"])
    np.testing.assert_allclose(outputs(graph, feed)["y"], before, rtol=1e-4, atol=1e-4)
    got = {}
    for effort in ("fast", "normal"):
        result = quantize(
            leaky(slopes),
            feed,
            effort=effort,
            platform=platform,
            mode="q-value",
            weight_scales="tensor",
        )
        measure = Agreement()
        measure.add(before, result.session().run(["y"], feed)[0])
        got[effort] = measure.sqnr
    assert got["normal"] > got["fast"] + 8


def test_a_leaky_relu_needs_a_clear_gain():
    """Its input is rounded, which the prediction does not know: small gains do not count."""
    graph = leaky([0.1], octaves=3)
    feed = data(graph)
    assert not equalize_channels(prepared(graph, feed), [feed])


def test_dead_channels_keep_factor_one():
    """A channel of zeros is left alone and nothing becomes NaN."""
    graph = uneven(dead=(3, 7))
    feed = data(graph)
    parts = prepared(graph, feed)
    found = equalize_channels(parts, [feed])
    assert all(np.isfinite(f).all() for f in found.values())
    first = next(f for f in found.values() if len(f) == 16)
    assert first[3] == 1
    assert first[7] == 1


def test_range_factors_are_an_octave_and_keep_the_function():
    """Free groups get a factor in [1, 2); inputs and outputs none; the float function stays."""
    graph = uneven()
    feed = data(graph)
    parts = prepared(graph, feed)
    before = outputs(graph, feed)["y"]
    stats = collect_stats(FloatRunner(graph), [(feed, None)], set(parts.activations))
    found = fit_range_factors(
        parts, group_shared_scales(parts, VENUS), stats, VENUS, policy=PLAIN, optimize=True
    )
    assert not {"x", "y"} & set(found)
    assert all(1 <= f[0] < 2 for f in found.values())
    factors.apply_factors(parts, found)
    np.testing.assert_allclose(outputs(graph, feed)["y"], before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("alpha", "bias", "seed"), [(1 / 64, -3, 1), (1 / 8, -6, 0), (1 / 4, -1, 0)]
)
def test_the_noise_behind_a_leaky_function_counts(alpha, bias, seed):
    """Negative values shrink in a LeakyRelu, and their rounding with them, so that another factor
    is best than for the noise of its input.
    """
    net = Net(4, 6, 6, seed=seed)
    weight, offset = net.rng.normal(size=(8, 4, 1, 1)), np.full(8, bias)
    names = [net.const(array.astype(np.float32)) for array in (weight, offset)]
    hidden = net.node("LeakyRelu", net.node("Conv", "x", *names, out="z"), alpha=alpha, out="a")
    net.conv(hidden, (3, 8, 3, 3), out="y")
    graph = net.graph("y")
    feed = data(graph)
    parts = prepared(graph, feed)
    stats = collect_stats(FloatRunner(graph), [(feed, None)], set(parts.activations))
    shared = group_shared_scales(parts, VENUS)
    ((_, z, _),) = FloatRunner(graph, ["z"]).run(feed)
    sqnr_db = []
    for by_result in (False, True):
        found = fit_range_factors(
            parts, shared, stats, VENUS, policy=PLAIN, optimize=True, by_result=by_result
        )
        factor = float(found["z"][0]) if "z" in found else 1.0
        steps = factor * 2.0 ** np.arange(-3, 9)[:, None, None, None, None]
        rounded = np.clip(np.floor(z * steps + 0.5), -128, 127) / steps
        result = np.where(z < 0, alpha * z, z)
        errors = np.square(np.where(rounded < 0, alpha * rounded, rounded) - result)
        sqnr_db.append(10 * np.log10(np.square(result).mean() / errors.mean((1, 2, 3, 4)).min()))
    assert sqnr_db[1] > sqnr_db[0] + 1


@pytest.mark.parametrize("net", ("uneven", "shortcut"))
def test_widths_of_single_tensors_count(net):
    """Law: widths that are given tensor by tensor move channels and ranges as the same widths given
    for all.
    """
    graph = uneven() if net == "uneven" else nets.shortcut()
    feed = data(graph)
    usual = {"platform": "generic", "mode": "q-value", "weight_scales": "tensor"}
    whole = quantize(graph, feed, bits=16, weight_bits=4, **usual).plan
    single = quantize(graph, feed, overrides={"*": {"bits": 16, "weight_bits": 4}}, **usual).plan
    assert single == whole
    assert whole.transforms != quantize(graph, feed, **usual).plan.transforms


def test_relu6_saturates_exactly_at_six():
    """On a chip the largest integer is 6.0 and nothing needs a Clip: values above 6 come out as
    127.
    """
    net = Net(3, 8, 8, seed=2)
    net.conv(net.relu6(net.conv("x", (8, 3, 3, 3), gain=6.0), out="six"), (4, 8, 1, 1), out="y")
    graph = net.graph("y")
    feed = data(graph)
    result = quantize(graph, feed, effort="fast")
    float_six = {n: a for n, a, _ in FloatRunner(graph).run(feed)}["six"]
    six = next(a for n, a, _ in result.session().taps(feed) if n == "six")
    factor = result.plan.transforms["six"].factor[0]
    scale = result.plan.tensors["six"].scale
    assert six.max() == 127
    assert abs(127 / (scale * factor) - 6) < 1e-5
    assert (six[float_six >= 6.0 + 0.3] == 127).all()
    assert {node.op_type for node in result.graph.graph} & {"Clip"} == set()


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("gain_in", "gain_out"), [(1e4, 1.0), (1.0, 1e4), (1e5, 1e5), (1e-6, 1.0), (1.0, 1e-7)]
)
def test_ranges_beyond_the_chip_are_scaled_by_the_host(gain_in, gain_out):
    """Inputs and outputs of any magnitude become chip-ready, with a Mul in the host part, at full
    accuracy.
    """
    net = Net(3, 8, 8, seed=4)
    a = net.node("Relu", net.conv("x", (8, 3, 3, 3), bias=False, gain=1 / gain_in))
    net.conv(a, (4, 8, 1, 1), bias=False, gain=gain_out, out="y")
    graph = net.graph("y")
    feed = {"x": data(graph)["x"] * np.float32(gain_in)}
    result = quantize(graph, feed)
    assert result.report.chip_ready
    assert result.report.outputs["y"]["sqnr"] > 28
    assert all(
        -3 <= q.exponent <= 16
        for name, q in result.plan.tensors.items()
        if not name.startswith("k")
    )
    assert [n.op_type for n in result.report.host_part] == ["Mul"] * (
        (gain_in != 1) + (gain_out != 1)
    )


def test_layers_over_a_last_axis_are_left_alone():
    """Channels of such a layer lie on the last axis, those of the convolution before it on axis
    1.
    """
    net = nets.Net(2, 4, 4, seed=3)
    weight = net.const(np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32))
    model = net.graph(
        net.node("MatMul", net.conv("x", (3, 2, 3, 3), pads=[1] * 4, out="c"), weight, out="z")
    )
    result = nets.quantized(model)
    assert "c" not in result.plan.transforms or len(result.plan.transforms["c"].factor) == 1
    assert result.report.outputs["z"]["sqnr"] > 25


#: Graphs with one layer that absorbs factors, or none, and what lies around it.
FEW_LAYERS = {
    "no layer": "a = Relu(x) y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)",
    "one layer": "c = Conv<pads=[1,1,1,1]>(x, w) y = Relu(c)",
    "around a layer": "r = Relu(x) c = Conv<pads=[1,1,1,1]>(r, w) s = Add(r, c) y = Relu(s)",
    "joined with its input": "r = Relu(x) c = Conv<pads=[1,1,1,1]>(r, w) "
    "s = Concat<axis=1>(r, c) y = Relu(s)",
    "a part of the input": "s = Slice(x, zero, two, one) c = Conv<pads=[1,1,1,1]>(x, w) "
    "d = Slice(c, zero, two, one) y = Concat<axis=1>(s, d)",
    "a function": "c = Conv<pads=[1,1,1,1]>(x, w) s = Sigmoid(c) y = Mul(c, s)",
    "a batch norm": "a = Relu(x) b = BatchNormalization(a, k, k, k, k) y = Relu(b)",
    "a float node": "c = Conv<pads=[1,1,1,1]>(x, w) a = Relu(c) f = Sin(a) y = Add(a, f)",
}


@pytest.mark.parametrize("name", FEW_LAYERS)
@pytest.mark.parametrize("platform", ["venus", "generic"])
def test_no_tensor_has_a_free_factor_with_fewer_than_two_layers(name, platform):
    """Every tensor is joined to one that must not change, so that both methods end at once. Only
    channels that a Slice drops are free.
    """
    body, arrays = FEW_LAYERS[name], {"w": rand(3, 3, 3, 3), "k": positive(3)}
    arrays |= {key: np.array([i]) for i, key in enumerate(("zero", "one", "two"))}
    used = {key: value for key, value in arrays.items() if f"{key}," in body or f"{key})" in body}
    model = graph(f"g (float[N,3,6,6] x) => (float[N,i,j,k] y) {{ {body} }}", **used)
    x, target = rand(4, 3, 6, 6), get_target(platform)
    for step in (lambda: None, lambda: normalize(model)):
        step()
        trace_shapes(model, {"x": x[:1]})
    partition = partition_graph(model, target, {})
    assert len(partition.absorbing_layers) < 2
    groups, _ = group_tensors_by_factor(partition, target, 8)
    assert all(group.pinned for group in groups)
    drops_channels = name == "a part of the input"
    assert may_have_free_channels(partition) is drops_channels
    assert bool(find_channel_groups(partition)) is drops_channels
