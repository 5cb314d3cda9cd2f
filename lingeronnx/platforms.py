"""The platforms as rows of data: limits, operators, algorithms, known faults.

Nothing outside this file may compare a platform's name; code asks the row. What the numbers mean is told by the
constraints in `ops`, whose one-line rules are filled in from these rows. Adding a chip adds a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from . import packing
from .errors import ConfigError, nearest
from .packing import ConvPacking, PoolPacking

__all__ = ["PLATFORMS", "Platform", "platform"]


@dataclass(frozen=True)
class Platform:
    """One target: a chip with its executor, or the generic one.

    ops maps the integer operators the target runs right to the algorithm that computes them there; training does so
    for what a graph means to the software it was trained with.
    """

    name: str
    executor: str
    title: str
    modes: tuple[str, ...]
    bits: tuple[int, ...]
    ops: Mapping[str, str]
    chip: bool  # a real chip: batch 1, vendor packer
    out_bits: tuple[int, ...] = (8,)  # of a fully connected layer whose output leaves the integers
    exponents: tuple[int, int] = (-126, 126)  # of activations' power-of-two scales
    max_transpose_rank: int | None = None
    shared_memory: int | None = None  # bytes
    external_memory: int | None = None
    packing: packing.Packing | None = None  # what the packer takes, None where there is none
    packer: str = ""  # the packer's call, {model} to fill in
    node_attributes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # "" = every integer node
    faults: Mapping[str, str] = field(default_factory=dict)  # key -> what the executor does wrong
    #: Generation of graphs -> operator -> the algorithm of the software that such graphs are trained with.
    training: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def power_of_two(self) -> bool:
        """Whether the target takes power-of-two scales only."""
        return self.modes == ("q-value",)

    @property
    def conv(self) -> ConvPacking | None:
        """What the packer takes of convolutions; None where there is no packer."""
        return None if self.packing is None else self.packing.conv

    @property
    def pool(self) -> PoolPacking | None:
        """What the packer takes of pools, likewise."""
        return None if self.packing is None else self.packing.pool

    @property
    def broken_transposes(self) -> tuple[tuple[int, ...], ...]:
        """Permutations that are not written: each is made by two others."""
        return () if self.packing is None else self.packing.move.broken + self.packing.move.between_convolutions

    def runs(self, operator: str) -> bool:
        """Whether the integer operator is in this row's list."""
        return operator in self.ops


# ---- what networks are trained with ------------------------------------------------------------------------------

_MOVES = ("Relu", "MaxPool", "Clip", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split",
          "Gather", "Tile", "Expand")  # fmt: skip

#: What both generations compute alike, on every chip: exact sums, one rounding.
_TRAINED = dict.fromkeys(
    ("Quant", "Dequant", "Conv2dInt", "Conv1dInt", "ConvTranspose2dInt", "LinearInt", "BmmInt", "BatchNorm2dInt",
     "iqAdd", "iqMul", "iqCat", "AvgPool2dInt", "LayerNormInt", *_MOVES), "train",
)  # fmt: skip

#: The first generation knew one chip; for others it has no curves.
_TRAINED_FIRST = {**_TRAINED, **dict.fromkeys(("Requant", "iqPad", "iqDiv", "ShuffleChannel"), "train")}
_TRAINED_FIRST_VENUS = {
    **_TRAINED_FIRST,
    **dict.fromkeys(("iqSigmoid", "iqTanh"), "train-q11-venus"),
    "SoftmaxInt": "train-newton",
    **dict.fromkeys(("LSTMInt", "GRUInt"), "train-q7-venus"),
}

_TRAINED_THIRD = {**_TRAINED, "QGlobalAveragePool2d": "train"}


# ---- generic -----------------------------------------------------------------------------------------------------

_GENERIC_OPS = (
    "Quant", "Dequant", "Requant", "Conv2dInt", "Conv1dInt", "ConvTranspose2dInt", "LinearInt", "BmmInt",
    "BatchNorm2dInt", "iqAdd", "iqSub", "iqMul", "iqCat", "iqPad", "AvgPool2dInt", "MaxPool", "Relu", "Clip", "Reshape",
    "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather", "Tile", "Expand", "Resize",
    "LSTMInt", "GRUInt", "SoftmaxInt", "LogSoftmaxInt", "LayerNormInt", "iqTable",
)  # fmt: skip

GENERIC = Platform(
    name="generic",
    executor="",
    title="an idealised int8 NPU (docs/generic.md)",
    modes=("max-value", "q-value"),
    bits=(4, 8, 16),
    out_bits=(8, 16, 32),
    ops=MappingProxyType(dict.fromkeys(_GENERIC_OPS, "generic")),
    chip=False,
)

# ---- the vendor's chips, executor 3.0.4 --------------------------------------------------------------------------

#: What runs right on all three, and how. The word after "luna" says what becomes of a shift to the left.
_LUNA: Mapping[str, str] = {
    **dict.fromkeys(
        ("Quant", "Dequant", "Requant", "iqCat", "MaxPool", "Relu", "Reshape", "Flatten", "Transpose", "Squeeze",
         "Unsqueeze", "Slice", "Split", "Gather", "Tile", "Expand", "ArgMax"), "luna",
    ),
    **dict.fromkeys(("LinearInt", "BmmInt", "iqMul"), "luna-refuse"),
}  # fmt: skip

