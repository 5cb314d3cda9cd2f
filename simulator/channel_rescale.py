"""Requantization with a ratio for each output channel: what weights with a scale per channel need.

    y[.., c] = sat(floor(acc[.., c] * M[c] / 2^s[c] + 1/2) + z, bits)

Owns: `ChannelRescale`, its compiled form `ChannelScaleForms`, the loop `requantize_channels`. The
rounding is `fixed`'s, channel by channel. A kernel whose loops take one form for all channels has
its exact accumulators written and hands them on.
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
    """One `ScaleForm`, `WideScaleForm` or `RoundedScaleForm` for each channel, as arrays [C] of int64.

    `low` and `high` are common.
    """

    limit: np.ndarray
    multiplier: np.ndarray
    half: np.ndarray
    shift: np.ndarray
    # 0: a Scale; else the zero is in the place of a half, 1: a WideScaleForm, 2 + rounding: a Tied
    wide: np.ndarray
    low: int
    high: int


@dataclass(frozen=True)
class ChannelRescale:
    """One `Rescale` for each output channel, all to the same width."""

    rescales: tuple[Rescale, ...]

    def __post_init__(self) -> None:
        if not self.rescales or len({rescale.bits for rescale in self.rescales}) != 1:
            raise ValueError("channels need at least one rescale, and all the same width")

    @property
    def bits(self) -> int:
        """Width of the signed result."""
        return self.rescales[0].bits

    @property
    def dtype(self) -> np.dtype:
        """The integer type of the result."""
        return self.rescales[0].dtype

    def compile_for_bound(
        self, bound: int, clip: tuple[int, int] | None = None
    ) -> ChannelScaleForms:
        """Return the exact compiled form for accumulators of |acc| <= `bound`, with the bounds of a Relu behind it."""
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
    """Return a form as the fields of `ChannelScaleForms` for one channel."""
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
    """Fill out [N, C] with the requantized int32 or int64 acc [N, C]."""
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
    """Raise `SimulatorError` where the number of ratios is not that of the outputs."""
    if isinstance(rescale, ChannelRescale):
        require(
            len(rescale.rescales) == outputs,
            f"{len(rescale.rescales)} ratios do not fit {outputs} outputs",
        )
