"""Forecast of a float model on a chip before calibration.

Packing, memory and cost depend on shapes, and hardly on scales.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...common.errors import ConstraintError, ModelError
from ...ir import ir
from ...operators.chip_part import extract_chip_part
from ...operators.integer_ops import CLIP, find_integer_op
from ...operators.lowering_context import LoweringResult
from ...operators.macs import count_macs
from ...quantization.config import QuantConfig
from ...quantization.factor_groups import find_saturating_clips, partition_with_clip_fallback
from ...quantization.lower import lower
from ...quantization.partition import Partition, partition_graph
from ...quantization.report import FloatNode, split_float_nodes
from ...quantization.report.merges import MergeOption, find_merge_options
from ...quantization.report.program import ProgramReport, build_program_report
from ...quantization.scales import ScalePolicy, assign_qparams, group_shared_scales
from ...targets import AppliedRewrite, PackerArguments, Target

__all__ = ["Forecast", "forecast_deployment"]


@dataclass(frozen=True)
class Forecast:
    """Forecast of a float model on a chip.

    Parameters
    ----------
    choice
        Verdict on the model as one part, or None if float operators are between integer ones.
    rewrites
        Rewrites after lowering.
    program
        Parts that the model is split into if it is not chip-ready, else empty.
    host_nodes
        Float operators between these parts, and before and after them.
    chip_mac_share
        Fraction of the multiply-accumulates on the chip, 0 to 1.
    merges
        Changes that would let float operators between parts run on the chip.
    """

    choice: PackerArguments | None = None
    rewrites: Sequence[AppliedRewrite] = ()
    program: ProgramReport = field(default_factory=ProgramReport)
    host_nodes: Sequence[FloatNode] = ()
    chip_mac_share: float = 1.0
    merges: Sequence[MergeOption] = ()


def forecast_deployment(model: ir.Model, target: Target) -> Forecast:
    """Forecast the deployment of a normalized and fitted float model on a chip.

    Without float nodes between integer nodes, the whole integer graph is packed, and the result is
    that choice if the verdict is ready for the chip. Otherwise the result also has the program of
    chip and host parts, the nodes on the host, the chip's share of the MACs (1 without MACs) and
    options to merge parts. The forecast is empty (`Forecast()`) without a packer, without quantized
    nodes, or if the model cannot be lowered. The scales are placeholders: a guess for every
    activation, adjusted to the chip's rules. Operators that `quantize` offloads to the host, by
    evidence or with `max_parts`, stay on the chip here.
    """
    partition = partition_with_clip_fallback(model, target, {}, 8)
    if not target.has_packer or not partition.ops:
        return Forecast()
    lowered = _lower_with_placeholder_scales(partition, target)
    if lowered is None:
        return Forecast()
    graph, choice = lowered.graph, None
    rewrites: Sequence[AppliedRewrite] = ()
    fallbacks, host = split_float_nodes(model, partition.floats, partition.integer_node_ids)
    _separate_biases(graph)
    if not fallbacks:
        graph, rewrites = target.run_backend_passes(graph)
        choice = target.evaluate_packing(extract_chip_part(target.with_safe_names(graph), target))
        if choice.verdict.is_chip_ready:
            return Forecast(choice, rewrites)
    program, _ = build_program_report(graph, target, target.vendor.names(graph))
    total_macs = sum(count_macs(node) for node in model.graph)
    chip_macs = sum(count_macs(node) for node, _ in partition.integer_nodes)
    chip_mac_share = chip_macs / total_macs if total_macs else 1.0
    merges = find_merge_options([entry.node for entry in fallbacks], model, target)
    return Forecast(choice, rewrites, program, [*fallbacks, *host], chip_mac_share, merges)


def _lower_with_placeholder_scales(partition: Partition, target: Target) -> LoweringResult | None:
    """Lower a model to integers with guessed scales; None if that raises an error.

    On a target without Clip, a Clip that only saturates is lowered as a Relu. No calibration data
    are used; bits, mode and calibrator are the defaults.
    """
    if not target.can_run(CLIP.name):
        clips = find_saturating_clips(partition, target, 8)
        graph = _replace_clips_with_relu(partition.graph, clips)
        partition = partition_graph(graph, target, partition.floats)
    config = QuantConfig(platform=target.name)
    policy = ScalePolicy(
        config.mode, config.bits, config.weight_bits, config.calibrator, config.percentile, {}
    )
    shared_scales = group_shared_scales(partition, target)
    try:
        plan, _ = assign_qparams(partition, shared_scales, {}, target, policy)
        return lower(partition, plan, target)
    except (ConstraintError, ModelError):
        return None


def _separate_biases(graph: ir.Model) -> None:
    """Give each of several nodes with the same weight a bias of its own, in place.

    The refinement of `quantize` does so: each node's bias takes up its own mean error. The
    constants that a chip cannot share then count as often as in the written graph.
    """
    weighted_nodes = [node for node in graph.graph if _has_weight_rows(node)]
    use_counts = Counter(node.inputs[1] for node in weighted_nodes)
    used_names = ir.get_tensor_names(graph)
    for node in weighted_nodes:
        weight = ir.const_value(node.inputs[1])
        if weight is None or use_counts[node.inputs[1]] == 1:
            continue
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        bias = ir.const_value(node.inputs[2])
        if bias is None:
            bias = np.zeros(len(weight), np.int32)
        name = ir.reserve_name(f"{node.outputs[0].name}_bias", used_names)
        node.replace_input_with(2, ir.add_initializer(graph, name, bias))


def _has_weight_rows(node: ir.Node) -> bool:
    """Whether a node has a weight [O, ...] at input 1, with one output channel per row."""
    form = find_integer_op(node)
    return form is not None and form.channel_axis == 0


def _replace_clips_with_relu(model: ir.Model, clips: Collection[str]) -> ir.Model:
    """Return a copy of a model with the Clip nodes named in `clips` replaced by Relus.

    The upper bound is then that of the saturating integers; the factor that `quantize` moves into
    adjacent weights for that is left out, because placeholder scales need not follow it.
    """
    copy = model.clone()
    for node in list(copy.graph):
        if str(node.name) in clips:
            relu = ir.make_node(
                "Relu", [node.inputs[0]], origin=node, output="", like=node.outputs[0]
            )
            ir.replace_nodes(copy, [node], [relu])
    return copy
