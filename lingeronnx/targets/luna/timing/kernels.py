"""Cycles of one call of a kernel of the NPU's library.

The formulas, and what a board's row makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from ..kernel_costs import CostCorrection, KernelCosts
from .window_kernels import (
    Window,
    estimate_conv2d_cycles,
    estimate_deconv_cycles,
    estimate_depthwise_cycles,
    estimate_pool_cycles,
)
from .window_kernels import get_start_cycles as window_start

__all__ = [
    "FAMILIES",
    "CopyEstimator",
    "CallCost",
    "KernelCall",
    "estimate_call_cost",
    "estimate_kernel_cycles",
    "get_kernel_family",
]

_EXP_BLOCK_ELEMENTS = 2048  # elements that exp takes at a time
_EXP_BLOCK_START_CYCLES = 1157  # what it takes before each of these
_BLOCKED_KERNELS = ("exp", "softmax", "logsoftmax")


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel, so many times.

    arguments : n is elements; rows, columns; m, k, n of a product; for windows those of `Window`.
    Widths are in bits.
    """

    kernel: str
    arguments: Mapping[str, Any]
    count: int = 1


class CallCost(NamedTuple):
    """Cycles of a call: before its first element, and from there on."""

    start_cycles: float
    element_cycles: float


#: How a copy is priced: `CopyCost.cycles`, or `CopyCost.fitted` to ask what the vendor's program says.
CopyEstimator = Callable[[KernelCosts, str, int], float]


def _interpolated(prices: KernelCosts, route: str, size: int) -> float:
    return prices.copies[route].cycles(size)


def estimate_kernel_cycles(
    call: KernelCall, prices: KernelCosts, estimate_copy: CopyEstimator = _interpolated
) -> float | None:
    """Return the cycles of one call; None where there is no price for such arguments."""
    name, given = call.kernel, call.arguments
    if name in prices.vector_kernels:
        return _vector(prices, name, **given)
    if name in prices.copies:
        known = given.get("in_bits", 8) == 8 and given.get("from") != "share"
        return estimate_copy(prices, name, given["n"]) if known else None
    if name in _WINDOW_KERNELS:
        return _WINDOW_KERNELS[name](
            _window(given), **({"pads_are": given["pads_are"]} if "pads_are" in given else {})
        )
    return _OTHER_KERNELS[name](prices, **given)


def estimate_call_cost(call: KernelCall, prices: KernelCosts) -> CallCost | None:
    """Return the cycles of one call on the chip of `prices`.

    None where there is no price for such arguments.
    """
    whole = estimate_kernel_cycles(call, prices)
    if whole is None:
        return None
    begun = min(_get_start_cycles(call, prices), whole)
    factor = prices.corrections.get(get_kernel_family(call.kernel), CostCorrection())
    return CallCost(factor.start * begun, factor.rest * (whole - begun))


def get_kernel_family(kernel: str) -> str:
    """Return the kernels that a kernel belongs to.

    What a board's row corrects together, a member of `FAMILIES`.
    """
    if kernel.startswith("memcpy") or "_to_" in kernel:
        return "copy"
    return _FAMILY_OF.get(kernel, "vector")


_FAMILY_OF = MappingProxyType(
    {
        "conv2d": "convolution",
        "depthwise": "depthwise",
        "maxpool": "depthwise",
        "avgpool": "depthwise",
        "deconv": "deconvolution",
        "matmul": "product",
        "transpose": "transpose",
    }
)
FAMILIES = (*dict.fromkeys(_FAMILY_OF.values()), "copy", "vector")


def _get_start_cycles(call: KernelCall, prices: KernelCosts) -> float:
    """Return what a call that has a price takes before its first element."""
    name, given = call.kernel, call.arguments
    if name in prices.vector_kernels:
        return prices.vector_kernels[name].start_cycles[given["in_bits"], given["out_bits"]]
    if name in prices.copies:
        return max(prices.copies[name].estimate_cycles_by_fit(0), 0.0)
    if name in _WINDOW_KERNELS:
        return window_start(name, _window(given))
    # An empty call; exp takes pieces, each with a start of its own.
    sizes = {"matmul": ("m", "k", "n"), "transpose": ("rows", "columns")}.get(name, ("n",))
    if name == "fft":
        return 0.0
    empty = estimate_kernel_cycles(KernelCall(name, {**given, **dict.fromkeys(sizes, 0)}), prices)
    assert empty is not None
    return empty + (
        _EXP_BLOCK_START_CYCLES * math.ceil(given["n"] / _EXP_BLOCK_ELEMENTS)
        if name in _BLOCKED_KERNELS
        else 0
    )


