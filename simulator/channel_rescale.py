"""Requantization with one ratio per output channel, for weights with a scale per channel.

    y[.., c] = sat(floor(acc[.., c] * M[c] / 2^s[c] + 1/2) + z, bits)

Owns: `ChannelRescale`, its compiled form `ChannelScaleForms`, the loop `requantize_channels`. The
rounding is that of `fixed_point`, channel by channel. A kernel whose loops take one form for all
channels writes its exact accumulators and passes them to this loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulator._jit import jit
from simulator.fixed_point import (
    Rescale,
    RoundedScaleForm,
    ScaleForm,
    ShiftForm,
    WideScaleForm,
    apply_rescale,
)
from simulator.kernel import Array, require

__all__ = ["ChannelRescale", "ChannelScaleForms", "check_channel_count", "requantize_channels"]


class ChannelScaleForms(NamedTuple):
    """One `ScaleForm`, `WideScaleForm` or `RoundedScaleForm` per channel, as int64 arrays [C].

    `low` and `high` are the same for all channels.
    """

    limit: np.ndarray
    multiplier: np.ndarray
    half: np.ndarray  # of the last two forms the zero point
    shift: np.ndarray
    wide: np.ndarray  # 0: ScaleForm, 1: WideScaleForm, 2 + rounding: RoundedScaleForm
    low: int
    high: int


@dataclass(frozen=True)
class ChannelRescale:
    """One `Rescale` per output channel, all with the same output width."""

    rescales: tuple[Rescale, ...]

    def __post_init__(self) -> None:
        """Raise ValueError unless there are rescales, all of the same width."""
        if not self.rescales or len({rescale.bits for rescale in self.rescales}) != 1:
            raise ValueError("a channel rescale needs one or more rescales of the same width")

    @property
    def bits(self) -> int:
        """Width in bits of the signed result, the same for all channels."""
        return self.rescales[0].bits

    @property
    def dtype(self) -> np.dtype:
        """The integer type of the result, the same for all channels."""
        return self.rescales[0].dtype

    def compile_for_bound(
        self, bound: int, clip: tuple[int, int] | None = None
    ) -> ChannelScaleForms:
        """Return the exact forms of all channels for accumulators of |acc| <= `bound`.

        `clip` are the bounds (low, high) of a following Relu or Clip, or None.
        """
        forms = [
            _to_form_fields(rescale.compile_for_bound(bound, clip), bound)
            for rescale in self.rescales
        ]
        limit, multiplier, half, shift, wide = np.array(
            [form[:5] for form in forms], np.int64
        ).T.copy()
        return ChannelScaleForms(limit, multiplier, half, shift, wide, *forms[0][5:])


def _to_form_fields(
    form: ShiftForm | ScaleForm | WideScaleForm | RoundedScaleForm, bound: int
) -> tuple[int, ...]:
    """Return the form of one channel as the eight fields of `ChannelScaleForms`, in their order.

    A `ShiftForm` becomes a multiplication by 1 that is limited to `bound`.
    """
    if isinstance(form, RoundedScaleForm):
        return (
            form.limit,
            form.multiplier,
            form.zero_point,
            form.shift,
            2 + form.rounding,
            form.low,
            form.high,
        )
    if isinstance(form, WideScaleForm):
        return form.limit, form.multiplier, form.zero_point, form.shift, 1, form.low, form.high
    limit, multiplier = (bound, 1) if isinstance(form, ShiftForm) else (form.limit, form.multiplier)
    return limit, multiplier, int(form.half), int(form.shift), 0, int(form.low), int(form.high)


@jit
def requantize_channels(acc: Array, form: ChannelScaleForms, out: Array) -> None:
    """Fill integer out [N, C] with acc [N, C] requantized by the form of each channel.

    acc is int32 or int64.
    """
    for n in range(acc.shape[0]):
        source, target = acc[n], out[n]
        for c in range(acc.shape[1]):
            limit, multiplier, shift = form.limit[c], form.multiplier[c], form.shift[c]
            if form.wide[c] > 1:
                zero, rounding = form.half[c], form.wide[c] - 2
                target[c] = apply_rescale(
                    RoundedScaleForm(limit, multiplier, shift, form.low, form.high, zero, rounding),
                    source[c],
                )
            elif form.wide[c]:
                target[c] = apply_rescale(
                    WideScaleForm(limit, multiplier, shift, form.low, form.high, form.half[c]),
                    source[c],
                )
            else:
                target[c] = apply_rescale(
                    ScaleForm(limit, multiplier, form.half[c], shift, form.low, form.high),
                    source[c],
                )


def check_channel_count(rescale: Rescale | ChannelRescale, outputs: int) -> None:
    """Raise `SimulatorError` if `rescale` has one ratio per channel, but not `outputs` of them.

    A single ratio matches any number.
    """
    if isinstance(rescale, ChannelRescale):
        require(
            len(rescale.rescales) == outputs,
            f"{len(rescale.rescales)} requantization ratios for {outputs} outputs",
        )
