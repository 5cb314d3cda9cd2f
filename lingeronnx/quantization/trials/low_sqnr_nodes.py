"""Find the nodes that lose the most SQNR by themselves, and try them on the host.

Errors add up along a deep network, and few nodes cause most of them: a depthwise convolution whose
channels differ in magnitude by a factor of 100, a Concat of tensors one of which is quiet. They are
found in one run in which every node gets the float model's inputs, quantized with the scales of the
plan. Each node on the host costs transfers; layers among them may take a tenth of the work at most.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from ...ir import ir
from ...ir.plan import Affine
from ...operators.macs import count_macs
from ...runtime.memory import trim_memory
from ...runtime.metrics import Agreement
from ...runtime.provenance import map_to_float_names
from ...runtime.runners import FloatRunner
from ...runtime.session import LoweredSession, Session
from ..partition import Partition
from ..report.candidate import Candidate, build_candidate
from ..report.fidelity import measure_agreement
from ..run_log import RunLog
from ..steps.scale_sources import plan_model
from .evidence import Gain, clamp_sqnr_db, compare_outputs, output_sqnr_levels
from .trial import Criterion, Proposal, Proposals, run_trial

__all__ = ["find_low_sqnr_nodes", "measure_node_sqnr", "select_low_sqnr_nodes_to_offload"]

# Nodes with a lower SQNR are tried on the host, one threshold after the other.
_SQNR_THRESHOLDS_DB = (15.0, 20.0, 30.0, math.inf)
_LOW_SQNR_DB = 15.0  # the infinite threshold is tried only if an output is below that
_LAYER_SQNR_DB = 30.0  # layers above that always stay on the chip
_NOISE_FLOOR_DB = 0.0  # an output below that has nothing to lose
_MAX_OFFLOADED_MAC_SHARE = 0.1  # maximum fraction of all MACs in float
_MAX_BATCHES = 8  # calibration batches that are measured


def select_low_sqnr_nodes_to_offload(best: Candidate, log: RunLog) -> dict[str, str]:
    """Select the nodes of low SQNR that are better on the host, by the trial `weak_nodes`.

    The trial runs on drafts without refinement: which nodes lose the most hardly depends on how
    their weights are rounded.

    Returns
    -------
    dict
        {node: reason} in addition to the nodes in float; empty if nothing is better.
    """
    start = _build_offload(best, {}, log)
    return dict(run_trial(LowSqnrNodes(best), start, log).nodes)


class _Offload(NamedTuple):
    """A draft with `nodes` ({node: reason}) on the host in addition to those in float."""

    nodes: Mapping[str, str]
    candidate: Candidate


def _build_offload(best: Candidate, nodes: Mapping[str, str], log: RunLog) -> _Offload:
    """Plan a draft of the model with further nodes on the host, and measure it unrefined."""
    draft = best.prepared.draft
    offloaded = draft.with_host_nodes({**draft.parts.floats, **nodes})
    planned = plan_model(offloaded, None, log.progress, best.planned.calibration)
    return _Offload(nodes, build_candidate(planned, planned.graph, log.progress))


class LowSqnrNodes:
    """Trial: the nodes with an SQNR below a threshold on the host; several thresholds in order."""

    name = "weak_nodes"
    criterion = Criterion(some_db=0.5, loss_db=0.5)
    requirements = ()

    def __init__(self, best: Candidate) -> None:
        """Try the nodes of `best` in float; drafts reuse its calibration."""
        self._best = best

    def propose(self, best: _Offload, log: RunLog) -> Proposals[_Offload]:
        """Propose the nodes below each of `_SQNR_THRESHOLDS_DB` in place of those before."""
        tensor_sqnr_db = measure_node_sqnr(best.candidate)
        prepared = self._best.prepared
        for threshold_db in _SQNR_THRESHOLDS_DB:
            if threshold_db == math.inf:
                has_low_output = min(output_sqnr_levels(best.candidate)) < _LOW_SQNR_DB
                if not has_low_output or prepared.conf.cells == "chip":
                    break
            nodes = find_low_sqnr_nodes(prepared.parts, tensor_sqnr_db, threshold_db)
            if not nodes.keys() - best.nodes.keys():
                continue
            verdict = yield Proposal(
                build=partial(_build_offload, self._best, nodes, log),
                compare=_compare_offloads,
                criterion=self.criterion,
                label=f"below {threshold_db:g} dB",
            )
            best = verdict.best
        return None


def _compare_offloads(old: _Offload, new: _Offload) -> Gain:
    """Compare the outputs of two drafts; an SQNR below `_NOISE_FLOOR_DB` counts as that."""
    return compare_outputs(old.candidate, new.candidate, min_level_db=_NOISE_FLOOR_DB)


def find_low_sqnr_nodes(
    parts: Partition, tensor_sqnr_db: Mapping[str, float], threshold_db: float
) -> dict[str, str]:
    """Find integer nodes with an SQNR below a threshold, and nodes that only move data for them.

    Parameters
    ----------
    parts
        Partition of the float graph.
    tensor_sqnr_db
        SQNR of each node's outputs for exact inputs, by tensor; a missing one counts as infinite.
    threshold_db
        Nodes below this are selected. Layers are selected by ascending SQNR up to `_LAYER_SQNR_DB`,
        as long as at most `_MAX_OFFLOADED_MAC_SHARE` of the MACs are in float. An infinite
        threshold selects everything with a known SQNR that is not a layer; an elementwise product
        is not a layer.

    Returns
    -------
    dict
        {node: reason}.
    """
    node_sqnr_db = _worst_output_sqnr(parts, tensor_sqnr_db)
    nodes = list(parts.graph.graph)
    macs = {str(node.name): count_macs(node) for node in nodes}
    layers = {str(node.name) for node in nodes if _is_layer(node)}
    float_macs = sum(macs[name] for name in parts.floats if name in macs)
    free_macs = _MAX_OFFLOADED_MAC_SHARE * sum(macs.values()) - float_macs
    selected: dict[str, str] = {}
    for name in sorted(node_sqnr_db, key=lambda name: node_sqnr_db[name]):
        limit_db = min(threshold_db, _LAYER_SQNR_DB) if name in layers else threshold_db
        if node_sqnr_db[name] >= limit_db or macs[name] > max(free_macs, 0.0):
            continue
        free_macs -= macs[name]
        selected[name] = (
            f"its 8-bit SQNR is {node_sqnr_db[name]:.0f} dB: measured to be better in float"
        )
    _add_data_movements(selected, parts)
    return selected


def _worst_output_sqnr(parts: Partition, tensor_sqnr_db: Mapping[str, float]) -> dict[str, float]:
    """Return the lowest SQNR of the outputs of each integer node; infinite if unknown."""
    levels = {}
    for node, _ in parts.integer_nodes:
        levels[str(node.name)] = min(
            tensor_sqnr_db.get(str(value.name), math.inf) for value in node.outputs
        )
    return levels


def _is_layer(node: ir.Node) -> bool:
    """Whether `node` has more MACs than output elements: it sums several products per element."""
    return count_macs(node) > _count_written_elements(node)


def _add_data_movements(selected: dict[str, str], parts: Partition) -> None:
    """Add nodes that only move data for a node of `selected`, {node: reason}, in place.

    They feed it directly, or through other such nodes; by `is_data_movement` of the lowering rule.
    """
    for node, op in reversed(parts.integer_nodes):
        consumers = {str(use.node.name) for value in node.outputs for use in value.uses()}
        if op.is_data_movement and not consumers.isdisjoint(selected):
            reason = "it only moves data for a node that needs more than 8 bits"
            selected.setdefault(str(node.name), reason)


def _count_written_elements(node: ir.Node) -> int:
    """Return the number of output elements of a node for one sample.

    A layer has more MACs than this: it sums several products per element.
    """
    count = 0
    for value in node.outputs:
        shape = ir.get_shape(value) or ()
        count += math.prod(int(dim or 1) for dim in shape[1:])
    return count


def measure_node_sqnr(candidate: Candidate) -> dict[str, float]:
    """Measure the SQNR of each integer node for exact inputs, quantized with the plan's scales.

    Returns
    -------
    dict
        SQNR in dB, clamped, by tensor of the float graph; tensors that are not quantized or have
        another shape are left out. Measured on the first calibration samples.
    """
    lowered, float_graph = candidate.lowered.graph, candidate.float_graph
    prepared = candidate.prepared
    session = LoweredSession(lowered, candidate.planned.prepared.target)
    input_names = {spec.name for spec in session.inputs}
    float_names = map_to_float_names(lowered)
    known = {str(value.name) for value in ir.iter_values(float_graph)}
    agreements: dict[str, Agreement] = {}
    runner: FloatRunner | None = None
    batch_size = prepared.comparison_batch_size
    samples = prepared.data.first(_MAX_BATCHES * batch_size)
    batches = prepared.data.split_feeds(samples, batch_size)
    for batch in itertools.islice(batches, _MAX_BATCHES):
        feeds = {name: array for name, array in batch.items() if name in input_names}
        stored = _list_comparable_tensors(session, feeds, float_names, known)
        if runner is None:
            runner = FloatRunner(float_graph, {tensor.float_name for tensor in stored})
        exact = {name: array for name, array, _ in runner.run(batch)}
        stored = [tensor for tensor in stored if exact[tensor.float_name].shape == tensor.shape]
        forced = {tensor.name: tensor.quantize(exact[tensor.float_name]) for tensor in stored}
        float_name_of = {tensor.name: tensor.float_name for tensor in stored}
        for name, array, qparams in session.tensors(feeds, None, forced):
            if qparams is not None and name in float_name_of:
                float_name = float_name_of[name]
                agreement = measure_agreement(exact[float_name], array, qparams)
                agreements.setdefault(float_name, Agreement()).merge(agreement.sums)
        trim_memory()
    return {name: clamp_sqnr_db(agreement.sqnr) for name, agreement in agreements.items()}


class _StoredTensor(NamedTuple):
    """A tensor of the integer graph that has a counterpart in the float graph."""

    name: str
    float_name: str
    shape: tuple[int, ...]
    qparams: Affine | None

    def quantize(self, array: np.ndarray) -> np.ndarray:
        """Convert float values to the stored form of this tensor."""
        return array if self.qparams is None else self.qparams.integers(array)


def _list_comparable_tensors(
    session: Session,
    feeds: Mapping[str, np.ndarray],
    float_names: Mapping[str, str],
    known: Collection[str],
) -> list[_StoredTensor]:
    """Run `feeds` and list the quantized or float tensors whose float name is in `known`.

    `float_names` maps names of the integer graph to those of the float graph, where they differ.
    """
    tensors = []
    for name, array, qparams in session.tensors(feeds):
        float_name = float_names.get(name, name)
        if float_name in known and (qparams is not None or array.dtype.kind == "f"):
            tensors.append(_StoredTensor(name, float_name, array.shape, qparams))
    return tensors
