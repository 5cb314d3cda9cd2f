"""Activations in forms that the platform computes: rows of supported length, tanh as a sigmoid.

If GluInt replaces a table, it requires two or three axes and a short last one; the reshape is
exact. The rows get the largest length up to 32 that divides the size (a matrix of length by twice
the length writes GluInt's input), or the shortest length above it. GluInt's work area takes several
bytes per element; if that exceeds half of the shared memory, some rows are computed at a time, so
that no more than a quarter is needed.

If the platform has no correct tanh, the table of the sigmoid replaces one between layers:

    tanh(x) = 2*sigmoid(2*x) - 1

The outer affine function is a BatchNormalization. The inner factor is folded into the weights of
the layer that produces `x` if it has no other consumer, else it is a BatchNormalization as well.
The sigmoid has steps of 2^-7, so the tanh has steps of 2^-6.
"""

from __future__ import annotations

import math

import numpy as np

from ...ir import float_ops, ir
from ...operators.activation_tables.lowering.gated_activations import GatedActivation
from ...operators.activation_tables.lowering.sigmoid_tanh import SIGMOID, TANH, check_glu_axis
from ...operators.integer_ops import BATCH_NORM2D
from ...targets import Target
from ._base import RewriteBuilder, is_standard_op, split_range
from .constant_arithmetic import can_apply_batch_norm, emit_batch_norm, is_between_layers

__all__ = ["decompose_tanh", "reshape_activation_to_rows"]

_ACTIVATION_OPS = frozenset(kind for op in (SIGMOID, GatedActivation) for _, kind in op.floats)
_PREFERRED_ROW_LENGTH = 32
_MIN_ROW_LENGTH = 4  # the overhead dominates for shorter rows


def reshape_activation_to_rows(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Reshape the input of a sigmoid, SiLU or GELU to rows that the platform's GluInt supports.

    Only if the target limits the length of rows and the node exceeds it. If the work area would not
    leave enough memory, the rows are computed in several parts that are concatenated. Returns the
    description and the cost of the change; None, without a change, if no row length fits or the
    platform cannot run the new nodes.
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
    """Return in how many parts an activation of `size` elements is computed, for its work area.

    It is 1 if twice its work area fits in shared memory; otherwise the least number for which four
    times the area of a part fits. 1 too if the target states no memory or no sigmoid limits.
    """
    memory_bytes = target.shared_memory
    if memory_bytes is None or target.sigmoid_limits is None:
        return 1
    area_bytes = target.sigmoid_limits.work_bytes_per_element * size
    return 1 if 2 * area_bytes <= memory_bytes else -(-4 * area_bytes // memory_bytes)


def _choose_row_length(size: int, max_length: int) -> int | None:
    """Return a row length that divides `size`: the longest from 4 to 32, or the next above.

    None if no length from 4 to `max_length` divides it, or `size` is 0. Lengths up to 32 are taken
    even if `max_length` is smaller.
    """
    candidates = [
        *range(_PREFERRED_ROW_LENGTH, _MIN_ROW_LENGTH - 1, -1),
        *range(_PREFERRED_ROW_LENGTH + 1, max_length + 1),
    ]
    return next((length for length in candidates if size > 0 and size % length == 0), None)


_ONE = np.ones(())
_LINEAR_OPS = (float_ops.LAYER_OPS - float_ops.RECURRENT_OPS) | {"Linear"}


def decompose_tanh(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace a Tanh between layers by 2 sigmoid(2x) - 1.

    Only if the target has no Tanh but Sigmoid and BatchNorm2dInt. The factor 2 is folded into the
    preceding layer if possible, otherwise a BatchNormalization. Returns the description and the
    cost of the change, or None without a change.
    """
    if not is_standard_op(node, "Tanh") or TANH.is_available(target):
        return None
    if not SIGMOID.is_available(target) or not target.can_run(BATCH_NORM2D.name):
        return None
    source = ir.require_input(node)
    if not can_apply_batch_norm(source) or not is_between_layers(node):
        return None
    builder = RewriteBuilder(model, node)
    doubled = _emit_doubled_layer(builder, source)
    if doubled is None:
        doubled = emit_batch_norm(builder, source, 2 * _ONE, 0 * _ONE)
    half = builder("Sigmoid", [doubled], list(source.shape or ()), "half")
    emit_batch_norm(builder, half, 2 * _ONE, -_ONE)
    builder.replace_node()
    return "2*sigmoid(2x) - 1", "one more rounding of half a step at most, of steps twice as large"


def _emit_doubled_layer(builder: RewriteBuilder, value: ir.Value) -> ir.Value | None:
    """Append a copy of the layer that produces `value` with doubled weights and bias.

    Returns its output. None if `value` is not produced by a layer with constant weights (recurrent
    ones aside), has other consumers, or is a graph output.
    """
    layer = ir.producer(value)
    if layer is None or ir.base_op_type(layer) not in _LINEAR_OPS:
        return None
    if len(value.uses()) != 1 or value.is_graph_output():
        return None
    source, *weights = layer.inputs
    arrays = [ir.const_value(weight) for weight in weights if weight is not None]
    if any(array is None for array in arrays):
        return None
    constants = [builder.constant(2 * array, "doubled") for array in arrays if array is not None]
    attributes = {name: ir.get_attr(layer, name) for name in layer.attributes}
    return builder(
        layer.op_type,
        [source, *constants],
        list(value.shape or ()),
        "twice",
        attributes,
        layer.domain,
    )
