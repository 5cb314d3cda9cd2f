"""How models that are not chip-ready run in parts.

What the chip has of the work, what the host, and how exact it is.
    python -m benchmarks.host_partition --shared FOLDER [--only NAME ...] [--chips venus ...]
    [--effort normal] [--max-parts N]
        [--log FILE]

Models and settings are those of `benchmarks.packability_agreement`; inputs that calibration did not
see come from the folder, and its `real_models.py` says what is measured of a real model. One row
per model and chip: parts, the chip's share of the multiply-accumulates, float operations of the
host per call, the measure. A row in the log is not made again.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import lingeronnx as lo
from benchmarks.packability_agreement import find_models
from tests import packability

CHIPS = ("venus", "arcs", "venusA")
MODELS = (
    "fsdd_attention",
    "filetype_magika_fast",
    "vad_silero_op15",
    "denoise_dtln2",
    "denoise_gtcrn",
)
_HEAD = (
    "model",
    "chip",
    "chip-ready",
    "chip parts",
    "host parts",
    "MACs on the chip",
    "host float operations",
    "measured",
)


def measure_row(model, chip, shared, **settings):
    """Return one row as a dict."""
    loader = packability.LOADERS.get(model.name)
    test = (
        None if loader is None else f"{shared}/data/loaders.py:{loader.replace('_calib', '_test')}"
    )
    made = lo.quantize(
        str(model.path),
        model.calib,
        platform=chip,
        eval_data=test,
        **{**model.settings, **settings},
    )
    report = made.report
    told = {
        "model": model.name,
        "chip": chip,
        "ready": report.chip_ready,
        "share": report.integer_macs,
    }
    told["parts"] = [len(report.program.chip), len(report.program.host_parts)]
    told["refused"] = [part.name for part in report.program.chip if not part.runs]
    told["work"] = sum(part.float_operations for part in report.program.host_parts)
    told["fidelity"] = {name: seen["sqnr"] for name, seen in report.outputs.items()}
    if report.accuracy is not None:
        told["measured"] = {key: report.accuracy[key] for key in ("float", "integer")}
    else:
        told["measured"] = _measure_real_model(model.path.name, made, shared)
    return told


def _measure_real_model(file, made, shared):
    """Return what `real_models.py` measures of a model."""
    script = packability.module(shared / "data" / "real_models.py")
    name = next(name for name, entry in script.MODELS.items() if entry[0] == file)
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder) / "model.onnx")
        return {
            key: float(value)
            for key, value in script.measure(name, Path(folder) / "model.onnx").items()
        }


def _format_line(told):
    measured = ", ".join(f"{name} {value:.2f}" for name, value in told["measured"].items())
    refused = f" (refused: {', '.join(told['refused'])})" if told["refused"] else ""
    chip, host = told["parts"] if told["parts"][0] else ("1", "-")
    work = f"{told['work']:,}" if told["parts"][0] else "-"
    ready = "yes" if told["ready"] else "no"
    return [
        told["model"],
        told["chip"],
        ready,
        f"{chip}{refused}",
        host,
        f"{100 * told['share']:.1f} %",
        work,
        measured,
    ]


def main(words=None):
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shared", type=Path, required=True, metavar="FOLDER", help="models/ and data/"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", default=MODELS)
    parser.add_argument("--chips", nargs="+", choices=CHIPS, default=CHIPS)
    parser.add_argument("--effort", choices=["fast", "normal", "best"], default="normal")
    parser.add_argument(
        "--max-parts",
        type=int,
        metavar="N",
        help="layers may move to the host: so many parts at most",
    )
    parser.add_argument(
        "--log", type=Path, help="rows as they come; a run that was interrupted goes on"
    )
    asked = parser.parse_args(words)
    lines = asked.log.read_text().splitlines() if asked.log and asked.log.is_file() else []
    known = {(told["model"], told["chip"]): told for told in map(json.loads, lines)}
    print("| " + " | ".join(_HEAD) + " |\n|" + "---|" * len(_HEAD))
    for model in find_models(asked.shared):
        for chip in asked.chips if model.name in asked.only else ():
            parts = {"max_parts": asked.max_parts} if asked.max_parts else {}
            told = known.get((model.name, chip)) or measure_row(
                model, chip, asked.shared, effort=asked.effort, **parts
            )
            if asked.log and (model.name, chip) not in known:
                with asked.log.open("a") as log:
                    log.write(json.dumps(told) + "\n")
            print("| " + " | ".join(map(str, _format_line(told))) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
