"""Relu, Clip, PRelu and Relux on integers.

Relu clamps at the integer 0 and keeps the scale. For tensors with a nonzero zero point, a Clip with
the zero point as its lower bound is used instead. Later executors read `scale_o` of a Relu and
shift its input to the right by log2(scale_o / scale_x), which is the wrong direction.

PRelu and Relux exist in later executors only, and the quantizer never writes them. Their attributes
are integers, rsh(v, n) rounds half up:

    PRelu    rsh(x, post_shift) for x >= 0, else rsh(x, slope + post_shift)
    Relux    max(0, min(threshold, rsh(x, shift)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simulator.kernel import Kernel

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import Attributes, get_int, get_number
from ...ir.plan import Affine
from ...targets.arithmetic import Arithmetic, ReluArithmetic
from .. import shape_inference as rules
from .._integer_op import Attr, Format
from .._kernel_info import KernelInfo
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

__all__ = ["CLIP", "FAMILY", "PRELU", "RELU", "RELUX"]

#: Largest shift that executors accept.
_MAX_SHIFT = 63


class Relu(Format):
    """Negative integers become 0: ``max(0, x)``."""

    name = "Relu"
    nonstandard_usage = (
        "on int8, which the standard allows from opset 14 on; the format is opset 12"
    )
    domain = ""
    kind: type[Arithmetic] = Arithmetic
    attributes = (Attr("scale_x", "f", None), Attr("scale_o", "f", None))

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the simulator kernel max(0, x), after a shift to scale_o if the target has it.

        Raises ModelError if that would be a shift to the left, or a scale is not a power of two.
        """
        from simulator.kernels import Relu as Kernel

        shift = self._get_shift(info)
        return Kernel() if not shift else _make_table(info, lambda x: max(_shift(x, shift), 0))

    @staticmethod
    def _get_shift(info: KernelInfo) -> int:
        """Return the right shift of the input: 0 unless the target has one and scales differ."""
        a, arithmetic = info.attributes, info.arithmetic
        if not isinstance(arithmetic, ReluArithmetic) or not arithmetic.shifts_to_output_scale:
            return 0
        if a["scale_x"] is None or a["scale_o"] is None:
            return 0
        ratio = info.output_scale_ratio(get_number(a, "scale_x"))
        shift = info.require_exponent("scale_o / scale_x", ratio)
        if shift < 0:
            raise ModelError(
                f"{info.label}: scale_o is {ratio:g} times scale_x; it must be at least as large"
            )
        return shift

    def all_output_qparams(
        self, info: KernelInfo, scales: Sequence[Affine | None]
    ) -> list[Affine | None]:
        """Return [qparams of the input], or those of `scale_o` if the target reads it."""
        if self._get_shift(info) or not scales or scales[0] is None:
            return super().all_output_qparams(info, scales)
        return [scales[0]]


RELU = Relu()


class Clip(Format):
    """``min(max(x, low), high)`` with constant bounds, quantized with the tensor's scale.

    Instead of the inputs 1 and 2, the integers may be attributes `min` and `max`.
    """

    name = "Clip"
    domain = ""
    supports_zero_points = True
    attributes = (Attr("min", "f", None), Attr("max", "f", None))

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the Clip kernel with the integer bounds of the node.

        They are the constant inputs 1 and 2, else the attributes; absent ones are the limits of
        int32.
        """
        from simulator.kernels import Clip as Kernel

        low, high = self._get_bound(info, 1, "min"), self._get_bound(info, 2, "max")
        return Kernel(
            -(1 << 31) if low is None else low,
            (1 << 31) - 1 if high is None else high,
        )

    @staticmethod
    def _get_bound(info: KernelInfo, index: int, key: str) -> int | None:
        """Return the bound in constant input `index`, else in attribute `key`; None without both.

        Raises ModelError if the attribute is not an integer.
        """
        constant = info.constants.get(index)
        if constant is not None:
            return int(constant.reshape(()))
        if info.attributes[key] is None:
            return None
        bound = get_number(info.attributes, key)
        if bound != int(bound):
            raise ModelError(f"{info.label}: {key} = {bound:g}; bounds must be integers")
        return int(bound)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a Clip of the float input with dequantized bounds; return [its output].

        Absent bounds stay absent.
        """
        bounds: list[ir.Value | None] = []
        for index, key, suffix in ((1, "min", "low"), (2, "max", "high")):
            integer = self._get_bound(builder.info, index, key)
            if integer is None:
                bounds.append(None)
                continue
            bound = np.float32(builder.dequantize_scalar(integer))
            bounds.append(builder.add_constant(bound, suffix))
        return [builder("Clip", builder.float_input(), *bounds)]


