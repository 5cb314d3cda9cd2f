"""The float nodes of an integer graph that stay with the host: what runs before the chip, and what runs after it.

    host head: graph inputs -> what the chip reads          host tail: what its Dequants write -> graph outputs

Head, chip and tail have their tensors' names in common, and together compute the whole graph. Where the chip writes
more than 8 bits the tail scales them, by Cast and Mul.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ..errors import ModelError
from ..formats import DEQUANT, QUANT
from ..graph import ir
from ..graph.readback import with_inner
from ..run.part import on_chip

__all__ = ["HostParts", "host_parts"]


@dataclass(frozen=True)
class HostParts:
    """The host's models, plain ONNX; None where nothing is to be done."""

    head: onnx.ModelProto | None
    tail: onnx.ModelProto | None


def host_parts(graph: ir.Graph) -> HostParts:
    """Return the host's parts of an integer graph that has no float node between integer ones.

    A float node that neither feeds the chip nor reads from it belongs to the tail.
    """
    proto, inside = ir.to_proto(graph), on_chip(graph)
    chip = [id(node) in inside for node in graph.graph]
    nodes = []
    for node, whole in zip(proto.graph.node, chip, strict=True):
        if node.op_type == DEQUANT.name and not whole:
            nodes += _scaled(proto, node)
        elif not whole and node.op_type != "Constant":
            nodes.append(node)
    entries = [name for n, whole in zip(proto.graph.node, chip, strict=True) if whole for name in n.input]
    head = _before(nodes, entries)
    tail = [node for node in nodes if node not in head]
    ends = [value.name for value in proto.graph.output]
    later = {name for node in tail for name in _reads(node)}
    wanted = [*dict.fromkeys(entries), *later, *ends]
    return HostParts(_model(proto, head, wanted), _model(proto, tail, ends))


def _scaled(whole: onnx.ModelProto, dequant: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return standard nodes that compute `dequant`; the scale is a power of two, so that one of them rounds."""
    taken = {name for node in whole.graph.node for name in (*node.input, *node.output)}
    scale = onnx.helper.get_node_attr_value(dequant, "scale_o")
    factor, real = (ir.free_name(f"{dequant.output[0]}_{what}", taken) for what in ("factor", "counts"))
    whole.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1 / scale, np.float32), factor))
    cast = onnx.helper.make_node("Cast", dequant.input, [real], f"{dequant.name}_cast", to=onnx.TensorProto.FLOAT)
    return [cast, onnx.helper.make_node("Mul", [real, factor], dequant.output, dequant.name)]


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield what a node reads, in its subgraphs too."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            own = {name for inner in graph.node for name in inner.output}
            own |= {v.name for v in graph.input} | {c.name for c in graph.initializer}
            yield from (name for inner in graph.node for name in _reads(inner) if name not in own)
            yield from (v.name for v in graph.output if v.name not in own)


def _before(nodes: Sequence[onnx.NodeProto], names: Collection[str]) -> list[onnx.NodeProto]:
    """Return the nodes that `names` are computed by, in order."""
    wanted, found = set(names), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            found.append(node)
            wanted.update(_reads(node))
    return found[::-1]


def _model(whole: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], outputs: Collection[str]) -> onnx.ModelProto | None:
    """Return `nodes` as a model that writes those of `outputs` that they compute; None without nodes."""
    if not nodes:
        return None
    graph = whole.graph
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in _reads(node) if name not in made)
    makers = {name: node for node in graph.node for name in node.output if node.op_type == "Constant"}
    constants = {c.name: c for c in graph.initializer}
    part = onnx.GraphProto(name=graph.name)
    part.node.extend([*(makers[name] for name in read if name in makers), *nodes])
    part.initializer.extend(constants[name] for name in read if name in constants)
    entries = [name for name in read if name not in makers and name not in constants]
    for name in entries:
        part.input.append(_value(whole, name))
    for name in dict.fromkeys(outputs):
        if name in made:
            part.output.append(_value(whole, name))
    model = onnx.ModelProto(ir_version=max(whole.ir_version, 8), graph=part, producer_name="lingeronnx")
    used = {node.domain for node in with_inner(nodes)}
    model.opset_import.extend(o for o in whole.opset_import if o.domain in used or not o.domain)
    model.functions.extend(whole.functions)
    for function in whole.functions:  # what functions are made of may be functions again
        have = {opset.domain for opset in model.opset_import}
        model.opset_import.extend(opset for opset in function.opset_import if opset.domain not in have)
    return model


def _value(whole: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """Return a tensor's name and type; float at the chip's borders, where a graph from elsewhere does not tell."""
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
    raise ModelError(f"tensor '{name}' between the parts of the host has no type in the model; quantize it again")
