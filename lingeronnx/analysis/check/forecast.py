"""A float model on a chip before any calibration.

Packer, memory and cost depend on shapes, hardly on scales.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ...errors import ConstraintError, ModelError
from ...flow.assign import ScalePolicy, assign_qparams, group_shared_scales
from ...flow.factor_groups import find_saturating_clips, partition_with_clip_fallback
from ...flow.lower import lower
from ...flow.partition import Partition, partition_graph
from ...flow.report import FloatNode, split_float_nodes
from ...flow.report.merges import MergeOption, find_merge_options
from ...flow.report.program import ProgramReport, build_program_report
from ...formats import CLIP
from ...graph import ir
from ...lowering import LoweringResult
from ...ops.macs import count_macs
from ...plan.config import QuantConfig
from ...run.chip_part import extract_chip_part
from ...targets import AppliedRewrite, PackerArguments, Target

__all__ = ["Forecast", "forecast_deployment"]


@dataclass(frozen=True)
class Forecast:
    """What becomes of a float model on a chip.

    choice : the verdict on it as one part, None where float operators stand between integer ones.
    formed : what is done after lowering. program : the parts in which it runs otherwise, empty
    where it is chip-ready. host : the float operators between its integer ones then, and in front
    of and behind them. share : of the multiply-accumulates on the chip, 0 to 1. merges : what would
    let float operators between its parts be the chip's.
    """

    choice: PackerArguments | None = None
    rewrites: Sequence[AppliedRewrite] = ()
    program: ProgramReport = field(default_factory=ProgramReport)
    host_nodes: Sequence[FloatNode] = ()
    chip_mac_share: float = 1.0
    merges: Sequence[MergeOption] = ()


def forecast_deployment(model: ir.Model, target: Target) -> Forecast:
    """Return what becomes of the normalised and fitted float `model`.

    Nothing for a row without a packer.
    The scales are placeholders: a guess for every activation, made to agree as the chip asks. What
    `quantize` moves to the host, by evidence or with `max_parts`, stays on the chip here.
    """
    parts = partition_with_clip_fallback(model, target, {}, 8)
    if not target.has_packer or not parts.ops:
        return Forecast()
    lowered = _lower_with_placeholder_scales(parts, target)
    if lowered is None:
        return Forecast()
    graph, choice = lowered.graph, None
    formed: Sequence[AppliedRewrite] = ()
    fallbacks, host = split_float_nodes(model, parts.floats, parts.integer_node_ids)
    if not fallbacks:
        graph, formed = target.run_backend_passes(graph)
        choice = target.evaluate_packing(extract_chip_part(target.with_safe_names(graph), target))
        if choice.verdict.is_chip_ready:
            return Forecast(choice, formed)
    program, _ = build_program_report(graph, target, target.vendor.names(graph))
    work = sum(count_macs(node) for node in model.graph)
    share = sum(count_macs(node) for node, _ in parts.integer_nodes) / work if work else 1.0
    fewer = find_merge_options([entry.node for entry in fallbacks], model, target)
    return Forecast(choice, formed, program, [*fallbacks, *host], share, fewer)


def _lower_with_placeholder_scales(partition: Partition, target: Target) -> LoweringResult | None:
    """Return the integer graph under guessed scales.

    None where the model's own constants do not allow a guess.
    """
    if not target.can_run(CLIP.name):
        partition = partition_graph(
            _replace_clips_with_relu(partition.graph, find_saturating_clips(partition, target, 8)),
            target,
            partition.floats,
        )
    conf = QuantConfig(platform=target.name)
    setting = ScalePolicy(
        conf.mode, conf.bits, conf.weight_bits, conf.calibrator, conf.percentile, {}
    )
    try:
        plan, _ = assign_qparams(
            partition, group_shared_scales(partition, target), {}, target, setting
        )
        return lower(partition, plan, target)
    except (ConstraintError, ModelError):
        return None


def _replace_clips_with_relu(model: ir.Model, clips: Collection[str]) -> ir.Model:
    """Return a copy of `model` with a Relu for each of the nodes `clips`.

    Saturation cuts at the bound.
    Quantizing moves a factor into the weights around it for that, which placeholders know nothing
    of.
    """
    copied = ir.clone(model)
    for node in list(copied.graph):
        if str(node.name) in clips:
            new = ir.make_node(
                "Relu", [node.inputs[0]], origin=node, output="", like=node.outputs[0]
            )
            ir.replace_nodes(copied, [node], [new])
    return copied