CLIP = Clip()


def _shift(value: int, shift: int) -> int:
    """Return `value` shifted right by `shift` >= 0, rounded half up."""
    return (value + (1 << shift >> 1)) >> shift


def _make_table(info: KernelInfo, function: Callable[[int], int]) -> Kernel:
    """Return a kernel that looks up `function` of every input integer, in the input's type."""
    from simulator.fixed_point import integer_dtype, saturate_array
    from simulator.kernels import Table, all_integers

    bits = info.width()
    values = np.array([function(int(x)) for x in all_integers(bits)])
    return Table(saturate_array(values, bits).astype(integer_dtype(bits)))


def _get_shift_attribute(info: KernelInfo, *keys: str) -> int:
    """Return the sum of integer attributes, a right shift; ModelError if it is not in 0..63."""
    shift = sum(get_int(info.attributes, key) for key in keys)
    if not 0 <= shift <= _MAX_SHIFT:
        raise ModelError(
            f"{info.label}: {' + '.join(keys)} = {shift}; it must be 0 to {_MAX_SHIFT}"
        )
    return shift


class PRelu(Format):
    """Negative integers are divided by 2^slope, and all by 2^post_shift."""

    name = "PRelu"
    nonstandard_usage = "with the slope as an exponent in attributes slope and post_shift"
    nonstandard_attribute = "slope"
    domain = ""
    signature = Signature("x:integer", "integer", rules.keep_input_shape(rules.input_type))
    has_inexact_float_model = True
    attributes = (
        Attr("slope", "i"),
        Attr("post_shift", "i", 0),
        Attr("scale_x", "f", None),
        Attr("scale_o", "f", None),
    )

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return a kernel that looks up the function; ModelError for shifts beyond 0..63."""
        positive = _get_shift_attribute(info, "post_shift")
        negative = _get_shift_attribute(info, "slope", "post_shift")
        return _make_table(info, lambda x: _shift(x, positive if x >= 0 else negative))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a LeakyRelu with alpha 2^-slope to `builder`, and a Mul; return [the result].

        The integers are shifted by post_shift and then have scale_o, so that the real values change
        by 2^-post_shift * scale_x / scale_o.
        """
        scale = builder.input_scale()
        output_scale = get_number(builder.attrs, "scale_o") if builder.attrs["scale_o"] else scale
        factor = 2.0 ** -get_int(builder.attrs, "post_shift") * scale / output_scale
        alpha = 2.0 ** -get_int(builder.attrs, "slope")
        y = builder("LeakyRelu", builder.float_input(), alpha=alpha)
        return [builder("Mul", y, builder.add_constant(np.float32(factor), "factor"))]


PRELU = PRelu()


class Relux(Format):
    """Integers, shifted right, within 0 and a threshold."""

    name = "Relux"
    signature = Signature("x:integer", "integer", rules.keep_input_shape(rules.input_type))
    has_inexact_float_model = True
    attributes = (
        Attr("threshold", "i"),
        Attr("shift", "i", 0),
        Attr("scale_x", "f", None),
        Attr("scale_o", "f", None),
    )

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return a kernel that looks up the function; ModelError for a shift beyond 0..63."""
        shift, threshold = (
            _get_shift_attribute(info, "shift"),
            get_int(info.attributes, "threshold"),
        )
        return _make_table(info, lambda x: max(0, min(threshold, _shift(x, shift))))

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return the qparams of the output: the input's scale times 2^shift, as executors say."""
        factor = 2.0 ** get_int(attrs, "shift")
        if attrs["scale_x"] is not None:
            return Affine(get_number(attrs, "scale_x") * factor)
        if not scales or scales[0] is None:
            return None
        return Affine(scales[0].scale * factor)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a Clip to `builder`, and a Mul for the shift; return [the result].

        The integers are shifted right while their scale grows by the same factor, so that real
        values change by 4^-shift.
        """
        shift, scale = get_int(builder.attrs, "shift"), get_number(builder.attrs, "scale_x")
        x, output_scale = builder.float_input(), scale * 2.0**shift
        if shift:
            x = builder("Mul", x, builder.add_constant(np.float32(4.0**-shift), "factor"))
        high = np.float32(get_int(builder.attrs, "threshold") / output_scale)
        zero = builder.add_constant(np.float32(0), "low")
        return [builder("Clip", x, zero, builder.add_constant(high, "high"))]


RELUX = Relux()


FAMILY: tuple[Format, ...] = (RELU, CLIP, PRELU, RELUX)
