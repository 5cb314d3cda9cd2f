"""What it costs that float parts between integers do not depend on the batch.

    python benchmarks/reliability/batch_invariant_float_parts.py

A net of two convolutions around a norm that stays float, 64 samples, one thread. Its runs take
turns with those of the same net whose norm gets the whole batch in one call, and sample by sample.
Prints how many times the processor time of the former they take: the median of the ratios of each
turn, and between which a half of them lie.
"""

from __future__ import annotations

import argparse
import os
import time
from unittest import mock

import numpy as np
import onnx
from onnx import helper

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.runtime.runners import float_fallbacks
from lingeronnx.runtime.runners.batching import Batching

_SHAPES = ((4, 5, 5), (8, 7, 7), (3, 5, 5), (6, 9, 9), (16, 15, 15))
_NORMS = ("InstanceNormalization", "MeanVarianceNormalization")
_SAMPLES = 64
_EACH = 10  # runs that are timed together


def make_net(norm: str, shape: tuple[int, ...]) -> ir.Model:
    """Return the integer graph of a convolution, `norm`, and a convolution, on samples of `shape`."""
    rng, channels = np.random.default_rng(0), shape[0]
    arrays = {
        name: rng.standard_normal((channels, channels, 3, 3)) / 3 / channels**0.5
        for name in ("w", "v")
    }
    arrays |= {name: rng.uniform(0.5, 1.5, channels) for name in ("g", "b")}
    further = ["g", "b"] if norm == "InstanceNormalization" else []
    axes = {} if further else {"axes": [2, 3]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node(norm, ["c", *further], ["n"], **axes),
        helper.make_node("Conv", ["n", "v"], ["y"], pads=[1] * 4),
    ]
    given, result = (helper.make_tensor_value_info(name, 1, ["N", *shape]) for name in "xy")
    kept = {name: array for name, array in arrays.items() if name in ("w", "v", *further)}
    constants = [
        onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in kept.items()
    ]
    graph = helper.make_graph(nodes, "norm", [given], [result], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return lo.quantize(
        ir.from_proto(model), samples(shape, 16), platform="generic", effort="fast"
    ).graph


def samples(shape: tuple[int, ...], count: int) -> np.ndarray:
    """Return samples of `shape`."""
    return np.random.default_rng(1).standard_normal((count, *shape)).astype(np.float32)


def open_session(graph: ir.Model, x: np.ndarray, how: Batching | None) -> lo.Session:
    """Return a session whose float parts run as `how` says, None: as they do for users.

    It has run once.
    """
    given = (
        mock.patch.object(float_fallbacks, "choose_batching", return_value=how)
        if how
        else mock.MagicMock()
    )
    with given:
        session = lo.Session(graph)
        session.run(None, {"x": x})
    return session


def seconds(session: lo.Session, x: np.ndarray) -> float:
    """Return the processor time of a run."""
    start = time.process_time()
    for _ in range(_EACH):
        session.run(None, {"x": x})
    return (time.process_time() - start) / _EACH


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=30, help="turns")
    turns = parser.parse_args().n
    os.environ["LINGERONNX_THREADS"] = "1"
    print("| norm | map | ms, whole batch | times | sample by sample |\n|---|---|---|---|---|")
    for norm in _NORMS:
        for shape in _SHAPES:
            graph, x = make_net(norm, shape), samples(shape, _SAMPLES)
            sessions = [
                open_session(graph, x, how) for how in (Batching.ANY_BATCH, None, Batching.SINGLE)
            ]
            found = np.array([[seconds(session, x) for session in sessions] for _ in range(turns)])
            low, times, high = np.percentile(found[:, 1] / found[:, 0], (25, 50, 75))
            alone = np.median(found[:, 2] / found[:, 0])
            size = "x".join(map(str, shape))
            whole = 1000 * np.median(found[:, 0])
            print(
                (
                    f"| {norm} | {size} | {whole:.2f} | {times:.2f} ({low:.2f}-{high:.2f}) | "
                    f"{alone:.1f} |"
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
