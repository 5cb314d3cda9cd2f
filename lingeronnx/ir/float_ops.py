"""Properties of the standard float operators: a single table that all other code queries.

An entry states facts that do not depend on the caller: whether the operator works element by
element and with which function, whether and how it moves data, which properties it preserves
(scale, sign), which inputs decide the output shape, and its older forms. The sets
below the table answer questions that several files ask; a question of a single rewrite stays with
that rewrite.

A unary function is one entry, which makes it available to lookup tables and to all passes on
elementwise operators. Nothing here depends on graphs, integers or platforms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

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
    "keeps_element_order",
]


class DataMovement(Enum):
    """How an operator moves or selects elements of input 0.

    CONCATENATE and ELEMENT_SELECT take elements of several inputs.
    """

    IDENTITY = "the same tensor"
    RESHAPE = "the same elements in the same order, in another shape"
    UNIT_AXES = "inserts or removes axes of size one"
    TRANSPOSE = "permutes the axes"
    SELECT = "selects some of the elements"
    REPEAT = "repeats elements"
    CONCATENATE = "concatenates tensors"
    ELEMENT_SELECT = "selects an element of one of the inputs at each position"
    BLOCK_SHUFFLE = "exchanges blocks of positions and of channels"
    PAD = "adds elements around the others"
    RESAMPLE = "resamples the elements"


class Operator(NamedTuple):
    """Facts about a standard operator.

    Attributes
    ----------
    unary_function
        The function of one tensor, in float64.
    binary_function
        The function of two tensors that broadcast.
    is_unary_elementwise, is_broadcasting
        Works element by element on one tensor, or on several that broadcast. Implied by a unary or
        binary function.
    is_affine_with_constant
        Affine in one operand if the other is constant.
    identity_operand
        Second operand that leaves the first unchanged.
    is_activation
        Used between layers.
    is_nonnegative
        The result is never negative.
    preserves_nonnegativity
        The result is not negative if no input is.
    is_positively_homogeneous
        f(a x) = a f(x) for a > 0.
    preserves_scale
        The output has the scale of the input.
    is_correctly_rounded
        Each element is rounded once, as IEEE 754 specifies, or not at all, so that the result is
        the same on every machine.
    movement
        How it moves elements, if it only does that.
    is_layer
        Sums products with weights.
    is_recurrent
        Iterates over time steps.
    is_windowed
        Works on windows of positions.
    pool_kind
        "mean" or "max" over windows or whole feature maps.
    reduction_kind
        "mean", "max", ... over given axes.
    is_softmax_like
        Normalizes or selects along an axis.
    is_normalization
        Normalizes by statistics over axes.
    shape_inputs
        Inputs whose data decide the output shape; empty if the data of input 0 always do.
    returns_shape
        Returns the size of a tensor.
    returns_indices
        Returns positions in a tensor.
    generates_data
        Creates data from a shape.
    is_random, is_sequence, has_subgraphs
        Is random, works on tensor sequences, has subgraphs.
    is_quantization
        Works on integers and their scales.
    computes_scales_at_run_time
        Computes scales of activations at run time.
    attributes_to_inputs
        (attributes that became inputs 1, 2, ..., the first opset in which they are inputs).
    since_opset
        The first opset that has the operator, if above 13.
    has_legacy_broadcast
        Before opset 7, attributes specified how the second operand broadcasts.
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
        # unary functions
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
        # unary, but with operands besides attributes, or not smooth enough for a lookup table
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
        # unary, but not in the lookup tables of any platform
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
        # binary functions
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
        # variadic, or with a broadcast parameter
        "Mean": _Op(is_broadcasting=True, preserves_nonnegativity=True),
        "PRelu": _Op(
            is_broadcasting=True,
            is_activation=True,
            is_positively_homogeneous=True,
            is_correctly_rounded=True,
        ),
        "Sum": _Op(is_broadcasting=True, preserves_nonnegativity=True),
        # type conversion
        "Cast": _Op(is_correctly_rounded=True),
        # comparisons and logic
        "And": _Op(has_legacy_broadcast=True, is_correctly_rounded=True),
        "Equal": _Op(has_legacy_broadcast=True, is_correctly_rounded=True),
        "Greater": _Op(has_legacy_broadcast=True, is_correctly_rounded=True),
        "GreaterOrEqual": _Op(is_correctly_rounded=True),
        "Less": _Op(has_legacy_broadcast=True, is_correctly_rounded=True),
        "LessOrEqual": _Op(is_correctly_rounded=True),
        "Not": _Op(is_correctly_rounded=True),
        "Or": _Op(has_legacy_broadcast=True, is_correctly_rounded=True),
        "Xor": _Op(has_legacy_broadcast=True, is_correctly_rounded=True),
        # data movement
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
        # over windows, feature maps and axes
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
        # normalization over axes
        "BatchNormalization": _Op(is_normalization=True),
        "GroupNormalization": _Op(is_normalization=True, since_opset=18),
        "InstanceNormalization": _Op(is_normalization=True),
        "LayerNormalization": _Op(is_normalization=True, since_opset=17),
        "LpNormalization": _Op(is_normalization=True),
        "MeanVarianceNormalization": _Op(is_normalization=True),
        # reductions over given axes
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
        # shapes and positions, and data generated from them
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
        # random
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
        # quantization
        "ConvInteger": _Op(is_quantization=True, computes_scales_at_run_time=True),
        "DequantizeLinear": _Op(is_quantization=True),
        "DynamicQuantizeLinear": _Op(is_quantization=True, computes_scales_at_run_time=True),
        "MatMulInteger": _Op(is_quantization=True, computes_scales_at_run_time=True),
        "QuantizeLinear": _Op(is_quantization=True),
    }
)


