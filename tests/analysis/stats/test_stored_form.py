"""What integers say of the user's tensor: there and back, with and without factors of channels."""

from __future__ import annotations

import numpy as np
import pytest

from lingeronnx.analysis.stats.stored_form import StoredForm, matching_factors
from lingeronnx.ir.plan import Affine


@pytest.mark.parametrize("factor", [(1.0,), (4.0,), (0.5, 2.0, 1.0)])
def test_integers_and_back(factor):
    """Law: what the integers stand for is held as these integers again."""
    form = StoredForm(Affine(16.0), factor)
    integers = np.random.default_rng(0).integers(-128, 128, (2, 3, 5)).astype(np.int8)
    real = form.real(integers)
    shape = (1, len(factor), 1) if len(factor) > 1 else ()
    assert np.array_equal(real, (integers / 16.0 / np.reshape(factor, shape)).astype(np.float32))
    assert np.array_equal(form.quantize(real, integers.dtype), integers)
    assert np.array_equal(form.to_steps(real), integers)


def test_factors_fit_the_channels_only():
    assert matching_factors([2.0, 3.0], np.zeros((4, 2, 7))) == (2.0, 3.0)
    assert matching_factors([2.0, 3.0], np.zeros((4, 3))) == (1.0,)
    assert matching_factors([2.0, 3.0], np.zeros(2)) == (1.0,)
    assert matching_factors([5.0], np.zeros(2)) == (5.0,)
