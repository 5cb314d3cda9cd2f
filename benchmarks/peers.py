"""Other quantizers and ours on the same models, calibration and test data, judged by the same code.

    python benchmarks/peers.py MODELS LOADERS.py [--only CASE ...] [--ways WORD ...]
        [--peers ours onnxruntime esp_ppq quark aimet_onnx nncf] [--home DIR] [--python python3.11]
        [--samples 256] [--limit N] [--timeout SECONDS] [--results FILE.jsonl]

Each peer has a virtual environment of its own under --home, made from the pinned list
benchmarks/peers/PEER.txt; one that cannot be installed is skipped with a word. It gets the first
--samples calibration samples one by one and writes a file of QuantizeLinear and DequantizeLinear,
which onnxruntime runs. Our integers run on the simulator. `evaluate`
measures both: top-1 where there are labels, and against the float model the SQNR of what goes into
the last Softmax, or of the output where there is none. --results keeps every line, and a run that
was interrupted goes on there.

At the end there are two tables: any scale, and powers of two.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from model_cases import CASES, Case, add_folder_arguments
from onnx import helper

import lingeronnx as lo
from lingeronnx.runtime.data import Data

HERE = Path(__file__).parent / "peers"
MAX_MEMORY_BYTES = 8 << 30  # bytes of disk that an environment may need


@dataclass(frozen=True)
class QuantizationMethod:
    """One way to quantize: `setting` is what the peer's script takes, or ours what `quantize` takes."""

    peer: str
    title: str
    setting: Any
    power: bool = False


METHODS = (
    *(
        QuantizationMethod("onnxruntime", f"{method}, {per}", f"{method},{per}")
        for method in ("MinMax", "Percentile", "Entropy")
        for per in ("tensor", "channel")
    ),
    QuantizationMethod("esp_ppq", "onnxruntime platform, percentile", "ONNXRUNTIME,percentile"),
    QuantizationMethod("quark", "A8W8", "A8W8"),
    QuantizationMethod("aimet_onnx", "min_max", "min_max"),
    QuantizationMethod("quark", "A8W8, AdaRound", "A8W8_ADAROUND"),
    QuantizationMethod("quark", "A8W8, AdaQuant", "A8W8_ADAQUANT"),
    QuantizationMethod("aimet_onnx", "tf_enhanced", "tf_enhanced"),
    QuantizationMethod("aimet_onnx", "min_max, sequential MSE", "min_max,seq_mse"),
    QuantizationMethod("aimet_onnx", "min_max, AdaRound", "min_max,adaround"),
    QuantizationMethod("aimet_onnx", "min_max, 1,000 steps of AdaRound", "min_max,adaround:1000"),
    QuantizationMethod("aimet_onnx", "4-bit weights", "min_max,int4"),
    QuantizationMethod("aimet_onnx", "4-bit weights, sequential MSE", "min_max,int4,seq_mse"),
    QuantizationMethod("aimet_onnx", "4-bit weights, AdaRound", "min_max,int4,adaround"),
    QuantizationMethod(
        "aimet_onnx", "4-bit weights, 1,000 steps of AdaRound", "min_max,int4,adaround:1000"
    ),
    QuantizationMethod("nncf", "full bias correction", "bias"),
    QuantizationMethod("nncf", "accuracy control (layers in float)", "control"),
    QuantizationMethod(
        "ours", "generic, a scale per tensor", {"platform": "generic", "mode": "max-value"}
    ),
    QuantizationMethod(
        "ours",
        "generic, a scale per channel",
        {"platform": "generic", "mode": "max-value", "weight_scales": "channel"},
    ),
    QuantizationMethod(
        "ours",
        "generic, per channel, zero points",
        {
            "platform": "generic",
            "mode": "max-value",
            "weight_scales": "channel",
            "activations": "asymmetric",
        },
    ),
    QuantizationMethod(
        "ours",
        "generic, 4-bit weights, a scale per tensor",
        {"platform": "generic", "mode": "max-value", "weight_bits": 4},
    ),
    QuantizationMethod(
        "esp_ppq", "ESP32-S3 (per tensor), its default kl", "ESPDL_S3_INT8,default", True
    ),
    QuantizationMethod(
        "esp_ppq", "ESP32-S3 (per tensor), percentile", "ESPDL_S3_INT8,percentile", True
    ),
    QuantizationMethod("esp_ppq", "ESP32-S3 (per tensor), TQT", "ESPDL_S3_INT8,default,tqt", True),
    QuantizationMethod(
        "esp_ppq", "ESP32-S3 (per tensor), AutoQuant", "ESPDL_S3_INT8,default,auto", True
    ),
    QuantizationMethod(
        "esp_ppq", "ESP32-P4 (per channel), its default kl", "ESPDL_INT8,default", True
    ),
    QuantizationMethod(
        "esp_ppq", "ESP32-P4 (per channel), percentile", "ESPDL_INT8,percentile", True
    ),
    QuantizationMethod("esp_ppq", "ESP32-P4 (per channel), TQT", "ESPDL_INT8,default,tqt", True),
    QuantizationMethod("quark", "XINT8", "XINT8", True),
    QuantizationMethod("quark", "XINT8, AdaRound", "XINT8_ADAROUND", True),
    QuantizationMethod("quark", "XINT8, AdaQuant", "XINT8_ADAQUANT", True),
    QuantizationMethod("ours", "venus", {"platform": "venus"}, True),
    QuantizationMethod("ours", "arcs, 4-bit weights", {"platform": "arcs", "weight_bits": 4}, True),
    QuantizationMethod("ours", "venus, effort best", {"platform": "venus", "effort": "best"}, True),
)

