"""A recurrent layer step by step, where the chip's own does not serve.

LinearInt, iqAdd, iqMul and table activations.
GRU, gates r and z; 1 - z is sigmoid of the negated sum, so that no difference of nearly equal
numbers is rounded:

    r, z, 1-z = sigmoid(W x + R h + b)      n = tanh(Wn x + r*(Rn h + c))  or  tanh(Wn x + Rn (r*h))
    h = z*h + (1-z)*n

LSTM:   i, o, f = sigmoid(...)   g = tanh(...)   c = f*c + i*g   h = o*tanh(c)

The products with x are made for all steps at once. A platform without a right tanh makes it of a
sigmoid, ``tanh(u) = 2*sigmoid(2*u) - 1``, the factors taken up by weights. Steps share their
weights. Every sum and product is rounded to 8 bits, which the layer itself would not do: that is
the cost. What belongs to step t is called ``<layer>_t<t>_<what>``; that all steps have a `what` in
common is noted beside the name (`ir.set_constant_base_name`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..formats.data_movement.selection import sliced_positions
from ..graph import ir
from ..graph.builder import SubgraphBuilder
from ..graph.detached_nodes import make_detached_node, make_detached_value
from ..ops import find_lowering_rule
from ..ops.functions.sigmoid_tanh import SIGMOID, TANH
from ..ops.layers.recurrent import optional_input_indices
from ..passes.layers.linear import declare_linear_function
from ..targets import Target

__all__ = ["MAX_UNROLLED_STEPS", "unroll_recurrent"]

_WeightAndBias = tuple[ir.Value, ir.Value]

#: The longest sequence that is taken apart: some twenty nodes a step.
MAX_UNROLLED_STEPS = 64


def _can_join_gates(units: int, target: Target) -> bool:
    """Whether one sigmoid takes the gates together: what stands in for it may have a limit."""
    gates = [1, 1, 3 * units]
    return not SIGMOID.find_violations(
        make_detached_node("Sigmoid", [make_detached_value(gates)], gates), target
    )


def unroll_recurrent(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Write the layer out step by step."""
    kind = ir.base_op_type(node)
    if (
        node.domain != ir.FUNCTION_DOMAIN
        or kind not in ("GRU", "LSTM")
        or "lengths" in optional_input_indices(node)
    ):
        return None
    shape = ir.get_shape(node.inputs[0])
    if (
        shape is None
        or shape[1] is None
        or shape[1] > MAX_UNROLLED_STEPS
        or not SIGMOID.is_available(target)
    ):
        return None
    maker = (_UnrolledGruBuilder if kind == "GRU" else _UnrolledLstmBuilder)(
        model, node, TANH.is_available(target)
    )
    maker.joins_gates = _can_join_gates(maker.units, target)
    maker.run()
    if any(
        (op := find_lowering_rule(step_node, target)[0]) is None
        or op.find_violations(step_node, target)
        for step_node in maker.builder.nodes
    ):
        maker.builder.discard()
        return None
    maker.replace_layer()
    curve = "" if maker.has_tanh else ", tanh made of sigmoid"
    return (
        f"{shape[1]} steps of a {kind} written out{curve}",
        "every sum and product of a step is rounded to 8 bits",
    )


