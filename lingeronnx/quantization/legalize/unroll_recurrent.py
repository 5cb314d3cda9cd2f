"""Unroll a recurrent layer over its steps if the platform's own operator cannot be used.

The result consists of LinearInt, iqAdd, iqMul and table-based activations.

GRU, with gates r and z; 1 - z is the sigmoid of the negated sum, so that no difference of nearly
equal values is rounded:

    r, z, 1-z = sigmoid(W x + R h + b)      n = tanh(Wn x + r*(Rn h + c))  or  tanh(Wn x + Rn (r*h))
    h = z*h + (1-z)*n

LSTM:   i, o, f = sigmoid(...)   g = tanh(...)   c = f*c + i*g   h = o*tanh(c)

The products with x are computed for all steps at once. A platform without a correct tanh computes
it from a sigmoid, ``tanh(u) = 2*sigmoid(2*u) - 1``, with the factors folded into weights. Steps
share their weights. Every sum and product is rounded to 8 bits, unlike inside the layer: that is
the cost. Nodes of step t are called ``<layer>_t<t>_<suffix>``; the common suffix of all steps is
recorded as well (`ir.set_constant_base_name`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir import ir
from ...ir.builder import SubgraphBuilder
from ...ir.detached_nodes import make_detached_node, make_detached_value
from ...operators.activation_tables.lowering.sigmoid_tanh import SIGMOID, TANH
from ...operators.lowerings import find_lowering_rule
from ...operators.recurrent.lowering import optional_input_indices
from ...operators.selection.integer_op import sliced_positions
from ...targets import Target
from ..normalize.layers.linear import declare_linear_function

__all__ = ["JOINED_STEPS", "MAX_UNROLLED_STEPS", "unroll_recurrent"]

#: Suffix of the node that concatenates the states of all steps, after the name of the layer.
JOINED_STEPS = "joined"

_WeightAndBias = tuple[ir.Value, ir.Value]

#: Longest sequence that is unrolled; a step has about twenty nodes.
MAX_UNROLLED_STEPS = 64


def _can_join_gates(units: int, target: Target) -> bool:
    """Whether one Sigmoid over three gates with `units` units each breaks no limit."""
    shape = [1, 1, 3 * units]
    sigmoid = make_detached_node("Sigmoid", [make_detached_value(shape)], shape)
    return not SIGMOID.find_violations(sigmoid, target)


def unroll_recurrent(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace a GRU or LSTM by the operators of all its steps.

    Only a function layer without an input of lengths, with a known number of at most
    `MAX_UNROLLED_STEPS` steps, if the target has Sigmoid and supports every new node. Tanh is
    computed from Sigmoid if the target lacks it. Returns the description and the cost of the
    change, or None without a change.
    """
    op_type = ir.base_op_type(node)
    if node.domain != ir.FUNCTION_DOMAIN or op_type not in ("GRU", "LSTM"):
        return None
    if "lengths" in optional_input_indices(node) or not SIGMOID.is_available(target):
        return None
    shape = ir.get_shape(node.inputs[0])
    steps = None if shape is None else shape[1]
    if steps is None or steps > MAX_UNROLLED_STEPS:
        return None
    builder_class = _UnrolledGruBuilder if op_type == "GRU" else _UnrolledLstmBuilder
    layer_builder = builder_class(model, node, TANH.is_available(target))
    layer_builder.joins_gates = _can_join_gates(layer_builder.units, target)
    layer_builder.build()
    if not all(_is_supported(step_node, target) for step_node in layer_builder.builder.nodes):
        layer_builder.builder.discard()
        return None
    layer_builder.replace_layer()
    suffix = "" if layer_builder.has_tanh else ", with tanh computed from sigmoid"
    return (
        f"{op_type} unrolled into {steps} steps{suffix}",
        "every sum and product of a step is rounded to 8 bits",
    )


