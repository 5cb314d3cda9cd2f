"""LinearInt of several rows in another form, with the same integers.

Cut over its outputs, or a convolution.
A chip may want its output outside shared memory, and inside what BatchNorm2dInt reads: an iqCat of
parts moves it.
"""

from __future__ import annotations

import math

from ....formats import BATCH_NORM2D, CONV2D, GLU, LINEAR, RESHAPE, SOFTMAX, TRANSPOSE
from ....graph import ir
from ....graph.detached_nodes import make_detached_node, make_detached_value
from ... import Target
from ..._target import AppliedRewrite
from ..faults import LunaFault
from ..packer.limits.limit_tables import get_layer_limits
from .node_builders import POINTWISE_CONV_ATTRIBUTES, insert_concat, insert_pointwise_conv

__all__ = [
    "MAX_CONCAT_WORK_AREA",
    "convert_mean_linears_to_convs",
    "get_linear_shape",
    "is_read_by_batch_norm",
    "split_linear_before_batch_norm",
    "split_linear_outputs",
]

#: The packer plans no larger area for an iqCat.
MAX_CONCAT_WORK_AREA = 65536
_MAX_PARTS = 16


def split_linear_outputs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Cut every LinearInt of 8 bits over its outputs that needs more work area than any node of the graph plans.

    One of M rows of N to L elements writes ``M*(max(N, L) + L)`` bytes and plans M*N; an iqCat of
    all its outputs M*L.
    """
    rows = {node: size for node in graph.graph if (size := get_linear_shape(node)) is not None}
    area = max((_get_planned_work_area(node, rows.get(node)) for node in graph.graph), default=0)
    done = []
    for node, (m, n, wide) in sorted(rows.items(), key=lambda item: -item[1][0] * item[1][2]):
        need = m * (max(n, wide) + wide)
        if m == 1 or need <= area or m * wide > MAX_CONCAT_WORK_AREA or not _has_8bit_output(node):
            continue
        after = max(area, m * wide)
        counts = range(2, _MAX_PARTS + 1)
        parts = next(
            (k for k in counts if m * (max(n, -(-wide // k)) + -(-wide // k)) <= after), None
        )
        if parts is not None:
            _split_outputs(graph, node, wide, parts)
            area = after
            what = (
                f"{wide} outputs of {m} rows in {parts} parts side by side: the packer plans "
                "too small a work area"
            )
            done.append(AppliedRewrite(str(node.name), what, "exact"))
    return done


def split_linear_before_batch_norm(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Cut every LinearInt in two or more whose rows a BatchNorm2dInt reads, where `target` wants them outside.

    As few parts as stay within the work area; parts of half as many outputs as inputs, or less, ask
    for no more than is planned for them where the inputs lie in shared memory.
    """
    if LunaFault.LINEAR_ROWS not in target.faults:
        return []
    rows = {node: size for node in graph.graph if (size := get_linear_shape(node)) is not None}
    area = max((_get_planned_work_area(node, rows.get(node)) for node in graph.graph), default=0)
    done = []
    for node, (m, n, wide) in rows.items():
        if m == 1 or wide == 1 or not is_read_by_batch_norm(node.outputs[0]):
            continue
        counts = range(2, min(wide, _MAX_PARTS) + 1)
        fits = (k for k in counts if m * (max(n, -(-wide // k)) + -(-wide // k)) <= area)
        parts = next(fits, min(max(2, -(-2 * wide // n)), counts[-1]))
        _split_outputs(graph, node, wide, parts)
        what = (
            f"{wide} outputs in {parts} parts, joined in shared memory, where a BatchNorm2dInt "
            "reads them"
        )
        done.append(AppliedRewrite(str(node.name), what, "exact"))
    return done


def is_read_by_batch_norm(value: ir.Value) -> bool:
    """Whether a BatchNorm2dInt reads `value`, as it is or reshaped."""
    readers = [use.node for use in value.uses()]
    return any(
        reader.op_type == BATCH_NORM2D.name
        or (reader.op_type == RESHAPE.name and is_read_by_batch_norm(reader.outputs[0]))
        for reader in readers
    )


def convert_mean_linears_to_convs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Write every LinearInt of one output over turned rows and columns as a convolution of what was turned.

    A mean over T steps of [1, T, C] is a 1x1 convolution of T channels and one output over [1, T,
    1, C].
    """
    done = []
    for node in list(graph.graph):
        size, source = get_linear_shape(node), _find_transposed_source(node)
        if (
            size is None
            or source is None
            or size[0] == 1
            or size[2] != 1
            or not _has_8bit_output(node)
        ):
            continue
        result, image = node.outputs[0], [1, size[1], 1, size[0]]
        arrays = [a for value in node.inputs[1:] if (a := ir.const_value(value)) is not None]
        constants = dict(
            zip(("weight", "bias"), [arrays[0].reshape(1, -1, 1, 1), *arrays[1:]], strict=False)
        )
        over, weight = (
            make_detached_value(image),
            make_detached_value(constants["weight"].shape, constant=constants["weight"]),
        )
        alike = make_detached_node(
            CONV2D.name, [over, weight], [1, 1, 1, size[0]], POINTWISE_CONV_ATTRIBUTES
        )
        if any(limit(alike, target) is not None for limit in get_layer_limits(CONV2D.name)):
            continue
        scales = {key: float(ir.get_attr(node, key)) for key in ("scale_x", "scale_w", "scale_o")}
        shape = [int(d or 1) for d in ir.get_shape(result) or ()]
        convolution = insert_pointwise_conv(
            graph,
            source,
            image,
            constants=constants,
            scales=scales,
            output_shape=shape,
            name=str(result.name),
            before=node,
            target=target,
        )
        last = convolution.producer()
        assert last is not None
        graph.graph.remove(last)
        ir.replace_nodes(graph, [node], [last])
        ir.remove_unused(graph)
        what = (
            "a 1x1 convolution whose channels are the steps: a LinearInt of several rows "
            "writes "
            "past its work area"
        )
        done.append(AppliedRewrite(str(node.name), what, "exact"))
    return done


def _find_transposed_source(node: ir.Node) -> ir.Value | None:
    """Return what the LinearInt `node` reads before its rows and columns were turned.

    None where they were not.
    """
    value = node.inputs[0] if node.inputs else None
    shape, maker = None if value is None else ir.get_shape(value), ir.producer(value)
    while maker is not None and maker.op_type == RESHAPE.name:
        maker = ir.producer(maker.inputs[0])
    if (
        maker is None
        or maker.op_type != TRANSPOSE.name
        or list(ir.get_attr(maker, "perm") or []) != [0, 2, 1]
    ):
        return None
    return maker.inputs[0] if ir.get_shape(maker.outputs[0]) == shape else None


def get_linear_shape(node: ir.Node) -> tuple[int, int, int] | None:
    """Return rows, inputs and outputs of a LinearInt, None for anything else."""
    shape, weight = ir.get_shape(node.inputs[0]) if node.inputs else None, None
    if node.op_type == LINEAR.name and shape is not None and None not in shape[1:]:
        weight = ir.const_value(node.inputs[1])
    if weight is None or shape is None:
        return None
    return math.prod(shape[1:-1]), weight.shape[1], weight.shape[0]  # type: ignore[arg-type]


def _has_8bit_output(node: ir.Node) -> bool:
    """Whether `node` writes 8 bits.

    An iqCat of its parts, and a convolution in its place, write no more.
    """
    return bool(ir.get_attr(node, "o_bits", 8) == 8)


def _get_planned_work_area(node: ir.Node, rows: tuple[int, int, int] | None) -> int:
    """Return the work area that the packer plans for `node`, of the operators that stand beside a LinearInt."""
    if rows is not None:
        return rows[0] * rows[1]
    size = math.prod(
        int(d or 1) for d in (ir.get_shape(node.inputs[0]) or (0,) if node.inputs else (0,))
    )
    return {GLU.name: 7 * size, SOFTMAX.name: 6 * size}.get(node.op_type, 0)


def _split_outputs(graph: ir.Model, node: ir.Node, wide: int, parts: int) -> None:
    """Put LinearInt nodes for some of the outputs each, and an iqCat, in place of `node`."""
    result, scale = node.outputs[0], float(ir.get_attr(node, "scale_o"))
    each = -(-wide // parts)
    made = []
    for start in range(0, wide, each):
        constants = []
        for value in node.inputs[1:]:
            array = ir.const_value(value)
            assert value is not None
            assert array is not None
            name = ir.unique_tensor_name(graph, f"{value.name}_from{start}")
            constants.append(ir.add_initializer(graph, name, array[start : start + each]))
        name = ir.unique_tensor_name(graph, f"{result.name}_from{start}")
        part = ir.make_node(
            node.op_type,
            [node.inputs[0], *constants],
            {},
            name=f"{node.name}_from{start}",
            output=name,
            domain=node.domain,
            like=result,
        )
        part.attributes.update(node.attributes)
        part.outputs[0].shape = ir.make_shape(
            [*(result.shape or ())[:-1], (ir.get_shape(constants[0]) or (0,))[0]]
        )
        graph.graph.insert_before(node, part)
        made.append(part.outputs[0])
    rank = len(result.shape or ())
    join = insert_concat(graph, node, made, rank - 1, scale, "").producer()
    assert join is not None
    graph.graph.remove(join)
    ir.replace_nodes(graph, [node], [join])
    for value in [
        v for v in graph.graph.initializers.values() if not v.uses() and not v.is_graph_output()
    ]:
        del graph.graph.initializers[str(value.name)]
