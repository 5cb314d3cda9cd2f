"""Compare what two versions of lingeronnx write and compute for the same models.

    PYTHONPATH=OLD python NEW/benchmarks/compare_versions.py --save old.json
    PYTHONPATH=NEW python NEW/benchmarks/compare_versions.py --against old.json
    ... --quick                               a minute or two, for after each step of a refactoring
    ... --numbers                             texts may differ: after a change of messages
    ... --sets real --platform venus --effort normal best --only 'face*'

A refactoring leaves both the same. Every model is quantized for every platform at every effort,
and becomes one fingerprint of two parts. `numbers`:

    files      hashes of the written files: the graph, the part for the packer, the plan without the
               reasons of float nodes
    named      one line per node of the graph file with all names, in the order of the file
    graph      the integer graph, independent of the names of tensors and nodes and of the order of
               nodes: one line per node with operator, attributes and inputs; an initializer is its
               type, shape and hash
    linger     hash of the same of the graph converted to domain linger, or whether there is one
    packer     the packer's command line
    report     hash of the numbers, identifiers and structure of each entry, without sentences and
               without the seconds of a search's attempts
    check      the same of `check` of the float model and of the written file
    verdicts   decisions of trials and their figures (`quantization/run_log.py`)
    deployed   hashes of the files that `deploy` writes for a chip, C without comments
    outputs    hashes of the outputs of the simulator on other samples, with the executor's
               arithmetic and, where known, the training side's; of a model with states call by
               call, with states fed back

`texts` has the hashes of the sentences: of the report, of `check`, of errors, of float nodes, and of
deployed texts. The name of the temporary folder and the version of the package are in neither.

Models and data: see version_models.py. One script serves both versions: PYTHONPATH chooses the
package, and this file uses nothing but its public names. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import hashlib
import itertools
import json
import logging
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from version_models import SETS, Entry, Feed, iterate_entries

import lingeronnx as lo

PLATFORMS = ("generic", "venus", "arcs", "venusA")
EFFORTS = ("fast", "normal", "best")


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


def canonicalize(model: onnx.ModelProto) -> list[str]:
    """Return the graph as lines that depend neither on names within it nor on the order of its nodes.

    A tensor's key is a hash of everything it is computed from; nodes stand by depth and key, and
    tensors get numbers in that order. Names of graph inputs and outputs stay: they are the user's.
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
        names.update(
            {name: f"%{len(names) + i}" for i, name in enumerate(n for n in node.output if n)}
        )
    lines = [
        f"input {value.name} {_type(value)}" for value in graph.input if value.name not in constants
    ]
    for _, _, head, attrs, node in nodes:
        read = ", ".join(
            (constants.get(name) or names[name]) if name else "-" for name in node.input
        )
        lines.append(
            (
                f"{', '.join(names.get(name, '-') for name in node.output)} = {head}({read}) "
                f"{attrs}"
            ).rstrip()
        )
    lines += [
        f"output {v.name} = {names.get(v.name) or constants[v.name]} {_type(v)}"
        for v in graph.output
    ]
    for function in model.functions:
        body = [
            f"{n.domain}.{n.op_type} {sorted(map(attribute, n.attribute))}" for n in function.node
        ]
        lines.append(f"function {function.domain}.{function.name} {digest(*body)}")
    return lines


def _type(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim]
    return f"{onnx.TensorProto.DataType.Name(kind.elem_type).lower()}{dims}"


def list_named_nodes(model: onnx.ModelProto) -> list[str]:
    """Return the nodes as they stand in the file, with all names.

    And what the file says beside the graph.
    """
    metadata = {prop.key: digest(prop.value) for prop in model.metadata_props}
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    head = (
        f"ir {model.ir_version} opsets {opsets} producer {model.producer_name} metadata {metadata}"
    )
    return [
        head,
        *(
            f"{n.name}: {', '.join(n.output)} = {n.op_type}({', '.join(n.input)})"
            for n in model.graph.node
        ),
    ]


# ---- fingerprints ------------------------------------------------------------------------------------------------


