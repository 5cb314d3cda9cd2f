"""Constants that a net computes from its parameters, as it is called.

These are R P of a projected LSTM, sums of two biases, clamped weights, g v / |v| of weight
normalisation. An exporter leaves these operators in the graph, and the passes fold them, into
numbers that no longer follow the parameters. So what is computed from parameters alone is cut out
of an exported graph before that. Its result becomes a constant under a name of its own, which all
later stages take for a parameter, and which is computed here, in torch, with gradients to the
parameters that it is made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from ...graph import ir, operators
from ...run.runners import FloatFallback
from ..checkpoint.parameters import is_parameter
from ..qat.fake_common import FakeQuantContext
from ..qat.float_fallback import TorchFallback

__all__ = ["ComputedConstants"]

#: Operators whose results are elements of what they read: `parameter_constants` follows those through the passes.
_ELEMENT_MOVING_OPERATORS = operators.DATA_MOVEMENT_OPS | {"Constant", "Pad"}


@dataclass(frozen=True)
class _ComputedConstant:
    """How one constant is computed.

    The tensor of that name, of an island that reads constants only.
    """

    output: str
    fallback: FloatFallback
    torch: TorchFallback

    def tensor(self, effective: Mapping[str, Tensor]) -> Tensor:
        """Return the constant, made of parameters in effect.

        Of others as they were at the trace.
        """
        results = self.torch(self.fallback, (), FakeQuantContext((), floats=effective))
        found: Tensor = dict(zip(self.fallback.outputs, results, strict=True))[self.output]
        return found


class ComputedConstants:
    """What was cut out of an exported graph."""

    def __init__(self, graph: ir.Model) -> None:
        """Cut the expressions out of `graph`, in place.

        One that torch does not compute alike stays.
        """
        self._parts: dict[str, _ComputedConstant] = {}
        whole = ir.clone(graph)
        values = {str(value.name): value for node in graph.graph for value in node.outputs}
        for name, cone in _find_constant_subgraphs(whole).items():
            leaf = next(
                (
                    str(v.name)
                    for node in cone
                    for v in node.inputs
                    if v is not None and _is_parameter_initializer(v)
                ),
                None,
            )
            fallback = FloatFallback(whole, cone, {name})
            try:
                part = _ComputedConstant(name, fallback, TorchFallback(fallback))
            except ModelError:  # an operator without a gradient
                continue
            want = dict(zip(fallback.outputs, fallback.run_batch(()), strict=True))[name]
            if leaf is None or want.dtype != np.float32 or not _matches_onnx(part, want):
                continue
            made = ir.add_initializer(graph, ir.unique_tensor_name(graph, f"{leaf}_computed"), want)
            ir.replace_all_uses(values[name], made)
            self._parts[str(made.name)] = part
        ir.remove_unused(graph)

    def tensors(self, effective: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the constants by name, with gradients to the parameters in effect."""
        return {name: part.tensor(effective) for name, part in self._parts.items()}


def _is_parameter_initializer(value: ir.Value) -> bool:
    """Whether a value is an initializer that stands for a parameter."""
    return value.is_initializer() and is_parameter(str(value.name))


def _matches_onnx(part: _ComputedConstant, want: np.ndarray) -> bool:
    with torch.no_grad():
        have = part.tensor({}).cpu().numpy()
    return have.shape == want.shape and np.allclose(
        have, want, rtol=1e-4, atol=1e-5 * float(np.abs(want).max(initial=0))
    )


def _find_constant_subgraphs(model: ir.Model) -> dict[str, list[ir.Node]]:
    """Return {tensor: the nodes that it is computed by, from constants alone}, where these do more than move elements.

    The tensors are those that a node reads that computes with the graph's inputs.
    """
    alone: dict[ir.Value, set[ir.Node]] = {}
    inside: set[ir.Node] = set()
    for node in model.graph:
        read = [value for value in node.inputs if value is not None]
        free = node.op_type not in operators.RANDOM_OPS and not ir.has_subgraphs(node)
        if free and all(value in alone or ir.const_value(value) is not None for value in read):
            inside.add(node)
            behind = {node}.union(*(alone[value] for value in read if value in alone))
            alone.update(dict.fromkeys(node.outputs, behind))
    order = {node: number for number, node in enumerate(model.graph)}
    found = {}
    for value, cone in alone.items():
        used = any(use.node not in inside for use in value.uses())
        if (
            used
            and not value.is_graph_output()
            and any(node.op_type not in _ELEMENT_MOVING_OPERATORS for node in cone)
        ):
            found[str(value.name)] = sorted(cone, key=order.__getitem__)
    return found
