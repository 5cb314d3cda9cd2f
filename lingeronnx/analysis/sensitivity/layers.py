"""Operators of a planned model that lose accuracy when quantized, named as in the user's graph.

Operators that only move, select or clip integers lose nothing and are left out: the loss of a Relu
or MaxPool belongs to the layer before it. Each tensor where quantization starts has an entry of
type Quant, named after the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

import numpy as np

from ...common.errors import ConfigError
from ...common.escaping import quote_shell
from ...ir import ir
from ...ir.plan import Affine
from ...operators.integer_ops import QUANT
from ...operators.lowerings import Op, get_weight_values, replace_weight_values
from ...operators.macs import count_macs
from ...quantization import PlannedModel
from ...quantization.prepare.selectors import select_nodes
from ...targets import Target
from .kernels import FINE_BITS, build_integer_operators
from .trial import RoundableModel, RoundedSet

__all__ = [
    "RoundedOperator",
    "apply_options",
    "build_roundable_model",
    "format_option",
    "list_rounded_operators",
    "restored_by_options",
    "weight_bits_by_operator",
]


@dataclass(frozen=True)
class RoundedOperator:
    """An operator of the user's graph with the tensors that quantization rounds.

    Parameters
    ----------
    name, op_type
        Name and type in the user's graph.
    activation, weight
        Rounded output tensors, and nodes with rounded weights; empty if there are none.
    selector
        Selector of the operator for options, or "" if no option reaches it.
    macs
        Multiply-accumulates for one sample.
    """

    name: str
    op_type: str
    activation: RoundedSet
    weight: RoundedSet
    selector: str
    macs: int = 0

    def trial_sets(self, what: str) -> dict[str, RoundedSet]:
        """Return {kind: rounded set} of the operator's trials: "weight", "activation", "both".

        The argument is one of these kinds, or "all" for all three. An operator with only weights or
        only an activation has one trial, whose kind is the part that it has; none if the other part
        is asked for.
        """
        if not self.weight.weights:
            return {} if what == "weight" else {"activation": self.activation}
        if not self.activation.tensors:
            return {} if what == "activation" else {"weight": self.weight}
        sets = {
            "weight": self.weight,
            "activation": self.activation,
            "both": self.weight | self.activation,
        }
        return sets if what == "all" else {what: sets[what]}

    @property
    def all_rounded(self) -> RoundedSet:
        """The union of the rounded output tensors and the nodes with rounded weights."""
        return self.weight | self.activation


def list_rounded_operators(planned: PlannedModel) -> list[RoundedOperator]:
    """List the operators that lose accuracy, in graph order, after the quantizers of the inputs.

    Nodes that come from one node of the user's model are one operator, with its name and type.
    Operators that only move data, and those for which nothing is rounded, are left out.
    """
    user_nodes = {str(node.name): node for node in planned.prepared.original.graph.all_nodes()}
    groups: dict[str, list[tuple[ir.Node, Op]]] = {}
    for node, op in planned.partition.integer_nodes:
        if not op.is_data_movement and not op.preserves_integers:
            groups.setdefault(ir.origin_name(node), []).append((node, op))
    operators = _list_input_quantizers(planned)
    for name, members in groups.items():
        op_type = members[-1][0].op_type
        if name in user_nodes:
            op_type = user_nodes[name].op_type
        names = [name, *(ir.output_name(node) for node, _ in members)]
        operators.append(
            RoundedOperator(
                name,
                op_type,
                RoundedSet(tensors=_quantized_tensors(planned, members)),
                RoundedSet(weights=_nodes_with_quantized_weights(planned, members)),
                _find_selector(planned, names),
                sum(count_macs(node) for node, _ in members),
            )
        )
    return [operator for operator in operators if operator.all_rounded != RoundedSet()]


def _quantized_tensors(
    planned: PlannedModel, members: Sequence[tuple[ir.Node, Op]]
) -> frozenset[str]:
    """Return the names of the nodes' output tensors that have parameters in the plan."""
    names: set[str] = set()
    for node, op in members:
        names.update(str(node.outputs[index].name) for index in op.quantized_outputs(node))
    return frozenset(names & planned.plan.tensors.keys())


def _nodes_with_quantized_weights(
    planned: PlannedModel, members: Sequence[tuple[ir.Node, Op]]
) -> frozenset[str]:
    """Return the names of the nodes with at least one weight in the plan."""
    names: set[str] = set()
    for node, op in members:
        weights = [ir.input_name(node, index) for index in op.weight_inputs(node)]
        if any(weight in planned.plan.tensors for weight in weights):
            names.add(str(node.name))
    return frozenset(names)


