"""What LUNA answers by code: limits of nodes, last rewrites, names, verdict and the packer's call.

All of it is imported when it is first asked, so that a chip's row costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .._target import AppliedRewrite, Fault, LimitCheck, Target
from ..verdict import PackerArguments
from .packer_profile import PackerVendor

if TYPE_CHECKING:
    import onnx

    from ...graph import ir
    from ...graph.name_mapping import NameMapping
    from ..board_profile import BoardProfile
    from ..timing_calibration import TimingCalibration

__all__ = ["LunaVendor"]


@dataclass(frozen=True)
class LunaVendor(PackerVendor):
    """One chip of the family."""

    @property
    def packer_command(self) -> str:
        """The packer's call."""
        return f"tpacker -p {self.packing.name}"

    def get_limit_checks(self, operator: str) -> tuple[LimitCheck, ...]:
        """Return the limits of what slides a window, and of fully connected layers.

        Others have columns.
        """
        from .packer.limits.limit_tables import get_layer_limits

        return get_layer_limits(operator)

    def has_limit(self, limit: LimitCheck, target: Target) -> bool:
        """Whether the chip has such a limit."""
        from .packer.limits.limit_tables import has_limit

        return has_limit(limit, target)

    def get_limits_fixed_by(self, rewrite_name: str) -> tuple[LimitCheck, ...]:
        """Return the limits that a rewrite is for."""
        from .packer.limits.limit_tables import FIXED_BY_REWRITE

        return FIXED_BY_REWRITE.get(rewrite_name, ())

    def explain_rejected_weight_bits(self, node: ir.Node, bits: int, target: Target) -> str | None:
        """Return why weights stay at 8 bits."""
        from .backend_passes.int4_weights import explain_rejected_weight_bits

        return explain_rejected_weight_bits(node, target)

    def find_triggered_faults(self, node: ir.Node, target: Target) -> Sequence[Fault]:
        """Return the faults that a float node would meet."""
        from .fault_triggers import find_triggered_faults

        return find_triggered_faults(node, target)

    def run_backend_passes(
        self, graph: ir.Model, target: Target
    ) -> tuple[ir.Model, Sequence[AppliedRewrite]]:
        """Bring the graph into the form that packs and is right, cut maps that are too large, take what is faster."""
        from .backend_passes.pipeline import run_backend_passes

        return run_backend_passes(graph, target)

    def assign_resident_constants(
        self, graphs: Sequence[ir.Model], target: Target
    ) -> Sequence[PackerArguments | None]:
        """Let parts keep their constants in shared memory where that saves most, as long as all fit."""
        from .packer.arguments.resident_constants import assign_resident_constants

        return assign_resident_constants(graphs, target)

    def names(self, graph: ir.Model) -> NameMapping:
        """Return the names that the packer does not take, and others."""
        from .packer.names import build_safe_names

        return build_safe_names(graph)

    def evaluate_packing(
        self, graph: ir.Model | onnx.ModelProto, target: Target, argv: Sequence[str] | None
    ) -> PackerArguments:
        """Return the packer's arguments and what becomes of the graph under them."""
        from .packer.arguments.selection import select_fastest_arguments
        from .packer.evaluation import evaluate_graph

        return (
            select_fastest_arguments(graph, target)
            if argv is None
            else PackerArguments(tuple(argv), evaluate_graph(graph, target, argv))
        )

    def explain_missing_timing(self, target: Target) -> str:
        """Say why nothing is known of the time on a chip; empty where it is."""
        if self.prices is not None:
            return ""
        return (
            f"nothing is published of the time on {target.name}; profile-board takes a board's log"
        )

    def with_timing_calibration(self, calibration: TimingCalibration, target: Target) -> LunaVendor:
        """Return the same with the prices of a board."""
        from .timing.board_costs import apply_calibration

        return replace(self, prices=apply_calibration(calibration, target))

    def analyze_board_log(
        self,
        graphs: Sequence[ir.Model],
        target: Target,
        argv: Sequence[str] | None,
        log_text: str,
        clock_mhz: float | None,
    ) -> BoardProfile:
        """Return the executor's profile lines beside the graphs' nodes, and the row that they give."""
        from .packer.evaluation import DetailedVerdict
        from .timing.board_log import analyze_board_log

        verdicts = [self.evaluate_packing(graph, target, argv).verdict for graph in graphs]
        return analyze_board_log(
            [v for v in verdicts if isinstance(v, DetailedVerdict)], target, log_text, clock_mhz
        )

    @property
    def clock_mhz(self) -> float | None:
        """MHz, where a board's row tells them."""
        return None if self.prices is None else self.prices.clock_mhz

    def convert_dialect(self, graph: ir.Model, domain: str, target: Target) -> Sequence[str]:
        """Write a graph of one dialect as one of the other."""
        from .dialects import convert_dialect

        return (
            convert_dialect(graph, domain, target)
            if target.training
            else super().convert_dialect(graph, domain, target)
        )

    def format_packer_command(self, argv: Sequence[str], graph_path: str, package_path: str) -> str:
        """Return the packer's call for two files."""
        from .packer.arguments.selection import format_command

        return format_command(argv, graph_path, package_path)
