"""Room for what nodes write beyond their work area, where no argument of the packer gives it.

All nodes share one work area. A BatchNorm2dInt that changes nothing plans 4 bytes for each element
of a channel: of some copies of a tensor, where that is small. Then nothing but the area is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....formats import BATCH_NORM2D, CONCAT, GLU, LAYER_NORM, RESHAPE, SLICE, SOFTMAX
from ....graph import ir
from ....graph.name_mapping import apply_file_names
from ....run.chip_part import extract_chip_part
from ... import Target
from ..._target import AppliedRewrite
from ..faults import LunaFault
from ..packer.arguments.selection import select_safest_arguments
from ..packer.names import build_safe_names
from ..packer_profile import get_packer_profile
from .duplicate_inputs import copy_duplicate_inputs
from .linear import MAX_CONCAT_WORK_AREA, get_linear_shape, is_read_by_batch_norm
from .node_builders import IDENTITY_WEIGHT, insert_concat, make_slice

__all__ = ["SOFTMAX_WORK_BYTES", "enlarge_work_area"]

#: What SoftmaxInt writes for each element.
SOFTMAX_WORK_BYTES = 22

#: Inputs of an iqCat that were measured right.
_MAX_CONCAT_INPUTS = 5


@dataclass(frozen=True)
class _WorkAreaDemand:
    """A node that writes `required_bytes` bytes, and where the BatchNorm2dInt goes.

    `value`, held at `scale`, for `readers`.
    is_unverified : whether only reading supports that it comes out right over its own tensors, as
    for a single row.
    """

    node: ir.Node
    required_bytes: int
    value: ir.Value
    scale: float
    readers: list[tuple[ir.Node, int]]
    is_unverified: bool = False


def enlarge_work_area(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Make room for the LayerNormInt, SoftmaxInt or LinearInt that needs most, or for one of each.

    What makes the graph right, with nothing written behind the plan, is done; nothing where it is
    right without.
    """
    area = max((_get_guaranteed_work_area(node, target) for node in graph.graph), default=0)
    finders = [find for fault, find in _DEMAND_FINDERS if fault in target.faults]
    kinds = [
        find
        for find in finders
        if any(wanted.required_bytes > area for wanted in find(graph, target))
    ]
    doubted = any(
        wanted.is_unverified and wanted.required_bytes > area
        for find in kinds
        for wanted in find(graph, target)
    )
    if not kinds or (not doubted and _is_safe(graph, target)):
        return []
    for wanted in [[kind] for kind in kinds] + [kinds][len(kinds) == 1 :]:
        trial = ir.clone(graph)
        _apply_fixes(trial, target, wanted)
        if _is_safe(trial, target):
            return _apply_fixes(graph, target, wanted)
    return []


def _apply_fixes(
    graph: ir.Model, target: Target, finders: list[_DemandFinder]
) -> list[AppliedRewrite]:
    done = [
        _insert_dummy_batch_norm(
            graph, target, max(find(graph, target), key=lambda wanted: wanted.required_bytes)
        )
        for find in finders
    ]
    return [*done, *copy_duplicate_inputs(graph, target)]


def _get_guaranteed_work_area(node: ir.Node, target: Target) -> int:
    """Return the work area that is planned for `node` at least.

    For an iqCat of parts of a LinearInt, outside.
    """
    size = math.prod(
        int(d or 1) for d in (ir.get_shape(node.inputs[0]) or (0,) if node.inputs else (0,))
    )
    rows = get_linear_shape(node)
    if rows is not None:
        return min(rows[0] * rows[1], 4 * rows[0] * rows[2]) if len(node.inputs) > 2 else 0
    if (
        node.op_type == CONCAT.name
        and LunaFault.LINEAR_AREA in target.faults
        and not is_read_by_batch_norm(node.outputs[0])
    ):
        parts = [
            get_linear_shape(maker) if (maker := ir.producer(v)) is not None else None
            for v in node.inputs
        ]
        result = math.prod(int(d or 1) for d in ir.get_shape(node.outputs[0]) or ())
        return (
            min(result, MAX_CONCAT_WORK_AREA)
            if all(size is not None and size[0] > 1 for size in parts)
            else 0
        )
    if node.op_type == BATCH_NORM2D.name:
        return 4 * math.prod(int(d or 1) for d in (ir.get_shape(node.inputs[0]) or ())[2:])
    return {GLU.name: 7 * size, SOFTMAX.name: 4 * size}.get(node.op_type, 0)


def _find_layer_norms(graph: ir.Model, target: Target) -> list[_WorkAreaDemand]:
    per_element, more = get_packer_profile(target).layer_norm_scratch_bytes
    norms = []
    for node in graph.graph:
        if node.op_type == LAYER_NORM.name and node.outputs[0].uses():
            line = math.prod(int(d or 1) for d in ir.get_shape(node.inputs[1]) or ())
            y, scale = node.outputs[0], float(ir.get_attr(node, "scale_o"))
            single = math.prod(int(d or 1) for d in ir.get_shape(y) or ()) == line
            norms.append(
                _WorkAreaDemand(node, per_element * line + more, y, scale, list(y.uses()), single)
            )
    return norms


def _find_multirow_linears(graph: ir.Model, target: Target) -> list[_WorkAreaDemand]:
    operators = []
    for node in graph.graph:
        rows, inputs, outputs = get_linear_shape(node) or (1, 0, 0)
        if rows > 1:
            need = rows * (max(inputs, outputs) + outputs)
            operators.append(
                _WorkAreaDemand(
                    node,
                    need,
                    ir.require_input(node),
                    float(ir.get_attr(node, "scale_x")),
                    [(node, 0)],
                )
            )
    return operators


