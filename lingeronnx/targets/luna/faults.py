"""What executors are known to do wrong, and what the quantizer does about it, as a member and a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType

__all__ = ["LunaFault", "build_unsupported_reasons"]


class LunaFault(Enum):
    """A fault of an executor.

    key : its short name in reports and docs/numerics.md; two forms of one fault share it. text :
    what users read.
    """

    def __init__(self, key: str, text: str) -> None:
        self.key, self.text = key, text

    CLIP = "clip", "Clip does not load: ReLU6 is made by saturation"
    SUB_PLACEMENT = (
        "sub-placement",
        (
            "iqSub subtracts from its own output unless all tensors are in external memory: on "
            "images it is written as "
            "an iqAdd of the negated operand"
        ),
    )
    ADD_EXTERNAL = (
        "add-external",
        (
            "iqAdd shifts its second operand wrong when only the output is in external memory and "
            "only the first "
            "operand has the output's scale: the operands are swapped"
        ),
    )
    AVGPOOL_SCALE = (
        "avgpool-scale",
        "average pooling is wrong where the scale changes: input and output get the same scale",
    )
    AVGPOOL_AREA = (
        "avgpool-area",
        (
            "a pooling window of more than 127 elements is divided by the wrong number: it stays in "
            "float"
        ),
    )
    AVGPOOL_GLOBAL = (
        "avgpool-global",
        "a global average overflows its workspace for most sizes: it is computed in steps",
    )
    CAT_SCALE = (
        "cat-scale",
        (
            "iqCat gives zeros for an input of a larger scale than the output's: all get the same "
            "scale, or the input "
            "is requantized first"
        ),
    )
    CONV1D = (
        "conv1d",
        "Conv1dInt pads and dilates the wrong axis: it is written as a Conv2dInt of height 1",
    )
    DEPTHWISE_MULTIPLIER = (
        "depthwise-multiplier",
        "a depthwise convolution with more outputs than inputs is wrong: it stays in float",
    )
    LINEAR_ROWS = (
        "linear-rows",
        (
            "LinearInt of several rows mixes them up when its output is in shared memory: the "
            "packer is told to place "
            "it elsewhere"
        ),
    )
    NORM_PLACEMENT = (
        "norm-placement",
        (
            "LayerNormInt writes past its workspace unless its tensors are in external memory: the "
            "packer is told to "
            "place them there"
        ),
    )
    NORM_RANK = (
        "norm-rank",
        (
            "LayerNormInt takes its number of rows from the rank: where there is no axis of rows it "
            "gets one"
        ),
    )
    NORM_SHORT = (
        "norm-short",
        (
            "LayerNormInt mixes up lines of fewer than 4 elements: each is normalized several times "
            "side by side"
        ),
    )
    NORM_AREA = (
        "norm-area",
        (
            "LayerNormInt writes past its work area: where no placement helps, a BatchNorm2dInt "
            "that changes nothing "
            "makes the area large enough"
        ),
    )
    AFFINE_PLACEMENT = (
        "affine-placement",
        (
            "BatchNorm2dInt stops unless its tensors are in shared memory: a LinearInt that it "
            "reads and that cannot "
            "write there is cut into parts, which are joined there"
        ),
    )
    PRELU = "prelu", "PRelu is not on the device's list: it is written as other operators"
    LUT_SCALE = (
        "lut-scale",
        "iqSigmoid and iqTanh read a scale below 2^11 as 2^11: their input gets a larger scale",
    )
    LUT_CONSTANT = (
        "lut-constant",
        "iqSigmoid gives 1/2 for every input: a sigmoid is written as GluInt",
    )
    TANH = "tanh", "iqTanh reads int16 as int32: it stays in float"
    SOFTMAX = "softmax", "SoftmaxInt is a routine that could not be measured: it stays in float"
    LOG_SOFTMAX = (
        "log-softmax",
        "LogSoftmaxInt takes the logarithm of another format: it stays in float",
    )
    LSTM_SQUARE = (
        "lstm-square",
        (
            "LSTMInt is right only where a sequence has as many steps as a step has elements: a "
            "linear layer adds "
            "zeros to the shorter axis"
        ),
    )
    GRU_HALVED = "gru", "GRUInt halves its state in every step and ignores the direction"
    GRU_FORMAT = "gru", "GRUInt hands its gates sums of another format, so that they hardly move"
    PAD_MODES = (
        "pad-modes",
        "iqPad swaps its modes reflect and replicate: only constant padding is written",
    )
    TRANSPOSE = (
        "transpose",
        "the transposes [0,2,1,3] and [0,3,2,1] crash: each is written as two others",
    )
    UNUSED_INPUT = (
        "unused-input",
        "a graph with an input that nobody reads does not pack: the input is left out",
    )
    NO_CONSTANT = (
        "no-constant",
        "a graph without a weight does not pack: it gets an identity convolution",
    )
    INPUT_TWICE = (
        "input-twice",
        "a node that reads a graph input in several operands does not pack: they read a copy",
    )
    SHARED_CONSTANTS = (
        "shared-constants",
        (
            "constants come out wrong where nodes share some of them but not all: each node gets a "
            "copy"
        ),
    )
    PAD_READERS = (
        "pad-readers",
        "an iqPad that several nodes read is wrong: each gets one of its own",
    )
    PRE_PAD = (
        "pre-pad",
        (
            "a convolution with fewer channels than rows of its kernel, or with a map lower than "
            "its kernel is wide, "
            "gets its padding moved into the tensor that it reads, for all who read it: it reads a "
            "copy"
        ),
    )
    LSTM_AREA = (
        "lstm-area",
        (
            "LSTMInt writes past its work area: a fully connected layer that changes nothing makes "
            "the "
            "area large enough"
        ),
    )
    LSTM_ODD = (
        "lstm-odd",
        "LSTMInt of an odd number of units is wrong: it gets one more, whose weights are zero",
    )
    LSTM_STATE = (
        "lstm-state",
        (
            "LSTMInt writes its last state in 32 bits where 8 are planned: its output is split and "
            "joined again, which "
            "leaves room"
        ),
    )
    SOFTMAX_AREA = (
        "softmax-area",
        (
            "SoftmaxInt writes past its work area: it takes some rows at a time, behind an iqCat "
            "that makes the area "
            "large enough"
        ),
    )
    LINEAR_AREA = (
        "linear-area",
        (
            "LinearInt of several rows writes past its work area: it is cut into parts of its "
            "outputs where no other "
            "node plans as much"
        ),
    )
    DIV_SCALE = "div-scale", "iqDiv ignores all scales: it is not written"
    NARROW_WEIGHTS = (
        "narrow-weights",
        (
            "4-bit weights are right in convolutions and some fully connected layers only, of "
            "sizes that fill the bytes"
            " planned for them: kernels get zeros, layers become 1x1 convolutions, all others stay "
            "at 8 bits"
        ),
    )
    BATCH = (
        "batch",
        "only the first of several samples is computed: graphs are written for one sample",
    )


#: Fault -> the operator that is not in a chip's list, or not written, because of it.
_OPERATOR_DISABLED_BY = {
    LunaFault.CLIP: "Clip",
    LunaFault.CONV1D: "Conv1dInt",
    LunaFault.PRELU: "PRelu",
    LunaFault.DIV_SCALE: "iqDiv",
    LunaFault.TANH: "iqTanh",
    LunaFault.SOFTMAX: "SoftmaxInt",
    LunaFault.LOG_SOFTMAX: "LogSoftmaxInt",
    LunaFault.LUT_CONSTANT: "iqSigmoid",
    LunaFault.GRU_HALVED: "GRUInt",
    LunaFault.GRU_FORMAT: "GRUInt",
}


def build_unsupported_reasons(faults: Iterable[LunaFault]) -> Mapping[str, str]:
    """Return {operator: why a chip with these faults does not have it, or it is not written}."""
    return MappingProxyType(
        {
            _OPERATOR_DISABLED_BY[fault]: fault.text
            for fault in faults
            if fault in _OPERATOR_DISABLED_BY
        }
    )
