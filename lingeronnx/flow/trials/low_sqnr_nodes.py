"""Nodes that lose most by themselves.

What each makes of exact inputs, in integers, and that without them is tried.
Errors add up along a deep network, and a few layers make most of them: a depthwise convolution
whose channels differ 100 times in size, a join of tensors of which one is quiet. They are found in
one run in which every node reads what the float model has there, rounded as it is held. On the host
they cost crossings, and layers at most a tenth of the work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from ...graph import ir
from ...ops.macs import count_macs
from ...run.data import Progress
from ...run.float_names import map_to_float_names
from ...run.memory import trim_memory
from ...run.metrics import Agreement
from ...run.runners import FloatRunner
from ...run.session import open_lowered_session
from ..partition import Partition
from ..planning.scale_sources import plan_model
from ..report.candidate import Candidate, build_candidate
from ..report.fidelity import measure_agreement
from .evidence import clamp_sqnr_db, output_sqnr_levels
from .verdict_log import log_verdict

__all__ = ["find_low_sqnr_nodes", "measure_node_sqnr", "select_low_sqnr_nodes_to_offload"]

_SQNR_THRESHOLDS_DB = (
    15.0,
    20.0,
    30.0,
    math.inf,
)  # dB that a node gives by itself; what gives less is tried on the host
_LOW_SQNR_DB = 15.0  # dB: all that is no layer is tried where an output is still farther off
_LAYER_SQNR_DB = 30.0  # dB: a layer that gives more stays, whatever is tried of what is no layer
_NOISE_FLOOR_DB = 0.0  # dB: an output that is no nearer has nothing to lose
_MAX_OFFLOADED_MAC_SHARE = 0.1  # of the multiply-accumulates, which may be in float in all
_GAIN, _LOSS = 0.5, 0.5  # dB that some output gains at least, and others lose at most
_MAX_BATCHES = 8  # of calibration data, each as many samples as outputs are compared on at a time


def select_low_sqnr_nodes_to_offload(
    best: Candidate, progress: Progress | None = None
) -> dict[str, str]:
    """Return {node: why} of what is better in float, beside what is, by trials without effort.

    Nothing where none is.
    Which nodes lose most hardly depends on how their weights are rounded.
    """
    prepared = best.prepared.without_effort

    def evaluate_offload(host: Mapping[str, str]) -> Candidate:
        offloaded = prepared.with_host_nodes({**prepared.parts.floats, **host})
        planned = plan_model(offloaded, None, progress, best.planned.calibration)
        return build_candidate(offloaded, planned, planned.graph, progress, locate_break=False)

    now, found = evaluate_offload({}), dict[str, str]()
    own = measure_node_sqnr(now)
    for least in _SQNR_THRESHOLDS_DB:
        if least == math.inf and (
            min(output_sqnr_levels(now)) >= _LOW_SQNR_DB or prepared.conf.cells == "chip"
        ):
            break
        more = find_low_sqnr_nodes(prepared.parts, own, least)
        if not more.keys() - found.keys():
            continue
        other = evaluate_offload(more)
        gains = [
            after - before
            for before, after in zip(_floored_levels(now), _floored_levels(other), strict=True)
        ]
        accepted = max(gains) >= _GAIN and min(gains) >= -_LOSS
        measured = {"highest_gain_db": max(gains), "lowest_gain_db": min(gains)}
        criterion = {"some_db": _GAIN, "loss_db": _LOSS, "node_level_db": least}
        if log_verdict("weak_nodes", accepted, criterion=criterion, measured=measured):
            now, found = other, more
    return found


def _floored_levels(result: Candidate) -> list[float]:
    """Return the levels, dB; below `_NOISE_FLOOR_DB` chance alone tells them apart."""
    return [max(one, _NOISE_FLOOR_DB) for one in output_sqnr_levels(result)]


def find_low_sqnr_nodes(parts: Partition, own: Mapping[str, float], least: float) -> dict[str, str]:
    """Return {node: why} of the integer nodes whose own level is below `least` dB, and of moves that they read.

    own : {tensor: dB}. Of layers those with the lowest levels, as long as nine tenths of the work
    stay in integers. A `least` without an end is all that is no layer; what only multiplies each
    number by another is none.
    """
    lowest = {
        str(node.name): min(own.get(str(v.name), math.inf) for v in node.outputs)
        for node, _ in parts.integer_nodes
    }
    work = {str(node.name): count_macs(node) for node in parts.graph.graph}
    layers = {
        str(node.name)
        for node in parts.graph.graph
        if count_macs(node) > _count_written_elements(node)
    }
    left = _MAX_OFFLOADED_MAC_SHARE * sum(work.values()) - sum(
        work[name] for name in parts.floats if name in work
    )
    found: dict[str, str] = {}
    for name in sorted(lowest, key=lambda name: lowest[name]):
        if lowest[name] < (min(least, _LAYER_SQNR_DB) if name in layers else least) and work[
            name
        ] <= max(left, 0.0):
            left -= work[name]
            left_over = "little" if lowest[name] == math.inf else f"{lowest[name]:.0f} dB"
            found[name] = (
                f"8 bits leave {left_over} of what it computes: measured, it is better in float"
            )
    for node, op in reversed(parts.integer_nodes):
        readers = [str(use.node.name) for value in node.outputs for use in value.uses()]
        if op.is_data_movement and any(reader in found for reader in readers):
            found.setdefault(
                str(node.name), "it only moves what the host reads, for which 8 bits are too few"
            )
    return found


def _count_written_elements(node: ir.Node) -> int:
    """Return how many numbers of one sample `node` writes.

    A layer sums products, more than one for each of them.
    """
    return sum(
        math.prod(int(size or 1) for size in (ir.get_shape(value) or ())[1:])
        for value in node.outputs
    )


def measure_node_sqnr(best: Candidate) -> dict[str, float]:
    """Return {tensor of the float graph.

    DB that its node's integers give from exact inputs, rounded as held}.
    """
    lowered, exact, data = best.lowered.graph, best.float_graph, best.prepared.data
    session = open_lowered_session(lowered, best.planned.target)
    floats, takes = map_to_float_names(lowered), {spec.name for spec in session.inputs}
    known = {str(v.name) for v in ir.iter_values(exact)}
    found: dict[str, Agreement] = {}
    runner: FloatRunner | None = None
    samples = data.first(_MAX_BATCHES * best.prepared.comparison_batch_size)
    for feed in itertools.islice(
        data.split_feeds(samples, best.prepared.comparison_batch_size), _MAX_BATCHES
    ):
        given = {name: array for name, array in feed.items() if name in takes}
        held = {
            name: (floats.get(name, name), array.shape, q)
            for name, array, q in session.tensors(given)
            if floats.get(name, name) in known and (q is not None or array.dtype.kind == "f")
        }
        runner = runner or FloatRunner(exact, {user for user, _, _ in held.values()})
        want = {name: array for name, array, _ in runner.run(feed)}
        same = {
            name: (user, q) for name, (user, shape, q) in held.items() if want[user].shape == shape
        }
        force = {
            name: want[user] if q is None else q.integers(want[user])
            for name, (user, q) in same.items()
        }
        for name, array, q in session.tensors(given, None, force):
            if q is not None and name in same:
                user = same[name][0]
                found.setdefault(user, Agreement()).merge(
                    measure_agreement(want[user], array, q).sums
                )
        trim_memory()
    return {name: clamp_sqnr_db(agreed.sqnr) for name, agreed in found.items()}
