"""A model whose every name, text and file name is hostile: what is written runs no code of it,
controls no terminal, and stays within its folder.
"""

import csv
import html.parser
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import unicodedata
import xml.dom.minidom
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner

from lingeronnx import api, cli
from lingeronnx.common.escaping import escape_invisible, format_csv
from lingeronnx.deployment.c_program import host_source
from lingeronnx.deployment.c_program.generated_names import replace_names
from lingeronnx.runtime.dump import write_npz
from tests import c_tools
from tests.pages.browser import needs_browser, run_in_browser
from tests.robustness.hostile_names import (
    FILE_NAME,
    NAMES,
    SENTINEL,
    TERMINAL_MARKS,
    build_hostile_model,
    rename_everything,
)

needs_generator = pytest.mark.skipif(
    host_source.explain_missing_generator() is not None, reason="emx-onnx-cgen is not installed"
)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")

TEXT_SUFFIXES = {".c", ".h", ".csv", ".html", ".json", ".jsonl", ".md", ".sh", ".svg", ".txt", ""}
MODEL = f"{FILE_NAME}.onnx"
FAST = ("--effort", "fast", "--platform", "venus")


@pytest.fixture(autouse=True)
def keep_compiled(monkeypatch):
    """Let the generator and the compiler keep what they made before."""
    c_tools.keep_templates(monkeypatch)
    c_tools.keep_objects(monkeypatch)


def run(*argv, code=0):
    """Run a command within this process; return its stdout and stderr, which are no terminal."""
    result = CliRunner().invoke(cli.main, list(argv))
    assert result.exit_code == code, f"{argv}: {result.output}\n{result.exception!r}"
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory):
    """Return the folder `inside/work` with every kind of artefact, and what the commands printed.

    Everything beside `inside` and beside `work` would have been written outside of the targets.
    """
    outer = tmp_path_factory.mktemp("names")
    folder = outer / "inside" / "work"
    folder.mkdir(parents=True)
    model, data = build_hostile_model()
    onnx.save(model, folder / MODEL)
    write_npz(folder / "d.npz", data)
    output_name = model.graph.output[0].name
    printed = []
    before = Path.cwd()
    os.chdir(folder)
    try:
        printed += [
            run("check", MODEL, "--platform", "venus", code=1),
            run(
                *(
                    "quantize",
                    MODEL,
                    "--calib",
                    "d.npz",
                    *FAST,
                    "-o",
                    "q.onnx",
                    "--report",
                    "report",
                ),
                *("--debug-dump", "passes", "--save-plan", "plan.json", "--notes", "full"),
                "--verbose",
            ),
            run("quantize", MODEL, "--calib", "d.npz", *FAST, "-o", "j.onnx", "--json"),
            run("check", "q.onnx", "-o", "check", "--notes", "full", code=1),
            run("compare", MODEL, "q.onnx", "--data", "d.npz", "-o", "compare"),
            run(
                "sensitivity", MODEL, "--calib", "d.npz", *FAST, "-o", "sensitivity", "--plots", "1"
            ),
            run("profile", MODEL, "--data", "d.npz", "-o", "profile", "--tensorboard", "--keep"),
            run("analyze", "outputs", MODEL, "--data", "d.npz", "-o", "outputs.txt"),
            run("analyze", "weights", MODEL, "-o", "weights.txt"),
            run("simulate", "q.onnx", "--input", "d.npz", "-o", "s.npz", "--dump", "dump"),
            run("simulate", "q.onnx", "--input", "d.npz", "-o", "t.npz", "--at", output_name),
            run("badcase", MODEL, "q.onnx", "--data", "d.npz", "-o", "bad.npz"),
            run("convert", "q.onnx", "--to", "qdq", "-o", "qdq.onnx"),
            run("evaluate", "q.onnx", "--data", "d.npz", "--baseline", MODEL, "--metric", "sqnr"),
            run(
                *("quantize", MODEL, "--calib", "d.npz", "--effort", "fast", "--platform", "arcs"),
                *("-o", "a.onnx", "--clock", "300", "--min-sqnr", "20"),
            ),
            run("trace", "a.onnx", "-o", "trace.json"),
            run("diff", "q.onnx", "a.onnx", "--data", "d.npz", "--html", "diff.html"),
            run("simulate", "q.onnx", "--input", "d.npz", "--taps", NAMES[0] + "!", code=1),
            run("check", "\x1b[5;7mnone.onnx", code=1),
            run("quantize", "--\x1b[5;7mnone", code=2),
        ]
    finally:
        os.chdir(before)
    return folder, "".join(printed)


