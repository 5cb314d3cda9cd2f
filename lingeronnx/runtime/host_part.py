"""Extract float nodes of an integer graph as a plain ONNX model that the host can run.

Integers of more than 8 bits from the chip are dequantized in this model, by Cast and Mul.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import onnx

from ..common.errors import ModelError
from ..ir import ir
from ..ir.attributes import iter_nodes_recursive
from ..operators.integer_ops import DEQUANT, QUANT

__all__ = ["build_host_model", "expand_dequant", "iter_read_names"]


def expand_dequant(model: onnx.ModelProto, dequant: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return [Cast, Mul], standard nodes that compute Dequant node `dequant`.

    The constant 1 / scale is added to `model`, in place. The scale is a power of two, so only the
    Cast rounds.
    """
    used_names: set[str] = set()
    for node in model.graph.node:
        used_names.update(node.input, node.output)
    scale = onnx.helper.get_node_attr_value(dequant, "scale_o")
    factor = ir.unique_name(f"{dequant.output[0]}_factor", used_names)
    unscaled = ir.unique_name(f"{dequant.output[0]}_counts", used_names)
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.array(1 / scale, np.float32), factor)
    )
    cast = onnx.helper.make_node(
        "Cast", dequant.input, [unscaled], f"{dequant.name}_cast", to=onnx.TensorProto.FLOAT
    )
    return [cast, onnx.helper.make_node("Mul", [unscaled, factor], dequant.output, dequant.name)]


def iter_read_names(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of the inputs of `node`, then of outer tensors that its subgraphs consume.

    Absent inputs are left out; a name may come several times.
    """
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        subgraphs = list(attribute.graphs)
        if attribute.HasField("g"):
            subgraphs.append(attribute.g)
        for subgraph in subgraphs:
            yield from _iter_outer_names(subgraph)


def _iter_outer_names(subgraph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that a subgraph's nodes or outputs consume and that it does not define."""
    defined = {value.name for value in (*subgraph.input, *subgraph.initializer)}
    for node in subgraph.node:
        defined.update(node.output)
    for node in subgraph.node:
        yield from (name for name in iter_read_names(node) if name not in defined)
    yield from (value.name for value in subgraph.output if value.name not in defined)


def build_host_model(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], outputs: Collection[str]
) -> onnx.ModelProto | None:
    """Build a model of some nodes of `model`, or return None if there are no nodes.

    Its inputs are the tensors that the nodes consume and do not compute, constants apart; its
    outputs are those of `outputs` that they compute, in that order. Raises ModelError if an input
    or output has no type.
    """
    if not nodes:
        return None
    computed = set(itertools.chain.from_iterable(node.output for node in nodes))
    consumed = itertools.chain.from_iterable(map(iter_read_names, nodes))
    inputs = dict.fromkeys(name for name in consumed if name not in computed)
    constant_nodes = {}
    for node in model.graph.node:
        if node.op_type == "Constant":
            constant_nodes.update(dict.fromkeys(node.output, node))
    initializers = {constant.name: constant for constant in model.graph.initializer}
    graph = onnx.GraphProto(name=model.graph.name)
    for name in inputs:
        if name in constant_nodes:
            graph.node.append(constant_nodes[name])
        if name in initializers:
            graph.initializer.append(initializers[name])
        if name not in constant_nodes and name not in initializers:
            graph.input.append(_make_value_info(model, name))
    graph.node.extend(nodes)
    for name in dict.fromkeys(outputs):
        if name in computed:
            graph.output.append(_make_value_info(model, name))
    host_model = onnx.ModelProto(
        ir_version=max(model.ir_version, 8), graph=graph, producer_name="lingeronnx"
    )
    _copy_functions(model, host_model)
    return host_model


def _copy_functions(model: onnx.ModelProto, host_model: onnx.ModelProto) -> None:
    """Add the functions of `model`, and the opsets that nodes and functions use, to `host_model`.

    In place; the default opset is always added.
    """
    domains = {node.domain for node in iter_nodes_recursive(host_model.graph.node)}
    host_model.opset_import.extend(
        opset for opset in model.opset_import if opset.domain in domains or not opset.domain
    )
    host_model.functions.extend(model.functions)
    for function in model.functions:  # functions may consist of other functions
        imported = {opset.domain for opset in host_model.opset_import}
        host_model.opset_import.extend(
            opset for opset in function.opset_import if opset.domain not in imported
        )


def _make_value_info(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """Return name and type of tensor `name` as `model` declares it.

    Without a declaration, a tensor at a Quant or Dequant is float of unknown shape; for others
    ModelError is raised.
    """
    graph = model.graph
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.name == name and value.type.HasField("tensor_type"):
            declared: onnx.ValueInfoProto = value
            return declared
    for node in graph.node:
        is_quantized = node.op_type == QUANT.name and name in node.input
        is_dequantized = node.op_type == DEQUANT.name and name in node.output
        if is_quantized or is_dequantized:
            return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    raise ModelError(
        f"tensor '{name}' between host parts has no type in the model; quantize it again"
    )
