"""Bias correction: take out the mean error that quantization leaves in every layer's output.

Rounded weights, saturation and round-half-up shift the mean of a layer's output, and a shift is what later layers
amplify. One walk through the integer graph, step by step in the simulator's own arithmetic: at each weight layer the
output is compared with the float model's, per channel, where the float value lies inside what the integer tensor can
hold (and is positive, where a Relu follows), and the bias is moved by the mean difference. Later layers then see the
corrected output, so errors of earlier layers are not corrected twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from .. import ir
from ..lower import lower
from ..ops import is_relu
from ..plan import Plan, QParams
from ..platforms import Platform
from ..runners import FloatRunner, IntRunner

__all__ = ["correct_bias", "samples_that_fit"]

_MEMORY = 512 * 2**20  # bytes of float activations held at a time
_PRIOR = 32.0  # elements of no error that are mixed into every mean, so that a rare channel moves little


def samples_that_fit(model: ir.Graph, most: int) -> int:
    """Return how many samples' activations of `model` fit the memory set aside, at least 1, at most `most`."""
    sizes = [ir.shape(v) for v in ir.values(model)]
    one = sum(4 * int(np.prod([d or 1 for d in s[1:]])) for s in sizes if s)
    return int(np.clip(_MEMORY // max(one, 1), 1, most))


def correct_bias(model: ir.Graph, plan: Plan, row: Platform, feed: Mapping[str, np.ndarray]) -> int:
    """Correct the biases of the float `model` in place for `plan` on `row`; return how many layers moved.

    feed : calibration samples, some tens.
    """
    layers = {
        str(node.outputs[0].name): node for node in model.graph
        if node.op_type in ("Conv", "Linear") and str(node.name) not in plan.floats
    }  # fmt: skip
    wanted = {name: array for name, array, _ in FloatRunner(model, set(layers)).run(feed)}
    moved = 0
    walk = IntRunner(lower(model, plan, row)).walk(feed)
    for step in walk:
        name = step.output.partition("@q")[0]
        node = layers.get(name)
        if node is None or not hasattr(step.kernel, "bias"):
            continue
        q = plan.tensors[name]
        error = _mean_error(wanted.pop(name), step.array, q, node)
        if not np.any(error):
            continue
        scale = plan.tensors[str(node.inputs[0].name)].scale * plan.tensors[str(node.inputs[1].name)].scale  # type: ignore[union-attr]
        old = step.kernel.bias
        shift = np.floor(error * scale + 0.5).astype(np.int64)
        walk.redo(replace(step.kernel, bias=(0 if old is None else old) - shift))
        _move(model, node, shift / scale)
        moved += 1
    return moved


def _mean_error(want: np.ndarray, have: np.ndarray, q: QParams, node: ir.Node) -> np.ndarray:
    """Return the mean of have - want per channel (axis 1 of Conv, last of Linear), float64, in real units."""
    axis = 1 if node.op_type == "Conv" else want.ndim - 1
    reader = ir.sole_consumer(node.outputs[0])
    low = 0.0 if reader is not None and is_relu(reader) else q.low / q.scale
    inside = (want > low) & (want < q.high / q.scale)
    error = np.where(inside, have.astype(np.float64) / q.scale - want, 0.0)
    axes = tuple(i for i in range(want.ndim) if i != axis)
    return np.asarray(error.sum(axis=axes) / (inside.sum(axis=axes) + _PRIOR))


def _move(model: ir.Graph, node: ir.Node, error: np.ndarray) -> None:
    """Subtract `error` from the bias of `node`, which gets one when it has none."""
    bias = ir.const(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is not None:
        ir.set_constant(model, node, 2, (bias - error).astype(np.float32), "corrected")
        return
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    name = ir.fresh_name(model, f"{node.outputs[0].name}@bias")
    node.replace_input_with(2, ir.add_initializer(model, name, (-error).astype(np.float32)))
