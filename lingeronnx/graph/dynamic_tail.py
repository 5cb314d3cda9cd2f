"""What a graph computes in sizes that its data decide, cut off as a model of its own, and put back.

NonMaxSuppression, NonZero and their like give another number of values for every sample. Such nodes
and all behind them are the host's: nothing is gained by integers there, samples cannot be stacked,
and shapes from one run mean nothing. So is control flow that the data decide, and an operator that
nobody here knows. A size that follows from the sizes of the inputs is none of these. Where more
layers lie behind than before, nothing is cut.

Works on the protobuf form; knows nothing of data and runners.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from . import ir, operators

__all__ = ["DynamicTail", "append_tail", "split_dynamic_tail"]

#: Domains of operators that somebody here computes: onnxruntime, and of integer ones the simulator.
_KNOWN_DOMAINS = (
    "",
    "ai.onnx",
    ir.FUNCTION_DOMAIN,
    "linger",
    "thinker",
    "ai.onnx.ml",
    "ai.onnx.preview.training",
    "ai.onnx.training",
    "com.microsoft",
    "com.microsoft.nchwc",
)
_FUNCTIONS_IR_VERSION = 8  # from which models have functions
_MAX_INFERENCE_BYTES = 1 << 28  # bytes of weights up to which types are inferred


@dataclass(frozen=True)
class DynamicTail:
    """What was cut off: `model` reads tensors of `body`.

    `outputs` are those of the whole, in order.
    host_reasons : {node: why the host has it}. sizes : {input of the whole: its sizes} where it is
    written for one sample.
    """

    body: ir.Model
    model: ir.Model
    outputs: tuple[str, ...]
    host_reasons: dict[str, str]
    single_sample_shapes: dict[str, tuple[int | None, ...]]

    @property
    def has_unknown_operator(self) -> bool:
        """Whether it is there for an operator that nobody here knows."""
        return any(_is_unknown_operator(self.model, node) for node in self.model.graph)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The tensors of the body that the tail reads."""
        return tuple(str(v.name) for v in self.model.graph.inputs)


def split_dynamic_tail(model: ir.Model) -> DynamicTail | None:
    """Return `model` cut in two, None where no size is decided by data.

    `model` is left as it is.
    """
    sized = (*operators.DATA_DEPENDENT_SHAPE_OPS, *operators.SHAPE_INPUTS)
    if not any(node.op_type in sized or _is_unknown_operator(model, node) for node in model.graph):
        return None
    why = _find_tail_nodes(model)
    behind = {str(v.name) for node in model.graph if str(node.name) in why for v in node.outputs}
    layers = [
        str(node.name) in why
        for node in model.graph
        if node.op_type in operators.LAYER_OPS and not node.domain
    ]
    if (
        not why
        or 2 * sum(layers) > len(layers)
        or all(str(node.name) in why for node in model.graph)
    ):
        return None
    whole = ir.to_proto(model)
    body, tail = onnx.ModelProto(), onnx.ModelProto()
    for part in (body, tail):
        part.CopyFrom(whole)
        for field in (part.graph.node, part.graph.output, part.graph.initializer):
            del field[:]
    known, constants = (
        _infer_value_infos(whole),
        {tensor.name: tensor for tensor in whole.graph.initializer},
    )
    entries = {value.name for value in whole.graph.input} - constants.keys()
    also = _find_recomputed_nodes(whole.graph, why, behind, known)
    tail.graph.node.extend(
        node for node in whole.graph.node if node.name in why or node.name in also
    )
    body.graph.node.extend(node for node in whole.graph.node if node.name not in why)
    inside = {name for node in tail.graph.node for name in node.output}
    written = entries.union(*(node.output for node in body.graph.node))
    taken = dict.fromkeys(name for node in tail.graph.node for name in _iter_read_names(node))
    reads = [name for name in taken if name in written - inside]
    for part in (body, tail):
        used = {name for node in part.graph.node for name in _iter_read_names(node)}
        used |= {value.name for value in whole.graph.output}
        part.graph.initializer.extend(tensor for name, tensor in constants.items() if name in used)
    outputs = [value.name for value in whole.graph.output]
    body.graph.output.extend(known[name] for name in outputs if name not in behind)
    more = [name for name in reads if name not in outputs and name not in entries]
    body.graph.output.extend(known[name] for name in more)
    if not body.graph.output:
        return None
    kept = ir.from_proto(body)
    ir.remove_unused(kept)
    del tail.graph.input[:]
    tail.graph.input.extend(known[name] for name in reads)
    tail.graph.output.extend(known[name] for name in outputs if name in behind)
    sizes = {
        str(v.name): ir.get_shape(v) or () for v in model.graph.inputs if v.const_value is None
    }
    one = {name: shape for name, shape in sizes.items() if shape[:1] == (1,)}
    before = "what reads it has sizes that the data decide"
    told = {
        n.name: why.get(n.name, before) for n in whole.graph.node if n.name in also or n.name in why
    }
    return DynamicTail(kept, ir.from_proto(tail), tuple(outputs), told, one)


