"""Try the front, the tail and the recurrent cells of a model on the host instead of the chip.

Eight bits are few for a power spectrum, for a logarithm, or for the coordinates of boxes. Such
nodes before the first layers of a graph, or after its last ones, are candidates: the model is
quantized with and without them on the host, and the evidence decides. The same holds for the cells
of states that are fed back (`prepare.recurrent_states`) and for their gates. A model that is such a
front end alone keeps its transform, in 16 bits if the target has them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple

from ...ir import float_ops, ir
from ...operators.macs import count_macs
from ..legalize.chip_constants import LOWER_BOUND_KEY
from ..prepare.preparation import PreparedModel
from ..prepare.recurrent_states import find_cell_updates, find_gates, find_unrolled_steps
from ..report.candidate import Candidate, build_refined_candidate
from ..run_log import RunLog
from ..steps.scale_sources import plan_model
from .evidence import (
    Gain,
    clamp_sqnr_db,
    compare_outputs,
    keeps_chip,
    output_sqnr_levels,
)
from .low_sqnr_nodes import select_low_sqnr_nodes_to_offload
from .requirements import TrialRequirement
from .trial import Criterion, Proposal, Proposals

__all__ = [
    "HostOffload",
    "find_offload_candidates",
    "find_power_tail",
    "make_criterion",
    "place_required_host_nodes",
    "select_required_host_nodes",
]

_FRONT_OPS = ("Div", "Log", "Pow", "Reciprocal", "Sqrt")
_TAIL_OPS = ("Exp", "NonMaxSuppression", "Pow", "Sqrt", "TopK")
_NONLINEAR_OPS = float_ops.ACTIVATION_OPS | {"Softmax"}
_MAX_FRONT_LAYERS = 1  # layers upstream of a front operator: a transform written as a convolution
_MIN_GAIN_DB, _MAX_LOSS_DB = 3.0, 0.5  # minimum gain of some output, maximum loss of the others
_MIN_CELL_GAIN_DB = 0.5  # the same gain for cells, which cost the host next to nothing
_MIN_GATE_GAIN_DB = 0.3  # for gates, if an output is below _MIN_SQNR_DB
_MIN_WEAK_NODE_GAIN_DB = 0.5  # for nodes of low SQNR, if an output is below _MIN_SQNR_DB
_MIN_SQNR_DB = 30.0  # more candidates are tried if an output or a part of it is below that
_UNUSABLE_SQNR_DB = 10.0  # an output below that is useless
_SPECTRUM_BITS = 16  # of a transform whose power spectrum is an output of the model
_MAX_PART_SQNR_DB = 60.0  # the SQNR of a part above that counts as this

_NOT_TRIED_NOTE = (
    "host offload of the graph's ends was not evaluated: effort is {}; pass --effort normal"
)


class _Alternative(NamedTuple):
    """Nodes to try on the host.

    Attributes
    ----------
    nodes
        {node: reason}.
    min_gain_db
        Smallest gain of some output that they need.
    bits
        Width of the activations of the other nodes; None for that of the settings.
    """

    nodes: dict[str, str]
    min_gain_db: float
    bits: int | None = None


class HostOffload:
    """Trial: the front, tail or cells of a model on the host instead of the chip.

    Candidates are tried one after the other, each in place of the previous one unless that was
    better. A loss, or more than one chip part, is accepted if it rescues an unusable output.
    """

    name = "ends"
    requirements = (
        TrialRequirement[Candidate](
            "real samples, and scales that are neither imported nor given by a plan",
            lambda best: (
                best.planned.basis.policy is not None
                and best.prepared.read is None
                and not best.prepared.synthetic
            ),
        ),
        TrialRequirement[Candidate](
            "an effort that measures alternatives",
            lambda best: best.prepared.recipe.measures_alternatives,
            lambda best: _note_untried_offload(best),
        ),
    )

    def propose(self, best: Candidate, log: RunLog) -> Proposals[Candidate]:
        """Propose each set of nodes, in addition to those that must be on the host."""
        prepared = best.prepared
        in_parts = _runs_in_parts(prepared)
        alternatives = _list_alternatives(best, in_parts)
        required = select_required_host_nodes(prepared)
        if in_parts and min(output_sqnr_levels(best)) < _MIN_SQNR_DB:
            # before the others: the loss of these nodes hides the others' gains
            low_sqnr_nodes = select_low_sqnr_nodes_to_offload(best, log)
            alternatives.insert(0, _Alternative(low_sqnr_nodes, _MIN_WEAK_NODE_GAIN_DB))
        for alternative in alternatives:
            if not alternative.nodes.keys() - required.keys() - prepared.parts.floats.keys():
                continue
            host = {**required, **alternative.nodes}
            verdict = yield Proposal(
                build=partial(_build_offloaded, best, prepared, host, log, alternative.bits),
                compare=_compare_offloads,
                criterion=make_criterion(alternative.min_gain_db),
                condition=partial(_may_replace, best),
                describe=partial(_describe, best, alternative.bits),
            )
            best = verdict.best
            if verdict.accepted:
                required = host
        return None


def _note_untried_offload(best: Candidate) -> Candidate:
    """Return `best` with a note that an offload was not tried, if there is one."""
    if not _list_alternatives(best, _runs_in_parts(best.prepared)):
        return best
    return best.with_notes([_NOT_TRIED_NOTE.format(best.prepared.recipe.effort)])


def make_criterion(min_gain_db: float) -> Criterion:
    """Return the criterion that some output gains `min_gain_db` and no other loses much.

    A loss is accepted if it rescues an output with an SQNR below `_UNUSABLE_SQNR_DB`.
    """
    return Criterion(
        some_db=min_gain_db,
        loss_db=_MAX_LOSS_DB,
        rescue_below_db=_UNUSABLE_SQNR_DB,
        rescue_db=_MIN_GAIN_DB,
    )


def _compare_offloads(old: Candidate, new: Candidate) -> Gain:
    """Compare the outputs of two candidates; parts of outputs count up to `_MAX_PART_SQNR_DB`."""
    return compare_outputs(old, new, max_part_db=_MAX_PART_SQNR_DB)


def _may_replace(old: Candidate, new: Candidate, gain: Gain) -> bool:
    """Whether `new` keeps the single chip part of `old`, or rescues an output that is useless."""
    return keeps_chip(old, new) or make_criterion(_MIN_GAIN_DB).is_rescue(gain)


def _describe(old: Candidate, bits: int | None, new: Candidate, gain: Gain) -> Candidate:
    """Return `new`, with notes on several chip parts instead of one, and on its width `bits`."""
    notes = []
    new_worst_db = gain.old_worst_db + gain.worst_output_db
    if not keeps_chip(old, new):
        notes.append(
            "the nodes that are measured to be better in float split the chip's work into several "
            f"parts: the worst output has {gain.old_worst_db:.1f} dB in a single part, "
            f"{new_worst_db:.1f} dB with the host {new.fidelity.measured_on}; --cells chip keeps a "
            "single part"
        )
    if bits is not None:
        notes.append(
            f"layers in front of a power spectrum have {bits} bits, what follows it is in float: "
            f"the worst output has {new_worst_db:.1f} dB instead of {gain.old_worst_db:.1f} dB "
            f"{new.fidelity.measured_on}"
        )
    return new.with_notes(notes, notes) if notes else new


def _list_alternatives(best: Candidate, in_parts: bool) -> list[_Alternative]:
    """List the offloads to try, in order.

    These are the fronts and tails of `find_offload_candidates`, fewer with recurrent states unless
    the model runs in parts (`in_parts`, see `_runs_in_parts`), then the cell updates if the setting
    `cells` is "auto". If an output is poor, `_cheap_host_nodes` come first if `in_parts`, and the
    gates last unless `cells` is "chip". What follows a power spectrum comes last, with 16 bits for
    the transform in front of it if the target has them. Those that are in float anyway are left
    out.
    """
    prepared, conf = best.prepared, best.prepared.conf
    has_poor_output = min(output_sqnr_levels(best)) < _MIN_SQNR_DB
    graph, target = prepared.graph, prepared.target
    if conf.state and not in_parts:  # with recurrent states, their cells are tried instead
        candidates = find_offload_candidates(graph, False, False)
    else:
        has_poor_part = any(clamp_sqnr_db(part.sqnr) < _MIN_SQNR_DB for part in best.fidelity.parts)
        candidates = find_offload_candidates(graph, has_poor_output, has_poor_part)
    offloads = [_Alternative(candidate, _MIN_GAIN_DB) for candidate in candidates]
    if in_parts and has_poor_output:
        offloads.insert(0, _Alternative(_cheap_host_nodes(prepared), _MIN_CELL_GAIN_DB))
    if conf.state and conf.cells == "auto":
        cells = find_cell_updates(graph, conf.state, target)
        offloads.append(_Alternative(cells, _MIN_CELL_GAIN_DB))
    if conf.state and conf.cells != "chip" and has_poor_output:
        for masks in (False, True):
            gates = find_gates(graph, conf.state, target, masks)
            offloads.append(_Alternative(gates, _MIN_GATE_GAIN_DB))
    if has_poor_output:
        bits = _SPECTRUM_BITS if _SPECTRUM_BITS in target.bits else None
        offloads.append(_Alternative(find_power_tail(graph), _MIN_GAIN_DB, bits))
    host_by_default = prepared.parts.floats.keys()
    return [offload for offload in offloads if offload.nodes.keys() - host_by_default]


def _build_offloaded(
    best: Candidate,
    prepared: PreparedModel,
    host: dict[str, str],
    log: RunLog,
    bits: int | None = None,
) -> Candidate:
    """Plan, refine and measure `prepared` with the nodes `host` in float as well.

    `best` provides calibration and refined layers; `bits` is the width of activations and weights,
    None for that of the settings. Raises ConstraintError if the model cannot be planned, such as
    for a scale that the chip lacks with `require_chip`.
    """
    if bits is not None:
        prepared = prepared.with_settings({"bits": bits})
    # Float nodes stay in float: a node downstream of an offloaded end may look like work for the
    # chip again.
    offloaded = prepared.with_host_nodes({**prepared.parts.floats, **host})
    planned = plan_model(offloaded, None, log.progress, best.planned.calibration)
    planned = planned.with_lasting_notes_of(best.planned)
    previous = (best.planned, best.float_graph)
    return build_refined_candidate(planned, log.progress, previous=previous)


def select_required_host_nodes(prepared: PreparedModel) -> dict[str, str]:
    """Return {node: reason} of nodes that run on the host without any measurement.

    With the setting `cells` "host" these are the cell updates, and with states the steps of
    unrolled recurrent layers; with "auto" the steps of few products if the model runs in several
    parts anyway; else none. All trials keep them on the host.
    """
    conf, graph = prepared.conf, prepared.graph
    if conf.cells == "host":
        steps = find_unrolled_steps(graph, True) if conf.state else {}
        return {**steps, **find_cell_updates(graph, conf.state, prepared.target)}
    if conf.cells == "auto" and _runs_in_parts(prepared):
        return find_unrolled_steps(graph)
    return {}


def _runs_in_parts(prepared: PreparedModel) -> bool:
    """Whether float operators split the chip's work into parts, and layers may be offloaded.

    Then offloading a little more costs no additional part. False if offloading all candidate ends
    and the cells would leave a single part.
    """
    if not prepared.allows_layer_offload or not prepared.parts.has_inner_floats:
        return False
    graph = prepared.graph
    candidates = find_offload_candidates(graph, True, True)
    candidates.append(find_cell_updates(graph, prepared.conf.state, prepared.target))
    host = dict(prepared.parts.floats)
    for candidate in candidates:
        host.update(candidate)
    return prepared.with_host_nodes(host).parts.has_inner_floats


def _cheap_host_nodes(prepared: PreparedModel) -> dict[str, str]:
    """Return {node: reason} of all nodes that no layer depends on.

    With the setting `cells` "auto" the cell updates of recurrent states are added.
    """
    conf = prepared.conf
    reason = "no layer depends on it: measured to be better in float"
    tail = dict.fromkeys(_find_tail(prepared.graph, True), reason)
    if conf.cells != "auto":
        return tail
    return {**tail, **find_cell_updates(prepared.graph, conf.state, prepared.target)}


def place_required_host_nodes(prepared: PreparedModel) -> PreparedModel:
    """Return `prepared` with the nodes of `select_required_host_nodes` in float."""
    required = select_required_host_nodes(prepared)
    return prepared.with_host_nodes(required) if required else prepared


def find_offload_candidates(
    model: ir.Model, has_poor_output: bool = False, has_poor_part: bool = False
) -> list[dict[str, str]]:
    """Find fronts and tails that may be better in float.

    Parameters
    ----------
    model
        Normalized float model.
    has_poor_output
        Whether the SQNR of an output is so low that more fronts are worth trying.
    has_poor_part
        Whether that is so for a tensor that an output concatenates; then any tail is worth trying.

    Returns
    -------
    list of dict
        {node: reason why it stays in float} for each candidate, fronts first; empty without any.
    """
    front_reason = "front of the model, up to a spectrum: measured to be better in float"
    tail_reason = "decodes the outputs of the last layers: measured to be better in float"
    op_types = {node.op_type for node in model.graph}
    for function in model.functions.values():
        op_types.update(node.op_type for node in function)
    candidates = []
    if not op_types.isdisjoint(_FRONT_OPS):
        for front in _find_front_candidates(model, has_poor_output):
            candidates.append(dict.fromkeys(front, front_reason))
    if has_poor_part or not op_types.isdisjoint((*_TAIL_OPS, "Softmax")):
        tail = _find_tail(model, has_poor_part)
        if tail:
            candidates.append(dict.fromkeys(tail, tail_reason))
    return candidates


def _make_op_types_lookup(model: ir.Model) -> Callable[[ir.Node], set[str]]:
    """Return a function that returns the operator types of a node.

    For a Curve, a composed activation function, these are the operators of its body, else its own
    type.
    """
    body_op_types = {}
    for function_id, function in model.functions.items():
        body_op_types[function_id[:2]] = {node.op_type for node in function}

    def get_op_types(node: ir.Node) -> set[str]:
        """Return the operators of the body for a Curve function, else the node's own operator."""
        if ir.base_op_type(node) == "Curve" and node.domain == ir.FUNCTION_DOMAIN:
            return body_op_types.get((node.domain, node.op_type), set())
        return {node.op_type}

    return get_op_types


