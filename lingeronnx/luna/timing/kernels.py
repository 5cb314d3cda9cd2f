"""Cycles of one call of a kernel of the NPU's library.

Computed by the vendor's formulas, and corrected by a board's calibration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from ...common.arithmetic import round_up
from ..kernel_costs import CostCorrection, KernelCosts
from .window_kernels import (
    Window,
    estimate_conv2d_cycles,
    estimate_deconv_cycles,
    estimate_depthwise_cycles,
    estimate_pool_cycles,
)
from .window_kernels import get_start_cycles as get_window_start_cycles

__all__ = [
    "FAMILIES",
    "CopyEstimator",
    "CallCost",
    "KernelCall",
    "estimate_call_cost",
    "estimate_kernel_cycles",
    "get_kernel_family",
]

_EXP_BLOCK_ELEMENTS = 2048  # elements that exp computes at a time
_EXP_BLOCK_START_CYCLES = 1157  # overhead of each block
_BLOCKED_KERNELS = ("exp", "softmax", "logsoftmax")


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel, repeated `count` times.

    Attributes
    ----------
    arguments
        For vectors, n elements; for transposes, rows and columns; for matrix products, m, k and n;
        for sliding windows, the fields of `Window`. Widths are in bits.
    """

    kernel: str
    arguments: Mapping[str, Any]
    count: int = 1


class CallCost(NamedTuple):
    """Cycles of a call: before its first element, and from there on."""

    start_cycles: float
    element_cycles: float


#: Estimates the cycles of a copy from the costs, the route and the size in bytes.
CopyEstimator = Callable[[KernelCosts, str, int], float]


def _interpolate_copy_cycles(prices: KernelCosts, route: str, size: int) -> float:
    """Return the cycles of a copy of `size` bytes on `route`, by the chip's measured sizes."""
    return prices.copies[route].cycles(size)


def estimate_kernel_cycles(
    call: KernelCall,
    prices: KernelCosts,
    estimate_copy: CopyEstimator = _interpolate_copy_cycles,
) -> float | None:
    """Estimate the cycles of one call, or return None if its arguments have no cost model.

    `call.count` and corrections of a calibration are not applied. `estimate_copy` gives the cycles
    of a copy of n bytes; copies of values that do not have 8 bits, or from shared memory, have no
    cost model.
    """
    name, arguments = call.kernel, call.arguments
    if name in prices.vector_kernels:
        return _estimate_vector_cycles(prices, name, **arguments)
    if name in prices.copies:
        if arguments.get("in_bits", 8) != 8 or arguments.get("from") == "share":
            return None
        return estimate_copy(prices, name, arguments["n"])
    if name in _WINDOW_KERNELS:
        options = {key: arguments[key] for key in ("pads_are",) if key in arguments}
        return _WINDOW_KERNELS[name](_make_window(arguments), **options)
    return _OTHER_KERNELS[name](prices, **arguments)


def estimate_call_cost(call: KernelCall, prices: KernelCosts) -> CallCost | None:
    """Estimate the start and element cycles of one call, corrected by the calibration in `prices`.

    `call.count` is not applied. A kernel family without a correction keeps its estimate. None if
    its arguments have no cost model.
    """
    cycles = estimate_kernel_cycles(call, prices)
    if cycles is None:
        return None
    start_cycles = min(_get_start_cycles(call, prices), cycles)
    factor = prices.corrections.get(get_kernel_family(call.kernel), CostCorrection())
    return CallCost(factor.start * start_cycles, factor.rest * (cycles - start_cycles))


def get_kernel_family(kernel: str) -> str:
    """Return the family of `kernel`, whose kernels a calibration corrects together.

    It is a member of `FAMILIES`: "copy" for copies, "vector" for kernels without an entry.
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
    """Return the cycles before the first element of a call that has a cost model.

    They are the tabulated start of a vector or window kernel, the fit's value for a copy of 0
    bytes, 0 for `fft`, otherwise the cost of the same call with empty sizes; for kernels that work
    in blocks, the start of each block is added.
    """
    name, arguments = call.kernel, call.arguments
    if name in prices.vector_kernels:
        start_cycles = prices.vector_kernels[name].start_cycles
        return start_cycles[arguments["in_bits"], arguments["out_bits"]]
    if name in prices.copies:
        return max(prices.copies[name].estimate_cycles_by_fit(0), 0.0)
    if name in _WINDOW_KERNELS:
        return get_window_start_cycles(name, _make_window(arguments))
    if name == "fft":
        return 0.0
    # The cost of an empty call; exp works in blocks, each with an overhead of its own.
    sizes = {"matmul": ("m", "k", "n"), "transpose": ("rows", "columns")}.get(name, ("n",))
    empty_call = KernelCall(name, {**arguments, **dict.fromkeys(sizes, 0)})
    empty_cycles = estimate_kernel_cycles(empty_call, prices)
    assert empty_cycles is not None
    if name not in _BLOCKED_KERNELS:
        return empty_cycles
    blocks = math.ceil(float(arguments["n"]) / _EXP_BLOCK_ELEMENTS)
    return empty_cycles + _EXP_BLOCK_START_CYCLES * blocks


def _make_window(arguments: Mapping[str, Any]) -> Window:
    """Make the window of a call's arguments; `pads_are` is left out."""
    return Window(**{key: value for key, value in arguments.items() if key != "pads_are"})


