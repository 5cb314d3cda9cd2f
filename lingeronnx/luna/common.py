"""Support rows, faults and attributes that the LUNA chips share (executor 3.0.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from ..targets._target import OperatorSupport, make_support_rows
from ..targets.arithmetic import (
    AddArithmetic,
    AddOperandPrecision,
    Arithmetic,
    AverageDivisor,
    AveragePoolArithmetic,
    ConcatArithmetic,
    DivArithmetic,
    GluArithmetic,
    LayerArithmetic,
    LayerNormArithmetic,
    LeftShiftBehavior,
    LutArithmetic,
    MulArithmetic,
    PadArithmetic,
    QuantArithmetic,
    QuantFloatPrecision,
    RequantArithmetic,
    Requantization,
    SoftmaxArithmetic,
)
from ..targets.limits import (
    BinaryOperandLimits,
    LayerNormLimits,
    MatrixLimits,
    SliceLimits,
    SoftmaxLimits,
    TransposeLimits,
)
from .faults import LunaFault
from .packer_profile import Int4Support, PackerProfile

__all__ = [
    "ADD_MODE_ATTRIBUTES",
    "ARCS_VENUSA_ATTRIBUTES",
    "ARCS_VENUSA_FAULTS",
    "COMMON_FAULTS",
    "EXECUTOR_VERSION",
    "LEFT_SHIFT",
    "NO_LEFT_SHIFT",
    "REJECT_LEFT_SHIFT",
    "SCALE_EXPONENT_RANGE",
    "SIMULATED_ONLY_OPS",
    "SOFTMAX_LIMITS",
    "ZERO_ON_LEFT_SHIFT",
    "make_add_ops",
    "make_average_pool_ops",
    "make_common_ops",
    "make_layer_norm_ops",
    "make_layer_ops",
]

EXECUTOR_VERSION = "3.0.4"
SCALE_EXPONENT_RANGE = (-3, 16)

#: How the executor handles a left shift, which the quantizer never emits.
NO_LEFT_SHIFT = Requantization(shifts=True, left=LeftShiftBehavior.UNSHIFTED)
LEFT_SHIFT = Requantization(shifts=True)
REJECT_LEFT_SHIFT = Requantization(shifts=True, left=LeftShiftBehavior.REFUSED)
ZERO_ON_LEFT_SHIFT = Requantization(shifts=True, left=LeftShiftBehavior.ZERO)

#: A row of T elements: T^2 * 128^2 must stay below 2^31.
_LAYER_NORM_LIMITS = LayerNormLimits(max_length=361, max_axes=2, epsilon=1e-5, lines=True)
SOFTMAX_LIMITS = SoftmaxLimits(max_length=2048)


#: Largest tensor that one Transpose permutes. Larger rotations crash on venus, where other larger
#: permutations were not measured; on the other chips they are correct in shared memory only.
_MAX_TRANSPOSE_BYTES = 65536


def make_common_ops(
    profile: PackerProfile, *, zeroes_larger_scales: bool = False
) -> dict[str, OperatorSupport]:
    """Build operator -> support for the operators that are correct on all three chips.

    Parameters
    ----------
    profile : PackerProfile
        Packer profile of the chip.
    zeroes_larger_scales : bool
        Whether iqCat returns zeros for inputs of a larger scale than its output's.
    """
    unsupported_perms = (
        profile.transpose.crashing_perms + profile.transpose.wrong_between_convolutions
    )
    return {
        **make_support_rows(
            QuantArithmetic(NO_LEFT_SHIFT, QuantFloatPrecision.PRODUCT, max_bits=16), "Quant"
        ),
        **make_support_rows(
            Arithmetic(),
            "Dequant",
            "Relu",
            "Reshape",
            "Flatten",
            "Squeeze",
            "Unsqueeze",
            "Split",
            "Gather",
            "Tile",
            "Expand",
            "ArgMax",
        ),
        **make_support_rows(RequantArithmetic(LEFT_SHIFT, wraps=True), "Requant"),
        **make_support_rows(
            ConcatArithmetic(LEFT_SHIFT, zeroes_larger_scales=zeroes_larger_scales), "iqCat"
        ),
        **make_support_rows(
            Arithmetic(),
            "Transpose",
            limits=TransposeLimits(
                max_rank=4, unsupported_perms=unsupported_perms, max_bytes=_MAX_TRANSPOSE_BYTES
            ),
        ),
        **make_support_rows(Arithmetic(), "Slice", limits=SliceLimits(steps=(1,))),
        "LinearInt": OperatorSupport(
            LayerArithmetic(REJECT_LEFT_SHIFT),
            MatrixLimits(rank=3),
            weight_bits=_get_narrow_weight_bits(profile, "LinearInt"),
        ),
        **make_support_rows(
            LayerArithmetic(REJECT_LEFT_SHIFT), "BmmInt", limits=MatrixLimits(rank=3)
        ),
        **make_support_rows(
            MulArithmetic(REJECT_LEFT_SHIFT),
            "iqMul",
            limits=BinaryOperandLimits(supports_per_channel=True),
        ),
    }


def _get_narrow_weight_bits(profile: PackerProfile, operator: str) -> tuple[int, ...]:
    """Return (4,) if the packer stores 4-bit weights of `operator` two in a byte, else ()."""
    return (4,) if profile.narrow.get(operator) is Int4Support.PACKED else ()


def make_layer_ops(
    requantize: Requantization, profile: PackerProfile
) -> dict[str, OperatorSupport]:
    """Build operator -> support for 2-D convolutions, BatchNorm2dInt and MaxPool.

    `requantize` says how their sums are rescaled; a Conv2dInt writes saturated int8, whatever its
    `o_bits` is.
    """
    convolution = LayerArithmetic(replace(requantize, bits=8))
    return {
        "Conv2dInt": OperatorSupport(
            convolution, profile.conv, weight_bits=_get_narrow_weight_bits(profile, "Conv2dInt")
        ),
        **make_support_rows(LayerArithmetic(requantize), "ConvTranspose2dInt"),
        **make_support_rows(LayerArithmetic(requantize), "BatchNorm2dInt"),
        **make_support_rows(Arithmetic(), "MaxPool", limits=profile.pool),
    }


def make_add_ops(
    requantize: Requantization, *, can_shift_either: bool
) -> dict[str, OperatorSupport]:
    """Build operator -> support for iqAdd and iqSub of equal shapes, without 4-D tensors.

    Parameters
    ----------
    requantize : Requantization
        How operands are rescaled.
    can_shift_either : bool
        Whether either operand may be the one that is shifted; otherwise only the first.
    """
    limits = BinaryOperandLimits(supports_images=False, can_shift_either=can_shift_either)
    return make_support_rows(
        AddArithmetic(requantize, AddOperandPrecision.INT8), "iqAdd", "iqSub", limits=limits
    )


def make_average_pool_ops(profile: PackerProfile) -> dict[str, OperatorSupport]:
    """Return {"AvgPool2dInt": its support} for arcs and venusA."""
    return make_support_rows(
        AveragePoolArithmetic(NO_LEFT_SHIFT, AverageDivisor.AREA),
        "AvgPool2dInt",
        limits=profile.pool,
    )


#: Arithmetic of operators that a chip does not support, for simulating graphs that contain them.
#: None of it was measured.
SIMULATED_ONLY_OPS: Mapping[str, Arithmetic] = MappingProxyType(
    {
        "Conv1dInt": LayerArithmetic(NO_LEFT_SHIFT),
        **dict.fromkeys(("Clip", "Resize", "ShuffleChannel", "iqTable"), Arithmetic()),
        "iqPad": PadArithmetic(NO_LEFT_SHIFT),
        "iqDiv": DivArithmetic(NO_LEFT_SHIFT),
        "iqTanh": LutArithmetic(NO_LEFT_SHIFT),
        "GluInt": GluArithmetic(NO_LEFT_SHIFT),
        "LogSoftmaxInt": SoftmaxArithmetic(NO_LEFT_SHIFT),
    }
)

_NON_T710_MODE = MappingProxyType({"mode": "Non_t710_mode"})
ADD_MODE_ATTRIBUTES = {"iqAdd": _NON_T710_MODE, "iqSub": _NON_T710_MODE}
ARCS_VENUSA_ATTRIBUTES = {
    **ADD_MODE_ATTRIBUTES,
    "LSTMInt": MappingProxyType({"batch_first": 0}),  # their layout is nevertheless [1, T, I]
}

COMMON_FAULTS = (
    LunaFault.CLIP,
    LunaFault.SUB_PLACEMENT,
    LunaFault.AVGPOOL_SCALE,
    LunaFault.NORM_PLACEMENT,
    LunaFault.NORM_RANK,
    LunaFault.NORM_AREA,
    LunaFault.PRELU,
    LunaFault.UNUSED_INPUT,
    LunaFault.INPUT_TWICE,
    LunaFault.NO_CONSTANT,
    LunaFault.SHARED_CONSTANTS,
    LunaFault.MUL_AREA,
    LunaFault.MUL_POSITION,
    LunaFault.RESHAPED_OUTPUT,
    LunaFault.GROUPS_OF_ONE_INPUT,
)
ARCS_VENUSA_FAULTS = (
    *COMMON_FAULTS,
    LunaFault.AVGPOOL_GLOBAL,
    LunaFault.GRU_FORMAT,
    LunaFault.ADD_EXTERNAL,
    LunaFault.AFFINE_PLACEMENT,
    LunaFault.BATCH,
    LunaFault.LEFT_OVER_ROWS,
    LunaFault.NARROW_WEIGHTS,
)


def make_layer_norm_ops(
    gamma_bits: int | None = None, min_length: int = 1
) -> dict[str, OperatorSupport]:
    """Return {"LayerNormInt": its support} for one chip.

    Parameters
    ----------
    gamma_bits : int, optional
        Width of the scale factor that the packer requires.
    min_length : int
        Fewest elements of a row that is computed correctly.
    """
    return make_support_rows(
        LayerNormArithmetic(NO_LEFT_SHIFT, gamma_bits),
        "LayerNormInt",
        limits=replace(_LAYER_NORM_LIMITS, min_length=min_length),
    )
