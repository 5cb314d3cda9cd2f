"""The packer's rules against measured rows: what packs, what runs right, what is planned. Prints
the tables.
"""

import json
from collections import Counter, defaultdict
from functools import cache, lru_cache
from pathlib import Path

import onnx
import pytest

from lingeronnx.luna.evaluation import evaluate_graph
from lingeronnx.targets import get_target

ROOT = Path(__file__).resolve().parents[4]
GOLDEN = next(
    (
        p / "shared" / "golden"
        for p in Path(__file__).resolve().parents
        if (p / "shared" / "golden" / "packer").is_dir()
    ),
    None,
)
#: What is in the repository: rows of each topic, chosen from all of them.
CHOSEN = ROOT / "tests" / "golden" / "packer"
#: Rows of it that are right beyond their plan and judged wrong: what lies behind is luck.
ACCUSED = {("layernorm_only_6x64", "arcs"), ("layernorm_only_6x64", "venusA")}


def every(test):
    """Mark a test of all measured rows."""
    missing = pytest.mark.skipif(
        GOLDEN is None, reason="the measured rows are not part of the project"
    )
    return pytest.mark.slow(missing(test))


def rows():
    """Yield (folder, row) of every index."""
    for folder in (
        GOLDEN / name for name in ("packer", "packer/more", "tiles", "executor", "four_bits")
    ):
        for row in json.loads((folder / "index.json").read_text()):
            yield folder, {"topic": "tiles", **row}


@lru_cache(maxsize=4)
def model(path):
    """Return one graph."""
    return onnx.load(path)


@cache
def verdicts():
    """Return [(row, verdict)]."""
    return [
        (
            row,
            evaluate_graph(
                model(folder / row["file"]), get_target(row["platform"]), row["arguments"]
            ),
        )
        for folder, row in rows()
    ]


def measured(row):
    """Return what was measured: refused, wrong, past (right beyond its plan), right; None where
    nothing says.
    """
    if not row["packs"]:
        return "refused"
    if row["runs"] and row["equal_to_simulator"] is None:
        return None
    if not row["runs"] or not row["equal_to_simulator"]:
        return "wrong"
    return "past" if any(row["written_past_plan"] or [0]) else "right"


def said(verdict):
    """Return what the rules say."""
    if not verdict.is_packable:
        return "refused"
    return "wrong" if not verdict.is_correct else "past" if verdict.has_overrun_warning else "right"


@cache
def table():
    """Return {topic: {(measured, said): rows}} and print it."""
    counts = defaultdict(Counter)
    for row, verdict in verdicts():
        kind = measured(row)
        if kind is not None:
            counts[row["topic"]][kind, said(verdict)] += 1
    kinds = ("right", "past", "wrong", "refused")
    print(f"\n{'topic':22}" + "".join(f"{kind:>18}" for kind in kinds))
    for topic, found in sorted(counts.items()):
        cells = [f"{found[k, k]}/{sum(found[k, s] for s in kinds)}" for k in kinds]
        print(f"{topic:22}" + "".join(f"{cell:>18}" for cell in cells))
    return counts


def share(counts, kind, *, told=None):
    """Return the share of rows of a kind that are told as one of `told`."""
    total = sum(n for (have, _), n in counts.items() if have == kind)
    return (
        sum(n for (have, what), n in counts.items() if have == kind and what in told) / total
        if total
        else 1.0
    )


WRONG, RIGHT = ("wrong", "refused"), ("right", "past")


def test_chosen_rows():
    """Each verdict on the rows of the repository is what was measured, and nearly all planned bytes
    are.
    """
    differing, planned = set(), []
    for row in json.loads((CHOSEN / "index.json").read_text()):
        verdict = evaluate_graph(
            model(CHOSEN / row["file"]), get_target(row["platform"]), row["arguments"]
        )
        if measured(row) not in (None, said(verdict)):
            differing.add((row["id"], row["platform"], measured(row), said(verdict)))
        if row["packs"] and row["memory"]:
            planned.append(-(-verdict.memory_plan.shared // 64) * 64 == row["memory"][1])
        if (row["error"] or "").startswith("shared memory"):
            assert verdict.memory_plan.required_bytes == int(row["error"].split()[2])
    assert differing == {(*row, "past", "wrong") for row in ACCUSED}
    assert sum(planned) >= 0.98 * len(planned) > 300


@every
def test_packs():
    """Whether a row packs is told of every row."""
    off = [row["id"] for row, verdict in verdicts() if verdict.is_packable != row["packs"]]
    assert not off


@every
def test_runs_right():
    """No wrong row is called right, and few right ones wrong, in all and by topic."""
    counts = table()
    total = sum(counts.values(), Counter())
    assert share(total, "wrong", told=WRONG) == 1
    assert share(total, "right", told=RIGHT) >= 0.90
    for topic, found in counts.items():
        assert share(found, "right", told=RIGHT) >= 0.80, topic


@every
def test_figures():
    """docs/explanation/check.md has the number of measured graphs, and of those computed wrong."""
    counts = sum(table().values(), Counter())
    wrong = sum(n for (have, _), n in counts.items() if have == "wrong")
    page = " ".join((ROOT / "docs/explanation/check.md").read_text().split())
    assert (
        f"{len(verdicts()):,} measured graphs, of which the executor computes {wrong:,} wrong"
        in page
    )


@every
def test_past_the_plan():
    """A row that is right and writes past its plan is warned of, neither accused nor passed."""
    assert share(sum(table().values(), Counter()), "past", told=("past",)) >= 0.95


@every
def test_shared_memory():
    """The planned bytes are those that were reserved; where the plan is too large, those that were
    asked for.
    """
    packed = [(row, v.memory_plan) for row, v in verdicts() if row["packs"] and row["memory"]]
    same = sum(m is not None and -(-m.shared // 64) * 64 == row["memory"][1] for row, m in packed)
    print(f"planned shared bytes: {same} of {len(packed)}")
    assert same >= 0.99 * len(packed)
    asked = [
        (row, v.memory_plan)
        for row, v in verdicts()
        if (row["error"] or "").startswith("shared memory")
    ]
    assert all(
        memory is not None and memory.required_bytes == int(row["error"].split()[2])
        for row, memory in asked
    )
