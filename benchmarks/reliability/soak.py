"""Long runs: memory stays flat, and the same data give the same integers to the end.

    python benchmarks/reliability/soak.py runs -n 1000000
    python benchmarks/reliability/soak.py sessions -n 10000
    python benchmarks/reliability/soak.py variants -n 1000

`runs` runs one session, `sessions` opens, runs and closes one after another, `variants` measures
what the rounding of each operator alone costs, again and again. The net has a float part between
its integers. Prints a row of a table: the resident memory after a tenth of the turns, at the end,
the slope between them, and how many turns gave other integers. Exits with 1 where one did, or
memory grew by more than `--grown` MB.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

import lingeronnx as lo
from lingeronnx.ir import ir

_CHECK_COUNT = 100  # how often memory is looked at
_SETTLED = 0.1  # share of the turns after which caches are full
_NET = """
<ir_version: 8, opset_import: ["": 18]>
soak (float[N, 4, 7, 7] x) => (float[N, 10] y) {
    a = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w, b)
    f = Softplus(a)
    i = InstanceNormalization(f, b, b)
    c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(i, w, b)
    r = Relu(c)
    g = GlobalAveragePool(r)
    l = Flatten(g)
    y = Gemm<transB=1>(l, v, d)
}
"""
_SHAPES = {"w": (4, 4, 3, 3), "b": (4,), "v": (10, 4), "d": (10,)}


def _model() -> onnx.ModelProto:
    model, rng = onnx.parser.parse_model(_NET), np.random.default_rng(0)
    for name, shape in _SHAPES.items():
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def _data(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 4, 7, 7)).astype(np.float32)


def _hash(session: lo.Session, x: np.ndarray) -> str:
    """Return a hash of all integers of a run."""
    digest = hashlib.blake2b(digest_size=8)
    for name, array, _ in session.taps({"x": x}):
        if array.dtype.kind in "iu":
            digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()


def _soak_runs(folder: Path) -> Callable[[], tuple[int, bytes]]:
    session, feeds = lo.Session(folder / "soak.onnx"), {"x": _data(1, 1)}
    return lambda: (1, session.run(None, feeds)[0].tobytes())


def _soak_sessions(folder: Path) -> Callable[[], tuple[int, bytes]]:
    x = _data(3, 1)
    return lambda: (1, _hash(lo.Session(folder / "soak.onnx"), x).encode())


def _soak_variants(folder: Path) -> Callable[[], tuple[int, bytes]]:
    model, data = folder / "float.onnx", _data(16, 0)

    def turn() -> tuple[int, bytes]:
        rows = lo.sensitivity(model, data, platform="venus").to_list()
        return len(rows), repr(rows).encode()

    return turn


_SOAK_TESTS = {
    "runs": (_soak_runs, 1_000_000),
    "sessions": (_soak_sessions, 10_000),
    "variants": (_soak_variants, 1_000),
}


def _get_resident_mb() -> float:
    """Return the resident memory of this process in MB."""
    words = Path("/proc/self/statm").read_text().split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    """Take the turns, print the row, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=_SOAK_TESTS)
    parser.add_argument(
        "-n", type=int, help="turns (runs 1,000,000, sessions 10,000, variants 1,000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="end after so many, whatever -n says"
    )
    parser.add_argument(
        "--grown", type=float, default=4.0, help="MB between a tenth of the turns and the end (4)"
    )
    asked = parser.parse_args()
    made, usual = _SOAK_TESTS[asked.what]
    wanted = usual if asked.n is None else asked.n
    with tempfile.TemporaryDirectory() as place:
        onnx.save(_model(), f"{place}/float.onnx")
        lo.quantize(ir.from_proto(_model()), _data(16, 0), platform="venus").save(
            Path(place, "soak.onnx")
        )
        turn = made(Path(place))
        _, want = turn()
        start, done, other, first, seen = time.perf_counter(), 0, 0, _get_resident_mb(), []
        next_look = 0.0
        while done < wanted and time.perf_counter() - start < asked.seconds:
            count, have = turn()
            done += count
            other += have != want
            if done >= next_look:
                gc.collect()
                seen.append((done, _get_resident_mb()))
                next_look = done + wanted / _CHECK_COUNT
        gc.collect()
        seen.append((done, _get_resident_mb()))
    settled = [(at, memory) for at, memory in seen if at >= _SETTLED * done]
    at, memory = np.array(settled).T
    slope = float(np.polyfit(at, memory, 1)[0]) * 1e6 if len(at) > 2 else 0.0
    took = time.perf_counter() - start
    print(
        "| what | turns | seconds | MB at first | MB after a tenth | MB at the end | bytes a turn "
        "| other integers |"
    )
    print("|---|---|---|---|---|---|---|---|")
    sizes = f"{first:.1f} | {memory[0]:.1f} | {memory[-1]:.1f} | {slope:.2f}"
    print(f"| {asked.what} | {done} | {took:.0f} | {sizes} | {other} |")
    return int(other > 0 or memory[-1] - memory[0] > asked.grown)


if __name__ == "__main__":
    sys.exit(main())
