"""Rewrites that make a float model fit a platform, each exact or with a stated cost.

One file per rewrite, or for a few that are alike; `REWRITES` says in which order they are tried on a node that breaks a
limit, or on any node where that makes it cheaper. A rewrite changes the graph in place, keeps its float function and
the names of surviving tensors, and refuses (None) where it could not end within the limits. `fit` goes round until
nothing changes, so that one rewrite may prepare for another; a second `fit` does nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from ..graph import ir
from ..ops import float_op
from ..targets import Target
from ._base import FitRewrite, Fitted
from .affine import normalize_constant
from .arithmetic import absolute, larger
from .bounds import distance_to_bound
from .broadcast import equal_operands
from .curve_rows import curve_in_rows
from .epsilon import smaller_input
from .picked import pad_by_copies, slice_apart
from .resize import repeat_elements
from .tanh import tanh_of_sigmoid
from .unroll import unroll
from .windows.average import split_average
from .windows.channels import split_channels
from .windows.deconv_groups import separate_groups
from .windows.depthwise import split_depthwise
from .windows.dilation import expand_dilation, rows_of_phases
from .windows.enlarge import enlarge_kernel
from .windows.frames import HOST, frames_of_line, of_host
from .windows.kernel import split_kernel
from .windows.max_pool import split_max_pool
from .windows.pad import explicit_pad
from .windows.padding_taps import cut_padding_taps
from .windows.stride import other_stride
from .windows.tiles import split_map
from .windows.upsample import phases_of_lines

__all__ = ["REWRITES", "Fitted", "FitRewrite", "fit", "of_host"]

REWRITES: tuple[FitRewrite, ...] = (
    FitRewrite("padding-taps", cut_padding_taps, within=True),
    FitRewrite("frames-of-line", frames_of_line),
    FitRewrite("rows-of-phases", rows_of_phases),
    FitRewrite("expand-dilation", expand_dilation),
    FitRewrite("split-depthwise", split_depthwise),
    FitRewrite("other-stride", other_stride),
    FitRewrite("enlarge-kernel", enlarge_kernel),
    FitRewrite("explicit-pad", explicit_pad),
    FitRewrite("split-kernel", split_kernel),
    FitRewrite("split-average", split_average),
    FitRewrite("split-max-pool", split_max_pool),
    FitRewrite("split-map", split_map),
    FitRewrite("split-channels", split_channels),
    FitRewrite("separate-groups", separate_groups),
    FitRewrite("unroll", unroll),
    FitRewrite("equal-operands", equal_operands),
    FitRewrite("curve-in-rows", curve_in_rows),
    FitRewrite("smaller-input", smaller_input),
    FitRewrite("distance-to-bound", distance_to_bound),
    FitRewrite("phases-of-lines", phases_of_lines, absent=True),
    FitRewrite("repeat-elements", repeat_elements, absent=True),
    FitRewrite("pad-by-copies", pad_by_copies, absent=True),
    FitRewrite("slice-apart", slice_apart, absent=True),
    FitRewrite("absolute", absolute, absent=True),
    FitRewrite("larger", larger, absent=True),
    FitRewrite("tanh-of-sigmoid", tanh_of_sigmoid, absent=True),
    FitRewrite("normalize-constant", normalize_constant, absent=True),
)

_ROUNDS = 16  # more than any chain of rewrites takes; a guard against one that undoes another


def fit(model: ir.Graph, target: Target, keep: Collection[str] = ()) -> list[Fitted]:
    """Rewrite what breaks a limit of `target`, or can be had for less, in the normalised `model`; return what was done.

    keep : names of nodes to leave alone.
    """
    done: list[Fitted] = []
    for _ in range(_ROUNDS):
        before = len(done)
        for node in list(model.graph):
            op, _ = float_op(node, target)
            absent = op is None or not op.available(target)
            if node.name in keep or HOST in node.metadata_props:
                continue
            within = not (absent or op is None or op.violations(node, target))
            for rewrite in REWRITES:
                asked = rewrite.within >= within and rewrite.absent >= absent
                rewritten = rewrite.apply(model, node, target) if asked else None
                if rewritten is not None:
                    done.append(Fitted(str(node.name), *rewritten))
                    break
        ir.name_nodes(model)
        if len(done) == before:
            break
    if done:
        ir.remove_unused(model)  # what computed a shape that a rewritten node no longer asks for
    return done
