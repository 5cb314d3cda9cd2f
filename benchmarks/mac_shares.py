"""Compare the multiply-accumulates that reports state with an independent count.

    python -m benchmarks.mac_shares [--only NAME ...] [--chips generic venus ...] [--samples 4]
        [--budget SECONDS]

Quantizes every model of the regression baseline (benchmarks/results/baseline.md) and compares the
total of `macs` with the count of tests/oracles/mac_count.py, which reads the ONNX file alone. The
chip may run more than the file says, where a layer is rewritten: the steps of a GRU, or a kernel of
1x1 with stride 2 as one of 2x2. Rows whose sum of shares is not the total, or whose total differs
from the count although all nodes are counted, are failures: exit code 1.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import lingeronnx as lo
from benchmarks.baselines.measure import CHIPS, find_subject, get_states
from benchmarks.baselines.table import Case
from benchmarks.object_sizes import list_cases
from lingeronnx.common.errors import LingerOnnxError
from tests.oracles.mac_count import count_model_macs

_HEAD = (
    "model",
    "chip",
    "counted",
    "stated",
    "run",
    "chip share",
    "host integer",
    "host float",
    "unknown",
)


def measure_case(case: Case, samples: int) -> dict[str, Any]:
    """Return the stated MACs of a quantized model and the count of its file.

    The result has "failed" instead, if the model cannot be quantized, and "uncounted" nodes whose
    shapes onnx does not infer.
    """
    subject = find_subject(case.model)
    if subject.find_missing_file:
        return {"failed": subject.find_missing_file}
    fixed = dict(pair.split("=") for pair in re.findall(r"--fix (\S+)", case.settings))
    try:
        report = lo.quantize(
            subject.model,
            subject.calib,
            platform=case.platform,
            effort="fast",
            limit=samples,
            state=get_states(subject) or None,
            fix={key: float(value) for key, value in fixed.items()} or None,
        ).report
    except LingerOnnxError as error:
        return {"failed": str(error)}
    counts = count_model_macs(subject.model)
    return {
        "counted": sum(count or 0 for count in counts.values()),
        "uncounted": sum(count is None for count in counts.values()),
        "macs": report.macs,
    }


def format_row(case: Case, row: dict[str, Any]) -> str:
    """Return a row of the table."""
    cells = [case.model, case.platform]
    if "failed" in row:
        reason = " ".join(row["failed"].split()).replace("|", "/")
        cells += [f"not quantized: {reason[:120]}", *"------"]
    else:
        macs, total = row["macs"], max(row["macs"].total, 1)
        shares = (macs.chip, macs.host_integer, macs.host_float)
        counted = f"{row['counted']:,}"
        if row["uncounted"]:
            counted += f" and {row['uncounted']} nodes of unknown size"
        cells += [counted, f"{macs.total:,}", f"{macs.executed:,}"]
        cells += [f"{100 * share / total:.2f} %" for share in shares]
        cells.append(str(sum(macs.unknown.values())))
    return f"| {' | '.join(cells)} |"


def is_failure(row: dict[str, Any]) -> bool:
    """Whether the shares do not add up, or other MACs are stated than the file has."""
    if "failed" in row:
        return False
    macs = row["macs"]
    has_all = macs.chip + macs.host_integer + macs.host_float == macs.total
    is_comparable = not macs.unknown and not row["uncounted"]
    return not has_all or (is_comparable and macs.total != row["counted"])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--chips", nargs="+", default=CHIPS, metavar="CHIP")
    parser.add_argument("--samples", type=int, default=4, help="calibration samples")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS")
    args = parser.parse_args(argv)
    print(f"| {' | '.join(_HEAD)} |\n|{'---|' * len(_HEAD)}", flush=True)
    start, failures = time.monotonic(), 0
    for case in list_cases(args.only, args.chips):
        if time.monotonic() - start > args.budget:
            break
        row = measure_case(case, args.samples)
        failures += is_failure(row)
        print(format_row(case, row) + (" WRONG" if is_failure(row) else ""), flush=True)
    print(f"\n{failures} rows with a wrong number of multiply-accumulates.")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
