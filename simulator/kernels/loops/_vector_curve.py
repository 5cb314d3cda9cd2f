"""Evaluate piecewise linear functions of 16 segments on vectors, for any instruction set.

The segment of every lane is found without memory accesses: by a binary search over the 15 borders,
which are in vector registers like the parameters, if the instruction set can permute lanes by
indices; otherwise the parameters of a segment replace those of the segment before it where |x| is
beyond the border between them. The bias for x < 0 is `turn` - bias if the same `turn` holds for all
segments.

    "wide", x of 32 bits, products of 64:
        y = min(rsh(slope * x + (bias << up), total), 2^(bits-1) - 1)
    "narrow", x of 16 bits, all in 32:
        y = min(rsh(bias + (slope * x >> down), total), 2^(bits-1) - 1)
    both:
        y = rsh(y, after)

Where all values of a "wide" table fit 32 bits and up >= total, the sum is computed in 32 bits:

        y = rsh(slope * x, total) + (bias << (up - total))

"wide" merges the table's shift and the following rounding: floor((floor(p / 2^d) + 2^(s-1)) / 2^s)
= floor((p + 2^(d+s-1)) / 2^(d+s)). In "narrow" every segment has its own shift `down`, which equals
its `up`.

Owns: the instructions and their selection. Must not know: layers, gates. The values are those of
`piecewise.evaluate_curve`.
"""

from __future__ import annotations

from collections.abc import Sequence
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

__all__ = [
    "ARGUMENTS",
    "Curve",
    "CurveEmitter",
    "CurveKind",
    "evaluate_curve_rows",
    "make_curve",
    "pack_curve",
    "write_curve_ir",
]

#: Arguments of the code, 64-bit integers: addresses of int32 inputs and outputs, elements in a row,
#: bytes from one row to the next, number of rows, address of the int64 table.
ARGUMENTS = ("source", "out", "count", "step", "lines", "table")
_PIECES = 16
#: Indices of the parameters of the segments in the table, and of the scalars after them.
_BORDERS, _SLOPES, _BIASES, _SHIFTS, _NEGATIVE_BIASES = range(0, 5 * _PIECES, _PIECES)
_MIN_INPUT, _TURN, _UP, _HALF, _TOTAL = range(5 * _PIECES, 5 * _PIECES + 5)


class VectorCurve(NamedTuple):
    """A function evaluated by vector code.

    code : address. table : int64, the parameters of its 16 segments, then five scalars. after :
    last rounded right shift.
    """

    code: int
    table: np.ndarray
    after: int


class CurveKind(NamedTuple):
    """What the vector code of a function is compiled for.

    wide : whether inputs have 32 bits and products 64; else inputs have 16 and all fits 32 bits.
    mirrors_bias : whether the biases for x < 0 are `turn` - bias. bits : width of the function's
    values. after : rounded right shift of the values. total, half, left : right shift and rounding
    term of products, and left shift of biases, if the sum is computed in 32 bits; else 0.
    """

    wide: bool
    mirrors_bias: bool
    bits: int
    after: int
    total: int = 0
    half: int = 0
    left: int = 0


class ScalarCurve(NamedTuple):
    """A function evaluated element by element; after : last rounded right shift."""

    curve: KernelCurve
    after: int


Curve: TypeAlias = VectorCurve | ScalarCurve


def make_curve(table: Piecewise, bits: int, output_shift: int = 0) -> Curve:
    """Prepare a table, a piecewise linear function, for evaluation on rows of int32.

    Parameters
    ----------
    table
        The function.
    bits
        Width of the function's values, which have bits-1 fractional bits.
    output_shift
        Rounded right shift of the values.

    Returns
    -------
    VectorCurve or ScalarCurve
        A `VectorCurve` if an instruction set is active and the shifts and parameters of the table
        fit the vector code, else a `ScalarCurve`.
    """
    instructions = _conv_simd.active_instruction_set()
    packed = pack_curve(table, bits, output_shift)
    if instructions is None or packed is None:
        return ScalarCurve(table.curve(bits), output_shift)
    kind, vector_table = packed
    code = _llvm.get_function_address(
        write_curve_ir,
        (instructions, *kind),
        _register_tile.FUNCTION_NAME,
        instructions.features,
    )
    return VectorCurve(code, vector_table, output_shift)