#: The distribution whose version is told.
PACKAGES = {
    "onnxruntime": "onnxruntime",
    "esp_ppq": "esp-ppq",
    "quark": "amd-quark",
    "aimet_onnx": "aimet-onnx",
    "nncf": "nncf",
}


# ---- environments ------------------------------------------------------------------------------------------------


def environment(peer: str, home: Path, python: str) -> tuple[Path, str]:
    """Return the interpreter of a peer's environment, made where it is not there, and the peer's version.

    Raises OSError or CalledProcessError where it cannot be made.
    """
    pinned = HERE / f"{peer}.txt"
    folder = home / peer
    interpreter, mark = folder / "bin" / "python", folder / "pinned.txt"
    if not mark.exists() or mark.read_text() != pinned.read_text():
        home.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(home).free) < MAX_MEMORY_BYTES:
            raise OSError(
                f"{home} has {free >> 30} GiB free, {MAX_MEMORY_BYTES >> 30} are needed; give "
                "--home DIR"
            )
        subprocess.run([python, "-m", "venv", folder], check=True, capture_output=True, text=True)
        install = [interpreter, "-m", "pip", "install", "-r", pinned]
        subprocess.run(install, check=True, capture_output=True, text=True)
        shutil.copy(pinned, mark)
    ask = f"import importlib.metadata as m; print(m.version('{PACKAGES[peer]}'))"
    told = subprocess.run([interpreter, "-c", ask], check=True, capture_output=True, text=True)
    return interpreter, told.stdout.strip()


def _last_line(text: str | bytes | None) -> str:
    """Return the last line that says something, for a table."""
    text = text.decode(errors="replace") if isinstance(text, bytes) else text or ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "it said nothing")[:160].replace("|", "/")


# ---- one file ----------------------------------------------------------------------------------------------------


def before_softmax(path: Path, name: str, target: Path) -> None:
    """Write the model up to the input of its last Softmax, or its output where there is none, as tensor `name`."""
    model = onnx.load(path)
    makers = {output: node for node in model.graph.node for output in node.output}
    end = model.graph.output[0].name
    while (node := makers.get(end)) is not None and node.op_type in (
        "DequantizeLinear",
        "QuantizeLinear",
        "Softmax",
    ):
        if node.op_type == "Softmax":
            end = node.input[0]
            break
        end = node.input[0]
    else:
        end = model.graph.output[0].name
    for node in model.graph.node:
        for side in (node.input, node.output):
            for index, each in enumerate(side):
                side[index] = "renamed_" + name if each == name else each
    end = "renamed_" + name if end == name else end
    del model.graph.value_info[:]
    del model.graph.output[:]
    model.graph.node.append(helper.make_node("Identity", [end], [name]))
    model.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    onnx.save(model, target)


def measure_model(case: Case, args: argparse.Namespace, made: Any, cut: Any) -> dict[str, float]:
    """Return the figures of a model: `made` as it is, and `cut` before its Softmax."""
    model, test = case.model(args.models), case.get_test_data(args.loaders)
    data = Data(test, lo.Session(model).inputs, limit=1)
    labelled = next(data.batches(1))[1] is not None
    found = {}
    if labelled:
        found["top1"] = float(lo.evaluate(made, test, metric="top1", limit=args.limit).value)
    found["sqnr"] = float(
        lo.evaluate(
            cut, test, metric="sqnr", baseline=model, output=case.output, limit=args.limit
        ).value
    )
    return found


