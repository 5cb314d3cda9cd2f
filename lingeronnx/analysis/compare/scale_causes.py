"""Scales that cut values off, or leave most of the integers unused."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

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
    kept = row.kinds[0] in operators.KEEP_SCALE
    shared = {name for name, other in before.items() if kept and same_scale(row, other)}
    finding = _of_scale(row, {by_layer[name].kind for name in shared if name in by_layer})
    known = finding is not None and any(name in by_layer and by_layer[name].kind == finding.kind for name in before)
    return finding if not shared or known else None


def _of_scale(row: ComparedTensor, before: Collection[str]) -> LayerFinding | None:
    """Return what is wrong with the scale; `before` : what is, with the same scale, of what the tensor is moved from.

    Values that are cut off there are cut off by this scale, too, though the layer itself does no harm.
    """
    pair, form = row.judged, row.held
    if form is None or pair.clipped is None or pair.used is None or not pair.count:
        return None
    if pair.clipped > _CLIPPED and (pair.sqnr < _BITS or "scale too large" in before):
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
    form, (least, most) = row.held, row.reach
    assert form is not None
    reach = max(most / form.q.high, least / form.q.low, 1e-30) * max(form.factor)
    return override(row, f"scale:2^{math.floor(-math.log2(reach))}")


def range_text(row: ComparedTensor) -> str:
    """Return the range of the values and that of the integers which hold them, in words."""
    form, (least, most) = row.held, row.reach
    assert form is not None
    factor = form.q.scale * max(form.factor)
    low, high = ((end - form.q.zero_point) / factor for end in (form.q.low, form.q.high))
    return f"[{least:.4g}, {most:.4g}] in integers of [{low:.4g}, {high:.4g}]"
