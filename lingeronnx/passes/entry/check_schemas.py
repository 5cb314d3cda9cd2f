"""Every node is what its operator's schema says: inputs, attributes and their types.

Every input has an element type.
onnxruntime checks the same when it opens a model, but the passes in front of its first run want to
trust it already. Operators of other domains, and of opsets onnx does not know, are left to
onnxruntime.
"""

from __future__ import annotations

import onnx

from ...errors import ModelError
from ...graph import ir
from .reject_unsupported import iter_all_nodes


def check_schemas(model: ir.Model) -> int:
    """Raise ModelError, naming the node, where `model` breaks an operator's schema.

    Changes nothing.
    """
    for what, version in (
        ("ir_version", model.ir_version or 0),
        *(("opset", v) for v in model.opset_imports.values()),
    ):
        if not 0 <= version < 1 << 31:
            raise ModelError(
                f"{what} = {version}: there is none; the file is damaged, export it again"
            )
    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version or 8
    imports = dict(model.opset_imports)
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            imports.setdefault(domain, version)
    context.opset_imports = imports
    for node in iter_all_nodes(model):
        if node.domain:
            continue
        proto = ir.node_proto(node)
        if any(len(a.t.raw_data) > 1 << 20 for a in proto.attribute):
            continue  # a large Constant
        for attribute in proto.attribute:
            if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                attribute.g.Clear()  # its nodes are visited by themselves
                attribute.g.name = "body"
        try:
            onnx.checker.check_node(proto, context)
        except onnx.checker.ValidationError as error:
            what = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"{node.op_type} {node.name}: {what}; the file is damaged, export it again"
            ) from error
    for value in model.graph.inputs:
        if value.type is None or value.dtype in (None, ir.DataType.UNDEFINED):
            raise ModelError(
                f"graph input '{value.name}' has no element type; the file is damaged, export it "
                "again"
            )
    return 0