def append_tail(body: ir.Model, tail: DynamicTail) -> ir.Model:
    """Return `body`, whatever became of it, with the tail behind it, and for one sample where the whole was."""
    whole, rest = ir.to_proto(body), ir.to_proto(tail.model)
    kept = {value.name for value in whole.graph.output}
    own = {name for node in whole.graph.node for name in node.output}
    own |= {tensor.name for tensor in whole.graph.initializer} | {
        value.name for value in whole.graph.input
    }
    outside = {*tail.input_names, *(value.name for value in rest.graph.output)}
    rename = {
        name: ir.unique_name(name, own)
        for name in _collect_names(rest.graph) - outside
        if name in own
    }
    _rename_tensors(rest.graph, rename)
    nodes = {node.name for node in whole.graph.node}
    for node in rest.graph.node:
        node.name = ir.unique_name(node.name, nodes) if node.name in nodes else node.name
    whole.graph.node.extend(rest.graph.node)
    whole.graph.initializer.extend(rest.graph.initializer)
    values = {value.name: value for value in (*whole.graph.output, *rest.graph.output)}
    del whole.graph.output[:]
    whole.graph.output.extend(values[name] for name in tail.outputs)
    whole.graph.value_info.extend(values[name] for name in kept if name not in tail.outputs)
    have = {entry.domain: entry for entry in whole.opset_import}
    for entry in rest.opset_import:
        if entry.domain in have:  # integer operators are the same in all later opsets
            have[entry.domain].version = max(have[entry.domain].version, entry.version)
        else:
            whole.opset_import.append(entry)
    whole.ir_version = max(whole.ir_version, min(rest.ir_version, _FUNCTIONS_IR_VERSION))
    functions = {(f.domain, f.name) for f in whole.functions}
    whole.functions.extend(f for f in rest.functions if (f.domain, f.name) not in functions)
    joined = ir.from_proto(whole)
    for value in joined.graph.inputs:
        if str(value.name) in tail.single_sample_shapes:
            value.shape = ir.make_shape(tail.single_sample_shapes[str(value.name)])
    return joined


def _find_tail_nodes(model: ir.Model) -> dict[str, str]:
    """Return {node: why} of what gives sizes that data decide, and of all behind it."""
    data = {
        v for v in model.graph.inputs if v.const_value is None and ir.get_shape(v) not in ((), (1,))
    }
    behind: set[ir.Value] = set()
    why: dict[str, str] = {}
    for node in model.graph:
        values = list(_iter_read_values(node))
        if any(value in behind for value in values):
            why[str(node.name)] = "it reads what has sizes that the data decide"
        elif not node.domain and _has_data_dependent_shape(node, data):
            why[str(node.name)] = (
                "its sizes are decided by the data, and differ from sample to sample"
            )
        elif _is_unknown_operator(model, node):
            why[str(node.name)] = f"nobody here knows the operator {ir.display_op_type(node)}"
        if str(node.name) in why:
            behind.update(node.outputs)
        if (node.domain or node.op_type not in operators.SHAPE_QUERY_OPS) and any(
            value in data for value in values
        ):
            data.update(node.outputs)
    return why


