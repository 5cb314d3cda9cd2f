"""Each chart in a browser: what it draws of given data, at two widths, and that its file is SVG."""

import pytest

from lingeronnx.common.pages import PageSection, components, render_page
from tests.pages.browser import needs_browser, run_in_browser

_LAYERS = [f"layer{index}" for index in range(5)]
_DEPTH = {"title": "t", "layers": _LAYERS, "tips": _LAYERS, "selected": 1}
_CHARTS = {
    "bars": (
        "drawBars",
        {
            "title": "t",
            "unit": "cycles",
            "parts": ["computing", "waits", "copies"],
            "rows": [
                {"name": name, "values": [index, 2, 0], "tensor": name}
                for index, name in enumerate(_LAYERS)
            ],
        },
        {"rect.fa": 4 + 1, "rect.fb": 5 + 1, "rect.fc": 0, "[role=button]": 5},
    ),
    "depth": (
        "drawDepth",
        {
            **_DEPTH,
            "unit": "dB",
            "lines": [
                {"name": "one", "values": [30, "inf", None, 20, 10]},
                {"name": "two", "values": [1, 2, 3, 4, 5]},
            ],
            "marks": [3],
            "most": 60,
        },
        {"path.la": 1, "path.lb": 1, ".dot": 1, ".grid": 5},
    ),
    "ranges": (
        "drawRanges",
        {
            **_DEPTH,
            "models": [
                {"name": "a", "values": [[-1, 1]] * 5},
                {"name": "b", "values": [[-1, 2]] * 4 + [["nan", "nan"]]},
            ],
        },
        {"rect.fa": 5 + 1, "rect.fb": 4 + 1},
    ),
    "memory": (
        "drawMemory",
        {
            "layers": _LAYERS,
            "buffers": [
                {"name": "a", "kind": "tensor", "offset": 0, "bytes": 64, "first": 0, "last": 1},
                {"name": "b", "kind": "area", "offset": 64, "bytes": 64, "first": 1, "last": 4},
            ],
        },
        {".buffer": 2, "rect.peak": 1 + 1},
    ),
    "timeline": (
        "drawTimeline",
        {
            "lanes": ["NPU", "DMA", "host"],
            "parts": [
                {"name": "host1", "chip": False, "start": 0, "length": 0, "detail": ""},
                {"name": "chip1", "chip": True, "start": 0, "length": 90, "detail": ""},
                {"name": "host2", "chip": False, "start": 90, "length": 0, "detail": ""},
            ],
            "slices": [
                {"lane": 0, "name": "a", "kind": "compute", "start": 0, "length": 60},
                {"lane": 0, "name": "starts", "kind": "start", "start": 0, "length": 20},
                {"lane": 1, "name": "constants of a", "kind": "fetch", "start": 0, "length": 30},
            ],
            "total": 90,
            "clock_mhz": None,
        },
        {".slice": 3, "circle.host": 2, "rect.chip": 1 + 1},
    ),
    "samples": (
        "drawSampleRanges",
        {"name": "x", "by_sample": [[-1, 1], [-2, 2], ["nan", "nan"]], "low": -2, "high": 1.5},
        {"rect.fa": 2, ".limit": 2},
    ),
    "heatmap": (
        "drawHeatMap",
        {
            "rows": 2,
            "columns": 3,
            "cells": "00ff10" * 2,
            "outputs": 2,
            "inputs": 3,
            "outliers": [{"channel": 1, "ratio": 9}],
        },
        {"rect": 6},
    ),
}
_SCRIPT = """
const host = document.getElementById("host");
addEventListener("load", () => charts.%s(host, charts.readData("one")));
"""
_LOOK = """
  const host = document.getElementById("host"), svg = host.querySelector("svg"), counts = {};
  for (const selector of %s) counts[selector] = svg.querySelectorAll(selector).length;
  const file = new DOMParser().parseFromString(charts.serializeChart(svg), "image/svg+xml");
  const outside = [...svg.querySelectorAll("text")].filter(text => { const box = text.getBoundingClientRect(), frame = svg.getBoundingClientRect();
    return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 2); }).map(text => text.textContent);
  return {counts, isFile: !file.querySelector("parsererror"), buttons: document.querySelectorAll(".save").length, outside};
"""


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("name", _CHARTS)
def test_a_chart_draws_its_data_and_can_be_saved(name, tmp_path):
    """No text is cut off; the saved file is XML."""
    function, data, expected = _CHARTS[name]
    section = PageSection(
        "one",
        "One",
        components.chart_host("host", name),
        data,
        script=_SCRIPT % function,
        charts=(name,),
    )
    page = render_page("a", "b", [section])
    for width in (500, 1280):
        seen = run_in_browser(page, _LOOK % list(expected), tmp_path, width=width)
        assert seen == {"counts": expected, "isFile": True, "buttons": 2, "outside": []}


@pytest.mark.slow
@needs_browser
def test_keys_choose_a_layer_and_zoom_a_timeline(tmp_path):
    """The right arrow goes to the next layer; plus doubles what a slice takes."""
    depth = _CHARTS["depth"][1]
    timeline = _CHARTS["timeline"][1]
    script = """
      addEventListener("load", () => {
        const chart = charts.readData("one"), choose = index => { chart.selected = index; draw(); };
        const draw = () => charts.drawDepth(document.getElementById("host"), {...chart, onSelect: choose});
        draw();
        charts.drawTimeline(document.getElementById("other"), charts.readData("two"));
        window.chart = chart;
      });
    """
    sections = [
        PageSection(
            "one",
            "One",
            components.chart_host("host", "h"),
            depth,
            script=script,
            charts=("depth",),
        ),
        PageSection(
            "two", "Two", components.chart_host("other", "o"), timeline, charts=("timeline",)
        ),
    ]
    look = """
      const press = (id, key) => document.querySelector(`#${id} svg`).dispatchEvent(new KeyboardEvent("keydown", {key}));
      const wide = () => document.querySelector("#other .slice").getBoundingClientRect().width;
      press("host", "ArrowRight"); press("host", "ArrowRight");
      const before = wide(); press("other", "+"); press("other", "ArrowLeft"); press("other", "ArrowLeft");
      const zoomed = wide(); press("other", "0");
      return {selected: chart.selected, ratio: zoomed / before, again: wide() / before};
    """
    seen = run_in_browser(render_page("a", "b", sections), look, tmp_path)
    assert seen["selected"] == 3
    assert seen["ratio"] == pytest.approx(1.5, abs=0.05)  # 45 of 60 cycles are in the window
    assert seen["again"] == pytest.approx(1)
