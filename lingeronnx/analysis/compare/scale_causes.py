"""Causes of a layer's own error: scales that clip or are too coarse, and errors beyond rounding.

A scale clips values or leaves most of the integer range unused. An error that rounding does not
explain means that the layer computes something else than the float layer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from ...common.arithmetic import compute_sqnr_db
from ...ir import float_ops, ir
from ...ir.name_mapping import get_module_name
from .finding import LayerFinding, format_distinct_from, format_override, make_finding
from .join import ComparedTensor
from .layer_examiner import LayerExaminer

__all__ = [
    "MISMATCH_REMEDY",
    "UNSPECIFIC_KINDS",
    "diagnose_broken_layer",
    "diagnose_scale",
    "format_range",
    "has_same_scale",
]

#: Remedy of all findings about layers that compute something else than the float model's.
MISMATCH_REMEDY = (
    "the integer graph does not match the float model: it was changed after quantizing, or made "
    "from another model; quantize the float model again"
)
_MAX_CLIPPED_FRACTION = 0.005  # fraction of values that a scale may clip
_MIN_USED_FRACTION = 0.25  # fraction of the integer range below which two bits are unused
_POOR_SQNR_DB = 25.0  # a coarse scale above this SQNR does no harm, unless the user chose it
_PERCENT_FORMAT = "{:.{d}%}"
_MAX_OCTAVES_TRIED = 4  # powers of two to try, starting with the one that covers all values
_FULL_SQNR_DB = 35.0  # SQNR of an ordinary 8-bit tensor

#: Kinds that describe an error but no specific change of the layer; few bits can cause them too.
UNSPECIFIC_KINDS = frozenset({"wrong bias", "computes something else"})

_MAX_RMS_STEPS = 3.0  # root mean square error of a channel that rounding can explain, in steps
_LOW_SQNR_DB = 15.0  # SQNR below which rounding does not explain the error of a tensor


def has_same_scale(row: ComparedTensor, other: ComparedTensor) -> bool:
    """Whether both tensors are stored as integers with the same scale; False for float."""
    if row.stored_form is None or other.stored_form is None:
        return False
    return row.stored_form.q.scale == other.stored_form.q.scale


def diagnose_scale(
    row: ComparedTensor,
    parents: Mapping[str, ComparedTensor],
    by_layer: Mapping[str, LayerFinding],
    fixed: bool = False,
) -> LayerFinding | None:
    """Return a finding if the scale clips values or leaves most integers unused, else None.

    A tensor that shares its scale with a parent, through an operator that keeps scales, gets a
    finding only if a parent has one of the same kind.

    Parameters
    ----------
    row
        The tensor.
    parents
        Rows that the tensor is computed from.
    by_layer
        Findings so far, by tensor; those of the parents must be among them.
    fixed
        Whether the user chose the scale. A coarse scale is then not due to a rule of the chip or to
        calibration.
    """
    keeps_scale = row.kinds[0] in float_ops.SCALE_PRESERVING_OPS
    sharing = {
        name for name, parent in parents.items() if keeps_scale and has_same_scale(row, parent)
    }
    shared_kinds = {by_layer[name].kind for name in sharing if name in by_layer}
    finding = _scale_finding(row, shared_kinds, fixed)
    if not sharing or finding is None:
        return finding
    parent_kinds = {by_layer[name].kind for name in parents if name in by_layer}
    return finding if finding.kind in parent_kinds else None


def _scale_finding(
    row: ComparedTensor, shared_kinds: Collection[str], fixed: bool
) -> LayerFinding | None:
    """Return a finding if the scale of a tensor's integers is too large or too small, else None.

    "scale too large": more than _MAX_CLIPPED_FRACTION of the values are clipped, and the SQNR is
    below _FULL_SQNR_DB or a parent with the same scale has this finding. "scale too small": less
    than _MIN_USED_FRACTION of the integer range is used, and the SQNR is below _POOR_SQNR_DB (with
    `fixed`: _FULL_SQNR_DB). `shared_kinds` are the kinds of findings of parents with the same
    scale; `fixed` tells that the user set the scale. None for float tensors.
    """
    pair = row.effective
    clipped, used = pair.clipped_fraction, pair.used_fraction
    if row.stored_form is None or clipped is None or used is None or not pair.count:
        return None
    is_harmful = pair.sqnr < _FULL_SQNR_DB or "scale too large" in shared_kinds
    if clipped > _MAX_CLIPPED_FRACTION and is_harmful:
        percent = format_distinct_from(clipped, _MAX_CLIPPED_FRACTION, _PERCENT_FORMAT)
        return make_finding(
            row,
            kind="scale too large",
            measured=f"{percent} of the values are clipped: {format_range(row)}",
            limit=f"at most {_MAX_CLIPPED_FRACTION:.1%}",
            remedy="a scale that covers the range",
            options=(_suggest_scale_override(row),),
            order=1,
        )
    is_harmful = pair.sqnr < (_FULL_SQNR_DB if fixed else _POOR_SQNR_DB)
    if used < _MIN_USED_FRACTION and is_harmful and pair.y.max_abs > 0:
        percent = format_distinct_from(used, _MIN_USED_FRACTION, _PERCENT_FORMAT)
        return make_finding(
            row,
            kind="scale too small",
            measured=f"{percent} of the integers are used: {format_range(row)}",
            limit=f"at least {_MIN_USED_FRACTION:.0%}",
            remedy="a scale that uses all integers",
            options=(_suggest_scale_override(row),),
            order=1,
        )
    return None


def _suggest_scale_override(row: ComparedTensor) -> str:
    """Return the text of an option: `--override` with the best power-of-two scale of a tensor.

    That is the scale with the least squared error. The coarsest scale tried covers all values;
    finer ones, _MAX_OCTAVES_TRIED in all, may clip rare values, as calibration does. The coarsest
    one is returned if no error can be estimated. The tensor must be stored as integers.
    """
    assert row.stored_form is not None
    low, high = _stored_range(row)
    q = row.stored_form.q
    coarsest = math.floor(-math.log2(max(high / q.high, low / q.low, 1e-30)))
    errors: dict[int, float] = {}
    for exponent in range(coarsest, coarsest + _MAX_OCTAVES_TRIED):
        error = _squared_error_at(row, 2.0**exponent)
        if error is not None:
            errors[exponent] = error
    best = min(errors, key=errors.__getitem__, default=coarsest)
    return format_override(row, f"scale:2^{best}")


def _squared_error_at(row: ComparedTensor, scale: float) -> float | None:
    """Estimate the squared error of all values at a scale, from clipping and rounding.

    Values below half a step are rounded to 0 and lose all of their power; others lose 1/12 step^2
    each, as if evenly distributed.

    Returns
    -------
    float or None
        Sum over all values, in squared units of the tensor. None if more than _MAX_CLIPPED_FRACTION
        of the values are clipped, if there are no values, or if there is a factor per channel,
        which a histogram does not contain.
    """
    assert row.stored_form is not None
    q, (values, counts) = row.stored_form.q, row.arrived.x.histogram.values()
    if len(row.stored_form.factor) > 1 or not values.size:
        return None
    low, high = (-math.inf, math.inf) if row.consumed_range is None else row.consumed_range
    stored = np.clip(values, low, high) * row.stored_form.factor[0] * scale
    clip_error = stored - np.clip(stored, q.low - q.zero_point, q.high - q.zero_point)
    if counts[clip_error != 0].sum() > _MAX_CLIPPED_FRACTION * counts.sum():
        return None
    rounding = np.where(np.abs(stored) < 0.5, np.square(stored), 1 / 12)
    return float((counts * (np.square(clip_error) + rounding)).sum()) / scale**2


def _stored_range(row: ComparedTensor) -> tuple[float, float]:
    """Return the lowest and highest baseline value as stored: times its channel's factor.

    Values count as the consumers clip them. Without ranges of each channel the largest factor
    applies to all. The tensor must have a stored form.
    """
    assert row.stored_form is not None
    factor, channels = np.array(row.stored_form.factor), row.channels
    if factor.size == 1 or channels.raw_min.size != factor.size:
        low, high = row.baseline_range
        return low * factor.max(), high * factor.max()
    consumed = (-math.inf, math.inf) if row.consumed_range is None else row.consumed_range
    lows = np.clip(channels.raw_min, *consumed) * factor
    highs = np.clip(channels.raw_max, *consumed) * factor
    return float(lows.min()), float(highs.max())


def format_range(row: ComparedTensor) -> str:
    """Format the range of the values and the range that the integers cover, in the user's units.

    The tensor must be stored as integers. The text is "[LOW, HIGH] in integers of [LOW, HIGH]".
    With a factor per channel, the integers' range is that of the largest factor.
    """
    assert row.stored_form is not None
    q, factors = row.stored_form.q, row.stored_form.factor
    scale = q.scale * max(factors)
    low, high = ((bound - q.zero_point) / scale for bound in (q.low, q.high))
    value_low, value_high = row.baseline_range
    return f"[{value_low:.4g}, {value_high:.4g}] in integers of [{low:.4g}, {high:.4g}]"


def _exceeds_rounding_error(row: ComparedTensor) -> bool:
    """Whether the own error of the layer with output `row` is larger than rounding explains.

    That is an SQNR below _LOW_SQNR_DB, or the RMS error of a channel in integer steps: above
    _MAX_RMS_STEPS, or above 1 step and twice the median in a channel of low SQNR. False for inputs
    and without a local error.
    """
    if row.local is None or row.kinds[0] == "Input":
        return False
    if row.effective.sqnr < _LOW_SQNR_DB:
        return True
    if row.stored_form is None or not row.channels.count:
        return False
    steps = _rms_error_in_steps(row)
    channels = row.channels
    sqnrs_db = compute_sqnr_db(channels.mean_square, channels.mean_squared_error, 1e-30)
    is_outlier = (steps > 1) & (steps > 2 * np.median(steps)) & (sqnrs_db < _LOW_SQNR_DB)
    return bool(steps.max(initial=0.0) > _MAX_RMS_STEPS or is_outlier.any())


def _rms_error_in_steps(row: ComparedTensor) -> np.ndarray:
    """Return the root mean square of a tensor's error in each channel, in integer steps, [C].

    `row` must be quantized; the factors by which channels were scaled count.
    """
    form = row.stored_form
    assert form is not None
    errors: np.ndarray = (
        np.sqrt(row.channels.mean_squared_error) * form.q.scale * np.array(form.factor)
    )
    return errors


def diagnose_broken_layer(
    row: ComparedTensor, examiner: LayerExaminer, explained: bool
) -> LayerFinding | None:
    """Return a finding if a layer computes something else than the float layer, else None.

    Saturated biases and swapped weights are reported whether or not the samples show them; other
    causes only if the layer's own error is larger than rounding explains. The finding has order 1
    and is about the cause's node, if it has one.

    Parameters
    ----------
    row
        Output of the layer.
    examiner
        Examiner of the compared models. None is returned if the analysed model is unmodified.
    explained
        Whether a finding upstream explains the layer's error; then its other causes are not sought.
    """
    if examiner.is_unmodified:
        return None
    cause = examiner.find_saturated_bias(row) or examiner.find_swapped_weights(row)
    if cause is None and not explained and _exceeds_rounding_error(row):
        cause = examiner.explain(row)
    if cause is None:
        return None
    finding = make_finding(
        row,
        kind=cause.kind,
        measured=cause.measured,
        limit=cause.limit,
        remedy=MISMATCH_REMEDY,
        order=1,
    )
    if cause.node is None:
        return finding
    return replace(
        finding,
        layer=ir.output_name(cause.node),
        node=str(cause.node.name),
        operator=cause.node.op_type,
        module=get_module_name(cause.node),
    )