# ---- fronts --------------------------------------------------------------------------------------


def _find_front_candidates(model: ir.Model, has_poor_output: bool) -> list[list[str]]:
    """Return the fronts to try, as names of nodes in graph order.

    The default front ends with the last node of `_FRONT_OPS` that has at most one layer upstream.
    A front with several layers, such as the two halves of a Fourier transform and a mel filter,
    must contain a power or a logarithm of linear layers only; it extends to the first layer of the
    network. That one is tried first if it contains more layers.
    """
    get_op_types = _make_op_types_lookup(model)
    nodes = list(model.graph)
    default_front = _nodes_up_to_front_ops(nodes, get_op_types)
    spectrum = default_front | _nodes_up_to_spectrum(nodes, get_op_types)
    extended_front = _extend_to_layers(nodes, spectrum, get_op_types) if spectrum else spectrum
    if _count_layers(nodes, spectrum) > _count_layers(nodes, default_front):
        fronts = [extended_front, default_front]
    elif has_poor_output:
        fronts = [default_front, extended_front]
    else:
        fronts = [default_front]
    node_names = []
    for front in fronts:
        if front:
            node_names.append([str(node.name) for node in nodes if id(node) in front])
    return node_names


def _count_layers(nodes: Iterable[ir.Node], node_ids: Collection[int]) -> int:
    """Count the layers among the nodes with `node_ids`."""
    return sum(count_macs(node) > 0 for node in nodes if id(node) in node_ids)


