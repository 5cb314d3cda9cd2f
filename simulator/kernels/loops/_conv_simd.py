"""Convolution with dot instructions: packing of weights, and the loop over images.

Owns: the packing of weights for an instruction set, the padding of images, the loop that passes
bands of rows to the register tile (`_register_tile`). Rounding is the caller's rescale form. Must
not know: operators, layouts other than channel-last.

A window is a list of *taps*, dwords of neighbouring elements in the padded image. Without
horizontal dilation and groups the kw * C elements of a kernel row are contiguous; otherwise every
element of the kernel begins a new dword. Excess elements of a last dword are multiplied by zero
weights. Weights are dwords packed [group][block of V * lanes outputs][tap][V][lane].

In a depthwise convolution the lanes are channels, and a dword contains neighbours along the row:
the padded row is interleaved so that dword c of a pixel has the elements of channel c at as many
elements of the kernel as fit a dword. With stride 1, a last dword that the kernel does not fill
serves two pixels: only every second column is interleaved. The last pair of an odd number of
columns has a pixel of the pair before.

`fits_int32` proves from the weights that no partial sum exceeds 32 bits, `choose_window` over how
many taps sums of products of bytes that are not negative stay within 16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from simulator import _llvm
from simulator._jit import config, intrinsic, jit, overload, register_inline
from simulator.fixed_point import (
    ChainedForm,
    RescaleForm,
    ScaleForm,
    ShiftForm,
    apply_rescale,
)
from simulator.instruction_sets import InstructionSet, get_instruction_set
from simulator.kernel import Array, TensorSpec
from simulator.kernels.loops import _register_tile
from simulator.kernels.loops._common import SlidingWindow, image_size
from simulator.kernels.loops._view import view_as
from simulator.native import InputRef, NativeLoop, OutputRef, Scratch

__all__ = [
    "WindowGeometry",
    "PackedConv",
    "array_address",
    "active_instruction_set",
    "call_code",
    "choose_window",
    "convolve",
    "fits_int32",
    "make_tile_form",
    "pack_convolution",
    "run_matrix_record",
    "run_record",
]

_numba_intrinsic: Any = intrinsic  # a call leaves out the first argument, the typing context
#: Budget for the padded image, so that it stays in a core's cache.
_BAND_BYTES = 64 * 1024
_MAX_BAND_PIXELS = 2048
_SPARE_BYTES = 512  # that vector code may access after the end of padded rows
_MAX_UNROLLED_TAPS = 10  # of a depthwise convolution
_CACHE_LINE_BYTES = 64
#: Element type of the operands and the value of a zero in it.
_OPERAND_TYPES = {
    "quads": (np.uint8, 128),
    "signed": (np.int8, 0),
    "pairs": (np.int16, 0),
    "bytes": (np.uint8, 0),
}
#: Numbers of taps that may be summed up in 16 bits.
_WINDOWS = (8, 4, 2, 1)


def active_instruction_set() -> InstructionSet | None:
    """Return the instruction set of vector loops; None for the scalar loops or with JIT disabled.

    Raises SimulatorError for an invalid LINGERONNX_SIMD.
    """
    return None if config.DISABLE_JIT else get_instruction_set()


class WindowGeometry(NamedTuple):
    """Sizes of one convolution; bytes are those of the padded image."""

    blocks: int  # blocks of outputs in a group
    groups: int
    lanes: int  # outputs of a block
    group_outputs: int  # outputs of a group
    block_bytes: int  # from one block's inputs to the next
    group_bytes: int  # from one group's inputs to the next
    stride: int  # vertical
    window_rows: int  # rows that a window covers
    top: int
    left: int
    columns: int  # of the padded image
    band: int  # rows of the output that are computed at a time
    taps: int
    row_pixels: int  # pixels of a row that the tile counts
    operand_bytes: int
    copy: int  # address of the function of `_register_tile.write_row_copy_ir`
    reads_input: bool  # whether operands are read from the input itself, not from a padded copy


class InterleavePlan(NamedTuple):
    """How a padded row is interleaved for depthwise convolutions; no dwords for others."""

    code: int  # address of the function of `_register_tile.write_interleave_ir`
    dwords: int  # per pixel and channel
    numbers_per_dword: int  # elements in a dword
    kernel: int  # elements of a kernel row
    dilation: int
    columns: int  # columns of dwords
    distance: int  # columns of the image from one of them to the next
    last: int  # column of the image of the last one


class PackedConv(NamedTuple):
    """Constants of one convolution."""

    tile: int  # address of the tile's machine code
    weight: np.ndarray  # int32, packed as the module describes
    bias: np.ndarray  # int32 [groups * blocks * lanes]
    table: np.ndarray  # int32, see `_register_tile`
    taps: np.ndarray  # int32, see `_register_tile`
    form: np.ndarray  # int64, see `_register_tile`
    places: np.ndarray  # int32, see `_register_tile`


def fits_int32(weight: np.ndarray, bias: np.ndarray, row: InstructionSet | None = None) -> bool:
    """Whether all partial sums with offset inputs fit int32, for int8 weights [O, ...].

    Inputs are x + 128, and the int64 bias [O] compensates for the offset. `row` is not used.
    """
    wide = weight.reshape(len(weight), -1).astype(np.int64)
    shifted = bias - 128 * wide.sum(axis=1)
    return bool(np.all(np.abs(shifted) + 255 * np.abs(wide).sum(axis=1) < 2**31))


def choose_window(weight: np.ndarray, windows: Sequence[int] = _WINDOWS) -> int:
    """Choose over how many taps products with bytes from 0 to 127 are summed up in 16 bits.

    `weight` is int8 [O, taps, 4]; windows have at most 127 taps. A word of a sum has the products
    of two neighbouring bytes of each tap. It is largest where inputs are 127 for positive weights
    and 0 for the others, and smallest where it is the other way round.

    Returns
    -------
    int
        The largest number of `windows` that is safe for every window of so many taps, and not
        above the number of taps; 1 is safe for all weights.
    """
    first, second = (weight[:, :, start::2].astype(np.int16) for start in (0, 1))
    positive = np.maximum(first, 0) + np.maximum(second, 0)
    negative = np.minimum(first, 0) + np.minimum(second, 0)
    for window in windows:
        if window > weight.shape[1]:
            continue
        firsts = np.arange(0, weight.shape[1], window)
        highest = int(np.add.reduceat(positive, firsts, 1, np.int16).max(initial=0))
        lowest = int(np.add.reduceat(negative, firsts, 1, np.int16).min(initial=0))
        if 127 * highest < 1 << 15 and 127 * lowest >= -1 << 15:
            return window
    return 1


def make_tile_form(form: RescaleForm, bits: int) -> tuple[tuple[str, ...], np.ndarray] | None:
    """Return (stages, int64 [stages, 6] values) of a rescale form as the register tile has them.

    None if the tile cannot compute the form with results of `bits` bits.
    """
    if isinstance(form, ChainedForm):
        parts = [make_tile_form(stage, 32) for stage in (form.first, form.second)]
        if bits > 32 or parts[0] is None or parts[1] is None:
            return None
        return parts[0][0] + parts[1][0], np.concatenate([parts[0][1], parts[1][1]])
    if bits <= 32 and isinstance(form, ShiftForm):
        return ("shift",), np.array([[0, 0, *form]], np.int64)
    if bits <= 32 and isinstance(form, ScaleForm) and max(form.limit, form.multiplier) < 2**31:
        if form.shift < 32:
            return ("scale",), np.array([form], np.int64)
        return ("high",), np.array([form._replace(shift=form.shift - 32)], np.int64)
    return None


def pack_convolution(  # noqa: C901 - one table of sizes, in two variants
    instructions: InstructionSet,
    weight: np.ndarray,
    bias: np.ndarray,
    window: SlidingWindow,
    x: TensorSpec,
    form: RescaleForm,
    dtype: np.dtype,
    is_nonnegative: bool = False,
) -> Any:
    """Pack the weights of a convolution for dot instructions.

    Parameters
    ----------
    instructions
        The instruction set.
    weight
        int8 or int16 [O, I/g, kh, kw].
    bias
        int64 [O].
    window
        Kernel size, strides, pads, dilations and groups.
    x
        Logical spec of one sample of the input.
    form
        Rescale form of accumulator -> output.
    dtype
        Type of the output.
    is_nonnegative
        Whether no element of the input is negative.

    Returns
    -------
    callable
        Function of (input, output) references, both channel-last of rank 4, that returns the loop.
    """
    outputs, channels, kh, kw = weight.shape
    group = window.group
    depthwise = 1 < group == channels * group == outputs  # a single channel is an ordinary row
    operands = "pairs"
    if x.dtype == np.int8 and weight.dtype == np.int8:
        has_bytes = is_nonnegative and instructions.byte_intrinsic
        operands = "bytes" if has_bytes else instructions.int8_operands
    kind, zero = _OPERAND_TYPES[operands]
    is_pointwise = (kh, kw, *window.strides, *window.pads) == (1, 1, 1, 1, 0, 0, 0, 0)
    # bytes that are not negative are operands as they are
    reads_input = is_nonnegative and kind == np.uint8 and is_pointwise and not depthwise
    reads_input = reads_input and channels % 4 == 0
    if reads_input:
        zero = 0
    size, per_dword = np.dtype(kind).itemsize, 4 // np.dtype(kind).itemsize
    rows, width = image_size(x.shape[2:])
    out_rows, out_columns = image_size(window.output_size(x.shape[2:]))
    top, left, bottom, right = window.pads
    columns = width + left + right
    if is_pointwise and not depthwise:  # pixels are rows; accepts any number of them
        columns, rows, out_rows, out_columns = 1, rows * width, 1 << 20, 1
    tile_form = make_tile_form(form, 8 * dtype.itemsize)
    stages, form_values = tile_form or ((), np.zeros((0, 6), np.int64))
    paired = 1  # pixels that share their dwords
    firsts = np.arange(out_columns) * window.strides[1]
    spread = InterleavePlan(0, 0, per_dword, kw, 1, 0, 0, 0)
    if depthwise:
        code = _get_code(
            instructions, _register_tile.write_interleave_ir, operands, 8 * x.dtype.itemsize
        )
        has_unit_columns = window.strides[1] == window.dilations[1] == 1
        if stages and out_columns > 1 and kw % per_dword and has_unit_columns:
            paired = 2
            firsts = np.append(np.arange(0, out_columns - 2, 2), out_columns - 2)
        dwords = -(-(kw + paired - 1) // per_dword)
        distance = paired * window.strides[1]
        spread = InterleavePlan(
            code,
            dwords,
            per_dword,
            kw + paired - 1,
            window.dilations[1],
            len(firsts),
            distance,
            int(firsts[-1]),
        )

    row_operands = operands
    if depthwise:  # its rows are padded before they are interleaved
        row_operands = "signed" if x.dtype == np.int8 else "pairs"
    copy = _get_code(
        instructions, _register_tile.write_row_copy_ir, row_operands, 8 * x.dtype.itemsize
    )
    # bytes of one row and of one pixel of the padded image
    line, pixel = columns * channels * group * size, channels * group * size
    if depthwise:
        line, pixel = spread.columns * spread.dwords * outputs * 4, outputs * 4
    reach = window.dilations[0] * (kh - 1) + 1
    band = 1
    if line:
        band = max((_BAND_BYTES // line - reach) // window.strides[0] + 1, min(4, out_rows))
    band = max(min(band, out_rows, max(_MAX_BAND_PIXELS // out_columns, 1)), 1)
    by_tap, offsets = _order_weights_by_tap(weight, window, per_dword, paired if depthwise else 0)
    taps = _tap_byte_offsets(offsets, window, line, channels * window.group * size, spread)
    group_outputs = outputs // group
    unrolled_taps = 0
    if depthwise:
        group, group_outputs = 1, outputs
        p, v = _register_tile.choose_depthwise_tile_size(instructions, outputs, paired)
        unrolled_taps = len(taps) if len(taps) <= _MAX_UNROLLED_TAPS else 0
    else:
        p, v = _register_tile.choose_tile_size(
            instructions, operands, group_outputs, band * out_columns
        )
    lanes = v * instructions.lanes
    blocks = -(-group_outputs // lanes)
    output_bits = 8 * dtype.itemsize if stages else 32
    tap_window = 1
    if operands == "bytes":
        windows = range(unrolled_taps, 0, -1) if unrolled_taps else _WINDOWS
        tap_window = choose_window(by_tap.reshape(-1, len(taps), per_dword), windows)
        if not unrolled_taps:
            excess_taps = -len(taps) % tap_window  # their weights are zeros
            taps = np.concatenate([taps, np.repeat(taps[:1], excess_taps)])
            by_tap = np.pad(by_tap, ((0, 0), (0, 0), (0, excess_taps * per_dword)))
    shape = _register_tile.TileShape(
        operands, depthwise, p, v, stages, output_bits, tap_window, paired, unrolled_taps
    )
    tile = _get_code(instructions, _register_tile.write_tile_ir, shape)

    padded_weight = np.zeros(
        (group, blocks * lanes, *by_tap.shape[1:]), kind if kind != np.uint8 else np.int8
    )
    padded_weight[:, :group_outputs] = by_tap.reshape(group, group_outputs, *by_tap.shape[1:])
    by_lane = padded_weight.reshape(group, blocks, lanes, paired, -1, per_dword)
    packed = np.ascontiguousarray(by_lane.transpose(0, 1, 4, 3, 2, 5))
    excess = zero * weight.reshape(len(weight), -1).sum(axis=1, dtype=np.int64)
    biases = np.zeros((group, blocks * lanes), np.int32)
    biases[:, :group_outputs] = (bias - excess).reshape(group, group_outputs)

    row_offsets = np.arange(band) * window.strides[0] * line
    column_offsets = (np.arange(len(firsts)) if depthwise else firsts) * pixel
    table = _make_pixel_table(row_offsets, column_offsets, p)
    places = np.zeros(1, np.int32)
    if paired == 2:
        places = _make_pixel_table(np.arange(band) * out_columns * outputs, firsts * outputs, p)
    geometry = WindowGeometry(
        blocks=blocks,
        groups=group,
        lanes=lanes,
        group_outputs=group_outputs,
        block_bytes=lanes * 4 if depthwise else 0,
        group_bytes=channels * size,
        stride=window.strides[0],
        window_rows=reach,
        top=top,
        left=left,
        columns=columns,
        band=band,
        taps=len(taps),
        row_pixels=len(firsts),
        operand_bytes=size,
        copy=copy,
        reads_input=reads_input,
    )
    constants = PackedConv(
        tile,
        _align_to_cache_line(packed.reshape(-1).view(np.int32)),
        biases.reshape(-1),
        table,
        taps,
        form_values.reshape(-1),
        places,
    )
    band_bytes = ((band - 1) * window.strides[0] + reach) * line + _SPARE_BYTES
    deferred_form = None if stages else form
    sum_count = 1 if deferred_form is None else p * -(-band * out_columns // p) * lanes
    sums = Scratch(sum_count, np.int32)
    padded_line = Scratch(
        columns * outputs * x.dtype.itemsize + _SPARE_BYTES if depthwise else 1, np.int8
    )
    padded = Scratch(1 if reads_input else band_bytes, np.int8)

    def make_loop(source: InputRef, target: OutputRef) -> NativeLoop:
        """Return the loop from `source` to `target`.

        If the convolution is pointwise and not depthwise, all pixels form one line.
        """
        if is_pointwise and not depthwise:
            source = InputRef(source.index, (1, -1, 1, channels * window.group))
            target = OutputRef(target.index, (1, -1, 1, outputs))
        plan = (constants, geometry, spread, deferred_form)
        return NativeLoop(convolve, (source, *plan, padded_line, padded, sums, target))

    return make_loop


def _get_code(instructions: InstructionSet, write_ir: Callable[..., str], *arguments: Any) -> int:
    """Return the address of the function of the module write_ir(instructions, *arguments)."""
    return _llvm.get_function_address(
        write_ir,
        (instructions, *arguments),
        _register_tile.FUNCTION_NAME,
        instructions.features,
    )


def _make_pixel_table(rows: np.ndarray, columns: np.ndarray, p: int) -> np.ndarray:
    """Return the sums of each row's and each column's offset, int32 [pixels rounded up to P]."""
    table = np.add.outer(rows, columns).reshape(-1)
    return np.concatenate([table, np.repeat(table[-1:], -len(table) % p)]).astype(np.int32)


def _align_to_cache_line(values: np.ndarray) -> np.ndarray:
    """Return a copy of a flat array whose first element begins a cache line.

    A vector that crosses a boundary of lines takes two accesses.
    """
    memory = np.empty(values.nbytes + _CACHE_LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE_BYTES
    aligned = memory[start : start + values.nbytes].view(values.dtype)
    aligned[:] = values
    return aligned


def _order_weights_by_tap(
    weight: np.ndarray, window: SlidingWindow, per_dword: int, columns: int
) -> tuple[np.ndarray, tuple[int, int]]:
    """Order the weights of a convolution by the dwords of input that a window reads.

    `columns` is the number of pixels that share the dwords of a depthwise convolution, 0 for any
    other one.

    Returns
    -------
    weight : array [O, columns or 1, runs * dwords * per_dword]
        The weights of each pixel, with zeros where a dword has other elements than its window.
    counts : (int, int)
        Number of contiguous runs of input elements in a window, and of dwords in a run. A kernel
        row is a run if depthwise, or without groups and dilation along it; else each kernel element
        is one.
    """
    outputs, channels, kh, kw = weight.shape
    rows_are_contiguous = columns or (window.group == 1 and window.dilations[1] == 1)
    runs = weight.transpose(0, 2, 3, 1).reshape(outputs, kh, kw * channels)
    if not rows_are_contiguous:
        runs = runs.reshape(outputs, kh * kw, channels)
    pixels, count = max(columns, 1), runs.shape[2]
    dwords = -(-(count + pixels - 1) // per_dword)
    padded = np.zeros((outputs, pixels, runs.shape[1], dwords * per_dword), weight.dtype)
    for first in range(pixels):
        padded[:, first, :, first : first + count] = runs
    return padded.reshape(outputs, pixels, -1), (runs.shape[1], dwords)


def _tap_byte_offsets(
    counts: tuple[int, int],
    window: SlidingWindow,
    line: int,
    pixel: int,
    spread: InterleavePlan,
) -> np.ndarray:
    """Return the byte offset of every dword of a window in the padded image, int32.

    `counts` are (contiguous runs in a window, dwords per run), `line` and `pixel` the bytes of a
    row and of a pixel in the padded image. `spread` is the plan of a depthwise convolution.
    """
    runs, dwords = counts
    if spread.dwords:
        starts = np.arange(runs) * window.dilations[0] * line
        dword_offsets = np.arange(dwords) * (line // dwords)
    else:
        kh, kw = window.kernel
        rows, dword_offsets = np.arange(kh) * window.dilations[0] * line, np.arange(dwords) * 4
        columns = np.arange(kw if runs == kh * kw else 1) * window.dilations[1] * pixel
        starts = np.add.outer(rows, columns).reshape(-1)
    return np.add.outer(starts, dword_offsets).reshape(-1).astype(np.int32)


@_numba_intrinsic
def call_code(typingctx: Any, address: Any, arguments: Any) -> Any:
    """Call the machine code at `address` with a tuple of int64 as its arguments, in kernels.

    The code returns nothing. Numba calls this intrinsic, which returns the signature and the code
    generator.
    """
    from numba import types
    from numba.core import cgutils

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        """Emit the call of the code at the address, with the members of the tuple as arguments."""
        address_, arguments_ = args
        values = cgutils.unpack_tuple(builder, arguments_, arguments.count)
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        builder.call(builder.inttoptr(address_, kind.as_pointer()), values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), codegen


@register_inline
def array_address(x: Any) -> Any:
    """Return the address of the elements of `x` as int64.

    Needed because Numba adds NumPy's unsigned address and a signed offset in float64.
    """
    return np.int64(x.ctypes.data)


def run_record(words: Any) -> None:
    """Run a nested loop by its record `words`, an int64 array.

    Uncompiled, `words` is a function without arguments, which is called.
    """
    words()


@overload(run_record)
def _overload_run_record(words: Any) -> Any:
    """Return the compiled implementation of `run_record`."""

    def implementation(words: Any) -> None:
        """Call the code at the address in word 1 with the address of the record."""
        call_code(words[1], (array_address(words),))

    return implementation


@jit
def _copy_padded_rows(
    x: Array, n: int, first: int, rows: int, g: WindowGeometry, target: int
) -> None:
    """Copy `rows` rows from row `first` on of padded image n of x [N, H, W, C] to address `target`.

    A row has g.columns pixels of operands; elements outside the image are zeros. x : int8 or int16.
    """
    _, height, width, channels = x.shape
    size = width * channels
    base = array_address(x) + n * height * size * x.itemsize
    if g.columns == width:  # without padding left and right the image rows are contiguous
        begin, end = min(max(g.top - first, 0), rows), min(max(g.top + height - first, 0), rows)
        source = base + (first + begin - g.top) * size * x.itemsize
        counts = begin * size, (end - begin) * size, (rows - end) * size
        call_code(g.copy, (source, target, counts[0], counts[1], counts[2]))
        return
    line, left = g.columns * channels, g.left * channels
    for r in range(rows):
        y = first + r - g.top
        if 0 <= y < height:
            source = base + y * size * x.itemsize
            call_code(g.copy, (source, target, left, size, line - left - size))
        else:
            call_code(g.copy, (base, target, line, 0, 0))
        target += line * g.operand_bytes


@jit
def _interleave_rows(
    x: Array,
    n: int,
    first: int,
    rows: int,
    g: WindowGeometry,
    s: InterleavePlan,
    line: int,
    target: int,
) -> None:
    """Interleave `rows` rows from row `first` on of padded image n of x into dwords at `target`.

    A dword holds an element and its 1 or 3 neighbours, `s.dilation` columns apart, for depthwise
    kernels of `s.kernel` columns; the dwords are [row, dword, column, C]. x : int8 or int16 [N, H,
    W, C]; elements outside the image are 0. line : address of scratch memory for a padded row.
    """
    _, height, width, channels = x.shape
    pixel_bytes = channels * x.itemsize
    base, step = array_address(x) + n * height * width * pixel_bytes, s.dilation * pixel_bytes
    size, left, total = width * channels, g.left * channels, g.columns * channels
    count, columns = channels, s.columns
    if s.distance == 1:  # columns without gaps are one line
        count, columns = s.columns * channels, 1
    for r in range(rows):
        y = first + r - g.top
        if 0 <= y < height:
            source = base + y * width * pixel_bytes
            call_code(g.copy, (source, line, left, size, total - left - size))
        else:
            call_code(g.copy, (base, line, total, 0, 0))
        for j in range(s.dwords):
            tap = s.numbers_per_dword * j
            following = s.kernel - 1 - tap  # neighbours beyond the kernel have zero weights
            call_code(
                s.code,
                (
                    line + tap * step,
                    target,
                    count,
                    columns,
                    s.distance * pixel_bytes,
                    s.last * pixel_bytes,
                    min(1, following) * step,
                    min(2, following) * step,
                    min(3, following) * step,
                ),
            )
            target += 4 * s.columns * channels


@jit
def convolve(
    x: Array,
    packed: PackedConv,
    g: WindowGeometry,
    spread: InterleavePlan,
    deferred_form: RescaleForm | None,
    line: Array,
    padded: Array,
    sums: Array,
    out: Array,
) -> None:
    """Convolve x [N, H, W, C] into out [N, Ho, Wo, O], band by band of output rows.

    Parameters
    ----------
    x
        int8 or int16 [N, H, W, C].
    packed, g
        Constants and sizes of the convolution.
    spread
        Plan of a depthwise convolution, else without dwords.
    deferred_form
        Rescale form if the tile cannot compute it, else None.
    line, padded, sums
        Scratch memory: a padded row, a band of the padded image, both int8, and accumulators.
    out
        Integers [N, Ho, Wo, O], filled with the rescaled accumulators (int32).
    """
    samples, out_rows, columns, outputs = out.shape
    flat = view_as(out, (out.size,))
    for n in range(samples):
        for first in range(0, out_rows, g.band):
            rows = min(g.band, out_rows - first)
            input_rows = (rows - 1) * g.stride + g.window_rows
            source = array_address(padded)
            if g.reads_input:
                source = array_address(x) + (n * x.shape[1] + first) * x.shape[2] * x.shape[3]
            elif spread.dwords:
                start, line_start = first * g.stride, array_address(line)
                _interleave_rows(x, n, start, input_rows, g, spread, line_start, source)
            else:
                _copy_padded_rows(x, n, first * g.stride, input_rows, g, source)
            base, pixels = (n * out_rows + first) * columns * outputs, rows * g.row_pixels
            # the tile's own loop is over the blocks of a group; sums have memory for one block
            blocks = g.blocks if deferred_form is None else 1
            for block in range(0, g.groups * g.blocks, blocks):
                group, inner = block // g.blocks, block % g.blocks
                first_output = base + group * g.group_outputs + inner * g.lanes
                count = g.group_outputs - inner * g.lanes
                target, step = array_address(out) + first_output * out.itemsize, outputs
                if deferred_form is not None:
                    target, step = array_address(sums), g.lanes
                call_code(
                    packed.tile,
                    (
                        source + group * g.group_bytes + inner * g.block_bytes,
                        array_address(packed.table),
                        pixels,
                        array_address(packed.weight) + block * g.taps * g.lanes * 4,
                        array_address(packed.bias) + block * g.lanes * 4,
                        target,
                        step,
                        g.lanes if deferred_form is not None else count,
                        blocks,
                        g.block_bytes,
                        array_address(packed.taps),
                        g.taps,
                        array_address(packed.form),
                        array_address(packed.places),
                    ),
                )
                if deferred_form is not None:
                    count = min(g.lanes, count)
                    _rescale_sums(
                        sums, g.lanes, deferred_form, flat, first_output, outputs, pixels, count
                    )


@register_inline
def run_matrix_record(words: Any, x: Any, out: Any) -> Any:
    """Fill int32 out [R, O] with x [R, I] times packed weights, plus bias, by a compiled loop.

    `words` (int64) is the record of that loop, a pointwise one of `pack_convolution`; the addresses
    and sizes of the arrays are written into it.
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
    first: int,
    step: int,
    pixels: int,
    count: int,
) -> None:
    """Rescale the first `count` of the lanes of each pixel's sums into flat `out`.

    `sums` is int32, flat, of shape [pixels, lanes]. Pixel p is written to out[first + p * step] and
    the following elements.
    """
    for p in range(pixels):
        source, target = (
            sums[p * lanes : (p + 1) * lanes],
            out[first + p * step : first + p * step + count],
        )
        for i in range(count):
            target[i] = apply_rescale(rescale, source[i])
