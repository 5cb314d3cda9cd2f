"""Repair of declarations: types of graph inputs and outputs, and value_info."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from onnx import GraphProto, TensorProto, ValueInfoProto

from .graph_view import GraphView, Scope
from .node_semantics import INTEGERS, MISSING, REALS, TensorKind, integer_type
from .report import Edit, RepairFinding, RepairStep
from .shapes import Dims, dims_of, infer_shapes, shapes_conflict
from .tensor_kinds import KindAnalysis, TensorKinds

__all__ = ["TYPE_REPAIR", "VALUE_INFO_REPAIR"]

#: Declared types that are certainly wrong for real numbers; float16 and double may be intended.
_NOT_REAL = (*INTEGERS, TensorProto.UNDEFINED)
#: Declared types that are certainly wrong for indices.
_NOT_INDICES = (*REALS, TensorProto.INT8, TensorProto.UNDEFINED)


def _type_name(element_type: int) -> str:
    """Return the lower-case name of the ONNX `element_type`, such as "int8".

    "type N" if it is unknown.
    """
    if element_type in TensorProto.DataType.values():
        return str(TensorProto.DataType.Name(element_type)).lower()
    return f"type {element_type}"


def _correct_type(kind: TensorKind, declared: int) -> int:
    """Return the ONNX element type that a tensor of `kind` should be declared with.

    `declared` is the present type, and is returned if it is plausible. Integers get the type of
    their width, unless their scale is unknown and an integer is declared; real numbers declared as
    integers or undefined get float, and indices their own type if they are declared as reals, int8
    or undefined.
    """
    if kind.is_integer:
        return declared if declared in INTEGERS and kind.scale is None else integer_type(kind.bits)
    if kind.category == "real" and kind.element_type == TensorProto.FLOAT and declared in _NOT_REAL:
        return int(TensorProto.FLOAT)
    if kind.category == "other" and kind.element_type and declared in _NOT_INDICES:
        return kind.element_type
    return declared


# ---- graph inputs and outputs -------------------------------------------------------------------


class _WrongType(NamedTuple):
    """A graph input or output with a wrong declared type.

    `role` names it in messages: "graph input", "graph output" or "output of a branch".
    """

    role: str
    value: ValueInfoProto
    correct_type: int


def _iter_wrong_types(view: GraphView) -> Iterator[_WrongType]:
    """Yield inputs, outputs and If branch outputs of `view` whose declared type is wrong.

    It is wrong if it is not what the tensor holds (integers of a width, real numbers or indices) by
    its producer and consumers. Inputs come first.
    """
    analysis = KindAnalysis.for_view(view)
    for value in view.main.graph.input:
        kind = analysis.retyped_inputs.get(view.main.tensors[value.name])
        if kind is not None:
            input_type = integer_type(kind.bits) if kind.is_integer else int(TensorProto.FLOAT)
            yield _WrongType("graph input", value, input_type)
    for scope in view.scopes:
        if scope is view.main:
            yield from _iter_wrong_output_types(scope, analysis.kinds, "graph output")
        elif scope.owner is not None and scope.owner.proto.op_type == "If":
            yield from _iter_wrong_output_types(scope, analysis.kinds, "output of a branch")


def _iter_wrong_output_types(scope: Scope, kinds: TensorKinds, role: str) -> Iterator[_WrongType]:
    """Yield the outputs of `scope`, a graph or branch, whose declared element type is wrong.

    `kinds` says what the tensors hold, and so which type is right; `role` is the label of the
    outputs in messages. Outputs that refer to no tensor are omitted.
    """
    for value in scope.graph.output:
        tensor = scope.find(value.name)
        is_tensor = scope.parent is None or value.type.HasField("tensor_type")
        if tensor is None or not is_tensor:
            continue
        declared = value.type.tensor_type.elem_type
        output_type = _correct_type(kinds.kind_of.get(tensor, MISSING), declared)
        if output_type != declared:
            yield _WrongType(role, value, output_type)


def _find_wrong_types(view: GraphView) -> list[RepairFinding]:
    """Return a finding for each graph input and output of `view` with a wrong declared type.

    Outputs of If branches count too. Each finding has an edit that sets the correct type.
    """
    findings = []
    for role, value, correct_type in _iter_wrong_types(view):
        before, after = _type_name(value.type.tensor_type.elem_type), _type_name(correct_type)
        edit = Edit(
            "types",
            "retype",
            f"{role} '{value.name}': {before} -> {after}",
            tensor=value.name,
            before=before,
            after=after,
            apply=partial(_set_type, value, correct_type),
        )
        findings.append(
            RepairFinding(
                "types",
                f"{role} '{value.name}' is declared {before}, but its type is {after}",
                tensor=value.name,
                before=before,
                after=after,
                edits=(edit,),
            )
        )
    return findings


def _set_type(value: ValueInfoProto, element_type: int) -> None:
    """Set the declared element type of the tensor `value` to `element_type`, in place."""
    value.type.tensor_type.elem_type = element_type


# ---- value_info ---------------------------------------------------------------------------------


class _StaleValueInfo(NamedTuple):
    """A value_info entry that contradicts the graph, with the scope it stands in and the reason.

    `correct_type` is the element type to declare, or 0 if the entry has to be dropped.
    """

    scope: Scope
    value: ValueInfoProto
    reason: str
    correct_type: int


def _iter_stale_value_info(view: GraphView) -> Iterator[_StaleValueInfo]:
    """Yield the value_info entries of `view` for unknown tensors, or with a wrong shape or type.

    Shapes are compared only for tensors that nodes of the main graph compute.
    """
    kinds = KindAnalysis.for_view(view).kinds
    shapes = infer_shapes(view.model) if view.main.graph.value_info else {}
    for scope in view.scopes:
        for value in scope.graph.value_info:
            tensor = scope.tensors.get(value.name)
            if tensor is None or tensor.is_undefined:
                yield _StaleValueInfo(scope, value, "there is no such tensor", 0)
                continue
            if not value.type.HasField("tensor_type"):
                continue
            is_computed = scope is view.main and tensor.producer is not None
            inferred = shapes.get(value.name, (0, None))[1] if is_computed else None
            kind = kinds.kind_of.get(tensor, MISSING)
            stale = _check_value_info(scope, value, inferred, kind)
            if stale is not None:
                yield stale


def _check_value_info(
    scope: Scope, value: ValueInfoProto, inferred: Dims | None, kind: TensorKind
) -> _StaleValueInfo | None:
    """Compare the value_info entry `value` with the tensor's inferred shape and its kind.

    None if it fits. `inferred` is None if the shape is not known; `kind` tells which element type
    is right. For a wrong shape the correct type of the result is 0: the entry is to be dropped.
    """
    if shapes_conflict(dims_of(value), inferred):
        reason = f"its shape is {list(inferred or ())}, not {list(dims_of(value) or ())}"
        return _StaleValueInfo(scope, value, reason, 0)
    declared = value.type.tensor_type.elem_type
    correct_type = _correct_type(kind, declared)
    if correct_type == declared:
        return None
    reason = f"its type is {_type_name(correct_type)}, not {_type_name(declared)}"
    return _StaleValueInfo(scope, value, reason, correct_type)


def _find_stale_value_info(view: GraphView) -> list[RepairFinding]:
    """Return a finding for each wrong value_info entry of `view`, with one edit.

    The edit sets the correct type where that is known, else drops the entry.
    """
    findings = []
    for scope, value, reason, correct_type in _iter_stale_value_info(view):
        entry = f"value_info of '{value.name}'"
        if correct_type:
            declared = _type_name(value.type.tensor_type.elem_type)
            edit = Edit(
                "value_info",
                "retype",
                f"{entry}: {declared} -> {_type_name(correct_type)}",
                tensor=value.name,
                apply=partial(_set_type, value, correct_type),
            )
        else:
            drop = partial(_drop_value_info, scope.graph, value)
            edit = Edit("value_info", "drop", entry, tensor=value.name, apply=drop)
        findings.append(
            RepairFinding(
                "value_info", f"{entry} is stale: {reason}", tensor=value.name, edits=(edit,)
            )
        )
    return findings


def _drop_value_info(graph: GraphProto, value: ValueInfoProto) -> None:
    """Remove the entry `value` from the value_info of `graph`, comparing by identity."""
    for index, entry in enumerate(graph.value_info):
        if entry is value:
            del graph.value_info[index]
            return


TYPE_REPAIR = RepairStep("types", _find_wrong_types)
VALUE_INFO_REPAIR = RepairStep("value_info", _find_stale_value_info)
