"""A plan computed in float.

Graphs in which tensors are rounded to the plan's grid, for onnxruntime.
`build_fake_quantized_graph` follows every tensor of the plan by ``clip(floor(x * scale + 0.5), low,
high) / scale`` and rounds the weights; biases stay real; low and high are counted from the zero
point. `split_at_tensors` takes the graph apart at those tensors, so that each layer can be computed
from given values. `Affine.on_grid` is the same for an array. Knows graphs and plans, runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ..graph import ir
from . import Affine, Plan

__all__ = ["build_fake_quantized_graph", "split_at_tensors"]


def build_fake_quantized_graph(
    graph: ir.Model, plan: Plan, only: Collection[str] | None = None
) -> tuple[ir.Model, dict[str, str]]:
    """Return a float graph that computes `plan` on the normalised `graph`, and {its tensor.

    The tensor it stands for}.
    only : tensors and weights to round, by name; None for all that the plan has.
    """
    copy = ir.clone(graph)
    wanted = {name: q for name, q in plan.tensors.items() if only is None or name in only}
    users = {str(v.name): str(v.name) for v in ir.iter_values(copy) if v.name not in wanted}
    users.update(
        {str(last.name): name for name, (last, _) in _insert_fake_quant(copy, wanted).items()}
    )
    _fake_quantize_weights(copy, wanted)
    return copy, users


def split_at_tensors(
    graph: ir.Model, plan: Plan, tensor_names: Collection[str]
) -> tuple[ir.Model, dict[str, str], dict[str, str]]:
    """Return `graph` taken apart at those tensors of `plan` in `tensor_names`.

    What reads one reads a graph input instead.
    Also {such an input: the tensor it stands for} and {a tensor that is computed, and rounded: what
    it stands for}.
    """
    copy = ir.clone(graph)
    whole = [str(v.name) for v in ir.iter_values(copy) if v.name not in plan.tensors]
    reads: dict[str, str] = {}
    writes: dict[str, str] = {}
    taken = ir.get_tensor_names(copy)
    for name, (last, readers) in _insert_fake_quant(copy, plan.tensors).items():
        writes[str(last.name)] = name
        if name not in tensor_names:
            continue
        graph_input = ir.Value(
            name=ir.reserve_name(f"{name}_given", taken), shape=last.shape, type=last.type
        )
        copy.graph.inputs.append(graph_input)
        reads[str(graph_input.name)] = name
        for node, index in readers:
            node.replace_input_with(index, graph_input)
    _fake_quantize_weights(copy, plan.tensors)
    return copy, reads, {**{name: name for name in whole}, **writes}


def _insert_fake_quant(
    model: ir.Model, wanted: Mapping[str, Affine]
) -> dict[str, tuple[ir.Value, list[tuple[ir.Node, int]]]]:
    """Let all that reads a tensor of `wanted` read it rounded.

    Return by name that tensor and what reads it.
    """
    taken, rounded = ir.get_tensor_names(model), {}
    for value in list(ir.iter_values(model)):
        q = wanted.get(str(value.name))
        if q is None or value.const_value is not None:
            continue
        readers = [(use.node, use.idx) for use in value.uses()]
        nodes = _make_fake_quant_nodes(model, value, q, taken)
        maker = value.producer()
        if maker is None:
            model.graph.insert_before(model.graph[0], nodes)
        else:
            model.graph.insert_after(maker, nodes)
        for node, index in readers:
            node.replace_input_with(index, nodes[-1].outputs[0])
        rounded[str(value.name)] = nodes[-1].outputs[0], readers
    return rounded


def _make_fake_quant_nodes(
    model: ir.Model, value: ir.Value, q: Affine, taken: set[str]
) -> list[ir.Node]:
    """Return nodes that round `value`."""
    scale, last, nodes = q.scale, value, []
    steps: tuple[tuple[str, tuple[float, ...]], ...] = (
        ("Mul", (scale,)),
        ("Add", (0.5,)),
        ("Floor", ()),
        ("Clip", (q.low - q.zero_point, q.high - q.zero_point)),
        ("Div", (scale,)),
    )
    for op_type, operands in steps:
        constants = [
            ir.add_initializer(
                model,
                ir.reserve_name(f"{value.name}_{op_type}", taken),
                np.array(operand, np.float32),
            )
            for operand in operands
        ]
        output = ir.reserve_name(f"{value.name}_rounded", taken)
        nodes.append(
            ir.make_node(op_type, [last, *constants], output=output, name=output, like=value)
        )
        last = nodes[-1].outputs[0]
    return nodes


def _fake_quantize_weights(model: ir.Model, wanted: Mapping[str, Affine]) -> None:
    for name, value in model.graph.initializers.items():
        q, array = wanted.get(name), ir.const_value(value)
        if q is not None and array is not None:
            most = np.finfo(
                array.dtype
            ).max  # the lowest number there is, of a mask, may round to one beyond
            ir.set_initializer_value(
                value, np.clip(q.on_grid(array.astype(np.float64)), -most, most).astype(array.dtype)
            )
