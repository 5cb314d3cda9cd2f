"""How close the reported fidelity is to that on fresh data, and what the calibrator's choice brings.

    python -m benchmarks.calibration_fidelity SHARED [--platform generic] [--only NAME ...]
        [--results FILE.jsonl] [--write benchmarks/results/calibration-fidelity.md]

SHARED is the folder with models/, data/loaders.py and data/real_models.py. Every model is quantized
with the defaults. For its worst output stand: the SQNR on calibration samples, to which scales and
weights were fitted; the SQNR that the report shows, on samples held back; and the SQNR on the test
inputs (at most 256), which no step has seen. No labels are read. "before" is the result without
`measure_on_held_out`, so with the default calibrator. The ratio of the processor times is that of
`quantize` as a whole to `quantize` without this step.

--results keeps every line, and a run that was interrupted goes on. --write replaces the table of a
page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import runpy
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import lingeronnx as lo
from benchmarks.model_cases import CASES
from benchmarks.packability_agreement import replace_section
from lingeronnx.api import quantization
from lingeronnx.common.arithmetic import ratio_db

_MAX_TEST_SAMPLES = 256
_REAL_FIXED = {"silero": {"sr": np.array(16000, np.int64)}}  # besides FIXED of real_models.py
_START, _END = "<!-- written by benchmarks/calibration_fidelity.py -->\n", "<!-- up to here -->"
_COLUMNS = (
    "model",
    "measured on",
    "calibration",
    "shown",
    "fresh before",
    "after",
    "calibrator",
    "time",
)


@dataclass(frozen=True)
class Subject:
    """A model with its data. state : {output: input}. fixed : inputs that are constants."""

    name: str
    path: Path
    calib: Callable[[], Any]
    test: Callable[[], Any]
    state: Mapping[str, str]
    fixed: Mapping[str, np.ndarray]


def iter_subjects(shared: Path) -> Iterator[Subject]:
    """Yield the models that were trained here, then those of others."""
    loaders = runpy.run_path(str(shared / "data" / "loaders.py"))
    real = runpy.run_path(str(shared / "data" / "real_models.py"))
    for name, case in CASES.items():
        calib, test = (loaders[f"{case.data}_{kind}"] for kind in ("calib", "test"))
        yield Subject(name, shared / "models" / case.file, calib, test, {}, {})
    for name, (file, calib, test, state) in real["MODELS"].items():
        fixed = {**real["FIXED"].get(name, {}), **_REAL_FIXED.get(name, {})}
        yield Subject(name, shared / "models" / "real" / file, calib, test, state, fixed)


def _iter_test_feeds(subject: Subject) -> Iterator[dict[str, np.ndarray]]:
    """Yield the test inputs sample by sample, or call by call."""
    if subject.state:
        yield from list(subject.test())[:_MAX_TEST_SAMPLES]
        return
    ((feeds, _),) = subject.test()
    for index in range(min(_MAX_TEST_SAMPLES, len(next(iter(feeds.values()))))):
        yield {name: array[index : index + 1] for name, array in feeds.items()}


def measure_fresh(subject: Subject, result: Any) -> dict[str, float]:
    """Return the SQNR in dB of each float output on the test inputs."""
    sessions = lo.Session(str(subject.path)), result.session()
    names = [value.name for value in sessions[0].get_outputs()]
    known = [{value.name for value in session.get_inputs()} for session in sessions]
    runs = [session.stream(subject.state) if subject.state else session for session in sessions]
    signal, noise = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for feeds in _iter_test_feeds(subject):
        all_feeds = {**subject.fixed, **feeds}
        expected, actual = (
            run.run(names, {name: array for name, array in all_feeds.items() if name in inputs})
            for run, inputs in zip(runs, known, strict=True)
        )
        for name, want, have in zip(names, expected, actual, strict=True):
            if want.dtype.kind == "f":
                wide = want.astype(np.float64)
                signal[name] += float(np.square(wide).sum())
                noise[name] += float(np.square(wide - have).sum())
    return {name: ratio_db(signal[name], max(noise[name], 1e-30)) for name in names if signal[name]}


@contextlib.contextmanager
def _recorded_step(record: dict[str, Any]) -> Iterator[None]:
    """Record the candidate before `measure_on_held_out`, and the processor time of the step."""
    step = quantization.measure_on_held_out

    def measure(best: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        result = step(best, *args, **kwargs)
        record.update(before=best, seconds=time.process_time() - start, after=result)
        return result

    quantization.measure_on_held_out = measure  # type: ignore[assignment]
    try:
        yield
    finally:
        quantization.measure_on_held_out = step


def measure_subject(subject: Subject, platform: str) -> dict[str, Any]:
    """Quantize a model, and return its figures for the table."""
    record: dict[str, Any] = {}
    fixed = {name: value.tolist() for name, value in subject.fixed.items()}
    start = time.process_time()
    with _recorded_step(record):
        result = lo.quantize(
            str(subject.path),
            subject.calib,
            platform=platform,
            state=dict(subject.state) or None,
            fix=fixed or None,
        )
    total = time.process_time() - start
    before, after = record["before"], record["after"]
    fresh = measure_fresh(subject, result)
    is_same = before.planned.prepared.conf.calibrator == after.planned.prepared.conf.calibrator
    fresh_before = fresh if is_same else measure_fresh(subject, before.result)
    if not fresh_before:
        return {"model": subject.name, "platform": platform, "measured_on": ""}
    worst = min(fresh_before, key=lambda name: result.report.outputs[name]["sqnr"])
    return {
        "model": subject.name,
        "platform": platform,
        "measured_on": result.report.measured_on,
        "calibration": before.fidelity.outputs[worst]["sqnr"],
        "shown": result.report.outputs[worst]["sqnr"],
        "fresh_before": fresh_before[worst],
        "fresh_after": fresh[worst],
        "calibrator": after.planned.prepared.conf.calibrator,
        "time": total / max(total - record["seconds"], 1e-9),
    }


def format_table(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table in Markdown; values in dB."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for entry in records:
        if not entry["measured_on"]:
            continue  # no float output
        on = (
            entry["measured_on"].removeprefix("on ").replace(" held back in a trial run", ", trial")
        )
        on = on.replace(" held back from calibration", " held back")
        values = [
            f"{entry[key]:.1f}" for key in ("calibration", "shown", "fresh_before", "fresh_after")
        ]
        cells = [entry["model"], on, *values, entry["calibrator"], f"{entry['time']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Parse the arguments, measure, and print or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shared", type=Path, help="folder with models/ and data/")
    parser.add_argument("--platform", default="generic")
    parser.add_argument("--only", nargs="*", metavar="NAME")
    parser.add_argument("--results", type=Path, metavar="FILE")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    stored = []
    if args.results is not None and args.results.exists():
        stored = [json.loads(line) for line in args.results.read_text().splitlines()]
    by_name = {entry["model"]: entry for entry in stored if entry["platform"] == args.platform}
    records = []
    for subject in iter_subjects(args.shared):
        if args.only is not None and subject.name not in args.only and subject.name not in by_name:
            continue
        if subject.name not in by_name:
            by_name[subject.name] = measure_subject(subject, args.platform)
            if args.results is not None:
                with args.results.open("a") as file:
                    file.write(json.dumps(by_name[subject.name]) + "\n")
        records.append(by_name[subject.name])
        print(format_table(records)[-1], flush=True)
    lines = format_table(records)
    if args.write is not None:
        page = args.write.read_text(encoding="utf-8")
        table = "\n".join(lines) + "\n"
        args.write.write_text(replace_section(page, table, (_START, _END)), encoding="utf-8")


if __name__ == "__main__":
    main()
