"""What became of each net, a line of JSON each, and the tables that are made of them."""

import json
import re
from collections import Counter, defaultdict

from tests.fuzz.known_differences import find_known_reason
from tests.fuzz.quantized_case import CHIPS

__all__ = ["Journal", "failed", "fell", "kind", "tables"]

MOST = 20  # rules that are shown


class Journal:
    """Finished nets in a file, to which each one is added as it is done; a line that was cut off
    does not count.
    """

    def __init__(self, path):
        self.path, self.rows = path, {}
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        for line in text.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            self.rows[key(row)] = row
        if text and not text.endswith("\n"):
            self._append("\n")

    def add(self, row):
        """Keep a net's row."""
        self.rows[key(row)] = row
        self._append(json.dumps(row) + "\n")

    def _append(self, text):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(text)


def key(row):
    """Return what tells a net on a platform from all others."""
    return row["family"], row["seed"], row["platform"], row["effort"]


def tables(rows):
    """Return the lines of the summary: chip-ready share, the rules that refuse most, failed
    checks.
    """
    parts = shares(rows), reasons(rows), differences(rows, platform), differences(rows, title)
    return [line for part in parts for line in (*part, "")]


def shares(rows):
    """Return a table of how many nets of each family and kind are chip-ready, by chip."""
    counts = defaultdict(Counter)
    for row in rows:
        if row["platform"] in CHIPS:
            for family in (title(row), "all"):
                for platform in (row["platform"], "all"):
                    counts[family, platform]["nets"] += 1
                    counts[family, platform]["ready"] += row["ready"]
    families = [*sorted({family for family, _ in counts} - {"all"}), "all"]
    found = [
        "| chip-ready | " + " | ".join((*CHIPS, "all")) + " |",
        "|---|" + "---|" * (len(CHIPS) + 1),
    ]
    for family in families:
        cells = [counts[family, platform] for platform in (*CHIPS, "all")]
        shown = [
            f"{c['ready']} of {c['nets']} ({100 * c['ready'] / c['nets']:.0f} %)"
            if c["nets"]
            else ""
            for c in cells
        ]
        found.append(f"| {family} | " + " | ".join(shown) + " |")
    return found


def fell(rows, before):
    """Return lines on the nets of both that were chip-ready in the journal `before` and are not any
    more.
    """
    both = [
        (row, old)
        for row in rows
        if (old := before.rows.get(key(row))) and old["net"] == row["net"]
    ]
    then, now = (sum(pair[side]["ready"] for pair in both) for side in (1, 0))
    lost = [row for row, old in both if old["ready"] and not row["ready"]]
    found = [
        (
            f"{len(both)} nets are in {before.path} too: {then} were chip-ready, {now} are; "
            f"{len(lost)} are not any more"
        )
    ]
    return found + [
        f"  {row['family']} {row['seed']} {row['platform']}: {row['why']}" for row in lost
    ]


def reasons(rows):
    """Return a table of the rules that most nets are not chip-ready for, numbers left out, by
    chip.
    """
    whys = Counter((kind(row["why"]), row["platform"]) for row in rows if row["why"])
    total = Counter()
    for (why, _), count in whys.items():
        total[why] += count
    found = ["| not chip-ready for | " + " | ".join(CHIPS) + " |", "|---|" + "---|" * len(CHIPS)]
    for why, _ in total.most_common(MOST):
        found.append(
            f"| {why} | " + " | ".join(str(whys[why, platform]) for platform in CHIPS) + " |"
        )
    return found


def kind(text):
    """Return a sentence without what differs from net to net and chip to chip: names, numbers, what
    is here.
    """
    text = re.sub("|".join(CHIPS[::-1]), "the chip", re.split("; here|, here", text)[0])
    return re.sub(r"\S*\d\S*", "#", text)[:110]


def platform(row):
    """Return the platform of a row."""
    return row["platform"]


def title(row):
    """Return the family of a row, with its kind where the family has several."""
    return f"{row['family']}: {row['kind']}" if row.get("kind") else row["family"]


def differences(rows, side_of):
    """Return a table of how many nets fail each check, by platform or family."""
    sides = sorted(set(map(side_of, rows)))
    nets = Counter(map(side_of, rows))
    counts = Counter((check, side_of(row)) for row in rows for check in failed(row))
    expected = Counter((why, side_of(row)) for row in rows for why in expectations(row))
    found = [f"| failed check | {' | '.join(sides)} |", "|---|" + "---|" * len(sides)]
    for check in ["nets", *sorted({check for check, _ in counts})]:
        cells = [nets[s] if check == "nets" else counts[check, s] for s in sides]
        found.append(f"| {check} | {' | '.join(map(str, cells))} |")
    for why in sorted({why for why, _ in expected}):
        found.append(f"| known: {why} | {' | '.join(str(expected[why, s]) for s in sides)} |")
    return found


def failed(row):
    """Return {check: what is wrong}, without what is known."""
    found = {
        check: [text for text in texts if not find_known_reason(text)]
        for check, texts in row["failed"].items()
    }
    return {check: texts for check, texts in found.items() if texts}


def expectations(row):
    """Return the reasons of what is known of a net."""
    return {find_known_reason(text) for texts in row["failed"].values() for text in texts} - {None}
