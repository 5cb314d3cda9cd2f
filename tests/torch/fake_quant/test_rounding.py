"""Rounding in torch: the simulator's integers forwards; backwards the real function's slope, none
where it is cut off.

Slopes are measured on the simulator: the same kernel with an output 2^16 times as fine is the real
function to 2^-17.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import fixed_point
from simulator import kernels as k
from simulator.channel_rescale import ChannelRescale, requantize_channels
from simulator.fixed_point import ChainedRescale, LunaDivide, Rescale, RoundedShift, RoundingMode
from simulator.native import NativeLoop
from tests.case_selection import limit_examples
from tests.simulator.helpers import integers
from tests.torch.fake_quant.fake_quant_checks import simulated, tensor

torch = pytest.importorskip("torch")

from lingeronnx.torch.fake_quant import get_fake_quantizer  # noqa: E402
from lingeronnx.torch.fake_quant.common import FakeQuantContext  # noqa: E402
from lingeronnx.torch.fake_quant.rounding import (  # noqa: E402
    get_multiplier,
    requantize,
    round_with_gradient,
    straight_through,
)  # noqa: E402

more = limit_examples(60, derandomize=True)
LN2 = math.log(2.0)
OTHER = tuple(rounding for rounding in RoundingMode if rounding is not RoundingMode.HALF_UP)

# ---- forwards ----------------------------------------------------------------------------------------------------


@st.composite
def rules(draw):
    """Draw every kind of requantization."""
    bits = draw(st.sampled_from((4, 8, 16, 32)))
    shift = draw(st.integers(-10, 40))
    kind = draw(st.sampled_from(("shift", "ratio", "chain", "divide", "rounded")))
    if kind == "divide":
        return LunaDivide(
            draw(st.sampled_from((3, 9, 25, -7, 100))),
            draw(st.integers(-1, 12)),
            bits,
            underflow=-5,
        )
    if kind == "shift":
        return Rescale.from_shift(shift, bits)
    if kind == "rounded":
        return RoundedShift(shift, bits, draw(st.sampled_from(OTHER)))
    ratio, rounding = (
        draw(st.floats(0.5, 1.0)),
        draw(st.sampled_from(RoundingMode)) if kind == "ratio" else RoundingMode.HALF_UP,
    )
    rule = Rescale.from_ratio(ratio * 2.0**-shift, bits, 0, rounding)
    return (
        ChainedRescale(Rescale.from_shift(draw(st.integers(-2, 8)), 32), rule)
        if kind == "chain"
        else rule
    )


@more
@given(rules(), st.integers(0, 999), st.sampled_from((7, 15, 22, 23, 31, 40, 52)))
def test_rescaled_is_the_simulators(rule, seed, width):
    """Whole numbers of any size: both ends, ties, small ones, held in float32 where they fit."""
    if isinstance(rule, LunaDivide):
        width = min(width, 30)  # of int32 sums
    rng, bound = np.random.default_rng(seed), 1 << width
    spread = np.ldexp(rng.uniform(-1, 1, 200), rng.integers(0, width + 1, 200)).astype(np.int64)
    half = {Rescale: 31, RoundedShift: 1}  # what the shift is more than that of a half
    tie = 1 << max(rule.shift - half[type(rule)], 0) if type(rule) in half else 1
    acc = np.clip(
        np.concatenate([spread, [bound, -bound, 0, 1, -1], tie * np.arange(-9, 9)]), -bound, bound
    )
    form = rule.compile_for_bound(bound)
    want = [int(fixed_point.apply_rescale(form, int(v))) for v in acc]
    held = torch.from_numpy(acc.astype(np.float32 if width < 24 else np.float64))
    got = requantize(held, rule, bound)
    assert [int(v) for v in got.tolist()] == want
    assert got.dtype == (torch.float64 if rule.dtype.itemsize > 2 else torch.float32)
    if isinstance(rule, Rescale):
        assert want == rule(acc).tolist()


@more
@given(st.sampled_from(OTHER), st.integers(0, 999))
def test_a_ratio_for_each_channel_rounds_as_told(rounding, seed):
    """What the compiled loop gives, with ties and zero points, along any axis."""
    rng = np.random.default_rng(seed)
    rule = ChannelRescale(
        tuple(Rescale.from_ratio(r, 8, 3, rounding) for r in (0.25, 0.0173, 2.0**-9))
    )
    acc = rng.integers(-(1 << 12), 1 << 12, (40, 3))
    out = np.zeros(acc.shape, np.int64)
    NativeLoop(requantize_channels, (acc, rule.compile_for_bound(1 << 12), out))((), ())
    assert np.array_equal(out, np.stack([one(acc[:, c]) for c, one in enumerate(rule.rescales)], 1))
    got = requantize(torch.from_numpy(acc.astype(np.float32)), rule, 1 << 12)
    assert np.array_equal(got.numpy(), out)


def test_rounded():
    """Half up, cut off at both ends; integers that are given are taken."""
    v = torch.tensor([-2.5, -0.5, 0.49, 0.5, 1.5, 9.0, -9.0, math.inf], dtype=torch.float64)
    assert round_with_gradient(v, -4, 3).tolist() == [-2, 0, 0, 1, 2, 3, -4, 3]
    given = torch.arange(8)
    assert round_with_gradient(v, -4, 3, exact=given).tolist() == given.tolist()
    assert round_with_gradient(v.float(), -4, 3).dtype == torch.float32


# ---- backwards ---------------------------------------------------------------------------------------------------


def test_straight_through():
    """The gradient passes as it is up to half a count beyond the ends, and is nothing further
    out.
    """
    v = torch.tensor(
        [-9.0, -4.6, -4.4, 0.3, 3.4, 3.6, 9.0], dtype=torch.float64, requires_grad=True
    )
    g = torch.arange(1.0, 8.0, dtype=torch.float64)
    (round_with_gradient(v, -4, 3) * g).sum().backward()
    assert v.grad.tolist() == [0, 0, 3, 4, 5, 0, 0]
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    y = straight_through(x.square(), torch.zeros(5))
    y.sum().backward()
    assert y.tolist() == [0.0] * 5
    assert torch.equal(x.grad, 2 * x.detach())


def test_nothing_where_a_layer_is_cut_off():
    """Outputs that saturate give neither the input nor the weight a gradient."""
    rng = np.random.default_rng(0)
    weight, x = integers(rng, (4, 6)), integers(rng, (5, 6))
    bias = np.array([1 << 24, 0, -(1 << 24), 0])
    kernel = k.Linear(weight, bias, Rescale.from_shift(9, 8))
    fed, held = tensor(x), tensor(weight)
    (y,) = get_fake_quantizer(kernel)(kernel, [fed], FakeQuantContext([x.dtype], {1: held}))
    y[:, ::2].sum().backward()
    assert not fed.grad.any()
    assert not held.grad.any()
    held.grad = None
    (y,) = get_fake_quantizer(kernel)(kernel, [fed], FakeQuantContext([x.dtype], {1: held}))
    y.sum().backward()
    assert not held.grad[::2].any()
    assert held.grad[1::2].all()


def closed(v, q, low, high, g):
    """Return the scale's gradient as the module states it, one number at a time."""
    total = 0.0
    for a, b, c in zip(v, q, g, strict=True):
        total += c * ((a if low - 0.5 <= a <= high + 0.5 else 0.0) - b)
    return LN2 * total


