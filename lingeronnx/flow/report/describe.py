"""The report on an integer graph, made once.

What was done, what came of it, and what to try next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...files import chip_file_path
from ...graph import ir
from ...graph.name_mapping import NameMapping
from ...legalization import AppliedRewrite
from ...ops.macs import count_macs_if_known
from ...plan.synthetic_calibration import SYNTHETIC_WARNING
from ...run.chip_part import extract_chip_part, is_host_dequant
from ...run.program_parts import ProgramPart
from ...targets import Verdict
from ...targets.latency import CycleSavings
from ..partition import Partition
from ..planning.planned_model import PlannedModel
from ..prepare.preparation import PreparedModel
from .advice import suggest_options
from .fidelity import Fidelity
from .merges import find_merge_options
from .program import ProgramReport, build_program_report
from .report import FloatNode, Report, format_packer_command, split_float_nodes

__all__ = ["build_report", "is_split_into_parts"]


@dataclass(frozen=True)
class _MacShare:
    """The share of multiply-accumulates in integers, 0 to 1, and {operator.

    Nodes} where nobody knows how many.
    """

    share: float
    unknown: dict[str, int]


def build_report(
    prepared: PreparedModel,
    planned: PlannedModel,
    graph: ir.Model,
    fitted: Sequence[AppliedRewrite],
    fidelity: Fidelity,
) -> Report:
    """Return the report on `graph`, the integer graph of `planned` as it is written, without its tail.

    fitted : what was written otherwise. fidelity : how far it is from the float model.
    """
    target, plan, parts = planned.target, planned.plan, planned.partition
    fallbacks, host = split_float_nodes(parts.graph, parts.floats, parts.integer_node_ids)
    host += [*_tail_nodes(prepared), *(_host_dequant_nodes(graph) if target.has_packer else [])]
    renamed = target.vendor.names(graph)
    packed, program, formed = None, ProgramReport(), list[AppliedRewrite]()
    cut: list[ProgramPart] = []
    if target.has_packer and parts.ops and not fallbacks:
        packed = target.evaluate_packing(
            extract_chip_part(target.with_safe_names(graph, renamed), target)
        )
    verdict = None if packed is None else packed.verdict
    ready = verdict is not None and verdict.is_chip_ready
    if target.has_packer and parts.ops and planned.config.in_parts and not ready:
        program, cut = build_program_report(graph, target, renamed)
        formed = [done for part in cut for done in part.rewrites]
    made = [part.graph for part in cut if part.chip] if cut else [graph]
    words = "" if packed is None else packed.command_line
    file = Path(f"{prepared.stem}.onnx")
    work = _integer_mac_share(parts)
    pieces = program.verdicts if program.parts else () if verdict is None else (verdict,)
    saved = _total_time_saved(made, pieces, target.name)
    time = prepared.conf.time.estimate_call(target, pieces, has_host_parts=bool(fallbacks or host))
    return Report(
        platform=target.name,
        mode=plan.mode,
        layers=_count_integer_layers(parts, graph),
        chip_ready=ready,
        is_chip=target.has_packer,
        integer_macs=work.share,
        unknown_macs=work.unknown,
        float_nodes=fallbacks,
        host_part=host,
        fitted=[*fitted, *formed],
        packer=format_packer_command(
            target, words, chip_file_path(file) if ready and host else file
        ),
        packer_args=words,
        notes=[
            *prepared.notes,
            *planned.notes,
            *_format_renamed_tensors(renamed),
            *_format_assumptions(verdict),
        ],
        names=renamed.tensors,
        findings=(*(() if verdict is None else verdict.findings), *time.findings),
        time=time,
        cost=None if verdict is None else verdict.cost,
        saved=saved,
        outputs=fidelity.outputs,
        measured_on=fidelity.measured_on,
        warnings=[*([SYNTHETIC_WARNING] if plan.synthetic else []), *fidelity.warnings],
        doubts=fidelity.doubts,
        parts=fidelity.parts,
        next=suggest_options(prepared, planned, program, fallbacks, fidelity.is_lossy),
        program=program,
        merges=find_merge_options([entry.node for entry in fallbacks], parts.graph, target),
        full=prepared.conf.notes == "full",
        taken=planned.imported_qparams,
        refused=planned.rejected_tensors,
    )


def _total_time_saved(
    made: Sequence[ir.Model], verdicts: Sequence[Verdict], platform: str
) -> CycleSavings | None:
    """Return what other forms of graphs save, with the time of those that kept theirs.

    None where all did.
    verdicts : on these graphs. platform : the chip.
    """
    noted = [CycleSavings.read_metadata(graph.metadata_props, platform) for graph in made]
    if not any(noted):
        return None
    highs = [round(verdict.latency.high) if verdict.latency else 0 for verdict in verdicts]
    kept = [
        CycleSavings(high, high, platform)
        for saved, high in zip(noted, highs, strict=False)
        if saved is None
    ]
    return CycleSavings.sum_parts([*(saved for saved in noted if saved is not None), *kept])


def _format_assumptions(verdict: Verdict | None) -> list[str]:
    """Return the line on what of a verdict is believed, not measured.

    Nothing where there is none.
    """
    return (
        [verdict.assumption_summary] if verdict is not None and verdict.assumption_summary else []
    )


def is_split_into_parts(planned: PlannedModel) -> bool:
    """Whether float operators between integers cut the chip's work into parts, and the user wants that."""
    parts = planned.partition
    if not planned.target.has_packer or not planned.config.in_parts:
        return False
    return bool(split_float_nodes(parts.graph, parts.floats, parts.integer_node_ids)[0])


def _tail_nodes(prepared: PreparedModel) -> list[FloatNode]:
    """Return what the host does behind the graph, in the tail that was cut off."""
    tail = prepared.tail
    if tail is None:
        return []
    kinds = {str(node.name): node.op_type for node in tail.model.graph}
    return [FloatNode(name, kind, tail.host_reasons[name]) for name, kind in kinds.items()]


def _host_dequant_nodes(graph: ir.Model) -> list[FloatNode]:
    """Return the Dequants that the host computes, since the chip writes more than 8 bits."""
    why = "the chip writes more than 8 bits, and the host scales them"
    return [
        FloatNode(str(node.name), node.op_type, why)
        for node in graph.graph
        if is_host_dequant(node)
    ]


def _count_integer_layers(partition: Partition, graph: ir.Model) -> dict[str, int]:
    """Return {integer operator: nodes of `graph` that stand for float ones}."""
    return dict(
        sorted(
            Counter(node.op_type for node in graph.graph if str(node.name) in partition.ops).items()
        )
    )


def _integer_mac_share(partition: Partition) -> _MacShare:
    counted = {id(node): count_macs_if_known(node) for node in partition.graph.graph}
    work = {key: count or 0 for key, count in counted.items()}
    total = sum(work.values())
    share = (
        sum(n for key, n in work.items() if key in partition.integer_node_ids) / total
        if total
        else float(bool(partition.ops))
    )
    return _MacShare(
        share,
        Counter(
            ir.display_op_type(node) for node in partition.graph.graph if counted[id(node)] is None
        ),
    )


def _format_renamed_tensors(names: NameMapping) -> list[str]:
    """Return what the user should know of names that change."""
    if not names.tensors:
        return []
    (user, other), more = next(iter(names.tensors.items())), len(names.tensors) - 1
    rest = f"; {more} more change likewise (--json lists them)" if more else ""
    return [
        (
            f"tensor '{user}' is called '{other}' in the file, for the packer does not take all "
            f"names{rest}"
        )
    ]
