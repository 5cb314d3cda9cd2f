"""LinearInt of several rows in another form, with the same integers: cut over its outputs, or a convolution.

A chip may want its output outside shared memory, and inside what BatchNorm2dInt reads: an iqCat of parts moves it.
"""

from __future__ import annotations

import math

from ....formats import BATCH_NORM2D, CONV2D, GLU, LINEAR, RESHAPE, SOFTMAX, TRANSPOSE
from ....graph import ir
from ....graph.detached_nodes import loose_node, loose_tensor
from ... import Target
from ..._target import Fitted
from ..faults import LunaFault
from ..packer.limits.operators import of_layers
from .nodes import POINTWISE, joined, pointwise

__all__ = ["LARGEST_AREA", "means_as_convolutions", "parted_rows", "read_by_affine", "rows_joined", "rows_of"]

#: The packer plans no larger area for an iqCat.
LARGEST_AREA = 65536
_MOST_PARTS = 16


def parted_rows(graph: ir.Graph, target: Target) -> list[Fitted]:
    """Cut every LinearInt of 8 bits over its outputs that needs more work area than any node of the graph plans.

    One of M rows of N to L elements writes ``M*(max(N, L) + L)`` bytes and plans M*N; an iqCat of all its outputs M*L.
    """
    rows = {node: size for node in graph.graph if (size := rows_of(node)) is not None}
    area = max((_planned(node, rows.get(node)) for node in graph.graph), default=0)
    done = []
    for node, (m, n, wide) in sorted(rows.items(), key=lambda item: -item[1][0] * item[1][2]):
        need = m * (max(n, wide) + wide)
        if m == 1 or need <= area or m * wide > LARGEST_AREA or not _narrow(node):
            continue
        after = max(area, m * wide)
        counts = range(2, _MOST_PARTS + 1)
        parts = next((k for k in counts if m * (max(n, -(-wide // k)) + -(-wide // k)) <= after), None)
        if parts is not None:
            _part(graph, node, wide, parts)
            area = after
            what = f"{wide} outputs of {m} rows in {parts} parts side by side: the packer plans too small a work area"
            done.append(Fitted(str(node.name), what, "exact"))
    return done


def rows_joined(graph: ir.Graph, target: Target) -> list[Fitted]:
    """Cut every LinearInt in two or more whose rows a BatchNorm2dInt reads, where `target` wants them outside.

    As few parts as stay within the work area; parts of half as many outputs as inputs, or less, ask for no more than
    is planned for them where the inputs lie in shared memory.
    """
    if LunaFault.LINEAR_ROWS not in target.faults:
        return []
    rows = {node: size for node in graph.graph if (size := rows_of(node)) is not None}
    area = max((_planned(node, rows.get(node)) for node in graph.graph), default=0)
    done = []
    for node, (m, n, wide) in rows.items():
        if m == 1 or wide == 1 or not read_by_affine(node.outputs[0]):
            continue
        counts = range(2, min(wide, _MOST_PARTS) + 1)
        fits = (k for k in counts if m * (max(n, -(-wide // k)) + -(-wide // k)) <= area)
        parts = next(fits, min(max(2, -(-2 * wide // n)), counts[-1]))
        _part(graph, node, wide, parts)
        what = f"{wide} outputs in {parts} parts, joined in shared memory, where a BatchNorm2dInt reads them"
        done.append(Fitted(str(node.name), what, "exact"))
    return done


def read_by_affine(value: ir.Value) -> bool:
    """Whether a BatchNorm2dInt reads `value`, as it is or reshaped."""
    readers = [use.node for use in value.uses()]
    return any(
        reader.op_type == BATCH_NORM2D.name or (reader.op_type == RESHAPE.name and read_by_affine(reader.outputs[0]))
        for reader in readers
    )


def means_as_convolutions(graph: ir.Graph, target: Target) -> list[Fitted]:
    """Write every LinearInt of one output over turned rows and columns as a convolution of what was turned.

    A mean over T steps of [1, T, C] is a 1x1 convolution of T channels and one output over [1, T, 1, C].
    """
    done = []
    for node in list(graph.graph):
        size, source = rows_of(node), _turned(node)
        if size is None or source is None or size[0] == 1 or size[2] != 1 or not _narrow(node):
            continue
        result, image = node.outputs[0], [1, size[1], 1, size[0]]
        arrays = [a for value in node.inputs[1:] if (a := ir.const(value)) is not None]
        constants = dict(zip(("weight", "bias"), [arrays[0].reshape(1, -1, 1, 1), *arrays[1:]], strict=False))
        over, weight = loose_tensor(image), loose_tensor(constants["weight"].shape, constant=constants["weight"])
        alike = loose_node(CONV2D.name, [over, weight], [1, 1, 1, size[0]], POINTWISE)
        if any(limit(alike, target) is not None for limit in of_layers(CONV2D.name)):
            continue
        scales = {key: float(ir.attr(node, key)) for key in ("scale_x", "scale_w", "scale_o")}
        shape = [int(d or 1) for d in ir.shape(result) or ()]
        convolution = pointwise(
            graph,
            source,
            image,
            constants=constants,
            scales=scales,
            result=shape,
            name=str(result.name),
            before=node,
            target=target,
        )
        last = convolution.producer()
        assert last is not None
        graph.graph.remove(last)
        ir.replace(graph, [node], [last])
        ir.remove_unused(graph)
        what = "a 1x1 convolution whose channels are the steps: a LinearInt of several rows writes past its work area"
        done.append(Fitted(str(node.name), what, "exact"))
    return done


def _turned(node: ir.Node) -> ir.Value | None:
    """Return what the LinearInt `node` reads before its rows and columns were turned; None where they were not."""
    value = node.inputs[0] if node.inputs else None
    shape, maker = None if value is None else ir.shape(value), ir.producer(value)
    while maker is not None and maker.op_type == RESHAPE.name:
        maker = ir.producer(maker.inputs[0])
    if maker is None or maker.op_type != TRANSPOSE.name or list(ir.attr(maker, "perm") or []) != [0, 2, 1]:
        return None
    return maker.inputs[0] if ir.shape(maker.outputs[0]) == shape else None


def rows_of(node: ir.Node) -> tuple[int, int, int] | None:
    """Return rows, inputs and outputs of a LinearInt, None for anything else."""
    shape, weight = ir.shape(node.inputs[0]) if node.inputs else None, None
    if node.op_type == LINEAR.name and shape is not None and None not in shape[1:]:
        weight = ir.const(node.inputs[1])
    return None if weight is None or shape is None else (math.prod(shape[1:-1]), weight.shape[1], weight.shape[0])  # type: ignore[arg-type]


def _narrow(node: ir.Node) -> bool:
    """Whether `node` writes 8 bits: an iqCat of its parts, and a convolution in its place, write no more."""
    return bool(ir.attr(node, "o_bits", 8) == 8)


def _planned(node: ir.Node, rows: tuple[int, int, int] | None) -> int:
    """Return the work area that the packer plans for `node`, of the operators that stand beside a LinearInt."""
    if rows is not None:
        return rows[0] * rows[1]
    size = math.prod(int(d or 1) for d in (ir.shape(node.inputs[0]) or (0,) if node.inputs else (0,)))
    return {GLU.name: 7 * size, SOFTMAX.name: 6 * size}.get(node.op_type, 0)


def _part(graph: ir.Graph, node: ir.Node, wide: int, parts: int) -> None:
    """Put LinearInt nodes for some of the outputs each, and an iqCat, in place of `node`."""
    result, scale = node.outputs[0], float(ir.attr(node, "scale_o"))
    each = -(-wide // parts)
    made = []
    for start in range(0, wide, each):
        constants = []
        for value in node.inputs[1:]:
            array = ir.const(value)
            assert value is not None
            assert array is not None
            name = ir.fresh_name(graph, f"{value.name}_from{start}")
            constants.append(ir.add_initializer(graph, name, array[start : start + each]))
        name = ir.fresh_name(graph, f"{result.name}_from{start}")
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
        part.outputs[0].shape = ir.oir_shape([*(result.shape or ())[:-1], (ir.shape(constants[0]) or (0,))[0]])
        graph.graph.insert_before(node, part)
        made.append(part.outputs[0])
    rank = len(result.shape or ())
    join = joined(graph, node, made, rank - 1, scale, "").producer()
    assert join is not None
    graph.graph.remove(join)
    ir.replace(graph, [node], [join])
    for value in [v for v in graph.graph.initializers.values() if not v.uses() and not v.is_graph_output()]:
        del graph.graph.initializers[str(value.name)]
