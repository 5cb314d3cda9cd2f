"""A ranking as a value: which advice is enough, and what the two files hold."""

from __future__ import annotations

import json
import math

from lingeronnx.analysis.sensitivity.ranking import RankedTrial, Sensitivity, SkipAdvice


def ranking(by="SQNR", quantized=20.0, values=(25.0, 29.0, 30.0), **more):
    advice = [SkipAdvice(("a",) * n, ("--skip x",) * n, value) for n, value in enumerate(values, 1)]
    rows = [
        RankedTrial("conv", "both", "Conv", (0.5, math.inf)),
        RankedTrial("fc", "weight", "Gemm", (0.25, 1.0)),
    ]
    return Sensitivity(
        ranking=rows,
        metrics=("L1", "SQNR"),
        advised_by=by,
        exact=math.inf,
        quantized=quantized,
        advice=advice,
        samples=8,
        macs=10,
        whole=100,
        for_chip=True,
        **more,
    )


def test_the_shortest_advice_that_gives_most():
    best = ranking().best
    assert best is not None
    assert best.value == 29.0  # 9 of the 10 dB that the longest gives back


def test_no_advice_where_nothing_is_given_back():
    assert ranking(quantized=40.0).best is None
    told = ranking(quantized=40.0, finding="outlier channel: conv").text()
    assert told.endswith(
        "no layer left in float helps; compare explains the loss: outlier channel: conv"
    )


def test_nothing_is_advised_where_nothing_is_lost():
    """Of infinite values, too: their difference is no number."""
    ranked = ranking(quantized=math.inf, values=(math.inf,), finding="scale too large: conv")
    assert ranked.gain(ranked.advice[0]) == 0
    assert ranked.best is None
    assert ranked.text().endswith("no accuracy is lost; nothing to skip")


def test_a_gain_that_is_not_worth_its_options():
    """Least gain: below it nothing is advised, at it the shortest that has it."""
    assert ranking(min_gain=11.0).best is None
    assert (
        "no layer left in float helps (at least 11 dB); compare explains the loss: no issues found"
        in ranking(min_gain=11.0).text()
    )
    assert ranking(min_gain=10.0).best.value == 30.0


def test_a_metric_that_falls_is_gained_downwards():
    ranked = ranking(by="MSE", quantized=4.0, values=(3.0, 1.0))
    assert [ranked.gain(advice) for advice in ranked.advice] == [1.0, 3.0]


def test_files(tmp_path):
    ranking().write(tmp_path)
    rows = json.loads((tmp_path / "sensitive_ops.json").read_text())
    assert rows == [["conv", "both", "Conv", 0.5, None], ["fc", "weight", "Gemm", 0.25, 1.0]]
    text = (tmp_path / "sensitive_ops.txt").read_text()
    assert text == ranking().text() + "\n"
    assert "no longer runs entirely on the chip" in text


def test_a_short_text_says_how_many_are_left_out():
    lines = ranking().text(1).splitlines()
    assert lines[1].split() == ["conv", "both", "Conv", "0.5", "inf"]
    assert lines[2] == "(1 more, see sensitive_ops.txt)"


def test_widths_of_weights_have_a_column_where_one_is_not_8():
    """Of the table for readers only: the rows of the JSON keep their places."""
    same, mixed = ranking(weight_bits={"conv": 8}), ranking(weight_bits={"conv": 4})
    assert same.text() == ranking().text()
    assert [line.split()[-1] for line in mixed.text().splitlines()[:3]] == ["weight_bits", "4", "-"]
    assert mixed.to_list() == same.to_list()
