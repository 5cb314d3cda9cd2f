"""Pooling: MaxPool on integers, AvgPool2dInt and QGlobalAveragePool2d.

Average pooling sums the window, including padding, and divides by the area of the kernel; the
training software respects count_include_pad. zero_point_x is subtracted from the inputs first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from simulator.kernel import Kernel

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import Attributes, AttributeValue, get_int, get_ints, get_number
from ...ir.plan import Affine
from ...targets.arithmetic import AverageDivisor, AveragePoolArithmetic
from .. import shape_inference as rules
from .._integer_op import (
    Attr,
    Format,
    UnaryIntegerOp,
    make_zero_point_spec,
    qparams_from_attributes,
)
from .._kernel_info import KernelInfo
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

__all__ = ["FAMILY", "MAX_POOL", "AVG_POOL2D", "GLOBAL_AVERAGE_POOL2D"]

#: Division rule of a chip, as a name of `simulator.kernels.luna_average`.
_LUNA_DIVISION_RULES: dict[AverageDivisor, Literal["venus", "arcs", "scaled"]] = {
    AverageDivisor.INT8_AREA: "venus",
    AverageDivisor.AREA: "arcs",
    AverageDivisor.SCALED_AREA: "scaled",
}


_WINDOW_ATTRIBUTES = (
    Attr("kernel_shape", "ints"),
    Attr("strides", "ints", None),
    Attr("pads", "ints", None),
    Attr("ceil_mode", "i", 0),
)


class MaxPool(Format):
    """Maximum of each window; padding is never the maximum."""

    name = "MaxPool"
    needs_single_sample = True
    nonstandard_usage = (
        "on int8 below opset 12 (the vendor's older graphs), and on int16, which "
        "the standard never allows"
    )
    domain = ""
    supports_zero_points = True
    attributes = (*_WINDOW_ATTRIBUTES, Attr("dilations", "ints", None))

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the simulator's MaxPool kernel with window and `ceil_mode` of the node.

        Strides default to 1, pads to 0.
        """
        from simulator.kernels import MaxPool as Kernel

        ceil_mode = bool(info.attributes["ceil_mode"])
        return Kernel(*_get_window(info.attributes), ceil_mode=ceil_mode)


MAX_POOL = MaxPool()