def hash_content(path: Path) -> str:
    """Hash a file without the package version, and a plan without the reasons of float nodes."""
    content = path.read_bytes().replace(lo.__version__.encode(), b"version")
    if path.suffix == ".json":
        plan = json.loads(content)
        plan["floats"] = sorted(plan.get("floats", ()))
        content = json.dumps(plan).encode()
    return digest(content)


def hash_outputs(path: Path, feeds: Sequence[Feed], states: dict[str, str], arithmetic: str) -> Any:
    """Return a hash of every output of the graph at `path` on `feeds` in turn, or that it does not run."""
    try:
        session = lo.Session(path, arithmetic)
        takes = {value.name: value for value in session.get_inputs()}
        names = [value.name for value in session.get_outputs()]
        held = {
            name: np.zeros([d if isinstance(d, int) else 1 for d in takes[name].shape], np.float32)
            for name in states.values()
            if name in takes
        }
        chunks: dict[str, list[bytes]] = {name: [] for name in names}
        for feed in feeds:
            given = {name: array for name, array in {**feed, **held}.items() if name in takes}
            results = dict(zip(names, session.run(None, given), strict=True))
            held = {name: results[source] for source, name in states.items() if name in takes}
            for name, array in results.items():
                head = f"{array.dtype}{list(array.shape)}".encode()
                chunks[name].append(head + np.ascontiguousarray(array).tobytes())
    except lo.LingerOnnxError as error:
        return {"refused": type(error).__name__}
    return {name: digest(*parts) for name, parts in chunks.items()}


def is_sentence(text: str) -> bool:
    """Whether a text is prose: it has blanks, and is no command line of a packer."""
    return " " in text.strip() and not text.startswith(("-", "tpacker "))


def split_sentences(value: Any, folder: Path) -> tuple[Any, list[str]]:
    """Split a JSON value into the same without sentences, and its sentences in order."""
    if isinstance(value, str):
        text = value.replace(str(folder), "FOLDER").replace(lo.__version__, "VERSION")
        return ("", [text]) if is_sentence(text) else (text, [])
    if isinstance(value, dict):
        pairs = {key: split_sentences(item, folder) for key, item in value.items()}
        return {key: rest for key, (rest, _) in pairs.items()}, [
            t for _, texts in pairs.values() for t in texts
        ]
    if isinstance(value, list | tuple):
        items = [split_sentences(item, folder) for item in value]
        return [rest for rest, _ in items], [text for _, texts in items for text in texts]
    return value, []


