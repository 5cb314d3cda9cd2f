"""The rows of dot instructions: each gives the integers of the plain loops, and its code holds the
instruction.
"""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import _llvm
from simulator._jit import jit
from simulator.fixed_point import ChainedRescale, Rescale, RoundedShift, RoundingMode
from simulator.instruction_sets import (
    INSTRUCTION_SETS,
    get_host_features,
    get_instruction_set,
    is_supported_by_host,
)
from simulator.kernel import SimulatorError, Step, TensorSpec
from simulator.kernels import CandidateGru, Conv, ExecutorGru, Gru, Linear, Lstm, MatMul, Relu
from simulator.kernels.loops import _conv_simd, _register_tile, _vector_curve
from simulator.kernels.loops._short_curve import pack_short_curve
from simulator.kernels.loops._vector_curve import VectorCurve, evaluate_curve_rows, make_curve
from simulator.kernels.recurrent import _vector_gru, _vector_lstm
from simulator.kernels.recurrent._vector_cell import VectorCell
from simulator.native import NativeLoop
from simulator.piecewise import load_piecewise
from simulator.program import compile_program
from tests.case_selection import choose_fast_subset
from tests.simulator.helpers import SEEDS, few, integers, run, same, simd

HERE = [one.name for one in INSTRUCTION_SETS if is_supported_by_host(one)]
WAYS = [
    Rescale.from_shift(9, 8),
    Rescale.from_ratio(0.0021, 8),
    RoundedShift(6, 8, RoundingMode.HALF_EVEN),
    Rescale.from_shift(0, 32),
    Rescale.from_shift(3, 16),
    Rescale.from_ratio(2.0**-30, 16),
]
RESCALES = choose_fast_subset(2, WAYS)
DEPTHWISE_RESCALES = choose_fast_subset(1, WAYS)

#: Of a convolution: channels, outputs, kernel, stride, groups, pads, dilation. Ragged on purpose.
WINDOWS = [
    (3, 16, (3, 3), 1, 1, (1, 1, 1, 1), 1),
    (16, 24, (1, 1), 1, 1, (0, 0, 0, 0), 1),
    (12, 8, (1, 1), 1, 2, (0, 0, 0, 0), 1),
    (5, 70, (2, 3), 2, 1, (0, 1, 2, 0), 1),
    (1, 33, (5, 4), 2, 1, (2, 1, 2, 1), 1),
    (8, 12, (3, 2), 1, 4, (1, 0, 0, 1), 2),
    (6, 10, (3, 3), 1, 1, (2, 2, 2, 2), 2),
    (16, 16, (3, 3), 2, 16, (1, 1, 1, 1), 1),
    (21, 21, (5, 5), 1, 21, (2, 2, 2, 2), 1),
    (7, 7, (2, 6), 2, 7, (1, 3, 0, 3), 2),
]


def both(name, kernel, *arrays, **options):
    """Run `kernel` by row `name` and by the plain loops."""
    with simd(name):
        got = run(kernel, *arrays, **options)
    with simd(False):
        return got, run(kernel, *arrays, **options)


