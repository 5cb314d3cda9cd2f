"""Layers that compute something else.

Whether a row's own error is more than rounding makes, and what explains it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...graph import ir
from ...graph.module_scopes import get_module_name
from .finding import LayerFinding, make_finding
from .join import ComparedTensor
from .layer_examiner import LayerExaminer

__all__ = ["UNSPECIFIC_KINDS", "diagnose_broken_layer"]

#: Kinds that tell of an error and not of what the layer was changed in: few bits can look so.
UNSPECIFIC_KINDS = frozenset({"wrong bias", "computes something else"})

_MAX_RMS_STEPS = (
    3.0  # root mean square error of a channel, in counts, that rounding does not explain
)
_LOW_SQNR_DB = 15.0  # dB: the same of a whole tensor


def _exceeds_rounding_error(row: ComparedTensor) -> bool:
    """Whether the layer's own error is more than rounding makes."""
    if row.local is None or row.kinds[0] == "Input":
        return False
    if row.stored_form is None:
        return row.effective.sqnr < _LOW_SQNR_DB
    if row.effective.sqnr < _LOW_SQNR_DB or not row.channels.count:
        return row.effective.sqnr < _LOW_SQNR_DB
    counts = _rms_error_in_steps(row)
    levels = 10 * np.log10(
        np.maximum(row.channels.mean_square, 1e-30)
        / np.maximum(row.channels.mean_squared_error, 1e-30)
    )
    apart = (counts > 1) & (counts > 2 * np.median(counts)) & (levels < _LOW_SQNR_DB)
    return bool(counts.max(initial=0.0) > _MAX_RMS_STEPS or apart.any())


def _rms_error_in_steps(row: ComparedTensor) -> np.ndarray:
    """Return the root mean square error of every channel in counts."""
    assert row.stored_form is not None
    return (
        np.sqrt(row.channels.mean_squared_error)
        * row.stored_form.q.scale
        * np.array(row.stored_form.factor)
    )


def diagnose_broken_layer(
    row: ComparedTensor, examiner: LayerExaminer, explained: bool
) -> LayerFinding | None:
    """Return what is wrong with a layer that computes something else.

    A bias at its end, and weights of channels in each other's place, are wrong whatever the samples
    show.

    Nothing where the integer graph is as it was made of this float model.
    """
    if examiner.is_unmodified:
        return None
    wrong = examiner.bias(row) or examiner.find_swapped_weights(row)
    if wrong is None and not explained and _exceeds_rounding_error(row):
        wrong = examiner.explain(row)
    if wrong is None:
        return None
    kind, measured, limit, at = wrong
    remedy = (
        "the integer graph is not what the float model asks for: quantize the float model again"
    )
    finding = make_finding(row, kind=kind, measured=measured, limit=limit, remedy=remedy, order=1)
    if at is None:
        return finding
    return replace(
        finding,
        layer=ir.output_name(at),
        node=str(at.name),
        operator=at.op_type,
        module=get_module_name(at),
    )
