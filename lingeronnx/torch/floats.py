"""Float operators in torch: what an island between integer steps computes, with gradients.

An interpreter of the island's small ONNX model, model-local functions included. Results agree with onnxruntime's to
float32 rounding, not to the bit. Must not know: integers, plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional as F

from ..errors import ModelError
from ..runners import FloatIsland

__all__ = ["FLOATS", "FloatTwin"]


class FloatTwin:
    """The twin of a float island; ModelError where it holds an operator that no gradient is known for."""

    def __init__(self, island: FloatIsland) -> None:
        proto = island.proto
        self._graph = proto.graph
        self._functions = {(f.domain, f.name): f for f in proto.functions}
        self._initializers = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
        for node in proto.graph.node:
            self._check(node)

    def _check(self, node: onnx.NodeProto) -> None:
        function = self._functions.get((node.domain, node.op_type))
        if function is not None:
            for inner in function.node:
                self._check(inner)
        elif node.domain not in ("", "ai.onnx") or node.op_type not in FLOATS:
            raise ModelError(f"{node.op_type} {node.name} stays in float, and no gradient is known for it; take it out "
                             "of the graph to fine-tune the rest")  # fmt: skip

    def __call__(self, kernel: Any, inputs: Sequence[Any], at: Any) -> tuple[Any, ...]:
        """Compute the island's outputs from real inputs."""
        like = inputs[0] if inputs else torch.zeros(())
        known = {"": None, **dict(zip(kernel.inputs, inputs, strict=True))}
        known.update({name: _tensor(array, like) for name, array in self._initializers.items()})
        for node in self._graph.node:
            self._run(node, known, like)
        return tuple(known[name] for name in kernel.outputs)

    def _run(self, node: onnx.NodeProto, known: dict[str, Any], like: Any) -> None:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        given = [known[name] for name in node.input]
        function = self._functions.get((node.domain, node.op_type))
        if function is None:
            if node.op_type == "Constant":
                results: Any = _tensor(_constant(attributes), like)
            else:
                results = FLOATS[node.op_type](_Attributes(attributes), *given)
        else:
            inner = {"": None, **dict(zip(function.input, given, strict=False))}
            inner.update({name: None for name in function.input if name not in inner})
            for step in function.node:
                self._run(_filled(step, attributes), inner, like)
            results = tuple(inner[name] for name in function.output)
        results = results if isinstance(results, tuple | list) else (results,)
        known.update(zip(node.output, results, strict=False))


