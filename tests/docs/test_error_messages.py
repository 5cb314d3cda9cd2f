"""The catalogue of error messages: each way to make a message is read, and what commands really
print is in it.
"""

import re

import pytest
from click.testing import CliRunner

from docs.pages.error_messages import AREAS, GROUPS, Message, Module, messages, page
from lingeronnx.cli import main
from lingeronnx.cli.demo_model import __file__ as demo

SOURCE = """
def raises(name, given):
    raise errors.ModelError(f"tensor '{name}' is gone{suggest_nearest(name, given)}; export it again")

def chosen(few):
    if few:
        raise ConfigError("one" if few else "several")
    why = f"{few} too many"
    return DataError(why)

def joined(a):
    with wrap_user_errors(f"{a} failed", DataError):
        raise ConstraintError("left " + f"{a}, {a}" + "; give another")

def handed(a):
    raise ConfigError(_text(a))

def _text(a):
    return f"from {a}: give less"

def not_ours(a):
    raise ValueError("nobody sees it")
    raise ConfigError(f"{a}")
"""


def test_each_way_to_make_a_message_is_read():
    found = {
        (m.group, *m.parts) for m in Module("lingeronnx/runtime/data/some.py", SOURCE).messages()
    }
    assert found == {
        ("ModelError", "tensor '…' is gone", "export it again"),
        ("ConfigError", "one", ""),
        ("ConfigError", "several", ""),
        ("DataError", "… too many", ""),
        ("DataError", "… failed (…)", ""),
        ("ConstraintError", "left …", "give another"),
        ("ConfigError", "from …", "give less"),
    }
    assert {m.area for m in Module("lingeronnx/runtime/data/some.py", SOURCE).messages()} == {
        AREAS["runtime/data"]
    }


def test_the_catalogue_is_whole():
    """Every group and every message stands on the page, once under its area."""
    different = set(messages())
    assert len(different) > 600
    assert {message.group for message in different} == set(GROUPS)
    rows = re.findall(r"^\| `.*\|$", page(), re.MULTILINE)
    assert len(rows) == len(different)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words",
    [
        ("quantize", "nothing.onnx"),
        ("quantize", "MODEL", "--calib", "nothing.npz"),
        ("quantize", "MODEL", "--platform", "mars"),
        ("quantize", "MODEL", "--calib", "DATA", "--skip", "nobody"),
        ("quantize", "MODEL", "--fix", "nobody=1"),
        ("convert", "MODEL", "-o", "out.onnx", "--to", "linger"),
        ("platforms", "arcs", "--markdown"),
    ],
    ids=" ".join,
)
def test_what_a_command_says_is_in_the_catalogue(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = {
        "MODEL": demo.replace("__init__.py", "digits_cnn.onnx"),
        "DATA": demo.replace("__init__.py", "digits_calib.npz"),
    }
    done = CliRunner().invoke(main, [known.get(word, word) for word in words])
    assert done.exit_code in (1, 2)
    line = re.split(r"[Ee]rror: ", " ".join(done.stderr.split()))[-1]
    line = re.sub(r"; did you mean '[^']*'\?", "", line)
    assert any(fits(message, line) for message in messages()), line


def fits(message: Message, line: str) -> bool:
    """Whether a line is an instance of a message that has some words of its own."""
    words = message.text.split("…")
    return (
        len("".join(words)) > 12
        and re.fullmatch(".*".join(map(re.escape, words)), line) is not None
    )
