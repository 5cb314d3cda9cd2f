"""docs/coming-from*.md: the names, commands and options on these pages exist."""

from __future__ import annotations

import re
from pathlib import Path

import lingeronnx as lo
from lingeronnx import cli
from tests.api.public import torch_names
from tests.each import check_each

DOCS = Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = {
    page.stem: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("coming-from*.md"))
}
TEXT = "\n".join(PAGES.values())
ROWS = [
    line.split(" | ")
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| there")
]


def test_names_of_the_package_exist() -> None:
    names = set(re.findall(r"\blo\.([A-Za-z_]+)", TEXT)) - {"X"}
    assert {"Session", "quantize"} <= names
    assert [name for name in sorted(names) if name not in (*lo.__all__, "compat", "torch")] == []


def test_names_of_other_tools_are_all_told() -> None:
    names = set(re.findall(r"\blo\.compat\.([A-Za-z_]+)", TEXT)) - {"X"}
    assert sorted(names) == lo.compat.__all__


def test_names_of_the_torch_part_exist() -> None:
    names = set(re.findall(r"\blo\.torch\.([A-Za-z_]+)", TEXT))
    assert {"init", "trace_layers", "export"} <= names
    assert sorted(names - set(torch_names())) == []


def test_commands_and_their_options_exist() -> None:
    calls = []
    for _, *right in ROWS:
        calls += re.findall(r"`lingeronnx ([^`]+)`", " ".join(right))

    def check(call: str) -> None:
        name, *words = call.split()
        command = cli.main.commands[name]
        if name == "analyze":
            command = command.commands[words[0]]
        known = {option for parameter in command.params for option in parameter.opts}
        used = set(re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", call))
        assert used <= known

    assert len(calls) > 10
    check_each(check, calls)


def test_onnxruntimes_names_exist() -> None:
    import onnxruntime
    from onnxruntime import quantization
    from onnxruntime.quantization import calibrate, qdq_loss_debug, quant_utils, shape_inference

    homes = (onnxruntime, quantization, qdq_loss_debug, shape_inference, quant_utils, calibrate)
    text = PAGES["coming-from-onnxruntime"]
    left = " ".join(line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `"))
    named = re.findall(r"`([A-Za-z_]+)(?=[(`.])", left)
    assert len(named) > 12
    others = {
        "optimized_model_filepath",
        "session",
        "Entropy",
        "Percentile",
        "calibration_cache_path",
        "op_types_to_quantize",
    }
    missing = [
        name
        for name in named
        if name not in others and not any(hasattr(home, name) for home in homes)
    ]
    assert missing == []
