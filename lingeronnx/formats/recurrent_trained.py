"""Recurrent layers in the training side's arithmetic: which kernel, in which formats.

The form Q27 of an LSTM is what the executor computes too, the others are `simulator.kernels.recurrent.trained_rnn`. The
state that goes round is at scale_h. Dialect v3 leaves the output there, whatever scale_o says; a graph where the two
differ does not mean what was trained and is refused. Dialect v1 (Q7) writes the output at scale_o and requantizes it
for the next step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from ..graph.attributes import Attributes, integer, number
from ..targets.arithmetic import Gru, GruForm, Lstm, LstmForm, Recurrent
from ._base import Bound

if TYPE_CHECKING:
    from simulator.fixed import Rescale
    from simulator.kernel import Kernel as SimulatorKernel

__all__ = ["cell_scale", "gru", "lstm", "state_scale"]


def _first(bound: Bound) -> bool:
    """Whether it is dialect v1's."""
    how = bound.how(Recurrent)
    return (isinstance(how, Lstm) and how.form is LstmForm.Q7) or (isinstance(how, Gru) and how.form is GruForm.Q7)


def state_scale(bound: Bound) -> float:
    """Return the scale of the output and of the last state."""
    o = None if bound.attrs["scale_o"] is None else number(bound.attrs, "scale_o")
    h = number(bound.attrs, "scale_h")
    if _first(bound):
        if o is None:
            raise ModelError(f"{bound.where}: it has no scale_o: real sequences are not simulated")
        return o
    if o is not None and o != h:
        raise ModelError(
            f"{bound.where}: scale_o = {o:g}, scale_h = {h:g}: the training side leaves its output at scale_h, so that "
            "what follows reads other numbers than were trained; export with equal scales, or use arithmetic='executor'"
        )
    return h


def cell_scale(bound: Bound) -> float:
    """Return the scale of the cell that comes out."""
    return 2.0**14 if _first(bound) else 2.0**15


def _sums(bound: Bound, bits: int) -> dict[str, Any]:
    """Return the rescalings of both sums to `bits` fractional bits."""
    from simulator.fixed import Rescale

    rescales = {}
    for key, exponent in zip(("rescale_x", "rescale_h"), _sum_exponents(bound), strict=True):
        rescales[key] = Rescale.from_shift(exponent - bits, 32)
    return rescales


def _sum_exponents(bound: Bound) -> tuple[int, int]:
    a: Attributes = bound.attrs
    x, h = (
        sum(bound.exponent(key, number(a, key)) for key in keys)
        for keys in (("scale_x", "scale_iw"), ("scale_h", "scale_hw"))
    )
    return x, h


def lstm(bound: Bound, how: Lstm, parts: Mapping[str, Any]) -> SimulatorKernel:
    """Return the kernel of an LSTM; `parts` is what every recurrent kernel takes."""
    from simulator.fixed import Rescale
    from simulator.kernels import Lstm as Kernel
    from simulator.kernels import TrainedLstm

    arithmetic, table = how.form.value, how.table.value
    q, bits = bound.exponent("scale_o", state_scale(bound)), integer(bound.attrs, "o_bits", 8)
    forward = bool(bound.attrs["go_forward"])
    if how.form is LstmForm.Q27:
        return Kernel(
            **parts,
            **_sums(bound, 27),
            rescale_o=Rescale.from_shift(30 - q, bits),
            forward=forward,
            arithmetic=arithmetic,
            table=table,
        )
    product = TrainedLstm.formats[arithmetic][0]
    return TrainedLstm(
        **parts,
        **_sums(bound, 11),
        rescale_o=Rescale.from_shift(product - q, bits),
        forward=forward,
        arithmetic=arithmetic,
        table=table,
        again=_again(bound),
    )


def gru(bound: Bound, how: Gru, parts: Mapping[str, Any]) -> SimulatorKernel:
    """Return the kernel of a GRU."""
    from simulator.fixed import Rescale
    from simulator.kernels import TrainedGru

    q, bits = bound.exponent("scale_o", state_scale(bound)), integer(bound.attrs, "o_bits", 8)
    common = max(_sum_exponents(bound))
    fraction = {GruForm.BEFORE: 27, GruForm.COMMON: common}.get(how.form, 11)
    return TrainedGru(
        **parts,
        **_sums(bound, fraction),
        rescale_o=Rescale.from_shift(14 - q, bits),
        forward=bool(bound.attrs["go_forward"]),
        arithmetic=how.form.value,
        table=how.table.value,
        again=_again(bound),
        scale=q,
        sums=fraction if how.form is GruForm.COMMON else 27,
    )


def _again(bound: Bound) -> Rescale:
    """Return what becomes of the output before the next step multiplies it."""
    from simulator.fixed import Rescale

    a = bound.attrs
    exponent = math.frexp(state_scale(bound))[1] - math.frexp(number(a, "scale_h"))[1]
    return Rescale.from_shift(exponent, integer(a, "data_bits", 8) if _first(bound) else integer(a, "o_bits", 8))
