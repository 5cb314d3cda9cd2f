"""Diagnosis and repair of a legacy graph, from file to file.

    read -> each repair of `REPAIRS`: find, mend -> look again: nothing may be left -> structure ->
    (run) -> save

A graph is written only where nothing fatal was found and a second look finds nothing: repairing
what was repaired changes nothing. A file in which nothing is wrong is written byte for byte.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnx import ModelProto

from ..errors import ModelError, RepairError
from ..files import replace_file
from ..formats import find_nonzero_zero_point
from ..graph import ir, onnx_file
from .declarations import TYPE_REPAIR, VALUE_INFO_REPAIR
from .dequants import DEQUANT_REPAIR
from .graph_view import GraphView, sort_all
from .lost_edges import LOST_EDGE_REPAIR
from .report import Edit, RepairFinding, RepairReport, RepairStep
from .structure import DUPLICATE_REPAIR, IDENTITY_REPAIR, ORDER_REPAIR
from .trial_run import TrialRunResult, run_repaired_graph

__all__ = ["REPAIRS", "Repaired", "fix_dequant", "repair_model"]

#: In this order: types can be told only where every tensor has one writer and nothing depends on itself.
REPAIRS: tuple[RepairStep, ...] = (
    DUPLICATE_REPAIR,
    ORDER_REPAIR,
    LOST_EDGE_REPAIR,
    IDENTITY_REPAIR,
    DEQUANT_REPAIR,
    TYPE_REPAIR,
    VALUE_INFO_REPAIR,
)
_STRUCTURE_REPAIRS = (DUPLICATE_REPAIR, ORDER_REPAIR)


@dataclass
class Repaired:
    """A repaired graph.

    model : the protobuf; report : findings and edits; checked : the outcome of the run, where one
    was asked for
    """

    path: Path
    model: ModelProto
    report: RepairReport
    trial_run: TrialRunResult | None = None
    _original: bytes = field(default=b"", repr=False)

    @property
    def changed(self) -> bool:
        """Whether anything was edited."""
        return bool(self.report.edits)

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the graph to `path`, by default ``<stem>_fix.onnx`` beside the original, and return where.

        Raises ConfigError where that cannot be written, RepairError where it is the original.
        """
        target = self.path.with_name(f"{self.path.stem}_fix.onnx") if path is None else Path(path)
        if target.exists() and target.samefile(self.path):
            raise RepairError(
                f"{target} is the graph that was read; a repair never overwrites it, choose "
                "another name"
            )
        beside = target.parent.resolve() == self.path.parent.resolve()
        if self.changed or not (beside or _is_self_contained(self._original)):
            copy = ModelProto()
            copy.CopyFrom(self.model)
            onnx_file.write_model(copy, target, ir.MAX_MODEL_BYTES, check_operators=False)
        else:
            with replace_file(target) as temporary:
                temporary.write_bytes(self._original)
        return target

    def to_dict(self) -> dict[str, object]:
        """Return report and check as JSON-ready values."""
        check = {} if self.trial_run is None else {"check": self.trial_run.to_dict()}
        return {
            "model": str(self.path),
            "repaired": True,
            "changed": self.changed,
            **self.report.to_dict(),
            **check,
        }


def fix_dequant(path: str | os.PathLike[str], check: bool = False) -> Repaired:
    """Repair the quantized graph at `path`; nothing is written before `Repaired.save`.

    check : run the repaired graph on seeded inputs. Raises ModelError for a file that is no graph,
    and RepairError, whose `report` holds all findings, for one that cannot be repaired.
    """
    where = Path(path)
    original = onnx_file.read_model(where)
    model = ModelProto()
    model.CopyFrom(original)
    report = repair_model(model)
    if report.fatal:
        first, more = report.fatal[0], len(report.fatal) - 1
        place = f"{first.node}: " if first.node else ""
        rest = f" (and {more} more that cannot be repaired)" if more else ""
        raise RepairError(f"cannot repair {where}: {place}{first.text}{rest}", report)
    return Repaired(
        where, model, report, run_repaired_graph(model) if check else None, where.read_bytes()
    )


def repair_model(model: ModelProto) -> RepairReport:
    """Repair `model` in place and return what was found and done.

    With something fatal it is repaired in part.
    Raises ModelError where the protobuf is damaged.
    """
    onnx_file.check_string_fields(model)
    report, view = RepairReport(), GraphView(model)
    for step in REPAIRS:
        findings = step.find(view)
        report.findings += findings
        if done := apply_edits(view, findings):
            report.edits += done
            view = GraphView(model)
        if step in _STRUCTURE_REPAIRS and report.fatal:
            return report
    if report.edits:
        report.findings += _find_nonzero_zero_points(model)
    if not report.fatal:
        report.findings += _find_remaining_faults(model)
    return report


def _find_nonzero_zero_points(model: ModelProto) -> list[RepairFinding]:
    """Return where the integer 0 is not the real 0: what was edited took it for granted."""
    for node in GraphView(model).nodes:
        key = find_nonzero_zero_point(node.attributes)
        if key is not None:
            text = (
                f"has {key} = {node.attributes[key]}; only graphs whose zero points are 0 can "
                "be repaired"
            )
            return [RepairFinding("structure", text, node.label, level="fatal")]
    return []


def apply_edits(view: GraphView, findings: Sequence[RepairFinding]) -> list[Edit]:
    """Do to the model of `view` what the findings of one repair say, and return what was done.

    The view does not describe the model any more. Nodes are put in order where an edit left them in
    none.
    """
    edits = sorted((e for f in findings for e in f.edits), key=lambda e: e.rank)
    for edit in edits:
        edit.apply()
    if edits:
        sort_all(GraphView(view.model))
    return edits


def _find_remaining_faults(model: ModelProto) -> list[RepairFinding]:
    """Return what a second look still finds, and what is unsound in a way that no repair is for."""
    view = GraphView(model)
    for step in REPAIRS:
        left = [f for f in step.find(view) if f.level != "note"]
        if left:
            text = f"what is wrong here undoes its own repair ({left[0].text})"
            return [RepairFinding(step.name, text, left[0].node, left[0].tensor, level="fatal")]
    try:
        onnx_file.check_structure(model)
    except ModelError as error:
        return [RepairFinding("structure", str(error), level="fatal")]
    return []


def _is_self_contained(original: bytes) -> bool:
    model = ModelProto.FromString(original)
    return all(tensor.data_location != tensor.EXTERNAL for tensor in onnx_file.iter_tensors(model))
