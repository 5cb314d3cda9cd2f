"""Diagnosis and repair of a legacy graph, from file to file.

    read -> each repair step of `REPAIRS`: find, edit -> repeat the search, which must find nothing
    -> check the structure -> (trial run) -> save

A graph is written only if nothing fatal is found and the second search finds nothing; hence a
repair of a repaired graph changes nothing. A file without problems is copied byte for byte.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnx import ModelProto

from ...common.deprecation import keep_old_members
from ...common.errors import ModelError, RepairError
from ...common.files import replace_file, resolve_path
from ...ir import onnx_file
from ...operators.integer_ops import find_nonzero_zero_point
from .declarations import TYPE_REPAIR, VALUE_INFO_REPAIR
from .dequants import DEQUANT_REPAIR
from .graph_view import GraphView, sort_all
from .lost_edges import LOST_EDGE_REPAIR
from .report import Edit, RepairFinding, RepairReport, RepairStep
from .structure import DUPLICATE_REPAIR, IDENTITY_REPAIR, ORDER_REPAIR
from .trial_run import TrialRunResult, run_repaired_graph

__all__ = ["REPAIRS", "Repaired", "fix_dequant", "repair_model"]

#: The order matters: tensor kinds are defined only if each tensor has one producer and there is no
#: cycle.
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


@keep_old_members("0.3", checked="trial_run")
@dataclass
class Repaired:
    """A repaired graph.

    Attributes
    ----------
    path : Path
        The original file.
    model : ModelProto
        The repaired model.
    report : RepairReport
        Findings and edits.
    trial_run : TrialRunResult or None
        Result of the trial run, if one was requested.
    """

    path: Path
    model: ModelProto
    report: RepairReport
    trial_run: TrialRunResult | None = None
    _original: bytes = field(default=b"", repr=False)

    @property
    def changed(self) -> bool:
        """Whether the repair edited the graph."""
        return bool(self.report.edits)

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the repaired graph, and return its path.

        An unchanged graph is copied byte by byte, except to another folder if it has external data.

        Parameters
        ----------
        path
            File to write; by default ``<stem>_fix.onnx`` in the folder of the original.

        Raises
        ------
        ConfigError
            If the file cannot be written.
        RepairError
            If `path` is the original file.
        """
        target = self.path.with_name(f"{self.path.stem}_fix.onnx") if path is None else Path(path)
        if target.exists() and target.samefile(self.path):
            raise RepairError(
                f"refusing to overwrite the original graph {target}; choose another name"
            )
        in_same_folder = resolve_path(target.parent) == resolve_path(self.path.parent)
        if self.changed or not (in_same_folder or _is_self_contained(self._original)):
            copy = ModelProto()
            copy.CopyFrom(self.model)
            onnx_file.write_model(copy, target, onnx_file.MAX_MODEL_BYTES, check_operators=False)
        else:
            with replace_file(target) as temporary:
                temporary.write_bytes(self._original)
        return target

    def to_dict(self) -> dict[str, object]:
        """Return path, report and, if there was one, trial run (key `check`) as JSON values."""
        check = {} if self.trial_run is None else {"check": self.trial_run.to_dict()}
        return {
            "model": str(self.path),
            "repaired": True,
            "changed": self.changed,
            **self.report.to_dict(),
            **check,
        }


def fix_dequant(path: str | os.PathLike[str], check: bool = False) -> Repaired:
    """Repair the quantized graph in a file; only `Repaired.save` writes a file.

    Parameters
    ----------
    path
        The ONNX file.
    check
        Whether to run the repaired graph on random inputs with a fixed seed.

    Raises
    ------
    ModelError
        If the file is not a valid ONNX graph.
    RepairError
        If the graph cannot be repaired; the attribute `report` has all findings.
    """
    source = Path(path)
    original = onnx_file.read_model(source)
    model = ModelProto()
    model.CopyFrom(original)
    report = repair_model(model)
    if report.fatal:
        first, other_count = report.fatal[0], len(report.fatal) - 1
        location = f"{first.node}: " if first.node else ""
        others = f" (and {other_count} more that cannot be repaired)" if other_count else ""
        raise RepairError(f"cannot repair {source}: {location}{first.text}{others}", report)
    trial_run = run_repaired_graph(model) if check else None
    return Repaired(source, model, report, trial_run, source.read_bytes())


def repair_model(model: ModelProto) -> RepairReport:
    """Repair `model` in place and return the findings and edits.

    If the report has fatal findings, the model is repaired in part only. Findings also include a
    zero point other than 0 in a model that was edited, and faults that remain; both are fatal.

    Raises
    ------
    ModelError
        If the protobuf is malformed.
    """
    onnx_file.check_string_fields(model)
    report, view = RepairReport(), GraphView(model)
    for step in REPAIRS:
        findings = step.find(view)
        report.findings += findings
        edits = apply_edits(view, findings)
        if edits:
            report.edits += edits
            view = GraphView(model)
        if step in _STRUCTURE_REPAIRS and report.fatal:
            return report
    if report.edits:
        report.findings += _find_nonzero_zero_points(model)
    if not report.fatal:
        report.findings += _find_remaining_faults(model)
    return report


def _find_nonzero_zero_points(model: ModelProto) -> list[RepairFinding]:
    """Return a list with a fatal finding for the first node with a zero point other than 0, or [].

    The repair steps assume that zero points are 0.
    """
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
    """Apply the edits of `findings` to the model of `view`, in the order of their ranks.

    Return them. If there are any, the nodes of all graphs are sorted topologically afterwards, and
    `view` no longer describes the model.
    """
    edits = [edit for finding in findings for edit in finding.edits]
    edits.sort(key=lambda edit: edit.rank)
    for edit in edits:
        edit.apply()
    if edits:
        sort_all(GraphView(view.model))
    return edits


def _find_remaining_faults(model: ModelProto) -> list[RepairFinding]:
    """Return a list with one fatal finding if the repaired `model` still has faults, else [].

    A fault is a finding of any repair step other than a note, or an invalid structure. Only the
    first one is reported.
    """
    view = GraphView(model)
    for step in REPAIRS:
        remaining = [finding for finding in step.find(view) if finding.level != "note"]
        if remaining:
            first = remaining[0]
            text = f"the repair does not converge ({first.text})"
            return [RepairFinding(step.name, text, first.node, first.tensor, level="fatal")]
    try:
        onnx_file.check_structure(model)
    except ModelError as error:
        return [RepairFinding("structure", str(error), level="fatal")]
    return []


def _is_self_contained(original: bytes) -> bool:
    """Whether the serialized model `original` has no external data."""
    model = ModelProto.FromString(original)
    return all(tensor.data_location != tensor.EXTERNAL for tensor in onnx_file.iter_tensors(model))
