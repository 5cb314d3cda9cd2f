"""Refine layer by layer: round weights with error compensation, then take the mean error out through the bias.

One walk through the integer graph in the simulator's own arithmetic. At each weight layer, with the integers that
really reach it on some calibration samples:

1. the weight is rounded again so that the layer's output changes least (`rounding`), and taken over where it does;
   with `aim`, what is rounded are weights that come nearer to the float model's outputs from these inputs (`aim`);
2. the output is compared with the float model's, per channel, where the float value lies inside what the integer tensor
   can hold (and is positive, where a Relu follows), and the bias is moved by the mean difference. Of large maps a fixed
   sample of positions is compared, so that what is kept of the float model stays within the memory.

Later layers see the refined output, so errors of earlier layers are not corrected twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph import ir
from ...ops import is_relu
from ...plan import Plan, QParams
from ...platforms import Platform
from ...run.data import Progress
from ...run.int_runner import IntRunner
from ...run.runners import FloatRunner
from ..lower import lower
from ..partition import Partition
from .aim import aimed
from .rounding import compensated_round, output_error

__all__ = ["refinable", "refine", "walk_bytes"]

_PRIOR = 32.0  # elements of no error that are mixed into every mean, so that a rare channel moves little
_ROWS = 16384  # receptive fields that the second moments of a layer's inputs are taken over
_CHUNK = 2048  # rows of these at a time, of wider integers and of large layers
_FEWEST = 1024  # positions that a layer is compared at, however little memory there is
_LIVING = 4  # tensors that a step needs, and those that wait for a later one
_LARGEST = 4096  # inputs per output beyond which the moments' matrix would be too large


def walk_bytes(model: ir.Graph) -> int:
    """Return the bytes that a walk keeps of one sample: inputs as they come and joined, some tensors of 8 bits."""
    sizes = [math.prod(int(d or 1) for d in (ir.shape(v) or (0, 0))[1:]) for v in ir.values(model)]
    inputs = sum(math.prod(int(d or 1) for d in (ir.shape(v) or (0, 0))[1:]) for v in model.graph.inputs)
    return 8 * inputs + _LIVING * max(sizes, default=0)


def refinable(parts: Partition) -> dict[str, ir.Node]:
    """Return the layers that `refine` works on, by their outputs."""
    return {ir.written_name(node): node for node, _ in parts.nodes if node.op_type in ("Conv", "Linear")}


def refine(
    parts: Partition,
    plan: Plan,
    row: Platform,
    feed: Mapping[str, np.ndarray],
    runner: FloatRunner,
    pieces: Sequence[Mapping[str, np.ndarray]] = (),
    budget: int = 1 << 29,
    aim: bool = False,
    progress: Progress | None = None,
) -> None:
    """Refine weights and biases of the float graph of `parts` in place, for `plan` on `row`.

    feed : calibration samples, some tens to hundreds. runner : of the graph's layers as they are now. pieces : the same
    samples, in pieces that are run one after the other. budget : bytes that may be taken. aim : at the outputs of the
    float model, not at its weights. The new weights lie on the plan's grid. progress : called layer by layer.
    """
    model, layers = parts.graph, refinable(parts)
    wanted = _targets(layers, runner, pieces if pieces and runner.batch_first(layers) else [feed], budget)
    lowered = lower(parts, plan, row)
    made = {name for name, layer in lowered.layers.items() if layer in layers}
    walk = IntRunner(lowered.graph, row=row).walk(feed, made)
    number = len(wanted)
    for step in walk:
        # Of the steps that are made for a layer, that with the weight: the others move its data.
        name = lowered.layers.get(step.output, "")
        node = layers.get(name)
        if node is None or name not in wanted or not hasattr(step.kernel, "weight"):
            continue
        kernel = step.kernel
        shared = len(ir.source(node, 1).uses()) > 1  # by the steps of a recurrent layer, which keep it in common
        if progress is not None:
            progress("refining", number - len(wanted), number)
        want = wanted.pop(name)
        weight = None if shared else _rounded(kernel, step.inputs[0], node, plan, want if aim else None)
        if weight is not None:
            kernel = replace(kernel, weight=weight)
            ir.set_constant(model, node, 1, _real(weight, plan, node), "refined")
            walk.redo(kernel)
        error = _mean_error(want.values, want.of(step.array), plan.tensors.get(name), node)
        if np.any(error):
            scale = plan.tensors[ir.read_name(node)].scale * np.asarray(plan.tensors[ir.read_name(node, 1)].scale)
            shift = np.floor(error * scale + 0.5).astype(np.int64)
            walk.redo(replace(kernel, bias=(0 if kernel.bias is None else kernel.bias) - shift))
            _move_bias(model, node, shift / scale)


def _real(weight: np.ndarray, plan: Plan, node: ir.Node) -> np.ndarray:
    old = ir.const(node.inputs[1])
    assert old is not None
    held = plan.tensors[ir.read_name(node, 1)].factor(old.ndim)
    return (weight.reshape(old.shape) / held).astype(np.float32)


# ---- weights -----------------------------------------------------------------------------------------------------


def _rounded(kernel: Any, source: np.ndarray, node: ir.Node, plan: Plan, aim: _Target | None) -> np.ndarray | None:
    """Return better integers for the kernel's weight [O, I/group, ...], or None when rounding to nearest is as good.

    aim : the float model's outputs, to aim at; None: at its weights.
    """
    target = ir.const(node.inputs[1])
    assert target is not None
    q = plan.tensors[ir.read_name(node, 1)]
    group = int(getattr(kernel, "group", 1))
    held = kernel.weight
    outputs, fields = len(held) // group, int(np.prod(held.shape[1:]))
    if fields > _LARGEST:
        return None
    held_at = np.broadcast_to(q.factor(target.ndim), target.shape).reshape(group, outputs, fields)
    counts = target.astype(np.float64).reshape(held_at.shape) * held_at
    places = None if aim is None else np.random.default_rng(0).permutation(len(aim.index))[:_ROWS]
    rows = _receptive_fields(kernel, source, node, None if aim is None else aim.index[places])
    if aim is not None:
        values = aim.values[places].astype(np.float64)
        scale = plan.tensors[ir.read_name(node)].scale
        for g in range(group):
            wanted = values[:, g * outputs : (g + 1) * outputs]
            counts[g] = aimed(counts[g] / held_at[g], rows[:, g] / scale, wanted, _floor(node)) * held_at[g]
    old = held.reshape(group, outputs, fields).astype(np.float64)
    moments = _moments(rows)
    better = compensated_round(counts, moments, len(rows), q.low, q.high)
    worse = output_error(better - counts, moments) >= output_error(old - counts, moments)
    result = np.where(worse[:, None, None], old, better).reshape(held.shape).astype(held.dtype)
    return None if np.array_equal(result, held) else result


def _moments(rows: np.ndarray) -> np.ndarray:
    """Return the covariances, float64 [group, fields, fields], of integers [rows, group, fields].

    The mean is the bias's business. The sums are exact: a product of bytes has 14 bits and a sign, so that 1024 of them
    add up within the 24 bits of a float32.
    """
    kind, most = (np.float32, 1024) if rows.dtype == np.int8 else (np.float64, _CHUNK)
    group, fields = rows.shape[1:]
    most = max(1, min(most, _CHUNK * _LARGEST // (group * fields)))
    sums = np.zeros((group, fields))
    products = np.zeros((group, fields, fields))
    for start in range(0, len(rows), most):
        part: np.ndarray = np.ascontiguousarray(rows[start : start + most].transpose(1, 0, 2), kind)
        sums += part.sum(axis=1, dtype=np.float64)
        products += part.transpose(0, 2, 1) @ part
    mean = sums / len(rows)
    return np.asarray(products / len(rows) - mean[:, :, None] * mean[:, None])


def _receptive_fields(kernel: Any, source: np.ndarray, node: ir.Node, places: np.ndarray | None = None) -> np.ndarray:
    """Return integers [rows, group, fields]: what the outputs at `places` read; None: a fixed sample of all places."""
    rng = np.random.default_rng(0)
    if node.op_type == "Linear":
        flat = source.reshape(-1, 1, source.shape[-1])
        return flat[rng.permutation(len(flat))[:_ROWS] if places is None else places]
    rank, group = source.ndim - 2, int(kernel.group)
    pads = list(kernel.pads)
    x = np.pad(source, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=kernel.zero)
    size = [d * (k - 1) + 1 for k, d in zip(kernel.weight.shape[2:], kernel.dilations, strict=True)]
    windows: np.ndarray = np.lib.stride_tricks.sliding_window_view(x, size, axis=tuple(range(2, 2 + rank)))
    steps = (1, 1, *kernel.strides, *kernel.dilations)
    windows = windows[tuple(slice(None, None, step) for step in steps)]  # [N, C, positions..., kernel...]
    where = windows.shape[0], *windows.shape[2 : 2 + rank]
    if places is None:
        places = np.sort(rng.permutation(int(np.prod(where)))[:_ROWS])
    chosen = np.unravel_index(places, where)
    picked = np.moveaxis(windows, 1, 1 + rank)[chosen]  # [rows, C, kernel...]
    return np.ascontiguousarray(picked).reshape(len(chosen[0]), group, -1)


# ---- biases ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """What the float model gives at some positions of a layer.

    values : float32 [positions, channels]. index : of the positions, among all of all samples; shape : of the layer's
    output with its channels on axis `axis`.
    """

    values: np.ndarray
    index: np.ndarray
    shape: tuple[int, ...]
    axis: int

    def of(self, array: np.ndarray) -> np.ndarray:
        """Return the same positions of the integers `array`."""
        return _at(array.reshape(self.shape), self.axis, self.index)


def _at(array: np.ndarray, axis: int, index: np.ndarray) -> np.ndarray:
    """Return [positions, channels] at some of all positions; the channels lie on axis `axis`."""
    last = np.moveaxis(array, axis, -1)
    return np.ascontiguousarray(last[np.unravel_index(index, last.shape[:-1])])


def _targets(
    layers: Mapping[str, ir.Node], runner: FloatRunner, pieces: Sequence[Mapping[str, np.ndarray]], budget: int
) -> dict[str, _Target]:
    """Run `pieces` and keep of every layer as many positions as fit an eighth of the budget, all layers alike."""
    axes = {name: 1 if node.op_type == "Conv" else -1 for name, node in layers.items()}
    channels = sum((ir.shape(node.outputs[0]) or (1, 1))[axes[name]] or 1 for name, node in layers.items())
    most = max(_FEWEST, budget // 8 // (4 * channels)) if channels else 0
    rng = np.random.default_rng(0)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in layers}
    places: dict[str, list[np.ndarray]] = {name: [] for name in layers}
    starts = dict.fromkeys(layers, 0)
    shapes: dict[str, tuple[int, ...]] = {}
    for number, feed in enumerate(pieces):
        for name, array, _ in runner.run(feed, layers):
            there, start = array.size // array.shape[axes[name]], starts[name]
            starts[name] += there
            share = max(1, most * (number + 1) // len(pieces) - most * number // len(pieces))
            index = np.sort(rng.permutation(there)[:share]) if there > share else np.arange(there)
            parts[name].append(_at(array, axes[name], index))
            places[name].append(index + start)
            first = array.shape[0] if name not in shapes else shapes[name][0] + array.shape[0]
            shapes[name] = (first, *array.shape[1:])
    found = {}
    for name, shape in shapes.items():
        values, index = np.concatenate(parts.pop(name)), np.concatenate(places.pop(name))
        found[name] = _Target(values, index, shape, axes[name])
    return found


def _mean_error(want: np.ndarray, have: np.ndarray, q: QParams | None, node: ir.Node) -> np.ndarray:
    """Return the mean of have - want [positions, channels] per channel, float64, in real units.

    q : how the tensor is held; None where the layer writes floats, which hold everything.
    """
    scale, zero, low, high = 1.0, 0, -math.inf, math.inf
    if q is not None:
        scale, zero = q.scale, q.zero_point
        low, high = (q.low - zero) / scale, (q.high - zero) / scale
    least = max(low, _floor(node))
    total, count = np.zeros(want.shape[1]), np.zeros(want.shape[1])
    for start in range(0, len(want), _CHUNK):
        part = want[start : start + _CHUNK]
        inside = (part > least) & (part < high)
        error = (have[start : start + _CHUNK].astype(np.float64) - zero) / scale - part
        total += np.where(inside, error, 0.0).sum(axis=0)
        count += inside.sum(axis=0)
    return np.asarray(total / (count + _PRIOR))


def _floor(node: ir.Node) -> float:
    """Return the value at which a Relu behind the layer cuts off, -inf where there is none."""
    reader = ir.sole_consumer(node.outputs[0])
    return 0.0 if reader is not None and is_relu(reader) else -math.inf


def _move_bias(model: ir.Graph, node: ir.Node, error: np.ndarray) -> None:
    """Subtract `error` from the bias of `node`, which gets one when it has none."""
    bias = ir.const(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is not None:
        ir.set_constant(model, node, 2, (bias - error).astype(np.float32), "refined")
        return
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    name = ir.fresh_name(model, f"{node.outputs[0].name}_bias")
    node.replace_input_with(2, ir.add_initializer(model, name, (-error).astype(np.float32)))
