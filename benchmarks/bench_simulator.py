"""The integer simulator against onnxruntime float32 on the same models, in one run.

    python benchmarks/bench_simulator.py [MODEL.onnx ...] [--batch 64 1] [--rounds 5] [--simd ROW] [--threads 1]
    python benchmarks/bench_simulator.py --first [MODEL.onnx]

Without arguments: the models of this repository, a ResNet-20 and a ResNet-18 (width 64) with random weights, for images
of 32x32, and the models of ../shared/models where there are such. They are quantized on random numbers: the time does
not depend on them. Each round runs both engines on the same batch, alternating; the ratio is the simulator's time over
onnxruntime's, the median of the rounds, beside it the least and the largest. Compilation and the first call are
reported apart.

--simd names a row of dot instructions (`simulator.rows`); everything else is then compiled for a processor that has no
more than that. onnxruntime always uses what the machine has.

--first counts and times what a first run compiles, and a second process with the files of the first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "models"
OURS = ("digits_cnn", "digits_lstm", "digits_gru", "digits_attention")
OTHERS = (
    "mlperf_tiny_resnet8", "cifar_resnet_bn", "cifar_mobilenetv2", "mlperf_tiny_vww", "mlperf_tiny_kws", "fsdd_dscnn",
    "mlperf_tiny_ad", "fsdd_lstm", "fsdd_gru", "fsdd_attention",
)  # fmt: skip
#: The processor that has a row and nothing better, as LLVM calls it.
PROCESSORS = {"avx512-vnni": "icelake-server", "avx-vnni": "alderlake", "avx512bw": "skylake-avx512", "avx2": "haswell"}


def resnet(widths: Sequence[int], blocks: int, seed: int = 0) -> Any:
    """Return a residual net for 32x32 images with random weights: `blocks` blocks of each width, batch norm folded."""
    import onnx
    import onnx.helper as oh

    rng = np.random.default_rng(seed)
    nodes, weights = [], []

    def conv(x: str, inputs: int, outputs: int, kernel: int, stride: int, name: str) -> str:
        w = rng.standard_normal((outputs, inputs, kernel, kernel)) * np.sqrt(2 / (inputs * kernel**2))
        weights.append(onnx.numpy_helper.from_array(w.astype(np.float32), f"{name}.w"))
        weights.append(onnx.numpy_helper.from_array(rng.standard_normal(outputs).astype(np.float32) * 0.1, f"{name}.b"))
        pad = kernel // 2
        nodes.append(
            oh.make_node(
                "Conv",
                [x, f"{name}.w", f"{name}.b"],
                [name],
                name,
                kernel_shape=[kernel] * 2,
                strides=[stride] * 2,
                pads=[pad] * 4,
            )
        )
        return name

    def relu(x: str) -> str:
        nodes.append(oh.make_node("Relu", [x], [f"{x}_relu"], f"{x}_relu"))
        return f"{x}_relu"

    x, width = relu(conv("input", 3, widths[0], 3, 1, "stem")), widths[0]
    for stage, outputs in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            name = f"s{stage}b{block}"
            y = relu(conv(x, width, outputs, 3, stride, f"{name}c1"))
            y = conv(y, outputs, outputs, 3, 1, f"{name}c2")
            short = x if width == outputs and stride == 1 else conv(x, width, outputs, 1, stride, f"{name}sc")
            nodes.append(oh.make_node("Add", [y, short], [f"{name}_sum"], f"{name}_sum"))
            x, width = relu(f"{name}_sum"), outputs
    nodes.append(oh.make_node("GlobalAveragePool", [x], ["pool"], "pool"))
    nodes.append(oh.make_node("Flatten", ["pool"], ["flat"], "flat"))
    w = rng.standard_normal((widths[-1], 10)).astype(np.float32) * 0.1
    weights.append(onnx.numpy_helper.from_array(w, "fc.w"))
    nodes.append(oh.make_node("MatMul", ["flat", "fc.w"], ["output"], "fc"))
    graph = oh.make_graph(
        nodes,
        "resnet",
        [oh.make_tensor_value_info("input", 1, ["N", 3, 32, 32])],
        [oh.make_tensor_value_info("output", 1, ["N", 10])],
        weights,
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 13)], ir_version=8)


def seconds(run: Callable[[], object], at_least: float = 0.15) -> float:
    """Return the time of one call, averaged over enough calls to last `at_least` seconds."""
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < at_least:
        run()
        calls += 1
    return (time.perf_counter() - start) / calls


def bench(title: str, model: Any, platform: str, batches: Sequence[int], rounds: int, threads: int) -> None:
    """Print the lines of one model."""
    import onnxruntime as ort

    import lingeronnx as lo
    from lingeronnx.graph import ir

    session = lo.quantize(ir.from_proto(model), None, platform=platform).session()
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    rival = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    spec = session.inputs[0]
    for batch in batches:
        x = np.random.default_rng(1).standard_normal((batch, *(int(d or 1) for d in spec.shape[1:]))).astype(np.float32)
        feed = {spec.name: x}
        start = time.perf_counter()
        session.run(None, feed)
        first = time.perf_counter() - start
        rival.run(None, feed)
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(seconds(lambda feed=feed: session.run(None, feed)) / batch)
            theirs.append(seconds(lambda feed=feed: rival.run(None, feed)) / batch)
        ratios = sorted(o / t for o, t in zip(ours, theirs, strict=True))
        print(
            f"| {title} | {batch} | {1e6 * statistics.median(ours):.1f} | {1e6 * statistics.median(theirs):.1f} "
            f"| {statistics.median(ratios):.2f} | {ratios[0]:.2f}-{ratios[-1]:.2f} | {first:.2f} |",
            flush=True,
        )


_FIRST = """
import sys, time
start = time.perf_counter()
import numpy as np
import lingeronnx as lo
imported = time.perf_counter()
session = lo.Session(sys.argv[1])
spec = session.inputs[0]
x = np.zeros((1, *(int(d or 1) for d in spec.shape[1:])), spec.dtype)
session.run(None, {spec.name: x})
print(f"imports {imported - start:.2f} s, the first answer after {time.perf_counter() - start:.2f} s")
"""


def first_runs(model: Any) -> None:
    """Print what a process compiles that finds nothing, and how long it and the next one take."""
    import lingeronnx as lo
    from lingeronnx.graph import ir

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.onnx"
        lo.quantize(ir.from_proto(model), None, platform="venus").save(path)
        cache = Path(folder) / "cache"
        for title in ("first process", "second process"):
            environment = {**os.environ, "LINGERONNX_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
            done = subprocess.run(
                [sys.executable, "-c", _FIRST, str(path)], env=environment, capture_output=True, text=True, check=True
            )
            loops, codes = (len(list(cache.rglob(f"*.{kind}"))) for kind in ("nbc", "o"))
            print(f"{title}: {done.stdout.strip()}; {loops} loops and {codes} tiles and trampolines in the cache")


def models(paths: Sequence[Path]) -> list[tuple[str, Any, str]]:
    """Return title, model and platform of what is measured."""
    import onnx

    if paths:
        return [(path.stem, onnx.load(path), "venus") for path in paths]
    found = [(name, ROOT / "models" / f"{name}.onnx") for name in OURS]
    found += [(name, SHARED / f"{name}.onnx") for name in OTHERS if (SHARED / f"{name}.onnx").is_file()]
    listed: list[tuple[str, Any, str]] = []
    for name, path in found:
        listed.append((name, onnx.load(path), "venus"))
        if name.endswith(("lstm", "gru", "attention")):
            listed.append((f"{name} (generic)", onnx.load(path), "generic"))
    return [
        *listed,
        ("resnet20 (random)", resnet((16, 32, 64), 3), "venus"),
        ("resnet18 width 64 (random)", resnet((64, 128, 256, 512), 2), "venus"),
    ]


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--batch", nargs="*", type=int, default=[64, 1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--simd", help="the row of dot instructions to use")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--first", action="store_true", help="count and time the compilations of a first run")
    args = parser.parse_args()
    os.environ["LINGERONNX_THREADS"] = str(args.threads)
    if args.simd is not None:
        os.environ["LINGERONNX_SIMD"] = args.simd
        if args.simd in PROCESSORS:  # before Numba is imported
            os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = PROCESSORS[args.simd], ""
    if args.first:
        first_runs(models(args.models or [ROOT / "models" / "digits_cnn.onnx"])[0][1])
        return
    from simulator.rows import row

    used = row()
    print(f"{os.cpu_count()} processors, {args.threads} thread(s), row {used.name if used else 'none'}")
    print("| model | batch | simulator, us/sample | onnxruntime float32 | ratio of times | spread | first call, s |")
    print("|---|---|---|---|---|---|---|")
    for title, model, platform in models(args.models):
        bench(title, model, platform, args.batch, args.rounds, args.threads)


if __name__ == "__main__":
    main()
