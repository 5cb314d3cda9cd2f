"""Sizes of a convolution or pooling node as the packer computes them, and rounding of sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...common.arithmetic import round_up
from ...ir import ir

__all__ = [
    "PackerWindow",
    "format_shape",
    "format_sides",
    "is_float_node",
    "static_shape",
]


def format_sides(sides: Sequence[int]) -> str:
    """Join the sizes of a kernel or map to a text such as "3x3"."""
    return "x".join(map(str, sides))


def format_shape(shape: Sequence[int]) -> str:
    """Format a shape as text such as "[1,8,4,4]"."""
    return "[" + ",".join(map(str, shape)) + "]"


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of `value` with an unknown batch size replaced by 1.

    Returns None if the shape or any other dimension is unknown.
    """
    shape = ir.get_shape(value)
    if shape is None or None in shape[1:]:
        return None
    return tuple(size or 1 for size in shape)


def is_float_node(node: ir.Node) -> bool:
    """Whether input 0 of `node` is known to be floating-point; False if its type is unknown.

    The integer form of a float node may be written in another way.
    """
    dtype = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    return dtype is not None and dtype.name in ("FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16")


@dataclass(frozen=True)
class PackerWindow:
    """A convolution or a pool over a map [1, channels, height, width]; a 1-D map has height 1.

    channels, outputs : of one group, because each group becomes a node; of all groups if depthwise.
    pads : top, left, bottom, right.
    """

    channels: int
    outputs: int
    height: int
    width: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    group: int
    depthwise: bool

    @classmethod
    def from_node(cls, node: ir.Node) -> PackerWindow | None:
        """Read the sizes of a convolution or pool, float or integer; None if they are not static.

        Also None unless the kernel is 1-D or 2-D and matches the rank of the input. A 1-D window
        becomes one of height 1; a float pool with a single position gets strides of 1.
        """
        source = static_shape(node.inputs[0])
        weight = static_shape(node.inputs[1]) if len(node.inputs) > 1 else None
        kernel = list(ir.get_attr(node, "kernel_shape") or (weight or ())[2:])
        if source is None or len(kernel) not in (1, 2) or len(source) != len(kernel) + 2:
            return None
        rank = len(kernel)
        strides = _get_int_list(node, "strides", rank, 1)
        pads = _get_int_list(node, "pads", 2 * rank, 0)
        dilations = _get_int_list(node, "dilations", rank, 1)
        if rank == 1:
            source, kernel = (*source[:2], 1, source[2]), [1, *kernel]
            strides, dilations, pads = [1, *strides], [1, *dilations], [0, pads[0], 0, pads[1]]
        group, channels, outputs = _get_group_sizes(node, source[1], weight)
        depthwise = group > 1 and weight is not None and weight[1] == 1 and group == weight[0]
        window = cls(
            channels=channels,
            outputs=outputs,
            height=source[2],
            width=source[3],
            kernel=(kernel[0], kernel[1]),
            strides=(strides[0], strides[1]),
            pads=(pads[0], pads[1], pads[2], pads[3]),
            dilations=(dilations[0], dilations[1]),
            group=group,
            depthwise=depthwise,
        )
        # A window with a single position has no stride: that of a float pool is meaningless, while
        # that of an integer node is what the file contains.
        if weight is None and is_float_node(node) and window.is_single_position:
            return window.with_unit_strides()
        return window

    @property
    def is_single_position(self) -> bool:
        """Whether the kernel is as large as the padded map in both directions."""
        return all(
            size + self.pads[i] + self.pads[i + 2] == self.kernel[i]
            for i, size in enumerate((self.height, self.width))
        )

    @property
    def area(self) -> int:
        """The number of elements of the kernel, height times width."""
        return math.prod(self.kernel)

    def with_unit_strides(self) -> PackerWindow:
        """Return a copy with strides of 1 in both directions."""
        return PackerWindow(**{**vars(self), "strides": (1, 1)})

    def get_line_buffer_bytes(self, align: int, width_align: int = 8, swapped: bool = False) -> int:
        """Return the input bytes that one output row needs: channels x row length x kernel rows.

        Channels are rounded up to `align`, the row length to `width_align` times the stride. With
        `swapped`, rows run along the height and kernel columns count.
        """
        row_axis, kernel_axis = (0, 1) if swapped else (1, 0)
        row_length = (self.height, self.width)[row_axis]
        return (
            round_up(self.channels, align)
            * round_up(row_length, width_align * self.strides[row_axis])
            * self.kernel[kernel_axis]
        )

    def get_map_bytes(self) -> int:
        """Return the bytes of the input map with channels rounded up to 8.

        The width is rounded up to 8 times the stride.
        """
        return round_up(self.channels, 8) * self.height * round_up(self.width, 8 * self.strides[1])


def _get_int_list(node: ir.Node, name: str, count: int, default: int) -> list[int]:
    """Return attribute `name` as a list of `count` integers.

    `count` times `default` if the attribute is absent or has another length.
    """
    values: Sequence[int] = ir.get_attr(node, name) or []
    return list(values) if len(values) == count else [default] * count


def _get_group_sizes(
    node: ir.Node, channels: int, weight: tuple[int, ...] | None
) -> tuple[int, int, int]:
    """Return (groups, input channels, outputs) of one node that the packer makes of `node`.

    For a grouped convolution the sizes are those of one group, for a depthwise one those of all
    groups; `channels` are those of the input. Without a weight (a pool): (1, channels, channels).
    """
    group = int(ir.get_attr(node, "group") or 1)
    if weight is None:
        return 1, channels, channels
    if node.op_type.startswith("ConvTranspose"):
        return group, channels, weight[1]
    if group == 1 or (group == weight[0] and weight[1] == 1):
        return group, channels, weight[0]
    return group, weight[1], weight[0] // group
