"""Law: tables, softmax rows and normalisation give the integers that the training library's kernels
gave, bit for bit.

A sample of the measurement is in tests/golden/curves.npz; where the whole of it lies beside the
repository (as `linger_lut/` in the folder of the other vectors), that is taken. No array of it is
left out.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from simulator.fixed_point import Rescale, round_shift_right, saturate, saturate_array
from simulator.kernels import LayerNorm, Softmax
from simulator.kernels.layer_norm import _make_inverse_sqrt_table, _variance_exponent
from simulator.piecewise import load_piecewise
from simulator.program import TensorSpec
from tests.simulator.helpers import run

pytestmark = pytest.mark.smoke

HERE = Path(__file__).resolve()
Q15 = Rescale.from_shift(0, 32)


def folder():
    named = os.environ.get("LINGERONNX_GOLDEN")
    beside = Path(named) if named else HERE.parents[2].parent / "shared" / "golden"
    return beside / "linger_lut"


def vectors(name):
    """Return the arrays of one dump by key: whole where there is one, else the sample."""
    path = folder() / f"{name}.npz"
    if path.is_file():
        return dict(np.load(path))
    sample = np.load(HERE.parents[1] / "golden" / "curves.npz")
    return {
        key.partition("/")[2]: sample[key] for key in sample.files if key.startswith(name + "/")
    }


@pytest.mark.parametrize("function", ("sigmoid", "tanh"))
def test_venus(function):
    found = vectors("venus_q11_q15")
    assert np.array_equal(load_piecewise(function, "venus")(found["x"]), found[f"{function}_q15"])


@pytest.mark.parametrize("function", ("sigmoid", "tanh"))
@pytest.mark.parametrize("chip", ("arcs", "venusA"))
def test_wide(chip, function):
    found = vectors("q27_sampled")
    assert np.array_equal(
        load_piecewise(function, chip)(found["x"]), found[f"{chip.lower()}_{function}"]
    )


@pytest.mark.parametrize("function", ("gelu", "swish"))
def test_gelu_and_swish(function):
    found = vectors("venusa_gelu_swish")
    table = load_piecewise(function, "venusA")
    assert np.array_equal(table.evaluate_to_fraction(found["x"], 27, 32), found[f"{function}_q27"])
    keys = [key for key in found if key.startswith("int8_") and key.endswith(f"{function}_q27")]
    assert len(keys) >= 4
    for key in keys:
        want = found[key]
        x = np.arange(-128, 128)[:: 1 if len(want) == 256 else 3]
        q27 = saturate_array(round_shift_right(x, int(key.split("_")[1][1:]) - 27), 32)
        assert np.array_equal(table.evaluate_to_fraction(q27, 27, 32), want), key


@pytest.mark.parametrize("function", ("sigmoid", "tanh"))
@pytest.mark.parametrize("chip", ("arcs", "venusA"))
@pytest.mark.parametrize("grid", ("int8_grid", "int16_grid"))
def test_grid(grid, chip, function):
    """Integers at scale 2^k to Q27, saturated; as they are, and rounded to 8 and 16 bits."""
    found = vectors(grid)
    keys = [key for key in found if f"_{chip.lower()}_{function}_" in key]
    assert len(keys) >= (2 if grid == "int16_grid" else 12)
    for key in keys:
        q27 = saturate_array(
            round_shift_right(found["x"].astype(np.int64), int(key.split("_")[0][1:]) - 27), 32
        )
        table, form = load_piecewise(function, chip), key.rpartition("_")[2]
        got = table(q27) if form == "raw" else table.evaluate_rounded(q27, int(form[1:]))
        assert np.array_equal(got, found[key]), key


@pytest.mark.parametrize("function", ("sigmoid", "tanh"))
def test_venus_grid(function):
    """Integers at scale 2^k to Q11 in either direction: the training side's way, which saturates
    nothing.

    The executor never shifts left, so that it reads k = 0..10 as 11; what is above 2^15 is 0 here
    and nowhere there.
    """
    found = vectors("int8_grid")
    keys = [key for key in found if key.endswith(f"_venus_{function}_q15")]
    assert len(keys) >= 4
    for key in keys:
        q11 = round_shift_right(found["x"].astype(np.int64), int(key.split("_")[0][1:]) - 11)
        beyond = np.abs(q11) > 1 << 15
        assert np.array_equal(
            load_piecewise(function, "venus").evaluate_unsaturated(q11), found[key]
        ), key
        assert np.array_equal(
            load_piecewise(function, "venus")(q11[~beyond]), found[key][~beyond]
        ), key
        assert not found[key][beyond].any()
        assert beyond.any() == key.startswith(("k0_", "k1_", "k2_"))


@pytest.mark.parametrize("function", ("sigmoid", "tanh"))
def test_venus_out_of_range(function):
    """The training side gives 0 for |x| > 2^15; the executor has no such x, and there the table
    refuses it.
    """
    found, table = vectors("venus_q11_out_of_range"), load_piecewise(function, "venus")
    assert np.array_equal(table.evaluate_unsaturated(found["x"]), found[function])
    inside = np.abs(found["x"]) <= 1 << 15
    assert np.array_equal(table(found["x"][inside]), found[function][inside])
    assert not found[function][~inside].any()
    assert (~inside).sum() >= 8
    for x in found["x"][~inside]:
        with pytest.raises(
            ValueError, match=f"to {abs(x)}, beyond the last segment, which ends at 32768"
        ):
            table(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chip", "way"), (("venus", "newton"), ("arcs", "divide"), ("venusa", "fused"))
)
def test_softmax(chip, way):
    found = vectors("softmax_q25_q15")
    names = [key.removesuffix("_x") for key in found if key.endswith("_x")]
    assert names
    for name in names:
        for row, want in zip(found[f"{name}_x"], found[f"{name}_{chip}"], strict=True):
            entry = np.zeros(65536, np.int64)
            entry[32768 : 32768 + len(row)] = (
                row  # the number i stands for the i-th value of the row
            )
            got = run(
                Softmax(entry, Q15, division_mode=way), np.arange(len(row), dtype=np.int16)[None]
            )
            assert np.array_equal(got[0], want), name


def test_layer_norm():
    found = vectors("layernorm_kernel")
    for name in sorted({key.split("_")[0] for key in found if key[0] == "c"}):
        x, q, want = found[f"{name}_x"], int(found[f"{name}_k"]), found[f"{name}_normal_q15"]
        count = x.shape[1]
        ones, zeros = np.ones(count, np.int64), np.zeros(count, np.int64)
        epsilon = LayerNorm.scale_epsilon(1e-5, 2.0**q, count)
        got = run(LayerNorm(ones, zeros, epsilon, Q15, fraction_bits=15), x.astype(np.int16))
        assert np.array_equal(got, want), name


def test_reciprocal_root():
    """2^20 over the root of every size of variance, saturated to int32: the two parts of the
    formula that find it.
    """
    found, roots = vectors("layernorm_kernel"), _make_inverse_sqrt_table()
    for den, num, want in zip(
        found["rsqrt_den"], found["rsqrt_num"][:, 0], found["rsqrt_out"][:, 0], strict=True
    ):
        k = (
            int(_variance_exponent(den)) if den else -4
        )  # no shift; only a constant row has it, and there all numbers are 0
        t = (int(den) >> 2 * k if k >= 0 else int(den) << -2 * k) if den else 256
        assert saturate(round_shift_right(int(num) * int(roots[t]), k + 4), 32) == want, den


def test_reciprocal_root_in_the_kernel():
    """The same where rows have such a variance: (2^14, 0, 0, ..) of 65 is 2^20 from its mean,
    epsilon does the rest.

    With 15 fractional bits the kernel passes through a float32, as the training side does behind
    the normalisation.
    """
    found = vectors("layernorm_kernel")
    x, y, row = np.zeros((1, 65), np.int16), np.zeros((1, 65), np.int32), 1 << 34
    x[0, 0] = 1 << 14
    ones, zeros, specs = (
        np.ones(65, np.int64),
        np.zeros(65, np.int64),
        [TensorSpec(x.shape, x.dtype)],
    )
    possible = np.flatnonzero(found["rsqrt_den"] >= row)[::7]
    assert len(possible) >= 10
    for i in possible:
        LayerNorm(ones, zeros, int(found["rsqrt_den"][i]) - row, Q15, fraction_bits=15).build(
            specs, False
        )([x], [y])
        want = found["rsqrt_out"][i, 0]
        assert y[0, 0] == min(int(np.float32(want)), 2**31 - 1), found["rsqrt_den"][i]


def test_no_array_is_left_out():
    """Every array of the whole measurement belongs to one of the tests above, by its dump and the
    end of its name.
    """
    told = {
        "venus_q11_q15": ("x", "sigmoid_q15", "tanh_q15"),
        "venus_q11_out_of_range": ("x", "sigmoid", "tanh"),
        "q27_sampled": ("x", "sigmoid", "tanh"),
        "venusa_gelu_swish": ("x", "gelu_q27", "swish_q27"),
        "int8_grid": ("x", "sigmoid_q15", "tanh_q15", "raw", "o8", "o16"),
        "int16_grid": ("x", "raw"),
        "softmax_q25_q15": ("_x", "_venus", "_arcs", "_venusa"),
        "layernorm_kernel": ("_x", "_k", "_num", "_den", "_normal_q15", "rsqrt_out"),
    }
    for name, ends in told.items():
        found = vectors(name)
        assert found
        assert not [key for key in found if not key.endswith(ends)]
    if folder().is_dir():
        assert {path.stem for path in folder().glob("*.npz")} == set(told)
