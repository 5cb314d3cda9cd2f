"""Enlarge the work area for nodes that write past it, if no packer argument avoids this.

All nodes share one work area. An identity BatchNorm2dInt plans 4 bytes per element of a channel;
where the tensor is small, it reads several concatenated copies of it. It only reserves the area.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...common.arithmetic import round_up
from ...ir import ir
from ...ir.name_mapping import apply_file_names
from ...operators.chip_part import extract_chip_part
from ...operators.integer_ops import (
    BATCH_NORM2D,
    CONCAT,
    GLU,
    LAYER_NORM,
    MUL,
    RESHAPE,
    SLICE,
    SOFTMAX,
)
from ...targets import Target
from ...targets._target import AppliedRewrite
from ..arguments.selection import select_safest_arguments
from ..faults import LunaFault
from ..packer.names import build_safe_names
from ..packer_profile import get_packer_profile
from .duplicate_inputs import copy_duplicate_inputs
from .linear import MAX_CONCAT_WORK_AREA, get_linear_shape, is_read_by_batch_norm
from .node_builders import IDENTITY_WEIGHT, MAX_CONCAT_INPUTS, get_dims, insert_concat, make_slice

__all__ = ["SOFTMAX_WORK_BYTES", "enlarge_work_area"]

#: Bytes that SoftmaxInt writes per element.
SOFTMAX_WORK_BYTES = 22


@dataclass(frozen=True)
class _WorkAreaDemand:
    """A node that needs a larger work area, and where the identity BatchNorm2dInt is inserted.

    Attributes
    ----------
    node
        The node, which writes `required_bytes` bytes.
    value
        Tensor that the BatchNorm2dInt copies for `consumers`, quantized with `scale`.
    is_unverified
        Whether the correctness of a node that overwrites its own tensors, such as one with a single
        row, is an assumption that was not measured.
    """

    node: ir.Node
    required_bytes: int
    value: ir.Value
    scale: float
    consumers: list[tuple[ir.Node, int]]
    is_unverified: bool = False


def enlarge_work_area(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Enlarge the common work area for nodes that write past it, in place, if no argument helps.

    The nodes are LayerNormInt, SoftmaxInt, LinearInt and iqMul, each if the chip has the fault.
    Tries the largest demand of each kind by itself, then of all kinds together, and applies the
    first change that makes the graph correct without writes past the plan. Returns descriptions,
    empty if nothing changed.
    """
    area_bytes = max((_get_guaranteed_work_area(node, target) for node in graph.graph), default=0)
    unmet_by_finder: dict[_DemandFinder, list[_WorkAreaDemand]] = {}
    for fault, find_demands in _DEMAND_FINDERS:
        if fault in target.faults:
            demands = find_demands(graph, target)
            unmet = [demand for demand in demands if demand.required_bytes > area_bytes]
            unmet_by_finder[find_demands] = unmet
    finders = [find_demands for find_demands, unmet in unmet_by_finder.items() if unmet]
    if not finders:
        return []
    all_unmet = itertools.chain.from_iterable(unmet_by_finder.values())
    if not any(demand.is_unverified for demand in all_unmet) and _is_safe(graph, target):
        return []
    return _apply_first_safe_fix(graph, target, finders)


def _apply_first_safe_fix(
    graph: ir.Model, target: Target, finders: list[_DemandFinder]
) -> list[AppliedRewrite]:
    """Apply the fix for one of `finders`, or for all, that makes the graph safe, in place.

    Each is tried on a copy first. Returns the descriptions, empty if no fix suffices.
    """
    candidates = [[find_demands] for find_demands in finders]
    if len(finders) > 1:
        candidates.append(finders)
    for candidate in candidates:
        trial = graph.clone()
        _apply_fixes(trial, target, candidate)
        if _is_safe(trial, target):
            return _apply_fixes(graph, target, candidate)
    return []


def _apply_fixes(
    graph: ir.Model, target: Target, finders: list[_DemandFinder]
) -> list[AppliedRewrite]:
    """Insert an identity BatchNorm2dInt for the largest demand of each of `finders`, in place.

    Returns descriptions of these and of copies of graph inputs that are then read twice.
    """
    rewrites = []
    for find_demands in finders:
        largest = max(find_demands(graph, target), key=lambda demand: demand.required_bytes)
        rewrites.append(_insert_dummy_batch_norm(graph, target, largest))
    return [*rewrites, *copy_duplicate_inputs(graph, target)]


def _get_guaranteed_work_area(node: ir.Node, target: Target) -> int:
    """Return a lower bound of the work area in bytes that the packer plans for `node`.

    Considered are LinearInt with bias, BatchNorm2dInt, GluInt, SoftmaxInt, and an iqCat of
    LinearInt on targets with the fault LINEAR_AREA; 0 for others.
    """
    linear = get_linear_shape(node)
    if linear is not None:
        if len(node.inputs) <= 2:
            return 0
        return min(linear.rows * linear.inputs, 4 * linear.rows * linear.outputs)
    if (
        node.op_type == CONCAT.name
        and LunaFault.LINEAR_AREA in target.faults
        and not is_read_by_batch_norm(node.outputs[0])
    ):
        return _get_linear_concat_area(node)
    if node.op_type == BATCH_NORM2D.name:
        return 4 * math.prod(get_dims(node.inputs[0])[2:])
    element_count = _count_input_elements(node)
    return {GLU.name: 7 * element_count, SOFTMAX.name: 4 * element_count}.get(node.op_type, 0)


