"""What executors are known to do wrong, with what the quantizer makes of it: asked for by member, told as text."""

from __future__ import annotations

from enum import Enum

__all__ = ["Fault"]


class Fault(Enum):
    """A fault of an executor. key : its short name in reports and docs/numerics.md; two forms of one share it."""

    def __init__(self, key: str, text: str) -> None:
        self.key, self.text = key, text

    CLIP = "clip", "Clip does not load: ReLU6 is made by saturation"
    SUB_PLACEMENT = (
        "sub-placement",
        (
            "iqSub subtracts from its own output unless all tensors are in external memory: on images the negated "
            "operand is added instead"
        ),
    )
    ADD_EXTERNAL = (
        "add-external",
        (
            "iqAdd shifts its second operand wrong when only the output is in external memory and only the first "
            "operand has the output's scale: the operands are swapped"
        ),
    )
    AVGPOOL_SCALE = "avgpool-scale", "average pooling mishandles a change of scale: scales are tied"
    AVGPOOL_AREA = (
        "avgpool-area",
        "a pooling window of more than 127 elements is divided by the wrong number: left in float",
    )
    AVGPOOL_GLOBAL = "avgpool-global", "a global average overflows its workspace for most sizes: it is done in steps"
    CAT_SCALE = (
        "cat-scale",
        (
            "iqCat gives zeros for an input of a larger scale than the output's: scales are tied, or the input is "
            "requantized first"
        ),
    )
    CONV1D = "conv1d", "Conv1dInt pads and dilates the wrong axis: it is written as a Conv2dInt of height 1"
    DEPTHWISE_MULTIPLIER = (
        "depthwise-multiplier",
        "a depthwise convolution with more outputs than inputs is wrong: left in float",
    )
    LINEAR_ROWS = "linear-rows", "LinearInt of several rows scrambles them when its output is in shared memory"
    NORM_PLACEMENT = (
        "norm-placement",
        ("LayerNormInt writes beyond its workspace unless its tensors are in external memory: the packer is told so"),
    )
    PRELU = "prelu", "PRelu is not on the device's list: it is put together from other operators"
    LUT_SCALE = "lut-scale", "iqSigmoid and iqTanh read a scale below 2^11 as 2^11: they are fed a larger one"
    LUT_CONSTANT = "lut-constant", "iqSigmoid gives 1/2 whatever it reads: sigmoid is made by GluInt"
    TANH = "tanh", "iqTanh reads int16 as int32: left in float"
    SOFTMAX = "softmax", "SoftmaxInt is a routine that could not be measured: left in float"
    LOG_SOFTMAX = "log-softmax", "LogSoftmaxInt takes the logarithm of another format: left in float"
    LSTM_SQUARE = (
        "lstm-square",
        (
            "LSTMInt is right only where a sequence has as many steps as a step has elements: a linear layer adds "
            "what is missing"
        ),
    )
    GRU_HALVED = "gru", "GRUInt halves its state in every step and ignores the direction"
    GRU_FORMAT = "gru", "GRUInt feeds its gates sums of another format: they hardly move"
    PAD_MODES = "pad-modes", "iqPad swaps its modes reflect and replicate: only constant padding is written"
    TRANSPOSE = "transpose", "the transposes [0,2,1,3] and [0,3,2,1] crash: each is made by two others"
    UNUSED_INPUT = "unused-input", "a graph with an input that nobody reads does not pack: the input is left out"
    NO_CONSTANT = "no-constant", "a graph without a weight does not pack: it gets an identity convolution"
    SHARED_CONSTANTS = (
        "shared-constants",
        "constants that nodes share in part come out wrong: each gets a copy",
    )
    PAD_READERS = "pad-readers", "an iqPad that several nodes read is wrong: each gets one of its own"
    PRE_PAD = (
        "pre-pad",
        (
            "the padding of a convolution with fewer channels than rows of its kernel, or a map lower than its kernel "
            "is wide, is moved to what it reads, for all readers: it reads a copy"
        ),
    )
    LSTM_AREA = (
        "lstm-area",
        "LSTMInt writes beyond its work area: a fully connected layer that changes nothing makes it large enough",
    )
    LSTM_STATE = (
        "lstm-state",
        "LSTMInt writes its last state in 32 bits where 8 are planned: what it gives is cut and joined, to leave room",
    )
    SOFTMAX_AREA = (
        "softmax-area",
        (
            "SoftmaxInt writes beyond its work area: it takes some rows at a time, behind an iqCat that makes the area "
            "large enough"
        ),
    )
    LINEAR_AREA = (
        "linear-area",
        (
            "LinearInt of several rows writes beyond its work area: it is cut over its outputs where no other node "
            "plans as much"
        ),
    )
    DIV_SCALE = "div-scale", "iqDiv ignores all scales: not written"
    BATCH = "batch", "more than one sample: only the first is computed; graphs are written for one"
