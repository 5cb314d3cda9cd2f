"""Work around faults of a chip's packer and executor by exact rewrites of an integer graph.

Each fault that the target declares has its workaround here:

    unused-input      the packer requires every graph input to be used: remove unused ones
    input-twice       the packer rejects nodes that read a graph input as several operands: they
                      read a copy
    narrow-weights    4-bit weights are correct in some operators and sizes only
    no-constant       the packer requires a weight: insert an identity convolution
    pad-readers       an iqPad with several consumers is padded twice: one iqPad for each
    pre-pad           the packer splits a convolution with many weights and hoists the padding of
                      each slice: rotate a convolution over a row, so that nothing is hoisted
    pre-pad           the packer hoists the padding of a convolution into its input tensor, for all
                      consumers: such a convolution reads a copy, made by an identity convolution
    pad-bytes         an iqPad above 65536 bytes crashes, also a hoisted one: pad the channels in
                      parts
    avgpool-channels  packer and executor divide the channels of a large map in two ways: pool them
                      in parts that both leave whole, or that are multiples of 8
    avgpool-stride    wide strides of an average pool do not run: pool one window of a row at a
                      time
    left-over-rows    a large map whose last rows no window reads is wrong: slice them off
    mul-area          maps of one position are multiplied as vectors
    groups-of-one-input  two grouped convolutions of one tensor do not pack: one reads a copy
    reshaped-output   the packer loses a graph output between two Reshapes: the second one reads
                      the tensor in front of both
    lstm-area         the work area of an LSTMInt is too small: an identity LinearInt plans more
    lstm-state        the memory of its last state is too small: two Slices and an iqCat after it
                      leave enough
    softmax-area      the work area of a SoftmaxInt is too small: compute some rows at a time, of a
                      tensor that an iqCat has made large enough
    linear-area       the work area of a LinearInt with several rows is too small: split it by
                      outputs, so that its parts need no more than the iqCat after them plans; not
                      for 32-bit outputs, which an iqCat truncates
    affine-placement  a BatchNorm2dInt reads shared memory, where a LinearInt with several rows must
                      not write: an iqCat of its parts moves them
    linear-rows       a mean over the steps of a sequence becomes a convolution instead of a
                      LinearInt with several rows
    shared-constants  the packer prefetches the constants of a node together: nodes that share some
                      of them but not all get copies
    norm-area, mul-area  if no argument makes the work area large enough for a LayerNormInt, or for
                      nodes that the workarounds above leave, an identity BatchNorm2dInt plans more

An identity convolution is depthwise with a 1x1 kernel; its weight is 64 at scale 64.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from ...common.arithmetic import round_up
from ...ir import ir
from ...operators.integer_ops import CONV2D, PAD, QUANT, SOFTMAX, is_quantized_domain
from ...targets import Target
from ...targets._target import AppliedRewrite
from ..faults import LunaFault
from .duplicate_inputs import copy_duplicate_inputs
from .int4_weights import legalize_int4_weights
from .linear import (
    MAX_CONCAT_WORK_AREA,
    convert_mean_linears_to_convs,
    split_linear_before_batch_norm,
    split_linear_outputs,
)
from .lstm import enlarge_lstm_work_area, reserve_lstm_state
from .node_builders import (
    IDENTITY_WEIGHT,
    MAX_CONCAT_INPUTS,
    insert_concat,
    insert_reshape,
    make_slice,
    replace_by_producer,
)
from .packer_forms import (
    copy_inputs_of_grouped_convs,
    flatten_single_position_muls,
    part_reshaped_outputs,
)
from .window_workarounds import (
    has_hoisted_padding,
    pool_single_windows,
    slice_off_left_over_rows,
    split_average_channels,
    split_large_pads,
)
from .work_area_padding import SOFTMAX_WORK_BYTES, enlarge_work_area

__all__ = ["HANDLED_FAULTS", "apply_fault_workarounds"]


def apply_fault_workarounds(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Apply the workarounds for the faults of `target` to an integer graph, in place.

    The workarounds run in a fixed order. Every tensor of the graph keeps its name and its integers.

    Returns
    -------
    list of AppliedRewrite
        Descriptions of the changes.
    """
    rewrites = []
    for fault, apply_workaround in _WORKAROUNDS:
        if fault in target.faults:
            rewrites += apply_workaround(graph, target)
    return rewrites


