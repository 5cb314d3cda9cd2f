"""What only explains survives every number: infinities, nan, and the lowest float32, which masks
are made of.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx.analysis.compare.layer_examiner import (
    _channel_offsets,
    _detect_swapped_channels,
    _sqnr_db,
)
from lingeronnx.analysis.stats.channels import ChannelSums
from lingeronnx.analysis.stats.pair_measures import PairMeasures
from lingeronnx.analysis.stats.stored_form import StoredForm
from lingeronnx.common.arithmetic import ratio_db
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine
from lingeronnx.quantization.report.fidelity import describe_break
from lingeronnx.runtime.metrics import Agreement
from tests.case_selection import limit_examples
from tests.nets import Net

LOWEST = float(np.finfo(np.float32).min)
ANY = st.floats() | st.sampled_from([0.0, math.inf, -math.inf, math.nan, LOWEST, 5e-324, 1.7e308])


@limit_examples(200)
@given(ANY.map(abs), ANY.map(abs))
def test_a_level_is_a_number_or_nan_never_an_error(signal, noise):
    level = ratio_db(signal, noise)
    assert math.isnan(level) == (not (math.isfinite(signal) and math.isfinite(noise)))
    if level == math.inf:
        assert noise == 0
    if 1e-100 < signal < 1e100 and 1e-100 < noise < 1e100:
        assert level == pytest.approx(10 * math.log10(signal / noise))


@limit_examples(100)
@given(st.lists(st.tuples(ANY, ANY), min_size=4, max_size=40))
def test_every_measure_is_there_for_any_two_streams(pairs):
    x, y = (
        np.array(side, np.float64)[: len(pairs) // 4 * 4].reshape(-1, 4)
        for side in zip(*pairs, strict=True)
    )
    with np.errstate(all="ignore"):
        x, y = x.astype(np.float32), y.astype(np.float32)
    agreement = Agreement()
    agreement.add(x, y)
    assert isinstance(agreement.sqnr, float)
    assert isinstance(agreement.cosine, float)
    measured, channels = PairMeasures(), ChannelSums()
    measured.add(x, y, StoredForm(Affine(4.0)))
    channels.add(x, y)
    assert set(measured.to_dict()) >= {"SQNR", "KL", "Cosine"}
    assert channels.sqnr_db().shape[0] <= 4
    sound = (np.where(np.isfinite(a), a, 0.0).astype(np.float64) for a in (x, y))
    a, b = tuple(sound)
    assert _sqnr_db(a, b) <= 200
    for explain in (_detect_swapped_channels, _channel_offsets):
        explain(a, b)


def test_what_is_not_finite_in_the_reference_is_left_out_and_in_the_other_alone_is_told():
    agreement = Agreement()
    agreement.add(np.float32([1, -np.inf, 2, np.nan]), np.float32([1, 5, 2, 7]))
    assert (agreement.sqnr, agreement.cosine) == (math.inf, pytest.approx(1))
    agreement.add(np.float32([1, 2]), np.float32([1, np.inf]))
    assert math.isnan(agreement.sqnr)


def masked() -> onnx.ModelProto:
    """Return attention over 6 steps whose mask is 0 or the lowest float32, as Hugging Face writes
    it.
    """
    net = Net(6, 8, seed=3)
    net.inputs.append(onnx.helper.make_tensor_value_info("mask", 1, ["N", 1, 6]))
    hidden = net.node(
        "Mul",
        net.node("Sub", net.const(np.float32(1)), "mask"),
        net.const(np.float32(LOWEST)),
        out="m",
    )
    query = net.node("MatMul", "x", net.const(net.rng.standard_normal((8, 8)).astype(np.float32)))
    scores = net.node("MatMul", query, net.node("Transpose", "x", perm=[0, 2, 1]), out="scores")
    weights = net.node("Softmax", net.node("Add", scores, hidden, out="sum"), axis=-1)
    return net.proto(net.node("MatMul", weights, "x", out="y"))


@pytest.mark.parametrize("platform", ["generic", "venus"])
def test_a_mask_of_the_lowest_number(platform, tmp_path):
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((32, 6, 8)).astype(np.float32)}
    data["mask"] = (rng.random((32, 1, 6)) < 0.8).astype(np.float32)
    data["mask"][:, :, 0] = 1
    onnx.save(masked(), tmp_path / "m.onnx")
    quantized = lo.quantize(tmp_path / "m.onnx", data, platform=platform, effort="fast")
    assert math.isfinite(quantized.report.outputs["y"]["sqnr"])
    assert math.isfinite(quantized.layers["y"])
    comparison = lo.compare(tmp_path / "m.onnx", quantized, data, tmp_path / "out")
    assert not [f for f in comparison.findings if "inf" in f.measured or "nan" in f.measured]


def test_words_on_where_it_breaks_come_from_any_levels(monkeypatch):
    """Levels of nan and of both infinities, and an explanation that fails itself."""
    net = Net(4)
    a = net.linear("x", (4, 4), out="a")
    net.linear(a, (4, 3), out="y")
    exact = net.graph("y")

    class Data:
        data = type("D", (), {"first": staticmethod(lambda few: {})})
        comparison_batch_size, calls = 1, None

    for level, said in ((math.nan, "not finite"), (-math.inf, "-60.0 dB"), (3.0, "3.0 dB")):
        monkeypatch.setattr(
            "lingeronnx.quantization.report.fidelity.measure_tensor_sqnr",
            lambda *_, value=level: {"a": value, "y": value},
        )
        text = describe_break(Data, exact, exact, None, "y")
        assert f"'a': {said}" in text
    monkeypatch.setattr(
        "lingeronnx.quantization.report.fidelity.measure_tensor_sqnr", lambda *_: 1 / 0
    )
    text = describe_break(Data, exact, exact, None, "y")
    assert text == "; the break could not be located (ZeroDivisionError)"
    assert ir.get_tensor_names(exact)
