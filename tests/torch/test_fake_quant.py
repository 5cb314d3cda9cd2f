"""Law: fake quantizers give the simulator's integers to the last bit, for every kernel and every batch."""

import importlib
import json
import math
import pkgutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import lingeronnx.formats
from lingeronnx.errors import ModelError
from lingeronnx.formats.layers import FloatLinear
from lingeronnx.graph import ir
from lingeronnx.platforms import PLATFORMS, arithmetic
from lingeronnx.run.int_runner import IntRunner
from lingeronnx.run.runners import FloatIsland
from lingeronnx.run.session import Session
from simulator import kernels as k
from simulator import machine
from simulator.fixed import Chain, Rescale, Rounded, Rounding
from simulator.kernel import Call, Kernel, PlainKernel, Spec
from simulator.kernels._common import Clipped
from simulator.kernels._walk import Walked
from simulator.kernels.recurrent import Recurrent
from tests.examples import examples
from tests.simulator.helpers import SEEDS, integers, rescales
from tests.test_conformance import LUNA

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # hundreds of cases

from lingeronnx.torch.bridge import Network  # noqa: E402
from lingeronnx.torch.fake_quant import FAKE_QUANTIZERS, OUT_OF_REACH, At, counts, fake_quantizer, held_by  # noqa: E402

few = examples(20, derandomize=True)
more = examples(40, derandomize=True)

INTS = st.sampled_from((np.int8, np.int16))
BITS = st.sampled_from((4, 8, 16, 32))
ROUNDING = st.sampled_from(Rounding)


@st.composite
def requantizations(draw, shifts, bits):
    """Draw those of `rescales`, and by a shift with another rounding."""
    name = draw(ROUNDING)
    if name is Rounding.HALF_UP:
        return draw(rescales(shifts, bits))
    return Rounded(draw(st.integers(*shifts)), draw(st.sampled_from(bits)), name)


def simulated(kernel, arrays):
    """Return the outputs of the simulator's kernel for exactly these arrays."""
    names = tuple(f"x{i}" for i in range(len(arrays)))
    specs = {n: Spec(a.shape, a.dtype) for n, a in zip(names, arrays, strict=True)}
    outputs = tuple(f"y{i}" for i in range(len(kernel.infer(*specs.values()))))
    program = machine.compile([Call(kernel, names, outputs)], specs, outputs)
    made = dict(program.run(dict(zip(names, arrays, strict=True))))
    return [made[name] for name in outputs]


def tensor(array):
    """Return counts, or real values, as the bridge holds them; gradients wanted."""
    held = torch.from_numpy(array.copy()) if array.dtype.kind == "f" else counts(array, torch.zeros(()))
    return held.requires_grad_()


def equal(got, want):
    got = got.detach().numpy()
    assert got.shape == want.shape
    assert got.dtype in (np.float32, np.float64)
    assert np.array_equal(got.astype(np.float64), want.astype(np.float64), equal_nan=True)


def exact(kernel, *arrays, flat=False):
    """Assert that the fake quantizer gives the simulator's integers, and finite gradients (none where `flat`)."""
    tensors = [tensor(a) for a in arrays]
    results = fake_quantizer(kernel)(kernel, tensors, At([a.dtype for a in arrays]))
    want = simulated(kernel, arrays)
    assert len(results) == len(want)
    for got, array in zip(results, want, strict=True):
        equal(got, array)
    following = [r for r in results if r.requires_grad]
    assert bool(following) is not flat
    if following:
        sum(r.double().sum() for r in following).backward()
        for t in tensors:
            assert t.grad is None or bool(torch.isfinite(t.grad).all())


# ---- none is missing ---------------------------------------------------------------------------------------------


def kernels():
    """Return every kernel class that there is, by looking for subclasses in all modules."""
    for package in (k, lingeronnx.formats):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    waiting, seen = [Kernel], set()
    while waiting:
        for kind in waiting.pop().__subclasses__():
            if kind not in seen and kind.__module__.startswith(("simulator.", "lingeronnx.")):
                seen.add(kind)
                waiting.append(kind)
    bases = {PlainKernel, Clipped, Recurrent, Walked, FloatIsland}  # an island has `floats.TorchIsland`
    return {kind for kind in seen - bases if not kind.__name__.startswith("_")}