def _is_supported(node: ir.Node, target: Target) -> bool:
    """Whether `node` has a lowering rule, and exceeds no limit of `target`."""
    op, _ = find_lowering_rule(node, target)
    return op is not None and not op.find_violations(node, target)


class _UnrolledLayerBuilder:
    """Builder of the nodes that replace a recurrent layer; its tensors are [N, steps, units].

    Attributes
    ----------
    w, r
        Weights of the input and of the state, (gates * units, inputs) and (gates * units, units).
    b
        Biases of both, (2, gates * units).
    initial_states
        Constant initial states, zero by default, by state ("h", "c").
    run_time_states
        Initial states that are inputs of the layer.
    tanh_input_factor
        2 if tanh is computed from sigmoid, so that its input must be doubled; else 1.
    current_states
        States after the last step that was built.
    joins_gates
        Whether one Sigmoid computes all gates of a step.
    """

    def __init__(self, model: ir.Model, node: ir.Node, has_tanh: bool) -> None:
        """Read the constants of `node`: weights w and r, bias b (2, gates * units), initial states.

        Initial states are zeros by default; computed ones are in `run_time_states`. Without tanh on
        the platform, its input is doubled (`tanh_input_factor` 2), as 2 sigmoid(2x) - 1 needs it.
        """
        self.model, self.node, self.has_tanh = model, node, has_tanh
        self.builder = SubgraphBuilder(model, node)
        arrays = [ir.require_const_value(value) for value in node.inputs[1:4]]
        self.w, self.r, self.b = arrays[0], arrays[1], arrays[2].reshape(2, -1)
        self.units = self.r.shape[1]
        x = ir.require_input(node)
        assert x.shape is not None
        self.batch, self.length = x.shape[0], _sample_shape(x)[0]
        self.run_time_states: dict[str, ir.Value] = {}
        self.initial_states = {key: np.zeros(self.units) for key in "hc"}
        for key, index in optional_input_indices(node).items():
            array = ir.const_value(node.inputs[index])
            if array is None:
                self.run_time_states[key] = ir.require_input(node, index)
            else:
                self.initial_states[key] = array.reshape(-1).astype(np.float64)
        self.tanh_input_factor = 1.0 if has_tanh else 2.0
        self.current_states: dict[str, ir.Value] = {}
        self.joins_gates = True
        self._step_prefix = ""  # of the names of the current step's nodes
        self._doubling_weights: dict[float, _WeightAndBias] = {}

    def build(self) -> None:
        """Append the nodes of all steps in the order of time, backwards for a reverse layer.

        Sets `states` (by time, forwards) and the final state h in `current_states`.
        """
        is_reverse = ir.get_attr(self.node, "direction") == "reverse"
        states: list[ir.Value] = []
        self.x = ir.require_input(self.node)
        self.build_input_products()
        for index in range(self.length):
            t = self.length - 1 - index if is_reverse else index
            self._step_prefix = f"t{t}_"
            states.append(self.build_step(t))
        self._step_prefix = ""
        self.states = states[::-1] if is_reverse else states
        self.current_states["h"] = states[-1]

    def build_input_products(self) -> None:
        """Append the products with x that need not be computed step by step, for all steps at once.

        Subclasses must override this.
        """
        raise NotImplementedError

    def build_step(self, t: int) -> ir.Value:
        """Append time step `t`, after the previous one, and return its state h, [N, 1, units].

        It is stored in `current_states`, too. Subclasses must override this.
        """
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
        """Append a node of the current step and return its output [N, *sizes].

        Its name ends in `suffix`, after the prefix of the step.
        """
        shape = [self.batch, *sizes]
        value = self.builder(op_type, inputs, shape, self._step_prefix + suffix, domain=domain)
        return self.mark_shared_constants(value, suffix)

    def mark_shared_constants(self, value: ir.Value, suffix: str) -> ir.Value:
        """Let the producer of `value` share the names of its constants with other steps.

        Return `value`. The name is made of `suffix`. Nodes that compute all steps at once share no
        name.
        """
        if self._step_prefix:
            producer = ir.require_producer(value)
            ir.set_constant_base_name(producer, f"{ir.output_name(self.node)}_{suffix}")
        return value

    def weight(
        self, array: np.ndarray, suffix: str, bias: np.ndarray | None = None
    ) -> _WeightAndBias:
        """Add a weight `array` [O, I] and a `bias` [O], zero by default, as constants.

        Return both.
        """
        bias_array = np.zeros(len(array)) if bias is None else bias
        return (
            self.builder.constant(np.ascontiguousarray(array, np.float32), f"{suffix}_weight"),
            self.builder.constant(bias_array.astype(np.float32), f"{suffix}_bias"),
        )

    def select_step_product(
        self, products: ir.Value, weights: _WeightAndBias, inner: np.ndarray, t: int, suffix: str
    ) -> ir.Value:
        """Return the products with x at step `t`, [N, 1, gates * units].

        They are a slice of `products`. At the first step, if the initial state is a constant other
        than zero, they are computed again from x with ``inner @ state`` added to the bias.

        Parameters
        ----------
        products
            Products for all steps.
        weights
            Weight and bias that they are computed with.
        inner
            Weight of the state.
        t
            Time step.
        suffix
            End of the names of new tensors.
        """
        with np.errstate(all="ignore"):  # infinite values are reported when scales are selected
            state_product = inner @ self.initial_states["h"]
        has_state = bool(self.current_states) or "h" in self.run_time_states
        if has_state or not np.any(state_product):
            return self.slice_axis(products, 1, t, t + 1, suffix)
        weight, bias = weights
        first_bias = (ir.require_const_value(bias) + state_product).astype(np.float32)
        first_weights = (weight, self.builder.constant(first_bias, f"{suffix}_first_bias"))
        x = self.slice_axis(self.x, 1, t, t + 1, f"{suffix}_in")
        return self.linear(x, first_weights, suffix)

    def scale_gate(self, gate: ir.Value, factor: np.ndarray, suffix: str) -> ir.Value | None:
        """Append the product of a gate with a constant; return it, or None if `factor` is all 0.

        A vector multiplies elementwise, a matrix [O, I] as the weight of a layer.
        """
        if not np.any(factor):
            return None
        matrix = np.diag(factor) if factor.ndim == 1 else factor
        return self.linear(gate, self.weight(matrix, suffix), suffix)

    def linear(self, x: ir.Value, weights: _WeightAndBias, suffix: str) -> ir.Value:
        """Append a fully connected layer of `x` with (weight, bias) `weights`.

        Return its output.
        """
        units = int((ir.get_shape(weights[0]) or (0,))[0] or 0)
        return self.add_node(
            "Linear", [x, *weights], suffix, (_sample_shape(x)[0], units), ir.FUNCTION_DOMAIN
        )

    def add(self, a: ir.Value, b: ir.Value, suffix: str) -> ir.Value:
        """Append an Add of `a` and `b`, of equal shape, and return its output."""
        return self.add_node("Add", [a, b], suffix, _sample_shape(a))

    def multiply(self, a: ir.Value, b: ir.Value, suffix: str) -> ir.Value:
        """Append a Mul of `a` and `b`, of equal shape, and return its output."""
        return self.add_node("Mul", [a, b], suffix, _sample_shape(a))

    def slice_axis(self, x: ir.Value, axis: int, start: int, end: int, suffix: str) -> ir.Value:
        """Append a Slice of `x` to start..end-1 of `axis`; return its output.

        Returns `x` itself if the range covers all of the axis.
        """
        part = self.builder.slice_axis(x, axis, start, end, self._step_prefix + suffix)
        return part if part is x else self.mark_shared_constants(part, suffix)

    def build_gates(self, total: ir.Value, keys: str) -> list[ir.Value]:
        """Append the sigmoids of the sums of all gates and return the gates in the order of `keys`.

        `total` [N, 1, gates * units] holds the sums in the same order; one Sigmoid for all gates
        precedes the slices if `joins_gates`, otherwise each slice has its own.
        """
        units = self.units
        if self.joins_gates:
            total = self.add_node("Sigmoid", [total], "gates", _sample_shape(total))
        gates = []
        for index, key in enumerate(keys):
            suffix = key if self.joins_gates else f"{key}_sum"
            gates.append(self.slice_axis(total, 2, index * units, (index + 1) * units, suffix))
        if self.joins_gates:
            return gates
        return [
            self.add_node("Sigmoid", [gate], key, (1, units))
            for gate, key in zip(gates, keys, strict=True)
        ]

    def build_tanh(self, u: ir.Value, suffix: str, gain: float = 1.0) -> ir.Value:
        """Append ``gain * tanh(u)`` and return it.

        If tanh is computed from sigmoid, `u` must be doubled already; with a Tanh, `gain` must be
        1.
        """
        sizes = _sample_shape(u)
        if self.has_tanh:
            return self.add_node("Tanh", [u], suffix, sizes)
        half = self.add_node("Sigmoid", [u], f"{suffix}_half", sizes)
        if gain not in self._doubling_weights:
            offset = np.full(sizes[-1], -gain)
            self._doubling_weights[gain] = self.weight(
                2 * gain * np.eye(sizes[-1]), f"double{gain:g}", offset
            )
        return self.linear(half, self._doubling_weights[gain], suffix)

    # ---- replacement of the layer ----

    def replace_layer(self) -> None:
        """Insert the built nodes and replace the layer's outputs (sequence, h, c) by their tensors.

        Removes the layer and nodes without use.
        """
        model, node = self.model, self.node
        declare_linear_function(model)
        model.graph.insert_before(node, self.builder.nodes)
        self._bypass_step_slices()
        self._replace_sequence()
        for value, key in zip(node.outputs[1:], "hc", strict=False):
            self._replace_output(value, self.current_states[key])
        model.graph.remove(node, safe=True)
        for step_node in reversed(self.builder.nodes):  # the first step does not use all gates
            if not any(value.uses() or value.is_graph_output() for value in step_node.outputs):
                model.graph.remove(step_node, safe=True)

    def _bypass_step_slices(self) -> None:
        """Let consumers of a Slice of one step of the sequence read the state after that step.

        The Slice is removed. It stays if its output and the state must both keep their names.
        """
        for use in list(self.node.outputs[0].uses()):
            t = _get_single_step(use.node) if use.idx == 0 else None
            if t is not None and ir.can_bypass_node(use.node, self.states[t]):
                ir.bypass_node(self.model, use.node, self.states[t])

    def _replace_sequence(self) -> None:
        """Replace the sequence of states, the first output, by a Concat of all states over time.

        With a single step, by its state. The Concat is only made if the output is used.
        """
        y = self.node.outputs[0]
        if self.length == 1:
            self._replace_output(y, self.states[0])
        elif self.length > 1 and (y.uses() or y.is_graph_output()):
            concat = ir.make_node(
                "Concat",
                self.states,
                {"axis": 1},
                origin=self.node,
                suffix=JOINED_STEPS,
                output="",
                like=y,
            )
            self.model.graph.insert_before(self.node, concat)
            self._replace_output(y, concat.outputs[0])

    def _replace_output(self, old: ir.Value, new: ir.Value) -> None:
        """Replace the layer's output `old` by `new`, which takes over the name of a graph output.

        Nothing happens if the output is not used; a Reshape copies `new` if it is a graph output,
        too.
        """
        if not old.uses() and not old.is_graph_output():
            return
        if old.is_graph_output() and new.is_graph_output():  # a tensor has only one name
            shape = self.builder.constant(
                np.array([0, *_sample_shape(new)], np.int64), "same_shape"
            )
            copy = ir.make_node(
                "Reshape", [new, shape], origin=self.node, suffix="same", output="", like=old
            )
            self.model.graph.insert_before(self.node, copy)
            new = copy.outputs[0]
        name = str(old.name)
        if old.is_graph_output() or not new.name:
            old.name = ir.unique_tensor_name(self.model, f"{name}_layer")
            new.name = name
        old.replace_all_uses_with(new, replace_graph_outputs=True)