def _select_ops(predicate: Callable[[Operator], object]) -> frozenset[str]:
    """Return the names of the standard operators in the table whose entry satisfies `predicate`."""
    return frozenset(name for name, op in OPERATORS.items() if predicate(op))


def _select_movement(*movements: DataMovement) -> frozenset[str]:
    """Return the names of the standard operators whose data movement is one of `movements`."""
    return _select_ops(lambda op: op.movement in movements)


# ---- element by element ----

#: Operator -> its unary function.
UNARY_FUNCTIONS = MappingProxyType(
    {name: op.unary_function for name, op in OPERATORS.items() if op.unary_function}
)
#: Operator -> its binary function.
BINARY_FUNCTIONS = MappingProxyType(
    {name: op.binary_function for name, op in OPERATORS.items() if op.binary_function}
)
#: Binary operators that are affine if one operand is constant; for Div, if the divisor is.
AFFINE_OPS = _select_ops(lambda op: op.is_affine_with_constant)
#: Of these, multiplications by a factor.
SCALING_OPS = _select_ops(lambda op: op.is_affine_with_constant and op.identity_operand == 1)
#: Operator -> the second operand that leaves the first unchanged.
IDENTITY_OPERANDS = MappingProxyType(
    {name: op.identity_operand for name, op in OPERATORS.items() if op.identity_operand is not None}
)
#: Element by element on one tensor, with attributes or constants.
UNARY_ELEMENTWISE_OPS = _select_ops(lambda op: op.unary_function or op.is_unary_elementwise)
#: Element by element on tensors that broadcast.
BROADCASTING_OPS = _select_ops(lambda op: op.binary_function or op.is_broadcasting)
#: Before opset 7, attributes specified how these broadcast.
LEGACY_BROADCAST_OPS = _select_ops(lambda op: op.has_legacy_broadcast)
ACTIVATION_OPS = _select_ops(lambda op: op.is_activation)
#: Activation -> substitutes to train with if the platform lacks it, most similar first.
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

# ---- data movement ----

