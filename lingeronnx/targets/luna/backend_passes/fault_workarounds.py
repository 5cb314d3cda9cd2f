"""The same integers in the form that a chip's packer wants: exact rewrites of an integer graph.

What a platform's row calls a fault is what the packer does to a graph that is right; each has its
remedy here:

    unused-input      it wants every graph input read
    input-twice       it takes no node that reads a graph input in several operands: they read a
    copy narrow-weights    4-bit weights are right in some operators only, and of some sizes
    no-constant       it wants a weight in the graph: an identity convolution is one
    pad-readers       an iqPad that several nodes read pads one of them twice: one iqPad for each
    pre-pad           it cuts a convolution with many weights, and moves padding for each part: such
    a convolution over
                      a line stands upright, so that nothing is moved
    pre-pad           it moves the padding of a convolution to the tensor that it reads, for all
    readers: such a
                      convolution reads a copy, made by an identity convolution
    lstm-odd          an LSTMInt of an odd number of units is wrong: it gets one more
    lstm-area         the work area of an LSTMInt is not large enough: a LinearInt that changes
    nothing plans more lstm-state        nor is the place of its last state: two Slices and an iqCat
    behind it leave room softmax-area      nor does a SoftmaxInt get enough: it takes some rows at a
    time, of a tensor that an iqCat has made
                      large enough
    linear-area       it plans too small a work area for a LinearInt of several rows: cut over its
    outputs, the parts
                      need no more than the iqCat behind them plans; not of 32 bits, which an iqCat
                      cuts off
    affine-placement  a BatchNorm2dInt reads shared memory, where the rows of a LinearInt may not be
    written: an iqCat
                      of its parts moves them
    linear-rows       a mean over the steps of a sequence is a convolution instead of a LinearInt of
    several rows shared-constants  it prefetches the constants of a node together: of nodes that
    share some of theirs but not all,
                      each gets its own
    norm-area         where no argument makes the work area large enough, for a LayerNormInt or for
    what the remedies
                      above leave, a BatchNorm2dInt that changes nothing plans more

An identity convolution is depthwise, of size 1x1, its weight 64 at scale 64.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from ....formats import CONV2D, PAD, QUANT, SOFTMAX, is_quantized_domain
from ....graph import ir
from ... import Target
from ..._target import AppliedRewrite
from ..faults import LunaFault
from .duplicate_inputs import copy_duplicate_inputs
from .int4_weights import legalize_int4_weights
from .linear import (
    MAX_CONCAT_WORK_AREA,
    convert_mean_linears_to_convs,
    split_linear_before_batch_norm,
    split_linear_outputs,
)
from .lstm import enlarge_lstm_work_area, pad_odd_lstm_units, reserve_lstm_state
from .node_builders import IDENTITY_WEIGHT, insert_concat, make_slice
from .work_area_padding import SOFTMAX_WORK_BYTES, enlarge_work_area

__all__ = ["HANDLED_FAULTS", "apply_fault_workarounds"]


def apply_fault_workarounds(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Rewrite the integer `graph`, in place, as the packer of `target` wants it.

    Return what was done.
    Every tensor that was there keeps its name and its integers.
    """
    return [
        done
        for fault, remedy in _WORKAROUNDS
        if fault in target.faults
        for done in remedy(graph, target)
    ]


def _drop_unused_inputs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Drop the graph inputs that nobody reads."""
    unused = [
        v
        for v in graph.graph.inputs
        if not v.uses() and not v.is_graph_output() and v.const_value is None
    ]
    if len(unused) == len(graph.graph.inputs):
        return []
    for value in unused:
        graph.graph.inputs.remove(value)
    return [
        AppliedRewrite(str(v.name), "a graph input that nobody reads is left out", "exact")
        for v in unused
    ]


def _add_dummy_weight(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Put an identity convolution behind the first Quant of a graph without weights."""
    if any(_get_weight_inputs(node) for node in graph.graph):
        return []
    for node in graph.graph:
        shape = ir.get_shape(node.outputs[0]) or ()
        if node.op_type != QUANT.name or not 2 <= len(shape) <= 4 or None in shape[1:]:
            continue
        source, scale = node.outputs[0], float(ir.get_attr(node, "scale_x"))
        readers = list(source.uses())
        image, where = source, list(range(1, 5 - len(shape)))
        if where:
            full = [1] * (5 - len(shape)) + [int(d or 1) for d in shape[1:]]
            image = _insert_after(
                graph, node, "Unsqueeze", [source], {"axes": where}, "image", full
            )
            node = image.producer() or node
        same = insert_identity_conv(graph, node, image, scale, target, "kept")
        if where:
            same = _insert_after(
                graph,
                ir.producer(same) or node,
                "Squeeze",
                [same],
                {"axes": where},
                "flat",
                list(shape),
            )
        for reader, index in readers:
            reader.replace_input_with(index, same)
        what = "an identity convolution behind it: the packer takes no graph without a weight"
        return [AppliedRewrite(str(source.name), what, "exact")]
    return []


