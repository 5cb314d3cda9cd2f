"""Float operators in torch: what an island between integer steps computes, with gradients.

An interpreter of the island's small ONNX model, model-local functions included. The operators stand
in `float_ops`, `float_shapes`, `float_windows` and `float_recurrent`. Results agree with
onnxruntime's to float32 rounding, not to the bit. Must not know: integers, plans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from ...errors import ModelError
from ...run.runners import FloatFallback
from .float_ops import COMPUTE_OPERATORS as OPERATORS
from .float_ops import Attributes
from .float_recurrent import RECURRENT_OPERATORS as RECURRENT
from .float_shapes import SHAPE_OPERATORS as SHAPES
from .float_windows import WINDOW_OPERATORS as WINDOWS

__all__ = ["FLOAT_OPERATORS", "TorchFallback"]

#: ONNX's operator -> its torch form, called with attributes and inputs (None for absent ones).
FLOAT_OPERATORS: Mapping[str, Callable[..., Any]] = {**OPERATORS, **SHAPES, **WINDOWS, **RECURRENT}


class TorchFallback:
    """A float island in torch, with gradients.

    ModelError where it holds an operator that no gradient is known for.
    """

    def __init__(self, fallback: FloatFallback) -> None:
        proto = fallback.proto
        self._graph = proto.graph
        self._version = _get_opset_version(proto.opset_import)
        self._functions = {(f.domain, f.name): f for f in proto.functions}
        self._initializers = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
        for node in proto.graph.node:
            self._check(node)

    @property
    def constant_names(self) -> Collection[str]:
        """The names of the constants that the island holds."""
        return self._initializers.keys()

    def _check(self, node: onnx.NodeProto) -> None:
        function = self._functions.get((node.domain, node.op_type))
        if function is not None:
            for inner in function.node:
                self._check(inner)
        elif node.domain not in ("", "ai.onnx") or (
            node.op_type not in FLOAT_OPERATORS and node.op_type != "Constant"
        ):
            name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            raise ModelError(
                f"{name} {node.name or node.output[0]} stays in float, and no gradient is known "
                "for it; "
                "cut the graph before it to fine-tune the rest"
            )

    def __call__(self, kernel: FloatFallback, inputs: Sequence[Any], at: Any) -> tuple[Any, ...]:
        """Compute the island's outputs from real inputs, sample by sample where its nodes mix samples."""
        if not kernel.needs_single_samples([x.detach().cpu().numpy() for x in inputs]):
            return self._run_samples(kernel, inputs, at.floats)
        parts = [
            self._run_samples(kernel, [x[i : i + 1] for x in inputs], at.floats)
            for i in range(len(inputs[0]))
        ]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def _run_samples(
        self, kernel: FloatFallback, inputs: Sequence[Any], floats: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        like = inputs[0] if inputs else next(iter(floats.values()), torch.zeros(()))
        known = {"": None, **dict(zip(kernel.inputs, inputs, strict=True))}
        known.update(
            {
                name: _to_tensor(a, like)
                for name, a in self._initializers.items()
                if name not in floats
            }
        )
        known.update({name: floats[name] for name in self._initializers if name in floats})
        for node in self._graph.node:
            self._run_node(node, known, like, self._version)
        return tuple(known[name] for name in kernel.outputs)

    def _run_node(
        self, node: onnx.NodeProto, known: dict[str, Any], like: Any, version: int
    ) -> None:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        inputs = [known[name] for name in node.input]
        function = self._functions.get((node.domain, node.op_type))
        if function is not None:
            inner = dict.fromkeys(("", *function.input))
            inner.update(zip(function.input, inputs, strict=False))
            for step in function.node:
                self._run_node(
                    _resolve_attribute_refs(step, attributes),
                    inner,
                    like,
                    _get_opset_version(function.opset_import) or version,
                )
            results: Any = tuple(inner.get(name) for name in function.output)
        elif node.op_type == "Constant":
            results = _to_tensor(_get_constant_value(attributes), like)
        else:
            wanted = len(node.output)
            results = FLOAT_OPERATORS[node.op_type](
                Attributes(attributes, node, version, wanted), *inputs
            )
        results = results if isinstance(results, tuple | list) else (results,)
        known.update(
            (name, value) for name, value in zip(node.output, results, strict=False) if name
        )


def _get_opset_version(imports: Sequence[onnx.OperatorSetIdProto]) -> int:
    """Return the version of ONNX's own operators; 0 where none is named."""
    return next((int(entry.version) for entry in imports if entry.domain in ("", "ai.onnx")), 0)


def _resolve_attribute_refs(node: onnx.NodeProto, attributes: Mapping[str, Any]) -> onnx.NodeProto:
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


def _get_constant_value(attributes: Mapping[str, Any]) -> np.ndarray:
    (name, value), *_ = attributes.items()
    if name == "value":
        return numpy_helper.to_array(value)
    return np.asarray(value, np.int64 if name.endswith(("int", "ints")) else np.float32)


def _to_tensor(array: np.ndarray, like: Any) -> Any:
    return torch.from_numpy(np.array(array)).to(like.device)
