"""Move layers to the host so that the chip can run the rest of a model that is not chip-ready.

`host_placement` selects the layers: those that a chip part is rejected for, and parts that are too
small to be worth the transfer. Parts with little work, such as a last layer after a normalization
on the host, are also moved if the outputs measurably come closer to the float model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ...operators.macs import count_macs
from ..report.candidate import Candidate, build_refined_candidate
from ..run_log import RunLog
from ..steps.scale_sources import plan_model
from .evidence import compare_outputs
from .host_offload import select_required_host_nodes
from .host_placement import MAX_ROUNDS, HostPlacement
from .requirements import TrialRequirement
from .trial import Criterion, Proposal, Proposals, run_trial

__all__ = ["offload_rejected_layers"]

_MAX_TRIES = 4  # small parts that are tried; each takes a plan of its own
_SMALL_PART_SHARE = 0.01  # a part is small up to this fraction of the chip's MACs


def offload_rejected_layers(best: Candidate, log: RunLog) -> Candidate:
    """Move more nodes to the host if that lets the chip run the rest in parts.

    Layers must be allowed to move (`allows_layer_offload`). Returns `best` unchanged if it is
    chip-ready, or if its scales are given by a plan.
    """
    if best.planned.basis.policy is None or not best.prepared.parts.ops:
        return best
    if best.report.chip_ready:
        return best
    candidate = run_trial(ReturningLayers(), best, log)
    candidate = _offload_until_accepted(candidate, log)
    return run_trial(SmallParts(), candidate, log)


def _offload_until_accepted(best: Candidate, log: RunLog) -> Candidate:
    """Move layers that chip parts are rejected for, and unprofitable parts, to the host.

    The selection hardly depends on the weights, so it runs as a draft first, and then once more
    from its result with the recipe of the effort. Returns `best` if nothing moves.
    """
    draft_prepared = best.prepared.draft
    if best.prepared.recipe == draft_prepared.recipe:
        return _run_offload_rounds(best, log)
    draft = replace(best, planned=replace(best.planned, prepared=draft_prepared))
    offloaded = _run_offload_rounds(draft, log)
    if offloaded is draft:
        return best
    replanned = _replan_with_host_nodes(best, offloaded.prepared.parts.floats, log)
    return _run_offload_rounds(replanned, log)


def _run_offload_rounds(best: Candidate, log: RunLog) -> Candidate:
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
        best = _replan_with_host_nodes(best, host, log)
    return best


class SmallParts:
    """Trial: chip parts with little work on the host, each if that brings an output closer.

    Tries up to `_MAX_TRIES` parts with at most `_SMALL_PART_SHARE` of the MACs, smallest first, and
    never all parts.
    """

    name = "small_parts"
    criterion = Criterion(some_db=0.5, loss_db=0.5)
    requirements = (
        TrialRequirement[Candidate](
            "real samples, and an effort that measures alternatives",
            lambda best: best.prepared.recipe.measures_alternatives and not best.prepared.synthetic,
        ),
    )

    def propose(self, best: Candidate, log: RunLog) -> Proposals[Candidate]:
        """Propose to move each small part, in addition to those that were accepted."""
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
            verdict = yield Proposal(
                build=partial(_replan_with_host_nodes, best, host, log),
                compare=compare_outputs,
                criterion=self.criterion,
            )
            best = verdict.best
        return best


class ReturningLayers:
    """Trial: the layers of an offloaded front or tail back on the chip, if no output loses much.

    A front or tail moves to the host as a whole, including its layers; the operators among them
    that no chip supports stay there. The chip must accept all parts then.
    """

    name = "layers_back"
    criterion = Criterion(loss_db=0.5)
    requirements = (
        TrialRequirement[Candidate](
            "offloaded layers that the chip supports",
            lambda best: bool(_find_returning_layers(best)),
        ),
    )

    def propose(self, best: Candidate, log: RunLog) -> Proposals[Candidate]:
        """Propose to return all these layers at once."""
        returning = _find_returning_layers(best)
        floats = best.prepared.parts.floats
        host = {name: reason for name, reason in floats.items() if name not in returning}
        yield Proposal(
            build=partial(_replan_with_host_nodes, best, host, log),
            compare=compare_outputs,
            criterion=self.criterion,
            condition=lambda candidate, _: candidate.report.program.runs_correctly,
        )
        return None


def _find_returning_layers(best: Candidate) -> set[str]:
    """Return the names of the offloaded layers that the chip supports."""
    prepared = best.prepared
    required = select_required_host_nodes(prepared)
    movable_layers = {
        str(node.name)
        for node in prepared.graph.graph
        if count_macs(node) and str(node.name) not in required
    }
    return prepared.moved.keys() & movable_layers


def _make_host_placement(best: Candidate) -> HostPlacement:
    """Return the placement of the candidate's parts on chip and host."""
    report = best.report
    return HostPlacement(report.program, best.planned.partition, best.lowered, report.names)


def _replan_with_host_nodes(best: Candidate, host: Mapping[str, str], log: RunLog) -> Candidate:
    """Plan, refine and measure the model again with the nodes `host` (and `skip`) in float.

    Parameters
    ----------
    host
        {node: reason}.
    """
    offloaded = best.prepared.with_host_nodes(host)
    planned = plan_model(offloaded, None, log.progress, best.planned.calibration)
    planned = planned.with_lasting_notes_of(best.planned)
    return build_refined_candidate(planned, log.progress)
