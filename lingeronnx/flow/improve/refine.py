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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph import ir
from ...ops import is_relu
from ...plan import Plan, QParams
from ...platforms import Platform
from ...run.data import Progress
from ...run.int_runner import IntRunner
from ...run.memory import release
from ...run.runners import FloatRunner
from ..lower import lower
from ..partition import Partition
from .aim import aimed
from .blockwise import block_descended, block_metric
from .fields import LARGEST, ROWS, moments, receptive_fields
from .rounding import compensated_round, descended, output_error

__all__ = ["Methods", "compared_at", "refinable", "refine", "sums_looked_at", "walk_bytes"]

_PRIOR = 32.0  # elements of no error that are mixed into every mean, so that a rare channel moves little
_CHUNK = 2048  # positions at a time
_FEWEST = 1024  # positions that a layer is compared at, however little memory there is
_FEW_BITS = 4  # of a weight, where refinement has most to gain
_LIVING = 4  # tensors that a step needs, and those that wait for a later one


@dataclass(frozen=True)
class Methods:
    """What refinement may do beyond rounding the model's own weights with error compensation.

    aim : round weights that come nearer to the float model's outputs (`aim`). behind : a layer that alone feeds one
    side of a sum makes up for the error of the other side, too. descend : coordinate descent behind the rounding.
    block : such a descent by the error behind the next layer (`blockwise`).
    """

    aim: bool = False
    behind: bool = False
    descend: bool = False
    block: bool = False

    @classmethod
    def all(cls) -> Methods:
        """Return all but `block`, which looks beyond the layer."""
        return cls(True, True, True)

    def on(self, q: QParams) -> Methods:
        """Return what is done for a weight held as `q`: with few bits, `all`."""
        return self.all() if q.bits <= _FEW_BITS else self


def walk_bytes(model: ir.Graph) -> int:
    """Return the bytes that a walk keeps of one sample: inputs as they come and joined, some tensors of 8 bits."""
    sizes = [math.prod(int(d or 1) for d in (ir.shape(v) or (0, 0))[1:]) for v in ir.values(model)]
    inputs = sum(math.prod(int(d or 1) for d in (ir.shape(v) or (0, 0))[1:]) for v in model.graph.inputs)
    return 8 * inputs + _LIVING * max(sizes, default=0)


def refinable(parts: Partition) -> dict[str, ir.Node]:
    """Return the layers that `refine` works on, by their outputs."""
    return {ir.written_name(node): node for node, _ in parts.nodes if node.op_type in ("Conv", "Linear")}


def compared_at(parts: Partition) -> set[str]:
    """Return the tensors whose float values `refine` may ask for."""
    layers = refinable(parts)
    return {*layers, *_sums(parts, layers).values()}


def sums_looked_at(parts: Partition, plan: Plan, methods: Methods) -> dict[str, str]:
    """Return {output of a layer: what it is added to} where the layer makes up for the other side of the sum."""
    layers = refinable(parts)
    weights = {name: plan.tensors[ir.read_name(node, 1)] for name, node in layers.items()}
    return {name: other for name, other in _sums(parts, layers).items() if methods.on(weights[name]).behind}


def _sums(parts: Partition, layers: Mapping[str, ir.Node]) -> dict[str, str]:
    """Return {output of a layer that only a sum reads: what it is added to}, where the two have one shape."""
    found = {}
    inside = set(parts.activations)
    for name, node in layers.items():
        reader = ir.sole_consumer(node.outputs[0])
        if reader is None or reader.op_type != "Add" or name not in inside:
            continue
        other = ir.source(reader, 0 if reader.inputs[1] is node.outputs[0] else 1)
        if str(other.name) in inside and ir.shape(other) == ir.shape(node.outputs[0]):
            found[name] = str(other.name)
    return found


