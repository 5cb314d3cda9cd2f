"""Prices of kernels: copies go through the measured points, and formulas against sums written out
by hand.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.luna.kernel_costs import ARCS
from lingeronnx.luna.timing.kernels import KernelCall, estimate_kernel_cycles
from lingeronnx.luna.timing.window_kernels import (
    Window,
    estimate_conv2d_cycles,
    estimate_deconv_cycles,
    estimate_depthwise_cycles,
    estimate_pool_cycles,
)
from tests.measured_rows import BESIDE


@pytest.mark.parametrize("route", ARCS.copies)
def test_a_copy_goes_through_the_measured_points_and_rises(route):
    """The vendor's polynomial falls below zero beyond the last measured point; costs do not."""
    copies = ARCS.copies[route]
    for size, cycles in copies.measured_points:
        assert copies.cycles(size) == cycles
    sizes = sorted({*range(0, 300_000, 1777), *(size for size, _ in copies.measured_points)})
    prices = [copies.cycles(size) for size in sizes]
    assert all(a <= b for a, b in itertools.pairwise(prices))
    (x0, y0), (x1, y1) = copies.measured_points[-2:]
    assert copies.cycles(x1 + 1000) == pytest.approx(y1 + 1000 * (y1 - y0) / (x1 - x0))


def test_the_polynomial_is_what_falls():
    """The reason why it is not used above its last point."""
    assert ARCS.copies["psram_to_share"].estimate_cycles_by_fit(400_000) < 0


@pytest.mark.parametrize(
    ("call", "want"),
    [
        (KernelCall("add", {"n": 64, "in_bits": 8, "out_bits": 8}), 534 + 64 * 8 / 64),
        (KernelCall("scale", {"n": 64, "in_bits": 8, "out_bits": 8}), 536 + 64 * 8 / 32),
        (KernelCall("scale", {"n": 64, "in_bits": 32, "out_bits": 8}), 554 + 64 * 32 / 64),
        (KernelCall("memset", {"n": 64, "in_bits": 8, "out_bits": 8}), 350 + 8),
        (KernelCall("div", {"n": 10, "in_bits": 32, "out_bits": 32}), 950),
        (KernelCall("div", {"n": 10, "in_bits": 8, "out_bits": 8}), None),
        (KernelCall("exp", {"n": 2049, "in_bits": 32, "out_bits": 32}), 50 + 2 * 1157 + 3 * 2049),
        (KernelCall("softmax", {"n": 10, "in_bits": 32, "out_bits": 32}), 784 + 50 + 1157),
        (
            KernelCall("transpose", {"rows": 3, "columns": 5, "bits": 8, "out_bits": 8}),
            1038 + 2 * (3 + 1) + 3 * (4 + 1),
        ),
        (KernelCall("add", {"n": 64, "in_bits": 8, "out_bits": 8, "in_bits_2": 32}), None),
        (KernelCall("fft", {"n": 128}), 2734),
    ],
)
def test_a_formula_written_out(call, want):
    """None: the kernel does not take such widths."""
    assert estimate_kernel_cycles(call, ARCS) == want


def test_a_product_rounds_its_sides_up():
    """8-bit operands: rows to 2, the inner length to 8, columns to 4."""
    widths = {"left_bits": 8, "right_bits": 8, "out_bits": 8}
    cycles = estimate_kernel_cycles(KernelCall("matmul", {"m": 1, "k": 1, "n": 1, **widths}), ARCS)
    assert cycles == estimate_kernel_cycles(
        KernelCall("matmul", {"m": 2, "k": 8, "n": 4, **widths}), ARCS
    )
    assert cycles == 2255 + 2 * 8 / 8 + 8 * 4 / 8 + 2 * 4 * 8 / 64 + 16


_SQUARES = st.builds(
    lambda c, o, h, w, k, s: Window(c, h, w, o, (k, k), (s, s), (1, 1), (k // 2,) * 4),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(7, 40),
    st.integers(7, 40),
    st.sampled_from([1, 3, 5]),
    st.integers(1, 2),
)


@given(_SQUARES)
def test_more_channels_never_cost_less(window):
    """A law of every window kernel, and no convolution is faster than 64 products a cycle."""
    wider = Window(**{**vars(window), "c_out": window.c_out + 2})
    first, second = estimate_conv2d_cycles(window), estimate_conv2d_cycles(wider)
    if first is not None and second is not None:
        assert first <= second
        macs = window.c_out * window.c_in * window.kernel[0] ** 2
        stride = window.stride[0]
        assert first > macs * (window.h // stride - 2) * (window.w // stride - 2) / 64
    assert estimate_pool_cycles(window) > 0


def test_windows_without_a_price():
    """Windows that have no cost model."""
    assert (
        estimate_conv2d_cycles(Window(600, 8, 8, 8, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1))) is None
    )
    assert (
        estimate_depthwise_cycles(Window(8, 8, 8, 16, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1))) is None
    )
    assert estimate_deconv_cycles(Window(8, 8, 8, 8, (2, 2), (2, 2), (1, 1), (0, 0, 1, 1))) is None
    assert estimate_deconv_cycles(Window(8, 8, 8, 8, (2, 2), (2, 2), (1, 1), (2, 2, 2, 2))) is None


def test_the_peak_of_a_large_convolution():
    """A 3x3 convolution, 64 to 128 channels over 32 x 32, takes 1,413,888 cycles: 83 % of 64
    products a cycle.
    """
    assert (
        estimate_conv2d_cycles(Window(64, 32, 32, 128, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)))
        == 1_413_888
    )


@pytest.mark.skipif(
    not (BESIDE / "latency" / "index.json").is_file(), reason="the measured rows are not here"
)
def test_every_row_beside_the_repository(capsys):
    """Kernels as the vendor's program has them, nodes as its executor calls them, layers of graphs;
    points measured.
    """
    from benchmarks import latency_validation

    assert latency_validation.main([str(BESIDE / "latency")]) == 0
    assert "layers of graphs within 1%: 1796 of 1801" in capsys.readouterr().out