@more
@given(st.integers(0, 999), st.floats(0.5, 40.0))
def test_scale_gradient_in_closed_form(seed, spread):
    rng = np.random.default_rng(seed)
    v, g = rng.normal(0, spread, 50), rng.normal(0, 1, 50)
    probe = torch.zeros((), requires_grad=True)
    q = round_with_gradient(torch.from_numpy(v), -16, 15, probe)
    (q * torch.from_numpy(g)).sum().backward()
    want = closed(v.tolist(), q.tolist(), -16, 15, g.tolist())
    assert probe.grad.item() == pytest.approx(want, rel=1e-5, abs=1e-5)
    idle = torch.zeros(())
    assert not round_with_gradient(torch.from_numpy(v), -16, 15, idle).requires_grad


def loss(x, log2, target, probe=None):
    """Return a loss of x held in 5 bits at the scale 2^log2: its mean, and its squared distance
    from a target.
    """
    scale = 2.0**log2
    y = (
        round_with_gradient(x * scale, -16, 15, probe) / scale
    )  # the probe answers for both uses of the scale
    return ((y - target).square() + 0.3 * y).mean()


@pytest.mark.sweep
@pytest.mark.parametrize("log2", (0.7, 1.5, 2.2, 3.5, 5.0))
def test_scale_gradient_in_expectation(log2):
    """The loss over many numbers is smooth in the scale: its slope is the gradient, to 5 % (or
    2e-4).

    From a scale where nearly all is cut off to one where rounding is all there is.
    """
    x = (
        torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        * 2.0
    )
    probe = torch.zeros((), requires_grad=True)
    loss(x, log2, x, probe).backward()
    step = 0.02
    slope = (loss(x, log2 + step, x) - loss(x, log2 - step, x)).item() / (2 * step)
    assert probe.grad.item() == pytest.approx(slope, rel=0.05, abs=2e-4)


