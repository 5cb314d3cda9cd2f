"""Recognise what Clip means.

Relu where only the lower bound 0 acts, otherwise constant bounds in one form.
A Clip with bounds (0, nothing) becomes Relu. One that only cuts where no value can be goes. Bounds
that are attributes (opset 6) stay attributes; `ops.activation` reads both forms. Of two Clips (or
Relus) in a row, the first read by the second alone, one is left.
"""

from __future__ import annotations

import math

import numpy as np

from ...graph import ir, operators
from ...ops.functions.activation import get_clip_bounds
from .._pass import PassResult, SkipReason


def simplify_clip(model: ir.Model) -> PassResult:
    """Simplify the Clip nodes of `model`."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        limits, kind = (
            _get_bounds(node),
            ir.require_input(node).dtype if node.inputs and node.inputs[0] is not None else None,
        )
        if limits is None or (kind is not None and not kind.is_floating_point()):
            if node.op_type == "Clip" and not node.domain:
                known = "its bounds are computed at run time, or in the wrong order"
                why.append(SkipReason(node, known if limits is None else "it clips integers"))
            continue
        before = ir.producer(node.inputs[0])
        inner = _get_bounds(before)
        if before is not None and inner is not None and ir.sole_consumer(before.outputs[0]) is node:
            low, high = (
                min(max(end, limits[0]), limits[1]) for end in inner
            )  # the outer one on the inner's ends
            if ir.can_bypass_node(before, ir.require_input(before)):
                ir.bypass_node(model, before, ir.require_input(before))
                limits = (low, high)
                node = _replace_with_clip(model, node, limits)
                changed += 1
        never = (
            limits[0] <= 0
            and limits[1] == math.inf
            and node.op_type == "Clip"
            and _is_input_nonnegative(node)
        )
        if never and ir.can_bypass_node(node, ir.require_input(node)):
            ir.bypass_node(model, node, ir.require_input(node))
            changed += 1
            continue
        if limits[0] == 0 and limits[1] == math.inf and node.op_type == "Clip":
            new = ir.make_node(
                "Relu", [node.inputs[0]], origin=node, output="", like=node.outputs[0]
            )
            ir.replace_nodes(model, [node], [new])
            changed += 1
    return PassResult(changed, why)


def _is_input_nonnegative(node: ir.Node) -> bool:
    """Whether what `node` reads is at least 0, whatever the data."""
    maker = ir.producer(node.inputs[0])
    while (
        maker is not None
        and maker.op_type in operators.PERMUTATION_OPS | operators.SELECTION_OPS
        and not maker.domain
    ):
        maker = ir.producer(maker.inputs[0])
    return maker is not None and maker.op_type in operators.NONNEGATIVE_OPS and not maker.domain


def _get_bounds(node: ir.Node | None) -> tuple[float, float] | None:
    """Return the ordered bounds of a Relu or of a Clip with constant ones, else None."""
    if node is None or node.domain or node.op_type not in ("Relu", "Clip"):
        return None
    limits = (0.0, math.inf) if node.op_type == "Relu" else get_clip_bounds(node)
    return limits if limits is not None and limits[0] <= limits[1] else None


def _replace_with_clip(model: ir.Model, node: ir.Node, limits: tuple[float, float]) -> ir.Node:
    """Return `node`, a Relu or Clip, as a Clip with these bounds, in the form of the model's opset."""
    base = node.outputs[0].name
    if ir.get_opset(model) < 11:
        inputs: list[ir.Value | None] = [ir.require_input(node)]
        attributes = {
            key: v for key, v in zip(("min", "max"), limits, strict=True) if math.isfinite(v)
        }
    else:
        ends = [
            ir.add_initializer(
                model, ir.unique_tensor_name(model, f"{base}_{key}"), np.array(v, np.float32)
            )
            if math.isfinite(v)
            else None
            for key, v in zip(("low", "high"), limits, strict=True)
        ]
        inputs, attributes = (
            [ir.require_input(node), *(ends if ends[1] is not None else ends[:1])],
            {},
        )
    new = ir.make_node("Clip", inputs, attributes, origin=node, output="", like=node.outputs[0])
    ir.replace_nodes(model, [node], [new])
    return new