def _window(given: Mapping[str, Any]) -> Window:
    return Window(**{key: value for key, value in given.items() if key != "pads_are"})


def _vector(
    prices: KernelCosts,
    name: str,
    n: int,
    in_bits: int,
    out_bits: int,
    in_bits_2: int | None = None,
) -> float | None:
    kernel = prices.vector_kernels[name]
    start = kernel.start_cycles.get((in_bits, out_bits))
    if start is None or (in_bits_2 not in (None, in_bits) and name != "mul"):
        return None
    slow = kernel.is_half_rate and in_bits == out_bits == 8
    return start + max(n * in_bits / (32 if slow else 64), n * out_bits / 128)


def _fill(prices: KernelCosts, n: int, in_bits: int, out_bits: int) -> float | None:
    return (
        prices.memset_start_cycles[in_bits] + max(n * in_bits / 64, n * out_bits / 128)
        if in_bits in prices.memset_start_cycles
        else None
    )


def _divide(prices: KernelCosts, n: int, in_bits: int, out_bits: int) -> float | None:
    return 900 + 5 * n if in_bits == out_bits == 32 else None


def _exp(prices: KernelCosts, n: int, in_bits: int, out_bits: int) -> float | None:
    known = in_bits in (8, 32) and out_bits in (8, 32)
    return (
        50 + _EXP_BLOCK_START_CYCLES * math.ceil(n / _EXP_BLOCK_ELEMENTS) + 3 * n if known else None
    )


def _softmax(prices: KernelCosts, n: int, in_bits: int, out_bits: int) -> float | None:
    return (
        784 + 5 * n + _EXP_BLOCK_START_CYCLES * math.ceil(n / _EXP_BLOCK_ELEMENTS)
        if in_bits == out_bits == 32
        else None
    )


def _logsoftmax(prices: KernelCosts, n: int, in_bits: int, out_bits: int) -> float | None:
    return (
        1234 + 5 * n + _EXP_BLOCK_START_CYCLES * math.ceil(n / _EXP_BLOCK_ELEMENTS)
        if in_bits == out_bits == 32
        else None
    )


def _fft(prices: KernelCosts, n: int) -> float | None:
    return prices.fft.get(n)


def _matmul(
    prices: KernelCosts, m: int, k: int, n: int, left_bits: int, right_bits: int, out_bits: int
) -> float | None:
    if left_bits not in (4, 8, 32) or right_bits not in (4, 8, 32) or out_bits not in (8, 32):
        return None
    wide = left_bits == right_bits == 32
    if left_bits == right_bits == 8:
        m, k, n = -(-m // 2) * 2, -(-k // 8) * 8, -(-n // 4) * 4
    if wide:
        m, n = -(-m // 2) * 2, -(-n // 2) * 2
    start = 2255 if (left_bits == 8 and out_bits == 8) or wide else 2536
    load = m * k * left_bits / 64 + k * n * right_bits / 64
    return (
        start
        + load
        + max(m * n * out_bits / 128, m * n * k / (4 if wide else 64) + 16 * math.ceil(m / 2))
    )


def _transpose(
    prices: KernelCosts, rows: int, columns: int, bits: int, out_bits: int
) -> float | None:
    if bits != out_bits or bits not in (8, 32):
        return None
    lines = math.ceil(rows / 2) * (3 + math.ceil(columns * bits / 64))
    return 1038 + lines + math.ceil(columns / 2) * (4 + math.ceil(rows * bits / 64))


_WINDOW_KERNELS: Mapping[str, Callable[..., float | None]] = MappingProxyType(
    {
        "conv2d": estimate_conv2d_cycles,
        "depthwise": estimate_depthwise_cycles,
        "maxpool": estimate_pool_cycles,
        "avgpool": estimate_pool_cycles,
        "deconv": estimate_deconv_cycles,
    }
)
_OTHER_KERNELS: Mapping[str, Callable[..., float | None]] = MappingProxyType(
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
