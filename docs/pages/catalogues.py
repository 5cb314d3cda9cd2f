"""The Chinese catalogues in docs/locale.

Which pages have one, what they say, and what of a page is not translated.
A message is a heading, a paragraph, an item or a cell of a page, as Markdown on one line; code
blocks are none. `python -m docs.pages.catalogues FOLDER` (`make docs-catalogs`) brings the
catalogues to the templates that Sphinx wrote into FOLDER. All else here runs without Sphinx: it
reads the pages with the parser that rich brings along.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

__all__ = [
    "CHOSEN",
    "LOCALE",
    "Entry",
    "entries",
    "faults",
    "main",
    "messages",
    "same_in_all",
    "settled",
]

DOCS = Path(__file__).parents[1]
LOCALE = DOCS / "locale" / "zh_CN" / "LC_MESSAGES"

#: Pages that are translated, at least in part; what is not shows in English.
CHOSEN = (
    "index",
    "tutorials/first-model",
    "tutorials/own-model",
    "tutorials/image-classifier",
    "tutorials/keyword-spotter",
    "tutorials/fine-tuning",
    "tutorials/coming-from",
    "tutorials/coming-from-linger",
    "tutorials/coming-from-onnxruntime",
    "tutorials/coming-from-ppq",
    "tutorials/coming-from-paddleslim",
    "tutorials/coming-from-horizon",
    "how-to/read-the-report",
    "how-to/accuracy-dropped",
    "how-to/not-chip-ready",
    "how-to/too-slow",
    "how-to/too-large",
    "how-to/streams",
    "how-to/several-outputs",
    "how-to/four-bit-weights",
    "how-to/accuracy-target",
    "how-to/deploy",
    "how-to/html-report",
    "how-to/repair-old-graphs",
    "how-to/install",
    "how-to/export-from-torch",
    "how-to/qdq",
    "how-to/cluster",
    "explanation/accuracy",
    "explanation/architecture",
    "explanation/check",
    "explanation/compare",
    "explanation/exporters",
    "explanation/generations",
    "explanation/held-out",
    "explanation/latency",
    "explanation/parts",
    "explanation/qdq",
    "explanation/recurrent",
    "explanation/reliability",
    "explanation/repair",
    "explanation/sensitivity",
    "reference/glossary",
    "reference/accuracy-warnings",
    "reference/errors",
    "reference/stability",
)

_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_MADE = re.compile(
    r'^"(POT-Creation|PO-Revision|Last-Translator|Language-Team|Generated-By|Project-Id-Version).*\n',
    re.MULTILINE,
)


@dataclass(frozen=True)
class Entry:
    """One message of a catalogue. fuzzy : it was translated, but the English text changed since."""

    message: str
    translation: str
    fuzzy: bool


def entries(text: str) -> Iterator[Entry]:
    """Yield the messages of a catalogue, its header apart."""
    for block in re.split(r"\n\s*\n", text):
        kept = [line for line in block.splitlines() if not line.startswith("#~")]
        said = "\n".join(line for line in kept if not line.startswith("#"))
        head, _, tail = said.partition("msgstr")
        message, translation = (_joined(part) for part in (head, tail))
        if message:
            yield Entry(
                message, translation, any(re.match(r"#,.*\bfuzzy\b", line) for line in kept)
            )


def _joined(text: str) -> str:
    return (
        "".join(_STRING.findall(text))
        .replace('\\"', '"')
        .replace("\\n", "\n")
        .replace("\\\\", "\\")
    )


def messages(text: str) -> list[str]:
    """Return the messages of a page of Markdown, each once, in the order in which they stand."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "inline":
            found.append(token.content)
            found += [
                child.content for child in token.children or [] if child.type == "image"
            ]  # what stands for it
    found += re.findall(r"^:caption: (.*)$", text, re.MULTILINE)
    return list(dict.fromkeys(" ".join(message.split()) for message in found if message))


def same_in_all(message: str) -> bool:
    """Tell whether a message has no words beside code, numbers and signs.

    It is the same in all languages.
    """
    return not re.search(r"[A-Za-z]", re.sub(r"`[^`]*`", "", message))


def faults(page: str, catalogue: str) -> list[str]:
    """Return what a catalogue lacks of a page (both as texts), and what it has too much."""
    held = {entry.message: entry for entry in entries(catalogue)}
    asked = messages(page)
    found = [
        f"not translated: {message}"
        for message in asked
        if message not in held or not held[message].translation
    ]
    found += [f"changed since: {entry.message}" for entry in held.values() if entry.fuzzy]
    return found + [f"no longer there: {message}" for message in held if message not in asked]


def settled(catalogue: str) -> str:
    """Return a catalogue without the lines that each run makes anew, and with what needs no translator filled in."""
    lines = _MADE.sub("", catalogue[catalogue.index('msgid ""') :]).splitlines()
    kept: list[str] = []
    for line in lines:
        said = kept[-1].removeprefix("msgid ") if kept and kept[-1].startswith('msgid "') else '""'
        if line.startswith('msgstr "') and said != '""' and same_in_all(_joined(said)):
            line = f"msgstr {said}"
            if len(kept) > 1 and kept[-2] == "#, fuzzy":
                del kept[-2]
        kept.append(line)
    return "\n".join(kept) + "\n"


def main(folder: Path) -> None:
    """Merge the templates of the chosen pages into the catalogues; what changed becomes fuzzy."""
    chosen = folder / "chosen"
    shutil.rmtree(chosen, ignore_errors=True)
    chosen.mkdir()
    for page in CHOSEN:
        template = chosen / f"{page}.pot"
        template.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / f"{page}.pot", template)
    call = [
        "sphinx_intl",
        "update",
        "-p",
        str(chosen),
        "-d",
        str(DOCS / "locale"),
        "-l",
        "zh_CN",
        "-w",
        "0",
    ]
    subprocess.run(
        [sys.executable, "-m", *call, "--no-obsolete"], check=True, stdout=subprocess.DEVNULL
    )
    for page in CHOSEN:
        place = LOCALE / f"{page}.po"
        text = settled(place.read_text(encoding="utf-8"))
        place.write_text(text, encoding="utf-8")
        left = faults((DOCS / f"{page}.md").read_text(encoding="utf-8"), text)
        print(f"{place.name}: {len(left)} to do" if left else f"{place.name}: complete")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
