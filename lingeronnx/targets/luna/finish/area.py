"""Room for what nodes write beyond their work area, where no argument of the packer gives it.

All nodes share one work area. A BatchNorm2dInt that changes nothing plans 4 bytes for each element of a channel: of
some copies of a tensor, where that is small. Then nothing but the area is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....formats import BATCH_NORM2D, CONCAT, GLU, LAYER_NORM, RESHAPE, SLICE, SOFTMAX
from ....graph import ir
from ....graph.names import written
from ....run.part import chip_part
from ... import Target
from ..._target import Fitted
from ..faults import LunaFault
from ..packer.arguments.choice import safest
from ..packer.names import safe_names
from ..packing import packing
from .linear import LARGEST_AREA, read_by_affine, rows_of
from .nodes import ONE, joined, part
from .twice import read_once

__all__ = ["SOFTMAX_BYTES", "work_area"]

#: What SoftmaxInt writes for each element.
SOFTMAX_BYTES = 22

#: Inputs of an iqCat that were measured right.
_MOST = 5


@dataclass(frozen=True)
class _Wanted:
    """A node that writes `need` bytes, and where the BatchNorm2dInt goes: `value`, held at `scale`, for `readers`.

    doubted : whether only reading supports that it comes out right over its own tensors, as for a single row.
    """

    node: ir.Node
    need: int
    value: ir.Value
    scale: float
    readers: list[tuple[ir.Node, int]]
    doubted: bool = False


def work_area(graph: ir.Graph, target: Target) -> list[Fitted]:
    """Make room for the LayerNormInt, SoftmaxInt or LinearInt that needs most, or for one of each.

    What makes the graph right, with nothing written behind the plan, is done; nothing where it is right without.
    """
    area = max((_certain(node, target) for node in graph.graph), default=0)
    finders = [find for fault, find in _FINDERS if fault in target.faults]
    kinds = [find for find in finders if any(wanted.need > area for wanted in find(graph, target))]
    doubted = any(wanted.doubted and wanted.need > area for find in kinds for wanted in find(graph, target))
    if not kinds or (not doubted and _sound(graph, target)):
        return []
    for wanted in [[kind] for kind in kinds] + [kinds][len(kinds) == 1 :]:
        trial = ir.clone(graph)
        _make_all(trial, target, wanted)
        if _sound(trial, target):
            return _make_all(graph, target, wanted)
    return []


def _make_all(graph: ir.Graph, target: Target, finders: list[_Finder]) -> list[Fitted]:
    done = [_make_room(graph, target, max(find(graph, target), key=lambda wanted: wanted.need)) for find in finders]
    return [*done, *read_once(graph, target)]


def _certain(node: ir.Node, target: Target) -> int:
    """Return the work area that is planned for `node` at least; for an iqCat of parts of a LinearInt, outside."""
    size = math.prod(int(d or 1) for d in (ir.shape(node.inputs[0]) or (0,) if node.inputs else (0,)))
    rows = rows_of(node)
    if rows is not None:
        return min(rows[0] * rows[1], 4 * rows[0] * rows[2]) if len(node.inputs) > 2 else 0
    if node.op_type == CONCAT.name and LunaFault.LINEAR_AREA in target.faults and not read_by_affine(node.outputs[0]):
        parts = [rows_of(maker) if (maker := ir.producer(v)) is not None else None for v in node.inputs]
        result = math.prod(int(d or 1) for d in ir.shape(node.outputs[0]) or ())
        return min(result, LARGEST_AREA) if all(size is not None and size[0] > 1 for size in parts) else 0
    if node.op_type == BATCH_NORM2D.name:
        return 4 * math.prod(int(d or 1) for d in (ir.shape(node.inputs[0]) or ())[2:])
    return {GLU.name: 7 * size, SOFTMAX.name: 4 * size}.get(node.op_type, 0)


def _norms(graph: ir.Graph, target: Target) -> list[_Wanted]:
    per_element, more = packing(target).norm_area
    norms = []
    for node in graph.graph:
        if node.op_type == LAYER_NORM.name and node.outputs[0].uses():
            line = math.prod(int(d or 1) for d in ir.shape(node.inputs[1]) or ())
            y, scale = node.outputs[0], float(ir.attr(node, "scale_o"))
            single = math.prod(int(d or 1) for d in ir.shape(y) or ()) == line
            norms.append(_Wanted(node, per_element * line + more, y, scale, list(y.uses()), single))
    return norms


def _rows(graph: ir.Graph, target: Target) -> list[_Wanted]:
    operators = []
    for node in graph.graph:
        rows, inputs, outputs = rows_of(node) or (1, 0, 0)
        if rows > 1:
            need = rows * (max(inputs, outputs) + outputs)
            operators.append(_Wanted(node, need, ir.source(node), float(ir.attr(node, "scale_x")), [(node, 0)]))
    return operators


def _softmaxes(graph: ir.Graph, target: Target) -> list[_Wanted]:
    softmaxes = []
    for node in graph.graph:
        if node.op_type == SOFTMAX.name:
            value, readers, scale = ir.source(node), [(node, 0)], float(ir.attr(node, "scale_x"))
            need = SOFTMAX_BYTES * math.prod(int(d or 1) for d in ir.shape(value) or ())
            maker = ir.producer(value)
            if maker is not None and maker.op_type == SLICE.name:
                value = ir.source(maker)
                readers = [(use.node, use.idx) for use in value.uses()]
            softmaxes.append(_Wanted(node, need, value, scale, readers))
    return softmaxes


_Finder = Callable[[ir.Graph, Target], list[_Wanted]]

_FINDERS: tuple[tuple[LunaFault, _Finder], ...] = (
    (LunaFault.NORM_AREA, _norms),
    (LunaFault.SOFTMAX_AREA, _softmaxes),
    (LunaFault.LINEAR_AREA, _rows),
)


def _sound(graph: ir.Graph, target: Target) -> bool:
    """Whether all is right and nothing is written behind the plan.

    Constants in shared memory do not count: a LayerNormInt writes into them.
    """
    choice = safest(chip_part(written(graph, safe_names(graph)), target), target)
    return choice.verdict.chip_ready and not choice.verdict.warned and "params:share-mem" not in choice.line


def _make_room(graph: ir.Graph, target: Target, wanted: _Wanted) -> Fitted:
    """Insert the nodes; return what was done."""
    value, name, scale, axis = wanted.value, str(wanted.value.name), wanted.scale, 1
    shape = [int(d or 1) for d in ir.shape(value) or ()]
    readers = {id(reader) for reader, _ in wanted.readers}
    first = next(node for node in graph.graph if id(node) in readers)
    least = -(-wanted.need // 4)
    for count in _counts(-(-least // math.prod(shape))):
        value = joined(graph, wanted.node, [value] * count, axis, scale, f"{name}_repeated", before=first)
    long = [int(d or 1) for d in ir.shape(value) or ()]
    total = math.prod(long)
    channels = next(c for c in range(total // least, 0, -1) if total % c == 0)
    image = [1, channels, total // channels, 1]
    constants: dict[str, np.ndarray] = {
        "factor": np.full(channels, ONE, np.int8),
        "offset": np.zeros(channels, np.int32),
    }
    attrs: dict[str, object] = {
        "data_bits": 8, "parameter_bits": 8, "o_bits": 8, "scale_x": scale, "scale_w": float(ONE), "scale_o": scale,
        **target.node_attributes.get("", {}),
    }  # fmt: skip
    value = _insert(graph, RESHAPE.name, value, {"shape": np.array(image, np.int64)}, {}, f"{name}_column", first)
    value = _insert(graph, BATCH_NORM2D.name, value, constants, attrs, f"{name}_same", first)
    value = _insert(graph, RESHAPE.name, value, {"shape": np.array(long, np.int64)}, {}, f"{name}_lines", first)
    if long != shape:
        cut = part(graph, value, axis, 0, shape[axis], f"{name}_once", ir.names(graph))
        graph.graph.insert_before(first, cut)
        value = cut.outputs[0]
    for reader, index in wanted.readers:
        reader.replace_input_with(index, value)
    what = "a BatchNorm2dInt beside it that changes nothing: the packer plans too small a work area"
    return Fitted(str(wanted.node.name), what, "exact")


def _counts(copies: int) -> list[int]:
    """Return numbers of inputs of one iqCat behind the other that make `copies` or a few more."""
    if copies <= 1:
        return []
    if copies <= _MOST:
        return [copies]
    return [_MOST, *_counts(-(-copies // _MOST))]


def _insert(
    graph: ir.Graph,
    op_type: str,
    value: ir.Value,
    constants: dict[str, np.ndarray],
    attrs: dict[str, object],
    base: str,
    before: ir.Node,
) -> ir.Value:
    """Insert a node on `value` and constants before `before`; return its output, of the sizes of what is reshaped."""
    name = ir.fresh_name(graph, base)
    inputs = [value, *(ir.add_initializer(graph, ir.fresh_name(graph, f"{name}_{k}"), a) for k, a in constants.items())]
    domain = "" if op_type == RESHAPE.name else "thinker"
    inserted = ir.make_node(
        op_type, inputs, dict(sorted(attrs.items())), name=f"{op_type}_{name}", output=name, domain=domain, like=value
    )
    if "shape" in constants:
        inserted.outputs[0].shape = ir.oir_shape([int(d) for d in constants["shape"]])
    graph.graph.insert_before(before, inserted)
    return inserted.outputs[0]
