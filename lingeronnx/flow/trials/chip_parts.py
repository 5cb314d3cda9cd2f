"""Move layers to the host so that the chip can run the rest of a model that is not chip-ready.

`host_placement` selects the layers: those that a chip part is rejected for, and parts that are too
small to be worth the transfer. Parts with little work, such as a last layer after a normalization
on the host, are also moved if the outputs measurably come closer to the float model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...ops.macs import count_macs
from ...run.data import Progress
from ..planning.refinement import refine_weights
from ..planning.scale_sources import plan_model
from ..report.candidate import Candidate, build_candidate
from .evidence import output_sqnr_levels
from .host_offload import select_required_host_nodes
from .host_placement import MAX_ROUNDS, HostPlacement
from .verdict_log import log_verdict

__all__ = ["offload_rejected_layers"]

_MAX_LOSS_DB = 0.5  # accepted loss of an output when layers return from the host to the chip
_MAX_TRIES = 4  # small parts that are tried; each takes a plan of its own
_SMALL_PART_SHARE = 0.01  # a part is small up to this fraction of the chip's MACs
_MIN_GAIN_DB = 0.5  # gain of some output for which a small part moves to the host


def offload_rejected_layers(best: Candidate, progress: Progress | None = None) -> Candidate:
    """Move more nodes to the host if that lets the chip run the rest in parts.

    Returns `best` unchanged if layers may not move (`max_parts` is not set), if it is chip-ready,
    or if it was quantized by another tool.
    """
    prepared = best.prepared
    if not prepared.allows_layer_offload or not prepared.parts.ops or best.report.chip_ready:
        return best
    candidate = _try_returning_layers(best, progress)
    candidate = _offload_until_accepted(candidate, progress)
    return _try_offloading_small_parts(candidate, progress)


def _offload_until_accepted(best: Candidate, progress: Progress | None) -> Candidate:
    """Move layers that chip parts are rejected for, and unprofitable parts, to the host.

    The selection hardly depends on the weights, so it runs without effort first, and then once more
    from its result with the configured effort. Returns `best` if nothing moves.
    """
    draft_prepared = best.prepared.draft
    if best.prepared.recipe == draft_prepared.recipe:
        return _run_offload_rounds(best, progress)
    draft = replace(best, planned=replace(best.planned, prepared=draft_prepared))
    offloaded = _run_offload_rounds(draft, progress)
    if offloaded is draft:
        return best
    replanned = _replan_with_host_nodes(best, offloaded.prepared.parts.floats, progress)
    return _run_offload_rounds(replanned, progress)


def _run_offload_rounds(best: Candidate, progress: Progress | None) -> Candidate:
    """Offload the layers selected by `HostPlacement` until no part is rejected.

    At most MAX_ROUNDS rounds; the last one offloads rejected parts as a whole. Returns `best`
    unchanged if nothing is selected, or if nothing would be left for the chip; its report then has
    the reasons.
    """
    start = best
    host = dict(best.prepared.parts.floats)
    for remaining in reversed(range(MAX_ROUNDS)):
        if best.report.chip_ready:
            break
        selected = _make_host_placement(best).select_nodes_to_offload(
            best.prepared.conf.max_parts, is_last_round=not remaining
        )
        if not selected:
            break
        host.update(selected)
        if not best.prepared.with_host_nodes(host).parts.ops:
            return start
        best = _replan_with_host_nodes(best, host, progress)
    return best


def _try_offloading_small_parts(best: Candidate, progress: Progress | None) -> Candidate:
    """Move small chip parts to the host, each only if that brings an output closer to float.

    Tries up to `_MAX_TRIES` parts with at most `_SMALL_PART_SHARE` of the MACs, smallest first, and
    never all parts. A move is kept if one output gains `_MIN_GAIN_DB` and none loses more than
    `_MAX_LOSS_DB`. Does nothing if the effort measures no alternatives, or without real calibration
    data.
    """
    prepared = best.prepared
    if not prepared.recipe.measures_alternatives or prepared.synthetic:
        return best
    chip_parts = best.report.program.chip
    max_macs = _SMALL_PART_SHARE * sum(part.macs for part in chip_parts)
    placement = _make_host_placement(best)
    by_macs = sorted(chip_parts, key=lambda part: part.macs)
    for part in by_macs[: min(_MAX_TRIES, len(chip_parts) - 1)]:
        if part.macs > max_macs:
            continue
        reason = f"{part.macs:,} MACs: measured to be better in float"
        part_nodes = dict.fromkeys(placement.float_nodes_of(part.members), reason)
        host = {**best.prepared.parts.floats, **part_nodes}
        offloaded = _replan_with_host_nodes(best, host, progress)
        levels = zip(output_sqnr_levels(best), output_sqnr_levels(offloaded), strict=True)
        gains = [new - old for old, new in levels]
        accepted = max(gains) >= _MIN_GAIN_DB and min(gains) >= -_MAX_LOSS_DB
        measured = {"highest_gain_db": max(gains), "lowest_gain_db": min(gains)}
        criterion = {"some_db": _MIN_GAIN_DB, "loss_db": _MAX_LOSS_DB}
        if log_verdict("small_parts", accepted, criterion=criterion, measured=measured):
            best = offloaded
    return best


def _make_host_placement(best: Candidate) -> HostPlacement:
    """Return the placement of the candidate's parts on chip and host."""
    report = best.report
    return HostPlacement(report.program, best.planned.partition, best.lowered, report.names)


def _replan_with_host_nodes(
    best: Candidate, host: Mapping[str, str], progress: Progress | None
) -> Candidate:
    """Plan, refine and measure the model again with the nodes `host` (and `skip`) in float.

    Parameters
    ----------
    host
        {node: reason}.
    """
    offloaded = best.prepared.with_host_nodes(host)
    planned = plan_model(offloaded, None, progress, best.planned.calibration)
    return build_candidate(planned, refine_weights(planned, progress=progress), progress)


def _try_returning_layers(best: Candidate, progress: Progress | None) -> Candidate:
    """Return the layers of an offloaded front or tail to the chip if no output loses much.

    Much is more than `_MAX_LOSS_DB`; the chip must also accept all parts then, else `best` is
    returned. A front or tail moves to the host as a whole, including its layers; the operators
    among them that no chip supports stay there.
    """
    prepared = best.prepared
    required = select_required_host_nodes(prepared)
    movable_layers = [
        str(node.name)
        for node in prepared.graph.graph
        if count_macs(node) and str(node.name) not in required
    ]
    returning = prepared.moved.keys() & movable_layers
    if not returning:
        return best
    host = {name: reason for name, reason in prepared.parts.floats.items() if name not in returning}
    replanned = _replan_with_host_nodes(best, host, progress)
    levels = zip(output_sqnr_levels(best), output_sqnr_levels(replanned), strict=True)
    highest_loss = max((old - new for old, new in levels), default=0.0)
    accepted = highest_loss <= _MAX_LOSS_DB and replanned.report.program.runs_correctly
    log_verdict(
        "layers_back",
        accepted,
        criterion={"loss_db": _MAX_LOSS_DB},
        measured={"highest_loss_db": highest_loss},
    )
    return replanned if accepted else best
