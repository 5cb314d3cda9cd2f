"""The file of a board's prices: what is read back, and what is refused in one line."""

import json

import pytest

from lingeronnx.common.errors import ConfigError
from lingeronnx.targets.timing_calibration import TimingCalibration, read_timing_calibration

ROW = {
    "lingeronnx_timing": 1,
    "platform": "venus",
    "base": "arcs",
    "node": 900.0,
    "spread": 0.2,
    "clock_mhz": 300.0,
    "factors": {"vector": {"start": 2.0, "rest": 1.5}},
    "nodes": 40,
    "runs": 3,
    "median_error": 0.01,
}


def test_a_row_comes_back(tmp_path):
    """What profile-board writes is what --timing reads."""
    path = tmp_path / "timing.json"
    path.write_text(TimingCalibration(**ROW).model_dump_json())
    assert read_timing_calibration(path) == TimingCalibration(**ROW)
    assert json.loads(path.read_text()) == ROW


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Invalid JSON"),
        ("[]", "the document: expected a mapping with the keys lingeronnx_timing, platform"),
        ("{}", "the key 'lingeronnx_timing' is missing"),
        ({"lingeronnx_timing": 2}, "lingeronnx_timing = 2: expected 1"),
        ({"node": -1}, "node"),
        ({"node": "much"}, r"node = 'much': expected a number >= 0 and <= 1e\+09"),
        ({"factors": {"vector": {"start": 1.0}}}, "the key 'rest' in factors.vector is missing"),
        ({"factors": {"vector": {"start": 1.0, "rest": -2.0}}}, "factors.vector.rest"),
        ({"more": 1}, "unknown key 'more'; did you mean 'node'"),
        ({"clock_mhz": 0}, "clock_mhz"),
        ({"node": float("nan")}, "node"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_what_is_no_row_is_one_line(tmp_path, text, told):
    """Texts that are no JSON, and fields out of their range."""
    path = tmp_path / "timing.json"
    path.write_text(text if isinstance(text, str) else json.dumps({**ROW, **text}))
    with pytest.raises(ConfigError, match=told) as caught:
        read_timing_calibration(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    """Nobody writes such a file by profile-board."""
    path = tmp_path / "timing.json"
    path.write_bytes(b" " * 1_000_001)
    with pytest.raises(ConfigError, match="has 1,000,001 bytes; at most 1,000,000 are read"):
        read_timing_calibration(path)