# ---- slopes of whole kernels -------------------------------------------------------------------------------------

FINE = 16


def finer(rule):
    """Return the rescale with 2^FINE times as many counts, in 62 bits."""
    return Rescale(rule.multiplier, rule.shift - FINE, 62)


def fine_of(kernel):
    """Return the kernel with an output so fine that it does not round, and never saturates."""
    if isinstance(kernel, k.AddScaled):
        return replace(kernel, out=finer(kernel.out))
    if isinstance(kernel, k.AvgPool):
        return replace(kernel, rule=finer(kernel.rule))
    return replace(kernel, rescale=finer(kernel.rescale))


def slope(function, arrays, directions):
    """Return the central difference of the outputs, float64, along integer directions."""
    up, down = (
        [
            (a.astype(np.int64) + s * d).astype(a.dtype)
            for a, d in zip(arrays, directions, strict=True)
        ]
        for s in (1, -1)
    )
    return (np.asarray(function(up), np.float64) - np.asarray(function(down), np.float64)) / 2


def gradient(kernel, arrays, directions, parameters=None):
    """Return a random sum of the outputs: weights of the sum, and its slope by autograd along
    directions.
    """
    tensors = [tensor(a) for a in arrays]
    given = {i: tensor(a) for i, a in (parameters or {}).items()}
    (y, *_) = get_fake_quantizer(kernel)(
        kernel, tensors, FakeQuantContext([a.dtype for a in arrays], given)
    )
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (y.double() * g).sum().backward()
    own = [*tensors, *given.values()]
    moved = [torch.from_numpy(np.asarray(d, np.float64)) for d in directions]
    return g.numpy(), float(
        sum((t.grad.double() * d).sum() for t, d in zip(own, moved, strict=True))
    )


def small(rng, *shape, top=40, kind=np.int8):
    return rng.integers(-top, top, shape).astype(kind)