@pytest.mark.sweep
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_row_gives_the_integers_of_the_plain_loops(name, window):
    channels, outputs, kernel, stride, group, pads, dilation = window
    rng = np.random.default_rng(len(name))
    weight, bias = (
        integers(rng, (outputs, channels // group, *kernel)),
        integers(rng, (outputs,), np.int16),
    )
    for place, rescale in enumerate(DEPTHWISE_RESCALES if group == channels > 1 else RESCALES):
        x = integers(
            rng, (3, channels, 11, 9), (np.int8, np.int16)[place % 2], extremes=place % 3 == 2
        )
        conv = Conv(weight, bias, rescale, (stride, stride), pads, (dilation, dilation), group)
        got, want = both(name, conv, x, threads=1)
        same(got, want, rescale.dtype)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("inputs", [1, 2])
def test_a_row_gives_the_products_of_a_single_output(name, inputs):
    """Law: a layer of one number is no convolution channel by channel: it takes any number of
    rows.
    """
    x, weight = (
        np.arange(-60, 60, dtype=np.int8).reshape(-1, inputs),
        np.full((1, inputs), -33, np.int8),
    )
    got, want = both(name, Linear(weight, np.array([7]), Rescale.from_shift(5, 8)), x)
    assert len(np.unique(want)) > 50
    same(got, want, np.int8)


def convolve_slowly(x, weight, bias, stride, pads, dilation, group):
    """The accumulators as the definition has them, by Python's integers."""
    top, left, bottom, right = pads
    x = np.pad(x.astype(object), ((0, 0), (0, 0), (top, bottom), (left, right)))
    outputs, channels, rows, columns = weight.shape
    height = (x.shape[2] - dilation * (rows - 1) - 1) // stride + 1
    width = (x.shape[3] - dilation * (columns - 1) - 1) // stride + 1
    out = np.zeros((len(x), outputs, height, width), object)
    for o in range(outputs):
        first = o // (outputs // group) * channels
        for r, c in np.ndindex(rows, columns):
            part = x[
                :,
                first : first + channels,
                r * dilation : r * dilation + stride * (height - 1) + 1 : stride,
                c * dilation : c * dilation + stride * (width - 1) + 1 : stride,
            ]
            out[:, o] += (part * weight[o, :, r, c].astype(object)[:, None, None]).sum(axis=1)
    return out + bias.astype(object)[:, None, None]


#: Weights by how many taps may be summed up in 16 bits: 1, some, all.
WEIGHTS = {
    "extreme": lambda rng, shape: rng.choice(np.array([-128, 127], np.int8), shape),
    "any": lambda rng, shape: (rng.standard_normal(shape) * 35).clip(-128, 127).astype(np.int8),
    "small": lambda rng, shape: rng.integers(-15, 16, shape).astype(np.int8),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*HERE, "0"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_bytes_that_are_not_negative(name, window, kind):
    """Sums in 16 bits: inputs of 0 and 127, where a window's sum is largest, and any others."""
    channels, outputs, kernel, stride, group, pads, dilation = window
    rng = np.random.default_rng(5)
    weight = WEIGHTS[kind](rng, (outputs, channels // group, *kernel))
    bias = rng.integers(-999, 999, outputs)
    x = rng.integers(0, 128, (2, channels, 11, 9)).astype(np.int8)
    extreme = np.where(x > 20, 127, 0).astype(np.int8)
    x = np.concatenate([x, extreme, np.full_like(extreme, 127)])
    strides, dilations = (stride, stride), (dilation, dilation)
    conv = Conv(weight, bias, Rescale.from_shift(0, 32), strides, pads, dilations, group)
    with simd(name if name != "0" else False):
        got = run(conv.assume_nonnegative_input(), x, threads=1)
    want = convolve_slowly(x, weight, bias, stride, pads, dilation, group)
    assert got.tolist() == want.tolist()


@few
@given(SEEDS, st.integers(1, 40), st.sampled_from(sorted(WEIGHTS)))
def test_sums_over_a_window_fit_16_bits(seed, taps, kind):
    """The largest sums of every window, output and word, by all signs of the products."""
    weight = WEIGHTS[kind](np.random.default_rng(seed), (3, taps, 4))
    window = _conv_simd.choose_window(weight)
    assert window <= max(taps, 1)
    for first in range(0, taps, window):
        for half in (slice(2), slice(2, 4)):
            part = weight[:, first : first + window, half].reshape(3, -1).astype(int)
            assert (127 * np.maximum(part, 0)).sum(axis=1).max() <= 32767
            assert (127 * np.minimum(part, 0)).sum(axis=1).min() >= -32768
    if kind == "small":
        assert window == max(n for n in (1, 2, 4, 8) if n <= taps)


def test_a_program_knows_what_a_relu_leaves(monkeypatch):
    """Behind a Relu, a pool or a reshape inputs are not negative; a yielded tensor can be forced."""
    rng = np.random.default_rng(6)
    marked = []
    build = Conv.build

    def note(self, *arguments):
        marked.append(self.is_input_nonnegative)
        return build(self, *arguments)

    monkeypatch.setattr(Conv, "build", note)
    convs = [
        Conv(integers(rng, (6, n, 3, 3)), None, Rescale.from_shift(7 + n, 8), None, (1, 1, 1, 1))
        for n in (4, 6, 6)
    ]
    steps = [
        Step(convs[0], ("x",), ("a",)),
        Step(Relu(), ("a",), ("b",)),
        Step(convs[1], ("b",), ("c",)),
        Step(convs[2], ("c",), ("d",)),
    ]
    specs = {"x": TensorSpec((1, 4, 8, 8), np.dtype(np.int8))}
    x = integers(rng, (3, 4, 8, 8))
    last = compile_program(steps, specs, ["d"], threads=1)
    assert marked == [False, True, False]
    marked.clear()
    every = compile_program(steps, specs, threads=1)
    assert marked == [False, False, False]
    want = dict(every.run({"x": x}))
    assert want["b"].min() == 0
    np.testing.assert_array_equal(dict(last.run({"x": x}))["d"], want["d"])
    negative = {"b": -want["b"] - 1}
    forced = dict(every.run({"x": x}, negative))["c"]
    with simd(False):
        again = dict(compile_program(steps, specs).run({"x": x}, negative))["c"]
    np.testing.assert_array_equal(forced, again)


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
@few
@given(
    SEEDS,
    st.integers(1, 9),
    st.integers(1, 70),
    st.integers(1, 80),
    st.sampled_from((np.int8, np.int16)),
)
def test_a_row_gives_the_products_of_the_plain_loops(name, seed, rows, inputs, outputs, kind):
    rng = np.random.default_rng(seed)
    weight, x = (
        integers(rng, (outputs, inputs), extremes=seed % 2),
        integers(rng, (rows, inputs), kind, seed % 3 == 0),
    )
    rescale = RESCALES[seed % len(RESCALES)]
    got, want = both(name, Linear(weight, None, rescale), x)
    same(got, want, rescale.dtype)


@pytest.mark.sweep
@pytest.mark.parametrize("name", HERE)
def test_wide_weights_and_a_tall_image_in_bands(name):
    rng = np.random.default_rng(1)
    conv = Conv(
        integers(rng, (9, 4, 3, 3), np.int16) >> 9,
        None,
        Rescale.from_shift(12, 8),
        None,
        (1, 1, 1, 1),
    )
    x = integers(rng, (2, 4, 300, 120))
    same(*both(name, conv, x), np.int8)
    deep = Conv(
        integers(rng, (20, 1, 3, 3)), None, Rescale.from_shift(8, 8), None, (1, 1, 1, 1), None, 20
    )
    same(*both(name, deep, integers(rng, (1, 20, 300, 120))), np.int8)


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize(
    "shape", [(3, 1, 5, 7, 3), (2, 4, 9, 16, 70), (1, 2, 33, 2, 18), (2, 1, 1, 1, 1)], ids=str
)
def test_products_of_two_tensors(name, shape):
    batch, heads, rows, inner, columns = shape
    rng = np.random.default_rng(2)
    for kinds in ((np.int8, np.int8), (np.int8, np.int16)):
        x, y = (
            integers(rng, s, k)
            for s, k in zip(((rows, inner), (inner, columns)), kinds, strict=True)
        )
        x, y = (
            np.stack([np.roll(a, i) for i in range(batch * heads)]).reshape(batch, heads, *a.shape)
            for a in (x, y)
        )
        got, want = both(name, MatMul(Rescale.from_ratio(0.003, 8)), x, y, threads=1)
        same(got, want, np.int8)


@jit
def followed(curve, x, width, out):
    """`evaluate_curve_rows`, called from compiled code."""
    evaluate_curve_rows(curve, x, 2, width, out)


@pytest.mark.sweep
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("chip", ["venus", "arcs", "venusA"])
@pytest.mark.parametrize("function", ["sigmoid", "tanh"])
def test_a_row_follows_a_curve_as_the_table_says(name, chip, function):
    """Borders of the pieces, ends of the range and anything between; with and without a second
    rounding.
    """
    table, width = load_piecewise(function, chip), 37
    top = 1 << (table.bits - 1)
    near = np.concatenate([sign * table.borders + d for d in (-1, 0, 1) for sign in (1, -1)])
    some = np.random.default_rng(0).integers(-top, top, 3 * width)
    x = np.concatenate([near, [0, 1, -1, -top, top - 1], some]).clip(-top, top - 1)
    lines = np.zeros((-(-len(x) // width), 2 + width + 16), np.int32)
    lines[:, 2 : 2 + width] = np.resize(x, (len(lines), width))
    for bits, after in ((8, 0), (16, 0), (32, 16), (32, 0))[: 2 if chip == "venus" else 4]:
        with simd(name):
            curve = make_curve(table, bits, after)
        out = np.full_like(lines, 77)
        NativeLoop(followed, (curve, lines, width, out))((), ())
        want = table.evaluate_rounded(lines[:, 2 : 2 + width], bits)
        assert isinstance(curve, VectorCurve)
        assert out[:, 2 : 2 + width].tolist() == (want + (1 << after >> 1) >> after).tolist()
        assert (out[:, :2] == 77).all()


@pytest.mark.sweep
@pytest.mark.parametrize("one", INSTRUCTION_SETS, ids=lambda one: one.name)
@pytest.mark.parametrize("wide", [False, True])
def test_a_curve_compiles_on_any_machine_with_whole_vectors(one, wide):
    code = _llvm.emit_assembly(
        _vector_curve.write_curve_ir(one, wide, not wide, 8, 0), one.triple, one.features
    )
    assert re.search(VECTORS[one.name], code), code


VECTORS = {
    "avx512-vnni": "zmm",
    "avx-vnni": "ymm",
    "avx512bw": "zmm",
    "avx2": "ymm",
    "neon-dot": r"\.4s",
    "neon": r"\.4s",
    "portable": r"xmm|\.4s",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("layer", ("q27", "q11", "gru"))
def test_recurrent_layers_of_more_samples_than_walk_together(layer, name):
    rng = np.random.default_rng(3)
    samples, times, inputs, units = 41, 9, 5, 21
    x = integers(rng, (samples, times, inputs))
    weights = [integers(rng, (4 * units, n)) for n in (inputs, units)]
    bias = rng.integers(-(1 << 14), 1 << 14, (2, 4 * units))
    to = Rescale.from_shift(3, 32) if layer == "q11" else Rescale.from_ratio(3000.0, 32)
    if layer == "gru":
        parts = tuple(a[: 3 * units] for a in (*weights, *bias))
        kernel = Gru(*parts, to, to, Gru.make_output_rescale(100.0, 8), output_indices=(0,))
    else:
        table, out = (
            {"q27": "venusA", "q11": "venus"}[layer],
            Lstm.make_output_rescale(layer, 100.0, 8),
        )
        kernel = Lstm(
            *weights, *bias, to, to, out, output_indices=(0,), arithmetic=layer, table=table
        )
    same(*both(name, kernel, x), np.int8)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "one", [one for one in INSTRUCTION_SETS if one.byte_intrinsic], ids=lambda one: one.name
)
@pytest.mark.parametrize("window", [1, 4])
def test_a_row_multiplies_bytes(one, window):
    p, v = _register_tile.choose_tile_size(one, "bytes", one.lanes * 3, 64)
    shape = _register_tile.TileShape("bytes", False, p, v, ("shift",), 8, window)
    code = _llvm.emit_assembly(_register_tile.write_tile_ir(one, shape), one.triple, one.features)
    products, sums = (len(re.findall(name, code)) for name in ("vpmaddubsw", "vpmaddwd"))
    assert products == window * sums > 0


@pytest.mark.sweep
@pytest.mark.parametrize(
    "one", [one for one in INSTRUCTION_SETS if one.has_memory_operands], ids=lambda one: one.name
)
@pytest.mark.parametrize("operands", ["pairs", "bytes"])
def test_weights_are_operands_in_memory(one, operands):
    """The outputs of a pixel are stored together, in the tile and in that of a single pixel."""
    window = 4 if operands == "bytes" else 1
    p, v = _register_tile.choose_tile_size(one, operands, one.lanes * 4, 64)
    assert v == 4
    shape = _register_tile.TileShape(operands, False, p, v, ("shift",), 8, window)
    code = _llvm.emit_assembly(_register_tile.write_tile_ir(one, shape), one.triple, one.features)
    name = "vpmaddubsw" if operands == "bytes" else "vpmaddwd"
    assert len(re.findall(rf"{name}\s+-?\d*\(%r", code)) >= p * v * window
    wide = "ymm" if one.lanes == 8 else "zmm"
    assert len(re.findall(rf"vmovdq\w+\s+%{wide}\d+, -?\d*\(%r(?!sp)", code)) == p + 1


def test_packed_weights_begin_a_cache_line():
    weight = np.arange(-60, 60, dtype=np.int8).reshape(8, 15, 1, 1)
    loop = Conv(weight, None, Rescale.from_shift(4, 8)).build(
        [TensorSpec((1, 15, 2, 2), np.int8)], True
    )
    if isinstance(loop.arguments[1], _conv_simd.PackedConv):
        assert loop.arguments[1].weight.ctypes.data % 64 == 0


@pytest.mark.parametrize("name", HERE)
def test_lstm_steps_of_all_sums_of_16_bits(name):
    """Every unit's sums of all gates are its input, of all values; units beside a vector."""
    units = 40
    values = np.concatenate([np.arange(-1 << 15, 1 << 15), np.zeros(24)]).astype(np.int16)
    recurrent, bias = np.zeros((4 * units, units), np.int8), np.zeros((2, 4 * units), np.int64)
    assert_lstm_has_lanes_of_16_bits(name, values.reshape(-1, 1, units), recurrent, bias)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "one", [one for one in INSTRUCTION_SETS if one.has_word_lanes], ids=lambda one: one.name
)
def test_lanes_of_16_bits_compile_on_any_machine(one):
    kinds = [pack_short_curve(load_piecewise(name, "venus"), 8)[0] for name in ("sigmoid", "tanh")]
    text = _vector_lstm.write_short_lstm_ir(one, "q11", *kinds, ("shift",), 8)
    code = _llvm.emit_assembly(text, one.triple, one.features)
    assert all(re.search(name, code) for name in (r"vpshufb\s.*ymm", r"vpmulhw\s.*ymm"))


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("largest", [40, 1000, 1 << 15])
def test_lstm_cells_that_start_at_0_have_lanes_of_16_bits(name, largest):
    """Long sequences of any gate sums, so that cells reach their limits; an odd count of units."""
    rng, units = np.random.default_rng(3), 21
    x = rng.normal(0, largest, (35, 40, units)).clip(-1 << 15, (1 << 15) - 1).astype(np.int16)
    x[:5] = np.abs(x[:5])
    bias = np.zeros((2, 4 * units), np.int64)
    bias[0, units : 2 * units] = 1 << 14  # the cell is kept
    assert_lstm_has_lanes_of_16_bits(name, x, integers(rng, (4 * units, units)), bias)


def assert_lstm_has_lanes_of_16_bits(name, x, recurrent, bias):
    """Compare states and final cells of a layer with scalar code; its inputs are its gate sums."""
    units = x.shape[2]
    weight, to = np.tile(np.eye(units, dtype=np.int8), (4, 1)), Rescale.from_shift(0, 32)
    out = Lstm.make_output_rescale("q11", 128.0, 8)
    options = {"arithmetic": "q11", "table": "venus"}
    for output in (0, 2):
        kernel = Lstm(weight, recurrent, *bias, to, to, out, output_indices=(output,), **options)
        with simd(name):
            is_short = get_instruction_set().has_word_lanes
            assert (kernel.make_cell(1 << 15).sigmoid.size < 80) is is_short
            assert kernel.make_cell().sigmoid.size > 80  # any inputs may exceed 32 bits
            got = run(kernel, x, threads=1)
        with simd(False):
            want = run(kernel, x, threads=1)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize(
    ("arithmetic", "table"),
    [("q27", "arcs"), ("wide", "arcs"), ("q11", "venus"), ("q15", "venus"), ("q15_wide", "venus")],
)
def test_lstm_steps_of_any_initial_cell(name, arithmetic, table):
    """Cells of all 32 bits, sums at the ends of int32, lengths of 0 to T; units beside a vector."""
    rng = np.random.default_rng(8)
    samples, times, inputs, units = 5, 4, 3, 9
    ends = np.iinfo(np.int32)
    x = integers(rng, (samples, times, inputs), extremes=True)
    cell = rng.choice(np.array([ends.min, -70000, 0, 32767, ends.max]), (samples, 1, units))
    weights = [integers(rng, (4 * units, n), extremes=True) for n in (inputs, units)]
    is_q11 = arithmetic.startswith("q1")
    bias = rng.integers(-(1 << 14), 1 << 14, (2, 4 * units))
    bias[:, 0] = (1 << 30) - 1  # the first gate's sum is at its limit
    to = Rescale.from_shift(3, 32) if is_q11 else Rescale.from_ratio(3000.0, 32)
    kernel = Lstm(
        *weights,
        *bias,
        to,
        to,
        Lstm.make_output_rescale(arithmetic, 100.0, 8),
        output_indices=(0,),
        state_inputs=("lengths", "c"),
        arithmetic=arithmetic,
        table=table,
    )
    lengths = np.array([4, 0, 1, 3, 4])
    got, want = both(name, kernel, x, lengths, cell.astype(np.int32))
    assert len(np.unique(want)) > 8
    same(got, want, np.int8)


SHIFTED = ChainedRescale(Rescale.from_shift(0, 32), Rescale.from_shift(-2, 32))
GRUS = {
    "as defined": (Gru, Gru.make_output_rescale(100.0, 8), {}),
    "gates of 16 bits": (Gru, Gru.make_output_rescale(30000.0, 16), {"gate_bits": 16}),
    "finer sums": (
        Gru,
        Rescale.from_shift(31 - 9, 8),
        {"table": "venusA", "saturates_candidate": False, "sum_fraction_bits": 30},
    ),
    "candidate": (
        CandidateGru,
        Rescale.from_shift(15 - 8, 8),
        {"increment_rescale": Rescale.from_shift(16, 32)},
    ),
    "executor": (ExecutorGru, Rescale.from_shift(7, 8), {"table": "venus"}),
    "executor without states": (
        ExecutorGru,
        Rescale.from_shift(7, 8),
        {"table": "venusA", "uses_state_sums": False},
    ),
}


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("case", GRUS)
def test_gru_steps_of_any_initial_state(name, case):
    """States of all values, sums at the ends of int32, lengths of 0 to T; units beside a vector."""
    kind, out, options = GRUS[case]
    rng = np.random.default_rng(8)
    samples, times, inputs, units = 5, 4, 3, 9
    x = integers(rng, (samples, times, inputs), extremes=True)
    state = integers(rng, (samples, 1, units), out.dtype, extremes=True)
    weights = [integers(rng, (3 * units, n), extremes=True) for n in (inputs, units)]
    bias = rng.integers(-(1 << 14), 1 << 14, (2, 3 * units))
    bias[:, :: units + 1] = (1 << 30) - 1  # a sum of each gate is at its limit
    to = SHIFTED if kind is ExecutorGru else Rescale.from_ratio(3000.0, 32)
    if kind is CandidateGru:
        to = Rescale.from_shift(3, 32)
    kernel = kind(
        *weights, *bias, to, to, out, output_indices=(0,), state_inputs=("lengths", "h"), **options
    )
    with simd(name):
        assert isinstance(kernel.make_cell(), VectorCell)
    got, want = both(name, kernel, x, np.array([4, 0, 1, 3, 4]), state)
    assert len(np.unique(want)) > 8
    same(got, want, out.dtype)


def test_gru_steps_that_vector_code_does_not_compute():
    """A reset before the product; a candidate or a change of the state beyond 32 bits."""
    rng = np.random.default_rng(9)
    parts = [integers(rng, (6, 2)), integers(rng, (6, 2)), *np.zeros((2, 6), np.int64)]
    to = Rescale.from_shift(3, 32)
    out = Rescale.from_shift(23, 8)
    assert isinstance(Gru(*parts, to, to, out).make_cell(), VectorCell)
    assert not isinstance(Gru(*parts, to, to, out, reset_after=False).make_cell(), VectorCell)
    steep = Rescale.from_shift(-8, 8)
    assert not isinstance(CandidateGru(*parts, to, to, steep).make_cell(), VectorCell)
    assert not isinstance(Gru(*parts, to, to, out, sum_fraction_bits=20).make_cell(), VectorCell)


@pytest.mark.sweep
@pytest.mark.parametrize("one", INSTRUCTION_SETS, ids=lambda one: one.name)
@pytest.mark.parametrize("arithmetic", ["wide", "q11"])
def test_an_lstm_step_compiles_on_any_machine_with_whole_vectors(one, arithmetic):
    bits, after, chip = (32, 16, "arcs") if arithmetic == "wide" else (8, 0, "venus")
    kinds = []
    for function in ("sigmoid", "tanh"):
        packed = _vector_curve.pack_curve(load_piecewise(function, chip), bits, after)
        assert packed is not None
        kinds.append(packed[0])
    text = _vector_lstm.write_lstm_ir(one, arithmetic, *kinds, ("scale",), 8)
    code = _llvm.emit_assembly(text, one.triple, one.features)
    assert re.search(VECTORS[one.name], code), code


@pytest.mark.sweep
@pytest.mark.parametrize("one", INSTRUCTION_SETS, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "arithmetic",
    [
        _vector_gru.DefinedArithmetic(31, 0),
        _vector_gru.CandidateArithmetic(1),
        _vector_gru.ExecutorArithmetic(True),
    ],
    ids=lambda arithmetic: type(arithmetic).__name__,
)
def test_a_gru_step_compiles_on_any_machine_with_whole_vectors(one, arithmetic):
    is_defined = isinstance(arithmetic, _vector_gru.DefinedArithmetic)
    bits, chip = (32, "arcs") if is_defined else (8, "venus")
    kinds = []
    for function in ("sigmoid", "tanh"):
        packed = _vector_curve.pack_curve(load_piecewise(function, chip), bits, 0)
        assert packed is not None
        kinds.append(packed[0])
    text = _vector_gru.write_gru_ir(one, arithmetic, *kinds, ("scale", "shift"), 8)
    code = _llvm.emit_assembly(text, one.triple, one.features)
    assert re.search(VECTORS[one.name], code), code


INSTRUCTIONS = {
    "avx512-vnni": (r"vpdpbusd\s.*zmm", r"vpmaddwd\s.*zmm|vpdpwssd\s.*zmm"),
    "avx-vnni": (r"vpdpbusd\s.*ymm", r"vpmaddwd\s.*ymm|vpdpwssd\s.*ymm"),
    "avx512bw": (r"vpmaddwd\s.*zmm", r"vpmaddwd\s.*zmm"),
    "avx2": (r"vpmaddwd\s.*ymm", r"vpmaddwd\s.*ymm"),
    "neon-dot": (r"\bsdot\b", r"\bmla\b"),
    "neon": (r"\bmla\b",) * 2,
    "portable": (r"\bpmaddwd\b|\bsmull2?\b",) * 2,  # x86, ARM
}


@pytest.mark.sweep
@pytest.mark.parametrize("one", INSTRUCTION_SETS, ids=lambda one: one.name)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    "form", [("shift",), ("scale",), ("shift", "scale"), ()], ids=lambda form: "+".join(form)
)
def test_a_row_compiles_on_any_machine_and_holds_its_instruction(one, own, form):
    bits = 8 if form else 32
    for operands, wanted in zip((one.int8_operands, "pairs"), INSTRUCTIONS[one.name], strict=True):
        p, v = _register_tile.choose_tile_size(one, operands, one.lanes * 3, 64)
        text = _register_tile.write_tile_ir(
            one, _register_tile.TileShape(operands, own, p, 1 if own else v, form, bits)
        )
        code = _llvm.emit_assembly(text, one.triple, one.features)
        assert re.search(wanted, code), code


@pytest.mark.sweep
@pytest.mark.parametrize("one", INSTRUCTION_SETS, ids=lambda one: one.name)
def test_copies_and_pairs_of_pixels_compile_on_any_machine(one):
    for operands, bits in ((one.int8_operands, 8), ("bytes", 8), ("pairs", 8), ("pairs", 16)):
        copies = (
            _register_tile.write_row_copy_ir(one, operands, bits),
            _register_tile.write_interleave_ir(one, operands, bits),
        )
        for text in copies:
            assert _llvm.emit_assembly(text, one.triple, one.features)
        if operands == "bytes" and not one.byte_intrinsic:
            continue
        p, v = _register_tile.choose_depthwise_tile_size(one, 3 * one.lanes, 2)
        shape = _register_tile.TileShape(operands, True, p, v, ("shift",), 8, 1, 2, 3)
        text = _register_tile.write_tile_ir(one, shape)
        assert _llvm.emit_assembly(text, one.triple, one.features)


@pytest.mark.parametrize("one", INSTRUCTION_SETS, ids=lambda one: one.name)
def test_sums_and_weights_stay_in_registers(one):
    """Sums, weights and a pixel; for pairs, which do not accumulate, their products too."""
    for operands in (one.int8_operands, "pairs"):
        further = 2 if operands == "pairs" else 1
        for outputs in (1, 8, 24, 40, 64, 100, 1000):
            for pixels in (1, 5, 16, 64, 1000):
                p, v = _register_tile.choose_tile_size(one, operands, outputs, pixels)
                assert 1 <= p <= 8
                assert p * v + v + further <= one.registers


def test_the_best_row_is_used_and_a_name_forces_one(monkeypatch):
    monkeypatch.delenv("LINGERONNX_SIMD", raising=False)
    assert get_instruction_set().name == HERE[0]
    for name in HERE:
        with simd(name):
            assert get_instruction_set().name == name
    with simd(False):
        assert get_instruction_set() is None


def test_a_row_that_is_unknown_or_cannot_run():
    with (
        simd("sse9"),
        pytest.raises(
            SimulatorError,
            match="unknown instruction set 'sse9'; choose from avx512-vnni, .*portable",
        ),
    ):
        get_instruction_set()
    missing = next(one.name for one in INSTRUCTION_SETS if not is_supported_by_host(one))
    with (
        simd(missing),
        pytest.raises(
            SimulatorError,
            match=f"this processor does not support '{missing}'; it supports .*portable",
        ),
    ):
        get_instruction_set()
    assert isinstance(get_host_features(), frozenset)
