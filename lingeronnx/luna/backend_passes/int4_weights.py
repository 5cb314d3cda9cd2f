"""Rewrite layers with 4-bit weights into forms that the chip computes correctly.

The integers stay the same. The executor finds the constant after 4-bit weights only if these fill
the bytes planned for them; `packer.int4_checks` has the rule. A kernel that does not fill them is
extended by rows or columns of zeros, with as many pads, as long as it takes fewer bytes than at 8
bits. A LinearInt, whose 4-bit weights are wrong on one chip and for some sizes on another, becomes
a 1x1 convolution over a map of its rows. Other weights are stored with 8 bits. The plan calls
`explain_rejected_weight_bits` first, so that such weights are not rounded to 4 bits for nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...ir import ir
from ...ir.detached_nodes import make_detached_node, make_detached_value
from ...operators.conv_geometry import ConvGeometry
from ...operators.integer_ops import CONV1D, CONV2D, LINEAR, SQUEEZE, TRANSPOSE, UNSQUEEZE
from ...targets import Target
from ...targets._target import AppliedRewrite
from ..packer.int4_checks import INT4_BITS
from ..packer.limits.limit_tables import get_layer_limits
from ..packer.memory.constants import StoredSize, compute_stored_size
from ..packer.packer_graph import PackerStep, PackerTensor
from .node_builders import get_dims, insert_pointwise_conv, replace_by_producer

__all__ = ["explain_rejected_weight_bits", "legalize_int4_weights"]

_SWAP_LAST_AXES = (0, 2, 1)
_MAX_ZERO_ROWS = 2  # largest extension of a kernel, in rows and in columns


@dataclass(frozen=True)
class _ConvShape:
    """Geometry of a convolution.

    Attributes
    ----------
    weight
        [O, I/groups, kh, kw].
    pads
        Top, left, bottom, right.
    source, result
        Shapes of input and output, [N, C, H, W].
    """

    weight: tuple[int, ...]
    group: int
    pads: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    source: tuple[ir.Dim, ...]
    result: tuple[ir.Dim, ...]

    @classmethod
    def from_node(cls, node: ir.Node) -> _ConvShape:
        """Read the geometry of a float or integer convolution.

        A 1-D one becomes an image of height 1.
        """
        geometry = ConvGeometry.from_node_as_2d(node)
        return cls(
            geometry.weight,
            geometry.group,
            geometry.pads,
            geometry.strides,
            geometry.dilations,
            tuple(geometry.input_shape),
            tuple(geometry.result),
        )

    @classmethod
    def from_linear(cls, outputs: int, inputs: int, rows: int) -> _ConvShape:
        """Return the 1x1 convolution that replaces a fully connected layer with `rows` rows.

        Its image is [1, inputs, 1, rows].
        """
        unit, image = (1, 1), (1, inputs, 1, rows)
        return cls((outputs, inputs, *unit), 1, (0,) * 4, unit, unit, image, (1, outputs, 1, rows))

    def with_zero_padding(self, rows: int, columns: int) -> _ConvShape:
        """Extend the kernel by rows and columns of zeros at the bottom and right.

        The pads there grow by the dilation for each, so that the result stays the same. Returns a
        copy.
        """
        outputs, channels, height, width = self.weight
        pad_top, pad_left, pad_bottom, pad_right = self.pads
        pad_bottom += rows * self.dilations[0]
        pad_right += columns * self.dilations[1]
        return replace(
            self,
            weight=(outputs, channels, height + rows, width + columns),
            pads=(pad_top, pad_left, pad_bottom, pad_right),
        )

    @property
    def attributes(self) -> dict[str, object]:
        """The attributes of a convolution node of this geometry.

        The kernel size is the weight's.
        """
        return {
            "kernel_shape": list(self.weight[2:]),
            "pads": list(self.pads),
            "strides": list(self.strides),
            "dilations": list(self.dilations),
            "group": self.group,
        }

    def compute_stored_size(self, target: Target) -> StoredSize:
        """Return the stored size of the weights at 4 bits, in bytes.

        If the packer splits the groups into nodes (not depthwise), this is the size for one group.
        """
        outputs, channels, *kernel = self.weight
        group = self.group
        if group not in (1, outputs):
            group, outputs = 1, outputs // self.group
        step = PackerStep(CONV2D.name, "", (), (), {"group": group, "parameter_bits": INT4_BITS})
        weight = PackerTensor("", (outputs, channels, *kernel), 1, True)
        return compute_stored_size(step, 1, weight, target)

    def is_supported(self, target: Target) -> bool:
        """Whether this convolution violates none of the chip's limits for a Conv2dInt layer.

        Limits that tiling satisfies do not count. The weights are taken as 8-bit zeros.
        """
        source = make_detached_value(self.source, computed=True)
        weight = make_detached_value(self.weight, constant=np.zeros(self.weight, np.int8))
        node = make_detached_node(CONV2D.name, [source, weight], self.result, self.attributes)
        return all(limit(node, target) is None for limit in get_layer_limits(CONV2D.name))

    def find_aligned_kernel(self, target: Target) -> _ConvShape | None:
        """Return this convolution or its smallest extension whose 4-bit weights fill the plan.

        They do if as many bytes are planned as written, and fewer than 8-bit weights of this
        convolution take. Extensions have up to `_MAX_ZERO_ROWS` rows and columns of zeros and must
        be supported. None if there is none.
        """
        max_bytes = self.compute_stored_size(target).fetched_bytes
        extensions = [
            self.with_zero_padding(rows, columns)
            for rows, columns in itertools.product(range(_MAX_ZERO_ROWS + 1), repeat=2)
        ]
        for candidate in sorted(extensions, key=lambda shape: math.prod(shape.weight)):
            size = candidate.compute_stored_size(target)
            if not size.planned_bytes == size.written_bytes < max_bytes:
                continue
            if candidate == self or candidate.is_supported(target):
                return candidate
        return None


def explain_rejected_weight_bits(node: ir.Node, target: Target) -> str | None:
    """Explain why the weights of a float node cannot have 4 bits; None if they can.

    They can for Conv with a kernel that fills the planned bytes, and for Linear where it or its 1x1
    convolution is correct, on targets with 4-bit convolutions.
    """
    if INT4_BITS not in target.get_weight_bits(CONV2D.name):
        return _NO_INT4_SUPPORT
    if node.op_type == "Conv":
        is_aligned = _ConvShape.from_node(node).find_aligned_kernel(target) is not None
        return None if is_aligned else _MISALIGNED_SIZE
    if ir.base_op_type(node) != "Linear":
        return _NO_INT4_SUPPORT
    return _explain_rejected_linear(node, target)


def _explain_rejected_linear(node: ir.Node, target: Target) -> str | None:
    """Explain why the weights of a fully connected layer cannot have 4 bits; None if they can.

    They can if the layer or the 1x1 convolution that may replace it is computed correctly, and no
    other layer shares them.
    """
    if len(ir.require_input(node, 1).uses()) > 1:
        return "several layers share them"
    outputs, inputs = (int(dim or 1) for dim in ir.require_shape(node.inputs[1]))
    if _is_int4_linear_correct(outputs, inputs, target):
        return None
    rows = math.prod(get_dims(node.outputs[0])[1:-1])
    return None if _can_use_pointwise_conv(outputs, inputs, rows, target) else _MISALIGNED_SIZE


_NO_INT4_SUPPORT = "the chip does not support 4-bit weights for this operator"
_MISALIGNED_SIZE = (
    "with 4 bits they do not fill the bytes that the packer plans, so that the constants after "
    "them would be misread"
)


def _is_int4_linear_correct(outputs: int, inputs: int, target: Target) -> bool:
    """Whether the chip computes a LinearInt with 4-bit weights [outputs, inputs] correctly.

    It does if it supports them, `inputs` is not 1, and the packer writes as many bytes as it plans.
    """
    if INT4_BITS not in target.get_weight_bits(LINEAR.name) or inputs == 1:
        return False
    step = PackerStep(LINEAR.name, "", (), (), {"parameter_bits": INT4_BITS})
    size = compute_stored_size(step, 1, PackerTensor("", (outputs, inputs), 1, True), target)
    return size.planned_bytes == size.written_bytes


def _can_use_pointwise_conv(outputs: int, inputs: int, rows: int, target: Target) -> bool:
    """Whether a 1x1 convolution with 4-bit weights can replace a LinearInt of `rows` rows.

    Its weights must fill the planned bytes without extension, and the chip must support it.
    """
    kernel = _ConvShape.from_linear(outputs, inputs, rows)
    return kernel.find_aligned_kernel(target) == kernel and kernel.is_supported(target)


def legalize_int4_weights(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Rewrite nodes with 4-bit weights, in place, so that the chip computes them correctly.

    A Conv1dInt becomes a Conv2dInt first. Kernels are extended by zeros, LinearInt converted to 1x1
    convolutions, other weights stored with 8 bits. Returns one description per changed node.
    """
    rewrites = []
    for node in list(graph.graph):
        if ir.get_attr(node, "parameter_bits") != INT4_BITS:
            continue
        if node.op_type == CONV1D.name:
            node = _convert_conv1d_to_conv2d(graph, node)
        legalize = _legalize_conv if node.op_type == CONV2D.name else _legalize_linear
        description = legalize(graph, node, target)
        if description:
            rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    if rewrites:
        ir.remove_unused(graph)
    return rewrites


