"""Repairs of what a file declares.

Types of graph inputs and outputs, and its notes on tensors inside the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnx import GraphProto, TensorProto, ValueInfoProto

from .graph_view import GraphView, Scope
from .node_semantics import INTEGERS, MISSING, REALS, TensorKind, integer_type
from .report import Edit, RepairFinding, RepairStep
from .shapes import dims_of, infer_shapes, shapes_conflict
from .tensor_kinds import KindAnalysis, TensorKinds

__all__ = ["TYPE_REPAIR", "VALUE_INFO_REPAIR"]

#: Declared types that are certainly wrong for real numbers; float16 and double may be meant.
_NOT_REAL = (*INTEGERS, TensorProto.UNDEFINED)


def _type_name(elem: int) -> str:
    return (
        TensorProto.DataType.Name(elem).lower()
        if elem in TensorProto.DataType.values()
        else f"type {elem}"
    )


def _correct_type(kind: TensorKind, declared: int) -> int:
    """Return the element type that a tensor of `kind` should be declared with.

    `declared` where nothing is known.
    """
    if kind.is_integer:
        return declared if declared in INTEGERS and kind.scale is None else integer_type(kind.bits)
    if kind.category == "real" and kind.element_type == TensorProto.FLOAT and declared in _NOT_REAL:
        return int(TensorProto.FLOAT)
    if (
        kind.category == "other"
        and kind.element_type
        and declared in (*REALS, TensorProto.INT8, TensorProto.UNDEFINED)
    ):
        return kind.element_type
    return declared


# ---- graph inputs and outputs --------------------------------------------------------------------------------------


def _wrong_types(view: GraphView) -> Iterator[tuple[str, ValueInfoProto, int]]:
    """Yield (input or output, the declaration, the right type)."""
    kinship = KindAnalysis.for_view(view)
    kinds = kinship.kinds
    for value in view.main.graph.input:
        kind = kinship.retyped.get(view.main.tensors[value.name])
        if kind is not None:
            yield (
                "graph input",
                value,
                integer_type(kind.bits) if kind.is_integer else int(TensorProto.FLOAT),
            )
    for scope in view.scopes:
        for index, value in enumerate(scope.graph.output):
            tensor = scope.find(value.name)
            branch = scope.owner is not None and scope.owner.proto.op_type == "If"
            if tensor is None or not value.type.HasField("tensor_type") and scope is not view.main:
                continue
            if scope is view.main or branch:
                right = _correct_type(
                    kinds.kind_of.get(tensor, MISSING), value.type.tensor_type.elem_type
                )
                if right != value.type.tensor_type.elem_type and index >= 0:
                    yield (
                        "graph output" if scope is view.main else "output of a branch",
                        value,
                        right,
                    )


def _find_wrong_types(view: GraphView) -> list[RepairFinding]:
    findings = []
    for what, value, right in _wrong_types(view):
        before, after = _type_name(value.type.tensor_type.elem_type), _type_name(right)
        edit = Edit(
            "types",
            "retype",
            f"{what} '{value.name}': {before} -> {after}",
            tensor=value.name,
            before=before,
            after=after,
            apply=partial(_set_type, value, right),
        )
        findings.append(
            RepairFinding(
                "types",
                f"{what} '{value.name}' is declared {before}, it is {after}",
                tensor=value.name,
                before=before,
                after=after,
                edits=(edit,),
            )
        )
    return findings


def _set_type(value: ValueInfoProto, elem: int) -> None:
    value.type.tensor_type.elem_type = elem


# ---- notes on tensors inside ---------------------------------------------------------------------------------------


def _iter_stale_value_info(view: GraphView) -> Iterator[tuple[Scope, ValueInfoProto, str, int]]:
    """Yield (graph, note, what is wrong with it, the right type or 0 where the note says nothing true)."""
    kinds = KindAnalysis.for_view(view).kinds
    sizes = infer_shapes(view.model) if view.main.graph.value_info else {}
    for scope in view.scopes:
        for value in scope.graph.value_info:
            tensor = scope.tensors.get(value.name)
            if tensor is None or tensor.missing:
                yield scope, value, "there is no such tensor", 0
                continue
            if not value.type.HasField("tensor_type"):
                continue
            have = (
                sizes.get(value.name, (0, None))[1]
                if scope is view.main and tensor.writer is not None
                else None
            )
            if shapes_conflict(dims_of(value), have):
                yield (
                    scope,
                    value,
                    f"its shape is {list(have or ())}, not {list(dims_of(value) or ())}",
                    0,
                )
                continue
            declared = value.type.tensor_type.elem_type
            right = _correct_type(_kind_of(kinds, scope, value.name), declared)
            if right != declared:
                yield scope, value, f"it is {_type_name(right)}, not {_type_name(declared)}", right


def _kind_of(kinds: TensorKinds, scope: Scope, name: str) -> TensorKind:
    return kinds.kind_of.get(scope.tensors[name], MISSING)


def _find_stale_value_info(view: GraphView) -> list[RepairFinding]:
    findings = []
    for scope, value, what, right in _iter_stale_value_info(view):
        if right:
            action, text, apply = (
                "retype",
                f"'{value.name}' is noted as {_type_name(right)}",
                partial(_set_type, value, right),
            )
        else:
            action, text, apply = (
                "drop",
                f"the note on '{value.name}'",
                partial(_drop_value_info, scope.graph, value),
            )
        edit = Edit("value_info", action, text, tensor=value.name, apply=apply)
        findings.append(
            RepairFinding(
                "value_info",
                f"the note on '{value.name}' is stale: {what}",
                tensor=value.name,
                edits=(edit,),
            )
        )
    return findings


def _drop_value_info(graph: GraphProto, value: ValueInfoProto) -> None:
    del graph.value_info[
        next(index for index, note in enumerate(graph.value_info) if note is value)
    ]


TYPE_REPAIR = RepairStep("types", _find_wrong_types)
VALUE_INFO_REPAIR = RepairStep("value_info", _find_stale_value_info)
