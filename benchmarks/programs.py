"""What becomes of each model as a C program: quantized, deployed, compiled and proved on this machine.

    python -m benchmarks.programs [--shared FOLDER] [--only NAME ...] [--chips venus ...] [--effort fast]
        [--samples 20] [--max-parts N] [--log FILE]

The models are those of `benchmarks.promises_kept`. One row per model and chip: parts, the chip's share of the
multiply-accumulates, float operations of the host per call, what `deploy --try` found, or the line with which it
refused. A row in the log is not made again. The exit code is 1 where a proof failed.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import lingeronnx as lo
from benchmarks.promises_kept import models

CHIPS = ("venus", "arcs", "venusA")
_HEAD = ("model", "chip", "runs on", "proved", "integers that differ", "host parts within")


def row(model, chip, samples, **settings):
    """Return one row as a dict."""
    told = {"model": model.name, "chip": chip}
    try:
        made = lo.quantize(str(model.path), model.calib, platform=chip, **{**model.settings, **settings})
        told["runs"] = made.report.runs_text or ("1 chip part" if made.report.chip_ready else "not on the chip")
        state = dict(model.settings.get("state", {})) or None
        with tempfile.TemporaryDirectory() as folder:
            done = lo.deploy(
                made, Path(folder) / "board", model.calib, samples=samples, state=state, stem="model", attempt=True
            )
    except lo.LingerOnnxError as error:
        return {**told, "failed": str(error)}
    if done.proof is None:
        return {**told, "failed": next((note for note in done.notes if " C " in note), "no C was written")}
    return {**told, **done.proof.to_dict()}


def _line(told):
    start = [told["model"], told["chip"], told.get("runs", "-")]
    if "calls" not in told:
        return [*start, f"no: {told['failed'][:160]}", "-", "-"]
    proved = f"{told['calls']} calls" if not told["failed"] else f"FAILED: {told['failed'][0][:120]}"
    return [*start, proved, f"{told['differing']} of {told['integers']}", f"{told['host']:.1g}"]


def main(words=None):
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, metavar="FOLDER", help="more models/ and data/")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--chips", nargs="+", choices=CHIPS, default=CHIPS)
    parser.add_argument("--effort", choices=["fast", "normal", "best"], default="normal")
    parser.add_argument("--samples", type=int, default=20, help="calls that are tried; for streams, steps")
    parser.add_argument("--max-parts", type=int, help="as for quantize")
    parser.add_argument("--log", type=Path, help="rows as they come; a run that was interrupted goes on")
    asked = parser.parse_args(words)
    rows = (
        [json.loads(line) for line in asked.log.read_text().splitlines()] if asked.log and asked.log.is_file() else []
    )
    known = {(told["model"], told["chip"]): told for told in rows}
    print("| " + " | ".join(_HEAD) + " |\n|" + "---|" * len(_HEAD))
    settings = {"effort": asked.effort, **({"max_parts": asked.max_parts} if asked.max_parts else {})}
    failed = False
    for model in models(asked.shared):
        if asked.only and model.name not in asked.only:
            continue
        for chip in asked.chips:
            told = known.get((model.name, chip)) or row(model, chip, asked.samples, **settings)
            failed |= "calls" in told and bool(told["failed"])
            if asked.log and (model.name, chip) not in known:
                with asked.log.open("a") as log:
                    log.write(json.dumps(told) + "\n")
            print("| " + " | ".join(_line(told)) + " |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