def _legalize_conv(graph: ir.Model, node: ir.Node, target: Target) -> str:
    """Extend the kernel of a 4-bit Conv2dInt by zeros, or store its weights with 8 bits, in place.

    The latter if the chip has no 4-bit convolutions or no suitable kernel. Returns the description
    of the change, "" if the convolution stays as it is.
    """
    kernel = _ConvShape.from_node(node)
    aligned = None
    if INT4_BITS in target.get_weight_bits(CONV2D.name):
        aligned = kernel.find_aligned_kernel(target)
    if aligned is None:
        return _store_as_int8(graph, node)
    if aligned == kernel:
        return ""
    zeros = [(0, new - old) for new, old in zip(aligned.weight, kernel.weight, strict=True)]
    weight = ir.require_input(node, 1)
    name = ir.unique_tensor_name(graph, f"{weight.name}_wider")
    padded = np.pad(ir.require_const_value(weight), zeros)
    node.replace_input_with(1, ir.add_initializer(graph, name, padded))
    for key in ("kernel_shape", "pads"):
        ir.set_attr(node, key, aligned.attributes[key])
    old_size, new_size = ("x".join(map(str, shape.weight[2:])) for shape in (kernel, aligned))
    return (
        f"kernel of {old_size} padded with zeros to {new_size}, so that its 4-bit weights fill the "
        "planned bytes"
    )


