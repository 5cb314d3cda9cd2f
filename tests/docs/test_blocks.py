"""Code of the pages: commands and their options exist, Python compiles and its `lo.` names exist,
first pages are run.

What needs the vendor's packer or a board (`tpacker`, `verify` and `profile-board` on a board's
files) is parsed only.
"""

import ast
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt

import lingeronnx as lo
from docs.pages import DOCS
from lingeronnx.cli import main
from tests.api.public import torch_names
from tests.each import check_each

ROOT = DOCS.parent
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]


def blocks(text):
    """Return (language, code) of the code blocks of a page, those within lists too."""
    found = MarkdownIt("commonmark").enable("table").parse(text)
    return [(token.info, token.content) for token in found if token.type in ("fence", "code_block")]


def commands(text):
    """Return the calls of `lingeronnx` in the code blocks of a page, lines that go on joined,
    comments left out.
    """
    code = "\n".join(content for _, content in blocks(text)).replace("\\\n", " ")
    lines = re.findall(r"^ *(lingeronnx [a-z-]+.*)$", code, re.MULTILINE)
    return [shlex.split(re.sub(r" {2,}# .*| \.\.\.$", "", line))[1:] for line in lines]


def spans(text):
    """Return the calls in backquotes, as words."""
    return [words.split()[1:] for words in re.findall(r"`(lingeronnx [a-z-]+[^`]*)`", text)]


def wrong(words):
    """Return what a call has that the command line has not; what stands for something else is taken
    as it is.
    """
    command, words = main, list(words)
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    if isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z-]+", words[0]):
        return [words[0]]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {
        "-h",
        "--help",
    }
    used = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return [word for word in used if word not in known]


def names_of(code):
    """Return the dotted names below `lo` that a Python block uses."""
    found = (
        ast.unparse(node) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute)
    )
    return sorted({name for name in found if re.fullmatch(r"lo(\.\w+)+", name)})


def exists(name):
    """Whether a name such as lo.compat.X exists; names below lo.torch are read, without importing
    torch.
    """
    parts = name.split(".")[1:]
    if parts[0] == "torch":
        return parts[1:2] == [] or parts[1] in torch_names()
    thing = lo
    for part in parts:
        if not hasattr(thing, part):
            return False
        thing = getattr(thing, part)
    return True


def test_commands_and_options_exist():
    def check(name):
        text = (ROOT / name).read_text(encoding="utf-8")
        calls = [*commands(text), *spans(text)]
        assert [(words, bad) for words in calls if (bad := wrong(words))] == []

    check_each(check, NAMES)


def missing(words):
    """Return the message about a required option or argument that a call lacks, or ""."""
    command, words = main, words[: words.index(">")] if ">" in words else list(words)
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    if "..." in words or "[OPTIONS]" in words or not words:
        return ""  # a pattern, or a name in running text
    try:
        parent = click.Context(main, **main.context_settings)  # click keeps its help options
        command.make_context(command.name, words, parent=parent)
    except click.MissingParameter as error:
        return error.format_message()
    except (click.UsageError, click.exceptions.Exit):
        return ""  # files that are not here, --help
    return ""


def test_commands_in_blocks_are_complete():
    def check(name):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert [(words, why) for words in commands(text) if (why := missing(words))] == []

    assert "--output" in missing(["trace", "m.onnx"])
    check_each(check, NAMES)


def test_python_compiles_and_its_names_exist():
    def check(name):
        for language, code in blocks((ROOT / name).read_text(encoding="utf-8")):
            if (language == "python" and ">>>" not in code) or "import lingeronnx" in code:
                assert [name for name in names_of(code) if not exists(name)] == [], code

    check_each(check, NAMES)


