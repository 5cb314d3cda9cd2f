"""README.md: its length, its commands and what they print, its figures, and that CI runs them."""

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from lingeronnx.cli import main
from lingeronnx.cli.demo_model import __file__ as demo
from tests.each import check_each

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_WORDS = 700


def squeeze(text):
    return " ".join(text.split())


def copy_demo(folder):
    """Copy the demo's model and data under README's names."""
    files = {"model.onnx": "digits_cnn.onnx", "calib.npz": "digits_calib.npz"}
    for name, source in (files | {"test.npz": "digits_test.npz"}).items():
        shutil.copy(Path(demo).parent / source, folder / name)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to a folder that has the demo's model and data under README's names."""
    copy_demo(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def run(line):
    result = CliRunner().invoke(main, line.split()[1:])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_it_is_short():
    for name in ("README.md", "README.zh.md"):
        assert len((ROOT / name).read_text(encoding="utf-8").split()) <= MAX_WORDS


def test_the_command_prints_what_the_page_shows(folder):
    command, shown = re.search(
        r"## One command\n\n    (lingeronnx .*)\n\n.*\n\n((?:    .*\n|\n)+)", TEXT
    ).groups()
    printed = squeeze(run(command))
    lines = [squeeze(line) for line in shown.splitlines() if line.strip()]
    assert len(lines) > 8
    assert [line for line in lines if line not in printed] == []


TASKS = re.findall(r"^\| [a-z ]+ \| `(lingeronnx .*)` \|$", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def integer_model(tmp_path_factory):
    """Write the integer model of the first task, once."""
    folder = tmp_path_factory.mktemp("quantized")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        copy_demo(folder)
        run(TASKS[0])
    return folder / "model_quant.onnx"


def test_the_three_tasks_have_a_command_each(integer_model):
    assert [line.split()[1] for line in TASKS] == ["quantize", "compare", "deploy"]
    assert integer_model.is_file()


@pytest.mark.parametrize("task, written", [(1, "compared/profiler.html"), (2, "board/pack.sh")])
def test_tasks_with_the_integer_model_run(task, written, integer_model, folder):
    shutil.copy(integer_model, folder)
    run(TASKS[task])
    assert (folder / written).is_file()


def test_other_commands_run(folder):
    lines = re.findall(r"`(lingeronnx check .*?)`", TEXT)
    assert lines
    for line in lines:
        run(line)


def test_the_picture_shows_what_the_demo_prints(tmp_path, monkeypatch):
    """Lines of the picture, but for paths and times, stand in the demo's output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    printed = squeeze(run("lingeronnx demo"))
    (link,) = re.findall(r"!\[.*\]\((.*\.svg)\)", TEXT)
    picture = (ROOT / link).read_text(encoding="utf-8")
    spans = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    texts = [squeeze(span.replace("&#160;", " ").replace("&#x27;", "'")) for span in spans]
    figures = [text for text in texts if re.search(r" (%|dB|bytes|MACs)", text)]
    assert len(figures) > 4
    assert [text for text in figures if text not in printed] == []
    assert not [text for text in texts if text.startswith("/") or "digits_test.npz" in text]


def test_figures_of_the_comparison_are_measured():
    """Each figure stands in the results of benchmarks/peers.py."""
    results = (ROOT / "benchmarks/results/peers.md").read_text(encoding="utf-8")
    table = TEXT.partition("## Comparison")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 5
    figures = [figure for row in rows for figure in re.findall(r"(\d+\.\d) ?", row)]
    assert len(figures) > 15
    assert [figure for figure in figures if f"{figure} dB" not in results] == []


def test_links_lead_to_files():
    def check(link):
        assert (ROOT / link).is_file()

    check_each(check, set(re.findall(r"\]\(([^)#]+)\)", TEXT)))


def test_the_first_screen_names_what_to_run():
    """The demo and the tests stand on it, are targets of the Makefile, and run in continuous
    integration.
    """
    screen = "\n".join(TEXT.splitlines()[:40])
    targets = re.findall(
        r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    runs = re.findall(
        r"^run_step make ([a-z-]+)", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE
    )
    for target in ("demo", "test"):
        assert f"make {target} " in screen
        assert target in targets
        assert target in runs
