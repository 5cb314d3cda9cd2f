"""Verify a written model file before it replaces an existing one.

A file that could not be loaded never replaces a valid one. The file is read without its external
data, of which only the sizes are checked. The graph must be well-formed (`onnx_file`), and its
standard operators must be valid in the opset that the file imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto

from ..common.errors import ModelError
from .attributes import iter_nodes_recursive

__all__ = ["verify_written_model"]

# Graphs of these domains use some standard operators in nonstandard forms.
_QUANTIZED_DOMAINS = ("thinker", "linger")


def verify_written_model(
    path: Path, target: Path, check: Callable[[ModelProto], None], check_operators: bool
) -> None:
    """Raise ModelError if the file at `path` could not be loaded.

    Parameters
    ----------
    path
        The file, under its temporary name.
    target
        Its final name, for messages.
    check
        Raises ModelError for a malformed graph.
    check_operators
        Whether to check the standard operators against their schemas.
    """
    try:
        proto = onnx.load(str(path), load_external_data=False, format="protobuf")
    except Exception as error:
        raise ModelError(
            f"{target.name} is not written, because it could not be loaded: {type(error).__name__}"
        ) from error
    try:
        check(proto)
        if check_operators:
            _check_operators(proto)
    except ModelError as error:
        raise ModelError(
            f"{target.name} is not written, because it could not be loaded: {error}"
        ) from error


def _check_operators(proto: ModelProto) -> None:
    """Raise ModelError for a standard operator that does not match the schema of its opset.

    Subgraphs and functions are checked too, functions in their own standard opset, or the model's
    if they import none.
    """
    model_opset = _standard_opset(proto.opset_import)
    is_quantized = any(node.domain in _QUANTIZED_DOMAINS for node in proto.graph.node)
    for node in iter_nodes_recursive(proto.graph.node):
        _check_node(node, model_opset, is_quantized)
    for function in proto.functions:
        opset = _standard_opset(function.opset_import) or model_opset
        for node in iter_nodes_recursive(function.node):
            _check_node(node, opset, is_quantized)


def _check_node(node: NodeProto, opset: int, allows_nonstandard_forms: bool) -> None:
    """Raise ModelError if a standard operator does not match its schema in `opset`.

    Checked are its existence, the maximum numbers of inputs and outputs, and unless
    `allows_nonstandard_forms`, the required inputs and attributes and unknown attributes. Quantized
    graphs allow nonstandard forms, such as attributes in place of inputs. Other domains and an
    opset of 0 are not checked.
    """
    if node.domain not in ("", "ai.onnx") or not opset:
        return
    label = f"{node.op_type} {node.name}"
    if not onnx.defs.has(node.op_type, opset):
        raise ModelError(f"{label}: opset {opset} has no such operator")
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    if len(node.input) > schema.max_input or len(node.output) > schema.max_output:
        raise ModelError(
            f"{label}: {len(node.input)} inputs and {len(node.output)} outputs are too many"
        )
    if not allows_nonstandard_forms:
        _check_required_operands(node, schema, f"{label}: opset {opset}")


def _check_required_operands(node: NodeProto, schema: onnx.defs.OpSchema, label: str) -> None:
    """Raise ModelError if `node` lacks a required input or attribute, or has an unknown attribute.

    `schema` is that of its operator. `label` names the node and the opset in the message.
    """
    names = {attribute.name for attribute in node.attribute}
    missing = [
        name
        for name, attribute in schema.attributes.items()
        if attribute.required and name not in names
    ]
    if len(node.input) < schema.min_input or missing:
        operand = f"the attribute {missing[0]}" if missing else "another input"
        raise ModelError(f"{label} requires {operand}")
    unknown = names - set(schema.attributes)
    if unknown:
        raise ModelError(f"{label} has no attribute {min(unknown)}")


def _standard_opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    """Return the version of the standard domain in `imports`, or 0 if it is not among them."""
    return next((entry.version for entry in imports if entry.domain in ("", "ai.onnx")), 0)
