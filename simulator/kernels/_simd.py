"""Convolution of int8 by int8 with vector instructions, 16 int32 lanes at a time.

Owns: the test for the processor, the packing of weights, the register tiles and the loops over an image. Rounding is
the caller's `fixed` form. Must not know: operators, layouts other than channel-last.

`convolve` uses AVX512-VNNI: one `vpdpbusd` adds four products of an unsigned and a signed byte to each lane, lanes
being output channels. Activations enter as u = x + 128 and the excess leaves through the bias:

    sum (x + 128) * w + (bias - 128 * sum w) = sum x * w + bias

A window is a list of *runs*: stretches of `length` dwords (four channels each) that lie contiguous in the padded
image. A kernel of kh rows without horizontal dilation is kh runs over kw pixels each; otherwise every tap is a run of
its own. Weights are packed [group][block of 16*V outputs][V][run][dword][16 outputs][4 channels].

`depthwise` multiplies lane by lane, lanes being channels, and needs no excess. Nothing saturates or rounds before the
caller's form; `fits` proves from the weights that no partial sum leaves 32 bits.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from simulator._jit import config, jit
from simulator.fixed import Form, apply
from simulator.kernel import Array
from simulator.kernels._common import Window, image_size

__all__ = ["Packed", "available", "convolve", "depthwise", "fits", "pack", "pack_depthwise"]

_emits: Any = intrinsic  # a call leaves out the first argument, the typing context
_WORD, _INDEX = ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_WORD, 16)
_BYTES = ir.VectorType(ir.IntType(8), 16)


def available() -> bool:
    """Whether this processor has the instruction; `LINGERONNX_SIMD=0` says no."""
    if os.environ.get("LINGERONNX_SIMD") == "0" or config.DISABLE_JIT:
        return False
    features = binding.get_host_cpu_features()
    return bool(features.get("avx512vnni") and features.get("avx512bw"))


class Packed(NamedTuple):
    """Constants of one convolution. P-tuple of V-tuples: of `tile` only the type matters, which the compiler sees."""

    weight: np.ndarray  # int8 for `convolve`, int32 [tap][channel] for `depthwise`
    bias: np.ndarray  # int32, one per lane
    runs: np.ndarray  # int64 [R]: byte offsets in the padded image
    length: int  # dwords per run
    geometry: tuple[int, ...]  # groups, strides y x, pads top left, padded rows, padded columns
    tile: tuple[tuple[int, ...], ...]


def fits(weight: np.ndarray, bias: np.ndarray) -> bool:
    """Whether every partial sum for weights [O, ...] and bias int64 [O] stays within int32."""
    wide = weight.reshape(len(weight), -1).astype(np.int64)
    shifted = bias - 128 * wide.sum(axis=1)
    return bool(np.all(np.abs(shifted) + 255 * np.abs(wide).sum(axis=1) < 2**31))


def pack(weight: np.ndarray, bias: np.ndarray, window: Window, size: tuple[int, int]) -> Packed:
    """Pack int8 weights [O, I/g, kh, kw] and int64 bias [O] for images of `size` (rows, columns)."""
    group = window.group
    outputs, channels, kh, kw = weight.shape
    outputs //= group
    dwords = -(-channels // 4)
    pixels, vectors = _tile(outputs, image_size(window.out_size(size[2 - window.axes :]))[1])
    blocks = -(-outputs // (16 * vectors))
    joined = group == 1 and window.dilations[1] == 1
    runs, length = (kh, kw * dwords) if joined else (kh * kw, dwords)

    wide = np.zeros((group, blocks * vectors * 16, kh, kw, dwords * 4), np.int8)
    wide[:, :outputs, :, :, :channels] = weight.reshape(group, outputs, channels, kh, kw).transpose(0, 1, 3, 4, 2)
    lanes = wide.reshape(group, blocks, vectors, 16, runs, length, 4).transpose(0, 1, 2, 4, 5, 3, 6)
    lane_bias = np.zeros((group, blocks * vectors * 16), np.int32)
    excess = 128 * weight.reshape(len(weight), -1).sum(axis=1, dtype=np.int64)
    lane_bias[:, :outputs] = (bias - excess).reshape(group, outputs)

    geometry, offsets = _frame(window, (kh, 1 if joined else kw), size, group * dwords * 4)
    weights = np.ascontiguousarray(lanes).reshape(-1)
    return Packed(weights, lane_bias.reshape(-1), offsets, length, geometry, ((0,) * vectors,) * pixels)


def pack_depthwise(weight: np.ndarray, bias: np.ndarray, window: Window, size: tuple[int, int]) -> Packed:
    """Pack int8 weights [C, 1, kh, kw] and int64 bias [C] for images of `size`, channels padded to whole vectors."""
    channels, _, kh, kw = weight.shape
    padded = -(-channels // 16) * 16
    wide = np.zeros((kh * kw, padded), np.int32)
    wide[:, :channels] = weight.reshape(channels, -1).T
    lane_bias = np.zeros(padded, np.int32)
    lane_bias[:channels] = bias
    geometry, offsets = _frame(replace(window, group=1), (kh, kw), size, padded)
    return Packed(wide.reshape(-1), lane_bias, offsets, padded // 4, geometry, ((0,),) * 4)


def _frame(window: Window, kernel: tuple[int, int], size: tuple[int, int], pixel: int) -> tuple[Any, np.ndarray]:
    """Return the geometry of `Packed` and the offsets of the taps of `kernel`, for pixels of `pixel` bytes."""
    top, left, bottom, right = window.pads
    rows, columns = size[0] + top + bottom, size[1] + left + right
    taps = [
        (r * window.dilations[0] * columns + c * window.dilations[1]) * pixel
        for r in range(kernel[0])
        for c in range(kernel[1])
    ]
    return (window.group, *window.strides, top, left, rows, columns), np.array(taps, np.int64)


def _tile(outputs: int, columns: int) -> tuple[int, int]:
    """Return (P, V), the pixels and vectors of the register tile, for outputs per group and columns of the output.

    Measured: 8 to 16 sums hide the latency of the instruction, and fewer loads per product count more than more sums.
    """
    vectors = -(-outputs // 16)
    if vectors > 1:
        vectors = 4 if vectors % 4 in (0, 3) else 2
    if vectors == 1 and -(-columns // 16) * 2 == -(-columns // 8):
        return 16, 1
    return {1: 8, 2: 8, 4: 4}[vectors], vectors


def _data(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, element: Any) -> Any:
    """Return an LLVM pointer to element `offset` of a one-dimensional array, as a pointer to `element`."""
    base = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(base, [offset]), element.as_pointer())


def _load(builder: Any, pointer: Any) -> Any:
    value = builder.load(pointer)
    value.align = 1
    return value


def _store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, pointer).align = 1


def _splat(builder: Any, word: Any) -> Any:
    """Return a vector with `word` in every lane."""
    unknown = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(unknown, word, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, unknown, ir.Constant(_VECTOR, [0] * 16))


@_emits
def _dot_tile(
    typingctx: Any, tile: Any, acc: Any, src: Any, src_at: Any, step: Any, runs: Any, packed: Any, first: Any, lane: Any
) -> Any:
    """Fill acc[P*V*16] with the windows of P pixels, `step` bytes apart, for V*16 outputs.

    `packed` is (weight, bias, dwords per run); the weights of the V vectors start at `first`, their biases at `lane`.
    """
    pixels, vectors = tile.count, tile.dtype.count

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, acc_, src_, src_at_, step_, runs_, packed_, first_, lane_ = args
        (_, acc_t, src_t, _, _, runs_t, packed_t, _, _) = signature.args
        (weight_t, bias_t, _), (weight_, bias_, length_) = packed_t, cgutils.unpack_tuple(builder, packed_, 3)

        def plus(start: Any, count: Any, size: int) -> Any:
            return builder.add(start, builder.mul(count, ir.Constant(_INDEX, size)))

        count = builder.extract_value(context.make_array(runs_t)(context, builder, runs_).shape, 0)
        vector_bytes = builder.mul(builder.mul(count, length_), ir.Constant(_INDEX, 64))
        dot = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, (_VECTOR,) * 3), "llvm.x86.avx512.vpdpbusd.512"
        )
        sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(vectors)] for _ in range(pixels)]
        for v in range(vectors):
            at = builder.add(lane_, ir.Constant(_INDEX, 16 * v))
            start = _load(builder, _data(context, builder, bias_t, bias_, at, _VECTOR))
            for p in range(pixels):
                builder.store(start, sums[p][v])
        with cgutils.for_range(builder, count, intp=_INDEX) as run:
            row = builder.add(src_at_, builder.load(_data(context, builder, runs_t, runs_, run.index, _INDEX)))
            taps = plus(first_, builder.mul(run.index, length_), 64)
            with cgutils.for_range(builder, length_, intp=_INDEX) as k:
                weights = []
                for v in range(vectors):
                    at = plus(plus(taps, k.index, 64), vector_bytes, v)
                    weights.append(_load(builder, _data(context, builder, weight_t, weight_, at, _VECTOR)))
                for p in range(pixels):
                    at = plus(plus(row, k.index, 4), step_, p)
                    four = _splat(builder, _load(builder, _data(context, builder, src_t, src_, at, _WORD)))
                    for v in range(vectors):
                        builder.store(builder.call(dot, (builder.load(sums[p][v]), four, weights[v])), sums[p][v])
        for place, total in enumerate(total for row in sums for total in row):
            at = ir.Constant(_INDEX, 16 * place)
            _store(builder, builder.load(total), _data(context, builder, acc_t, acc_, at, _VECTOR))
        return context.get_dummy_value()

    return types.void(tile, acc, src, src_at, step, runs, packed, first, lane), codegen


@_emits
def _lane_tile(
    typingctx: Any, tile: Any, acc: Any, src: Any, src_at: Any, step: Any, taps: Any, packed: Any, at: Any
) -> Any:
    """Fill acc[P*16] with the windows of P pixels, `step` bytes apart, for 16 channels from `at`.

    `packed` is (weight, bias, channels) with weight [tap][channels]: every channel has its own.
    """
    pixels = tile.count

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, acc_, src_, src_at_, step_, taps_, packed_, at_ = args
        (_, acc_t, src_t, _, _, taps_t, packed_t, _) = signature.args
        weight_, bias_, channels_ = cgutils.unpack_tuple(builder, packed_, 3)
        count = builder.extract_value(context.make_array(taps_t)(context, builder, taps_).shape, 0)
        start = _load(builder, _data(context, builder, packed_t[1], bias_, at_, _VECTOR))
        sums = [cgutils.alloca_once_value(builder, start) for _ in range(pixels)]
        with cgutils.for_range(builder, count, intp=_INDEX) as tap:
            place = builder.add(builder.mul(tap.index, channels_), at_)
            weight = _load(builder, _data(context, builder, packed_t[0], weight_, place, _VECTOR))
            offset = builder.add(src_at_, builder.load(_data(context, builder, taps_t, taps_, tap.index, _INDEX)))
            for p in range(pixels):
                place = builder.add(offset, builder.mul(step_, ir.Constant(_INDEX, p)))
                narrow = _load(builder, _data(context, builder, src_t, src_, place, _BYTES))
                product = builder.mul(builder.sext(narrow, _VECTOR), weight)
                builder.store(builder.add(builder.load(sums[p]), product), sums[p])
        for p in range(pixels):
            place = ir.Constant(_INDEX, 16 * p)
            _store(builder, builder.load(sums[p]), _data(context, builder, acc_t, acc_, place, _VECTOR))
        return context.get_dummy_value()

    return types.void(tile, acc, src, src_at, step, taps, packed, at), codegen


@jit
def _pad(x: Array, top: int, left: int, columns: int, own: int, padded: int, flip: Any, scratch: Array) -> None:
    """Copy x [H, W, G*own] into `scratch` at (top, left) of rows of `columns` pixels [G*padded], all bytes ^ `flip`."""
    rows, width, channels = x.shape
    groups = channels // own
    scratch[:] = flip
    for y in range(rows):
        source = x[y].reshape(width * channels)
        at = ((y + top) * columns + left) * groups * padded
        if own == padded:
            target = scratch[at : at + width * channels]
            for i in range(width * channels):
                target[i] = np.uint8(source[i]) ^ flip
        else:
            for c in range(own):
                for i in range(width * groups):
                    scratch[at + i * padded + c] = np.uint8(source[i * own + c]) ^ flip


@jit
def convolve(x: Array, packed: Packed, rescale: Form, out: Array) -> None:
    """Convolve int8 x [N, H, W, C] into out [N, Ho, Wo, O]."""
    group, stride_y, stride_x, top, left, rows, columns = packed.geometry
    pixels, lanes = len(packed.tile), 16 * len(packed.tile[0])
    samples, out_rows, out_columns, outputs = out.shape
    channels, own = x.shape[3] // group, outputs // group
    blocks = (own + lanes - 1) // lanes
    padded = (channels + 3) // 4 * 4
    pixel = group * padded
    step, block_bytes = stride_x * pixel, lanes * 4 * packed.length * packed.runs.size
    scratch = np.empty((rows * columns + pixels * stride_x) * pixel, np.uint8)
    acc, flat = np.empty(pixels * lanes, np.int32), out.reshape(out.size)
    for n in range(samples):
        _pad(x[n], top, left, columns, channels, padded, np.uint8(128), scratch)
        for block in range(group * blocks):
            g, first = block // blocks, block % blocks * lanes
            weights = (packed.weight, packed.bias, packed.length)
            for oy in range(out_rows):
                row = oy * stride_y * columns * pixel + g * padded
                for ox in range(0, out_columns, pixels):
                    at = row + ox * step
                    base = block * block_bytes
                    _dot_tile(packed.tile, acc, scratch, at, step, packed.runs, weights, base, block * lanes)
                    valid, place = min(pixels, out_columns - ox), ((n * out_rows + oy) * out_columns + ox) * outputs
                    _finish(acc, lanes, rescale, flat, place + g * own + first, outputs, valid, min(lanes, own - first))


@jit
def depthwise(x: Array, packed: Packed, rescale: Form, out: Array) -> None:
    """Convolve int8 x [N, H, W, C] channel by channel into out [N, Ho, Wo, C]."""
    _, stride_y, stride_x, top, left, rows, columns = packed.geometry
    pixels, pixel = len(packed.tile), packed.length * 4
    samples, out_rows, out_columns, channels = out.shape
    scratch = np.empty((rows * columns + pixels * stride_x) * pixel, np.uint8)
    acc, flat = np.empty(pixels * 16, np.int32), out.reshape(out.size)
    weights = (packed.weight, packed.bias, pixel)
    for n in range(samples):
        _pad(x[n], top, left, columns, channels, pixel, np.uint8(0), scratch)
        for oy in range(out_rows):
            for ox in range(0, out_columns, pixels):
                at = (oy * stride_y * columns + ox * stride_x) * pixel
                for first in range(0, channels, 16):
                    _lane_tile(packed.tile, acc, scratch, at + first, stride_x * pixel, packed.runs, weights, first)
                    valid, place = min(pixels, out_columns - ox), ((n * out_rows + oy) * out_columns + ox) * channels
                    _finish(acc, 16, rescale, flat, place + first, channels, valid, min(16, channels - first))


@jit
def _finish(acc: Array, lanes: int, rescale: Form, out: Array, at: int, step: int, pixels: int, count: int) -> None:
    """Rescale the first `count` lanes of `pixels` pixels of acc [P, lanes] into flat out at `at`, `step` apart."""
    if count == lanes == step:  # one stretch of memory
        pixels, lanes, count = 1, pixels * lanes, pixels * count
    for p in range(pixels):
        source, target = acc[p * lanes : (p + 1) * lanes], out[at + p * step : at + p * step + count]
        for i in range(count):
            target[i] = apply(rescale, source[i])
