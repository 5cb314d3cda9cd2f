"""Law: with zero points the bridge has the simulator's integers, tensor by tensor, and
gradients.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx.operators.linear.integer_op import FloatLinear
from lingeronnx.quantization.lower import extract_plan, lower
from lingeronnx.targets import GENERIC
from simulator import kernels as k
from simulator.channel_rescale import ChannelRescale
from simulator.fixed_point import Rescale
from tests import nets
from tests.case_selection import mark_rest_slow
from tests.flow.assign.test_zero_points import SETTINGS, asymmetric, layers, line, pairs
from tests.simulator.helpers import SEEDS, few, integers
from tests.simulator.test_zero_points import ZEROS, moved

torch = pytest.importorskip("torch")

from lingeronnx.torch.fake_quant.rounding import requantize  # noqa: E402
from lingeronnx.torch.finetune.learned_scales import LearnedScales  # noqa: E402
from lingeronnx.torch.qat.qat_module import QatModule  # noqa: E402
from tests.torch.fake_quant.fake_quant_checks import check_exact_and_differentiable  # noqa: E402


def tensors(feed):
    return {name: torch.from_numpy(array) for name, array in feed.items()}


@pytest.mark.slow
@few
@given(SEEDS, ZEROS, ZEROS, moved(shifts=(4, 12)))
def test_kernels(seed, zero, other, rescale):
    """Bit for bit, with finite gradients."""
    rng = np.random.default_rng(seed)
    x, bias = integers(rng, (2, 6, 4, 3)), integers(rng, (4,), np.int16)
    conv = integers(rng, (4, 3, 2, 2)), bias
    check_exact_and_differentiable(k.Conv(*conv, rescale, pads=(1, 0, 0, 1), group=2, zero=zero), x)
    check_exact_and_differentiable(
        k.Conv(*conv, ChannelRescale((rescale,) * 4), pads=(1, 0, 0, 1), group=2, zero=zero), x
    )
    turned = integers(rng, (6, 2, 2, 2))
    check_exact_and_differentiable(
        k.ConvTranspose(
            turned, bias, rescale, strides=(2, 1), pads=(1, 0, 0, 1), group=2, zero=zero
        ),
        x,
    )
    check_exact_and_differentiable(k.Linear(integers(rng, (4, 3)), bias, rescale, zero), x)
    check_exact_and_differentiable(
        FloatLinear(integers(rng, (4, 3)), bias.astype(np.int64), 777.0, zero), x
    )
    check_exact_and_differentiable(
        k.ChannelAffine(integers(rng, (6,)), integers(rng, (6,), np.int16), rescale, zero), x
    )
    check_exact_and_differentiable(
        k.subtract_zero_points(k.Mul(rescale), zero, other), x, integers(rng, x.shape)
    )
    check_exact_and_differentiable(
        k.subtract_zero_points(k.MatMul(rescale), zero, other), x, integers(rng, (2, 6, 3, 5))
    )
    check_exact_and_differentiable(
        k.subtract_zero_points(
            k.AddScaled.from_ratios(0.7, 1.9, 8, -1, rescale.zero_point), zero, other
        ),
        x,
        integers(rng, x.shape),
    )
    check_exact_and_differentiable(
        k.subtract_zero_points(
            k.Concat(1, (rescale, Rescale.from_shift(0, 8, rescale.zero_point))), zero, other
        ),
        x,
        x,
    )
    check_exact_and_differentiable(
        k.subtract_zero_points(
            k.AvgPool((3, 2), (2, 1), (1, 0, 1, 1), replace(rescale, shift=33)), zero
        ),
        x,
    )
    check_exact_and_differentiable(k.Dequant(3.7, zero), x)
    check_exact_and_differentiable(
        k.Quant(3.7, 8, zero_point=zero), (100 * rng.standard_normal((2, 50))).astype(np.float32)
    )


@few
@given(st.integers(-60, 60).map(lambda shift: 2.0**shift), ZEROS)
def test_gradient_of_a_scale(scale, zero):
    """It is counted from the zero point: the same as of integers around 0."""
    acc = torch.tensor([-(2.0**11), -900.0, 3.0, 700.0, 2.0**11], dtype=torch.float64)
    found = []
    for rule in (Rescale.from_ratio(0.11, 8, 0), Rescale.from_ratio(0.11, 16, zero)):
        probe = torch.tensor(0.0, requires_grad=True)
        y = requantize(acc.clone().requires_grad_(), rule, 2**11, probe)
        (y[1:4].sum() * scale).backward()
        found.append(float(probe.grad))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize(
    "build", mark_rest_slow(1, [layers, pairs, line]), ids=lambda f: f.__name__
)
def test_whole_nets(build, settings):
    """Every integer tensor; every weight and bias gets a gradient; outputs are real values."""
    result, feed = asymmetric(build, **settings), nets.samples(build(), 3, seed=6)
    bridge = QatModule(result.float_graph, result.plan, GENERIC, feed)
    got = dict(bridge.integers(tensors(feed)))
    session, seen = lo.Session(lower(bridge.partition, bridge.plan, GENERIC).graph), 0
    for name, array, _ in session.taps(feed):
        if array.dtype.kind == "i" and name in got:
            np.testing.assert_array_equal(got[name].detach().numpy(), array, err_msg=name)
            seen += 1
    assert seen > 4
    outputs = bridge(tensors(feed))
    for port, want in zip(session.get_outputs(), session.run(None, feed), strict=True):
        np.testing.assert_allclose(outputs[port.name].detach().numpy(), want, rtol=1e-6, atol=1e-6)
    sum(y.square().sum() for y in outputs.values()).backward()
    for name, parameter in bridge.parameter_of.items():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name


def test_learned_scales_keep_zero_points():
    """A scale moves, its zero point stays, and the plan stays legal."""
    result, feed = asymmetric(line), nets.samples(line(), 2)
    bridge = QatModule(result.float_graph, result.plan, GENERIC, feed)
    scales = LearnedScales(bridge.partition, result.plan, GENERIC)
    with torch.no_grad():
        for log in scales.parameters:
            log -= 1
    moved_to = scales.plan()
    assert any(q.zero_point for q in moved_to.tensors.values())
    for name, q in moved_to.tensors.items():
        assert q == result.plan.tensors[name].changed(q.scale)
        assert q.scale < result.plan.tensors[name].scale
    bridge.set_plan(moved_to)
    assert bridge(tensors(feed))["y"].shape == (2, 8, 5)


def test_outputs_are_cut_from_the_zero_point():
    """`clamp_output` bounds real values, whatever integer stands for 0."""
    result, feed = asymmetric(line, effort="fast"), nets.samples(line(), 4, seed=3)
    bridge = QatModule(result.float_graph, result.plan, GENERIC, feed)
    name = next(n for n, q in result.plan.tensors.items() if q.zero_point and n == "t1")
    top = float(np.abs(bridge(tensors(feed), [name])[name].detach().numpy()).max()) / 2
    bridge.output_clip_limits = {name: top}
    bridge.train()
    assert float(bridge(tensors(feed), [name])[name].detach().abs().max()) == pytest.approx(
        top, abs=1e-5
    )


def test_finetuning():
    """A few steps of training with learned scales: zero points stay, and the graph is the
    plan's.
    """
    feed = nets.samples(line(), 16)
    settings = {
        "platform": "generic",
        "mode": "max-value",
        "activations": "asymmetric",
        "epochs": 2,
    }
    result = lo.finetune(line(), feed, scales="learned", **settings)
    assert sum(q.zero_point != 0 for q in result.plan.tensors.values()) >= 4
    assert extract_plan(result.graph).tensors == result.plan.tensors