def _find_softmaxes(graph: ir.Model, target: Target) -> list[_WorkAreaDemand]:
    softmaxes = []
    for node in graph.graph:
        if node.op_type == SOFTMAX.name:
            value, readers, scale = (
                ir.require_input(node),
                [(node, 0)],
                float(ir.get_attr(node, "scale_x")),
            )
            need = SOFTMAX_WORK_BYTES * math.prod(int(d or 1) for d in ir.get_shape(value) or ())
            maker = ir.producer(value)
            if maker is not None and maker.op_type == SLICE.name:
                value = ir.require_input(maker)
                readers = [(use.node, use.idx) for use in value.uses()]
            softmaxes.append(_WorkAreaDemand(node, need, value, scale, readers))
    return softmaxes


_DemandFinder = Callable[[ir.Model, Target], list[_WorkAreaDemand]]

_DEMAND_FINDERS: tuple[tuple[LunaFault, _DemandFinder], ...] = (
    (LunaFault.NORM_AREA, _find_layer_norms),
    (LunaFault.SOFTMAX_AREA, _find_softmaxes),
    (LunaFault.LINEAR_AREA, _find_multirow_linears),
)


def _is_safe(graph: ir.Model, target: Target) -> bool:
    """Whether all is right and nothing is written behind the plan.

    Constants in shared memory do not count: a LayerNormInt writes into them.
    """
    choice = select_safest_arguments(
        extract_chip_part(apply_file_names(graph, build_safe_names(graph)), target), target
    )
    return (
        choice.verdict.is_chip_ready
        and not choice.verdict.has_overrun_warning
        and "params:share-mem" not in choice.command_line
    )


def _insert_dummy_batch_norm(
    graph: ir.Model, target: Target, wanted: _WorkAreaDemand
) -> AppliedRewrite:
    """Insert the nodes; return what was done."""
    value, name, scale, axis = wanted.value, str(wanted.value.name), wanted.scale, 1
    shape = [int(d or 1) for d in ir.get_shape(value) or ()]
    readers = {id(reader) for reader, _ in wanted.readers}
    first = next(node for node in graph.graph if id(node) in readers)
    least = -(-wanted.required_bytes // 4)
    for count in _split_concat_factor(-(-least // math.prod(shape))):
        value = insert_concat(
            graph, wanted.node, [value] * count, axis, scale, f"{name}_repeated", before=first
        )
    long = [int(d or 1) for d in ir.get_shape(value) or ()]
    total = math.prod(long)
    channels = next(c for c in range(total // least, 0, -1) if total % c == 0)
    image = [1, channels, total // channels, 1]
    constants: dict[str, np.ndarray] = {
        "factor": np.full(channels, IDENTITY_WEIGHT, np.int8),
        "offset": np.zeros(channels, np.int32),
    }
    attrs: dict[str, object] = {
        "data_bits": 8,
        "parameter_bits": 8,
        "o_bits": 8,
        "scale_x": scale,
        "scale_w": float(IDENTITY_WEIGHT),
        "scale_o": scale,
        **target.node_attributes.get("", {}),
    }
    value = _insert_node(
        graph,
        RESHAPE.name,
        value,
        {"shape": np.array(image, np.int64)},
        {},
        f"{name}_column",
        first,
    )
    value = _insert_node(graph, BATCH_NORM2D.name, value, constants, attrs, f"{name}_same", first)
    value = _insert_node(
        graph, RESHAPE.name, value, {"shape": np.array(long, np.int64)}, {}, f"{name}_lines", first
    )
    if long != shape:
        cut = make_slice(
            graph, value, axis, 0, shape[axis], f"{name}_once", ir.get_tensor_names(graph)
        )
        graph.graph.insert_before(first, cut)
        value = cut.outputs[0]
    for reader, index in wanted.readers:
        reader.replace_input_with(index, value)
    what = "a BatchNorm2dInt beside it that changes nothing: the packer plans too small a work area"
    return AppliedRewrite(str(wanted.node.name), what, "exact")


def _split_concat_factor(copies: int) -> list[int]:
    """Return numbers of inputs of one iqCat behind the other that make `copies` or a few more."""
    if copies <= 1:
        return []
    if copies <= _MAX_CONCAT_INPUTS:
        return [copies]
    return [_MAX_CONCAT_INPUTS, *_split_concat_factor(-(-copies // _MAX_CONCAT_INPUTS))]


def _insert_node(
    graph: ir.Model,
    op_type: str,
    value: ir.Value,
    constants: dict[str, np.ndarray],
    attrs: dict[str, object],
    base: str,
    before: ir.Node,
) -> ir.Value:
    """Insert a node on `value` and constants before `before`.

    Return its output, of the sizes of what is reshaped.
    """
    name = ir.unique_tensor_name(graph, base)
    inputs = [
        value,
        *(
            ir.add_initializer(graph, ir.unique_tensor_name(graph, f"{name}_{k}"), a)
            for k, a in constants.items()
        ),
    ]
    domain = "" if op_type == RESHAPE.name else "thinker"
    inserted = ir.make_node(
        op_type,
        inputs,
        dict(sorted(attrs.items())),
        name=f"{op_type}_{name}",
        output=name,
        domain=domain,
        like=value,
    )
    if "shape" in constants:
        inserted.outputs[0].shape = ir.make_shape([int(d) for d in constants["shape"]])
    graph.graph.insert_before(before, inserted)
    return inserted.outputs[0]
