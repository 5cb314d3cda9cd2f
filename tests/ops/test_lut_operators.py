"""Law: every operator with a table, on every platform, at any scale, is its oracle, from the
attributes on.

The kernels by themselves are in tests/simulator; here the operators choose table, formats and
shifts.
"""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.operators._reference_arithmetic import fixed_point_multiplier
from lingeronnx.targets import PLATFORMS
from lingeronnx.targets.arithmetic import (
    LayerNormArithmetic,
    LutArithmetic,
    SoftmaxArithmetic,
    SoftmaxDivision,
    TableInputRule,
)
from tests.oracles import curves as naive
from tests.oracles.fixed import rsh, sat
from tests.reference.test_reference import single
from tests.simulator.helpers import SEEDS, few, integers

ROWS = {target.name: target for target in PLATFORMS}


def on(*operators):
    """Return (operator, platform) for all rows that have it."""
    return [
        (name, target.name) for name in operators for target in PLATFORMS if target.can_run(name)
    ]


def scale_of(platform, q, free):
    """Return a scale near 2^q: a power of two on chips, anything on `generic`."""
    return 2.0**q if ROWS[platform].needs_power_of_two_scales else float(np.float32(free * 2.0**q))


def computed(op_type, platform, x, constants=(), **attributes):
    """Return what the session gives for one node."""
    model = single(op_type, [x], constants, platform=platform, **attributes)
    (y,) = lo.Session(ir.from_proto(model)).run(None, {"x0": x})
    return y


def to_output(scale_o, ratio_from, bits=8):
    """Return the requantization from a scale to the output's, as the oracles take it."""
    return (*fixed_point_multiplier(scale_o / ratio_from), bits)


@few
@given(SEEDS, st.sampled_from(on("iqSigmoid", "iqTanh")), st.integers(-3, 16))
def test_curves(seed, which, q):
    """Q7 whatever the scale; the executor's faults included."""
    op_type, platform = which
    function, reading = (
        op_type.removeprefix("iq").lower(),
        ROWS[platform].get_arithmetic(op_type, LutArithmetic).input_rule,
    )
    dtype = np.int16 if reading is TableInputRule.RIGHT_SHIFT_ONLY else np.int8
    x = integers(np.random.default_rng(seed), (1, 60), dtype)
    x[0, :2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    chip, read = {
        TableInputRule.RIGHT_SHIFT_ONLY: ("venus", lambda v: rsh(v, max(q - 11, 0))),
        TableInputRule.SATURATED: ("arcs", lambda v: sat(rsh(v, q - 27), 32)),
        TableInputRule.ALWAYS_ZERO: ("venusA", lambda v: 0),
    }[reading]
    want = [naive.curve(function, chip, read(int(v)), 8) for v in x[0]]
    got = computed(op_type, platform, x, scale_x=2.0**q, scale_o=128.0)
    assert got.dtype == np.int8
    assert got[0].tolist() == want


@few
@given(SEEDS, st.integers(-2, 12), st.integers(-2, 12))
def test_glu(seed, q, q_o):
    x = integers(np.random.default_rng(seed), (1, 3, 16))
    want = [naive.glu(row.tolist(), q, to_output(2.0**q_o, 2.0**q * 2**15)) for row in x[0]]
    got = computed("GluInt", "venusA", x, dim=-1, scale_x=2.0**q, scale_o=2.0**q_o)
    assert got[0].tolist() == want


@few
@given(
    SEEDS,
    st.sampled_from(on("SoftmaxInt", "LogSoftmaxInt")),
    st.integers(0, 9),
    st.floats(0.6, 1.7),
    st.integers(2, 8),
    st.sampled_from([1, 2, 33]),
    st.sampled_from([np.int8, np.int16]),
)
def test_rows(seed, which, q, free, q_o, length, dtype):
    op_type, platform = which
    bits = 8 * np.dtype(dtype).itemsize
    out = scale_of(platform, q_o, free)
    scale = scale_of(platform, q, free)
    x = integers(np.random.default_rng(seed), (1, 2, length), dtype)
    oracle = naive.softmax if op_type == "SoftmaxInt" else naive.log_softmax
    m, s = fixed_point_multiplier(2.0**25 / scale)
    way, triple = (
        ROWS[platform].get_arithmetic(op_type, SoftmaxArithmetic).division.value,
        to_output(out, 2.0**15),
    )
    want = [
        oracle(row.tolist(), Fraction(m, 2**s) if s >= 0 else m * 2**-s, way, triple)
        for row in x[0]
    ]
    got = computed(op_type, platform, x, axis=-1, data_bits=bits, scale_x=scale, scale_o=out)
    assert got[0].tolist() == want


@few
@given(
    SEEDS,
    st.sampled_from(on("LayerNormInt")),
    st.integers(0, 9),
    st.floats(0.6, 1.7),
    st.integers(-2, 9),
    st.sampled_from([2, 7, 48]),
)
def test_layer_norm(seed, which, q, free, q_o, count):
    _, platform = which
    rng = np.random.default_rng(seed)
    x_scale, w_scale, o_scale = (scale_of(platform, e, free) for e in (q, 6, q_o))
    x = integers(rng, (1, 3, count))
    x[0, 0] = 5
    gamma = integers(
        rng,
        (count,),
        np.int16
        if ROWS[platform].get_arithmetic("LayerNormInt", LayerNormArithmetic).factor_bits == 16
        else np.int8,
    )
    beta = rng.integers(-(2**20), 2**20, count).astype(np.int32)
    epsilon = int(np.floor(float(np.float32(1e-5)) * x_scale**2 * count**2 + 0.5))
    triple = to_output(o_scale, 2**10 * w_scale)
    want = [
        naive.layer_norm(row.tolist(), gamma.tolist(), beta.tolist(), epsilon, 10, triple)
        for row in x[0]
    ]
    got = computed(
        "LayerNormInt",
        platform,
        x,
        (gamma, beta),
        data_bits=8,
        o_bits=8,
        parameter_bits=8,
        scale_x=x_scale,
        scale_w=w_scale,
        scale_o=o_scale,
        epsilon=1e-5,
    )
    assert got[0].tolist() == want


@few
@given(SEEDS, st.sampled_from([np.int8, np.int16]), st.sampled_from([np.int8, np.int16]))
def test_table(seed, dtype, out):
    rng = np.random.default_rng(seed)
    bits = 8 * np.dtype(dtype).itemsize
    table, x = integers(rng, (1 << bits,), out), integers(rng, (1, 30), dtype)
    x[0, :2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    got = computed(
        "iqTable",
        "generic",
        x,
        (table,),
        function="Any",
        data_bits=bits,
        scale_x=1.0,
        scale_o=1.0,
        o_bits=8 * np.dtype(out).itemsize,
    )
    assert got.tolist() == [[table[int(v) + (1 << (bits - 1))] for v in x[0]]]


def test_no_table_is_forgotten():
    """Every operator of the simulator's tables is one of the above; each way is on some platform's
    row.
    """
    names = {
        "iqSigmoid",
        "iqTanh",
        "GluInt",
        "SoftmaxInt",
        "LogSoftmaxInt",
        "LayerNormInt",
        "iqTable",
    }
    assert {name for name, _ in on(*names)} == names
    ways = {
        ROWS[platform].get_arithmetic(name, SoftmaxArithmetic).division
        for name, platform in on("SoftmaxInt", "LogSoftmaxInt")
    }
    assert ways == set(SoftmaxDivision)
