"""Every model of onnx's own test suite on every platform: quantized, or one line that says why not.

python benchmarks/scan_onnx_suite.py                             # all models, all platforms
python benchmarks/scan_onnx_suite.py --platform venus --every 20 # a sample
python benchmarks/scan_onnx_suite.py --match resize --lines      # what is said of each

The models are those that the installed onnx brings: node tests (made by its case generators),
simple models, and the operators and small models converted from PyTorch. A model counts as
quantized where at least one operator became integer. These are failures, and then the exit code is
1: anything but a result or a LingerOnnxError of one line without places in onnxruntime's sources; a
model that takes longer than --seconds; a model of operators that the platform has
(docs/reference/operators.md), within its limits, that stays in float. Calibrated with the suite's
own inputs where they are float, at effort fast.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from onnx_suite import Model, node_models, stored_models

from lingeronnx.api import quantize
from lingeronnx.common.errors import LingerOnnxError
from lingeronnx.ir import ir
from lingeronnx.operators.lowerings import find_lowering_rule
from lingeronnx.targets import PLATFORMS, Target

_REAL = ("BFLOAT16", "DOUBLE", "FLOAT", "FLOAT16")


@dataclass(frozen=True)
class Outcome:
    """What became of a model on a platform.

    kind : "quantized", "float" (nothing became integer), "refused" (one line) or "failed". said :
    the reason.
    """

    kind: str
    said: str
    seconds: float


def quantize_for_target(model: Model, target: Target) -> Outcome:
    """Quantize a model for a platform."""
    start = time.perf_counter()
    try:
        loaded = ir.from_proto(onnx.ModelProto.FromString(model.proto.SerializeToString()))
        result = quantize(
            loaded, [model.feed] if model.feed else None, platform=target, effort="fast"
        )
    except LingerOnnxError as error:
        text = str(error)
        raw = not text or any(
            mark in text for mark in ("\n", "Traceback", "/onnxruntime_src/", "[ONNXRuntimeError]")
        )
        kind = "failed" if raw else "refused"
        return Outcome(kind, text, time.perf_counter() - start)
    except Exception as error:  # the point of the scan
        return Outcome("failed", f"{type(error).__name__}: {error}", time.perf_counter() - start)
    floats = [*result.report.float_nodes, *result.report.host_part]
    said = "; ".join(dict.fromkeys(f"{node.op_type}: {node.why}" for node in floats))
    return Outcome(
        "quantized" if result.report.layers else "float", said, time.perf_counter() - start
    )


def should_be_integer(model: Model, target: Target) -> bool:
    """Whether all nodes are operators that `target` computes in integers, in its limits, and one does not only move.

    Such a model has to be quantized. docs/reference/operators.md lists the operators. A model that
    ends in what the host does as well (a softmax, a sigmoid) may stay in float.
    """
    graph = ir.from_proto(onnx.ModelProto.FromString(model.proto.SerializeToString()))
    computes = False
    for node in graph.graph:
        op, _ = find_lowering_rule(node, target)
        if op is None or not op.is_available(target) or op.find_violations(node, target):
            return False
        if any(
            ir.require_input(node, i).dtype is None
            or ir.require_input(node, i).dtype.name not in _REAL
            for i in op.data(node)
        ):
            return False
        computes |= not (op.is_data_movement or op.runs_on_host_when_last)
    return computes


def main() -> int:
    """Scan and print; 1 where a model failed or took too long."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--platform", action="append", choices=[target.name for target in PLATFORMS]
    )
    parser.add_argument("--match", default="", help="only models whose name holds this")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th model")
    parser.add_argument("--seconds", type=float, default=20.0, help="the longest a model may take")
    parser.add_argument("--lines", action="store_true", help="a line for each model")
    given = parser.parse_args()
    rows = [target for target in PLATFORMS if not given.platform or target.name in given.platform]
    models = [m for m in (*node_models(), *stored_models()) if given.match in m.name][
        :: given.every
    ]
    counts: dict[str, Counter[str]] = {row.name: Counter() for row in rows}
    bad = 0
    for model in models:
        for row in rows:
            found = quantize_for_target(model, row)
            if found.kind == "float" and should_be_integer(model, row):
                found = replace(found, kind="failed", said=f"not quantized: {found.said}")
            counts[row.name][found.kind] += 1
            slow = found.seconds > given.seconds
            bad += slow or found.kind == "failed"
            if given.lines or slow or found.kind == "failed":
                print(
                    (
                        f"{row.name:8} {model.name:60} {found.kind:10} {found.seconds:5.1f} s  "
                        f"{found.said[:300]}"
                    ),
                    flush=True,
                )
    print(f"{len(models)} models")
    for name, count in counts.items():
        print(
            f"{name:8} "
            + ", ".join(
                f"{count[kind]} {kind}" for kind in ("quantized", "float", "refused", "failed")
            )
        )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
