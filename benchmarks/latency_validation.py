"""Predict the cycles of every row of a folder, and say how far the predictions are from the rows.

    python benchmarks/latency_validation.py FOLDER [--worst 5] [--json FILE]

FOLDER has index.json: rows of kernels (`as_is`: the vendor's program, whose copies are its
polynomial; `estimate_copy_by_points`: on a chip), of nodes and of graphs as the executor runs them
(`runtime`), and the graphs. A row is {id, level, op, basis, refused, attributes, inputs, outputs,
cycles}. Of a graph the layers are compared too. Per operator and basis it prints: rows, rows
answered, rows where both or neither have a price, then median, 95th percentile and largest relative
error
|predicted - row| / row. The exit code is 1 where a kernel or a node differs, a copy by more than 0.5 % from a measured
point, fewer than 95 % of the layers are within 1 %, or the cycles of a graph's priced layers are
off by more than 2 %.

Above its last point (65536 bytes) the vendor's program rounds the polynomial of a copy from
external memory up, where it cuts all others; nothing tells why. So do we here. No price of ours
uses a polynomial there.
"""

import argparse
import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import onnx

import lingeronnx.targets as targets
from lingeronnx.common.errors import split_words
from lingeronnx.luna.kernel_costs import ARCS
from lingeronnx.luna.timing.kernel_calls import Operand, TimingNode, list_kernel_calls
from lingeronnx.luna.timing.kernels import KernelCall, estimate_kernel_cycles

_BITS = {"int8": 8, "uint8": 8, "int16": 16, "int32": 32, "int64": 64, "float32": 32}
_LAYERS, _NEAR = 0.95, 0.01  # so many of the layers of graphs are so near
_WHOLE = 0.02  # of a graph's cycles
_MEASURED = 0.005  # of a point that was measured
_EQUAL = 1e-9
_HEAD = (
    "operator                     basis     part    rows answ. agree    median       p95       max"
)


def estimate_copy_by_fit(prices, route, size):
    """Return the price of a copy by the vendor's polynomial, as its program has it."""
    copies = prices.copies[route]
    if route == "memcpy_from_psram" and size > copies.measured_points[-1][0]:
        return float(math.ceil(copies.evaluate_polynomial(size)))
    return copies.estimate_cycles_by_fit(size)


def estimate_copy_by_points(prices, route, size):
    """Return the price of a copy by the points that were measured."""
    return prices.copies[route].cycles(size)


def predict_kernel_cycles(row):
    """Return the predicted cycles of a kernel's row; None for no price."""
    name, given = row["op"].split(":")[1], dict(row["attributes"])
    if name == "dma":
        name, given = f"{given['from']}_to_{given['to']}", {"n": given["bytes"]}
    return estimate_kernel_cycles(
        KernelCall(name, given),
        ARCS,
        estimate_copy_by_fit if row["basis"] == "as_is" else estimate_copy_by_points,
    )


def predict_node_cycles(row):
    """Return the predicted cycles of a node's row; None where some of it has no price."""
    sides = [
        [Operand(tuple(o["shape"]), _BITS[o["dtype"]]) for o in row[side]]
        for side in ("inputs", "outputs")
    ]
    prefetch = row["attributes"].get("prefetch", row.get("prefetch", True))
    work = list_kernel_calls(
        TimingNode(row.get("onnx_op", row["op"]), row["attributes"], *sides, prefetch=prefetch)
    )
    prices = [estimate_kernel_cycles(call, ARCS, estimate_copy_by_fit) for call in work.calls]
    if None in prices or any(rest.moved_bytes for rest in work.unmodeled):
        return None
    return sum(call.count * price for call, price in zip(work.calls, prices, strict=True))


def predict_graph_cycles(row, folder):
    """Return (cycles of the NPU, {layer: cycles})."""
    model = onnx.load(folder / row["model"])
    found = targets.get_target("arcs").estimate_latency(model, split_words(row["packer_arguments"]))
    layers = defaultdict(float)
    for layer in found.layers:
        layers[layer.name] += layer.cycles
    return found.luna, layers


