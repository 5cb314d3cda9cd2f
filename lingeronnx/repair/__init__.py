"""Repair of legacy quantized graphs.

Misplaced, missing or wrong Dequant nodes, lost edges, wrong declarations.
    view        a damaged model as it is: writers, readers, scopes
    nodes       what one node does with integers
    kinds       what every tensor is: integers with a scale, real numbers, indices
    structure, lost, dequants, declared    the repairs
    sizes       shapes, by ONNX's inference
    engine      all repairs in order, from file to file
    check       a run of the result

Works on the protobuf: damaged graphs do not load into an `ir.Graph`.
"""

from __future__ import annotations

from .engine import REPAIRS, Repaired, fix_dequant, repair_model
from .report import Edit, RepairFinding, RepairReport, RepairStep
from .trial_run import TrialRunResult

__all__ = [
    "REPAIRS",
    "TrialRunResult",
    "Edit",
    "RepairStep",
    "RepairFinding",
    "RepairReport",
    "Repaired",
    "fix_dequant",
    "repair_model",
]
