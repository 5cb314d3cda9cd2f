"""A function of one number on axes that the platform does not take.

The same numbers in rows of another length, exact.
Where GluInt stands in for a table it wants two or three axes and a short last one. The rows get the
largest length up to 32 that divides the sizes (a matrix of length by twice the length writes
GluInt's input), or the shortest above it. GluInt's work area takes several bytes for each number;
where that is more than half of the shared memory, the rows are taken some at a time, so that no
more than a quarter is needed.
"""

from __future__ import annotations

import math

from ..graph import ir
from ..ops.functions.gated_activations import GatedActivation
from ..ops.functions.sigmoid_tanh import SIGMOID, check_glu_axis
from ..targets import Target
from ._base import RewriteBuilder, can_lower, split_range

__all__ = ["reshape_activation_to_rows"]

_ACTIVATION_OPS = frozenset(kind for op in (SIGMOID, GatedActivation) for _, kind in op.floats)
_PREFERRED_ROW_LENGTH = 32
_MIN_ROW_LENGTH = 4  # shorter rows are all start and no work


def reshape_activation_to_rows(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Read the input of a sigmoid, SiLU or GELU in rows that GluInt takes."""
    if (
        target.sigmoid_limits is None
        or ir.base_op_type(node) not in _ACTIVATION_OPS
        or check_glu_axis(node, target) is None
    ):
        return None
    sizes = [int(d or 0) for d in ir.require_shape(node.outputs[0])[1:]]
    length = _choose_row_length(math.prod(sizes), target.sigmoid_limits.max_length)
    if length is None:
        return None
    make = RewriteBuilder(model, node)
    rows = math.prod(sizes) // length
    source = make.reshape(ir.require_input(node), [rows, length], "rows")
    batch: ir.Dim = (source.shape or ["N"])[0]
    parts = []
    for start, end in split_range(rows, _count_pieces(math.prod(sizes), target)):
        some = make.slice_axis(source, 1, start, end, "some_rows")
        shape = [batch, end - start, length]
        parts.append(
            make(node.op_type, [some], shape, "of_rows", dict(node.attributes), node.domain)
        )
    made = parts[0] if len(parts) == 1 else make.concat_parts(parts, 1, [batch, rows, length])
    make.reshape(made, sizes, "back")
    if not all(can_lower(each, target) for each in make.nodes):
        make.discard()
        return None
    make.replace_node()
    return f"in {rows} rows of {length}" + (
        f", in {len(parts)} pieces" if len(parts) > 1 else ""
    ), "exact"


def _count_pieces(count: int, target: Target) -> int:
    """Return in how many pieces `count` numbers are taken, so that the work area leaves room for what they are."""
    area = (
        target.sigmoid_limits.work_bytes_per_element * count
        if target.sigmoid_limits is not None
        else 0
    )
    memory = target.shared_memory
    return 1 if memory is None or 2 * area <= memory else -(-4 * area // memory)


def _choose_row_length(count: int, most: int) -> int | None:
    """Return the longest length up to 32 that divides `count`, else the shortest up to `most`.

    None without one.
    """
    order = [
        *range(_PREFERRED_ROW_LENGTH, _MIN_ROW_LENGTH - 1, -1),
        *range(_PREFERRED_ROW_LENGTH + 1, most + 1),
    ]
    return next((n for n in order if count > 0 and count % n == 0), None)