def test_what_is_wrong_is_seen():
    page = (
        "a\n\n    lingeronnx quantize m.onnx --nothing \\\n      -o x   # why\n\n`lingeronnx "
        "frobnicate`\n"
    )
    assert commands(page) == [["quantize", "m.onnx", "--nothing", "-o", "x"]]
    assert wrong(commands(page)[0]) == ["--nothing"]
    assert wrong(spans(page)[0]) == ["frobnicate"]
    assert wrong(["analyze", "weights", "M", "--json"]) == wrong(["MODEL", "..."]) == []
    assert names_of("lo.compat.wb_analyse(lo.x)") == ["lo.compat", "lo.compat.wb_analyse", "lo.x"]
    assert [exists(name) for name in ("lo.quantize", "lo.x", "lo.compat.x")] == [True, False, False]
    assert [exists(name) for name in ("lo.torch", "lo.torch.init", "lo.torch.x")] == [
        True,
        True,
        False,
    ]


# ---- the first pages are run -----------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Return a folder that has copies of the demo's files where a checkout has them.

    Copies, because commands write beside their model.
    """
    demo = Path("lingeronnx", "cli", "demo_model")
    (tmp_path / demo).mkdir(parents=True)
    for name in ("digits_cnn.onnx", "digits_calib.npz", "digits_test.npz"):
        for copy in (tmp_path / name, tmp_path / demo / name):
            shutil.copyfile(Path(lo.__file__).parents[1] / demo / name, copy)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words):
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return squeezed(done.stdout)


def squeezed(text):
    return " ".join(text.split())


def outputs(text):
    """Return the lines that a page shows of what commands print, without those of file sizes."""
    shown = [code for _, code in blocks(text) if not re.match(r"(import|git) ", code)]
    lines = "\n".join(shown).replace("\\\n", " ").splitlines()
    lines = [squeezed(line) for line in lines]
    return [line for line in lines if line and not line.startswith(("written ", "lingeronnx "))]


def run_page(name):
    """Run the commands and Python blocks of a page; return lines that they do not print."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    printed = " ".join(run(words) for words in commands(text))
    shown = [line for line in outputs(text) if not re.match(r"samples = |np\.|import ", line)]
    for language, code in blocks(text):
        if language == "python":
            exec(compile(code, name, "exec"), {})
            shown = [line for line in shown if line not in squeezed(code)]
    return [line for line in shown if line not in printed]


def test_the_first_page_is_run(checkout):
    assert run_page("tutorials/first-model") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["tutorials/own-model", "how-to/not-chip-ready", "how-to/too-slow", "how-to/too-large"],
)
def test_pages_are_run(name, checkout):
    """Every command and every Python block works, and prints what the page says."""
    assert run_page(name) == []


@pytest.mark.slow
def test_fine_tuning_is_run(tmp_path, monkeypatch):
    """Its commands, with the demo's model and data under the names of the page."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names = {"model.onnx": "digits_cnn.onnx", "calib.npz": "digits_calib.npz"}
    for name, source in (names | {"held.npz": "digits_test.npz"}).items():
        (tmp_path / name).symlink_to(Path(lo.__file__).parent / "cli" / "demo_model" / source)
    text = (DOCS / "tutorials" / "fine-tuning.md").read_text(encoding="utf-8")
    (code,) = [code for language, code in blocks(text) if language == "python"]
    (tmp_path / "pictures.py").write_text(code, encoding="utf-8")
    lines = commands(text)
    assert [words[0] for words in lines] == ["finetune", "finetune"]
    for words in lines:
        run([*words, "--epochs", "1"])
    assert (tmp_path / "tuned.onnx").is_file()


@pytest.mark.slow
def test_the_reports_are_what_is_printed(checkout):
    """The three reports of the page about reading them."""
    text = (DOCS / "how-to" / "read-the-report.md").read_text(encoding="utf-8")
    call = ["quantize", "digits_cnn.onnx", "--calib", "digits_calib.npz"]
    printed = run([*call, "--eval", "digits_test.npz", "--platform", "arcs"])
    printed += run([*call, "--skip", "/block1/conv/Conv", "-o", "s.onnx"])
    printed += run([*call, "--override", "type:Conv=scale:2^7", "-o", "s5.onnx"])
    shown = [
        line for line in outputs(text) if not line.startswith("try next")
    ]  # of the test's call there is none
    assert len(shown) > 15
    assert [line for line in shown if line not in printed and not line.startswith("(looks")] == []
