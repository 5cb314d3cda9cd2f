"""Accuracy of a model quantized with the defaults, on the integer simulator, against float.

    python benchmarks/accuracy.py MODEL.onnx --calib DATA --test DATA [--output TENSOR] [--metric
    top1|sqnr|...]
        [--platform venus generic] [--effort normal fast] [--weight-scales tensor channel]
        [--weight-bits 8 4] [--activations symmetric asymmetric]
        [--limit N]

One line per platform, effort, width of weights and kind of their scales: the metric in float (where
it has labels) and in integers, the share of multiply-accumulates done in integers, whether the
graph is chip-ready, and the time quantizing took; below it, what each method of `--effort best`
gained. The generic platform is run with MaxValue scales. Nothing is tuned to the model; labels
serve only to count.
"""

from __future__ import annotations

import argparse
import itertools
import time

import lingeronnx as lo
from lingeronnx.operators.macs import count_macs


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--output", help="the tensor to measure, default the first graph output")
    parser.add_argument("--metric")
    parser.add_argument("--platform", nargs="*", default=["venus", "generic"])
    parser.add_argument("--effort", nargs="*", default=["normal"])
    parser.add_argument("--weight-scales", nargs="*", default=["tensor"])
    parser.add_argument("--activations", nargs="*", default=["symmetric"])
    parser.add_argument("--weight-bits", nargs="*", type=int, default=[8])
    parser.add_argument("--limit", type=int, help="test samples at most")
    args = parser.parse_args()
    choices = itertools.product(
        args.platform, args.effort, args.weight_bits, args.weight_scales, args.activations
    )
    for platform, effort, bits, scales, activations in choices:
        mode = "max-value" if platform == "generic" else "q-value"
        start = time.perf_counter()
        quantized = lo.quantize(
            args.model,
            args.calib,
            platform=platform,
            mode=mode,
            effort=effort,
            weight_bits=bits,
            weight_scales=scales,
            activations=activations,
        )
        took = time.perf_counter() - start
        millions = sum(count_macs(node) for node in quantized.float_graph.graph) / 1e6
        found = lo.evaluate(
            quantized.session(),
            args.test,
            metric=args.metric,
            baseline=args.model,
            output=args.output,
            limit=args.limit,
        )
        report = quantized.report
        chip = "" if not report.is_chip else "chip-ready" if report.chip_ready else "not chip-ready"
        base = "" if found.baseline is None else f"float {found.baseline:.2f}  "
        print(
            f"{platform:8s} {mode:9s} {effort:6s} w{bits:<2d} {scales:7s} {activations:10s}  "
            f"{base}{found.metric} "
            f"{found.value:.2f} {found.unit}  n={found.samples}  integer MACs "
            f"{100 * report.integer_macs:.1f} %  "
            f"{chip}  {took:.1f} s, {took / millions:.2f} s per million MACs",
            flush=True,
        )
        for note in report.notes:
            if note.startswith("effort"):
                print(f"    {note}", flush=True)


if __name__ == "__main__":
    main()