RNG = np.random.default_rng(5)
WIDE = 32  # bits of the outputs: nothing is cut off
SMOOTH = {
    "Conv": (
        k.Conv(
            small(RNG, 4, 2, 3, 3),
            small(RNG, 4, kind=np.int64),
            Rescale.from_ratio(0.013, WIDE),
            pads=[1, 0, 2, 1],
            strides=[2, 1],
            group=2,
        ),
        [small(RNG, 2, 4, 6, 6)],
    ),
    "Conv1d": (
        k.Conv(small(RNG, 3, 4, 3), None, Rescale.from_shift(7, WIDE), dilations=[2]),
        [small(RNG, 2, 4, 9)],
    ),
    "ConvTranspose": (
        k.ConvTranspose(
            small(RNG, 2, 3, 3, 3),
            small(RNG, 3, kind=np.int64),
            Rescale.from_shift(6, WIDE),
            strides=[2, 2],
            pads=[1, 1, 0, 0],
            output_padding=[1, 1],
        ),
        [small(RNG, 1, 2, 4, 4)],
    ),
    "Linear": (
        k.Linear(small(RNG, 4, 30), None, Rescale.from_ratio(0.021, WIDE)),
        [small(RNG, 3, 30)],
    ),
    "Affine": (
        k.ChannelAffine(small(RNG, 3), small(RNG, 3, kind=np.int64), Rescale.from_shift(4, WIDE)),
        [small(RNG, 2, 3, 4)],
    ),
    "AddScaled": (
        k.AddScaled.from_ratios(0.37, 1.4, WIDE, -1),
        [small(RNG, 2, 3, 4), small(RNG, 3, 1)],
    ),
    "Mul": (k.Mul(Rescale.from_ratio(0.05, WIDE)), [small(RNG, 2, 3, 4), small(RNG, 1, 3, 1)]),
    "MatMul": (k.MatMul(Rescale.from_shift(5, WIDE)), [small(RNG, 2, 3, 5), small(RNG, 5, 4)]),
    "Requant": (k.Requant(Rescale.from_ratio(0.7, WIDE)), [small(RNG, 3, 9)]),
    "AvgPool": (
        k.AvgPool([2, 3], [1, 2], [1, 0, 0, 1], Rescale.from_ratio(0.9, WIDE)),
        [small(RNG, 1, 2, 5, 6)],
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", SMOOTH)
def test_slopes_of_what_is_linear_in_each_input(name):
    """Sums and products: the slope along any direction, to 1e-4 of its size."""
    kernel, arrays = SMOOTH[name]
    rng = np.random.default_rng(0)
    for _ in range(4):
        directions = [rng.integers(-3, 4, a.shape) for a in arrays]
        fine = slope(lambda fed: simulated(fine_of(kernel), fed)[0], arrays, directions) / 2.0**FINE
        g, got = gradient(kernel, arrays, directions)
        assert got == pytest.approx((g * fine).sum(), abs=1e-4 * np.abs(g * fine).sum() + 1e-3)


@pytest.mark.parametrize("name", ("Conv", "Conv1d", "ConvTranspose", "Linear", "Affine"))
def test_slopes_along_parameters(name):
    """Weights and biases, which the bridge gives in place of the kernel's own."""
    kernel, arrays = SMOOTH[name]
    rng = np.random.default_rng(1)
    whole = {1: "weight", 2: "bias"} if kernel.bias is not None else {1: "weight"}
    parameters = {i: getattr(kernel, field) for i, field in whole.items()}
    directions = [rng.integers(-3, 4, p.shape) for p in parameters.values()]

    def moved(fed):
        other = replace(fine_of(kernel), **dict(zip(whole.values(), fed, strict=True)))
        return simulated(other, arrays)[0]

    fine = slope(moved, list(parameters.values()), directions) / 2.0**FINE
    g, got = gradient(kernel, arrays, [np.zeros(a.shape) for a in arrays] + directions, parameters)
    assert got == pytest.approx((g * fine).sum(), abs=1e-4 * np.abs(g * fine).sum() + 1e-3)


def test_slopes_of_shifted_sums():
    """AddShift rounds its operands first: a shift by s is a factor 2^-s."""
    rng = np.random.default_rng(2)
    x, y = small(rng, 3, 4), small(rng, 3, 4)
    dx, dy = rng.integers(-3, 4, x.shape), rng.integers(-3, 4, y.shape)
    g, got = gradient(k.AddShift(2, -1, 16, -1), [x, y], [dx, dy])
    assert got == pytest.approx((g * (dx / 4 - 2 * dy)).sum(), abs=1e-4)


def test_slopes_of_choices():
    """What moves numbers moves their gradients; a maximum's goes to where it stands; a clip's ends
    at its bounds.
    """
    rng = np.random.default_rng(3)
    x = rng.permutation(np.arange(-60, 60)).reshape(1, 2, 6, 10).astype(np.int8)  # no two are equal
    kernels = (
        k.MaxPool([2, 3], [2, 2], [1, 0, 0, 1]),
        k.IndexSelect([None, np.array([1, 1, -1]), np.array([0, 4]), None], 7),
        k.Gather(3, np.array([[2, 2], [9, 0]])),
        k.Transpose([2, 0, 3, 1]),
        k.Reshape([1, -1, 4]),
        k.Clip(-20, 31),
    )
    for kernel in kernels:
        for _ in range(3):
            direction = rng.integers(0, 2, x.shape)
            wide = (x.astype(np.int16) * 64).astype(
                np.int16
            )  # a count up or down passes no neighbour
            own = (
                replace(kernel, low=-20 * 64 - 30, high=31 * 64 + 30)
                if isinstance(kernel, k.Clip)
                else kernel
            )
            want = slope(lambda fed, own=own: simulated(own, fed)[0], [wide], [direction])
            g, got = gradient(own, [wide], [direction])
            assert got == pytest.approx((g * want).sum(), abs=1e-4), kernel


def sigmoid(v):
    return 1.0 / (1.0 + np.exp(-v))


def along(real, x, direction, step=1e-5):
    """Return the central difference of a real function."""
    return (real(x + step * direction) - real(x - step * direction)) / (2 * step)


def agrees(kernel, x, real, tolerance, seed=0):
    """Assert that the slopes are those of `real` (counts to counts), to a share of the slopes'
    size.
    """
    rng = np.random.default_rng(seed)
    for _ in range(3):
        direction = rng.integers(-3, 4, x.shape)
        want = along(real, x.astype(np.float64), direction)
        g, got = gradient(kernel, [x], [direction])
        assert got == pytest.approx((g * want).sum(), abs=tolerance * np.abs(g * want).sum())


def test_slopes_of_curves():
    """Tables are followed by mean slopes over a 32nd of their width: to 3 % of the slopes added up.
    Rows by theory.
    """
    rng = np.random.default_rng(4)
    x = small(rng, 6, 9, top=120)
    agrees(
        k.Table(np.floor(127 * np.tanh(k.all_integers(8) / 32) + 0.5).astype(np.int8)),
        x,
        lambda v: 127 * np.tanh(v / 32),
        0.03,
    )
    fine = small(rng, 6, 9, top=30000, kind=np.int16)
    values = np.floor(32767 * sigmoid(k.all_integers(16) / 4096) + 0.5).astype(np.int16)
    agrees(k.Table(values), fine, lambda v: 32767 * sigmoid(v / 4096), 0.003)
    agrees(
        k.Glu(k.Glu.gates(4), Rescale.from_shift(15 - 8, 16)),
        x[:, :8],
        lambda v: v[:, :4] * sigmoid(v[:, 4:] / 16) * 256,
        0.03,
    )

    def rows(v):
        e = np.exp(v / 16 - (v / 16).max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    entry = k.make_input_table(2.0**25 / 16, 8)
    agrees(k.Softmax(entry, Rescale.from_shift(0, 32), -1), x, lambda v: rows(v) * 2.0**15, 0.001)
    agrees(
        k.LogSoftmax(entry, Rescale.from_shift(0, 32), -1),
        x,
        lambda v: np.log(rows(v)) * 2.0**15,
        0.001,
    )


def test_slopes_of_layer_norm():
    """Along the input and along both parameters."""
    rng = np.random.default_rng(6)
    x, gamma, beta = (
        small(rng, 5, 12, top=100),
        small(rng, 12, kind=np.int64),
        small(rng, 12, top=900, kind=np.int64),
    )
    kernel = k.LayerNorm(gamma, beta, 40, Rescale.from_shift(3, 32))

    def real(v, factor=gamma, summand=beta):
        v = v - v.mean(-1, keepdims=True)
        return (
            v / np.sqrt((v * v).mean(-1, keepdims=True) + 40 / 144) * factor * 1024 + summand
        ) / 8

    agrees(kernel, x, real, 0.001)
    d_gamma, d_beta = rng.integers(-3, 4, 12), rng.integers(-3, 4, 12)
    g, got = gradient(kernel, [x], [0 * x, d_gamma, d_beta], {1: gamma, 2: beta})
    want = real(x.astype(float), gamma + d_gamma, beta + d_beta) - real(x.astype(float))
    assert got == pytest.approx((g * want).sum(), rel=1e-3)


def weights(rng, gates, units=5, inputs=4):
    return {
        "weight_x": small(rng, gates * units, inputs),
        "weight_h": small(rng, gates * units, units),
        "bias_x": small(rng, gates * units, top=2000, kind=np.int64),
        "bias_h": small(rng, gates * units, top=2000, kind=np.int64),
    }


CUT = {"lengths": np.array([4])}
RECURRENT = {
    "lstm-q27": (k.Lstm, {"rescale_o": k.Lstm.make_output_rescale("q27", 2.0**15, 16)}, 0.01),
    "lstm-backwards": (
        k.Lstm,
        {"rescale_o": k.Lstm.make_output_rescale("q27", 2.0**15, 16), "is_forward": False},
        0.01,
    ),
    "lstm-q11": (
        k.Lstm,
        {
            "arithmetic": "q11",
            "table": "venus",
            "rescale_o": k.Lstm.make_output_rescale("q11", 2.0**7, 8),
        },
        0.08,
    ),
    "gru-after": (k.Gru, {"rescale_o": k.Gru.make_output_rescale(2.0**15, 16)}, 0.01),
    "gru-before": (
        k.Gru,
        {"rescale_o": k.Gru.make_output_rescale(2.0**15, 16), "reset_after": False},
        0.01,
    ),
    "gru-backwards": (
        k.Gru,
        {"rescale_o": k.Gru.make_output_rescale(2.0**15, 16), "is_forward": False},
        0.01,
    ),
    "gru-halved": (k.ExecutorGru, {"rescale_o": Rescale.from_shift(7, 8)}, 0.08),
    "gru-apart": (
        k.ExecutorGru,
        {"rescale_o": Rescale.from_shift(7, 8), "uses_state_sums": False},
        0.08,
    ),
    **{
        f"{name}-cut-off": (
            kind,
            {
                "rescale_o": kind.make_output_rescale(*how),
                "is_forward": name != "lstm",
                "constant_states": CUT,
            },
            0.01,
        )
        for name, kind, how in (
            ("lstm", k.Lstm, ("q27", 2.0**15, 16)),
            ("gru", k.Gru, (2.0**15, 16)),
        )
    },
}


def real_layer(kind, options, scale_x, scale_h):
    """Return the sequence of a layer in counts of its state, as a function of x, parameters and
    states in counts.
    """
    top = 2.0 ** (options["rescale_o"].bits - 1)
    forward, after = options.get("is_forward", True), options.get("reset_after", True)
    cell = 2.0**7 if options.get("arithmetic") == "q11" else 2.0**15
    (last,) = options.get("constant_states", {}).get("lengths", (None,))

    def run(x, weight_x, weight_h, bias_x, bias_h, *states):
        a = (x @ weight_x.T + bias_x) / scale_x
        units = weight_h.shape[1]
        h, c = (
            np.repeat(s.reshape(-1, units), len(x), 0) / one
            for s, one in zip((*states, np.zeros(units))[:2], (top, cell), strict=True)
        )
        y = np.zeros((*x.shape[:2], units))
        for t in range(x.shape[1])[:last] if forward else reversed(range(x.shape[1])[:last]):
            b = (h * top) @ weight_h.T / scale_h + bias_h / scale_h
            if kind is k.Lstm:
                i, f, g, o = np.split(a[:, t] + b, 4, -1)
                c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(c)
            else:
                (ar, az, an), (br, bz, bn) = np.split(a[:, t], 3, -1), np.split(b, 3, -1)
                joined = options.get("uses_state_sums", True)
                r, z = sigmoid(ar + br * joined), sigmoid(az + bz * joined)
                if not after:
                    bn = ((r * h * top) @ weight_h[2 * units :].T + bias_h[2 * units :]) / scale_h
                    n = np.tanh(an + bn)
                else:
                    n = np.tanh(an + r * bn)
                h = z * h / 2 + (1 - z) * n if kind is k.ExecutorGru else n + z * (h - n)
            y[:, t] = h * top
        return y

    return run


@pytest.mark.parametrize("name", RECURRENT)
def test_slopes_of_recurrent_layers(name):
    """The sequence along x, all four parameters and the first states, to 1 % of the slopes' size (8
    %: of 8 bits).
    """
    kind, options, tolerance = RECURRENT[name]
    rng = np.random.default_rng(7)
    held = weights(rng, kind.gates)
    fraction = 11 if kind is k.ExecutorGru or options.get("arithmetic") == "q11" else 27
    state = options["rescale_o"].bits
    first = {"h": small(rng, 1, 1, 5, top=1 << (state - 2), kind=np.int16)}
    if kind is k.Lstm:
        first["c"] = small(rng, 1, 1, 5, top=60 if fraction == 11 else 15000, kind=np.int32)
    log_x, log_h = 12, 5 + state - 1  # sums per real unit
    sums = {
        "rescale_x": Rescale.from_shift(log_x - fraction, 32),
        "rescale_h": Rescale.from_shift(log_h - fraction, 32),
    }
    kernel = kind(**held, **options, **sums)
    held |= first
    x = small(rng, 2, 6, 4, top=100)
    real = real_layer(kind, options, 2.0**log_x, 2.0**log_h)
    directions = [rng.integers(-3, 4, a.shape) for a in (x, *held.values())]
    point = [a.astype(np.float64) for a in (x, *held.values())]
    step = 1e-4
    up, down = (
        real(*(p + s * step * d for p, d in zip(point, directions, strict=True))) for s in (1, -1)
    )
    want = (up - down) / (2 * step)
    g, got = gradient(kernel, [x], directions, held)
    assert got == pytest.approx((g * want).sum(), abs=tolerance * np.abs(g * want).sum())


def test_ratio():
    """A ratio of a chain is the product; a divider's is one over the divisor."""
    assert get_multiplier(
        ChainedRescale(Rescale.from_shift(2, 32), Rescale.from_ratio(0.3, 8))
    ) == pytest.approx(0.075, rel=1e-8)
    assert get_multiplier(LunaDivide(9, 3)) == pytest.approx(8 / 9)
    assert (
        get_multiplier(RoundedShift(3, 8, RoundingMode.UP)),
        get_multiplier(RoundedShift(-2, 8, RoundingMode.HALF_EVEN)),
    ) == (0.125, 4.0)
