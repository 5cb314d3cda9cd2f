"""The transposition of matrices, compiled: whole blocks are turned in registers.

A block has as many lines as numbers in a line. Its lines are joined in turn, number by number, with
the lines half a block below; after as many rounds as the side of the block has bits, they are its
columns.

Must not know: layouts, operators.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from simulator._jit import intrinsic, jit, overload
from simulator.kernel import Array

__all__ = ["transpose_matrices"]

_numba_intrinsic: Any = intrinsic  # a call leaves out the first argument, the typing context
_BLOCK_LINE_BYTES = 16  # of a line of a block: a register of any processor
_INT64 = ir.IntType(64)


@_numba_intrinsic
def _transpose_block_intrinsic(typingctx: Any, x: Any, out: Any, n: Any, a: Any, b: Any) -> Any:
    from numba import types

    size = x.dtype.bitwidth // 8
    side = _BLOCK_LINE_BYTES // size
    line, order = ir.VectorType(ir.IntType(8 * size), side), ir.VectorType(ir.IntType(32), side)
    joins = [
        ir.Constant(order, [first + i // 2 + i % 2 * side for i in range(side)])
        for first in (0, side // 2)
    ]

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def places(array: int, *index: Any) -> list[Any]:
            """Return where the lines of the block begin that begins at `index`."""
            made = context.make_array(signature.args[array])(context, builder, args[array])
            place = builder.ptrtoint(made.data, _INT64)
            steps = [builder.extract_value(made.strides, axis) for axis in range(3)]
            for number, step in zip(index, steps, strict=True):
                place = builder.add(place, builder.mul(number, step))
            lines = (
                builder.add(place, builder.mul(ir.Constant(_INT64, i), steps[1]))
                for i in range(side)
            )
            return [builder.inttoptr(one, line.as_pointer()) for one in lines]

        found = [builder.load(place, align=size) for place in places(0, args[2], args[3], args[4])]
        for _ in range(side.bit_length() - 1):
            pairs = zip(found[: side // 2], found[side // 2 :], strict=True)
            found = [builder.shuffle_vector(*pair, join) for pair in pairs for join in joins]
        for value, place in zip(found, places(1, args[2], args[4], args[3]), strict=True):
            builder.store(value, place, align=size)
        return context.get_dummy_value()

    return types.void(x, out, types.int64, types.int64, types.int64), codegen


def transpose_block(x: Any, out: Any, n: Any, a: Any, b: Any) -> None:
    """Transpose the block of x [N, A, B] that begins at [n, a, b] into out [N, B, A].

    Its lines have `_BLOCK_LINE_BYTES` bytes.
    """
    side = _BLOCK_LINE_BYTES // x.itemsize
    out[n, b : b + side, a : a + side] = x[n, a : a + side, b : b + side].T


@overload(transpose_block)
def _overload_transpose_block(x: Any, out: Any, n: Any, a: Any, b: Any) -> Any:
    def compiled(x: Any, out: Any, n: Any, a: Any, b: Any) -> None:
        _transpose_block_intrinsic(x, out, n, a, b)

    return compiled


@jit
def transpose_matrices(x: Array, out: Array) -> None:
    """Transpose every matrix of x [N, A, B] into out [N, B, A]."""
    samples, rows, columns = x.shape
    side = _BLOCK_LINE_BYTES // x.itemsize
    blocks = min(rows, columns) >= side
    for n in range(samples):
        if blocks:
            for first in range(0, columns, side):
                b = min(first, columns - side)  # the last block begins where it ends with the line
                for start in range(0, rows, side):
                    transpose_block(x, out, n, min(start, rows - side), b)
        elif rows == 3:  # colours; a known step lets vectors be stored
            for b in range(columns):
                out[n, b, 0] = x[n, 0, b]
                out[n, b, 1] = x[n, 1, b]
                out[n, b, 2] = x[n, 2, b]
        else:
            for b in range(columns):
                for a in range(rows):
                    out[n, b, a] = x[n, a, b]
