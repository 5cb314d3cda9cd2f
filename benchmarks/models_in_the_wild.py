"""Quantize every model of a folder with defaults, and write a table fit for a bug report.

    python benchmarks/models_in_the_wild.py FOLDER [--platforms generic venus] [--onnxruntime]
        [--options FILE.json] [--only NAME ...] [--timeout SECONDS] [--output TABLE.md]

Each model is one call of `lingeronnx quantize`, in a process of its own; the table has the command
line. Calibration data are NAME_calib.npz beside the model, data to measure on NAME_eval.npz; without
it, SQNR is that of the report, on calibration samples that a trial run left out. Without either,
samples are written to TABLE_data/: 64 of `default_rng(1)`, 32 of `default_rng(2)`, standard normal;
integers are 0 to 99, masks are 1 and end with some 0. Only sizes that the file or `--input-shape`
states are known: a model with other open sizes is quantized without data.
FILE.json maps a model's name to further options: {"NAME": ["--input-shape", "ids=1,16"]}.

Columns: multiply-accumulates in integers; whether the graph is chip-ready; SQNR in dB of the worst
output, on samples that calibration did not see; CPU seconds and peak memory of `quantize`; the first
reason why a node stays in float or the graph is not chip-ready, or the whole message of an error.
The reference is onnxruntime on the file, unfused if that is quantized; operators that it lacks are
replaced by their function bodies.

With --onnxruntime, `quantize_static` gets the same samples: QDQ with int8 or uint8 activations,
MinMax and Percentile, per tensor and per channel. Its models run unfused (ORT_DISABLE_ALL: fused int8
kernels saturate on AVX2). The table has the better calibration of both granularities.

TABLE.jsonl keeps each row as soon as it is measured, and an interrupted run continues. Exit code 1
if a model failed with anything but an error message of one line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

PEER = "onnxruntime"
_SAMPLES = {"calib": (1, 64), "eval": (2, 32)}  # seed and number
_PEER_VARIANTS = [(m, g) for m in ("MinMax", "Percentile") for g in ("tensor", "channel")]
_PEER_OPSET = 23  # onnxruntime 1.32 has no DequantizeLinear of opset 28
_USER_ERROR = 1  # exit code of `lingeronnx` for faults of the user's model or data
_Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class _Case:
    """A model, its data (None: `quantize` draws random inputs) and further options."""

    model: Path
    calib: Path | None
    eval: Path | None
    options: tuple[str, ...]


# ---- data ----------------------------------------------------------------------------------------


def read_input_shapes(options: Sequence[str]) -> dict[str, list[int]]:
    """Return the shapes that `--input-shape` options state, by input."""
    shapes = {}
    for option, value in zip(options, options[1:], strict=False):
        if option == "--input-shape":
            name, dims = value.split("=")
            shapes[name] = [int(dim) for dim in dims.split(",")]
    return shapes


def draw_samples(
    model: Path, options: Sequence[str], seed: int, count: int
) -> dict[str, np.ndarray] | None:
    """Draw samples for each input, with the samples along axis 0; None if a size is not known."""
    graph, arrays = onnx.load(model, load_external_data=False).graph, _Arrays()
    rng = np.random.default_rng(seed)
    constants = {tensor.name for tensor in graph.initializer}
    fixed = {
        value.split("=")[0]
        for key, value in zip(options, options[1:], strict=False)
        if key == "--fix"
    }
    stated = read_input_shapes(options)
    for value in graph.input:
        if value.name in constants or value.name in fixed:
            continue
        tensor = value.type.tensor_type
        dims = stated.get(value.name, [dim.dim_value for dim in tensor.shape.dim])
        if not dims or any(dim <= 0 for dim in dims[1:]):
            return None
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind not in "fiub":
            return None
        arrays[value.name] = draw_values(rng, value.name, (count, *dims[1:]), dtype)
    return arrays


def draw_values(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray:
    """Draw normal numbers, integers from 0 to 99, or for a mask ones that end with some zeros."""
    if "mask" in name and len(shape) > 1:
        lengths = rng.integers(shape[-1] // 2, shape[-1] + 1, shape[:-1])
        return np.asarray(np.arange(shape[-1]) < lengths[..., None]).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 100, shape).astype(dtype)


def find_data(model: Path, options: Sequence[str], folder: Path) -> dict[str, Path | None]:
    """Return the files with calibration and evaluation data of `model`, which may be written."""
    files: dict[str, Path | None] = dict.fromkeys(_SAMPLES)
    for kind in _SAMPLES:
        given = model.with_name(f"{model.stem}_{kind}.npz")
        if given.exists():
            files[kind] = given
    if files["calib"] is not None:
        return files
    for kind, (seed, count) in _SAMPLES.items():
        arrays = draw_samples(model, options, seed, count)
        if files[kind] is None and arrays:
            folder.mkdir(parents=True, exist_ok=True)
            files[kind] = folder / f"{model.stem}_{kind}.npz"
            np.savez(folder / f"{model.stem}_{kind}.npz", **arrays)
    return files


def iterate_samples(path: Path) -> Iterator[_Arrays]:
    """Yield the samples of an .npz file one by one, each with a batch axis of 1."""
    arrays = dict(np.load(path))
    arrays.pop("labels", None)
    for index in range(len(next(iter(arrays.values())))):
        yield {name: array[index : index + 1] for name, array in arrays.items()}


# ---- measurements --------------------------------------------------------------------------------


def run_measured(command: Sequence[str], timeout: float) -> tuple[int, str, str, float, float]:
    """Run a command; return exit code, both outputs, CPU seconds and peak memory in MB.

    The exit code of a command that exceeds `timeout` seconds is -1.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, text=True)
        deadline, pid = time.monotonic() + timeout, 0
        while not pid and time.monotonic() < deadline:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            time.sleep(0 if pid else 0.05)
        if not pid:
            process.kill()
            pid, status, usage = os.wait4(process.pid, 0)
            status = 255 << 8
        process.returncode = os.waitstatus_to_exitcode(status)
        code = -1 if status == 255 << 8 else process.returncode
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read(), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def make_command(case: _Case, target: str, output: str) -> list[str]:
    """Return the arguments of `lingeronnx` that quantize a model."""
    data = [] if case.calib is None else ["--calib", str(case.calib)]
    return ["quantize", str(case.model), *data, "--platform", target, *case.options, "-o", output]


