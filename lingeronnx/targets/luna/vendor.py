"""What LUNA answers by code: limits of nodes, last rewrites, names, verdict and the packer's call.

All of it is imported when it is first asked, so that a chip's row costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .._target import Fault, Fitted, Limit, Target
from ..verdict import ArgumentChoice
from .packing import Packs

if TYPE_CHECKING:
    import onnx

    from ...graph import ir
    from ...graph.names import Names
    from ..board_profile import BoardProfile
    from ..timing_row import TimingRow

__all__ = ["Luna"]


@dataclass(frozen=True)
class Luna(Packs):
    """One chip of the family."""

    @property
    def packer(self) -> str:
        """The packer's call."""
        return f"tpacker -p {self.packing.name}"

    def limits(self, operator: str) -> tuple[Limit, ...]:
        """Return the limits of what slides a window, and of fully connected layers; others have columns."""
        from .packer.limits.operators import of_layers

        return of_layers(operator)

    def applies(self, limit: Limit, target: Target) -> bool:
        """Whether the chip has such a limit."""
        from .packer.limits.operators import applies

        return applies(limit, target)

    def mends(self, rewrite: str) -> tuple[Limit, ...]:
        """Return the limits that a rewrite is for."""
        from .packer.limits.operators import MENDED

        return MENDED.get(rewrite, ())

    def stays_wide(self, node: ir.Node, bits: int, target: Target) -> str | None:
        """Return why weights stay at 8 bits."""
        from .finish.narrow import stays_wide

        return stays_wide(node, target)

    def met(self, node: ir.Node, target: Target) -> Sequence[Fault]:
        """Return the faults that a float node would meet."""
        from .met import met

        return met(node, target)

    def finish(self, graph: ir.Graph, target: Target) -> tuple[ir.Graph, Sequence[Fitted]]:
        """Bring the graph into the form that packs and is right, cut maps that are too large, take what is faster."""
        from .finish.finished import finished

        return finished(graph, target)

    def share(self, graphs: Sequence[ir.Graph], target: Target) -> Sequence[ArgumentChoice | None]:
        """Let parts keep their constants in shared memory where that saves most, as long as all fit."""
        from .packer.arguments.kept import keep_constants

        return keep_constants(graphs, target)

    def names(self, graph: ir.Graph) -> Names:
        """Return the names that the packer does not take, and others."""
        from .packer.names import safe_names

        return safe_names(graph)

    def verdict(self, graph: ir.Graph | onnx.ModelProto, target: Target, words: Sequence[str] | None) -> ArgumentChoice:
        """Return the packer's arguments and what becomes of the graph under them."""
        from .packer.arguments.choice import choose
        from .packer.judge import judge

        return choose(graph, target) if words is None else ArgumentChoice(tuple(words), judge(graph, target, words))

    def untimed(self, target: Target) -> str:
        """Say why nothing is known of the time on a chip; empty where it is."""
        if self.prices is not None:
            return ""
        return f"nothing is published of the time on {target.name}; profile-board takes a board's log"

    def timed(self, row: TimingRow, target: Target) -> Luna:
        """Return the same with the prices of a board."""
        from .timing.board_row import prices

        return replace(self, prices=prices(row, target))

    def profiled(
        self, graphs: Sequence[ir.Graph], target: Target, words: Sequence[str] | None, text: str, clock: float | None
    ) -> BoardProfile:
        """Return the executor's profile lines beside the graphs' nodes, and the row that they give."""
        from .packer.judge import Judged
        from .timing.board_log import profile

        verdicts = [self.verdict(graph, target, words).verdict for graph in graphs]
        return profile([v for v in verdicts if isinstance(v, Judged)], target, text, clock)

    @property
    def clock(self) -> float | None:
        """MHz, where a board's row tells them."""
        return None if self.prices is None else self.prices.clock

    def translate(self, graph: ir.Graph, to: str, target: Target) -> Sequence[str]:
        """Write a graph of one dialect as one of the other."""
        from .dialects import translate

        return translate(graph, to, target) if target.training else super().translate(graph, to, target)

    def command(self, words: Sequence[str], graph: str, package: str) -> str:
        """Return the packer's call for two files."""
        from .packer.arguments.choice import shell

        return shell(words, graph, package)
