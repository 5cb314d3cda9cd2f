"""Scales that cut values off, or leave most of the integers unused."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...graph import operators
from .finding import LayerFinding, beyond, finding_of, override
from .join import ComparedTensor

__all__ = ["held_wrong", "range_text", "same_scale"]

_CLIPPED = 0.005  # share of values that a scale may cut off
_USED = 0.2  # share of the integers that is too little
_POOR = 25.0  # dB: above that a coarse scale does no harm
_SHARE = "{:.{d}%}"
_BITS = 35.0  # dB: what 8 bits give an ordinary tensor; what is missing to it is a finding's weight


def same_scale(one: ComparedTensor, other: ComparedTensor) -> bool:
    """Whether two tensors are integers of one scale."""
    return one.held is not None and other.held is not None and one.held.q.scale == other.held.q.scale


def held_wrong(
    row: ComparedTensor, before: Mapping[str, ComparedTensor], by_layer: Mapping[str, LayerFinding]
) -> LayerFinding | None:
    """Return whether the scale cuts values off, or leaves most integers unused.

    before : the rows that it is computed from. by_layer : what is known of them.
    """
    finding = _of_scale(row)
    own = row.kinds[0] not in operators.KEEP_SCALE or not any(same_scale(row, other) for other in before.values())
    known = finding is not None and any(name in by_layer and by_layer[name].kind == finding.kind for name in before)
    return finding if own or known else None


def _of_scale(row: ComparedTensor) -> LayerFinding | None:
    pair, form = row.judged, row.held
    if form is None or pair.clipped is None or pair.used is None or not pair.count:
        return None
    if pair.clipped > _CLIPPED and pair.sqnr < _BITS:
        return finding_of(
            row,
            kind="scale too large",
            measured=f"{beyond(pair.clipped, _CLIPPED, _SHARE)} of the values are cut off: {range_text(row)}",
            limit=f"at most {_CLIPPED:.1%}",
            remedy="a scale that holds the range",
            options=(_scale(row),),
            order=1,
        )
    if pair.used < _USED and pair.sqnr < _POOR and pair.y.largest > 0:
        return finding_of(
            row,
            kind="scale too small",
            measured=f"{beyond(pair.used, _USED, _SHARE)} of the integers are used: {range_text(row)}",
            limit=f"at least {_USED:.0%}",
            remedy="a scale that fills them",
            options=(_scale(row),),
            order=1,
        )
    return None


def _scale(row: ComparedTensor) -> str:
    """Return the override that gives the tensor the largest power of two that holds its range."""
    form, x = row.held, row.judged.x
    assert form is not None
    reach = max(x.high / form.q.high, x.low / form.q.low, 1e-30) * max(form.factor)
    return override(row, f"scale:2^{math.floor(-math.log2(reach))}")


def range_text(row: ComparedTensor) -> str:
    """Return the range of the values and that of the integers which hold them, in words."""
    form, x = row.held, row.judged.x
    assert form is not None
    factor = form.q.scale * max(form.factor)
    low, high = ((end - form.q.zero_point) / factor for end in (form.q.low, form.q.high))
    return f"[{x.low:.4g}, {x.high:.4g}] in integers of [{low:.4g}, {high:.4g}]"
