"""Prices that a board's row gives a chip: factors on the formulas of arcs, and the range that was
measured.
"""

import pytest

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError
from lingeronnx.luna.timing.calibration_fit import apply_calibration
from lingeronnx.luna.timing.kernels import KernelCall, estimate_call_cost
from lingeronnx.targets import get_target
from lingeronnx.targets.latency import Latency
from lingeronnx.targets.timing_calibration import TimingCalibration
from tests import nets
from tests.targets.test_timing_row import ROW

ADD = KernelCall("add", {"n": 64, "in_bits": 8, "out_bits": 8})


def test_a_factor_is_on_the_start_and_one_on_the_rest():
    """An add of 64 bytes: 534 before the first element, 8 after; twice and one and a half times."""
    row = apply_calibration(TimingCalibration(**ROW), get_target("venus"))
    assert estimate_call_cost(ADD, row) == (2 * 534, 1.5 * 8)
    copy = KernelCall("memcpy", {"n": 256})
    assert sum(estimate_call_cost(copy, row)) == pytest.approx(
        498
    )  # a family that is not named is as on arcs


@pytest.mark.parametrize(
    ("change", "platform", "message"),
    [
        ({}, "arcs", "is for venus, but the model targets arcs"),
        ({"base": "mars"}, "venus", "corrects formulas of mars, which is unknown; known: arcs"),
        (
            {"factors": {"vektor": {"start": 1, "rest": 1}}},
            "venus",
            "unknown kernels 'vektor'; did you mean 'vector'",
        ),
    ],
)
def test_a_row_of_something_else_is_refused(change, platform, message):
    """One line."""
    with pytest.raises(ConfigError, match=message):
        apply_calibration(TimingCalibration(**{**ROW, **change}), get_target(platform))


def test_a_chip_with_a_row_has_a_time_with_the_range_that_was_measured():
    """The host's cycles for each node are in it; a platform that is no chip takes no row."""
    graph = nets.quantized(nets.plain(), platform="venus", effort="fast").graph
    venus = get_target("venus").with_timing_calibration(TimingCalibration(**ROW))
    time = lo.latency(graph, venus)
    assert isinstance(time, Latency)
    none = {**ROW, "node": 0.0}
    free = lo.latency(graph, get_target("venus").with_timing_calibration(TimingCalibration(**none)))
    assert time.luna == pytest.approx(free.luna + 900 * len(time.layers))
    for layer in time.layers:
        assert layer.low == pytest.approx(layer.cycles / 1.2)
        assert layer.cycles * 1.2 <= layer.high * (1 + 1e-12)
    assert venus.vendor.clock_mhz == 300
    with pytest.raises(ConfigError, match="generic"):
        get_target("generic").with_timing_calibration(TimingCalibration(**ROW))
