"""Repair of lost edges: undefined tensors that nodes or graph outputs refer to.

An undefined tensor is replaced by an unused tensor if exactly one matches: by kind (integers, real
numbers, indices), by the scale that integer operators expect, and by shape, for which the edge is
reconnected on trial. An edge is not reconnected if its only match is the match of another undefined
tensor as well, since that would be a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from ...operators.integer_ops import QUANT
from .graph_view import GraphView, NodeView, TensorRead, TensorView, same_scale
from .node_semantics import (
    OTHER,
    TensorDemand,
    TensorKind,
    get_kinds,
    integer_inputs,
    integer_type,
    is_dequant,
    is_quantized,
    produces_indices,
    takes_element,
    takes_indices,
)
from .report import Edit, RepairFinding, RepairStep, format_scale
from .shapes import dims_of, find_shape_conflicts
from .tensor_kinds import KindAnalysis

__all__ = ["LOST_EDGE_REPAIR"]

_REPAIR_NAME = "lost edges"
#: Limit of shape trials; with more pairs of tensors, kind and scale decide.
_MAX_SHAPE_TRIALS = 200


def _find_lost_edges(view: GraphView) -> list[RepairFinding]:
    """Return a finding for each undefined tensor of `view` that a node or graph output refers to.

    If exactly one unused tensor of the graph matches it, the edit lets the consumers read that one;
    else the finding is fatal.
    """
    findings = []
    for tensor, matches, conflict in _match_lost_tensors(view):
        location = tensor.reads[0].label if tensor.reads else ""
        is_node_input = bool(tensor.reads) and tensor.reads[0].node is not None
        subject = f"reads undefined tensor '{tensor.name}'" if is_node_input else "is undefined"
        if len(matches) == 1 and not conflict:
            text = f"{subject}; the only match is the unused tensor '{matches[0].name}'"
            edit = _make_rewire_edit(tensor, matches[0])
            findings.append(RepairFinding(_REPAIR_NAME, text, location, tensor.name, edits=(edit,)))
            continue
        if not conflict and matches:
            conflict = f"{_format_names(matches)} match equally well"
        text = f"{subject}; {conflict or _format_no_candidate(view, tensor)}"
        findings.append(RepairFinding(_REPAIR_NAME, text, location, tensor.name, level="fatal"))
    return findings


def _format_names(tensors: Sequence[TensorView]) -> str:
    """Return the quoted names of the first four of `tensors`, with dots if there are more."""
    names = ", ".join(f"'{tensor.name}'" for tensor in tensors[:4])
    return f"{names} ..." if len(tensors) > 4 else names


def _format_no_candidate(view: GraphView, tensor: TensorView) -> str:
    """Return the message that no unused tensor can replace the undefined `tensor`.

    It names the scale that the consumers expect if there is exactly one.
    """
    scales = KindAnalysis.for_view(view).demand_of(tensor).scales()
    scale = f" at scale {format_scale(scales[0])}" if len(scales) == 1 else ""
    return f"no unused tensor matches{scale}; export the model again"


def _make_rewire_edit(tensor: TensorView, replacement: TensorView) -> Edit:
    """Return the edit that lets all consumers of the undefined `tensor` read `replacement`."""
    readers = ", ".join(dict.fromkeys(read.label for read in tensor.reads))
    return Edit(
        _REPAIR_NAME,
        "rewire",
        f"{readers}: reads '{replacement.name}' instead of '{tensor.name}'",
        tensor.reads[0].label,
        replacement.name,
        apply=partial(_reconnect, tensor, replacement),
    )


def _reconnect(tensor: TensorView, replacement: TensorView) -> None:
    """Let the consumers of the undefined `tensor` read `replacement`, in place.

    A graph output gets an Identity, which a later repair step removes or turns into a Dequant.
    """
    for read in tensor.reads:
        if read.node is not None:
            read.node.proto.input[read.index] = replacement.name
    if any(read.node is None for read in tensor.reads):
        identity = NodeProto(
            op_type="Identity",
            name=f"Identity_{tensor.name}",
            input=[replacement.name],
            output=[tensor.name],
        )
        tensor.scope.graph.node.append(identity)


# ---- candidates ---------------------------------------------------------------------------------


def _match_lost_tensors(view: GraphView) -> Iterator[tuple[TensorView, list[TensorView], str]]:
    """Match undefined tensors with unused ones.

    Yields
    ------
    tensor : TensorView
        An undefined tensor.
    matches : list of TensorView
        The unused tensors that can replace it.
    conflict : str
        The reason why a unique match must not be used, or an empty string.
    """
    if not view.undefined_tensors:
        return
    matches_of = _find_matches(view)
    for tensor, matches in matches_of.items():
        rivals = [
            rival
            for rival, rival_matches in matches_of.items()
            if rival is not tensor and rival_matches == matches
        ]
        conflict = ""
        if len(matches) == 1 and rivals:
            conflict = (
                f"'{matches[0].name}' matches, but it also matches the undefined tensor "
                f"'{rivals[0].name}'"
            )
        yield tensor, matches, conflict


def _find_matches(view: GraphView) -> dict[TensorView, list[TensorView]]:
    """Return undefined tensor -> unused tensors of the main graph that can replace it.

    They must hold what the consumers need: real numbers, indices, or integers of the scale and
    width. Shapes are compared too, unless there are more than `_MAX_SHAPE_TRIALS` pairs.
    """
    analysis = KindAnalysis.for_view(view)
    unused = [
        tensor
        for tensor in view.main.tensors.values()
        if not tensor.reads and not tensor.is_undefined and tensor.constant_type is None
    ]
    matches_of: dict[TensorView, list[TensorView]] = {}
    for tensor in view.undefined_tensors:
        matches_of[tensor] = [
            candidate for candidate in unused if _can_replace(analysis, tensor, candidate)
        ]
    if sum(map(len, matches_of.values())) > _MAX_SHAPE_TRIALS:
        return matches_of
    known_conflicts = find_shape_conflicts(view.model, view)
    for tensor, candidates in matches_of.items():
        matches_of[tensor] = [
            candidate
            for candidate in candidates
            if _is_shape_compatible(view, tensor, candidate, known_conflicts)
        ]
    return matches_of


def _can_replace(analysis: KindAnalysis, tensor: TensorView, candidate: TensorView) -> bool:
    """Whether the unused tensor `candidate` holds what consumers of the undefined `tensor` need.

    That is real numbers, indices, or integers of their scale and width. `candidate` must not depend
    on `tensor` itself.
    """
    kind = analysis.root_kinds.get(candidate)
    if kind is None or kind.category == "missing" or _depends_on(candidate, tensor):
        return False
    demand = analysis.demand_of(tensor)
    if demand.integer_readers and not _matches_integer_demand(kind, demand):
        return False
    return all(_accepts_kind(read, kind, analysis.root_kinds) for read in tensor.reads)


def _matches_integer_demand(kind: TensorKind, demand: TensorDemand) -> bool:
    """Whether integers of `kind` have the scale and width that the consumers in `demand` expect.

    False for a kind that is not integer; an unknown scale or width matches.
    """
    if not kind.is_integer:
        return False
    scales = [] if kind.scale is None else demand.scales()
    if not all(same_scale(scale, kind.scale) for scale in scales):
        return False
    expected_bits = [reader.bits for reader in demand.integer_readers if reader.bits]
    return all(integer_type(bits) == integer_type(kind.bits) for bits in expected_bits)


def _accepts_kind(
    read: TensorRead, kind: TensorKind, root_kinds: Mapping[TensorView, TensorKind]
) -> bool:
    """Whether the consumer `read`, a node input or graph output, accepts a tensor of `kind`.

    A Dequant accepts integers, an integer operator only on its integer inputs, a graph output
    indices only if declared int64 or bool; other nodes accept indices where they read them.
    """
    node = read.node
    if node is None:
        declared = read.output.type.tensor_type.elem_type if read.output is not None else 0
        is_index_output = declared in (TensorProto.INT64, TensorProto.BOOL)
        return is_index_output == (kind.category == "other")
    if is_dequant(node):
        return kind.is_integer
    if is_quantized(node) and node.proto.op_type != QUANT.name:
        return kind.is_integer and read.index in integer_inputs(node)
    if kind.category == "other":
        input_kinds = get_kinds(node.inputs, root_kinds, OTHER)
        return produces_indices(node) or takes_element(node, read.index, kind, input_kinds)
    return not takes_indices(node, read.index)


def _depends_on(candidate: TensorView, tensor: TensorView) -> bool:
    """Whether `candidate` is computed downstream of the consumers of `tensor`.

    Reconnecting the consumers to it would create a cycle.
    """
    readers = {read.node for read in tensor.reads if read.node is not None}
    visited: set[NodeView] = set()
    stack = [candidate.producer]
    while stack:
        node = stack.pop()
        if node is None or node in visited:
            continue
        if node in readers:
            return True
        visited.add(node)
        inner_nodes = [inner for subgraph in node.subgraphs for inner in subgraph.nodes]
        for consumer in (node, *inner_nodes):
            stack += [operand.producer for operand in consumer.inputs if operand is not None]
    return False


def _is_shape_compatible(
    view: GraphView, tensor: TensorView, candidate: TensorView, known_conflicts: set[str]
) -> bool:
    """Whether reading `candidate` instead of the undefined `tensor` causes no new shape conflicts.

    Tried on a copy of the model; `known_conflicts` are those before the change.
    """
    trial_model = ModelProto()
    trial_model.CopyFrom(view.model)
    trial_view = GraphView(trial_model)
    trial_tensor = next(
        undefined
        for undefined in trial_view.undefined_tensors
        if undefined.name == tensor.name and len(undefined.reads) == len(tensor.reads)
    )
    _reconnect(trial_tensor, trial_view.main.tensors[candidate.name])
    declared = [
        ValueInfoProto(name=candidate.name, type=value.type)
        for value in view.model.graph.value_info
        if value.name == tensor.name and dims_of(value) is not None
    ]
    conflicts = find_shape_conflicts(trial_model, GraphView(trial_model), declared)
    return not conflicts - known_conflicts


LOST_EDGE_REPAIR = RepairStep(_REPAIR_NAME, _find_lost_edges)
