"""Legalize a float model for a platform: rewrites that are exact or have a stated cost.

Each file holds one rewrite or a few related ones; `REWRITES` is the order in which they are tried
on a node that exceeds a limit, or on any node that becomes cheaper. A rewrite changes the graph in
place, keeps its float function and the names of remaining tensors, and returns None without a
change if the result would exceed limits, too. `legalize_graph` repeats until nothing changes, so
that one rewrite may prepare for another; a second `legalize_graph` does nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from ...ir import ir
from ...operators.lowerings import find_lowering_rule
from ...targets import Target
from ._base import AppliedRewrite, FitRewrite
from .activations import decompose_tanh, reshape_activation_to_rows
from .arithmetic import decompose_abs, decompose_max_min
from .broadcast import equalize_operand_shapes
from .chip_constants import decompose_clip, scale_layer_norm_input
from .constant_arithmetic import convert_to_batch_norm
from .indexed_positions import decompose_pad, decompose_strided_slice
from .resize import decompose_resize
from .unroll_recurrent import unroll_recurrent
from .windows.channel_split import split_channels
from .windows.conv_transpose1d import convert_conv_transpose1d
from .windows.dilation import expand_dilation, fold_dilation_into_rows
from .windows.framed_conv import HOST_REASON_KEY, collect_host_reasons, convert_conv_to_frames
from .windows.full_height import fold_height_into_channels
from .windows.groups import merge_groups, split_conv_transpose_groups, split_depthwise
from .windows.kernel_split import move_padding_to_pad, split_kernel
from .windows.padding_taps import trim_padding_taps
from .windows.pools import split_average, split_max_pool
from .windows.stride import enlarge_kernel, replace_unsupported_stride
from .windows.tiles import tile_feature_map

__all__ = ["REWRITES", "AppliedRewrite", "FitRewrite", "legalize_graph", "collect_host_reasons"]

REWRITES: tuple[FitRewrite, ...] = (
    FitRewrite("padding-taps", trim_padding_taps, for_legal_nodes=True),
    FitRewrite("rows-as-channels", fold_height_into_channels),
    FitRewrite("frames-of-line", convert_conv_to_frames),
    FitRewrite("rows-of-phases", fold_dilation_into_rows),
    FitRewrite("expand-dilation", expand_dilation),
    FitRewrite("split-depthwise", split_depthwise),
    FitRewrite("other-stride", replace_unsupported_stride),
    FitRewrite("enlarge-kernel", enlarge_kernel),
    FitRewrite("explicit-pad", move_padding_to_pad),
    FitRewrite("split-kernel", split_kernel),
    FitRewrite("split-average", split_average),
    FitRewrite("split-max-pool", split_max_pool),
    FitRewrite("split-map", tile_feature_map),
    FitRewrite("split-channels", split_channels),
    FitRewrite("merge-groups", merge_groups),
    FitRewrite("separate-groups", split_conv_transpose_groups),
    FitRewrite("unroll", unroll_recurrent),
    FitRewrite("equal-operands", equalize_operand_shapes),
    FitRewrite("curve-in-rows", reshape_activation_to_rows),
    FitRewrite("smaller-input", scale_layer_norm_input),
    FitRewrite("distance-to-bound", decompose_clip),
    FitRewrite("phases-of-lines", convert_conv_transpose1d, for_unsupported_ops=True),
    FitRewrite("repeat-elements", decompose_resize, for_unsupported_ops=True),
    FitRewrite("pad-by-copies", decompose_pad, for_unsupported_ops=True),
    FitRewrite("slice-apart", decompose_strided_slice, for_unsupported_ops=True),
    FitRewrite("absolute", decompose_abs, for_unsupported_ops=True),
    FitRewrite("larger", decompose_max_min, for_unsupported_ops=True),
    FitRewrite("tanh-of-sigmoid", decompose_tanh, for_unsupported_ops=True),
    FitRewrite("normalize-constant", convert_to_batch_norm, for_unsupported_ops=True),
)

_MAX_ROUNDS = 16  # more than any chain of rewrites needs; guards against rewrites that undo others


def legalize_graph(
    model: ir.Model, target: Target, keep: Collection[str] = ()
) -> list[AppliedRewrite]:
    """Rewrite nodes that exceed a limit of a platform, or become cheaper, in place.

    Repeated until nothing changes, at most `_MAX_ROUNDS` times; new nodes get names, and unused
    ones are removed.

    Parameters
    ----------
    model : ir.Model
        Normalized float model.
    target : Target
        The platform.
    keep : collection of str
        Names of nodes that are not rewritten.

    Returns
    -------
    list of AppliedRewrite
        Descriptions of the changes, in the order in which they were made; empty without a change.
    """
    rewrites: list[AppliedRewrite] = []
    for _ in range(_MAX_ROUNDS):
        count = len(rewrites)
        for node in list(model.graph):
            if node.name in keep or HOST_REASON_KEY in node.metadata_props:
                continue
            rewrite = _rewrite_node(model, node, target)
            if rewrite is not None:
                rewrites.append(rewrite)
        ir.assign_node_names(model)
        if len(rewrites) == count:
            break
    if rewrites:
        ir.remove_unused(model)  # such as the shape computation of a rewritten node
    return rewrites


def _rewrite_node(model: ir.Model, node: ir.Node, target: Target) -> AppliedRewrite | None:
    """Apply the first rewrite of `REWRITES` that changes `node`, in place; None if none does.

    A node within all limits gets only rewrites that make nodes cheaper (`for_legal_nodes`). One
    without a lowering rule, or whose operator the target lacks, gets only those
    `for_unsupported_ops`.
    """
    op, _ = find_lowering_rule(node, target)
    is_unsupported = op is None or not op.is_available(target)
    is_legal = op is not None and not is_unsupported and not op.find_violations(node, target)
    for rewrite in REWRITES:
        if is_legal and not rewrite.for_legal_nodes:
            continue
        if is_unsupported and not rewrite.for_unsupported_ops:
            continue
        result = rewrite.apply(model, node, target)
        if result is not None:
            return AppliedRewrite(str(node.name), *result)
    return None