def pack_curve(
    table: Piecewise, bits: int, output_shift: int = 0
) -> tuple[CurveKind, np.ndarray] | None:
    """Return the kind and the int64 table of a function for `CurveEmitter`.

    The arguments are those of `make_curve`. None if the shifts and parameters of `table` do not fit
    the vector code.
    """
    vector_table = _pack_vector_table(table, table.curve(bits))
    if vector_table is None:
        return None
    mirrors_bias = len(set((table.positive + table.negative).tolist())) == 1
    kind = CurveKind(table.bits > 16, mirrors_bias, bits, output_shift)
    up, half, total = (int(vector_table[index]) for index in (_UP, _HALF, _TOTAL))
    if kind.wide and bits == 32 and total <= min(up, 31) and _fits_int32(table, half, total):
        kind = kind._replace(total=total, half=half, left=up - total)
    return kind, vector_table


def _fits_int32(table: Piecewise, half: int, total: int) -> bool:
    """Whether (slope * x + (bias << up) + half) >> total fits 32 bits for all x of 32 bits.

    A segment is linear, so its largest and smallest values are at its ends.
    """
    for sign, biases in ((1, table.positive), (-1, table.negative)):
        start = 0
        for j, slope in enumerate(table.slopes.tolist()):
            last = min(int(table.borders[j]), (1 << 31) - 1)
            for size in (start, last):
                value = (slope * sign * size + (int(biases[j]) << int(table.up[j])) + half) >> total
                if not -1 << 31 <= value < 1 << 31:
                    return False
            start = last
    return True


def _pack_vector_table(table: Piecewise, curve: KernelCurve) -> np.ndarray | None:
    """Return the table of the vector code for a piecewise function, or None if it is not supported.

    It is int64: borders, slopes, biases, shifts and biases for x < 0 of the segments, then the
    smallest x, `turn`, `up`, the rounding term and `total`. It is None if the result would be
    shifted left, or if borders do not ascend; for a table of up to 16 bits, if the shifts `up` and
    `down` differ or a parameter has more than 16 bits; for a wider one, if the shifts differ
    between segments, a parameter has more than 31 bits, or `total` is not within 1..62.
    """
    parameters = (table.slopes, table.positive, table.negative)
    largest = max(int(np.abs(values).max()) for values in parameters)
    if curve.shift < 0:
        return None
    is_wide = table.bits > 16
    total = curve.shift + (int(table.down[0]) if is_wide else 0)
    if is_wide:
        has_common_shifts = all(len(set(v.tolist())) == 1 for v in (table.up, table.down))
        is_supported = has_common_shifts and largest < 1 << 31 and 0 < total < 63
    else:
        is_supported = np.array_equal(table.up, table.down) and largest < 1 << 16
    if not is_supported or np.any(np.diff(table.borders[:-1]) < 0):
        return None
    half = 1 << (total - 1) if curve.shift else 0
    turn = int(table.positive[0] + table.negative[0])
    scalars = [curve.min_input, turn, int(table.up[0]), half, total]
    segments = (table.borders, table.slopes, table.positive, table.down, table.negative)
    return np.concatenate([*segments, scalars]).astype(np.int64)


def evaluate_curve_rows(curve: Curve, x: Array, first: int, width: int, out: Array) -> None:
    """Evaluate a function on columns of int32 x [R, S] into the same columns of int32 out.

    These are `width` columns from `first` on. Up to one vector more than that is read and written
    in every row, so rows need spare elements at their end.
    """
    _evaluate_scalar(curve, x, first, width, out)


@register_inline
def _evaluate_scalar(curve: Any, x: Any, first: Any, width: Any, out: Any) -> None:
    """Evaluate a `ScalarCurve` on some columns of int32 x [R, S] into the same columns of out.

    These are `width` columns from `first` on. The values are shifted right by `after` bits of the
    curve, rounded half up.
    """
    for r in range(len(x)):
        source, target = x[r], out[r]
        for i in range(first, first + width):
            target[i] = round_shift_right(evaluate_curve(curve.curve, source[i]), curve.after)


@register_inline
def _evaluate_vector(curve: Any, x: Any, first: Any, width: Any, out: Any) -> None:
    """Evaluate a `VectorCurve` by its machine code, for int32 x and out [R, S].

    `width` columns of out from `first` on are filled from those of x. Up to one vector more is read
    and written in every row.
    """
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
    """Return the compiled implementation of `evaluate_curve_rows` for the class of the curve."""
    form = _evaluate_vector if curve.instance_class is VectorCurve else _evaluate_scalar

    def implementation(curve: Any, x: Any, first: Any, width: Any, out: Any) -> None:
        """Evaluate `curve` on `width` columns of x from `first` on into those of out."""
        form(curve, x, first, width, out)

    return implementation


