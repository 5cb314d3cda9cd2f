"""How both judges of packability agree with measured rows: a table per topic and judge.

    python -m benchmarks.measured_agreement [--rows FOLDER ...] [--topic NAME ...] [--list]

FOLDER holds index.json and graphs, by default golden/executor_2 and its more/ beside the project.
The first judge is that of `lingeronnx check`, the second tests/packer, which shares no code with
it. --list names the rows that differ. The exit code is 1 if a wrong or unpackable row is accepted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import onnx

from lingeronnx.luna.evaluation import evaluate_graph
from lingeronnx.targets import get_target
from tests.packer import judge as judge_independently

__all__ = ["Agreement", "Answer", "JUDGES", "compare_row", "find_rows"]

MEASURED = Path(__file__).resolve().parents[2] / "shared" / "golden" / "executor_2"


@dataclass(frozen=True)
class Answer:
    """What a judge says of a graph under arguments.

    past_plan : whether bytes past the planned memory are written, which does not make it wrong.
    shared_bytes : planned shared memory; None if it was not planned.
    outputs : graph outputs as the executor gives them; None if the judge does not say.
    """

    packs: bool
    right: bool
    past_plan: bool
    shared_bytes: int | None
    outputs: list[str] | None
    reasons: list[str]


def _judge_first(model: onnx.ModelProto, platform: str, arguments: Sequence[str]) -> Answer:
    """Return the answer of the judge that `lingeronnx check` uses."""
    verdict = evaluate_graph(model, get_target(platform), arguments)
    plan, graph = verdict.memory_plan, verdict.graph
    return Answer(
        verdict.is_packable,
        verdict.is_chip_ready,
        verdict.has_overrun_warning,
        None if plan is None else plan.shared,
        None if graph is None else list(graph.outputs),
        [f"{f.node}: {f.rule} ({f.value})" for f in verdict.findings if f.level != "plan"],
    )


def _judge_second(model: onnx.ModelProto, platform: str, arguments: Sequence[str]) -> Answer:
    """Return the answer of tests/packer."""
    verdict = judge_independently(model, platform, arguments)
    harmful = [text for text in verdict.problems if text not in verdict.past]
    return Answer(
        verdict.packs,
        verdict.packs and not harmful,
        bool(verdict.past),
        verdict.planned,
        verdict.outputs,
        harmful,
    )


#: Name -> judge.
JUDGES: dict[str, Callable[[onnx.ModelProto, str, Sequence[str]], Answer]] = {
    "check": _judge_first,
    "tests/packer": _judge_second,
}


@dataclass
class Agreement:
    """Ids of the rows that an answer disagrees with, and the number of rows of each kind."""

    wrong: int = 0
    wrong_called_right: int = 0
    unpackable: int = 0
    unpackable_accepted: int = 0
    right: int = 0
    right_refused: int = 0
    past_plan: int = 0
    past_plan_unreported: int = 0
    shared: int = 0
    shared_differs: int = 0
    order: int = 0
    order_differs: int = 0

    def add(self, other: Agreement) -> None:
        """Add the counts of `other`, in place."""
        for entry in fields(self):
            setattr(self, entry.name, getattr(self, entry.name) + getattr(other, entry.name))


def is_right(row: dict[str, Any]) -> bool:
    """Whether a measured row packs, runs, and gives the integers of the simulator."""
    return bool(row["packs"] and row["runs"] and row["equal_to_simulator"])


def compare_row(row: dict[str, Any], answer: Answer) -> Agreement:
    """Compare an answer with a measured row."""
    result = Agreement()
    if not row["packs"]:
        result.unpackable, result.unpackable_accepted = 1, int(answer.packs)
    elif not is_right(row):
        result.wrong, result.wrong_called_right = 1, int(answer.right)
    else:
        result.right, result.right_refused = 1, int(not answer.right)
        writes_past_plan = any(row["written_past_plan"] or ())
        result.past_plan = int(writes_past_plan)
        result.past_plan_unreported = int(writes_past_plan and not answer.past_plan)
    if "shared_as_planned" in row:
        result.shared = 1
        result.shared_differs = int(answer.shared_bytes != row["shared_as_planned"])
    elif row["memory"]:
        planned = answer.shared_bytes
        result.shared = 1
        result.shared_differs = int(planned is None or -(-planned // 64) * 64 != row["memory"][1])
    if "outputs_as_packed" in row:
        result.order, result.order_differs = 1, int(answer.outputs != row["outputs_as_packed"])
    return result


def find_rows(folders: Sequence[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the rows of `folders`, each with its folder."""
    for folder in folders:
        for row in json.loads((folder / "index.json").read_text()):
            yield folder, row


#: Columns: (heading, field of the rows that disagree, field of all rows).
_COLUMNS = (
    ("wrong, called right", "wrong_called_right", "wrong"),
    ("unpackable, accepted", "unpackable_accepted", "unpackable"),
    ("right, refused", "right_refused", "right"),
    ("past the plan, not reported", "past_plan_unreported", "past_plan"),
    ("shared memory differs", "shared_differs", "shared"),
    ("order of outputs differs", "order_differs", "order"),
)


def _print_table(judge_name: str, by_topic: dict[str, Agreement]) -> None:
    """Print a Markdown table of one judge: disagreeing rows of all rows, by topic and in all."""
    total = Agreement()
    for agreement in by_topic.values():
        total.add(agreement)
    print(f"\n| {judge_name} | " + " | ".join(heading for heading, _, _ in _COLUMNS) + " |")
    print("|---" * (len(_COLUMNS) + 1) + "|")
    for topic, agreement in [*by_topic.items(), ("all", total)]:
        cells = [
            f"{getattr(agreement, bad)} of {getattr(agreement, count)}"
            if getattr(agreement, count)
            else "-"
            for _, bad, count in _COLUMNS
        ]
        print(f"| {topic} | " + " | ".join(cells) + " |")


def main() -> int:
    """Print the table of each judge; return 1 if a wrong or unpackable row is accepted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=Path, default=[MEASURED, MEASURED / "more"])
    parser.add_argument("--topic", nargs="+")
    parser.add_argument("--judge", nargs="+", choices=list(JUDGES), default=list(JUDGES))
    parser.add_argument("--list", action="store_true", help="name the rows that differ")
    options = parser.parse_args()
    rows = [
        (folder, row)
        for folder, row in find_rows(options.rows)
        if not options.topic or row["topic"] in options.topic
    ]
    is_trusted = True
    for judge_name in options.judge:
        by_topic: dict[str, Agreement] = {}
        for folder, row in rows:
            model = onnx.load(folder / row["file"])
            answer = JUDGES[judge_name](model, row["platform"], row["arguments"])
            agreement = compare_row(row, answer)
            by_topic.setdefault(row["topic"], Agreement()).add(agreement)
            accepted = agreement.wrong_called_right or agreement.unpackable_accepted
            is_trusted = is_trusted and not accepted
            if options.list:
                _print_differences(judge_name, row, agreement, answer)
        _print_table(judge_name, by_topic)
    return 0 if is_trusted else 1


def _print_differences(
    judge_name: str, row: dict[str, Any], agreement: Agreement, answer: Answer
) -> None:
    """Print a line for each way in which an answer differs from a row."""
    for heading, bad, _ in _COLUMNS:
        if getattr(agreement, bad):
            name = f"{row['topic']}/{row['id']} {row['platform']} {' '.join(row['arguments'][4:])}"
            print(f"{judge_name}: {heading}: {name} {answer.shared_bytes} {answer.reasons[:3]}")


if __name__ == "__main__":
    sys.exit(main())