def _get_linear_concat_area(concat: ir.Node) -> int:
    """Return the work area in bytes of an iqCat all of whose inputs are multi-row LinearInt.

    It is the output's elements, limited to what the packer plans; 0 if an input is anything else.
    """
    for value in concat.inputs:
        producer = ir.producer(value)
        linear = None if producer is None else get_linear_shape(producer)
        if linear is None or linear.rows <= 1:
            return 0
    return min(math.prod(get_dims(concat.outputs[0])), MAX_CONCAT_WORK_AREA)


def _find_layer_norms(graph: ir.Model, target: Target) -> list[_WorkAreaDemand]:
    """Return the demand of each LayerNormInt whose output is used: the bytes it writes for a row.

    They are the profile's scratch bytes per element of a row and a constant. The dummy is to be
    inserted after the node; a demand is unverified if there is only one row.
    """
    bytes_per_element, extra_bytes = get_packer_profile(target).layer_norm_scratch_bytes
    demands = []
    for node in graph.graph:
        if node.op_type != LAYER_NORM.name or not node.outputs[0].uses():
            continue
        output = node.outputs[0]
        row_length = math.prod(get_dims(node.inputs[1]))
        demands.append(
            _WorkAreaDemand(
                node,
                bytes_per_element * row_length + extra_bytes,
                output,
                float(ir.get_attr(node, "scale_o")),
                list(output.uses()),
                is_unverified=math.prod(get_dims(output)) == row_length,
            )
        )
    return demands


def _find_multirow_linears(graph: ir.Model, target: Target) -> list[_WorkAreaDemand]:
    """Return the demand of each LinearInt with several rows: the bytes of work area it writes.

    The dummy is to be inserted on its input.
    """
    demands = []
    for node in graph.graph:
        linear = get_linear_shape(node)
        if linear is None or linear.rows <= 1:
            continue
        demands.append(
            _WorkAreaDemand(
                node,
                linear.written_bytes,
                ir.require_input(node),
                float(ir.get_attr(node, "scale_x")),
                [(node, 0)],
            )
        )
    return demands


def _find_softmaxes(graph: ir.Model, target: Target) -> list[_WorkAreaDemand]:
    """Return the demand of each SoftmaxInt: `SOFTMAX_WORK_BYTES` per input element.

    The dummy is to be inserted on its input, or, if that is a Slice, on the Slice's input for all
    consumers of it.
    """
    demands = []
    for node in graph.graph:
        if node.op_type != SOFTMAX.name:
            continue
        value, consumers = ir.require_input(node), [(node, 0)]
        required_bytes = SOFTMAX_WORK_BYTES * math.prod(get_dims(value))
        producer = ir.producer(value)
        if producer is not None and producer.op_type == SLICE.name:  # the softmax is split by rows
            value = ir.require_input(producer)
            consumers = [(use.node, use.idx) for use in value.uses()]
        scale = float(ir.get_attr(node, "scale_x"))
        demands.append(_WorkAreaDemand(node, required_bytes, value, scale, consumers))
    return demands


def _find_channel_muls(graph: ir.Model, target: Target) -> list[_WorkAreaDemand]:
    """Return the demand of each iqMul by one factor per channel, on its first operand.

    The product is written after the factors, C + C * H * W bytes.
    """
    demands = []
    for node in graph.graph:
        if node.op_type != MUL.name:
            continue
        value = ir.require_input(node)
        shape, factor_shape = get_dims(value), get_dims(node.inputs[1])
        if len(shape) != 4 or shape == factor_shape:
            continue
        required_bytes = shape[1] + math.prod(shape)
        if required_bytes <= round_up(math.prod(shape[2:]) * (shape[1] + 1), 16):
            continue  # planned by the iqMul itself
        scale = float(ir.get_attr(node, "scale_x"))
        demands.append(_WorkAreaDemand(node, required_bytes, value, scale, [(node, 0)]))
    return demands


_DemandFinder = Callable[[ir.Model, Target], list[_WorkAreaDemand]]

_DEMAND_FINDERS: tuple[tuple[LunaFault, _DemandFinder], ...] = (
    (LunaFault.NORM_AREA, _find_layer_norms),
    (LunaFault.SOFTMAX_AREA, _find_softmaxes),
    (LunaFault.LINEAR_AREA, _find_multirow_linears),
    (LunaFault.MUL_AREA, _find_channel_muls),
)