def _sample_shape(value: ir.Value) -> list[int]:
    """Return the sizes of `value` after axis 0, with 0 for unknown ones.

    InternalError for an unknown rank.
    """
    return [int(dim or 0) for dim in ir.require_shape(value)[1:]]


def _get_single_step(node: ir.Node) -> int | None:
    """Return the position that `node` selects if it is a Slice of one position of axis 1 alone.

    None for other nodes, several axes or positions, and unknown bounds.
    """
    positions = sliced_positions(node, 1)
    return positions[0] if positions is not None and len(positions) == 1 else None


class _UnrolledGruBuilder(_UnrolledLayerBuilder):
    """Replaces a GRU by the operators of all its steps; gates are z, r, n in ONNX's order."""

    def build_input_products(self) -> None:
        """Append the products of the sequence x with the weights of the gates and of n.

        The gates are r, z and 1 - z, the last one from the negated sum. The state's bias of n is
        part of the input's product unless `linear_before_reset`.
        """
        (wz, wr, wn), (rz, rr, rn) = (np.split(array, 3) for array in (self.w, self.r))
        (bz, br, bn), (cz, cr, cn) = (np.split(array, 3) for array in self.b)
        self._resets_product = bool(ir.get_attr(self.node, "linear_before_reset", 0))
        # The gates r, z and 1 - z, the last one from the negated sum.
        w = np.concatenate([wr, wz, -wz])
        self._r = np.concatenate([rr, rz, -rz])
        b = np.concatenate([br + cr, bz + cz, -bz - cz])
        self._gate_weights = self.weight(w, "gates_x", b)
        self._gates = self.linear(self.x, self._gate_weights, "gates_x")
        self._state_gate_weights = self.weight(self._r, "gates_h")
        factor = self.tanh_input_factor
        new_bias = bn if self._resets_product else bn + cn
        new_weights = self.weight(factor * wn, "new_x", factor * new_bias)
        self._new = self.linear(self.x, new_weights, "new_x")
        self._rn, self._cn = factor * rn, factor * cn
        inner_bias = self._cn if self._resets_product else None
        self._inner_weights = self.weight(self._rn, "new_h", inner_bias)

    def build_step(self, t: int) -> ir.Value:
        """Append time step `t` of the GRU and return the new state (1 - z) n + z h.

        It is stored in `current_states`, too.
        """
        h = self.current_states.get("h", self.run_time_states.get("h"))
        total = self.select_step_product(self._gates, self._gate_weights, self._r, t, "gates_x")
        if h is not None:
            state_gates = self.linear(h, self._state_gate_weights, "gates_h")
            total = self.add(total, state_gates, "gates_sum")
        r, z, one_minus_z = self.build_gates(total, "rzk")
        new = self.slice_axis(self._new, 1, t, t + 1, "new_x")
        reset_term = self._build_reset_term(h, r)
        if reset_term is not None:
            new = self.add(new, reset_term, "new_sum")
        new = self.multiply(one_minus_z, self.build_tanh(new, "new"), "taken")
        if h is None:
            old = self.scale_gate(z, self.initial_states["h"], "kept")
        else:
            old = self.multiply(z, h, "kept")
        self.current_states["h"] = new if old is None else self.add(old, new, "h")
        return self.current_states["h"]

    def _build_reset_term(self, h: ir.Value | None, r: ir.Value) -> ir.Value | None:
        """Append the term of the state in the sum of n; return it, or None if it is 0.

        It is r (rn h + cn) if `linear_before_reset`, otherwise rn (r h); without `h`, of the
        initial constant state. `r` is the reset gate.
        """
        if h is None:
            initial_state = self.initial_states["h"]
            if self._resets_product:
                return self.scale_gate(r, self._rn @ initial_state + self._cn, "new_h")
            return self.scale_gate(r, self._rn * initial_state, "new_h")
        if self._resets_product:
            return self.multiply(r, self.linear(h, self._inner_weights, "inner"), "new_h")
        return self.linear(self.multiply(r, h, "rh"), self._inner_weights, "new_h")


