"""One function per language: whatever a text is, the language's own reader gives it back, or shows
it as text.
"""

import csv
import html
import json
import re
import shlex
import shutil
import subprocess
import xml.dom.minidom

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.common import escaping
from lingeronnx.common.errors import ConfigError
from lingeronnx.common.files import write_text
from tests.case_selection import limit_examples
from tests.robustness.hostile_names import NAMES

#: Any text without NUL, and texts of the characters that have a meaning somewhere.
TEXTS = st.one_of(
    st.sampled_from(NAMES),
    st.text(st.characters(exclude_characters="\0"), max_size=12),
    st.text(
        st.sampled_from("*/\\?<>&|`'\"$(){}[];,:.=+-@#%_~!\n\r\t \x1b\x85\u202ea1"), max_size=12
    ),
)


@limit_examples(300)
@given(TEXTS)
def test_every_language(text):
    """Laws that hold for every text."""
    line = escaping.escape_invisible(text)
    assert line == "" or line.isprintable() or " " in line or not line.isascii()
    assert not any(map(escaping.is_invisible, line))
    assert escaping.escape_invisible(line) == line
    assert escaping.escape_lines(text).count("\n") == text.count("\n")
    assert html.unescape(escaping.escape_html(text)) == line
    comment = escaping.escape_comment(text)
    assert comment.isascii()
    assert comment.isprintable() or not comment
    assert not re.search(r"\*/|/\*|\?\?|\\", comment)
    assert re.fullmatch(r'"([ !#-\[\]-~]|\\[0-7]{3})*"', escaping.format_c_string(text))
    assert re.fullmatch(r"[a-z][a-z0-9_]*", escaping.make_c_identifier(text))
    assert re.fullmatch(r"[A-Za-z0-9_]{1,40}", escaping.make_c_suffix(text))
    assert not re.search(r"[`*<\[|$@\n]", escaping.escape_markdown(text))
    script = escaping.dump_script_json({text: [text]})
    assert "<" not in script
    assert json.loads(script) == {text: [text]}


@limit_examples(100)
@given(TEXTS)
def test_drawings(text):
    """An XML parser reads the text, in an element and in an attribute."""
    shown = escaping.escape_html(text)
    document = xml.dom.minidom.parseString(f'<t a="{shown}">{shown}</t>')
    (child,) = document.documentElement.childNodes or (None,)
    assert ("" if child is None else child.data) == escaping.escape_invisible(text)


@limit_examples(100)
@given(st.lists(st.lists(TEXTS, min_size=2, max_size=3), min_size=1, max_size=3))
def test_csv(rows):
    """A reader gets the cells back, but for the "'" in front of formulas."""
    read = list(csv.reader(escaping.format_csv(rows).splitlines()))
    assert [len(row) for row in read] == [len(row) for row in rows]
    for row, cells in zip(rows, read, strict=True):
        for text, cell in zip(row, cells, strict=True):
            assert cell.replace("'", "") == escaping.escape_invisible(text).replace("'", "")
            assert not re.match(r"\s*[=+\-@]", cell)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_shell_words(tmp_path):
    """A shell passes each word on as it is, and runs nothing of it."""
    words = [name for name in NAMES if "\x00" not in name]
    line = f"printf '%s\\0' {escaping.join_shell(words)}"
    assert not any(map(escaping.is_invisible, line))
    environment = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, check=True, cwd=tmp_path, env=environment
    )
    assert done.stdout.decode().split("\0")[:-1] == words
    assert not list(tmp_path.iterdir())
    assert escaping.quote_shell("it's") == shlex.quote("it's")


def test_code_spans():
    """The fence is longer than any run of backticks within."""
    assert escaping.format_markdown_code("a b") == "`a b`"
    assert escaping.format_markdown_code("a`b``c") == "```a`b``c```"
    assert escaping.format_markdown_code("`a`") == "`` `a` ``"
    assert escaping.format_markdown_code("a\nb") == "`a\\nb`"


def test_errors_and_files(tmp_path):
    """Messages are one line; files keep line ends, and JSON its texts."""
    assert str(ConfigError("a \x1b[31m\u202eb\n c")) == "a \\x1b[31m\\u202eb c"
    write_text(tmp_path / "a.txt", "a\tb\n\x1b[31m\x7f\r")
    assert (tmp_path / "a.txt").read_bytes() == b"a\tb\n\\u001b[31m\\u007f\\r"
    body = {name: name for name in NAMES}
    write_text(tmp_path / "a.json", json.dumps(body, ensure_ascii=False))
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == body
    assert not any(map(escaping.is_invisible, text))