class _UnrolledLayerBuilder:
    """The nodes that take the layer's place, while they are made; tensors are [N, steps, units]."""

    def __init__(self, model: ir.Model, node: ir.Node, has_tanh: bool) -> None:
        self.model, self.node, self.has_tanh = model, node, has_tanh
        self.builder = SubgraphBuilder(model, node)
        arrays = [ir.require_const_value(value) for value in node.inputs[1:4]]
        self.w, self.r, self.b = arrays[0], arrays[1], arrays[2].reshape(2, -1)
        self.units = self.r.shape[1]
        x = ir.require_input(node)
        assert x.shape is not None
        self.batch, self.length = x.shape[0], _sample_shape(x)[0]
        self.run_time_states: dict[str, ir.Value] = {}
        #: Where the layer begins when nothing is given at run time: zero, or a constant.
        self.first = {key: np.zeros(self.units) for key in "hc"}
        for key, index in optional_input_indices(node).items():
            array = ir.const_value(node.inputs[index])
            if array is None:
                self.run_time_states[key] = ir.require_input(node, index)
            else:
                self.first[key] = array.reshape(-1).astype(np.float64)
        #: tanh(u) is 2*sigmoid(2*u) - 1 where there is no table of it.
        self.tanh_input_factor = 1.0 if has_tanh else 2.0
        self.current_states: dict[str, ir.Value] = {}
        self.joins_gates = True
        #: What the names of the current step's nodes begin with.
        self._step_prefix = ""
        self._doubling_weights: dict[float, _WeightAndBias] = {}

    def run(self) -> None:
        """Make the nodes, in the order of time, and what is read of them."""
        back = ir.get_attr(self.node, "direction") == "reverse"
        states: list[ir.Value] = []
        self.x = ir.require_input(self.node)
        self.build_input_products()
        for number in range(self.length):
            t = self.length - 1 - number if back else number
            self._step_prefix = f"t{t}_"
            states.append(self.step(t))
        self._step_prefix = ""
        self.states = states[::-1] if back else states
        self.current_states["h"] = states[-1]

    def build_input_products(self) -> None:
        """Make the products with x, for all steps."""
        raise NotImplementedError

    def step(self, t: int) -> ir.Value:
        """Return the state after step `t`, [N, 1, units]."""
        raise NotImplementedError

    # ---- nodes ----

    def add_node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        suffix: str,
        sizes: Sequence[int],
        domain: str = "",
    ) -> ir.Value:
        """Append a node called `<layer>_<what>`, with the step before `suffix`.

        Return its output [N, *sizes].
        """
        return self.mark_shared_constants(
            self.builder(
                op_type, inputs, [self.batch, *sizes], self._step_prefix + suffix, domain=domain
            ),
            suffix,
        )

    def mark_shared_constants(self, value: ir.Value, what: str) -> ir.Value:
        """Note what the node that makes `value` has in common with those of other steps.

        Return `value`.
        What is computed for all steps at once has nothing in common with a step.
        """
        if self._step_prefix:
            ir.set_constant_base_name(
                ir.require_producer(value), f"{ir.output_name(self.node)}_{what}"
            )
        return value

    def weight(
        self, array: np.ndarray, what: str, bias: np.ndarray | None = None
    ) -> _WeightAndBias:
        """Return weight [O, I] and bias (default zeros) as initializers that all steps share."""
        values = np.ascontiguousarray(array, np.float32)
        zero = np.zeros(len(values)) if bias is None else bias
        return self.builder.constant(values, f"{what}_weight"), self.builder.constant(
            zero.astype(np.float32), f"{what}_bias"
        )

    def select_step_product(
        self, whole: ir.Value, parts: _WeightAndBias, inner: np.ndarray, t: int, what: str
    ) -> ir.Value:
        """Return the products with x at step `t`, of `whole`.

        Those of the first step with a constant state added.
        """
        with np.errstate(all="ignore"):  # what is not finite is told where scales are chosen
            added = inner @ self.first["h"]
        if self.current_states or "h" in self.run_time_states or not np.any(added):
            return self.slice_axis(whole, 1, t, t + 1, what)
        bias = ir.require_const_value(parts[1])
        moved = self.builder.constant((bias + added).astype(np.float32), f"{what}_first_bias")
        return self.linear(
            self.slice_axis(self.x, 1, t, t + 1, f"{what}_in"), (parts[0], moved), what
        )

    def scale_gate(self, gate: ir.Value, value: np.ndarray, what: str) -> ir.Value | None:
        """Append the product of a gate and a constant vector, or matrix.

        None where that is zero.
        """
        if not np.any(value):
            return None
        return self.linear(
            gate, self.weight(np.diag(value) if value.ndim == 1 else value, what), what
        )

    def linear(self, x: ir.Value, parts: _WeightAndBias, what: str) -> ir.Value:
        """Append a fully connected layer."""
        units = int((ir.get_shape(parts[0]) or (0,))[0] or 0)
        return self.add_node(
            "Linear", [x, *parts], what, (_sample_shape(x)[0], units), ir.FUNCTION_DOMAIN
        )

    def add(self, a: ir.Value, b: ir.Value, what: str) -> ir.Value:
        """Append an Add of two values."""
        return self.add_node("Add", [a, b], what, _sample_shape(a))

    def multiply(self, a: ir.Value, b: ir.Value, what: str) -> ir.Value:
        """Append a Mul of two values."""
        return self.add_node("Mul", [a, b], what, _sample_shape(a))

    def slice_axis(self, x: ir.Value, axis: int, start: int, end: int, what: str) -> ir.Value:
        """Append a Slice; `x` itself where that is all of it."""
        part = self.builder.slice_axis(x, axis, start, end, self._step_prefix + what)
        return part if part is x else self.mark_shared_constants(part, what)

    def build_gates(self, total: ir.Value, keys: str) -> list[ir.Value]:
        """Append sigmoids of the sums of all gates, and return them one by one."""
        units, sizes = self.units, _sample_shape(total)
        if self.joins_gates:
            total = self.add_node("Sigmoid", [total], "gates", sizes)
        parts = [
            self.slice_axis(
                total, 2, i * units, (i + 1) * units, f"{key}{'' if self.joins_gates else '_sum'}"
            )
            for i, key in enumerate(keys)
        ]
        if self.joins_gates:
            return parts
        return [
            self.add_node("Sigmoid", [part], key, (1, units))
            for part, key in zip(parts, keys, strict=True)
        ]

    def build_tanh(self, u: ir.Value, what: str, gain: float = 1.0) -> ir.Value:
        """Append gain * tanh(u); `u` is twice that where tanh is made of sigmoid."""
        sizes = _sample_shape(u)
        if self.has_tanh:
            return self.add_node("Tanh", [u], what, sizes)
        half = self.add_node("Sigmoid", [u], f"{what}_half", sizes)
        if gain not in self._doubling_weights:
            less = np.full(sizes[-1], -gain)
            self._doubling_weights[gain] = self.weight(
                2 * gain * np.eye(sizes[-1]), f"double{gain:g}", less
            )
        return self.linear(half, self._doubling_weights[gain], what)

    # ---- in place of the layer ----

    def replace_layer(self) -> None:
        """Put the nodes where the layer was."""
        model, node = self.model, self.node
        declare_linear_function(model)
        model.graph.insert_before(node, self.builder.nodes)
        y = node.outputs[0]
        for use in list(y.uses()):
            t = _single_step(use.node) if use.idx == 0 else None
            if t is not None and ir.can_bypass_node(use.node, self.states[t]):
                ir.bypass_node(model, use.node, self.states[t])
        if self.length > 1 and (y.uses() or y.is_graph_output()):
            joined = ir.make_node(
                "Concat", self.states, {"axis": 1}, origin=node, suffix="joined", output="", like=y
            )
            model.graph.insert_before(node, joined)
            self._replace_output(y, joined.outputs[0])
        elif self.length == 1:
            self._replace_output(y, self.states[0])
        for value, key in zip(node.outputs[1:], "hc", strict=False):
            self._replace_output(value, self.current_states[key])
        model.graph.remove(node, safe=True)
        for step_node in reversed(self.builder.nodes):  # the first step has no use for some gates
            if not any(v.uses() or v.is_graph_output() for v in step_node.outputs):
                model.graph.remove(step_node, safe=True)

    def _replace_output(self, old: ir.Value, new: ir.Value) -> None:
        """Let the readers of `old` read `new`, which takes its name where that is a graph output's."""
        if not old.uses() and not old.is_graph_output():
            return
        if old.is_graph_output() and new.is_graph_output():  # one tensor has one name
            size = self.builder.constant(np.array([0, *_sample_shape(new)], np.int64), "same_shape")
            same = ir.make_node(
                "Reshape", [new, size], origin=self.node, suffix="same", output="", like=old
            )
            self.model.graph.insert_before(self.node, same)
            new = same.outputs[0]
        name = str(old.name)
        if old.is_graph_output() or not new.name:
            old.name = ir.unique_tensor_name(self.model, f"{name}_layer")
            new.name = name
        ir.replace_all_uses(old, new)


