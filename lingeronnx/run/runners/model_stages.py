"""A float model in stages that run one after the other, each handing on what later ones read.

A session holds all that it may be asked for until a run ends. Where that is too much the model is
cut: no node is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from ...graph import ir

__all__ = ["ModelStage", "group_tensors_by_size", "split_into_stages"]

#: Bytes of one sample's tensors that one session holds.
MAX_STAGE_BYTES = 1 << 26


@dataclass(frozen=True)
class ModelStage:
    """Nodes that run together.

    As a model without outputs, what it reads, is asked for, and hands on.
    """

    proto: onnx.ModelProto
    inputs: Sequence[str]
    outputs: Sequence[str]
    handed_on: Sequence[str]


def group_tensors_by_size(model: ir.Model, names: Sequence[str]) -> list[list[str]]:
    """Return tensors in groups, in order, of `MAX_STAGE_BYTES` bytes a sample.

    One group where sizes or types are unknown.
    """
    values = {str(v.name): v for v in ir.iter_values(model)}
    unknown = any(value.dtype is None or ir.get_shape(value) is None for value in values.values())
    if unknown or any(ir.has_subgraphs(node) for node in model.graph):
        return [list(names)]
    found: list[list[str]] = [[]]
    size = 0
    for name in names:
        one = 4 * math.prod(int(d or 1) for d in ir.get_shape(values[name]) or ())
        if found[-1] and size + one > MAX_STAGE_BYTES:
            found.append([])
            size = 0
        found[-1].append(name)
        size += one
    return found


def split_into_stages(
    proto: onnx.ModelProto, wanted: Sequence[Sequence[str]], types: Mapping[str, int]
) -> list[ModelStage]:
    """Cut `proto` behind the last node of each group of tensors.

    types : the element types of all tensors. Nodes that nothing wanted is computed from are left
    out.
    """
    nodes = _find_ancestors(proto, {name for group in wanted for name in group})
    place = {name: index for index, node in enumerate(nodes) for name in node.output}
    held = {tensor.name: tensor for tensor in proto.graph.initializer}
    found, start = [], 0
    for number, group in enumerate(wanted):
        end = (
            len(nodes)
            if number == len(wanted) - 1
            else max(start, *(place[name] + 1 for name in group))
        )
        part, later = nodes[start:end], {name for node in nodes[end:] for name in node.input}
        made = {name for node in part for name in node.output}
        reads = dict.fromkeys(
            name for node in part for name in node.input if name and name not in made
        )
        inputs = [name for name in reads if name not in held]
        model = onnx.ModelProto()
        model.CopyFrom(proto)
        del (
            model.graph.node[:],
            model.graph.initializer[:],
            model.graph.input[:],
            model.graph.value_info[:],
        )
        model.graph.node.extend(part)
        model.graph.initializer.extend(held[name] for name in reads if name in held)
        model.graph.input.extend(
            onnx.helper.make_tensor_value_info(name, types[name], None) for name in inputs
        )
        border = sorted(name for name in made & later if name not in group)
        found.append(ModelStage(model, inputs, list(group), border))
        start = end
    return found


def _find_ancestors(proto: onnx.ModelProto, names: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes that `names` are computed from, in order."""
    needed, kept = set(names), []
    for node in reversed(proto.graph.node):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed.update(name for name in node.input if name)
    return kept[::-1]