def _is_unknown_operator(model: ir.Model, node: ir.Node) -> bool:
    """Whether nobody here can compute `node`.

    It is of a foreign domain, and no function of the model.
    """
    foreign = node.domain not in _KNOWN_DOMAINS
    return foreign and all((node.domain, node.op_type) != name[:2] for name in model.functions)


def _has_data_dependent_shape(node: ir.Node, data: set[ir.Value]) -> bool:
    """Whether sizes of the outputs of `node` follow from what the tensors `data` hold."""
    if node.op_type in operators.DATA_DEPENDENT_SHAPE_OPS:
        return any(value in data for value in node.inputs)
    places = operators.SHAPE_INPUTS.get(node.op_type, ())
    if any(index < len(node.inputs) and node.inputs[index] in data for index in places):
        return True
    return (
        node.op_type == "Loop"
        and not _has_invariant_condition(node)
        and any(value in data for value in _iter_read_values(node))
    )


def _has_invariant_condition(node: ir.Node) -> bool:
    """Whether the condition of a Loop is what it was in each turn."""
    if "body" not in node.attributes:  # a damaged file, which onnxruntime refuses
        return False
    body = node.attributes["body"].as_graph()
    value: ir.Value | None = body.outputs[0]
    while (
        value is not None
        and (maker := ir.producer(value)) is not None
        and maker.op_type == "Identity"
    ):
        value = maker.inputs[0]
    maker = ir.producer(value)
    return (
        value is body.inputs[1]
        or ir.const_value(value) is not None
        or (maker is not None and maker.op_type == "Constant")
    )


def _iter_read_values(node: ir.Node) -> Iterator[ir.Value]:
    """Yield what a node reads, also from within its subgraphs."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        for graph in ir.get_subgraphs(attribute):
            yield from (
                v for inner in ir.iter_nodes_recursive(graph) for v in inner.inputs if v is not None
            )


# ---- protobuf ----------------------------------------------------------------------------------------------------


def _iter_subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _iter_read_names(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, also those that its subgraphs take from around them."""
    yield from (name for name in node.input if name)
    for graph in _iter_subgraphs(node):
        yield from (name for inner in graph.node for name in _iter_read_names(inner))
        yield from (value.name for value in graph.output)


def _find_recomputed_nodes(
    graph: onnx.GraphProto, why: dict[str, str], tail_tensors: set[str], known: _ValueInfoMap
) -> set[str]:
    """Return the nodes of the body that the tail computes for itself, from real numbers that have samples."""
    makers = {name: node for node in graph.node for name in node.output}
    nodes: set[str] = set()
    waiting = [name for node in graph.node if node.name in why for name in _iter_read_names(node)]
    while waiting:
        name = waiting.pop()
        node = makers.get(name)
        if node is None or name in tail_tensors or node.name in nodes:
            continue
        kind = known[name].type.tensor_type
        if kind.elem_type != onnx.TensorProto.FLOAT or (
            kind.HasField("shape") and not kind.shape.dim
        ):
            nodes.add(node.name)
            waiting += _iter_read_names(node)
    return nodes


class _ValueInfoMap(dict[str, onnx.ValueInfoProto]):
    """What is known of tensors by name; of others, that they are real numbers."""

    def __missing__(self, name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)


def _infer_value_infos(whole: onnx.ModelProto) -> _ValueInfoMap:
    """Return the types of the tensors of `whole`, as far as the file tells them and they follow from the inputs'."""
    graph = whole.graph
    if sum(tensor.ByteSize() for tensor in graph.initializer) < _MAX_INFERENCE_BYTES:
        with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError, ValueError):
            graph = onnx.shape_inference.infer_shapes(whole).graph
    return _ValueInfoMap(
        {
            v.name: v
            for v in (*graph.value_info, *graph.input, *graph.output)
            if v.type.WhichOneof("value")
        }
    )


def _collect_names(graph: onnx.GraphProto) -> set[str]:
    names = {name for node in graph.node for name in (*node.input, *node.output) if name}
    return names | {tensor.name for tensor in graph.initializer}


def _rename_tensors(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
        for inner in _iter_subgraphs(node):
            _rename_tensors(inner, names)
            for value in inner.output:
                value.name = names.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
