"""Float operators that compute: arithmetic, curves, reductions, normalisations. And what all of them are told.

Each is called with its node's attributes and its inputs, None for absent ones. Versions matter where an operator
changed its meaning or took attributes for inputs. Must not know: graphs, islands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from torch.nn import functional as F

from ...errors import ModelError

__all__ = ["TABLE", "Attributes", "given", "ints", "kind"]


class Attributes(dict[str, Any]):
    """A node's attributes; `get` decodes text. version : of the operator set. wanted : outputs the node has."""

    def __init__(self, values: Mapping[str, Any], node: onnx.NodeProto, version: int, wanted: int) -> None:
        super().__init__(values)
        self.version, self.wanted = version, wanted
        self._where = f"{node.op_type} {node.name or ' '.join(node.output)}"

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, text as str."""
        value = super().get(name, default)
        if isinstance(value, list):
            return [v.decode() if isinstance(v, bytes) else v for v in value]
        return value.decode() if isinstance(value, bytes) else value

    def refuse(self, what: str) -> ModelError:
        """Return the error that the node asks for `what`."""
        return ModelError(f"{self._where}: {what}; fine-tuning cannot compute that, cut the graph before it")


def ints(value: Any) -> list[int] | None:
    """Return a tensor's or a list's whole numbers; None for None."""
    if value is None:
        return None
    return [int(v) for v in (value.reshape(-1).tolist() if torch.is_tensor(value) else value)]


def given(a: Attributes, name: str, tensor: Any) -> list[int] | None:
    """Return whole numbers that newer versions have as an input and older ones as an attribute."""
    return ints(a.get(name) if tensor is None else tensor)


# ---- arithmetic --------------------------------------------------------------------------------------------------


def _divide(a: Attributes, x: Any, y: Any) -> Any:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _power(a: Attributes, x: Any, y: Any) -> Any:
    if x.is_floating_point():
        return torch.pow(x, y.to(x.dtype))
    return torch.pow(x.double(), y.double()).to(x.dtype)


def _mod(a: Attributes, x: Any, y: Any) -> Any:
    return torch.fmod(x, y) if a.get("fmod", 0) else torch.remainder(x, y)


def _gemm(a: Attributes, x: Any, w: Any, c: Any = None) -> Any:
    left, right = (v.t() if a.get(key, 0) else v for v, key in ((x, "transA"), (w, "transB")))
    y = a.get("alpha", 1.0) * (left @ right)
    return y if c is None else y + a.get("beta", 1.0) * c


def _einsum(a: Attributes, *xs: Any) -> Any:
    return torch.einsum(a.get("equation").replace(" ", ""), *xs)


def _cumulated(a: Attributes, x: Any, axis: Any) -> Any:
    (along,) = ints(axis) or [0]
    turned = x.flip(along) if a.get("reverse", 0) else x
    total = turned.cumsum(along)
    if a.get("exclusive", 0):
        total = total - turned
    return (total.flip(along) if a.get("reverse", 0) else total).to(x.dtype)


def _clip(a: Attributes, x: Any, low: Any = None, high: Any = None) -> Any:
    low = a.get("min") if low is None else low
    high = a.get("max") if high is None else high
    if low is not None:
        x = torch.maximum(x, torch.as_tensor(low, dtype=x.dtype, device=x.device))
    return x if high is None else torch.minimum(x, torch.as_tensor(high, dtype=x.dtype, device=x.device))


def _extreme(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(a: Attributes, first: Any, *rest: Any) -> Any:
        for x in rest:
            first = function(first, x)
        return first

    return run


def _total(a: Attributes, first: Any, *rest: Any) -> Any:
    for x in rest:
        first = first + x
    return first


def _shrink(a: Attributes, x: Any) -> Any:
    lambd, bias = a.get("lambd", 0.5), a.get("bias", 0.0)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0 * x))


def _infinite(a: Attributes, x: Any) -> Any:
    found = torch.isinf(x)
    if not a.get("detect_positive", 1):
        found = found & (x < 0)
    return found if a.get("detect_negative", 1) else found & (x > 0)


def kind(a: Attributes, number: int) -> torch.dtype:
    """Return torch's type for ONNX's number of a type."""
    try:
        return torch.from_numpy(np.zeros(1, onnx.helper.tensor_dtype_to_np_dtype(number))).dtype
    except (KeyError, TypeError):
        if number == onnx.TensorProto.BFLOAT16:
            return torch.bfloat16
        raise a.refuse(f"it makes {onnx.TensorProto.DataType.Name(number)}") from None


# ---- reductions --------------------------------------------------------------------------------------------------


def _reduce(function: Callable[[Any, list[int], bool], Any]) -> Callable[..., Any]:
    def run(a: Attributes, x: Any, axes: Any = None) -> Any:
        chosen = given(a, "axes", axes)
        if not chosen and a.get("noop_with_empty_axes", 0):
            return function(x[..., None], [x.ndim], False)
        along = sorted(i % x.ndim for i in chosen) if chosen else list(range(x.ndim))
        if not along:  # a scalar
            return function(x[None], [0], False)
        return function(x, along, bool(a.get("keepdims", 1)))

    return run


def _product(x: Any, axes: list[int], keep: bool) -> Any:
    for axis in reversed(axes):
        x = x.prod(axis, keepdim=keep)
    return x


def _extremes(function: Callable[..., Any], empty: float) -> Callable[..., Any]:
    def run(x: Any, axes: list[int], keep: bool) -> Any:
        if x.dtype == torch.bool:
            return run(x.to(torch.float32), axes, keep) > 0
        if 0 in (x.shape[i] for i in axes):
            return torch.full_like(x.sum(axes, keepdim=keep), empty)
        return function(x, axes, keep)

    return _reduce(run)


def _best(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ArgMax or ArgMin: the first place of the best, or the last."""

    def run(a: Attributes, x: Any) -> Any:
        axis, keep = a.get("axis", 0), bool(a.get("keepdims", 1))
        if not a.get("select_last_index", 0):
            return function(x, axis, keepdim=keep)
        return x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=keep)

    return run