def _estimate_vector_cycles(
    prices: KernelCosts,
    name: str,
    n: int,
    in_bits: int,
    out_bits: int,
    in_bits_2: int | None = None,
) -> float | None:
    """Estimate the cycles of a vector kernel on `n` elements: start + max(reading, writing).

    It reads 64 bits per cycle, 32 in half-rate kernels from 8 to 8 bits, and writes 128. None if
    the start of (in_bits, out_bits) is unknown or if the second operand has other bits (only `mul`
    may).
    """
    kernel = prices.vector_kernels[name]
    start = kernel.start_cycles.get((in_bits, out_bits))
    if start is None or (in_bits_2 not in (None, in_bits) and name != "mul"):
        return None
    is_half_rate = kernel.is_half_rate and in_bits == out_bits == 8
    return start + max(n * in_bits / (32 if is_half_rate else 64), n * out_bits / 128)


def _estimate_memset_cycles(
    prices: KernelCosts, n: int, in_bits: int, out_bits: int
) -> float | None:
    """Estimate the cycles of filling `n` elements; None if no start is known for `in_bits`."""
    if in_bits not in prices.memset_start_cycles:
        return None
    return prices.memset_start_cycles[in_bits] + max(n * in_bits / 64, n * out_bits / 128)


def _estimate_div_cycles(prices: KernelCosts, n: int, in_bits: int, out_bits: int) -> float | None:
    """Estimate the cycles of `n` divisions; None unless both widths are 32 bits."""
    return 900 + 5 * n if in_bits == out_bits == 32 else None


def _estimate_exp_cycles(prices: KernelCosts, n: int, in_bits: int, out_bits: int) -> float | None:
    """Estimate the cycles of `n` exponentials; None unless both widths are 8 or 32 bits."""
    if in_bits not in (8, 32) or out_bits not in (8, 32):
        return None
    return 50 + _EXP_BLOCK_START_CYCLES * math.ceil(n / _EXP_BLOCK_ELEMENTS) + 3 * n


def _estimate_softmax_cycles(
    prices: KernelCosts, n: int, in_bits: int, out_bits: int
) -> float | None:
    """Estimate the cycles of a softmax over `n` elements; None unless both widths are 32 bits."""
    if not in_bits == out_bits == 32:
        return None
    return 784 + 5 * n + _EXP_BLOCK_START_CYCLES * math.ceil(n / _EXP_BLOCK_ELEMENTS)


def _estimate_logsoftmax_cycles(
    prices: KernelCosts, n: int, in_bits: int, out_bits: int
) -> float | None:
    """Estimate the cycles of a log-softmax of `n` elements; None unless both widths are 32 bits."""
    if not in_bits == out_bits == 32:
        return None
    return 1234 + 5 * n + _EXP_BLOCK_START_CYCLES * math.ceil(n / _EXP_BLOCK_ELEMENTS)


def _estimate_fft_cycles(prices: KernelCosts, n: int) -> float | None:
    """Return the measured cycles of an FFT of `n` points; None if that size was not measured."""
    return prices.fft.get(n)


def _estimate_matmul_cycles(
    prices: KernelCosts, m: int, k: int, n: int, left_bits: int, right_bits: int, out_bits: int
) -> float | None:
    """Estimate the cycles of an (m, k) x (k, n) product; None for widths the kernel lacks.

    Operands may have 4, 8 or 32 bits, the result 8 or 32. Sizes are rounded up to the array's
    blocks if both operands have 8 bits or both 32.
    """
    if left_bits not in (4, 8, 32) or right_bits not in (4, 8, 32) or out_bits not in (8, 32):
        return None
    is_32bit = left_bits == right_bits == 32
    if left_bits == right_bits == 8:
        m, k, n = round_up(m, 2), round_up(k, 8), round_up(n, 4)
    if is_32bit:
        m, n = round_up(m, 2), round_up(n, 2)
    start = 2255 if (left_bits == 8 and out_bits == 8) or is_32bit else 2536
    load = m * k * left_bits / 64 + k * n * right_bits / 64
    store = m * n * out_bits / 128
    compute = m * n * k / (4 if is_32bit else 64) + 16 * math.ceil(m / 2)
    return start + load + max(store, compute)


def _estimate_transpose_cycles(
    prices: KernelCosts, rows: int, columns: int, bits: int, out_bits: int
) -> float | None:
    """Estimate the cycles of transposing [rows, columns] elements.

    None unless both widths, in bits, are equal and 8 or 32.
    """
    if bits != out_bits or bits not in (8, 32):
        return None
    row_cycles = math.ceil(rows / 2) * (3 + math.ceil(columns * bits / 64))
    column_cycles = math.ceil(columns / 2) * (4 + math.ceil(rows * bits / 64))
    return 1038 + row_cycles + column_cycles


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
        "memset": _estimate_memset_cycles,
        "div": _estimate_div_cycles,
        "exp": _estimate_exp_cycles,
        "softmax": _estimate_softmax_cycles,
        "logsoftmax": _estimate_logsoftmax_cycles,
        "fft": _estimate_fft_cycles,
        "matmul": _estimate_matmul_cycles,
        "transpose": _estimate_transpose_cycles,
    }
)