def test_no_kernel_lacks_a_fake_quantizer():
    """Each kernel that a step of an integer graph can hold has one, and there is none for what no step can hold."""
    named = {getattr(k, name) for name in k.__all__ if isinstance(getattr(k, name), type)}
    assert named <= kernels()
    assert not set(FAKE_QUANTIZERS) & set(OUT_OF_REACH)
    assert kernels() == set(FAKE_QUANTIZERS) | set(OUT_OF_REACH)


def trained(kind):
    """Return a kernel of the training side's, of one unit and one input."""
    ones = np.ones((kind.gates, 1), np.int8)
    zero, rule = np.zeros(kind.gates, np.int64), Rescale.from_shift(0, 32)
    return kind(ones, ones, zero, zero, rule, rule, Rescale.from_shift(8, 8))


def test_out_of_reach():
    """The reason is told, and it is one: no platform's own words mean the training side's arithmetic."""
    for kind in OUT_OF_REACH:
        with pytest.raises(
            ModelError, match=f"^{kind.__name__} has no fake quantizer to train through: it is the training side"
        ):
            fake_quantizer(trained(kind))
    known = [entry.arithmetic for row in PLATFORMS for entry in row.ops.values()]
    layers = [how for how in known if isinstance(how, arithmetic.Recurrent)]
    assert layers
    assert not any(how.trained for how in layers)


def test_a_kernel_without_a_fake_quantizer():
    class Odd(PlainKernel):
        pass

    with pytest.raises(ModelError, match="^Odd has no fake quantizer to train through; leave the node in float$"):
        fake_quantizer(Odd())
    with pytest.raises(ModelError, match="constant"):
        fake_quantizer(k.Constant(np.zeros(1, np.int8)))(None, [], None)


# ---- measured vectors --------------------------------------------------------------------------------------------

CASES = json.loads((LUNA / "index.json").read_text())["cases"]


def walked(case):
    """Return (kinds of kernels, number of tensors) of a measured graph whose every tensor is the simulator's."""
    vectors = np.load(LUNA / f"{case['name']}.npz")
    session = Session(LUNA / f"{case['name']}.onnx")
    runner = IntRunner(session.model)
    feeds = {spec.name: np.asarray(vectors[spec.name]) for spec in runner.inputs}
    fed = runner._fed(feeds, frozenset(n for n, a in feeds.items() if runner._is_quantized(n, a)))
    specs = {n: Spec(a.shape if runner.whole else (1, *a.shape[1:]), a.dtype) for n, a in fed.items()}
    network = Network(session.model, {}, {}, specs)
    want = {name: array for name, array, _ in runner.run(feeds)}
    walk = dict(network.walk({n: tensor(a).detach() for n, a in fed.items()}, {}, {}))
    assert walk.keys() == {name for step in network.steps for name in step.outputs}
    for name, got in walk.items():
        equal(got, want[name])
    return {type(step.kernel) for step in network.steps}, len(walk)


def measured(cases):
    """Walk the cases; return the kinds of kernels met."""
    kinds, wrong = set(), []
    for case in cases:
        try:
            met, count = walked(case)
            assert count
            kinds |= met
        except AssertionError as error:
            wrong.append(f"{case['name']}: {error}")
    assert not wrong, "\n".join(wrong)
    return kinds


def test_one_vector_per_operator():
    """The smallest graph of each operator and platform."""
    first = {(case["platform"], case["op"]): case for case in reversed(CASES)}
    assert len(measured(first.values())) > 20


@pytest.mark.slow
def test_all_vectors():
    """Every tensor of every measured graph."""
    kinds = measured(CASES)
    elsewhere = {k.AddScaled, k.Clip, k.Constant, k.Gru, FloatLinear}  # of other platforms: below
    elsewhere |= {k.DivSingle, k.Mean}  # of the training side
    elsewhere |= {k.Centered}  # of zero points: test_zero_points
    assert kinds >= set(FAKE_QUANTIZERS) - elsewhere


# ---- weights -----------------------------------------------------------------------------------------------------


def windowed(draw, axes):
    kernel = [draw(st.integers(1, 3)) for _ in range(axes)]
    return kernel, {
        "strides": [draw(st.integers(1, 3)) for _ in range(axes)],
        "pads": [draw(st.integers(0, 2)) for _ in range(2 * axes)],
        "dilations": [draw(st.integers(1, 2)) for _ in range(axes)],
    }


