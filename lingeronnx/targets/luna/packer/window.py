"""The sizes of a node that slides a window over a map, as the packer counts them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....graph import ir

__all__ = [
    "PackerWindow",
    "format_shape",
    "format_sides",
    "is_float_node",
    "round_up",
    "static_shape",
]


def format_sides(sides: Sequence[int]) -> str:
    """Return sides as people write them: 3x3."""
    return "x".join(map(str, sides))


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as people write it: [1,8,4,4]."""
    return "[" + ",".join(map(str, shape)) + "]"


def round_up(size: int, multiple: int) -> int:
    """Return `size` rounded up to a multiple."""
    return -(-size // multiple) * multiple


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape with 1 for a batch that is not known.

    None where anything else is not known.
    """
    shape = ir.get_shape(value)
    if shape is None or any(d is None for d in shape[1:]):
        return None
    return tuple(int(d or 1) for d in shape)


def is_float_node(node: ir.Node) -> bool:
    """Whether the node is the float one: the integer form of it may be written another way."""
    kind = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    return kind is not None and kind.name in ("FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16")


@dataclass(frozen=True)
class PackerWindow:
    """A convolution or a pool over a map [1, channels, height, width]; a line is a map of height 1.

    channels, outputs : of one group, as groups become nodes of their own, and of all in a depthwise
    one pads : top, left, bottom, right
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
        """Read the sizes of a float or an integer node; None where they are not known."""
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
        # One window has no next: the strides of a float node say nothing, an integer node's are
        # what was written.
        return (
            window.with_unit_strides()
            if weight is None and is_float_node(node) and window.is_single_position
            else window
        )

    @property
    def is_single_position(self) -> bool:
        """Whether the window has one position."""
        return all(
            size + self.pads[i] + self.pads[i + 2] == self.kernel[i]
            for i, size in enumerate((self.height, self.width))
        )

    @property
    def area(self) -> int:
        """Elements of the window."""
        return math.prod(self.kernel)

    def with_unit_strides(self) -> PackerWindow:
        """Return the window with strides 1."""
        return PackerWindow(**{**vars(self), "strides": (1, 1)})

    def get_line_buffer_bytes(self, align: int, width_align: int = 8, swapped: bool = False) -> int:
        """Return the bytes that one row of results reads, channels and width rounded up.

        Along the other axis.
        """
        along, over = (0, 1) if swapped else (1, 0)
        line = (self.height, self.width)[along]
        return (
            round_up(self.channels, align)
            * round_up(line, width_align * self.strides[along])
            * self.kernel[over]
        )

    def get_map_bytes(self) -> int:
        """Return the bytes of the whole map, channels rounded up to 8, the width to 8 times the stride."""
        return round_up(self.channels, 8) * self.height * round_up(self.width, 8 * self.strides[1])


def _get_int_list(node: ir.Node, name: str, count: int, default: int) -> list[int]:
    values: Sequence[int] = ir.get_attr(node, name) or []
    return list(values) if len(values) == count else [default] * count


def _get_group_sizes(
    node: ir.Node, channels: int, weight: tuple[int, ...] | None
) -> tuple[int, int, int]:
    """Return group, and the channels and outputs of one node that the packer makes of it."""
    group = int(ir.get_attr(node, "group") or 1)
    if weight is None:
        return 1, channels, channels
    if node.op_type.startswith("ConvTranspose"):
        return group, channels, weight[1]
    if group == 1 or (group == weight[0] and weight[1] == 1):
        return group, channels, weight[0]
    return group, weight[1], weight[0] // group