def refine(
    parts: Partition,
    plan: Plan,
    row: Platform,
    feed: Mapping[str, np.ndarray],
    runner: FloatRunner,
    pieces: Sequence[Mapping[str, np.ndarray]] = (),
    budget: int = 1 << 29,
    methods: Methods = Methods(),
    progress: Progress | None = None,
    known: Collection[str] = (),
) -> None:
    """Refine weights and biases of the float graph of `parts` in place, for `plan` on `row`.

    feed : calibration samples, some tens to hundreds. runner : of the graph's layers as they are now. pieces : the same
    samples, in pieces that are run one after the other. budget : bytes that may be taken. methods : for weights of more
    than 4 bits; others take `Methods.all`. The new weights lie on the plan's grid. progress : called layer by layer.
    known : layers that are refined already.
    """
    model = parts.graph
    layers = {name: node for name, node in refinable(parts).items() if name not in known}
    how = {name: methods.on(plan.tensors[ir.read_name(node, 1)]) for name, node in layers.items()}
    sums = {name: other for name, other in sums_looked_at(parts, plan, methods).items() if name in layers}
    tensors = {**layers, **{other: layers[name] for name, other in sums.items() if other not in layers}}
    feeds = pieces if pieces and runner.batch_first(tensors) else [feed]
    wanted = _targets(tensors, runner, feeds, budget, alike=bool(sums))
    lowered = lower(parts, plan, row)
    held = {name: integer for integer, name in lowered.floats.items()}
    made = {name for name, layer in lowered.layers.items() if layer in layers}
    walk = IntRunner(lowered.graph, row=row).walk(feed, made)
    done = 0
    for step in walk:
        # Of the steps that are made for a layer, that with the weight: the others move its data.
        name = lowered.layers.get(step.output, "")
        node = layers.get(name)
        if node is None or name not in wanted or not hasattr(step.kernel, "weight"):
            continue
        kernel = step.kernel
        shared = len(ir.source(node, 1).uses()) > 1  # by the steps of a recurrent layer, which keep it in common
        if progress is not None:
            progress("refining", done, len(layers))
            done += 1
        want = replace(wanted[name] if name in sums.values() else wanted.pop(name), floor=_floor(node))
        if (other := sums.get(name)) is not None and (array := walk.held(held.get(other, other))) is not None:
            want = want.behind(node, wanted[other], array, plan.tensors[other])
        weight = None if shared else _rounded(kernel, step.inputs[0], node, plan, want, how[name])
        if weight is not None:
            kernel = replace(kernel, weight=weight)
            ir.set_constant(model, node, 1, _real(weight, plan, node), "refined")
            walk.redo(kernel)
        error = _mean_error(want.values, want.of(step.array), plan.tensors.get(name), want.floor)
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


def _rounded(
    kernel: Any, source: np.ndarray, node: ir.Node, plan: Plan, want: _Target, methods: Methods
) -> np.ndarray | None:
    """Return better integers for the kernel's weight [O, I/group, ...], or None when rounding to nearest is as good.

    want : the float model's outputs.
    """
    target = ir.const(node.inputs[1])
    assert target is not None
    q = plan.tensors[ir.read_name(node, 1)]
    group = int(getattr(kernel, "group", 1))
    held = kernel.weight
    outputs, fields = len(held) // group, int(np.prod(held.shape[1:]))
    if fields > LARGEST:
        return None
    held_at = np.broadcast_to(q.factor(target.ndim), target.shape).reshape(group, outputs, fields)
    counts = target.astype(np.float64).reshape(held_at.shape) * held_at
    places = np.sort(np.random.default_rng(0).permutation(len(want.index))[:ROWS]) if methods.aim else None
    rows = receptive_fields(kernel, source, node, None if places is None else want.index[places])
    if places is not None:
        values, floor, first = want.values[places], want.floor_at(places), want.first_half[places]
        scale = np.float32(plan.tensors[ir.read_name(node)].scale)
        for g in range(group):
            of = slice(g * outputs, (g + 1) * outputs)
            aim = aimed(
                counts[g] / held_at[g], rows[:, g].astype(np.float32) / scale, values[:, of], floor[:, of], first
            )
            counts[g] = aim * held_at[g]
    old = held.reshape(group, outputs, fields).astype(np.float64)
    seen = moments(rows)
    better = compensated_round(counts, seen, len(rows), q.low, q.high)
    if methods.descend:
        better = descended(better, counts, seen, len(rows), q.low, q.high)
    worse = output_error(better - counts, seen) >= output_error(old - counts, seen)
    best = np.where(worse[:, None, None], old, better)
    if methods.block:
        best = _by_block(best, counts, seen, len(rows), node, want, q)
    result = best.reshape(held.shape).astype(held.dtype)
    return None if np.array_equal(result, held) else result


