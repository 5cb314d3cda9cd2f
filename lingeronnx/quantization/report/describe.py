"""Build the report on an integer graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...common.files import chip_file_path
from ...ir import ir
from ...ir.dynamic_tail import DynamicTail
from ...ir.name_mapping import NameMapping
from ...ir.plan.synthetic_calibration import SYNTHETIC_WARNING
from ...operators.chip_part import extract_chip_part, is_host_dequant
from ...runtime.program_parts import ProgramPart
from ...runtime.version_compatibility import VersionedPart
from ...targets import Verdict, describe_unmeasured
from ...targets.latency import CycleSavings
from ...targets.verdict import combine_bases
from ..legalize import AppliedRewrite
from ..steps.planned_model import PlannedModel
from .advice import suggest_options
from .fidelity import Fidelity
from .mac_shares import count_mac_shares, count_model_macs, count_tail_macs
from .merges import MergeOption, find_merge_options
from .program import ProgramReport, build_program_report
from .report import FloatNode, Report, format_packer_command, split_float_nodes

__all__ = ["build_report"]


@dataclass(frozen=True)
class _ChipEvaluation:
    """Verdict on the graph as a single chip part, or its parts if it is split.

    Attributes
    ----------
    verdict
        Verdict on the graph as one part; None if it has several parts or nothing for a chip.
    packer_args
        Packer arguments for one part.
    program
        Report on the parts; empty if the graph is not split.
    parts
        The parts.
    packed
        The graph as one part with its arguments; None if it has several parts.
    """

    verdict: Verdict | None = None
    packer_args: str = ""
    packed: VersionedPart | None = None
    program: ProgramReport = field(default_factory=ProgramReport)
    parts: Sequence[ProgramPart] = ()

    @property
    def is_chip_ready(self) -> bool:
        """Whether the graph runs on the chip as a single part."""
        return self.verdict is not None and self.verdict.is_chip_ready

    @property
    def basis(self) -> str:
        """What the claim that all chip parts run stands on; see `Verdict.basis`."""
        return combine_bases(self.chip_verdicts)

    @property
    def packed_parts(self) -> tuple[VersionedPart, ...]:
        """The parts with their packer arguments if the chip runs all of them, else ()."""
        if self.is_chip_ready:
            return () if self.packed is None else (self.packed,)
        if not self.program.runs_correctly:
            return ()
        return tuple(VersionedPart(part.graph, part.choice) for part in self.parts if part.chip)

    @property
    def chip_verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on all chip parts."""
        if self.program.parts:
            return self.program.verdicts
        return () if self.verdict is None else (self.verdict,)


def build_report(
    planned: PlannedModel,
    graph: ir.Model,
    fitted: Sequence[AppliedRewrite],
    fidelity: Fidelity,
) -> Report:
    """Build the report on the integer graph of a planned model.

    Parameters
    ----------
    planned
        The model and its plan.
    graph
        The integer graph as it is written, without a split-off tail.
    fitted
        Rewrites that were applied.
    fidelity
        Distance of the outputs from the float model.
    """
    prepared, target = planned.prepared, planned.prepared.target
    plan, partition = planned.plan, planned.partition
    fallbacks, host = split_float_nodes(
        partition.graph, partition.floats, partition.integer_node_ids
    )
    tail_macs: dict[ir.Node, int | None] = {}
    if prepared.tail is not None:
        tail_macs = count_tail_macs(prepared.tail, partition.graph)
        host += _list_tail_nodes(prepared.tail, tail_macs)
    if target.has_packer:
        host += _host_dequant_nodes(graph)
    renamed = target.vendor.names(graph)
    chip = _ChipEvaluation()
    if target.has_packer and partition.ops:
        chip = _evaluate_chip(planned, graph, renamed, is_contiguous=not fallbacks)
    part_graphs = [part.graph for part in chip.parts if part.chip] if chip.parts else [graph]
    part_rewrites = [rewrite for part in chip.parts for rewrite in part.rewrites]
    graph_file = Path(f"{prepared.stem}.onnx")
    packer_input = chip_file_path(graph_file) if chip.is_chip_ready and host else graph_file
    model_macs = count_model_macs(prepared.original)
    macs = count_mac_shares(partition, tail_macs, target.has_packer, model_macs)
    integer_macs = float(bool(partition.ops))  # without any MACs
    if macs.total:
        integer_macs = (macs.chip + macs.host_integer) / macs.total
    layers = Counter(n.op_type for n in graph.graph if str(n.name) in partition.ops)
    latency = prepared.conf.time.estimate_call(
        target, chip.chip_verdicts, has_host_parts=bool(fallbacks or host)
    )
    merges: list[MergeOption] = []
    if fallbacks:
        merges = find_merge_options([entry.node for entry in fallbacks], partition.graph, target)
    verdict, verdicts = chip.verdict, chip.chip_verdicts
    assumptions = [verdict.assumption_summary for verdict in verdicts]
    return Report(
        platform=target.name,
        mode=plan.mode,
        layers=dict(sorted(layers.items())),
        chip_ready=chip.is_chip_ready,
        chip_ready_basis=chip.basis,
        is_chip=target.has_packer,
        macs=macs,
        integer_macs=integer_macs,
        unknown_macs=macs.unknown,
        float_nodes=fallbacks,
        host_part=host,
        fitted=[*fitted, *part_rewrites],
        packer=format_packer_command(target, chip.packer_args, packer_input),
        packer_args=chip.packer_args,
        notes=[
            *prepared.notes,
            *planned.notes,
            *([_format_renamed_tensors(renamed)] if renamed.tensors else []),
            *dict.fromkeys(assumption for assumption in assumptions if assumption),
        ],
        names=renamed.tensors,
        findings=(*(() if verdict is None else verdict.findings), *latency.findings),
        time=latency,
        cost=None if verdict is None else verdict.cost,
        saved=_total_time_saved(part_graphs, chip.chip_verdicts, target.name),
        outputs=fidelity.outputs,
        measured_on=fidelity.measured_on,
        warnings=[
            *describe_unmeasured(target, (node.op_type for node in graph.graph)),
            *([SYNTHETIC_WARNING] if plan.synthetic else []),
            *fidelity.warnings,
        ],
        doubts=fidelity.doubts,
        parts=fidelity.parts,
        next=suggest_options(prepared, planned, chip.program, fallbacks, fidelity.is_lossy),
        program=chip.program,
        merges=merges,
        full=prepared.conf.notes == "full",
        packed_parts=chip.packed_parts,
        taken=planned.imported_qparams,
        refused=planned.rejected_tensors,
    )


