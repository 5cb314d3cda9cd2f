"""Recurrent layers in nodes on integers.

The sums of all inputs at once, then a Scan over the steps.
What a step computes stands in `simulator.kernels.recurrent`: `lstm` ("q27", "wide", "q11") and
`gru`. The chips' own kernels are here; those of training libraries are not, and neither are lengths
that are given at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from simulator import kernels as k
from simulator.fixed_point import ChainedRescale, Rescale
from simulator.kernel import Kernel
from simulator.kernels.recurrent.layer import RecurrentKernel
from simulator.piecewise import load_piecewise

from ...graph import ir
from .layers import KernelWriter, Shapes, integer_matmul, max_magnitude
from .nodes import IntegerNodes, NotExactError

__all__ = ["RECURRENT_WRITERS"]

#: A step: (nodes of the loop, sums of the inputs [N, G*H], states before) -> states after, of which the first is y.
Step = Callable[[IntegerNodes, ir.Value, list[ir.Value]], list[ir.Value]]


def _split_last_axis(builder: IntegerNodes, x: ir.Value, sizes: Sequence[int]) -> list[ir.Value]:
    """Return the last axis of x cut into pieces of these sizes."""
    return builder.add_multi_output("Split", x, np.array(sizes), outputs=len(sizes), axis=-1)


def _gate_sums(
    builder: IntegerNodes,
    x: ir.Value,
    weight: np.ndarray,
    bias: np.ndarray,
    rescale: Rescale | ChainedRescale,
    dtype: np.dtype,
) -> ir.Value:
    """Return rescale(x W^T + b) of x [..., I] in `dtype`, W [O, I]."""
    wide = np.abs(weight.astype(np.int64)).sum(axis=1) * max_magnitude(dtype) + np.abs(
        bias.astype(np.int64)
    )
    acc = builder(
        "Add",
        integer_matmul(builder, x, np.ascontiguousarray(weight.T), dtype),
        np.asarray(bias, np.int64),
    )
    return builder.rescale(acc, rescale.compile_for_bound(int(wide.max(initial=0))))


def _lstm(
    builder: IntegerNodes,
    kernel: k.Lstm,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    units, packed = kernel.units, kernel.arithmetic == "q11"
    tables = [load_piecewise(name, kernel.table) for name in ("sigmoid", "tanh")]
    out = kernel.rescale_o.compile_for_bound(1 << 31)

    def curve(inner: IntegerNodes, number: int, x: ir.Value) -> ir.Value:
        return (
            inner.apply_piecewise(tables[number], x, 8)
            if packed
            else inner.shift_right_round(inner.apply_piecewise(tables[number], x, 32), 16)
        )

    def step(inner: IntegerNodes, a: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        h, c = states
        b = _gate_sums(
            inner, h, kernel.weight_h, kernel.bias_h, kernel.rescale_h, kernel.rescale_o.dtype
        )
        sums = inner.saturate(inner("Add", a, b), 16 if packed else 32)
        first, cell, last = _split_last_axis(inner, sums, [2 * units, units, units])
        i, f = _split_last_axis(inner, curve(inner, 0, first), [units, units])
        g, o = curve(inner, 1, cell), curve(inner, 0, last)
        kept, new = inner("Mul", f, c), inner("Mul", i, g)
        if packed:
            wide = inner.saturate(inner("Add", kept, new), 32)
            c, line = (
                inner.saturate(inner.shift_right_round(wide, 7), 16),
                inner.saturate(inner.shift_right_round(wide, 3), 16),
            )
        else:
            held = kept if kernel.arithmetic == "wide" else inner.saturate(kept, 32)
            wide = inner.shift_right_round(inner("Add", held, new), 3)
            c, line = (
                inner.saturate(inner.shift_right_round(wide, 12), 32),
                inner.saturate(wide, 32),
            )
        state = inner.rescale(inner("Mul", o, curve(inner, 1, line)), out)
        return [inner.narrow(state, kernel.rescale_o.dtype), c]

    y, h, c = _build_scan(
        builder, kernel, xs, types, step, [kernel.rescale_o.dtype, np.dtype(np.int64)]
    )
    c = builder.narrow(_pack_cells(builder, c, units) if packed else c, np.dtype(np.int32))
    return [[y, h, c][index] for index in kernel.output_indices]


def _pack_cells(builder: IntegerNodes, c: ir.Value, units: int) -> ir.Value:
    """Return cells [.., H] of 16 bits two by two in one number, the first one lower.

    The rest is 0.
    """
    half = units // 2
    even, odd, last = (
        builder.gather_last(c, np.arange(*ends))
        for ends in ((0, 2 * half, 2), (1, 2 * half, 2), (2 * half, units))
    )
    pairs = builder("Add", builder("Mod", even, 1 << 16), builder("Mul", odd, 1 << 16))
    rest = builder("Mul", builder.gather_last(c, np.arange(half)), 0)
    return builder("Concat", pairs, builder("Mod", last, 1 << 16), rest, axis=-1)


def _gru(
    builder: IntegerNodes,
    kernel: k.Gru,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    units, down, kind = kernel.units, kernel.gate_bits - 1, kernel.rescale_o.dtype
    sigmoid, tanh = (load_piecewise(name, kernel.table) for name in ("sigmoid", "tanh"))
    cut, new_form = 2 * units, kernel.rescale_o.compile_for_bound(1 << 31)

    def step(builder: IntegerNodes, a: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        (h,) = states
        first, own = _split_last_axis(builder, a, [cut, units])
        b = _gate_sums(
            builder, h, kernel.weight_h[:cut], kernel.bias_h[:cut], kernel.rescale_h, kind
        )
        r, z = _split_last_axis(
            builder,
            builder.apply_piecewise(
                sigmoid, builder.saturate(builder("Add", first, b), 32), kernel.gate_bits
            ),
            [units, units],
        )
        wide, rows = builder.to_int64(h), slice(cut, None)
        read = (
            h
            if kernel.reset_after
            else builder.narrow(builder.shift_right_round(builder("Mul", r, wide), down), kind)
        )
        m = _gate_sums(
            builder, read, kernel.weight_h[rows], kernel.bias_h[rows], kernel.rescale_h, kind
        )
        if kernel.reset_after:
            m = builder.shift_right_round(builder("Mul", r, m), down)
        new = builder.rescale(
            builder.apply_piecewise(tanh, builder.saturate(builder("Add", own, m), 32), 32),
            new_form,
        )
        mixed = builder(
            "Add",
            new,
            builder.shift_right_round(builder("Mul", z, builder("Sub", wide, new)), down),
        )
        return [builder.narrow(builder.saturate(mixed, kernel.rescale_o.bits), kind)]

    found = _build_scan(builder, kernel, xs, types, step, [kind])
    return [found[index] for index in kernel.output_indices]


def _executor_gru(
    builder: IntegerNodes,
    kernel: k.ExecutorGru,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    units, kind = kernel.units, kernel.rescale_o.dtype
    sigmoid, tanh = (load_piecewise(name, kernel.table) for name in ("sigmoid", "tanh"))
    cut, out = 2 * units, kernel.rescale_o.compile_for_bound(1 << 16)

    def step(builder: IntegerNodes, a: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        (h,) = states
        b = _gate_sums(builder, h, kernel.weight_h, kernel.bias_h, kernel.rescale_h, kind)
        (first, own), (joined, inner) = (
            _split_last_axis(builder, a, [cut, units]),
            _split_last_axis(builder, b, [cut, units]),
        )
        sums = builder.saturate(
            builder("Add", first, joined) if kernel.uses_state_sums else first, 16
        )
        r, z = _split_last_axis(builder, builder.apply_piecewise(sigmoid, sums, 8), [units, units])
        n = builder.apply_piecewise(
            tanh,
            builder.saturate(
                builder("Add", own, builder.shift_right_round(builder("Mul", r, inner), 7)), 16
            ),
            8,
        )
        half = builder("Mul", z, builder.shift_right_round(builder.to_int64(h), 1))
        mixed = builder("Add", half, builder("Mul", builder("Sub", 128, z), n))
        return [builder.narrow(builder.rescale(mixed, out), kind)]

    found = _build_scan(builder, kernel, xs, types, step, [kind])
    return [found[index] for index in kernel.output_indices]


def _build_scan(
    builder: IntegerNodes,
    kernel: RecurrentKernel,
    xs: Sequence[ir.Value],
    types: Sequence[np.dtype],
    step: Step,
    kinds: Sequence[np.dtype],
) -> list[ir.Value]:
    """Return the sequence and the last states of all steps.

    kinds : the types of the states, of which the first is the sequence's. Layout of x, sequence and
    states: see `simulator.kernels.recurrent.layer`.
    """
    if "lengths" in (*kernel.state_inputs, *kernel.constant_states):
        raise NotExactError("it is given lengths")
    x = builder("Transpose", xs[0], perm=[1, 0, 2]) if kernel.time_axis else xs[0]
    sums = _gate_sums(builder, x, kernel.weight_x, kernel.bias_x, kernel.rescale_x, types[0])
    samples = builder("Slice", builder("Shape", x), np.array([1]), np.array([2]))
    size = builder("Concat", samples, np.array([kernel.units]), axis=0)
    given = dict(zip(kernel.state_inputs, xs[1:], strict=True))
    first = []
    for name, kind in zip(("h", "c"), kinds, strict=False):
        if name in given:
            state = builder(
                "Reshape",
                builder.narrow(builder.to_int64(given[name]), kind),
                np.array([-1, kernel.units]),
            )
        else:
            start = np.reshape(
                kernel.constant_states.get(name, np.zeros(kernel.units)), (-1, kernel.units)
            ).astype(kind)
            state = builder("Expand", builder.constant(start), size)
        first.append(state)
    inner = IntegerNodes(builder.names)
    a, *before = (ir.Value(name=f"step_{next(builder.names)}") for _ in range(1 + len(kinds)))
    for value, kind in zip((a, *before), (np.dtype(np.int64), *kinds), strict=True):
        value.type = ir.make_tensor_type(kind)
    after = step(inner, a, before)
    line = inner("Identity", after[0])
    for value, kind in zip((*after, line), (*kinds, kinds[0]), strict=True):
        value.type = ir.make_tensor_type(kind)
    body = ir.Graph([*before, a], [*after, line], nodes=inner.nodes, name="step")
    backwards = None if kernel.is_forward else [1]
    *states, y = builder.add_multi_output(
        "Scan",
        *first,
        sums,
        outputs=len(kinds) + 1,
        body=body,
        num_scan_inputs=1,
        **(
            {}
            if backwards is None
            else {"scan_input_directions": backwards, "scan_output_directions": backwards}
        ),
    )
    axis = np.array([1 if kernel.time_axis else 0])
    sequence = builder("Transpose", y, perm=[1, 0, 2]) if kernel.time_axis else y
    return [sequence, *(builder("Unsqueeze", state, axis) for state in states)]


RECURRENT_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Lstm: _lstm,
    k.Gru: _gru,
    k.ExecutorGru: _executor_gru,
}
