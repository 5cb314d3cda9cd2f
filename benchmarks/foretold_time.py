"""How near the cycles that `check` tells of a float model are to those that `quantize` then tells, on one chip.

    python benchmarks/foretold_time.py arcs MODEL.onnx ... [--log FILE]

Each model is checked before any calibration, then quantized on random inputs with little effort: scales hardly matter
for time. Prints cycles, and the difference in percent of what quantize tells; ends with 1 where one is above 10 %. With
--log, models that the file names already are not run again.
"""

import argparse
import json
import sys
from pathlib import Path

import lingeronnx as lo

_NEAR = 10.0  # percent


def told(model, platform):
    """Return {model, check, quantize, why}: cycles of a call, None where a model has none, and why."""
    try:
        checked = lo.check(model, platform=platform)
        made = lo.quantize(model, platform=platform, effort="fast").report
    except lo.LingerOnnxError as error:
        return {"model": Path(model).stem, "check": None, "quantize": None, "why": str(error)[:160]}
    cycles = [None if time.latency is None else time.latency.total for time in (checked.time, made.time)]
    why = "" if None not in cycles else f"{checked.verdict}; chip-ready: {made.chip_ready}"
    return {"model": Path(model).stem, "check": cycles[0], "quantize": cycles[1], "why": why[:160]}


def main(words=None):
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("platform")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--log", type=Path, help="JSON lines; those that are there are not run again")
    asked = parser.parse_args(words)
    lines = asked.log.read_text().splitlines() if asked.log is not None and asked.log.is_file() else []
    rows = {row["model"]: row for row in map(json.loads, lines)}
    far = 0
    print(f"{'model':32} {'check':>14} {'quantize':>14} {'off':>8}")
    for model in asked.models:
        row = rows.get(Path(model).stem) or told(model, asked.platform)
        if asked.log is not None and row["model"] not in rows:
            with asked.log.open("a") as log:
                log.write(json.dumps(row) + "\n")
        counts = [row["check"], row["quantize"]]
        texts = ["-" if count is None else f"{count:,.0f}" for count in counts]
        off = None if None in counts else 100 * (counts[0] - counts[1]) / counts[1]
        far += off is not None and abs(off) > _NEAR
        end = f"{off:+7.2f}%" if off is not None else row["why"]
        print(f"{row['model']:32} {texts[0]:>14} {texts[1]:>14} {end}", flush=True)
    print(f"{far} of {len(asked.models)} are more than {_NEAR:g} % off")
    return int(far > 0)


if __name__ == "__main__":
    sys.exit(main())
