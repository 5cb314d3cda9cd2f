"""Known faults of the executors, and how the quantizer works around each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType

__all__ = ["LunaFault", "build_unsupported_reasons"]


class LunaFault(Enum):
    """A fault of an executor.

    Attributes
    ----------
    key
        Short name in reports and docs/reference/numerics.md; variants of one fault share it.
    text
        Description for users: the fault, then the workaround.
    """

    def __init__(self, key: str, text: str) -> None:
        """Set the short name `key` and the description `text` of the member."""
        self.key, self.text = key, text

    CLIP = "clip", "Clip does not load: ReLU6 is computed by saturation"
    SUB_PLACEMENT = (
        "sub-placement",
        (
            "iqSub subtracts from its own output unless all tensors are in external memory: for"
            " images it becomes an iqAdd of the negated operand"
        ),
    )
    ADD_EXTERNAL = (
        "add-external",
        (
            "iqAdd shifts its second operand incorrectly when only the output is in external "
            "memory and only the first operand has the output's scale: the operands are swapped"
        ),
    )
    AVGPOOL_SCALE = (
        "avgpool-scale",
        "average pooling is wrong if the scale changes: input and output get the same scale",
    )
    AVGPOOL_AREA = (
        "avgpool-area",
        "average pooling over more than 127 elements uses a wrong divisor: it stays in float",
    )
    AVGPOOL_GLOBAL = (
        "avgpool-global",
        "global average pooling overflows its workspace for most sizes: it is computed in steps",
    )
    CAT_SCALE = (
        "cat-scale",
        (
            "iqCat returns zeros for an input whose scale is larger than the output's: all "
            "inputs get the same scale, or the input is requantized first"
        ),
    )
    CONV1D = (
        "conv1d",
        "Conv1dInt pads and dilates the wrong axis: it becomes a Conv2dInt of height 1",
    )
    DEPTHWISE_MULTIPLIER = (
        "depthwise-multiplier",
        "depthwise convolutions with more outputs than inputs are wrong: they stay in float",
    )
    LINEAR_ROWS = (
        "linear-rows",
        (
            "LinearInt with several rows mixes them up if its output is in shared memory: the "
            "packer arguments place it elsewhere"
        ),
    )
    NORM_PLACEMENT = (
        "norm-placement",
        (
            "LayerNormInt writes past its workspace unless its tensors are in external memory: "
            "the packer arguments place them there"
        ),
    )
    NORM_RANK = (
        "norm-rank",
        "LayerNormInt derives its number of rows from the rank: inputs without a row axis get one",
    )
    NORM_SHORT = (
        "norm-short",
        (
            "LayerNormInt mixes up rows of fewer than 4 elements: each is normalized several "
            "times side by side"
        ),
    )
    NORM_AREA = (
        "norm-area",
        (
            "LayerNormInt writes past its work area: if no placement avoids this, an identity "
            "BatchNorm2dInt makes the area large enough"
        ),
    )
    AFFINE_PLACEMENT = (
        "affine-placement",
        (
            "BatchNorm2dInt stops unless its tensors are in shared memory: if the LinearInt "
            "that produces its input cannot write there, it is split and the parts are joined "
            "there"
        ),
    )
    PRELU = "prelu", "the executor does not support PRelu: it is replaced by other operators"
    LUT_SCALE = (
        "lut-scale",
        (
            "iqSigmoid and iqTanh treat an input scale below 2^11 as 2^11: their input gets a "
            "larger scale"
        ),
    )
    LUT_CONSTANT = (
        "lut-constant",
        "iqSigmoid returns 1/2 for every input: sigmoids become GluInt",
    )
    TANH = "tanh", "iqTanh reads int16 as int32: it stays in float"
    SOFTMAX = "softmax", "SoftmaxInt could not be measured: it stays in float"
    LOG_SOFTMAX = (
        "log-softmax",
        "LogSoftmaxInt takes the logarithm in a wrong number format: it stays in float",
    )
    LSTM_SQUARE = (
        "lstm-square",
        (
            "LSTMInt is correct only if the sequence length equals the input size: a linear "
            "layer pads the shorter axis with zeros"
        ),
    )
    GRU_HALVED = "gru", "GRUInt halves its state in every step and ignores the direction"
    GRU_FORMAT = (
        "gru",
        "GRUInt passes sums to its gates in a wrong number format, so that they hardly change",
    )
    PAD_MODES = (
        "pad-modes",
        "iqPad swaps its modes reflect and replicate: only constant padding is used",
    )
    TRANSPOSE = (
        "transpose",
        "the transposes [0,2,1,3] and [0,3,2,1] crash: each is replaced by two others",
    )
    UNUSED_INPUT = (
        "unused-input",
        "graphs with an unused input do not pack: the input is removed",
    )
    NO_CONSTANT = (
        "no-constant",
        "graphs without weights do not pack: an identity convolution is inserted",
    )
    INPUT_TWICE = (
        "input-twice",
        "nodes that read a graph input as several operands do not pack: they read a copy",
    )
    SHARED_CONSTANTS = (
        "shared-constants",
        "constants are wrong if nodes share some of them but not all: each node gets a copy",
    )
    PAD_READERS = (
        "pad-readers",
        "an iqPad with several consumers is wrong: each consumer gets its own",
    )
    PRE_PAD = (
        "pre-pad",
        (
            "a convolution with fewer channels than kernel rows, or with a map lower than its "
            "kernel is wide, has its padding moved into its input tensor, for all consumers: it"
            " reads a copy"
        ),
    )
    LSTM_AREA = (
        "lstm-area",
        (
            "LSTMInt writes past its work area: an identity fully connected layer makes the "
            "area large enough"
        ),
    )
    LSTM_STATE = (
        "lstm-state",
        (
            "LSTMInt writes its last state in 32 bits where 8 are planned: its output is split "
            "and joined again, which leaves enough space"
        ),
    )
    SOFTMAX_AREA = (
        "softmax-area",
        (
            "SoftmaxInt writes past its work area: it computes some rows at a time, after an "
            "iqCat that makes the area large enough"
        ),
    )
    LINEAR_AREA = (
        "linear-area",
        (
            "LinearInt with several rows writes past its work area: it is split by outputs "
            "unless another node plans an area as large"
        ),
    )
    MUL_AREA = (
        "mul-area",
        (
            "iqMul by one factor per channel writes past its work area: if no packer argument "
            "avoids this, an identity BatchNorm2dInt makes the area large enough"
        ),
    )
    MUL_POSITION = (
        "mul-area",
        ("iqMul of maps of one position writes past its output: they are multiplied as vectors"),
    )
    PAD_BYTES = (
        "pad-bytes",
        (
            "iqPad crashes above 65536 bytes, also one that the packer inserts: the map is padded "
            "in parts of channels"
        ),
    )
    AVGPOOL_CHANNELS = (
        "avgpool-channels",
        (
            "AvgPool2dInt over a large map divides its channels in another way than the packer: "
            "8 channels or a multiple of them are pooled at a time"
        ),
    )
    AVGPOOL_STRIDE = (
        "avgpool-stride",
        "average pooling with wide strides does not run: each window of a row is pooled alone",
    )
    LEFT_OVER_ROWS = (
        "left-over-rows",
        (
            "convolutions over large maps are wrong if a stride leaves rows over at the bottom: "
            "these are sliced off"
        ),
    )
    RESHAPED_OUTPUT = (
        "reshaped-output",
        (
            "the packer loses a graph output that is reshaped before and after: the second "
            "Reshape reads the tensor in front of the first one"
        ),
    )
    GROUPS_OF_ONE_INPUT = (
        "groups-of-one-input",
        "two grouped convolutions of one tensor do not pack: one reads a copy",
    )
    DIV_SCALE = "div-scale", "iqDiv ignores all scales: it is not used"
    DIV_STOPS = "div-stops", "iqDiv stops the executor with an error: it is not used"
    MUL_STOPS = "mul-stops", "iqMul stops the executor with an error: it is not used"
    SIGMOID_WIDE = (
        "sigmoid-stops",
        "iqSigmoid of more than 8 bits crashes: its input is requantized to 8 bits",
    )
    TANH_SCALE = (
        "lut-scale",
        "iqTanh treats an input scale below 2^11 as 2^11: its input gets a larger scale",
    )
    AVGPOOL_LARGE = (
        "avgpool-large",
        "an average of a map of more than 65536 bytes crashes: it is computed in steps",
    )
    CONV1D_DEPTHWISE = (
        "conv1d",
        "depthwise Conv1dInt is wrong: it becomes a Conv2dInt of height 1",
    )
    NORM_SHARED = (
        "norm-placement",
        (
            "LayerNormInt computes half of its elements wrong in shared memory: the packer "
            "arguments place its tensors elsewhere"
        ),
    )
    GRU_OTHER = (
        "gru",
        "GRUInt computes another unit than the GRU of PyTorch: it is written out by layers",
    )
    GRU_STATE = (
        "gru-state",
        (
            "the last state of a GRUInt is not written as declared: it is taken from the last step "
            "of the output"
        ),
    )
    GRU_FIRST_STATE = (
        "gru-first-state",
        "GRUInt does not read a given first state: its first state is zero",
    )
    GRU_NEEDS_STATE = (
        "gru-first-state",
        "GRUInt needs a first state as its second input, and batch_first 0: it is not used",
    )
    LSTM_CELL = (
        "lstm-cell",
        "the last cell of an LSTMInt is written in 16 bits where 32 are declared: it is not used",
    )
    NARROW_WEIGHTS = (
        "narrow-weights",
        (
            "4-bit weights are correct only in convolutions and some fully connected layers "
            "whose sizes fill the planned bytes: kernels are padded with zeros, layers become "
            "1x1 convolutions, all others stay at 8 bits"
        ),
    )
    BATCH = (
        "batch",
        "only the first sample of a batch is computed: graphs are written for one sample",
    )


#: Fault -> the operator that is unsupported, or not emitted, because of it.
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
    LunaFault.GRU_OTHER: "GRUInt",
    LunaFault.DIV_STOPS: "iqDiv",
    LunaFault.MUL_STOPS: "iqMul",
}


def build_unsupported_reasons(faults: Iterable[LunaFault]) -> Mapping[str, str]:
    """Return operator -> description of the fault, for operators that these faults disable.

    Faults that disable no operator are left out.
    """
    reasons = {
        _OPERATOR_DISABLED_BY[fault]: fault.text
        for fault in faults
        if fault in _OPERATOR_DISABLED_BY
    }
    return MappingProxyType(reasons)
