"""What each standard float operator is: one entry per operator, from which everybody asks.

An entry says what is true of the operator whoever asks: that it works element by element, and by which function; that
it moves data, and how; what keeps a scale or a sign; which inputs decide the sizes of its output; what its older forms
look like. The sets below the table are questions that several files ask. What only one rewrite wants stands with it,
as far as it is not a fact about operators.

A function of one number is one entry: tables, and passes that work element by element, then know it. Knows nothing of
graphs, integers and chips.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

import numpy as np

from . import _unary_functions as f
from ._unary_functions import UnaryFunction

__all__ = [
    "ACTIVATION_OPS",
    "BINARY_FUNCTIONS",
    "BROADCASTING_OPS",
    "ELEMENT_SELECT_OPS",
    "REPEAT_OPS",
    "DATA_DEPENDENT_SHAPE_OPS",
    "CORRECTLY_ROUNDED_OPS",
    "SCALING_OPS",
    "UNARY_FUNCTIONS",
    "POSITIVELY_HOMOGENEOUS_OPS",
    "ATTRIBUTES_TO_INPUTS",
    "SCALE_PRESERVING_OPS",
    "NONNEGATIVITY_PRESERVING_OPS",
    "LAYER_OPS",
    "DATA_GENERATING_OPS",
    "AXIS_MOVE_OPS",
    "DATA_MOVEMENT_OPS",
    "LEGACY_BROADCAST_OPS",
    "IDENTITY_OPERANDS",
    "NONNEGATIVE_OPS",
    "NORMALIZATION_OPS",
    "UNARY_ELEMENTWISE_OPS",
    "OPERATORS",
    "SELECTION_OPS",
    "INDEX_OPS",
    "POOL_KINDS",
    "QUANTIZATION_OPS",
    "RANDOM_OPS",
    "RECURRENT_OPS",
    "REDUCTION_KINDS",
    "SOFTMAX_FAMILY_OPS",
    "DYNAMIC_QUANTIZATION_OPS",
    "IDENTITY_OPS",
    "SEQUENCE_OPS",
    "RESHAPING_OPS",
    "SOFTMAX_OPS",
    "SHAPE_INPUTS",
    "SHAPE_QUERY_OPS",
    "ACTIVATION_SUBSTITUTES",
    "AFFINE_OPS",
    "CONTROL_FLOW_OPS",
    "PERMUTATION_OPS",
    "WINDOWED_OPS",
    "DataMovement",
    "Operator",
]


class DataMovement(Enum):
    """What an operator does that only moves or chooses elements of input 0; JOINS, CHOOSES: of several inputs."""

    NOTHING = "the same tensor"
    SHAPE = "the same elements in the same order, in another shape"
    ONES = "axes of size one in or out"
    ORDER = "axes in another order"
    PART = "some of the elements"
    COPIES = "elements several times"
    JOINS = "tensors one behind the other"
    CHOOSES = "at each place the element of one of the inputs"
    BLOCKS = "blocks of places and of channels for each other"
    FRAMES = "elements around the others"
    SAMPLES = "the elements at other distances"


@dataclass(frozen=True)
class Operator:
    """Facts about a standard operator.

    function : of one number, in float64. pair : of two numbers; tensors broadcast. one, broadcasts : element by
    element, of one tensor or of several that broadcast; a function or a pair is that anyhow. straight : with a constant
    it is a straight line. neutral : the number that as second operand changes nothing. activation : what nets have
    between layers.
    positive : its result is never negative. keeps_sign : nor is it where its data are not. homogeneous : f(a x) =
    a f(x) for a > 0. keeps_scale : its output has the scale of its input. exact : each number of its result is rounded
    once, as IEEE 754 says, or not at all, so that it is the same wherever it is computed.
    moves : what only moves elements. layer : sums products with weights. recurrent : over time. window : over a window
    of places. pool, reduces : "mean", "max", ... over windows or whole maps, over given axes. row : shares of a row.
    norm : all numbers, less and divided by what was summed over axes.
    sized_by : inputs whose data decide the sizes of the output; empty: its data do, always. sizes : gives sizes of a
    tensor. places : gives positions in a tensor. makes : data out of sizes. random, sequence, subgraphs : as they say.
    run_time_scales : works out scales of activations at run time. quantized : is about integers and their scales.
    since : the first opset that has it, where that is above 13. inputs_since : (attributes that became inputs 1, 2,
    ..., the opset that has them so). named_broadcast : before opset 7 attributes said where the second operand's axes
    lie.
    """

    function: UnaryFunction | None = None
    pair: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    one: bool = False
    broadcasts: bool = False
    straight: bool = False
    neutral: int | None = None
    activation: bool = False
    positive: bool = False
    keeps_sign: bool = False
    homogeneous: bool = False
    keeps_scale: bool = False
    exact: bool = False
    moves: DataMovement | None = None
    layer: bool = False
    recurrent: bool = False
    window: bool = False
    pool: str | None = None
    reduces: str | None = None
    row: bool = False
    norm: bool = False
    sized_by: tuple[int, ...] | None = None
    sizes: bool = False
    places: bool = False
    makes: bool = False
    random: bool = False
    sequence: bool = False
    subgraphs: bool = False
    quantized: bool = False
    run_time_scales: bool = False
    inputs_since: tuple[tuple[str, ...], int] | None = None
    since: int = 1
    named_broadcast: bool = False


_Op = Operator

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        # functions of one number
        "Abs": _Op(function=lambda x, attr: np.abs(x), positive=True, homogeneous=True, exact=True),
        "Celu": _Op(function=lambda x, attr: f.celu(x, attr("alpha", 1.0)), activation=True),
        "Elu": _Op(function=lambda x, attr: f.elu(x, attr("alpha", 1.0)), activation=True),
        "Erf": _Op(function=lambda x, attr: f.erf(x)),
        "Exp": _Op(function=lambda x, attr: np.exp(x), positive=True),
        "Gelu": _Op(function=f.gelu, activation=True, since=20),
        "HardSigmoid": _Op(
            function=lambda x, attr: f.hard_sigmoid(x, attr("alpha", 0.2), attr("beta", 0.5)),
            activation=True,
            positive=True,
        ),
        "HardSwish": _Op(function=lambda x, attr: x * f.hard_sigmoid(x, 1 / 6, 0.5), activation=True, since=14),
        "LeakyRelu": _Op(
            function=lambda x, attr: np.where(x >= 0, x, attr("alpha", 0.01) * x),
            activation=True,
            homogeneous=True,
            exact=True,
        ),
        "Log": _Op(function=lambda x, attr: np.log(x)),
        "Mish": _Op(function=lambda x, attr: x * np.tanh(f.softplus(x)), activation=True, since=18),
        "Neg": _Op(function=lambda x, attr: -x, exact=True),
        "Reciprocal": _Op(function=lambda x, attr: 1.0 / x),
        "Relu": _Op(
            function=lambda x, attr: np.maximum(x, 0.0),
            activation=True,
            positive=True,
            homogeneous=True,
            keeps_scale=True,
            exact=True,
        ),
        "Selu": _Op(
            function=lambda x, attr: attr("gamma", 1.0507010221481323) * f.elu(x, attr("alpha", 1.6732631921768188)),
            activation=True,
        ),
        "Sigmoid": _Op(function=lambda x, attr: f.sigmoid(x), activation=True, positive=True),
        "Softplus": _Op(function=lambda x, attr: f.softplus(x), activation=True, positive=True),
        "Softsign": _Op(function=lambda x, attr: x / (1.0 + np.abs(x)), activation=True),
        "Sqrt": _Op(function=lambda x, attr: np.sqrt(x), positive=True, exact=True),
        "Swish": _Op(function=lambda x, attr: x * f.sigmoid(attr("alpha", 1.0) * x), activation=True, since=24),
        "Tanh": _Op(function=lambda x, attr: np.tanh(x), activation=True),
        "ThresholdedRelu": _Op(
            function=lambda x, attr: np.where(x > attr("alpha", 1.0), x, 0.0), activation=True, exact=True
        ),
        # of one number too, but by more than attributes, or not smooth enough for a table
        "Ceil": _Op(one=True, keeps_sign=True, exact=True),
        "Clip": _Op(one=True, keeps_scale=True, exact=True),
        "Floor": _Op(one=True, keeps_sign=True, exact=True),
        "Round": _Op(one=True, keeps_sign=True, exact=True),
        "Sign": _Op(one=True, exact=True),
        # of one number, and in no table of any platform
        "Acos": _Op(one=True),
        "Acosh": _Op(one=True),
        "Asin": _Op(one=True),
        "Asinh": _Op(one=True),
        "Atan": _Op(one=True),
        "Atanh": _Op(one=True),
        "Cos": _Op(one=True),
        "Cosh": _Op(one=True),
        "Sin": _Op(one=True),
        "Sinh": _Op(one=True),
        "Tan": _Op(one=True),
        # of two numbers
        "Add": _Op(pair=np.add, straight=True, neutral=0, keeps_sign=True, named_broadcast=True, exact=True),
        "Div": _Op(pair=np.divide, straight=True, neutral=1, keeps_sign=True, named_broadcast=True, exact=True),
        "Max": _Op(pair=np.maximum, keeps_sign=True, exact=True),
        "Min": _Op(pair=np.minimum, keeps_sign=True, exact=True),
        "Mul": _Op(pair=np.multiply, straight=True, neutral=1, keeps_sign=True, named_broadcast=True, exact=True),
        "Pow": _Op(pair=np.power, neutral=1, named_broadcast=True),
        "Sub": _Op(pair=np.subtract, straight=True, neutral=0, named_broadcast=True, exact=True),
        # of several
        "Mean": _Op(broadcasts=True, keeps_sign=True),
        "PRelu": _Op(broadcasts=True, activation=True, homogeneous=True, exact=True),
        "Sum": _Op(broadcasts=True, keeps_sign=True),
        # to another type
        "Cast": _Op(exact=True),
        # of several, to truths
        "And": _Op(named_broadcast=True, exact=True),
        "Equal": _Op(named_broadcast=True, exact=True),
        "Greater": _Op(named_broadcast=True, exact=True),
        "GreaterOrEqual": _Op(exact=True),
        "Less": _Op(named_broadcast=True, exact=True),
        "LessOrEqual": _Op(exact=True),
        "Not": _Op(exact=True),
        "Or": _Op(named_broadcast=True, exact=True),
        "Xor": _Op(named_broadcast=True, exact=True),
        # what only moves elements
        "Concat": _Op(moves=DataMovement.JOINS),
        "DepthToSpace": _Op(moves=DataMovement.BLOCKS),
        "Dropout": _Op(moves=DataMovement.NOTHING),
        "Expand": _Op(moves=DataMovement.COPIES, sized_by=(1,)),
        "Flatten": _Op(moves=DataMovement.SHAPE),
        "Gather": _Op(moves=DataMovement.PART),
        "Identity": _Op(moves=DataMovement.NOTHING),
        "Pad": _Op(moves=DataMovement.FRAMES, sized_by=(1,), exact=True),
        "Reshape": _Op(moves=DataMovement.SHAPE, sized_by=(1,)),
        "Resize": _Op(moves=DataMovement.SAMPLES, sized_by=(2, 3)),
        "Slice": _Op(moves=DataMovement.PART, sized_by=(1, 2, 3, 4), inputs_since=(("starts", "ends", "axes"), 10)),
        "SpaceToDepth": _Op(moves=DataMovement.BLOCKS),
        "Split": _Op(moves=DataMovement.PART, inputs_since=(("split",), 13)),
        "Squeeze": _Op(moves=DataMovement.ONES, inputs_since=(("axes",), 13)),
        "Tile": _Op(moves=DataMovement.COPIES, sized_by=(1,)),
        "Transpose": _Op(moves=DataMovement.ORDER),
        "Unsqueeze": _Op(moves=DataMovement.ONES, inputs_since=(("axes",), 13)),
        "Where": _Op(moves=DataMovement.CHOOSES, exact=True),
        # sums of products with weights
        "Conv": _Op(layer=True, window=True),
        "ConvTranspose": _Op(layer=True, window=True),
        "GRU": _Op(layer=True, recurrent=True),
        "Gemm": _Op(layer=True),
        "LSTM": _Op(layer=True, recurrent=True),
        "MatMul": _Op(layer=True),
        "RNN": _Op(layer=True, recurrent=True),
        # over windows, maps and rows
        "AveragePool": _Op(window=True, pool="mean", homogeneous=True, keeps_scale=True, keeps_sign=True),
        "GlobalAveragePool": _Op(pool="mean", homogeneous=True, keeps_scale=True, keeps_sign=True),
        "GlobalMaxPool": _Op(pool="max", homogeneous=True, keeps_scale=True, keeps_sign=True, exact=True),
        "Hardmax": _Op(row=True, positive=True),
        "LogSoftmax": _Op(row=True),
        "MaxPool": _Op(window=True, pool="max", homogeneous=True, keeps_scale=True, keeps_sign=True, exact=True),
        "Softmax": _Op(row=True, positive=True),
        # over axes, whose sums they divide by
        "BatchNormalization": _Op(norm=True),
        "GroupNormalization": _Op(norm=True, since=18),
        "InstanceNormalization": _Op(norm=True),
        "LayerNormalization": _Op(norm=True, since=17),
        "LpNormalization": _Op(norm=True),
        "MeanVarianceNormalization": _Op(norm=True),
        # over given axes
        "ReduceL1": _Op(reduces="magnitudes", positive=True, inputs_since=(("axes",), 18)),
        "ReduceL2": _Op(reduces="length", positive=True, inputs_since=(("axes",), 18)),
        "ReduceLogSum": _Op(reduces="log of sum", inputs_since=(("axes",), 18)),
        "ReduceLogSumExp": _Op(reduces="log of sum of powers", inputs_since=(("axes",), 18)),
        "ReduceMax": _Op(reduces="max", keeps_sign=True, inputs_since=(("axes",), 18), exact=True),
        "ReduceMean": _Op(reduces="mean", keeps_sign=True, inputs_since=(("axes",), 18)),
        "ReduceMin": _Op(reduces="min", keeps_sign=True, inputs_since=(("axes",), 18), exact=True),
        "ReduceProd": _Op(reduces="product", keeps_sign=True, inputs_since=(("axes",), 18)),
        "ReduceSum": _Op(reduces="sum", keeps_sign=True, inputs_since=(("axes",), 13)),
        "ReduceSumSquare": _Op(reduces="squares", positive=True, inputs_since=(("axes",), 18)),
        # sizes and positions, and data made of them
        "ArgMax": _Op(places=True, exact=True),
        "ArgMin": _Op(places=True, exact=True),
        "Compress": _Op(sized_by=()),
        "ConstantOfShape": _Op(makes=True, sized_by=(0,)),
        "EyeLike": _Op(makes=True),
        "NonMaxSuppression": _Op(sized_by=()),
        "NonZero": _Op(sized_by=()),
        "OneHot": _Op(sized_by=(1,)),
        "Range": _Op(makes=True, sized_by=(0, 1, 2)),
        "Shape": _Op(sizes=True),
        "Size": _Op(sizes=True),
        "TopK": _Op(sized_by=(1,)),
        "Unique": _Op(sized_by=()),
        # chance
        "Bernoulli": _Op(random=True, since=15),
        "Multinomial": _Op(random=True),
        "RandomNormal": _Op(random=True, makes=True),
        "RandomNormalLike": _Op(random=True),
        "RandomUniform": _Op(random=True, makes=True),
        "RandomUniformLike": _Op(random=True),
        # control flow and sequences
        "ConcatFromSequence": _Op(sequence=True),
        "If": _Op(subgraphs=True, sized_by=(0,)),
        "Loop": _Op(subgraphs=True, sized_by=(0, 1)),
        "Scan": _Op(subgraphs=True, sized_by=()),
        "SequenceAt": _Op(sequence=True),
        "SplitToSequence": _Op(sequence=True),
        # integers and their scales
        "ConvInteger": _Op(quantized=True, run_time_scales=True),
        "DequantizeLinear": _Op(quantized=True),
        "DynamicQuantizeLinear": _Op(quantized=True, run_time_scales=True),
        "MatMulInteger": _Op(quantized=True, run_time_scales=True),
        "QuantizeLinear": _Op(quantized=True),
    }
)


def _select_ops(predicate: Callable[[Operator], object]) -> frozenset[str]:
    """Return the operators of which something holds."""
    return frozenset(name for name, op in OPERATORS.items() if predicate(op))


def _select_movement(*how: DataMovement) -> frozenset[str]:
    return _select_ops(lambda op: op.moves in how)


# ---- element by element ----

#: Operator -> its function of one number.
UNARY_FUNCTIONS = MappingProxyType({name: op.function for name, op in OPERATORS.items() if op.function})
#: Operator -> its function of two numbers.
BINARY_FUNCTIONS = MappingProxyType({name: op.pair for name, op in OPERATORS.items() if op.pair})
#: Of these, straight lines where one of the two is a constant; of Div the divisor.
AFFINE_OPS = _select_ops(lambda op: op.straight)
#: Of these, factors.
SCALING_OPS = _select_ops(lambda op: op.straight and op.neutral == 1)
#: Operator -> the second operand that changes nothing.
IDENTITY_OPERANDS = MappingProxyType({name: op.neutral for name, op in OPERATORS.items() if op.neutral is not None})
#: Element by element, of one tensor and attributes or constants.
UNARY_ELEMENTWISE_OPS = _select_ops(lambda op: op.function or op.one)
#: Element by element, of tensors that broadcast.
BROADCASTING_OPS = _select_ops(lambda op: op.pair or op.broadcasts)
#: Before opset 7 attributes said how these broadcast.
LEGACY_BROADCAST_OPS = _select_ops(lambda op: op.named_broadcast)
ACTIVATION_OPS = _select_ops(lambda op: op.activation)
#: Activation -> those that are trained in its place where a chip has it not, the most alike first.
ACTIVATION_SUBSTITUTES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Celu": ("Relu",),
        "Elu": ("Relu",),
        "Gelu": ("HardSwish", "Relu"),
        "Mish": ("HardSwish", "Relu"),
        "PRelu": ("LeakyRelu", "Relu"),
        "Selu": ("Relu",),
        "Silu": ("HardSwish", "Relu"),
        "Softplus": ("Relu",),
        "Softsign": ("Tanh", "HardSigmoid"),
        "Swish": ("HardSwish", "Relu"),
        "ThresholdedRelu": ("Relu",),
    }
)
POSITIVELY_HOMOGENEOUS_OPS = _select_ops(lambda op: op.homogeneous)
NONNEGATIVE_OPS = _select_ops(lambda op: op.positive)

# ---- moves ----

#: The same tensor.
IDENTITY_OPS = _select_movement(DataMovement.NOTHING)
#: Every element once, in the same order.
RESHAPING_OPS = _select_movement(DataMovement.SHAPE, DataMovement.ONES)
#: Every element once: shapes, orders of axes.
PERMUTATION_OPS = IDENTITY_OPS | RESHAPING_OPS | _select_movement(DataMovement.ORDER)
#: Whole axes, each once: put elsewhere, in, or out.
AXIS_MOVE_OPS = _select_movement(DataMovement.ORDER, DataMovement.ONES)
#: Some of the elements.
SELECTION_OPS = _select_movement(DataMovement.PART)
#: Elements several times.
REPEAT_OPS = _select_movement(DataMovement.COPIES)
#: At each place an element of one of several tensors.
ELEMENT_SELECT_OPS = _select_movement(DataMovement.CHOOSES)
#: Nothing but elements of the tensors that are read.
DATA_MOVEMENT_OPS = (
    PERMUTATION_OPS | SELECTION_OPS | REPEAT_OPS | _select_movement(DataMovement.BLOCKS, DataMovement.JOINS)
)
SCALE_PRESERVING_OPS = PERMUTATION_OPS | SELECTION_OPS | _select_ops(lambda op: op.keeps_scale)
CORRECTLY_ROUNDED_OPS = _select_ops(lambda op: op.exact)
NONNEGATIVITY_PRESERVING_OPS = DATA_MOVEMENT_OPS | _select_ops(lambda op: op.keeps_sign)

# ---- layers, windows, rows ----

LAYER_OPS = _select_ops(lambda op: op.layer)
RECURRENT_OPS = _select_ops(lambda op: op.recurrent)
WINDOWED_OPS = _select_ops(lambda op: op.window)
#: Operator -> "mean" or "max".
POOL_KINDS = MappingProxyType({name: op.pool for name, op in OPERATORS.items() if op.pool})
#: Operator -> what it makes of the numbers along its axes.
REDUCTION_KINDS = MappingProxyType({name: op.reduces for name, op in OPERATORS.items() if op.reduces})
#: Along one axis; before opset 13 along all from one on.
SOFTMAX_FAMILY_OPS = _select_ops(lambda op: op.row)
#: Those that weigh the numbers of a row against each other; Hardmax picks one.
SOFTMAX_OPS = SOFTMAX_FAMILY_OPS - {"Hardmax"}
NORMALIZATION_OPS = _select_ops(lambda op: op.norm)

# ---- sizes, chance, subgraphs, integers ----

#: Operator -> the inputs that decide its output's sizes.
SHAPE_INPUTS = MappingProxyType({name: op.sized_by for name, op in OPERATORS.items() if op.sized_by})
#: Their data decide the sizes of their outputs.
DATA_DEPENDENT_SHAPE_OPS = _select_ops(lambda op: op.sized_by == ())
SHAPE_QUERY_OPS = _select_ops(lambda op: op.sizes)
INDEX_OPS = _select_ops(lambda op: op.places)
#: Data out of sizes or of nothing: what is behind them may be large.
DATA_GENERATING_OPS = _select_ops(lambda op: op.makes or op.moves is DataMovement.COPIES)
RANDOM_OPS = _select_ops(lambda op: op.random)
SEQUENCE_OPS = _select_ops(lambda op: op.sequence)
CONTROL_FLOW_OPS = _select_ops(lambda op: op.subgraphs)
QUANTIZATION_OPS = _select_ops(lambda op: op.quantized)
DYNAMIC_QUANTIZATION_OPS = _select_ops(lambda op: op.run_time_scales)
#: Operator -> (attributes that became inputs 1, 2, ..., the opset that has them so).
ATTRIBUTES_TO_INPUTS = MappingProxyType({name: op.inputs_since for name, op in OPERATORS.items() if op.inputs_since})
