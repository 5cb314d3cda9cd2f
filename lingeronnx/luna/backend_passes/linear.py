"""Rewrite LinearInt with several rows, with equal integers: split by outputs, or as a convolution.

Chips may require the output of a LinearInt outside shared memory, and the input of a BatchNorm2dInt
inside: an iqCat of parts moves it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ...ir import ir
from ...ir.detached_nodes import make_detached_node, make_detached_value
from ...operators.integer_ops import BATCH_NORM2D, CONV2D, GLU, LINEAR, RESHAPE, SOFTMAX, TRANSPOSE
from ...targets import Target
from ...targets._target import AppliedRewrite
from ..faults import LunaFault
from ..packer.limits.limit_tables import get_layer_limits
from .node_builders import (
    POINTWISE_CONV_ATTRIBUTES,
    get_dims,
    insert_concat,
    insert_pointwise_conv,
    replace_by_producer,
)

__all__ = [
    "MAX_CONCAT_WORK_AREA",
    "LinearShape",
    "convert_mean_linears_to_convs",
    "get_linear_shape",
    "is_read_by_batch_norm",
    "split_linear_before_batch_norm",
    "split_linear_outputs",
]

#: Largest work area, in bytes, that the packer plans for an iqCat.
MAX_CONCAT_WORK_AREA = 65536
_MAX_PARTS = 16


class LinearShape(NamedTuple):
    """Dimensions of a LinearInt; its input is (rows, inputs), its weight (outputs, inputs)."""

    rows: int
    inputs: int
    outputs: int

    @property
    def written_bytes(self) -> int:
        """Bytes of the work area that the executor writes if there are several rows.

        They are rows * (max(inputs, outputs) + outputs).
        """
        return self.rows * (max(self.inputs, self.outputs) + self.outputs)

    @property
    def planned_bytes(self) -> int:
        """Bytes of the work area that the packer plans: rows * inputs."""
        return self.rows * self.inputs

    def split(self, part_count: int) -> LinearShape:
        """Return the dimensions of the largest of `part_count` parts that divide the outputs."""
        return self._replace(outputs=-(-self.outputs // part_count))


def split_linear_outputs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Split every 8-bit LinearInt by outputs that needs a larger work area than any node plans.

    In place; returns one description per node. With M rows of N inputs and L outputs it writes
    ``M*(max(N, L) + L)`` bytes and plans M*N; the iqCat of its parts plans M*L. Left as they are:
    one row, a work area that is too large for the iqCat, and more than `_MAX_PARTS` parts.
    """
    linears = _collect_linears(graph)
    area_bytes = _get_largest_planned_area(graph, linears)
    rewrites = []
    for node, shape in sorted(linears.items(), key=lambda item: -item[1].rows * item[1].outputs):
        concat_bytes = shape.rows * shape.outputs
        if shape.rows == 1 or shape.written_bytes <= area_bytes:
            continue
        if concat_bytes > MAX_CONCAT_WORK_AREA or not _has_8bit_output(node):
            continue
        new_area_bytes = max(area_bytes, concat_bytes)
        part_count = _find_part_count(shape, range(2, _MAX_PARTS + 1), new_area_bytes)
        if part_count is None:
            continue
        _split_outputs(graph, node, shape.outputs, part_count)
        area_bytes = new_area_bytes
        description = (
            f"{shape.outputs} outputs x {shape.rows} rows split into {part_count} LinearInt: the "
            "packer allocates too small a work area"
        )
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def split_linear_before_batch_norm(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Split every multi-row LinearInt that a BatchNorm2dInt reads, in place.

    Only on chips where the output of such a LinearInt must be in PSRAM; the iqCat of the parts
    moves it to shared memory. Uses the fewest parts that stay within the largest planned work area,
    or else parts with at most half as many outputs as inputs. Returns one description per node.
    """
    if LunaFault.LINEAR_ROWS not in target.faults:
        return []
    linears = _collect_linears(graph)
    area_bytes = _get_largest_planned_area(graph, linears)
    rewrites = []
    for node, shape in linears.items():
        if shape.rows == 1 or shape.outputs == 1 or not is_read_by_batch_norm(node.outputs[0]):
            continue
        counts = range(2, min(shape.outputs, _MAX_PARTS) + 1)
        part_count = _find_part_count(shape, counts, area_bytes)
        if part_count is None:
            part_count = min(max(2, -(-2 * shape.outputs // shape.inputs)), counts[-1])
        _split_outputs(graph, node, shape.outputs, part_count)
        description = (
            f"{shape.outputs} outputs split into {part_count} parts, concatenated in shared memory "
            "for a BatchNorm2dInt"
        )
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def _collect_linears(graph: ir.Model) -> dict[ir.Node, LinearShape]:
    """Return LinearInt node -> its dimensions, in graph order; unknown shapes are omitted."""
    linears = {}
    for node in graph.graph:
        shape = get_linear_shape(node)
        if shape is not None:
            linears[node] = shape
    return linears


def _get_largest_planned_area(graph: ir.Model, linears: Mapping[ir.Node, LinearShape]) -> int:
    """Return the largest work area in bytes that the packer plans for a node of `graph`.

    Counted are LinearInt (`linears`), GluInt and SoftmaxInt; 0 without any.
    """
    return max((_get_planned_work_area(node, linears.get(node)) for node in graph.graph), default=0)


def _find_part_count(shape: LinearShape, counts: range, area_bytes: int) -> int | None:
    """Return the first of `counts` whose parts write at most `area_bytes` of work area, or None."""
    for count in counts:
        if shape.split(count).written_bytes <= area_bytes:
            return count
    return None


def is_read_by_batch_norm(value: ir.Value) -> bool:
    """Whether a BatchNorm2dInt consumes `value`, directly or after Reshapes."""
    for use in value.uses():
        if use.node.op_type == BATCH_NORM2D.name:
            return True
        if use.node.op_type == RESHAPE.name and is_read_by_batch_norm(use.node.outputs[0]):
            return True
    return False


def convert_mean_linears_to_convs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Convert every LinearInt with one output over a transposed tensor to a 1x1 convolution.

    In place; returns one description per node. A mean over T steps of [1, T, C] is a convolution
    with T channels and one output over [1, T, 1, C], which needs no Transpose. Only with an 8-bit
    output, several rows, and where the target supports the convolution.
    """
    rewrites = []
    for node in list(graph.graph):
        shape, source = get_linear_shape(node), _find_transposed_source(node)
        if shape is None or source is None or shape.rows == 1 or shape.outputs != 1:
            continue
        if not _has_8bit_output(node) or not _is_mean_conv_supported(node, shape, target):
            continue
        _replace_by_mean_conv(graph, node, source, shape, target)
        ir.remove_unused(graph)
        description = (
            "converted to a 1x1 convolution with the steps as channels: a LinearInt with several "
            "rows writes past its work area"
        )
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def _is_mean_conv_supported(node: ir.Node, shape: LinearShape, target: Target) -> bool:
    """Whether the chip's limits allow the 1x1 convolution that replaces a one-output LinearInt.

    Its image is [1, inputs, 1, rows].
    """
    weight = ir.require_const_value(node.inputs[1]).reshape(1, -1, 1, 1)
    image = make_detached_value([1, shape.inputs, 1, shape.rows])
    convolution = make_detached_node(
        CONV2D.name,
        [image, make_detached_value(weight.shape, constant=weight)],
        [1, 1, 1, shape.rows],
        POINTWISE_CONV_ATTRIBUTES,
    )
    return all(limit(convolution, target) is None for limit in get_layer_limits(CONV2D.name))


def _replace_by_mean_conv(
    graph: ir.Model, node: ir.Node, source: ir.Value, shape: LinearShape, target: Target
) -> None:
    """Replace LinearInt `node`, with one output, by a 1x1 convolution of `source`, in place.

    `source` has the inputs as channels and the rows as width.
    """
    constants = [ir.const_value(value) for value in node.inputs[1:]]
    arrays = [array for array in constants if array is not None]
    arrays[0] = arrays[0].reshape(1, -1, 1, 1)
    convolution = insert_pointwise_conv(
        graph,
        source,
        [1, shape.inputs, 1, shape.rows],
        constants=dict(zip(("weight", "bias"), arrays, strict=False)),
        scales={key: float(ir.get_attr(node, key)) for key in ("scale_x", "scale_w", "scale_o")},
        output_shape=get_dims(node.outputs[0]),
        name=str(node.outputs[0].name),
        before=node,
        target=target,
    )
    replace_by_producer(graph, [node], convolution)


def _find_transposed_source(node: ir.Node) -> ir.Value | None:
    """Return the tensor whose last two of three axes a Transpose swaps for input 0 of `node`.

    None if there is no such Transpose, or if Reshapes after it change the shape.
    """
    value = node.inputs[0] if node.inputs else None
    producer = ir.producer(value)
    while producer is not None and producer.op_type == RESHAPE.name:
        producer = ir.producer(producer.inputs[0])
    if producer is None or producer.op_type != TRANSPOSE.name:
        return None
    if list(ir.get_attr(producer, "perm") or []) != [0, 2, 1]:
        return None
    shape = None if value is None else ir.get_shape(value)
    return producer.inputs[0] if ir.get_shape(producer.outputs[0]) == shape else None


def get_linear_shape(node: ir.Node) -> LinearShape | None:
    """Return rows, inputs and outputs of a LinearInt; None for other nodes and unknown shapes.

    Rows are all positions but the batch and the last axis.
    """
    if node.op_type != LINEAR.name:
        return None
    shape, weight = ir.get_shape(node.inputs[0]), ir.const_value(node.inputs[1])
    if shape is None or weight is None or None in shape[1:]:
        return None
    rows = math.prod(int(dim or 1) for dim in shape[1:-1])
    return LinearShape(rows, inputs=weight.shape[1], outputs=weight.shape[0])


def _has_8bit_output(node: ir.Node) -> bool:
    """Whether `node` writes integers of 8 bits (attribute `o_bits`, 8 by default).

    A layer that writes floats has no output scale.
    """
    return "scale_o" in node.attributes and ir.get_attr(node, "o_bits", 8) == 8


def _get_planned_work_area(node: ir.Node, linear: LinearShape | None) -> int:
    """Return the work area in bytes that the packer plans for a LinearInt, GluInt or SoftmaxInt.

    `linear` are the dimensions of a LinearInt, None for other nodes; 0 for other operators and
    unknown shapes.
    """
    if linear is not None:
        return linear.planned_bytes
    if node.op_type not in (GLU.name, SOFTMAX.name) or ir.get_shape(node.inputs[0]) is None:
        return 0
    return (7 if node.op_type == GLU.name else 6) * math.prod(get_dims(node.inputs[0]))


def _split_outputs(graph: ir.Model, node: ir.Node, outputs: int, part_count: int) -> None:
    """Replace LinearInt `node` by parts that compute some outputs each, and an iqCat of them.

    In place; there are at most `part_count` parts. Constants that become unused are removed.
    """
    result, scale = node.outputs[0], float(ir.get_attr(node, "scale_o"))
    part_outputs = -(-outputs // part_count)
    parts = [
        _insert_partial_linear(graph, node, start, start + part_outputs)
        for start in range(0, outputs, part_outputs)
    ]
    rank = len(result.shape or ())
    joined = insert_concat(graph, node, parts, rank - 1, scale, "")
    replace_by_producer(graph, [node], joined)
    for value in list(graph.graph.initializers.values()):
        if not value.uses() and not value.is_graph_output():
            del graph.graph.initializers[str(value.name)]


def _insert_partial_linear(graph: ir.Model, node: ir.Node, start: int, end: int) -> ir.Value:
    """Insert, before `node`, a LinearInt that computes its outputs `start` to `end` - 1.

    Returns its output. All constants are sliced along axis 0.
    """
    result = node.outputs[0]
    constants = []
    for value in node.inputs[1:]:
        array = ir.const_value(value)
        assert value is not None
        assert array is not None
        name = ir.unique_tensor_name(graph, f"{value.name}_from{start}")
        constants.append(ir.add_initializer(graph, name, array[start:end]))
    part = ir.make_node(
        node.op_type,
        [node.inputs[0], *constants],
        {},
        name=f"{node.name}_from{start}",
        output=ir.unique_tensor_name(graph, f"{result.name}_from{start}"),
        domain=node.domain,
        like=result,
    )
    part.attributes.update(node.attributes)
    part_outputs = (ir.get_shape(constants[0]) or (0,))[0]
    part.outputs[0].shape = ir.Shape([*(result.shape or ())[:-1], part_outputs])
    graph.graph.insert_before(node, part)
    return part.outputs[0]
