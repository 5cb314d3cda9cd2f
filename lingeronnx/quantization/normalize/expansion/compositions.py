"""Compose operators of those that the platforms have, where that is shorter than the function body.

RMSNormalization, and LpNormalization with p = 2, become the layer normalization of x and -x side by
side, InstanceNormalization and GroupNormalization that of each group of channels. RotaryEmbedding
becomes x * cos + permuted x * sin with constant tables, CausalConvWithState a depthwise convolution
of state and input, and the Gelu operators of com.microsoft the formula that exporters write.
DepthToSpace and SpaceToDepth, which have function bodies from opset 28 on only, become a Transpose
between two Reshapes, as PyTorch's PixelShuffle is written. TensorScatter at a known position joins
the rows of the cache around the new ones. A dilated AveragePool is a depthwise convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ....ir import ir
from ....ir.builder import SubgraphBuilder
from ..layers.rms_norm import append_rms_norm
from .attention import compose_attention

__all__ = ["COMPOSITIONS", "Composition", "is_dilated"]

#: Replaces a node in place; returns False, without a change, if it cannot.
Composition = Callable[[ir.Model, ir.Node], bool]


def _compose_rms_norm(model: ir.Model, node: ir.Node) -> bool:
    """Replace an RMSNormalization over the last axes, of known size, with a constant scale."""
    source, scale = ir.require_input(node), ir.const_value(node.inputs[1])
    shape = list(source.shape or ())
    axis = int(ir.get_attr(node, "axis", -1)) % max(len(shape), 1)
    if scale is None or axis < 1:
        return False
    sizes = [dim for dim in shape[axis:] if isinstance(dim, int)]
    if len(sizes) < len(shape) - axis:
        return False
    if np.broadcast_shapes(scale.shape, tuple(sizes)) != tuple(sizes):
        return False
    row = np.broadcast_to(scale.astype(np.float32), sizes).reshape(-1)
    builder = SubgraphBuilder(model, node)
    rows = source
    if len(sizes) > 1:
        if not all(isinstance(dim, int) for dim in shape[1:axis]):
            return False
        outer = [int(dim) for dim in shape[1:axis] if isinstance(dim, int)]
        rows = builder.reshape(source, [*outer, row.size], "rows")
    epsilon = float(ir.get_attr(node, "epsilon", 1e-5))
    result = append_rms_norm(builder, rows, row, np.zeros_like(row), epsilon)
    if len(sizes) > 1:
        builder.reshape(result, [int(dim) for dim in shape[1:] if isinstance(dim, int)], "shaped")
    builder.replace_node()
    return True


def _compose_lp_norm(model: ir.Model, node: ir.Node) -> bool:
    """Replace an LpNormalization by the Euclidean norm of the last axis, of known size."""
    source = ir.require_input(node)
    shape = list(source.shape or ())
    if len(shape) < 2 or not isinstance(shape[-1], int) or ir.get_attr(node, "p", 2) != 2:
        return False
    if int(ir.get_attr(node, "axis", -1)) not in (-1, len(shape) - 1):
        return False
    builder = SubgraphBuilder(model, node)
    row = np.full(shape[-1], 1 / math.sqrt(shape[-1]), np.float32)
    append_rms_norm(builder, source, row, np.zeros_like(row), 0.0)
    builder.replace_node()
    return True


def _compose_group_norm(model: ir.Model, node: ir.Node) -> bool:
    """Replace an Instance- or GroupNormalization of a map of known size, with constant factors.

    A group of channels is a row of a layer normalization; InstanceNormalization has groups of one.
    """
    source = ir.require_input(node)
    shape = list(source.shape or ())
    scale, bias = (ir.const_value(value) for value in node.inputs[1:3])
    sizes = [dim for dim in shape[1:] if isinstance(dim, int)]
    if scale is None or bias is None or len(shape) < 3 or len(sizes) < len(shape) - 1:
        return False
    channels = sizes[0]
    if scale.shape != (channels,) or bias.shape != (channels,):  # per group before opset 21
        return False
    groups = int(ir.get_attr(node, "num_groups", channels))
    builder = SubgraphBuilder(model, node)
    count = math.prod(sizes) // groups
    rows = builder.reshape(source, [groups, count], "rows")
    gamma = builder.constant(np.ones(count, np.float32), "gamma")
    beta = builder.constant(np.zeros(count, np.float32), "beta")
    attributes = {"axis": -1, "epsilon": float(ir.get_attr(node, "epsilon", 1e-5))}
    rows = builder(
        "LayerNormalization", [rows, gamma, beta], list(rows.shape or ()), "normalized", attributes
    )
    result = builder.reshape(rows, sizes, "shaped")
    for op_type, array in (("Mul", scale), ("Add", bias)):
        factors = array.astype(np.float32).reshape(channels, *[1] * (len(sizes) - 1))
        constant = builder.constant(factors, op_type.lower())
        result = builder(op_type, [result, constant], shape, f"{op_type.lower()}_channels")
    builder.replace_node()
    return True


def _compose_block_shuffle(model: ir.Model, node: ir.Node) -> bool:
    """Replace a DepthToSpace or SpaceToDepth of maps [N, C, H, W] of known sizes.

    Blocks of b x b positions are split off their axis, moved, and joined to the other one.
    """
    source = ir.require_input(node)
    shape = list(source.shape or ())
    sizes = [dim for dim in shape[1:] if isinstance(dim, int)]
    if len(shape) != 4 or len(sizes) < 3:
        return False
    (channels, height, width), block = sizes, int(ir.get_attr(node, "blocksize", 1))
    if node.op_type == "SpaceToDepth":
        rows, columns = height // block, width // block
        split, perm = [channels, rows, block, columns, block], [0, 3, 5, 1, 2, 4]
        result = [channels * block**2, rows, columns]
    else:
        maps = channels // block**2
        if ir.get_attr(node, "mode", "DCR") == "CRD":
            split, perm = [maps, block, block, height, width], [0, 1, 4, 2, 5, 3]
        else:
            split, perm = [block, block, maps, height, width], [0, 3, 4, 1, 5, 2]
        result = [maps, height * block, width * block]
    builder = SubgraphBuilder(model, node)
    blocks = builder.reshape(source, split, "blocks")
    dims: list[ir.Dim] = [shape[0], *split]
    moved = builder("Transpose", [blocks], [dims[axis] for axis in perm], "moved", {"perm": perm})
    builder.reshape(moved, result, "joined")
    builder.replace_node()
    return True


def _compose_rotary_embedding(model: ir.Model, node: ir.Node) -> bool:
    """Replace a RotaryEmbedding whose tables and positions are constant, the same in all samples.

    Every channel is multiplied by its cosine, and its partner by plus or minus the sine.
    """
    source = ir.require_input(node)
    shape, tables = list(source.shape or ()), _read_rotary_tables(node)
    is_packed = len(shape) == 3
    heads = int(ir.get_attr(node, "num_heads", 0)) if is_packed else 1
    if tables is None or len(shape) not in (3, 4) or not isinstance(shape[-1], int) or not heads:
        return False
    size = shape[-1] // heads
    cosine, sine, partner = _arrange_rotary_tables(node, tables, size)
    if is_packed:  # the heads side by side
        cosine, sine = np.tile(cosine, heads), np.tile(sine, heads)
        partner = np.concatenate([partner + size * head for head in range(heads)])
    builder = SubgraphBuilder(model, node)
    index = builder.constant(partner, "partner_indices")
    partners = builder("Gather", [source, index], shape, "partners", {"axis": -1})
    straight = builder("Mul", [source, builder.constant(cosine, "cosine")], shape, "straight")
    crossed = builder("Mul", [partners, builder.constant(sine, "sine")], shape, "crossed")
    builder("Add", [straight, crossed], shape, "rotated")
    builder.replace_node()
    return True


def _read_rotary_tables(node: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Return cosines and sines [positions, frequencies] of a RotaryEmbedding.

    None if they, or the positions, are computed at run time or differ between samples.
    """
    tables = [ir.const_value(value) for value in node.inputs[1:3]]
    positions = node.inputs[3] if len(node.inputs) > 3 else None
    indices = ir.const_value(positions)
    if any(table is None for table in tables) or (positions is not None and indices is None):
        return None
    cosine, sine = (np.asarray(table, np.float32) for table in tables)
    if indices is not None:
        if not ((indices >= 0) & (indices < len(cosine))).all():
            return None
        cosine, sine = cosine[indices], sine[indices]
    if cosine.ndim != 3 or len(cosine) != 1:
        return None
    return cosine[0], sine[0]


