"""The examples run to their end with a few steps, as notebooks, which are the scripts cut into
cells.
"""

import json
import os
import re
import shutil
import sys
from importlib.util import find_spec

import pytest

from docs.pages.notebooks import EXAMPLES, cells, notebooks

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")

#: The integer graph that each example leaves.
LEFT = {
    "keyword_spotter": "spotter_quant.onnx",
    "face_detector": "detector_quant.onnx",
    "denoiser": "denoiser_quant.onnx",
    "crnn": "crnn_quant.onnx",
}


def test_a_script_is_cut_into_cells():
    assert cells("x\n# %% [markdown]\n# # A\n#\n#     b\n\n# %%\nc = 1\n") == [
        ("markdown", "# A\n\n    b"),
        ("code", "c = 1"),
    ]


def test_notebooks_are_the_scripts():
    """`make docs-reference` writes them."""
    for path, text in notebooks().items():
        assert path.read_text(encoding="utf-8") == text
        assert json.loads(text)["nbformat"] == 4


def test_the_tutorial_shows_the_script():
    """Each Python block of the page stands in the script."""
    page = (EXAMPLES.parent / "docs" / "tutorials" / "keyword-spotter.md").read_text("utf-8")
    script = (EXAMPLES / "keyword_spotter.py").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 4
    assert [block for block in blocks if block not in script] == []


def code_of(name):
    """Return the code cells of an example: of its notebook, where it has one."""
    notebook = EXAMPLES / f"{name}.ipynb"
    if not notebook.exists():
        return [
            text
            for kind, text in cells((EXAMPLES / f"{name}.py").read_text("utf-8"))
            if kind == "code"
        ]
    shown = json.loads(notebook.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in shown if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch's own, of its exporter
@pytest.mark.parametrize("name", LEFT)
def test_an_example_runs(name, tmp_path, monkeypatch, capsys):
    """Its notebook or script, cell by cell, in a few steps: the C program is proved, or the reason
    told.
    """
    monkeypatch.setenv("LINGERONNX_SHORT", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    names = {"__name__": "__main__"}
    for block in code_of(name):
        exec(compile(block, name, "exec"), names)
    for module in ("synthetic", "drawn"):
        sys.modules.pop(module, None)
    said = capsys.readouterr().out
    assert re.search(r"^pack it with tpacker .*$", said, re.MULTILINE)
    assert re.search(r"chip-ready True", said)
    proved = r"^tried on a PC, \d+ calls: chip parts and conversions are bit-equal"
    assert re.search(proved, said, re.MULTILINE) or not shutil.which("cc")
    assert (tmp_path / "build" / "examples" / LEFT[name]).stat().st_size > 1000
    assert os.listdir(tmp_path) == ["build"]


def test_each_script_is_tested_and_has_a_target():
    """What imports the package and is cut into cells is an example."""
    scripts = {path.stem for path in EXAMPLES.glob("*.py") if "# %%" in path.read_text("utf-8")}
    assert scripts == set(LEFT)
    (made,) = re.findall(
        r"^examples: (.*?) ##", (EXAMPLES.parent / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    assert set(made.split()) == {f"example-{name.replace('_', '-')}" for name in scripts}
