"""Massive activations: the report names the tensors and the options that give them 16 bits, made to
be pasted.
"""

from __future__ import annotations

import re
import shlex

import numpy as np
import onnx
import pytest

import lingeronnx as lo
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
