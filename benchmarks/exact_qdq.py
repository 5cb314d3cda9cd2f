"""Exact files of QuantizeLinear beside the simulator, in several runtimes.

Outputs equal / compared.
    python benchmarks/exact_qdq.py MODELS LOADERS.py [--only CASE ...] [--platform P ...] [--samples
    64]
        [--runtime NAME=PYTHON ...] [--log FILE] [--markdown]

Every model of `cases.py` on every platform, and the digits nets of this repository: quantized with
`--effort fast`, written by `convert --to qdq`, with --exact, and with --exact --functions, and run
sample by sample: the first --samples of the test data, and 16 random ones of which half the values
are ties. --runtime: further runtimes, NAME one of onnxruntime and openvino, PYTHON an interpreter
that has it; OpenVINO gets the functions inlined. --log keeps what was measured: a run that was
killed goes on. --markdown prints the table of benchmarks/results/qdq.md from the log.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from model_cases import CASES, add_folder_arguments

import lingeronnx as lo
from lingeronnx.interchange.qdq.exact.verification import (
    output_qparams,
    outputs_match,
    random_feeds,
)
from lingeronnx.interchange.qdq.exact.write import write_exact
from lingeronnx.ir import ir
from lingeronnx.runtime.data import Data

_ROOT = Path(__file__).parents[1]
_DIGITS = ("cnn", "lstm", "gru", "attention")
_TIES = 16


def _sources(args: argparse.Namespace) -> list[tuple[str, str, str, str]]:
    """Return (name, model, calibration data, test data)."""
    own = [
        (
            f"digits_{name}",
            str(path),
            str(_ROOT / "models/digits_calib.npz"),
            str(_ROOT / "models/digits_test.npz"),
        )
        for name in _DIGITS
        if (path := _ROOT / f"models/digits_{name}.onnx").exists()
    ]
    shared = [
        (
            name,
            CASES[name].model(args.models),
            CASES[name].get_calibration_data(args.loaders),
            CASES[name].get_test_data(args.loaders),
        )
        for name in args.only
    ]
    return own + shared


def _count_equal(made: ir.Model, names: list[str], want: list[Any], path: Path) -> int:
    scales = output_qparams(made)
    with np.load(path) as data:
        got = [data[f"y{index}"] for index in range(len(names))]
    return sum(
        all(
            outputs_match(one, more[index : index + 1], scales.get(name))
            for name, one, more in zip(names, outputs, got, strict=True)
        )
        for index, outputs in enumerate(want)
    )


def _measure_source(
    source: tuple[str, str, str, str], platform: str, args: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    name, model, calib, test = source
    made = lo.quantize(model, calib, platform=platform, effort="fast")
    session = lo.Session(made.graph)
    feeds = [feed for feed, _ in Data(test, session.inputs, limit=args.samples).batches(1)]
    feeds += random_feeds(made.graph, False, _TIES) or []
    np.savez(
        folder / "feeds.npz",
        **{key: np.concatenate([feed[key] for feed in feeds]) for key in feeds[0]},
    )
    whole = write_exact(made.graph, functions=True)
    forms = {
        "plain": lo.convert(made.graph, "qdq").graph,
        "--exact": write_exact(made.graph, functions=False).standard.graph,
        "--exact --functions": whole.standard.graph,
        "inlined": whole.standard.graph.clone(),
    }
    ir.InlinePass()(forms["inlined"])
    row: dict[str, Any] = {
        "net": name,
        "platform": platform,
        "compared": len(feeds),
        "amounts": len(whole.tie_offsets),
    }
    row["functions"] = len(set(whole.function_of.values()))
    row["approximate"] = sorted({operator for operator, _ in whole.inexact.values()})
    names = [str(value.name) for value in whole.standard.graph.graph.outputs]
    want = [session.run(names, feed) for feed in feeds]
    row["equal"] = {}
    for form, graph in forms.items():
        path = folder / "model.onnx"
        ir.save(graph, path)
        for runtime, python in args.runtimes:
            wanted = ["inlined"] if runtime == "openvino" else ["--exact --functions"]
            if (runtime, python) == args.runtimes[0]:
                wanted = ["plain", "--exact", "--exact --functions"]
            if form not in wanted:
                continue
            done = subprocess.run(
                [
                    python,
                    str(_ROOT / "benchmarks/peers/run_exact.py"),
                    runtime,
                    str(path),
                    str(folder / "feeds.npz"),
                    str(folder / "out.npz"),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            key = f"{runtime} {python}|{form}"
            if done.returncode:
                row["equal"][key] = done.stderr.strip().splitlines()[-1][:200]
            else:
                row["equal"][key] = _count_equal(made.graph, names, want, folder / "out.npz")
                row.setdefault("versions", {})[f"{runtime} {python}"] = done.stdout.split()[
                    -1
                ].split("-")[0]
    return row


def _format_table(rows: list[dict[str, Any]]) -> None:
    versions = {
        key: f"{key.split()[0]} {version}"
        for row in rows
        for key, version in row.get("versions", {}).items()
    }
    keys = list(dict.fromkeys(key for row in rows for key in row["equal"]))
    titles = [
        f"{versions.get(key.split('|')[0], key.split()[0])}, {key.split('|')[1]}" for key in keys
    ]
    print("| net | platform | amounts | functions | " + " | ".join(titles) + " |")
    print("|---" * (4 + len(keys)) + "|")
    for row in rows:
        cells = [str(row[key]) for key in ("net", "platform", "amounts", "functions")]
        for key in keys:
            value = row["equal"].get(key)
            cells.append(
                ""
                if value is None
                else f"{value} / {row['compared']}"
                if isinstance(value, int)
                else "error"
            )
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    """Measure what the log lacks, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_folder_arguments(parser)
    parser.add_argument("--platform", nargs="*", default=["venus", "arcs", "venusA", "generic"])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--runtime", nargs="*", default=[])
    parser.add_argument("--log", type=Path)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    args.runtimes = [
        ("onnxruntime", sys.executable),
        *(tuple(one.split("=", 1)) for one in args.runtime),
    ]
    rows = (
        [json.loads(line) for line in args.log.read_text().splitlines()]
        if args.log and args.log.exists()
        else []
    )
    known = {(row["net"], row["platform"]) for row in rows}
    for source in [] if args.markdown else _sources(args):
        for platform in args.platform:
            if (source[0], platform) in known:
                continue
            with tempfile.TemporaryDirectory() as folder:
                rows.append(_measure_source(source, platform, args, Path(folder)))
            print(rows[-1], flush=True)
            if args.log:
                with args.log.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    _format_table(rows)


if __name__ == "__main__":
    main()
