"""A model quantized here, written as QuantizeLinear and DequantizeLinear.

The simulator beside onnxruntime.
    python benchmarks/to_qdq.py MODEL.onnx --calib DATA --test DATA [--platform venus] [--metric M]
    [--effort fast]
        [--limit N]

The metric of the integers on the simulator, of the standard file in onnxruntime, and what
`convert --to qdq` says of the differences operator by operator.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import lingeronnx as lo


def main() -> None:
    """Parse the arguments and print the lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--platform", default="venus")
    parser.add_argument("--metric")
    parser.add_argument("--effort", default="fast")
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    made = lo.quantize(args.model, args.calib, platform=args.platform, effort=args.effort)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "qdq.onnx"
        written = made.write(path, "qdq")
        found = [
            lo.evaluate(model, args.test, metric=args.metric, baseline=args.model, limit=args.limit)
            for model in (made.session(), str(path))
        ]
    ours, theirs = found
    print(
        f"{Path(args.model).stem:28s} {args.platform:8s} {ours.metric} simulator {ours.value:.2f}  "
        "onnxruntime "
        f"{theirs.value:.2f} {ours.unit}  n={ours.samples}"
    )
    for note in written.report.notes:
        if "from the simulator" in note:
            print(f"  {note}", flush=True)


if __name__ == "__main__":
    main()