def _is_safe(graph: ir.Model, target: Target) -> bool:
    """Whether the graph is correct on the chip and no node writes past the plan.

    False for arguments with constants in shared memory, since a LayerNormInt may overwrite them.
    """
    named = apply_file_names(graph, build_safe_names(graph))
    arguments = select_safest_arguments(extract_chip_part(named, target), target)
    verdict = arguments.verdict
    if not verdict.is_chip_ready or verdict.has_overrun_warning:
        return False
    return "params:share-mem" not in arguments.command_line


def _insert_dummy_batch_norm(
    graph: ir.Model, target: Target, demand: _WorkAreaDemand
) -> AppliedRewrite:
    """Insert an identity BatchNorm2dInt that plans the demanded work area, in place.

    The tensor is first repeated by iqCats if it has too few elements, and sliced again afterwards.
    Returns the description.
    """
    value, name, scale, axis = demand.value, str(demand.value.name), demand.scale, 1
    shape = get_dims(value)
    consumer_ids = {id(consumer) for consumer, _ in demand.consumers}
    first_consumer = next(node for node in graph.graph if id(node) in consumer_ids)
    min_area = -(-demand.required_bytes // 4)  # elements of a channel, of 4 bytes each
    for count in _split_concat_factor(-(-min_area // math.prod(shape))):
        value = insert_concat(
            graph,
            demand.node,
            [value] * count,
            axis,
            scale,
            f"{name}_repeated",
            before=first_consumer,
        )
    repeated_shape = get_dims(value)
    total = math.prod(repeated_shape)
    channels = next(c for c in range(total // min_area, 0, -1) if total % c == 0)
    image_shape = [1, channels, total // channels, 1]
    constants: dict[str, np.ndarray] = {
        "factor": np.full(channels, IDENTITY_WEIGHT, np.int8),
        "offset": np.zeros(channels, np.int32),
    }
    attributes: dict[str, object] = {
        "data_bits": 8,
        "parameter_bits": 8,
        "o_bits": 8,
        "scale_x": scale,
        "scale_w": float(IDENTITY_WEIGHT),
        "scale_o": scale,
        **target.node_attributes.get("", {}),
    }
    value = _insert_reshape(graph, value, image_shape, f"{name}_column", first_consumer)
    value = _insert_node(
        graph, BATCH_NORM2D.name, value, constants, attributes, f"{name}_same", first_consumer
    )
    value = _insert_reshape(graph, value, repeated_shape, f"{name}_lines", first_consumer)
    if repeated_shape != shape:
        used_names = ir.get_tensor_names(graph)
        slice_node = make_slice(graph, value, axis, 0, shape[axis], f"{name}_once", used_names)
        graph.graph.insert_before(first_consumer, slice_node)
        value = slice_node.outputs[0]
    for consumer, index in demand.consumers:
        consumer.replace_input_with(index, value)
    description = "identity BatchNorm2dInt inserted: the packer allocates too small a work area"
    return AppliedRewrite(str(demand.node.name), description, "exact")


def _split_concat_factor(copies: int) -> list[int]:
    """Return the input counts of chained iqCat that together make at least `copies` copies.

    Each is at most `MAX_CONCAT_INPUTS`; empty for one copy.
    """
    if copies <= 1:
        return []
    if copies <= MAX_CONCAT_INPUTS:
        return [copies]
    return [MAX_CONCAT_INPUTS, *_split_concat_factor(-(-copies // MAX_CONCAT_INPUTS))]


def _insert_reshape(
    graph: ir.Model, value: ir.Value, shape: list[int], base_name: str, before: ir.Node
) -> ir.Value:
    """Insert a Reshape of `value` to `shape` before node `before`; return its output.

    The output's name begins with `base_name` and is unique.
    """
    constants = {"shape": np.array(shape, np.int64)}
    output = _insert_node(graph, RESHAPE.name, value, constants, {}, base_name, before)
    output.shape = ir.Shape(list(shape))
    return output


def _insert_node(
    graph: ir.Model,
    op_type: str,
    value: ir.Value,
    constants: dict[str, np.ndarray],
    attributes: dict[str, object],
    base_name: str,
    before: ir.Node,
) -> ir.Value:
    """Insert a node of `op_type` on `value` and new constants before node `before`.

    Return its output. `constants` are further inputs by suffix of their names. The output has no
    shape yet.
    """
    name = ir.unique_tensor_name(graph, base_name)
    inputs = [value]
    for label, array in constants.items():
        constant_name = ir.unique_tensor_name(graph, f"{name}_{label}")
        inputs.append(ir.add_initializer(graph, constant_name, array))
    node = ir.make_node(
        op_type,
        inputs,
        dict(sorted(attributes.items())),
        name=f"{op_type}_{name}",
        output=name,
        domain="" if op_type == RESHAPE.name else "thinker",
        like=value,
    )
    graph.graph.insert_before(before, node)
    return node.outputs[0]


def _count_input_elements(node: ir.Node) -> int:
    """Count the elements of the first input of `node`.

    An unknown size counts as 1; 0 if the rank is unknown or there is no input.
    """
    shape = (ir.get_shape(node.inputs[0]) or (0,)) if node.inputs else (0,)
    return math.prod(int(dim or 1) for dim in shape)
