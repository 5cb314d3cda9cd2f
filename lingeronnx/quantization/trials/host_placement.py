"""Select the layers that move from the chip parts of a program to the host.

A part that the packer rejects, or that the chip would compute incorrectly, loses the layers to
blame; the rest of it stays. A part with hardly more multiply-accumulates than transferred elements
is unprofitable and moves as a whole, as long as the chip keeps 90 % of the work if it has that
much. If there are more parts than the user allows, those with the least work move.

Must not know: where the scales come from. The result hardly depends on whether they are calibrated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ...ir import ir
from ...operators.lowering_context import LoweringResult
from ...operators.macs import count_macs
from ..partition import Partition

if TYPE_CHECKING:
    from ..report.program import PartReport, ProgramReport

__all__ = ["MAX_ROUNDS", "HostPlacement"]

#: Limit of rounds: offloading a layer may expose another one that is rejected.
MAX_ROUNDS = 8
_MIN_MACS_PER_ELEMENT = 4  # MACs per transferred element, below which a part is unprofitable
_MIN_CHIP_MAC_SHARE = 0.9  # fraction of all MACs that unprofitable parts may not undercut
# If the chip is already below that by less than this fraction, for example by an offloaded tail,
# the limit still applies.
_MAC_SHARE_TOLERANCE = 0.02


def _drop_smallest_parts(
    reasons: dict[str, str], part_macs: Mapping[str, int], max_parts: int
) -> None:
    """Add the parts with the least MACs to `reasons`, in place, until `max_parts` others remain.

    `part_macs` is {part: MACs}, `reasons` {part: reason why it leaves}.
    """
    remaining = [name for name in part_macs if name not in reasons]
    remaining.sort(key=lambda name: part_macs[name])
    for name in remaining[: len(remaining) - max_parts]:
        reasons[name] = f"limited to {max_parts} chip parts"


@dataclass(frozen=True)
class HostPlacement:
    """A lowered program, and the selection of its nodes that should move to the host.

    Attributes
    ----------
    program
        Report on the parts of the program.
    parts
        Partition of the float graph.
    lowered
        The integer graph that `program` describes.
    names
        Name in the file by the user's name of a tensor, where they differ.
    """

    program: ProgramReport
    parts: Partition
    lowered: LoweringResult
    names: Mapping[str, str]

    def select_nodes_to_offload(
        self, max_parts: int | None = None, is_last_round: bool = False
    ) -> dict[str, str]:
        """Select the nodes that leave the chip in one round: rejected, else of unprofitable parts.

        Parameters
        ----------
        max_parts
            Maximum number of chip parts; None: no limit.
        is_last_round
            Whether rejected parts leave as a whole.

        Returns
        -------
        dict
            {float node: reason why it leaves}; empty if nothing leaves.
        """
        rejected: dict[str, str] = {}
        for part in self.program.chip:
            if not part.runs:
                rejected.update(self._rejected_nodes(part, is_last_round))
        return rejected or self._select_unprofitable_parts(max_parts)

    def float_nodes_of(self, members: Iterable[str]) -> list[str]:
        """Return the float nodes that the integer nodes `members` implement, without duplicates.

        In the order of `members`; names without a float node are skipped.
        """
        float_nodes = [self._float_node_of.get(name) for name in members]
        return list(dict.fromkeys(name for name in float_nodes if name is not None))

    def _select_unprofitable_parts(self, max_parts: int | None) -> dict[str, str]:
        """Return {float node: reason} of unprofitable parts, and of parts beyond `max_parts`.

        At least the part with the most MACs stays. None for `max_parts` means no limit; else the
        smallest parts go first.
        """
        chip = self.program.chip
        part_macs = {part.name: part.macs for part in chip}
        reasons = self._find_unprofitable_parts(part_macs)
        if reasons and len(reasons) == len(chip):  # keep the part with the most work
            reasons.pop(max(part_macs, key=lambda name: part_macs[name]), None)
        if max_parts is not None and len(chip) - len(reasons) > max_parts:
            _drop_smallest_parts(reasons, part_macs, max_parts)
        offloaded: dict[str, str] = {}
        for part in chip:
            if part.name in reasons:
                float_nodes = self.float_nodes_of(part.members)
                offloaded.update(dict.fromkeys(float_nodes, reasons[part.name]))
        return offloaded

    def _find_unprofitable_parts(self, part_macs: Mapping[str, int]) -> dict[str, str]:
        """Return {part: reason} of parts with fewer MACs than `_MIN_MACS_PER_ELEMENT` per element.

        Elements are those of a part's inputs and outputs, for one sample. Parts with the lowest
        ratio leave first. If the chip has about `_MIN_CHIP_MAC_SHARE` of all MACs or more, no part
        leaves whose MACs would bring it below that.

        Parameters
        ----------
        part_macs
            {part: MACs as the packer counts them}.
        """
        node_macs = {str(node.name): count_macs(node) for node in self.parts.graph.graph}
        total_macs = sum(node_macs.values())
        chip_macs = sum(node_macs[name] for name in self.parts.ops)
        removable_macs = chip_macs - _MIN_CHIP_MAC_SHARE * total_macs
        keeps_chip_share = removable_macs >= -_MAC_SHARE_TOLERANCE * total_macs
        elements, float_macs = {}, {}
        for part in self.program.chip:
            elements[part.name] = sum(
                self._elements_per_sample.get(name, 0) for name in (*part.inputs, *part.outputs)
            )
            float_nodes = self.float_nodes_of(part.members)
            float_macs[part.name] = sum(node_macs[name] for name in float_nodes)
        reasons: dict[str, str] = {}
        for name in sorted(part_macs, key=lambda name: part_macs[name] / max(elements[name], 1)):
            if part_macs[name] >= _MIN_MACS_PER_ELEMENT * elements[name]:
                continue
            if keeps_chip_share and float_macs[name] > max(removable_macs, 0):
                continue
            removable_macs -= float_macs[name]
            reasons[name] = (
                f"only {part_macs[name]:,} MACs for {elements[name]:,} transferred elements"
            )
        return reasons

    def _rejected_nodes(self, part: PartReport, entire_part: bool) -> dict[str, str]:
        """Return {float node: reason} of the layers that the findings of a rejected part name.

        Returns all layers of the part if the findings name none, or if `entire_part`.
        """
        reasons: dict[str, str] = {}
        for name, finding in zip(part.refused, part.findings, strict=True):
            reason = f"{finding.rule}; here {finding.value}"
            reasons.update(dict.fromkeys(self.float_nodes_of([name]), reason))
        if reasons and not entire_part:
            return reasons
        first = part.findings[0]
        reason = f"{first.node}: {first.rule}; here {first.value}"
        return dict.fromkeys(self.float_nodes_of(part.members), reason)

    @cached_property
    def _float_node_of(self) -> dict[str, str]:
        """{integer node: float node that it implements}, without Quants and Dequants.

        Several integer nodes may implement one float node.
        """
        producers = {}
        for node in self.parts.graph.graph:
            producers.update({str(value.name): str(node.name) for value in node.outputs})
        lowered = self.lowered
        float_nodes = {}
        for node in lowered.graph.graph:
            for value in node.outputs:
                name = str(value.name)
                float_name = lowered.layer_outputs.get(name) or lowered.floats.get(name) or name
                float_node = producers.get(float_name)
                if float_node is not None and float_node in self.parts.ops:
                    float_nodes[str(node.name)] = float_node
        return float_nodes

    @cached_property
    def _elements_per_sample(self) -> dict[str, int]:
        """{tensor: number of elements of one sample}, by the names in the file."""
        elements = {}
        for value in ir.iter_values(self.lowered.graph):
            name = str(value.name)
            elements[self.names.get(name, name)] = math.prod(
                int(dim or 1) for dim in ir.get_shape(value) or ()
            )
        return elements
