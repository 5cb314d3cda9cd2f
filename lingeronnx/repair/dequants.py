"""The repair of the Dequants.

Each where integers meet their first reader of real numbers, at the integers' scale.
    finding   Dequants that may not stay, and readers of real numbers that get integers
    (`kinds.Kinds` tells both) mending   `dequant_edits` plans it

Tensors keep their names, but where integers have the name of a graph output: that goes to the
Dequant's output, and the integers are called ``<name>_q``.
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
from .node_semantics import MISSING, integer_inputs, is_dequant, is_quantized, read_scales
from .report import RepairFinding, RepairStep, format_scale
from .tensor_kinds import KindAnalysis, TensorKinds, dequant_input, find_scale

__all__ = ["DEQUANT_REPAIR"]


def _find_dequant_faults(view: GraphView) -> list[RepairFinding]:
    kinship = KindAnalysis.for_view(view)
    kinds = kinship.kinds
    plan = EditPlan(view)
    stays = plan.reused_dequants - {
        owner for owner, _ in plan.edits
    }  # as it is, for other readers: the Dequants behind are told
    findings = [
        _describe_invalid_dequant(node, kinds, kinship, plan)
        for node in view.order
        if node in kinds.invalid_dequants and node not in stays
    ]
    findings += [
        RepairFinding(REPAIR_NAME, "has no input", node.label, level="fatal")
        for node in view.order
        if is_dequant(node) and (not node.inputs or node.inputs[0] is None)
    ]
    for tensor, reads in kinds.missing_dequants.items():
        findings += _find_missing_dequants(tensor, reads, kinds, plan)
    for read, tensor in kinds.invalid_reads:
        if (fault := _describe_invalid_read(read, tensor, kinds)) is not None:
            findings.append(fault)
    return findings + _find_scale_mismatches(view, kinds)


def _describe_invalid_dequant(
    node: NodeView, kinds: TensorKinds, kinship: KindAnalysis, plan: EditPlan
) -> RepairFinding:
    """Return what is wrong with a Dequant that may not stay."""
    result, source = node.outputs[0], kinds.resolve(dequant_input(node))
    assert result is not None
    kind, scale, why = (
        kinds.kind_of.get(source, MISSING),
        node.attributes.get("scale_o"),
        kinds.invalid_dequants[node],
    )
    if why == "misplaced":
        reader = next(
            (n for _, _, n in kinship.demand_of(result).integer_readers if n is not None), None
        )
        takes = "takes" if reader is None or reader.proto.op_type != "If" else "declares"
        text = f"stands before {reader.label if reader else 'an operator'}, which {takes} integers"
    elif why == "double":
        text = f"reads '{source.name}', which holds real numbers already"
    elif why == "index":
        text = f"reads '{source.name}', which holds indices, no quantized numbers"
    else:
        text = (
            f"has scale_o {format_scale(scale)}, but '{source.name}' has scale "
            f"{format_scale(kind.scale)}"
        )
    differs = why == "scale"
    return RepairFinding(
        REPAIR_NAME,
        text,
        node.label,
        source.name,
        scale if differs else None,
        kind.scale if differs else None,
        edits=plan.edits_for(node),
    )


def _find_missing_dequants(
    tensor: TensorView, reads: Sequence[TensorRead], kinds: TensorKinds, plan: EditPlan
) -> list[RepairFinding]:
    """Return what is missing for the readers of real numbers that get the integers of `tensor`."""
    kind, scale = kinds.kind_of[tensor], find_scale(tensor, kinds)
    findings = []
    for read in reads:
        if scale is not None and (
            tensor_read_by(read) is not tensor or find_upstream_dequant(tensor, kinds) is not None
        ):
            continue  # there is a Dequant on the way, whose fault is told
        at = f" (scale {format_scale(scale)})" if scale is not None else ""
        text = (
            f"gets '{tensor.name}', {kind.text}{at}, as if it were real numbers: a Dequant is "
            "missing"
        )
        if read.output is not None:
            text = f"hands out {kind.text}{at}, graph outputs are real: a Dequant is missing"
        if scale is None:
            text = f"needs a Dequant of '{tensor.name}', {kind.text}, whose scale is said nowhere"
        elif read.output is not None and tensor.entry is not None:
            text, scale = (
                f"'{tensor.name}' is a graph input of integers and a graph output at once",
                None,
            )
        findings.append(
            RepairFinding(
                REPAIR_NAME,
                text,
                read.where,
                tensor.name,
                after=scale,
                level="wrong" if scale else "fatal",
                edits=plan.edits_for(read),
            )
        )
    return findings


def _describe_invalid_read(
    read: TensorRead, tensor: TensorView, kinds: TensorKinds
) -> RepairFinding | None:
    """Return what is wrong with an integer operator that reads something else than integers."""
    kind, node = kinds.kind_of.get(tensor, MISSING), read.node
    if kind.category == "missing" or node is None:
        return None
    scale = read_scales(node).get(read.index)
    at = f" at scale {format_scale(scale)}" if scale else ""
    what = "holds real numbers: a Quant is missing" if kind.category == "real" else "holds indices"
    return RepairFinding(
        REPAIR_NAME,
        f"takes integers{at}, but '{tensor.name}' {what}",
        node.label,
        tensor.name,
        level="fatal",
    )


def _find_scale_mismatches(view: GraphView, kinds: TensorKinds) -> list[RepairFinding]:
    """Return the integer operators whose attribute says another scale than their input has.

    The producer's counts.
    """
    findings = []
    for node in view.order:
        if not is_quantized(node) or is_dequant(node):
            continue
        scales = read_scales(node)
        for index in integer_inputs(node):
            tensor = node.inputs[index]
            source = kinds.resolve(tensor) if tensor is not None else None
            own = kinds.kind_of.get(source, MISSING).scale if source is not None else None
            if (
                source is not None
                and index in scales
                and is_scale(own)
                and not same_scale(scales[index], own)
            ):
                text = (
                    f"reads '{source.name}' at scale {format_scale(scales[index])}, its producer "
                    "says "
                    f"{format_scale(own)}"
                )
                findings.append(
                    RepairFinding(
                        REPAIR_NAME, text, node.label, source.name, scales[index], own, "note"
                    )
                )
    return findings


DEQUANT_REPAIR = RepairStep(REPAIR_NAME, _find_dequant_faults)
