"""Constants that a net computes from its parameters in each call.

Examples are R P of a projected LSTM, sums of two biases, clamped weights, and g v / |v| of weight
normalization. An exporter leaves these operators in the graph, and the passes fold them to values
that no longer follow the parameters. Therefore everything that is computed from parameters alone is
cut out of an exported graph first. Its result becomes a constant with a name of its own, which all
later stages treat as a parameter, and which is computed here, in torch, with gradients to the
parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...common.errors import ModelError
from ...ir import float_ops, ir
from ...runtime.runners import FloatFallback
from ..checkpoint.parameters import is_parameter
from ..fake_quant.common import FakeQuantContext
from ..qat.float_fallback import TorchFallback

__all__ = ["ComputedConstants"]

#: Operators that only rearrange elements: `parameter_constants` follows these through the passes.
_ELEMENT_MOVING_OPERATORS = float_ops.DATA_MOVEMENT_OPS | {"Constant", "Pad"}


@dataclass(frozen=True)
class _ComputedConstant:
    """A constant that is the tensor `output` of a subgraph without other than constant inputs."""

    output: str
    fallback: FloatFallback
    torch: TorchFallback

    def tensor(self, effective: Mapping[str, Tensor]) -> Tensor:
        """Return the constant, computed in torch with gradients from the parameters `effective`.

        These are the folded and clamped parameters by name; for missing ones the values of the
        trace count.
        """
        outputs = self.torch(self.fallback, (), FakeQuantContext((), floats=effective))
        tensor: Tensor = dict(zip(self.fallback.outputs, outputs, strict=True))[self.output]
        return tensor


class ComputedConstants:
    """The constants that were cut out of an exported graph."""

    def __init__(self, graph: ir.Model) -> None:
        """Replace everything that `graph` computes from parameters alone by constants, in place.

        A subgraph is kept if it reads no parameter, if its result is not float32, if an operator
        has no gradient, or if torch does not compute the same values as ONNX.
        """
        self._constants: dict[str, _ComputedConstant] = {}
        original = graph.clone()
        values = {}
        for node in graph.graph:
            values.update({str(value.name): value for value in node.outputs})
        for name, subgraph in _find_constant_subgraphs(original).items():
            parameter = _find_parameter(subgraph)
            fallback = FloatFallback(original, subgraph, {name})
            try:
                constant = _ComputedConstant(name, fallback, TorchFallback(fallback))
            except ModelError:  # an operator without a gradient
                continue
            expected = dict(zip(fallback.outputs, fallback.run_batch(()), strict=True))[name]
            if parameter is None or expected.dtype != np.float32:
                continue
            if not _matches_onnx(constant, expected):
                continue
            new_name = ir.unique_tensor_name(graph, f"{parameter}_computed")
            initializer = ir.add_initializer(graph, new_name, expected)
            values[name].replace_all_uses_with(initializer, replace_graph_outputs=True)
            self._constants[str(initializer.name)] = constant
        ir.remove_unused(graph)

    def tensors(self, effective: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all constants by name, computed with gradients from the parameters `effective`.

        These are the folded and clamped parameters by name.
        """
        return {name: constant.tensor(effective) for name, constant in self._constants.items()}


def _find_parameter(nodes: Sequence[ir.Node]) -> str | None:
    """Return the name of the first initializer that `nodes` read and is a parameter, or None."""
    for node in nodes:
        for value in node.inputs:
            if value is not None and value.is_initializer() and is_parameter(str(value.name)):
                return str(value.name)
    return None


def _matches_onnx(constant: _ComputedConstant, expected: np.ndarray) -> bool:
    """Whether torch computes a constant of the shape and values of `expected`.

    Within 1e-4 relative, or 1e-5 of the largest magnitude; with the parameters as traced.
    """
    with torch.no_grad():
        actual = constant.tensor({}).cpu().numpy()
    max_abs = float(np.abs(expected).max(initial=0))
    return actual.shape == expected.shape and np.allclose(
        actual, expected, rtol=1e-4, atol=1e-5 * max_abs
    )


def _find_constant_subgraphs(model: ir.Model) -> dict[str, list[ir.Node]]:
    """Find tensors that are computed from constants alone, and not just by rearranging elements.

    Only tensors that are read by nodes outside of such subgraphs are returned.

    Returns
    -------
    dict
        Tensor name -> nodes that compute it, in graph order.
    """
    upstream_nodes = _collect_constant_subgraphs(model)
    constant_nodes = set[ir.Node]().union(*upstream_nodes.values())
    order = {node: index for index, node in enumerate(model.graph)}
    subgraphs = {}
    for value, nodes in upstream_nodes.items():
        is_read = any(use.node not in constant_nodes for use in value.uses())
        if not is_read or value.is_graph_output():
            continue
        if any(node.op_type not in _ELEMENT_MOVING_OPERATORS for node in nodes):
            subgraphs[str(value.name)] = sorted(nodes, key=order.__getitem__)
    return subgraphs


def _collect_constant_subgraphs(model: ir.Model) -> dict[ir.Value, set[ir.Node]]:
    """Return tensor -> all nodes that compute it, for tensors computed from constants only.

    Random operators and nodes with subgraphs are not followed.
    """
    upstream_nodes: dict[ir.Value, set[ir.Node]] = {}
    for node in model.graph:
        if node.op_type in float_ops.RANDOM_OPS or ir.has_subgraphs(node):
            continue
        inputs = [value for value in node.inputs if value is not None]
        if all(value in upstream_nodes or ir.const_value(value) is not None for value in inputs):
            nodes = {node}
            for value in inputs:
                nodes |= upstream_nodes.get(value, set())
            upstream_nodes.update(dict.fromkeys(node.outputs, nodes))
    return upstream_nodes
