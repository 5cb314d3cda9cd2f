"""Scales that cut values off, or leave most of the integers unused."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from ...graph import operators
from .finding import LayerFinding, format_distinct_from, format_override, make_finding
from .join import ComparedTensor

__all__ = ["diagnose_scale", "format_range", "has_same_scale"]

_MAX_CLIPPED_SHARE = 0.005  # share of values that a scale may cut off
_MIN_USED_SHARE = 0.25  # share of the integers below which two bits stay empty
_POOR_SQNR_DB = 25.0  # dB: above that a coarse scale does no harm, where the user did not choose it
_PERCENT_FORMAT = "{:.{d}%}"
_MAX_OCTAVES_TRIED = 4  # powers of two that are tried, the first of them holds all values
_FULL_SQNR_DB = (
    35.0  # dB: what 8 bits give an ordinary tensor; what is missing to it is a finding's weight
)


def has_same_scale(one: ComparedTensor, other: ComparedTensor) -> bool:
    """Whether two tensors are integers of one scale."""
    return (
        one.stored_form is not None
        and other.stored_form is not None
        and one.stored_form.q.scale == other.stored_form.q.scale
    )


def diagnose_scale(
    row: ComparedTensor,
    before: Mapping[str, ComparedTensor],
    by_layer: Mapping[str, LayerFinding],
    fixed: bool = False,
) -> LayerFinding | None:
    """Return whether the scale cuts values off, or leaves most integers unused.

    before : the rows that it is computed from. by_layer : what is known of them. fixed : whether
    the user gave the scale; then no rule of the chip and no calibration is to blame for a coarse
    one.
    """
    kept = row.kinds[0] in operators.SCALE_PRESERVING_OPS
    shared = {name for name, other in before.items() if kept and has_same_scale(row, other)}
    finding = _scale_finding(
        row, {by_layer[name].kind for name in shared if name in by_layer}, fixed
    )
    known = finding is not None and any(
        name in by_layer and by_layer[name].kind == finding.kind for name in before
    )
    return finding if not shared or known else None


def _scale_finding(
    row: ComparedTensor, before: Collection[str], fixed: bool
) -> LayerFinding | None:
    """Return what is wrong with the scale.

    `before` : what is, with the same scale, of what the tensor is moved from.
    Values that are cut off there are cut off by this scale, too, though the layer itself does no
    harm.
    """
    pair, form = row.effective, row.stored_form
    if (
        form is None
        or pair.clipped_fraction is None
        or pair.used_fraction is None
        or not pair.count
    ):
        return None
    if pair.clipped_fraction > _MAX_CLIPPED_SHARE and (
        pair.sqnr < _FULL_SQNR_DB or "scale too large" in before
    ):
        return make_finding(
            row,
            kind="scale too large",
            measured=(
                f"{format_distinct_from(pair.clipped_fraction, _MAX_CLIPPED_SHARE, _PERCENT_FORMAT)} of the "
                "values are "
                "cut "
                f"off: {format_range(row)}"
            ),
            limit=f"at most {_MAX_CLIPPED_SHARE:.1%}",
            remedy="a scale that holds the range",
            options=(_suggest_scale_override(row),),
            order=1,
        )
    if (
        pair.used_fraction < _MIN_USED_SHARE
        and pair.sqnr < (_FULL_SQNR_DB if fixed else _POOR_SQNR_DB)
        and pair.y.max_abs > 0
    ):
        return make_finding(
            row,
            kind="scale too small",
            measured=(
                f"{format_distinct_from(pair.used_fraction, _MIN_USED_SHARE, _PERCENT_FORMAT)} of the "
                "integers are used: "
                f"{format_range(row)}"
            ),
            limit=f"at least {_MIN_USED_SHARE:.0%}",
            remedy="a scale that fills them",
            options=(_suggest_scale_override(row),),
            order=1,
        )
    return None


def _suggest_scale_override(row: ComparedTensor) -> str:
    """Return the override that gives the tensor the power of two of least square error.

    The coarsest that is tried holds all values; finer ones may cut rare values off, as calibration
    does.
    """
    assert row.stored_form is not None
    least, most = _stored_range(row)
    whole = math.floor(
        -math.log2(max(most / row.stored_form.q.high, least / row.stored_form.q.low, 1e-30))
    )
    found = {
        k: error
        for k in range(whole, whole + _MAX_OCTAVES_TRIED)
        if (error := _squared_error_at(row, 2.0**k)) is not None
    }
    return format_override(row, f"scale:2^{min(found, key=found.__getitem__, default=whole)}")


def _squared_error_at(row: ComparedTensor, scale: float) -> float | None:
    """Return the square error of all values seen at a scale.

    What is cut off, and what rounding takes.
    Rounding takes values below half a step as a whole, and 1/12 step^2 of others, as of evenly
    spread ones. None where that cuts off too many, and where channels have factors of their own,
    which a histogram does not tell.
    """
    assert row.stored_form is not None
    q, (values, counts) = row.stored_form.q, row.arrived.x.histogram.values()
    if len(row.stored_form.factor) > 1 or not values.size:
        return None
    low, high = (-math.inf, math.inf) if row.consumed_range is None else row.consumed_range
    stored = np.clip(values, low, high) * row.stored_form.factor[0] * scale
    beyond_ends = stored - np.clip(stored, q.low - q.zero_point, q.high - q.zero_point)
    if counts[beyond_ends != 0].sum() > _MAX_CLIPPED_SHARE * counts.sum():
        return None
    rounding = np.where(np.abs(stored) < 0.5, np.square(stored), 1 / 12)
    return float((counts * (np.square(beyond_ends) + rounding)).sum()) / scale**2


def _stored_range(row: ComparedTensor) -> tuple[float, float]:
    """Return the least and the largest value as it is stored.

    Each channel times the factor that it has there.
    """
    assert row.stored_form is not None
    factor, channels = np.array(row.stored_form.factor), row.channels
    if factor.size == 1 or channels.raw_min.size != factor.size:
        least, most = row.baseline_range
        return least * factor.max(), most * factor.max()
    low, high = (-math.inf, math.inf) if row.consumed_range is None else row.consumed_range
    least, most = (
        np.clip(ends, low, high) * factor for ends in (channels.raw_min, channels.raw_max)
    )
    return float(least.min()), float(most.max())


def format_range(row: ComparedTensor) -> str:
    """Return the range of the values and that of the integers which hold them, in words."""
    form, (least, most) = row.stored_form, row.baseline_range
    assert form is not None
    factor = form.q.scale * max(form.factor)
    low, high = ((end - form.q.zero_point) / factor for end in (form.q.low, form.q.high))
    return f"[{least:.4g}, {most:.4g}] in integers of [{low:.4g}, {high:.4g}]"