def biased(draw, rng, size):
    """Return a bias of some width, or none."""
    top = draw(st.sampled_from((0, 7, 20, 31, 45)))
    return rng.integers(-(1 << top), 1 << top, size) if top else None


@more
@given(st.data(), SEEDS, INTS, INTS, requantizations((-4, 20), (4, 8, 16, 32)))
def test_conv(data, seed, kind, weight_kind, rescale):
    draw, rng = data.draw, np.random.default_rng(seed)
    axes, (group, each) = draw(st.integers(1, 2)), draw(st.sampled_from(((1, 3), (2, 2), (4, 1))))
    kernel, options = windowed(draw, axes)
    outputs = group * draw(st.integers(1, 2))
    extremes = draw(st.booleans())
    weight = integers(rng, (outputs, each, *kernel), weight_kind, extremes)
    space = [draw(st.integers(5, 8)) for _ in range(axes)]
    x = integers(rng, (draw(st.integers(1, 3)), group * each, *space), kind, extremes)
    exact(k.Conv(weight, biased(draw, rng, outputs), rescale, group=group, **options), x)


@more
@given(st.data(), SEEDS, INTS, rescales((-4, 16), (8, 16, 32)), st.integers(1, 2))
def test_conv_transpose(data, seed, kind, rescale, axes):
    """Of lines and images; rows that output_padding adds lie beyond every tap."""
    draw, rng = data.draw, np.random.default_rng(seed)
    group, each = draw(st.sampled_from(((1, 3), (2, 2), (4, 1))))
    kernel, options = windowed(draw, axes)
    options["output_padding"] = draw(st.sampled_from((None, [0, 1][-axes:], [2, 2][-axes:])))
    options["pads"] = [
        min(p, d * (n - 1)) for p, d, n in zip(options["pads"], options["dilations"] * 2, kernel * 2, strict=True)
    ]
    more_channels = draw(st.integers(1, 2))
    weight = integers(rng, (group * each, more_channels, *kernel), np.int8)
    x = integers(rng, (draw(st.integers(1, 2)), group * each, *(4, 5)[-axes:]), kind, draw(st.booleans()))
    exact(k.ConvTranspose(weight, biased(draw, rng, group * more_channels), rescale, group=group, **options), x)


@few
@given(st.data(), SEEDS, INTS, INTS, rescales((-4, 20), (8, 16, 32)))
def test_linear_and_affine(data, seed, kind, weight_kind, rescale):
    draw, rng = data.draw, np.random.default_rng(seed)
    x = integers(rng, [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))] + [90], kind)
    weight = integers(rng, (6, 90), weight_kind)
    bias = biased(draw, rng, 6)
    exact(k.Linear(weight, bias, rescale), x)
    exact(FloatLinear(weight, bias, 2.0 ** draw(st.integers(0, 20)) * draw(st.floats(0.5, 1))), x)
    image = integers(rng, (2, 6, 3, 2), kind)
    summands = weight[:, 1].astype(np.int64) if bias is None else bias
    exact(k.Affine(weight[:, 0].copy(), summands, rescale), image)


def test_sums_too_large():
    """A bias that no float64 holds is refused, not rounded in silence."""
    weight, x = np.ones((2, 3), np.int16), np.ones((1, 3), np.int16)
    for top, refused in ((1 << 52, False), (1 << 55, True)):
        kernel = k.Linear(weight, np.array([1, top]), Rescale.from_shift(40, 16))
        if refused:
            with pytest.raises(ModelError, match=r"^sums reach 2\^55; .*fewer bits$"):
                exact(kernel, x)
        else:
            exact(kernel, x)


# ---- two activations ---------------------------------------------------------------------------------------------

