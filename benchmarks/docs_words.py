"""Count the words of the documentation by kind: tutorials, how-to guides, reference, explanation.

python -m benchmarks.docs_words                      # the pages of the checkout
python -m benchmarks.docs_words --commit 49fa7909    # those of a commit, too
python -m benchmarks.docs_words --pages              # each page

A word is what `wc -w` counts. Pages that commands write (`make docs-reference`, and
`lingeronnx platforms --markdown`) are counted apart. README has a limit, and so have all pages
that people write; beyond one the exit code is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_README_WORDS = 700
MAX_WRITTEN_WORDS = 45_000
GENERATED = "generated reference"
_GENERATED_MARK = "<!-- written by `make docs-reference`"
_GENERATED_PAGES = (
    "docs/reference/operators.md",
    "docs/reference/standard-operators.md",
    "docs/operators.md",
)
_KINDS = {"tutorials", "how-to", "reference", "explanation", "development"}


def classify_page(path: str, text: str) -> str:
    """Return the kind of a page: its folder below docs/, "README", or generated reference."""
    if path.startswith("README"):
        return "README"
    if path in _GENERATED_PAGES or text.startswith(_GENERATED_MARK):
        return GENERATED
    folder = path.split("/")[1]
    return folder if folder in _KINDS else "other pages"


def read_checkout() -> dict[str, str]:
    """Read the pages of the checkout, by path."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def read_commit(commit: str) -> dict[str, str]:
    """Read the pages of a commit, by path."""
    listing = _run_git("ls-tree", "-r", "--name-only", commit, "README.md", "docs")
    paths = [path for path in listing.splitlines() if path.endswith(".md")]
    return {path: _run_git("show", f"{commit}:{path}") for path in paths}


def _run_git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def count_words(pages: Mapping[str, str]) -> Counter[str]:
    """Count the words of each kind of page."""
    words: Counter[str] = Counter()
    for path, text in pages.items():
        words[classify_page(path, text)] += len(text.split())
    return words


def iterate_excesses(words: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each limit that is exceeded."""
    written = sum(n for kind, n in words.items() if kind not in ("README", GENERATED))
    limits = (
        ("README.md", words["README"], MAX_README_WORDS),
        ("pages below docs/ that no command writes", written, MAX_WRITTEN_WORDS),
    )
    for name, count, limit in limits:
        if count > limit:
            yield f"{name}: {count:,} words, at most {limit:,}; shorten or merge"


def format_table(columns: Mapping[str, Mapping[str, int]]) -> str:
    """Format words by kind as a table of Markdown, with one column for each version."""
    kinds = sorted({kind for words in columns.values() for kind in words})
    lines = [f"| kind | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for kind in kinds:
        lines.append(f"| {kind} | " + " | ".join(f"{w[kind]:,}" for w in columns.values()) + " |")
    totals = (f"{sum(words.values()):,}" for words in columns.values())
    return "\n".join([*lines, f"| all | {' | '.join(totals)} |"]) + "\n"


def main() -> None:
    """Print the table; end with 1 if the checkout exceeds a limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commit", help="count the pages of this commit beside the checkout's")
    parser.add_argument("--pages", action="store_true", help="list each page of the checkout")
    arguments = parser.parse_args()
    pages = read_checkout()
    if arguments.pages:
        for path, text in pages.items():
            print(f"{len(text.split()):7,}  {classify_page(path, text):20} {path}")
    columns = {"checkout": count_words(pages)}
    if arguments.commit:
        columns = {arguments.commit: count_words(read_commit(arguments.commit))} | columns
    print(format_table(columns), end="")
    excesses = list(iterate_excesses(columns["checkout"]))
    print(*excesses, sep="\n")
    sys.exit(1 if excesses else 0)


if __name__ == "__main__":
    main()
