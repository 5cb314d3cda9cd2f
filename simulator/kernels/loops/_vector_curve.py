"""A curve of 16 straight pieces for whole vectors, of any row of instructions.

The piece of every lane is found without memory: the numbers of a piece replace those of the piece
before it where |x| lies beyond the border between them. The bias for x < 0 is `turn` - bias, where
one `turn` fits all pieces.

    y = min(rsh(slope * x + (bias << up), total), 2^(bits-1) - 1)            "wide": x of 32 bits,
    products of 64 y = min(rsh(bias + (slope * x >> down), total), 2^(bits-1) - 1)
    "narrow": x of 16 bits, all in 32 y = rsh(y, after)

"wide" has the table's own shift and the rounding behind it in one: floor((floor(p / 2^d) + 2^(s-1))
/ 2^s) = floor((p + 2^(d+s-1)) / 2^(d+s)). In "narrow" every piece has a shift `down` of its own,
which is its `up` too.

Owns: the instructions and the choice of them. Must not know: layers, gates. The values are
`lut.follow`'s.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from llvmlite import ir

from simulator import _llvm
from simulator._jit import overload, register_inline
from simulator.fixed_point import round_shift_right
from simulator.instruction_sets import InstructionSet
from simulator.kernel import Array
from simulator.kernels.loops import _conv_simd, _register_tile
from simulator.piecewise import KernelCurve, Piecewise, evaluate_curve

__all__ = ["ARGUMENTS", "Curve", "evaluate_curve_rows", "make_curve", "write_curve_ir"]

#: Arguments of the code, 64-bit integers: addresses of int32 numbers in and out, how many in a line, bytes from one
#: line to the next, lines, address of the int64 table.
ARGUMENTS = ("source", "out", "count", "step", "lines", "table")
_PIECES = 16
_LEAST, _TURN, _UP, _HALF, _TOTAL = range(
    5 * _PIECES, 5 * _PIECES + 5
)  # places in the table, behind the pieces'


class VectorCurve(NamedTuple):
    """A curve by vector code."""

    code: int  # address
    table: (
        np.ndarray
    )  # int64: borders, slopes, biases, shifts, biases for x < 0 of the pieces, then see above
    after: int


class ScalarCurve(NamedTuple):
    """A curve number by number."""

    curve: KernelCurve
    after: int


Curve: TypeAlias = VectorCurve | ScalarCurve


def make_curve(table: Piecewise, bits: int, output_shift: int = 0) -> Curve:
    """Convert `table` for `evaluate_curve_rows`.

    Outputs of `bits` bits, then a rounded right shift by `output_shift`.
    """
    row, curve = _conv_simd.active_instruction_set(), table.curve(bits)
    numbers = _pack_vector_table(table, curve)
    if row is None or numbers is None:
        return ScalarCurve(curve, output_shift)
    turned = len(set((table.positive + table.negative).tolist())) == 1
    code = _llvm.get_function_address(
        write_curve_ir,
        (row, table.bits > 16, turned, bits, output_shift),
        _register_tile.FUNCTION_NAME,
        row.features,
    )
    return VectorCurve(code, numbers, output_shift)


def _pack_vector_table(table: Piecewise, curve: KernelCurve) -> np.ndarray | None:
    """Return the table of the vector code; None where no formula above is that of `table`."""
    shift = curve.shift
    widest = max(int(np.abs(a).max()) for a in (table.slopes, table.positive, table.negative))
    if shift < 0:
        return None
    if table.bits > 16:
        total = int(table.down[0]) + shift
        same = all(len(set(values.tolist())) == 1 for values in (table.up, table.down))
        if not (same and widest < 1 << 31 and 0 < total < 63):
            return None
    else:
        total = shift
        if not (np.array_equal(table.up, table.down) and widest < 1 << 16):
            return None
    half = 1 << (total - 1) if shift else 0
    last = [
        curve.min_input,
        int(table.positive[0] + table.negative[0]),
        int(table.up[0]),
        half,
        total,
    ]
    pieces = (table.borders, table.slopes, table.positive, table.down, table.negative)
    return np.concatenate([*pieces, last]).astype(np.int64)


def evaluate_curve_rows(curve: Curve, x: Array, first: int, width: int, out: Array) -> None:
    """Fill columns first..first+width of int32 out [R, S] with the curve's values at those of int32 x [R, S].

    Up to a vector more than `width` is read and written in every line: the last lanes of S are for
    that.
    """
    _evaluate_scalar(curve, x, first, width, out)


@register_inline
def _evaluate_scalar(curve: Any, x: Any, first: Any, width: Any, out: Any) -> None:
    for r in range(len(x)):
        source, target = x[r], out[r]
        for i in range(first, first + width):
            target[i] = round_shift_right(evaluate_curve(curve.curve, source[i]), curve.after)


@register_inline
def _evaluate_vector(curve: Any, x: Any, first: Any, width: Any, out: Any) -> None:
    source, target = (
        _conv_simd.array_address(x) + 4 * first,
        _conv_simd.array_address(out) + 4 * first,
    )
    _conv_simd.call_code(
        curve.code,
        (source, target, width, 4 * x.shape[1], len(x), _conv_simd.array_address(curve.table)),
    )


@overload(evaluate_curve_rows)
def _overload_evaluate_curve_rows(curve: Any, x: Any, first: Any, width: Any, out: Any) -> Any:
    form = _evaluate_vector if curve.instance_class is VectorCurve else _evaluate_scalar

    def compiled(curve: Any, x: Any, first: Any, width: Any, out: Any) -> None:
        form(curve, x, first, width, out)

    return compiled


def write_curve_ir(
    row: InstructionSet, wide: bool, mirrors_bias: bool, bits: int, after: int
) -> str:
    """Write the LLVM module of a curve: results of `bits` bits, then shifted right by `after`.

    The function is `_register_tile.FUNCTION_NAME`.

    mirrors_bias : whether `turn` gives the biases for x < 0.
    """
    writer = _register_tile.TileIrWriter(row, ARGUMENTS)
    b, a, lanes = writer.b, writer.arguments, row.lanes

    def number(place: int, kind: ir.IntType = _register_tile.DWORD) -> Any:
        value = writer.load(writer.add_offset(a["table"], 8 * place), _register_tile.INDEX)
        return writer.splat(value if kind is _register_tile.INDEX else b.trunc(value, kind))

    def all_lanes(value: int, kind: ir.IntType = _register_tile.DWORD) -> Any:
        return ir.Constant(ir.VectorType(kind, lanes), [value] * lanes)

    zero, sort = all_lanes(0), _register_tile.INDEX if wide else _register_tile.DWORD
    borders, slopes, biases, shifts, others = (
        [number(which * _PIECES + j) for j in range(_PIECES)] for which in range(5)
    )
    kinds = [slopes, biases, *([] if mirrors_bias else [others]), *([] if wide else [shifts])]
    ends = [b.sub(zero, border) for border in borders[:-1]]  # -|x| fits where |x| may not
    least, turn, up, half, total = (
        number(_LEAST),
        number(_TURN),
        *(number(p, sort) for p in (_UP, _HALF, _TOTAL)),
    )
    with writer.loop(a["lines"], 1) as line:
        source, target = (b.add(a[name], b.mul(line, a["step"])) for name in ("source", "out"))
        with writer.loop(a["count"], lanes) as index:
            x = writer.load(writer.element_address(source, index, 4), writer.vector)
            x = writer.clamp(x, least, all_lanes((1 << 31) - 1 if wide else 1 << 15))
            negative = b.icmp_signed("<", x, zero)
            size = b.select(negative, x, b.sub(zero, x))
            found = [kind[0] for kind in kinds]
            for j, end in enumerate(ends):
                beyond = b.icmp_signed("<", size, end)
                found = [
                    b.select(beyond, kind[j + 1], one)
                    for kind, one in zip(kinds, found, strict=True)
                ]
            slope, bias = (
                found[0],
                b.select(negative, b.sub(turn, found[1]) if mirrors_bias else found[2], found[1]),
            )
            if wide:
                longer = ir.VectorType(_register_tile.INDEX, lanes)
                product = b.mul(b.sext(slope, longer), b.sext(x, longer))
                y = b.add(product, b.shl(b.sext(bias, longer), up))
            else:
                y = b.add(bias, b.ashr(b.mul(slope, x), found[-1]))
            y = b.ashr(b.add(y, half), total)
            top = all_lanes((1 << (bits - 1)) - 1, sort)
            y = b.select(b.icmp_signed("<", y, top), y, top)
            y = b.trunc(y, writer.vector) if wide else y
            if after:  # rounded without leaving 32 bits
                y = b.ashr(b.add(b.ashr(y, all_lanes(after - 1)), all_lanes(1)), all_lanes(1))
            b.store(
                y, b.inttoptr(writer.element_address(target, index, 4), writer.vector.as_pointer())
            ).align = 1
    b.ret_void()
    return str(writer.module)
