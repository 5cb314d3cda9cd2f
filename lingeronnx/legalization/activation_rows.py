"""Reshape the input of an activation to rows that the platform supports, exactly.

If GluInt replaces a table, it requires two or three axes and a short last one. The rows get the
largest length up to 32 that divides the size (a matrix of length by twice the length writes
GluInt's input), or the shortest length above it. GluInt's work area takes several bytes per
element; if that exceeds half of the shared memory, some rows are computed at a time, so that no
more than a quarter is needed.
"""

from __future__ import annotations

import math

from ..graph import ir
from ..ops.functions.gated_activations import GatedActivation
from ..ops.functions.sigmoid_tanh import SIGMOID, check_glu_axis
from ..targets import Target
from ._base import RewriteBuilder, split_range

__all__ = ["reshape_activation_to_rows"]

_ACTIVATION_OPS = frozenset(kind for op in (SIGMOID, GatedActivation) for _, kind in op.floats)
_PREFERRED_ROW_LENGTH = 32
_MIN_ROW_LENGTH = 4  # the overhead dominates for shorter rows


def reshape_activation_to_rows(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Reshape the input of a sigmoid, SiLU or GELU to rows that GluInt supports.

    Only if the target limits sigmoids and the node's last axis breaks that limit. Several parts of
    rows are concatenated. Returns the description and the cost of the change; None, without a
    change, if no row length fits or a part is not supported.
    """
    if target.sigmoid_limits is None or ir.base_op_type(node) not in _ACTIVATION_OPS:
        return None
    if check_glu_axis(node, target) is None:
        return None
    sizes = [int(dim or 0) for dim in ir.require_shape(node.outputs[0])[1:]]
    size = math.prod(sizes)
    length = _choose_row_length(size, target.sigmoid_limits.max_length)
    if length is None:
        return None
    builder = RewriteBuilder(model, node)
    rows = size // length
    source = builder.reshape(ir.require_input(node), [rows, length], "rows")
    batch: ir.Dim = (source.shape or ["N"])[0]
    parts = []
    for start, end in split_range(rows, _count_parts(size, target)):
        part_rows = builder.slice_axis(source, 1, start, end, "some_rows")
        shape = [batch, end - start, length]
        attributes = dict(node.attributes)
        parts.append(builder(node.op_type, [part_rows], shape, "of_rows", attributes, node.domain))
    description = f"in {rows} rows of {length}"
    result = parts[0]
    if len(parts) > 1:
        result = builder.concat_parts(parts, 1, [batch, rows, length])
        description = f"{description}, in {len(parts)} parts"
    builder.reshape(result, sizes, "back")
    if not builder.replace_node_if_supported(target):
        return None
    return description, "exact"


def _count_parts(size: int, target: Target) -> int:
    """Return the number of parts so that the work area leaves enough memory for the data.

    It is 1 if twice the work area of `size` elements fits in shared memory, otherwise so many that
    four times a part's does; 1 too if the target states no memory or no sigmoid limits.
    """
    memory_bytes = target.shared_memory
    if memory_bytes is None or target.sigmoid_limits is None:
        return 1
    area_bytes = target.sigmoid_limits.work_bytes_per_element * size
    return 1 if 2 * area_bytes <= memory_bytes else -(-4 * area_bytes // memory_bytes)


def _choose_row_length(size: int, max_length: int) -> int | None:
    """Return the longest row length from 4 to 32 that divides `size`, else the shortest above 32.

    None if no length from 4 to `max_length` divides it, or `size` is 0. Lengths up to 32 are taken
    even if `max_length` is smaller.
    """
    candidates = [
        *range(_PREFERRED_ROW_LENGTH, _MIN_ROW_LENGTH - 1, -1),
        *range(_PREFERRED_ROW_LENGTH + 1, max_length + 1),
    ]
    return next((length for length in candidates if size > 0 and size % length == 0), None)
