"""What two versions of lingeronnx write and compute for the same models: equal or not, and where they differ.

    PYTHONPATH=OLD python NEW/benchmarks/compare_versions.py --save old.json
    PYTHONPATH=NEW python NEW/benchmarks/compare_versions.py --against old.json
    ... --quick                               a minute or two, for after each step of a refactoring
    ... --sets real --platform venus --only 'face*'

A refactoring leaves both the same. Every model is quantized for every platform, from a few samples, and becomes one
fingerprint:

    files      hashes of the written files: the graph, the part for the packer, the plan
    named      one line per node of the graph file with all names, in the order of the file: says which bytes moved
    graph      the integer graph in a form that no name of a tensor or node and no order of writing changes: one line
               per node with its operator, attributes and inputs; an initializer stands as its type, shape and hash
    linger     a hash of the same of the graph converted to domain linger, or that there is none
    packer     the packer's line; cost, notes and findings of the report stand in `report`, as a hash each
    check      hashes of what check says of the float model and of the written file, each part by itself
    outputs    hashes of what the simulator computes on other samples, on the executor's arithmetic and on the training
               side's where it is known; of a model with states call by call, with its states fed back

Models and data: see version_models.py. One script serves both versions: PYTHONPATH chooses the package, and this file
uses nothing but its public names. The exit status is 1 where anything differs.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from version_models import SETS, Entry, Feed, entries

import lingeronnx as lo

PLATFORMS = ("generic", "venus", "arcs", "venusA")


# ---- graphs ------------------------------------------------------------------------------------------------------


def digest(*parts: object) -> str:
    """Return 12 hexadecimal digits that stand for `parts`."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part if isinstance(part, bytes) else str(part).encode())
        found.update(b"\0")
    return found.hexdigest()[:12]


def constant(tensor: onnx.TensorProto) -> str:
    """Return an initializer as type, shape and hash."""
    array = onnx.numpy_helper.to_array(tensor)
    return f"{array.dtype}{list(array.shape)}:{digest(np.ascontiguousarray(array).tobytes())}"


def attribute(found: onnx.AttributeProto) -> str:
    """Return an attribute as text."""
    if found.ref_attr_name:  # within a function: what its caller gives
        return f"{found.name} of {found.ref_attr_name}"
    value = onnx.helper.get_attribute_value(found)
    if isinstance(value, onnx.TensorProto):
        return f"{found.name}={constant(value)}"
    if isinstance(value, onnx.GraphProto | onnx.SparseTensorProto):
        return f"{found.name}={digest(value.SerializeToString(deterministic=True))}"
    return f"{found.name}={value!r}"


def canonical(model: onnx.ModelProto) -> list[str]:
    """Return the graph as lines that depend neither on names within it nor on the order of its nodes.

    A tensor's key is a hash of everything it is computed from; nodes stand by depth and key, and tensors get numbers in
    that order. Names of graph inputs and outputs stay: they are the user's.
    """
    graph = model.graph
    constants = {tensor.name: constant(tensor) for tensor in graph.initializer}
    keys = dict(constants)
    depth = dict.fromkeys(constants, 0)
    for value in graph.input:
        keys.setdefault(value.name, f"input {value.name}")
        depth.setdefault(value.name, 0)
    nodes = []
    for node in graph.node:  # in topological order
        attrs = " ".join(sorted(map(attribute, node.attribute)))
        head = f"{node.domain or 'onnx'}.{node.op_type}"
        key = digest(head, attrs, *(keys[name] if name else "" for name in node.input))
        level = 1 + max((depth[name] for name in node.input if name), default=0)
        for index, name in enumerate(node.output):
            keys[name], depth[name] = f"{key}.{index}", level
        nodes.append((level, key, head, attrs, node))
    nodes.sort(key=lambda found: found[:2])
    names: dict[str, str] = {value.name: value.name for value in graph.input}
    for _, _, _, _, node in nodes:
        names.update({name: f"%{len(names) + i}" for i, name in enumerate(n for n in node.output if n)})
    lines = [f"input {value.name} {_type(value)}" for value in graph.input if value.name not in constants]
    for _, _, head, attrs, node in nodes:
        read = ", ".join((constants.get(name) or names[name]) if name else "-" for name in node.input)
        lines.append(f"{', '.join(names.get(name, '-') for name in node.output)} = {head}({read}) {attrs}".rstrip())
    lines += [f"output {v.name} = {names.get(v.name) or constants[v.name]} {_type(v)}" for v in graph.output]
    for function in model.functions:
        body = [f"{n.domain}.{n.op_type} {sorted(map(attribute, n.attribute))}" for n in function.node]
        lines.append(f"function {function.domain}.{function.name} {digest(*body)}")
    return lines


def _type(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim]
    return f"{onnx.TensorProto.DataType.Name(kind.elem_type).lower()}{dims}"


def named(model: onnx.ModelProto) -> list[str]:
    """Return the nodes as they stand in the file, with all names; and what the file says beside the graph."""
    metadata = {prop.key: digest(prop.value) for prop in model.metadata_props}
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    head = f"ir {model.ir_version} opsets {opsets} producer {model.producer_name} metadata {metadata}"
    return [head, *(f"{n.name}: {', '.join(n.output)} = {n.op_type}({', '.join(n.input)})" for n in model.graph.node)]


# ---- fingerprints ------------------------------------------------------------------------------------------------


def content(path: Path) -> str:
    """Return a hash of a file without the version of the package that wrote it."""
    return digest(path.read_bytes().replace(lo.__version__.encode(), b"version"))


