"""The scale that is advised: the power of two that leaves the least error, tried here by rounding
the values.
"""

import shlex
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lingeronnx.analysis.compare import scale_causes
from lingeronnx.analysis.compare.join import ComparedTensor
from lingeronnx.analysis.compare.scale_causes import diagnose_scale
from lingeronnx.analysis.stats.stored_form import StoredForm
from lingeronnx.ir import float_ops
from lingeronnx.ir.plan import Affine
from tests.case_selection import limit_examples
from tests.each import check_each


def row_of(x, scale, factor=(1.0,), window=None):
    form = StoredForm(Affine(scale, bits=8), factor)
    y = form.quantize(x, np.dtype(np.int8))
    row = ComparedTensor("t", ("Conv", "Conv2dInt"), ("c", "c"), consumed_range=window)
    row.arrived.add(x, y, form)
    row.add_effective(x, y, form, x)
    return row


def advised(row):
    (option,) = diagnose_scale(row, {}, {}).options
    option, word = shlex.split(option)
    assert (option, word[:10]) == ("--override", "t=scale:2^")
    return int(word[10:])


def rounded(x, exponent):
    """Return the square error of int8 at a scale of 2^exponent, and the share that is cut off."""
    counts = np.rint(x.astype(np.float64) * 2.0**exponent)
    held = np.clip(counts, -128, 127)
    return np.square(held / 2.0**exponent - x).sum(), np.mean(held != counts)


@limit_examples(30)
@example(seed=4465, degrees=2, size=0, count=20000)  # most values are less than half a step
@given(
    st.integers(0, 10**6),
    st.sampled_from([2, 4, 30]),
    st.integers(-3, 3),
    st.sampled_from([3000, 20000]),
)
def test_no_power_of_two_leaves_less_error(seed, degrees, size, count):
    """Values with short and long tails, in a scale 64 times too fine or too coarse."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_t(degrees, (count // 4, 4, 1, 1)) * 2.0**size).astype(np.float32)
    exponent = int(np.floor(np.log2(127 / np.abs(x).max())))
    for wrong in (exponent - 5, exponent + 9):
        row = row_of(x, 2.0**wrong)
        if diagnose_scale(row, {}, {}) is None:  # the tail is so long that the coarse scale fits it
            continue
        errors = {
            k: error
            for k in range(exponent, exponent + 4)
            for error, cut in [rounded(x, k)]
            if cut <= 0.005
        }
        assert rounded(x, advised(row))[0] <= 1.05 * min(errors.values())


def test_what_a_relu_cuts_off_counts_for_nothing():
    x = np.random.default_rng(0).uniform(-100, 1, (500, 4, 1, 1)).astype(np.float32)
    assert (
        advised(row_of(x, 2.0**10, window=(0.0, np.inf))) == 7
    )  # up to 127/128: next to nothing is cut off
    assert advised(row_of(x, 2.0**10)) == 0


@pytest.mark.parametrize(
    ("factor", "exponent"), [((1.0, 1.0), 3), ((1.0, 8.0), 3), ((8.0, 1.0), 0)]
)
def test_each_channel_counts_with_its_own_factor(factor, exponent):
    """Channels of +-15 and +-1: the small one may be multiplied without need of a coarser scale."""
    x = np.random.default_rng(0).uniform(-1, 1, (500, 2, 3, 3)) * np.array([15, 1]).reshape(
        1, 2, 1, 1
    )
    assert advised(row_of(x.astype(np.float32), 2.0**9, factor)) == exponent


def test_a_coarse_scale_is_named_sooner_where_the_user_gave_it():
    """30 dB are left: no harm where the chip's rules may have set the scale, a loss where the user
    did.
    """
    x = np.random.default_rng(0).uniform(-1, 1, (500, 4, 1, 1)).astype(np.float32)
    row = row_of(x, 20.0)
    assert 25 < row.effective.sqnr < 35
    assert diagnose_scale(row, {}, {}) is None
    assert diagnose_scale(row, {}, {}, fixed=True).kind == "scale too small"


def test_a_wrong_scale_is_that_of_the_tensor_before(monkeypatch):
    """An operator that keeps the scale has no finding if the tensor before it has none."""
    monkeypatch.setattr(scale_causes, "_scale_finding", lambda *_: SimpleNamespace(kind="wide"))

    def check(op_type):
        row = SimpleNamespace(kinds=(op_type, op_type), stored_form=SimpleNamespace(q=Affine(4.0)))
        assert diagnose_scale(row, {"before": row}, {}) is None

    check_each(check, sorted(float_ops.SCALE_PRESERVING_OPS))