SHAPES = st.sampled_from((
    ((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (1, 3, 1)), ((2, 3, 4), (4,)), ((1, 3, 4), (3, 1)), ((2, 1, 4), (1, 3, 1)),
    ((3, 4), ()),
))  # fmt: skip


@more
@given(SEEDS, SHAPES, INTS, INTS, st.sampled_from((1, -1)), st.integers(-6, 12), st.integers(-6, 12), BITS)
def test_add_shift(seed, shapes, kind_x, kind_y, sign, shift_x, shift_y, bits):
    rng = np.random.default_rng(seed)
    x, y = integers(rng, shapes[0], kind_x), integers(rng, shapes[1], kind_y, seed % 2 > 0)
    exact(k.AddShift(shift_x, shift_y, bits, sign), x, y)


@more
@given(SEEDS, SHAPES, INTS, INTS, st.sampled_from((1, -1)), st.floats(1e-5, 1000), st.floats(1e-5, 1000), BITS)
def test_add_scaled(seed, shapes, kind_x, kind_y, sign, ratio_x, ratio_y, bits):
    rng = np.random.default_rng(seed)
    x, y = integers(rng, shapes[0], kind_x), integers(rng, shapes[1], kind_y, seed % 2 > 0)
    exact(k.AddScaled.from_ratios(ratio_x, ratio_y, bits, sign), x, y)


@few
@given(SEEDS, SHAPES, INTS, INTS, st.sampled_from((1, -1)), *[requantizations((-6, 12), (8, 16))] * 2)
def test_add_rounded(seed, shapes, kind_x, kind_y, sign, rule_x, rule_y):
    """The training side's sum: each operand is rounded as the node says."""
    rng = np.random.default_rng(seed)
    x, y = integers(rng, shapes[0], kind_x), integers(rng, shapes[1], kind_y, seed % 2 > 0)
    exact(k.AddScaled(rule_x, rule_y, Rescale.from_shift(0, 8), sign), x, y)


@few
@given(SEEDS, SHAPES, INTS, INTS, requantizations((-8, 25), (4, 8, 16, 32)))
def test_mul(seed, shapes, kind_x, kind_y, rescale):
    rng = np.random.default_rng(seed)
    exact(k.Mul(rescale), integers(rng, shapes[0], kind_x), integers(rng, shapes[1], kind_y, seed % 2 > 0))


@few
@given(
    SEEDS,
    st.sampled_from((((2, 3, 5), (2, 5, 4)), ((3, 5), (5, 2)), ((2, 1, 3, 900), (4, 900, 2)))),
    INTS,
    INTS,
    rescales((-4, 25), (8, 16, 32)),
)
def test_matmul(seed, shapes, kind_x, kind_y, rescale):
    rng = np.random.default_rng(seed)
    extremes = seed % 2 > 0
    exact(k.MatMul(rescale), integers(rng, shapes[0], kind_x, extremes), integers(rng, shapes[1], kind_y, extremes))


@few
@given(SEEDS, SHAPES, st.integers(-1, 20), st.booleans())
def test_div(seed, shapes, shift, by_sign):
    rng = np.random.default_rng(seed)
    x, y = (np.asarray(integers(rng, shape, np.int16) // 8, np.int32) for shape in shapes)
    y.reshape(-1)[:1] = 0
    exact(k.Div(shift, by_sign), x, y, flat=True)


@few
@given(SEEDS, SHAPES, INTS, st.floats(0.01, 300), st.sampled_from((4, 8, 16)), ROUNDING)
def test_div_single(seed, shapes, kind, scale, bits, rounding):
    """Also by zero."""
    rng = np.random.default_rng(seed)
    x, y = (integers(rng, shape, kind) for shape in shapes)
    y.reshape(-1)[:1] = 0
    exact(k.DivSingle(16.0, 32.0, scale, bits, rounding), x, y)


# ---- one activation ----------------------------------------------------------------------------------------------


@few
@given(SEEDS, st.floats(0.01, 3000), st.sampled_from((4, 8, 16)), st.booleans())
def test_borders(seed, scale, bits, luna):
    """Ties, both ends, infinities and nan."""
    rng = np.random.default_rng(seed)
    if luna:
        scale, bits = 2.0 ** round(math.log2(scale)), 8
    ties = (rng.integers(-200, 200, 40) + 0.5) / scale
    x = np.concatenate([ties, rng.normal(0, 300 / scale, 100), [0, np.inf, -np.inf, np.nan]]).astype(np.float32)
    kernel = k.Quant(scale, bits, "luna" if luna else "generic")
    equal(fake_quantizer(kernel)(kernel, [tensor(x)], At([x.dtype]))[0], simulated(kernel, [x])[0])
    for kind in (np.int8, np.int16, np.int32):
        exact(k.Dequant(scale), integers(rng, (2, 30), kind))


@few
@given(SEEDS, st.floats(0.01, 3000), st.sampled_from((4, 8, 16, 24, 32)), ROUNDING)
def test_quant(seed, scale, bits, rounding):
    """In float32 with each rounding; and to more integers than float32 holds, as cells are."""
    rng = np.random.default_rng(seed)
    ties = (rng.integers(-200, 200, 40) + 0.5) / scale
    x = np.concatenate([ties, rng.normal(0, 2.0**bits / scale, 100), [0, 1e30, -1e30]]).astype(np.float32)
    exact(k.Quant(scale, bits, "single", rounding), x)
    exact(k.Quant(scale, bits), x)


@more
@given(SEEDS, st.sampled_from((np.int8, np.int16, np.int32)), requantizations((-12, 20), (4, 8, 16, 32)), st.booleans())
def test_requant(seed, kind, rescale, saturate):
    exact(k.Requant(rescale, saturate), integers(np.random.default_rng(seed), (3, 50), kind, seed % 3 == 0))


@few
@given(SEEDS, st.sampled_from((np.int8, np.int16, np.int32)), st.integers(-200, 200), st.integers(0, 70000))
def test_clip(seed, kind, low, span):
    x = integers(np.random.default_rng(seed), (3, 50), kind)
    exact(k.Clip(low, low + span), x)
    exact(k.Relu(), x)


@few
@given(SEEDS, INTS, INTS)
def test_table(seed, kind, out):
    rng = np.random.default_rng(seed)
    exact(k.Table(integers(rng, (1 << (8 * kind().itemsize),), out)), integers(rng, (2, 3, 50), kind, seed % 3 == 0))


@few
@given(SEEDS, st.integers(0, 8), requantizations((8, 20), (8, 16)), st.sampled_from((-1, 1, 2, -2, 3)))
def test_glu(seed, q, rescale, axis):
    exact(k.Glu(k.Glu.gates(q), rescale, axis), integers(np.random.default_rng(seed), (2, 6, 4, 14)))


# ---- windows -----------------------------------------------------------------------------------------------------


@more
@given(st.data(), SEEDS, st.sampled_from((np.int8, np.int16, np.int32)), st.booleans())
def test_max_pool(data, seed, kind, ceil_mode):
    """Also windows that lie in the padding only."""
    draw, rng = data.draw, np.random.default_rng(seed)
    axes = draw(st.integers(1, 2))
    kernel, options = windowed(draw, axes)
    x = integers(rng, (2, 3, *(draw(st.integers(5, 8)) for _ in range(axes))), kind)
    exact(k.MaxPool(kernel, ceil_mode=ceil_mode, **options), x)


@more
@given(st.data(), SEEDS, INTS, st.booleans(), rescales((-3, 8), (8, 16)))
def test_avg_pool(data, seed, kind, ceil_mode, rescale):
    """By a ratio, and by each of the rules of the NPU."""
    draw, rng = data.draw, np.random.default_rng(seed)
    axes = draw(st.integers(1, 2))
    kernel, options = windowed(draw, axes)
    x = integers(rng, (2, 3, *(draw(st.integers(5, 8)) for _ in range(axes))), kind)
    of_npu = k.luna_average(
        draw(st.sampled_from(("venus", "arcs"))), math.prod(kernel), draw(st.integers(0, 8)), draw(st.integers(0, 8))
    )
    rule = rescale if kind == np.int16 or draw(st.booleans()) else of_npu
    exact(k.AvgPool(kernel, options["strides"], options["pads"], rule, ceil_mode), x)


@more
@given(st.data(), SEEDS, INTS, st.booleans(), st.booleans(), st.sampled_from((0, 0, 5)), ROUNDING)
def test_mean(data, seed, kind, ceil_mode, padded, divisor, rounding):
    """Windows of any kind, or the whole image; whatever they are divided by."""
    draw, rng = data.draw, np.random.default_rng(seed)
    axes = draw(st.integers(1, 2))
    kernel, options = windowed(draw, axes)
    x = integers(rng, (2, 3, *(draw(st.integers(5, 8)) for _ in range(axes))), kind)
    more = (draw(st.integers(-6, 6)), draw(st.sampled_from((8, 16))), rounding, ceil_mode, padded, divisor)
    exact(k.Mean(kernel, options["strides"], options["pads"], *more), x)
    exact(k.Mean(None, None, None, *more), x)


def test_slope_of_a_mean():
    """One over the number of elements, which is that of the image where padding does not count."""
    x = np.full((1, 1, 3), 10, np.int8)
    for padded, want in ((True, [1, 1, 1]), (False, [2, 1, 1])):
        held = tensor(x)
        kernel = k.Mean([2], [2], [1, 0], 1, padded=padded)
        fake_quantizer(kernel)(kernel, [held], At([x.dtype]))[0].sum().backward()
        assert held.grad.reshape(-1).tolist() == want


# ---- moving ------------------------------------------------------------------------------------------------------


@more
@given(st.data(), SEEDS, st.sampled_from((8, 16)))
def test_concat(data, seed, bits):
    """Each input at its own width and ratio; one that is narrowed is cut off; a constant's first axis follows."""
    draw, rng = data.draw, np.random.default_rng(seed)
    arrays, rules = [], []
    for _ in range(draw(st.integers(1, 3))):
        kind, shift = draw(INTS), draw(st.sampled_from((0, 0, -2, 3)))
        ratio = draw(st.sampled_from((None, 0.37, 1.9)))
        rules.append(Rescale.from_shift(shift, bits) if ratio is None else Rescale.from_ratio(ratio, bits))
        arrays.append(integers(rng, (draw(st.sampled_from((1, 2))), draw(st.integers(1, 4)), 5), kind))
    exact(k.Concat(1, tuple(rules)), *arrays)
    same = [a[:1] for a in arrays]
    exact(k.Concat(-2, tuple(rules)), *same)


@few
@given(st.data(), SEEDS, st.sampled_from((np.int8, np.int16, np.int32)))
def test_moves(data, seed, kind):
    draw, rng = data.draw, np.random.default_rng(seed)
    x = integers(rng, (2, 3, 4, 5), kind)
    exact(k.Reshape(draw(st.sampled_from(([1, -1], [0, 12, 5], [1, 3, -1, 5], [0, 0, 0, 0])))), x)
    exact(k.Reshape([6, -1, 5], per_sample=False), x)
    exact(k.Transpose(draw(st.permutations(range(4)))), x)
    axis = draw(st.integers(-4, 3))
    size = x.shape[axis]
    cut = draw(st.integers(0, size))
    exact(k.Split(axis, [cut, size - cut]), x)
    exact(k.Gather(axis, rng.integers(0, size, draw(st.sampled_from(((), (3,), (2, 2), (0,)))))), x)
    fill = draw(st.sampled_from((None, -7, 100)))
    least = 0 if fill is None else -1
    indices = [None if draw(st.booleans()) else rng.integers(least, n, draw(st.integers(1, 6))) for n in x.shape]
    exact(k.Pick(indices, fill), x)
    exact(k.Lookup(integers(rng, (50, 2, 3), kind)), rng.integers(0, 50, (2, 4)).astype(np.int32), flat=True)


def test_lookup_outside():
    kernel, x = k.Lookup(np.zeros((5, 2), np.int8)), np.array([[1, 5]], np.int32)
    with pytest.raises(ModelError, match="an index from 1 to 5: the table has 5 rows"):
        fake_quantizer(kernel)(kernel, [tensor(x)], At([x.dtype]))


# ---- arithmetic of its own ---------------------------------------------------------------------------------------


@few
@given(
    SEEDS,
    INTS,
    st.sampled_from(("divide", "fused", "newton")),
    st.sampled_from((-1, 0, 1, 2)),
    st.integers(1, 7),
    st.sampled_from((8, 16)),
    st.booleans(),
    ROUNDING,
)
def test_softmax(seed, kind, way, axis, q, bits, alone, rounding):
    """Along one axis or all from one on."""
    rng = np.random.default_rng(seed)
    wide = 8 * kind().itemsize
    entry = k.softmax_entry(2.0 ** (25 - q - (wide - 8)), wide)
    x = integers(rng, (3, 4, 6), kind, seed % 3 == 0)
    rescale, of_logs = (
        Rescale.from_shift(s, bits) if rounding is Rounding.HALF_UP else Rounded(s, bits, rounding)
        for s in (15 - (bits - 1), 11)
    )
    exact(k.Softmax(entry, rescale, axis, way, alone), x)
    if way != "newton":
        exact(k.LogSoftmax(entry, of_logs, axis, way, alone), x)


@few
@given(SEEDS, INTS, st.sampled_from((10, 15)), st.integers(1, 2), rescales((12, 20), (8, 16)))
def test_layer_norm(seed, kind, fraction, axes, rescale):
    rng = np.random.default_rng(seed)
    x = integers(rng, (3, 4, 6), kind)
    x[0] = 5  # no spread at all
    count = math.prod(x.shape[-axes:])
    gamma, beta = integers(rng, (count,)).astype(np.int64), integers(rng, (count,), np.int16).astype(np.int64)
    exact(k.LayerNorm(gamma, beta, seed % 1000, rescale, axes, fraction), x)


@more
@given(st.data(), SEEDS, st.sampled_from((k.Lstm, k.ExecutorGru, k.Gru)), st.sampled_from((8, 16)), st.integers(0, 1))
def test_recurrent(data, seed, kind, bits, time_axis):
    """Each arithmetic, both directions, time on either axis, any of the outputs; states and lengths given or fixed."""
    draw, rng = data.draw, np.random.default_rng(seed)
    units, inputs, gates = 5, 4, kind.gates
    whole = {
        "weight_x": integers(rng, (gates * units, inputs)), "weight_h": integers(rng, (gates * units, units)),
        "bias_x": integers(rng, (gates * units,), np.int16).astype(np.int64),
        "bias_h": integers(rng, (gates * units,), np.int16).astype(np.int64),
        "time_axis": time_axis, "kept": draw(st.sampled_from(((0,), (0, 1), (1,)))),
    }  # fmt: skip
    coarse = kind is k.ExecutorGru or (kind is k.Lstm and draw(st.booleans()))
    if kind is k.ExecutorGru:
        bits, whole["joined"] = 8, draw(st.booleans())
        whole["rescale_o"] = Rescale.from_shift(14 - draw(st.integers(4, 7)), bits)
    else:
        whole["forward"] = draw(st.booleans())
    if kind is k.Lstm:
        arithmetic = "q11" if coarse else "q27"
        whole |= {"arithmetic": arithmetic, "table": "venus" if coarse else draw(st.sampled_from(("arcs", "venusA")))}
        whole["rescale_o"] = k.Lstm.output(arithmetic, 2.0 ** (bits - 1), bits)
        whole["kept"] = draw(st.sampled_from((whole["kept"], (0, 1, 2), (2,))))
    if kind is k.Gru:
        whole |= {"reset_after": draw(st.booleans()), "gate_bits": draw(st.sampled_from((16, 32)))}
        whole["rescale_o"] = k.Gru.output(2.0 ** (bits - 1) * draw(st.sampled_from((1.0, 0.8))), bits)
    sums = Chain(Rescale.from_shift(0, 32), Rescale.from_shift(draw(st.integers(0, 3)) if coarse else -13, 32))
    kernel = kind(rescale_x=sums, rescale_h=sums, **whole)
    x = integers(rng, (3, 6, inputs) if time_axis else (6, 3, inputs))
    ways = {key: draw(st.sampled_from(("", "given", "fixed"))) for key in keys(kernel)}
    run_time, held = (
        {key: beginning(kernel, rng, key, count) for key, w in ways.items() if w == way}
        for way, count in (("given", 3), ("fixed", 1))
    )
    exact(replace(kernel, given=tuple(run_time), fixed=held), x, *run_time.values())


def keys(kernel):
    """Return what a layer of this kind can be given."""
    return ("lengths", "h", "c")[: 3 if isinstance(kernel, k.Lstm) else 2]


def beginning(kernel, rng, key, samples):
    """Return lengths, a state or a cell for some samples; lengths beyond both ends too."""
    if key == "lengths":
        return rng.integers(-1, 9, samples).astype(np.int32)
    shape = (samples, 1, kernel.units) if kernel.time_axis else (1, samples, kernel.units)
    if key == "h":
        return integers(rng, shape, kernel.rescale_o.dtype)
    return rng.integers(-100, 100, shape).astype(np.int32)


@few
@given(SEEDS, st.sampled_from((k.Lstm, k.Gru)), st.integers(0, 1), st.booleans())
def test_states_as_parameters(seed, kind, time_axis, zero):
    """All that is learned stands in for what the kernel holds, which may be nothing where it was zero."""
    rng = np.random.default_rng(seed)
    layers = []
    for _ in range(2):
        held = {
            "weight_x": integers(rng, (kind.gates * 5, 4)),
            "weight_h": integers(rng, (kind.gates * 5, 5)),
            **{key: integers(rng, (kind.gates * 5,)).astype(np.int64) for key in ("bias_x", "bias_h")},
        }
        out = k.Lstm.output("q27", 2.0**15, 16) if kind is k.Lstm else k.Gru.output(2.0**15, 16)
        sums = {"rescale_x": Rescale.from_shift(-12, 32), "rescale_h": Rescale.from_shift(-4, 32)}
        made = kind(**held, **sums, rescale_o=out, time_axis=time_axis)
        states = {key: beginning(made, rng, key, 1) for key in keys(made)[1:]}
        layers.append((made, held, states))
    (kernel, _, first), (other, held, states) = layers
    kernel = kernel if zero else replace(kernel, fixed=first)
    x = integers(rng, (3, 6, 4) if time_axis else (6, 3, 4))
    given = {key: tensor(array) for key, array in {**held, **states}.items()}
    results = fake_quantizer(kernel)(kernel, [tensor(x)], At([x.dtype], given))
    for got, want in zip(results, simulated(replace(other, fixed=states), [x]), strict=True):
        equal(got, want)
    sum(r.double().sum() for r in results).backward()
    for key, t in given.items():
        assert torch.isfinite(t.grad).all(), key
        assert t.grad.any(), key


def test_a_sample_waits_beyond_its_end():
    """What lies there, and a state that no step reads, is without influence; an empty sample keeps its state."""
    rng = np.random.default_rng(3)
    out, sums = k.Lstm.output("q27", 2.0**15, 16), Rescale.from_shift(-13, 32)
    for forward in (True, False):
        kernel = k.Lstm(
            integers(rng, (20, 4)),
            integers(rng, (20, 5)),
            np.zeros(20, np.int64),
            np.zeros(20, np.int64),
            sums,
            Rescale.from_shift(-4, 32),
            out,
            forward,
            kept=(0, 1, 2),
            given=("lengths", "h", "c"),
        )
        arrays = [integers(rng, (3, 6, 4)), np.array([6, 2, 0], np.int32)]
        arrays += [beginning(kernel, rng, key, 3) for key in "hc"]
        held = [tensor(a) for a in arrays]
        y, h, c = fake_quantizer(kernel)(kernel, held, At([a.dtype for a in arrays]))
        (y.sum() + h.sum() + c.sum()).backward()
        felt = held[0].grad.abs().sum(2) > 0
        assert felt.tolist() == [[True] * 6, [True] * 2 + [False] * 4, [False] * 6]
        assert held[2].grad[2].tolist() == held[3].grad[2].tolist() == [[1.0] * 5]


def test_names_of_what_a_node_holds():
    """By input index; of a recurrent layer by the kernel's field, wherever the weights stand."""
    names = ["x", "n", "h", "", "w", "r", "b"]
    w, zero = np.ones((4, 1), np.int8), np.zeros(4, np.int32)
    arrays = {"w": w, "r": w, "b": zero}
    layer = helper.make_node("LSTMInt", names, ["y"], domain="thinker", name="layer")
    conv = helper.make_node("Conv2dInt", ["x", "w", "b"], ["z"], domain="thinker", name="conv")
    graph = helper.make_graph(
        [layer, conv],
        "g",
        [helper.make_tensor_value_info(n, 1, None) for n in ("x", "n", "h")],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("thinker", 1)], ir_version=8))
    rule = Rescale.from_shift(0, 8)
    kernel = k.Lstm(w, w, zero.astype(np.int64), zero.astype(np.int64), rule, rule, rule)
    found = {key: v.name for key, v in held_by(kernel, model.graph.node(0)).items()}
    assert found == {"lengths": "n", "h": "h", "weight_x": "w", "weight_h": "r", "bias_x": "b"}
    found = held_by(k.Conv(np.ones((1, 1, 1, 1), np.int8), None, rule), model.graph.node(1))
    assert {key: v.name for key, v in found.items()} == {0: "x", 1: "w", 2: "b"}


@few
@given(SEEDS, INTS, st.integers(1, 40))
def test_arg_max(seed, kind, size):
    x = integers(np.random.default_rng(seed), (1, size, 1), kind, seed % 2 > 0)
    exact(k.ArgMax(1), x, flat=True)
