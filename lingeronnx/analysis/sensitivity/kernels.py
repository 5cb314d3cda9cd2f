"""Integer kernels of operators, for float runs in which the operators are rounded.

An operator whose inputs, weights and output are all rounded is an integer graph by itself. So a run
in which everything is rounded has exactly the integers of the simulator. For operators that are
computed in real numbers by the standard and approximated by integer kernels (a recurrent layer, a
softmax, a normalization), rounding the float results would not be equivalent; their kernels are run
even if a trial leaves the inputs in float, with inputs of 16 bits. This module knows operators and
their grids, but no trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from ...ir import ir
from ...ir.plan import Affine
from ...operators.lowerings import Op
from ...quantization import PlannedModel
from ...quantization.lower import lower
from ...quantization.partition import Partition
from ...runtime.runners.float_fallbacks import extract_submodel
from ...runtime.session import Session

__all__ = ["FINE_BITS", "IntegerOperator", "KernelRunner", "build_integer_operators"]

#: Bits of kernel inputs that a trial leaves in float.
FINE_BITS = 16

#: Whether all inputs are on the plan's grid, and the grid of the operator's own tensors: "plan" or
#: "wide".
VariantKey = tuple[bool, str]


@dataclass(frozen=True)
class IntegerVariant:
    """An operator as an integer graph.

    Parameters
    ----------
    model
        The graph, as `ir.to_bytes` writes it.
    inputs
        Quantization parameters of its inputs.
    """

    model: bytes = field(repr=False)
    inputs: Mapping[str, Affine]


@dataclass(frozen=True)
class IntegerOperator:
    """An operator with its integer kernels.

    Parameters
    ----------
    inputs
        For each data input, the tensors that may be rounded whose integers it contains.
    read_tensors
        All inputs except constants.
    output
        The output tensor.
    variants
        Integer graphs by the grids of the tensors.
    """

    inputs: Mapping[str, frozenset[str]]
    read_tensors: frozenset[str]
    output: str
    variants: Mapping[VariantKey, IntegerVariant]


class KernelRunner:
    """Runs integer graphs of operators; sessions are created on the first run."""

    def __init__(self, operators: Mapping[str, IntegerOperator]) -> None:
        """Store the operators by node name.

        The session of a variant is opened when it first runs.
        """
        self._operators = operators
        self._sessions: dict[tuple[str, VariantKey], Session] = {}

    def run(
        self,
        node: str,
        variant_key: VariantKey,
        tensors: Mapping[str, np.ndarray],
        names: Sequence[str],
    ) -> dict[str, np.ndarray]:
        """Run an integer variant of a node on float tensors.

        Return {name: float32 array} of `names`. `variant_key` says whether the inputs are on the
        plan's grid, and which grid the output has. `tensors` has at least the inputs, by name; they
        are quantized here. The session is kept. Raises KeyError for an unknown node or variant.
        """
        session_key = (node, variant_key)
        variant = self._operators[node].variants[variant_key]
        if session_key not in self._sessions:
            self._sessions[session_key] = Session(ir.from_bytes(variant.model))
        session = self._sessions[session_key]
        feeds = {spec.name: tensors[spec.name] for spec in session.inputs}
        # inputs are fed as integers, because a chip's own Quant has 8 bits
        feeds |= {name: q.integers(feeds[name]) for name, q in variant.inputs.items()}
        return dict(zip(names, session.run(names, feeds), strict=True))


def build_integer_operators(
    planned: PlannedModel,
    tensors: Mapping[str, Affine],
    fine: Mapping[str, Affine],
    wide: Mapping[str, Affine],
) -> dict[str, IntegerOperator]:
    """Build the integer kernels of operators whose first output is in `tensors`, by node name.

    Parameters
    ----------
    planned
        The planned model.
    tensors
        Grids (quantization parameters) of the tensors that may be rounded, by name.
    fine
        Parameters of all activations in `FINE_BITS` bits.
    wide
        Parameters of tensors and weights of widened operators; empty if the target has none.
    """
    operators = {}
    for node, op in planned.partition.integer_nodes:
        output = ir.output_name(node)
        if output not in tensors:
            continue
        inputs = {
            ir.input_name(node, index): _trace_rounded_sources(planned, node, index, tensors)
            for index in op.data(node)
        }
        read_tensors = frozenset(
            str(v.name) for v in node.inputs if v is not None and ir.find_constant(v) is None
        )
        variants = _build_variants(planned, node, op, fine, wide)
        operators[str(node.name)] = IntegerOperator(inputs, read_tensors, output, variants)
    return operators


def _trace_rounded_sources(
    planned: PlannedModel, node: ir.Node, index: int, tensors: Mapping[str, Affine]
) -> frozenset[str]:
    """Return the names of the tensors whose integers reach input `index` of a node unchanged.

    The search goes upstream through operators that only move or keep integers, and stops at tensors
    in `tensors` (those that may be rounded), at outputs of other operators and at graph inputs.
    """
    value = ir.require_input(node, index)
    source = frozenset([str(value.name)])
    producer = value.producer()
    if value.name in tensors or producer is None:
        return source
    op = planned.partition.ops.get(str(producer.name))
    if op is None or not (op.is_data_movement or op.preserves_integers):
        return source
    sources = [_trace_rounded_sources(planned, producer, i, tensors) for i in op.data(producer)]
    return frozenset().union(*sources)


def _build_variants(
    planned: PlannedModel,
    node: ir.Node,
    op: Op,
    fine: Mapping[str, Affine],
    wide: Mapping[str, Affine],
) -> dict[VariantKey, IntegerVariant]:
    """Build the integer graphs of a node, by (whether inputs have the plan's grid, output grid).

    Inputs are on the plan's grid or on a fine one of 16 bits; outputs and weights have the plan's
    grid ("plan") or that of `wide` ("wide"), which has variants only if `wide` is not empty. Only
    operators that round internal values, such as Softmax, have others than (True, "plan").
    """
    qparams = planned.plan.tensors
    inputs = [ir.input_name(node, index) for index in op.data(node)]
    own_tensors = [str(node.outputs[index].name) for index in op.quantized_outputs(node)]
    own_tensors += [ir.input_name(node, index) for index in op.weight_inputs(node)]
    own_tensors = [name for name in own_tensors if name in qparams]
    variants = {}
    for has_planned_inputs, grid in _variant_keys(op, bool(wide)):
        node_qparams = {name: qparams[name] for name in inputs}
        if not has_planned_inputs:
            for name in inputs:
                node_qparams[name] = _centered_fine_qparams(qparams[name], fine[name])
        own_qparams = qparams if grid == "plan" else wide
        node_qparams |= {name: own_qparams[name] for name in own_tensors}
        graph = _extract_integer_graph(planned, node, op, node_qparams)
        variants[has_planned_inputs, grid] = IntegerVariant(
            graph, {name: node_qparams[name] for name in inputs}
        )
    return variants


def _variant_keys(op: Op, has_wide: bool) -> list[VariantKey]:
    """Return (whether inputs have the plan's grid, output grid) of the variants that trials need.

    Only (True, "plan"), except for operators that round inside (recurrent layers, Softmax,
    normalization): these also with fine inputs, and with `has_wide` also with the grid "wide".
    """
    if not op.integer_op.rounds_inside:
        return [(True, "plan")]
    return list(product((True, False), ("plan", "wide") if has_wide else ("plan",)))


def _centered_fine_qparams(qparams: Affine, fine: Affine) -> Affine:
    """Return 16-bit parameters of a tensor whose zero point is 0, as kernels require.

    These are `fine` if `qparams`, the plan's parameters, have no zero point. Otherwise either end
    of the range may be all 255 steps away from 0, so the scale is derived from that of `qparams`.
    """
    if not qparams.shifted:
        return fine
    return Affine(qparams.scale * 2.0 ** (FINE_BITS - 1 - qparams.bits), FINE_BITS)


def _extract_integer_graph(
    planned: PlannedModel, node: ir.Node, op: Op, qparams: Mapping[str, Affine]
) -> bytes:
    """Lower a single node to an integer graph with float inputs and outputs, and serialize it.

    `qparams` has the parameters of the node's tensors and weights by name; transforms are dropped.
    """
    values = {str(v.name): v for v in node.inputs if v is not None}
    constants: dict[str, np.ndarray] = {}
    inputs: dict[str, ir.Value] = {}
    for name, value in values.items():
        array = ir.find_constant(value)
        if array is None:
            inputs[name] = value
        else:
            constants[name] = array
    outputs = {str(v.name): v for v in node.outputs if v.name and (v.uses() or v.is_graph_output())}
    graph = ir.from_proto(extract_submodel(planned.graph, [node], inputs, [*outputs], constants))
    for value in (*graph.graph.inputs, *graph.graph.outputs):
        original = (inputs | outputs)[str(value.name)]
        value.shape, value.type = original.shape, original.type
    partition = Partition(graph, {str(node.name): op}, {})
    plan = replace(planned.plan, tensors=qparams, transforms={})
    return ir.to_bytes(lower(partition, plan, planned.prepared.target).graph)
