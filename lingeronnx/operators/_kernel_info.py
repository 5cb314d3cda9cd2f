"""Properties of an integer node for its kernel: attributes, constants, shapes, arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from ..common.errors import InternalError, ModelError
from ..ir import ir
from ..ir.attributes import Attributes, get_int, get_number, get_scales
from ..targets.arithmetic import Arithmetic, LeftShiftBehavior, RoundingMode

__all__ = ["ZEROING_SHIFT", "QUANT_MODES", "KernelInfo"]

#: A right shift that maps every accumulator to 0.
ZEROING_SHIFT = 62

#: Rounding modes by the value of attribute quant_mode.
QUANT_MODES: Mapping[str, RoundingMode] = MappingProxyType(
    {
        "floor_add": RoundingMode.HALF_UP,
        "floor": RoundingMode.DOWN,
        "ceil": RoundingMode.UP,
        "round": RoundingMode.HALF_EVEN,
    }
)

_Kind = TypeVar("_Kind", bound=Arithmetic)


@dataclass
class KernelInfo:
    """An integer node, with all that is needed to make its simulator kernel.

    Attributes
    ----------
    node
        The node.
    attributes
        Attributes by current names, with defaults.
    constants
        Constant inputs by index.
    arithmetic
        Arithmetic of the operator on the platform or the training side.
    input_shapes
        Shape of each input, empty for absent ones.
    has_batch_axis
        Whether axis 0 is the batch (declared as 1).
    input_dtypes
        dtype of each input, None for absent ones.
    """

    node: ir.Node
    attributes: Attributes
    constants: Mapping[int, np.ndarray]
    arithmetic: Arithmetic
    input_shapes: Sequence[tuple[int, ...]] = ()
    has_batch_axis: bool = True
    input_dtypes: Sequence[np.dtype | None] = ()

    @property
    def label(self) -> str:
        """Operator type and name of the node, for messages."""
        return f"{self.node.op_type} {self.node.name}"

    def output_scale_ratio(self, *scales: float) -> float:
        """Return the attribute scale_o of the node divided by the product of `scales`.

        It converts an accumulator at that product to the output. Raises ModelError if the node has
        no scale_o.
        """
        return get_number(self.attributes, "scale_o") / math.prod(float(s) for s in scales)

    def zero_point(self, key: str) -> int:
        """Return the zero point that accompanies the attribute `scale_<key>` of the node.

        0 if absent.
        """
        return get_int(self.attributes, f"zero_point_{key}", 0)

    def width(self, index: int = 0) -> int:
        """Return the bits of integer input `index`, 8 or 16, from its dtype; 8 if it is unknown.

        Raises
        ------
        ModelError
            If the input is wider than 16 bits.
        """
        dtype = self.input_dtypes[index] if index < len(self.input_dtypes) else None
        if dtype is None:
            return 8
        if dtype.itemsize > 2:
            raise ModelError(f"{self.label}: its input is {dtype}; it must be int8 or int16")
        return 8 * dtype.itemsize

    def expect_arithmetic(self, kind: type[_Kind]) -> _Kind:
        """Return the arithmetic of the operator on its target, checked to be of class `kind`.

        Raises
        ------
        InternalError
            If the target defines another class.
        """
        if not isinstance(self.arithmetic, kind):
            raise InternalError(
                f"{self.label} has arithmetic {type(self.arithmetic).__name__}; expected "
                f"{kind.__name__}"
            )
        return self.arithmetic

    @property
    def rounding(self) -> RoundingMode:
        """Rounding mode of the node: that of the target's arithmetic, else of `quant_mode`.

        Without that attribute it is half up. Raises ModelError for an unknown name.
        """
        if self.arithmetic.requantize.rounding is not None:
            return self.arithmetic.requantize.rounding
        name = str(self.attributes.get("quant_mode") or "floor_add")
        if name not in QUANT_MODES:
            raise ModelError(
                f"{self.label}: quant_mode = '{name}'; it is one of {', '.join(QUANT_MODES)}"
            )
        return QUANT_MODES[name]

    def rescale(self, ratio: float, bits: int | None = None, zero: int | None = None) -> Any:  # noqa: ANN401
        """Return the rescaling by `ratio` to the output, as a shift if the target shifts.

        Parameters
        ----------
        ratio
            Output scale divided by accumulator scale.
        bits
            Output bits; default: those of the arithmetic, else o_bits, else 8.
        zero
            Zero point of the output; default: zero_point_o.

        Returns
        -------
        Rescale or RoundedShift
            RoundedShift only for a target that shifts with another rounding than half up.

        Raises
        ------
        ModelError
            If the target only shifts and `ratio` is not a power of two or needs a left shift that
            it rejects, or if a RoundedShift would need a zero point.
        """
        from simulator.fixed_point import Rescale, RoundedShift

        requantize = self.arithmetic.requantize
        width = bits or requantize.bits or get_int(self.attributes, "o_bits", 8)
        zero = self.zero_point("o") if zero is None else zero
        if not requantize.shifts:
            return Rescale.from_ratio(ratio, width, zero, self.rounding)
        mantissa, exponent = math.frexp(ratio)
        if mantissa != 0.5:
            raise ModelError(
                f"{self.label}: the scales give the ratio {ratio:g}, which is not a power of "
                "two, as this target requires; quantize with mode q-value"
            )
        shift = self._resolve_right_shift(1 - exponent)
        if self.rounding is not RoundingMode.HALF_UP:
            if zero:
                raise ModelError(
                    f"{self.label}: zero_point_o = {zero}; it must be 0 with rounding mode "
                    f"{self.rounding.name.lower()}"
                )
            return RoundedShift(shift, width, self.rounding)
        return Rescale.from_shift(shift, width, zero)

    def make_weight_rescale(self, channels: int, groups: int = 1) -> Any:  # noqa: ANN401
        """Return the rescaling from accumulator to output; one per channel if scale_w is a list.

        Parameters
        ----------
        channels
            Expected length of a list of scales.
        groups
            Number of groups that use the same scales: the list is repeated so often.

        Raises
        ------
        ModelError
            If the list has another length, or the target supports one weight scale only.
        """
        from simulator.channel_rescale import ChannelRescale

        x, w = get_number(self.attributes, "scale_x"), get_scales(self.attributes, "scale_w")
        if not isinstance(w, list):
            return self.rescale(self.output_scale_ratio(x, w))
        if self.arithmetic.requantize.shifts:
            raise ModelError(
                f"{self.label}: scale_w is a list of {len(w)}; this target supports one scale "
                "per weight"
            )
        if len(w) != channels:
            raise ModelError(
                f"{self.label}: scale_w is a list of {len(w)}; the weight has {channels} channels"
            )
        rescales = [self.rescale(self.output_scale_ratio(x, scale)) for scale in w]
        return ChannelRescale(tuple(rescales) * groups)

    def _resolve_right_shift(self, shift: int) -> int:
        """Return the right shift that the target performs where the scales need `shift`.

        A `shift` of at least 0 is performed as it is. For a negative one (a left shift), depending
        on the target: itself, ZEROING_SHIFT (all results are 0), 0, or ModelError.
        """
        behavior = self.arithmetic.requantize.left
        if shift >= 0 or behavior is LeftShiftBehavior.SHIFTED:
            return shift
        if behavior is LeftShiftBehavior.REFUSED:
            raise ModelError(
                f"{self.label}: its scales need a left shift by {-shift}, which the executor "
                "rejects; lower scale_o"
            )
        return ZEROING_SHIFT if behavior is LeftShiftBehavior.ZERO else 0

    def require_exponent(self, key: str, scale: float) -> int:
        """Return log2 of `scale`, which is the attribute `key` (for the message).

        Raises
        ------
        ModelError
            If it is not a power of two.
        """
        mantissa, exponent = math.frexp(scale)
        if mantissa != 0.5:
            raise ModelError(
                f"{self.label}: {key} = {scale:g} is not a power of two, as this target requires"
            )
        return exponent - 1

    def require_constant(self, index: int, dtypes: str, role: str) -> np.ndarray:
        """Return constant input `index`, whose dtype is one of the names in `dtypes`.

        `dtypes` are separated by spaces; `role` names the input in messages.

        Raises
        ------
        ModelError
            If it is absent, computed at run time, of another dtype, or a scalar in the role
            "weight".
        """
        array = self.constants.get(index)
        if array is None:
            raise ModelError(f"{self.label}: its {role} (input {index}) must be a constant")
        if role == "weight" and array.ndim == 0:
            raise ModelError(
                f"{self.label}: its weight (input {index}) is a scalar; it needs a channel axis"
            )
        if array.dtype.name not in dtypes.split():
            raise ModelError(
                f"{self.label}: its {role} is {array.dtype.name}; it must be "
                f"{' or '.join(dtypes.split())}"
            )
        return array

    def bias(self, index: int, size: int) -> np.ndarray | None:
        """Return the constant bias at input `index` as int64 [size], or None if it is absent.

        Raises
        ------
        ModelError
            If it is computed at run time, not int32 or int64, or does not have `size` elements.
        """
        name = self.node.inputs[index] if len(self.node.inputs) > index else None
        if name is None:
            return None
        array = self.require_constant(index, "int32 int64", "bias").astype(np.int64).reshape(-1)
        if len(array) != size:
            raise ModelError(
                f"{self.label}: its bias has {len(array)} values; the weight has {size} outputs"
            )
        return array
