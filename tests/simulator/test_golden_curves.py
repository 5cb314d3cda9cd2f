"""Law: tables, softmax rows and normalisation give the integers that the training library's kernels gave, bit for bit.

A sample of the measurement is in tests/golden/curves.npz; where the whole of it lies beside the repository (as
`linger_lut/` in the folder of the other vectors), that is taken.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from simulator.fixed import Rescale
from simulator.kernels import LayerNorm, Softmax
from simulator.lut import piecewise
from tests.simulator.helpers import run

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
    return {key.partition("/")[2]: sample[key] for key in sample.files if key.startswith(name + "/")}


@pytest.mark.parametrize("function", ("sigmoid", "tanh"))
def test_venus(function):
    found = vectors("venus_q11_q15")
    assert np.array_equal(piecewise(function, "venus")(found["x"]), found[f"{function}_q15"])


@pytest.mark.parametrize("function", ("sigmoid", "tanh"))
@pytest.mark.parametrize("chip", ("arcs", "venusA"))
def test_wide(chip, function):
    found = vectors("q27_sampled")
    assert np.array_equal(piecewise(function, chip)(found["x"]), found[f"{chip.lower()}_{function}"])


@pytest.mark.parametrize("function", ("gelu", "swish"))
def test_gelu_and_swish(function):
    found = vectors("venusa_gelu_swish")
    assert np.array_equal(piecewise(function, "venusA").to(found["x"], 27, 32), found[f"{function}_q27"])


@pytest.mark.parametrize(("chip", "way"), (("venus", "newton"), ("arcs", "divide"), ("venusa", "fused")))
def test_softmax(chip, way):
    found = vectors("softmax_q25_q15")
    names = [key.removesuffix("_x") for key in found if key.endswith("_x")]
    assert names
    for name in names:
        for row, want in zip(found[f"{name}_x"], found[f"{name}_{chip}"], strict=True):
            entry = np.zeros(65536, np.int64)
            entry[32768 : 32768 + len(row)] = row  # the number i stands for the i-th value of the row
            got = run(Softmax(entry, Q15, way=way), np.arange(len(row), dtype=np.int16)[None])
            assert np.array_equal(got[0], want), name


def test_layer_norm():
    found = vectors("layernorm_kernel")
    for name in sorted({key.split("_")[0] for key in found if key[0] == "c"}):
        x, q, want = found[f"{name}_x"], int(found[f"{name}_k"]), found[f"{name}_normal_q15"]
        count = x.shape[1]
        ones, zeros = np.ones(count, np.int64), np.zeros(count, np.int64)
        epsilon = LayerNorm.epsilon_of(1e-5, 2.0**q, count)
        got = run(LayerNorm(ones, zeros, epsilon, Q15, fraction=15), x.astype(np.int16))
        assert np.array_equal(got, want), name
