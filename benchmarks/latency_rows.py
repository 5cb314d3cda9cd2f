"""Predict the cycles of every row of a folder, and say how far the predictions are from the rows.

    python benchmarks/latency_rows.py FOLDER [--worst 5] [--json FILE]

FOLDER has index.json: rows of kernels (`as_is`: the vendor's program, whose copies are its polynomial; `measured`: on a
chip), of nodes and of graphs as the executor runs them (`runtime`), and the graphs. A row is {id, level, op, basis,
refused, attributes, inputs, outputs, cycles}. Of a graph the layers are compared too. The exit code is 1 where a
kernel or a node differs, or fewer than 95 % of the layers are within 1 %.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

import onnx

import lingeronnx.targets as targets
from lingeronnx.errors import words_of
from lingeronnx.targets.luna.timing.kernels import KernelCall, cycles
from lingeronnx.targets.luna.timing.prices import ARCS
from lingeronnx.targets.luna.timing.work import Node, Operand, work_of

_BITS = {"int8": 8, "uint8": 8, "int16": 16, "int32": 32, "int64": 64, "float32": 32}
_LAYERS = 0.95  # of a graph's layers within _NEAR
_NEAR = 0.01
_WHOLE = 0.02  # of a graph's cycles


def fitted(prices, route, size):
    """Return the price of a copy by the vendor's polynomial, as its program has it."""
    return prices.copies[route].fitted(size)


def measured(prices, route, size):
    """Return the price of a copy by the points that were measured."""
    return prices.copies[route].cycles(size)


def kernel(row):
    """Return the predicted cycles of a kernel's row; None for no price."""
    name, given = row["op"].split(":")[1], dict(row["attributes"])
    if name == "dma":
        name, given = f"{given['from']}_to_{given['to']}", {"n": given["bytes"]}
    return cycles(KernelCall(name, given), ARCS, fitted if row["basis"] == "as_is" else measured)


def node(row):
    """Return the predicted cycles of a node's row; None where some of it has no price."""
    sides = [[Operand(tuple(o["shape"]), _BITS[o["dtype"]]) for o in row[side]] for side in ("inputs", "outputs")]
    prefetch = row["attributes"].get("prefetch", row.get("prefetch", True))
    work = work_of(Node(row.get("onnx_op", row["op"]), row["attributes"], *sides, prefetch=prefetch))
    prices = [cycles(call, ARCS, fitted) for call in work.calls]
    if None in prices or any(rest.bytes for rest in work.unpriced):
        return None
    return sum(call.times * price for call, price in zip(work.calls, prices, strict=True))


def graph(row, folder):
    """Return (cycles of the NPU, {layer: cycles})."""
    model = onnx.load(folder / row["model"])
    found = targets.by_name("arcs").latency(model, words_of(row["packer_arguments"]))
    layers = defaultdict(float)
    for layer in found.layers:
        layers[layer.name] += layer.cycles
    return found.luna, layers


def main(words=None):
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="also print so many of the worst rows")
    parser.add_argument("--json", type=Path, help="write {id: predicted cycles} for a judge of your own")
    asked = parser.parse_args(words)
    rows = json.loads((asked.folder / "index.json").read_text())
    groups, predictions, worst, near = defaultdict(list), {}, [], []
    for row in rows:
        want = None if row["cycles"] is None else row["cycles"].get("total", row["cycles"].get("luna"))
        if row["level"] == "graph":
            got, layers = graph(row, asked.folder)
            known = {e["name"]: e["cycles"]["luna"] for e in row.get("layers", ()) if e.get("cycles")}
            errors = {name: _error(layers.get(name, 0.0), value) for name, value in known.items()}
            near += [error <= _NEAR for error in errors.values()]
            worst += [(error, row["id"], name) for name, error in errors.items()]
            predictions[row["id"]] = {"luna": got, "layers": dict(layers)}
        elif row["level"] in ("kernel", "node"):
            got = predictions[row["id"]] = kernel(row) if row["level"] == "kernel" else node(row)
        else:
            continue
        error = _error(got, want) if got is not None and want is not None else float((got is None) != (want is None))
        groups[row["level"], row["basis"], row["op"]].append(error)
        worst.append((error, row["id"], ""))
    print(f"{'rows':9} {'basis':9} {'operator':30} {'rows':>5} {'equal':>6} {'median':>9} {'largest':>9}")
    for (level, basis, op), errors in sorted(groups.items()):
        equal = sum(error < 1e-9 for error in errors)
        print(f"{level:9} {basis:9} {op:30} {len(errors):5} {equal:6} {median(errors):9.3%} {max(errors):9.3%}")
    print(f"layers of graphs within {_NEAR:.0%}: {sum(near)} of {len(near)}")
    for error, name, layer in sorted(worst, reverse=True)[: asked.worst]:
        print(f"  {error:9.3%} {name} {layer}")
    if asked.json is not None:
        asked.json.write_text(json.dumps(predictions))
    same = all(e < 1e-9 for (lv, b, _), es in groups.items() for e in es if (lv, b) in _EXACT)
    whole = all(e <= _WHOLE for (level, _, _), es in groups.items() for e in es if level == "graph")
    return int(not (same and whole and sum(near) >= _LAYERS * len(near)))


_EXACT = (("kernel", "as_is"), ("node", "runtime"))


def _error(got, want):
    return abs(got - want) / max(abs(want), 1.0)


if __name__ == "__main__":
    sys.exit(main())