def quantize_model(case: _Case, target: str, timeout: float) -> dict[str, Any]:
    """Quantize a model for `target` in a process of its own, and measure the result."""
    with tempfile.TemporaryDirectory() as folder:
        output = f"{folder}/quantized.onnx"
        command = make_command(case, target, output)
        run = [sys.executable, "-m", "lingeronnx", *command, "--json"]
        code, out, err, seconds, memory = run_measured(run, timeout)
        row: dict[str, Any] = {
            "command": " ".join(["lingeronnx", *make_command(case, target, "q.onnx")]),
            "seconds": seconds,
            "MB": memory,
        }
        if code:
            message = f"not finished after {timeout:.0f} s" if code == -1 else _join_lines(err)
            return {**row, "error": message, "code": code}
        report = json.loads(out)
        row["integer MACs"] = report["integer_macs"]
        row["chip-ready"] = report["chip_ready"]
        row["reason"] = find_first_reason(report)
        held_out = [output["sqnr"] for output in report["outputs"].values()]
        row["SQNR"] = min((value for value in held_out if value is not None), default=None)
        row["basis"] = report["measured_on"]
        if case.eval is not None and "--state" not in case.options:
            row.update(measure_in_process(case, output))
        return row


def find_first_reason(report: Mapping[str, Any]) -> str:
    """Return why the first float node stays in float, or why the graph is not chip-ready."""
    for node in (*report["float_nodes"], *report["host_part"]):
        return f"{node['op_type']} {node['node']}: {node['why']}"
    for text in (*report["why_not"], *report["warnings"]):
        return str(text)
    return ""


def measure_in_process(case: _Case, quantized: str) -> dict[str, Any]:
    """Measure the SQNR of a quantized file on the evaluation data, in a process of its own."""
    command = [sys.executable, __file__, str(case.model), "--measure", quantized, str(case.eval)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"basis": f"the report's samples ({_join_lines(done.stderr)[-200:]})"}
    return {"SQNR": json.loads(done.stdout), "basis": "evaluation data"}


def measure_sqnr(model: Path, quantized: str, data: Path) -> float:
    """Return the SQNR in dB of the worst output of a quantized model, over all samples of `data`.

    Both run unfused in onnxruntime if they are quantized.
    """
    import onnxruntime as ort

    import lingeronnx as lo

    unfused = ort.SessionOptions()
    unfused.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    is_quantized = any("Quantize" in node.op_type for node in onnx.load(model).graph.node)
    reference = ort.InferenceSession(
        expand_for_onnxruntime(model), unfused if is_quantized else None
    )
    if any(node.domain == "thinker" for node in onnx.load(quantized).graph.node):
        session: Any = lo.Session(quantized)
    else:
        session = ort.InferenceSession(quantized, unfused)
    names = [value.name for value in reference.get_outputs()]
    inputs = {value.name for value in session.get_inputs()}
    signal, noise = np.zeros(len(names)), np.zeros(len(names))
    for feed in iterate_samples(data):
        expected = reference.run(names, feed)
        actual = session.run(names, {key: feed[key] for key in feed if key in inputs})
        for index, (first, second) in enumerate(zip(expected, actual, strict=True)):
            if first.shape != second.shape or not np.array_equal(
                np.isfinite(first), np.isfinite(second)
            ):
                return float("-inf")
            finite = np.isfinite(first)
            wanted = first[finite].astype(np.float64)
            signal[index] += (wanted**2).sum()
            noise[index] += ((wanted - second[finite]) ** 2).sum()
    return float((10 * np.log10(np.maximum(signal, 1e-30) / np.maximum(noise, 1e-30))).min())


