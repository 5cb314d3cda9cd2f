"""Float operators that compute: arithmetic, curves, reductions, normalisations.

And what all of them are told.
Each is called with its node's attributes and its inputs, None for absent ones. Versions matter
where an operator changed its meaning or took attributes for inputs. Must not know: graphs, islands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import onnx
import torch
from torch.nn import functional as F

from ...errors import ModelError

__all__ = ["COMPUTE_OPERATORS", "Attributes", "get_int_list", "to_int_list", "get_torch_dtype"]


class Attributes(dict[str, Any]):
    """A node's attributes; `get` decodes text. version : of the operator set.

    Wanted : outputs the node has.
    """

    def __init__(
        self, values: Mapping[str, Any], node: onnx.NodeProto, version: int, wanted: int
    ) -> None:
        super().__init__(values)
        self.version, self.wanted = version, wanted
        self._where = f"{node.op_type} {node.name or ' '.join(node.output)}"

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, text as str."""
        value = super().get(name, default)
        if isinstance(value, list):
            return [v.decode() if isinstance(v, bytes) else v for v in value]
        return value.decode() if isinstance(value, bytes) else value

    def make_error(self, what: str) -> ModelError:
        """Return the error that the node asks for `what`."""
        return ModelError(
            f"{self._where}: {what}; fine-tuning cannot compute that, cut the graph before it"
        )


def to_int_list(value: Any) -> list[int] | None:
    """Return a tensor's or a list's whole numbers; None for None."""
    if value is None:
        return None
    return [int(v) for v in (value.reshape(-1).tolist() if torch.is_tensor(value) else value)]


def get_int_list(a: Attributes, name: str, tensor: Any) -> list[int] | None:
    """Return whole numbers that newer versions have as an input and older ones as an attribute."""
    return to_int_list(a.get(name) if tensor is None else tensor)


# ---- arithmetic --------------------------------------------------------------------------------------------------


def _wrap_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's own function as an operator without attributes."""
    return lambda a, *xs: function(*xs)


