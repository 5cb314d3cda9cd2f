"""Outputs in all the bits of a layer's sums, where a chip writes them: the host scales, and nothing is rounded.

The last fully connected layer of a network, before the host's softmax or at the very end, may leave the chip in 32
bits. That costs four bytes for each of its outputs and no time, but what reads the chip's output has to expect it: so
it is tried with `effort: best` only, or where the user asks for it (`out_bits`).
"""

from __future__ import annotations

from dataclasses import replace

from .assign import legalize, tie_classes, widen
from .planned import Planned

__all__ = ["LEAST", "widened"]

#: dB on average that the outputs gain at least: less is no reason for another type.
LEAST = 0.1


def widened(planned: Planned) -> Planned | None:
    """Return `planned` with wide outputs where the user said nothing of them; None where there are none."""
    prepared, choice = planned.prepared, planned.basis.choice
    row, bits = prepared.row, max(prepared.row.out_bits)
    if row.packing is None or choice is None or bits <= min(row.out_bits):
        return None
    free = [
        name
        for name in planned.parts.wide_outputs(row)
        if name in planned.plan.tensors and "out_bits" not in choice.own.get(name, {})
    ]
    if not free:
        return None
    choice = replace(choice, own={**choice.own, **{n: {**choice.own.get(n, {}), "out_bits": bits} for n in free}})
    tensors = dict(planned.plan.tensors)
    widen(tensors, planned.parts, planned.basis.stats, choice, row)
    plan, moves = legalize(planned.plan.with_tensors(tensors), planned.parts, tie_classes(planned.parts, row), row)
    basis = replace(planned.basis, choice=choice)
    return replace(planned, plan=plan, basis=basis, notes=[*planned.notes, *moves])