def expand_for_onnxruntime(model: Path, *, lowest_opset: bool = False) -> bytes | str:
    """Return a model that onnxruntime runs: operators that it lacks become their function bodies.

    With `lowest_opset` the model declares at most the opset whose QuantizeLinear onnxruntime has.
    """
    from lingeronnx.ir import ir
    from lingeronnx.runtime.runners.missing_kernels import expand_missing_kernels

    loaded = ir.from_proto(onnx.load(model))
    is_newer = lowest_opset and ir.get_opset(loaded) > _PEER_OPSET
    if not expand_missing_kernels(loaded) and not is_newer:
        return str(model)
    if is_newer:
        loaded.opset_imports[""] = _PEER_OPSET
    return ir.to_bytes(loaded)


# ---- onnxruntime ---------------------------------------------------------------------------------


class _Reader:
    """Samples of a file one by one, as onnxruntime's calibration reads them."""

    def __init__(self, path: Path) -> None:
        self._samples = iterate_samples(path)

    def get_next(self) -> _Arrays | None:
        """Return the next sample, None at the end."""
        return next(self._samples, None)


def quantize_with_onnxruntime(model: Path, data: Path, variant: str, output: str) -> None:
    """Write a model quantized by `quantize_static`; `variant` is METHOD,tensor or METHOD,channel."""
    from onnxruntime import quantization

    method, granularity = variant.split(",")
    with tempfile.TemporaryDirectory() as folder:
        prepared = f"{folder}/prepared.onnx"
        # A model that needs no expansion is read where it lies: its weights may lie beside it.
        source = expand_for_onnxruntime(model.resolve(), lowest_opset=True)
        expanded = source if isinstance(source, str) else f"{folder}/expanded.onnx"
        if isinstance(source, bytes):
            Path(expanded).write_bytes(source)
        try:
            with contextlib.chdir(folder):  # it leaves files in the working folder
                quantization.quant_pre_process(expanded, prepared)
        except Exception as error:  # symbolic shape inference fails for some models
            print(f"quant_pre_process: {type(error).__name__}", file=sys.stderr)
            prepared = expanded
        quantization.quantize_static(
            prepared,
            output,
            _Reader(data),
            quantization.QuantFormat.QDQ,
            per_channel=granularity == "channel",
            calibrate_method=quantization.CalibrationMethod[method],
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )


def measure_onnxruntime(case: _Case, timeout: float) -> dict[str, Any]:
    """Return the SQNR of each variant of `quantize_static`, or its error, and the CPU seconds."""
    if case.calib is None or case.eval is None or "--state" in case.options:
        return {"error": "no data for single calls"}
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for method, granularity in _PEER_VARIANTS:
            variant, output = f"{method},{granularity}", f"{folder}/quantized.onnx"
            command = [
                sys.executable,
                __file__,
                str(case.model),
                "--peer",
                variant,
                str(case.calib),
            ]
            code, _, err, seconds, memory = run_measured([*command, output], timeout)
            figures[variant] = (
                _join_lines(err)[-200:] if code else measure_in_process(case, output).get("SQNR")
            )
            if method == "MinMax":
                figures.setdefault("seconds", seconds)
                figures.setdefault("MB", memory)
    return figures


# ---- table ---------------------------------------------------------------------------------------


def _join_lines(text: str) -> str:
    """Return the last paragraph of what a command wrote, on one line."""
    return " ".join(text.strip().split("\n\n")[-1].split())


def format_row(name: str, target: str, row: Mapping[str, Any], peer: Mapping[str, Any]) -> str:
    """Format one line of the table."""
    cost = f"{row['seconds']:.1f} | {row['MB']:.0f}"
    figures = [
        format_decibels(
            max(
                (v for k, v in peer.items() if k.endswith(granularity) and isinstance(v, float)),
                default=None,
            )
        )
        for granularity in ("tensor", "channel")
    ]
    if "error" in row:
        return f"| {name} | {target} | - | - | - | {' | '.join(figures)} | {cost} | {_escape(row['error'])} |"
    ready = "yes" if row["chip-ready"] else "no"
    macs = "-" if row["integer MACs"] is None else f"{100 * row['integer MACs']:.1f} %"
    return (
        f"| {name} | {target} | {macs} | {ready} | {format_decibels(row['SQNR'])} | {' | '.join(figures)} | "
        f"{cost} | {_escape(row['reason'])} |"
    )