def _producers(node: ir.Node) -> list[ir.Node]:
    """Return the producers of the inputs of a node."""
    producers = [ir.producer(value) for value in node.inputs]
    return [producer for producer in producers if producer is not None]


def _nodes_up_to_front_ops(
    nodes: Collection[ir.Node], get_op_types: Callable[[ir.Node], set[str]]
) -> set[int]:
    """Collect ids of `_FRONT_OPS` nodes with at most one layer upstream, and of all nodes upstream.

    Empty if the front would contain all layers of the graph.
    """
    upstream_ids: dict[int, frozenset[int]] = {}
    layer_ids = {id(node) for node in nodes if count_macs(node) > 0}
    front: set[int] = set()
    for node in nodes:
        upstream: set[int] = set()
        for producer in _producers(node):
            upstream.add(id(producer))
            upstream |= upstream_ids.get(id(producer), frozenset())
        upstream_ids[id(node)] = frozenset(upstream)
        is_front_op = not get_op_types(node).isdisjoint(_FRONT_OPS)
        if is_front_op and len(upstream & layer_ids) <= _MAX_FRONT_LAYERS:
            front |= upstream | {id(node)}
    return front if len(front & layer_ids) < len(layer_ids) else set()


def _nodes_up_to_spectrum(
    nodes: Collection[ir.Node], get_op_types: Callable[[ir.Node], set[str]]
) -> set[int]:
    """Collect ids of powers and logarithms of purely linear layers, and of all nodes upstream.

    Only nodes that feed a layer count. Empty if no layer would be left outside of the front.
    """
    feeding_layers = _nodes_feeding_layers(nodes, lambda node: count_macs(node) > 0)
    spectrum_nodes = _find_spectrum_nodes(nodes, get_op_types)
    pending = [node for node in spectrum_nodes if id(node) in feeding_layers]
    front: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) not in front:
            front.add(id(node))
            pending += _producers(node)
    has_layer_outside = any(count_macs(node) > 0 and id(node) not in front for node in nodes)
    return front if has_layer_outside else set()