def write_curve_ir(
    instructions: InstructionSet,
    wide: bool,
    mirrors_bias: bool,
    bits: int,
    after: int,
    total: int = 0,
    half: int = 0,
    left: int = 0,
) -> str:
    """Write the LLVM module of a piecewise linear function of 16 segments on int32 rows.

    The arguments of its function are `ARGUMENTS`; one is the table of the segments, so one module
    serves all functions of this kind.

    Parameters
    ----------
    instructions
        The instruction set.
    wide, mirrors_bias, bits, after, total, half, left
        The fields of `CurveKind`.

    Returns
    -------
    str
        Module whose function is `_register_tile.FUNCTION_NAME`.
    """
    writer = _register_tile.TileIrWriter(instructions, ARGUMENTS)
    b, a, lanes = writer.b, writer.arguments, instructions.lanes
    kind = CurveKind(wide, mirrors_bias, bits, after, total, half, left)
    emit_curve = CurveEmitter(writer, a["table"], kind)
    with writer.loop(a["lines"], 1) as line:
        source, target = (b.add(a[name], b.mul(line, a["step"])) for name in ("source", "out"))
        with writer.loop(a["count"], lanes) as index:
            y = emit_curve(writer.load(writer.element_address(source, index, 4), writer.vector))
            address = writer.element_address(target, index, 4)
            b.store(y, b.inttoptr(address, writer.vector.as_pointer())).align = 1
    b.ret_void()
    return str(writer.module)


class CurveEmitter:
    """Emits the evaluation of a function of one kind on vectors of 32-bit lanes."""

    def __init__(self, writer: _register_tile.TileIrWriter, table: Any, kind: CurveKind) -> None:
        """Emit the loads of the parameters from the table of `pack_curve` at address `table`."""
        self._writer, self._kind = writer, kind
        self._sum_type = _register_tile.INDEX if kind.wide else _register_tile.DWORD
        parameters = [_SLOPES, _BIASES]
        if not kind.mirrors_bias:
            parameters.append(_NEGATIVE_BIASES)
        if not kind.wide:
            parameters.append(_SHIFTS)
        has_permutation = bool(writer.target.permute_intrinsic)
        segments = _PermutedSegments if has_permutation else _ReplacedSegments
        self._select_segment = segments(writer, table, parameters)
        self._min_input, self._turn = (
            _load_splat(writer, table, index) for index in (_MIN_INPUT, _TURN)
        )
        self._up, self._half, self._total = (
            _load_splat(writer, table, index, self._sum_type) for index in (_UP, _HALF, _TOTAL)
        )

    def __call__(self, x: Any) -> Any:
        """Emit the function's values for int32 vectors x; return them."""
        writer, kind = self._writer, self._kind
        b, zero = writer.b, writer.constant(0)
        x = writer.clamp(
            x, self._min_input, writer.constant((1 << 31) - 1 if kind.wide else 1 << 15)
        )
        is_negative = b.icmp_signed("<", x, zero)
        negated_magnitude = b.select(is_negative, x, b.sub(zero, x))
        selected = self._select_segment(negated_magnitude)
        slope, bias = selected[:2]
        negative_bias = b.sub(self._turn, bias) if kind.mirrors_bias else selected[2]
        bias = b.select(is_negative, negative_bias, bias)
        if kind.total:
            products = writer.multiply(slope, x)
            y = writer.shift_products(products, kind.total, kind.half)
            y = b.add(y, b.shl(bias, writer.constant(kind.left)))
            return writer.round_shift_right(y, kind.after)
        if kind.wide:
            int64_vector = ir.VectorType(_register_tile.INDEX, writer.target.lanes)
            product = b.mul(b.sext(slope, int64_vector), b.sext(x, int64_vector))
            y = b.add(product, b.shl(b.sext(bias, int64_vector), self._up))
        else:
            y = b.add(bias, b.ashr(b.mul(slope, x), selected[-1]))
        y = b.ashr(b.add(y, self._half), self._total)
        top = writer.constant((1 << (kind.bits - 1)) - 1, self._sum_type)
        y = b.select(b.icmp_signed("<", y, top), y, top)
        y = b.trunc(y, writer.vector) if kind.wide else y
        return writer.round_shift_right(y, kind.after)


