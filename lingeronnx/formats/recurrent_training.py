"""Recurrent layers in the training side's arithmetic: which kernel, in which formats.

The form Q27 of an LSTM is what the executor computes too, the others are
`simulator.kernels.recurrent.training_rnn`. The state that goes round is at scale_h. Dialect v3
leaves the output there, whatever scale_o says; a graph where the two differ does not mean what was
trained and is refused. Dialect v1 (Q7) writes the output at scale_o and requantizes it for the next
step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from ..graph.attributes import Attributes, get_int, get_number
from ..targets.arithmetic import (
    GruArithmetic,
    GruVariant,
    LstmArithmetic,
    LstmFormat,
    RecurrentArithmetic,
)
from ._base import KernelInfo

if TYPE_CHECKING:
    from simulator.fixed_point import Rescale
    from simulator.kernel import Kernel as SimulatorKernel

__all__ = ["cell_scale", "make_gru_kernel", "make_lstm_kernel", "state_scale"]


def _is_dialect_v1(bound: KernelInfo) -> bool:
    """Whether it is dialect v1's."""
    how = bound.expect_arithmetic(RecurrentArithmetic)
    return (isinstance(how, LstmArithmetic) and how.form is LstmFormat.Q7) or (
        isinstance(how, GruArithmetic) and how.form is GruVariant.Q7
    )


def state_scale(bound: KernelInfo) -> float:
    """Return the scale of the output and of the last state."""
    o = None if bound.attributes["scale_o"] is None else get_number(bound.attributes, "scale_o")
    h = get_number(bound.attributes, "scale_h")
    if _is_dialect_v1(bound):
        if o is None:
            raise ModelError(f"{bound.label}: it has no scale_o: real sequences are not simulated")
        return o
    if o is not None and o != h:
        raise ModelError(
            f"{bound.label}: scale_o = {o:g}, scale_h = {h:g}: the training side leaves its output "
            "at scale_h, so that "
            "what follows reads other numbers than were trained; export with equal scales, or use "
            "arithmetic='executor'"
        )
    return h


def cell_scale(bound: KernelInfo) -> float:
    """Return the scale of the cell that comes out."""
    return 2.0**14 if _is_dialect_v1(bound) else 2.0**15


def _make_sum_rescales(bound: KernelInfo, bits: int) -> dict[str, Any]:
    """Return the rescalings of both sums to `bits` fractional bits."""
    from simulator.fixed_point import Rescale

    rescales = {}
    for key, exponent in zip(("rescale_x", "rescale_h"), _sum_exponents(bound), strict=True):
        rescales[key] = Rescale.from_shift(exponent - bits, 32)
    return rescales


def _sum_exponents(bound: KernelInfo) -> tuple[int, int]:
    a: Attributes = bound.attributes
    x, h = (
        sum(bound.require_exponent(key, get_number(a, key)) for key in keys)
        for keys in (("scale_x", "scale_iw"), ("scale_h", "scale_hw"))
    )
    return x, h


def make_lstm_kernel(
    bound: KernelInfo, how: LstmArithmetic, parts: Mapping[str, Any]
) -> SimulatorKernel:
    """Return the kernel of an LSTM; `parts` is what every recurrent kernel takes."""
    from simulator.fixed_point import Rescale
    from simulator.kernels import Lstm as Kernel
    from simulator.kernels import TrainedLstm

    arithmetic, table = how.form.value, how.table.value
    q, bits = (
        bound.require_exponent("scale_o", state_scale(bound)),
        get_int(bound.attributes, "o_bits", 8),
    )
    forward = bool(bound.attributes["go_forward"])
    if how.form is LstmFormat.Q27:
        return Kernel(
            **parts,
            **_make_sum_rescales(bound, 27),
            rescale_o=Rescale.from_shift(30 - q, bits),
            is_forward=forward,
            arithmetic=arithmetic,
            table=table,
        )
    product = TrainedLstm.fraction_bits[arithmetic][0]
    return TrainedLstm(
        **parts,
        **_make_sum_rescales(bound, 11),
        rescale_o=Rescale.from_shift(product - q, bits),
        is_forward=forward,
        arithmetic=arithmetic,
        table=table,
        feedback_rescale=_make_feedback_rescale(bound),
    )


def make_gru_kernel(
    bound: KernelInfo, how: GruArithmetic, parts: Mapping[str, Any]
) -> SimulatorKernel:
    """Return the kernel of a GRU."""
    from simulator.fixed_point import Rescale
    from simulator.kernels import TrainedGru

    q, bits = (
        bound.require_exponent("scale_o", state_scale(bound)),
        get_int(bound.attributes, "o_bits", 8),
    )
    common = max(_sum_exponents(bound))
    fraction = {GruVariant.BEFORE: 27, GruVariant.COMMON: common}.get(how.form, 11)
    return TrainedGru(
        **parts,
        **_make_sum_rescales(bound, fraction),
        rescale_o=Rescale.from_shift(14 - q, bits),
        is_forward=bool(bound.attributes["go_forward"]),
        arithmetic=how.form.value,
        table=how.table.value,
        feedback_rescale=_make_feedback_rescale(bound),
        scale=q,
        sums=fraction if how.form is GruVariant.COMMON else 27,
    )


def _make_feedback_rescale(bound: KernelInfo) -> Rescale:
    """Return what becomes of the output before the next step multiplies it."""
    from simulator.fixed_point import Rescale

    a = bound.attributes
    exponent = math.frexp(state_scale(bound))[1] - math.frexp(get_number(a, "scale_h"))[1]
    return Rescale.from_shift(
        exponent, get_int(a, "data_bits", 8) if _is_dialect_v1(bound) else get_int(a, "o_bits", 8)
    )
