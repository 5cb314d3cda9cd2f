"""The repair of the Dequants: each where integers meet their first reader of real numbers, at the integers' scale.

    finding   Dequants that may not stay, and readers of real numbers that get integers (`kinds.Kinds` tells both)
    mending   `dequant_edits` plans it

Tensors keep their names, but where integers have the name of a graph output: that goes to the Dequant's output, and
the integers are called ``<name>_q``.
"""

from __future__ import annotations

from collections.abc import Sequence

from .dequant_edits import NAME, EditPlan, dequant_before, named_tensor
from .kinds import Kinds, Kinship, dequant_input, known_scale
from .nodes import MISSING, is_dequant, is_quantized, positions, scales_read
from .report import Repair, RepairFinding, number
from .view import (
    GraphView,
    NodeView,
    TensorRead,
    TensorView,
    is_scale,
    same_scale,
)

__all__ = ["DEQUANTS"]


def _find(view: GraphView) -> list[RepairFinding]:
    kinship = Kinship.of(view)
    kinds = kinship.kinds
    plan = EditPlan(view)
    stays = plan.taken - {owner for owner, _ in plan.edits}  # as it is, for other readers: the Dequants behind are told
    findings = [_judged(node, kinds, kinship, plan) for node in view.order if node in kinds.why and node not in stays]
    findings += [
        RepairFinding(NAME, "has no input", node.label, level="fatal")
        for node in view.order
        if is_dequant(node) and (not node.inputs or node.inputs[0] is None)
    ]
    for tensor, reads in kinds.reals.items():
        findings += _missing(tensor, reads, kinds, plan)
    for read, tensor in kinds.faults:
        if (fault := _fault(read, tensor, kinds)) is not None:
            findings.append(fault)
    return findings + _mismatches(view, kinds)


def _judged(node: NodeView, kinds: Kinds, kinship: Kinship, plan: EditPlan) -> RepairFinding:
    """Return what is wrong with a Dequant that may not stay."""
    result, source = node.outputs[0], kinds.origin(dequant_input(node))
    assert result is not None
    kind, scale, why = kinds.of.get(source, MISSING), node.attributes.get("scale_o"), kinds.why[node]
    if why == "misplaced":
        reader = next((n for _, _, n in kinship.wanted(result).integers if n is not None), None)
        takes = "takes" if reader is None or reader.proto.op_type != "If" else "declares"
        text = f"stands before {reader.label if reader else 'an operator'}, which {takes} integers"
    elif why == "double":
        text = f"reads '{source.name}', which holds real numbers already"
    elif why == "index":
        text = f"reads '{source.name}', which holds indices, no quantized numbers"
    else:
        text = f"has scale_o {number(scale)}, but '{source.name}' has scale {number(kind.scale)}"
    differs = why == "scale"
    return RepairFinding(
        NAME,
        text,
        node.label,
        source.name,
        scale if differs else None,
        kind.scale if differs else None,
        edits=plan.of(node),
    )


def _missing(tensor: TensorView, reads: Sequence[TensorRead], kinds: Kinds, plan: EditPlan) -> list[RepairFinding]:
    """Return what is missing for the readers of real numbers that get the integers of `tensor`."""
    kind, scale = kinds.of[tensor], known_scale(tensor, kinds)
    findings = []
    for read in reads:
        if scale is not None and (named_tensor(read) is not tensor or dequant_before(tensor, kinds) is not None):
            continue  # there is a Dequant on the way, whose fault is told
        at = f" (scale {number(scale)})" if scale is not None else ""
        text = f"gets '{tensor.name}', {kind.text}{at}, as if it were real numbers: a Dequant is missing"
        if read.output is not None:
            text = f"hands out {kind.text}{at}, graph outputs are real: a Dequant is missing"
        if scale is None:
            text = f"needs a Dequant of '{tensor.name}', {kind.text}, whose scale is said nowhere"
        elif read.output is not None and tensor.entry is not None:
            text, scale = f"'{tensor.name}' is a graph input of integers and a graph output at once", None
        findings.append(
            RepairFinding(
                NAME,
                text,
                read.where,
                tensor.name,
                after=scale,
                level="wrong" if scale else "fatal",
                edits=plan.of(read),
            )
        )
    return findings


def _fault(read: TensorRead, tensor: TensorView, kinds: Kinds) -> RepairFinding | None:
    """Return what is wrong with an integer operator that reads something else than integers."""
    kind, node = kinds.of.get(tensor, MISSING), read.node
    if kind.what == "missing" or node is None:
        return None
    scale = scales_read(node).get(read.index)
    at = f" at scale {number(scale)}" if scale else ""
    what = "holds real numbers: a Quant is missing" if kind.what == "real" else "holds indices"
    return RepairFinding(
        NAME, f"takes integers{at}, but '{tensor.name}' {what}", node.label, tensor.name, level="fatal"
    )


def _mismatches(view: GraphView, kinds: Kinds) -> list[RepairFinding]:
    """Return the integer operators whose attribute says another scale than their input has: the producer's counts."""
    findings = []
    for node in view.order:
        if not is_quantized(node) or is_dequant(node):
            continue
        scales = scales_read(node)
        for index in positions(node):
            tensor = node.inputs[index]
            source = kinds.origin(tensor) if tensor is not None else None
            own = kinds.of.get(source, MISSING).scale if source is not None else None
            if source is not None and index in scales and is_scale(own) and not same_scale(scales[index], own):
                text = f"reads '{source.name}' at scale {number(scales[index])}, its producer says {number(own)}"
                findings.append(RepairFinding(NAME, text, node.label, source.name, scales[index], own, "note"))
    return findings


DEQUANTS = Repair(NAME, _find)
