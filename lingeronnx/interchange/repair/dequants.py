"""Repair of Dequants: one where integers reach their first real consumer, at the integers' scale.

`tensor_kinds.TensorKinds` has the invalid Dequants and the consumers that get integers instead of
real numbers; `dequant_edits.EditPlan` has the edits that fix them.

Tensors keep their names, with one exception: if an integer tensor has the name of a graph output,
the output of the Dequant gets that name, and the integers are renamed to ``<name>_q``.
"""

from __future__ import annotations

from collections.abc import Sequence

from .dequant_edits import REPAIR_NAME, EditPlan, find_upstream_dequant, tensor_read_by
from .graph_view import (
    GraphView,
    NodeView,
    TensorRead,
    TensorView,
    is_scale,
    same_scale,
)
from .node_semantics import (
    MISSING,
    TensorDemand,
    TensorKind,
    integer_inputs,
    is_dequant,
    is_quantized,
    read_scales,
)
from .report import RepairFinding, RepairStep, format_scale
from .tensor_kinds import KindAnalysis, TensorKinds, dequant_input, find_scale

__all__ = ["DEQUANT_REPAIR"]


def _find_dequant_faults(view: GraphView) -> list[RepairFinding]:
    """Return the findings on the Dequants of `view`, with the edits that fix them.

    In order: Dequants that are misplaced, redundant or have a wrong scale; those without input;
    missing ones; integer operators that read no integers; and scales that differ from the
    producer's.
    """
    analysis = KindAnalysis.for_view(view)
    kinds = analysis.kinds
    plan = EditPlan(view)
    # An invalid Dequant may be kept unchanged for new consumers; the faults are upstream of it.
    kept_unchanged = plan.reused_dequants - {owner for owner, _ in plan.edits}
    findings = [
        _describe_invalid_dequant(node, kinds, analysis, plan)
        for node in view.order
        if node in kinds.invalid_dequants and node not in kept_unchanged
    ]
    for node in view.order:
        if is_dequant(node) and (not node.inputs or node.inputs[0] is None):
            findings.append(RepairFinding(REPAIR_NAME, "has no input", node.label, level="fatal"))
    for tensor, reads in kinds.missing_dequants.items():
        findings += _find_missing_dequants(tensor, reads, kinds, plan)
    for read, tensor in kinds.invalid_reads:
        finding = _describe_invalid_read(read, tensor, kinds)
        if finding is not None:
            findings.append(finding)
    return findings + _find_scale_mismatches(view, kinds)


def _describe_invalid_dequant(
    node: NodeView, kinds: TensorKinds, analysis: KindAnalysis, plan: EditPlan
) -> RepairFinding:
    """Return the finding on `node`, a Dequant that is misplaced, redundant or has a wrong scale.

    Its edits are those of `plan`. `before` and `after` of the finding are set for a wrong scale
    only.
    """
    source = kinds.resolve(dequant_input(node))
    kind = kinds.kind_of.get(source, MISSING)
    fault = kinds.invalid_dequants[node]
    before: object = None
    after: object = None
    if fault == "misplaced":
        result = node.outputs[0]
        assert result is not None
        text = _format_misplaced(analysis.demand_of(result))
    elif fault == "double":
        text = f"reads '{source.name}', which already contains real numbers"
    elif fault == "index":
        text = f"reads '{source.name}', which contains indices, not quantized values"
    else:
        before, after = node.attributes.get("scale_o"), kind.scale
        text = (
            f"has scale_o {format_scale(before)}, but '{source.name}' has scale "
            f"{format_scale(after)}"
        )
    return RepairFinding(
        REPAIR_NAME, text, node.label, source.name, before, after, edits=plan.edits_for(node)
    )


def _format_misplaced(demand: TensorDemand) -> str:
    """Return the message on a Dequant upstream of integer operators.

    It names the first of `demand`.
    """
    readers = [reader.node for reader in demand.integer_readers if reader.node is not None]
    if not readers:
        return "is upstream of an operator that needs integers"
    verb = "declares" if readers[0].proto.op_type == "If" else "needs"
    return f"is upstream of {readers[0].label}, which {verb} integers"


