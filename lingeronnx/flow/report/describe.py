"""The report on an integer graph, made once: what was done, what came of it, and what to try next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...files import chip_file
from ...fit import Fitted
from ...graph import ir
from ...graph.names import Names
from ...ops.macs import known_macs
from ...plan.synthetic import SYNTHETIC
from ...run.part import chip_part, scaled_by_host
from ...run.parts import Part
from ...targets import Verdict
from ...targets.latency import TimeSaved
from ..partition import Partition
from ..planning.plan_record import Planned
from ..prepare.preparation import Prepared
from .advice import next_options
from .fidelity import Fidelity
from .merges import merges
from .program import ProgramReport, program_of
from .report import FloatNode, Report, float_nodes, packer_line

__all__ = ["cut_in_parts", "describe"]


@dataclass(frozen=True)
class _MacShare:
    """The share of multiply-accumulates in integers, 0 to 1, and {operator: nodes} where nobody knows how many."""

    share: float
    unknown: dict[str, int]


def describe(
    prepared: Prepared, planned: Planned, graph: ir.Graph, fitted: Sequence[Fitted], fidelity: Fidelity
) -> Report:
    """Return the report on `graph`, the integer graph of `planned` as it is written, without its tail.

    fitted : what was written otherwise. fidelity : how far it is from the float model.
    """
    target, plan, parts = planned.target, planned.plan, planned.parts
    fallbacks, host = float_nodes(parts.graph, parts.floats, parts.inside)
    host += [*_behind(prepared), *(_scaled(graph) if target.packs else [])]
    renamed = target.vendor.names(graph)
    packed, program, formed = None, ProgramReport(), list[Fitted]()
    cut: list[Part] = []
    if target.packs and parts.ops and not fallbacks:
        packed = target.verdict(chip_part(target.named(graph, renamed), target))
    verdict = None if packed is None else packed.verdict
    ready = verdict is not None and verdict.chip_ready
    if target.packs and parts.ops and planned.conf.in_parts and not ready:
        program, cut = program_of(graph, target, renamed)
        formed = [done for part in cut for done in part.formed]
    made = [part.graph for part in cut if part.chip] if cut else [graph]
    words = "" if packed is None else packed.line
    file = Path(f"{prepared.stem}.onnx")
    work = _work(parts)
    pieces = program.verdicts if program.parts else () if verdict is None else (verdict,)
    saved = _saved(made, pieces, target.name)
    time = prepared.conf.time.told(target, pieces, host=bool(fallbacks or host))
    return Report(
        platform=target.name,
        mode=plan.mode,
        layers=_layers(parts, graph),
        chip_ready=ready,
        is_chip=target.packs,
        integer_macs=work.share,
        unknown_macs=work.unknown,
        float_nodes=fallbacks,
        host_part=host,
        fitted=[*fitted, *formed],
        packer=packer_line(target, words, chip_file(file) if ready and host else file),
        packer_args=words,
        notes=[*prepared.notes, *planned.notes, *_renamed(renamed), *_believed(verdict)],
        names=renamed.tensors,
        findings=(*(() if verdict is None else verdict.findings), *time.findings),
        time=time,
        cost=None if verdict is None else verdict.cost,
        saved=saved,
        outputs=fidelity.outputs,
        measured_on=fidelity.on,
        warnings=[*([SYNTHETIC] if plan.synthetic else []), *fidelity.warnings],
        doubts=fidelity.doubts,
        parts=fidelity.parts,
        next=next_options(prepared, planned, program, fallbacks, fidelity.lossy),
        program=program,
        merges=merges([entry.node for entry in fallbacks], parts.graph, target),
        full=prepared.conf.notes == "full",
        taken=planned.taken,
        refused=planned.refused,
    )


def _saved(made: Sequence[ir.Graph], verdicts: Sequence[Verdict], platform: str) -> TimeSaved | None:
    """Return what other forms of graphs save, with the time of those that kept theirs; None where all did.

    verdicts : on these graphs. platform : the chip.
    """
    noted = [TimeSaved.noted(graph.metadata_props, platform) for graph in made]
    if not any(noted):
        return None
    highs = [round(verdict.time.high) if verdict.time else 0 for verdict in verdicts]
    kept = [TimeSaved(high, high, platform) for saved, high in zip(noted, highs, strict=False) if saved is None]
    return TimeSaved.total([*(saved for saved in noted if saved is not None), *kept])


def _believed(verdict: Verdict | None) -> list[str]:
    """Return the line on what of a verdict is believed, not measured; nothing where there is none."""
    return [verdict.believed] if verdict is not None and verdict.believed else []


def cut_in_parts(planned: Planned) -> bool:
    """Whether float operators between integers cut the chip's work into parts, and the user wants that."""
    parts = planned.parts
    if not planned.target.packs or not planned.conf.in_parts:
        return False
    return bool(float_nodes(parts.graph, parts.floats, parts.inside)[0])


def _behind(prepared: Prepared) -> list[FloatNode]:
    """Return what the host does behind the graph, in the tail that was cut off."""
    tail = prepared.tail
    if tail is None:
        return []
    kinds = {str(node.name): node.op_type for node in tail.model.graph}
    return [FloatNode(name, kind, tail.why[name]) for name, kind in kinds.items()]


def _scaled(graph: ir.Graph) -> list[FloatNode]:
    """Return the Dequants that the host computes, since the chip writes more than 8 bits."""
    why = "the chip writes more than 8 bits, and the host scales them"
    return [FloatNode(str(node.name), node.op_type, why) for node in graph.graph if scaled_by_host(node)]


def _layers(parts: Partition, graph: ir.Graph) -> dict[str, int]:
    """Return {integer operator: nodes of `graph` that stand for float ones}."""
    return dict(sorted(Counter(node.op_type for node in graph.graph if str(node.name) in parts.ops).items()))


def _work(parts: Partition) -> _MacShare:
    counted = {id(node): known_macs(node) for node in parts.graph.graph}
    work = {key: count or 0 for key, count in counted.items()}
    total = sum(work.values())
    share = sum(n for key, n in work.items() if key in parts.inside) / total if total else float(bool(parts.ops))
    return _MacShare(share, Counter(ir.operator(node) for node in parts.graph.graph if counted[id(node)] is None))


def _renamed(names: Names) -> list[str]:
    """Return what the user should know of names that change."""
    if not names.tensors:
        return []
    (user, other), more = next(iter(names.tensors.items())), len(names.tensors) - 1
    rest = f"; {more} more change likewise (--json lists them)" if more else ""
    return [f"tensor '{user}' is called '{other}' in the file, for the packer does not take all names{rest}"]