class AvgPool2d(UnaryIntegerOp):
    """Mean of each window of an image."""

    name = "AvgPool2dInt"
    needs_single_sample = True
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
        """Return the attributes for dialect v3, which requires scale_o and some others.

        An absent scale_o is scale_x; count_include_pad becomes 1 and divisor_override -1 (none).
        """
        renamed = super().to_v3_attributes(attrs, inputs)
        return {
            "scale_o": renamed["scale_x"],
            **renamed,
            "count_include_pad": 1,
            "divisor_override": -1,
        }

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes for dialect v1, without count_include_pad and divisor_override.

        `zero_point` is dropped as well.
        """
        renamed = super().to_v1_attributes(attrs, node)
        renamed.pop("count_include_pad", None)
        renamed.pop("divisor_override", None)
        return renamed

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Explain why dialect v1 cannot express the average pool `node`, or None if it can.

        Reasons: it is one-dimensional ("of lines"), its padding is not counted, or it has a custom
        divisor above 0.
        """
        if node.op_type == "QAvgPool1d":
            return "of lines"
        if any(get_ints(attrs, "pads", [])) and not attrs.get("count_include_pad", 1):
            return "its padding does not count"
        divisor = get_int(attrs, "divisor_override", -1)
        return f"it divides by {divisor}" if divisor > 0 else None

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return scale, bits and zero point of the output, from scale_o or else scale_x.

        The bits are o_bits.
        """
        return qparams_from_attributes(
            {**attrs, "scale_o": attrs["scale_o"] or attrs["scale_x"]}, "o"
        )

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the average pooling kernel with the division of the target.

        COUNTED: the mean of the training software. ONE_ROUNDING: sum times scale_o / (scale_x *
        area), rounded once. Otherwise the division of a LUNA chip; scales must be powers of two
        there (ModelError).
        """
        from simulator.kernels import AvgPool, luna_average, subtract_zero_points

        a, kernel_shape = info.attributes, tuple(get_ints(info.attributes, "kernel_shape"))
        area = math.prod(kernel_shape)
        scale_x = get_number(a, "scale_x")
        scale_o = get_number(a, "scale_o" if a["scale_o"] else "scale_x")
        divisor = info.expect_arithmetic(AveragePoolArithmetic).divisor
        if divisor is AverageDivisor.COUNTED:
            strides, pads = get_ints(a, "strides", []) or None, get_ints(a, "pads", []) or None
            shift = info.require_exponent("scale_o / scale_x", scale_o / scale_x)
            return _make_training_mean(info, shift, kernel_shape, strides, pads)
        if divisor is AverageDivisor.ONE_ROUNDING:
            rule = info.rescale(scale_o / (scale_x * area))
        else:
            q_x = info.require_exponent("scale_x", scale_x)
            q_o = info.require_exponent("scale_o", scale_o)
            rule = luna_average(_LUNA_DIVISION_RULES[divisor], area, q_x, q_o)
        kernel = AvgPool(*_get_window(a), rule=rule, ceil_mode=bool(a["ceil_mode"]))
        return subtract_zero_points(kernel, info.zero_point("x"))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append an AveragePool that counts padding like the target to `builder`.

        Return [its output]. On chips padding counts; in training software by `count_include_pad`,
        where a divisor_override above 0 raises ModelError. The mean of the entire image is a
        GlobalAveragePool, because OpenVINO computes such an AveragePool wrongly between int8
        tensors of different scales.
        """
        a, arithmetic = builder.attrs, builder.info.expect_arithmetic(AveragePoolArithmetic)
        count_include_pad = 1
        if arithmetic.divisor is AverageDivisor.COUNTED:
            count_include_pad = get_int(a, "count_include_pad")
            if get_int(a, "divisor_override") > 0:
                raise ModelError(
                    f"{builder.info.label}: divisor_override = {a['divisor_override']}, which "
                    "AveragePool does not support"
                )
        window = {spec.name: a[spec.name] for spec in _WINDOW_ATTRIBUTES}
        x = builder.float_input()
        image_size = tuple(builder.info.input_shapes[0][2:])
        if tuple(get_ints(a, "kernel_shape")) == image_size and not any(get_ints(a, "pads", [])):
            return [builder("GlobalAveragePool", x)]
        return [builder("AveragePool", x, count_include_pad=count_include_pad, **window)]


AVG_POOL2D = AvgPool2d()


class GlobalAveragePool2d(Format):
    """Mean of the entire image; in dialect v3 only, the packer does not support it."""

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
        """The operator of dialect v1 that computes the same: AvgPool2dInt over the whole image."""
        return AVG_POOL2D

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes of an AvgPool2dInt of dialect v1 over the whole image."""
        size = [int(n or 0) for n in (ir.get_shape(node.inputs[0]) or ())[2:]]
        window = {"kernel_shape": size, "strides": [1, 1], "pads": [0] * 4}
        return {**AVG_POOL2D.to_v1_attributes(attrs, node), **window, "ceil_mode": 0}

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Explain why dialect v1 cannot express `node` as an AvgPool2dInt, or None if it can.

        Reasons: the size of its image is unknown, its padding is not counted, or it has a custom
        divisor above 0.
        """
        shape = ir.get_shape(node.inputs[0]) or ()
        if len(shape) != 4 or None in shape[2:]:
            return "the size of its map is not known"
        return AVG_POOL2D.explain_v1_obstacle(attrs, node)

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return scale, bits and zero point of the output, from scale_o or else scale_x.

        The bits are o_bits.
        """
        return qparams_from_attributes(
            {**attrs, "scale_o": attrs["scale_o"] or attrs["scale_x"]}, "o"
        )

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel of a mean over all image axes, as the training software computes it.

        Raises ModelError if scale_o / scale_x is not a power of two.
        """
        scale_x = get_number(info.attributes, "scale_x")
        ratio = get_number(info.attributes, "scale_o", scale_x) / scale_x
        shift = info.require_exponent("scale_o / scale_x", ratio)
        return _make_training_mean(info, shift, None, None, None)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a GlobalAveragePool of the float input to `builder`; return [its output]."""
        return [builder("GlobalAveragePool", builder.float_input())]


GLOBAL_AVERAGE_POOL2D = GlobalAveragePool2d()


def _get_window(attrs: Attributes) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return kernel_shape, strides and pads of a pool; absent strides are 1, absent pads 0."""
    kernel_shape = tuple(get_ints(attrs, "kernel_shape"))
    strides = tuple(get_ints(attrs, "strides", [1] * len(kernel_shape)))
    pads = tuple(get_ints(attrs, "pads", [0] * 2 * len(kernel_shape)))
    return kernel_shape, strides, pads


def _make_training_mean(
    info: KernelInfo,
    shift: int,
    kernel: Sequence[int] | None,
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
) -> Kernel:
    """Return the kernel of a mean as the training software computes it.

    Parameters
    ----------
    info
        The node.
    shift
        log2 of scale_o / scale_x.
    kernel, strides, pads
        Window; None for the entire image.
    """
    from simulator.kernels import Mean

    a = info.attributes
    return Mean(
        kernel,
        strides,
        pads,
        shift,
        get_int(a, "o_bits", 8),
        info.rounding,
        ceil_mode=bool(a.get("ceil_mode", 0)),
        count_include_pad=bool(a.get("count_include_pad", 1)),
        divisor=max(get_int(a, "divisor_override", -1), 0),
    )


FAMILY: tuple[Format, ...] = (AVG_POOL2D, MAX_POOL, GLOBAL_AVERAGE_POOL2D)
