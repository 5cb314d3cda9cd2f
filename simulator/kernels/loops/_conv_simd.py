"""Convolution with dot instructions: packing, and the walk over images.

Owns: the packing of weights for a row of `rows`, the padding of images, the loop that hands bands
of rows to the register tile (`_register_tile`). Rounding is the caller's `fixed` form. Must not
know: operators, layouts other than channel-last.

A window is a list of *taps*, dwords of neighbouring numbers in the padded image. Without horizontal
dilation and groups the kw * C numbers of a kernel row lie side by side; otherwise every element of
the kernel begins a dword of its own. What a last dword reads too much meets zero weights. Weights
are dwords packed [group][block of V * lanes outputs][tap][V][lane].

Channel by channel (`own`) the lanes are channels, and a dword holds neighbours along the line: the
padded line is spread so that dword c of a pixel holds the numbers of channel c at as many elements
of the kernel as a dword takes.

`fits_int32` proves from the weights that no partial sum leaves 32 bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from simulator import _llvm
from simulator._jit import config, intrinsic, jit, overload, register_inline
from simulator.fixed_point import RescaleForm, ScaleForm, ShiftForm, apply_rescale
from simulator.instruction_sets import InstructionSet, get_instruction_set
from simulator.kernel import Array, TensorSpec
from simulator.kernels.loops import _register_tile
from simulator.kernels.loops._common import SlidingWindow, image_size
from simulator.kernels.loops._copy import fill_flat
from simulator.native import InputRef, NativeLoop, OutputRef, Scratch

__all__ = [
    "WindowGeometry",
    "PackedConv",
    "array_address",
    "active_instruction_set",
    "call_code",
    "convolve",
    "fits_int32",
    "pack_convolution",
    "run_matrix_record",
    "run_record",
]

_numba_intrinsic: Any = intrinsic  # a call leaves out the first argument, the typing context
_BAND_BYTES = (
    64 * 1024
)  # bytes of the padded image that are held at a time, so that they stay in a core's own cache
_MAX_BAND_PIXELS = 2048  # outputs that are done at a time at most
_OPERAND_TYPES = {
    "quads": (np.uint8, 128),
    "signed": (np.int8, 0),
    "pairs": (np.int16, 0),
}  # type and what zero becomes


def active_instruction_set() -> InstructionSet | None:
    """Return the row of instructions in use, None where the plain loops are."""
    return None if config.DISABLE_JIT else get_instruction_set()


class WindowGeometry(NamedTuple):
    """Numbers of one convolution; bytes are those of the padded image."""

    blocks: int  # of outputs in a group
    groups: int
    lanes: int  # outputs of a block
    own: int  # outputs of a group
    block_bytes: int  # from one block's inputs to the next
    group_bytes: int  # from one group's inputs to the next
    stride: int  # vertical
    window_rows: int  # rows that a window covers
    top: int
    left: int
    columns: int  # of the padded image
    band: int  # rows of the output that are done at a time
    taps: int
    padding_value: int  # what a zero becomes


class InterleavePlan(NamedTuple):
    """How a padded line is spread for `own` convolutions."""

    code: int  # address of `_register_tile.write_interleave_ir`
    dwords: int  # for each pixel
    numbers_per_dword: int  # numbers in a dword
    kernel: int  # elements of a kernel row
    dilation: int
    columns: int  # windows of a line, were the stride 1


class PackedConv(NamedTuple):
    """Constants of one convolution."""

    tile: int  # address of the machine code
    weight: np.ndarray  # int32, see above
    bias: np.ndarray  # int32 [groups * blocks * lanes]
    table: np.ndarray  # int32, see `_register_tile`
    taps: np.ndarray  # int32, see `_register_tile`
    form: tuple[int, ...]  # limit, multiplier, half, shift, low, high


def fits_int32(weight: np.ndarray, bias: np.ndarray, row: InstructionSet | None = None) -> bool:
    """Whether every partial sum for int8 weights [O, ...] and bias int64 [O] stays within int32 with the excess."""
    wide = weight.reshape(len(weight), -1).astype(np.int64)
    shifted = bias - 128 * wide.sum(axis=1)
    return bool(np.all(np.abs(shifted) + 255 * np.abs(wide).sum(axis=1) < 2**31))


def _make_tile_form(form: RescaleForm, bits: int) -> tuple[str, tuple[int, ...]]:
    """Return the form as the tile knows it, and its numbers."""
    if bits <= 32 and isinstance(form, ShiftForm):
        return "shift", (0, 0, int(form.half), int(form.shift), int(form.low), int(form.high))
    if bits <= 32 and isinstance(form, ScaleForm) and max(form.limit, form.multiplier) < 2**31:
        return "scale", (form.limit, form.multiplier, form.half, form.shift, form.low, form.high)
    return "sums", (0,) * 6


def pack_convolution(
    row: InstructionSet,
    weight: np.ndarray,
    bias: np.ndarray,
    window: SlidingWindow,
    x: TensorSpec,
    form: RescaleForm,
    dtype: np.dtype,
) -> Any:
    """Return `loop(source, target)` for weights [O, I/g, kh, kw] and int64 bias [O].

    x : what is convolved, logical. dtype : of the output. The loop takes x and the output
    channel-last, of rank 4.
    """
    outputs, channels, kh, kw = weight.shape
    group = window.group
    deep = (
        1 < group == channels * group == outputs
    )  # a single channel is a row of numbers, see below
    operands = row.int8_operands if x.dtype == np.int8 and weight.dtype == np.int8 else "pairs"
    kind, zero = _OPERAND_TYPES[operands]
    size, per = np.dtype(kind).itemsize, 4 // np.dtype(kind).itemsize
    rows, width = image_size(x.shape[2:])
    out_rows, out_columns = image_size(window.output_size(x.shape[2:]))
    top, left, bottom, right = window.pads
    columns, flat = (
        width + left + right,
        (kh, kw, *window.strides, *window.pads) == (1, 1, 1, 1, 0, 0, 0, 0),
    )
    if flat and not deep:  # any number of rows, whatever `x` says
        columns, rows, out_rows, out_columns = 1, rows * width, 1 << 20, 1
    spread = None
    if deep:
        code = _llvm.get_function_address(
            _register_tile.write_interleave_ir,
            (row, operands, 8 * x.dtype.itemsize),
            _register_tile.FUNCTION_NAME,
            row.features,
        )
        across = (out_columns - 1) * window.strides[1] + 1
        spread = InterleavePlan(code, -(-kw // per), per, kw, window.dilations[1], across)

    # bytes of one row of the padded image, and of the steps in it
    line = (
        spread.columns * spread.dwords * outputs * 4
        if spread
        else columns * channels * group * size
    )
    reach = window.dilations[0] * (kh - 1) + 1
    band = (
        max((_BAND_BYTES // line - reach) // window.strides[0] + 1, min(4, out_rows)) if line else 1
    )
    band = max(min(band, out_rows, max(_MAX_BAND_PIXELS // out_columns, 1)), 1)
    form_name, numbers = _make_tile_form(form, 8 * dtype.itemsize)
    own = 1 if deep else outputs // group
    p, v = _register_tile.choose_tile_size(row, row.lanes if deep else own, band * out_columns)
    if deep:
        group, own = 1, outputs
    lanes = v * row.lanes
    blocks = -(-own // lanes)
    shape = _register_tile.TileShape(
        operands, deep, p, v, form_name, 32 if form_name == "sums" else 8 * dtype.itemsize
    )
    tile = _llvm.get_function_address(
        _register_tile.write_tile_ir, (row, shape), _register_tile.FUNCTION_NAME, row.features
    )

    lined, offsets = _order_weights_by_tap(weight, window, per, deep)
    wide = np.zeros(
        (group, blocks * lanes, *lined.shape[1:]), kind if kind != np.uint8 else np.int8
    )
    wide[:, :own] = lined.reshape(group, own, *lined.shape[1:])
    packed = np.ascontiguousarray(
        wide.reshape(group, blocks, lanes, -1, per).transpose(0, 1, 3, 2, 4)
    )
    excess = zero * weight.reshape(len(weight), -1).sum(axis=1, dtype=np.int64)
    biases = np.zeros((group, blocks * lanes), np.int32)
    biases[:, :own] = (bias - excess).reshape(group, own)

    pixel = (outputs * 4 if spread else channels * group * size) * window.strides[1]
    table = np.add.outer(
        np.arange(band) * window.strides[0] * line, np.arange(out_columns) * pixel
    ).reshape(-1)
    table = np.concatenate([table, np.repeat(table[-1:], -len(table) % p)]).astype(np.int32)
    taps = _tap_byte_offsets(offsets, window, line, columns, channels * group * size, spread)
    geometry = WindowGeometry(
        blocks,
        group,
        lanes,
        own,
        lanes * 4 if deep else 0,
        channels * size,
        window.strides[0],
        reach,
        top,
        left,
        columns,
        band,
        len(taps),
        zero,
    )
    constants = PackedConv(
        tile, packed.reshape(-1).view(np.int32), biases.reshape(-1), table, taps, numbers
    )
    held = ((band - 1) * window.strides[0] + reach) * line // size + 256
    late = form if form_name == "sums" else None
    sums = Scratch(p * -(-band * out_columns // p) * lanes if late is not None else 1, np.int32)
    padded = Scratch(columns * outputs + 256 if deep else 1, x.dtype)

    def loop(source: InputRef, target: OutputRef) -> NativeLoop:
        if flat and not deep:
            source = InputRef(source.index, (1, -1, 1, channels * window.group))
            target = OutputRef(target.index, (1, -1, 1, outputs))
        memory = Scratch(held * size // 4 if deep else held, np.int32 if deep else kind)
        return NativeLoop(
            convolve, (source, constants, geometry, spread, late, padded, memory, sums, target)
        )

    return loop


def _order_weights_by_tap(
    weight: np.ndarray, window: SlidingWindow, per: int, deep: bool
) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the weights [O, dwords * per] in the order of the taps, and how many (rows, dwords in a row) there are."""
    outputs, channels, kh, kw = weight.shape
    joined = deep or (window.group == 1 and window.dilations[1] == 1)
    rows = weight.transpose(0, 2, 3, 1).reshape(outputs, kh, kw * channels)
    if not joined:
        rows = rows.reshape(outputs, kh * kw, channels)
    dwords = -(-rows.shape[2] // per)
    wide = np.zeros((outputs, rows.shape[1], dwords * per), weight.dtype)
    wide[:, :, : rows.shape[2]] = rows
    return wide.reshape(outputs, -1), (rows.shape[1], dwords)


def _tap_byte_offsets(
    offsets: tuple[int, int],
    window: SlidingWindow,
    line: int,
    columns: int,
    pixel: int,
    spread: InterleavePlan | None,
) -> np.ndarray:
    """Return the byte offset of every dword of a window, int32."""
    runs, dwords = offsets
    if spread is not None:
        starts, inner = (
            np.arange(runs) * window.dilations[0] * line,
            np.arange(dwords) * (line // dwords),
        )
    else:
        kh, kw = window.kernel
        rows, inner = np.arange(kh) * window.dilations[0] * line, np.arange(dwords) * 4
        across = np.arange(kw if runs == kh * kw else 1) * window.dilations[1] * pixel
        starts = np.add.outer(rows, across).reshape(-1)
    return np.add.outer(starts, inner).reshape(-1).astype(np.int32)


@_numba_intrinsic
def call_code(typingctx: Any, place: Any, arguments: Any) -> Any:
    """Call the code at address `place` with a tuple of 64-bit integers."""
    from numba import types
    from numba.core import cgutils

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address_, arguments_ = args
        values = cgutils.unpack_tuple(builder, arguments_, arguments.count)
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        builder.call(builder.inttoptr(address_, kind.as_pointer()), values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), codegen


@register_inline
def array_address(x: Any) -> Any:
    """Return the address of an array's numbers; NumPy's would make a float of a sum."""
    return np.int64(x.ctypes.data)


def run_record(words: Any) -> None:
    """Start a loop by its record, see `native.Called`.

    Without machine code by what stands for that.
    """
    words()


@overload(run_record)
def _overload_run_record(words: Any) -> Any:
    def compiled(words: Any) -> None:
        call_code(words[1], (array_address(words),))

    return compiled


@jit
def _copy_xor(x: Array, flip: int, out: Array) -> None:
    """Copy flat x, all bits of `flip` turned."""
    for i in range(out.size):
        out[i] = x[i] ^ flip


@jit
def _copy_padded_rows(
    x: Array, n: int, first: int, rows: int, g: WindowGeometry, padded: Array
) -> None:
    """Copy `rows` rows of padded image n of x [N, H, W, C], the first of them `first`, to flat `padded`."""
    _, height, width, channels = x.shape
    flip = -128 if g.padding_value else 0
    size, flat, base = width * channels, x.reshape(x.size), n * height * width * channels
    if g.columns == width:  # what lies between the rows above and below is one stretch of memory
        begin, end = min(max(g.top - first, 0), rows), min(max(g.top + height - first, 0), rows)
        fill_flat(padded[: begin * size], g.padding_value)
        at = base + (first + begin - g.top) * size
        _copy_xor(flat[at : at + (end - begin) * size], flip, padded[begin * size : end * size])
        fill_flat(padded[end * size : rows * size], g.padding_value)
        return
    line, left = g.columns * channels, g.left * channels
    for r in range(rows):
        y = first + r - g.top
        target = padded[r * line : (r + 1) * line]
        if 0 <= y < height:
            fill_flat(target[:left], g.padding_value)
            _copy_xor(
                flat[base + y * size : base + (y + 1) * size], flip, target[left : left + size]
            )
            fill_flat(target[left + size :], g.padding_value)
        else:
            fill_flat(target, g.padding_value)


@jit
def _interleave_rows(
    x: Array,
    n: int,
    first: int,
    rows: int,
    g: WindowGeometry,
    s: InterleavePlan,
    line: Array,
    padded: Array,
) -> None:
    """Spread `rows` rows of padded image n, the first of them `first`, over dwords [row, dword, column, C]."""
    _, height, width, channels = x.shape
    size, flat, base = width * channels, x.reshape(x.size), n * height * width * channels
    step, source = s.dilation * channels * x.itemsize, array_address(line)
    length, place = s.columns * channels, array_address(padded)
    middle = line[g.left * channels : g.left * channels + size]
    fill_flat(line, 0)
    for r in range(rows):
        y = first + r - g.top
        if 0 <= y < height:
            _copy_xor(flat[base + y * size : base + (y + 1) * size], 0, middle)
        else:
            fill_flat(middle, 0)
        for j in range(s.dwords):
            at, left = (
                s.numbers_per_dword * j,
                s.kernel - 1 - s.numbers_per_dword * j,
            )  # neighbours beyond the kernel meet zero weights
            start = source + at * step
            call_code(
                s.code,
                (
                    start,
                    place,
                    length,
                    min(1, left) * step,
                    min(2, left) * step,
                    min(3, left) * step,
                ),
            )
            place += 4 * length


@jit
def convolve(
    x: Array,
    packed: PackedConv,
    g: WindowGeometry,
    spread: InterleavePlan | None,
    deferred_form: RescaleForm | None,
    line: Array,
    padded: Array,
    sums: Array,
    out: Array,
) -> None:
    """Convolve x [N, H, W, C] into out [N, Ho, Wo, O].

    `deferred_form` is the form where the tile leaves it to this loop.
    """
    samples, out_rows, columns, outputs = out.shape
    flat = out.reshape(out.size)
    limit, multiplier, half, shift, low, high = packed.form
    for n in range(samples):
        for first in range(0, out_rows, g.band):
            rows = min(g.band, out_rows - first)
            held = (rows - 1) * g.stride + g.window_rows
            if spread is None:
                _copy_padded_rows(x, n, first * g.stride, held, g, padded)
            else:
                _interleave_rows(x, n, first * g.stride, held, g, spread, line, padded)
            place, pixels = (n * out_rows + first) * columns * outputs, rows * columns
            for block in range(g.groups * g.blocks):
                group, inner = block // g.blocks, block % g.blocks
                at, count = (
                    place + group * g.own + inner * g.lanes,
                    min(g.lanes, g.own - inner * g.lanes),
                )
                target, step = array_address(out) + at * out.itemsize, outputs
                if deferred_form is not None:
                    target, step = array_address(sums), g.lanes
                call_code(
                    packed.tile,
                    (
                        array_address(padded) + group * g.group_bytes + inner * g.block_bytes,
                        array_address(packed.table),
                        pixels,
                        array_address(packed.weight) + block * g.taps * g.lanes * 4,
                        array_address(packed.bias) + block * g.lanes * 4,
                        target,
                        step,
                        g.lanes if deferred_form is not None else count,
                        array_address(packed.taps),
                        g.taps,
                        limit,
                        multiplier,
                        half,
                        shift,
                        low,
                        high,
                    ),
                )
                if deferred_form is not None:
                    _rescale_sums(sums, g.lanes, deferred_form, flat, at, outputs, pixels, count)


@register_inline
def run_matrix_record(words: Any, x: Any, out: Any) -> Any:
    """Fill int32 out [R, O] with what the loop of `pack_convolution` makes of x [R, I].

    `words` are its record, see `Called`.
    """
    source, target = words[words.size - 2], words[words.size - 1]
    words[source - 2], words[target - 2] = x.size, out.size
    words[source], words[target] = array_address(x), array_address(out)
    words[source + 2], words[target + 2] = x.shape[0], out.shape[0]
    run_record(words)


@jit
def _rescale_sums(
    sums: Array,
    lanes: int,
    rescale: RescaleForm,
    out: Array,
    at: int,
    step: int,
    pixels: int,
    count: int,
) -> None:
    """Rescale the first `count` lanes of `pixels` pixels of sums [P, lanes] into flat out at `at`, `step` apart."""
    for p in range(pixels):
        source, target = (
            sums[p * lanes : (p + 1) * lanes],
            out[at + p * step : at + p * step + count],
        )
        for i in range(count):
            target[i] = apply_rescale(rescale, source[i])