def _find_spectrum_nodes(
    nodes: Iterable[ir.Node], get_op_types: Callable[[ir.Node], set[str]]
) -> list[ir.Node]:
    """Find logarithms of linear layers, and `_FRONT_OPS` of the power of linear layers.

    The search ends at the first activation: nodes downstream of one are not considered. `nodes` are
    in topological order.
    """
    after_activation: set[int] = set()
    linear: set[int] = set()  # downstream of a layer, but not of an activation
    power: set[int] = set()  # downstream of the square of a layer's output
    spectrum_nodes = []
    for node in nodes:
        producers = {id(producer) for producer in _producers(node)}
        op_types = get_op_types(node)
        if not producers.isdisjoint(after_activation) or _is_nonlinear(node, get_op_types):
            after_activation.add(id(node))
            continue
        has_linear_input = not producers.isdisjoint(linear)
        has_power_input = not producers.isdisjoint(power)
        if count_macs(node) > 0 or has_linear_input:
            linear.add(id(node))
        if has_power_input or (_is_square(node) and not producers.isdisjoint(linear)):
            power.add(id(node))
        is_log_of_linear = "Log" in op_types and has_linear_input
        if is_log_of_linear or (has_power_input and not op_types.isdisjoint(_FRONT_OPS)):
            spectrum_nodes.append(node)
    return spectrum_nodes


