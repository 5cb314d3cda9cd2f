"""Strong words in messages and on pages: each place is listed here with what stands behind it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from docs.pages.catalogues import entries

ROOT = Path(__file__).resolve().parents[2]

WORDS = re.compile(
    r"\b(prov(?:e|es|ed|en)|guarante\w*|bit-exact\w*|bit for bit|verified|certainly|"
    r"will not|cannot fail|100 % safe|safely|is correct|are correct|correct on|is right|are right)\b"
)

#: (file, word) -> how often its messages have the word, and the check that sets it, or why it is
#: no claim.
MESSAGES = {
    ("analysis/check/report.py", "is correct"): (1, "Check.basis"),
    ("cli/models/convert.py", "bit for bit"): (1, "ExactFile: nodes that are not are listed"),
    ("cli/runs/verify.py", "verified"): (1, "says that it was not"),
    ("deployment/c_program/guide.py", "is correct"): (1, "a case of troubleshooting"),
    ("quantization/scales/scales.py", "verified"): (1, "says that it was not"),
    ("interchange/qdq/exact/exact_file.py", "bit for bit"): (1, "ExactFile.compared"),
    ("interchange/qdq/exact/exact_file.py", "proved"): (1, "ExactGraph.sum_bounds"),
    ("interchange/repair/structure.py", "is correct"): (3, "says that it is unclear"),
    ("runtime/runners/ort_errors.py", "guarantees"): (1, "a message of onnxruntime to recognize"),
    ("luna/faults.py", "is correct"): (1, "a measured fault"),
    ("luna/faults.py", "are correct"): (1, "a measured fault"),
    ("luna/packer/limits/conv.py", "are correct"): (1, "an assumption"),
    ("targets/verdict.py", "is correct"): (2, "Verdict.basis"),
}

#: Page -> word -> how often it stands there.
PAGES = {
    "README.md": {"bit for bit": 1},
    "docs/tutorials/first-model.md": {"bit for bit": 1},
    "docs/index.md": {"bit for bit": 1},
}

CHINESE = re.compile("保证|证明|一定能|必定|确保")


def iter_messages(path):
    """Yield the string constants of a module that are no docstrings, if it has a strong word."""
    source = path.read_text("utf-8")
    if not WORDS.search(source):
        return
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body:
            docstrings.add(id(getattr(node.body[0], "value", None)))
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings and " " in node.value:
            yield node.value


def test_each_strong_word_of_a_message_is_listed():
    package = ROOT / "lingeronnx"
    counts = Counter()
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        for message in iter_messages(path):
            counts.update((name, word) for word in WORDS.findall(message))
    assert dict(counts) == {place: count for place, (count, _) in MESSAGES.items()}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/tutorials/first-model.md"])
def test_first_pages_say_what_bit_for_bit_stands_on(page):
    text = " ".join((ROOT / page).read_text("utf-8").split())
    found = Counter(WORDS.findall(text))
    assert {word: found[word] for word in PAGES[page]} == PAGES[page]
    assert not {"proved", "guaranteed", "bit-exact"} & set(found) - {"proved"}
    for match in re.finditer("bit for bit", text):
        assert re.search("measured|proved", text[match.start() - 80 : match.end() + 80])


def test_chinese_pages_promise_nothing():
    """A strong word is the translation of one: where English says "proof", Chinese may, too."""
    assert not CHINESE.findall((ROOT / "README.zh.md").read_text("utf-8"))
    for path in (ROOT / "docs" / "locale" / "zh_CN" / "LC_MESSAGES").rglob("*.po"):
        for entry in entries(path.read_text("utf-8")):
            has_source = re.search("proof|prove", entry.message)
            assert has_source or not CHINESE.findall(entry.translation), path.name


def test_every_word_is_explained():
    page = (ROOT / "docs" / "explanation" / "reliability.md").read_text("utf-8")
    section = page.partition("## What the words mean")[2].partition("\n## ")[0]
    for word in ("proved", "measured", "computed", "read", "assumed"):
        assert f"| {word} |" in section
    for word in ("correct", "exact", "exact by construction", "same integers", "bit-exact"):
        assert f"*{word}*" in section