def _sample_shape(value: ir.Value) -> list[int]:
    """Return the shape of one sample."""
    return [int(d or 0) for d in ir.require_shape(value)[1:]]


def _single_step(node: ir.Node) -> int | None:
    """Return the step that the Slice `node` takes, None for anything else."""
    steps = sliced_positions(node, 1)
    return steps[0] if steps is not None and len(steps) == 1 else None


class _UnrolledGruBuilder(_UnrolledLayerBuilder):
    """Gates z, r, n in ONNX's order."""

    def build_input_products(self) -> None:
        (wz, wr, wn), (rz, rr, rn) = (np.split(a, 3) for a in (self.w, self.r))
        (bz, br, bn), (cz, cr, cn) = (np.split(a, 3) for a in self.b)
        self._after = bool(ir.get_attr(self.node, "linear_before_reset", 0))
        rows = ((wr, rr, br + cr), (wz, rz, bz + cz), (-wz, -rz, -bz - cz))
        w, self._r, b = (np.concatenate([row[i] for row in rows]) for i in range(3))
        self._of_x = self.weight(w, "gates_x", b)
        self._gates = self.linear(self.x, self._of_x, "gates_x")
        self._of_h = self.weight(self._r, "gates_h")
        new = self.weight(
            self.tanh_input_factor * wn,
            "new_x",
            self.tanh_input_factor * (bn if self._after else bn + cn),
        )
        self._new = self.linear(self.x, new, "new_x")
        self._rn, self._cn = self.tanh_input_factor * rn, self.tanh_input_factor * cn
        self._inner = self.weight(self._rn, "new_h", self._cn if self._after else None)

    def step(self, t: int) -> ir.Value:
        h = self.current_states.get("h", self.run_time_states.get("h"))
        total = self.select_step_product(self._gates, self._of_x, self._r, t, "gates_x")
        if h is not None:
            total = self.add(total, self.linear(h, self._of_h, "gates_h"), "gates_sum")
        r, z, rest = self.build_gates(total, "rzk")
        new = self.slice_axis(self._new, 1, t, t + 1, "new_x")
        inner = self._build_reset_term(h, r)
        if inner is not None:
            new = self.add(new, inner, "new_sum")
        new = self.multiply(rest, self.build_tanh(new, "new"), "taken")
        if h is None:
            kept = self.scale_gate(z, self.first["h"], "kept")
        else:
            kept = self.multiply(z, h, "kept")
        self.current_states["h"] = new if kept is None else self.add(kept, new, "h")
        return self.current_states["h"]

    def _build_reset_term(self, h: ir.Value | None, r: ir.Value) -> ir.Value | None:
        """Return what the state adds to the sum of n."""
        if h is None:
            first = self.first["h"]
            return self.scale_gate(
                r, self._rn @ first + self._cn if self._after else self._rn * first, "new_h"
            )
        if self._after:
            return self.multiply(r, self.linear(h, self._inner, "inner"), "new_h")
        return self.linear(self.multiply(r, h, "rh"), self._inner, "new_h")


