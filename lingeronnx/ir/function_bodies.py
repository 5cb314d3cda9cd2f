"""Replace operators by the function bodies that the ONNX standard gives them.

A body may depend on attributes and on the ranks of inputs; onnx builds it. The newest body is taken
whose operators have not changed between its opset and that of the model.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Protocol, cast

import onnx
from onnx import defs

from . import ir

__all__ = [
    "expand_to_bodies",
    "find_function_body",
    "find_standard_schema",
    "has_body_for_ranks",
    "has_function_body",
]


class _FunctionSchema(Protocol):
    """What onnx's schemas have, and their type stubs lack."""

    has_function: bool
    has_context_dependent_function: bool
    function_opset_versions: Sequence[int]
    context_dependent_function_opset_versions: Sequence[int]

    def get_function_with_opset_version(self, version: int) -> bytes:
        """Return the serialized body of a version."""

    def get_context_dependent_function_with_opset_version(
        self, version: int, node: bytes, input_types: Sequence[bytes]
    ) -> bytes:
        """Return the serialized body of a version for a node and the types of its inputs."""


def find_standard_schema(node: ir.Node, opset: int) -> defs.OpSchema | None:
    """Return the schema of the standard operator of `node` in `opset`, None if there is none."""
    return None if node.domain else _find_schema(node.op_type, opset)


@functools.cache
def _find_schema(op_type: str, opset: int) -> defs.OpSchema | None:
    """Return the schema of the standard operator `op_type` in `opset`, None if there is none."""
    if not defs.has(op_type):
        return None
    try:
        return defs.get_schema(op_type, opset)
    except defs.SchemaError:
        return None


@functools.cache
def has_function_body(op_type: str, opset: int) -> bool:
    """Whether the standard operator `op_type` has a function body in `opset`."""
    schema = _find_schema(op_type, opset)
    if schema is None:
        return False
    functions = cast("_FunctionSchema", schema)
    return bool(functions.has_function or functions.has_context_dependent_function)


def has_body_for_ranks(node: ir.Node, opset: int) -> bool:
    """Whether the function body of `node` in `opset` depends on the types and ranks of inputs."""
    schema = find_standard_schema(node, opset)
    return schema is not None and cast("_FunctionSchema", schema).has_context_dependent_function


def find_function_body(node: ir.Node, opset: int) -> onnx.FunctionProto | None:
    """Return the function body of the standard operator of `node` for a model of `opset`.

    None if the operator has none, or none for the inputs of `node`, or if one of the operators of
    the body has another meaning in `opset`. Default values of attributes are those of the schema.
    """
    schema = find_standard_schema(node, opset)
    if schema is None:
        return None
    functions = cast("_FunctionSchema", schema)
    for version in sorted(functions.function_opset_versions, reverse=True):
        if version <= opset:
            return _adapt_body(
                functions.get_function_with_opset_version(version), node, schema, opset
            )
    versions = functions.context_dependent_function_opset_versions
    for version in sorted(versions, reverse=True):
        if version <= opset:
            body = _build_body(node, functions, version)
            return None if body is None else _adapt_body(body, node, schema, opset)
    return None


def _build_body(node: ir.Node, schema: _FunctionSchema, version: int) -> bytes | None:
    """Return the serialized body of `version` for the attributes and input types of `node`.

    None if the schema builds none for them.
    """
    types = [_make_type(value).SerializeToString() for value in node.inputs]
    proto = ir.serialize_node(node).SerializeToString()
    try:
        return schema.get_context_dependent_function_with_opset_version(version, proto, types)
    except (RuntimeError, ValueError):
        return None


def _make_type(value: ir.Value | None) -> onnx.TypeProto:
    """Return the type of a tensor, with its shape if the rank is known; empty for no tensor."""
    proto = onnx.TypeProto()
    if value is None or value.dtype is None:
        return proto
    proto.tensor_type.elem_type = int(value.dtype)
    shape = ir.get_shape(value)
    if shape is not None:
        proto.tensor_type.shape.SetInParent()
        for size in shape:
            dim = proto.tensor_type.shape.dim.add()
            if size is not None:
                dim.dim_value = size
    return proto


def _adapt_body(
    body: bytes, node: ir.Node, schema: defs.OpSchema, opset: int
) -> onnx.FunctionProto | None:
    """Parse a body, with `opset` as its opset and the default attributes of `schema`.

    None if an operator of the body has another meaning in `opset`.
    """
    function: onnx.FunctionProto = onnx.FunctionProto.FromString(body)
    if not function.node:
        return None
    versions = {entry.domain: entry.version for entry in function.opset_import}
    for inner in function.node:
        if inner.domain or not _is_compatible(inner.op_type, versions.get("", opset), opset):
            return None
    for entry in function.opset_import:
        if not entry.domain:
            entry.version = opset
    del function.output[len(node.outputs) :]  # a body may lack outputs that the node does not use
    computed = {name for inner in function.node for name in inner.output}
    if not computed.issuperset(function.output):
        return None
    defaults = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name and name not in node.attributes
    }
    names = [name for name in function.attribute if name in defaults]
    for name in names:
        function.attribute.remove(name)
        function.attribute_proto.append(defaults[name])
    return function


def _is_compatible(op_type: str, first: int, second: int) -> bool:
    """Whether a node of `op_type` of opset `first` has the same meaning in opset `second`.

    Later versions may add types, and optional attributes; inputs and the defaults of attributes
    that exist in both must be equal.
    """
    try:
        old, new = (defs.get_schema(op_type, version) for version in (first, second))
    except defs.SchemaError:
        return False
    if old.since_version == new.since_version:
        return True
    if [each.name for each in old.inputs] != [each.name for each in new.inputs]:
        return False
    for name, attribute in old.attributes.items():
        if name not in new.attributes:
            return False
        if attribute.default_value != new.attributes[name].default_value:
            return False
    added = new.attributes.keys() - old.attributes.keys()
    return not any(new.attributes[name].required for name in added)


def expand_to_bodies(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Replace standard operators of `model` by their function bodies, in place.

    Returns those of `nodes` that were replaced; the others have no body. Nodes of the main graph
    that belong to a body are recorded as created for the replaced node.
    """
    opset, bodies = ir.get_opset(model), dict[ir.Node, onnx.FunctionProto]()
    for node in nodes:
        body = find_function_body(node, opset)
        if body is not None:
            bodies[node] = body
    if bodies:
        ir.inline_bodies(model, bodies)
    return list(bodies)
