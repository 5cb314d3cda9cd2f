"""What a stranger's first attempt gives.

`quantize` with defaults on every model of some folders, beside onnxruntime's.
    python benchmarks/default_quantization.py FOLDER ... [--loaders LOADERS.py] [--sizes FILE.json]
    [--only NAME ...]
        [--platforms generic venus] [--programs] [--timeout SECONDS] [--results FILE.jsonl]

LOADERS.py has MODELS {name: (file, calibration, test, {output: state it feeds})}, FIXED {name:
{input: value}} and measure(name, quantized) -> {figure: value}. A model that it does not know gets
normal random inputs: 32 to calibrate, 16 others to measure on. Without `measure`, figures are dB at
finite values of each output, sample by sample. FILE.json has {name: {input: its sizes, or one
number that it always has}}; else an open size is 8.

With --programs each chip's graph is deployed with `try_it`, on two of the samples (with
`--max-parts 16` where the chip refuses a part), and what came of the proof is told.

onnxruntime is `quantize_static` behind `quant_pre_process`: QDQ, int8, MinMax, a scale per channel
(per tensor before opset 13, which has no other), on the same data one by one; not for models that
are fed their own states. Each attempt is a process of its own, whose processor time (without
imports) and peak memory are counted. --results keeps every attempt, and a run that was interrupted
goes on. Below the table stand, for each platform, the median and the largest of what we take for
what onnxruntime takes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

PEER = "onnxruntime"
_OPEN = 8  # a size that the file leaves open
_Feed = dict[str, np.ndarray]


def loaders(path: str | None) -> Any:
    """Return the module of loaders, None without one."""
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location("first_attempts_loaders", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_entry(module: Any, model: Path) -> str | None:
    """Return the name under which `module` knows the file `model`."""
    known = {} if module is None else module.MODELS
    return next((name for name, row in known.items() if row[0] == model.name), None)


def read_sizes(sizes: str | None, model: Path) -> dict[str, Any]:
    """Return {input: its sizes, or a number} of `model` in the file `sizes`."""
    return {} if sizes is None else json.loads(Path(sizes).read_text()).get(model.stem, {})


def random_feeds(model: Path, count: int, seed: int, wish: Mapping[str, Any]) -> list[_Feed]:
    """Return `count` feeds of one sample each.

    Whole numbers are 0 to 99, and a mask ends with some zeros.
    wish : {input: its sizes, or the number that it always has}.
    """
    graph, rng, feeds = onnx.load(model).graph, np.random.default_rng(seed), []
    held = {tensor.name for tensor in graph.initializer}
    for _ in range(count):
        feed: _Feed = {}
        for value in graph.input:
            if value.name in held:
                continue
            kind = value.type.tensor_type
            size = [
                d.dim_value if d.dim_value > 0 else _OPEN if i else 1
                for i, d in enumerate(kind.shape.dim)
            ]
            dtype, said = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type), wish.get(value.name)
            size = said if isinstance(said, list) else size
            if said is not None and said is not size:
                feed[value.name] = np.full(size, said, dtype)
            elif dtype.kind == "f":
                feed[value.name] = rng.standard_normal(size).astype(dtype)
            elif dtype.kind == "O":
                feed[value.name] = np.full(size, "a", object)
            elif "mask" in value.name:
                feed[value.name] = np.ones(size, dtype)
                feed[value.name][..., int(rng.integers(size[-1] // 2, size[-1] + 1)) :] = 0
            else:
                feed[value.name] = rng.integers(0, 100, size).astype(dtype)
        feeds.append(feed)
    return feeds


def decibels(want: np.ndarray, have: np.ndarray) -> float:
    """Return the signal to noise ratio of the finite values.

    Below zero where others differ in kind or number.
    """
    if want.shape != have.shape or not np.array_equal(np.isfinite(want), np.isfinite(have)):
        return float("-inf")
    sound = np.isfinite(want)
    signal, other = want[sound].astype(np.float64), have[sound].astype(np.float64)
    return float(
        10 * np.log10(max((signal**2).sum(), 1e-30) / max(((signal - other) ** 2).sum(), 1e-30))
    )


def measure_outputs(
    module: Any, model: Path, wish: Mapping[str, Any], quantized: str, peer: bool
) -> dict[str, float]:
    """Return the figures of a quantized file on data that calibration did not see."""
    name = find_entry(module, model)
    if name is not None and hasattr(module, "measure"):
        return {key: float(value) for key, value in module.measure(name, quantized).items()}
    feeds = random_feeds(model, 16, 1, wish) if name is None else module.MODELS[name][2]()
    import onnxruntime as ort

    import lingeronnx as lo

    source = ort.InferenceSession(str(model))
    session = ort.InferenceSession(quantized) if peer else lo.Session(quantized)
    names = [value.name for value in source.get_outputs()]
    left = {value.name for value in session.get_inputs()}
    pairs = [
        (source.run(names, f), session.run(names, {k: a for k, a in f.items() if k in left}))
        for f in feeds
    ]
    figures = {}
    for place, output in enumerate(names):
        sides = [
            np.concatenate([pair[side][place].reshape(-1) for pair in pairs]) for side in (0, 1)
        ]
        figures[output] = decibels(sides[0], sides[1])
    return figures


def quantize_with_lingeronnx(
    module: Any, model: Path, wish: Mapping[str, Any], platform: str, target: str, program: bool
) -> dict[str, Any]:
    """Quantize with defaults.

    Return what is said of it, and with `program` what came of its program.
    """
    import lingeronnx as lo

    name, settings = find_entry(module, model), {}
    calib: Any = random_feeds(model, 32, 0, wish) if name is None else module.MODELS[name][1]
    if name is not None and module.MODELS[name][3]:
        settings["state"] = module.MODELS[name][3]
    if name is not None and name in module.FIXED:
        settings["fix"] = {key: value.tolist() for key, value in module.FIXED[name].items()}
    if numbers := {key: value for key, value in wish.items() if not isinstance(value, list)}:
        settings["fix"] = numbers
    calib, start = calib() if callable(calib) else calib, time.process_time()
    found = lo.quantize(str(model), calib, platform=platform, **settings)
    spent, more = time.process_time() - start, {}
    if program and found.report.is_chip:
        if not found.report.chip_ready and not found.report.program.runs_correctly:
            found, more = (
                lo.quantize(str(model), calib, platform=platform, max_parts=16, **settings),
                {"moved": True},
            )
        feeds = random_feeds(model, 2, 2, wish) if name is None else module.MODELS[name][2]()
        left = [
            {key: array for key, array in feed.items() if key not in settings.get("fix", {})}
            for feed in feeds
        ]
        more["program"] = prove_program(found, left)
    found.write(target)
    report = found.report
    said = [
        *report.warnings,
        *dict.fromkeys(f"{n.op_type}: {n.why}" for n in (*report.float_nodes, *report.host_part)),
    ]
    return {
        "integer MACs": report.integer_macs,
        "chip": report.chip_ready,
        "said": said,
        "seconds": spent,
        **more,
    }


def prove_program(result: Any, feeds: Any) -> str:
    """Return what came of the program of `result`, compiled and run on this PC."""
    import lingeronnx as lo

    with tempfile.TemporaryDirectory() as folder:
        try:
            lo.deploy(result, f"{folder}/board", data=feeds, samples=2, attempt=True)
        except lo.LingerOnnxError as error:
            return " ".join(str(error).split())[:300]
    return "passed"


class _Reader:
    """Feeds one by one, as onnxruntime's calibration reads them."""

    def __init__(self, feeds: Iterator[_Feed]) -> None:
        self._feeds = feeds

    def get_next(self) -> _Feed | None:
        """Return the next feed."""
        return next(self._feeds, None)


