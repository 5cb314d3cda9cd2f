"""Some float nodes of an integer graph as a model of their own, plain ONNX, for whoever computes them on the host.

What the chip writes wider than 8 bits is scaled here, by Cast and Mul.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import onnx

from ..errors import ModelError
from ..formats import DEQUANT, QUANT
from ..graph import ir
from ..graph.write_verification import iter_nodes_recursive

__all__ = ["build_host_model", "expand_dequant", "iter_read_names"]


def expand_dequant(whole: onnx.ModelProto, dequant: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return standard nodes that compute `dequant`.

    The scale is a power of two, so that one of them rounds.
    """
    taken = {name for node in whole.graph.node for name in (*node.input, *node.output)}
    scale = onnx.helper.get_node_attr_value(dequant, "scale_o")
    factor, real = (
        ir.unique_name(f"{dequant.output[0]}_{what}", taken) for what in ("factor", "counts")
    )
    whole.graph.initializer.append(
        onnx.numpy_helper.from_array(np.array(1 / scale, np.float32), factor)
    )
    cast = onnx.helper.make_node(
        "Cast", dequant.input, [real], f"{dequant.name}_cast", to=onnx.TensorProto.FLOAT
    )
    return [cast, onnx.helper.make_node("Mul", [real, factor], dequant.output, dequant.name)]


def iter_read_names(node: onnx.NodeProto) -> Iterator[str]:
    """Yield what a node reads, in its subgraphs too."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            own = {name for inner in graph.node for name in inner.output}
            own |= {v.name for v in graph.input} | {c.name for c in graph.initializer}
            yield from (
                name for inner in graph.node for name in iter_read_names(inner) if name not in own
            )
            yield from (v.name for v in graph.output if v.name not in own)


def build_host_model(
    whole: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], outputs: Collection[str]
) -> onnx.ModelProto | None:
    """Return `nodes` as a model that writes those of `outputs` that they compute.

    None without nodes.
    """
    if not nodes:
        return None
    graph = whole.graph
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(
        name for node in nodes for name in iter_read_names(node) if name not in made
    )
    makers = {
        name: node for node in graph.node for name in node.output if node.op_type == "Constant"
    }
    constants = {c.name: c for c in graph.initializer}
    part = onnx.GraphProto(name=graph.name)
    part.node.extend([*(makers[name] for name in read if name in makers), *nodes])
    part.initializer.extend(constants[name] for name in read if name in constants)
    entries = [name for name in read if name not in makers and name not in constants]
    for name in entries:
        part.input.append(_value_info(whole, name))
    for name in dict.fromkeys(outputs):
        if name in made:
            part.output.append(_value_info(whole, name))
    model = onnx.ModelProto(
        ir_version=max(whole.ir_version, 8), graph=part, producer_name="lingeronnx"
    )
    used = {node.domain for node in iter_nodes_recursive(nodes)}
    model.opset_import.extend(o for o in whole.opset_import if o.domain in used or not o.domain)
    model.functions.extend(whole.functions)
    for function in whole.functions:  # what functions are made of may be functions again
        have = {opset.domain for opset in model.opset_import}
        model.opset_import.extend(
            opset for opset in function.opset_import if opset.domain not in have
        )
    return model


def _value_info(whole: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """Return a tensor's name and type.

    Float at the chip's borders, where a graph from elsewhere does not tell.
    """
    graph = whole.graph
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.name == name and value.type.HasField("tensor_type"):
            return value
    if any(
        name in (node.input if node.op_type == QUANT.name else node.output)
        for node in graph.node
        if node.op_type in (QUANT.name, DEQUANT.name)
    ):
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    raise ModelError(
        f"tensor '{name}' between the parts of the host has no type in the model; quantize it again"
    )
