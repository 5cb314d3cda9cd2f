"""What each standard float operator is: one entry per operator, from which everybody asks.

An entry says what is true of the operator whoever asks: that it works element by element, and by
which function; that it moves data, and how; what keeps a scale or a sign; which inputs decide the
sizes of its output; what its older forms look like. The sets below the table are questions that
several files ask. What only one rewrite wants stands with it, as far as it is not a fact about
operators.

A function of one number is one entry: tables, and passes that work element by element, then know
it. Knows nothing of graphs, integers and chips.
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
    """What an operator does that only moves or chooses elements of input 0.

    JOINS, CHOOSES: of several inputs.
    """

    IDENTITY = "the same tensor"
    RESHAPE = "the same elements in the same order, in another shape"
    UNIT_AXES = "axes of size one in or out"
    TRANSPOSE = "axes in another order"
    SELECT = "some of the elements"
    REPEAT = "elements several times"
    CONCATENATE = "tensors one behind the other"
    ELEMENT_SELECT = "at each place the element of one of the inputs"
    BLOCK_SHUFFLE = "blocks of places and of channels for each other"
    PAD = "elements around the others"
    RESAMPLE = "the elements at other distances"


@dataclass(frozen=True)
class Operator:
    """Facts about a standard operator.

    unary_function : of one number, in float64. pair : of two numbers; tensors broadcast. one,
    broadcasts : element by element, of one tensor or of several that broadcast; a function or a
    pair is that anyhow. straight : with a constant it is a straight line. neutral : the number that
    as second operand changes nothing. activation : what nets have between layers.
    is_nonnegative : its result is never negative. preserves_nonnegativity : nor is it where its
    data are not. homogeneous : f(a x) = a f(x) for a > 0. preserves_scale : its output has the
    scale of its input. exact : each number of its result is rounded once, as IEEE 754 says, or not
    at all, so that it is the same wherever it is computed. movement : what only moves elements.
    layer : sums products with weights. recurrent : over time. window : over a window of places.
    pool, reduces : "mean", "max", ... over windows or whole maps, over given axes. row : shares of
    a row. is_normalization : all numbers, less and divided by what was summed over axes.
    shape_inputs : inputs whose data decide the sizes of the output; empty: its data do, always.
    sizes : gives sizes of a tensor. places : gives positions in a tensor. makes : data out of
    sizes. random, sequence, subgraphs : as they say. computes_scales_at_run_time : works out scales
    of activations at run time. quantized : is about integers and their scales. since_opset : the
    first opset that has it, where that is above 13. attributes_to_inputs : (attributes that became
    inputs 1, 2, ...; the first opset where they are inputs). has_legacy_broadcast : before opset 7,
    attributes gave the position of the second operand's axes.
    """

    unary_function: UnaryFunction | None = None
    binary_function: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    is_unary_elementwise: bool = False
    is_broadcasting: bool = False
    is_affine_with_constant: bool = False
    identity_operand: int | None = None
    is_activation: bool = False
    is_nonnegative: bool = False
    preserves_nonnegativity: bool = False
    is_positively_homogeneous: bool = False
    preserves_scale: bool = False
    is_correctly_rounded: bool = False
    movement: DataMovement | None = None
    is_layer: bool = False
    is_recurrent: bool = False
    is_windowed: bool = False
    pool_kind: str | None = None
    reduction_kind: str | None = None
    is_softmax_like: bool = False
    is_normalization: bool = False
    shape_inputs: tuple[int, ...] | None = None
    returns_shape: bool = False
    returns_indices: bool = False
    generates_data: bool = False
    is_random: bool = False
    is_sequence: bool = False
    has_subgraphs: bool = False
    is_quantization: bool = False
    computes_scales_at_run_time: bool = False
    attributes_to_inputs: tuple[tuple[str, ...], int] | None = None
    since_opset: int = 1
    has_legacy_broadcast: bool = False


_Op = Operator

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        # functions of one number
        "Abs": _Op(
            unary_function=lambda x, attr: np.abs(x),
            is_nonnegative=True,
            is_positively_homogeneous=True,
            is_correctly_rounded=True,
        ),
        "Celu": _Op(
            unary_function=lambda x, attr: f.celu(x, attr("alpha", 1.0)), is_activation=True
        ),
        "Elu": _Op(unary_function=lambda x, attr: f.elu(x, attr("alpha", 1.0)), is_activation=True),
        "Erf": _Op(unary_function=lambda x, attr: f.erf(x)),
        "Exp": _Op(unary_function=lambda x, attr: np.exp(x), is_nonnegative=True),
        "Gelu": _Op(unary_function=f.gelu, is_activation=True, since_opset=20),
        "HardSigmoid": _Op(
            unary_function=lambda x, attr: f.hard_sigmoid(x, attr("alpha", 0.2), attr("beta", 0.5)),
            is_activation=True,
            is_nonnegative=True,
        ),
        "HardSwish": _Op(
            unary_function=lambda x, attr: x * f.hard_sigmoid(x, 1 / 6, 0.5),
            is_activation=True,
            since_opset=14,
        ),
        "LeakyRelu": _Op(
            unary_function=lambda x, attr: np.where(x >= 0, x, attr("alpha", 0.01) * x),
            is_activation=True,
            is_positively_homogeneous=True,
            is_correctly_rounded=True,
        ),
        "Log": _Op(unary_function=lambda x, attr: np.log(x)),
        "Mish": _Op(
            unary_function=lambda x, attr: x * np.tanh(f.softplus(x)),
            is_activation=True,
            since_opset=18,
        ),
        "Neg": _Op(unary_function=lambda x, attr: -x, is_correctly_rounded=True),
        "Reciprocal": _Op(unary_function=lambda x, attr: 1.0 / x),
        "Relu": _Op(
            unary_function=lambda x, attr: np.maximum(x, 0.0),
            is_activation=True,
            is_nonnegative=True,
            is_positively_homogeneous=True,
            preserves_scale=True,
            is_correctly_rounded=True,
        ),
        "Selu": _Op(
            unary_function=lambda x, attr: (
                attr("gamma", 1.0507010221481323) * f.elu(x, attr("alpha", 1.6732631921768188))
            ),
            is_activation=True,
        ),
        "Sigmoid": _Op(
            unary_function=lambda x, attr: f.sigmoid(x), is_activation=True, is_nonnegative=True
        ),
        "Softplus": _Op(
            unary_function=lambda x, attr: f.softplus(x), is_activation=True, is_nonnegative=True
        ),
        "Softsign": _Op(unary_function=lambda x, attr: x / (1.0 + np.abs(x)), is_activation=True),
        "Sqrt": _Op(
            unary_function=lambda x, attr: np.sqrt(x),
            is_nonnegative=True,
            is_correctly_rounded=True,
        ),
        "Swish": _Op(
            unary_function=lambda x, attr: x * f.sigmoid(attr("alpha", 1.0) * x),
            is_activation=True,
            since_opset=24,
        ),
        "Tanh": _Op(unary_function=lambda x, attr: np.tanh(x), is_activation=True),
        "ThresholdedRelu": _Op(
            unary_function=lambda x, attr: np.where(x > attr("alpha", 1.0), x, 0.0),
            is_activation=True,
            is_correctly_rounded=True,
        ),
        # of one number too, but by more than attributes, or not smooth enough for a table
        "Ceil": _Op(
            is_unary_elementwise=True, preserves_nonnegativity=True, is_correctly_rounded=True
        ),
        "Clip": _Op(is_unary_elementwise=True, preserves_scale=True, is_correctly_rounded=True),
        "Floor": _Op(
            is_unary_elementwise=True, preserves_nonnegativity=True, is_correctly_rounded=True
        ),
        "Round": _Op(
            is_unary_elementwise=True, preserves_nonnegativity=True, is_correctly_rounded=True
        ),
        "Sign": _Op(is_unary_elementwise=True, is_correctly_rounded=True),
        # of one number, and in no table of any platform
        "Acos": _Op(is_unary_elementwise=True),
        "Acosh": _Op(is_unary_elementwise=True),
        "Asin": _Op(is_unary_elementwise=True),
        "Asinh": _Op(is_unary_elementwise=True),
        "Atan": _Op(is_unary_elementwise=True),
        "Atanh": _Op(is_unary_elementwise=True),
        "Cos": _Op(is_unary_elementwise=True),
        "Cosh": _Op(is_unary_elementwise=True),
        "Sin": _Op(is_unary_elementwise=True),
        "Sinh": _Op(is_unary_elementwise=True),
        "Tan": _Op(is_unary_elementwise=True),
        # of two numbers
        "Add": _Op(
            binary_function=np.add,
            is_affine_with_constant=True,
            identity_operand=0,
            preserves_nonnegativity=True,
            has_legacy_broadcast=True,
            is_correctly_rounded=True,
        ),
        "Div": _Op(
            binary_function=np.divide,
            is_affine_with_constant=True,
            identity_operand=1,
            preserves_nonnegativity=True,
            has_legacy_broadcast=True,
            is_correctly_rounded=True,
        ),
        "Max": _Op(
            binary_function=np.maximum, preserves_nonnegativity=True, is_correctly_rounded=True
        ),
        "Min": _Op(
            binary_function=np.minimum, preserves_nonnegativity=True, is_correctly_rounded=True
        ),
        "Mul": _Op(
            binary_function=np.multiply,
            is_affine_with_constant=True,
            identity_operand=1,
            preserves_nonnegativity=True,
            has_legacy_broadcast=True,
            is_correctly_rounded=True,
        ),
        "Pow": _Op(binary_function=np.power, identity_operand=1, has_legacy_broadcast=True),
        "Sub": _Op(
            binary_function=np.subtract,
            is_affine_with_constant=True,
            identity_operand=0,
            has_legacy_broadcast=True,
            is_correctly_rounded=True,
        ),
        # of several
        "Mean": _Op(is_broadcasting=True, preserves_nonnegativity=True),
        "PRelu": _Op(
            is_broadcasting=True,
            is_activation=True,
            is_positively_homogeneous=True,
            is_correctly_rounded=True,
        ),
        "Sum": _Op(is_broadcasting=True, preserves_nonnegativity=True),
        # to another type
        "Cast": _Op(is_correctly_rounded=True),
        # of several, to truths
        "And": _Op(has_legacy_broadcast=True, is_correctly_rounded=True),
        "Equal": _Op(has_legacy_broadcast=True, is_correctly_rounded=True),
        "Greater": _Op(has_legacy_broadcast=True, is_correctly_rounded=True),
        "GreaterOrEqual": _Op(is_correctly_rounded=True),
        "Less": _Op(has_legacy_broadcast=True, is_correctly_rounded=True),
        "LessOrEqual": _Op(is_correctly_rounded=True),
        "Not": _Op(is_correctly_rounded=True),
        "Or": _Op(has_legacy_broadcast=True, is_correctly_rounded=True),
        "Xor": _Op(has_legacy_broadcast=True, is_correctly_rounded=True),
        # what only moves elements
        "Concat": _Op(movement=DataMovement.CONCATENATE),
        "DepthToSpace": _Op(movement=DataMovement.BLOCK_SHUFFLE),
        "Dropout": _Op(movement=DataMovement.IDENTITY),
        "Expand": _Op(movement=DataMovement.REPEAT, shape_inputs=(1,)),
        "Flatten": _Op(movement=DataMovement.RESHAPE),
        "Gather": _Op(movement=DataMovement.SELECT),
        "Identity": _Op(movement=DataMovement.IDENTITY),
        "Pad": _Op(movement=DataMovement.PAD, shape_inputs=(1,), is_correctly_rounded=True),
        "Reshape": _Op(movement=DataMovement.RESHAPE, shape_inputs=(1,)),
        "Resize": _Op(movement=DataMovement.RESAMPLE, shape_inputs=(2, 3)),
        "Slice": _Op(
            movement=DataMovement.SELECT,
            shape_inputs=(1, 2, 3, 4),
            attributes_to_inputs=(("starts", "ends", "axes"), 10),
        ),
        "SpaceToDepth": _Op(movement=DataMovement.BLOCK_SHUFFLE),
        "Split": _Op(movement=DataMovement.SELECT, attributes_to_inputs=(("split",), 13)),
        "Squeeze": _Op(movement=DataMovement.UNIT_AXES, attributes_to_inputs=(("axes",), 13)),
        "Tile": _Op(movement=DataMovement.REPEAT, shape_inputs=(1,)),
        "Transpose": _Op(movement=DataMovement.TRANSPOSE),
        "Unsqueeze": _Op(movement=DataMovement.UNIT_AXES, attributes_to_inputs=(("axes",), 13)),
        "Where": _Op(movement=DataMovement.ELEMENT_SELECT, is_correctly_rounded=True),
        # sums of products with weights
        "Conv": _Op(is_layer=True, is_windowed=True),
        "ConvTranspose": _Op(is_layer=True, is_windowed=True),
        "GRU": _Op(is_layer=True, is_recurrent=True),
        "Gemm": _Op(is_layer=True),
        "LSTM": _Op(is_layer=True, is_recurrent=True),
        "MatMul": _Op(is_layer=True),
        "RNN": _Op(is_layer=True, is_recurrent=True),
        # over windows, maps and rows
        "AveragePool": _Op(
            is_windowed=True,
            pool_kind="mean",
            is_positively_homogeneous=True,
            preserves_scale=True,
            preserves_nonnegativity=True,
        ),
        "GlobalAveragePool": _Op(
            pool_kind="mean",
            is_positively_homogeneous=True,
            preserves_scale=True,
            preserves_nonnegativity=True,
        ),
        "GlobalMaxPool": _Op(
            pool_kind="max",
            is_positively_homogeneous=True,
            preserves_scale=True,
            preserves_nonnegativity=True,
            is_correctly_rounded=True,
        ),
        "Hardmax": _Op(is_softmax_like=True, is_nonnegative=True),
        "LogSoftmax": _Op(is_softmax_like=True),
        "MaxPool": _Op(
            is_windowed=True,
            pool_kind="max",
            is_positively_homogeneous=True,
            preserves_scale=True,
            preserves_nonnegativity=True,
            is_correctly_rounded=True,
        ),
        "Softmax": _Op(is_softmax_like=True, is_nonnegative=True),
        # over axes, whose sums they divide by
        "BatchNormalization": _Op(is_normalization=True),
        "GroupNormalization": _Op(is_normalization=True, since_opset=18),
        "InstanceNormalization": _Op(is_normalization=True),
        "LayerNormalization": _Op(is_normalization=True, since_opset=17),
        "LpNormalization": _Op(is_normalization=True),
        "MeanVarianceNormalization": _Op(is_normalization=True),
        # over given axes
        "ReduceL1": _Op(
            reduction_kind="magnitudes", is_nonnegative=True, attributes_to_inputs=(("axes",), 18)
        ),
        "ReduceL2": _Op(
            reduction_kind="length", is_nonnegative=True, attributes_to_inputs=(("axes",), 18)
        ),
        "ReduceLogSum": _Op(reduction_kind="log of sum", attributes_to_inputs=(("axes",), 18)),
        "ReduceLogSumExp": _Op(
            reduction_kind="log of sum of powers", attributes_to_inputs=(("axes",), 18)
        ),
        "ReduceMax": _Op(
            reduction_kind="max",
            preserves_nonnegativity=True,
            attributes_to_inputs=(("axes",), 18),
            is_correctly_rounded=True,
        ),
        "ReduceMean": _Op(
            reduction_kind="mean",
            preserves_nonnegativity=True,
            attributes_to_inputs=(("axes",), 18),
        ),
        "ReduceMin": _Op(
            reduction_kind="min",
            preserves_nonnegativity=True,
            attributes_to_inputs=(("axes",), 18),
            is_correctly_rounded=True,
        ),
        "ReduceProd": _Op(
            reduction_kind="product",
            preserves_nonnegativity=True,
            attributes_to_inputs=(("axes",), 18),
        ),
        "ReduceSum": _Op(
            reduction_kind="sum", preserves_nonnegativity=True, attributes_to_inputs=(("axes",), 13)
        ),
        "ReduceSumSquare": _Op(
            reduction_kind="squares", is_nonnegative=True, attributes_to_inputs=(("axes",), 18)
        ),
        # sizes and positions, and data made of them
        "ArgMax": _Op(returns_indices=True, is_correctly_rounded=True),
        "ArgMin": _Op(returns_indices=True, is_correctly_rounded=True),
        "Compress": _Op(shape_inputs=()),
        "ConstantOfShape": _Op(generates_data=True, shape_inputs=(0,)),
        "EyeLike": _Op(generates_data=True),
        "NonMaxSuppression": _Op(shape_inputs=()),
        "NonZero": _Op(shape_inputs=()),
        "OneHot": _Op(shape_inputs=(1,)),
        "Range": _Op(generates_data=True, shape_inputs=(0, 1, 2)),
        "Shape": _Op(returns_shape=True),
        "Size": _Op(returns_shape=True),
        "TopK": _Op(shape_inputs=(1,)),
        "Unique": _Op(shape_inputs=()),
        # chance
        "Bernoulli": _Op(is_random=True, since_opset=15),
        "Multinomial": _Op(is_random=True),
        "RandomNormal": _Op(is_random=True, generates_data=True),
        "RandomNormalLike": _Op(is_random=True),
        "RandomUniform": _Op(is_random=True, generates_data=True),
        "RandomUniformLike": _Op(is_random=True),
        # control flow and sequences
        "ConcatFromSequence": _Op(is_sequence=True),
        "If": _Op(has_subgraphs=True, shape_inputs=(0,)),
        "Loop": _Op(has_subgraphs=True, shape_inputs=(0, 1)),
        "Scan": _Op(has_subgraphs=True, shape_inputs=()),
        "SequenceAt": _Op(is_sequence=True),
        "SplitToSequence": _Op(is_sequence=True),
        # integers and their scales
        "ConvInteger": _Op(is_quantization=True, computes_scales_at_run_time=True),
        "DequantizeLinear": _Op(is_quantization=True),
        "DynamicQuantizeLinear": _Op(is_quantization=True, computes_scales_at_run_time=True),
        "MatMulInteger": _Op(is_quantization=True, computes_scales_at_run_time=True),
        "QuantizeLinear": _Op(is_quantization=True),
    }
)


def _select_ops(predicate: Callable[[Operator], object]) -> frozenset[str]:
    """Return the operators of which something holds."""
    return frozenset(name for name, op in OPERATORS.items() if predicate(op))


def _select_movement(*how: DataMovement) -> frozenset[str]:
    return _select_ops(lambda op: op.movement in how)


# ---- element by element ----

#: Operator -> its function of one number.
UNARY_FUNCTIONS = MappingProxyType(
    {name: op.unary_function for name, op in OPERATORS.items() if op.unary_function}
)
#: Operator -> its function of two numbers.
BINARY_FUNCTIONS = MappingProxyType(
    {name: op.binary_function for name, op in OPERATORS.items() if op.binary_function}
)
#: Of these, straight lines where one of the two is a constant; of Div the divisor.
AFFINE_OPS = _select_ops(lambda op: op.is_affine_with_constant)
#: Of these, factors.
SCALING_OPS = _select_ops(lambda op: op.is_affine_with_constant and op.identity_operand == 1)
#: Operator -> the second operand that changes nothing.
IDENTITY_OPERANDS = MappingProxyType(
    {name: op.identity_operand for name, op in OPERATORS.items() if op.identity_operand is not None}
)
#: Element by element, of one tensor and attributes or constants.
UNARY_ELEMENTWISE_OPS = _select_ops(lambda op: op.unary_function or op.is_unary_elementwise)
#: Element by element, of tensors that broadcast.
BROADCASTING_OPS = _select_ops(lambda op: op.binary_function or op.is_broadcasting)
#: Before opset 7 attributes said how these broadcast.
LEGACY_BROADCAST_OPS = _select_ops(lambda op: op.has_legacy_broadcast)
ACTIVATION_OPS = _select_ops(lambda op: op.is_activation)
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
POSITIVELY_HOMOGENEOUS_OPS = _select_ops(lambda op: op.is_positively_homogeneous)
NONNEGATIVE_OPS = _select_ops(lambda op: op.is_nonnegative)

# ---- moves ----

#: The same tensor.
IDENTITY_OPS = _select_movement(DataMovement.IDENTITY)
#: Every element once, in the same order.
RESHAPING_OPS = _select_movement(DataMovement.RESHAPE, DataMovement.UNIT_AXES)
#: Every element once: shapes, orders of axes.
PERMUTATION_OPS = IDENTITY_OPS | RESHAPING_OPS | _select_movement(DataMovement.TRANSPOSE)
#: Whole axes, each once: put elsewhere, in, or out.
AXIS_MOVE_OPS = _select_movement(DataMovement.TRANSPOSE, DataMovement.UNIT_AXES)
#: Some of the elements.
SELECTION_OPS = _select_movement(DataMovement.SELECT)
#: Elements several times.
REPEAT_OPS = _select_movement(DataMovement.REPEAT)
#: At each place an element of one of several tensors.
ELEMENT_SELECT_OPS = _select_movement(DataMovement.ELEMENT_SELECT)
#: Nothing but elements of the tensors that are read.
DATA_MOVEMENT_OPS = (
    PERMUTATION_OPS
    | SELECTION_OPS
    | REPEAT_OPS
    | _select_movement(DataMovement.BLOCK_SHUFFLE, DataMovement.CONCATENATE)
)
SCALE_PRESERVING_OPS = PERMUTATION_OPS | SELECTION_OPS | _select_ops(lambda op: op.preserves_scale)
CORRECTLY_ROUNDED_OPS = _select_ops(lambda op: op.is_correctly_rounded)
NONNEGATIVITY_PRESERVING_OPS = DATA_MOVEMENT_OPS | _select_ops(
    lambda op: op.preserves_nonnegativity
)

# ---- layers, windows, rows ----

LAYER_OPS = _select_ops(lambda op: op.is_layer)
RECURRENT_OPS = _select_ops(lambda op: op.is_recurrent)
WINDOWED_OPS = _select_ops(lambda op: op.is_windowed)
#: Operator -> "mean" or "max".
POOL_KINDS = MappingProxyType(
    {name: op.pool_kind for name, op in OPERATORS.items() if op.pool_kind}
)
#: Operator -> what it makes of the numbers along its axes.
REDUCTION_KINDS = MappingProxyType(
    {name: op.reduction_kind for name, op in OPERATORS.items() if op.reduction_kind}
)
#: Along one axis; before opset 13 along all from one on.
SOFTMAX_FAMILY_OPS = _select_ops(lambda op: op.is_softmax_like)
#: Those that weigh the numbers of a row against each other; Hardmax picks one.
SOFTMAX_OPS = SOFTMAX_FAMILY_OPS - {"Hardmax"}
NORMALIZATION_OPS = _select_ops(lambda op: op.is_normalization)

# ---- sizes, chance, subgraphs, integers ----

#: Operator -> the inputs that decide its output's sizes.
SHAPE_INPUTS = MappingProxyType(
    {name: op.shape_inputs for name, op in OPERATORS.items() if op.shape_inputs}
)
#: Their data decide the sizes of their outputs.
DATA_DEPENDENT_SHAPE_OPS = _select_ops(lambda op: op.shape_inputs == ())
SHAPE_QUERY_OPS = _select_ops(lambda op: op.returns_shape)
INDEX_OPS = _select_ops(lambda op: op.returns_indices)
#: Data out of sizes or of nothing: what is behind them may be large.
DATA_GENERATING_OPS = _select_ops(
    lambda op: op.generates_data or op.movement is DataMovement.REPEAT
)
RANDOM_OPS = _select_ops(lambda op: op.is_random)
SEQUENCE_OPS = _select_ops(lambda op: op.is_sequence)
CONTROL_FLOW_OPS = _select_ops(lambda op: op.has_subgraphs)
QUANTIZATION_OPS = _select_ops(lambda op: op.is_quantization)
DYNAMIC_QUANTIZATION_OPS = _select_ops(lambda op: op.computes_scales_at_run_time)
#: Operator -> (attributes that became inputs 1, 2, ..., the opset that has them so).
ATTRIBUTES_TO_INPUTS = MappingProxyType(
    {name: op.attributes_to_inputs for name, op in OPERATORS.items() if op.attributes_to_inputs}
)