def _iterate_single_samples(module: Any, model: Path, wish: Mapping[str, Any]) -> Iterator[_Feed]:
    """Yield the calibration data sample by sample."""
    name = find_entry(module, model)
    if name is None:
        yield from random_feeds(model, 32, 0, wish)
        return
    for item in module.MODELS[name][1]():
        feed, fixed = item[0] if isinstance(item, tuple) else item, module.FIXED.get(name, {})
        for i in range(len(next(iter(feed.values())))):
            yield {
                **{key: array[i : i + 1] if array.ndim else array for key, array in feed.items()},
                **fixed,
            }


def quantize_with_onnxruntime(
    module: Any, model: Path, wish: Mapping[str, Any], target: str
) -> dict[str, Any]:
    """Quantize with onnxruntime."""
    from onnxruntime import quantization as q

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
    ):  # it leaves files where it stands
        ready = str(model)
        try:
            q.quant_pre_process(ready, f"{folder}/ready.onnx")
            ready = f"{folder}/ready.onnx"
        except Exception as error:  # its own words are of no use here: it goes on without
            print(f"{model.name}: quant_pre_process: {type(error).__name__}", file=sys.stderr)
        reader = _Reader(_iterate_single_samples(module, model, wish))
        versions = [
            entry.version
            for entry in onnx.load(ready).opset_import
            if entry.domain in ("", "ai.onnx")
        ]
        form, kind, fine = q.QuantFormat.QDQ, q.QuantType.QInt8, max(versions) >= 13
        q.quantize_static(ready, target, reader, form, per_channel=fine, activation_type=kind)
    return {}


