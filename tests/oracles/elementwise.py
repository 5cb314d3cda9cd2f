"""Operators that work number by number."""

import math
from fractions import Fraction

import numpy as np

from lingeronnx.operators._reference_arithmetic import fixed_point_multiplier
from tests.oracles.fixed import HALF, rescale, rsh, sat


def each(function, *arrays):
    """Apply a function of integers to broadcast arrays."""
    arrays = np.broadcast_arrays(*arrays)
    out = np.zeros(arrays[0].shape, object)
    for place in np.ndindex(*out.shape):
        out[place] = function(*(array[place].item() for array in arrays))
    return out


def add_shift(x, y, shift_x, shift_y, bits, sign):
    """Each operand is shifted and saturated, then their sum is saturated."""
    return each(
        lambda a, b: sat(sat(rsh(a, shift_x), bits) + sign * sat(rsh(b, shift_y), bits), bits), x, y
    )


def add_scaled(x, y, ratio_x, ratio_y, bits, sign):
    """Each operand is brought to 2^16 times the scale of the output and rounded, then their sum is
    rounded.
    """

    def fine(v, ratio):
        m, s = fixed_point_multiplier(Fraction(ratio) * 2**16)
        return math.floor(Fraction(v * m) / Fraction(2) ** s + HALF)

    return each(lambda a, b: sat(rsh(fine(a, ratio_x) + sign * fine(b, ratio_y), 16), bits), x, y)


def mul(x, y, triple):
    """Requantized product."""
    return each(lambda a, b: rescale(a * b, triple), x, y)


def affine(x, weight, bias, triple):
    """x [N, C, ...] times weight [C] plus bias [C]."""
    column = (-1, *(1,) * (x.ndim - 2))
    return each(
        lambda a, w, b: rescale(a * w + b, triple), x, weight.reshape(column), bias.reshape(column)
    )


def requant(x, triple):
    """Requantized x."""
    return each(lambda a: rescale(a, triple), x)


def requant_wrapped(x, left, bits):
    """x * 2^left, the low bits of it."""

    def wrap(v):
        v = (v << left) & ((1 << bits) - 1)
        return v - (1 << bits) if v >> (bits - 1) else v

    return each(wrap, x)


def clip(x, low, high):
    """Clamp."""
    return each(lambda a: low if a < low else high if a > high else a, x)


def quant(x, scale, bits):
    """sat(floor(x * scale + 1/2)) in float64; nan gives 0."""

    def one(v):
        if math.isnan(v):
            return 0
        if math.isinf(v):
            return sat(2**99 if v > 0 else -(2**99), bits)
        return sat(math.floor(v * scale + 0.5), bits)

    return each(one, x)


def quant_luna(x, factor):
    """float32 product, the half in double, the sum as float32, floor, int8."""

    def one(v):
        product = np.float32(v) * np.float32(factor)
        total = np.float32(float(product) + 0.5)
        if math.isnan(total):
            return 0
        if math.isinf(total):
            return 127 if total > 0 else -128
        return sat(math.floor(float(total)), 8)

    with np.errstate(all="ignore"):
        return each(one, x)


def dequant(x, scale):
    """x / scale as float32."""
    return np.array([np.float32(int(v) / scale) for v in x.reshape(-1)], np.float32).reshape(
        x.shape
    )
