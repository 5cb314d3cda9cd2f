"""Tensors that share a scale get the smallest of their scales."""

from types import SimpleNamespace

import pytest

from lingeronnx.ir.plan import Affine
from lingeronnx.quantization.scales.feasible import _ScaleLegalizer
from lingeronnx.targets import get_target
from tests.call_counts import count_calls


def make_legalizer(size):
    """Legalizer of one group of `size` tensors, whose scales become smaller from first to last."""
    names = [f"t{index}" for index in range(size)]
    stored = {
        name: SimpleNamespace(stored=Affine(2.0 ** (7 - index % 8), 8))
        for index, name in enumerate(names)
    }
    group = SimpleNamespace(tensors=tuple(names))
    return _ScaleLegalizer(SimpleNamespace(tensors=stored), [group], get_target("venus"))


def test_smallest_scale():
    legalizer = make_legalizer(20)
    legalizer.unify_shared_scales()
    assert {qparams.scale for qparams in legalizer.tensors.values()} == {1.0}


@pytest.mark.parametrize("size", (100,))
def test_work_grows_with_the_group(size):
    """Twice the tensors need twice the calls, not four times as many."""
    small, large = (
        count_calls(make_legalizer(factor * size).unify_shared_scales) for factor in (1, 2)
    )
    assert large <= 2.3 * small
