"""Float nodes between integer nodes, computed in torch with gradients.

An interpreter of the small ONNX model of a `FloatFallback`, including model-local functions. The
operators are in `float_ops`, `float_shapes`, `float_windows` and `float_recurrent`. The results
equal those of onnxruntime up to float32 rounding. This module knows no integers or plans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from ...common.errors import ModelError
from ...runtime.runners import FloatFallback
from .float_ops import COMPUTE_OPERATORS as OPERATORS
from .float_ops import Attributes
from .float_recurrent import RECURRENT_OPERATORS as RECURRENT
from .float_shapes import SHAPE_OPERATORS as SHAPES
from .float_windows import WINDOW_OPERATORS as WINDOWS

__all__ = ["FLOAT_OPERATORS", "TorchFallback"]

#: ONNX operator -> function of `Attributes` and inputs (None for omitted ones).
FLOAT_OPERATORS: Mapping[str, Callable[..., Any]] = {**OPERATORS, **SHAPES, **WINDOWS, **RECURRENT}


class TorchFallback:
    """A float subgraph in torch, with gradients.

    Raises ModelError if it contains an operator without an implementation.
    """

    def __init__(self, fallback: FloatFallback) -> None:
        """Read the graph, functions and initializers of `fallback`.

        Raises ModelError if a node has no implementation in torch.
        """
        proto = fallback.proto
        self._graph = proto.graph
        self._version = _get_opset_version(proto.opset_import)
        self._functions = {(item.domain, item.name): item for item in proto.functions}
        self._initializers = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer
        }
        for node in proto.graph.node:
            self._check(node)

    @property
    def constant_names(self) -> Collection[str]:
        """The names of the initializers of the float subgraph."""
        return self._initializers.keys()

    def _check(self, node: onnx.NodeProto) -> None:
        """Raise ModelError if torch has no implementation of `node`, which stays in float.

        For a call of a model-local function the nodes of its body are checked instead.
        """
        function = self._functions.get((node.domain, node.op_type))
        if function is not None:
            for inner in function.node:
                self._check(inner)
            return
        is_supported = node.op_type in FLOAT_OPERATORS or node.op_type == "Constant"
        if node.domain not in ("", "ai.onnx") or not is_supported:
            name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            raise ModelError(
                f"{name} {node.name or node.output[0]} stays in float, and has no gradient; cut "
                "the graph before it to fine-tune the other nodes"
            )

    def __call__(
        self, kernel: FloatFallback, inputs: Sequence[Any], context: Any
    ) -> tuple[Any, ...]:
        """Return the outputs of the subgraph for real `inputs`, with gradients.

        Samples run one at a time, and are concatenated on axis 0, if `kernel` needs that for these
        inputs. Tensors in ``context.floats`` replace the constants of these names.
        """
        if not kernel.needs_single_samples([x.detach().cpu().numpy() for x in inputs]):
            return self._run_samples(kernel, inputs, context.floats)
        samples = []
        for index in range(len(inputs[0])):
            sample_inputs = [x[index : index + 1] for x in inputs]
            samples.append(self._run_samples(kernel, sample_inputs, context.floats))
        return tuple(torch.cat(outputs) for outputs in zip(*samples, strict=True))

    def _run_samples(
        self, kernel: FloatFallback, inputs: Sequence[Any], floats: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Run all nodes of the subgraph on `inputs` at once; `floats` replace constants by name.

        Returns the outputs in the order of `kernel.outputs`, on the device of the first input.
        """
        like = inputs[0] if inputs else next(iter(floats.values()), torch.zeros(()))
        tensors = {"": None, **dict(zip(kernel.inputs, inputs, strict=True))}
        for name, array in self._initializers.items():
            tensors[name] = floats[name] if name in floats else _to_tensor(array, like)
        for node in self._graph.node:
            self._run_node(node, tensors, like, self._version)
        return tuple(tensors[name] for name in kernel.outputs)

    def _run_node(
        self, node: onnx.NodeProto, tensors: dict[str, Any], like: Any, version: int
    ) -> None:
        """Run a node and add its outputs to `tensors`.

        Parameters
        ----------
        like
            A tensor on the device to compute on.
        version
            Version of the standard operators.
        """
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        inputs = [tensors[name] for name in node.input]
        function = self._functions.get((node.domain, node.op_type))
        if function is not None:
            results: Any = self._run_function(function, attributes, inputs, like, version)
        elif node.op_type == "Constant":
            results = _to_tensor(_get_constant_value(attributes), like)
        else:
            node_attributes = Attributes(attributes, node, version, len(node.output))
            results = FLOAT_OPERATORS[node.op_type](node_attributes, *inputs)
        results = results if isinstance(results, tuple | list) else (results,)
        for name, value in zip(node.output, results, strict=False):
            if name:
                tensors[name] = value

    def _run_function(
        self,
        function: onnx.FunctionProto,
        attributes: Mapping[str, Any],
        inputs: Sequence[Any],
        like: Any,
        version: int,
    ) -> tuple[Any, ...]:
        """Run a model-local function and return its outputs.

        `attributes` are those of the call, which the nodes may refer to; missing inputs are None.
        The function's own opset counts, else `version`.
        """
        tensors: dict[str, Any] = dict.fromkeys(("", *function.input))
        tensors.update(zip(function.input, inputs, strict=False))
        function_version = _get_opset_version(function.opset_import) or version
        for node in function.node:
            self._run_node(
                _resolve_attribute_refs(node, attributes), tensors, like, function_version
            )
        return tuple(tensors.get(name) for name in function.output)


def _get_opset_version(imports: Sequence[onnx.OperatorSetIdProto]) -> int:
    """Return the version of the standard ONNX operators among `imports`, or 0 if it is absent."""
    return next((int(entry.version) for entry in imports if entry.domain in ("", "ai.onnx")), 0)


def _resolve_attribute_refs(node: onnx.NodeProto, attributes: Mapping[str, Any]) -> onnx.NodeProto:
    """Return a node of a function body with references to attributes replaced by values.

    References without a value in `attributes` are left out; a node without references is returned
    itself.
    """
    if not any(item.ref_attr_name for item in node.attribute):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for item in node.attribute:
        if not item.ref_attr_name:
            copy.attribute.append(item)
        elif item.ref_attr_name in attributes:
            value = attributes[item.ref_attr_name]
            copy.attribute.append(onnx.helper.make_attribute(item.name, value))
    return copy


def _get_constant_value(attributes: Mapping[str, Any]) -> np.ndarray:
    """Return the value of a Constant node, given its only attribute, as an array.

    Integers are int64, other numbers float32; a tensor keeps its type.
    """
    (name, value), *_ = attributes.items()
    if name == "value":
        return numpy_helper.to_array(value)
    return np.asarray(value, np.int64 if name.endswith(("int", "ints")) else np.float32)


def _to_tensor(array: np.ndarray, like: Any) -> Any:
    """Copy `array` to a tensor of the same type, on the device of the tensor `like`."""
    return torch.from_numpy(np.array(array)).to(like.device)
