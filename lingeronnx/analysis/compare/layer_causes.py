"""Layers that compute something else: detection of errors beyond rounding, and their causes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...decibels import compute_sqnr_db
from ...graph import ir
from ...graph.name_mapping import get_module_name
from .finding import LayerFinding, make_finding
from .join import ComparedTensor
from .layer_examiner import LayerExaminer

__all__ = ["UNSPECIFIC_KINDS", "diagnose_broken_layer"]

#: Kinds that describe an error but no specific change of the layer; few bits can cause them too.
UNSPECIFIC_KINDS = frozenset({"wrong bias", "computes something else"})

_MAX_RMS_STEPS = 3.0  # root mean square error of a channel that rounding can explain, in steps
_LOW_SQNR_DB = 15.0  # SQNR below which rounding does not explain the error of a tensor


def _exceeds_rounding_error(row: ComparedTensor) -> bool:
    """Whether the layer's own error is larger than rounding explains.

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
    """Return the root mean square error of every channel in integer steps, [C]."""
    form = row.stored_form
    assert form is not None
    return np.sqrt(row.channels.mean_squared_error) * form.q.scale * np.array(form.factor)


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
        remedy="the integer graph does not match the float model; quantize the float model again",
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
