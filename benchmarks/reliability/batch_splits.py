"""Integers of random nets with float parts.

Any split of a batch, threads, rows of instructions and processes agree.
    python benchmarks/reliability/batch_splits.py -n 500

Each net is quantized for a platform, with float operators between its integers: a function, a norm,
a mean or a product that the platform lacks, on maps of odd sizes. Its integers for a batch of 17
are computed at once. They are compared with those of other batch sizes, of other numbers of
threads, of a row of instructions that runs here (they take turns), and of another process. Prints a
table and exits with 1 where an integer differs.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

import lingeronnx as lo
from lingeronnx.common.errors import LingerOnnxError
from lingeronnx.ir import ir
from simulator.instruction_sets import INSTRUCTION_SETS, is_supported_by_host

_BATCH = 17
_SPLITS = (1, 2, 3, 5, 8, 16)
_PLATFORMS = ("venus", "arcs", "venusA", "generic")
_SAFE = (
    "Sin",
    "Cos",
    "Softplus",
    "Elu",
    "Selu",
    "Celu",
    "Erf",
    "Mish",
    "Atan",
    "Gelu",
    "Sigmoid",
    "Tanh",
    "Softsign",
)
_POSITIVE = ("Log", "Sqrt", "Reciprocal")
_NESTED = (
    "InstanceNormalization",
    "MeanVarianceNormalization",
    "LpNormalization",
    "ReduceMean",
    "ReduceL2",
    "CumSum",
    "Softmax",
    "LogSoftmax",
    "MatMul",
    "Einsum",
    "LRN",
)


class _Net:
    """A net that is drawn layer by layer."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._count = 0

    def build(self) -> tuple[onnx.ModelProto, tuple[int, ...]]:
        """Return the model, and the shape of a sample."""
        channels, height, width = (int(n) for n in self._rng.integers((1, 3, 3), (9, 12, 12)))
        x, made = "x", channels
        for _ in range(int(self._rng.integers(1, 4))):
            after = int(self._rng.integers(1, 9))
            x = self._add("Conv", x, self._real(after, made, 3, 3), self._real(after), pads=[1] * 4)
            made = after
            for _ in range(int(self._rng.integers(1, 3))):
                x = self._float(x, made, width)
        x = self._add("Conv", x, self._real(3, made, 1, 1), self._real(3))
        graph = helper.make_graph(
            self._nodes,
            "splits",
            [helper.make_tensor_value_info("x", 1, ["N", channels, height, width])],
            [helper.make_tensor_value_info(x, 1, ["N", 3, height, width])],
            self._constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        return model, (channels, height, width)

    def _float(self, x: str, channels: int, width: int) -> str:
        kind = self._rng.choice([*_SAFE, *_POSITIVE, *_NESTED])
        if kind in _POSITIVE:
            above = self._add("Add", self._add("Abs", x), self._held(np.float32(0.3)))
            return self._add(kind, above)
        if kind == "InstanceNormalization":
            return self._add(kind, x, self._real(channels), self._real(channels))
        if kind in ("ReduceMean", "ReduceL2"):
            return self._add(
                "Sub",
                x,
                self._add(kind, x, self._held(np.array(self._rng.choice([[1], [-1], [2]])))),
            )
        if kind == "CumSum":
            return self._add(kind, x, self._held(np.array(int(self._rng.integers(1, 4)))))
        if kind == "MatMul":
            return self._add(kind, x, self._add("Sin", self._square(x)))
        if kind == "Einsum":
            return self._add(kind, x, self._real(width, width), equation="nchw,wv->nchv")
        extra = {
            "Softmax": {"axis": int(self._rng.choice([1, -1]))},
            "LogSoftmax": {"axis": -1},
            "LRN": {"size": 3},
            "LpNormalization": {"axis": int(self._rng.choice([1, -1]))},
            "MeanVarianceNormalization": {"axes": [2, 3]},
        }.get(kind, {})
        return self._add(kind, x, **extra)

    def _square(self, x: str) -> str:
        return self._add("Einsum", x, x, equation="nchw,nchv->ncwv")

    def _real(self, *shape: int) -> str:
        return self._held((self._rng.standard_normal(shape) / 2).astype(np.float32))

    def _held(self, array: np.ndarray) -> str:
        self._count += 1
        self._constants.append(onnx.numpy_helper.from_array(np.asarray(array), f"c{self._count}"))
        return f"c{self._count}"

    def _add(self, kind: str, *inputs: str, **attributes: object) -> str:
        self._count += 1
        self._nodes.append(
            helper.make_node(kind, inputs, [f"t{self._count}"], f"n{self._count}", **attributes)
        )
        return f"t{self._count}"


def _integers(session: lo.Session, x: np.ndarray, size: int = _BATCH) -> dict[str, np.ndarray]:
    """Return all integers of a batch that is run in parts of a size."""
    runs = [
        {n: a.copy() for n, a, _ in session.taps({"x": x[i : i + size]}) if a.dtype.kind in "iu"}
        for i in range(0, len(x), size)
    ]
    return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}