class _UnrolledLstmBuilder(_UnrolledLayerBuilder):
    """Gates i, o, f, g in ONNX's order. The cell is held doubled where tanh is made of sigmoid."""

    def build_input_products(self) -> None:
        cut, total = 3 * self.units, self.b.sum(axis=0)
        self._r, self._rn = self.r[:cut], self.tanh_input_factor * self.r[cut:]
        self._of_x = self.weight(self.w[:cut], "gates_x", total[:cut])
        self._gates = self.linear(self.x, self._of_x, "gates_x")
        self._of_h = self.weight(self._r, "gates_h")
        self._new_of_x = self.weight(
            self.tanh_input_factor * self.w[cut:], "new_x", self.tanh_input_factor * total[cut:]
        )
        self._new = self.linear(self.x, self._new_of_x, "new_x")
        self._inner = self.weight(self._rn, "new_h")
        cell = self.run_time_states.get("c")
        if cell is not None and not self.has_tanh:
            cell = self.linear(
                cell, self.weight(self.tanh_input_factor * np.eye(self.units), "cell"), "cell_in"
            )
        self._cell = cell

    def step(self, t: int) -> ir.Value:
        h = self.current_states.get("h", self.run_time_states.get("h"))
        total = self.select_step_product(self._gates, self._of_x, self._r, t, "gates_x")
        new = self.select_step_product(self._new, self._new_of_x, self._rn, t, "new_x")
        if h is not None:
            total = self.add(total, self.linear(h, self._of_h, "gates_h"), "gates_sum")
            new = self.add(new, self.linear(h, self._inner, "new_h"), "new_sum")
        i, o, f = self.build_gates(total, "iof")
        taken = self.multiply(i, self.build_tanh(new, "new", self.tanh_input_factor), "taken")
        if self._cell is None:
            kept = self.scale_gate(f, self.tanh_input_factor * self.first["c"], "kept")
        else:
            kept = self.multiply(f, self._cell, "kept")
        self._cell = taken if kept is None else self.add(kept, taken, "c")
        self.current_states["h"] = self.multiply(o, self.build_tanh(self._cell, "out"), "h")
        return self.current_states["h"]

    def replace_layer(self) -> None:
        """The cell that comes out is halved where it is held doubled."""
        cell = self._cell
        assert cell is not None
        if not self.has_tanh and any(
            v.uses() or v.is_graph_output() for v in self.node.outputs[2:]
        ):
            cell = self.linear(
                cell, self.weight(np.eye(self.units) / self.tanh_input_factor, "half"), "cell_out"
            )
        self.current_states["c"] = cell
        super().replace_layer()
