"""An integer node with what is known of it before it is computed.

Attributes, constants, shapes, the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from ..errors import InternalError, ModelError
from ..graph import ir
from ..graph.attributes import Attributes, get_int, get_number, get_scales
from ..targets.arithmetic import Arithmetic, LeftShiftBehavior, RoundingMode

__all__ = ["ZEROING_SHIFT", "QUANT_MODES", "KernelInfo"]

#: A right shift that leaves 0 of every accumulator.
ZEROING_SHIFT = 62

#: The values of the attribute quant_mode.
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
    """An integer node as `Format.bind` sees it.

    attributes : attributes by their current names, defaults filled in
    constants : constant inputs by index
    arithmetic : how the platform, or the training side, computes this operator
    input_shapes : shape of each input, empty for an absent one
    input_dtypes : dtype of each input, None for an absent one
    has_batch_axis : whether axis 0 is the batch (declared 1), not a size of its own
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
        """How errors name the node."""
        return f"{self.node.op_type} {self.node.name}"

    def output_scale_ratio(self, *scales: float) -> float:
        """Return scale_o over the product of `scales`.

        ModelError when the operator has no scale_o.
        """
        return get_number(self.attributes, "scale_o") / math.prod(float(s) for s in scales)

    def zero_point(self, key: str) -> int:
        """Return the integer that stands for 0 where `scale_<key>` is the scale."""
        return get_int(self.attributes, f"zero_point_{key}", 0)

    def width(self, index: int = 0) -> int:
        """Return 8 or 16, the width of integer input `index`; ModelError for a wider one."""
        kind = self.input_dtypes[index] if index < len(self.input_dtypes) else None
        if kind is not None and kind.itemsize > 2:
            raise ModelError(f"{self.label}: its input is {kind}; it must be int8 or int16")
        return 8 if kind is None else 8 * kind.itemsize

    def expect_arithmetic(self, kind: type[_Kind]) -> _Kind:
        """Return the arithmetic, of the class that the operator has.

        InternalError for a row that gives another.
        """
        if not isinstance(self.arithmetic, kind):
            raise InternalError(
                f"{self.label} has {type(self.arithmetic).__name__} where {kind.__name__} belongs"
            )
        return self.arithmetic

    @property
    def rounding(self) -> RoundingMode:
        """How results are rounded.

        As the arithmetic has it, or leaves to the node, whose default is half up.
        """
        if self.arithmetic.requantize.rounding is not None:
            return self.arithmetic.requantize.rounding
        name = str(self.attributes.get("quant_mode") or "floor_add")
        if name not in QUANT_MODES:
            raise ModelError(
                f"{self.label}: quant_mode = '{name}'; it is one of {', '.join(QUANT_MODES)}"
            )
        return QUANT_MODES[name]

    def rescale(self, ratio: float, bits: int | None = None, zero: int | None = None) -> Any:  # noqa: ANN401 - Rescale, or Rounded in its place
        """Return the simulator's rescaling by `ratio` to `bits` (default the arithmetic's, o_bits, else 8).

        zero : the integer of the result that stands for 0, by default the node's zero_point_o.
        """
        from simulator.fixed_point import Rescale, RoundedShift

        how = self.arithmetic.requantize
        width = bits or how.bits or get_int(self.attributes, "o_bits", 8)
        zero = self.zero_point("o") if zero is None else zero
        if not how.shifts:
            return Rescale.from_ratio(ratio, width, zero, self.rounding)
        mantissa, exponent = math.frexp(ratio)
        if mantissa != 0.5:
            raise ModelError(
                f"{self.label}: the scales give the ratio {ratio:g}, not a power of two; this "
                "platform shifts only"
            )
        shift = self._resolve_right_shift(1 - exponent)
        if self.rounding is not RoundingMode.HALF_UP:
            if zero:
                raise ModelError(
                    f"{self.label}: zero_point_o = {zero}; this platform rounds without a zero "
                    "point"
                )
            return RoundedShift(shift, width, self.rounding)
        return Rescale.from_shift(shift, width, zero)

    def make_weight_rescale(self, channels: int, groups: int = 1) -> Any:  # noqa: ANN401 - as there
        """Return the rescaling of sums at scale_x * scale_w.

        One, or where scale_w is a list one for each output.
        channels : scales that a list must have; `groups` of outputs take the same ones. ModelError
        for a list of another length, and where the platform takes one scale for a weight.
        """
        from simulator.channel_rescale import ChannelRescale

        x, w = get_number(self.attributes, "scale_x"), get_scales(self.attributes, "scale_w")
        if not isinstance(w, list):
            return self.rescale(self.output_scale_ratio(x, w))
        if self.arithmetic.requantize.shifts:
            raise ModelError(
                f"{self.label}: scale_w is a list of {len(w)}; this platform takes one scale for a "
                "weight"
            )
        if len(w) != channels:
            raise ModelError(
                f"{self.label}: scale_w is a list of {len(w)}; the weight has {channels} channels"
            )
        return ChannelRescale(
            tuple(self.rescale(self.output_scale_ratio(x, scale)) for scale in w) * groups
        )

    def _resolve_right_shift(self, shift: int) -> int:
        """Return the right shift that is computed for `shift`.

        What becomes of a negative one differs.
        """
        left = self.arithmetic.requantize.left
        if shift >= 0 or left is LeftShiftBehavior.SHIFTED:
            return shift
        if left is LeftShiftBehavior.REFUSED:
            raise ModelError(
                f"{self.label}: its scales need a shift of {-shift} to the left, which the "
                "executor refuses; lower "
                "scale_o"
            )
        return ZEROING_SHIFT if left is LeftShiftBehavior.ZERO else 0

    def require_exponent(self, key: str, scale: float) -> int:
        """Return log2 of `scale`, the attribute `key`; ModelError when it is not a power of two."""
        mantissa, exponent = math.frexp(scale)
        if mantissa != 0.5:
            raise ModelError(
                f"{self.label}: {key} = {scale:g} is not a power of two; this platform shifts only"
            )
        return exponent - 1

    def require_constant(self, index: int, dtypes: str, role: str) -> np.ndarray:
        """Return constant input `index`.

        ModelError when it is absent, computed at run time or of another dtype.
        """
        array = self.constants.get(index)
        if array is None:
            raise ModelError(f"{self.label}: its {role} (input {index}) must be a constant")
        if role == "weight" and array.ndim == 0:
            raise ModelError(
                f"{self.label}: its weight (input {index}) is a single number; it has an axis of "
                "channels"
            )
        if array.dtype.name not in dtypes.split():
            raise ModelError(
                f"{self.label}: its {role} is {array.dtype.name}; it must be "
                f"{' or '.join(dtypes.split())}"
            )
        return array

    def bias(self, index: int, size: int) -> np.ndarray | None:
        """Return the int32 bias at input `index` as int64 [size], or None when there is none."""
        name = self.node.inputs[index] if len(self.node.inputs) > index else None
        if name is None:
            return None
        array = self.require_constant(index, "int32 int64", "bias").astype(np.int64).reshape(-1)
        if len(array) != size:
            raise ModelError(
                f"{self.label}: its bias has {len(array)} values; the weight has {size} outputs"
            )
        return array