def _arrange_rotary_tables(
    node: ir.Node, tables: tuple[np.ndarray, np.ndarray], size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return factors of each channel of a head and of its partner, and the partner's index.

    `tables` are cosines and sines [positions, frequencies]; channels after the rotated ones have
    the factors 1 and 0.
    """
    cosine, sine = tables
    pairs = cosine.shape[1]
    first, second = np.arange(pairs), np.arange(pairs) + pairs
    if ir.get_attr(node, "interleaved", 0):
        first, second = 2 * np.arange(pairs), 2 * np.arange(pairs) + 1
    own = np.ones((len(cosine), size), np.float32)
    other = np.zeros((len(cosine), size), np.float32)
    partner = np.arange(size)
    own[:, first] = own[:, second] = cosine
    other[:, first], other[:, second] = -sine, sine
    partner[first], partner[second] = second, first
    return own, other, partner


def _compose_causal_conv(model: ir.Model, node: ir.Node) -> bool:
    """Replace a CausalConvWithState by a depthwise convolution over the state and the input."""
    source = ir.require_input(node)
    shape, weight_shape = list(source.shape or ()), ir.get_shape(node.inputs[1])
    activation = ir.get_attr(node, "activation", "none")
    if len(shape) != 3 or not weight_shape or None in weight_shape[-1:]:
        return False
    if not all(isinstance(dim, int) for dim in shape[1:]):
        return False
    if activation not in ("none", "silu", "swish"):
        return False
    builder = SubgraphBuilder(model, node)
    joined, state = _join_conv_state(builder, source, int(weight_shape[-1] or 1) - 1)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    inputs = [joined, node.inputs[1], *([] if bias is None else [bias])]
    result = builder("Conv", inputs, shape, "conv", {"group": shape[1]})
    if activation != "none":
        gate = builder("Sigmoid", [result], shape, "gate")
        builder("Mul", [result, gate], shape, "activated")
    else:
        builder("Identity", [result], shape, "result")
    builder.replace_node({1: state} if _has_state_output(node) else {})
    return True


def _has_state_output(node: ir.Node) -> bool:
    """Whether the state after the call, output 1 of `node`, is used."""
    if len(node.outputs) < 2:
        return False
    return bool(node.outputs[1].uses()) or node.outputs[1].is_graph_output()


def _join_conv_state(
    builder: SubgraphBuilder, source: ir.Value, length: int
) -> tuple[ir.Value, ir.Value]:
    """Append the Concat of the past state, or zeros, and `source`; return it and the next state.

    `length` is that of the state: the last positions of the joined tensor.
    """
    node, shape = builder.node, list(source.shape or ())
    total = length + int(ir.require_shape(source)[2] or 0)
    past = node.inputs[3] if len(node.inputs) > 3 else None
    joined_shape = [*shape[:2], total]
    if past is not None:
        joined = builder("Concat", [past, source], joined_shape, "joined", {"axis": 2})
    else:
        pads = builder.constant(np.array([0, 0, length, 0, 0, 0], np.int64), "pads")
        joined = builder("Pad", [source, pads], joined_shape, "joined")
    if not _has_state_output(node):
        return joined, joined
    return joined, builder.slice_axis(joined, 2, total - length, total, "state")


def _compose_tensor_scatter(model: ir.Model, node: ir.Node) -> bool:
    """Replace a TensorScatter to one known position, for all samples, by a Concat."""
    cache, update = ir.require_input(node), ir.require_input(node, 1)
    shape, new_shape = list(cache.shape or ()), ir.get_shape(update)
    if not shape or not new_shape:
        return False
    axis = int(ir.get_attr(node, "axis", -2)) % len(shape)
    length, new_length = shape[axis], new_shape[axis]
    if not isinstance(length, int) or new_length is None:
        return False
    start = _read_position(node)
    if start is None:
        return False
    if ir.get_attr(node, "mode", "linear") == "circular":
        start %= length
    if start + new_length > length:
        return False
    builder = SubgraphBuilder(model, node)
    parts = [update]
    if start > 0:
        parts.insert(0, builder.slice_axis(cache, axis, 0, start, "head"))
    if start + new_length < length:
        parts.append(builder.slice_axis(cache, axis, start + new_length, length, "tail"))
    if len(parts) > 1:
        builder("Concat", parts, shape, "joined", {"axis": axis})
    else:
        builder("Identity", parts, shape, "joined")
    builder.replace_node()
    return True


def _read_position(node: ir.Node) -> int | None:
    """Return where a TensorScatter writes; None if that is not constant, or differs by sample."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return 0
    positions = ir.const_value(node.inputs[2])
    if positions is None or len(np.unique(positions)) != 1:
        return None
    return int(positions.flat[0])


def is_dilated(node: ir.Node) -> bool:
    """Whether the window of `node` has a dilation other than 1."""
    return set(ir.get_attr(node, "dilations", [1])) != {1}


def _compose_dilated_average(model: ir.Model, node: ir.Node) -> bool:
    """Replace a dilated AveragePool that counts all positions of its window alike.

    It becomes a depthwise convolution with equal weights.
    """
    source = ir.require_input(node)
    channels = (ir.get_shape(source) or (None, None))[1]
    attributes = {
        name: ir.get_attr(node, name)
        for name in ("dilations", "kernel_shape", "pads", "strides")
        if name in node.attributes
    }
    if channels is None or not is_dilated(node):
        return False
    if ir.get_attr(node, "ceil_mode", 0) or ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET":
        return False
    if any(attributes.get("pads", ())) and not ir.get_attr(node, "count_include_pad", 0):
        return False
    builder = SubgraphBuilder(model, node)
    window = attributes["kernel_shape"]
    weights = np.full((channels, 1, *window), 1 / math.prod(window), np.float32)
    inputs = [source, builder.constant(weights, "weights")]
    shape = list(node.outputs[0].shape or ())
    builder("Conv", inputs, shape, "average", {**attributes, "group": channels})
    builder.replace_node()
    return True


def _compose_gelu(model: ir.Model, node: ir.Node) -> bool:
    """Replace a Gelu, FastGelu, QuickGelu or BiasGelu of com.microsoft by its formula."""
    source = ir.require_input(node)
    shape = list(source.shape or ())
    builder = SubgraphBuilder(model, node)

    def number(value: float) -> ir.Value:
        """Add a number as constant."""
        return builder.constant(np.array(value, np.float32), "constant")

    def binary(op_type: str, first: ir.Value, second: ir.Value) -> ir.Value:
        """Append an operator of two operands, of which one has the shape of the source."""
        return builder(op_type, [first, second], shape, op_type.lower())

    if len(node.inputs) > 1 and node.inputs[1] is not None:
        source = binary("Add", source, node.inputs[1])
    if node.op_type == "QuickGelu":
        factor = float(ir.get_attr(node, "alpha", 1.702))
        gate = builder("Sigmoid", [binary("Mul", source, number(factor))], shape, "gate")
        binary("Mul", source, gate)
    elif node.op_type == "FastGelu":
        cube = binary("Mul", binary("Mul", source, source), source)
        inner = binary("Add", source, binary("Mul", cube, number(0.044715)))
        scaled = binary("Mul", inner, number(math.sqrt(2 / math.pi)))
        gate = binary("Add", builder("Tanh", [scaled], shape, "gate"), number(1.0))
        binary("Mul", binary("Mul", source, number(0.5)), gate)
    else:
        scaled = binary("Div", source, number(math.sqrt(2)))
        gate = binary("Add", builder("Erf", [scaled], shape, "gate"), number(1.0))
        binary("Mul", binary("Mul", source, gate), number(0.5))
    builder.replace_node()
    return True


def _compose_sum(model: ir.Model, node: ir.Node) -> bool:
    """Replace a Sum or Mean of several tensors of one shape by sums of two."""
    inputs = [value for value in node.inputs if value is not None]
    shape = ir.get_shape(inputs[0])
    if len(inputs) < 2 or shape is None or any(ir.get_shape(v) != shape for v in inputs):
        return False
    builder, dims = SubgraphBuilder(model, node), list(inputs[0].shape or ())
    total = inputs[0]
    for value in inputs[1:]:
        total = builder("Add", [total, value], dims, "sum")
    if node.op_type == "Mean":
        factor = builder.constant(np.array(1 / len(inputs), np.float32), "factor")
        builder("Mul", [total, factor], dims, "mean")
    builder.replace_node()
    return True


_CONTRIB = "com.microsoft"

#: (domain, operator) -> its composition.
COMPOSITIONS: Mapping[tuple[str, str], Composition] = {
    ("", "Attention"): compose_attention,
    ("", "AveragePool"): _compose_dilated_average,
    ("", "CausalConvWithState"): _compose_causal_conv,
    ("", "DepthToSpace"): _compose_block_shuffle,
    ("", "GroupNormalization"): _compose_group_norm,
    ("", "InstanceNormalization"): _compose_group_norm,
    ("", "LpNormalization"): _compose_lp_norm,
    ("", "Mean"): _compose_sum,
    ("", "RMSNormalization"): _compose_rms_norm,
    ("", "RotaryEmbedding"): _compose_rotary_embedding,
    ("", "SpaceToDepth"): _compose_block_shuffle,
    ("", "Sum"): _compose_sum,
    ("", "TensorScatter"): _compose_tensor_scatter,
    (_CONTRIB, "BiasGelu"): _compose_gelu,
    (_CONTRIB, "FastGelu"): _compose_gelu,
    (_CONTRIB, "Gelu"): _compose_gelu,
    (_CONTRIB, "QuickGelu"): _compose_gelu,
}
