"""4-bit weights in the forms that the chip computes right, with the same integers.

Behind 4-bit weights the next constant is found only where their bytes fill what is planned for
them: `narrow` in the packer's package has the rule. A kernel that does not fill it gets columns or
rows of zeros, and as many pads on that side, as long as it still takes fewer bytes than at 8 bits.
A LinearInt, whose weights of 4 bits one chip gets wrong and another not in all sizes, is a 1x1
convolution over a map of its rows. What neither helps is stored as 8 bits; the plan asks
`explain_rejected_weight_bits` before, so that such weights are not rounded to 4 bits for nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....formats import CONV1D, CONV2D, LINEAR, SQUEEZE, TRANSPOSE, UNSQUEEZE
from ....graph import ir
from ....graph.detached_nodes import make_detached_node, make_detached_value
from ....ops.layers.conv import ConvGeometry
from ... import Target
from ..._target import AppliedRewrite
from ..packer.int4_checks import INT4_BITS
from ..packer.limits.limit_tables import get_layer_limits
from ..packer.memory.constants import StoredSize, compute_stored_size
from ..packer.packer_graph import PackerStep, PackerTensor
from .node_builders import insert_pointwise_conv

__all__ = ["explain_rejected_weight_bits", "legalize_int4_weights"]

_SWAP_LAST_AXES = (0, 2, 1)
_MAX_ZERO_ROWS = 2  # columns or rows of a widened kernel


@dataclass(frozen=True)
class _ConvShape:
    """A convolution's sizes.

    Weight [O, I/group, kh, kw], source and result [N, C, H, W], pads t, l, b, r.
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
        """Read a float or an integer convolution; a line is an image of height 1."""
        g = ConvGeometry.from_node_as_2d(node)
        return cls(
            g.weight, g.group, g.pads, g.strides, g.dilations, tuple(g.input_shape), tuple(g.result)
        )

    @classmethod
    def from_linear(cls, outputs: int, inputs: int, rows: int) -> _ConvShape:
        """Return the 1x1 convolution that a layer of `rows` rows is."""
        ones, image = (1, 1), (1, inputs, 1, rows)
        return cls((outputs, inputs, *ones), 1, (0,) * 4, ones, ones, image, (1, outputs, 1, rows))

    def with_zero_padding(self, rows: int, columns: int) -> _ConvShape:
        """Return the same with so many rows and columns of zeros behind the kernel's, and pads for them."""
        outputs, channels, height, width = self.weight
        top, left, bottom, right = self.pads
        pads = (top, left, bottom + rows * self.dilations[0], right + columns * self.dilations[1])
        return replace(self, weight=(outputs, channels, height + rows, width + columns), pads=pads)

    @property
    def attributes(self) -> dict[str, object]:
        """What a node of this kernel says of it."""
        sizes = {"kernel_shape": self.weight[2:], "pads": self.pads, "strides": self.strides}
        return {
            **{key: list(value) for key, value in sizes.items()},
            "dilations": list(self.dilations),
            "group": self.group,
        }

    def compute_stored_size(self, target: Target) -> StoredSize:
        """Return the bytes of its weights at 4 bits.

        Of groups that the packer makes nodes of, those of one.
        """
        outputs, channels, *kernel = self.weight
        split = self.group not in (1, outputs)
        group, outputs = (1, outputs // self.group) if split else (self.group, outputs)
        step = PackerStep(CONV2D.name, "", (), (), {"group": group, "parameter_bits": INT4_BITS})
        return compute_stored_size(
            step, 1, PackerTensor("", (outputs, channels, *kernel), 1, True), target
        )

    def is_supported(self, target: Target) -> bool:
        """Whether the chip takes such a convolution."""
        source = make_detached_value(self.source, computed=True)
        weight = make_detached_value(self.weight, constant=np.zeros(self.weight, np.int8))
        node = make_detached_node(CONV2D.name, [source, weight], self.result, self.attributes)
        return all(limit(node, target) is None for limit in get_layer_limits(CONV2D.name))

    def find_aligned_kernel(self, target: Target) -> _ConvShape | None:
        """Return it, or the least wider one, that fills what is planned for it.

        None where none saves bytes.
        """
        own = self.compute_stored_size(target)
        zeros = itertools.product(range(_MAX_ZERO_ROWS + 1), repeat=2)
        for rows, columns in sorted(
            zeros, key=lambda more: math.prod(self.with_zero_padding(*more).weight)
        ):
            wider = self.with_zero_padding(rows, columns)
            size = wider.compute_stored_size(target)
            if size.planned_bytes == size.written_bytes < own.fetched_bytes and (
                wider == self or wider.is_supported(target)
            ):
                return wider
        return None


def explain_rejected_weight_bits(node: ir.Node, target: Target) -> str | None:
    """Return why the weights of the float `node` cannot have 4 bits on `target`.

    None where they can.
    """
    if node.op_type == "Conv":
        misfit = (
            None
            if _ConvShape.from_node(node).find_aligned_kernel(target) is not None
            else _MISALIGNED_SIZE
        )
        return misfit if INT4_BITS in target.get_weight_bits(CONV2D.name) else _NO_INT4_SUPPORT
    if ir.base_op_type(node) != "Linear" or INT4_BITS not in target.get_weight_bits(CONV2D.name):
        return _NO_INT4_SUPPORT
    if len(ir.require_input(node, 1).uses()) > 1:
        return "several layers read them"
    outputs, inputs = (int(d or 1) for d in ir.require_shape(node.inputs[1]))
    rows = math.prod(int(d or 1) for d in ir.require_shape(node.outputs[0])[1:-1])
    return (
        None
        if _is_int4_linear_correct(outputs, inputs, target)
        or _can_use_pointwise_conv(outputs, inputs, rows, target)
        else _MISALIGNED_SIZE
    )


_NO_INT4_SUPPORT = "the chip has none of 4 bits for this operator"
_MISALIGNED_SIZE = (
    "constants behind them would be misread: of 4 bits they do not fill the bytes "
    "that the packer plans"
)


def _is_int4_linear_correct(outputs: int, inputs: int, target: Target) -> bool:
    """Whether a LinearInt of 4-bit weights [O, I] comes out right."""
    step = PackerStep(LINEAR.name, "", (), (), {"parameter_bits": INT4_BITS})
    size = compute_stored_size(step, 1, PackerTensor("", (outputs, inputs), 1, True), target)
    return (
        INT4_BITS in target.get_weight_bits(LINEAR.name)
        and inputs > 1
        and size.planned_bytes == size.written_bytes
    )


def _can_use_pointwise_conv(outputs: int, inputs: int, rows: int, target: Target) -> bool:
    """Whether it does as a 1x1 convolution."""
    kernel = _ConvShape.from_linear(outputs, inputs, rows)
    return kernel.find_aligned_kernel(target) == kernel and kernel.is_supported(target)


def legalize_int4_weights(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Bring nodes of the integer `graph` with 4-bit weights into forms that come out right.

    Return what was done.
    """
    done = []
    for node in [node for node in graph.graph if ir.get_attr(node, "parameter_bits") == INT4_BITS]:
        if node.op_type == CONV1D.name:
            node = _convert_conv1d_to_conv2d(graph, node)
        what = (
            _legalize_conv(graph, node, target)
            if node.op_type == CONV2D.name
            else _legalize_linear(graph, node, target)
        )
        if what:
            done.append(AppliedRewrite(str(node.name), what, "exact"))
    if done:
        ir.remove_unused(graph)
    return done


def _legalize_conv(graph: ir.Model, node: ir.Node, target: Target) -> str:
    kernel = _ConvShape.from_node(node)
    wider = (
        kernel.find_aligned_kernel(target)
        if INT4_BITS in target.get_weight_bits(CONV2D.name)
        else None
    )
    if wider is None:
        return _store_as_int8(graph, node)
    if wider == kernel:
        return ""
    more = [(0, new - old) for new, old in zip(wider.weight, kernel.weight, strict=True)]
    weight = ir.require_input(node, 1)
    name = ir.unique_tensor_name(graph, f"{weight.name}_wider")
    node.replace_input_with(
        1, ir.add_initializer(graph, name, np.pad(ir.require_const_value(weight), more))
    )
    for key in ("kernel_shape", "pads"):
        ir.set_attr(node, key, wider.attributes[key])
    sides = ["x".join(map(str, k.weight[2:])) for k in (kernel, wider)]
    return (
        f"a kernel of {sides[0]} has zeros up to {sides[1]}: its 4-bit weights fill the bytes "
        "that are planned"
    )


def _legalize_linear(graph: ir.Model, node: ir.Node, target: Target) -> str:
    """Leave a LinearInt, write it as a convolution, or store its weights as 8 bits.

    These, of other operators.
    """
    source, weight = ir.require_input(node), ir.require_input(node, 1)
    shape = [int(d or 1) for d in ir.get_shape(source) or (0,)]
    alone = (
        node.op_type == LINEAR.name and len(weight.uses()) == 1 and ir.get_attr(node, "o_bits") == 8
    )
    if not alone or len(shape) not in (2, 3) or shape[0] != 1:
        return _store_as_int8(graph, node)
    (outputs, inputs), rows = ir.require_const_value(weight).shape, math.prod(shape[1:-1])
    if _is_int4_linear_correct(outputs, inputs, target):
        return ""
    if not _can_use_pointwise_conv(outputs, inputs, rows, target):
        return _store_as_int8(graph, node)
    arrays = [ir.require_const_value(value) for value in node.inputs[1:] if value is not None]
    constants = dict(
        zip(("weight", "bias"), [arrays[0][:, :, None, None], *arrays[1:]], strict=False)
    )
    numbers = {
        key: ir.get_attr(node, key) for key in ("scale_x", "scale_w", "scale_o", "parameter_bits")
    }
    turned = rows > 1
    value = _insert_transpose(graph, node, source, [1, inputs, rows]) if turned else source
    result = [1, outputs, rows] if turned else [*shape[:-1], outputs]
    made = insert_pointwise_conv(
        graph,
        value,
        [1, inputs, 1, rows],
        constants=constants,
        scales=numbers,
        output_shape=result,
        name=f"{node.outputs[0].name}_as_image" if turned else str(node.outputs[0].name),
        before=node,
        target=target,
    )
    if turned:
        made = _insert_transpose(graph, node, made, [1, rows, outputs])
    last = made.producer()
    assert last is not None
    graph.graph.remove(last)
    ir.replace_nodes(graph, [node], [last])
    return (
        "a 1x1 convolution over a map of its rows: with 4-bit weights a LinearInt of this size "
        "is not right"
    )


def _insert_transpose(
    graph: ir.Model, node: ir.Node, value: ir.Value, shape: Sequence[int]
) -> ir.Value:
    """Insert a Transpose of rows and columns before `node`; return its output, of sizes `shape`."""
    name = ir.unique_tensor_name(graph, f"{value.name}_turned")
    turn = ir.make_node(
        TRANSPOSE.name,
        [value],
        {"perm": list(_SWAP_LAST_AXES)},
        name=f"{TRANSPOSE.name}_{name}",
        output=name,
        like=value,
    )
    turn.outputs[0].shape = ir.make_shape(list(shape))
    graph.graph.insert_before(node, turn)
    return turn.outputs[0]


def _store_as_int8(graph: ir.Model, node: ir.Node) -> str:
    """Say 8 bits of a node's weights, whose integers stay; a copy of what other nodes read at 4."""
    ir.set_attr(node, "parameter_bits", 8)
    weight = ir.require_input(node, 1)
    array = ir.const_value(weight)
    if len(weight.uses()) > 1 and array is not None:
        copy = ir.add_initializer(graph, ir.unique_tensor_name(graph, f"{weight.name}_copy"), array)
        node.replace_input_with(1, copy)
    return (
        "its 4-bit weights are stored as 8 bits, of the same values: as 4 bits the chip would "
        "not compute them right"
    )


def _convert_conv1d_to_conv2d(graph: ir.Model, node: ir.Node) -> ir.Node:
    """Write a Conv1dInt, whose 4-bit weights do not pack, as a Conv2dInt of height 1; return it."""
    g, base = ConvGeometry.from_node_as_2d(node), str(node.outputs[0].name)
    source, weight, result = ir.require_input(node), ir.require_input(node, 1), node.outputs[0]
    up = ir.make_node(
        UNSQUEEZE.name,
        [source],
        {"axes": [2]},
        name=f"{node.name}_image",
        output=ir.unique_tensor_name(graph, f"{base}_image"),
        like=source,
    )
    up.outputs[0].shape = ir.make_shape(list(g.input_shape))
    held = ir.add_initializer(
        graph,
        ir.unique_tensor_name(graph, f"{weight.name}_image"),
        ir.require_const_value(weight)[:, :, None],
    )
    attributes = {name: ir.get_attr(node, name) for name in node.attributes}
    attributes |= {"kernel_shape": list(g.kernel), "pads": list(g.pads), "strides": list(g.strides)}
    attributes["dilations"] = list(g.dilations)
    made = ir.make_node(
        CONV2D.name,
        [up.outputs[0], held, *node.inputs[2:]],
        attributes,
        name=str(node.name),
        output=ir.unique_tensor_name(graph, f"{base}_rows"),
        domain=node.domain,
        like=result,
    )
    made.outputs[0].shape = ir.make_shape(list(g.result))
    down = ir.make_node(
        SQUEEZE.name,
        [made.outputs[0]],
        {"axes": [2]},
        name=f"{node.name}_line",
        output="",
        like=result,
    )
    ir.replace_nodes(graph, [node], [up, made, down])
    return made
