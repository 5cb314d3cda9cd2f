"""`lingeronnx demo`: writes the graph that it measured."""

from __future__ import annotations

import json
import re

import lingeronnx as lo
from tests.cli.helpers import TEST, CommandFolder, plain


def test_what_it_writes_is_what_it_measured(here: CommandFolder) -> None:
    """With --json the text is on stderr, so that one run shows both."""
    result = here("demo", "--json")
    assert result.exit_code == 0, result.output
    body, text = json.loads(result.stdout), plain(result.stderr)
    assert "  float accuracy    99.20 % of 500 held-out digits\n" in text
    assert re.search(r"^  integer accuracy  9[89]\.\d\d % of 500 held-out digits$", text, re.M)
    assert "  chip-ready        yes\n" in text
    assert max(len(line) for line in text.splitlines() if "--input" not in line) <= 100
    assert re.findall(r"\d", text.split("\n\n")[1].splitlines()[-1]) == [
        "2",
        "0",
        "3",
        "8",
        "4",
        "1",
    ]
    assert "build/digits_cnn_quant.onnx" in here.files()
    assert body["output"] == "build/digits_cnn_quant.onnx"
    assert body["accuracy"]["samples"] == 500
    measured = lo.evaluate(here.folder / body["output"], str(TEST), metric="top1")
    assert body["chip_ready"]
    assert measured.value > 0.98
