"""Short nets, cut out of the valid ones: cheap enough for many cases, and each node is near an input
and an output.
"""

import io
from functools import cache

import numpy as np
import onnx
import onnxruntime as ort

__all__ = ["cut_net"]

_MAX_NODES = 4


@cache
def cut_net(content, data):
    """Return nets of up to four consecutive nodes of a float model, with their inputs.

    content : the model's file; tensors between nodes have a value_info, and a batch "N"
    data : the .npz file of its inputs
    Returns a list of (model file, .npz file), of which each input has the batch as its first axis.
    """
    model = onnx.ModelProto.FromString(content)
    graph = model.graph
    infos = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    tensors = _compute_tensors(model, dict(np.load(io.BytesIO(data))))
    nets = []
    for start in range(len(graph.node)):
        for end in range(start + 1, min(start + _MAX_NODES, len(graph.node)) + 1):
            net = _cut(model, infos, start, end)
            names = [value.name for value in net.graph.input]
            if names and all(_has_leading_batch(infos[name]) for name in names):
                file = io.BytesIO()
                np.savez(file, **{name: tensors[name] for name in names})
                nets.append((net.SerializeToString(), file.getvalue()))
    return nets


def _compute_tensors(model, feeds):
    """Return {name: array} of all inputs and all tensors between nodes, as onnxruntime computes."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    tapped.graph.output.extend(tapped.graph.value_info)
    session = ort.InferenceSession(tapped.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return feeds | dict(zip(names, session.run(names, feeds), strict=True))


def _cut(model, infos, start, end):
    """Return the nodes [start, end) of a model as a model of its own."""
    net = onnx.ModelProto()
    net.CopyFrom(model)
    graph = net.graph
    later = {name for node in graph.node[end:] for name in node.input}
    later.update(value.name for value in graph.output)
    nodes = list(graph.node[start:end])
    computed = {name for node in nodes for name in node.output}
    used = {name for node in nodes for name in node.input}
    constants = [tensor for tensor in graph.initializer if tensor.name in used]
    given = used - computed - {tensor.name for tensor in constants} - {""}
    values = [value for value in graph.value_info if value.name in computed]
    for field, kept in (
        (graph.node, nodes),
        (graph.initializer, constants),
        (graph.value_info, values),
        (graph.input, [infos[name] for name in sorted(given)]),
        (graph.output, [infos[name] for name in sorted(computed & later)]),
    ):
        kept = [type(item).FromString(item.SerializeToString()) for item in kept]
        del field[:]
        field.extend(kept)
    return net


def _has_leading_batch(value):
    dims = value.type.tensor_type.shape.dim
    return bool(dims) and dims[0].dim_param == "N"
