"""The examples run to their end with a few steps, as notebooks, which are the scripts cut into cells."""

import json
import os
import re
import sys

import pytest

from docs.pages.notebooks import EXAMPLES, cells, notebooks

pytest.importorskip("torch")

#: What each example prints last, and the file that it leaves.
SAID = {"keyword_spotter": (r"^pack it with tpacker .*$", "spotter_quant.onnx")}


def test_a_script_is_cut_into_cells():
    assert cells("x\n# %% [markdown]\n# # A\n#\n#     b\n\n# %%\nc = 1\n") == [
        ("markdown", "# A\n\n    b"),
        ("code", "c = 1"),
    ]


def test_notebooks_are_the_scripts():
    """`make docs-pages` writes them."""
    for path, text in notebooks().items():
        assert path.read_text(encoding="utf-8") == text
        assert json.loads(text)["nbformat"] == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch's own, of its exporter
@pytest.mark.parametrize("name", SAID)
def test_an_example_runs(name, tmp_path, monkeypatch, capsys):
    """Its notebook, cell by cell, in a few steps."""
    monkeypatch.setenv("LINGERONNX_SHORT", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    shown = json.loads((EXAMPLES / f"{name}.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in shown if cell["cell_type"] == "code"]
    names = {"__name__": "__main__"}
    for block in code:
        exec(compile(block, name, "exec"), names)
    sys.modules.pop("synthetic", None)
    said, file = SAID[name]
    assert re.search(said, capsys.readouterr().out, re.MULTILINE)
    assert (tmp_path / "build" / "examples" / file).stat().st_size > 1000
    assert os.listdir(tmp_path) == ["build"]