def _duplicate_shared_pads(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Give every reader of an iqPad one of its own."""
    done = []
    for node in list(graph.graph):
        if node.op_type != PAD.name:
            continue
        uses = list(node.outputs[0].uses())
        for number, (reader, index) in enumerate(uses[1:], start=2):
            copy = ir.Node(
                node.domain,
                node.op_type,
                node.inputs,
                dict(node.attributes),
                name=f"{node.name}_{number}",
                outputs=[
                    _make_value_like(graph, node.outputs[0], f"{node.outputs[0].name}_{number}")
                ],
            )
            graph.graph.insert_after(node, copy)
            reader.replace_input_with(index, copy.outputs[0])
        if len(uses) > 1:
            done.append(
                AppliedRewrite(
                    str(node.name), f"{len(uses)} equal iqPad, one for each reader", "exact"
                )
            )
    return done


def _copy_inputs_of_padded_convs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Let every convolution whose padding would be moved read a tensor that nobody else reads."""
    done = []
    for node in list(graph.graph):
        source = node.inputs[0] if node.inputs else None
        if (
            source is None
            or not has_hoisted_padding(node)
            or len(source.uses()) == 1
            and not source.is_graph_output()
        ):
            continue
        copy = insert_identity_conv(
            graph,
            node,
            source,
            float(ir.get_attr(node, "scale_x")),
            target,
            f"for_{node.name}",
            before=True,
        )
        node.replace_input_with(0, copy)
        what = (
            "it reads a copy of its input, made by an identity convolution: the packer pads "
            "the "
            "tensor for all readers"
        )
        done.append(AppliedRewrite(str(node.name), what, "exact"))
    return done


def _rotate_row_convs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Turn a convolution over a line whose weights the packer cuts.

    Its parts would share a tensor with moved padding.
    The line is read as a column, [1, C, 1, W] as [1, C, W, 1], and the result as a line again:
    bytes stay in place.
    """
    done = []
    for node in list(graph.graph):
        if not _needs_rotation(node):
            continue
        source, weight, result = ir.require_input(node), ir.require_input(node, 1), node.outputs[0]
        shape, wide = (
            [int(d or 1) for d in ir.require_shape(source)],
            [int(d or 1) for d in ir.require_shape(result)],
        )
        kernel = ir.require_const_value(weight)
        column = _insert_reshape(
            graph, node, source, [1, shape[1], shape[3], 1], f"{source.name}_upright"
        )
        held = ir.add_initializer(
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
        turned = ir.make_node(
            CONV2D.name,
            [column, held, *node.inputs[2:]],
            attributes,
            name=str(node.name),
            output=name,
            domain=node.domain,
            like=result,
        )
        turned.outputs[0].shape = ir.make_shape([1, wide[1], wide[3], 1])
        sizes = ir.add_initializer(
            graph, ir.unique_tensor_name(graph, f"{name}_shape"), np.array(wide, np.int64)
        )
        back = ir.make_node(
            "Reshape",
            [turned.outputs[0], sizes],
            name=f"{node.name}_line",
            output=f"{name}_line",
            like=result,
        )
        back.outputs[0].shape = ir.make_shape(wide)
        ir.replace_nodes(graph, [node], [turned, back])
        done.append(
            AppliedRewrite(
                str(node.name),
                "a convolution over a line stands upright: no padding has to move",
                "exact",
            )
        )
    return done


def _insert_reshape(
    graph: ir.Model, node: ir.Node, source: ir.Value, shape: list[int], name: str
) -> ir.Value:
    """Insert a Reshape of `source` in front of `node`; return its output."""
    name = ir.unique_tensor_name(graph, name)
    sizes = ir.add_initializer(
        graph, ir.unique_tensor_name(graph, f"{name}_shape"), np.array(shape, np.int64)
    )
    made = ir.make_node(
        "Reshape", [source, sizes], name=f"Reshape_{name}", output=name, like=source
    )
    made.outputs[0].shape = ir.make_shape(shape)
    graph.graph.insert_before(node, made)
    return made.outputs[0]


def _needs_rotation(node: ir.Node) -> bool:
    """Whether `node` convolves a line, the packer cuts its weights, and it moves no padding of a column."""
    if node.op_type != CONV2D.name or ir.get_attr(node, "group", 1) != 1:
        return False
    weight, source = ir.get_shape(node.inputs[1]) or (), ir.get_shape(node.inputs[0]) or ()
    if (
        len(weight) != 4
        or len(source) != 4
        or source[2] != 1
        or weight[2] != 1
        or None in source[1:]
    ):
        return False
    outputs, channels, _, length = (int(d or 0) for d in weight)
    if (
        any(stride != 1 for stride in ir.get_attr(node, "strides") or [1])
        or not 1 < length <= channels
    ):
        return False
    return outputs * -(-channels // 8) * 8 * length > _MAX_UNSPLIT_WEIGHT_BYTES


#: Bytes of a convolution's weights that venus, which has this fault, holds at once.
_MAX_UNSPLIT_WEIGHT_BYTES = 32768


def has_hoisted_padding(node: ir.Node) -> bool:
    """Whether the packer makes the padding of the integer `node` an iqPad in front of it."""
    if node.op_type != CONV2D.name or not any(ir.get_attr(node, "pads") or [0]):
        return False
    weight, source = ir.get_shape(node.inputs[1]) or (), ir.get_shape(node.inputs[0]) or ()
    if len(weight) != 4 or len(source) != 4:
        return False
    return int(weight[1] or 0) < int(weight[2] or 0) or int(source[2] or 0) < int(weight[3] or 0)


def _split_softmax_rows(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Give every SoftmaxInt, which writes 22 bytes per element, a work area of that size.

    An iqCat of five equal tensors plans five bytes per element; so the rows are taken in five parts
    or a few more.
    """
    done = []
    for node in list(graph.graph):
        shape = [int(d or 1) for d in (ir.get_shape(node.inputs[0]) if node.inputs else None) or ()]
        if node.op_type != SOFTMAX.name or len(shape) < 3:
            continue
        size, lines, axis = math.prod(shape), shape[-2], len(shape) - 2
        copies = min(_MAX_CONCAT_INPUTS, MAX_CONCAT_WORK_AREA // size)
        each = copies * lines // SOFTMAX_WORK_BYTES
        if copies < 2 or not each:
            continue
        scale, written = float(ir.get_attr(node, "scale_x")), float(ir.get_attr(node, "scale_o"))
        long = insert_concat(
            graph,
            node,
            [ir.require_input(node)] * copies,
            axis,
            scale,
            f"{ir.input_name(node)}_repeated",
        )
        parts = []
        for start in range(0, lines, each):
            end = min(start + each, lines)
            parts.append(_insert_partial_softmax(graph, node, long, axis, start, end))
        join = insert_concat(graph, node, parts, axis, written, "").producer()
        assert join is not None
        graph.graph.remove(join)
        ir.replace_nodes(graph, [node], [join])
        what = f"{lines} rows in {len(parts)} parts: the packer plans too small a work area"
        done.append(AppliedRewrite(str(node.name), what, "exact"))
    return done


#: More inputs than these were not measured.
_MAX_CONCAT_INPUTS = 5


def _insert_partial_softmax(
    graph: ir.Model, node: ir.Node, long: ir.Value, axis: int, start: int, end: int
) -> ir.Value:
    """Insert a copy of the SoftmaxInt `node` on start ..

    End-1 of `long` along `axis`; return its output.
    """
    taken, base = ir.get_tensor_names(graph), f"{node.outputs[0].name}"
    rows = make_slice(graph, long, axis, start, end, f"{base}_rows{start}", taken)
    some = ir.make_node(
        node.op_type,
        [rows.outputs[0]],
        name=f"{node.name}_part{start}",
        domain=node.domain,
        output=ir.reserve_name(f"{base}_part{start}", taken),
        like=node.outputs[0],
    )
    some.attributes.update(node.attributes)
    some.outputs[0].shape = rows.outputs[0].shape
    graph.graph.insert_before(node, [rows, some])
    return some.outputs[0]


def _duplicate_partly_shared_constants(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Copy the constants that several nodes share in part; those that share all go on doing so."""
    owner: dict[ir.Value, tuple[ir.Value, ...]] = {}
    copies: dict[tuple[ir.Value, tuple[ir.Value, ...]], ir.Value] = {}
    for node in graph.graph:
        weights = _get_weight_inputs(node)
        group = tuple(weights.values())
        for index, value in weights.items():
            if owner.setdefault(value, group) == group:
                continue
            if (value, group) not in copies:
                array = ir.const_value(value)
                assert array is not None
                name = ir.unique_tensor_name(graph, f"{value.name}_copy")
                copies[value, group] = ir.add_initializer(graph, name, array)
            node.replace_input_with(index, copies[value, group])
    counts = Counter(str(value.name) for value, _ in copies)
    what = "copied {} for nodes that share it but not all the constants beside it"
    return [
        AppliedRewrite(name, what.format("once" if n == 1 else f"{n} times"), "exact")
        for name, n in counts.items()
    ]


def _get_weight_inputs(node: ir.Node) -> dict[int, ir.Value]:
    """Return {input index: constant} of what the packer treats as the weights of `node`."""
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
    """Insert an identity convolution of `source` [1, C, H, W], held at `scale`, next to `node`.

    Return its output.
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
    what: str,
    shape: list[int | None] | list[int],
) -> ir.Value:
    """Insert a node behind `node`; return its output, a tensor of `shape`."""
    name = ir.unique_tensor_name(graph, f"{inputs[0].name}_{what}")
    inserted = ir.make_node(
        op_type, inputs, attributes, name=f"{op_type}_{name}", output=name, like=inputs[0]
    )
    inserted.outputs[0].shape = ir.make_shape([1, *shape[1:]])
    graph.graph.insert_after(node, inserted)
    return inserted.outputs[0]


def _make_value_like(graph: ir.Model, value: ir.Value, name: str) -> ir.Value:
    return ir.Value(name=ir.unique_tensor_name(graph, name), shape=value.shape, type=value.type)


#: Fault -> what is done about it, in this order.
_WORKAROUNDS: tuple[tuple[LunaFault, Callable[[ir.Model, Target], list[AppliedRewrite]]], ...] = (
    (LunaFault.UNUSED_INPUT, _drop_unused_inputs),
    (
        LunaFault.NARROW_WEIGHTS,
        legalize_int4_weights,
    ),  # before all that asks what a LinearInt needs
    (LunaFault.NO_CONSTANT, _add_dummy_weight),
    (LunaFault.PAD_READERS, _duplicate_shared_pads),
    (LunaFault.PRE_PAD, _rotate_row_convs),
    (LunaFault.PRE_PAD, _copy_inputs_of_padded_convs),
    (LunaFault.LSTM_ODD, pad_odd_lstm_units),
    (LunaFault.LSTM_AREA, enlarge_lstm_work_area),
    (LunaFault.LSTM_STATE, reserve_lstm_state),
    (LunaFault.LINEAR_ROWS, convert_mean_linears_to_convs),
    (LunaFault.SOFTMAX_AREA, _split_softmax_rows),
    (LunaFault.LINEAR_AREA, split_linear_outputs),  # after it: a SoftmaxInt in parts plans less
    (LunaFault.AFFINE_PLACEMENT, split_linear_before_batch_norm),
    (
        LunaFault.INPUT_TWICE,
        copy_duplicate_inputs,
    ),  # after the softmax: its parts read what it reads several times
    (LunaFault.SHARED_CONSTANTS, _duplicate_partly_shared_constants),
    (LunaFault.NORM_AREA, enlarge_work_area),  # last: it asks what becomes of the graph
)

#: The faults that a rewrite here takes care of.
HANDLED_FAULTS = frozenset(fault for fault, _ in _WORKAROUNDS)
