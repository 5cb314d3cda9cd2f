"""Fake quantization: float graphs in which tensors are rounded to the grid of a plan.

`build_fake_quantized_graph` appends ``clip(floor(x * scale + 0.5), low, high) / scale`` to every
tensor of the plan and rounds the weights; biases stay unrounded, and low and high are relative to
the zero point. `split_at_tensors` splits the graph at those tensors, so that each layer can be
computed from given inputs. `Affine.on_grid` does the same to an array. This module builds graphs
and runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from ...ir import ir
from ...ir.plan import Affine, Plan

__all__ = ["build_fake_quantized_graph", "split_at_tensors"]


def build_fake_quantized_graph(
    graph: ir.Model, plan: Plan, only: Collection[str] | None = None
) -> tuple[ir.Model, dict[str, str]]:
    """Build a float copy of `graph` in which tensors and weights are rounded as in `plan`.

    The normalized `graph` is not modified.

    Parameters
    ----------
    graph
        Normalized float graph.
    plan
        Plan of that graph, whose scales are used.
    only
        Names of the tensors and weights to round; None rounds all tensors of the plan.

    Returns
    -------
    model : ir.Model
        The fake-quantized copy.
    user_names : dict of str to str
        Tensor of the copy -> the tensor of `graph` that it represents.
    """
    copy = graph.clone()
    qparams = {name: q for name, q in plan.tensors.items() if only is None or name in only}
    user_names = {str(v.name): str(v.name) for v in ir.iter_values(copy) if v.name not in qparams}
    for name, rounded in _insert_fake_quant(copy, qparams).items():
        user_names[str(rounded.value.name)] = name
    _fake_quantize_weights(copy, qparams)
    return copy, user_names


def split_at_tensors(
    graph: ir.Model, plan: Plan, tensor_names: Collection[str]
) -> tuple[ir.Model, dict[str, str], dict[str, str]]:
    """Build a fake-quantized copy of `graph` that is split at tensors of `plan`.

    The consumers of each split tensor use a new graph input instead.

    Parameters
    ----------
    graph
        Normalized float graph; it is not modified.
    plan
        Plan of that graph; all its tensors and weights are rounded.
    tensor_names
        Tensors to split at; those that are not in the plan are ignored.

    Returns
    -------
    model : ir.Model
        The split copy.
    input_names : dict of str to str
        New graph input -> the tensor of `graph` that it represents.
    user_names : dict of str to str
        Computed tensor of the copy, rounded if it is in the plan -> the tensor it represents.
    """
    copy = graph.clone()
    user_names = {
        str(v.name): str(v.name) for v in ir.iter_values(copy) if v.name not in plan.tensors
    }
    input_names: dict[str, str] = {}
    used_names = ir.get_tensor_names(copy)
    for name, rounded in _insert_fake_quant(copy, plan.tensors).items():
        user_names[str(rounded.value.name)] = name
        if name not in tensor_names:
            continue
        graph_input = ir.Value(
            name=ir.reserve_name(f"{name}_given", used_names),
            shape=rounded.value.shape,
            type=rounded.value.type,
        )
        copy.graph.inputs.append(graph_input)
        input_names[str(graph_input.name)] = name
        for node, index in rounded.uses:
            node.replace_input_with(index, graph_input)
    _fake_quantize_weights(copy, plan.tensors)
    return copy, input_names, user_names


class _RoundedTensor(NamedTuple):
    """A rounded tensor, and the (node, input index) pairs that use it."""

    value: ir.Value
    uses: list[tuple[ir.Node, int]]


def _insert_fake_quant(model: ir.Model, qparams: Mapping[str, Affine]) -> dict[str, _RoundedTensor]:
    """Insert rounding after each tensor named in `qparams`, and let its consumers use the result.

    Changes the model in place; constants are skipped, and graph outputs keep their values.

    Returns
    -------
    dict
        The rounded value and the former uses, by the tensor's name.
    """
    used_names = ir.get_tensor_names(model)
    rounded_tensors: dict[str, _RoundedTensor] = {}
    for value in list(ir.iter_values(model)):
        q = qparams.get(str(value.name))
        if q is None or value.const_value is not None:
            continue
        uses = [(use.node, use.idx) for use in value.uses()]
        nodes = _make_fake_quant_nodes(model, value, q, used_names)
        producer = value.producer()
        if producer is None:
            model.graph.insert_before(model.graph[0], nodes)
        else:
            model.graph.insert_after(producer, nodes)
        rounded = nodes[-1].outputs[0]
        for node, index in uses:
            node.replace_input_with(index, rounded)
        rounded_tensors[str(value.name)] = _RoundedTensor(rounded, uses)
    return rounded_tensors


def _make_fake_quant_nodes(
    model: ir.Model, value: ir.Value, q: Affine, used_names: set[str]
) -> list[ir.Node]:
    """Make the nodes that round `value` to the values that integers of `q` represent.

    They are Mul by the scale, Add 0.5, Floor, Clip to the integers (less the zero point), Div by
    the scale. Their constants become initializers of `model`, whose names, as those of the nodes,
    are added to `used_names`; the nodes are not inserted. The last one has the result.
    """
    scale, source, nodes = q.scale, value, []
    operands_by_op: tuple[tuple[str, tuple[float, ...]], ...] = (
        ("Mul", (scale,)),
        ("Add", (0.5,)),
        ("Floor", ()),
        ("Clip", (q.low - q.zero_point, q.high - q.zero_point)),
        ("Div", (scale,)),
    )
    for op_type, operands in operands_by_op:
        constants = []
        for operand in operands:
            name = ir.reserve_name(f"{value.name}_{op_type}", used_names)
            constants.append(ir.add_initializer(model, name, np.array(operand, np.float32)))
        output = ir.reserve_name(f"{value.name}_rounded", used_names)
        node = ir.make_node(op_type, [source, *constants], output=output, name=output, like=value)
        nodes.append(node)
        source = node.outputs[0]
    return nodes


def _fake_quantize_weights(model: ir.Model, qparams: Mapping[str, Affine]) -> None:
    """Round each initializer named in `qparams` to values that its integers represent, in place.

    The result is clipped to the range of the initializer's float type, which it keeps. Names
    without an initializer are ignored.
    """
    for name, value in model.graph.initializers.items():
        q, array = qparams.get(name), ir.const_value(value)
        if q is None or array is None:
            continue
        rounded = q.on_grid(array.astype(np.float64))
        # The lowest float, which masks contain, may round to a value beyond the type.
        max_value = np.finfo(array.dtype).max
        clipped = np.clip(rounded, -max_value, max_value).astype(array.dtype)
        ir.set_initializer_value(value, clipped)