def _filled(node: onnx.NodeProto, attributes: Mapping[str, Any]) -> onnx.NodeProto:
    """Return a node of a function's body with the attributes it refers to."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for a in node.attribute:
        if not a.ref_attr_name:
            copy.attribute.append(a)
        elif a.ref_attr_name in attributes:
            copy.attribute.append(onnx.helper.make_attribute(a.name, attributes[a.ref_attr_name]))
    return copy


def _constant(attributes: Mapping[str, Any]) -> np.ndarray:
    (name, value), *_ = attributes.items()
    if name == "value":
        return numpy_helper.to_array(value)
    return np.asarray(value, np.int64 if name.endswith(("int", "ints")) else np.float32)


def _tensor(array: np.ndarray, like: Any) -> Any:
    return torch.from_numpy(np.array(array)).to(like.device)


class _Attributes(dict[str, Any]):
    """Attributes of a node; `get` decodes text."""

    def get(self, name: str, default: Any = None) -> Any:
        value = super().get(name, default)
        return value.decode() if isinstance(value, bytes) else value


def _ints(value: Any) -> list[int] | None:
    """Return a tensor's or a list's whole numbers."""
    return (
        None if value is None else [int(v) for v in (value.reshape(-1).tolist() if torch.is_tensor(value) else value)]
    )


def _axes(a: _Attributes, given: Any, rank: int) -> list[int]:
    axes = (_ints(given) if given is not None else a.get("axes")) or range(rank)
    return sorted(int(axis) % rank for axis in axes)


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: _Attributes, x: Any, axes: Any = None) -> Any:
        return function(x, dim=_axes(a, axes, x.ndim), keepdim=bool(a.get("keepdims", 1)))

    return run


def _reshape(a: _Attributes, x: Any, shape: Any) -> Any:
    target = _ints(shape) or []
    return x.reshape([x.shape[i] if n == 0 and not a.get("allowzero", 0) else n for i, n in enumerate(target)])


def _squeeze(a: _Attributes, x: Any, axes: Any = None) -> Any:
    wanted = _ints(axes) if axes is not None else a.get("axes")
    chosen = [i % x.ndim for i in wanted] if wanted is not None else [i for i, n in enumerate(x.shape) if n == 1]
    return x.reshape([n for i, n in enumerate(x.shape) if i not in chosen])


def _unsqueeze(a: _Attributes, x: Any, axes: Any = None) -> Any:
    wanted = _ints(axes) if axes is not None else a.get("axes")
    for axis in sorted(i % (x.ndim + len(wanted)) for i in wanted):
        x = x.unsqueeze(axis)
    return x


def _gemm(a: _Attributes, x: Any, w: Any, c: Any = None) -> Any:
    left, right = (v.t() if a.get(key, 0) else v for v, key in ((x, "transA"), (w, "transB")))
    y = a.get("alpha", 1.0) * (left @ right)
    return y if c is None else y + a.get("beta", 1.0) * c


def _slice(a: _Attributes, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Any:
    first = _ints(starts) if starts is not None else list(a.get("starts"))
    last = _ints(ends) if ends is not None else list(a.get("ends"))
    where = _ints(axes) if axes is not None else a.get("axes")
    where = range(len(first or [])) if where is None else where
    for begin, end, axis, step in zip(
        first or [], last or [], where, _ints(steps) or [1] * len(first or []), strict=True
    ):
        places = range(*slice(begin, None if step < 0 and end < -(1 << 30) else end, step).indices(x.shape[axis]))
        x = x.index_select(axis % x.ndim, torch.tensor(list(places), dtype=torch.int64, device=x.device))
    return x


def _split(a: _Attributes, x: Any, sizes: Any = None) -> Any:
    axis, parts = a.get("axis", 0), _ints(sizes) if sizes is not None else a.get("split")
    if parts is None:
        parts = -(-x.shape[axis] // int(a.get("num_outputs", 2)))
    return tuple(x.split(parts, axis))


def _softmax(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, x: function(x, a.get("axis", -1))


def _conv(a: _Attributes, x: Any, w: Any, b: Any = None) -> Any:
    rank = w.ndim - 2
    pads = a.get("pads") or [0] * 2 * rank
    around = [p for axis in reversed(range(rank)) for p in (pads[axis], pads[axis + rank])]
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return convolve(F.pad(x, around), w, b, a.get("strides") or 1, 0, a.get("dilations") or 1, a.get("group", 1))


def _layer_norm(a: _Attributes, x: Any, scale: Any, bias: Any = None) -> Any:
    axis = a.get("axis", -1) % x.ndim
    return F.layer_norm(x, x.shape[axis:], scale, bias, a.get("epsilon", 1e-5))


def _gather(a: _Attributes, x: Any, index: Any) -> Any:
    axis = a.get("axis", 0) % x.ndim
    places = torch.where(index < 0, index + x.shape[axis], index)
    chosen = x.index_select(axis, places.reshape(-1))
    return chosen.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])


def _clip(a: _Attributes, x: Any, low: Any = None, high: Any = None) -> Any:
    low = a.get("min") if low is None else low
    high = a.get("max") if high is None else high
    return x if low is None and high is None else torch.clamp(x, low, high)


def _gelu(a: _Attributes, x: Any) -> Any:
    return F.gelu(x, approximate=a.get("approximate", "none"))


def _power(a: _Attributes, x: Any, y: Any) -> Any:
    return torch.pow(x, y.to(x.dtype))


#: ONNX's operator -> its torch form, called with attributes and inputs (None for absent ones).
FLOATS: Mapping[str, Callable[..., Any]] = {
    "Abs": lambda a, x: torch.abs(x),
    "Add": lambda a, x, y: x + y,
    "Cast": lambda a, x: x.to({1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool}[a.get("to")]),
    "Clip": _clip,
    "Concat": lambda a, *xs: torch.cat(xs, a.get("axis")),
    "Constant": None,  # type: ignore[dict-item]  # the interpreter's own
    "Conv": _conv,
    "Div": lambda a, x, y: x / y,
    "Dropout": lambda a, x, *rest: x,
    "Elu": lambda a, x: F.elu(x, a.get("alpha", 1.0)),
    "Erf": lambda a, x: torch.erf(x),
    "Exp": lambda a, x: torch.exp(x),
    "Expand": lambda a, x, shape: x.expand(torch.broadcast_shapes(tuple(x.shape), tuple(_ints(shape) or ()))),
    "Flatten": lambda a, x: x.reshape(math.prod(x.shape[: a.get("axis", 1)]), -1),
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "HardSigmoid": lambda a, x: torch.clamp(a.get("alpha", 0.2) * x + a.get("beta", 0.5), 0.0, 1.0),
    "HardSwish": lambda a, x: F.hardswish(x),
    "Identity": lambda a, x: x,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda a, x: F.leaky_relu(x, a.get("alpha", 0.01)),
    "Log": lambda a, x: torch.log(x),
    "LogSoftmax": _softmax(torch.log_softmax),
    "MatMul": lambda a, x, y: x @ y,
    "Max": lambda a, *xs: torch.stack(torch.broadcast_tensors(*xs)).amax(0),
    "Min": lambda a, *xs: torch.stack(torch.broadcast_tensors(*xs)).amin(0),
    "Mish": lambda a, x: F.mish(x),
    "Mul": lambda a, x, y: x * y,
    "Neg": lambda a, x: -x,
    "Pow": _power,
    "Reciprocal": lambda a, x: 1.0 / x,
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceMin": _reduce(torch.amin),
    "ReduceSum": _reduce(torch.sum),
    "Relu": lambda a, x: torch.relu(x),
    "Reshape": _reshape,
    "Shape": lambda a, x: torch.tensor(x.shape, dtype=torch.int64),
    "Sigmoid": lambda a, x: torch.sigmoid(x),
    "Slice": _slice,
    "Softmax": _softmax(torch.softmax),
    "Softplus": lambda a, x: F.softplus(x),
    "Split": _split,
    "Sqrt": lambda a, x: torch.sqrt(x),
    "Squeeze": _squeeze,
    "Sub": lambda a, x, y: x - y,
    "Swish": lambda a, x: x * torch.sigmoid(a.get("alpha", 1.0) * x),
    "Tanh": lambda a, x: torch.tanh(x),
    "Transpose": lambda a, x: x.permute(*(a.get("perm") or reversed(range(x.ndim)))),
    "Unsqueeze": _unsqueeze,
    "Where": lambda a, c, x, y: torch.where(c, x, y),
}
