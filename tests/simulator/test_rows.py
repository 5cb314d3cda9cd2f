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
from simulator.fixed_point import Rescale, RoundedShift, RoundingMode
from simulator.instruction_sets import (
    INSTRUCTION_SETS,
    get_host_features,
    get_instruction_set,
    is_supported_by_host,
)
from simulator.kernel import SimulatorError
from simulator.kernels import Conv, Gru, Linear, Lstm, MatMul
from simulator.kernels.loops import _register_tile, _vector_curve
from simulator.kernels.loops._vector_curve import VectorCurve, evaluate_curve_rows, make_curve
from simulator.native import NativeLoop
from simulator.piecewise import load_piecewise
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
@pytest.mark.parametrize("form", ["shift", "scale", "sums"])
def test_a_row_compiles_on_any_machine_and_holds_its_instruction(one, own, form):
    bits = 32 if form == "sums" else 8
    for operands, wanted in zip((one.int8_operands, "pairs"), INSTRUCTIONS[one.name], strict=True):
        p, v = _register_tile.choose_tile_size(one, operands, one.lanes * 3, 64)
        text = _register_tile.write_tile_ir(
            one, _register_tile.TileShape(operands, own, p, 1 if own else v, form, bits)
        )
        code = _llvm.emit_assembly(text, one.triple, one.features)
        assert re.search(wanted, code), code


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
