"""Write recurrent layers in integer operators: the sums of all inputs, then a Scan over the steps.

The arithmetic of a step is documented in `simulator.kernels.recurrent`: `lstm` ("q27", "wide",
"q11") and `gru`. Only the kernels of the chips are supported, not those of training libraries and
not lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from simulator import kernels as k
from simulator.fixed_point import ChainedRescale, Rescale
from simulator.kernel import Kernel
from simulator.kernels.recurrent.layer import RecurrentKernel
from simulator.piecewise import Piecewise, load_piecewise

from ...ir import ir
from ..exact_nodes import (
    IntegerNodes,
    KernelWriter,
    NotExactError,
    Shapes,
    integer_matmul,
    max_magnitude,
)

__all__ = ["EXACT_WRITERS"]

#: A step: (builder of the loop body, input sums [N, G*H], states) -> new states, the first of
#: which is y.
Step = Callable[[IntegerNodes, ir.Value, list[ir.Value]], list[ir.Value]]


def _split_last_axis(builder: IntegerNodes, x: ir.Value, sizes: Sequence[int]) -> list[ir.Value]:
    """Append a Split of `x` along its last axis into slices of `sizes`; return its outputs."""
    return builder.add_multi_output("Split", x, np.array(sizes), outputs=len(sizes), axis=-1)


def _gate_sums(
    builder: IntegerNodes,
    x: ir.Value,
    weight: np.ndarray,
    bias: np.ndarray,
    rescale: Rescale | ChainedRescale,
    dtype: np.dtype,
) -> ir.Value:
    """Append nodes that return rescale(x @ weight.T + bias) for `x` [..., I], as int64 [..., O].

    `weight` is [O, I], `bias` [O]. `dtype` is the type of x; it bounds the sums, which decides the
    form of the rescaling.
    """
    weight_sums = np.abs(weight.astype(np.int64)).sum(axis=1)
    bounds = weight_sums * max_magnitude(dtype) + np.abs(bias.astype(np.int64))
    product = integer_matmul(builder, x, np.ascontiguousarray(weight.T), dtype)
    acc = builder("Add", product, np.asarray(bias, np.int64))
    return builder.rescale(acc, rescale.compile_for_bound(int(bounds.max(initial=0))))


def _write_lstm(
    builder: IntegerNodes,
    kernel: k.Lstm,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append an LSTM layer as a Scan; return the outputs that the kernel requests of y, h and c.

    `xs` are x and computed initial states, of `types`. Format "q11" rounds gates to 8 bits and
    packs pairs of 16-bit cells into int32; "q27" and "wide" have gates of 16 bits and cells of 32,
    and only "q27" saturates f * c. NotExactError for sequence lengths.
    """
    units, packed, dtype = kernel.units, kernel.arithmetic == "q11", kernel.rescale_o.dtype
    sigmoid, tanh = (load_piecewise(name, kernel.table) for name in ("sigmoid", "tanh"))
    out = kernel.rescale_o.compile_for_bound(1 << 31)

    def evaluate(inner: IntegerNodes, table: Piecewise, x: ir.Value) -> ir.Value:
        """Append nodes that evaluate sigmoid or tanh (`table`) at `x`, as gates of 8 or 16 bits.

        8 bits for packed cells; otherwise results of 32 bits are rounded to 16.
        """
        if packed:
            return inner.apply_piecewise(table, x, 8)
        return inner.shift_right_round(inner.apply_piecewise(table, x, 32), 16)

    def step(inner: IntegerNodes, a: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        """Append one step of the LSTM to the loop body; return the new states [h, c].

        `a` [N, 4 * units] has the rescaled input sums of the step, `states` the old h and c; gates:
        i, f, g, o. With 8-bit gates sums and c have 16 bits, else 32.
        """
        h, c = states
        b = _gate_sums(inner, h, kernel.weight_h, kernel.bias_h, kernel.rescale_h, dtype)
        sums = inner.saturate(inner("Add", a, b), 16 if packed else 32)
        if_sums, g_sums, o_sums = _split_last_axis(inner, sums, [2 * units, units, units])
        i, f = _split_last_axis(inner, evaluate(inner, sigmoid, if_sums), [units, units])
        g, o = evaluate(inner, tanh, g_sums), evaluate(inner, sigmoid, o_sums)
        retained, new = inner("Mul", f, c), inner("Mul", i, g)
        if packed:
            wide = inner.saturate(inner("Add", retained, new), 32)
            c = inner.saturate(inner.shift_right_round(wide, 7), 16)
            tanh_input = inner.saturate(inner.shift_right_round(wide, 3), 16)
        else:
            if kernel.arithmetic != "wide":
                retained = inner.saturate(retained, 32)
            wide = inner.shift_right_round(inner("Add", retained, new), 3)
            c = inner.saturate(inner.shift_right_round(wide, 12), 32)
            tanh_input = inner.saturate(wide, 32)
        state = inner.rescale(inner("Mul", o, evaluate(inner, tanh, tanh_input)), out)
        return [inner.narrow(state, dtype), c]

    y, h, c = _build_scan(builder, kernel, xs, types, step, [dtype, np.dtype(np.int64)])
    c = builder.narrow(_pack_cells(builder, c, units) if packed else c, np.dtype(np.int32))
    return [[y, h, c][index] for index in kernel.output_indices]


def _pack_cells(builder: IntegerNodes, c: ir.Value, units: int) -> ir.Value:
    """Append nodes that pack 16-bit cells `c` [.., H] in pairs: the first in the lower half.

    Cells 2i and 2i + 1 go to element i. A last cell without partner is alone in its element; the
    remaining elements are 0.
    """
    half = units // 2
    even = builder.gather_last(c, np.arange(0, 2 * half, 2))
    odd = builder.gather_last(c, np.arange(1, 2 * half, 2))
    last = builder.gather_last(c, np.arange(2 * half, units))
    pairs = builder("Add", builder("Mod", even, 1 << 16), builder("Mul", odd, 1 << 16))
    zeros = builder("Mul", builder.gather_last(c, np.arange(half)), 0)
    return builder("Concat", pairs, builder("Mod", last, 1 << 16), zeros, axis=-1)


def _write_gru(
    builder: IntegerNodes,
    kernel: k.Gru,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append a GRU layer as defined, with a Scan; return the requested outputs of y and h.

    `xs` are x and a computed initial state, of `types`. The reset gate multiplies h before the
    weights, or with ``kernel.reset_after`` the weighted sum. NotExactError for sequence lengths.
    """
    units, down, dtype = kernel.units, kernel.gate_bits - 1, kernel.rescale_o.dtype
    sigmoid, tanh = (load_piecewise(name, kernel.table) for name in ("sigmoid", "tanh"))
    new_form = kernel.rescale_o.compile_for_bound(1 << 31)

    def sum_states(builder: IntegerNodes, h: ir.Value, gates: slice) -> ir.Value:
        """Append nodes for the rescaled sums of state `h` with the weight rows of `gates`."""
        weight, bias = kernel.weight_h[gates], kernel.bias_h[gates]
        return _gate_sums(builder, h, weight, bias, kernel.rescale_h, dtype)

    def step(builder: IntegerNodes, a: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        """Append one step of the GRU to the loop body; return the new states [h].

        `a` [N, 3 * units] has the input sums of the step; gates: r, z, n. h' = n + z * (h - n). The
        reset gate multiplies h, or its sums if ``kernel.reset_after``.
        """
        (h,) = states
        rz_inputs, n_inputs = _split_last_axis(builder, a, [2 * units, units])
        rz_states = sum_states(builder, h, slice(2 * units))
        rz_sums = builder.saturate(builder("Add", rz_inputs, rz_states), 32)
        rz = builder.apply_piecewise(sigmoid, rz_sums, kernel.gate_bits)
        r, z = _split_last_axis(builder, rz, [units, units])
        wide_h, gated = builder.to_int64(h), h
        if not kernel.reset_after:
            product = builder.shift_right_round(builder("Mul", r, wide_h), down)
            gated = builder.narrow(product, dtype)
        n_states = sum_states(builder, gated, slice(2 * units, None))
        if kernel.reset_after:
            n_states = builder.shift_right_round(builder("Mul", r, n_states), down)
        n_sums = builder.saturate(builder("Add", n_inputs, n_states), 32)
        new = builder.rescale(builder.apply_piecewise(tanh, n_sums, 32), new_form)
        change = builder.shift_right_round(builder("Mul", z, builder("Sub", wide_h, new)), down)
        state = builder.saturate(builder("Add", new, change), kernel.rescale_o.bits)
        return [builder.narrow(state, dtype)]

    outputs = _build_scan(builder, kernel, xs, types, step, [dtype])
    return [outputs[index] for index in kernel.output_indices]


def _write_executor_gru(
    builder: IntegerNodes,
    kernel: k.ExecutorGru,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append a GRU layer as the chips' executor computes it.

    Return the requested outputs of y and h. `xs` are x and a computed initial state, of `types`.
    Gates have 8 bits and sums 16; without ``kernel.uses_state_sums`` the gates r and z ignore the
    state. NotExactError for sequence lengths.
    """
    units, dtype = kernel.units, kernel.rescale_o.dtype
    sigmoid, tanh = (load_piecewise(name, kernel.table) for name in ("sigmoid", "tanh"))
    out = kernel.rescale_o.compile_for_bound(1 << 16)

    def step(builder: IntegerNodes, a: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        """Append one step of the executor's GRU to the loop body; return the new states [h].

        `a` [N, 3 * units] has the input sums of the step; gates: r, z, n. Sums have 16 bits, gates
        8; the reset gate multiplies the sums of h. Without ``kernel.uses_state_sums``, r and z
        depend on the input only.
        """
        (h,) = states
        b = _gate_sums(builder, h, kernel.weight_h, kernel.bias_h, kernel.rescale_h, dtype)
        rz_sums, n_inputs = _split_last_axis(builder, a, [2 * units, units])
        rz_states, n_states = _split_last_axis(builder, b, [2 * units, units])
        if kernel.uses_state_sums:
            rz_sums = builder("Add", rz_sums, rz_states)
        rz = builder.apply_piecewise(sigmoid, builder.saturate(rz_sums, 16), 8)
        r, z = _split_last_axis(builder, rz, [units, units])
        reset = builder.shift_right_round(builder("Mul", r, n_states), 7)
        n_sums = builder.saturate(builder("Add", n_inputs, reset), 16)
        n = builder.apply_piecewise(tanh, n_sums, 8)
        old = builder("Mul", z, builder.shift_right_round(builder.to_int64(h), 1))
        mixed = builder("Add", old, builder("Mul", builder("Sub", 128, z), n))
        return [builder.narrow(builder.rescale(mixed, out), dtype)]

    outputs = _build_scan(builder, kernel, xs, types, step, [dtype])
    return [outputs[index] for index in kernel.output_indices]


def _build_scan(
    builder: IntegerNodes,
    kernel: RecurrentKernel,
    xs: Sequence[ir.Value],
    types: Sequence[np.dtype],
    step: Step,
    kinds: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append a Scan over the steps of a recurrent layer; return the sequence and the final states.

    Parameters
    ----------
    kernel
        The layer.
    xs, types
        Inputs of the layer (x and computed initial states) and their types.
    step
        Writes the nodes of a step into the body.
    kinds
        Types of the states; the first is that of the sequence.

    Raises
    ------
    NotExactError
        The layer has sequence lengths.
    """
    if "lengths" in (*kernel.state_inputs, *kernel.constant_states):
        raise NotExactError("it has lengths")
    x = builder("Transpose", xs[0], perm=[1, 0, 2]) if kernel.time_axis else xs[0]
    sums = _gate_sums(builder, x, kernel.weight_x, kernel.bias_x, kernel.rescale_x, types[0])
    samples = builder("Slice", builder("Shape", x), np.array([1]), np.array([2]))
    state_shape = builder("Concat", samples, np.array([kernel.units]), axis=0)
    state_inputs = dict(zip(kernel.state_inputs, xs[1:], strict=True))
    initial_states = []
    for name, kind in zip(("h", "c"), kinds, strict=False):
        if name in state_inputs:
            state = builder.narrow(builder.to_int64(state_inputs[name]), kind)
            state = builder("Reshape", state, np.array([-1, kernel.units]))
        else:
            constant = kernel.constant_states.get(name, np.zeros(kernel.units))
            row = np.reshape(constant, (-1, kernel.units)).astype(kind)
            state = builder("Expand", builder.constant(row), state_shape)
        initial_states.append(state)
    body = _build_scan_body(builder, step, kinds)
    attributes: dict[str, Any] = {"body": body, "num_scan_inputs": 1}
    if not kernel.is_forward:
        attributes |= {"scan_input_directions": [1], "scan_output_directions": [1]}
    *states, y = builder.add_multi_output(
        "Scan", *initial_states, sums, outputs=len(kinds) + 1, **attributes
    )
    axis = np.array([1 if kernel.time_axis else 0])
    sequence = builder("Transpose", y, perm=[1, 0, 2]) if kernel.time_axis else y
    return [sequence, *(builder("Unsqueeze", state, axis) for state in states)]


def _build_scan_body(builder: IntegerNodes, step: Step, kinds: Sequence[np.dtype]) -> ir.Graph:
    """Return the body of a Scan: states and int64 input sums -> new states and the element of y.

    `step` writes its nodes, `kinds` has the type of each state. The element of y is a copy of the
    first new state. Names are taken from those of `builder`.
    """
    inner = IntegerNodes(builder.names)
    a, *states = (ir.Value(name=f"step_{next(builder.names)}") for _ in range(1 + len(kinds)))
    for value, kind in zip((a, *states), (np.dtype(np.int64), *kinds), strict=True):
        value.type = ir.TensorType(ir.DataType.from_numpy(kind))
    new_states = step(inner, a, states)
    y = inner("Identity", new_states[0])
    for value, kind in zip((*new_states, y), (*kinds, kinds[0]), strict=True):
        value.type = ir.TensorType(ir.DataType.from_numpy(kind))
    return ir.Graph([*states, a], [*new_states, y], nodes=inner.nodes, name="step")


EXACT_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Lstm: _write_lstm,
    k.Gru: _write_gru,
    k.ExecutorGru: _write_executor_gru,
}