def weight_bits_by_operator(planned: PlannedModel) -> dict[str, int]:
    """Return {user's operator: bits of its weights}; the largest width if its weights differ.

    Operators without quantized weights are left out.
    """
    bits_by_operator: dict[str, int] = {}
    for node, op in planned.partition.integer_nodes:
        operator = ir.origin_name(node)
        for index in op.weight_inputs(node):
            q = planned.plan.tensors.get(ir.input_name(node, index))
            if q is not None:
                bits_by_operator[operator] = max(bits_by_operator.get(operator, 0), q.bits)
    return bits_by_operator


def _list_input_quantizers(planned: PlannedModel) -> list[RoundedOperator]:
    """List an operator of type Quant for each quantized tensor that no integer node produces.

    It has the tensor's name and no selector.
    """
    produced: set[str] = set()
    for node, _ in planned.partition.integer_nodes:
        produced.update(str(value.name) for value in node.outputs)
    operators = []
    for name in planned.partition.activations:
        if name not in produced and name in planned.plan.tensors:
            rounded = RoundedSet(tensors=frozenset([name]))
            operators.append(RoundedOperator(name, QUANT.name, rounded, RoundedSet(), ""))
    return operators


def _find_selector(planned: PlannedModel, names: Sequence[str]) -> str:
    """Return the first of `names` that selects nodes of the user's graph in options, or ""."""
    for name in names:
        try:
            select_nodes(planned.prepared.original, name)
        except ConfigError:
            continue
        return name
    return ""


def format_option(layer: RoundedOperator, target: Target) -> str:
    """Format the option of `quantize` that avoids the operator's loss, or "" if there is none.

    On a target with more than 8 bits it is an override to the largest width (also of its weights,
    if they are rounded), else --skip. Without a selector there is none, but for a Quant, whose
    tensor can have an override.
    """
    if not layer.selector and layer.op_type != QUANT.name:
        return ""
    max_bits = max(target.bits)
    if max_bits <= 8:
        return f"--skip {quote_shell(layer.selector)}" if layer.selector else ""
    setting = f"{layer.selector or layer.name}=bits:{max_bits}"
    if layer.weight.weights:
        setting += f",weight_bits:{max_bits}"
    return f"--override {quote_shell(setting)}"


def restored_by_options(
    planned: PlannedModel, selected: Sequence[RoundedOperator], operators: Sequence[RoundedOperator]
) -> RoundedSet:
    """Return the tensors and weights that are no longer rounded with the options of `selected`.

    On a target with more than 8 bits the options widen, and everything that is rounded of an
    operator is exempt. Else they skip operators: a skipped operator passes its output to the next
    one, which rounds it as before unless it is skipped as well; so skipping a pooling in the middle
    of a network restores nothing.

    Parameters
    ----------
    planned
        The planned model.
    selected
        Operators that get options.
    operators
        All rounded operators.

    Returns
    -------
    RoundedSet
        Empty if the options change nothing.
    """
    partition = planned.partition
    if max(planned.prepared.target.bits) > 8:
        return _merge_rounded(selected)
    selectors = planned.selectors(partition.graph)
    names = selectors.resolve_skips([layer.selector for layer in selected])
    remaining = partition.move_to_float({n: "skipped" for n in names if n in partition.ops})
    all_rounded = _merge_rounded(operators)
    return RoundedSet(
        all_rounded.tensors - frozenset(remaining.activations),
        frozenset(name for name in all_rounded.weights if name not in remaining.ops),
    )


def _merge_rounded(operators: Sequence[RoundedOperator]) -> RoundedSet:
    """Return the union of the rounded tensors and weights of all `operators`."""
    return reduce(or_, (operator.all_rounded for operator in operators), RoundedSet())


def apply_options(
    planned: PlannedModel, selected: Sequence[RoundedOperator], operators: Sequence[RoundedOperator]
) -> RoundedSet:
    """Return the rounded set of all `operators` if `selected` get their options.

    On targets with more than 8 bits everything stays rounded, that of `selected` to the wide grid;
    else `selected` are skipped, and all that is no longer rounded by that is left out.
    """
    all_rounded = _merge_rounded(operators)
    if max(planned.prepared.target.bits) <= 8:
        return all_rounded - restored_by_options(planned, selected, operators)
    selected_rounded = _merge_rounded(selected)
    return replace(
        all_rounded,
        wide_tensors=selected_rounded.tensors,
        wide_weights=selected_rounded.weights,
    )


