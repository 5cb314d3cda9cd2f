"""Rewrites that make a float model fit a platform, each exact or with a stated cost.

An explicit tuple of `Rewrite`s; `fit` applies one where the operator breaks the limit it mends and returns what it did,
for the report. Only weights and shapes of single layers change: the float function of the model stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from . import ir
from .ops import float_op
from .ops.conv import Geometry, stride_within_kernel
from .ops.pool import area_limit
from .platforms import Platform

__all__ = ["REWRITES", "Fitted", "Rewrite", "fit"]


@dataclass(frozen=True)
class Fitted:
    """One rewrite that was applied."""

    node: str
    what: str
    cost: str


@dataclass(frozen=True)
class Rewrite:
    """A way to meet a limit: `apply(model, node, row)` returns what it did and at which cost, or None."""

    name: str
    apply: Callable[[ir.Graph, ir.Node, Platform], tuple[str, str] | None]


def enlarge_kernel(model: ir.Graph, node: ir.Node, row: Platform) -> tuple[str, str] | None:
    """Give a kernel smaller than its stride zeros at the end, as a strided 1x1 shortcut has: exact.

    The end padding grows where the larger kernel would otherwise lose the last position.
    """
    if node.op_type != "Conv" or stride_within_kernel(node, row) is None:
        return None
    g = Geometry(node)
    rank = len(g.kernel)
    weight = ir.const(node.inputs[1])
    if weight is None or len(g.source) != rank + 2 or any(d is None for d in (*g.source[2:], *g.result[2:])):
        return None
    kernel = [max(k, s) for k, s in zip(g.kernel, g.strides, strict=True)]
    if max(kernel) > (row.conv.max_kernel if row.conv else 0) or any(d != 1 for d in g.dilations):
        return None
    pads = list(g.pads)
    for axis in range(rank):
        size, out = int(g.source[2 + axis] or 0), int(g.result[2 + axis] or 0)
        need = (out - 1) * g.strides[axis] + kernel[axis] - (size + pads[axis] + pads[rank + axis])
        pads[rank + axis] += max(0, need)
    grown = np.zeros((*weight.shape[:2], *kernel), weight.dtype)
    grown[(slice(None), slice(None), *(slice(k) for k in weight.shape[2:]))] = weight
    ir.set_constant(model, node, 1, grown, "grown")
    ir.set_attr(node, "kernel_shape", kernel)
    ir.set_attr(node, "pads", pads)
    old, new = ("x".join(map(str, k)) for k in (g.kernel, kernel))
    return f"kernel {old} with stride {max(g.strides)} enlarged to {new} with zeros", "exact"


def split_average(model: ir.Graph, node: ir.Node, row: Platform) -> tuple[str, str] | None:
    """Average a large window in two steps: over rows of windows that the platform divides right, then over those.

    For windows that tile the map without padding. Costs one more rounding, half a step at most.
    """
    if node.op_type != "AveragePool" or row.pool is None or area_limit(node, row) is None:
        return None
    height, width = ir.attr(node, "kernel_shape")
    tiles = list(ir.attr(node, "strides") or [1, 1]) == [height, width]
    if not tiles or any(ir.attr(node, "pads", [0])) or ir.attr(node, "ceil_mode", 0):
        return None
    most = row.pool.max_average_area
    first = max((d for d in range(1, height + 1) if height % d == 0 and d * width <= most), default=0)
    if not first or height // first > most:
        return None
    source, result = node.inputs[0], node.outputs[0]
    window = {"kernel_shape": [first, width], "strides": [first, width]}
    between = ir.fresh_name(model, f"{result.name}@rows")
    before = ir.make_node("AveragePool", [source], window, name=f"{node.name}@rows", output=between, like=result)
    rows = before.outputs[0]
    dims = ir.shape(result) or ()
    rows.shape = ir.oir_shape([dims[0] or "N", dims[1], int(dims[2] or 1) * (height // first), dims[3]])
    rest = [height // first, 1]
    after = ir.make_node("AveragePool", [rows], {"kernel_shape": rest, "strides": rest}, name=str(node.name), output="",
                         like=result)  # fmt: skip
    ir.replace(model, [node], [before, after])
    return f"average over {height}x{width} in two steps, {first}x{width} and {rest[0]}x1", "half a step at most"


REWRITES: tuple[Rewrite, ...] = (
    Rewrite("enlarge-kernel", enlarge_kernel),
    Rewrite("split-average", split_average),
)


def fit(model: ir.Graph, row: Platform) -> list[Fitted]:
    """Rewrite what breaks a limit of `row` in the normalised `model`, in place; return what was done."""
    done = []
    for node in list(model.graph):
        op, _ = float_op(node)
        if op is None or not op.violations(node, row):
            continue
        for rewrite in REWRITES:
            found = rewrite.apply(model, node, row)
            if found is not None:
                done.append(Fitted(str(node.name), *found))
                break
    return done
