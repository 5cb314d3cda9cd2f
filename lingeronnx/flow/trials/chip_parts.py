"""Parts of a model that is not chip-ready.

What a part is refused for goes to the host, and so do parts too small.
`departures` says which layers these are. Parts of little work, such as a last layer behind a norm
of the host, leave where what is held back shows that outputs come nearer.
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

_MAX_LOSS_DB = 0.5  # dB: what an output may lose where a layer of the host goes back to the chip
_MAX_TRIES = 4  # parts of little work, each of which takes a plan of its own
_SMALL_PART_SHARE = 0.01  # of the chip's multiply-accumulates
_MIN_GAIN_DB = 0.5  # dB that an output gains where such a part goes to the host


def offload_rejected_layers(best: Candidate, progress: Progress | None = None) -> Candidate:
    """Return `best`, or the same with more in float, where that lets the chip run the rest in parts.

    Without `max_parts` no layer moves. What is chip-ready and what another tool has quantized stays
    as it is.
    """
    prepared = best.prepared
    if not prepared.allows_layer_offload or not prepared.parts.ops or best.result.report.chip_ready:
        return best
    return _try_offloading_small_parts(
        _offload_until_accepted(_try_returning_layers(best, progress), progress), progress
    )


def _offload_until_accepted(best: Candidate, progress: Progress | None) -> Candidate:
    """Return the model with what the chip's parts are refused for, or are not worth, on the host.

    Which layers these are hardly depends on weights: they are sought without effort, and then once
    with it.
    """
    draft = replace(best, prepared=best.prepared.without_effort)
    found = _run_offload_rounds(draft, progress)
    if found is draft:
        return best
    if best.prepared.conf.effort == found.prepared.conf.effort:
        return found
    return _run_offload_rounds(
        _replan_with_host_nodes(best, found.prepared.parts.floats, progress), progress
    )


def _run_offload_rounds(best: Candidate, progress: Progress | None) -> Candidate:
    """Return the model after rounds in which what stands against a part goes to the host.

    It is `best` where nothing does, or where nothing would be left for the chip: then what speaks
    against it is told.
    """
    start, host = best, dict(best.prepared.parts.floats)
    for left in reversed(range(MAX_ROUNDS)):
        if best.result.report.chip_ready:
            break
        more = _host_placement(best).select_nodes_to_offload(
            best.prepared.conf.max_parts, is_last_round=not left
        )
        if not more:
            break
        host.update(more)
        if not best.prepared.with_host_nodes(host).parts.ops:
            return start
        best = _replan_with_host_nodes(best, host, progress)
    return best


def _try_offloading_small_parts(best: Candidate, progress: Progress | None) -> Candidate:
    """Return `best`, or the same with parts of little work in float, each where that brings an output nearer."""
    prepared = best.prepared
    if prepared.conf.effort == "fast" or prepared.synthetic or not prepared.data.is_rereadable:
        return best
    program = best.result.report.program
    most = _SMALL_PART_SHARE * sum(part.macs for part in program.chip)
    departures = _host_placement(best)
    for part in sorted(program.chip, key=lambda part: part.macs)[
        : min(_MAX_TRIES, len(program.chip) - 1)
    ]:
        if part.macs <= most:
            why = f"{part.macs:,} of the multiply-accumulates, and measured, it is better in float"
            more = dict.fromkeys(departures.float_nodes_of(part.members), why)
            other = _replan_with_host_nodes(best, {**best.prepared.parts.floats, **more}, progress)
            gains = [
                after - before
                for before, after in zip(
                    output_sqnr_levels(best), output_sqnr_levels(other), strict=True
                )
            ]
            accepted = max(gains) >= _MIN_GAIN_DB and min(gains) >= -_MAX_LOSS_DB
            measured = {"highest_gain_db": max(gains), "lowest_gain_db": min(gains)}
            criterion = {"some_db": _MIN_GAIN_DB, "loss_db": _MAX_LOSS_DB}
            if log_verdict("small_parts", accepted, criterion=criterion, measured=measured):
                best = other
    return best


def _host_placement(best: Candidate) -> HostPlacement:
    report = best.result.report
    return HostPlacement(report.program, best.planned.partition, best.lowered, report.names)


def _replan_with_host_nodes(
    best: Candidate, host: Mapping[str, str], progress: Progress | None
) -> Candidate:
    """Return the model with `host` in float, {node: why}, and nothing else.

    Planned and compared anew.
    """
    offloaded = best.prepared.with_host_nodes(host)
    planned = plan_model(offloaded, None, progress, best.planned.calibration)
    return build_candidate(offloaded, planned, refine_weights(planned, progress=progress), progress)


def _try_returning_layers(best: Candidate, progress: Progress | None) -> Candidate:
    """Return `best`, or, if as good, the same with the layers among an end that the host computes on the chip.

    A front or tail went to the host as a whole: what no chip part could do was one with its layers.
    """
    prepared = best.prepared
    told = select_required_host_nodes(prepared)
    names = [
        str(node.name)
        for node in prepared.graph.graph
        if count_macs(node) and str(node.name) not in told
    ]
    layers = prepared.moved.keys() & names
    if not layers:
        return best
    floats = {name: why for name, why in prepared.parts.floats.items() if name not in layers}
    other = _replan_with_host_nodes(best, floats, progress)
    lost = [
        before - after
        for before, after in zip(output_sqnr_levels(best), output_sqnr_levels(other), strict=True)
    ]
    highest_loss = max(lost, default=0.0)
    accepted = highest_loss <= _MAX_LOSS_DB and other.result.report.program.runs_correctly
    log_verdict(
        "layers_back",
        accepted,
        criterion={"loss_db": _MAX_LOSS_DB},
        measured={"highest_loss_db": highest_loss},
    )
    return other if accepted else best