def _escape(text: str) -> str:
    """Return `text` for a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def format_decibels(value: float | None) -> str:
    """Format an SQNR in dB, "-" if there is none."""
    return "-" if value is None else f"{value:.1f}"


def describe_machine() -> str:
    """Return the processor, the number of cores and the versions that a table stands on."""
    import onnxruntime

    import lingeronnx

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor()
    return (
        f"{processor}, {os.cpu_count()} cores; lingeronnx {lingeronnx.__version__}, onnx "
        f"{onnx.__version__}, onnxruntime {onnxruntime.__version__}, Python "
        f"{platform.python_version()}"
    )


def format_table(cases: Sequence[_Case], targets: Sequence[str], rows: Mapping[str, Any]) -> str:
    """Format all measured rows, the commands and the machine as Markdown."""
    lines = [
        (
            "| model | platform | integer MACs | chip-ready | SQNR, dB | onnxruntime per tensor, dB | "
            "per channel, dB | CPU s | MB | first reason or message |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    commands = []
    for case in cases:
        peer = rows.get(f"{case.model.stem} {PEER}", {})
        for target in targets:
            row = rows.get(f"{case.model.stem} {target}")
            if row is not None:
                lines.append(format_row(case.model.stem, target, row, peer))
                basis = row.get("basis", "")
                commands.append(f"    {row['command']}" + (f"    # {basis}" if basis else ""))
    return "\n".join(
        [
            f"Machine: {describe_machine()}.",
            "",
            *lines,
            "",
            "Commands, and what SQNR was measured on:",
            "",
            *commands,
            "",
        ]
    )


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--platforms", nargs="+", default=["generic", "venus"])
    parser.add_argument("--onnxruntime", action="store_true")
    parser.add_argument("--options", type=Path)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--output", type=Path, default=Path("models_in_the_wild.md"))
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def find_cases(arguments: argparse.Namespace) -> list[_Case]:
    """Return the models of the folder with their data and options."""
    options = {} if arguments.options is None else json.loads(arguments.options.read_text())
    data_folder = arguments.output.with_name(arguments.output.stem + "_data")
    cases = []
    for model in sorted(arguments.folder.glob("*.onnx")):
        if arguments.only and model.stem not in arguments.only:
            continue
        extra = tuple(options.get(model.stem, ()))
        files = find_data(model, extra, data_folder)
        cases.append(_Case(model, files["calib"], files["eval"], extra))
    return cases


def measure_cases(
    cases: Sequence[_Case], arguments: argparse.Namespace, rows: dict[str, Any]
) -> None:
    """Add the rows that `rows` lacks, and write each to the journal and the table."""
    journal = arguments.output.with_suffix(".jsonl")
    ways = [*([PEER] if arguments.onnxruntime else []), *arguments.platforms]
    for case in cases:
        for way in ways:
            key = f"{case.model.stem} {way}"
            if key in rows:
                continue
            if way == PEER:
                rows[key] = measure_onnxruntime(case, arguments.timeout)
            else:
                rows[key] = quantize_model(case, way, arguments.timeout)
                peer = rows.get(f"{case.model.stem} {PEER}", {})
                print(format_row(case.model.stem, way, rows[key], peer), flush=True)
            with journal.open("a") as file:
                file.write(json.dumps([key, rows[key]]) + "\n")
            arguments.output.write_text(format_table(cases, arguments.platforms, rows))


def main() -> int:
    """Measure the models that have no row yet, and write the table."""
    arguments = parse_arguments()
    if arguments.measure:
        quantized, data = arguments.measure
        print(json.dumps(measure_sqnr(arguments.folder, quantized, Path(data))))
        return 0
    if arguments.peer:
        variant, data, output = arguments.peer
        quantize_with_onnxruntime(arguments.folder, Path(data), variant, output)
        return 0
    journal = arguments.output.with_suffix(".jsonl")
    lines = journal.read_text().splitlines() if journal.exists() else []
    rows = dict(json.loads(line) for line in lines)
    cases = find_cases(arguments)
    measure_cases(cases, arguments, rows)
    arguments.output.write_text(format_table(cases, arguments.platforms, rows))
    codes = {row.get("code", 0) for row in rows.values()}
    return int(bool(codes - {0, _USER_ERROR}))


if __name__ == "__main__":
    sys.exit(main())