def list_texts(folder):
    """Return {path: text} of the text files below a folder."""
    texts = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in TEXT_SUFFIXES:
            texts[path] = path.read_bytes().decode("utf-8")
    return texts


def find_controls(text):
    """Return the characters of `text` that control a terminal or the direction of writing."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}


def test_nothing_runs_and_nothing_is_outside(artefacts):
    folder, _ = artefacts
    outer = folder.parent.parent
    assert [path.name for path in outer.iterdir()] == ["inside"]
    assert [path.name for path in (outer / "inside").iterdir()] == ["work"]
    assert not list(folder.rglob(SENTINEL))
    assert sorted(path.name for path in folder.iterdir() if path.name != MODEL) == sorted(
        [
            "a.onnx",
            "a_chip.onnx",
            "a_search.html",
            "a_search.jsonl",
            "a_search.svg",
            "bad.npz",
            "check",
            "compare",
            "d.npz",
            "diff.html",
            "dump",
            "j.onnx",
            "j_chip1.onnx",
            "j_chip2.onnx",
            "outputs.txt",
            "passes",
            "plan.json",
            "profile",
            "q.onnx",
            "q_chip1.onnx",
            "q_chip2.onnx",
            "qdq.onnx",
            "report",
            "s.npz",
            "sensitivity",
            "t.npz",
            "trace.json",
            "weights.txt",
        ]
    )


def test_text_files_and_output_have_no_control_characters(artefacts):
    folder, printed = artefacts
    assert not find_controls(printed)
    texts = list_texts(folder)
    assert len(texts) > 20
    for path, text in texts.items():
        assert not find_controls(text), path.name


def test_no_line_begins_with_a_part_of_a_name(artefacts):
    """A line end in a name would fake a line of a report."""
    folder, printed = artefacts
    starts = ("warning: none", "# head", "#error", "> quote", "execute_process", "__attribute__")
    for text in (printed, *list_texts(folder).values()):
        assert not [line for line in text.splitlines() if line.startswith(starts)]


class _Elements(html.parser.HTMLParser):
    """Collects the elements of a page, their event handlers, and the scripts with data."""

    def __init__(self):
        super().__init__()
        self.counts, self.handlers, self.data, self._key = {}, [], {}, None

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self._key = dict(attrs).get("id") if tag == "script" else None

    def handle_data(self, data):
        if self._key is not None:
            self.data[self._key] = self.data.get(self._key, "") + data


def test_pages_have_no_element_of_a_name(artefacts):
    """One script, and one per section with data, which is JSON; no image, no event handler."""
    folder, _ = artefacts
    pages = [path for path in list_texts(folder) if path.suffix == ".html"]
    assert len(pages) == 7
    for path in pages:
        text = path.read_text(encoding="utf-8")
        elements = _Elements()
        elements.feed(text)
        elements.close()
        assert elements.counts["script"] == 1 + len(elements.data), path.name
        assert elements.data
        assert not elements.handlers
        assert not {"img", "iframe", "object", "embed", "base", "form"} & set(elements.counts)
        for data in elements.data.values():
            json.loads(data)


#: Counts calls that injected code would make; before any script of the page.
_COUNT_ALERTS = "<script>window.alerts = 0; window.alert = () => { window.alerts += 1; };</script>"
#: Acts on all there is to act on, then returns how many steps it made and what names made of it.
_EXPLORE = """
  let steps = 0;
  const act = async what => { what(); steps += 1; if (steps % 10 === 0) await wait(20); };
  document.querySelectorAll("details").forEach(details => { details.open = true; });
  const pressed = [...document.querySelectorAll("button, th, tr, summary, [data-name]")];
  for (const element of pressed.slice(0, 200)) await act(() => element.click());
  for (const select of document.querySelectorAll("select"))
    for (const index of [...select.options].keys())
      await act(() => { select.selectedIndex = index; select.dispatchEvent(new Event("change")); });
  for (const input of document.querySelectorAll("input[type=search]"))
    await act(() => { input.value = "e"; input.dispatchEvent(new Event("input")); });
  const network = document.getElementById("network-svg");
  for (let i = 0; network && i < 60; i++)
    await act(() => network.dispatchEvent(new KeyboardEvent("keydown", {key: "n"})));
  for (const shape of [...document.querySelectorAll("svg *")].slice(0, 300))
    for (const kind of ["pointermove", "mousemove"])
      await act(() => shape.dispatchEvent(new PointerEvent(kind, {bubbles: true})));
  const attributes = [...document.querySelectorAll("*")].flatMap(element => [...element.attributes]);
  return {steps, alerts: window.alerts, images: document.querySelectorAll("img, iframe, object, embed").length,
    handlers: attributes.filter(({name}) => name.startsWith("on")).length,
    links: attributes.filter(({value}) => /^ *javascript:/i.test(value)).length};