def _wrap_parametric(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """Return a function of one tensor and of numbers, which are attributes with these defaults, in this order."""
    return lambda a, x: function(x, *(a.get(name, default) for name, default in settings.items()))


def _wrap_variadic(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return a function of two tensors as one of several."""
    return lambda a, *xs: reduce(function, xs)


def _divide(a: Attributes, x: Any, y: Any) -> Any:
    return torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc")


def _power(a: Attributes, x: Any, y: Any) -> Any:
    if x.is_floating_point():
        return torch.pow(x, y.to(x.dtype))
    return torch.pow(x.double(), y.double()).to(x.dtype)


def _gemm(a: Attributes, x: Any, w: Any, c: Any = None) -> Any:
    left, right = (v.t() if a.get(key, 0) else v for v, key in ((x, "transA"), (w, "transB")))
    y = a.get("alpha", 1.0) * (left @ right)
    return y if c is None else y + a.get("beta", 1.0) * c


def _cumsum(a: Attributes, x: Any, axis: Any) -> Any:
    (along,) = to_int_list(axis) or [0]
    turned = x.flip(along) if a.get("reverse", 0) else x
    total = turned.cumsum(along, dtype=x.dtype)
    if a.get("exclusive", 0):
        total = total - turned
    return total.flip(along) if a.get("reverse", 0) else total


def _clip(a: Attributes, x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _shrink(x: Any, lambd: float, bias: float) -> Any:
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0 * x))


def _isinf(a: Attributes, x: Any) -> Any:
    upper, lower = (bool(a.get(f"detect_{sign}", 1)) for sign in ("positive", "negative"))
    return (torch.isposinf(x) & upper) | (torch.isneginf(x) & lower)


#: ONNX's number of a type -> torch's.
_TYPES = {
    getattr(onnx.TensorProto, name.upper()): getattr(torch, name)
    for name in (
        *("bool", "float", "double", "float16", "bfloat16"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
}


def get_torch_dtype(a: Attributes, number: int) -> torch.dtype:
    """Return torch's type for ONNX's number of a type."""
    if number not in _TYPES:
        raise a.make_error(f"it makes {onnx.TensorProto.DataType.Name(number)}")
    return _TYPES[number]


# ---- reductions --------------------------------------------------------------------------------------------------


def _make_reduction(function: Callable[[Any, list[int], bool], Any]) -> Callable[..., Any]:
    def run(a: Attributes, x: Any, axes: Any = None) -> Any:
        chosen = get_int_list(a, "axes", axes)
        if not chosen and a.get("noop_with_empty_axes", 0):
            return function(x[..., None], [x.ndim], False)
        along = sorted(i % x.ndim for i in chosen) if chosen else list(range(x.ndim))
        if not along:  # a scalar
            return function(x[None], [0], False)
        return function(x, along, bool(a.get("keepdims", 1)))

    return run


def _reduce_prod(x: Any, axes: list[int], keep: bool) -> Any:
    for axis in reversed(axes):
        x = x.prod(axis, keepdim=keep)
    return x


def _make_extreme_reduction(function: Callable[..., Any], empty: float) -> Callable[..., Any]:
    def run(x: Any, axes: list[int], keep: bool) -> Any:
        if x.dtype == torch.bool:
            return run(x.to(torch.float32), axes, keep) > 0
        if 0 in (x.shape[i] for i in axes):
            return torch.full_like(x.sum(axes, keepdim=keep), empty)
        return function(x, axes, keep)

    return _make_reduction(run)


def _make_arg_reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ArgMax or ArgMin: the first place of the best, or the last."""

    def run(a: Attributes, x: Any) -> Any:
        axis, keep = a.get("axis", 0), bool(a.get("keepdims", 1))
        if not a.get("select_last_index", 0):
            return function(x, axis, keepdim=keep)
        return x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=keep)

    return run


def _topk(a: Attributes, x: Any, count: Any) -> Any:
    size, axis = int(count), a.get("axis", -1)
    values, places = torch.sort(x, dim=axis, descending=bool(a.get("largest", 1)), stable=True)
    return values.narrow(axis, 0, size), places.narrow(axis, 0, size)


# ---- rows and normalisations -------------------------------------------------------------------------------------


def _make_softmax(function: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """Return a softmax: along one axis since version 13, before that over all axes from one on."""

    def run(a: Attributes, x: Any) -> Any:
        if a.version >= 13:
            return function(x, a.get("axis", -1))
        return function(x.flatten(a.get("axis", 1)), -1).reshape(x.shape)

    return run


def _hardmax(x: Any, axis: int) -> Any:
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1.0)


def _batch_norm(a: Attributes, x: Any, *parameters: Any) -> Any:
    if a.get("training_mode", 0):
        raise a.make_error("it works in training mode")
    scale, bias, mean, var = (v.reshape(-1, *(1,) * (x.ndim - 2)) for v in parameters)
    return (x - mean) * torch.rsqrt(var + a.get("epsilon", 1e-5)) * scale + bias


def _instance_norm(a: Attributes, x: Any, scale: Any, bias: Any) -> Any:
    return torch.group_norm(x, x.shape[1], scale, bias, a.get("epsilon", 1e-5))


def _group_norm(a: Attributes, x: Any, scale: Any, bias: Any) -> Any:
    groups = a.get("num_groups")
    if len(scale) != x.shape[1]:  # before version 21: by group
        scale, bias = (v.repeat_interleave(x.shape[1] // groups) for v in (scale, bias))
    return torch.group_norm(x, groups, scale, bias, a.get("epsilon", 1e-5))


def _layer_norm(a: Attributes, x: Any, scale: Any, bias: Any = None) -> Any:
    axes = tuple(range(a.get("axis", -1) % x.ndim, x.ndim))
    mean = x.mean(axes, keepdim=True)
    root = torch.rsqrt((x - mean).square().mean(axes, keepdim=True) + a.get("epsilon", 1e-5))
    y = (x - mean) * root * scale
    return (y if bias is None else y + bias), mean, root


def _rms_norm(a: Attributes, x: Any, scale: Any) -> Any:
    return F.rms_norm(x, x.shape[a.get("axis", -1) :], eps=a.get("epsilon", 1e-5)) * scale


def _mean_variance(a: Attributes, x: Any) -> Any:
    axes = tuple(a.get("axes", [0, 2, 3]))
    mean = x.mean(axes, keepdim=True)
    spread = (x.square().mean(axes, keepdim=True) - mean.square()).clamp(min=0)
    return (x - mean) / (spread.sqrt() + 1e-9)


def _lp_norm(a: Attributes, x: Any) -> Any:
    norm = torch.linalg.vector_norm(x, a.get("p", 2), a.get("axis", -1), keepdim=True)
    return x / torch.where(norm == 0, 1.0, norm)


def _dropout(a: Attributes, x: Any, share: Any = None, training: Any = None) -> Any:
    if training is not None and bool(training) and (share is None or float(share) > 0):
        raise a.make_error("it works in training mode")
    return x, torch.ones_like(x, dtype=torch.bool)


#: Operators that are functions of torch as they stand; some of them choose elements.
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
