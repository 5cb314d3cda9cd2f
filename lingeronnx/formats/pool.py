"""Pooling: MaxPool on integers and AvgPool2dInt.

Average pooling sums the window, padded zeros included, and divides by the whole area; the training
side honours how the padding counts. Integers count as what they are above zero_point_x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from simulator.kernel import Kernel

from ..errors import ModelError
from ..graph import ir
from ..graph.attributes import Attributes, AttributeValue, get_int, get_ints, get_number
from ..plan import Affine
from ..targets.arithmetic import AverageDivisor, AveragePoolArithmetic
from . import shape_inference as rules
from ._base import (
    Attr,
    Format,
    KernelInfo,
    UnaryIntegerOp,
    make_zero_point_spec,
    qparams_from_attributes,
)
from .float_model import FloatNodeBuilder
from .shape_inference import Signature

__all__ = ["FAMILY", "MAX_POOL", "AVG_POOL2D", "GLOBAL_AVERAGE_POOL2D"]

#: How a chip divides a window's sum, in the words of `simulator.kernels.luna_average`.
_LUNA_DIVISION_RULES: dict[AverageDivisor, Literal["venus", "arcs"]] = {
    AverageDivisor.INT8_AREA: "venus",
    AverageDivisor.AREA: "arcs",
}


_WINDOW_ATTRIBUTES = (
    Attr("kernel_shape", "ints"),
    Attr("strides", "ints", None),
    Attr("pads", "ints", None),
    Attr("ceil_mode", "i", 0),
)


class MaxPool(Format):
    """Largest of a window; padding never wins."""

    name = "MaxPool"
    nonstandard_usage = (
        "on int8 below opset 12 (the vendor's older graphs), and on int16, which "
        "the standard never allows"
    )
    domain = ""
    supports_zero_points = True
    attributes = (*_WINDOW_ATTRIBUTES, Attr("dilations", "ints", None))

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel for the node's window."""
        from simulator.kernels import MaxPool as Kernel

        a, kernel = info.attributes, tuple(get_ints(info.attributes, "kernel_shape"))
        return Kernel(
            kernel,
            tuple(get_ints(a, "strides", [1] * len(kernel))),
            tuple(get_ints(a, "pads", [0] * 2 * len(kernel))),
            ceil_mode=bool(a["ceil_mode"]),
        )


MAX_POOL = MaxPool()


