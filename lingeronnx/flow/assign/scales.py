"""From statistics to scales: which tensors share a scale, and which scale each gets.

`tie_classes` groups tensors that must share a scale (union-find); `assign` gives every class the scale its calibrator
likes best; `legalize` then moves scales until every inequality of the platform holds, and reports each move. Changes no
graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...errors import ConfigError, ConstraintError
from ...formats import CLIP
from ...graph import ir
from ...graph.disjoint import DisjointSets
from ...ops import Op, parameter_values
from ...ops.functions.activation import bounds
from ...plan import Affine, PerAxis, Plan
from ...targets import Target
from ..observe.statistics import Curve, Stats, TensorStats, Through
from ..partition import Partition
from .calibrators import best_scale, best_window

__all__ = [
    "Choice",
    "TieClass",
    "UnheldScale",
    "assign",
    "legalize",
    "soft_rows",
    "tie_classes",
    "tops",
    "widen",
    "wishes",
]


_FINEST = 2.0**24  # times the scale of a weight's largest channel: what is smaller than that is rounded to zero anyway


class UnheldScale(ConstraintError):
    """A scale that the platform does not hold; `tensors` share it, which needs `exponent` where `least` is held."""

    def __init__(self, text: str, tensors: tuple[str, ...], exponent: int, least: int) -> None:
        super().__init__(text)
        self.tensors, self.exponent, self.least = tensors, exponent, least


# ---- who shares a scale ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TieClass:
    """Tensors that share one scale.

    tensors : in graph order
    governing : those whose statistics count
    bound : the size that none of their values exceeds, where the operators say so (a sigmoid), or None
    reach : the size that none of their values can exceed, also where they are only moved, or None
    below : how far below the least value seen it must reach (the mask of a softmax), or None
    through : the function of single numbers that alone reads them, or None
    into : the tensor that this function writes in integers; empty where it is a float operator
    zero_point : whether all that reads and writes them takes a zero point
    """

    tensors: tuple[str, ...]
    governing: tuple[str, ...]
    bound: float | None = None
    below: float | None = None
    reach: float | None = None
    through: Curve | None = None
    into: str = ""
    zero_point: bool = False

    def stats(self, stats: Stats) -> TensorStats | None:
        """Return the merged statistics of the governing tensors; None when none was seen."""
        found = [stats[name] for name in self.governing if name in stats]
        if not found:
            return None
        merged = found[0]
        for other in found[1:]:
            merged = merged.merge(other)
        return merged


def tie_classes(parts: Partition, target: Target) -> tuple[TieClass, ...]:
    """Group the integer activations of `parts` by shared scale."""
    sets = DisjointSets()
    mute: set[str] = set()
    bounded: dict[str, float] = {}
    below: dict[str, float] = {}
    reached: dict[str, float] = {}
    activations = parts.activations
    for name in activations:
        sets.find(name)
    for node, op in parts.nodes:
        for tie in op.ties(node, target):
            sets.join(tie.first, tie.second)
            if tie.governs is not None:
                mute.add(tie.second if tie.governs == tie.first else tie.first)
        if op.bound is not None:
            bounded[ir.written_name(node)] = op.bound
        reach = reached.get(ir.read_name(node)) if op.moves else op.reach
        if reach is not None:
            reached.update({str(node.outputs[index].name): reach for index in op.results(node)})
        if (room := op.below(node)) is not None:
            below[ir.written_name(node)] = room
    members: dict[str, list[str]] = {}
    for name in activations:
        members.setdefault(sets.find(name), []).append(name)
    classes = []
    values = {str(value.name): value for value in ir.values(parts.graph)}
    inside = {id(node): op for node, op in parts.nodes}
    symmetric = parts.symmetric(target)
    shares = soft_rows(parts)
    for names in members.values():
        loud = tuple(n for n in names if n not in mute) or tuple(names[-1:])
        # What the Softmax reads is what counts, however it came there; but not what a mask made of it.
        governing = tuple(n for n in loud if n in shares) or loud
        bound = max(bounded[n] for n in governing) if all(n in bounded for n in governing) else None
        room = max((below[name] for name in names if name in below), default=None)
        reach = max(reached[n] for n in governing) if all(n in reached for n in governing) else None
        free = room is None and not symmetric.keys() & set(names)
        curve, into = _curve(names, values, inside, parts.graph, target)
        classes.append(TieClass(tuple(names), governing, bound, room, reach, curve, into, free))
    return tuple(classes)


def soft_rows(parts: Partition) -> dict[str, int]:
    """Return {tensor: axis} of the integer tensors that float Softmaxes along that axis read, and nothing else does.

    What lies far below the largest value of a row has no share of it, so it needs no room in a scale; nor does more
    than a lead over the others that leaves them no share.
    """
    values = {str(value.name): value for value in ir.values(parts.graph)}
    inside = {id(node): op for node, op in parts.nodes}
    found: dict[str, int] = {}
    for node in parts.graph.graph:
        if node.op_type != "Softmax" or node.domain or id(node) in inside:
            continue
        name, names = ir.read_name(node), _moved_from(ir.read_name(node), values, inside)
        readers = _float_readers(names, values, inside) if name in parts.activations else None
        if readers is not None and all(reader.op_type == "Softmax" for reader in readers):
            found[name] = int(ir.attr(node, "axis", -1))
    return found


def _moved_from(name: str, values: Mapping[str, ir.Value], inside: Mapping[int, Op]) -> list[str]:
    """Return the tensor and those that it only moves, up to the first."""
    names = [name]
    while (maker := ir.producer(values[names[-1]])) is not None and id(maker) in inside and inside[id(maker)].moves:
        names.append(ir.read_name(maker))
    return names


#: Float operators that saturate -> what they compute.
_SATURATING: Mapping[str, Curve] = {"Sigmoid": lambda x: 0.5 + 0.5 * np.tanh(0.5 * x), "Tanh": np.tanh}


def _float_readers(
    names: Sequence[str], values: Mapping[str, ir.Value], inside: Mapping[int, Op]
) -> list[ir.Node] | None:
    """Return the float operators that alone read the tensors `names`, outside of what moves them; None for others."""
    found: list[ir.Node] = []
    for name in names:
        if values[name].is_graph_output():
            return None
        for use in values[name].uses():
            op = inside.get(id(use.node))
            if op is None and not use.node.domain:
                found.append(use.node)
            elif op is None or not op.moves or not {str(v.name) for v in use.node.outputs} <= set(names):
                return None
    return found


def _curve(
    names: Sequence[str], values: Mapping[str, ir.Value], inside: Mapping[int, Op], model: ir.Graph, target: Target
) -> tuple[Curve | None, str]:
    """Return what alone reads the tensors `names`, which are tied, outside of what moves them, and what that writes.

    It is a saturating float operator, which writes nothing that counts, or an integer function of single numbers; else
    None.
    """
    floats = _float_readers(names, values, inside)
    if floats is not None:
        kinds = {node.op_type for node in floats}
        return (_SATURATING.get(kinds.pop()) if len(kinds) == 1 else None), ""
    found: dict[int, ir.Node] = {}
    for name in names:
        for use in values[name].uses():
            op = inside.get(id(use.node))
            if op is None or not op.moves or not {str(v.name) for v in use.node.outputs} <= set(names):
                found[id(use.node)] = use.node
    if len(found) != 1 or any(values[name].is_graph_output() for name in names):
        return None, ""
    ((key, node),) = found.items()
    written = ir.written_name(node)
    if key not in inside or written in names:
        return None, ""
    return inside[key].curve(model, node, target), written


def tops(parts: Partition, target: Target) -> dict[str, float]:
    """Return {tensor: the largest real value it must hold, to which the largest integer is pinned}: Clips on a chip."""
    found: dict[str, float] = {}
    for node, op in parts.nodes:
        if op.format is CLIP and not target.runs(CLIP.name):
            limits = bounds(node)
            assert limits is not None
            found[ir.written_name(node)] = limits[1]
    return found


# ---- scales ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """How scales are chosen: mode, widths and calibrator, and what the user said of single tensors.

    weight_scales : "tensor", or "channel" for one scale for each output channel of a layer. asymmetric : whether
    activations of at most 8 bits have zero points, where all operators around take them.
    own : {tensor: {"calibrator", "percentile", "scale", "bits" or "out_bits": value}}
    held : {tensor or weight: how it is held, whatever calibration would say}
    """

    mode: str
    bits: int
    weight_bits: int
    calibrator: str
    percentile: float
    own: Mapping[str, Mapping[str, Any]]
    weight_scales: str = "tensor"
    asymmetric: bool = False
    held: Mapping[str, Affine] = field(default_factory=dict)

    def of(self, names: Iterable[str], bits: int) -> Setting:
        """Return the settings of a class of tensors, `bits` wide by default: the first with an override wins."""
        found: dict[str, Any] = {}
        for name in names:
            found = {**self.own.get(name, {}), **found}
        return Setting(
            found.get("bits", bits),
            found.get("scale"),
            found.get("calibrator", self.calibrator),
            found.get("percentile", self.percentile),
            self.mode == "q-value",
            self.asymmetric,
        )

    def width(self, *names: str) -> int:
        """Return the bits of activations that share a scale."""
        return self.of(names, self.bits).bits

    def weight_width(self, name: str) -> int:
        """Return the bits of a weight."""
        return self.of([name], self.weight_bits).bits

    def with_scales(self, scales: Mapping[str, float]) -> Choice:
        """Return the same with fixed `scales` for some tensors."""
        own = {name: {**self.own.get(name, {}), "scale": scale} for name, scale in scales.items()}
        return replace(self, own={**self.own, **own})

    @property
    def out_bits(self) -> dict[str, int | str]:
        """{tensor: width of a layer's output that leaves the integers}; 8 is what it has anyway."""
        return {name: own["out_bits"] for name, own in self.own.items() if own.get("out_bits", 8) != 8}


@dataclass(frozen=True)
class Setting:
    """How the scale of one class of tensors is chosen; `scale` where the user fixed it, else None.

    zero_point : whether the class may have one; with a fixed scale, and above 8 bits, it is 0.
    """

    bits: int
    scale: float | None
    calibrator: str
    percentile: float
    power: bool
    zero_point: bool = False

    def window(self, seen: TensorStats, through: Through | None = None) -> tuple[float, int]:
        """Return scale and zero point for what was seen, which the curve `through` alone reads."""
        return best_window(
            seen, self.bits, power=self.power, calibrator=self.calibrator, percentile=self.percentile, through=through
        )

    def best(self, seen: TensorStats, through: Through | None = None) -> float:
        """Return the scale for what was seen, which the curve `through` alone reads."""
        return best_scale(
            seen, self.bits, power=self.power, calibrator=self.calibrator, percentile=self.percentile, through=through
        )


def assign(
    parts: Partition, ties: Sequence[TieClass], stats: Stats, target: Target, choice: Choice
) -> tuple[Plan, list[str]]:
    """Return the plan for `parts` and the notes a user should read (all-zero tensors, moved scales).

    ties : the classes that `tie_classes` found. stats : of the activations of `parts`.
    """
    notes: list[str] = []
    tensors = wishes(parts, ties, stats, target, choice, notes)
    for node, op in parts.nodes:
        for index in op.parameters(node):
            name = ir.read_name(node, index)
            values = parameter_values(node, index)
            assert values is not None
            setting = choice.of([name], choice.weight_bits)
            if name in choice.held:
                tensors[name] = choice.held[name]
                continue
            if not np.any(values):
                notes.append(f"weight '{name}' of {node.name} is all zero")
            axis = op.format.channel_axis if choice.weight_scales == "channel" and setting.scale is None else None
            tensors[name] = _weight_scales(np.asarray(values), axis, setting)
    widen(tensors, parts, stats, choice, target)
    if target.executor:
        notes += [
            f"output '{name}' leaves LinearInt in float32: the graph format has that form, but no executor was "
            "measured with it"
            for name, bits in choice.out_bits.items()
            if bits == "float"
        ]
    if choice.mode == "q-value":
        _coarsen(tensors, parts, ties, target, choice)
    plan = Plan(
        platform=target.name, executor=target.executor, mode=choice.mode, tensors=tensors, floats=dict(parts.floats)
    )
    plan, moves = legalize(plan, parts, ties, target)
    if choice.asymmetric:
        notes.append(_around_zero(parts, plan, target))
    return plan, notes + moves


def _around_zero(parts: Partition, plan: Plan, target: Target) -> str:
    """Return a note on the activations that have no zero point."""
    held = [plan.tensors[name] for name in parts.activations if name in plan.tensors]
    why = sorted({reason.partition(" ")[0] for reason in parts.symmetric(target).values()})
    moved = sum(q.shifted for q in held)
    text = f"{moved} of {len(held)} activations have a zero point other than 0"
    return f"{text}; {', '.join(why)} take integers around 0 only" if why else text


def wishes(
    parts: Partition, ties: Sequence[TieClass], stats: Stats, target: Target, choice: Choice, notes: list[str]
) -> dict[str, Affine]:
    """Return how the calibrators would hold each activation, before `legalize`; what they guess goes to `notes`."""
    tensors: dict[str, Affine] = {}
    pinned = tops(parts, target)
    for group in (*(g for g in ties if not g.into), *reversed([g for g in ties if g.into])):
        if group.tensors[0] in choice.held:
            tensors.update({name: choice.held[name] for name in group.tensors})
            continue
        setting = choice.of(group.tensors, choice.bits)
        top = min((pinned[name] for name in group.tensors if name in pinned), default=None)
        through = _through(group, tensors.get(group.into))
        held = _class_window(group, stats, setting, through)
        if held is None:
            held = Affine(_class_scale(group, top, stats, setting, through, notes), setting.bits)
        tensors.update(dict.fromkeys(group.tensors, held))
    return tensors


def _through(group: TieClass, written: Affine | None) -> Through | None:
    """Return what alone reads a class and writes a tensor held as `written`, None where that is not known."""
    if group.through is None or (group.into and written is None):
        return None
    if written is None:
        return Through(group.through)
    zero = written.zero_point
    return Through(group.through, written.scale, written.low - zero, written.high - zero)


def _class_window(group: TieClass, stats: Stats, setting: Setting, through: Through | None) -> Affine | None:
    """Return how a class is held that has a zero point, None for one that has none."""
    seen = group.stats(stats)
    free = setting.zero_point and group.zero_point and setting.scale is None and setting.bits <= 8
    if not free or seen is None or seen.squares == 0:
        return None
    scale, zero = setting.window(seen, through)
    return Affine(scale, setting.bits, zero_point=zero)


def _weight_scales(values: np.ndarray, axis: int | None, setting: Setting) -> Affine:
    """Return the scale of a weight, or one for each element along `axis`; a channel of zeros has its neighbours' best.

    A bias is held at the same scale as its channel's sums, so a channel of next to nothing must not get a huge one:
    `legalize` sees to that.
    """
    if axis is None or values.shape[axis] == 1 or not np.any(values):
        return Affine(setting.scale or setting.best(TensorStats.of(values)), setting.bits)
    channels = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    scales = [setting.best(TensorStats.of(channel)) if channel.any() else math.inf for channel in channels]
    least = min(scales)
    most = least * _FINEST
    return Affine([least if scale > most else scale for scale in scales], setting.bits, PerAxis(axis))


def _coarsen(
    tensors: dict[str, Affine], parts: Partition, ties: Sequence[TieClass], target: Target, choice: Choice
) -> None:
    """Lower scales, in place, that the operators which read the tensors would rather have; none that a user gave."""
    owner = {name: group.tensors for group in ties for name in group.tensors}
    for node, op in parts.nodes:
        if any(v is not None and str(v.name) not in tensors for v in (*node.inputs, *node.outputs)):
            continue
        for name in op.coarsened(node, target, lambda name: tensors[name].scale):
            to, group = tensors[ir.written_name(node)], owner[name]
            given = any(n in choice.held or "scale" in choice.own.get(n, {}) for n in group)
            if not given and tensors[name].bits == to.bits:
                tensors.update({n: tensors[n].changed(to.scale) for n in group})


def widen(tensors: dict[str, Affine], parts: Partition, stats: Stats, choice: Choice, target: Target) -> None:
    """Give outputs that leave the integers the width the user wants; "float": no integers at all.

    A wide output needs no scale beyond its accumulator's, which loses nothing. One that a curve alone reads, in 16
    bits, has that of the curve's table. Raises ConfigError where the output is none of these.
    """
    nodes, able = {ir.written_name(node): node for node, _ in parts.nodes}, parts.wide_outputs(target)
    fine = parts.fine_inputs(target)
    for name, bits in choice.out_bits.items():
        if name in fine and bits in target.curve_bits:
            tensors[name] = Affine(2.0 ** fine[name], int(bits))
            continue
        if name not in able:
            more = (
                f", or in {target.curve_bits[0]} bits that a sigmoid or tanh alone reads," if target.curve_bits else ""
            )
            raise ConfigError(
                f"out_bits {bits} for tensor '{name}': only a fully connected layer whose output nothing in integers "
                f"reads{more} can have another width"
            )
        if bits not in (*target.out_bits, "float"):
            raise ConfigError(
                f"override {name}: out_bits {bits} on platform {target.name}: an output that leaves the integers has "
                f"{', '.join(map(str, target.out_bits))} bits there, or float; {bits} are for what a sigmoid or tanh "
                "alone reads"
            )
        if bits == "float":
            del tensors[name]
            continue
        node = nodes[name]
        exact = tensors[ir.read_name(node)].scale * float(tensors[ir.read_name(node, 1)].scales.min())
        seen, setting = stats.get(name), choice.of([name], int(bits))
        best = setting.scale or (exact if seen is None or seen.squares == 0 else setting.best(seen))
        tensors[name] = Affine(setting.scale or min(best, exact), int(bits))


def _class_scale(
    group: TieClass,
    top: float | None,
    stats: Stats,
    setting: Setting,
    through: Through | None,
    notes: list[str],
) -> float:
    """Return the scale of a class; `top` is the largest real value it must hold, where an operator says so."""
    if setting.scale is not None:
        return setting.scale
    top_integer = (1 << (setting.bits - 1)) - 1
    if top is not None:
        return 2.0 ** round(math.log2(top_integer / top))
    seen = group.stats(stats)
    if seen is None or seen.squares == 0:
        notes.append(f"tensor '{group.tensors[-1]}' is all zero on the calibration data; its scale is a guess")
        return float(1 << (setting.bits - 1))
    scale = setting.best(seen, through)
    if setting.power and group.bound is not None:  # the bound itself saturates by one count: less than a bit costs
        scale = max(scale, 2.0 ** math.floor(math.log2((top_integer + 1) / group.bound)))
    if setting.bits > 8 and group.reach is not None:
        whole = 2.0 ** math.floor(math.log2((top_integer + 1) / group.reach))
        scale = whole if setting.power else top_integer / group.reach
    if group.below is not None:
        most = (top_integer + 1) / (group.below - min(seen.low, 0.0))
        scale = min(scale, 2.0 ** math.floor(math.log2(most)) if setting.power else most)
    return scale


def _stored(scale: float) -> float:
    """Return a scale as a file holds it."""
    return float(np.float32(scale))


def _hold_biases(tensors: dict[str, Affine], parts: Partition, power: bool) -> None:
    """Lower the scales of single channels, in place, at which the bias of the channel would fill its integer type.

    A quarter is left free for what refinement does to a bias. A channel whose weights are that small beside its bias
    loses nothing by it.
    """
    for node, op in parts.nodes:
        if op.format.channel_axis is None or len(node.inputs) < 3 or node.inputs[2] is None:
            continue
        x, name = tensors.get(ir.read_name(node)), ir.read_name(node, 1)
        w, bias = tensors.get(name), ir.const(node.inputs[2])
        if x is None or w is None or bias is None or w.single:
            continue
        top = 2.0 ** (29 if max(x.bits, w.bits) <= 8 else 58)
        reach = np.abs(bias.astype(np.float64)).reshape(-1, w.scales.size).max(axis=0) * x.scale
        most = [top / size if size > 0 else math.inf for size in reach]
        if power:
            most = [size if math.isinf(size) else 2.0 ** math.floor(math.log2(size)) for size in most]
        tensors[name] = w.changed([_stored(min(pair)) for pair in zip(w.scales.tolist(), most, strict=True)])


def legalize(plan: Plan, parts: Partition, ties: Sequence[TieClass], target: Target) -> tuple[Plan, list[str]]:
    """Return `plan` with every tie and inequality of `target` holding, and what was moved.

    Scales are only ever lowered, so it ends: an output's exponent may not exceed what its inputs' allow, nor the row's
    largest. Raises UnheldScale for a scale below the row's smallest.
    """
    tensors = {name: q.mapped(_stored) for name, q in plan.tensors.items()}
    owner = {name: group for group in ties for name in group.tensors if name in tensors}
    moved: dict[str, tuple[float, str]] = {}
    for name, group in owner.items():
        least = min((tensors[n] for n in group.tensors), key=lambda q: q.scale)
        if (tensors[name].scale, tensors[name].zero_point) != (least.scale, least.zero_point):
            tensors[name] = tensors[name].changed(least.scale, zero_point=least.zero_point)
    _hold_biases(tensors, parts, plan.mode == "q-value")
    if not target.power_of_two:
        return plan.with_tensors(tensors), []

    def exponent(name: str) -> int:
        found = tensors[name].exponent
        if found is None:
            raise ConstraintError(
                f"tensor '{name}' has scale {tensors[name].scale:g}; {target.name} takes powers of two only"
            )
        return found

    def lower_to(name: str, most: int, why: str) -> bool:
        if exponent(name) <= most:
            return False
        for member in owner[name].tensors:
            moved.setdefault(member, (tensors[member].scale, why))
            tensors[member] = tensors[member].changed(2.0**most)
        return True

    fine, changed = parts.fine_inputs(target), True
    while changed:
        changed = False
        for name in owner:
            changed |= lower_to(name, target.exponents[1], f"{target.name} holds scales up to 2^{target.exponents[1]}")
        for node, op in parts.nodes:
            most = op.ceiling(node, exponent)
            if most is not None and ir.written_name(node) in tensors:
                changed |= lower_to(ir.written_name(node), most, f"{op.name} {node.name} cannot shift left")
    for name in owner:
        if tensors[name].bits > 8 and exponent(name) < fine.get(name, target.exponents[0]):
            raise ConstraintError(
                f"tensor '{name}' of {tensors[name].bits} bits gets scale 2^{exponent(name)} at most; what reads it "
                f"takes 2^{fine[name]} at least: give it 8 bits"
            )
        if exponent(name) < target.exponents[0]:
            raise UnheldScale(
                f"tensor '{name}' needs scale 2^{exponent(name)}, {target.name} holds 2^{target.exponents[0]} at "
                "least; scale the model's input down or leave the node in float with --skip",
                owner[name].tensors,
                exponent(name),
                target.exponents[0],
            )
    notes = [
        f"scale of '{name}' lowered from {old:g} to {tensors[name].scale:g}: {why}"
        for name, (old, why) in moved.items()
    ]
    return plan.with_tensors(tensors), notes
