"""Kernels of recurrent layers in the arithmetic of the training software.

The LSTM variant Q27 is identical to the executor; for the others see
`simulator.kernels.recurrent.training_rnn`. The recurrent state has scale_h. In dialect v3 the
output has this scale too, whatever scale_o is; a graph with different values of scale_o and scale_h
does not compute the trained function and is rejected. In dialect v1 (Q7) the output has scale_o and
is requantized to scale_h for the next step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...common.errors import ModelError
from ...ir.attributes import get_int, get_number
from ...targets.arithmetic import (
    GruArithmetic,
    GruVariant,
    LstmArithmetic,
    LstmFormat,
    RecurrentArithmetic,
)
from .._kernel_info import KernelInfo

if TYPE_CHECKING:
    from simulator.fixed_point import Rescale
    from simulator.kernel import Kernel as SimulatorKernel

__all__ = ["cell_scale", "get_sum_exponents", "make_gru_kernel", "make_lstm_kernel", "state_scale"]


def _is_dialect_v1(info: KernelInfo) -> bool:
    """Whether the node is computed as by the training software of dialect v1 (format Q7)."""
    arithmetic = info.expect_arithmetic(RecurrentArithmetic)
    if isinstance(arithmetic, LstmArithmetic):
        return arithmetic.form is LstmFormat.Q7
    return isinstance(arithmetic, GruArithmetic) and arithmetic.form is GruVariant.Q7


def state_scale(info: KernelInfo) -> float:
    """Return the scale of output and last hidden state of a recurrent layer in training software.

    It is scale_o in dialect v1, else scale_h.

    Raises
    ------
    ModelError
        If dialect v1 has no scale_o, or scale_o and scale_h of dialect v3 differ.
    """
    o = None if info.attributes["scale_o"] is None else get_number(info.attributes, "scale_o")
    h = get_number(info.attributes, "scale_h")
    if _is_dialect_v1(info):
        if o is None:
            raise ModelError(
                f"{info.label}: it has no scale_o; float output sequences are not simulated"
            )
        return o
    if o is not None and o != h:
        raise ModelError(
            f"{info.label}: scale_o = {o:g}, scale_h = {h:g}; the training software outputs "
            "scale_h, so the downstream nodes would get other values than in training: export with "
            "equal scales, or use arithmetic='executor'"
        )
    return h


def cell_scale(info: KernelInfo) -> float:
    """Return the scale of the cell output of an LSTM in training software.

    It is 2^14 in dialect v1, else 2^15.
    """
    return 2.0**14 if _is_dialect_v1(info) else 2.0**15


def _make_sum_rescales(info: KernelInfo, bits: int) -> dict[str, Any]:
    """Return the rescalings of the sums over input and state to `bits` fractional bits, in 32 bits.

    Keys are "rescale_x" and "rescale_h". Raises ModelError if a scale is not a power of two.
    """
    from simulator.fixed_point import Rescale

    rescales = {}
    for key, exponent in zip(("rescale_x", "rescale_h"), get_sum_exponents(info), strict=True):
        rescales[key] = Rescale.from_shift(exponent - bits, 32)
    return rescales


def get_sum_exponents(info: KernelInfo) -> tuple[int, int]:
    """Return log2 of the scales of the sums over input and recurrent state.

    These are scale_x * scale_iw and scale_h * scale_hw; ModelError if a scale is not a power of
    two.
    """
    exponents = {}
    for key in ("scale_x", "scale_iw", "scale_h", "scale_hw"):
        exponents[key] = info.require_exponent(key, get_number(info.attributes, key))
    return exponents["scale_x"] + exponents["scale_iw"], exponents["scale_h"] + exponents[
        "scale_hw"
    ]


def make_lstm_kernel(
    info: KernelInfo, arithmetic: LstmArithmetic, common_fields: Mapping[str, Any]
) -> SimulatorKernel:
    """Return the simulator kernel of an LSTM as the training software computes it.

    Parameters
    ----------
    info
        The node.
    arithmetic
        Arithmetic of the target; format Q27 gives the kernel of the executor.
    common_fields
        Fields that all recurrent kernels have in common, by name.
    """
    from simulator.fixed_point import Rescale
    from simulator.kernels import Lstm as Kernel
    from simulator.kernels import TrainedLstm

    form, table = arithmetic.form.value, arithmetic.table.value
    exponent = info.require_exponent("scale_o", state_scale(info))
    bits = get_int(info.attributes, "o_bits", 8)
    is_forward = bool(info.attributes["go_forward"])
    if arithmetic.form is LstmFormat.Q27:
        return Kernel(
            **common_fields,
            **_make_sum_rescales(info, 27),
            rescale_o=Rescale.from_shift(30 - exponent, bits),
            is_forward=is_forward,
            arithmetic=form,
            table=table,
        )
    product_fraction_bits = TrainedLstm.fraction_bits[form][0]
    return TrainedLstm(
        **common_fields,
        **_make_sum_rescales(info, 11),
        rescale_o=Rescale.from_shift(product_fraction_bits - exponent, bits),
        is_forward=is_forward,
        arithmetic=form,
        table=table,
        feedback_rescale=_make_feedback_rescale(info),
    )


def make_gru_kernel(
    info: KernelInfo, arithmetic: GruArithmetic, common_fields: Mapping[str, Any]
) -> SimulatorKernel:
    """Return the simulator kernel of a GRU as the training software computes it.

    `info` is the node, `arithmetic` that of the target; `common_fields` are the fields that all
    recurrent kernels share. Sums have 27 fractional bits in variant BEFORE, the larger exponent of
    both sums in COMMON, else 11.
    """
    from simulator.fixed_point import Rescale
    from simulator.kernels import TrainedGru

    exponent = info.require_exponent("scale_o", state_scale(info))
    bits = get_int(info.attributes, "o_bits", 8)
    common_exponent = max(get_sum_exponents(info))
    fraction_bits_by_form = {GruVariant.BEFORE: 27, GruVariant.COMMON: common_exponent}
    fraction_bits = fraction_bits_by_form.get(arithmetic.form, 11)
    return TrainedGru(
        **common_fields,
        **_make_sum_rescales(info, fraction_bits),
        rescale_o=Rescale.from_shift(14 - exponent, bits),
        is_forward=bool(info.attributes["go_forward"]),
        arithmetic=arithmetic.form.value,
        table=arithmetic.table.value,
        feedback_rescale=_make_feedback_rescale(info),
        scale=exponent,
        sums=fraction_bits if arithmetic.form is GruVariant.COMMON else 27,
    )


def _make_feedback_rescale(info: KernelInfo) -> Rescale:
    """Return the rescaling of the output to scale_h, for the recurrent product of the next step.

    It has data_bits in dialect v1, else o_bits, 8 if absent.
    """
    from simulator.fixed_point import Rescale

    a = info.attributes
    shift = math.frexp(state_scale(info))[1] - math.frexp(get_number(a, "scale_h"))[1]
    return Rescale.from_shift(
        shift, get_int(a, "data_bits" if _is_dialect_v1(info) else "o_bits", 8)
    )