"""


@pytest.mark.slow
@needs_browser
def test_names_do_nothing_in_a_browser(artefacts, tmp_path):
    """Names that clicks, searches and pointers show run nothing and make no element."""
    folder, _ = artefacts
    for number, path in enumerate(sorted(folder.rglob("*.html"))):
        profile = tmp_path / str(number)
        profile.mkdir()
        page = path.read_text(encoding="utf-8").replace("<head>", f"<head>{_COUNT_ALERTS}", 1)
        seen = run_in_browser(page, _EXPLORE, profile)
        assert seen.pop("steps") > 20, path.name
        assert set(seen.values()) == {0}, (path.name, seen)


def test_drawings_are_xml(artefacts):
    folder, _ = artefacts
    drawings = [path for path in list_texts(folder) if path.suffix == ".svg"]
    assert len(drawings) == 1
    for path in drawings:
        document = xml.dom.minidom.parseString(path.read_bytes())
        assert {node.tagName for node in document.getElementsByTagName("*")} <= {
            *("svg", "g", "line", "rect", "text", "circle", "polyline", "title")
        }


def test_json_files(artefacts):
    folder, _ = artefacts
    files = [path for path in list_texts(folder) if path.suffix == ".json"]
    assert len(files) >= 6
    for path in files:
        json.loads(path.read_text(encoding="utf-8"))


def test_csv_table(artefacts):
    """It has the rows and columns of the text table; text cells are no formulas, numbers are."""
    folder, _ = artefacts
    text = (folder / "compare" / "compare_per_layer_out.csv").read_text(encoding="utf-8")
    head, *rows = csv.reader(text.splitlines())
    assert len(rows) > 5
    assert {len(row) for row in rows} == {len(head)}
    for row in rows:
        for index, cell in enumerate(row):
            is_number = re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?|-?inf|nan", cell)
            assert is_number or not cell.lstrip().startswith(tuple("=+-@")), (head[index], cell)
    names = [row[head.index("mod_name")] for row in rows]
    assert {name.removeprefix("'") for name in names} & {escape_invisible(name) for name in NAMES}
    texts = {row[head.index(name)] for row in rows for name in ("mod_name", "node", "module")}
    assert any(text.startswith(("'=", "'+", "'-", "'@")) for text in texts)
    lowest = [float(row[head.index("base_model_min")]) for row in rows]
    assert min(lowest) < 0


def test_formulas_in_csv():
    """Each name is one cell with the name in it; a spreadsheet sees text, and numbers stay."""
    rows = [[name, -1.5, 2, None] for name in NAMES]
    read = list(csv.reader(format_csv(rows).splitlines()))
    assert [row[1:] for row in read] == [["-1.5", "2", ""]] * len(NAMES)
    for name, (cell, *_) in zip(NAMES, read, strict=True):
        assert cell.replace("'", "") == escape_invisible(name).replace("'", "")
        assert not re.match(r"\s*[=+\-@]", cell)
        assert not re.search(r";\s*[\"]?[=+\-@]", cell)
    (same,) = csv.reader([format_csv([["a-b=c", "conv1", "-", 3.0]]).rstrip()])
    assert same == ["a-b=c", "conv1", "'-", "3.0"]


# ---- C -------------------------------------------------------------------------------------------


def make_unicode_names():
    """Return names of characters whose bytes do not occur in ASCII text."""
    return [chr(0x4E00 + index) * 3 for index in range(400)]


@needs_generator
def test_c_of_host_parts_has_no_byte_of_a_name(monkeypatch):
    """The names are not ASCII, so that each byte of them would be seen; neither do the generator's
    inputs have one.
    """
    seen = []
    model = _make_host_model()
    x, y = _run(model)
    run_generator = host_source._run_generator
    monkeypatch.setattr(
        host_source, "_run_generator", lambda *args: seen.append(run_generator(*args)) or seen[-1]
    )
    plain = host_source.generate_host_source(model, "m_host1", [x], [y])
    rename_everything(model, make_unicode_names())
    found = host_source.generate_host_source(model, "m_host1", [x], [y])
    assert found.text.isascii()
    assert seen[1].isascii()
    assert found.text.partition("#include")[2] == plain.text.partition("#include")[2]


def _make_host_model():
    """Make a float model with constants and an axis of an unknown size."""
    text = """
    <ir_version: 10, opset_import: ["": 17]>
    g (float[n, 4] x) => (float[n, 4] y) <float[4] k = {1, 2, 3, 4}, float two = {2}> {
        [first] a = Mul(x, k)
        [second] b = Softmax(a)
        [third] c = Sqrt(b)
        [last] y = Mul(c, two)
    }
    """
    return onnx.parser.parse_model(text)


def _run(model):
    x = np.ones((1, 4), np.float32)
    return x, _compute(model, {"x": x})[0]


@needs_generator
@needs_compiler
def test_hostile_names_in_host_parts_compile(tmp_path):
    """Whatever its names are, the generator gets the same, and its C compiles without a warning."""
    model = _make_host_model()
    x, y = _run(model)
    plain = replace_names(model)
    for start in range(0, len(NAMES), 7):
        renamed = onnx.ModelProto.FromString(model.SerializeToString())
        rename_everything(renamed, NAMES[start:] + NAMES[:start])
        assert replace_names(renamed) == plain
    found = host_source.generate_host_source(renamed, "m_host1", [x], [y])
    (tmp_path / "a.c").write_text(found.text)
    command = ["cc", "-std=c99", "-Wall", "-Werror", "-c", "-o", "a.o", "a.c"]
    subprocess.run(command, check=True, cwd=tmp_path)


SUBGRAPHS = """
<ir_version: 10, opset_import: ["": 17]>
g (float[n, 4] x, bool flag) => (float[n, 4] y) <int64 trips = {3}, bool go = {1}> {
    a = Mul(x, x)
    b = If(flag) <
        then_branch = then_graph () => (float[n, 4] r) { inner = Neg(a)  r = Exp(inner) },
        else_branch = else_graph () => (float[n, 4] r) { inner = Sqrt(a)  r = Add(inner, x) }
    >
    y = Loop(trips, go, b) <
        body = body_graph (int64 i, bool c, float[n, 4] v) => (bool c2, float[n, 4] w)
            { c2 = Identity(c)  s = Add(v, a)  w = Tanh(s) }
    >
}
"""


@pytest.mark.parametrize("flag", (False, True))
def test_generated_names_of_subgraphs(flag):
    """The copy computes the same: names of an outer graph in a subgraph become the same names."""
    model = onnx.parser.parse_model(SUBGRAPHS)
    copy = replace_names(model)
    x = np.random.default_rng(0).random((2, 4)).astype(np.float32)
    (want,) = _compute(model, {"x": x, "flag": np.array(flag)})
    (have,) = _compute(copy, {"input0": x, "input1": np.array(flag)})
    np.testing.assert_array_equal(have, want)
    text = str(copy)
    for name in ("flag", "trips", "then_graph", "else_graph", "body_graph", "inner", "c2"):
        assert f'"{name}"' not in text


def _compute(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, feeds)


@needs_generator
def test_texts_in_attributes_of_host_parts():
    """An attribute that is no plain word could end a comment."""
    model = _make_host_model()
    x, y = _run(model)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("*/ int evil; /*", 1))
    with pytest.raises(host_source.ConstraintError, match=r"attribute '\*/ int evil; /\*' of Mul"):
        host_source.generate_host_source(model, "m_host1", [x], [y])
    model.graph.node[0].ClearField("attribute")
    model.graph.node[1].attribute.append(onnx.helper.make_attribute("axis", "*/ int evil; /*"))
    with pytest.raises(host_source.ConstraintError, match="is the text"):
        host_source.generate_host_source(model, "m_host1", [x], [y])


@needs_generator
@needs_compiler
@pytest.mark.parametrize("compiler", ("gcc", "clang"))
@pytest.mark.parametrize("prefix", ((), ("--prefix", "zz", "--packages", "many")))
def test_deployed_program(compiler, prefix, tmp_path, monkeypatch):
    """It compiles, passes its trial, and executes nothing of a name; pack.sh runs the packer alone."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CC", compiler)
    model, data = build_hostile_model()
    onnx.save(model, MODEL)
    write_npz("d.npz", data)
    run(
        *("deploy", MODEL, "--calib", "d.npz", "-o", "out", "--try", "--samples", "1", *FAST),
        *prefix,
    )
    folder = tmp_path / "out"
    texts = list_texts(folder)
    for path, text in texts.items():
        assert not find_controls(text.replace("\t", "")), path.name
    for path in folder.glob("*.[ch]"):
        assert texts[path].isascii(), path.name
    readme = texts[folder / "README.md"]
    assert not re.search(r"<(?!wbr)[a-zA-Z/!]", re.sub(r"`[^`]*`", "", readme))
    _check_pack_script(folder, tmp_path)
    assert not list(tmp_path.rglob(SENTINEL))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [MODEL, "bin", "d.npz", "out"]
    )


