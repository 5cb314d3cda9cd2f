"""Float operators for arithmetic, activations, reductions and normalizations; their attributes.

An operator is a function of the node's `Attributes` and its inputs, None for omitted ones. The
version matters where an operator has changed its meaning or turned attributes into inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import onnx
import torch
from torch.nn import functional as F

from ...common.errors import ModelError

__all__ = ["COMPUTE_OPERATORS", "Attributes", "get_int_list", "to_int_list", "get_torch_dtype"]


class Attributes(dict[str, Any]):
    """The attributes of a node.

    Attributes
    ----------
    version
        Version of the operator set.
    output_count
        Number of outputs of the node.
    """

    def __init__(
        self, values: Mapping[str, Any], node: onnx.NodeProto, version: int, output_count: int
    ) -> None:
        """Hold the attributes `values` of `node`, its opset `version` and its number of outputs.

        The operator and name of `node` appear in error messages.
        """
        super().__init__(values)
        self.version, self.output_count = version, output_count
        self._label = f"{node.op_type} {node.name or ' '.join(node.output)}"

    def get(self, name: str, default: Any = None) -> Any:
        """Return attribute `name`, or `default`; bytes are decoded to text, also in lists."""
        value = super().get(name, default)
        if isinstance(value, list):
            return [item.decode() if isinstance(item, bytes) else item for item in value]
        return value.decode() if isinstance(value, bytes) else value

    def make_error(self, reason: str) -> ModelError:
        """Return a ModelError that names the node, gives `reason` and advises to cut the graph.

        `reason` is a clause such as "it is in training mode".
        """
        return ModelError(
            f"{self._label}: {reason}, which fine-tuning does not support; cut the graph before it"
        )


def to_int_list(value: Any) -> list[int] | None:
    """Return the elements of a tensor or list as integers, or None for None."""
    if value is None:
        return None
    elements = value.reshape(-1).tolist() if torch.is_tensor(value) else value
    return [int(element) for element in elements]


def get_int_list(a: Attributes, name: str, tensor: Any) -> list[int] | None:
    """Return the integers of the input `tensor`, or if it is None those of attribute `name`.

    None if both are absent. Newer versions of an operator have an input where older ones have an
    attribute.
    """
    return to_int_list(a.get(name) if tensor is None else tensor)


# ---- arithmetic ---------------------------------------------------------------------------------


def _wrap_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator (attributes, *inputs) that ignores its attributes and calls `function`."""
    return lambda a, *xs: function(*xs)