#: arcs and venusA: a convolution that would shift left gives zeros, a sum gives what is not defined.
_LUNA_LATER = {
    **_LUNA,
    **dict.fromkeys(("Conv2dInt", "ConvTranspose2dInt", "BatchNorm2dInt"), "luna-zero"),
    **dict.fromkeys(("iqAdd", "iqSub"), "luna-left"),
    "AvgPool2dInt": "luna",
}

_MODE = MappingProxyType({"mode": "Non_t710_mode"})
_MODES = {"iqAdd": _MODE, "iqSub": _MODE}
_LATER_MODES = {**_MODES, "LSTMInt": MappingProxyType({"batch_first": 0})}  # [1, T, I] is what these take for it

_COMMON_FAULTS = {
    "clip": "Clip does not load: ReLU6 is made by saturation",
    "sub-placement": "iqSub subtracts from its own output unless all tensors are in external memory: on images the "
    "negated operand is added instead",
    "avgpool-scale": "average pooling mishandles a change of scale: scales are tied",
    "norm-placement": "LayerNormInt writes beyond its workspace unless its tensors are in external memory: the "
    "packer is told so",
    "prelu": "PRelu is not on the device's list: it is put together from other operators",
    "unused-input": "a graph with an input that nobody reads does not pack: the input is left out",
    "no-constant": "a graph without a weight does not pack: it gets an identity convolution",
    "shared-constants": "constants that nodes share in part come out wrong: each gets a copy",
}
_LATER_FAULTS = {
    **_COMMON_FAULTS,
    "avgpool-global": "a global average overflows its workspace for most sizes: it is done in steps",
    "gru": "GRUInt feeds its gates sums of another format: they hardly move",
    "add-external": "iqAdd shifts its second operand wrong when only the output is in external memory and only the "
    "first operand has the output's scale: the operands are swapped",
    "batch": "more than one sample: only the first is computed; graphs are written for one",
}

VENUS = Platform(
    name="venus",
    executor="3.0.4",
    title="LISTENAI venus (LUNA NPU)",
    modes=("q-value",),
    bits=(8,),
    ops=MappingProxyType(
        {
            **_LUNA,
            **dict.fromkeys(("Conv2dInt", "Conv1dInt", "ConvTranspose2dInt", "BatchNorm2dInt"), "luna"),
            **dict.fromkeys(("iqAdd", "iqSub"), "luna-refuse"),
            "AvgPool2dInt": "luna-area8",
            "iqPad": "luna-swapped",
            **dict.fromkeys(("iqSigmoid", "iqTanh"), "luna-q11"),
            "SoftmaxInt": "luna-newton",
            "LSTMInt": "luna-q11-venus",
            "GRUInt": "luna-halved-venus",
            "LayerNormInt": "luna-wide",
            "ShuffleChannel": "luna",
        }
    ),
    chip=True,
    exponents=(-3, 16),
    max_transpose_rank=4,
    shared_memory=640 * 1024,
    external_memory=8 * 1024 * 1024,
    packing=packing.VENUS,
    packer="tpacker -g {model} -p venus -o {stem}.pkg",
    node_attributes=MappingProxyType({"": MappingProxyType({"platform_quant": "luna_quant"}), **_MODES}),
    faults=MappingProxyType(
        {
            **_COMMON_FAULTS,
            "avgpool-area": "a pooling window of more than 127 elements is divided by the wrong number: left in float",
            "lstm-square": "LSTMInt is right only where a sequence has as many steps as a step has elements: a linear "
            "layer adds what is missing",
            "gru": "GRUInt halves its state in every step and ignores the direction",
            "depthwise-multiplier": "a depthwise convolution with more outputs than inputs is wrong: left in float",
            "softmax": "SoftmaxInt is a routine that could not be measured: left in float",
            "lut-scale": "iqSigmoid and iqTanh read a scale below 2^11 as 2^11: they are fed a larger one",
            "lstm-area": "LSTMInt writes beyond its work area: a fully connected layer that changes nothing makes it "
            "large enough",
            "pad-readers": "an iqPad that several nodes read is wrong: each gets one of its own",
            "pre-pad": "the padding of a convolution with fewer channels than rows of its kernel, or a map lower than "
            "its kernel is wide, is moved to what it reads, for all readers: it reads a copy",
            "pad-modes": "iqPad swaps its modes reflect and replicate: only constant padding is written",
        }
    ),
    training=MappingProxyType(
        {
            1: MappingProxyType(_TRAINED_FIRST_VENUS),
            3: MappingProxyType(
                {
                    **_TRAINED_THIRD,
                    **dict.fromkeys(("iqSigmoid", "iqTanh"), "train-q11-venus"),
                    "SoftmaxInt": "train-newton",
                    "GluInt": "train-venus",
                    **dict.fromkeys(("LSTMInt", "GRUInt"), "train-q15-venus"),
                }
            ),
        }
    ),
)

