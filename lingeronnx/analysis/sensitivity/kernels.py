"""Operators as integers compute them, for float runs in which they are rounded.

Run by their integer kernels.
An operator whose inputs, weights and output are all rounded is an integer graph of its own: so a
run in which all is rounded has the integers of the simulator, each of them. Where the standard
computes in real numbers what integers approximate (a recurrent layer, a softmax, a normalisation),
rounding what floats give would not do, and the kernel is run also where a trial leaves the inputs
in float, with inputs of 16 bits. Knows operators and their grids, no trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from ... import formats
from ...flow import PlannedModel
from ...flow.lower import lower
from ...flow.partition import Partition
from ...graph import ir
from ...ops import Op
from ...plan import Affine
from ...run.runners.float_fallbacks import extract_submodel
from ...run.session import Session

__all__ = ["FINE_BITS", "IntegerOperator", "KernelRunner", "build_integer_operators"]

#: Bits of an input that a trial does not round.
FINE_BITS = 16

#: What rounds numbers that no tensor shows. (A curve's are those of its output; some chips read it in 8 bits alone.)
_APPROXIMATING_FORMATS = (
    formats.LSTM,
    formats.GRU,
    formats.SOFTMAX,
    formats.LOG_SOFTMAX,
    formats.LAYER_NORM,
)

#: Whether all inputs are on the plan's grid, and what the operator's own tensors are on: "plan" or "wide".
VariantKey = tuple[bool, str]


@dataclass(frozen=True)
class IntegerVariant:
    """One operator in integers: model, as `ir.to_bytes` writes it, and how its inputs are held."""

    model: bytes = field(repr=False)
    inputs: Mapping[str, Affine]


@dataclass(frozen=True)
class IntegerOperator:
    """One operator.

    inputs : {input: the tensors that may be rounded whose integers it is, moved}. reads : all that
    it reads but constants. output : the tensor that it writes. forms : by how its tensors are held,
    as far as kernels are run.
    """

    inputs: Mapping[str, frozenset[str]]
    read_tensors: frozenset[str]
    output: str
    variants: Mapping[VariantKey, IntegerVariant]


class KernelRunner:
    """The integer graphs of operators, opened when they are first run."""

    def __init__(self, nodes: Mapping[str, IntegerOperator]) -> None:
        self._nodes = nodes
        self._sessions: dict[tuple[str, VariantKey], Session] = {}

    def run(
        self, node: str, held: VariantKey, tensors: Mapping[str, np.ndarray], names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Return the outputs `names` of a node, real values float32, given its inputs."""
        key, form = (node, held), self._nodes[node].variants[held]
        if key not in self._sessions:
            self._sessions[key] = Session(ir.from_bytes(form.model))
        session = self._sessions[key]
        feeds = {spec.name: tensors[spec.name] for spec in session.inputs}
        # As integers: a chip's own Quant has 8 bits.
        feeds |= {name: q.integers(feeds[name]) for name, q in form.inputs.items()}
        return dict(zip(names, session.run(names, feeds), strict=True))


def build_integer_operators(
    planned: PlannedModel,
    tensors: Mapping[str, Affine],
    fine: Mapping[str, Affine],
    wide: Mapping[str, Affine],
) -> dict[str, IntegerOperator]:
    """Return the operators that write one of `tensors`, which may be rounded, by node.

    fine : the activations in `FINE_BITS` bits. wide : how tensors and weights are held where an
    operator is taken to more bits; empty where the target has none.
    """
    found = {}
    for node, op in planned.partition.integer_nodes:
        if ir.output_name(node) in tensors:
            inputs = {
                ir.input_name(node, index): _trace_rounded_sources(planned, node, index, tensors)
                for index in op.data(node)
            }
            reads = frozenset(
                str(v.name) for v in node.inputs if v is not None and ir.find_constant(v) is None
            )
            forms = _build_variants(planned, node, op, fine, wide)
            found[str(node.name)] = IntegerOperator(inputs, reads, ir.output_name(node), forms)
    return found


def _trace_rounded_sources(
    planned: PlannedModel, node: ir.Node, index: int, tensors: Mapping[str, Affine]
) -> frozenset[str]:
    """Return the tensors that may be rounded of which input `index` of `node` holds integers that were only moved."""
    value, ops = ir.require_input(node, index), planned.partition.ops
    maker = value.producer()
    op = None if maker is None else ops.get(str(maker.name))
    if (
        value.name in tensors
        or maker is None
        or op is None
        or not (op.is_data_movement or op.preserves_integers)
    ):
        return frozenset([str(value.name)])
    return frozenset().union(
        *(_trace_rounded_sources(planned, maker, at, tensors) for at in op.data(maker))
    )


def _build_variants(
    planned: PlannedModel,
    node: ir.Node,
    op: Op,
    fine: Mapping[str, Affine],
    wide: Mapping[str, Affine],
) -> dict[VariantKey, IntegerVariant]:
    """Return the integer graphs of one node, by how its tensors are held."""
    plan, forms = planned.plan.tensors, {}
    read = [ir.input_name(node, index) for index in op.data(node)]
    own = [str(node.outputs[index].name) for index in op.quantized_outputs(node)]
    own += [ir.input_name(node, index) for index in op.weight_inputs(node)]
    between = op.integer_op in _APPROXIMATING_FORMATS
    for rounded, grid in product(
        (True, False) if between else (True,), ("plan", "wide") if wide and between else ("plan",)
    ):
        held = {
            name: plan[name] if rounded else _centered_fine_qparams(plan[name], fine[name])
            for name in read
        }
        held |= {name: plan[name] if grid == "plan" else wide[name] for name in own if name in plan}
        forms[rounded, grid] = IntegerVariant(
            _extract_integer_graph(planned, node, op, held), {name: held[name] for name in read}
        )
    return forms


def _centered_fine_qparams(qparams: Affine, fine: Affine) -> Affine:
    """Return `fine` around 0, as integers of 16 bits are."""
    # Of a range with another zero point either end may be all 255 counts away from 0.
    return (
        Affine(qparams.scale * 2.0 ** (FINE_BITS - 1 - qparams.bits), FINE_BITS)
        if qparams.shifted
        else fine
    )


def _extract_integer_graph(
    planned: PlannedModel, node: ir.Node, op: Op, held: Mapping[str, Affine]
) -> bytes:
    """Return the integer graph of one node, real numbers in and out."""
    values = {str(v.name): v for v in node.inputs if v is not None}
    constants = {
        name: array
        for name, value in values.items()
        if (array := ir.find_constant(value)) is not None
    }
    inputs = {name: value for name, value in values.items() if name not in constants}
    outputs = {str(v.name): v for v in node.outputs if v.name and (v.uses() or v.is_graph_output())}
    graph = ir.from_proto(extract_submodel(planned.graph, [node], inputs, [*outputs], constants))
    for value in (*graph.graph.inputs, *graph.graph.outputs):
        like = (inputs | outputs)[str(value.name)]
        value.shape, value.type = like.shape, like.type
    parts = Partition(graph, {str(node.name): op}, {})
    return ir.to_bytes(
        lower(parts, replace(planned.plan, tensors=held, transforms={}), planned.target).graph
    )
