"""Split a float model into stages that run one after the other.

An onnxruntime session keeps all requested tensors in memory until a run ends. If that is too much,
the model is split; no node is computed twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx

from ...ir import ir

__all__ = ["ModelStage", "group_tensors_by_size", "split_into_stages"]

#: Maximum bytes of one sample's requested tensors in one session.
MAX_STAGE_BYTES = 1 << 26


class ModelStage(NamedTuple):
    """Nodes that run together.

    proto : model without declared outputs. inputs : tensors that it consumes. outputs : requested
    tensors. handed_on : other tensors that later stages consume.
    """

    proto: onnx.ModelProto
    inputs: Sequence[str]
    outputs: Sequence[str]
    handed_on: Sequence[str]


def group_tensors_by_size(model: ir.Model, names: Sequence[str]) -> list[list[str]]:
    """Group consecutive tensors that have together at most `MAX_STAGE_BYTES` bytes per sample.

    An element counts as 4 bytes. The order is that of `names`; a larger tensor is in a group of its
    own. There is one group if shapes or types are not known, or nodes have subgraphs.
    """
    values = {str(value.name): value for value in ir.iter_values(model)}
    has_subgraphs = any(ir.has_subgraphs(node) for node in model.graph)
    if has_subgraphs or any(v.dtype is None or v.shape is None for v in values.values()):
        return [list(names)]
    groups: list[list[str]] = [[]]
    group_bytes = 0
    for name in names:
        tensor_bytes = 4 * math.prod(int(size or 1) for size in ir.get_shape(values[name]) or ())
        if groups[-1] and group_bytes + tensor_bytes > MAX_STAGE_BYTES:
            groups.append([])
            group_bytes = 0
        groups[-1].append(name)
        group_bytes += tensor_bytes
    return groups


def split_into_stages(
    proto: onnx.ModelProto, groups: Sequence[Sequence[str]], types: Mapping[str, int]
) -> list[ModelStage]:
    """Split a model into one stage per group of requested tensors.

    A stage ends after the last node of its group. Nodes that no requested tensor depends on are
    removed. `proto` is not modified.

    Parameters
    ----------
    proto
        The model.
    groups
        Requested tensors, in graph order.
    types
        ONNX element types of all tensors.
    """
    nodes = _find_ancestors(proto, set(itertools.chain.from_iterable(groups)))
    position: dict[str, int] = {}
    for index, node in enumerate(nodes):
        position.update(dict.fromkeys(node.output, index))
    stages, start = [], 0
    for group_index, group in enumerate(groups):
        end = len(nodes)
        if group_index < len(groups) - 1:
            end = max(start, *(position[name] + 1 for name in group))
        later_inputs = set(itertools.chain.from_iterable(node.input for node in nodes[end:]))
        stages.append(_make_stage(proto, nodes[start:end], group, later_inputs, types))
        start = end
    return stages


def _make_stage(
    proto: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    later_inputs: set[str],
    types: Mapping[str, int],
) -> ModelStage:
    """Make a stage of the consecutive `nodes` of `proto`, which is not modified.

    `outputs` are the tensors that it yields, `later_inputs` those that later stages consume, which
    are handed on unless they are in `outputs`; `types` maps tensors to ONNX element types.
    """
    computed = set(itertools.chain.from_iterable(node.output for node in nodes))
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    consumed = dict.fromkeys(itertools.chain.from_iterable(node.input for node in nodes))
    external = [name for name in consumed if name and name not in computed]
    inputs = [name for name in external if name not in constants]
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    graph = model.graph
    del graph.node[:], graph.initializer[:], graph.input[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(constants[name] for name in external if name in constants)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(name, types[name], None) for name in inputs
    )
    handed_on = sorted(name for name in computed & later_inputs if name not in outputs)
    return ModelStage(model, inputs, list(outputs), handed_on)


def _find_ancestors(proto: onnx.ModelProto, names: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes on which tensors `names` depend, producers included, in graph order.

    Tensors that only subgraphs read are not followed.
    """
    needed, nodes = set(names), []
    for node in reversed(proto.graph.node):
        if not needed.isdisjoint(node.output):
            nodes.append(node)
            needed.update(name for name in node.input if name)
    return nodes[::-1]
