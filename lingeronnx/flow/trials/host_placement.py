"""Which layers leave the chip's parts of a program.

Those that stand against one, and parts not worth the crossing.
A part that the packer refuses, or the chip would compute wrongly, loses the layers that are to
blame, and the rest stays. A part with hardly more multiply-accumulates than numbers to hand over is
not worth the crossing, as long as the chip keeps nine tenths of the work, where it has them. Where
there are more parts than the user wants, those with the least work leave.

Must not know: where the scales come from. They are calibrated or guessed, and the answer is hardly
another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ...graph import ir
from ...lowering import LoweringResult
from ...ops.macs import count_macs
from ..partition import Partition
from ..report.program import PartReport, ProgramReport

__all__ = ["MAX_ROUNDS", "HostPlacement"]

#: A layer that leaves may uncover another one.
MAX_ROUNDS = 8
_MIN_MACS_PER_ELEMENT = 4  # multiply-accumulates for each number that is handed over
# of the multiply-accumulates: where the chip has so many, it keeps them from parts that are not
# worth it
_MIN_CHIP_MAC_SHARE = 0.9
_MAC_SHARE_TOLERANCE = (
    0.02  # less than that counts as so many, for what else left may have left just below
)


@dataclass(frozen=True)
class HostPlacement:
    """A program, and what it was made from.

    parts : of the float graph. lowered : the integer graph, whose parts `program` tells. names :
    {the user's name of a tensor: the file's}, where they differ.
    """

    program: ProgramReport
    parts: Partition
    lowered: LoweringResult
    names: Mapping[str, str]

    def select_nodes_to_offload(
        self, max_parts: int | None = None, is_last_round: bool = False
    ) -> dict[str, str]:
        """Return {float node: why it leaves}, of one round.

        What parts are refused for, else what is not worth it.
        max_parts : parts for the chip at most. last : whether parts that are refused leave as a
        whole.
        """
        refused: dict[str, str] = {}
        for part in self.program.chip:
            if not part.runs:
                refused.update(self._rejected_nodes(part, is_last_round))
        return refused or self._select_unprofitable_parts(max_parts)

    def float_nodes_of(self, members: Iterable[str]) -> list[str]:
        """Return the float nodes that integer nodes stand for."""
        return list(
            dict.fromkeys(
                self._float_node_of[name] for name in members if name in self._float_node_of
            )
        )

    def _select_unprofitable_parts(self, most: int | None) -> dict[str, str]:
        chip = self.program.chip
        work = {part.name: part.macs for part in chip}
        counts = {
            p.name: sum(self._elements_per_sample.get(name, 0) for name in (*p.inputs, *p.outputs))
            for p in chip
        }
        every = {str(node.name): count_macs(node) for node in self.parts.graph.graph}
        work_of_all = sum(every.values())
        room = sum(every[name] for name in self.parts.ops) - _MIN_CHIP_MAC_SHARE * work_of_all
        bound = room >= -_MAC_SHARE_TOLERANCE * work_of_all
        own = {
            part.name: sum(every[name] for name in self.float_nodes_of(part.members))
            for part in chip
        }
        small: dict[str, str] = {}
        for name in sorted(work, key=lambda name: work[name] / max(counts[name], 1)):
            if work[name] < _MIN_MACS_PER_ELEMENT * counts[name] and (
                not bound or own[name] <= max(room, 0)
            ):
                room -= own[name]
                small[name] = (
                    f"only {work[name]:,} multiply-accumulates for {counts[name]:,} numbers to "
                    "hand over"
                )
        if small and len(small) == len(chip):
            small.pop(max(work, key=lambda name: work[name]), None)
        if most is not None and len(chip) - len(small) > most:
            rest = sorted((name for name in work if name not in small), key=lambda name: work[name])
            small.update(
                dict.fromkeys(rest[: len(rest) - most], f"the chip shall have {most} parts at most")
            )
        return {
            name: small[part.name]
            for part in chip
            if part.name in small
            for name in self.float_nodes_of(part.members)
        }

    def _rejected_nodes(self, part: PartReport, whole: bool) -> dict[str, str]:
        """Return the layers that findings name.

        All of the part where they name none, or if `whole`.
        """
        found: dict[str, str] = {}
        for name, finding in zip(part.refused, part.findings, strict=True):
            found.update(
                dict.fromkeys(self.float_nodes_of([name]), f"{finding.rule}; here {finding.value}")
            )
        if found and not whole:
            return found
        first = part.findings[0]
        return dict.fromkeys(
            self.float_nodes_of(part.members), f"{first.node}: {first.rule}; here {first.value}"
        )

    @cached_property
    def _float_node_of(self) -> dict[str, str]:
        """{integer node: the float node that it stands for}; Quants and Dequants stand for none."""
        makers = {
            str(v.name): str(node.name) for node in self.parts.graph.graph for v in node.outputs
        }
        found = {}
        for node in self.lowered.graph.graph:
            for value in node.outputs:
                name = str(value.name)
                layer = (
                    self.lowered.layer_outputs.get(name) or self.lowered.floats.get(name) or name
                )
                if layer in makers and makers[layer] in self.parts.ops:
                    found[str(node.name)] = makers[layer]
        return found

    @cached_property
    def _elements_per_sample(self) -> dict[str, int]:
        """{tensor: numbers of one sample}, by the names of the file."""
        found = {}
        for value in ir.iter_values(self.lowered.graph):
            name = str(value.name)
            found[self.names.get(name, name)] = math.prod(
                int(size or 1) for size in ir.get_shape(value) or ()
            )
        return found
