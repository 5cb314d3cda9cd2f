"""Law: with a scale for each channel the bridge has the simulator's integers, tensor by tensor, and
gradients.
"""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.operators.linear.integer_op import FloatLinear
from lingeronnx.quantization.lower import extract_plan, lower
from lingeronnx.targets import GENERIC
from simulator import kernels as k
from tests import nets
from tests.flow.assign.test_channel_scales import GOLDEN, SETTINGS, by_channel, layers, line
from tests.simulator.helpers import SEEDS, few, integers
from tests.simulator.test_channels import KINDS, channels

torch = pytest.importorskip("torch")

from lingeronnx.torch.finetune.learned_scales import LearnedScales  # noqa: E402
from lingeronnx.torch.finetune.soft_rounding import SoftRounding  # noqa: E402
from lingeronnx.torch.qat.qat_module import FakeQuantNetwork, QatModule  # noqa: E402
from tests.torch.fake_quant.fake_quant_checks import check_exact_and_differentiable  # noqa: E402


def tensors(feed):
    return {name: torch.from_numpy(array) for name, array in feed.items()}


def bridged(result, feed):
    return QatModule(result.float_graph, result.plan, GENERIC, feed)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden(path):
    """The integers that were computed from the definition."""
    held, graph = np.load(path.with_suffix(".npz")), ir.from_proto(onnx.load(path))
    feed = {
        "x": (held["x"] / np.float64(ir.get_attr(graph.graph[0], "scale_x"))).astype(np.float32)
    }
    network = FakeQuantNetwork(graph, {"x": (1, *held["x"].shape[1:])}, {}, target=GENERIC)
    got = dict(network.walk(tensors(feed), {}, {}))
    np.testing.assert_array_equal(got["y_q"].numpy(), held["y"])


@few
@given(st.data(), SEEDS, KINDS, st.sampled_from([(1, 3, 4), (3, 2, 1), (5, 1, 1)]))
def test_layers(data, seed, kinds, sizes):
    """Every layer, any ratios: bit for bit, with finite gradients."""
    rng = np.random.default_rng(seed)
    group, own, each = sizes
    x, rescale = integers(rng, (2, group * own, 4, 3), kinds[0]), data.draw(channels(group * each))
    weight, bias = (
        integers(rng, (group * each, own, 2, 2), kinds[1]),
        integers(rng, (group * each,), np.int16),
    )
    check_exact_and_differentiable(k.Conv(weight, bias, rescale, pads=(1, 0, 0, 1), group=group), x)
    turned = integers(rng, (group * own, each, 2, 2), kinds[1])
    check_exact_and_differentiable(
        k.ConvTranspose(turned, bias, rescale, strides=(2, 1), group=group), x
    )
    rows = integers(rng, (group * each, 6), kinds[1])
    check_exact_and_differentiable(
        k.Linear(rows, bias, rescale), integers(rng, (2, 3, 6), kinds[0])
    )


def test_a_layer_that_writes_floats():
    """Divided by the scale of its channel."""
    rng = np.random.default_rng(5)
    kernel = FloatLinear(
        integers(rng, (4, 6)),
        integers(rng, (4,), np.int16).astype(np.int64),
        np.float64([3, 50, 7.3, 1e5]),
    )
    check_exact_and_differentiable(kernel, integers(rng, (2, 6)))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("build", [layers, line], ids=lambda f: f.__name__)
def test_whole_nets(build, settings):
    """Every integer tensor; every weight and bias gets a gradient."""
    result, feed = by_channel(build, **settings), nets.samples(build(), 3, seed=6)
    bridge = bridged(result, feed)
    got = dict(bridge.integers(tensors(feed)))
    seen = 0
    for name, array, _ in lo.Session(lower(bridge.partition, bridge.plan, GENERIC).graph).taps(
        feed
    ):
        if array.dtype.kind == "i" and name in got:
            np.testing.assert_array_equal(got[name].detach().numpy(), array, err_msg=name)
            seen += 1
    assert seen > 4
    bridge(tensors(feed))["y"].square().sum().backward()
    for name, parameter in bridge.parameter_of.items():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name
        assert bool((parameter.grad != 0).any()), name


def test_gradient_of_a_weight():
    """Where nothing is cut off it is that of the real layer: scale over scale, channel by
    channel.
    """
    result, feed = (
        by_channel(line, mode="max-value", bits=16, weight_bits=16, effort="fast"),
        nets.samples(line(), 2, seed=7),
    )
    bridge = bridged(result, feed)
    parts = dict(bridge.integers(tensors(feed)))
    bridge(tensors(feed))["y"].sum().backward()
    (node,) = [n for n in result.graph.graph if n.op_type == "LinearInt"]
    source = bridge.get_source_name(str(node.inputs[1].name))
    read = parts[str(node.inputs[0].name)].detach() / ir.get_attr(node, "scale_x")
    want = read.sum(dim=(0, 1)).expand(5, -1)
    np.testing.assert_allclose(
        bridge.parameter_of[source].grad.numpy(), want.numpy(), rtol=1e-3, atol=1e-4
    )


def test_learned_scales_leave_channels_alone():
    """Scales of activations are learned; those of channels stay, and the plan stays legal."""
    result = by_channel(line)
    feed = nets.samples(line(), 2)
    scales = LearnedScales(bridged(result, feed).partition, result.plan, GENERIC)
    several = {name for name, q in result.plan.tensors.items() if q.axis is not None}
    assert several
    assert not several & scales.log2_scales.keys()
    assert scales.log2_scales.keys() | several == result.plan.tensors.keys()
    with torch.no_grad():
        for log in scales.parameters:
            log -= 1
    moved = scales.plan()
    assert all(moved.tensors[name] == result.plan.tensors[name] for name in several)
    assert all(
        moved.tensors[name].scale < result.plan.tensors[name].scale for name in scales.log2_scales
    )


def test_soft_rounding_settles_on_the_grid():
    """Every weight becomes a whole number of its channel's steps, rounded up or down."""
    result, feed = by_channel(line, effort="fast"), nets.samples(line(), 2)
    bridge = bridged(result, feed)
    before = bridge.get_weights()
    soft = SoftRounding(bridge, list(bridge.parameter_of))
    assert soft.rounding_logits
    bridge(tensors(feed))
    soft.finalize()
    for name in soft.rounding_logits:
        q = result.plan.tensors[name]
        counts = bridge.get_weights()[name].astype(np.float64) * q.broadcast(before[name].shape)
        np.testing.assert_allclose(counts, np.round(counts), atol=1e-4)
        assert (
            np.abs(
                counts - np.clip(before[name] * q.broadcast(before[name].shape), q.low, q.high)
            ).max()
            <= 1.001
        )


@pytest.mark.slow
def test_finetuning():
    """A few steps of training with 4-bit weights: the channels' scales stay, and the graph is the
    plan's.
    """
    feed = nets.samples(line(), 16)
    result = lo.finetune(
        line(), feed, platform="generic", weight_scales="channel", weight_bits=4, epochs=2
    )
    several = {name: q for name, q in result.plan.tensors.items() if q.axis is not None}
    assert len(several) == 3
    assert extract_plan(result.graph).tensors == result.plan.tensors