def _wrap_parametric(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """Return an operator (attributes, x) that calls `function` with x and the values of attributes.

    `settings` names these attributes in the order of the arguments, with their default values.
    """
    return lambda a, x: function(x, *(a.get(name, default) for name, default in settings.items()))


def _wrap_variadic(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return an operator (attributes, *inputs) that combines any number of inputs by `function`.

    `function` takes two tensors; the inputs are reduced from left to right.
    """
    return lambda a, *xs: reduce(function, xs)


def _divide(a: Attributes, x: Any, y: Any) -> Any:
    """Return ``x / y``; a quotient of integers is truncated towards zero and stays integer."""
    return torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc")


def _power(a: Attributes, x: Any, y: Any) -> Any:
    """Return `x` to the power `y` in the type of `x`; integer powers are computed in float64."""
    if x.is_floating_point():
        return torch.pow(x, y.to(x.dtype))
    return torch.pow(x.double(), y.double()).to(x.dtype)


def _gemm(a: Attributes, x: Any, w: Any, c: Any = None) -> Any:
    """Return ``alpha * (x @ w) + beta * c``, without the last term if `c` is None.

    `x` and `w` are transposed first if the attributes transA and transB are set; alpha and beta are
    1 by default.
    """
    x = x.t() if a.get("transA", 0) else x
    w = w.t() if a.get("transB", 0) else w
    y = a.get("alpha", 1.0) * (x @ w)
    return y if c is None else y + a.get("beta", 1.0) * c


def _cumsum(a: Attributes, x: Any, axis: Any) -> Any:
    """Return cumulative sums of `x` along axis `axis`, a tensor of one integer.

    The attribute `reverse` sums from the end; with `exclusive` a sum does not include its own
    element.
    """
    (sum_axis,) = to_int_list(axis) or [0]
    ordered = x.flip(sum_axis) if a.get("reverse", 0) else x
    total = ordered.cumsum(sum_axis, dtype=x.dtype)
    if a.get("exclusive", 0):
        total = total - ordered
    return total.flip(sum_axis) if a.get("reverse", 0) else total


def _clip(a: Attributes, x: Any, low: Any = None, high: Any = None) -> Any:
    """Return `x` clamped to [low, high], both tensors; None for no bound."""
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _shrink(x: Any, lambd: float, bias: float) -> Any:
    """Return `x` with magnitudes above `lambd` reduced by `bias`; other elements become 0."""
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0 * x))


def _isinf(a: Attributes, x: Any) -> Any:
    """Return a boolean tensor: where `x` is infinite.

    Positive and negative infinities count unless the attribute detect_positive or detect_negative
    is 0.
    """
    upper, lower = (bool(a.get(f"detect_{sign}", 1)) for sign in ("positive", "negative"))
    return (torch.isposinf(x) & upper) | (torch.isneginf(x) & lower)


_TYPE_NAMES = [
    "bool",
    "float",
    "double",
    "float16",
    "bfloat16",
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
]
#: ONNX element type -> torch dtype.
_TYPES = {getattr(onnx.TensorProto, name.upper()): getattr(torch, name) for name in _TYPE_NAMES}


def get_torch_dtype(a: Attributes, element_type: int) -> torch.dtype:
    """Return the torch dtype of `element_type`, a number of ONNX's TensorProto.DataType.

    Raises ModelError, which names the node of the attributes `a`, for types that torch lacks.
    """
    if element_type not in _TYPES:
        type_name = onnx.TensorProto.DataType.Name(element_type)
        raise a.make_error(f"its output type is {type_name}")
    return _TYPES[element_type]


# ---- reductions ---------------------------------------------------------------------------------


def _make_reduction(function: Callable[[Any, list[int], bool], Any]) -> Callable[..., Any]:
    """Return a reduction operator, a function of (attributes, x, axes or None).

    `function` does the reduction; it takes a tensor, a list of axes and whether they are kept.
    """

    def run(a: Attributes, x: Any, axes: Any = None) -> Any:
        """Reduce `x` over the axes of the attribute or the input `axes`.

        Without axes all are reduced, or none if `noop_with_empty_axes` is set; axes stay with size
        1 unless `keepdims` is 0.
        """
        requested = get_int_list(a, "axes", axes)
        if not requested and a.get("noop_with_empty_axes", 0):
            return function(x[..., None], [x.ndim], False)
        reduced = list(range(x.ndim))
        if requested:
            reduced = sorted(axis % x.ndim for axis in requested)
        if not reduced:  # a scalar
            return function(x[None], [0], False)
        return function(x, reduced, bool(a.get("keepdims", 1)))

    return run


def _reduce_prod(x: Any, axes: list[int], keep: bool) -> Any:
    """Return the product of the elements of `x` along `axes`, in ascending order of axis numbers.

    `keep` keeps these axes with size 1.
    """
    for axis in reversed(axes):
        x = x.prod(axis, keepdim=keep)
    return x


def _make_extreme_reduction(function: Callable[..., Any], empty: float) -> Callable[..., Any]:
    """Return ReduceMax or ReduceMin as an operator; `function` takes (tensor, axes, keepdims).

    `empty` is the result if a reduced axis has size 0; booleans are reduced as numbers.
    """

    def run(x: Any, axes: list[int], keep: bool) -> Any:
        """Reduce `x` over `axes`; an axis of size 0 gives `empty`.

        Booleans are reduced as numbers, and the result is boolean again.
        """
        if x.dtype == torch.bool:
            return run(x.to(torch.float32), axes, keep) > 0
        if 0 in (x.shape[i] for i in axes):
            return torch.full_like(x.sum(axes, keepdim=keep), empty)
        return function(x, axes, keep)

    return _make_reduction(run)


def _make_arg_reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator ArgMax or ArgMin.

    `function` (tensor, axis, keepdim) gives the first index. The operator returns the last index of
    the extreme if the attribute `select_last_index` is set.
    """

    def run(a: Attributes, x: Any) -> Any:
        """Return the int64 index of the extreme of `x` along attribute `axis` (default 0).

        Of equal extremes the first counts, or the last with `select_last_index`. The axis stays
        with size 1 unless `keepdims` is 0.
        """
        axis, keep = a.get("axis", 0), bool(a.get("keepdims", 1))
        if not a.get("select_last_index", 0):
            return function(x, axis, keepdim=keep)
        return x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=keep)

    return run


def _topk(a: Attributes, x: Any, count: Any) -> Any:
    """Return (values, indices) of the `count` largest elements along attribute `axis`, sorted.

    The smallest ones if `largest` is 0. The default axis is the last; equal elements keep their
    order.
    """
    size, axis = int(count), a.get("axis", -1)
    values, indices = torch.sort(x, dim=axis, descending=bool(a.get("largest", 1)), stable=True)
    return values.narrow(axis, 0, size), indices.narrow(axis, 0, size)


# ---- softmax and normalization ------------------------------------------------------------------


def _make_softmax(function: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """Return an operator that applies `function` (tensor, axis), such as softmax, along an axis.

    Before opset 13 the axes from the attribute `axis` on count as one.
    """

    def run(a: Attributes, x: Any) -> Any:
        """Apply the softmax-like function of the enclosing scope to `x` along attribute `axis`.

        From opset 13 on along that axis alone (by default the last), before that over all axes from
        it on (by default 1), flattened.
        """
        if a.version >= 13:
            return function(x, a.get("axis", -1))
        return function(x.flatten(a.get("axis", 1)), -1).reshape(x.shape)

    return run


def _hardmax(x: Any, axis: int) -> Any:
    """Return a tensor like `x` with 1 at the first maximum along `axis` and 0 elsewhere."""
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1.0)


def _batch_norm(a: Attributes, x: Any, *parameters: Any) -> Any:
    """Normalize the channels (axis 1) of `x` by the constant mean and variance of the node.

    `parameters` are scale, bias, mean and variance. Raises ModelError in training mode.
    """
    if a.get("training_mode", 0):
        raise a.make_error("it is in training mode")
    shape = (-1, *(1,) * (x.ndim - 2))
    scale, bias, mean, var = (parameter.reshape(shape) for parameter in parameters)
    return (x - mean) * torch.rsqrt(var + a.get("epsilon", 1e-5)) * scale + bias


def _instance_norm(a: Attributes, x: Any, scale: Any, bias: Any) -> Any:
    """Normalize each channel of each sample to mean 0 and variance 1, then scale and shift it.

    `scale` and `bias` are per channel (axis 1).
    """
    return torch.group_norm(x, x.shape[1], scale, bias, a.get("epsilon", 1e-5))


def _group_norm(a: Attributes, x: Any, scale: Any, bias: Any) -> Any:
    """Normalize `num_groups` groups of channels of each sample of `x`, then scale and shift.

    Scale and bias are per channel, or per group before opset 21.
    """
    groups = a.get("num_groups")
    if len(scale) != x.shape[1]:  # before version 21: by group
        size = x.shape[1] // groups
        scale, bias = scale.repeat_interleave(size), bias.repeat_interleave(size)
    return torch.group_norm(x, groups, scale, bias, a.get("epsilon", 1e-5))


def _layer_norm(a: Attributes, x: Any, scale: Any, bias: Any = None) -> Any:
    """Normalize `x` over the axes from attribute `axis` (default -1) on, then scale and shift.

    Returns (y, mean, reciprocal deviation). Without `bias` nothing is added.
    """
    axes = tuple(range(a.get("axis", -1) % x.ndim, x.ndim))
    mean = x.mean(axes, keepdim=True)
    root = torch.rsqrt((x - mean).square().mean(axes, keepdim=True) + a.get("epsilon", 1e-5))
    y = (x - mean) * root * scale
    return (y if bias is None else y + bias), mean, root


def _rms_norm(a: Attributes, x: Any, scale: Any) -> Any:
    """Divide `x` by its root mean square over the axes from attribute `axis` on, times `scale`.

    By default over the last axis.
    """
    return F.rms_norm(x, x.shape[a.get("axis", -1) :], eps=a.get("epsilon", 1e-5)) * scale


def _mean_variance(a: Attributes, x: Any) -> Any:
    """Normalize `x` to mean 0 and deviation 1 over the attribute `axes`, by default 0, 2 and 3."""
    axes = tuple(a.get("axes", [0, 2, 3]))
    mean = x.mean(axes, keepdim=True)
    variance = (x.square().mean(axes, keepdim=True) - mean.square()).clamp(min=0)
    return (x - mean) / (variance.sqrt() + 1e-9)


def _lp_norm(a: Attributes, x: Any) -> Any:
    """Return `x` divided by its p-norm along attribute `axis`; a norm of 0 counts as 1.

    By default p is 2 and the axis is the last.
    """
    norm = torch.linalg.vector_norm(x, a.get("p", 2), a.get("axis", -1), keepdim=True)
    return x / torch.where(norm == 0, 1.0, norm)


def _dropout(a: Attributes, x: Any, ratio: Any = None, training: Any = None) -> Any:
    """Return (x unchanged, a boolean mask of ones), as dropout outside training does.

    Raises ModelError if `training` is true and the ratio is absent or above 0.
    """
    if training is not None and bool(training) and (ratio is None or float(ratio) > 0):
        raise a.make_error("it is in training mode")
    return x, torch.ones_like(x, dtype=torch.bool)


#: Operators that are functions of torch without attributes.
_PLAIN: Mapping[str, Callable[..., Any]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Add": torch.add,
    "And": torch.logical_and,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Equal": torch.eq,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "HardSwish": F.hardswish,
    "Identity": lambda x: x,
    "IsNaN": torch.isnan,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Log": torch.log,
    "MatMul": torch.matmul,
    "Mish": F.mish,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Or": torch.logical_or,
    "PRelu": lambda x, slope: torch.where(x < 0, slope * x, x),
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
    "Where": torch.where,
    "Xor": torch.logical_xor,
}

COMPUTE_OPERATORS: Mapping[str, Callable[..., Any]] = {
    **{name: _wrap_function(function) for name, function in _PLAIN.items()},
    "ArgMax": _make_arg_reduction(torch.argmax),
    "ArgMin": _make_arg_reduction(torch.argmin),
    "BatchNormalization": _batch_norm,
    "Cast": lambda a, x: x.to(get_torch_dtype(a, a.get("to"))),
    "Celu": _wrap_parametric(F.celu, alpha=1.0),
    "Clip": _clip,
    "CumSum": _cumsum,
    "Div": _divide,
    "Dropout": _dropout,
    "Einsum": lambda a, *xs: torch.einsum(a.get("equation").replace(" ", ""), *xs),
    "Elu": _wrap_parametric(F.elu, alpha=1.0),
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", "none")),
    "Gemm": _gemm,
    "GroupNormalization": _group_norm,
    "HardSigmoid": _wrap_parametric(
        lambda x, alpha, beta: torch.clamp(alpha * x + beta, 0.0, 1.0), alpha=0.2, beta=0.5
    ),
    "Hardmax": _make_softmax(_hardmax),
    "InstanceNormalization": _instance_norm,
    "IsInf": _isinf,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": _wrap_parametric(F.leaky_relu, alpha=0.01),
    "LogSoftmax": _make_softmax(torch.log_softmax),
    "LpNormalization": _lp_norm,
    "Max": _wrap_variadic(torch.maximum),
    "Mean": lambda a, *xs: reduce(torch.add, xs) / len(xs),
    "MeanVarianceNormalization": _mean_variance,
    "Min": _wrap_variadic(torch.minimum),
    "Mod": lambda a, x, y: (torch.fmod if a.get("fmod", 0) else torch.remainder)(x, y),
    "Pow": _power,
    "RMSNormalization": _rms_norm,
    "ReduceL1": _make_reduction(lambda x, axes, keep: x.abs().sum(axes, keep)),
    "ReduceL2": _make_reduction(lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep)),
    "ReduceLogSum": _make_reduction(lambda x, axes, keep: x.sum(axes, keep).log()),
    "ReduceLogSumExp": _make_reduction(lambda x, axes, keep: torch.logsumexp(x, axes, keep)),
    "ReduceMax": _make_extreme_reduction(torch.amax, -math.inf),
    "ReduceMean": _make_reduction(lambda x, axes, keep: x.mean(axes, keep)),
    "ReduceMin": _make_extreme_reduction(torch.amin, math.inf),
    "ReduceProd": _make_reduction(_reduce_prod),
    "ReduceSum": _make_reduction(lambda x, axes, keep: x.sum(axes, keep, dtype=x.dtype)),
    "ReduceSumSquare": _make_reduction(lambda x, axes, keep: x.square().sum(axes, keep)),
    "Selu": lambda a, x: (
        a.get("gamma", 1.0507009873554805) * F.elu(x, a.get("alpha", 1.6732632423543772))
    ),
    "Shrink": _wrap_parametric(_shrink, lambd=0.5, bias=0.0),
    "Softmax": _make_softmax(torch.softmax),
    "Sum": _wrap_variadic(torch.add),
    "Swish": _wrap_parametric(lambda x, alpha: x * torch.sigmoid(alpha * x), alpha=1.0),
    "ThresholdedRelu": _wrap_parametric(
        lambda x, alpha: torch.where(x > alpha, x, 0.0 * x), alpha=1.0
    ),
    "TopK": _topk,
}