#: Return the tensor unchanged.
IDENTITY_OPS = _select_movement(DataMovement.IDENTITY)
#: Keep every element, in the same order.
RESHAPING_OPS = _select_movement(DataMovement.RESHAPE, DataMovement.UNIT_AXES)
#: Keep every element, but change the shape or the order of axes.
PERMUTATION_OPS = IDENTITY_OPS | RESHAPING_OPS | _select_movement(DataMovement.TRANSPOSE)
#: Move, insert or remove complete axes.
AXIS_MOVE_OPS = _select_movement(DataMovement.TRANSPOSE, DataMovement.UNIT_AXES)
#: Select some of the elements.
SELECTION_OPS = _select_movement(DataMovement.SELECT)
#: Repeat elements.
REPEAT_OPS = _select_movement(DataMovement.REPEAT)
#: Select an element of one of several tensors at each position.
ELEMENT_SELECT_OPS = _select_movement(DataMovement.ELEMENT_SELECT)
#: The output consists only of elements of the inputs.
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

# ---- layers, windows, reductions ----

LAYER_OPS = _select_ops(lambda op: op.is_layer)
RECURRENT_OPS = _select_ops(lambda op: op.is_recurrent)
WINDOWED_OPS = _select_ops(lambda op: op.is_windowed)
#: Operator -> "mean" or "max".
POOL_KINDS = MappingProxyType(
    {name: op.pool_kind for name, op in OPERATORS.items() if op.pool_kind}
)
#: Operator -> how it reduces the elements along its axes.
REDUCTION_KINDS = MappingProxyType(
    {name: op.reduction_kind for name, op in OPERATORS.items() if op.reduction_kind}
)
#: Along one axis; before opset 13, along all axes from one on.
SOFTMAX_FAMILY_OPS = _select_ops(lambda op: op.is_softmax_like)
#: Those that compute relative weights; Hardmax selects one element.
SOFTMAX_OPS = SOFTMAX_FAMILY_OPS - {"Hardmax"}
NORMALIZATION_OPS = _select_ops(lambda op: op.is_normalization)

# ---- shapes, randomness, subgraphs, quantization ----

#: Operator -> the inputs that decide its output shape.
SHAPE_INPUTS = MappingProxyType(
    {name: op.shape_inputs for name, op in OPERATORS.items() if op.shape_inputs}
)
#: The output shape depends on the data of input 0.
DATA_DEPENDENT_SHAPE_OPS = _select_ops(lambda op: op.shape_inputs == ())
SHAPE_QUERY_OPS = _select_ops(lambda op: op.returns_shape)
INDEX_OPS = _select_ops(lambda op: op.returns_indices)
#: Generate or repeat data, so that downstream tensors may be large.
DATA_GENERATING_OPS = _select_ops(
    lambda op: op.generates_data or op.movement is DataMovement.REPEAT
)
RANDOM_OPS = _select_ops(lambda op: op.is_random)
SEQUENCE_OPS = _select_ops(lambda op: op.is_sequence)
CONTROL_FLOW_OPS = _select_ops(lambda op: op.has_subgraphs)
QUANTIZATION_OPS = _select_ops(lambda op: op.is_quantization)
DYNAMIC_QUANTIZATION_OPS = _select_ops(lambda op: op.computes_scales_at_run_time)
#: Operator -> (attributes that became inputs 1, 2, ..., the first opset with these inputs).
ATTRIBUTES_TO_INPUTS = MappingProxyType(
    {name: op.attributes_to_inputs for name, op in OPERATORS.items() if op.attributes_to_inputs}
)


def keeps_element_order(perm: Iterable[int], shape: Sequence[int | None]) -> bool:
    """Whether a Transpose by `perm` of a tensor of `shape` moves only axes of size 1.

    The elements then keep their order in memory, as in a Reshape. An unknown size (None) counts as
    larger than 1.
    """
    large_axes = [axis for axis in perm if shape[axis] != 1]
    return large_axes == sorted(large_axes)
