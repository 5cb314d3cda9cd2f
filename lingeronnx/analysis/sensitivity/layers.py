"""The operators of a planned model that lose accuracy of their own, as the user calls them, and what each rounds.

What only moves, chooses or cuts off integers loses nothing and is left out: a Relu's or a MaxPool's
loss is that of the layer before. Where the integers begin there is an entry of type Quant, called
after the tensor.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

import numpy as np

from ...errors import ConfigError
from ...flow import PlannedModel
from ...flow.prepare.selectors import select_nodes
from ...formats import QUANT
from ...graph import ir
from ...ops import Op, get_weight_values, replace_weight_values
from ...ops.macs import count_macs
from ...plan import Affine
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
    """An operator of the user's.

    name, op_type : of the user's graph. activation, weight : what is rounded of it, empty where
    nothing is. selector : what an option calls it; "" where none reaches it. macs : its
    multiply-accumulates for one sample.
    """

    name: str
    op_type: str
    activation: RoundedSet
    weight: RoundedSet
    selector: str
    macs: int = 0

    def trial_sets(self, what: str) -> dict[str, RoundedSet]:
        """Return {"weight", "activation" or "both": what is rounded}.

        What : one of these, or "all".
        """
        by_kind = {
            "weight": self.weight,
            "activation": self.activation,
            "both": self.weight | self.activation,
        }
        there = {
            kind: setting for kind, setting in by_kind.items() if setting.tensors or setting.weights
        }
        if not self.weight.weights:
            there = {"activation": self.activation} if what != "weight" else {}
        elif not self.activation.tensors:
            there = {"weight": self.weight} if what != "activation" else {}
        return there if what == "all" or len(there) <= 1 else {what: there[what]}

    @property
    def all_rounded(self) -> RoundedSet:
        """Everything that is rounded of it."""
        return self.weight | self.activation


def list_rounded_operators(planned: PlannedModel) -> list[RoundedOperator]:
    """Return the operators, in graph order."""
    users = {str(node.name): node for node in ir.iter_nodes_recursive(planned.original.graph)}
    held = planned.plan.tensors
    own = [
        (node, op)
        for node, op in planned.partition.integer_nodes
        if not (op.is_data_movement or op.preserves_integers)
    ]
    operators = _list_input_quantizers(planned)
    groups: dict[str, list[tuple[ir.Node, Op]]] = {}
    for node, op in own:
        groups.setdefault(ir.origin_name(node), []).append((node, op))
    for name, members in groups.items():
        written = [
            str(node.outputs[index].name)
            for node, op in members
            for index in op.quantized_outputs(node)
        ]
        tensors = frozenset(name for name in written if name in held)
        weights = frozenset(
            str(node.name)
            for node, op in members
            if any(ir.input_name(node, index) in held for index in op.weight_inputs(node))
        )
        user = users.get(name)
        selector = _find_selector(planned, [name, *(ir.output_name(node) for node, _ in members)])
        kind = members[-1][0].op_type if user is None else user.op_type
        operators.append(
            RoundedOperator(
                name,
                kind,
                RoundedSet(tensors=tensors),
                RoundedSet(weights=weights),
                selector,
                sum(count_macs(node) for node, _ in members),
            )
        )
    return [layer for layer in operators if layer.all_rounded != RoundedSet()]


def weight_bits_by_operator(planned: PlannedModel) -> dict[str, int]:
    """Return {operator of the user's: bits of its weights}, of those that have some.

    The most where they differ.
    """
    found: dict[str, int] = {}
    for node, op in planned.partition.integer_nodes:
        names = [ir.input_name(node, index) for index in op.weight_inputs(node)]
        for name in (name for name in names if name in planned.plan.tensors):
            layer = ir.origin_name(node)
            found[layer] = max(found.get(layer, 0), planned.plan.tensors[name].bits)
    return found


def _list_input_quantizers(planned: PlannedModel) -> list[RoundedOperator]:
    """Return an entry for every tensor that comes from the host and is made integers."""
    written = {
        str(value.name) for node, _ in planned.partition.integer_nodes for value in node.outputs
    }
    names = [
        n for n in planned.partition.activations if n not in written and n in planned.plan.tensors
    ]
    return [
        RoundedOperator(name, QUANT.name, RoundedSet(tensors=frozenset([name])), RoundedSet(), "")
        for name in names
    ]


def _find_selector(planned: PlannedModel, names: Sequence[str]) -> str:
    for name in names:
        try:
            select_nodes(planned.original, name)
        except ConfigError:
            continue
        return name
    return ""


def format_option(layer: RoundedOperator, target: Target) -> str:
    """Return the option of `quantize` that takes the operator's loss back, or nothing where there is none."""
    wide = max(target.bits)
    if not layer.selector and layer.op_type != QUANT.name:
        return ""
    if wide > 8:
        weights = f",weight_bits:{wide}" if layer.weight.weights else ""
        return f"--override {shlex.quote(f'{layer.selector or layer.name}=bits:{wide}{weights}')}"
    return f"--skip {shlex.quote(layer.selector)}" if layer.selector else ""


def restored_by_options(
    planned: PlannedModel, selected: Sequence[RoundedOperator], operators: Sequence[RoundedOperator]
) -> RoundedSet:
    """Return what the options of `selected` leave out of the rounding of `operators`.

    Nothing where they change nothing.
    Wider tensors leave out all that is rounded of an operator. One that is skipped hands its output
    to the next one, which rounds it as before, unless that is skipped as well; so an average in the
    middle of a net gives nothing back.
    """
    target, parts = planned.target, planned.partition
    if max(target.bits) > 8:
        return reduce(or_, (layer.all_rounded for layer in selected), RoundedSet())
    names = planned.selectors(parts.graph).resolve_skips([layer.selector for layer in selected])
    rest = parts.move_to_float({name: "skipped" for name in names if name in parts.ops})
    whole, activations = (
        reduce(or_, (layer.all_rounded for layer in operators), RoundedSet()),
        frozenset(rest.activations),
    )
    return RoundedSet(
        whole.tensors - activations,
        frozenset(name for name in whole.weights if name not in rest.ops),
    )


def apply_options(
    planned: PlannedModel, selected: Sequence[RoundedOperator], operators: Sequence[RoundedOperator]
) -> RoundedSet:
    """Return how all of `operators` is rounded with the options of `selected`.

    These in 16 bits, or left out.
    """
    whole = reduce(or_, (layer.all_rounded for layer in operators), RoundedSet())
    if max(planned.target.bits) <= 8:
        return whole - restored_by_options(planned, selected, operators)
    return replace(
        whole,
        wide_names=frozenset(
            name for x in selected for name in x.all_rounded.tensors | x.all_rounded.weights
        ),
    )


def build_roundable_model(
    planned: PlannedModel, operators: Sequence[RoundedOperator], outputs: Sequence[str]
) -> RoundableModel:
    """Return how all of `operators` are rounded under the plan."""
    plan, bits = planned.plan, max(planned.target.bits)
    tensors = {name: plan.tensors[name] for layer in operators for name in layer.activation.tensors}
    wanted = {name for layer in operators for name in layer.weight.weights}
    nodes = [(node, op) for node, op in planned.partition.integer_nodes if node.name in wanted]
    weights = {str(node.name): _rounded_constants(planned, node, op) for node, op in nodes}
    content = ir.to_bytes(planned.graph)
    fine = {
        name: _widened_activation_qparams(planned, name, plan.tensors[name], FINE_BITS)
        for name in planned.partition.activations
    }
    if bits <= 8:
        in_integers = build_integer_operators(planned, tensors, fine, {})
        return RoundableModel(content, tuple(outputs), tensors, weights, kernels=in_integers)
    wide = {
        name: _widened_activation_qparams(planned, name, q, bits) for name, q in tensors.items()
    }
    finer = {str(node.name): _rounded_constants(planned, node, op, bits) for node, op in nodes}
    held = fine | {
        name: q for node, op in nodes for name, q in _iter_widened_weights(planned, node, op, bits)
    }
    in_integers = build_integer_operators(planned, tensors, fine, held)
    return RoundableModel(content, tuple(outputs), tensors, weights, wide, finer, in_integers)


def _widened_activation_qparams(
    planned: PlannedModel, name: str, qparams: Affine, bits: int
) -> Affine:
    """Return how a tensor is held in more bits: all that was seen of it fits then."""
    stats = planned.basis.stats.get(name)
    return _widen_qparams(
        qparams, bits, *((0.0, 0.0) if stats is None else (stats.low, stats.high))
    )


def _widen_qparams(qparams: Affine, bits: int, low: float, high: float) -> Affine:
    """Return the same in more bits, of which some go to what lies beyond its range, so that [low, high] fits.

    A scale of few bits may cut off rare values; one of 16 need not.
    """
    times = 2.0 ** max(bits - qparams.bits, 0)
    if (
        qparams.single
        and not qparams.shifted
        and (over := max(high * qparams.scale / qparams.high, low * qparams.scale / qparams.low))
        > 1
    ):
        times /= 2.0 ** math.ceil(math.log2(over))
    return qparams.changed(
        qparams.scales * times,
        max(bits, qparams.bits),
        np.rint(qparams.zero_points * times).astype(np.int64),
    )


def _iter_widened_weights(
    planned: PlannedModel, node: ir.Node, op: Op, bits: int
) -> Iterator[tuple[str, Affine]]:
    """Yield the weights of `node` by name, and how each is held in more bits."""
    for index in op.weight_inputs(node):
        name = ir.input_name(node, index)
        q, values = planned.plan.tensors.get(name), get_weight_values(node, index)
        if q is not None and values is not None:
            wide = np.asarray(values, np.float64)
            yield (
                name,
                _widen_qparams(q, bits, float(wide.min(initial=0)), float(wide.max(initial=0))),
            )


def _rounded_constants(
    planned: PlannedModel, node: ir.Node, op: Op, bits: int = 0
) -> Mapping[str, np.ndarray]:
    """Return the constants of `node` with its weights on their grid, or one of more `bits`, by name."""
    constants: dict[str, np.ndarray] = {}
    finer = dict(_iter_widened_weights(planned, node, op, bits)) if bits else planned.plan.tensors
    for index in op.weight_inputs(node):
        q, values = finer.get(ir.input_name(node, index)), get_weight_values(node, index)
        if q is not None and values is not None:
            on_grid = q.on_grid(np.asarray(values, np.float64))
            constants.update(
                {
                    ir.input_name(node, i): array
                    for i, array in replace_weight_values(node, index, on_grid).items()
                }
            )
    return constants
