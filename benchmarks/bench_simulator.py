"""The integer simulator against onnxruntime float32 on the same model, in one run.

    python benchmarks/bench_simulator.py [MODEL.onnx ...] [--calib DATA] [--batch 1 64] [--rounds 5]

Without arguments: the digits model of this repository and a ResNet-20 with random weights (CIFAR size, 40.8 M MACs).
Each round runs both engines on the same batch, alternating; compilation and the first call are reported apart. The
ratio is simulator throughput over onnxruntime throughput, the median of the rounds. Both use all processors.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnxruntime as ort

import lingeronnx as lo

DIGITS = Path(__file__).resolve().parents[1] / "models" / "digits_cnn.onnx"


def resnet20(seed: int = 0) -> onnx.ModelProto:
    """Return a ResNet-20 for 32x32 images with random weights, batch norm folded."""
    rng = np.random.default_rng(seed)
    nodes, weights = [], []

    def conv(x: str, inputs: int, outputs: int, kernel: int, stride: int, name: str) -> str:
        w = rng.standard_normal((outputs, inputs, kernel, kernel)) * np.sqrt(2 / (inputs * kernel**2))
        weights.append(onnx.numpy_helper.from_array(w.astype(np.float32), f"{name}.w"))
        weights.append(onnx.numpy_helper.from_array(rng.standard_normal(outputs).astype(np.float32) * 0.1, f"{name}.b"))
        pad = kernel // 2
        nodes.append(
            oh.make_node(
                "Conv", [x, f"{name}.w", f"{name}.b"], [name], name, kernel_shape=[kernel] * 2, strides=[stride] * 2,
                pads=[pad] * 4,
            )
        )  # fmt: skip
        return name

    def relu(x: str) -> str:
        nodes.append(oh.make_node("Relu", [x], [f"{x}_relu"], f"{x}_relu"))
        return f"{x}_relu"

    x, width = relu(conv("input", 3, 16, 3, 1, "stem")), 16
    for stage, outputs in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            name = f"s{stage}b{block}"
            y = relu(conv(x, width, outputs, 3, stride, f"{name}c1"))
            y = conv(y, outputs, outputs, 3, 1, f"{name}c2")
            short = x if width == outputs else conv(x, width, outputs, 1, stride, f"{name}sc")
            nodes.append(oh.make_node("Add", [y, short], [f"{name}_sum"], f"{name}_sum"))
            x, width = relu(f"{name}_sum"), outputs
    nodes.append(oh.make_node("GlobalAveragePool", [x], ["pool"], "pool"))
    nodes.append(oh.make_node("Flatten", ["pool"], ["flat"], "flat"))
    w = rng.standard_normal((64, 10)).astype(np.float32) * 0.1
    weights.append(onnx.numpy_helper.from_array(w, "fc.w"))
    nodes.append(oh.make_node("MatMul", ["flat", "fc.w"], ["output"], "fc"))
    graph = oh.make_graph(
        nodes, "resnet20", [oh.make_tensor_value_info("input", 1, ["N", 3, 32, 32])],
        [oh.make_tensor_value_info("output", 1, ["N", 10])], weights,
    )  # fmt: skip
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 13)], ir_version=8)


def seconds(run: Callable[[], object], at_least: float = 0.3) -> float:
    """Return the time of one call, averaged over enough calls to last `at_least` seconds."""
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < at_least:
        run()
        calls += 1
    return (time.perf_counter() - start) / calls


def bench(title: str, model: onnx.ModelProto, calib: object, batches: list[int], rounds: int) -> None:
    """Print one table."""
    import lingeronnx.ir as ir

    graph = ir.from_proto(model)
    session = lo.quantize(graph, calib, platform="venus").session()
    rival = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    spec = session.inputs[0]
    for batch in batches:
        x = np.random.default_rng(1).standard_normal((batch, *(int(d or 1) for d in spec.shape[1:]))).astype(np.float32)
        start = time.perf_counter()
        session.run(None, {spec.name: x})
        first = time.perf_counter() - start
        rival.run(None, {spec.name: x})
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(seconds(lambda x=x: session.run(None, {spec.name: x})) / batch)
            theirs.append(seconds(lambda x=x: rival.run(None, {spec.name: x})) / batch)
        ratio = statistics.median(t / o for o, t in zip(ours, theirs, strict=True))
        print(
            f"{title:24s} batch {batch:3d}   simulator {1e6 * statistics.median(ours):8.1f} us/sample   "
            f"onnxruntime float32 {1e6 * statistics.median(theirs):8.1f} us/sample   "
            f"ratio {ratio:5.2f}x   (first call {first:.2f} s)",
            flush=True,
        )


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--calib", help="calibration data, as for lingeronnx quantize")
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 64])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"{os.cpu_count()} processors; ratio = simulator throughput / onnxruntime float32 throughput")
    if args.models:
        for path in args.models:
            bench(path.stem, onnx.load(path), args.calib, args.batch, args.rounds)
        return
    bench("digits_cnn", onnx.load(DIGITS), str(DIGITS.with_name("digits_calib.npz")), args.batch, args.rounds)
    bench("resnet20 (random)", resnet20(), None, args.batch, args.rounds)


if __name__ == "__main__":
    main()