def _check_pack_script(folder, tmp_path):
    """Run pack.sh with a packer that writes a file of the name behind -o."""
    tools = tmp_path / "bin"
    tools.mkdir()
    packer = tools / "tpacker"
    packer.write_text(
        f'#!{sys.executable}\nimport sys\nopen(sys.argv[sys.argv.index("-o") + 1], "w").close()\n'
    )
    packer.chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    before = {item.name for item in folder.iterdir()}
    subprocess.run(["sh", "pack.sh"], check=True, cwd=folder, env={**os.environ, "PATH": path})
    packages = {item.name for item in folder.iterdir()} - before
    assert packages
    assert all(re.fullmatch(r"[\w-]+\.pkg", name) for name in packages)


# ---- terminals -----------------------------------------------------------------------------------


def read_terminal(argv, folder, **variables):
    """Run a command on a terminal; return the bytes that it wrote there."""
    environment = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "lingeronnx", *argv],
        stdout=slave,
        stderr=slave,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env=environment,
    )
    os.close(slave)
    written = b""
    try:
        while chunk := os.read(master, 65536):
            written += chunk
    except OSError:  # the other end is closed
        pass
    os.close(master)
    process.wait()
    return written


@pytest.mark.slow
@pytest.mark.parametrize("color", ("", "1"))
def test_terminal(color, artefacts):
    """No control character of a name reaches a terminal, and with NO_COLOR no escape at all."""
    folder, _ = artefacts
    variables = {"NO_COLOR": color} if color else {}
    commands = (
        ("quantize", MODEL, "--calib", "d.npz", *FAST, "-o", "x.onnx", "--notes", "full"),
        ("check", MODEL, "--platform", "venus", "--notes", "full"),
        ("compare", MODEL, "q.onnx", "--data", "d.npz", "-o", "y"),
        ("simulate", "q.onnx", "--input", "d.npz", "--taps", "\x1b[5;7mx"),
    )
    target = folder / f"terminal{color}"
    target.mkdir()
    for name in (MODEL, "q.onnx", "d.npz"):
        (target / name).symlink_to(folder / name)
    for argv in commands:
        written = read_terminal(argv, target, **variables)
        assert len(written) > 60
        for mark in TERMINAL_MARKS:
            assert mark not in written, (argv, mark)
        assert not {char for char in written.decode() if 0x80 <= ord(char) < 0xA0}
        if color:
            assert b"\x1b" not in written
    shutil.rmtree(target)


def test_traceback(monkeypatch, tmp_path):
    """Neither the traceback of a bug nor its archive has control characters of a message."""

    def fail(*args, **settings):
        raise RuntimeError("\x1b[5;7mINJECTED\u202e")

    monkeypatch.setattr(api, "trace", fail)
    monkeypatch.chdir(tmp_path)
    (tmp_path / MODEL).write_bytes(b"")
    printed = run("trace", MODEL, "-o", "t.json", code=70)
    assert "RuntimeError: \\x1b[5;7mINJECTED\\u202e" in printed
    assert not find_controls(printed)
    (archive,) = tmp_path.glob("*.zip")
    with zipfile.ZipFile(archive) as opened:
        for name in opened.namelist():
            assert re.fullmatch(r"[\w./-]+", name)
            if name.endswith(".txt"):
                assert not find_controls(opened.read(name).decode())