def run_attempt(args: argparse.Namespace) -> None:
    """Make one attempt and print it as JSON."""
    warnings.simplefilter("ignore")
    import onnxruntime as ort

    import lingeronnx  # noqa: F401  (not counted)

    ort.set_default_logger_severity(4)
    module, model, line = loaders(args.loaders), Path(args.folders[0]).resolve(), {}
    wish = read_sizes(args.sizes, model)
    with tempfile.TemporaryDirectory() as folder:
        target, start = f"{folder}/q.onnx", time.process_time()
        try:
            peer = args.one == PEER
            if peer:
                line = quantize_with_onnxruntime(module, model, wish, target)
            else:
                line = quantize_with_lingeronnx(
                    module, model, wish, args.one, target, args.programs
                )
            line.setdefault("seconds", time.process_time() - start)
            line["MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            line["figures"] = measure_outputs(module, model, wish, target, peer)
        except Exception as error:
            line["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    print(json.dumps(line))


def run_attempt_in_process(model: Path, way: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return what a process of its own says of one model."""
    command = [sys.executable, __file__, str(model), "--one", way]
    command += ["--loaders", args.loaders] if args.loaders else []
    command += ["--sizes", args.sizes] if args.sizes else []
    command += ["--programs"] if args.programs else []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=args.timeout, env=os.environ
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {args.timeout} s"}
    lines = done.stdout.strip().splitlines()
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, json.JSONDecodeError):
        return {"error": f"exit code {done.returncode}: {done.stderr.strip()[-200:]}"}


def format_row(model: str, way: str, found: Mapping[str, Any]) -> str:
    """Return a line of the table."""
    if "error" in found:
        return f"| {model} | {way} | {found['error']} | | | | |"
    figures = ", ".join(f"{name} {value:.1f}" for name, value in found["figures"].items())
    macs = f"{100 * found['integer MACs']:.1f} %" if "integer MACs" in found else ""
    program = ("layers moved: " if found.get("moved") else "") + found.get("program", "")
    return (
        f"| {model} | {way} | {figures} | {macs} | {program} | {found['seconds']:.1f} | "
        f"{found['MB']:.0f} |"
    )


def format_ratios(done: Mapping[str, Mapping[str, Any]], platform: str) -> str:
    """Return a line on processor time and peak memory, in parts of onnxruntime's, where both ways got through."""
    words = []
    for key, what in (("seconds", "CPU"), ("MB", "peak memory")):
        found = {
            model: row[key] / peer[key]
            for model, way in (name.rsplit(" ", 1) for name in done)
            if way == platform
            and key in (row := done[f"{model} {way}"])
            and key in (peer := done.get(f"{model} {PEER}", {}))
        }
        if found:
            most = max(found, key=lambda model: found[model])
            words.append(
                f"{what} {statistics.median(found.values()):.1f} times, at most {found[most]:.1f} "
                f"({most})"
            )
    return (
        f"{platform}, beside {PEER}, medians of {len(found)} models: {'; '.join(words)}"
        if words
        else ""
    )


def main() -> None:
    """Make all attempts that --results does not hold yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--loaders")
    parser.add_argument("--sizes")
    parser.add_argument("--programs", action="store_true")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--platforms", nargs="+", default=["generic", "venus"])
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run_attempt(args)
        return
    module, results = loaders(args.loaders), Path(args.results) if args.results else None
    done: dict[str, dict[str, Any]] = {}
    if results is not None and results.exists():
        done = dict(json.loads(line) for line in results.read_text().splitlines())
    print(
        "| model | way | dB of each output | integer MACs | program | CPU s | peak MB |", flush=True
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for model in sorted(path for folder in args.folders for path in Path(folder).glob("*.onnx")):
        if args.only and model.stem not in args.only:
            continue
        name = find_entry(module, model)
        states = name is not None and bool(module.MODELS[name][3])
        for way in [*args.platforms, *([] if states else [PEER])]:
            key = f"{model.stem} {way}"
            if key not in done:
                done[key] = run_attempt_in_process(model, way, args)
                if results is not None:
                    with results.open("a") as file:
                        file.write(json.dumps([key, done[key]]) + "\n")
            print(format_row(model.stem, way, done[key]), flush=True)
    print(
        "", *filter(None, (format_ratios(done, platform) for platform in args.platforms)), sep="\n"
    )


if __name__ == "__main__":
    main()
