"""What `quantize` promises of each model on each chip, and whether the two judges of packability agree.

    python -m benchmarks.packability_agreement [--shared FOLDER] [--only NAME ...] [--chips venus
    ...] [--effort fast]
        [--limit N] [--log FILE] [--write benchmarks/results/packability.md]

The models are those of models/ and, where there is a folder with more (its models/ and data/),
those in it. Each is quantized with its calibration data, and what is written is judged under the
printed arguments: by `lingeronnx check`'s judge, and by tests/packer, which shares no code with it.
One row per model and chip, printed as a Markdown table; with
--log the rows are kept there as they come, and a run that was interrupted goes on. --write puts the table between the
marks of a page. `iterate_answers` yields the rows for other programs. The exit code is 1 where the
answers differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import lingeronnx as lo
from lingeronnx.common.errors import LingerOnnxError
from lingeronnx.common.files import write_text
from lingeronnx.ir import ir
from lingeronnx.luna import evaluation
from lingeronnx.operators.chip_part import extract_chip_part
from lingeronnx.targets import get_target
from tests import packability
from tests.packer import judge as second_judge

__all__ = ["Model", "PackabilityAnswers", "find_models", "format_table", "iterate_answers"]

START, END = "<!-- written by benchmarks/packability_agreement.py -->\n", "<!-- up to here -->"
YES, PAST_PLAN, NO, NOT_ASKED = "yes", "past the plan", "no", "-"
WIDTH = 160


@dataclass(frozen=True)
class Model:
    """A float model, its calibration data as `quantize` takes it, and further settings."""

    name: str
    path: Path
    calib: Any
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PackabilityAnswers:
    """Three answers on one model and chip.

    "yes", "no", "past the plan" (right, and written past it), "-" (not asked).
    quantize : whether it calls the graph chip-ready. judge : that of `check`. oracle :
    tests/packer. why : the first reason where one says no or the judges differ.
    """

    model: str
    chip: str
    quantize: str
    judge: str
    oracle: str
    why: str = ""

    @property
    def is_consistent(self) -> bool:
        """Whether the judges say the same, and nothing is promised that one of them denies."""
        return self.judge == self.oracle and (self.quantize == YES) == (
            self.judge in (YES, PAST_PLAN)
        )


def find_models(shared: Path | None = None) -> list[Model]:
    """Return the models of models/, and those of the folder `shared` that have data there."""
    own = {"shapes_detector": f"{packability.MODELS}/drawn_shapes.py:calib"}
    digits = str(packability.MODELS / "digits_calib.npz")
    found = [
        Model(path.stem, path, own.get(path.stem, digits))
        for path in sorted(packability.MODELS.glob("*.onnx"))
    ]
    if shared is None:
        return found
    for name, loader in packability.LOADERS.items():
        found.append(
            Model(name, shared / "models" / f"{name}.onnx", f"{shared}/data/loaders.py:{loader}")
        )
    script = shared / "data" / "real_models.py"
    if script.is_file():
        found += _real(shared / "models" / "real", script)
    return found


def _real(folder: Path, script: Path) -> Iterator[Model]:
    made = packability.module(script)
    for name, (file, calib, _, state) in made.MODELS.items():
        fix = {key: float(value) for key, value in made.FIXED.get(name, {}).items()}
        yield Model(
            Path(file).stem,
            folder / file,
            f"{script}:{calib.__name__}",
            {"state": state, "fix": fix},
        )


def iterate_answers(
    found: Iterable[Model], chips: Sequence[str] = packability.CHIPS, **settings: Any
) -> Iterator[PackabilityAnswers]:
    """Yield the Answers on each model and chip.

    `settings` are those of `quantize`, such as effort.
    """
    for model in found:
        for chip in chips:
            yield _answer(model, chip, settings)


def _answer(model: Model, chip: str, settings: dict[str, Any]) -> PackabilityAnswers:
    try:
        made = lo.quantize(model.path, model.calib, platform=chip, **{**settings, **model.settings})
    except Exception as error:  # a defect of ours has its row, too, and does not end a run of hours
        name = "" if isinstance(error, LingerOnnxError) else f"{type(error).__name__}: "
        return PackabilityAnswers(
            model.name, chip, NO, NOT_ASKED, NOT_ASKED, f"not quantized: {name}{error}"
        )
    report = made.report
    promised = YES if report.chip_ready else NO
    if not report.packer_args:
        first = next(
            (f"{n.op_type} {n.node} stays float: {n.why}" for n in report.float_nodes),
            "no integer part",
        )
        return PackabilityAnswers(model.name, chip, promised, NOT_ASKED, NOT_ASKED, first)
    proto = ir.to_proto(extract_chip_part(made.graph, made.platform))
    ours = evaluation.evaluate_graph(proto, get_target(chip), report.packer_args)
    theirs = second_judge(proto, chip, packability.get_printed_arguments(report))
    ours_say = NO
    if ours.is_chip_ready:
        ours_say = PAST_PLAN if ours.has_overrun_warning else YES
    theirs_say = (
        YES
        if theirs.right
        else PAST_PLAN
        if theirs.packs and theirs.past == theirs.problems
        else NO
    )
    said = PackabilityAnswers(model.name, chip, promised, ours_say, theirs_say)
    if said.is_consistent and said.judge == YES:
        return said
    reasons = [str(finding) for finding in ours.findings] if ours_say != YES else theirs.problems
    return PackabilityAnswers(
        model.name, chip, promised, ours_say, theirs_say, next(iter(reasons), "")
    )


def format_table(rows: Iterable[PackabilityAnswers]) -> str:
    """Return the rows as a Markdown table, and under it how many there are of each kind."""
    rows = list(rows)
    lines = [
        "| model | chip | quantize | judge | tests/packer | first reason |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        why = " ".join(row.why.split()).replace("|", "\\|")
        why = why if len(why) <= WIDTH else why[: WIDTH - 3] + "..."
        mark = "" if row.is_consistent or row.judge == NOT_ASKED else "**differ:** "
        lines.append(
            f"| {row.model} | {row.chip} | {row.quantize} | {row.judge} | {row.oracle} | "
            f"{mark}{why} |"
        )
    kept = sum(row.quantize == row.judge == row.oracle == YES for row in rows)
    promised = sum(row.quantize == YES for row in rows)
    asked = [row for row in rows if row.judge != NOT_ASKED]
    alike = sum(row.judge == row.oracle for row in asked)
    lines += [
        "",
        f"Promised: {promised} of {len(rows)}, {kept} of these by both judges without reserve.",
        "",
    ]
    lines += [f"The judges answer alike on {alike} of {len(asked)} graphs.", ""]
    return "\n".join(lines)


def replace_section(text: str, part: str, marks: tuple[str, str] = (START, END)) -> str:
    """Return `text` with what stands between the marks replaced.

    ValueError where they are not there.
    """
    start, end = marks
    before, found, rest = text.partition(start)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page has no part between '{start.strip()}' and '{end}'")
    return before + start + part + end + after


def _resume_from_log(
    log: Path | None, found: Sequence[Model], chips: Sequence[str], settings: dict[str, Any]
) -> list[PackabilityAnswers]:
    """Return the rows, those in the log first; new ones are appended to it."""
    done = {}
    if log is not None and log.is_file():
        kept = [PackabilityAnswers(**json.loads(line)) for line in log.read_text().splitlines()]
        done = {(row.model, row.chip): row for row in kept}
    rows = []
    for model in found:
        for chip in chips:
            row = done.get((model.name, chip))
            if row is None:
                row = _answer(model, chip, settings)
                sys.stderr.write(
                    f"{row.model} {row.chip}: {row.quantize}, {row.judge}, {row.oracle}\n"
                )
                if log is not None:
                    with log.open("a") as file:
                        file.write(json.dumps(asdict(row)) + "\n")
            rows.append(row)
    return rows


def main() -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shared", type=Path, default=packability.SHARED, help="a folder with further models"
    )
    parser.add_argument("--only", nargs="+", default=(), help="names of models")
    parser.add_argument("--chips", nargs="+", default=packability.CHIPS)
    parser.add_argument("--effort", choices=("fast", "normal", "best"), default="normal")
    parser.add_argument("--limit", type=int, default=32, help="calibration samples at most")
    parser.add_argument("--log", type=Path)
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the table between the marks of this page"
    )
    args = parser.parse_args()
    found = find_models(args.shared if (args.shared / "models").is_dir() else None)
    unknown = set(args.only) - {model.name for model in found}
    if unknown:
        parser.error(
            f"no such model: {', '.join(sorted(unknown))}; there are "
            f"{', '.join(m.name for m in found)}"
        )
    found = [model for model in found if not args.only or model.name in args.only]
    rows = _resume_from_log(
        args.log, found, args.chips, {"effort": args.effort, "limit": args.limit}
    )
    if args.write:
        settings = f"effort {args.effort}, {args.limit} calibration samples"
        write_text(
            args.write,
            replace_section(args.write.read_text(), f"{settings}:\n\n{format_table(rows)}"),
        )
    else:
        sys.stdout.write(format_table(rows))
    return int(any(row.judge != row.oracle for row in rows))


if __name__ == "__main__":
    sys.exit(main())
