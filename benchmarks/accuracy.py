"""Accuracy of a model quantized with the defaults, on the integer simulator, against float.

    python benchmarks/accuracy.py MODEL.onnx --calib DATA --test DATA [--output TENSOR] [--metric top1|sqnr|...]
        [--platform venus generic] [--effort normal fast]

One line per platform and effort: the metric in float (where it has labels) and in integers, the share of
multiply-accumulates done in integers, whether the graph is chip-ready, and the time quantizing took. The generic
platform is run with MaxValue scales. Nothing is tuned to the model; labels serve only to count.
"""

from __future__ import annotations

import argparse
import time

import lingeronnx as lo


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--output", help="the tensor to measure, default the first graph output")
    parser.add_argument("--metric")
    parser.add_argument("--platform", nargs="*", default=["venus", "generic"])
    parser.add_argument("--effort", nargs="*", default=["normal"])
    args = parser.parse_args()
    for platform in args.platform:
        mode = "max-value" if platform == "generic" else "q-value"
        for effort in args.effort:
            start = time.perf_counter()
            quantized = lo.quantize(args.model, args.calib, platform=platform, mode=mode, effort=effort)
            took = time.perf_counter() - start
            found = lo.evaluate(
                quantized.session(), args.test, metric=args.metric, baseline=args.model, output=args.output
            )
            report = quantized.report
            chip = "" if not report.is_chip else "chip-ready" if report.chip_ready else "not chip-ready"
            base = "" if found.baseline is None else f"float {found.baseline:.2f}  "
            print(
                f"{platform:8s} {mode:9s} {effort:6s}  {base}{found.metric} {found.value:.2f} {found.unit}"
                f"  n={found.samples}  integer MACs {100 * report.integer_macs:.1f} %  {chip}  {took:.1f} s"
            )


if __name__ == "__main__":
    main()
