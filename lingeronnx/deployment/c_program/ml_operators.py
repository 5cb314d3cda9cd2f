"""Replace operators of ai.onnx.ml by standard ones, for the generator of host parts.

    Scaler(x) = (x - offset) * scale        Binarizer(x) = 1 if x > threshold else 0

Both compute in float32, whatever the type of x, with the same roundings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["replace_ml_operators"]

_DOMAIN = "ai.onnx.ml"


def replace_ml_operators(model: onnx.ModelProto) -> None:
    """Replace each Scaler and Binarizer of ai.onnx.ml by standard operators, in place.

    Other operators of that domain stay. The domain is removed from the imports if none is left.
    """
    graph = model.graph
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        if node.domain == _DOMAIN and node.op_type == "Scaler":
            graph.node.extend(_compose_scaler(graph, node, attributes))
        elif node.domain == _DOMAIN and node.op_type == "Binarizer":
            graph.node.extend(_compose_binarizer(graph, node, attributes))
        else:
            graph.node.append(node)
    if not any(node.domain == _DOMAIN for node in graph.node):
        imports = [entry for entry in model.opset_import if entry.domain != _DOMAIN]
        del model.opset_import[:]
        model.opset_import.extend(imports)


def _compose_scaler(
    graph: onnx.GraphProto, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> list[onnx.NodeProto]:
    """Return the nodes of a Scaler; its offsets and scales become constants of `graph`."""
    result = node.output[0]
    floats, centered = f"{result}_float", f"{result}_centered"
    offset = _add_constant(graph, f"{result}_offset", attributes.get("offset", [0.0]))
    scale = _add_constant(graph, f"{result}_scale", attributes.get("scale", [1.0]))
    return [
        helper.make_node("Cast", [node.input[0]], [floats], to=onnx.TensorProto.FLOAT),
        helper.make_node("Sub", [floats, offset], [centered], name=node.name),
        helper.make_node("Mul", [centered, scale], [result]),
    ]


def _compose_binarizer(
    graph: onnx.GraphProto, node: onnx.NodeProto, attributes: Mapping[str, Any]
) -> list[onnx.NodeProto]:
    """Return the nodes of a Binarizer; its threshold becomes a constant of `graph`."""
    result = node.output[0]
    floats, larger = f"{result}_float", f"{result}_larger"
    threshold = _add_constant(graph, f"{result}_threshold", attributes.get("threshold", 0.0))
    return [
        helper.make_node("Cast", [node.input[0]], [floats], to=onnx.TensorProto.FLOAT),
        helper.make_node("Greater", [floats, threshold], [larger], name=node.name),
        helper.make_node("Cast", [larger], [result], to=onnx.TensorProto.FLOAT),
    ]


def _add_constant(graph: onnx.GraphProto, name: str, values: object) -> str:
    """Add a float32 constant to `graph`, and return its name."""
    graph.initializer.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
    return name
