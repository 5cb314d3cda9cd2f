"""Everything a board needs of an integer graph, written into one folder, as a whole or not at all.

STEM.onnx               the whole graph               STEM_chip.onnx     the part that is packed
STEM_host_head.onnx     what runs before the chip     STEM_host_tail.onnx   and after it, where there is a host part
STEM.h                  inputs, outputs, scales, states            pack.sh         the packer's line
golden/                 vectors (`golden`)       README.md, manifest.json   the steps; hashes and versions
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import onnx

from ..errors import ConfigError, ConstraintError, DataError
from ..files import replacing_folder
from ..flow import synthetic
from ..flow.report import float_nodes
from ..graph import ir, onnxfile
from ..plan.synthetic import warnings_of
from ..run.part import chip_part, on_chip
from ..targets import ArgumentChoice
from .golden import write_golden
from .header import header
from .host import HostParts, host_parts
from .ports import Ports, ports_of
from .readme import readme
from .simulated import Graph, read_graph, runs

__all__ = ["MANIFEST", "Deployment", "check_folder", "deploy"]

MANIFEST = "manifest.json"
_PACKAGES = ("lingeronnx", "numpy", "onnx", "onnx_ir", "onnxruntime", "numba")


@dataclass(frozen=True)
class Deployment:
    """What `deploy` wrote.

    files : {path below folder: bytes}. command : the packer's line. ports : of the chip graph. notes : what the user
    should know.
    """

    folder: Path
    stem: str
    platform: str
    files: Mapping[str, int]
    command: str
    ports: Ports
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready values."""
        return {
            "folder": str(self.folder),
            "stem": self.stem,
            "platform": self.platform,
            "files": dict(self.files),
            "packer": self.command,
            **ports_dict(self.ports),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class _Parts:
    """The graphs to write, with the names of files."""

    whole: ir.Graph
    chip: ir.Graph
    host: HostParts
    choice: ArgumentChoice


def deploy(
    model: str | os.PathLike[str] | ir.Graph,
    folder: str | os.PathLike[str],
    data: object = None,
    *,
    stem: str | None = None,
    samples: int = 3,
    state: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> Deployment:
    """Write what a board needs of a chip-ready integer graph into `folder`, which is made or replaced as a whole.

    data : for the golden vectors of the first `samples` samples; None makes some up, and says so. stem : of the files'
    names; default that of `model`. state : {output: input} fed back from call to call; an item of data is one then.
    notes : what else the user should know, for the README.
    Raises ConstraintError for a graph that no chip can run by itself, ConfigError for a folder that holds other files,
    and as `Session` and `Data` do.
    """
    target = Path(folder)
    check_folder(target)
    graph = read_graph(model)
    parts = _parts(graph)
    name = _stem(stem or (Path(model).stem if isinstance(model, str | os.PathLike) else "model"))
    notes = [*(f"WARNING: {warning}" for warning in warnings_of(graph.session.model)), *notes]
    if data is None:
        notes.append("the golden vectors are of synthetic inputs: give real ones with --input")
        data = synthetic([s for s in graph.session.inputs if s.name not in set((state or {}).values())], 0)
    found = {number: run.named(graph.device) for number, run in runs(graph, data, 0, samples, state).items()}
    if not found:
        raise DataError("the input data hold no sample; golden vectors need one at least")
    pairs = {graph.device[a]: graph.device[b] for a, b in (state or {}).items()}
    ports = ports_of(parts.whole, parts.chip, found[0], pairs)
    if parts.choice.verdict.warned:
        notes += [f"written past the plan: {f}" for f in parts.choice.verdict.findings if f.level == "plan"]
    command = graph.target.vendor.command(parts.choice.words, f"{name}_chip.onnx", f"{name}.pkg")
    computed = {str(v.name) for node in parts.chip.graph for v in node.outputs} - {p.tensor for p in ports.inputs}
    try:
        with replacing_folder(target) as made:
            _write_models(made, name, parts)
            _write(made / "pack.sh", _script(name, graph.target.name, command)).chmod(0o755)
            _write(made / f"{name}.h", header(name, graph.target.name, ports))
            write_golden(made / "golden", found, ports, computed)
            cost = parts.choice.verdict.cost
            sizes = _sizes(made)
            constants = (value.const_value for value in parts.chip.graph.initializers.values())
            weights = sum(constant.nbytes for constant in constants if constant is not None)
            _write(made / "README.md", readme(name, graph.target.name, command, ports, sizes, weights, cost, notes))
            body = {"stem": name, "platform": graph.target.name, "packer": command, **ports_dict(ports),
                    "notes": notes, "samples": len(found), "parts": _borders(made, name), "versions": _versions(),
                    "files": _hashes(made)}  # fmt: skip
            _write(made / MANIFEST, json.dumps(body, indent=2, ensure_ascii=False) + "\n")
            files = _sizes(made)
    except OSError as error:
        raise ConfigError(f"cannot deploy to {target}: {error.strerror}") from error
    return Deployment(target, name, graph.target.name, files, command, ports, tuple(notes))


def _parts(graph: Graph) -> _Parts:
    """Cut the graph; ConstraintError where no chip can run its integers."""
    model, target = graph.session.model, graph.target
    if not target.packs:
        raise ConstraintError(f"platform {target.name} is no chip: there is nothing to deploy; quantize for a chip")
    fallbacks, _ = float_nodes(model, {}, on_chip(model))
    if fallbacks:
        first = fallbacks[0]
        raise ConstraintError(
            f"not chip-ready: {first.op_type} {first.node} is left in float between integer nodes "
            f"({len(fallbacks)} such); quantize with --require-chip to see why"
        )
    whole = target.named(model)
    chip = chip_part(whole, target)
    choice = target.verdict(chip)
    if not choice.verdict.chip_ready:
        finding = next(f for f in choice.verdict.findings if f.level != "plan")
        raise ConstraintError(f"not chip-ready on {target.name}: {finding}")
    return _Parts(whole, chip, host_parts(whole), choice)


def _stem(text: str) -> str:
    """Return a file name's stem that the packer takes with dumping on: no dot in it."""
    return re.sub(r"[^\w-]", "_", text) or "model"


# ---- the folder --------------------------------------------------------------------------------------------------


def check_folder(target: Path) -> None:
    """Raise ConfigError where `target` is no folder that could be made, replaced, or is empty."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ConfigError(f"cannot deploy to {target}: it is no folder; choose another name")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise ConfigError(f"cannot deploy to {target}: it holds files of something else; choose a new folder")
    if not target.resolve().parent.is_dir():
        raise ConfigError(f"cannot deploy to {target}: there is no folder {target.parent}; create it")


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _write_models(made: Path, name: str, parts: _Parts) -> None:
    ir.save(parts.whole, made / f"{name}.onnx")
    ir.save(parts.chip, made / f"{name}_chip.onnx")
    for end, model in (("head", parts.host.head), ("tail", parts.host.tail)):
        if model is not None:
            onnxfile.write(model, made / f"{name}_host_{end}.onnx", ir.SIZE_LIMIT)


def _script(name: str, platform: str, command: str) -> str:
    return (
        "#!/bin/sh\n"
        f"# Packs {name}_chip.onnx for {platform} into {name}.pkg; needs the vendor's packer, tpacker, on the PATH.\n"
        "set -eu\n"
        'cd "$(dirname "$0")"\n'
        f"{command}\n"
    )


def _sizes(made: Path) -> dict[str, int]:
    return {str(f.relative_to(made)): f.stat().st_size for f in sorted(made.rglob("*")) if f.is_file()}


def _hashes(made: Path) -> dict[str, dict[str, Any]]:
    return {
        name: {"bytes": size, "sha256": hashlib.sha256((made / name).read_bytes()).hexdigest()}
        for name, size in _sizes(made).items()
    }


def _borders(made: Path, name: str) -> dict[str, dict[str, list[str]]]:
    """Return what each model reads and writes, by file, in the order in which they run."""
    found = {}
    for file in (f"{name}_host_head.onnx", f"{name}_chip.onnx", f"{name}_host_tail.onnx"):
        if (made / file).is_file():
            graph = onnx.load(made / file, load_external_data=False).graph
            found[file] = {"inputs": [v.name for v in graph.input], "outputs": [v.name for v in graph.output]}
    return found


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def ports_dict(ports: Ports) -> dict[str, object]:
    """Return ports as JSON-ready values."""
    sides = {"inputs": ports.inputs, "outputs": ports.outputs}
    return {
        **{key: [{**vars(p), "shape": list(p.shape), "bytes": p.bytes} for p in side] for key, side in sides.items()},
        "states": [vars(state) for state in ports.states],
        "states_on_host": dict(ports.on_host),
    }
