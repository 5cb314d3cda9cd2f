"""What is kept of the float model's outputs is enough for the mean error, and is small."""

import math

import numpy as np
import pytest

from lingeronnx.ir.plan import Affine, Plan
from lingeronnx.quantization.methods.activation_curves import sample_activation
from lingeronnx.quantization.methods.float_targets import collect_layer_targets
from lingeronnx.quantization.methods.refine import find_refinable_layers
from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.partition import partition_graph
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.targets import get_target
from tests.nets import Net

PIECES = 3


@pytest.fixture(scope="module")
def made():
    """Return ({tensor: layer}, a runner, pieces of samples): a convolution with a Relu and one
    without, a product.
    """
    net = Net(3, 12, 12, seed=5)
    a = net.node("Relu", net.conv("x", (5, 3, 3, 3)), out="a")
    f = net.node("Flatten", net.node("GlobalAveragePool", net.conv(a, (9, 5, 1, 1))))
    net.linear(f, (9, 4), out="y")
    model = net.graph("y")
    pieces = [
        {"x": np.random.default_rng(i).standard_normal((8, 3, 12, 12), np.float32)}
        for i in range(PIECES)
    ]
    normalize(model)
    trace_shapes(model, {"x": pieces[0]["x"][:1]})
    return (
        find_refinable_layers(partition_graph(model, get_target("generic"), {})),
        FloatRunner(model),
        pieces,
    )


def plan(layers, scale, zero):
    """Return a plan that holds all layers but the last, which writes floats."""
    held = {name: Affine(scale, zero_point=zero) for name in list(layers)[:-1]}
    return Plan("generic", "q-value", tensors=held)


def whole(layers, runner, pieces):
    """Return {tensor: the float outputs of all pieces}."""
    runs = [{name: array for name, array, _ in runner.run(feed, layers)} for feed in pieces]
    return {name: np.concatenate([run[name] for run in runs]) for name in layers}


