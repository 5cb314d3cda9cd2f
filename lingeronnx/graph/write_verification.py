"""A file is read back before it takes its name.

What could not be loaded later never replaces what can.
Read is all but the data beside the model, of which the sizes are looked at. Then the graph must be
sound (`onnxfile`), and its standard operators must be those of the opset that the file imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto

from ..errors import ModelError

__all__ = ["iter_nodes_recursive", "verify_written_model"]

_QUANTIZED_DOMAINS = (
    "thinker",
    "linger",
)  # graphs of these use some standard operators in forms of their own


def verify_written_model(
    path: Path, target: Path, check: Callable[[ModelProto], None], check_operators: bool
) -> None:
    """Raise ModelError where the file at `path`, which shall be called `target`, could not be loaded.

    check : raises ModelError for a graph that is not sound. operators : whether to look at the
    standard's operators.
    """
    try:
        proto = onnx.load(str(path), load_external_data=False, format="protobuf")
    except Exception as error:
        raise ModelError(
            f"{target.name} is not written, nothing could load it: {type(error).__name__}"
        ) from error
    try:
        check(proto)
        if check_operators:
            _check_operators(proto)
    except ModelError as error:
        raise ModelError(f"{target.name} is not written, nothing could load it: {error}") from error


def _check_operators(proto: ModelProto) -> None:
    """Raise ModelError for a standard operator that its opset does not have, or not in that form."""
    whole = _standard_opset(proto.opset_import)
    own = any(node.domain in _QUANTIZED_DOMAINS for node in proto.graph.node)
    for node in iter_nodes_recursive(proto.graph.node):
        _check_node(node, whole, own)
    for function in proto.functions:
        for node in iter_nodes_recursive(function.node):
            _check_node(node, _standard_opset(function.opset_import) or whole, own)


def _check_node(node: NodeProto, opset: int, allows_nonstandard_forms: bool) -> None:
    """Raise ModelError as `_check_operators` says.

    allows_nonstandard_forms : whether the graph may use forms that the standard does not have, with
    attributes in place of inputs.
    """
    if node.domain not in ("", "ai.onnx") or not opset:
        return
    place = f"{node.op_type} {node.name}"
    if not onnx.defs.has(node.op_type, opset):
        raise ModelError(f"{place}: opset {opset} has no such operator")
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    if len(node.input) > schema.max_input or len(node.output) > schema.max_output:
        raise ModelError(
            f"{place}: {len(node.input)} inputs and {len(node.output)} outputs are too many"
        )
    if allows_nonstandard_forms:
        return
    names = {attribute.name for attribute in node.attribute}
    lost = [
        name
        for name, attribute in schema.attributes.items()
        if attribute.required and name not in names
    ]
    if len(node.input) < schema.min_input or lost:
        raise ModelError(f"{place}: it lacks {lost[0] if lost else 'an input'} in opset {opset}")
    if odd := names - set(schema.attributes):
        raise ModelError(f"{place}: opset {opset} has no attribute {min(odd)}")


def _standard_opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    return next((entry.version for entry in imports if entry.domain in ("", "ai.onnx")), 0)


def iter_nodes_recursive(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
    """Yield nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from iter_nodes_recursive(graph.node)
