"""`lingeronnx demo`: writes the graph that it measured."""

from __future__ import annotations

import lingeronnx as lo
from tests.cli.helpers import TEST, Here


def test_what_it_writes_is_what_it_measured(here: Here) -> None:
    body = here.json("demo")
    assert body["output"] == "build/digits_cnn_quant.onnx"
    assert body["accuracy"]["samples"] == 500
    measured = lo.evaluate(here.folder / body["output"], str(TEST), metric="top1")
    assert body["chip_ready"]
    assert measured.value > 0.98