@pytest.mark.parametrize("means", (False, True))
@pytest.mark.parametrize(("scale", "zero"), [(32.0, 0), (50.3, -128), (1e4, 7), (1e-3, 0)])
def test_the_mean_error_is_that_of_a_plain_loop(made, scale, zero, means):
    """It counts values that the integers can hold, and that the Relu behind the first layer lets
    through.

    With `means` all that the Relu gives count, and the sum is shared among the integers that it
    lets through.
    """
    layers, runner, pieces = made
    compared = set(layers) if means else set()
    found = collect_layer_targets(
        layers,
        plan(layers, scale, zero),
        runner,
        pieces,
        1,
        set(),
        share_positions=False,
        match_means_for=compared,
    )
    values = whole(layers, runner, pieces)
    rng = np.random.default_rng(1)
    for number, name in enumerate(layers):
        held = number < len(layers) - 1
        shape = values[name].shape
        integers = (
            rng.integers(-128, 128, shape).astype(np.int8)
            if held
            else values[name] + np.float32(0.25)
        )
        channels = shape[1]
        want = np.moveaxis(values[name], 1, -1).reshape(-1, channels)
        have = np.moveaxis(integers, 1, -1).reshape(-1, channels)
        low, high = ((-128 - zero) / scale, (127 - zero) / scale) if held else (-math.inf, math.inf)
        expected = []
        for c in range(channels):
            total, count = 0.0, 0
            for place in found[name].index:
                w, h = float(want[place, c]), float(have[place, c])
                passes = bool(number) or (h > zero if means else w > 0)
                if means and not number:
                    w, h = max(w, 0.0), max(h, zero)
                if low < w < high and (passes or means):
                    total += ((h - zero) / scale if held else h) - w
                    count += passes
            expected.append(total / (count + 32))
        np.testing.assert_allclose(
            found[name].mean_error(integers), expected, rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("scale, zero", [(32.0, 0), (50.3, -128)])
@pytest.mark.parametrize("slopes", [[0.1], [0.25, 0.0, 0.5, 0.1]])
def test_behind_a_leaky_relu_the_mean_error_is_counted_there(scale, zero, slopes):
    """An error below 0 counts for the slope; the bias moves the sum behind by the slopes of the
    values inside.
    """
    net = Net(3, 6, 6, seed=8)
    c = net.conv("x", (4, 3, 3, 3))
    slope = net.const(np.float32(slopes).reshape(-1, 1, 1))
    net.node("PRelu", c, slope, out="y")
    model = net.graph("y")
    feed = {"x": np.random.default_rng(0).standard_normal((8, 3, 6, 6), np.float32)}
    normalize(model)
    trace_shapes(model, {"x": feed["x"][:1]})
    layers = find_refinable_layers(partition_graph(model, get_target("generic"), {}))
    (name,) = layers
    runner, held = (
        FloatRunner(model),
        Plan("generic", "q-value", tensors={name: Affine(scale, zero_point=zero)}),
    )
    found = collect_layer_targets(
        layers, held, runner, [feed], 1 << 20, set(), share_positions=False
    )[name]
    values = whole(layers, runner, [feed])[name]
    integers = np.random.default_rng(1).integers(-128, 128, values.shape).astype(np.int8)
    steep = np.resize(np.float32(slopes).astype(np.float64), 4)
    low, high = (-128 - zero) / scale, (127 - zero) / scale
    for channel in range(4):
        total, moves = 0.0, 32.0
        for want, have in zip(values[:, channel].flat, integers[:, channel].flat, strict=True):
            if low < want < high:
                real = (float(have) - zero) / scale
                total += real * (steep[channel] if real < 0 else 1) - want * (
                    steep[channel] if want < 0 else 1
                )
                moves += steep[channel] if want < 0 else 1
        assert found.mean_error(integers)[channel] == pytest.approx(
            total / moves, rel=1e-5, abs=1e-7
        )


@pytest.mark.parametrize("scale, zero, bits", [(16.0, 0, 8), (50.3, -128, 8), (4000.0, 0, 16)])
@pytest.mark.parametrize("name", ["Silu", "HardSwish", "Tanh"])
def test_means_are_compared_after_an_activation_function(scale, zero, bits, name):
    """An error counts by the slope of the function, and by 0.3 where that is flat."""
    function, slope = {
        "Silu": (lambda x: x / (1 + math.exp(-x)), 1.0998),
        "HardSwish": (lambda x: x * min(max(x / 6 + 0.5, 0.0), 1.0), 1.5),
        "Tanh": (math.tanh, 1.0),
    }[name]
    net = Net(3, 6, 6, seed=8, opset=14)
    c = net.conv("x", (4, 3, 3, 3))
    if name == "Silu":
        net.node("Mul", c, net.node("Sigmoid", c), out="y")
    else:
        net.node(name, c, out="y")
    model = net.graph("y")
    feed = {"x": 2 * np.random.default_rng(0).standard_normal((8, 3, 6, 6), np.float32)}
    normalize(model)
    trace_shapes(model, {"x": feed["x"][:1]})
    layers = find_refinable_layers(partition_graph(model, get_target("generic"), {}))
    (layer,) = layers
    qparams = Affine(scale, bits, zero_point=zero)
    plan = Plan("generic", "q-value", tensors={layer: qparams})
    runner = FloatRunner(model)
    curves = {layer: sample_activation(model, layers[layer], qparams)}
    target = collect_layer_targets(
        layers, plan, runner, [feed], 1 << 20, set(), share_positions=False, curves=curves
    )[layer]
    values = whole(layers, runner, [feed])[layer]
    low, high = (qparams.low - zero) / scale, (qparams.high - zero) / scale
    grid = np.linspace(low, high, 2000)
    slope = min(slope, np.diff([function(x) for x in grid]).max() / (grid[1] - grid[0]))

    def mix(x):
        return 0.3 * x + 0.7 * function(x) / slope

    integers = np.random.default_rng(1).integers(qparams.low, qparams.high + 1, values.shape)
    for channel in range(4):
        total, moves = 0.0, 32.0
        for want, have in zip(values[:, channel].flat, integers[:, channel].flat, strict=True):
            if low < want < high:
                total += mix((float(have) - zero) / scale) - mix(float(want))
                moves += abs(mix(want + 1e-3) - mix(want - 1e-3)) / 2e-3
        assert target.mean_error(integers)[channel] == pytest.approx(
            total / moves, rel=5e-3, abs=5e-3
        )


@pytest.mark.parametrize("name", ["Exp", "Abs", "Neg", "Reciprocal", "LeakyRelu", "Relu", "Sin"])
def test_other_functions_do_not_count_as_activation_functions(name):
    """They are steep, not increasing, affine, or compared otherwise."""
    net = Net(3, 6, 6, seed=8)
    net.node(name, net.conv("x", (4, 3, 3, 3)), out="y")
    model = net.graph("y")
    (layer,) = [node for node in model.graph if node.op_type == "Conv"]
    assert sample_activation(model, layer, Affine(16.0)) is None


def test_large_maps_are_compared_at_some_positions_of_every_piece(made):
    """At 1024 positions where the memory allows no more; small maps at all."""
    layers, runner, pieces = made
    found = collect_layer_targets(
        layers, plan(layers, 32.0, 0), runner, pieces, 1, set(), share_positions=False
    )
    counts = [len(found[name].index) for name in layers]
    assert counts == [1024, 1024, 24]
    for target in found.values():
        assert np.array_equal(np.unique(target.index), target.index)
        at_once = math.prod(target.shape) // target.shape[target.axis] // PIECES
        assert len(np.unique(target.index // at_once)) == PIECES


def test_values_are_kept_where_they_are_looked_at(made):
    """Of other layers an eighth of a byte for each stays."""
    layers, runner, pieces = made
    first, second, _ = layers
    found = collect_layer_targets(
        layers, plan(layers, 32.0, 0), runner, pieces, 1, {second}, share_positions=True
    )
    values = np.moveaxis(whole(layers, runner, pieces)[second], 1, -1).reshape(-1, 9)
    assert np.array_equal(found[second].values, values[found[second].index])
    assert found[first].values.nbytes == 0
    assert found[first].representable.bits.nbytes == len(found[first].index)  # of five channels
