"""Who needs a tensor: integers at which scale, real numbers, a Dequant.

Found by a walk against the edges.
"""

from __future__ import annotations

from collections.abc import Sequence

from .graph_view import GraphView, NodeView, TensorView
from .node_semantics import (
    INTEGERS,
    TensorDemand,
    always_passes_integers,
    current_attributes,
    data_inputs,
    integer_inputs,
    is_dequant,
    is_quant,
    is_quantized,
    passes_integers_on_demand,
    produces_indices,
    read_scales,
    real_inputs,
)

__all__ = ["Demands"]


class Demands:
    """What the readers of every tensor of a view need, Dequants looked through."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self.demands: dict[TensorView, TensorDemand] = {}
        self._walk_back()

    def demand_of(self, tensor: TensorView) -> TensorDemand:
        """Return who needs `tensor`."""
        return self.demands.setdefault(tensor, TensorDemand())

    def _walk_back(self) -> None:
        for scope in self.view.scopes:
            for value in scope.graph.output:
                tensor = scope.find(value.name)
                owner = scope.owner
                if tensor is None or owner is None:
                    continue
                # A branch that declares integers hands them on: a Dequant in front of it
                # contradicts the file itself.
                if owner.proto.op_type == "If" and value.type.tensor_type.elem_type in INTEGERS:
                    self.demand_of(tensor).integer_readers.append((None, None, owner))
        for node in reversed(self.view.order):
            self._visit_node(node)

    def _visit_node(self, node: NodeView) -> None:
        if is_dequant(node):
            self._propagate(node, [0], real=False)
            tensor = node.inputs[0] if node.inputs else None
            if tensor is not None:
                self.demand_of(tensor).dequant_scales.append(node.attributes.get("scale_o"))
        elif is_quantized(node):
            self._add_real_demands(node, real_inputs(node))
            self._add_integer_demands(node)
        elif always_passes_integers(node) or passes_integers_on_demand(node):
            self._propagate(node, data_inputs(node), real=always_passes_integers(node))
        elif node.proto.op_type == "If" and node.standard:
            for below in node.scopes:
                for value, result in zip(below.graph.output, node.outputs, strict=False):
                    self._merge(below.find(value.name), result, real=True)
        elif not produces_indices(node):
            self._add_real_demands(node, range(len(node.inputs)))

    def _add_integer_demands(self, node: NodeView) -> None:
        if is_quant(node):
            return
        scales, attrs = read_scales(node), current_attributes(node)
        bits = attrs.get("data_bits")
        for index in integer_inputs(node):
            tensor = node.inputs[index]
            assert tensor is not None
            width = bits if isinstance(bits, int) and index == 0 else None
            self.demand_of(tensor).integer_readers.append((scales.get(index), width, node))

    def _add_real_demands(self, node: NodeView, indices: Sequence[int]) -> None:
        for index in indices:
            tensor = node.inputs[index] if index < len(node.inputs) else None
            if tensor is not None:
                self.demand_of(tensor).real = True

    def _propagate(self, node: NodeView, indices: Sequence[int], real: bool) -> None:
        for index in indices:
            tensor = node.inputs[index] if index < len(node.inputs) else None
            for result in node.outputs[:1] if node.proto.op_type != "Split" else node.outputs:
                self._merge(tensor, result, real)

    def _merge(self, tensor: TensorView | None, result: TensorView | None, real: bool) -> None:
        if tensor is None or result is None or result not in self.demands:
            return
        mine, theirs = self.demand_of(tensor), self.demands[result]
        mine.integer_readers += theirs.integer_readers
        mine.dequant_scales += theirs.dequant_scales
        mine.real = mine.real or (real and theirs.real)