def _is_nonlinear(node: ir.Node, get_op_types: Callable[[ir.Node], set[str]]) -> bool:
    """Whether `node` is an activation function.

    A Clip without an upper bound only limits from below, as logarithms need it, and does not count.
    The same holds for a ReLU that replaces such a Clip on a chip.
    """
    if LOWER_BOUND_KEY in node.metadata_props:
        return False
    if node.op_type == "Clip":
        return len(node.inputs) > 2 and node.inputs[2] is not None
    return not get_op_types(node).isdisjoint(_NONLINEAR_OPS)


def _is_square(node: ir.Node) -> bool:
    """Whether `node` is a product of a tensor with itself, or a power with exponent 2."""
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return True
    exponent = ir.const_value(node.inputs[1]) if node.op_type == "Pow" else None
    return exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) == 2


def _extend_to_layers(
    nodes: Iterable[ir.Node], front: set[int], get_op_types: Callable[[ir.Node], set[str]]
) -> set[int]:
    """Extend `front` by all nodes computed from it alone, up to layers and activations.

    `nodes` are in topological order; ids of nodes are returned.
    """
    extended = set(front)
    for node in nodes:
        producers = _producers(node)
        if not producers or any(id(producer) not in extended for producer in producers):
            continue
        if not count_macs(node) and not _is_nonlinear(node, get_op_types):
            extended.add(id(node))
    return extended


