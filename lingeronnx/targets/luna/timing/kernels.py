"""Cycles of one call of a kernel of the NPU's library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .prices import Prices
from .windows import Window, conv2d, deconv, depthwise, pool

__all__ = ["KernelCall", "Copied", "cycles"]

_PIECE = 2048  # elements that exp takes at a time


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel, so many times.

    arguments : n is elements; rows, columns; m, k, n of a product; for windows those of `Window`. Widths are in bits.
    """

    kernel: str
    arguments: Mapping[str, Any]
    times: int = 1


#: How a copy is priced: `Copies.cycles`, or `Copies.fitted` to ask what the vendor's program says.
Copied = Callable[[Prices, str, int], float]


def _interpolated(prices: Prices, route: str, size: int) -> float:
    return prices.copies[route].cycles(size)


def cycles(call: KernelCall, prices: Prices, copied: Copied = _interpolated) -> float | None:
    """Return the cycles of one call; None where there is no price for such arguments."""
    name, given = call.kernel, call.arguments
    if name in prices.vectors:
        return _vector(prices, name, **given)
    if name in prices.copies:
        known = given.get("in_bits", 8) == 8 and given.get("from") != "share"
        return copied(prices, name, given["n"]) if known else None
    if name in _WINDOWS:
        return _WINDOWS[name](_window(given), **({"pads_are": given["pads_are"]} if "pads_are" in given else {}))
    return _OTHERS[name](prices, **given)


def _window(given: Mapping[str, Any]) -> Window:
    return Window(**{key: value for key, value in given.items() if key != "pads_are"})


def _vector(
    prices: Prices, name: str, n: int, in_bits: int, out_bits: int, in_bits_2: int | None = None
) -> float | None:
    kernel = prices.vectors[name]
    start = kernel.starts.get((in_bits, out_bits))
    if start is None or (in_bits_2 not in (None, in_bits) and name != "mul"):
        return None
    slow = kernel.slow and in_bits == out_bits == 8
    return start + max(n * in_bits / (32 if slow else 64), n * out_bits / 128)


def _fill(prices: Prices, n: int, in_bits: int, out_bits: int) -> float | None:
    return prices.fills[in_bits] + max(n * in_bits / 64, n * out_bits / 128) if in_bits in prices.fills else None


def _divide(prices: Prices, n: int, in_bits: int, out_bits: int) -> float | None:
    return 900 + 5 * n if in_bits == out_bits == 32 else None


def _exp(prices: Prices, n: int, in_bits: int, out_bits: int) -> float | None:
    known = in_bits in (8, 32) and out_bits in (8, 32)
    return 50 + 1157 * math.ceil(n / _PIECE) + 3 * n if known else None


def _softmax(prices: Prices, n: int, in_bits: int, out_bits: int) -> float | None:
    return 784 + 5 * n + 1157 * math.ceil(n / _PIECE) if in_bits == out_bits == 32 else None


def _logsoftmax(prices: Prices, n: int, in_bits: int, out_bits: int) -> float | None:
    return 1234 + 5 * n + 1157 * math.ceil(n / _PIECE) if in_bits == out_bits == 32 else None


def _fft(prices: Prices, n: int) -> float | None:
    return prices.fft.get(n)


def _matmul(prices: Prices, m: int, k: int, n: int, left_bits: int, right_bits: int, out_bits: int) -> float | None:
    if left_bits not in (4, 8, 32) or right_bits not in (4, 8, 32) or out_bits not in (8, 32):
        return None
    wide = left_bits == right_bits == 32
    if left_bits == right_bits == 8:
        m, k, n = -(-m // 2) * 2, -(-k // 8) * 8, -(-n // 4) * 4
    if wide:
        m, n = -(-m // 2) * 2, -(-n // 2) * 2
    start = 2255 if (left_bits == 8 and out_bits == 8) or wide else 2536
    load = m * k * left_bits / 64 + k * n * right_bits / 64
    return start + load + max(m * n * out_bits / 128, m * n * k / (4 if wide else 64) + 16 * math.ceil(m / 2))


def _transpose(prices: Prices, rows: int, columns: int, bits: int, out_bits: int) -> float | None:
    if bits != out_bits or bits not in (8, 32):
        return None
    lines = math.ceil(rows / 2) * (3 + math.ceil(columns * bits / 64))
    return 1038 + lines + math.ceil(columns / 2) * (4 + math.ceil(rows * bits / 64))


_WINDOWS: Mapping[str, Callable[..., float | None]] = MappingProxyType(
    {"conv2d": conv2d, "depthwise": depthwise, "maxpool": pool, "avgpool": pool, "deconv": deconv}
)
_OTHERS: Mapping[str, Callable[..., float | None]] = MappingProxyType(
    {
        "memset": _fill,
        "div": _divide,
        "exp": _exp,
        "softmax": _softmax,
        "logsoftmax": _logsoftmax,
        "fft": _fft,
        "matmul": _matmul,
        "transpose": _transpose,
    }
)
