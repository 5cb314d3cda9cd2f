"""The repair of lost edges: names that are read, or are graph outputs, and that nobody writes.

Such a name is reconnected to a tensor that is computed for nobody where exactly one fits: by kind
(integers, real numbers, indices), by the scale at which integer operators read it, and by shape,
for which the graph is tried with it. No edge is reconnected because others took what else would
have fitted: that would be a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from ..formats import QUANT
from .graph_view import GraphView, NodeView, TensorRead, TensorView, same_scale
from .node_semantics import (
    OTHER,
    TensorKind,
    integer_inputs,
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
_MAX_SHAPE_TRIALS = 200  # of shapes; beyond, every tensor that fits by kind and scale counts


def _find_lost_edges(view: GraphView) -> list[RepairFinding]:
    findings = []
    for tensor, fitting, why in _match_lost_tensors(view):
        reader = tensor.reads[0].where if tensor.reads else "nobody"
        if len(fitting) == 1 and not why:
            text = (
                f"reads '{tensor.name}', which nobody writes; only '{fitting[0].name}' fits, "
                "which nobody reads"
            )
            if tensor.reads[0].node is None:
                text = text.replace("reads", "hands out", 1)
            findings.append(
                RepairFinding(
                    _REPAIR_NAME,
                    text,
                    reader,
                    tensor.name,
                    edits=(_make_rewire_edit(view, tensor, fitting[0]),),
                )
            )
            continue
        several = ", ".join(f"'{t.name}'" for t in fitting[:4]) + (
            " ..." if len(fitting) > 4 else ""
        )
        reason = why or (
            f"{several} would fit alike" if fitting else _format_no_candidate(view, tensor)
        )
        verb = "reads" if tensor.reads and tensor.reads[0].node is not None else "hands out"
        text = f"{verb} '{tensor.name}', which nobody writes; {reason}"
        findings.append(RepairFinding(_REPAIR_NAME, text, reader, tensor.name, level="fatal"))
    return findings


def _format_no_candidate(view: GraphView, tensor: TensorView) -> str:
    scales = KindAnalysis.for_view(view).demand_of(tensor).scales()
    at = f" at scale {format_scale(scales[0])}" if len(scales) == 1 else ""
    return f"nothing that is computed for nobody fits{at}; export the model again"


def _make_rewire_edit(view: GraphView, tensor: TensorView, chosen: TensorView) -> Edit:
    readers = ", ".join(dict.fromkeys(read.where for read in tensor.reads))
    return Edit(
        _REPAIR_NAME,
        "rewire",
        f"'{chosen.name}' in the place of '{tensor.name}': {readers}",
        tensor.reads[0].where,
        chosen.name,
        apply=partial(_reconnect, tensor, chosen),
    )


def _reconnect(tensor: TensorView, chosen: TensorView) -> None:
    """Let the readers of `tensor` read `chosen`.

    A graph output by an Identity, which goes or becomes a Dequant.
    """
    for read in tensor.reads:
        if read.node is not None:
            read.node.proto.input[read.index] = chosen.name
    if any(read.node is None for read in tensor.reads):
        name = f"Identity_{tensor.name}"
        tensor.scope.graph.node.append(
            NodeProto(op_type="Identity", name=name, input=[chosen.name], output=[tensor.name])
        )


# ---- candidates ----------------------------------------------------------------------------------------------------


def _match_lost_tensors(view: GraphView) -> Iterator[tuple[TensorView, list[TensorView], str]]:
    """Yield (the lost tensor, those that fit, why not even a single one may be taken)."""
    if not view.missing:
        return
    kinship = KindAnalysis.for_view(view)
    unused = [
        t
        for t in view.main.tensors.values()
        if not t.reads and not t.missing and t.constant is None
    ]
    fits = {
        tensor: [c for c in unused if _can_replace(kinship, tensor, c)] for tensor in view.missing
    }
    if sum(map(len, fits.values())) <= _MAX_SHAPE_TRIALS:
        before = find_shape_conflicts(view.model, view)
        fits = {
            tensor: [c for c in candidates if _shapes_fit(view, tensor, c, before)]
            for tensor, candidates in fits.items()
        }
    for tensor, candidates in fits.items():
        rivals = [t for t, others in fits.items() if t is not tensor and candidates == others]
        why = ""
        if len(candidates) == 1 and rivals:
            why = (
                f"'{candidates[0].name}' fits, but '{rivals[0].name}' is lost as well and it "
                "fits there too"
            )
        yield tensor, candidates, why


def _can_replace(kinship: KindAnalysis, tensor: TensorView, candidate: TensorView) -> bool:
    """Whether a tensor that nobody reads can be what is read under the name of the lost `tensor`."""
    kind, wants = kinship.root_kinds.get(candidate), kinship.demand_of(tensor)
    if kind is None or kind.category == "missing" or _leads_to(candidate, tensor):
        return False
    scales = wants.scales() if wants.integer_readers else []
    if wants.integer_readers and not kind.is_integer:
        return False
    if kind.scale is not None and not all(same_scale(scale, kind.scale) for scale in scales):
        return False
    widths = {bits for _, bits, _ in wants.integer_readers if bits}
    if kind.is_integer and any(
        _storage_bytes(bits) != _storage_bytes(kind.bits) for bits in widths
    ):
        return False
    return all(_accepts_kind(read, kind, kinship.root_kinds) for read in tensor.reads)


def _storage_bytes(bits: int) -> int:
    return 1 if bits <= 8 else 2 if bits <= 16 else 4


def _accepts_kind(
    read: TensorRead, kind: TensorKind, roots: Mapping[TensorView, TensorKind]
) -> bool:
    """Whether a reader takes what is of `kind`."""
    if read.node is None:
        declared = read.output.type.tensor_type.elem_type if read.output is not None else 0
        return (declared in (TensorProto.INT64, TensorProto.BOOL)) == (kind.category == "other")
    if is_dequant(read.node):
        return kind.is_integer
    if is_quantized(read.node) and read.node.proto.op_type != QUANT.name:
        return read.index in integer_inputs(read.node) and kind.is_integer
    others = [OTHER if t is None else roots.get(t, OTHER) for t in read.node.inputs]
    if kind.category == "other":
        return produces_indices(read.node) or takes_element(read.node, read.index, kind, others)
    return not takes_indices(read.node, read.index)


def _leads_to(candidate: TensorView, lost: TensorView) -> bool:
    """Whether the writer of `candidate` needs what `lost` stands for.

    The edge would close a cycle.
    """
    readers = {read.node for read in lost.reads if read.node is not None}
    visited: set[NodeView] = set()
    stack = [candidate.writer]
    while stack:
        node = stack.pop()
        if node is None or node in visited:
            continue
        if node in readers:
            return True
        visited.add(node)
        stack += [t.writer for t in node.inputs if t is not None]
        stack += [
            t.writer
            for below in node.scopes
            for inner in below.nodes
            for t in inner.inputs
            if t is not None
        ]
    return False


def _shapes_fit(
    view: GraphView, tensor: TensorView, candidate: TensorView, before: set[str]
) -> bool:
    """Whether the graph's sizes fit together with `candidate` in the place of `tensor`, as well as without."""
    trial = ModelProto()
    trial.CopyFrom(view.model)
    again = GraphView(trial)
    same = next(
        t for t in again.missing if t.name == tensor.name and len(t.reads) == len(tensor.reads)
    )
    told = [v for v in view.model.graph.value_info if v.name == tensor.name]
    _reconnect(same, again.main.tensors[candidate.name])
    lost = [
        ValueInfoProto(name=candidate.name, type=v.type) for v in told if dims_of(v) is not None
    ]
    return not find_shape_conflicts(trial, GraphView(trial), lost) - before


LOST_EDGE_REPAIR = RepairStep(_REPAIR_NAME, _find_lost_edges)
