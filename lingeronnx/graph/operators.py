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

from . import _functions as f
from ._functions import Function

__all__ = [
    "ACTIVATIONS", "ARITHMETIC", "BROADCAST", "CHOICES", "COPIES", "DATA_SIZES", "EXACT", "FACTORS", "FUNCTIONS",
    "HOMOGENEOUS", "INPUTS_SINCE", "KEEP_SCALE", "KEEP_SIGN", "LAYERS", "MAKES_DATA", "MOVED_AXES", "MOVES",
    "NAMED_BROADCAST", "NEUTRAL", "NEVER_NEGATIVE", "NORMS", "ONE_TENSOR", "OPERATORS", "PARTS", "PLACES", "POOLS",
    "QUANTIZED", "RANDOM", "RECURRENT", "REDUCES", "ROWS", "RUN_TIME_SCALES", "SAME", "SEQUENCES", "SHAPED", "SHARES",
    "SIZED_BY", "SIZES", "STAND_INS", "STRAIGHT", "SUBGRAPHS", "WHOLE", "WINDOWS", "Movement", "Operator",
]  # fmt: skip


class Movement(Enum):
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

    function: Function | None = None
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
    moves: Movement | None = None
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

OPERATORS: Mapping[str, Operator] = MappingProxyType({
    # functions of one number
    "Abs": _Op(function=lambda x, attr: np.abs(x), positive=True, homogeneous=True, exact=True),
    "Celu": _Op(function=lambda x, attr: f.celu(x, attr("alpha", 1.0)), activation=True),
    "Elu": _Op(function=lambda x, attr: f.elu(x, attr("alpha", 1.0)), activation=True),
    "Erf": _Op(function=lambda x, attr: f.erf(x)),
    "Exp": _Op(function=lambda x, attr: np.exp(x), positive=True),
    "Gelu": _Op(function=f.gelu, activation=True, since=20),
    "HardSigmoid": _Op(
        function=lambda x, attr: f.hard(x, attr("alpha", 0.2), attr("beta", 0.5)), activation=True, positive=True
    ),
    "HardSwish": _Op(function=lambda x, attr: x * f.hard(x, 1 / 6, 0.5), activation=True, since=14),
    "LeakyRelu": _Op(
        function=lambda x, attr: np.where(x >= 0, x, attr("alpha", 0.01) * x),
        activation=True, homogeneous=True, exact=True,
    ),  # fmt: skip
    "Log": _Op(function=lambda x, attr: np.log(x)),
    "Mish": _Op(function=lambda x, attr: x * np.tanh(f.softplus(x)), activation=True, since=18),
    "Neg": _Op(function=lambda x, attr: -x, exact=True),
    "Reciprocal": _Op(function=lambda x, attr: 1.0 / x),
    "Relu": _Op(
        function=lambda x, attr: np.maximum(x, 0.0),
        activation=True, positive=True, homogeneous=True, keeps_scale=True, exact=True,
    ),  # fmt: skip
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
    "Concat": _Op(moves=Movement.JOINS),
    "DepthToSpace": _Op(moves=Movement.BLOCKS),
    "Dropout": _Op(moves=Movement.NOTHING),
    "Expand": _Op(moves=Movement.COPIES, sized_by=(1,)),
    "Flatten": _Op(moves=Movement.SHAPE),
    "Gather": _Op(moves=Movement.PART),
    "Identity": _Op(moves=Movement.NOTHING),
    "Pad": _Op(moves=Movement.FRAMES, sized_by=(1,), exact=True),
    "Reshape": _Op(moves=Movement.SHAPE, sized_by=(1,)),
    "Resize": _Op(moves=Movement.SAMPLES, sized_by=(2, 3)),
    "Slice": _Op(moves=Movement.PART, sized_by=(1, 2, 3, 4), inputs_since=(("starts", "ends", "axes"), 10)),
    "SpaceToDepth": _Op(moves=Movement.BLOCKS),
    "Split": _Op(moves=Movement.PART, inputs_since=(("split",), 13)),
    "Squeeze": _Op(moves=Movement.ONES, inputs_since=(("axes",), 13)),
    "Tile": _Op(moves=Movement.COPIES, sized_by=(1,)),
    "Transpose": _Op(moves=Movement.ORDER),
    "Unsqueeze": _Op(moves=Movement.ONES, inputs_since=(("axes",), 13)),
    "Where": _Op(moves=Movement.CHOOSES, exact=True),
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
})  # fmt: skip


def _all(holds: Callable[[Operator], object]) -> frozenset[str]:
    """Return the operators of which something holds."""
    return frozenset(name for name, op in OPERATORS.items() if holds(op))


def _moving(*how: Movement) -> frozenset[str]:
    return _all(lambda op: op.moves in how)


# ---- element by element ----