def _load_splat(
    writer: _register_tile.TileIrWriter,
    table: Any,
    index: int,
    kind: ir.IntType = _register_tile.DWORD,
) -> Any:
    """Emit the load of entry `index` of a table into all lanes, as type `kind`; return it."""
    address = writer.add_offset(table, 8 * index)
    value = writer.load(address, _register_tile.INDEX)
    return writer.splat(value if kind is _register_tile.INDEX else writer.b.trunc(value, kind))


class _ReplacedSegments:
    """Selects the parameters of each lane's segment by a comparison with each border in turn."""

    def __init__(
        self, writer: _register_tile.TileIrWriter, table: Any, parameters: Sequence[int]
    ) -> None:
        """Emit the loads of borders and parameters; `parameters` are their first table indices."""
        self._builder = writer.b
        zero = ir.Constant(writer.vector, [0] * writer.target.lanes)
        # -|x| is compared, which fits 32 bits where |x| may not
        self._borders = [
            writer.b.sub(zero, _load_splat(writer, table, _BORDERS + index))
            for index in range(_PIECES - 1)
        ]
        self._parameters = [
            [_load_splat(writer, table, first + index) for index in range(_PIECES)]
            for first in parameters
        ]

    def __call__(self, negated_magnitude: Any) -> list[Any]:
        """Emit the selection for vectors of -|x|; return a vector for each parameter."""
        b = self._builder
        selected = [values[0] for values in self._parameters]
        for j, border in enumerate(self._borders):
            is_beyond = b.icmp_signed("<", negated_magnitude, border)
            selected = [
                b.select(is_beyond, values[j + 1], value)
                for values, value in zip(self._parameters, selected, strict=True)
            ]
        return selected


class _PermutedSegments:
    """Selects the parameters of each lane's segment by its index, found by a binary search."""

    def __init__(
        self, writer: _register_tile.TileIrWriter, table: Any, parameters: Sequence[int]
    ) -> None:
        """Emit the loads of borders and parameters; `parameters` are their first table indices."""
        self._writer = writer
        zero = ir.Constant(writer.vector, [0] * writer.target.lanes)
        # -|x| is compared, which fits 32 bits where |x| may not
        self._borders = [writer.b.sub(zero, part) for part in self._load_vectors(table, _BORDERS)]
        self._middle = writer.b.sub(zero, _load_splat(writer, table, _BORDERS + _PIECES // 2 - 1))
        self._parameters = [self._load_vectors(table, first) for first in parameters]

    def __call__(self, negated_magnitude: Any) -> list[Any]:
        """Emit the selection for vectors of -|x|; return a vector for each parameter."""
        b = self._writer.b
        is_upper = b.icmp_signed("<", negated_magnitude, self._middle)
        index = b.select(is_upper, self._writer.constant(_PIECES // 2), self._writer.constant(0))
        for step in (4, 2, 1):
            border = self._look_up(
                self._borders, b.add(index, self._writer.constant(step - 1)), is_upper
            )
            is_beyond = b.icmp_signed("<", negated_magnitude, border)
            index = b.select(is_beyond, b.add(index, self._writer.constant(step)), index)
        return [self._look_up(values, index, is_upper) for values in self._parameters]

    def _load_vectors(self, table: Any, first: int) -> list[Any]:
        """Emit the load of the 16 table entries from index `first` on, in one or two vectors."""
        writer, lanes = self._writer, self._writer.target.lanes
        kind = ir.VectorType(_register_tile.INDEX, lanes)
        addresses = [
            writer.add_offset(table, 8 * (first + start)) for start in range(0, _PIECES, lanes)
        ]
        return [writer.b.trunc(writer.load(place, kind), writer.vector) for place in addresses]

    def _look_up(self, values: Sequence[Any], index: Any, is_upper: Any) -> Any:
        """Emit the selection of the values at `index`, 0 to 15; `is_upper` is index >= 8.

        A permutation of 8 lanes ignores the upper bits of an index.
        """
        writer = self._writer
        permuted = [writer.permute(part, index) for part in values]
        return permuted[0] if len(permuted) == 1 else writer.b.select(is_upper, *permuted[::-1])