def _drop_unused_inputs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Remove the graph inputs without consumers, in place, unless all inputs are unused.

    Inputs that are graph outputs or constants stay. Returns one description per removed input.
    """
    unused = [
        value
        for value in graph.graph.inputs
        if not value.uses() and not value.is_graph_output() and value.const_value is None
    ]
    if len(unused) == len(graph.graph.inputs):
        return []
    for value in unused:
        graph.graph.inputs.remove(value)
    return [
        AppliedRewrite(str(value.name), "unused graph input removed", "exact") for value in unused
    ]


def _add_dummy_weight(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Insert an identity convolution after a Quant if the graph has no weights, in place.

    The packer rejects such graphs. It is the first Quant whose output has rank 2 to 4 and known
    sizes from axis 1 on; without one nothing changes. Returns one description, or an empty list.
    """
    if any(_get_weight_inputs(node) for node in graph.graph):
        return []
    for node in graph.graph:
        shape = ir.get_shape(node.outputs[0]) or ()
        if node.op_type != QUANT.name or not 2 <= len(shape) <= 4 or None in shape[1:]:
            continue
        _insert_identity_after_quant(graph, node, target)
        description = "identity convolution inserted: the packer rejects graphs without weights"
        return [AppliedRewrite(str(node.outputs[0].name), description, "exact")]
    return []


def _insert_identity_after_quant(graph: ir.Model, quant: ir.Node, target: Target) -> None:
    """Insert an identity convolution between `quant` and its consumers, in place.

    Tensors of rank 2 or 3 are expanded by an Unsqueeze (axes of size 1 after the batch) and
    squeezed again.
    """
    source, scale = quant.outputs[0], float(ir.get_attr(quant, "scale_x"))
    shape = list(ir.require_shape(source))
    consumers = list(source.uses())
    missing_axes = list(range(1, 5 - len(shape)))
    if not missing_axes:
        output = insert_identity_conv(graph, quant, source, scale, target, "kept")
    else:
        attributes: dict[str, object] = {"axes": missing_axes}
        image_shape = [1] * (5 - len(shape)) + [int(dim or 1) for dim in shape[1:]]
        image = _insert_after(graph, quant, "Unsqueeze", [source], attributes, "image", image_shape)
        copy = insert_identity_conv(graph, image.producer() or quant, image, scale, target, "kept")
        output = _insert_after(
            graph, ir.producer(copy) or quant, "Squeeze", [copy], attributes, "flat", shape
        )
    for consumer, index in consumers:
        consumer.replace_input_with(index, output)


