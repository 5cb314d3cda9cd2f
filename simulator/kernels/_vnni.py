"""Convolution of int8 by int8 on AVX512-VNNI: one instruction adds four products to each of 16 int32 lanes.

Owns: the test for the processor, the packing of weights, the dot-product tile and the loop over an image. Rounding is the
caller's `fixed` form. Must not know: operators, layouts other than channel-last.

`vpdpbusd` multiplies unsigned by signed bytes, so activations enter as u = x + 128 and the excess leaves through the bias:

    sum (x + 128) * w + (bias - 128 * sum w) = sum x * w + bias

The instruction wraps at 32 bits; `fits` proves from the weights that no partial sum can get there.

A window is a list of *runs*: stretches of `length` dwords (four channels each) that lie contiguous in the padded image. A
kernel of kh rows without horizontal dilation is kh runs over kw pixels each; otherwise every tap is a run of its own.
Weights are packed [group][block of 16*V outputs][V][run][dword][16 outputs][4 channels], lanes being output channels.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from simulator._jit import jit
from simulator.fixed import apply

__all__ = ["Packed", "available", "convolve", "fits", "pack"]

_VECTOR = ir.VectorType(ir.IntType(32), 16)
_PIXELS = {1: 8, 2: 8, 4: 6}  # height of the register tile for V vectors


def available() -> bool:
    """Whether this processor has the instruction; `LINGERONNX_SIMD=0` says no."""
    if os.environ.get("LINGERONNX_SIMD") == "0" or config.DISABLE_JIT:
        return False
    features = binding.get_host_cpu_features()
    return bool(features.get("avx512vnni") and features.get("avx512bw"))


class Packed(NamedTuple):
    """Constants of one convolution, ready for `convolve`."""

    weight: np.ndarray  # int8, see the module's docstring
    bias: np.ndarray  # int32 [group * blocks * V * 16], the excess of u = x + 128 taken off
    runs: np.ndarray  # int64 [R]: byte offsets in the padded image
    length: int  # dwords per run
    geometry: tuple[int, ...]  # groups, strides y x, pads top left, padded rows, padded columns
    tile: tuple[tuple[int, ...], ...]  # a P-tuple of V-tuples: only its type matters


def fits(weight: np.ndarray, bias: np.ndarray) -> bool:
    """Whether every partial sum for weights [O, ...] and bias int64 [O] stays within int32."""
    wide = weight.reshape(len(weight), -1).astype(np.int64)
    shifted = bias - 128 * wide.sum(axis=1)
    return bool(np.all(np.abs(shifted) + 255 * np.abs(wide).sum(axis=1) < 2**31))


def pack(weight: np.ndarray, bias: np.ndarray, window: Any, size: tuple[int, int]) -> Packed:
    """Pack int8 weights [O, I/g, kh, kw] and int64 bias [O] for images of `size` (rows, columns).

    `window` has the fields group, strides, pads and dilations of a two-dimensional convolution.
    """
    group = window.group
    outputs, channels, kh, kw = weight.shape
    outputs //= group
    dwords = -(-channels // 4)
    vectors = -(-outputs // 16)
    vectors = 4 if vectors % 4 == 0 else 2 if vectors % 2 == 0 or vectors > 4 else 1
    blocks = -(-outputs // (16 * vectors))
    joined = group == 1 and window.dilations[1] == 1
    runs, length = (kh, kw * dwords) if joined else (kh * kw, dwords)

    wide = np.zeros((group, blocks * vectors * 16, kh, kw, dwords * 4), np.int8)
    wide[:, :outputs, :, :, :channels] = weight.reshape(group, outputs, channels, kh, kw).transpose(0, 1, 3, 4, 2)
    lanes = wide.reshape(group, blocks, vectors, 16, runs, length, 4).transpose(0, 1, 2, 4, 5, 3, 6)
    lane_bias = np.zeros((group, blocks * vectors * 16), np.int32)
    excess = 128 * weight.reshape(len(weight), -1).sum(axis=1, dtype=np.int64)
    lane_bias[:, :outputs] = (bias - excess).reshape(group, outputs)

    top, left, bottom, right = window.pads
    rows, columns = size[0] + top + bottom, size[1] + left + right
    taps = [
        (r * window.dilations[0] * columns + c * window.dilations[1]) * group * dwords * 4
        for r in range(kh)
        for c in range(1 if joined else kw)
    ]
    return Packed(
        weight=np.ascontiguousarray(lanes).reshape(-1),
        bias=lane_bias.reshape(-1),
        runs=np.array(taps, np.int64),
        length=length,
        geometry=(group, *window.strides, top, left, rows, columns),
        tile=((0,) * vectors,) * _PIXELS[vectors],
    )


def _data(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, element: Any) -> Any:
    """Return an LLVM pointer to element `offset` of a one-dimensional array, as a pointer to `element`."""
    base = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(base, [offset]), element.as_pointer())


def _load(builder: Any, pointer: Any) -> Any:
    value = builder.load(pointer)
    value.align = 1
    return value


@intrinsic
def _dot_tile(typingctx, tile, acc, src, src_at, step, runs, weight, weight_at, length, bias, bias_at):  # type: ignore
    """Fill acc[P*V*16] with the windows of P pixels, `step` bytes apart, for V*16 outputs, starting from the bias.

    `runs` holds the byte offset of each run from `src_at`; `weight_at` is where the block of V vectors starts.
    """
    pixels, vectors = tile.count, tile.dtype.count
    word, index = ir.IntType(32), ir.IntType(64)

    def codegen(context, builder, signature, args):
        _, acc_, src_, src_at_, step_, runs_, weight_, weight_at_, length_, bias_, bias_at_ = args
        (_, acc_t, src_t, _, _, runs_t, weight_t, _, _, bias_t, _) = signature.args
        count = builder.extract_value(context.make_array(runs_t)(context, builder, runs_).shape, 0)
        stride = builder.mul(builder.mul(count, length_), ir.Constant(index, 64))  # bytes of one vector's weights
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, (_VECTOR,) * 3), "llvm.x86.avx512.vpdpbusd.512"
        )
        sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(vectors)] for _ in range(pixels)]
        for v in range(vectors):
            at = builder.add(bias_at_, ir.Constant(index, 16 * v))
            start = _load(builder, _data(context, builder, bias_t, bias_, at, _VECTOR))
            for p in range(pixels):
                builder.store(start, sums[p][v])
        splat = ir.Constant(ir.VectorType(word, 16), [0] * 16)
        with cgutils.for_range(builder, count, intp=index) as run:
            offset = builder.add(src_at_, builder.load(_data(context, builder, runs_t, runs_, run.index, index)))
            row = builder.add(weight_at_, builder.mul(builder.mul(run.index, length_), ir.Constant(index, 64)))
            with cgutils.for_range(builder, length_, intp=index) as k:
                column = builder.add(row, builder.mul(k.index, ir.Constant(index, 64)))
                taps = []
                for v in range(vectors):
                    at = builder.add(column, builder.mul(stride, ir.Constant(index, v)))
                    taps.append(_load(builder, _data(context, builder, weight_t, weight_, at, _VECTOR)))
                at = builder.add(offset, builder.mul(k.index, ir.Constant(index, 4)))
                for p in range(pixels):
                    place = builder.add(at, builder.mul(step_, ir.Constant(index, p)))
                    four = _load(builder, _data(context, builder, src_t, src_, place, word))
                    lane0 = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), four, ir.Constant(word, 0))
                    every = builder.shuffle_vector(lane0, ir.Constant(_VECTOR, ir.Undefined), splat)
                    for v in range(vectors):
                        builder.store(builder.call(fma, (builder.load(sums[p][v]), every, taps[v])), sums[p][v])
        for p in range(pixels):
            for v in range(vectors):
                at = ir.Constant(index, 16 * (p * vectors + v))
                store = builder.store(builder.load(sums[p][v]), _data(context, builder, acc_t, acc_, at, _VECTOR))
                store.align = 1
        return context.get_dummy_value()

    arguments = (tile, acc, src, src_at, step, runs, weight, weight_at, length, bias, bias_at)
    return types.void(*arguments), codegen


@jit
def _pad(x, top, left, group, columns, scratch):
    """Copy x [H, W, C] into `scratch` as u = x + 128, at (top, left) of rows of `columns` pixels, channels padded to dwords."""
    rows, width, channels = x.shape
    own = channels // group
    padded = (own + 3) // 4 * 4
    pixel = group * padded
    scratch[:] = 128
    for y in range(rows):
        at = ((y + top) * columns + left) * pixel
        if own == padded:
            source, target = x[y].reshape(width * channels), scratch[at : at + width * channels]
            for i in range(width * channels):
                target[i] = np.uint8(source[i]) ^ np.uint8(128)
        else:
            for i in range(width * group):
                source, target = x[y, i // group], scratch[at + i * padded : at + (i + 1) * padded]
                for c in range(own):
                    target[c] = np.uint8(source[i % group * own + c]) ^ np.uint8(128)


@jit
def convolve(x, packed, rescale, out):
    """Convolve int8 x [N, H, W, C] into out [N, Ho, Wo, O]."""
    group, stride_y, stride_x, top, left, rows, columns = packed.geometry
    pixels, lanes = len(packed.tile), 16 * len(packed.tile[0])
    samples, out_rows, out_columns, outputs = out.shape
    own = outputs // group
    blocks = (own + lanes - 1) // lanes
    padded = (x.shape[3] // group + 3) // 4 * 4
    pixel = group * padded
    block_bytes = lanes * 4 * packed.length * packed.runs.size
    scratch = np.empty((rows * columns + pixels * stride_x) * pixel, np.uint8)
    acc = np.empty(pixels * lanes, np.int32)
    for n in range(samples):
        _pad(x[n], top, left, group, columns, scratch)
        for block in range(group * blocks):
            g, first = block // blocks, block % blocks * lanes
            count = min(lanes, own - first)
            for oy in range(out_rows):
                row = oy * stride_y * columns * pixel + g * padded
                for ox in range(0, out_columns, pixels):
                    _dot_tile(
                        packed.tile, acc, scratch, row + ox * stride_x * pixel, stride_x * pixel, packed.runs,
                        packed.weight, block * block_bytes, packed.length, packed.bias, block * lanes,
                    )  # fmt: skip
                    for p in range(min(pixels, out_columns - ox)):
                        source = acc[p * lanes : (p + 1) * lanes]
                        target = out[n, oy, ox + p, g * own + first : g * own + first + count]
                        for i in range(count):
                            target[i] = apply(rescale, source[i])