def digest_entries(entries: dict[str, Any], folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Hash each entry of a JSON object: its numbers, and its sentences where it has some."""
    parts = {key: split_sentences(value, folder) for key, value in entries.items()}
    numbers = {key: digest(json.dumps(rest, default=str)) for key, (rest, _) in parts.items()}
    return numbers, {key: digest(*texts) for key, (_, texts) in parts.items() if texts}


def check_file(path: Path, platform: str, folder: Path) -> tuple[Any, Any]:
    """Return the numbers and the texts of what `check` says of a file."""
    try:
        result = lo.check(path, platform=platform)
    except lo.LingerOnnxError as error:
        return {"refused": type(error).__name__}, {
            "refused": str(error).replace(str(folder), "FOLDER")
        }
    numbers, texts = digest_entries(result.to_dict(), folder)
    findings = [str(finding).replace(str(folder), "FOLDER") for finding in result.findings]
    return numbers, {**texts, "verdict": result.verdict, "findings": findings}


_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"", re.S)


def deploy_graph(path: Path, calib: Any, states: dict[str, str], folder: Path) -> tuple[Any, Any]:
    """Return hashes of the files that `deploy` writes.

    C without comments and strings, and the texts.
    """
    options = {"state": states} if states else {}
    try:
        lo.deploy(path, folder / "deployed", data=calib, samples=1, **options)
    except lo.LingerOnnxError as error:
        return {"refused": type(error).__name__}, {
            "refused": str(error).replace(str(folder), "FOLDER")
        }
    numbers, texts = {}, {}
    for file in sorted(path for path in (folder / "deployed").rglob("*") if path.is_file()):
        name = file.relative_to(folder / "deployed").as_posix()
        body = file.read_bytes().replace(lo.__version__.encode(), b"version")
        if file.suffix in (".md", ".txt", ".json", ".sh", "") or file.name.startswith("README"):
            texts[name] = digest(body)
        elif file.suffix in (".c", ".h"):
            numbers[name] = digest(_COMMENT.sub("", body.decode()))
        else:
            numbers[name] = digest(body)
    return numbers, texts


@contextmanager
def recorded_verdicts() -> Iterator[list[dict[str, Any]]]:
    """Collect what the trials decide while the block runs."""
    records: list[dict[str, Any]] = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: records.append(json.loads(record.getMessage()))  # type: ignore[method-assign]
    logger = logging.getLogger("lingeronnx.verdicts")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield records
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def fingerprint(entry: Entry, platform: str, effort: str, samples: int) -> Any:
    """Quantize a model and return what stands for the result, split into numbers and texts."""
    calib, feeds = entry.data(samples)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = entry.model
        if isinstance(source, onnx.ModelProto):
            source = folder / "float.onnx"
            onnx.save(entry.model, source)
        settings = entry.build_settings()
        with recorded_verdicts() as verdicts:
            quantized = lo.quantize(source, calib, platform=platform, effort=effort, **settings)
        target = folder / "out" / "model.onnx"
        target.parent.mkdir()
        written = quantized.write(target, plan=target.with_suffix(".json"))
        proto = onnx.load(target)
        linger_text = ""
        try:
            lo.convert(target, "linger").save(folder / "linger.onnx")
            linger = hash_content(folder / "linger.onnx")
        except lo.LingerOnnxError as error:
            linger, linger_text = "none", str(error).replace(str(folder), "FOLDER")
        report = written.report.to_dict()
        packer = str(report.pop("packer")).replace(str(folder), "")
        for trial in (report["search"] or {}).get("trials", ()):
            del trial["seconds"]  # differs from run to run
        states = dict(settings.get("state", {}))
        report_numbers, report_texts = digest_entries(report, folder)
        float_numbers, float_texts = check_file(source, platform, folder)
        integer_numbers, integer_texts = check_file(target, platform, folder)
        deployed: tuple[Any, Any] = ({}, {})
        if entry.deploys and platform != "generic":
            deployed = deploy_graph(target, calib, states, folder)
        labels = [record.pop("label") for record in verdicts]
        return {
            "numbers": {
                "files": {
                    file.name: hash_content(file) for file in sorted(target.parent.iterdir())
                },
                "named": list_named_nodes(proto),
                "graph": canonicalize(proto),
                "linger": linger,
                "packer": packer,
                "report": report_numbers,
                "check": {"float": float_numbers, "integer": integer_numbers},
                "verdicts": verdicts,
                "deployed": deployed[0],
                "outputs": {
                    word: hash_outputs(target, feeds, states, word)
                    for word in ("executor", "training")
                },
            },
            "texts": {
                "floats": digest(json.dumps(dict(quantized.plan.floats)).encode()),
                "linger": linger_text,
                "report": report_texts,
                "check": {"float": float_texts, "integer": integer_texts},
                "verdicts": labels,
                "deployed": deployed[1],
            },
        }


def iterate_differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Yield a line for everything in which two fingerprints differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            yield from iterate_differences(old.get(key), new.get(key), f"{where}{key}: ")
    elif isinstance(old, list) and isinstance(new, list) and old != new:
        changed = difflib.unified_diff([*map(str, old)], [*map(str, new)], lineterm="", n=0)
        yield from (f"{where}{line}" for line in changed if line[:3] not in ("---", "+++"))
    elif old != new:
        yield f"{where}{old} -> {new}"


def make_parser() -> argparse.ArgumentParser:
    """Return the options."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--save", type=Path, help="write the fingerprints to this JSON file")
    made.add_argument("--against", type=Path, help="a file that another version saved")
    made.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="of models")
    made.add_argument(
        "--only",
        nargs="*",
        default=["*"],
        help="globs over MODEL/PLATFORM/EFFORT, such as '*gru/arcs/*'",
    )
    made.add_argument("--platform", nargs="+", choices=PLATFORMS, default=list(PLATFORMS))
    made.add_argument(
        "--effort", nargs="+", choices=EFFORTS, default=list(EFFORTS), help="as of quantize"
    )
    made.add_argument(
        "--numbers", action="store_true", help="compare numbers only: sentences may differ"
    )
    made.add_argument("--samples", type=int, default=4, help="to calibrate on, and to run")
    made.add_argument(
        "--every",
        type=int,
        default=40,
        metavar="N",
        help="of onnx's suite every N-th model; 1: all",
    )
    made.add_argument(
        "--quick",
        action="store_true",
        help="own models and options, and every 200th of onnx's suite",
    )
    made.add_argument("--lines", type=int, default=6, help="of differences to print per pair")
    return made