def quantize_and_measure(
    case: Case,
    way: QuantizationMethod,
    args: argparse.Namespace,
    interpreter: Path | None,
    folder: Path,
) -> dict[str, Any]:
    """Quantize and measure; return the figures and the seconds, or why there are none."""
    model, calib = case.model(args.models), case.get_calibration_data(args.loaders)
    began = time.perf_counter()
    if interpreter is None:
        session = lo.quantize(model, calib, limit=args.samples, **way.setting).session()
        took = time.perf_counter() - began
        return {**measure_model(case, args, session, session), "seconds": took}
    inputs = lo.Session(model).inputs
    parts = [feeds for feeds, _ in Data(calib, inputs, limit=args.samples).batches(64)]
    np.savez(
        folder / "calib.npz",
        **{i.name: i.concatenate([part[i.name] for part in parts]) for i in inputs},
    )
    shutil.copy(model, folder / "model.onnx")
    out, script = folder / "out.onnx", HERE / f"run_{way.peer}.py"
    try:
        subprocess.run(
            [
                interpreter,
                script.resolve(),
                folder / "model.onnx",
                folder / "calib.npz",
                out,
                way.setting,
            ],
            check=True,
            capture_output=True,
            timeout=args.timeout,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        return {"why": f"not done after {args.timeout} s"}
    except subprocess.CalledProcessError as error:
        return {"why": _last_line(error.stderr)}
    took = time.perf_counter() - began
    before_softmax(out, case.output, folder / "cut.onnx")
    return {**measure_model(case, args, str(out), str(folder / "cut.onnx")), "seconds": took}


# ---- all ---------------------------------------------------------------------------------------------------------


def format_table(lines: list[dict[str, Any]], power: bool) -> str:
    """Return one of the two tables, as Markdown."""
    found = [line for line in lines if line["power"] == power]
    cases = list(dict.fromkeys(line["case"] for line in found))
    rows = [f"| quantizer | {' | '.join(cases)} |", "|---" * (len(cases) + 1) + "|"]
    for title in dict.fromkeys(line["title"] for line in found):
        here = {line["case"]: line for line in found if line["title"] == title}
        rows.append(f"| {title} | {' | '.join(_cell(here.get(case)) for case in cases)} |")
    return "\n".join(rows)


def _cell(line: dict[str, Any] | None) -> str:
    if line is None:
        return ""
    if "why" in line:
        return f"- ({line['why']})"
    top = f"{line['top1']:.2f} %, " if "top1" in line else ""
    return f"{top}{line['sqnr']:.1f} dB"


def main() -> None:
    """Parse the arguments, run everything and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_folder_arguments(parser)
    parser.add_argument(
        "--peers", nargs="*", choices=["ours", *PACKAGES], default=["ours", *PACKAGES]
    )
    parser.add_argument(
        "--ways", nargs="*", default=[""], metavar="WORD", help="whose title has one of the words"
    )
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache" / "lingeronnx-peers")
    parser.add_argument("--python", default="python3.11", help="makes the environments")
    parser.add_argument("--samples", type=int, default=256, help="calibration samples at most")
    parser.add_argument("--limit", type=int, help="test samples at most")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one model")
    parser.add_argument("--results", type=Path, help="a file that keeps every line")
    args = parser.parse_args()
    args.models, args.loaders = args.models.resolve(), args.loaders.resolve()
    kept = (
        args.results.read_text().splitlines()
        if args.results is not None and args.results.exists()
        else []
    )
    lines = [json.loads(line) for line in kept]
    done = {(line["case"], line["title"]) for line in lines}
    ready: dict[str, Path | None] = {"ours": None} if "ours" in args.peers else {}
    versions = {"ours": lo.__version__}
    for peer in args.peers:
        if peer == "ours":
            continue
        try:
            ready[peer], versions[peer] = environment(peer, args.home, args.python)
        except (OSError, subprocess.CalledProcessError) as error:
            print(
                f"{peer} is skipped: {_last_line(getattr(error, 'stderr', None) or str(error))}",
                flush=True,
            )
    ways = [
        way for way in METHODS if way.peer in ready and any(word in way.title for word in args.ways)
    ]
    for name, way in itertools.product(args.only, ways):
        title = (
            f"lingeronnx, {way.title}"
            if way.peer == "ours"
            else f"{PACKAGES[way.peer]}, {way.title}"
        )
        if (name, title) in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = quantize_and_measure(CASES[name], way, args, ready[way.peer], Path(folder))
        line = {"case": name, "title": title, "power": way.power, **found}
        lines.append(line)
        print(json.dumps(line), flush=True)
        if args.results is not None:
            with args.results.open("a") as file:
                file.write(json.dumps(line) + "\n")
    print(
        ", ".join(
            f"{PACKAGES.get(peer, 'lingeronnx')} {version}" for peer, version in versions.items()
        )
    )
    for power, head in ((False, "Any scale"), (True, "Powers of two")):
        print(f"\n{head}\n\n{format_table(lines, power)}")


if __name__ == "__main__":
    main()