def _legalize_linear(graph: ir.Model, node: ir.Node, target: Target) -> str:
    """Convert a 4-bit LinearInt to a 1x1 convolution, or store a node's weights with 8 bits.

    In place. A convertible LinearInt of a correct size stays as it is (returns ""); one of another
    size is converted if the convolution is correct. All other nodes get 8 bits. Returns the
    description of the change.
    """
    if not _is_convertible_linear(node):
        return _store_as_int8(graph, node)
    weight = ir.require_const_value(ir.require_input(node, 1))
    outputs, inputs = weight.shape
    rows = math.prod(get_dims(node.inputs[0])[1:-1])
    if _is_int4_linear_correct(outputs, inputs, target):
        return ""
    if not _can_use_pointwise_conv(outputs, inputs, rows, target):
        return _store_as_int8(graph, node)
    _replace_by_pointwise_conv(graph, node, outputs, inputs, rows, target)
    return (
        "converted to a 1x1 convolution over a map of its rows: a LinearInt of this size is wrong "
        "with 4-bit weights"
    )


def _is_convertible_linear(node: ir.Node) -> bool:
    """Whether `node` is a LinearInt with 8 output bits whose weight no other node uses.

    Its input must have two or three axes, the first of size 1.
    """
    if node.op_type != LINEAR.name or ir.get_attr(node, "o_bits") != 8:
        return False
    shape = get_dims(node.inputs[0])
    if len(ir.require_input(node, 1).uses()) != 1:
        return False
    return len(shape) in (2, 3) and shape[0] == 1


