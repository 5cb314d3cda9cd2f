"""What the target makes of a plan's scales: they are lowered until every tie and inequality holds, and that is told."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...errors import ConstraintError
from ...graph import ir
from ...plan import Affine, Plan
from ...plan.power_of_two import power_below
from ...targets import Target
from ..partition import Partition
from .ties import TieClass

__all__ = ["UnheldScale", "legalize"]


class UnheldScale(ConstraintError):
    """A scale that the platform does not hold; `tensors` share it, which needs `exponent` where `least` is held."""

    def __init__(self, text: str, tensors: tuple[str, ...], exponent: int, least: int) -> None:
        super().__init__(text)
        self.tensors, self.exponent, self.least = tensors, exponent, least


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
            most = [size if math.isinf(size) else power_below(size) for size in most]
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
