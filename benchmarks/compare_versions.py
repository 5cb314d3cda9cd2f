"""What two versions of lingeronnx write and compute for the same models: equal or not, and where they differ.

    PYTHONPATH=OLD python OLD/benchmarks/compare_versions.py --save old.json
    PYTHONPATH=NEW python NEW/benchmarks/compare_versions.py --against old.json

A refactoring leaves both the same. Every model is quantized with the defaults for every platform, from a few samples,
and becomes one fingerprint:

    graph      the integer graph in a form that no name of a tensor or node and no order of writing changes: one line
               per node with its operator, attributes and inputs; an initializer stands as its type, shape and hash
    linger     a hash of the same of the graph converted to domain linger, or that there is none
    plan       the scales of tensors that the float model has, by name; those of all others, by value
    outputs    hashes of what the simulator computes on other samples, on the executor's arithmetic and on the training
               side's where it is known

Models are `models/*.onnx`, and where there is such a folder ../shared/models/*.onnx with its data. The exit status is
1 where anything differs. Both versions run the script of one checkout if the other has none: PYTHONPATH chooses.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import hashlib
import importlib.util
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import lingeronnx as lo

HERE = Path(__file__).resolve().parents[1]
SHARED = HERE.parent / "shared"
PLATFORMS = ("generic", "venus", "arcs", "venusA")
CALIBRATION, TEST = 32, 16  # samples

#: Shared model -> what its loader's functions are called, where it is not the last word of the name.
_LOADERS = {"cifar_mobilenetv2_uneven": "mobilenetv2", "cifar_mobilenetv2": "mobilenetv2",
            "cifar_resnet_bn": "resnet_bn", "fsdd_attention": "sequence", "fsdd_attention_op13": "sequence",
            "fsdd_gru": "sequence", "fsdd_lstm": "sequence"}  # fmt: skip


# ---- models and data ---------------------------------------------------------------------------------------------


def models() -> Iterator[tuple[str, Path, Path]]:
    """Yield (name, model, data) of every model; data is an .npz of this repository or the shared loaders."""
    for path in sorted((HERE / "models").glob("*.onnx")):
        yield path.stem, path, HERE / "models"
    for path in sorted((SHARED / "models").glob("*.onnx")):
        yield path.stem, path, SHARED / "data" / "loaders.py"


def feeds(name: str, data: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return a few samples to calibrate on and a few others to run, by input name."""
    if data.is_dir():
        calib, test = (np.load(data / f"digits_{part}.npz")["input"] for part in ("calib", "test"))
        return {"input": calib[:CALIBRATION]}, {"input": test[:TEST]}
    spec = importlib.util.spec_from_file_location("loaders", data)
    assert spec is not None
    assert spec.loader is not None
    loaders = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaders)
    stem = _LOADERS.get(name, name.rpartition("_")[2])
    found = []
    for part, count in (("calib", CALIBRATION), ("test", TEST)):
        ((samples, _),) = getattr(loaders, f"{stem}_{part}")()
        found.append({key: array[:count] for key, array in samples.items()})
    return found[0], found[1]


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


def as_proto(thing: Any) -> onnx.ModelProto:
    """Return what can be saved as a protobuf model."""
    with tempfile.TemporaryDirectory() as folder:
        thing.save(Path(folder) / "model.onnx")
        return onnx.load(Path(folder) / "model.onnx")


# ---- fingerprints ------------------------------------------------------------------------------------------------


def scales(plan: Any, known: set[str]) -> dict[str, Any]:
    """Return the plan's scales: by name for tensors in `known`, else how often each occurs; and its transforms."""
    own: dict[str, str] = {}
    others: Counter[str] = Counter()
    for name, q in plan.tensors.items():
        text = f"{np.atleast_1d(q.scale).tolist()} {q.bits}"
        if name in known:
            own[name] = text
        else:
            others[text] += 1
    factors = sorted(f"{np.asarray(t.factor).tolist()}" for t in plan.transforms.values())
    return {"own": dict(sorted(own.items())), "others": dict(sorted(others.items())), "transforms": digest(*factors)}


def outputs(path: Path, run: dict[str, np.ndarray], arithmetic: str) -> dict[str, str] | str:
    """Return a hash of every output of the graph at `path`, or that the arithmetic is not known."""
    try:
        session = lo.Session(path, arithmetic)
        results = session.run(None, run)
    except lo.LingerOnnxError:
        return "refused"
    names = [value.name for value in session.get_outputs()]
    return {n: f"{a.dtype}{list(a.shape)}:{digest(a.tobytes())}" for n, a in zip(names, results, strict=True)}


def fingerprint(path: Path, platform: str, calibrate: dict[str, np.ndarray], run: dict[str, np.ndarray]) -> Any:
    """Quantize the model at `path` and return what stands for the result."""
    quantized = lo.quantize(path, calibrate, platform=platform)
    proto = as_proto(quantized)
    user = onnx.load(path, load_external_data=False).graph
    known = {name for node in user.node for name in node.output} | {value.name for value in user.input}
    known |= {tensor.name for tensor in user.initializer}
    report = quantized.report.to_dict()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        quantized.save(file)
        try:
            linger: Any = digest(*canonical(as_proto(lo.convert(file, "linger"))))
        except lo.LingerOnnxError:
            linger = "none"
        computed = {word: outputs(file, run, word) for word in ("executor", "training")}
    return {
        "graph": canonical(proto),
        "linger": linger,
        "plan": scales(quantized.plan, known),
        "ready": [report["chip_ready"], report["integer_macs"], len(report["float_nodes"]), len(report["host_part"])],
        "outputs": computed,
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


def main() -> int:
    """Take the fingerprints; save them or compare them. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="write the fingerprints to this JSON file")
    parser.add_argument("--against", type=Path, help="a file that another version saved")
    parser.add_argument("--only", nargs="*", default=["*"], help="globs over MODEL/PLATFORM, such as '*gru/arcs'")
    parser.add_argument("--lines", type=int, default=6, help="of differences to print per pair")
    args = parser.parse_args()
    print(f"lingeronnx of {Path(lo.__file__).parent}", file=sys.stderr)
    found: dict[str, Any] = {}
    for name, path, data in models():
        pairs = {f"{name}/{row}": row for row in PLATFORMS}
        chosen = {k: row for k, row in pairs.items() if any(fnmatch.fnmatchcase(k, glob) for glob in args.only)}
        if not chosen:
            continue
        calibrate, run = feeds(name, data)
        for key, row in chosen.items():
            start = time.perf_counter()
            try:
                found[key] = fingerprint(path, row, calibrate, run)
            except lo.LingerOnnxError as error:
                found[key] = {"error": str(error)}
            print(f"{key:40s} {time.perf_counter() - start:5.1f} s", file=sys.stderr)
    if args.save:
        args.save.write_text(json.dumps(found, indent=1) + "\n")
    if not args.against:
        return 0
    before = json.loads(args.against.read_text())
    bad = 0
    for key, new in found.items():
        lines = list(differences(before.get(key), json.loads(json.dumps(new))))
        bad += bool(lines)
        for line in lines[: args.lines]:
            print(f"{key}: {line}")
        if len(lines) > args.lines:
            print(f"{key}: and {len(lines) - args.lines} more")
    print(f"{len(found) - bad} of {len(found)} pairs are the same")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
