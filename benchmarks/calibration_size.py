"""How many calibration samples are needed: accuracy with few of them, and how far chance moves it.

    python benchmarks/calibration_size.py MODEL.onnx --calib DATA --test DATA [--output TENSOR]
    [--sizes 32 64 128 512]
        [--subsets 5] [--platform venus] [--effort normal] [--calibrator mse] [--limit N]

For each size, --subsets random subsets of the calibration data (seeds 0, 1, ...; drawn without
putting back) quantize the model with the defaults. One line per size: mean and standard deviation
over the subsets, and the worst, of the SQNR of --output and of top-1 where the test data have
labels. A size beyond the data is cut to all of them, of which there is one subset only. Labels
serve only to count.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import numpy as np

import lingeronnx as lo
from lingeronnx.runtime.data import Data


def _all(model: str, data: str) -> dict[str, np.ndarray]:
    """Return all samples of `data`, by input."""
    inputs = lo.Session(model).inputs
    parts = [feeds for feeds, _ in Data(data, inputs).batches(256)]
    return {spec.name: spec.concatenate([part[spec.name] for part in parts]) for spec in inputs}


def _subsets(pool: dict[str, np.ndarray], size: int, count: int) -> list[dict[str, np.ndarray]]:
    many = len(next(iter(pool.values())))
    if size >= many:
        return [pool]
    picks = [
        np.sort(np.random.default_rng(seed).choice(many, size, replace=False))
        for seed in range(count)
    ]
    return [{name: array[pick] for name, array in pool.items()} for pick in picks]


def _spread(values: Sequence[float]) -> str:
    off = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f} +- {off:.2f} (worst {min(values):.2f})"


def main() -> None:
    """Parse the arguments and print the lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument(
        "--output", help="the tensor whose SQNR is told, default the first graph output"
    )
    parser.add_argument("--sizes", nargs="*", type=int, default=[32, 64, 128, 512])
    parser.add_argument("--subsets", type=int, default=5)
    parser.add_argument("--platform", default="venus")
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--calibrator", default="mse")
    parser.add_argument("--limit", type=int, help="test samples at most")
    args = parser.parse_args()
    pool = _all(args.model, args.calib)
    labelled = next(Data(args.test, lo.Session(args.model).inputs).batches(1))[1] is not None
    for size in args.sizes:
        found: dict[str, list[float]] = {"sqnr": [], **({"top1": []} if labelled else {})}
        subsets = _subsets(pool, size, args.subsets)
        for subset in subsets:
            session = lo.quantize(
                args.model,
                subset,
                platform=args.platform,
                effort=args.effort,
                calibrator=args.calibrator,
            ).session()
            for metric, values in found.items():
                output = args.output if metric == "sqnr" else None
                values.append(
                    lo.evaluate(
                        session,
                        args.test,
                        metric=metric,
                        baseline=args.model,
                        output=output,
                        limit=args.limit,
                    ).value
                )
        told = "  ".join(f"{metric} {_spread(values)}" for metric, values in found.items())
        count = len(next(iter(subsets[0].values())))
        print(
            (
                f"{args.platform} {args.effort} {args.calibrator}  {count} samples x {len(subsets)}  "
                f"{told}"
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
