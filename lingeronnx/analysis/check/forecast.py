"""A float model on a chip before any calibration: packer, memory and cost depend on shapes, hardly on scales."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ConstraintError, ModelError
from ...flow.assign import ScaleChoice, assign, shared_scales
from ...flow.factor_groups import partition_with_clips
from ...flow.lower import lower
from ...flow.partition import Partition, partition
from ...flow.report import float_nodes
from ...formats import CLIP
from ...graph import ir
from ...plan.config import QuantConfig
from ...run.part import chip_part
from ...targets import ArgumentChoice, Fitted, Target

__all__ = ["packed_ahead"]


def packed_ahead(model: ir.Graph, target: Target) -> tuple[ArgumentChoice | None, Sequence[Fitted]]:
    """Return what becomes of the normalised and fitted float `model` on a chip, and what is done after lowering.

    The scales are placeholders: a guess for every activation, made to agree as the chip asks. None for a row without a
    packer, where nothing becomes integer, or where float nodes stand between integer ones.
    """
    parts = partition_with_clips(model, target, {}, 8)
    if not target.packs or not parts.ops or float_nodes(model, parts.floats, parts.inside)[0]:
        return None, []
    if not target.runs(CLIP.name):
        parts = partition(_saturating(model, parts), target, parts.floats)
    conf = QuantConfig(platform=target.name)
    setting = ScaleChoice(conf.mode, conf.bits, conf.weight_bits, conf.calibrator, conf.percentile, {})
    try:
        plan, _ = assign(parts, shared_scales(parts, target), {}, target, setting)
        lowered = lower(parts, plan, target).graph
    except (ConstraintError, ModelError):  # a guess may be one that the model's own constants do not allow
        return None, []
    lowered, formed = target.finish(lowered)
    return target.verdict(chip_part(target.named(lowered), target)), formed


def _saturating(model: ir.Graph, parts: Partition) -> ir.Graph:
    """Return a copy of `model` with a Relu for every Clip that becomes integer: saturation cuts at the bound.

    Quantizing moves a factor into the weights around it for that, which placeholders know nothing of.
    """
    copied = ir.clone(model)
    clips = {ir.written_name(node) for node, op in parts.nodes if op.name == CLIP.name}
    for node in list(copied.graph):
        if ir.written_name(node) in clips:
            new = ir.make_node("Relu", [node.inputs[0]], of=node, output="", like=node.outputs[0])
            ir.replace(copied, [node], [new])
    return copied