class AvgPool2d(UnaryIntegerOp):
    """Mean of each window of a map."""

    name = "AvgPool2dInt"
    signature = Signature(
        "x:integer", "integer", rules.infer_like_standard("AveragePool", rules.type_of_bits)
    )
    kind = AveragePoolArithmetic
    v3_name = "QAvgPool2d"
    aliases = ("QAvgPool1d",)
    supports_zero_points = True
    attributes = (
        *_WINDOW_ATTRIBUTES,
        Attr("data_bits", "i", 8),
        Attr("o_bits", "i", 8),
        Attr("scale_x", "f"),
        Attr("scale_o", "f", None),
        Attr("count_include_pad", "i", 1),
        Attr("divisor_override", "i", -1),
        make_zero_point_spec("x"),
        make_zero_point_spec("o"),
    )

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return the attributes; padding counts as elements of a window."""
        renamed = super().to_v3_attributes(attrs, inputs)
        return {
            "scale_o": renamed["scale_x"],
            **renamed,
            "count_include_pad": 1,
            "divisor_override": -1,
        }

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """Padding counts without a word."""
        renamed = super().to_v1_attributes(attrs, node)
        return {
            key: value
            for key, value in renamed.items()
            if key not in ("count_include_pad", "divisor_override")
        }

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Images, padding that counts, the whole window."""
        if node.op_type == "QAvgPool1d":
            return "of lines"
        if any(get_ints(attrs, "pads", [])) and not attrs.get("count_include_pad", 1):
            return "its padding does not count"
        divisor = get_int(attrs, "divisor_override", -1)
        return f"it divides by {divisor}" if divisor > 0 else None

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return scale_o, by default scale_x."""
        return qparams_from_attributes(
            {**attrs, "scale_o": attrs["scale_o"] or attrs["scale_x"]}, "o"
        )

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel with the platform's division."""
        from simulator.kernels import AvgPool, luna_average, subtract_zero_points

        a, kernel = info.attributes, tuple(get_ints(info.attributes, "kernel_shape"))
        area = math.prod(kernel)
        x, o = get_number(a, "scale_x"), get_number(a, "scale_o" if a["scale_o"] else "scale_x")
        divisor = info.expect_arithmetic(AveragePoolArithmetic).divisor
        if divisor is AverageDivisor.COUNTED:
            strides, pads = (get_ints(a, key, []) or None for key in ("strides", "pads"))
            return _make_training_mean(
                info, info.require_exponent("scale_o / scale_x", o / x), kernel, strides, pads
            )
        if divisor is AverageDivisor.ONE_ROUNDING:
            rule = info.rescale(o / (x * area))
        else:
            q_x, q_o = (
                info.require_exponent(key, scale) for key, scale in (("scale_x", x), ("scale_o", o))
            )
            rule = luna_average(_LUNA_DIVISION_RULES[divisor], area, q_x, q_o)
        window = (
            kernel,
            tuple(get_ints(a, "strides", [1] * len(kernel))),
            tuple(get_ints(a, "pads", [0] * 2 * len(kernel))),
        )
        return subtract_zero_points(
            AvgPool(*window, rule=rule, ceil_mode=bool(a["ceil_mode"])), info.zero_point("x")
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the average; padding counts unless the row asks the node."""
        a, told = (
            builder.attrs,
            builder.info.expect_arithmetic(AveragePoolArithmetic).divisor is AverageDivisor.COUNTED,
        )
        if told and get_int(a, "divisor_override") > 0:
            raise ModelError(
                f"{builder.info.label}: it divides by {a['divisor_override']}, which AveragePool "
                "cannot"
            )
        kept = {spec.name: a[spec.name] for spec in _WINDOW_ATTRIBUTES}
        padded = get_int(a, "count_include_pad") if told else 1
        return [builder("AveragePool", builder.float_input(), count_include_pad=padded, **kept)]


AVG_POOL2D = AvgPool2d()


class GlobalAveragePool2d(Format):
    """Mean of the whole map, in generation 3 only; it has no name that the packer knows."""

    name = "QGlobalAveragePool2d"
    signature = Signature(
        "x:integer", "integer", rules.infer_like_standard("GlobalAveragePool", rules.type_of_bits)
    )
    kind = AveragePoolArithmetic
    domain = "linger"
    attributes = (
        Attr("data_bits", "i", 8),
        Attr("o_bits", "i", 8),
        Attr("scale_x", "f"),
        Attr("scale_o", "f", None),
    )

    @property
    def first(self) -> Format:
        """An average of a window as large as the map."""
        return AVG_POOL2D

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """The window is the map."""
        size = [int(n or 0) for n in (ir.get_shape(node.inputs[0]) or ())[2:]]
        window = {"kernel_shape": size, "strides": [1, 1], "pads": [0] * 4}
        return {**AVG_POOL2D.to_v1_attributes(attrs, node), **window, "ceil_mode": 0}

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Images of known sizes."""
        shape = ir.get_shape(node.inputs[0]) or ()
        known = len(shape) == 4 and None not in shape[2:]
        return (
            AVG_POOL2D.explain_v1_obstacle(attrs, node)
            if known
            else "the size of its map is not known"
        )

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return scale_o, by default scale_x."""
        return qparams_from_attributes(
            {**attrs, "scale_o": attrs["scale_o"] or attrs["scale_x"]}, "o"
        )

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the mean of the whole map."""
        x = get_number(info.attributes, "scale_x")
        shift = info.require_exponent(
            "scale_o / scale_x", get_number(info.attributes, "scale_o", x) / x
        )
        return _make_training_mean(info, shift, None, None, None)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the mean."""
        return [builder("GlobalAveragePool", builder.float_input())]


GLOBAL_AVERAGE_POOL2D = GlobalAveragePool2d()


def _make_training_mean(
    bound: KernelInfo,
    shift: int,
    kernel: Sequence[int] | None,
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
) -> Kernel:
    """Return what the training side computes."""
    from simulator.kernels import Mean

    a = bound.attributes
    return Mean(
        kernel,
        strides,
        pads,
        shift,
        get_int(a, "o_bits", 8),
        bound.rounding,
        ceil_mode=bool(a.get("ceil_mode", 0)),
        count_include_pad=bool(a.get("count_include_pad", 1)),
        divisor=max(get_int(a, "divisor_override", -1), 0),
    )


FAMILY: tuple[Format, ...] = (AVG_POOL2D, MAX_POOL, GLOBAL_AVERAGE_POOL2D)
