"""Means of many numbers in two steps, for C that adds up one after the other.

The sum of n floats, each added to those before, is off by up to n halves of the last bit; sums of rows, and then of
these, by about 2 sqrt(n). InstanceNormalization (GroupNorm, as exporters write it) is the one operator that sums over
whole maps twice, and the generator writes it as plain loops.

    y = (x - m) / sqrt(mean((x - m)^2) + epsilon) * scale + bias        m = mean(x), for each sample and channel
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import helper

__all__ = ["with_short_sums"]

_SHORT = 64  # so many numbers are added up as they are
_AXES_ARE_INPUTS = 18  # of ReduceMean, from this opset on


def with_short_sums(model: onnx.ModelProto) -> bool:
    """Write InstanceNormalization over many places in steps, in place; return whether there was any.

    Its input's shape must be known; others stay as they are.
    """
    graph = model.graph
    shapes = {value.name: _sizes(value) for value in (*graph.value_info, *graph.input, *graph.output)}
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    nodes: list[onnx.NodeProto] = []
    for number, node in enumerate(graph.node):
        shape = shapes.get(node.input[0], ()) if node.op_type == "InstanceNormalization" and not node.domain else ()
        if len(shape) > 2 and 0 not in shape and math.prod(shape[2:]) > _SHORT:
            nodes += _steps(graph, node, shape, opset, f"{node.name or node.output[0]}_sums{number}")
        else:
            nodes.append(node)
    changed = len(nodes) != len(graph.node)
    if changed:
        del graph.node[:]
        graph.node.extend(nodes)
    return changed


def _sizes(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _steps(
    graph: onnx.GraphProto, node: onnx.NodeProto, shape: tuple[int, ...], opset: int, base: str
) -> list[onnx.NodeProto]:
    count = math.prod(shape[2:])
    wide = next(n for n in range(math.isqrt(count), 0, -1) if count % n == 0)
    nodes: list[onnx.NodeProto] = []

    def constant(what: str, array: np.ndarray) -> str:
        graph.initializer.append(onnx.numpy_helper.from_array(array, f"{base}_{what}"))
        return f"{base}_{what}"

    def step(kind: str, inputs: list[str], what: str, **attributes: Any) -> str:  # noqa: ANN401 - as onnx has it
        nodes.append(helper.make_node(kind, inputs, [f"{base}_{what}"], f"{base}_{what}", **attributes))
        return f"{base}_{what}"

    def mean(value: str, what: str) -> str:
        for axis in (3, 2):
            if opset >= _AXES_ARE_INPUTS:
                axes = constant(f"{what}_axis{axis}", np.array([axis], np.int64))
                value = step("ReduceMean", [value, axes], f"{what}{axis}", keepdims=1)
            else:
                value = step("ReduceMean", [value], f"{what}{axis}", keepdims=1, axes=[axis])
        return value

    x, scale, bias = node.input
    per_channel = constant("channels", np.array([1, shape[1], 1, 1], np.int64))
    image = step("Reshape", [x, constant("image", np.array([*shape[:2], count // wide, wide], np.int64))], "of_image")
    centred = step("Sub", [image, mean(image, "mean")], "centred")
    square = mean(step("Mul", [centred, centred], "square"), "variance")
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    root = step("Sqrt", [step("Add", [square, constant("epsilon", np.array(epsilon, np.float32))], "above")], "root")
    normal = step("Div", [centred, root], "normal")
    scaled = step("Mul", [normal, step("Reshape", [scale, per_channel], "scale")], "scaled")
    moved = step("Add", [scaled, step("Reshape", [bias, per_channel], "bias")], "moved")
    nodes.append(
        helper.make_node("Reshape", [moved, constant("shape", np.array(shape, np.int64))], list(node.output), node.name)
    )
    return nodes
