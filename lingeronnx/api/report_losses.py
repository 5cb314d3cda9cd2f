"""The layers that lose accuracy, each with its part of the error and the cause if one was found."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..analysis.compare.advice import find_parent_rows
from ..analysis.compare.channel_causes import DEAD_CHANNEL
from ..analysis.compare.comparison import Comparison
from ..analysis.compare.finding import LayerFinding
from ..analysis.compare.join import ComparedTensor
from ..analysis.compare.network import compute_error_shares, name_layers

__all__ = ["Loss", "find_losses", "rank_findings"]

_MAX_LOSSES = 4
#: A layer without a cause is named from this part of the error on, in percent.
_LARGE_SHARE_PERCENT = 25.0
_MAX_STEPS_UPSTREAM = 2  # a Relu, and the layer in front of it


@dataclass(frozen=True)
class Loss:
    """A layer that loses accuracy.

    Attributes
    ----------
    tensor, place
        The tensor that it makes, and its operator and node as text.
    also
        Tensors with the same scale and the same problem.
    cause
        Kind of the finding; empty if no cause was found.
    measured, remedy
        What was measured with its limit, and how to fix it; `remedy` is empty without a cause.
    share_percent
        Its own noise, relative to the signal, of the sum over all layers.
    total_share_percent
        The same with that of `also`, and of layers without a finding that read these tensors.
    own_db
        SQNR of the layer alone in dB; NaN if it was not compared.
    """

    tensor: str
    place: str
    cause: str
    measured: str
    remedy: str
    share_percent: float
    total_share_percent: float
    own_db: float
    also: tuple[str, ...] = ()


def rank_findings(comparison: Comparison) -> list[tuple[LayerFinding, float]]:
    """Return findings with their shares of the error in percent, the worst first.

    A share includes layers without a finding that read the tensor, as its coarse integers or small
    weights spoil them. Wrong input data come first, because they spoil all measures.
    """
    shares = _attribute_shares(comparison, compute_error_shares(comparison.join))
    ranked = []
    for finding in comparison.findings:
        names = {finding.layer, *finding.also}
        ranked.append((finding, sum(shares.get(name, 0.0) for name in names)))
    return sorted(ranked, key=lambda entry: (entry[0].order > 0, -entry[1]))


def find_losses(comparison: Comparison) -> list[Loss]:
    """List up to four layers that lose accuracy: those with a finding, and with a large share.

    They are in the order of `rank_findings`. Dead channels are left out, as they lose none.
    """
    rows = {row.name: row for row in comparison.rows}
    shares, places = compute_error_shares(comparison.join), name_layers(comparison)
    losses = []
    for finding, total_share in rank_findings(comparison):
        if finding.kind == DEAD_CHANNEL:
            continue
        name = finding.layer
        loss = Loss(
            tensor=name,
            place=places.get(name, f"{finding.operator} {name}"),
            cause=finding.kind,
            measured=finding.evidence,
            remedy=finding.remedy,
            share_percent=shares.get(name, 0.0),
            total_share_percent=total_share,
            own_db=rows[name].effective.sqnr if name in rows else math.nan,
            also=finding.also,
        )
        losses.append((finding.order > 0, loss))
    for name, share in _attribute_shares(comparison, shares).items():
        if share >= _LARGE_SHARE_PERCENT and not comparison.finding_kind_of(rows[name]):
            losses.append((True, _describe_share(rows[name], places[name], share)))
    losses.sort(key=lambda entry: (entry[0], -entry[1].total_share_percent))
    return [loss for _, loss in losses[:_MAX_LOSSES]]


def _attribute_shares(comparison: Comparison, shares: Mapping[str, float]) -> dict[str, float]:
    """Return `shares`, {tensor: share of the error in percent}, attributed to findings upstream.

    The share of a layer without a finding counts for the nearest tensor with one that it reads, up
    to `_MAX_STEPS_UPSTREAM` tensors away; its own share is then 0.
    """
    rows = {row.name: row for row in comparison.rows}
    parents = find_parent_rows(comparison.join)
    with_finding = {name for name, row in rows.items() if comparison.finding_kind_of(row)}
    attributed = dict.fromkeys(shares, 0.0)
    for name, share in shares.items():
        attributed[_find_source(name, parents, with_finding) or name] += share
    return attributed


def _find_source(
    name: str, parents: Mapping[str, Sequence[str]], with_finding: Collection[str]
) -> str | None:
    """Return the nearest tensor with a finding at or upstream of `name`; None if there is none."""
    level = [name]
    for _ in range(_MAX_STEPS_UPSTREAM + 1):
        source = next((tensor for tensor in level if tensor in with_finding), None)
        if source is not None:
            return source
        level = [parent for tensor in level for parent in parents[tensor]]
    return None


def _describe_share(row: ComparedTensor, place: str, share: float) -> Loss:
    """Describe a layer without a finding, called `place`."""
    return Loss(
        tensor=row.name,
        place=place,
        cause="",
        measured="no unusual range, scale or weight: its integers are too coarse",
        remedy="",
        share_percent=share,
        total_share_percent=share,
        own_db=row.effective.sqnr,
    )