def _evaluate_chip(
    planned: PlannedModel, graph: ir.Model, names: NameMapping, is_contiguous: bool
) -> _ChipEvaluation:
    """Evaluate the graph as one chip part, and in parts if it is not chip-ready as one.

    Parameters
    ----------
    planned
        The planned model.
    graph
        Its integer graph.
    names
        Names that the packer accepts.
    is_contiguous
        Whether no float nodes are between integer nodes; otherwise it is not evaluated as one part.
        It is only split into parts if the settings allow them (`in_parts`).
    """
    target = planned.prepared.target
    evaluation = _ChipEvaluation()
    if is_contiguous:
        part = extract_chip_part(target.with_safe_names(graph, names), target)
        choice = target.evaluate_packing(part)
        evaluation = _ChipEvaluation(
            choice.verdict, choice.command_line, VersionedPart(part, choice)
        )
    if planned.prepared.conf.in_parts and not evaluation.is_chip_ready:
        program, parts = build_program_report(graph, target, names)
        evaluation = replace(evaluation, program=program, parts=parts)
    return evaluation


def _total_time_saved(
    graphs: Sequence[ir.Model], verdicts: Sequence[Verdict], platform: str
) -> CycleSavings | None:
    """Sum the cycles that rewrites of the chip parts save; None if no part was rewritten.

    Parameters
    ----------
    graphs
        Graphs of the chip parts; a rewritten one has its savings in the metadata.
    verdicts
        Verdicts on these graphs. Unmodified parts count with the upper end of their latency, before
        and after.
    platform
        Name of the chip.
    """
    recorded = [CycleSavings.read_metadata(graph.metadata_props, platform) for graph in graphs]
    if not any(recorded):
        return None
    savings = [saving for saving in recorded if saving is not None]
    for saving, verdict in zip(recorded, verdicts, strict=False):
        if saving is None:
            cycles = round(verdict.latency.high) if verdict.latency else 0
            savings.append(CycleSavings(cycles, cycles, platform))
    return CycleSavings.sum_parts(savings)


def _list_tail_nodes(tail: DynamicTail, tail_macs: Mapping[ir.Node, int | None]) -> list[FloatNode]:
    """Return the nodes of the split-off dynamic tail, which runs on the host.

    `tail_macs` are their multiply-accumulates, None where they are unknown.
    """
    macs = {str(node.name): count or 0 for node, count in tail_macs.items()}
    return [
        FloatNode(name, node.op_type, tail.host_reasons[name], macs.get(name, 0))
        for node in tail.model.graph
        if (name := str(node.name))
    ]


def _host_dequant_nodes(graph: ir.Model) -> list[FloatNode]:
    """Return the Dequants that run on the host because the chip writes more than 8 bits."""
    reason = "the chip writes more than 8 bits; the host dequantizes them"
    return [
        FloatNode(str(node.name), node.op_type, reason)
        for node in graph.graph
        if is_host_dequant(node)
    ]


def _format_renamed_tensors(names: NameMapping) -> str:
    """Format the note on the tensors that are renamed for the packer, naming the first one."""
    original, renamed = next(iter(names.tensors.items()))
    others = len(names.tensors) - 1
    others_text = f"; {others} more are renamed too (--json lists them)" if others else ""
    return (
        f"tensor '{original}' is renamed to '{renamed}' in the file: the packer rejects the "
        f"original name{others_text}"
    )