def _top(a: Attributes, x: Any, count: Any = None) -> Any:
    (size,), axis = given(a, "k", count if count is not None else [a.get("k")]) or [1], a.get("axis", -1)
    values, places = torch.sort(x, dim=axis, descending=bool(a.get("largest", 1)), stable=True)
    return values.narrow(axis, 0, size), places.narrow(axis, 0, size)


# ---- rows and normalisations -------------------------------------------------------------------------------------


def _rows(function: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """Return a softmax: along one axis since version 13, before that over all axes from one on."""

    def run(a: Attributes, x: Any) -> Any:
        if a.version >= 13:
            return function(x, a.get("axis", -1))
        axis = a.get("axis", 1) % max(x.ndim, 1)
        return function(x.reshape(math.prod(x.shape[:axis]), -1), 1).reshape(x.shape)

    return run


def _hardmax(x: Any, axis: int) -> Any:
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1.0)


def _per_channel(v: Any, x: Any) -> Any:
    return v.reshape(1, -1, *(1,) * (x.ndim - 2))


def _batch_norm(a: Attributes, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    if a.get("training_mode", 0):
        raise a.refuse("it works in training mode")
    scale, bias, mean, var = (_per_channel(v, x) for v in (scale, bias, mean, var))
    return ((x - mean) * torch.rsqrt(var + a.get("epsilon", 1e-5)) * scale + bias).to(x.dtype)


def _fine(x: Any) -> Any:
    """Return `x` in float32 at least."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _normal(x: Any, axes: Sequence[int], epsilon: float) -> Any:
    """Return (normalised x, mean, 1 / deviation)."""
    mean = x.mean(tuple(axes), keepdim=True)
    root = torch.rsqrt((x - mean).square().mean(tuple(axes), keepdim=True) + epsilon)
    return (x - mean) * root, mean, root


def _instance_norm(a: Attributes, x: Any, scale: Any, bias: Any) -> Any:
    y, _, _ = _normal(x, range(2, x.ndim), a.get("epsilon", 1e-5))
    return y * _per_channel(scale, x) + _per_channel(bias, x)


def _group_norm(a: Attributes, x: Any, scale: Any, bias: Any) -> Any:
    groups = a.get("num_groups")
    y = _normal(x.reshape(x.shape[0], groups, -1), (2,), a.get("epsilon", 1e-5))[0]
    if len(scale) != x.shape[1]:  # before version 21: by group
        scale, bias = (v.repeat_interleave(x.shape[1] // groups) for v in (scale, bias))
    return y.reshape(x.shape) * _per_channel(scale, x) + _per_channel(bias, x)


def _layer_norm(a: Attributes, x: Any, scale: Any, bias: Any = None) -> Any:
    first = a.get("axis", -1) % x.ndim
    y, mean, root = _normal(_fine(x), range(first, x.ndim), a.get("epsilon", 1e-5))
    y = y.to(x.dtype) * scale
    return (y if bias is None else y + bias), mean, root


def _rms_norm(a: Attributes, x: Any, scale: Any) -> Any:
    axes = tuple(range(a.get("axis", -1) % x.ndim, x.ndim))
    root = torch.rsqrt(_fine(x).square().mean(axes, keepdim=True) + a.get("epsilon", 1e-5))
    return (_fine(x) * root).to(x.dtype) * scale


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
        raise a.refuse("it works in training mode")
    return x, torch.ones_like(x, dtype=torch.bool)


TABLE: Mapping[str, Callable[..., Any]] = {
    "Abs": lambda a, x: torch.abs(x),
    "Acos": lambda a, x: torch.acos(x),
    "Acosh": lambda a, x: torch.acosh(x),
    "Add": lambda a, x, y: x + y,
    "And": lambda a, x, y: x & y,
    "ArgMax": _best(torch.argmax),
    "ArgMin": _best(torch.argmin),
    "Asin": lambda a, x: torch.asin(x),
    "Asinh": lambda a, x: torch.asinh(x),
    "Atan": lambda a, x: torch.atan(x),
    "Atanh": lambda a, x: torch.atanh(x),
    "BatchNormalization": _batch_norm,
    "Cast": lambda a, x: x.to(kind(a, a.get("to"))),
    "CastLike": lambda a, x, like: x.to(like.dtype),
    "Ceil": lambda a, x: torch.ceil(x),
    "Celu": lambda a, x: F.celu(x, a.get("alpha", 1.0)),
    "Clip": _clip,
    "Cos": lambda a, x: torch.cos(x),
    "Cosh": lambda a, x: torch.cosh(x),
    "CumSum": _cumulated,
    "Div": _divide,
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Elu": lambda a, x: F.elu(x, a.get("alpha", 1.0)),
    "Equal": lambda a, x, y: x == y,
    "Erf": lambda a, x: torch.erf(x),
    "Exp": lambda a, x: torch.exp(x),
    "Floor": lambda a, x: torch.floor(x),
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", "none")),
    "Gemm": _gemm,
    "Greater": lambda a, x, y: x > y,
    "GreaterOrEqual": lambda a, x, y: x >= y,
    "GroupNormalization": _group_norm,
    "HardSigmoid": lambda a, x: torch.clamp(a.get("alpha", 0.2) * x + a.get("beta", 0.5), 0.0, 1.0),
    "HardSwish": lambda a, x: x * torch.clamp(x / 6 + 0.5, 0.0, 1.0),
    "Hardmax": _rows(_hardmax),
    "Identity": lambda a, x: x,
    "InstanceNormalization": _instance_norm,
    "IsInf": _infinite,
    "IsNaN": lambda a, x: torch.isnan(x),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda a, x: F.leaky_relu(x, a.get("alpha", 0.01)),
    "Less": lambda a, x, y: x < y,
    "LessOrEqual": lambda a, x, y: x <= y,
    "Log": lambda a, x: torch.log(x),
    "LogSoftmax": _rows(torch.log_softmax),
    "LpNormalization": _lp_norm,
    "MatMul": lambda a, x, y: x @ y,
    "Max": _extreme(torch.maximum),
    "Mean": lambda a, *xs: _total(a, *xs) / len(xs),
    "MeanVarianceNormalization": _mean_variance,
    "Min": _extreme(torch.minimum),
    "Mish": lambda a, x: F.mish(x),
    "Mod": _mod,
    "Mul": lambda a, x, y: x * y,
    "Neg": lambda a, x: -x,
    "Not": lambda a, x: ~x,
    "Or": lambda a, x, y: x | y,
    "PRelu": lambda a, x, slope: torch.where(x < 0, slope * x, x),
    "Pow": _power,
    "RMSNormalization": _rms_norm,
    "Reciprocal": lambda a, x: 1.0 / x,
    "ReduceL1": _reduce(lambda x, axes, keep: x.abs().sum(axes, keep)),
    "ReduceL2": _reduce(lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep)),
    "ReduceLogSum": _reduce(lambda x, axes, keep: x.sum(axes, keep).log()),
    "ReduceLogSumExp": _reduce(lambda x, axes, keep: torch.logsumexp(x, axes, keep)),
    "ReduceMax": _extremes(torch.amax, -math.inf),
    "ReduceMean": _reduce(lambda x, axes, keep: x.mean(axes, keep)),
    "ReduceMin": _extremes(torch.amin, math.inf),
    "ReduceProd": _reduce(_product),
    "ReduceSum": _reduce(lambda x, axes, keep: x.sum(axes, keep, dtype=x.dtype)),
    "ReduceSumSquare": _reduce(lambda x, axes, keep: x.square().sum(axes, keep)),
    "Relu": lambda a, x: torch.relu(x),
    "Round": lambda a, x: torch.round(x),
    "Selu": lambda a, x: a.get("gamma", 1.0507009873554805) * F.elu(x, a.get("alpha", 1.6732632423543772)),
    "Shrink": _shrink,
    "Sigmoid": lambda a, x: torch.sigmoid(x),
    "Sign": lambda a, x: torch.sign(x),
    "Sin": lambda a, x: torch.sin(x),
    "Sinh": lambda a, x: torch.sinh(x),
    "Softmax": _rows(torch.softmax),
    "Softplus": lambda a, x: F.softplus(x),
    "Softsign": lambda a, x: F.softsign(x),
    "Sqrt": lambda a, x: torch.sqrt(x),
    "Sub": lambda a, x, y: x - y,
    "Sum": _total,
    "Swish": lambda a, x: x * torch.sigmoid(a.get("alpha", 1.0) * x),
    "Tan": lambda a, x: torch.tan(x),
    "Tanh": lambda a, x: torch.tanh(x),
    "ThresholdedRelu": lambda a, x: torch.where(x > a.get("alpha", 1.0), x, 0.0 * x),
    "TopK": _top,
    "Where": lambda a, c, x, y: torch.where(c, x, y),
    "Xor": lambda a, x, y: x ^ y,
}