def fingerprint_or_error(entry: Entry, platform: str, effort: str, samples: int) -> Any:
    """Return the fingerprint of a model, or which error it ends in, as JSON holds it."""
    try:
        result = fingerprint(entry, platform, effort, samples)
    except lo.LingerOnnxError as error:
        message = re.sub(r"/\S*/tmp\w+", "FOLDER", str(error))
        result = {"numbers": {"error": type(error).__name__}, "texts": {"error": message}}
    return json.loads(json.dumps(result))


def count_verdicts(fingerprints: dict[str, Any]) -> list[str]:
    """Count the accepted and the rejected proposals of each trial in all fingerprints."""
    counts: Counter[tuple[str, bool]] = Counter()
    for each in fingerprints.values():
        counts.update((v["trial"], v["accepted"]) for v in each["numbers"].get("verdicts", ()))
    trials = sorted({trial for trial, _ in counts})
    return [
        f"{trial}: {counts[trial, True]} accepted, {counts[trial, False]} rejected"
        for trial in trials
    ]


def main() -> int:
    """Take the fingerprints; save them or compare them. Return the exit status."""
    args = make_parser().parse_args()
    print(f"lingeronnx of {Path(lo.__file__).parent}", file=sys.stderr)
    sets, every = (("own", "options", "suite"), 200) if args.quick else (args.sets, args.every)
    before = json.loads(args.against.read_text()) if args.against else None
    fingerprints: dict[str, Any] = {}
    different = missing = 0
    for entry in iterate_entries(sets, every):
        for platform, effort in itertools.product(args.platform, args.effort):
            key = f"{entry.name}/{platform}/{effort}"
            if not entry.serves(platform) or not any(
                fnmatch.fnmatchcase(key, glob) for glob in args.only
            ):
                continue
            start = time.perf_counter()
            fingerprints[key] = fingerprint_or_error(entry, platform, effort, args.samples)
            print(f"{key:48s} {time.perf_counter() - start:5.1f} s", file=sys.stderr, flush=True)
            if before is not None and key not in before:
                missing += 1
            elif before is not None:
                parts = ("numbers",) if args.numbers else ("numbers", "texts")
                old, new = (
                    {part: each[part] for part in parts}
                    for each in (before[key], fingerprints[key])
                )
                different += print_differences(key, old, new, args.lines)
            if args.save:
                args.save.write_text(json.dumps(fingerprints, indent=1) + "\n")
    for line in count_verdicts(fingerprints):
        print(line)
    if before is not None:
        absent = f"; {missing} more are not in {args.against}" if missing else ""
        compared = len(fingerprints) - missing
        print(f"{compared - different} of {compared} cases are the same{absent}")
    return int(different > 0)


def print_differences(key: str, old: Any, new: Any, max_lines: int) -> bool:
    """Print where two fingerprints differ; return whether they do."""
    lines = list(iterate_differences(old, new))
    for line in lines[:max_lines]:
        print(f"{key}: {line[:300]}", flush=True)
    if len(lines) > max_lines:
        print(f"{key}: and {len(lines) - max_lines} more", flush=True)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
