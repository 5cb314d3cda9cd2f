"""What sensitivity advises is worth it: a least gain, a cap on float work, and 16 bits that are
predicted as such.
"""

from __future__ import annotations

import shlex

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.analysis.stats.pair_measures import PairMeasures
from lingeronnx.quantization.config import parse_override
from tests.compat.test_two_models import net
from tests.nets import Net

X = {"x": np.random.default_rng(1).standard_normal((48, 3, 8, 8)).astype(np.float32)}


def found(**settings) -> lo.Sensitivity:
    return lo.sensitivity(net(), X, effort="fast", **settings)


def test_a_least_gain() -> None:
    """Nothing gives a thousand dB: then what `compare` finds first is told."""
    none = found(platform="venus", min_gain=1000.0)
    assert none.best is None
    assert none.finding
    assert (
        "no layer left in float helps (at least 1000 dB); compare explains the loss: "
        f"{none.finding}" in none.text()
    )


def test_a_cap_on_what_is_left_in_float() -> None:
    """Layers with more than their share of the multiply-accumulates are in no advice; without a cap
    they are.
    """
    free, capped = (found(platform="venus", max_float_macs=share) for share in (1.0, 0.01))
    names = {name for advice in free.advice for name in advice.operators}
    assert {name for advice in capped.advice for name in advice.operators} < names


@pytest.mark.parametrize("platform", ["generic", "venus"])
def test_a_prediction_is_what_quantizing_so_measures(platform) -> None:
    """Within 3 dB, with 16 bits as with layers in float."""
    advised = found(platform=platform).advice[:2][-1]
    if platform == "generic":
        assert all("bits:16" in option for option in advised.options)
    settings = {}
    if platform == "generic":
        selectors = [option.split(" ", 1)[1].strip("'").split("=")[0] for option in advised.options]
        wide = {name: {"bits": 16, "weight_bits": 16} for name in selectors}
        settings = {"overrides": {n: s if n != "x" else {"bits": 16} for n, s in wide.items()}}
    else:
        settings = {"skip": [option.split(" ", 1)[1].strip("'") for option in advised.options]}
    quantized = lo.quantize(net(), X, platform=platform, effort="fast", **settings)
    pair = PairMeasures()
    pair.add(lo.Session(net()).run(None, X)[0], quantized.session().run(None, X)[0])
    assert abs(pair.sqnr - advised.value) < 3


@pytest.mark.parametrize("platform", ["generic", "venus"])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_what_is_rounded_inside_a_recurrent_layer_is_predicted(op_type: str, platform: str) -> None:
    """Everything rounded, and in 16 bits where the platform has these, is what `quantize` then
    gives.
    """
    gates = {"LSTM": 4, "GRU": 3}[op_type]
    made = Net(3, 4, seed=2)
    weights = [
        made.const((made.rng.standard_normal((1, gates * 4, n))).astype(np.float32)) for n in (4, 4)
    ]
    y = made.node(
        op_type, made.node("Transpose", "x", perm=[1, 0, 2]), *weights, hidden_size=4, out="whole"
    )
    graph = made.graph(made.node("Squeeze", y, made.const(np.array([1], np.int64)), out="y"))
    feeds = {"x": np.random.default_rng(0).standard_normal((16, 3, 4)).astype(np.float32)}
    result = lo.sensitivity(graph, feeds, platform=platform, effort="fast")
    assert not any("inside" in note for note in result.notes)
    exact = lo.Session(graph).run(None, feeds)[0]

    def level(**settings) -> float:
        pair = PairMeasures()
        quantized = lo.quantize(graph, feeds, platform=platform, effort="fast", **settings)
        pair.add(exact, quantized.session().run(None, feeds)[0])
        return pair.sqnr

    assert result.quantized == pytest.approx(level(), abs=1e-3)
    if platform == "generic":
        assert result.best is not None
        words = [word for option in result.best.options for word in shlex.split(option)[1:]]
        overrides = dict(map(parse_override, words))
        assert result.best.value == pytest.approx(level(overrides=overrides), abs=3)
