"""Demands on tensors: which consumers need integers at which scale, real numbers, or a Dequant."""

from __future__ import annotations

from collections.abc import Sequence

from .graph_view import GraphView, NodeView, TensorView
from .node_semantics import (
    INTEGERS,
    IntegerReader,
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
    """What the consumers of each tensor of a graph need: integers (at which scale) or reals.

    Collected in one walk against the edges, and propagated upstream through Dequants and operators
    that pass integers on.
    """

    def __init__(self, view: GraphView) -> None:
        """Collect what the consumers of each tensor of `view` need, from the last node back."""
        self.view = view
        self.demands: dict[TensorView, TensorDemand] = {}
        self._collect_branch_outputs()
        for node in reversed(self.view.order):
            self._collect_node(node)

    def demand_of(self, tensor: TensorView) -> TensorDemand:
        """Collect the needs of the consumers of `tensor`: integers, reals, scales of Dequants.

        The object may be changed in place. It is empty, and stored, if the tensor has no consumer.
        """
        return self.demands.setdefault(tensor, TensorDemand())

    def _collect_branch_outputs(self) -> None:
        """Count If branch outputs that are declared as integers as needing integers.

        Such a branch returns integers: a Dequant in front of the output contradicts the file.
        """
        for scope in self.view.scopes:
            owner = scope.owner
            if owner is None or owner.proto.op_type != "If":
                continue
            for value in scope.graph.output:
                tensor = scope.find(value.name)
                if tensor is not None and value.type.tensor_type.elem_type in INTEGERS:
                    reader = IntegerReader(None, None, owner)
                    self.demand_of(tensor).integer_readers.append(reader)

    def _collect_node(self, node: NodeView) -> None:
        """Add what `node` needs to the demands on its inputs.

        Those on its outputs must be complete. Dequants and integer operators demand integers, data
        movement passes on the demands on its outputs, and other nodes demand real numbers, except
        for indices.
        """
        if is_dequant(node):
            self._collect_dequant(node)
        elif is_quantized(node):
            self._add_real_demands(node, real_inputs(node))
            self._add_integer_demands(node)
        elif always_passes_integers(node) or passes_integers_on_demand(node):
            self._propagate(node, data_inputs(node), real=always_passes_integers(node))
        elif node.proto.op_type == "If" and node.is_standard:
            for branch in node.subgraphs:
                for value, result in zip(branch.graph.output, node.outputs, strict=False):
                    self._merge(branch.find(value.name), result, real=True)
        elif not produces_indices(node):
            self._add_real_demands(node, range(len(node.inputs)))

    def _collect_dequant(self, node: NodeView) -> None:
        """Give the input of the Dequant `node` the integer demands on its output, and its scale.

        The scale (`scale_o`) is added to the demand on the input, None if the attribute is missing.
        """
        self._propagate(node, [0], real=False)
        tensor = node.inputs[0] if node.inputs else None
        if tensor is not None:
            self.demand_of(tensor).dequant_scales.append(node.attributes.get("scale_o"))

    def _add_integer_demands(self, node: NodeView) -> None:
        """Record the integer operator `node` as integer reader of its activations.

        Bits are known for input 0 only, from `data_bits`. A Quant, which reads real numbers, adds
        nothing.
        """
        if is_quant(node):
            return
        scales, data_bits = read_scales(node), current_attributes(node).get("data_bits")
        for index in integer_inputs(node):
            tensor = node.inputs[index]
            assert tensor is not None
            bits = data_bits if isinstance(data_bits, int) and index == 0 else None
            reader = IntegerReader(scales.get(index), bits, node)
            self.demand_of(tensor).integer_readers.append(reader)

    def _add_real_demands(self, node: NodeView, indices: Sequence[int]) -> None:
        """Mark the inputs of `node` at `indices` as needed in real numbers, in place.

        Absent inputs are skipped.
        """
        for index in indices:
            tensor = node.inputs[index] if index < len(node.inputs) else None
            if tensor is not None:
                self.demand_of(tensor).real = True

    def _propagate(self, node: NodeView, indices: Sequence[int], real: bool) -> None:
        """Add what consumers of the output of `node` need to its inputs at `indices`.

        Of a Split all outputs count, else the first. Integer readers and Dequant scales are always
        passed on, the demand for real numbers only if `real`.
        """
        results = node.outputs if node.proto.op_type == "Split" else node.outputs[:1]
        for index in indices:
            tensor = node.inputs[index] if index < len(node.inputs) else None
            for result in results:
                self._merge(tensor, result, real)

    def _merge(self, tensor: TensorView | None, result: TensorView | None, real: bool) -> None:
        """Add the demands on `result` to those on `tensor`, in place.

        Integer readers and Dequant scales are always added, the demand for real numbers only if
        `real`. Does nothing if a tensor is None or `result` has no demands.
        """
        if tensor is None or result is None or result not in self.demands:
            return
        demand, result_demand = self.demand_of(tensor), self.demands[result]
        demand.integer_readers += result_demand.integer_readers
        demand.dequant_scales += result_demand.dequant_scales
        demand.real = demand.real or (real and result_demand.real)
