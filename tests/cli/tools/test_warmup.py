"""`lingeronnx warmup`: kernels are compiled, and it says where they are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import lingeronnx as lo
from lingeronnx.cli.support.warmup import make_random_model
from tests.cli.helpers import CommandFolder


def test_it_says_where_the_kernels_are(here: CommandFolder) -> None:
    body = here.json("warmup")
    assert body["seconds"] > 0
    assert any(Path(body["cache"]).iterdir())


def test_sums_pools_and_products_of_its_model_are_integer() -> None:
    samples = np.random.default_rng(0).standard_normal((16, 4, 8, 8)).astype(np.float32)
    report = lo.quantize(make_random_model(), samples, effort="fast").report
    assert report.integer_macs == 1.0
    assert {"Conv2dInt", "LinearInt", "AvgPool2dInt"} <= report.layers.keys()
