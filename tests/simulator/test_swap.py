"""The transposition of matrices, in blocks and without."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator._transpose import transpose_block, transpose_matrices
from simulator.native import NativeLoop
from tests.case_selection import choose_fast_subset
from tests.simulator.helpers import SEEDS, few

_SIZES = st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 33, 64]))
KINDS = choose_fast_subset(4, [np.int8, np.int16, np.int32, np.float32, np.float64])


def transposed(x):
    """Return [N, B, A] of lists [N, A, B], number by number."""
    return [[[row[b] for row in matrix] for b in range(len(matrix[0]))] for matrix in x]


def drawn(seed, shape, kind):
    """Return random bytes as numbers, so that every bit counts; of reals only those that are equal
    to themselves.
    """
    rng = np.random.default_rng(seed)
    if np.dtype(kind).kind == "f":
        return rng.standard_normal(shape).astype(kind)
    return (
        np.frombuffer(rng.bytes(int(np.prod(shape)) * np.dtype(kind).itemsize), kind)
        .reshape(shape)
        .copy()
    )


@few
@given(SEEDS, st.integers(1, 3), _SIZES, _SIZES, st.sampled_from(KINDS))
def test_every_number_goes_to_its_place(seed, samples, rows, columns, kind):
    x = drawn(seed, (samples, rows, columns), kind)
    around = np.zeros(x.size + 64, kind)  # nothing is written behind the end
    out = around[: x.size].reshape(samples, columns, rows)
    NativeLoop(transpose_matrices, (x, out))((), ())
    assert out.tolist() == transposed(x.tolist())
    assert not around[x.size :].any()


@pytest.mark.parametrize("kind", [np.int8, np.int32])
def test_a_block_without_machine_code(kind):
    side = 16 // np.dtype(kind).itemsize
    x = drawn(0, (2, side + 3, side + 5), kind)
    out = np.zeros((2, side + 5, side + 3), kind)
    transpose_block(x, out, 1, 2, 4)
    want = np.zeros_like(out)
    want[1, 4 : 4 + side, 2 : 2 + side] = transposed(x[1:, 2 : 2 + side, 4 : 4 + side].tolist())[0]
    assert out.tolist() == want.tolist()