def build_roundable_model(
    planned: PlannedModel, operators: Sequence[RoundedOperator], outputs: Sequence[str]
) -> RoundableModel:
    """Collect the grids and rounded weights of all `operators` under the plan.

    On targets with more than 8 bits, it also has the grids and weights of that width.

    Parameters
    ----------
    planned
        The planned model.
    operators
        Operators that trials may round.
    outputs
        The measured graph outputs.
    """
    plan, max_bits = planned.plan, max(planned.prepared.target.bits)
    rounded = _merge_rounded(operators)
    tensors: dict[str, Affine] = {}
    for operator in operators:
        tensors.update({name: plan.tensors[name] for name in operator.activation.tensors})
    nodes = [
        (node, op) for node, op in planned.partition.integer_nodes if node.name in rounded.weights
    ]
    weights = {str(node.name): _rounded_constants(planned, node, op) for node, op in nodes}
    content = ir.to_bytes(planned.graph)
    fine = {
        name: _widen_activation_qparams(planned, name, plan.tensors[name], FINE_BITS)
        for name in planned.partition.activations
    }
    if max_bits <= 8:
        kernels = build_integer_operators(planned, tensors, fine, {})
        return RoundableModel(content, tuple(outputs), tensors, weights, kernels=kernels)
    wide_tensors = {
        name: _widen_activation_qparams(planned, name, q, max_bits) for name, q in tensors.items()
    }
    wide_weights = {}
    wide_qparams = dict(fine)
    for node, op in nodes:
        wide_weights[str(node.name)] = _rounded_constants(planned, node, op, max_bits)
        wide_qparams.update(_iter_widened_weights(planned, node, op, max_bits))
    kernels = build_integer_operators(planned, tensors, fine, wide_qparams)
    return RoundableModel(
        content, tuple(outputs), tensors, weights, wide_tensors, wide_weights, kernels
    )


def _widen_activation_qparams(
    planned: PlannedModel, name: str, qparams: Affine, bits: int
) -> Affine:
    """Return parameters of the activation `name` with `bits` bits that cover its observed range.

    They are finer than `qparams`, the plan's. Without statistics only the resolution grows.
    """
    stats = planned.basis.stats.get(name)
    low, high = (0.0, 0.0) if stats is None else (stats.low, stats.high)
    return _widen_qparams(qparams, bits, low, high)


def _widen_qparams(qparams: Affine, bits: int, low: float, high: float) -> Affine:
    """Return `qparams` with `bits` bits, of which some extend the range to cover [low, high].

    The others make the scale finer. The range is extended only for one scale without zero point: a
    scale with few bits may clip rare values, one with 16 bits need not. A width is never reduced.
    """
    factor = 2.0 ** max(bits - qparams.bits, 0)
    if qparams.single and not qparams.shifted:
        excess = max(high * qparams.scale / qparams.high, low * qparams.scale / qparams.low)
        if excess > 1:
            factor /= 2.0 ** math.ceil(math.log2(excess))
    zero_points = np.rint(qparams.zero_points * factor).astype(np.int64)
    return qparams.changed(qparams.scales * factor, max(bits, qparams.bits), zero_points)


def _iter_widened_weights(
    planned: PlannedModel, node: ir.Node, op: Op, bits: int
) -> Iterator[tuple[str, Affine]]:
    """Yield (name, parameters with `bits` bits) of the weights of a node that the plan quantizes.

    The range is extended to cover all weights if necessary; the remaining bits make it finer.
    """
    for index in op.weight_inputs(node):
        name = ir.input_name(node, index)
        q, values = planned.plan.tensors.get(name), get_weight_values(node, index)
        if q is None or values is None:
            continue
        weights = np.asarray(values, np.float64)
        low, high = float(weights.min(initial=0)), float(weights.max(initial=0))
        yield name, _widen_qparams(q, bits, low, high)


def _rounded_constants(
    planned: PlannedModel, node: ir.Node, op: Op, bits: int = 0
) -> Mapping[str, np.ndarray]:
    """Round the weights of a node to the plan's grid; return {constant: changed array}.

    `bits` other than 0 is the width of a finer grid. Weights that the plan does not quantize are
    left out.
    """
    constants: dict[str, np.ndarray] = {}
    qparams: Mapping[str, Affine] = planned.plan.tensors
    if bits:
        qparams = dict(_iter_widened_weights(planned, node, op, bits))
    for index in op.weight_inputs(node):
        q, values = qparams.get(ir.input_name(node, index)), get_weight_values(node, index)
        if q is None or values is None:
            continue
        rounded = q.on_grid(np.asarray(values, np.float64))
        for i, array in replace_weight_values(node, index, rounded).items():
            constants[ir.input_name(node, i)] = array
    return constants