def _by_block(
    integers: np.ndarray, counts: np.ndarray, seen: np.ndarray, samples: int, node: ir.Node, want: _Target, q: QParams
) -> np.ndarray:
    """Return better `integers` [G, O, K] by the error behind the next layer, where one alone reads this one."""
    places = np.sort(np.random.default_rng(0).permutation(len(want.index))[:ROWS])
    metric = block_metric(node, want.values[places])
    if metric is None:
        return integers
    return block_descended(integers, counts, seen, metric, samples, q.low, q.high)


# ---- biases ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """What the float model gives at some positions of a layer.

    values : float32 [positions, channels]. index : of the positions, among all of all samples; shape : of the layer's
    output with its channels on axis `axis`. floor : the value at which a Relu behind the layer cuts off, for all or
    as `values`.
    """

    values: np.ndarray
    index: np.ndarray
    shape: tuple[int, ...]
    axis: int
    floor: float | np.ndarray = -math.inf

    @property
    def first_half(self) -> np.ndarray:
        """Whether each position lies in the first half of the samples."""
        return np.asarray(self.index < int(self.index[len(self.index) // 2]))

    def floor_at(self, places: np.ndarray) -> np.ndarray:
        """Return the floor at some of the positions, [places, channels]."""
        return np.broadcast_to(self.floor, self.values.shape)[places]

    def behind(self, node: ir.Node, other: _Target, array: np.ndarray, q: QParams) -> _Target:
        """Return what `node` must give so that its sum with the integers `array` is that with the `other` floats."""
        real = (self.of(array).astype(np.float32) - np.float32(q.zero_point)) / np.float32(q.scale)
        (reader,) = (use.node for use in node.outputs[0].uses())
        floor = -real if _floor(reader) == 0 else -math.inf
        return replace(self, values=self.values + other.values - real, floor=floor)

    def of(self, array: np.ndarray) -> np.ndarray:
        """Return the same positions of the integers `array`."""
        return _at(array.reshape(self.shape), self.axis, self.index)


def _at(array: np.ndarray, axis: int, index: np.ndarray) -> np.ndarray:
    """Return [positions, channels] at some of all positions; the channels lie on axis `axis`."""
    last = np.moveaxis(array, axis, -1)
    return np.ascontiguousarray(last[np.unravel_index(index, last.shape[:-1])])


def _targets(
    layers: Mapping[str, ir.Node],
    runner: FloatRunner,
    pieces: Sequence[Mapping[str, np.ndarray]],
    budget: int,
    alike: bool,
) -> dict[str, _Target]:
    """Run `pieces` and keep of every layer as many positions as fit an eighth of the budget, all layers alike.

    layers : {tensor: a layer that has an output of that shape}. alike : tensors of one size at the same positions.
    """
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
            rng = np.random.default_rng((number, there)) if alike else rng
            index = np.sort(rng.permutation(there)[:share]) if there > share else np.arange(there)
            parts[name].append(_at(array, axes[name], index))
            places[name].append(index + start)
            first = array.shape[0] if name not in shapes else shapes[name][0] + array.shape[0]
            shapes[name] = (first, *array.shape[1:])
        release()
    found = {}
    for name, shape in shapes.items():
        values, index = np.concatenate(parts.pop(name)), np.concatenate(places.pop(name))
        found[name] = _Target(values, index, shape, axes[name])
    return found


def _mean_error(want: np.ndarray, have: np.ndarray, q: QParams | None, floor: float | np.ndarray) -> np.ndarray:
    """Return the mean of have - want [positions, channels] per channel, float64, in real units.

    q : how the tensor is held; None where the layer writes floats, which hold everything. floor : the value at which a
    Relu cuts off.
    """
    scale, zero, low, high = 1.0, 0, -math.inf, math.inf
    if q is not None:
        scale, zero = q.scale, q.zero_point
        low, high = (q.low - zero) / scale, (q.high - zero) / scale
    least = np.broadcast_to(np.maximum(low, floor), want.shape)
    total, count = np.zeros(want.shape[1]), np.zeros(want.shape[1])
    for start in range(0, len(want), _CHUNK):
        part = want[start : start + _CHUNK]
        inside = (part > least[start : start + _CHUNK]) & (part < high)
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