def outputs(path: Path, feeds: Sequence[Feed], states: dict[str, str], arithmetic: str) -> Any:
    """Return a hash of every output of the graph at `path` on `feeds` in turn, or why it does not run."""
    try:
        session = lo.Session(path, arithmetic)
        takes = {value.name: value for value in session.get_inputs()}
        names = [value.name for value in session.get_outputs()]
        held = {name: np.zeros([d if isinstance(d, int) else 1 for d in takes[name].shape], np.float32)
                for name in states.values() if name in takes}  # fmt: skip
        found: dict[str, list[bytes]] = {name: [] for name in names}
        for feed in feeds:
            given = {name: array for name, array in {**feed, **held}.items() if name in takes}
            results = dict(zip(names, session.run(None, given), strict=True))
            held = {name: results[source] for source, name in states.items() if name in takes}
            for name, array in results.items():
                found[name].append(f"{array.dtype}{list(array.shape)}".encode() + np.ascontiguousarray(array).tobytes())
    except lo.LingerOnnxError as error:
        return f"refused: {error}"
    return {name: digest(*parts) for name, parts in found.items()}


def checked(path: Path, platform: str) -> Any:
    """Return what check says of a file: a hash of each part, and the verdict's words."""
    try:
        found = lo.check(path, platform=platform)
    except lo.LingerOnnxError as error:
        return f"refused: {error}"
    parts = {key: digest(json.dumps(value, default=str)) for key, value in found.to_dict().items()}
    return {**parts, "verdict": found.verdict, "findings": [str(finding) for finding in found.findings]}


def fingerprint(entry: Entry, platform: str, effort: str, samples: int) -> Any:
    """Quantize a model and return what stands for the result."""
    calib, feeds = entry.data(samples)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = entry.model
        if isinstance(source, onnx.ModelProto):
            source = folder / "float.onnx"
            onnx.save(entry.model, source)
        quantized = lo.quantize(source, calib, platform=platform, effort=effort, **entry.settings)
        target = folder / "out" / "model.onnx"
        target.parent.mkdir()
        written = quantized.write(target, plan=target.with_suffix(".json"))
        proto = onnx.load(target)
        try:
            lo.convert(target, "linger").save(folder / "linger.onnx")
            linger: Any = content(folder / "linger.onnx")
        except lo.LingerOnnxError as error:
            linger = f"none: {error}"
        report = written.report.to_dict()
        packer = str(report.pop("packer")).replace(str(folder), "")
        states = dict(entry.settings.get("state", {}))
        return {
            "files": {file.name: content(file) for file in sorted(target.parent.iterdir())},
            "named": named(proto),
            "graph": canonical(proto),
            "linger": linger,
            "packer": packer,
            "report": {key: digest(json.dumps(value, default=str)) for key, value in report.items()},
            "check": {"float": checked(source, platform), "integer": checked(target, platform)},
            "outputs": {word: outputs(target, feeds, states, word) for word in ("executor", "training")},
        }


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Yield a line for everything in which two fingerprints differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            yield from differences(old.get(key), new.get(key), f"{where}{key}: ")
    elif isinstance(old, list) and isinstance(new, list) and old != new:
        changed = difflib.unified_diff([*map(str, old)], [*map(str, new)], lineterm="", n=0)
        yield from (f"{where}{line}" for line in changed if line[:3] not in ("---", "+++"))
    elif old != new:
        yield f"{where}{old} -> {new}"


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--save", type=Path, help="write the fingerprints to this JSON file")
    made.add_argument("--against", type=Path, help="a file that another version saved")
    made.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="of models")
    made.add_argument("--only", nargs="*", default=["*"], help="globs over MODEL/PLATFORM, such as '*gru/arcs'")
    made.add_argument("--platform", nargs="+", choices=PLATFORMS, default=list(PLATFORMS))
    made.add_argument("--effort", default="fast", help="as of quantize")
    made.add_argument("--samples", type=int, default=4, help="to calibrate on, and to run")
    made.add_argument("--every", type=int, default=40, metavar="N", help="of onnx's suite every N-th model; 1: all")
    made.add_argument("--quick", action="store_true", help="own models, and every 200th of onnx's suite")
    made.add_argument("--lines", type=int, default=6, help="of differences to print per pair")
    return made


def main() -> int:
    """Take the fingerprints; save them or compare them. Return the exit status."""
    args = parser().parse_args()
    print(f"lingeronnx of {Path(lo.__file__).parent}", file=sys.stderr)
    sets, every = (("own", "suite"), 200) if args.quick else (args.sets, args.every)
    before = json.loads(args.against.read_text()) if args.against else None
    found: dict[str, Any] = {}
    bad = missing = 0
    for entry in entries(sets, every):
        for row in args.platform:
            key = f"{entry.name}/{row}"
            if not any(fnmatch.fnmatchcase(key, glob) for glob in args.only):
                continue
            start = time.perf_counter()
            try:
                found[key] = json.loads(json.dumps(fingerprint(entry, row, args.effort, args.samples)))
            except lo.LingerOnnxError as error:
                found[key] = {"error": str(error)}
            print(f"{key:40s} {time.perf_counter() - start:5.1f} s", file=sys.stderr, flush=True)
            if before is not None and key not in before:
                missing += 1
            elif before is not None:
                bad += told(key, before[key], found[key], args.lines)
            if args.save:
                args.save.write_text(json.dumps(found, indent=1) + "\n")
    if before is not None:
        told_of = f"; {missing} more are not in {args.against}" if missing else ""
        print(f"{len(found) - missing - bad} of {len(found) - missing} pairs are the same{told_of}")
    return int(bad > 0)


def told(key: str, old: Any, new: Any, most: int) -> bool:
    """Print where two fingerprints differ; return whether they do."""
    lines = list(differences(old, new))
    for line in lines[:most]:
        print(f"{key}: {line[:300]}", flush=True)
    if len(lines) > most:
        print(f"{key}: and {len(lines) - most} more", flush=True)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