def _replace_by_pointwise_conv(
    graph: ir.Model, node: ir.Node, outputs: int, inputs: int, rows: int, target: Target
) -> None:
    """Replace LinearInt `node` by a 1x1 convolution over the image [1, inputs, 1, rows], in place.

    Several rows are transposed before and after it.
    """
    arrays = [ir.require_const_value(value) for value in node.inputs[1:] if value is not None]
    arrays[0] = arrays[0][:, :, None, None]
    attribute_names = ("scale_x", "scale_w", "scale_o", "parameter_bits")
    has_rows = rows > 1
    value, name = ir.require_input(node), str(node.outputs[0].name)
    output_shape = [*get_dims(value)[:-1], outputs]
    if has_rows:
        value = _insert_transpose(graph, node, value, [1, inputs, rows])
        output_shape = [1, outputs, rows]
    result = insert_pointwise_conv(
        graph,
        value,
        [1, inputs, 1, rows],
        constants=dict(zip(("weight", "bias"), arrays, strict=False)),
        scales={key: ir.get_attr(node, key) for key in attribute_names},
        output_shape=output_shape,
        name=f"{name}_as_image" if has_rows else name,
        before=node,
        target=target,
    )
    if has_rows:
        result = _insert_transpose(graph, node, result, [1, rows, outputs])
    replace_by_producer(graph, [node], result)


def _insert_transpose(
    graph: ir.Model, node: ir.Node, value: ir.Value, shape: Sequence[int]
) -> ir.Value:
    """Insert a Transpose that swaps the last two of three axes of `value` before `node`.

    Returns its output, which has `shape`.
    """
    name = ir.unique_tensor_name(graph, f"{value.name}_turned")
    transpose = ir.make_node(
        TRANSPOSE.name,
        [value],
        {"perm": list(_SWAP_LAST_AXES)},
        name=f"{TRANSPOSE.name}_{name}",
        output=name,
        like=value,
    )
    transpose.outputs[0].shape = ir.Shape(list(shape))
    graph.graph.insert_before(node, transpose)
    return transpose.outputs[0]


def _store_as_int8(graph: ir.Model, node: ir.Node) -> str:
    """Declare the weights of `node` as 8-bit, with equal values, in place.

    A weight that other nodes use too is copied first. Returns the description of the change.
    """
    ir.set_attr(node, "parameter_bits", 8)
    weight = ir.require_input(node, 1)
    array = ir.const_value(weight)
    if len(weight.uses()) > 1 and array is not None:
        copy = ir.add_initializer(graph, ir.unique_tensor_name(graph, f"{weight.name}_copy"), array)
        node.replace_input_with(1, copy)
    return (
        "4-bit weights stored with 8 bits and equal values: the chip does not compute them "
        "correctly with 4 bits"
    )


def _convert_conv1d_to_conv2d(graph: ir.Model, node: ir.Node) -> ir.Node:
    """Replace a Conv1dInt, whose 4-bit weights do not pack, by a Conv2dInt of height 1, in place.

    Inserts Unsqueeze and Squeeze of axis 2 around it; returns the new convolution.
    """
    geometry, base_name = ConvGeometry.from_node_as_2d(node), str(node.outputs[0].name)
    source, weight, result = ir.require_input(node), ir.require_input(node, 1), node.outputs[0]
    unsqueeze = ir.make_node(
        UNSQUEEZE.name,
        [source],
        {"axes": [2]},
        name=f"{node.name}_image",
        output=ir.unique_tensor_name(graph, f"{base_name}_image"),
        like=source,
    )
    unsqueeze.outputs[0].shape = ir.Shape(list(geometry.input_shape))
    weight_2d = ir.add_initializer(
        graph,
        ir.unique_tensor_name(graph, f"{weight.name}_image"),
        ir.require_const_value(weight)[:, :, None],
    )
    attributes = {name: ir.get_attr(node, name) for name in node.attributes}
    attributes |= {
        "kernel_shape": list(geometry.kernel),
        "pads": list(geometry.pads),
        "strides": list(geometry.strides),
    }
    attributes["dilations"] = list(geometry.dilations)
    convolution = ir.make_node(
        CONV2D.name,
        [unsqueeze.outputs[0], weight_2d, *node.inputs[2:]],
        attributes,
        name=str(node.name),
        output=ir.unique_tensor_name(graph, f"{base_name}_rows"),
        domain=node.domain,
        like=result,
    )
    convolution.outputs[0].shape = ir.Shape(list(geometry.result))
    squeeze = ir.make_node(
        SQUEEZE.name,
        [convolution.outputs[0]],
        {"axes": [2]},
        name=f"{node.name}_line",
        output="",
        like=result,
    )
    ir.replace_nodes(graph, [node], [unsqueeze, convolution, squeeze])
    return convolution
