"""Large networks in the simulator, beside onnxruntime's float32 and int8 and OpenVINO's int8.

    python -m benchmarks.speed.large FOLDER [--only NAME ...] [--platform generic] [--rounds 5]
        [--profile]

Time is processor time of one thread for a sample, the engines in turn in one process, medians of
the rounds: other jobs on the machine disturb it less than the clock's. Memory is the largest
resident size of a process that loads the file and runs one sample, imports included. FOLDER keeps
the files and a line for each network in results.jsonl: an interrupted run goes on, and a network
that has a line is not measured again. --profile prints the steps that take the simulator longest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .engines import limit_threads, make_onnxruntime_int8, make_openvino_call, write_qdq
from .machine import describe_machine
from .nets import Net
from .page import format_table_row
from .quantize_cost import measure_command
from .timing import compute_ratio, measure_interleaved

ENGINES = ("simulator", "float32", "u8s8", "OpenVINO")
HEAD = (
    "network",
    "G MAC",
    *(f"{engine}, ms" for engine in ENGINES),
    *(f"/ {engine}" for engine in ENGINES[1:]),
    *(f"{engine}, MB" for engine in ENGINES),
    "quantize, CPU s",
)


def make_files(name: str, platform: str, folder: Path) -> dict[str, Any]:
    """Export, quantize and convert a network into FOLDER, and return what is known of it then.

    Files that exist are kept: "float.onnx", "quant.onnx", "u8s8.onnx", "qdq.onnx", and "feed.npz".
    """
    import lingeronnx as lo
    from lingeronnx.ir import ir
    from lingeronnx.operators.macs import count_macs

    from .large_nets import LARGE_NETS

    facts = folder / "facts.json"
    if facts.is_file():
        return dict(json.loads(facts.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    large = LARGE_NETS[name]
    model, feed = large.export(), {"x": large.draw_sample(1)}
    onnx.save(model, folder / "float.onnx")
    np.savez(folder / "feed.npz", **feed)
    start = time.process_time()
    made = lo.quantize(
        ir.from_proto(model), [feed, {"x": large.draw_sample(2)}], platform=platform, effort="fast"
    )
    taken = time.process_time() - start
    made.save(folder / "quant.onnx")
    net = Net(name, model, platform, feed=feed)
    found: dict[str, Any] = {
        "macs": sum(count_macs(node) for node in made.float_graph.graph),
        "quantize_s": taken,
        "why_not": {},
    }
    for engine, file, content in (
        ("u8s8", "u8s8.onnx", make_onnxruntime_int8(net)["u8s8"]),
        ("OpenVINO", "qdq.onnx", write_qdq(made.graph)),
    ):
        if isinstance(content, str):
            found["why_not"][engine] = content
        else:
            (folder / file).write_bytes(content)
    facts.write_text(json.dumps(found))
    return found


def open_engine(engine: str, folder: Path) -> Callable[[], object] | str:
    """Return a call of one engine on the sample of FOLDER, one thread, or why there is none."""
    with np.load(folder / "feed.npz") as file:
        feed = dict(file)
    files = {"float32": "float.onnx", "u8s8": "u8s8.onnx", "OpenVINO": "qdq.onnx"}
    if engine == "simulator":
        import lingeronnx as lo

        with limit_threads(1):
            session = lo.Session(folder / "quant.onnx")
            session.run(None, feed)
        return lambda: session.run(None, feed)
    path = folder / files[engine]
    if not path.is_file():
        return "there is no file"
    if engine == "OpenVINO":
        return make_openvino_call(path.read_bytes(), 1, feed)
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    rival = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: rival.run(None, feed)


def measure(name: str, platform: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Return the line of a network."""
    facts = make_files(name, platform, folder)
    opened = {engine: open_engine(engine, folder) for engine in ENGINES}
    runs = {engine: run for engine, run in opened.items() if not isinstance(run, str)}
    why_not = {engine: run for engine, run in opened.items() if isinstance(run, str)}
    why_not.update(facts["why_not"])
    seconds = measure_interleaved(runs, rounds, 0.05, time.process_time)
    return {
        "network": name,
        "platform": platform,
        **describe_machine(),
        **facts,
        "why_not": why_not,
        "ms": {engine: 1e3 * statistics.median(times) for engine, times in seconds.items()},
        "ratios": {
            engine: compute_ratio(seconds["simulator"], times).median
            for engine, times in seconds.items()
        },
        "peak_mb": {engine: measure_memory(engine, folder) for engine in runs},
    }


def measure_memory(engine: str, folder: Path) -> float:
    """Return the largest resident MB of a process that runs an engine once."""
    command = [sys.executable, "-m", __spec__.name, str(folder), "--run", engine]
    return measure_command(command)[2]


def format_line(line: Mapping[str, Any]) -> str:
    """Return the line of the table of a network."""

    def cells(values: Mapping[str, float], text: str, engines: tuple[str, ...]) -> list[str]:
        return [text.format(values[name]) if name in values else "-" for name in engines]

    return format_table_row(
        [
            line["network"],
            f"{line['macs'] / 1e9:.2f}",
            *cells(line["ms"], "{:.1f}", ENGINES),
            *cells(line["ratios"], "{:.2f}", ENGINES[1:]),
            *cells(line["peak_mb"], "{:.0f}", ENGINES),
            f"{line['quantize_s']:.1f}",
        ]
    )


def print_profile(folder: Path, limit: int = 12) -> None:
    """Print the steps that take the simulator longest, each run alone."""
    from lingeronnx.ir import ir

    from .tiles import measure_steps

    steps = sorted(measure_steps(ir.load(folder / "quant.onnx"), 1, 2), key=lambda step: -step[2])
    total = sum(seconds for _, _, seconds in steps)
    print(f"{1e3 * total:.1f} ms in {len(steps)} steps")
    for label, macs, seconds in steps[:limit]:
        rate = f"{macs / seconds / 1e9:.1f} G MAC/s" if macs else ""
        print(f"{1e3 * seconds:9.2f} ms {100 * seconds / total:5.1f} %  {label}  {rate}")


def main() -> None:
    """Measure the networks that have no line yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="networks that begin so")
    parser.add_argument("--platform", default="generic")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--run", metavar="ENGINE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run = open_engine(given.run, given.folder)
        assert not isinstance(run, str), run
        run()
        return
    from .large_nets import LARGE_NETS

    given.folder.mkdir(parents=True, exist_ok=True)
    journal = given.folder / "results.jsonl"
    lines = (
        [json.loads(text) for text in journal.read_text().splitlines()] if journal.is_file() else []
    )
    known = {(line["network"], line["platform"]) for line in lines}
    for name in LARGE_NETS:
        if given.only and not name.startswith(tuple(given.only)):
            continue
        folder = given.folder / f"{name.replace(', ', '_').replace('/', '_')}_{given.platform}"
        if (name, given.platform) not in known:
            lines.append(measure(name, given.platform, folder, given.rounds))
            with journal.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            print(format_line(lines[-1]), flush=True)
        if given.profile:
            print_profile(folder)
    print(format_table_row(HEAD), "|" + "---|" * len(HEAD), sep="\n")
    for line in lines:
        print(format_line(line))
        for engine, why in line["why_not"].items():
            print(f"- {line['network']}, {engine}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
