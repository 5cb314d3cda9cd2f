"""Copies between and beyond the measured points, by hand."""

import pytest

from lingeronnx.luna.kernel_costs import ARCS, CopyCost

LINE = CopyCost(((100, 10), (200, 30), (400, 50)), (0.5, -1.0))


@pytest.mark.parametrize(
    "size, cycles",
    [
        (100, 10),
        (150, 20),
        (200, 30),
        (300, 40),
        (400, 50),
        (600, 70),  # beyond the last point its slope goes on
        (50, 24),
        (51, 24),
    ],  # below the first one the polynomial 0.5 x - 1, cut
)
def test_a_copy(size, cycles):
    assert LINE.cycles(size) == cycles


@pytest.mark.parametrize("route", sorted(ARCS.copies))
def test_every_measured_point_is_met_and_copies_never_get_cheaper(route):
    copies = ARCS.copies[route]
    assert [copies.cycles(size) for size, _ in copies.measured_points] == [
        cycles for _, cycles in copies.measured_points
    ]
    costs = [
        copies.cycles(size)
        for size in range(copies.measured_points[0][0], 3 * copies.measured_points[-1][0], 997)
    ]
    assert costs == sorted(costs)
