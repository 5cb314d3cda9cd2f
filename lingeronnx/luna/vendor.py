"""Vendor interface of LUNA: node limits, backend passes, names, verdicts and packer commands.

Everything is imported on first use, so that defining a chip's target stays cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..targets._target import AppliedRewrite, Fault, LimitCheck, Target
from ..targets.board_support import BoardSupport
from ..targets.verdict import PackerArguments
from .packer_profile import PackerVendor

if TYPE_CHECKING:
    import onnx

    from ..ir import ir
    from ..ir.name_mapping import NameMapping
    from ..targets.board_profile import BoardProfile
    from ..targets.timing_calibration import TimingCalibration

__all__ = ["LunaVendor"]


@dataclass(frozen=True)
class LunaVendor(PackerVendor):
    """Vendor of one LUNA chip."""

    @property
    def packer_command(self) -> str:
        """The packer's program and -p option, such as "tpacker -p arcs", without files."""
        return f"tpacker -p {self.packing.name}"

    def get_limit_checks(self, operator: str) -> tuple[LimitCheck, ...]:
        """Return the limits that keep a float layer from being lowered to `operator`.

        Only convolutions, pools and LinearInt have some; () for others, which have only the limits
        in their support.
        """
        from .packer.limits.limit_tables import get_layer_limits

        return get_layer_limits(operator)

    def has_limit(self, limit: LimitCheck, target: Target) -> bool:
        """Whether `limit` applies to `target`.

        It does not if a feature lifts it or a number in its rule is None.
        """
        from .packer.limits.limit_tables import has_limit

        return has_limit(limit, target)

    def get_limits_fixed_by(self, rewrite_name: str) -> tuple[LimitCheck, ...]:
        """Return the limits that the legalization rewrite `rewrite_name` satisfies.

        () if unknown.
        """
        from .packer.limits.limit_tables import FIXED_BY_REWRITE

        return FIXED_BY_REWRITE.get(rewrite_name, ())

    def explain_rejected_weight_bits(self, node: ir.Node, bits: int, target: Target) -> str | None:
        """Explain why the weights of float `node` stay at 8 bits; None if they may have 4.

        `bits` is not used: 4 is the only narrower width.
        """
        from .backend_passes.int4_weights import explain_rejected_weight_bits

        return explain_rejected_weight_bits(node, target)

    def find_triggered_faults(self, node: ir.Node, target: Target) -> Sequence[Fault]:
        """Return the executor faults of `target` that float `node` would trigger if lowered."""
        from .fault_triggers import find_triggered_faults

        return find_triggered_faults(node, target)

    def run_backend_passes(
        self, graph: ir.Model, target: Target
    ) -> tuple[ir.Model, Sequence[AppliedRewrite]]:
        """Return the integer graph rewritten for the packer, and descriptions of all rewrites.

        It is made packable and correct, large feature maps are tiled, and its cost is reduced; the
        results stay the same. `graph` may be modified.
        """
        from .backend_passes.pipeline import run_backend_passes

        return run_backend_passes(graph, target)

    def assign_resident_constants(
        self, graphs: Sequence[ir.Model], target: Target
    ) -> Sequence[PackerArguments | None]:
        """Choose which of `graphs`, parts of one model, keep constants in shared memory; mark them.

        The choice saves most cycles while all parts still fit. Returns the packer arguments of each
        part, None for a part whose names must be replaced first; empty if kernel costs or shared
        memory are unknown.
        """
        from .arguments.resident_constants import assign_resident_constants

        return assign_resident_constants(graphs, target)

    def names(self, graph: ir.Model) -> NameMapping:
        """Return old -> new name for tensor and node names that the packer rejects."""
        from .packer.names import build_safe_names

        return build_safe_names(graph)

    def evaluate_packing(
        self, graph: ir.Model | onnx.ModelProto, target: Target, argv: Sequence[str] | None
    ) -> PackerArguments:
        """Evaluate the graph under `argv`, or under the fastest correct arguments if it is None.

        Returns the arguments used and the verdict on them. Raises ConfigError for arguments that
        the packer does not have.
        """
        from .arguments.selection import select_fastest_arguments
        from .evaluation import evaluate_known_graph

        if argv is None:
            return select_fastest_arguments(graph, target)
        return PackerArguments(tuple(argv), evaluate_known_graph(graph, target, argv))

    def explain_missing_timing(self, target: Target) -> str:
        """Return the reason why `target` has no timing model; "" if kernel costs are known."""
        if self.prices is not None:
            return ""
        return (
            f"no published timing data for {target.name}; calibrate with `lingeronnx profile-board`"
        )

    def with_timing_calibration(self, calibration: TimingCalibration, target: Target) -> LunaVendor:
        """Return a copy of this vendor with the kernel costs of a calibrated board.

        Raises ConfigError if the calibration is for another chip or unknown kernels.
        """
        from .timing.calibration_fit import apply_calibration

        return replace(self, prices=apply_calibration(calibration, target))

    def analyze_board_log(
        self,
        graphs: Sequence[ir.Model],
        target: Target,
        argv: Sequence[str] | None,
        log_text: str,
        clock_mhz: float | None,
    ) -> BoardProfile:
        """Match the executor's profile lines with the graphs' nodes and calibrate their costs.

        `graphs` are the parts on the chip, evaluated under `argv` (each under its fastest arguments
        if None). `clock_mhz` is None if unknown. Raises ConfigError if the log is not of these
        graphs.
        """
        from .board_log import analyze_board_log
        from .evaluation import DetailedVerdict

        verdicts = [self.evaluate_packing(graph, target, argv).verdict for graph in graphs]
        return analyze_board_log(
            [verdict for verdict in verdicts if isinstance(verdict, DetailedVerdict)],
            target,
            log_text,
            clock_mhz,
        )

    @property
    def clock_mhz(self) -> float | None:
        """Clock of the calibrated board in MHz, or None if it is unknown."""
        return None if self.prices is None else self.prices.clock_mhz

    def convert_dialect(self, graph: ir.Model, domain: str, target: Target) -> Sequence[str]:
        """Convert the graph to the dialect of `domain` in place; return notes for the user.

        Raises ModelError if operators have no counterpart, or if `target` has no training side.
        """
        from .dialects import convert_dialect

        if not target.training:
            return super().convert_dialect(graph, domain, target)
        return convert_dialect(graph, domain, target)

    def format_packer_command(self, argv: Sequence[str], graph_path: str, package_path: str) -> str:
        """Format the command that packs `graph_path` into `package_path`, quoted for a shell."""
        from .arguments.selection import format_command

        return format_command(argv, graph_path, package_path)

    def get_board_support(self) -> BoardSupport:
        """Return names of the vendor's SDK for firmware of the chip."""
        from .board_support import BOARD_SUPPORT

        return BOARD_SUPPORT.get(self.packing.name, BoardSupport())