class _UnrolledLstmBuilder(_UnrolledLayerBuilder):
    """Replaces an LSTM by the operators of all its steps; gates are i, o, f, g in ONNX's order.

    The cell state is stored doubled if tanh is computed from sigmoid.
    """

    def build_input_products(self) -> None:
        """Append the products of the sequence x with the weights of i, o, f and of n.

        A computed initial cell is multiplied by `tanh_input_factor`.
        """
        gate_rows, bias = 3 * self.units, self.b.sum(axis=0)
        factor = self.tanh_input_factor
        self._r, self._rn = self.r[:gate_rows], factor * self.r[gate_rows:]
        self._gate_weights = self.weight(self.w[:gate_rows], "gates_x", bias[:gate_rows])
        self._gates = self.linear(self.x, self._gate_weights, "gates_x")
        self._state_gate_weights = self.weight(self._r, "gates_h")
        self._new_weights = self.weight(
            factor * self.w[gate_rows:], "new_x", factor * bias[gate_rows:]
        )
        self._new = self.linear(self.x, self._new_weights, "new_x")
        self._inner_weights = self.weight(self._rn, "new_h")
        cell = self.run_time_states.get("c")
        if cell is not None and not self.has_tanh:
            cell = self.linear(cell, self.weight(factor * np.eye(self.units), "cell"), "cell_in")
        self._cell = cell

    def build_step(self, t: int) -> ir.Value:
        """Append time step `t` of the LSTM; return the new state h = o tanh(c).

        It is stored in `current_states`, too. The cell is c = i n + f c; cell and n are stored
        multiplied by `tanh_input_factor`.
        """
        h = self.current_states.get("h", self.run_time_states.get("h"))
        total = self.select_step_product(self._gates, self._gate_weights, self._r, t, "gates_x")
        new = self.select_step_product(self._new, self._new_weights, self._rn, t, "new_x")
        if h is not None:
            state_gates = self.linear(h, self._state_gate_weights, "gates_h")
            total = self.add(total, state_gates, "gates_sum")
            new = self.add(new, self.linear(h, self._inner_weights, "new_h"), "new_sum")
        i, o, f = self.build_gates(total, "iof")
        new = self.multiply(i, self.build_tanh(new, "new", self.tanh_input_factor), "taken")
        if self._cell is None:
            old = self.scale_gate(f, self.tanh_input_factor * self.initial_states["c"], "kept")
        else:
            old = self.multiply(f, self._cell, "kept")
        self._cell = new if old is None else self.add(old, new, "c")
        self.current_states["h"] = self.multiply(o, self.build_tanh(self._cell, "out"), "h")
        return self.current_states["h"]

    def replace_layer(self) -> None:
        """Insert the built nodes and replace the outputs of the LSTM by their tensors.

        These are sequence, h and c. A cell output that is stored doubled is halved first.
        """
        cell = self._cell
        assert cell is not None
        is_used = any(value.uses() or value.is_graph_output() for value in self.node.outputs[2:])
        if is_used and not self.has_tanh:
            half = self.weight(np.eye(self.units) / self.tanh_input_factor, "half")
            cell = self.linear(cell, half, "cell_out")
        self.current_states["c"] = cell
        super().replace_layer()
