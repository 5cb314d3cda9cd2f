"""What the texts of a comparison claim is derived again from its numbers, as JSON has them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.analysis.compare.comparison import Comparison
from lingeronnx.analysis.compare.option_trials import MIN_GAIN_DB
from lingeronnx.common.json_values import to_json_value as plain_values
from lingeronnx.runtime.session import Session
from tests.compat.test_two_models import net
from tests.nets import depthwise, plain, residual, samples

DATA = {"x": np.random.default_rng(1).standard_normal((48, 3, 8, 8)).astype(np.float32)}

#: By kind: pattern of the measured number, whether it is below its limit, text of the limit.
NUMBERS = {
    "scale too large": (r"([\d.]+)% of the values", False, "0.5%"),
    "scale too small": (r"([\d.]+)% of the integers", True, "25%"),
    "outlier activation": (r"is ([\d.]+) times", False, "10 times"),
    "outlier channel": (r"reaches ([\d.]+) times", False, "8 times"),
    "output in 8 bits": (r"([-\d.]+) dB", True, "18 dB"),
    "similarity low": (r"([-\d.]+) dB", True, "15 dB"),
}

CASES = {
    "sound": (plain, {}),
    "depthwise": (depthwise, {"effort": "fast", "calibrator": "max"}),
    "residual": (residual, {"platform": "arcs"}),
    "channel": (net, {"platform": "venus", "effort": "fast", "calibrator": "max"}),
    "small": (net, {"platform": "venus", "overrides": {"second": {"scale": 2.0**-1}}}),
    "large": (
        net,
        {"platform": "venus", "effort": "fast", "overrides": {"second": {"scale": 2.0**9}}},
    ),
}


def data_for(compared: Comparison) -> dict[str, np.ndarray]:
    (spec,) = compared.join.base.inputs
    return DATA if spec.shape[1:] == (3, 8, 8) else samples(compared.join.base.graph, 32, seed=2)


@pytest.fixture(scope="module", params=list(CASES))
def compared(request) -> Comparison:
    make, settings = CASES[request.param]
    model = make()
    data = DATA if make is net else samples(model, 32, seed=2)
    return lo.compare(model, lo.quantize(model, data, **settings), data)


def told(comparison: Comparison) -> dict:
    return json.loads(json.dumps(plain_values(comparison.to_dict()), allow_nan=False))


@pytest.mark.sweep
def test_each_finding_breaks_the_limit_that_it_names(compared) -> None:
    for finding in told(compared)["findings"]:
        if finding["kind"] not in NUMBERS or "weights" in finding["measured"]:
            continue
        pattern, below, limit = NUMBERS[finding["kind"]]
        value, bound = (
            float(re.search(pattern, finding["measured"])[1]),
            float(re.match(r"[\d.]+", limit)[0]),
        )
        assert value < bound if below else value > bound, finding
        assert limit in finding["limit"], finding


def test_cut_off_shares_and_ranges_are_those_of_the_data(compared) -> None:
    """The largest value that a finding of a scale names is the float model's, and the integers' end
    lies below it.
    """
    session = Session(compared.join.base.graph)
    rows = {row.name: row for row in compared.rows}
    for finding in compared.findings:
        if finding.kind != "scale too large":
            continue
        low, high, least, most = map(
            float, re.findall(r"-?[\d.]+(?:e[-+]?\d+)?", finding.measured.split(": ")[1])
        )
        (values,) = session.run([finding.layer], data_for(compared))
        window = rows[finding.layer].consumed_range or (-np.inf, np.inf)
        values = np.clip(values, *window)
        assert np.isclose(values.max(), high, rtol=1e-3)
        assert np.isclose(values.min(), low, rtol=1e-3)
        assert high > most or low < least


def test_the_text_has_the_outputs_of_the_numbers(compared) -> None:
    text = compared.format_advice()
    for name, value in compared.outputs.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"output '{name}'")]
        assert float(line.split(":")[-1].split()[0]) == pytest.approx(value, rel=1e-5)


def test_options_are_advised_by_what_they_gave(compared) -> None:
    """Never all together where fewer give more, never what gives less than half a dB, and the
    figures are told.
    """
    said, text = told(compared), compared.format_advice()
    tried, every = (
        said["options_tried"],
        {option for f in said["findings"] for option in f["options"]},
    )
    if not every:
        assert said["options"] == ""
        assert "option" not in text
        return
    assert tried is not None
    assert set(tried["best"]) <= every
    if tried["best"]:
        assert tried["value"] - tried["now"] >= MIN_GAIN_DB
        assert said["options"] in text
        assert tried["value"] > tried["every"] - MIN_GAIN_DB
    else:
        assert f"No option gains {MIN_GAIN_DB:g} dB" in text
        assert tried["every"] - tried["now"] < MIN_GAIN_DB
        assert said["options"] == ""
    assert ("All options together:" in text) == (
        bool(tried["best"]) and set(tried["best"]) == every
    )
    if "All options together:" in text:
        assert tried["value"] == pytest.approx(tried["every"], abs=1e-9)


def test_nothing_out_of_the_ordinary_is_said_of_no_findings_alone(compared) -> None:
    assert ("No issues found." in compared.format_advice()) == (not compared.findings)