# ---- tails ---------------------------------------------------------------------------------------


def _find_tail(model: ir.Model, any_operator: bool) -> list[str]:
    """Return the names of the nodes that no layer depends on, if some of them decode outputs.

    Decoding operators are `_TAIL_OPS` and an expectation, a layer after a Softmax: a distance
    predicted as a distribution over distances. Expectations do not count as layers. With
    `any_operator`, any node counts as decoding. Empty for a model without layers.
    """
    get_op_types = _make_op_types_lookup(model)
    nodes = list(model.graph)
    expectations = {
        id(node) for node in nodes if count_macs(node) > 0 and _is_expectation_over_softmax(node)
    }
    feeding_layers = _nodes_feeding_layers(
        nodes, lambda node: count_macs(node) > 0 and id(node) not in expectations
    )
    if not feeding_layers:
        return []
    tail = [node for node in nodes if id(node) not in feeding_layers]
    decodes = any(
        id(node) in expectations or not get_op_types(node).isdisjoint(_TAIL_OPS) for node in tail
    )
    return [str(node.name) for node in tail] if decodes or any_operator else []


def _nodes_feeding_layers(
    nodes: Collection[ir.Node], is_layer: Callable[[ir.Node], bool]
) -> set[int]:
    """Collect the ids of layers (`is_layer`), and of all nodes that a layer is computed from."""
    feeding: set[int] = set()
    for node in reversed(list(nodes)):
        consumers = [use.node for value in node.outputs for use in value.uses()]
        if is_layer(node) or any(id(consumer) in feeding for consumer in consumers):
            feeding.add(id(node))
    return feeding


def find_power_tail(model: ir.Model) -> dict[str, str]:
    """Return the powers of linear layers, and all nodes downstream, of a model that is a front end.

    That is a spectrum, mel filters and a logarithm whose result is an output, without layers of a
    network. The power of a quiet band is far below a step of 8 bits, and the logarithm shows it.

    Returns
    -------
    dict
        {node: reason}; empty for a model with other layers, or without such a spectrum.
    """
    get_op_types = _make_op_types_lookup(model)
    nodes = list(model.graph)
    if not _find_spectrum_nodes(nodes, get_op_types) or _nodes_up_to_spectrum(nodes, get_op_types):
        return {}
    linear: set[int] = set()  # downstream of a layer
    tail: dict[int, str] = {}
    for node in nodes:
        producers = {id(producer) for producer in _producers(node)}
        is_power = _is_square(node) and not producers.isdisjoint(linear)
        if is_power or not producers.isdisjoint(tail):
            tail[id(node)] = str(node.name)
        if count_macs(node) > 0 or not producers.isdisjoint(linear):
            linear.add(id(node))
    reason = "follows a power spectrum: measured to be better in float"
    return dict.fromkeys(tail.values(), reason)


def _is_expectation_over_softmax(node: ir.Node) -> bool:
    """Whether the only computed input of `node` is a Softmax output.

    Reshape, Transpose and the like between them are looked through.

    Such a layer is a weighted sum with constant weights. Attention, which sums computed values, is
    not.
    """
    data = [value for value in node.inputs if value is not None and ir.const_value(value) is None]
    producer = ir.producer(data[0]) if len(data) == 1 else None
    while producer is not None and producer.op_type in (*float_ops.RESHAPING_OPS, "Transpose"):
        producer = ir.producer(producer.inputs[0])
    return producer is not None and producer.op_type == "Softmax"
