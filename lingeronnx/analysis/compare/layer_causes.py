"""Layers that compute something else: whether a row's own error is more than rounding makes, and what explains it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...graph import ir
from ...graph.modules import module
from .finding import LayerFinding, finding_of
from .join import ComparedTensor
from .layer_examiner import LayerExaminer

__all__ = ["VAGUE", "broken"]

#: Kinds that tell of an error and not of what the layer was changed in: few bits can look so.
VAGUE = frozenset({"wrong bias", "computes something else"})

_COUNTS = 3.0  # root mean square error of a channel, in counts, that rounding does not explain
_LOW = 15.0  # dB: the same of a whole tensor


def _strange(row: ComparedTensor) -> bool:
    """Whether the layer's own error is more than rounding makes."""
    if row.local is None or row.kinds[0] == "Input":
        return False
    if row.held is None:
        return row.judged.sqnr < _LOW
    if row.judged.sqnr < _LOW or not row.channels.count:
        return row.judged.sqnr < _LOW
    counts = _counts(row)
    levels = 10 * np.log10(np.maximum(row.channels.power, 1e-30) / np.maximum(row.channels.error, 1e-30))
    apart = (counts > 1) & (counts > 2 * np.median(counts)) & (levels < _LOW)
    return bool(counts.max(initial=0.0) > _COUNTS or apart.any())


def _counts(row: ComparedTensor) -> np.ndarray:
    """Return the root mean square error of every channel in counts."""
    assert row.held is not None
    return np.sqrt(row.channels.error) * row.held.q.scale * np.array(row.held.factor)


def broken(row: ComparedTensor, closer: LayerExaminer, explained: bool) -> LayerFinding | None:
    """Return what is wrong with a layer that computes something else.

    A bias at its end, and weights of channels in each other's place, are wrong whatever the samples show.

    Nothing where the integer graph is as it was made of this float model.
    """
    if closer.made:
        return None
    wrong = closer.bias(row) or closer.order(row)
    if wrong is None and not explained and _strange(row):
        wrong = closer.look(row)
    if wrong is None:
        return None
    kind, measured, limit, at = wrong
    remedy = "the integer graph is not what the float model asks for: quantize the float model again"
    finding = finding_of(row, kind=kind, measured=measured, limit=limit, remedy=remedy, order=1)
    if at is None:
        return finding
    return replace(finding, layer=ir.written_name(at), node=str(at.name), operator=at.op_type, module=module(at))
