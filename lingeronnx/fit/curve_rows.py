"""A function of one number on axes that the platform does not take: the same numbers in rows of another length, exact.

Where GluInt stands in for a table it wants two or three axes and a short last one. The rows get the largest length up
to 32 that divides the sizes (a matrix of length by twice the length writes GluInt's input), or the shortest above it.
"""

from __future__ import annotations

import math

from ..graph import ir
from ..ops.functions.gated import Gated
from ..ops.functions.lut import SIGMOID, gated_axis
from ..targets import Target
from ._base import Maker, runs

__all__ = ["curve_in_rows"]

_CURVES = frozenset(kind for op in (SIGMOID, Gated) for _, kind in op.floats)
_LENGTH = 32
_LEAST = 4  # shorter rows are all start and no work


def curve_in_rows(model: ir.Graph, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Read the input of a sigmoid, SiLU or GELU in rows that GluInt takes."""
    if target.curve is None or ir.kind(node) not in _CURVES or gated_axis(node, target) is None:
        return None
    sizes = [int(d or 0) for d in ir.known_shape(node.outputs[0])[1:]]
    length = _length(math.prod(sizes), target.curve.max_length)
    if length is None:
        return None
    make = Maker(model, node)
    rows = [math.prod(sizes) // length, length]
    source = make.reshape(ir.source(node), rows, "rows")
    batch: ir.Size = (source.shape or ["N"])[0]
    made = make(node.op_type, [source], [batch, *rows], "of_rows", dict(node.attributes), node.domain)
    make.reshape(made, sizes, "back")
    if not all(runs(each, target) for each in make.nodes):
        make.undo()
        return None
    make.done()
    return f"in {rows[0]} rows of {length}", "exact"


def _length(count: int, most: int) -> int | None:
    """Return the longest length up to 32 that divides `count`, else the shortest up to `most`; None without one."""
    order = [*range(_LENGTH, _LEAST - 1, -1), *range(_LENGTH + 1, most + 1)]
    return next((n for n in order if count > 0 and count % n == 0), None)
