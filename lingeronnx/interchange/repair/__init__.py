"""Repair of legacy quantized graphs: misplaced, missing or wrong Dequants, lost edges, wrong types.

    graph_view      view of a damaged model: producers, consumers, scopes
    node_semantics  how single nodes handle integers
    demands         which consumers need integers, and at which scale
    tensor_kinds    kind of each tensor: integers of a scale, real numbers, indices
    structure, lost_edges, dequants, dequant_edits, declarations
                    the repair steps
    shapes          shapes, by ONNX shape inference
    engine          all repair steps in order, from file to file
    trial_run       run of the repaired graph
    report          findings and edits as text and JSON

The package works on protobufs, since damaged graphs cannot be loaded as an `ir.Graph`.
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
