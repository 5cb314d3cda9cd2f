"""Outputs that join parts of different range: each part is measured by itself, and the join goes to
the host.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.quantization.report.output_parts import PartAgreement, find_part_boundaries
from tests.passes.helpers import graph, rand

_HEADS = (
    "a = MatMul(x, w) c = Relu(a) d = MatMul(c, u) b = Mul(d, big) e = MatMul(c, v) s = Sigmoid(e)"
)
_WEIGHTS = {
    "w": rand(6, 16),
    "u": rand(16, 4),
    "v": rand(16, 3, seed=1) / 2,
    "big": np.float32(12),
    "back": np.array([0, 0, 0, 3]),
    "front": np.array([0, 4, 0, 0]),
    "none": np.zeros((1, 7), np.float32),
    "late": np.array([[[0, i] for i in range(4, 7)]]),
    "three": rand(1, 3),
    "one": np.array([1]),
    "half": np.array([2, 2]),
    "rows": np.array([0, 2, 2]),
    "dense": rand(7, 7),
    "five": np.array([5, 2]),
}

#: How boxes b [N,4] and scores s [N,3] become y, its shape, and the places where its parts end
_JOINS = {
    "a Concat": ("y = Concat<axis=1>(b, s)", "N,7", {1: [4]}),
    "three parts, one of them joined": (
        "j = Concat<axis=1>(b, s) y = Concat<axis=1>(j, e)",
        "N,10",
        {1: [4, 7]},
    ),
    "a Concat that is moved": (
        (
            "j = Concat<axis=-1>(b, s) k = Unsqueeze(j, one) t = Transpose<perm=[0, 2, 1]>(k) y = "
            "Identity(t)"
        ),
        "N,7,1",
        {1: [4]},
    ),
    "a Concat behind which all are changed alike": (
        "j = Concat<axis=1>(b, s) y = Relu(j)",
        "N,7",
        {1: [4]},
    ),
    "a sum of padded tensors": (
        "p = Pad(b, back) q = Pad(s, front) y = Add(p, q)",
        "N,7",
        {1: [4]},
    ),
    "a stack": (
        (
            "i, j = Split<axis=1>(b, half) p = Unsqueeze(i, one) q = Unsqueeze(j, one) y = "
            "Concat<axis=1>(p, q)"
        ),
        "N,2,2",
        {1: [1]},
    ),
    "parts of several axes": (
        (
            "r = Reshape(b, rows) i, j = Split<axis=2, num_outputs=2>(r) t = Concat<axis=1>(i, j) y = "
            "Concat<axis=2>(t, t)"
        ),
        "N,4,2",
        {1: [2], 2: [1]},
    ),
    "parts that are written over": (
        "p = Pad(b, back) y = ScatterND(p, late, three)",
        "1,7",
        {1: [4]},
    ),
    "a part of a Concat": (
        (
            "j = Concat<axis=1>(b, s) i, z = Split<axis=1>(j, five) k = Unsqueeze(i, one) y = "
            "Concat<axis=1>(k, k)"
        ),
        "N,2,5",
        {1: [1]},
    ),
    "a layer": ("j = Concat<axis=1>(b, s) y = MatMul(j, dense)", "N,7", {}),
    "no join": ("y = Relu(b)", "N,4", {}),
}


def _model(text: str, shape: str) -> ir.Model:
    used = set(re.findall(r"\w+", f"{_HEADS} {text}"))
    held = {name: array for name, array in _WEIGHTS.items() if name in used}
    opset = 18 if "num_outputs" in text else 13
    return graph(
        f"g (float[{shape[0]},6] x) => (float[{shape}] y) {{ {_HEADS} {text} }}",
        opset=opset,
        **held,
    )


@pytest.mark.parametrize("name", _JOINS)
def test_where_parts_end(name: str) -> None:
    text, shape, ends = _JOINS[name]
    model = _model(text, shape)
    ir.ShapeInferencePass()(model)
    assert find_part_boundaries(model) == ({"y": ends} if ends else {})


def test_a_part_is_measured_as_a_whole_output_would_be() -> None:
    want = np.concatenate(
        [rand(5, 4) * 100, rand(5, 3, seed=1), np.zeros((5, 2), np.float32)], axis=1
    )
    have = want + np.float32(0.1)
    seen = PartAgreement("y", {1: [4, 7]})
    for rows in (slice(0, 2), slice(2, 5)):
        seen.add(want[rows], have[rows])
    boxes, scores = seen.parts  # what is zero in the float model has no level
    assert (boxes.first, boxes.last, scores.first, scores.last) == (0, 3, 4, 6)
    assert scores.sqnr == pytest.approx(
        10 * math.log10(np.square(want[:, 4:7]).sum() / (15 * 0.01)), abs=1e-3
    )
    assert boxes.sqnr > scores.sqnr + 30
    assert str(scores) == "elements 4 to 6 of axis 1"


@pytest.mark.parametrize("platform", ["generic", "venus"])
@pytest.mark.parametrize("name", ["a Concat", "a Concat that is moved", "a sum of padded tensors"])
def test_scores_beside_boxes_survive(name: str, platform: str) -> None:
    model, x = _model(*_JOINS[name][:2]), {"x": rand(96, 6, seed=3)}
    report = lo.quantize(model, x, platform=platform).report
    assert min(part.sqnr for part in report.parts) > 30
    assert report.warnings == []
    assert {"u", "v"}.isdisjoint(node.node for node in report.host_part)
    assert report.integer_macs == 1
    if platform == "venus":
        assert report.chip_ready


def test_a_part_that_is_lost_is_said_and_what_would_be_tried() -> None:
    model, x = _model(*_JOINS["a Concat"][:2]), rand(96, 6, seed=3)
    report = lo.quantize(model, x, platform="generic", effort="fast").report
    assert report.outputs["y"]["sqnr"] > 30  # of the boxes
    (line,) = report.warnings
    assert re.search(
        r"output 'y', elements 4 to 6 of axis 1: .* dB from the float model, which the overall .* do not show",
        line,
    )
    assert any("effort is fast" in note and "--effort normal" in note for note in report.notes)