def _find_missing_dequants(
    tensor: TensorView, reads: Sequence[TensorRead], kinds: TensorKinds, plan: EditPlan
) -> list[RepairFinding]:
    """Return a finding for each of `reads` that takes the integers of `tensor` as real numbers.

    A finding is fatal if the scale is not known, or if `tensor` is a graph input that is an output
    too. Reads behind an invalid Dequant, which is reported instead, are left out.
    """
    findings = []
    scale = find_scale(tensor, kinds)
    is_behind_dequant = find_upstream_dequant(tensor, kinds) is not None
    for read in reads:
        if scale is not None and (is_behind_dequant or tensor_read_by(read) is not tensor):
            continue  # an invalid Dequant in between is reported instead
        is_fixable = scale is not None and (read.output is None or tensor.graph_input is None)
        findings.append(
            RepairFinding(
                REPAIR_NAME,
                _format_missing_dequant(tensor, read, kinds.kind_of[tensor], scale),
                read.label,
                tensor.name,
                after=scale if is_fixable else None,
                level="wrong" if is_fixable else "fatal",
                edits=plan.edits_for(read),
            )
        )
    return findings


def _format_missing_dequant(
    tensor: TensorView, read: TensorRead, kind: TensorKind, scale: float | None
) -> str:
    """Return the message that `read`, a node input or graph output, needs a Dequant of `tensor`.

    `kind` is that of the tensor; `scale` is None if unknown.
    """
    if scale is None:
        return f"needs a Dequant of '{tensor.name}' ({kind.label}), whose scale is unknown"
    if read.output is None:
        return (
            f"reads '{tensor.name}' as real numbers, but it contains {kind.label} (scale "
            f"{format_scale(scale)}): a Dequant is missing"
        )
    if tensor.graph_input is not None:
        return "is also an integer graph input"
    return (
        f"returns {kind.label} (scale {format_scale(scale)}), but graph outputs are real numbers: "
        "a Dequant is missing"
    )


def _describe_invalid_read(
    read: TensorRead, tensor: TensorView, kinds: TensorKinds
) -> RepairFinding | None:
    """Return the fatal finding that `read`, an operand of an integer operator, holds no integers.

    `tensor` is the operand: real numbers or indices. None if it is undefined, which another repair
    step reports.
    """
    kind, node = kinds.kind_of.get(tensor, MISSING), read.node
    if kind.category == "missing" or node is None:
        return None
    scale = read_scales(node).get(read.index)
    at_scale = f" at scale {format_scale(scale)}" if scale else ""
    fault = "indices" if kind.category != "real" else "real numbers: a Quant is missing"
    return RepairFinding(
        REPAIR_NAME,
        f"needs integers{at_scale}, but '{tensor.name}' contains {fault}",
        node.label,
        tensor.name,
        level="fatal",
    )


def _find_scale_mismatches(view: GraphView, kinds: TensorKinds) -> list[RepairFinding]:
    """Return a note for each integer operand with another scale attribute than its producer.

    `before` is the attribute, `after` the producer's scale, which is used. Unknown scales are not
    compared. Notes have no edits.
    """
    findings = []
    for node in view.order:
        if not is_quantized(node) or is_dequant(node):
            continue
        scales = read_scales(node)
        for index in integer_inputs(node):
            tensor = node.inputs[index]
            if tensor is None or index not in scales:
                continue
            source = kinds.resolve(tensor)
            actual = kinds.kind_of.get(source, MISSING).scale
            if not is_scale(actual) or same_scale(scales[index], actual):
                continue
            text = (
                f"reads '{source.name}' at scale {format_scale(scales[index])}, but its producer "
                f"has scale {format_scale(actual)}"
            )
            findings.append(
                RepairFinding(
                    REPAIR_NAME, text, node.label, source.name, scales[index], actual, "note"
                )
            )
    return findings


DEQUANT_REPAIR = RepairStep(REPAIR_NAME, _find_dequant_faults)
