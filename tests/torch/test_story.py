"""docs/tutorials/image-classifier.md is run, block by block, as a reader would."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

TEXT = (Path(__file__).parents[2] / "docs" / "tutorials" / "image-classifier.md").read_text()


@pytest.mark.slow
def test_the_story(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "story"}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)):
        exec(compile(block, f"docs/tutorials/image-classifier.md, block {number}", "exec"), names)
    assert names["quantized"].report.chip_ready
    assert names["accuracy"].baseline > 95
    assert names["accuracy"].value > names["accuracy"].baseline - 1
    assert names["tuned"].report.integer_macs == 1
    assert names["after"] > names["before"]
    assert min(names["decibels"].values()) > 15
    assert (tmp_path / "digits_venus.onnx").exists()
    print(capsys.readouterr().out)
