"""From statistics to scales: which nodes become integer, which tensors share a scale, and which scale each gets.

`partition` says what stays in float and why; `tie_classes` groups tensors that must share a scale (union-find);
`assign` gives every class the scale its calibrator likes best; `legalize` then moves scales until every inequality of
the platform holds, and reports each move. Changes no graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import ir
from .calibrate import best_scale
from .errors import ConfigError, ConstraintError
from .observe import Stats, TensorStats
from .ops import Op, float_op, parameter_values
from .ops.activation import bounds
from .plan import Plan, QParams
from .platforms import Platform
from .union import Union

__all__ = ["TieClass", "assign", "integer_nodes", "legalize", "observed", "partition", "tie_classes"]


# ---- what becomes integer ----------------------------------------------------------------------------------------


def partition(model: ir.Graph, row: Platform, skip: Mapping[str, str]) -> dict[str, str]:
    """Return {node name: why} for every node of the normalised `model` that stays in float on `row`.

    skip : nodes the caller leaves out, with the reason.
    """
    floats = dict(skip)
    for node in model.graph:
        name = str(node.name)
        if name not in floats:
            reason = _why_float(node, row)
            if reason is not None:
                floats[name] = reason
    for node in _heads(model, floats):
        floats[str(node.name)] = "it ends the network, where floats cost nothing"
    for node in _without_arithmetic(model, floats):
        floats[str(node.name)] = "it only moves data between float operators"
    return floats


def _why_float(node: ir.Node, row: Platform) -> str | None:
    op, reason = float_op(node)
    if op is None:
        return reason
    for index in op.data(node):
        value = node.inputs[index]
        if value is None or value.dtype is None or value.dtype.name != "FLOAT":
            kind = "absent" if value is None else getattr(value.dtype, "name", "of unknown type")
            return f"its input is {kind}, not float32"
        if ir.const(value) is not None:
            return "its input is a constant"
        if ir.has_folded_batch(value):
            return "its input has samples and something else on one axis"
    if any(ir.has_folded_batch(value) for value in node.outputs):
        return "its output has samples and something else on one axis"
    for index in op.parameters(node):
        values = parameter_values(node, index)
        if values is not None and not np.isfinite(values).all():
            return "its weight holds NaN or infinity"
    broken = op.violations(node, row)
    if broken:
        return broken[0].brief
    if not op.available(row):
        return op.absence(node, row)
    return None


def _heads(model: ir.Graph, floats: Mapping[str, str]) -> list[ir.Node]:
    """Return the integer nodes of kind `head` that nothing computes in integers after: the host may as well do them."""
    ops = {id(node): op for node, op in integer_nodes(model, floats)}
    tail: set[int] = set()
    found = []
    for node in reversed(list(model.graph)):
        op = ops.get(id(node))
        free = op is None or op.head or op.moves
        if free and all(id(use.node) in tail for value in node.outputs for use in value.uses()):
            tail.add(id(node))
            found += [node] if op is not None and op.head else []
    return found


def _without_arithmetic(model: ir.Graph, floats: Mapping[str, str]) -> list[ir.Node]:
    """Return the integer nodes that hang together with no operator that computes anything."""
    union = Union()
    nodes = integer_nodes(model, floats)
    for node, op in nodes:
        for value in (*(ir.source(node, i) for i in op.data(node)), *node.outputs):
            union.join(str(node.name), f"tensor {value.name}")
    busy = {union.find(str(node.name)) for node, op in nodes if not op.moves}
    return [node for node, _ in nodes if union.find(str(node.name)) not in busy]


def integer_nodes(model: ir.Graph, floats: Mapping[str, str]) -> list[tuple[ir.Node, Op]]:
    """Return the nodes that become integer, with their operators, in graph order."""
    found = []
    for node in model.graph:
        if str(node.name) not in floats:
            op, reason = float_op(node)
            if op is None:
                raise ConstraintError(f"node {node.name} cannot be quantized: {reason}")
            found.append((node, op))
    return found


def observed(model: ir.Graph, floats: Mapping[str, str]) -> list[str]:
    """Return the names of the activations that become integers, in graph order."""
    names: dict[str, None] = {}
    for node, op in integer_nodes(model, floats):
        for index in op.data(node):
            names[ir.read_name(node, index)] = None
        names.update(dict.fromkeys(str(node.outputs[index].name) for index in op.results(node)))
    return list(names)


# ---- who shares a scale ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TieClass:
    """Tensors that share one scale.

    tensors : in graph order
    governing : those whose statistics count
    top : the largest real value it must hold, to which the largest integer is pinned (a Clip on a chip), or None
    bound : the size that none of their values exceeds, where the operators say so (a sigmoid), or None
    reach : the size that none of their values can exceed, also where they are only moved, or None
    below : how far below the least value seen it must reach (the mask of a softmax), or None
    """

    tensors: tuple[str, ...]
    governing: tuple[str, ...]
    top: float | None = None
    bound: float | None = None
    below: float | None = None
    reach: float | None = None

    def stats(self, stats: Stats) -> TensorStats | None:
        """Return the merged statistics of the governing tensors; None when none was seen."""
        found = [stats[name] for name in self.governing if name in stats]
        if not found:
            return None
        merged = found[0]
        for other in found[1:]:
            merged = merged.merge(other)
        return merged


def tie_classes(model: ir.Graph, row: Platform, floats: Mapping[str, str]) -> list[TieClass]:
    """Group the integer activations of `model` by shared scale."""
    union = Union()
    mute: set[str] = set()
    tops: dict[str, float] = {}
    bounded: dict[str, float] = {}
    below: dict[str, float] = {}
    reached: dict[str, float] = {}
    for name in observed(model, floats):
        union.find(name)
    for node, op in integer_nodes(model, floats):
        for tie in op.ties(node, row):
            union.join(tie.first, tie.second)
            if tie.governs is not None:
                mute.add(tie.second if tie.governs == tie.first else tie.first)
        if op.bound is not None:
            bounded[ir.written_name(node)] = op.bound
        reach = reached.get(ir.read_name(node)) if op.moves else op.reach
        if reach is not None:
            reached.update({str(node.outputs[index].name): reach for index in op.results(node)})
        if (room := op.below(node)) is not None:
            below[ir.written_name(node)] = room
        if op.name == "Clip" and not row.runs("Clip"):
            limits = bounds(node)
            assert limits is not None
            tops[ir.written_name(node)] = limits[1]
    members: dict[str, list[str]] = {}
    for name in observed(model, floats):
        members.setdefault(union.find(name), []).append(name)
    classes = []
    for names in members.values():
        pinned = [tops[name] for name in names if name in tops]
        governing = tuple(n for n in names if n not in mute) or tuple(names[-1:])
        bound = max(bounded[n] for n in governing) if all(n in bounded for n in governing) else None
        room = max((below[name] for name in names if name in below), default=None)
        reach = max(reached[n] for n in governing) if all(n in reached for n in governing) else None
        classes.append(TieClass(tuple(names), governing, min(pinned) if pinned else None, bound, room, reach))
    return classes


# ---- scales ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """How scales are chosen: mode, widths and calibrator, and what the user said of single tensors.

    own : {tensor: {"calibrator", "percentile", "scale", "bits" or "out_bits": value}}
    """

    mode: str
    bits: int
    weight_bits: int
    calibrator: str
    percentile: float
    own: Mapping[str, Mapping[str, Any]]

    def of(self, names: Iterable[str], bits: int) -> Setting:
        """Return the settings of a class of tensors, `bits` wide by default: the first with an override wins."""
        found: dict[str, Any] = {}
        for name in names:
            found = {**self.own.get(name, {}), **found}
        return Setting(found.get("bits", bits), found.get("scale"), found.get("calibrator", self.calibrator),
                       found.get("percentile", self.percentile), self.mode == "q-value")  # fmt: skip

    @property
    def out_bits(self) -> dict[str, int | str]:
        """{tensor: width of a layer's output that leaves the integers}; 8 is what it has anyway."""
        return {name: own["out_bits"] for name, own in self.own.items() if own.get("out_bits", 8) != 8}


@dataclass(frozen=True)
class Setting:
    """How the scale of one class of tensors is chosen; `scale` where the user fixed it, else None."""

    bits: int
    scale: float | None
    calibrator: str
    percentile: float
    power: bool

    def best(self, seen: TensorStats) -> float:
        """Return the scale for what was seen."""
        return best_scale(seen, self.bits, power=self.power, calibrator=self.calibrator, percentile=self.percentile)


def assign(
    model: ir.Graph, stats: Stats, row: Platform, floats: Mapping[str, str], choice: Choice
) -> tuple[Plan, list[str]]:
    """Return the plan for `model` and the notes a user should read (all-zero tensors, moved scales).

    stats : of the activations named by `observed`.
    """
    notes: list[str] = []
    tensors: dict[str, QParams] = {}
    for group in tie_classes(model, row, floats):
        setting = choice.of(group.tensors, choice.bits)
        scale = _class_scale(group, stats, setting, notes)
        for name in group.tensors:
            tensors[name] = QParams(scale, setting.bits)
    for node, op in integer_nodes(model, floats):
        for index in op.parameters(node):
            name = ir.read_name(node, index)
            values = parameter_values(node, index)
            assert values is not None
            setting = choice.of([name], choice.weight_bits)
            seen = TensorStats.of(np.asarray(values))
            if seen.squares == 0:
                notes.append(f"weight '{name}' of {node.name} is all zero")
            tensors[name] = QParams(setting.scale or setting.best(seen), setting.bits)
    _widen(tensors, model, floats, stats, choice)
    if row.executor:
        notes += [f"output '{name}' leaves LinearInt in float32: the graph format has that form, but no executor was "
                  "measured with it" for name in choice.out_bits]  # fmt: skip
    plan = Plan(platform=row.name, executor=row.executor, mode=choice.mode, tensors=tensors, floats=dict(floats))
    plan, moves = legalize(plan, model, row)
    return plan, notes + moves


def _widen(
    tensors: dict[str, QParams], model: ir.Graph, floats: Mapping[str, str], stats: Stats, choice: Choice
) -> None:
    """Give outputs that leave the integers the width the user wants; "float": no integers at all.

    A wide output needs no scale beyond its accumulator's, which loses nothing. Raises ConfigError where the output is
    not one that leaves the integers.
    """
    nodes = {ir.written_name(node): (node, op) for node, op in integer_nodes(model, floats)}
    whole = {id(node) for node, _ in nodes.values()}
    for name, bits in choice.out_bits.items():
        node, op = nodes.get(name, (None, None))
        if node is None or op is None or not op.wide or any(id(u.node) in whole for u in node.outputs[0].uses()):
            raise ConfigError(
                f"out_bits {bits} for tensor '{name}': only a fully connected layer whose output nothing in integers "
                "reads can have another width"
            )
        if bits == "float":
            del tensors[name]
            continue
        exact = tensors[ir.read_name(node)].scale * tensors[ir.read_name(node, 1)].scale
        seen, setting = stats.get(name), choice.of([name], int(bits))
        best = setting.scale or (exact if seen is None or seen.squares == 0 else setting.best(seen))
        tensors[name] = QParams(setting.scale or min(best, exact), int(bits))


def _class_scale(group: TieClass, stats: Stats, setting: Setting, notes: list[str]) -> float:
    if setting.scale is not None:
        return setting.scale
    top_integer = (1 << (setting.bits - 1)) - 1
    if group.top is not None:
        return 2.0 ** round(math.log2(top_integer / group.top))
    seen = group.stats(stats)
    if seen is None or seen.squares == 0:
        notes.append(f"tensor '{group.tensors[-1]}' is all zero on the calibration data; its scale is a guess")
        return float(1 << (setting.bits - 1))
    scale = setting.best(seen)
    if setting.power and group.bound is not None:  # the bound itself saturates by one count: less than a bit costs
        scale = max(scale, 2.0 ** math.floor(math.log2((top_integer + 1) / group.bound)))
    if setting.bits > 8 and group.reach is not None:
        whole = 2.0 ** math.floor(math.log2((top_integer + 1) / group.reach))
        scale = whole if setting.power else top_integer / group.reach
    if group.below is not None:
        most = (top_integer + 1) / (group.below - min(seen.low, 0.0))
        scale = min(scale, 2.0 ** math.floor(math.log2(most)) if setting.power else most)
    return scale


def legalize(plan: Plan, model: ir.Graph, row: Platform) -> tuple[Plan, list[str]]:
    """Return `plan` with every tie and inequality of `row` holding, and what was moved.

    Scales are only ever lowered, so it ends: an output's exponent may not exceed what its inputs' allow, nor the row's
    largest. Raises ConstraintError for a scale below the row's smallest.
    """
    nodes = integer_nodes(model, plan.floats)
    tensors = {name: QParams(float(np.float32(q.scale)), q.bits) for name, q in plan.tensors.items()}  # as in a file
    owner = {name: group for group in tie_classes(model, row, plan.floats) for name in group.tensors if name in tensors}
    moved: dict[str, tuple[float, str]] = {}
    for name, group in owner.items():
        least = min(tensors[n].scale for n in group.tensors)
        if tensors[name].scale != least:
            tensors[name] = QParams(least, tensors[name].bits)
    if not row.power_of_two:
        return plan.with_tensors(tensors), []

    def exponent(name: str) -> int:
        found = tensors[name].exponent
        if found is None:
            raise ConstraintError(
                f"tensor '{name}' has scale {tensors[name].scale:g}; {row.name} takes powers of two only"
            )
        return found

    def lower_to(name: str, most: int, why: str) -> bool:
        if exponent(name) <= most:
            return False
        for member in owner[name].tensors:
            moved.setdefault(member, (tensors[member].scale, why))
            tensors[member] = QParams(2.0**most, tensors[member].bits)
        return True

    changed = True
    while changed:
        changed = False
        for name in owner:
            changed |= lower_to(name, row.exponents[1], f"{row.name} holds scales up to 2^{row.exponents[1]}")
        for node, op in nodes:
            most = op.ceiling(node, exponent)
            if most is not None and ir.written_name(node) in tensors:
                changed |= lower_to(ir.written_name(node), most, f"{op.name} {node.name} cannot shift left")
    for name in owner:
        if exponent(name) < row.exponents[0]:
            raise ConstraintError(
                f"tensor '{name}' needs scale 2^{exponent(name)}, {row.name} holds 2^{row.exponents[0]} at least; "
                "scale the model's input down or leave the node in float with --skip"
            )
    notes = [f"scale of '{name}' lowered from {old:g} to {tensors[name].scale:g}: {why}"
             for name, (old, why) in moved.items()]  # fmt: skip
    return plan.with_tensors(tensors), notes