def _find_differences(want: dict[str, np.ndarray], have: dict[str, np.ndarray]) -> int:
    assert want.keys() == have.keys()
    return sum(int((want[name] != have[name]).sum()) for name in want)


def _run_in_other_process(path: str, row: str, threads: str) -> dict[str, np.ndarray]:
    """Return the integers that a session opened under other settings computes."""
    before = {name: os.environ.get(name) for name in ("LINGERONNX_SIMD", "LINGERONNX_THREADS")}
    os.environ.update(LINGERONNX_SIMD=row, LINGERONNX_THREADS=threads)
    try:
        with open(path, "rb") as file:
            content, x = pickle.load(file)
        return _integers(lo.Session(ir.from_bytes(content)), x)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _serve_requests() -> int:
    """Answer paths on stdin with paths of pickled integers: the other process."""
    for line in sys.stdin:
        path = line.strip()
        with open(f"{path}.out", "wb") as file:
            pickle.dump(_run_in_other_process(path, "1", "3"), file)
        print(f"{path}.out", flush=True)
    return 0


def main() -> int:
    """Run the nets, print the table, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", type=int, default=500, help="how many nets (500)")
    parser.add_argument("--seed", type=int, default=0, help="of the first net")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no net after so many"
    )
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.answer:
        return _serve_requests()
    rows = ["0", *(row.name for row in INSTRUCTION_SETS if is_supported_by_host(row))]
    command = [sys.executable, __file__, "--answer"]
    start, total, refused = time.perf_counter(), Counter[str](), 0
    kinds: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other,
    ):
        assert other.stdin is not None
        assert other.stdout is not None
        seed = asked.seed - 1
        while total["nets"] < asked.n and time.perf_counter() - start < asked.seconds:
            seed += 1
            model, shape = _Net(seed).build()
            rng, platform = np.random.default_rng(seed), _PLATFORMS[seed % len(_PLATFORMS)]
            data = rng.standard_normal((8, *shape)).astype(np.float32)
            try:
                result = lo.quantize(ir.from_proto(model), data, platform=platform, effort="fast")
            except LingerOnnxError as error:
                refused += 1
                print(f"seed {seed}: refused: {error}", file=sys.stderr)
                continue
            if not result.report.float_nodes:
                continue
            kinds.update(
                {kind for node in result.report.float_nodes for kind in node.op_type.split(", ")}
            )
            x = np.concatenate(
                [rng.standard_normal((_BATCH, *shape)) * scale for scale in (0.3, 1.0, 3.0)]
            )
            x = rng.permutation(x)[:_BATCH].astype(np.float32)
            path = Path(folder, str(seed))
            path.write_bytes(pickle.dumps((ir.to_bytes(result.graph), x)))
            session = lo.Session(ir.from_bytes(ir.to_bytes(result.graph)))
            want = _integers(session, x)
            print(path, file=other.stdin, flush=True)
            found = {
                "splits": sum(
                    _find_differences(want, _integers(session, x, size)) for size in _SPLITS
                )
            }
            found["threads"] = sum(
                _find_differences(want, _run_in_other_process(str(path), "1", threads))
                for threads in ("1", "4")
            )
            row = rows[seed % len(rows)]
            found["rows of instructions"] = _find_differences(
                want, _run_in_other_process(str(path), row, "1")
            )
            answer = Path(other.stdout.readline().strip())
            found["processes"] = _find_differences(want, pickle.loads(answer.read_bytes()))
            for each in (path, answer):
                each.unlink()
            total.update(found)
            total["nets"] += 1
            total["integers"] += sum(array.size for array in want.values())
            if any(found.values()):
                print(f"seed {seed}, {platform}, row {row}: {found}", flush=True)
            if total["nets"] % 50 == 0:
                print(
                    f"{total['nets']} of {asked.n}, {time.perf_counter() - start:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
        other.stdin.close()
    names = ("splits", "threads", "rows of instructions", "processes")
    print(
        f"{total['nets']} nets with float parts, {refused} refused, {total['integers']} integers "
        "each way"
    )
    print(
        "float operators between integers:",
        ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()),
    )
    print("| compared with |", " | ".join(names), "|")
    print("|---" * (len(names) + 1) + "|")
    print("| integers that differ |", " | ".join(str(total[name]) for name in names), "|")
    return int(any(total[name] for name in names))


if __name__ == "__main__":
    sys.exit(main())
