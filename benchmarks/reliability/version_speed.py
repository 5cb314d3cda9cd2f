"""The speed of this checkout against that of an older one.

The simulator and `quantize`, by user time.
    git worktree add ../older COMMIT
    python -m benchmarks.reliability.version_speed ../older MODEL.onnx ...

Processes of the two take turns. Each quantizes every model on made-up data (effort fast), which is
timed, and runs the integer graph on one thread. The first process of each compiles, and does not
count. Prints the ratio of the least user times, which a busy machine disturbs least, and the median
over the turns of the ratios, with the least and the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

_SAMPLES = 4
_SECONDS = 0.2  # of runs that are timed together
_TIMES = 15


def get_user_seconds() -> float:
    """Return the user time of this process, in seconds."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def measure_model(model: str, platform: str) -> dict[str, float]:
    """Return the user seconds of `quantize`, and of a run of the simulator on `_SAMPLES` samples."""
    import lingeronnx as lo

    start = get_user_seconds()
    graph = lo.quantize(model, platform=platform, effort="fast").graph
    seconds = {"quantize": get_user_seconds() - start}
    session, rng = lo.Session(graph), np.random.default_rng(0)
    feed = {}
    for given in session.get_inputs():
        shape = [
            _SAMPLES if axis == 0 or not size else int(size)
            for axis, size in enumerate(given.shape)
        ]
        feed[given.name] = rng.standard_normal(shape).astype(np.float32)
    session.run(None, feed)
    start = get_user_seconds()
    session.run(None, feed)
    count = max(1, round(_SECONDS / max(get_user_seconds() - start, 1e-3)))
    turns = []
    for _ in range(_TIMES):
        start = get_user_seconds()
        for _ in range(count):
            session.run(None, feed)
        turns.append((get_user_seconds() - start) / count)
    return {**seconds, "simulate": min(turns)}


def run_checkout(checkout: Path, models: list[str], platform: str) -> dict[str, dict[str, float]]:
    """Return what `measure_model` says of each model in a process that runs the sources of `checkout`."""
    variables = {**os.environ, "PYTHONPATH": str(checkout), "LINGERONNX_THREADS": "1"}
    words = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--here",
        "--platform",
        platform,
        *models,
    ]
    done = subprocess.run(words, env=variables, capture_output=True, text=True, cwd=checkout)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", help="the older checkout, and models")
    parser.add_argument("--platform", default="venus")
    parser.add_argument("-n", type=int, default=5, help="turns")
    parser.add_argument(
        "--here", action="store_true", help=argparse.SUPPRESS
    )  # a process of one checkout
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps({model: measure_model(model, asked.platform) for model in asked.paths}))
        return
    old, models = (
        Path(asked.paths[0]).resolve(),
        [str(Path(path).resolve()) for path in asked.paths[1:]],
    )
    checkouts = (old, Path(__file__).resolve().parents[2])
    for checkout in checkouts:
        run_checkout(checkout, models, asked.platform)
    turns = []
    for turn in range(asked.n):
        order = checkouts if turn % 2 else checkouts[::-1]
        found = {checkout: run_checkout(checkout, models, asked.platform) for checkout in order}
        turns.append([found[checkout] for checkout in checkouts])
        print(f"turn {turn + 1}, {time.strftime('%X')}", file=sys.stderr, flush=True)
    print(
        "| model | what | older, s | least by least | times | least to largest "
        "|\n|---|---|---:|---:|---:|---|"
    )
    for model in models:
        for what in ("simulate", "quantize"):
            older, newer = ([each[side][model][what] for each in turns] for side in (0, 1))
            ratios = [new / old for old, new in zip(older, newer, strict=True)]
            shown = (
                f"{min(older):.4f} | {min(newer) / min(older):.3f} | "
                f"{statistics.median(ratios):.3f}"
            )
            print(
                f"| {Path(model).stem} | {what} | "
                f"{shown} | {min(ratios):.3f} to {max(ratios):.3f} |"
            )


if __name__ == "__main__":
    main()
