"""Pages of histograms: what is cut off, and the files."""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from lingeronnx.analysis.sensitivity.layer_histograms import (
    check_matplotlib,
    clipped_fraction,
    plot_histogram,
)
from lingeronnx.analysis.sensitivity.sensitivity import sensitivity
from lingeronnx.common.errors import ConfigError
from lingeronnx.ir.plan import Affine, PerAxis
from simulator._disk_cache import cache_folder
from tests.analysis.sensitivity.helpers import data, small_net
from tests.nets import residual

X = np.random.default_rng(3).standard_normal((24, 4, 12, 12)).astype(np.float32)
FILES = [
    f"{side}_{kind}_hist_result.pdf" for side in ("best", "worst") for kind in ("weight", "act")
]


@pytest.mark.parametrize(
    "q",
    (
        Affine(32.0),
        Affine(100.0, 8),
        Affine(4.0, 4),
        Affine((64.0, 8.0, 32.0, 16.0), 8, PerAxis(1)),
    ),
)
def test_what_is_cut_off(q):
    """Counted one by one in plain Python: what rounds to an integer beyond the ends."""
    values = X[:2] * 3
    scales = np.broadcast_to(q.scales, 4)
    beyond = 0
    for channel in range(4):
        for value in values[:, channel].reshape(-1).tolist():
            beyond += not q.low <= int(np.floor(value * scales[channel] + 0.5)) <= q.high
    assert clipped_fraction(values, q) == pytest.approx(beyond / values.size)


@pytest.mark.slow
def test_a_page_marks_grid_and_ends():
    pytest.importorskip("matplotlib")
    values, q = np.array([-5.0, -1.0, 0.0, 0.5, 3.0]), Affine(4.0, 4)  # -2 to 1.75 in steps of 1/4
    (axes,) = plot_histogram("layer", values, q).axes
    ends = sorted(line.get_xdata()[0] for line in axes.lines)
    assert ends == [-2.0, 1.75]
    (grid,) = [found for found in axes.collections if hasattr(found, "get_segments")]
    assert [segment[0][0] for segment in grid.get_segments()] == [k / 4 for k in range(-8, 8)]
    assert "40 % clipped" in axes.texts[0].get_text()
    (inside,) = plot_histogram("layer", np.array([-0.5, 0.25]), q).axes
    assert not inside.lines
    assert "\n0 % clipped" in inside.texts[0].get_text()


@pytest.mark.slow
def test_files(tmp_path):
    pytest.importorskip("matplotlib")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of matplotlib's own imports
        sensitivity(small_net(), data(small_net()), folder=tmp_path, plots=2, effort="fast")
        pages = {name: (tmp_path / name).read_bytes() for name in FILES}
        for content in pages.values():
            assert content.startswith(b"%PDF")
            assert len(re.findall(rb"/Type /Page\b", content)) == 2
        sensitivity(
            small_net(), data(small_net()), folder=tmp_path, plots=2, effort="fast", resume=True
        )
    assert pages == {name: (tmp_path / name).read_bytes() for name in FILES}


def test_without_matplotlib(tmp_path, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "matplotlib" else there(name, *a),
    )
    with pytest.raises(
        ConfigError, match=r"histograms need matplotlib: pip install 'lingeronnx\[report\]'"
    ):
        sensitivity(residual(), X, folder=tmp_path, plots=1, effort="fast")


def test_a_folder_is_needed(monkeypatch):
    monkeypatch.setattr(
        "lingeronnx.analysis.sensitivity.sensitivity.check_matplotlib", lambda: None
    )
    with pytest.raises(ConfigError, match="plots are written to files: pass a folder"):
        sensitivity(residual(), X, plots=1, effort="fast")


def test_matplotlib_keeps_its_files_in_our_cache_folder(monkeypatch):
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    check_matplotlib()
    assert Path(os.environ["MPLCONFIGDIR"]).parent == Path(cache_folder())


def test_a_folder_of_the_user_for_matplotlib_stays(monkeypatch):
    monkeypatch.setenv("MPLCONFIGDIR", "chosen")
    check_matplotlib()
    assert os.environ["MPLCONFIGDIR"] == "chosen"
