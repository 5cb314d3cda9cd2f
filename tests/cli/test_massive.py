"""Massive activations get 16 bits where the target has them and that helps; with effort fast the report
names the tensors and the options, made to be pasted.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.quantization.trials import Criterion
from lingeronnx.quantization.trials.outlier_bits import OutlierBits
from tests.cli.helpers import CommandFolder
from tests.nets import Net

_TOKENS, _WIDTH, _HUGE = 8, 32, 400.0


def _block(huge: float) -> onnx.ModelProto:
    """Return two residual blocks with layer norms, in which one channel of one token carries
    `huge`.
    """
    net = Net(_TOKENS, _WIDTH, seed=3, opset=17)
    sink = np.zeros((1, _TOKENS, _WIDTH), np.float32)
    sink[0, 0, 5] = huge
    gamma = np.ones(_WIDTH, np.float32)
    gamma[5] = 0.1  # trained networks shrink the channel where it is read
    x = net.node("Add", "x", net.const(sink), out="stream0")
    for number in (1, 2):
        n = net.node(
            "LayerNormalization",
            x,
            net.const(gamma),
            net.const(np.zeros(_WIDTH, np.float32)),
            axis=-1,
        )
        up = net.node("MatMul", n, net.const(_weight(net, _WIDTH, 64)))
        down = net.node("MatMul", net.node("Relu", up), net.const(_weight(net, 64, _WIDTH)))
        x = net.node("Add", x, down, out=f"stream{number}")
    n = net.node(
        "LayerNormalization", x, net.const(gamma), net.const(np.zeros(_WIDTH, np.float32)), axis=-1
    )
    return net.proto(net.node("MatMul", n, net.const(_weight(net, _WIDTH, 8)), out="y"))


def _weight(net: Net, rows: int, columns: int) -> np.ndarray:
    return (net.rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)


def _data() -> np.ndarray:
    return np.random.default_rng(4).standard_normal((16, _TOKENS, _WIDTH)).astype(np.float32)


@pytest.fixture
def folder(here: CommandFolder) -> CommandFolder:
    onnx.save(_block(_HUGE), here.folder / "huge.onnx")
    np.savez(here.folder / "tokens.npz", x=_data())
    return here


def test_pasting_what_the_report_says_gives_the_others_back(folder: CommandFolder) -> None:
    call = (
        "quantize",
        "huge.onnx",
        "--calib",
        "tokens.npz",
        "--platform",
        "generic",
        "--effort",
        "fast",
    )
    first = folder.json(*call)
    assert first["outputs"]["y"]["sqnr"] < 15
    assert first["next"][0]["options"] == ["--effort normal"]
    (step,) = [step for step in first["next"] if "bits:16" in step["options"][0]]
    assert re.search(
        r"'stream\d' reaches 4\d\d, but 99 % of its values are below \d", step["gives"]
    )
    again = folder.json(
        *call, *(word for option in step["options"] for word in shlex.split(option))
    )
    assert again["outputs"]["y"]["sqnr"] > max(20, first["outputs"]["y"]["sqnr"] + 10)
    assert again["integer_macs"] == first["integer_macs"] == 1
    assert again["next"] == []


@pytest.mark.parametrize(("platform", "huge"), [("generic", 0.0), ("venus", _HUGE)])
def test_nothing_is_named_without_such_values_or_such_a_width(platform: str, huge: float) -> None:
    model = lo.ir.ir.from_proto(_block(huge))
    report = lo.quantize(model, {"x": _data()}, platform=platform, effort="fast").report
    assert not any("bits:16" in option for step in report.next for option in step.options)


def test_another_effort_is_no_advice_without_data_or_where_nothing_is_lost() -> None:
    model = lo.ir.ir.from_proto(_block(_HUGE))
    synthetic = lo.quantize(model, platform="generic", effort="fast").report
    near = lo.quantize(lo.ir.ir.from_proto(_block(0.0)), {"x": _data()}, effort="fast").report
    for report in (synthetic, near):
        assert not any("--effort" in option for step in report.next for option in step.options)


def _is_note_on_outliers(note: str) -> bool:
    return note.startswith("using 16 bits for ranges determined by outliers: 'stream")


def test_with_normal_effort_they_get_16_bits_by_measurement() -> None:
    result = lo.quantize(lo.ir.ir.from_proto(_block(_HUGE)), {"x": _data()}, platform="generic")
    assert any(_is_note_on_outliers(note) for note in result.report.notes)
    assert result.report.outputs["y"]["sqnr"] > 20
    assert {result.plan.tensors[name].bits for name in ("stream0", "stream1", "stream2")} == {16}
    assert not any("--effort" in option for step in result.report.next for option in step.options)
    assert not any("bits:16" in option for step in result.report.next for option in step.options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"platform": "venus"}, {"overrides": {"stream0": {"calibrator": "max"}}}]
)
def test_other_targets_and_own_settings_stay(settings: dict[str, Any]) -> None:
    model, settings = lo.ir.ir.from_proto(_block(_HUGE)), {"platform": "generic", **settings}
    result = lo.quantize(model, {"x": _data()}, **settings)
    assert not any(_is_note_on_outliers(note) for note in result.report.notes)
    assert {qparams.bits for qparams in result.plan.tensors.values()} <= {8, 32}


@pytest.mark.slow
def test_what_is_not_clearly_better_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutlierBits, "criterion", Criterion(mean_db=1000.0))
    result = lo.quantize(lo.ir.ir.from_proto(_block(_HUGE)), {"x": _data()}, platform="generic")
    assert not any(_is_note_on_outliers(note) for note in result.report.notes)
    assert not any("bits:16" in option for step in result.report.next for option in step.options)