def _duplicate_shared_pads(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Give each use of an iqPad but the first a copy of the node, in place.

    The packer would pad the tensor twice. Returns one description per duplicated node.
    """
    rewrites = []
    for node in list(graph.graph):
        if node.op_type != PAD.name:
            continue
        output = node.outputs[0]
        uses = list(output.uses())
        for number, (consumer, index) in enumerate(uses[1:], start=2):
            copy = ir.Node(
                node.domain,
                node.op_type,
                node.inputs,
                dict(node.attributes),
                name=f"{node.name}_{number}",
                outputs=[_make_value_like(graph, output, f"{output.name}_{number}")],
            )
            graph.graph.insert_after(node, copy)
            consumer.replace_input_with(index, copy.outputs[0])
        if len(uses) > 1:
            description = f"duplicated into {len(uses)} equal iqPad, one for each consumer"
            rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def _copy_inputs_of_padded_convs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Copy the shared inputs of convolutions whose padding the packer hoists, in place.

    The packer would pad the tensor for all consumers. An identity convolution makes the copy;
    inputs without other uses stay. Returns one description per convolution.
    """
    rewrites = []
    for node in list(graph.graph):
        source = node.inputs[0] if node.inputs else None
        if source is None or not has_hoisted_padding(node):
            continue
        if len(source.uses()) == 1 and not source.is_graph_output():
            continue
        scale = float(ir.get_attr(node, "scale_x"))
        copy = insert_identity_conv(
            graph, node, source, scale, target, f"for_{node.name}", before=True
        )
        node.replace_input_with(0, copy)
        description = (
            "input copied by an identity convolution: the packer would pad the shared tensor for "
            "all consumers"
        )
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def _rotate_row_convs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Rotate each convolution over a row whose weights the packer splits, in place.

    Its slices would share an input tensor with hoisted padding. The row [1, C, 1, W] is read as a
    column [1, C, W, 1], and the result as a row again; no byte moves. Returns one description per
    node.
    """
    rewrites = []
    for node in list(graph.graph):
        if not _needs_rotation(node):
            continue
        _rotate_row_conv(graph, node)
        description = (
            "row convolution rewritten as a column convolution: no padding needs to be hoisted"
        )
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def _rotate_row_conv(graph: ir.Model, node: ir.Node) -> None:
    """Replace `node`, a convolution over a row, by one over a column between Reshapes, in place.

    Height and width of kernel, pads, strides and dilations are exchanged.
    """
    source, weight, result = ir.require_input(node), ir.require_input(node, 1), node.outputs[0]
    shape = [int(dim or 1) for dim in ir.require_shape(source)]
    result_shape = [int(dim or 1) for dim in ir.require_shape(result)]
    kernel = ir.require_const_value(weight)
    column = insert_reshape(
        graph,
        source,
        [1, shape[1], shape[3], 1],
        f"{source.name}_upright",
        node,
        ir.get_tensor_names(graph),
        always=True,
    )
    column_weight = ir.add_initializer(
        graph,
        ir.unique_tensor_name(graph, f"{weight.name}_upright"),
        np.ascontiguousarray(np.swapaxes(kernel, 2, 3)),
    )
    attributes = {name: ir.get_attr(node, name) for name in node.attributes}
    pads = ir.get_attr(node, "pads") or [0] * 4
    attributes["pads"] = [pads[1], pads[0], pads[3], pads[2]]
    for key in ("kernel_shape", "strides", "dilations"):
        attributes[key] = list(attributes.get(key) or [1, 1])[::-1]
    name = ir.unique_tensor_name(graph, f"{result.name}_upright")
    convolution = ir.make_node(
        CONV2D.name,
        [column, column_weight, *node.inputs[2:]],
        attributes,
        name=str(node.name),
        output=name,
        domain=node.domain,
        like=result,
    )
    convolution.outputs[0].shape = ir.Shape([1, result_shape[1], result_shape[3], 1])
    shape_constant = ir.add_initializer(
        graph, ir.unique_tensor_name(graph, f"{name}_shape"), np.array(result_shape, np.int64)
    )
    reshape = ir.make_node(
        "Reshape",
        [convolution.outputs[0], shape_constant],
        name=f"{node.name}_line",
        output=f"{name}_line",
        like=result,
    )
    reshape.outputs[0].shape = ir.Shape(result_shape)
    ir.replace_nodes(graph, [node], [convolution, reshape])


def _needs_rotation(node: ir.Node) -> bool:
    """Whether `node` is a convolution over a row whose weights the packer splits.

    Input and kernel have height 1. False unless group and stride are 1, and if the kernel is longer
    than the channels, since padding of the rotated convolution would be hoisted as well.
    """
    shapes = _get_2d_conv_shapes(node)
    if shapes is None or ir.get_attr(node, "group", 1) != 1:
        return False
    input_shape, weight_shape = shapes
    if (input_shape[2], weight_shape[2]) != (1, 1) or None in input_shape[1:]:
        return False
    outputs, channels, length = (int(weight_shape[axis] or 0) for axis in (0, 1, 3))
    if set(ir.get_attr(node, "strides") or [1]) != {1} or not 1 < length <= channels:
        return False
    return outputs * round_up(channels, 8) * length > _MAX_UNSPLIT_WEIGHT_BYTES


def _get_2d_conv_shapes(
    node: ir.Node,
) -> tuple[tuple[int | None, ...], tuple[int | None, ...]] | None:
    """Return (input shape, weight shape) of a Conv2dInt, both of rank 4; sizes may be None.

    None for other nodes, unknown ranks and other ranks.
    """
    if node.op_type != CONV2D.name:
        return None
    input_shape, weight_shape = ir.get_shape(node.inputs[0]), ir.get_shape(node.inputs[1])
    if input_shape is None or weight_shape is None:
        return None
    if len(input_shape) != 4 or len(weight_shape) != 4:
        return None
    return input_shape, weight_shape


#: Largest weights that venus, which has this fault, does not split.
_MAX_UNSPLIT_WEIGHT_BYTES = 32768


def _split_softmax_rows(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Split every SoftmaxInt of three or more axes by rows, in place.

    Its 22 bytes per element then fit in the work area: an iqCat of up to five equal tensors plans
    that many bytes per element, and the rows are computed in about five parts. A SoftmaxInt that is
    too large even for two copies stays. Returns one description per node.
    """
    rewrites = []
    for node in list(graph.graph):
        source_shape = ir.get_shape(node.inputs[0]) if node.inputs else None
        shape = [int(dim or 1) for dim in source_shape or ()]
        if node.op_type != SOFTMAX.name or len(shape) < 3:
            continue
        rows = shape[-2]
        copies = min(MAX_CONCAT_INPUTS, MAX_CONCAT_WORK_AREA // math.prod(shape))
        part_rows = copies * rows // SOFTMAX_WORK_BYTES
        if copies < 2 or not part_rows:
            continue
        part_count = _split_softmax(graph, node, rows, copies, part_rows)
        description = (
            f"{rows} rows computed in {part_count} parts: the packer allocates too small a work "
            "area"
        )
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def _split_softmax(graph: ir.Model, node: ir.Node, rows: int, copies: int, part_rows: int) -> int:
    """Replace SoftmaxInt `node` by parts of `part_rows` of its `rows` rows, in place.

    The parts read a concatenation of `copies` copies of the input, along the axis before the last.
    Returns the number of parts.
    """
    source = ir.require_input(node)
    in_scale, out_scale = float(ir.get_attr(node, "scale_x")), float(ir.get_attr(node, "scale_o"))
    axis = len(ir.require_shape(source)) - 2
    repeated = insert_concat(
        graph, node, [source] * copies, axis, in_scale, f"{ir.input_name(node)}_repeated"
    )
    parts = []
    for start in range(0, rows, part_rows):
        end = min(start + part_rows, rows)
        parts.append(_insert_partial_softmax(graph, node, repeated, axis, start, end))
    joined = insert_concat(graph, node, parts, axis, out_scale, "")
    replace_by_producer(graph, [node], joined)
    return len(parts)


def _insert_partial_softmax(
    graph: ir.Model, node: ir.Node, source: ir.Value, axis: int, start: int, end: int
) -> ir.Value:
    """Insert, before `node`, a copy of it that reads rows `start` to `end` - 1 of `source`.

    A Slice along `axis` selects the rows; returns the output of the copy, a SoftmaxInt.
    """
    used_names, base_name = ir.get_tensor_names(graph), f"{node.outputs[0].name}"
    rows = make_slice(graph, source, axis, start, end, f"{base_name}_rows{start}", used_names)
    softmax = ir.make_node(
        node.op_type,
        [rows.outputs[0]],
        name=f"{node.name}_part{start}",
        domain=node.domain,
        output=ir.reserve_name(f"{base_name}_part{start}", used_names),
        like=node.outputs[0],
    )
    softmax.attributes.update(node.attributes)
    softmax.outputs[0].shape = rows.outputs[0].shape
    graph.graph.insert_before(node, [rows, softmax])
    return softmax.outputs[0]


def _duplicate_partly_shared_constants(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Copy constants of nodes that share some of their constants, but not all, in place.

    The packer prefetches the constants of a node together. Nodes with equal sets of constants share
    the copies; the first set keeps the originals. Returns one description per copied constant.
    """
    first_group: dict[ir.Value, tuple[ir.Value, ...]] = {}
    copies: dict[tuple[ir.Value, tuple[ir.Value, ...]], ir.Value] = {}
    counts: Counter[str] = Counter()
    used_names = ir.get_tensor_names(graph)
    for node in graph.graph:
        weights = _get_weight_inputs(node)
        group = tuple(weights.values())
        for index, value in weights.items():
            if first_group.setdefault(value, group) == group:
                continue
            if (value, group) not in copies:
                array = ir.const_value(value)
                assert array is not None
                counts[str(value.name)] += 1
                count = counts[str(value.name)]  # reserve_name would count from 1 for each copy
                suffix = "_copy" if count == 1 else f"_copy_{count}"
                name = ir.reserve_name(f"{value.name}{suffix}", used_names)
                copies[value, group] = ir.add_initializer(graph, name, array)
            node.replace_input_with(index, copies[value, group])
    rewrites = []
    for name, count in counts.items():
        times = "once" if count == 1 else f"{count} times"
        description = f"copied {times} for nodes that share it but not all their other constants"
        rewrites.append(AppliedRewrite(name, description, "exact"))
    return rewrites


def _get_weight_inputs(node: ir.Node) -> dict[int, ir.Value]:
    """Return input index -> constant of a node that the packer treats as a weight.

    Empty for float nodes.
    """
    if not is_quantized_domain(node):
        return {}
    return {
        index: value
        for index, value in enumerate(node.inputs)
        if value is not None and ir.const_value(value) is not None
    }


def insert_identity_conv(
    graph: ir.Model,
    node: ir.Node,
    source: ir.Value,
    scale: float,
    target: Target,
    name_suffix: str,
    before: bool = False,
) -> ir.Value:
    """Insert an exact copy of `source` by a 1x1 depthwise convolution, and return its output.

    Consumers of `source` are not changed.

    Parameters
    ----------
    node : ir.Node
        Node after which, or before which if `before`, the convolution is inserted.
    source : ir.Value
        Image [1, C, H, W] to copy.
    scale : float
        Scale of the image.
    name_suffix : str
        Suffix of the copy's name.
    """
    channels = int((ir.get_shape(source) or (1, 1))[1] or 1)
    name = ir.unique_tensor_name(graph, f"{source.name}_{name_suffix}")
    weight = ir.add_initializer(
        graph,
        ir.unique_tensor_name(graph, f"{name}_weight"),
        np.full((channels, 1, 1, 1), IDENTITY_WEIGHT, np.int8),
    )
    attrs = {
        "kernel_shape": [1, 1],
        "strides": [1, 1],
        "pads": [0] * 4,
        "dilations": [1, 1],
        "group": channels,
        "data_bits": 8,
        "parameter_bits": 8,
        "o_bits": 8,
        "scale_x": scale,
        "scale_w": float(IDENTITY_WEIGHT),
        "scale_o": scale,
        **target.node_attributes.get("", {}),
    }
    convolution = ir.make_node(
        CONV2D.name,
        [source, weight],
        dict(sorted(attrs.items())),
        name=f"{CONV2D.name}_{name}",
        output=name,
        domain="thinker",
        like=source,
    )
    (graph.graph.insert_before if before else graph.graph.insert_after)(node, convolution)
    return convolution.outputs[0]


def _insert_after(
    graph: ir.Model,
    node: ir.Node,
    op_type: str,
    inputs: list[ir.Value],
    attributes: dict[str, object],
    suffix: str,
    shape: list[int | None] | list[int],
) -> ir.Value:
    """Insert a node of `op_type` after `node`; return its output.

    The output has `shape` with axis 0 replaced by 1, the type of the first of `inputs`, and its
    name with `suffix`.
    """
    name = ir.unique_tensor_name(graph, f"{inputs[0].name}_{suffix}")
    inserted = ir.make_node(
        op_type, inputs, attributes, name=f"{op_type}_{name}", output=name, like=inputs[0]
    )
    inserted.outputs[0].shape = ir.Shape([1, *shape[1:]])
    graph.graph.insert_after(node, inserted)
    return inserted.outputs[0]


def _make_value_like(graph: ir.Model, value: ir.Value, name: str) -> ir.Value:
    """Make a tensor with shape and type of `value` and a unique name that begins with `name`."""
    return ir.Value(name=ir.unique_tensor_name(graph, name), shape=value.shape, type=value.type)


#: Fault -> workaround, in the order in which they are applied.
_WORKAROUNDS: tuple[tuple[LunaFault, Callable[[ir.Model, Target], list[AppliedRewrite]]], ...] = (
    (LunaFault.UNUSED_INPUT, _drop_unused_inputs),
    # Before the workarounds that depend on the work area of a LinearInt.
    (LunaFault.NARROW_WEIGHTS, legalize_int4_weights),
    (LunaFault.NO_CONSTANT, _add_dummy_weight),
    (LunaFault.PAD_READERS, _duplicate_shared_pads),
    (LunaFault.PAD_BYTES, split_large_pads),
    (LunaFault.PRE_PAD, _rotate_row_convs),
    (LunaFault.PRE_PAD, _copy_inputs_of_padded_convs),
    (LunaFault.AVGPOOL_CHANNELS, split_average_channels),
    (LunaFault.AVGPOOL_STRIDE, pool_single_windows),
    (LunaFault.LEFT_OVER_ROWS, slice_off_left_over_rows),
    (LunaFault.MUL_POSITION, flatten_single_position_muls),
    (LunaFault.GROUPS_OF_ONE_INPUT, copy_inputs_of_grouped_convs),
    (LunaFault.LSTM_AREA, enlarge_lstm_work_area),
    (LunaFault.LSTM_STATE, reserve_lstm_state),
    (LunaFault.LINEAR_ROWS, convert_mean_linears_to_convs),
    (LunaFault.SOFTMAX_AREA, _split_softmax_rows),
    (LunaFault.LINEAR_AREA, split_linear_outputs),  # a split SoftmaxInt plans less
    (LunaFault.AFFINE_PLACEMENT, split_linear_before_batch_norm),
    # After the softmax, whose parts read its input several times.
    (LunaFault.INPUT_TWICE, copy_duplicate_inputs),
    (LunaFault.SHARED_CONSTANTS, _duplicate_partly_shared_constants),
    (LunaFault.RESHAPED_OUTPUT, part_reshaped_outputs),
    (LunaFault.NORM_AREA, enlarge_work_area),  # last, because it evaluates the resulting graph
)

#: Faults that have a workaround here.
HANDLED_FAULTS = frozenset(fault for fault, _ in _WORKAROUNDS)
