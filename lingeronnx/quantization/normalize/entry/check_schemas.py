"""Check every node against its operator's schema, and every input for an element type.

onnxruntime makes the same checks when it opens a model, but the passes before its first run already
rely on them. Operators of other domains, and of opsets that onnx does not know, are left to
onnxruntime.
"""

from __future__ import annotations

import onnx

from ....common.errors import ModelError
from ....ir import ir


def check_schemas(model: ir.Model) -> int:
    """Raise ModelError, naming the node, if `model` violates an operator's schema.

    Also for impossible IR and opset versions, and for a graph input without an element type.
    Operators of other domains are not checked. Changes nothing and returns 0.
    """
    _check_versions(model)
    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version or 8
    imports = dict(model.opset_imports)
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            imports.setdefault(domain, version)
    context.opset_imports = imports
    for node in ir.iter_all_nodes(model, include_composites=False):
        if not node.domain:
            _check_node(node, context)
    for value in model.graph.inputs:
        if value.type is None or value.dtype in (None, ir.DataType.UNDEFINED):
            raise ModelError(
                f"graph input '{value.name}' has no element type; the file is malformed, export it "
                "again"
            )
    return 0


def _check_versions(model: ir.Model) -> None:
    """Raise ModelError if the IR version or an opset version is negative or at least 2**31."""
    versions = [("ir_version", model.ir_version or 0)]
    versions += [("opset", version) for version in model.opset_imports.values()]
    for label, version in versions:
        if not 0 <= version < 1 << 31:
            raise ModelError(
                f"{label} = {version}: there is no such version; the file is malformed, export it "
                "again"
            )


def _check_node(node: ir.Node, context: onnx.checker.C.CheckerContext) -> None:
    """Raise ModelError if `node` violates the schema of its operator.

    Its subgraphs are not checked, nor nodes with a tensor attribute of more than 1 MiB.
    """
    proto = ir.serialize_node(node)
    if any(len(attribute.t.raw_data) > 1 << 20 for attribute in proto.attribute):
        return  # a large Constant
    for attribute in proto.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            attribute.g.Clear()  # its nodes are checked by themselves
            attribute.g.name = "body"
    try:
        onnx.checker.check_node(proto, context)
    except onnx.checker.ValidationError as error:
        problem = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{node.op_type} {node.name}: {problem}; the file is malformed, export it again"
        ) from error