def compute_errors(row, folder):
    """Return a row's prediction and {part: relative error}.

    None for a row that no prediction is made of.
    An error is None where one of both has no price, and the parts are empty where neither has.
    """
    want = None if row["cycles"] is None else row["cycles"].get("total", row["cycles"].get("luna"))
    if row["level"] == "graph":
        got, layers = predict_graph_cycles(row, folder)
        known = {e["name"]: e["cycles"]["luna"] for e in row.get("layers", ()) if e.get("cycles")}
        errors = {
            f"layer {name}": _get_relative_error(layers.get(name, 0.0), value)
            for name, value in known.items()
        }
        return {"luna": got, "layers": dict(layers)}, {
            "luna": _get_relative_error(got, want),
            **errors,
        }
    if row["level"] not in ("kernel", "node"):
        return None
    got = predict_kernel_cycles(row) if row["level"] == "kernel" else predict_node_cycles(row)
    if got is None or want is None:
        return got, {} if got is want else {"main": None}
    return got, {"main": _get_relative_error(got, want)}


def main(words=None):
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--worst", type=int, default=0, metavar="N", help="also print so many of the worst rows"
    )
    parser.add_argument(
        "--json", type=Path, help="write {id: predicted cycles} for a judge of your own"
    )
    asked = parser.parse_args(words)
    rows = json.loads((asked.folder / "index.json").read_text())
    groups, predictions, worst = defaultdict(_Group), {}, []
    for row in rows:
        group = groups[row["op"], row["basis"]]
        group.rows += 1
        if (answer := compute_errors(row, asked.folder)) is None:
            continue
        predictions[row["id"]], errors = answer
        group.answered += 1
        group.agree += None not in errors.values()
        for part, error in errors.items():
            if error is not None:
                group.errors[part.split(" ")[0]].append(error)
                worst.append((error, row["id"], part))
    print(_HEAD)
    for (op, basis), group in sorted(groups.items()):
        counts = f"{group.rows:5} {group.answered:5} {group.agree:5}"
        for part, errors in (group.errors or {"": []}).items():
            told = (
                [f"{_quantile(errors, q):9.2%}" for q in (0.5, 0.95, 1)]
                if errors
                else 3 * [f"{'-':>9}"]
            )
            print(f"{op:28} {basis:9} {part:6} {counts} {' '.join(told)}")
    for error, name, part in sorted(worst, reverse=True)[: asked.worst]:
        print(f"  {error:9.2%}  {name}  {part}")
    if asked.json is not None:
        asked.json.write_text(json.dumps(predictions))
    failed = list(_iterate_failures(groups))
    for line in failed:
        print(f"not reached: {line}")
    return int(bool(failed))


@dataclass
class _Group:
    """The rows of an operator on one basis; agree : both or neither have a price.

    Errors : by part.
    """

    rows: int = 0
    answered: int = 0
    agree: int = 0
    errors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def _iterate_failures(groups):
    """Yield what is not as near as it has to be."""
    for (op, basis), group in groups.items():
        most = _MEASURED if basis == "measured" else _WHOLE if op == "graph" else _EQUAL
        if group.answered and group.agree < group.answered:
            yield f"{op} {basis}: {group.answered - group.agree} rows have a price on one side only"
        for part, errors in group.errors.items():
            if part != "layer" and max(errors) > most:
                yield f"{op} {basis} {part}: {max(errors):.3%} off, at most {most:.1%} is allowed"
            near = sum(error <= _NEAR for error in errors)
            if part == "layer":
                print(f"layers of graphs within {_NEAR:.0%}: {near} of {len(errors)}")
            if part == "layer" and near < _LAYERS * len(errors):
                yield (
                    f"{op} {basis}: {near} of {len(errors)} layers within {_NEAR:.0%}, "
                    f"{_LAYERS:.0%} are asked"
                )


def _get_relative_error(got, want):
    return abs(got - want) / max(abs(want), 1.0)


def _quantile(values, q):
    values = sorted(values)
    at = (len(values) - 1) * q
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


if __name__ == "__main__":
    sys.exit(main())