ARCS = Platform(
    name="arcs",
    executor="3.0.4",
    title="LISTENAI arcs (LUNA NPU)",
    modes=("q-value",),
    bits=(8,),
    ops=MappingProxyType(
        {
            **_LUNA_LATER,
            "Conv1dInt": "luna-zero",
            "iqDiv": "luna",
            "iqSigmoid": "luna-q27",
            "SoftmaxInt": "luna-divide",
            "LSTMInt": "luna-q27-arcs",
            "GRUInt": "luna-joined-arcs",
            "LayerNormInt": "luna",
        }
    ),
    chip=True,
    exponents=(-3, 16),
    max_transpose_rank=4,
    shared_memory=384 * 1024,
    external_memory=8 * 1024 * 1024,
    packing=packing.ARCS,
    packer="tpacker -g {model} -p arcs -o {stem}.pkg",
    node_attributes=MappingProxyType(
        {
            "": MappingProxyType({"platform": "arcs", "platform_quant": "luna_quant", "quant_mode": "floor_add"}),
            **_LATER_MODES,
        }
    ),
    faults=MappingProxyType(
        {
            **_LATER_FAULTS,
            "tanh": "iqTanh reads int16 as int32: left in float",
            "log-softmax": "LogSoftmaxInt takes the logarithm of another format: left in float",
        }
    ),
    training=MappingProxyType(
        {
            1: MappingProxyType(_TRAINED_FIRST),
            3: MappingProxyType(
                {
                    **_TRAINED_THIRD,
                    **dict.fromkeys(("iqSigmoid", "iqTanh"), "train-q27-arcs"),
                    "SoftmaxInt": "train-divide",
                    "GluInt": "train-arcs",
                    "LSTMInt": "train-q27-arcs",
                    "GRUInt": "train-before-arcs",
                }
            ),
        }
    ),
)

VENUSA = Platform(
    name="venusA",
    executor="3.0.4",
    title="LISTENAI venusA (LUNA NPU)",
    modes=("q-value",),
    bits=(8,),
    ops=MappingProxyType(
        {
            **_LUNA_LATER,
            "iqCat": "luna-up",
            "iqDiv": "luna-unscaled",
            "GluInt": "luna",
            "iqSigmoid": "luna-constant",
            "SoftmaxInt": "luna-fused",
            "LSTMInt": "luna-q27-venusA",
            "GRUInt": "luna-apart-venusA",
            "LogSoftmaxInt": "luna-fused",
            "LayerNormInt": "luna",
        }
    ),
    chip=True,
    exponents=(-3, 16),
    max_transpose_rank=4,
    shared_memory=384 * 1024,
    external_memory=8 * 1024 * 1024,
    packing=packing.VENUSA,
    packer="tpacker -g {model} -p venusa -o {stem}.pkg",
    node_attributes=MappingProxyType(
        {
            "": MappingProxyType({"platform": "venusA", "platform_quant": "luna_quant", "quant_mode": "floor_add"}),
            **_LATER_MODES,
        }
    ),
    faults=MappingProxyType(
        {
            **_LATER_FAULTS,
            "lut-constant": "iqSigmoid gives 1/2 whatever it reads: sigmoid is made by GluInt",
            "tanh": "iqTanh reads int16 as int32: left in float",
            "conv1d": "Conv1dInt pads and dilates the wrong axis: it is written as a Conv2dInt of height 1",
            "cat-scale": "iqCat gives zeros for an input of a larger scale than the output's: scales are tied, or the "
            "input is requantized first",
            "transpose": "the transposes [0,2,1,3] and [0,3,2,1] crash: each is made by two others",
            "linear-rows": "LinearInt of several rows scrambles them when its output is in shared memory",
            "softmax-area": "SoftmaxInt writes beyond its work area: it takes some rows at a time, behind an iqCat "
            "that makes the area large enough",
            "linear-area": "LinearInt of several rows writes beyond its work area: it is cut over its outputs where "
            "no other node plans as much",
            "div-scale": "iqDiv ignores all scales: not written",
        }
    ),
    training=MappingProxyType(
        {
            1: MappingProxyType(_TRAINED_FIRST),
            3: MappingProxyType(
                {
                    **_TRAINED_THIRD,
                    **dict.fromkeys(("iqSigmoid", "iqTanh", "QGelu", "QSwish"), "train-q27-venusA"),
                    "SoftmaxInt": "train-fused",
                    "GluInt": "train-venusA",
                    "LSTMInt": "train-q27-venusA",
                    "GRUInt": "train-common-venusA",
                }
            ),
        }
    ),
)

PLATFORMS = (GENERIC, VENUS, ARCS, VENUSA)


def platform(name: str) -> Platform:
    """Return the row called `name`; ConfigError naming the nearest when there is none."""
    for row in PLATFORMS:
        if row.name == name:
            return row
    names = [row.name for row in PLATFORMS]
    raise ConfigError(f"unknown platform '{name}'{nearest(name, names)}; known: {', '.join(names)}")
