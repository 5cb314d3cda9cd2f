"""Compiled matrix transposition: square blocks are transposed in vector registers.

A block has as many rows as elements in a row. In each round its rows are interleaved element by
element with the rows half a block below; after log2(rows) rounds the registers contain the columns.

Must not know: layouts, operators.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from simulator._jit import intrinsic, jit, overload
from simulator.kernel import Array

__all__ = ["transpose_matrices"]

_numba_intrinsic: Any = intrinsic  # a call leaves out the first argument, the typing context
_BLOCK_LINE_BYTES = 16  # row of a block: a vector register of any processor
_INT64 = ir.IntType(64)


@_numba_intrinsic
def _transpose_block_intrinsic(typingctx: Any, x: Any, out: Any, n: Any, a: Any, b: Any) -> Any:
    """Return signature and code generator that transpose one square block of a matrix.

    An intrinsic for kernels. The block has `side` rows of _BLOCK_LINE_BYTES bytes; x and out are
    arrays [N, A, B] and [N, B, A], and (n, a, b) is the index of the block's first element in x.
    """
    from numba import types

    size = x.dtype.bitwidth // 8
    side = _BLOCK_LINE_BYTES // size
    line, order = ir.VectorType(ir.IntType(8 * size), side), ir.VectorType(ir.IntType(32), side)
    low = ir.Constant(order, [i // 2 + i % 2 * side for i in range(side)])
    high = ir.Constant(order, [side // 2 + i // 2 + i % 2 * side for i in range(side)])

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        """Emit vector loads of the rows, log2(side) rounds of interleaving, and the stores.

        `args`: source, target, image, row, column. The block at (row, column) of the source is
        stored transposed at (column, row) of the target.
        """

        def line_pointers(argument: int, *index: Any) -> list[Any]:
            """Return pointers to the `side` rows of the block at `index` of a 3-D array.

            The array is number `argument` in `args`; `index` is that of the block's first element.
            """
            array = context.make_array(signature.args[argument])(context, builder, args[argument])
            start = builder.ptrtoint(array.data, _INT64)
            strides = [builder.extract_value(array.strides, axis) for axis in range(3)]
            for position, stride in zip(index, strides, strict=True):
                start = builder.add(start, builder.mul(position, stride))
            pointers = []
            for i in range(side):
                address = builder.add(start, builder.mul(ir.Constant(_INT64, i), strides[1]))
                pointers.append(builder.inttoptr(address, line.as_pointer()))
            return pointers

        sources = line_pointers(0, args[2], args[3], args[4])
        lines = [builder.load(pointer, align=size) for pointer in sources]
        for _ in range(side.bit_length() - 1):
            interleaved = []
            for upper, lower in zip(lines[: side // 2], lines[side // 2 :], strict=True):
                interleaved.append(builder.shuffle_vector(upper, lower, low))
                interleaved.append(builder.shuffle_vector(upper, lower, high))
            lines = interleaved
        targets = line_pointers(1, args[2], args[4], args[3])
        for value, pointer in zip(lines, targets, strict=True):
            builder.store(value, pointer, align=size)
        return context.get_dummy_value()

    return types.void(x, out, types.int64, types.int64, types.int64), codegen


def transpose_block(x: Any, out: Any, n: Any, a: Any, b: Any) -> None:
    """Transpose the square block of x [N, A, B] that begins at [n, a, b] into out [N, B, A].

    A row of the block has `_BLOCK_LINE_BYTES` bytes.
    """
    side = _BLOCK_LINE_BYTES // x.itemsize
    out[n, b : b + side, a : a + side] = x[n, a : a + side, b : b + side].T


@overload(transpose_block)
def _overload_transpose_block(x: Any, out: Any, n: Any, a: Any, b: Any) -> Any:
    """Return the compiled implementation of `transpose_block`, which calls the intrinsic."""

    def implementation(x: Any, out: Any, n: Any, a: Any, b: Any) -> None:
        """Transpose the square block of x at [n, a, b] into out, by vector instructions."""
        _transpose_block_intrinsic(x, out, n, a, b)

    return implementation


@jit
def transpose_matrices(x: Array, out: Array) -> None:
    """Transpose every matrix of x [N, A, B] into out [N, B, A].

    x and out are C-contiguous and have the same type. Matrices are copied in square blocks if both
    sides have at least `_BLOCK_LINE_BYTES` bytes of elements; the last block may overlap its
    neighbour.
    """
    samples, rows, columns = x.shape
    side = _BLOCK_LINE_BYTES // x.itemsize
    blocks = min(rows, columns) >= side
    for n in range(samples):
        if blocks:
            for first in range(0, columns, side):
                b = min(first, columns - side)  # the last block overlaps the one before
                for start in range(0, rows, side):
                    transpose_block(x, out, n, min(start, rows - side), b)
        elif rows == 3:  # RGB images; the constant stride allows vector stores
            for b in range(columns):
                out[n, b, 0] = x[n, 0, b]
                out[n, b, 1] = x[n, 1, b]
                out[n, b, 2] = x[n, 2, b]
        else:
            for b in range(columns):
                for a in range(rows):
                    out[n, b, a] = x[n, a, b]