#: Operator -> its function of one number.
FUNCTIONS = MappingProxyType({name: op.function for name, op in OPERATORS.items() if op.function})
#: Operator -> its function of two numbers.
ARITHMETIC = MappingProxyType({name: op.pair for name, op in OPERATORS.items() if op.pair})
#: Of these, straight lines where one of the two is a constant; of Div the divisor.
STRAIGHT = _all(lambda op: op.straight)
#: Of these, factors.
FACTORS = _all(lambda op: op.straight and op.neutral == 1)
#: Operator -> the second operand that changes nothing.
NEUTRAL = MappingProxyType({name: op.neutral for name, op in OPERATORS.items() if op.neutral is not None})
#: Element by element, of one tensor and attributes or constants.
ONE_TENSOR = _all(lambda op: op.function or op.one)
#: Element by element, of tensors that broadcast.
BROADCAST = _all(lambda op: op.pair or op.broadcasts)
#: Before opset 7 attributes said how these broadcast.
NAMED_BROADCAST = _all(lambda op: op.named_broadcast)
ACTIVATIONS = _all(lambda op: op.activation)
#: Activation -> those that are trained in its place where a chip has it not, the most alike first.
STAND_INS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "Celu": ("Relu",), "Elu": ("Relu",), "Gelu": ("HardSwish", "Relu"), "Mish": ("HardSwish", "Relu"),
    "PRelu": ("LeakyRelu", "Relu"), "Selu": ("Relu",), "Silu": ("HardSwish", "Relu"), "Softplus": ("Relu",),
    "Softsign": ("Tanh", "HardSigmoid"), "Swish": ("HardSwish", "Relu"), "ThresholdedRelu": ("Relu",),
})  # fmt: skip
HOMOGENEOUS = _all(lambda op: op.homogeneous)
NEVER_NEGATIVE = _all(lambda op: op.positive)

# ---- moves ----

#: The same tensor.
SAME = _moving(Movement.NOTHING)
#: Every element once, in the same order.
SHAPED = _moving(Movement.SHAPE, Movement.ONES)
#: Every element once: shapes, orders of axes.
WHOLE = SAME | SHAPED | _moving(Movement.ORDER)
#: Whole axes, each once: put elsewhere, in, or out.
MOVED_AXES = _moving(Movement.ORDER, Movement.ONES)
#: Some of the elements.
PARTS = _moving(Movement.PART)
#: Elements several times.
COPIES = _moving(Movement.COPIES)
#: At each place an element of one of several tensors.
CHOICES = _moving(Movement.CHOOSES)
#: Nothing but elements of the tensors that are read.
MOVES = WHOLE | PARTS | COPIES | _moving(Movement.BLOCKS, Movement.JOINS)
KEEP_SCALE = WHOLE | PARTS | _all(lambda op: op.keeps_scale)
EXACT = _all(lambda op: op.exact)
KEEP_SIGN = MOVES | _all(lambda op: op.keeps_sign)

# ---- layers, windows, rows ----

LAYERS = _all(lambda op: op.layer)
RECURRENT = _all(lambda op: op.recurrent)
WINDOWS = _all(lambda op: op.window)
#: Operator -> "mean" or "max".
POOLS = MappingProxyType({name: op.pool for name, op in OPERATORS.items() if op.pool})
#: Operator -> what it makes of the numbers along its axes.
REDUCES = MappingProxyType({name: op.reduces for name, op in OPERATORS.items() if op.reduces})
#: Along one axis; before opset 13 along all from one on.
ROWS = _all(lambda op: op.row)
#: Those that weigh the numbers of a row against each other; Hardmax picks one.
SHARES = ROWS - {"Hardmax"}
NORMS = _all(lambda op: op.norm)

# ---- sizes, chance, subgraphs, integers ----

#: Operator -> the inputs that decide its output's sizes.
SIZED_BY = MappingProxyType({name: op.sized_by for name, op in OPERATORS.items() if op.sized_by})
#: Their data decide the sizes of their outputs.
DATA_SIZES = _all(lambda op: op.sized_by == ())
SIZES = _all(lambda op: op.sizes)
PLACES = _all(lambda op: op.places)
#: Data out of sizes or of nothing: what is behind them may be large.
MAKES_DATA = _all(lambda op: op.makes or op.moves is Movement.COPIES)
RANDOM = _all(lambda op: op.random)
SEQUENCES = _all(lambda op: op.sequence)
SUBGRAPHS = _all(lambda op: op.subgraphs)
QUANTIZED = _all(lambda op: op.quantized)
RUN_TIME_SCALES = _all(lambda op: op.run_time_scales)
#: Operator -> (attributes that became inputs 1, 2, ..., the opset that has them so).
INPUTS_SINCE = MappingProxyType({name: op.inputs_since for name, op in OPERATORS.items() if op.inputs_since})
