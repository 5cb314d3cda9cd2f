"""Measured figures of pages stand in the results that the pages name."""

import re

from docs.pages import DOCS
from tests.each import check_each

RESULTS = DOCS.parent / "benchmarks" / "results"

#: Page, results, and what counts as a measured figure there; thresholds and sizes do not.
FIGURES = [
    ("how-to/four-bit-weights", "four-bit-weights", r"\b\d{2,3}\.\d{2}\b"),
    ("how-to/four-bit-weights", "four-bit-weights", r"\| (-\d+ %) \|"),
    ("explanation/accuracy", "accuracy", r"\b\d{2}\.\d{2}\b"),
    ("explanation/qdq", "qdq", r"\b\d+\.\d dB"),
    ("explanation/parts", "real-models", r"\b\d+\.\d dB"),
    ("explanation/recurrent", "recurrent", r"\b(\d{2}\.\d) %"),
    ("explanation/check", "packability", r"\b\d+ of \d+ graphs"),
    ("explanation/compare", "compare-advice", r"\b2\d\d\b"),
    ("explanation/latency", "cycles", r"\b[\d,]+ of [\d,]+ kernels|\b\d\.\d\d times|\b\d\.\d+ %"),
    ("explanation/sensitivity", "predicted-gains", r"within 3 dB"),
]


def squeeze(text):
    return " ".join(text.split())


def test_figures_of_pages_are_measured():
    def check(page, results, pattern):
        text = squeeze((DOCS / f"{page}.md").read_text(encoding="utf-8"))
        measured = squeeze((RESULTS / f"{results}.md").read_text(encoding="utf-8"))
        numbers = {
            n for found in re.findall(pattern, text) for n in re.findall(r"[\d.,]*\d", found)
        }
        assert numbers
        assert [
            n for n in sorted(numbers) if not re.search(rf"(?<![\d.]){n}(?!\d)", measured)
        ] == []

    check_each(check, FIGURES)


def test_a_figure_that_was_not_measured_is_seen():
    assert not re.search(r"(?<![\d.])2\.49(?!\d)", "82.49")
    assert re.search(r"(?<![\d.])82\.49(?!\d)", "| 82.49 |")
