"""Measured values in words: the same on the page and in the terminal, and never "inf dB"."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import lingeronnx as lo
from lingeronnx.api.report_page import report
from lingeronnx.common.text import difference_unit, format_decibels, format_value
from tests.nets import plain, samples


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (math.inf, "dB", "infinite (equal)"),
        (-math.inf, "dB", "-infinite"),
        (math.nan, "dB", "not finite"),
        (31.456, "dB", "31.46 dB"),
        (97.5, "%", "97.50 %"),
        (0.123456789, "", "0.123457"),
    ],
)
def test_a_value_in_words(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


def test_a_difference_of_percents_is_in_points() -> None:
    assert difference_unit("%") == "points"
    assert difference_unit("dB") == "dB"


def test_the_page_words_an_exact_output_as_the_terminal_does(tmp_path) -> None:
    model = plain()
    data = samples(model, 8, seed=1)
    made = lo.quantize(model, data)
    (name,) = made.report.outputs
    seen = {name: {"sqnr": math.inf, "cosine": 1.0}}
    made = made.with_report(replace(made.report, outputs=seen))
    assert format_decibels(math.inf) in made.report.fidelity_text(name)
    report(model, made, data, tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert made.report.fidelity_text(name) in text
    assert "inf dB" not in text
