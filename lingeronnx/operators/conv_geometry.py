"""Shapes and window of a convolution, of a float node or of an integer one."""

from __future__ import annotations

from ..ir import ir

__all__ = ["ConvGeometry", "has_known_shapes"]


class ConvGeometry:
    """Shapes and window attributes of a float or integer convolution node."""

    def __init__(self, node: ir.Node) -> None:
        """Read shapes and window of a float or integer convolution `node`.

        Missing attributes get defaults. `weight`, `input_shape` and `result` are shapes, `inputs`
        and `outputs` numbers of channels (`outputs` is the first weight axis); `pads` are the
        begins, then the ends.
        """
        weight = ir.require_shape(node.inputs[1])
        self.weight = tuple(int(d or 0) for d in weight)
        self.kernel = tuple(ir.get_attr(node, "kernel_shape") or self.weight[2:])
        rank = len(self.kernel)
        self.strides = tuple(
            ir.get_attr(node, "strides") or ir.get_attr(node, "stride") or [1] * rank
        )
        self.pads = tuple(ir.get_attr(node, "pads") or [0] * 2 * rank)
        self.dilations = tuple(ir.get_attr(node, "dilations") or [1] * rank)
        self.group = int(ir.get_attr(node, "group") or 1)
        self.outputs = self.weight[0]
        self.inputs = self.weight[1] * self.group
        self.input_shape = ir.get_shape(node.inputs[0]) or ()
        self.result = ir.get_shape(node.outputs[0]) or ()

    @classmethod
    def from_node_as_2d(cls, node: ir.Node) -> ConvGeometry:
        """Return the geometry of `node`; a 1-D one gets a height axis of size 1 before the width.

        The inserted axis has kernel, stride and dilation 1 and no pads. A 2-D geometry is
        unchanged.
        """
        g = cls(node)
        if len(g.kernel) == 1:
            g.weight, g.kernel = (*g.weight[:2], 1, *g.weight[2:]), (1, *g.kernel)
            g.strides, g.dilations = (1, *g.strides), (1, *g.dilations)
            g.pads = (0, g.pads[0], 0, g.pads[1])
            g.input_shape = (*g.input_shape[:2], 1, *g.input_shape[2:])
            g.result = (*g.result[:2], 1, *g.result[2:])
        return g

    @property
    def is_depthwise(self) -> bool:
        """Whether there are as many groups as input channels, and more than one."""
        return self.group > 1 and self.group == self.inputs


def has_known_shapes(geometry: ConvGeometry) -> bool:
    """Whether input and output have rank kernel rank + 2 and known dimensions after the batch."""
    rank = len(geometry.kernel) + 2
    if len(geometry.input_shape) != rank or len(geometry.result) != rank:
        return False
    return None not in (*geometry.input_shape[1:], *geometry.result[1:])
