"""Everything a board needs of an integer graph, written into one folder, as a whole or not at all.

STEM.onnx               the whole graph               STEM_chip.onnx     the part that is packed
STEM_host_head.onnx     what runs before the chip     STEM_host_tail.onnx   and after it, where
there is a host part STEM_chip1.onnx, STEM_host1.onnx ...                  where there are several
chip parts STEM.h, STEM.c ...      the program (`c`)             pack.sh            the packer's
line golden/                 vectors (`golden`)            README.md, manifest.json   the steps;
hashes and versions
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

from ..deprecation import keep_old_members
from ..errors import ConfigError, DataError
from ..files import DEPLOYMENT_VERSION, replace_folder
from ..flow import generate_synthetic_inputs
from ..graph import ir
from ..plan.synthetic_calibration import collect_calibration_warnings
from ..targets import DEFAULT_LATENCY_OPTIONS, LatencyOptions
from .c_program.proof import Proof
from .deployment_contents import DeploymentContents, partition_graph, ports_to_dict
from .header import make_c_identifier
from .ports import Ports
from .simulation import read_integer_graph, run_samples

__all__ = ["MANIFEST", "Deployment", "is_valid_stem", "check_folder", "deploy"]

MANIFEST = "manifest.json"
#: Stems of a program's own files, of C's headers, which `-I.` would find the model's in place of, of names that are
#: other things in model.c with what follows a prefix there, and of targets of make and CMake.
_RESERVED_STEMS = frozenset(
    {
        "main",
        "chip",
        "open",
        "all",
        "check",
        "clean",
        "help",
        "install",
        "m",
        "package",
        "test",
        "thinker",
        "assert",
        "complex",
        "ctype",
        "endian",
        "errno",
        "features",
        "fenv",
        "float",
        "inttypes",
        "iso646",
        "limits",
        "locale",
        "math",
        "setjmp",
        "signal",
        "stdalign",
        "stdarg",
        "stdatomic",
        "stdbool",
        "stddef",
        "stdint",
        "stdio",
        "stdlib",
        "stdnoreturn",
        "string",
        "tgmath",
        "threads",
        "time",
        "uchar",
        "wchar",
        "wctype",
    }
)
_PACKAGES = ("lingeronnx", "numpy", "onnx", "onnx_ir", "onnxruntime", "numba")


@keep_old_members("0.3", board="contents")
@dataclass(frozen=True)
class Deployment:
    """What `deploy` wrote.

    files : {path below folder: bytes}. command : the packer's line. ports : of the chip graph.
    notes : what the user should know. proof : of the C program, where it was tried. board : what
    the files were written from.
    """

    folder: Path
    stem: str
    platform: str
    files: Mapping[str, int]
    command: str
    ports: Ports
    notes: tuple[str, ...]
    contents: DeploymentContents
    proof: Proof | None = None

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready values."""
        return {
            "folder": str(self.folder),
            "stem": self.stem,
            "platform": self.platform,
            "files": dict(self.files),
            "packer": self.command,
            **ports_to_dict(self.ports),
            "notes": list(self.notes),
            **({} if self.proof is None else {"proof": self.proof.to_dict()}),
        }


def deploy(
    model: ir.ModelLike,
    folder: str | os.PathLike[str],
    data: object = None,
    *,
    stem: str | None = None,
    samples: int = 3,
    state: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    packages: str = "one",
    attempt: bool = False,
    wish: LatencyOptions = DEFAULT_LATENCY_OPTIONS,
) -> Deployment:
    """Write what a board needs of an integer graph into `folder`, which is made or replaced as a whole.

    data : for the golden vectors of the first `samples` samples; None makes some up, and says so.
    stem : of the files' names; default that of `model`. state : {output: input} fed back from call
    to call; an item of data is one then. notes : what else the user should know, for the README.
    packages : "one" blob of all parts, or "many" files. attempt : compile the program here, run it
    on fresh inputs and prove it; a proof that fails writes nothing. wish : what is asked of the
    time on the chip. Raises ConstraintError for a graph with a part that no chip can run, or that
    takes too long there, ConfigError for a folder that holds other files and for a proof that
    fails, and as `Session` and `Data` do.
    """
    target = Path(folder)
    check_folder(target)
    graph = read_integer_graph(model)
    cut = partition_graph(graph, wish)
    name, renamed = _resolve_stem(
        stem or (Path(model).stem if isinstance(model, str | os.PathLike) else "model")
    )
    notes = [
        *(f"WARNING: {warning}" for warning in collect_calibration_warnings(graph.session.model)),
        *notes,
        *renamed,
    ]
    if data is None:
        notes.append("the golden vectors are of synthetic inputs: give real ones with --input")
        data = generate_synthetic_inputs(
            [s for s in graph.session.inputs if s.name not in set((state or {}).values())], 0
        )
    found = {
        number: run.with_names(graph.device)
        for number, run in run_samples(graph, data, 0, samples, state).items()
    }
    if not found:
        raise DataError("the input data hold no sample; golden vectors need one at least")
    pairs = {graph.device[a]: graph.device[b] for a, b in (state or {}).items()}
    board = DeploymentContents.build(graph, cut, name, found, pairs, packages == "many")
    notes += board.notes()
    if attempt and board.program is None:
        raise ConfigError(f"--try runs the C program: {board.missing_program_reason}")
    try:
        with replace_folder(target) as made:
            commands = board.write_files(made)
            proof = board.prove(made, data, state) if attempt else None
            board.write_texts(
                made, commands, [*notes, *(proof.lines() if proof else ())], _write_manifest
            )
            files = _collect_file_sizes(made)
    except OSError as error:
        raise _make_write_error(target, error) from error
    return Deployment(
        folder=target,
        stem=name,
        platform=graph.target.name,
        files=files,
        command="; ".join(commands),
        ports=board.ports,
        notes=tuple(notes),
        contents=board,
        proof=proof,
    )


def _write_manifest(made: Path, body: Mapping[str, object]) -> None:
    """Write the manifest, which lists every other file."""
    whole = {
        **DEPLOYMENT_VERSION.make_entry(),
        **body,
        "versions": _collect_versions(),
        "files": _collect_file_hashes(made),
    }
    _write(made / MANIFEST, json.dumps(whole, indent=2, ensure_ascii=False) + "\n")


def _sanitize_stem(text: str) -> str:
    """Return a file name's stem that the packer takes with dumping on, no dot in it, and that C has no file for."""
    stem = re.sub(r"[^\w-]", "_", text).lstrip("-") or "model"
    return f"{stem}_model" if stem.lower() in _RESERVED_STEMS else stem


def _make_write_error(target: Path, error: OSError) -> ConfigError:
    why = error.strerror or error  # what loads a library tells no number
    return ConfigError(f"cannot deploy to {target}: {why}; make room, or choose another place")


def _resolve_stem(requested: str) -> tuple[str, list[str]]:
    """Return what files and C names begin with, and a note where that is another name."""
    name = _sanitize_stem(requested)
    taken = name == f"{requested}_model"
    return name, [
        (
            f"files and C names begin with {name}: {requested} means something else in C or in its "
            "tools"
        )
    ] * taken


def is_valid_stem(text: str) -> bool:
    """Whether files can be called so, and C names begin with it, as it is."""
    return text == _sanitize_stem(text) == make_c_identifier(text)


# ---- the folder --------------------------------------------------------------------------------------------------


def check_folder(target: Path) -> None:
    """Raise ConfigError where `target` is no folder that could be made, replaced, or is empty."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ConfigError(f"cannot deploy to {target}: it is no folder; choose another name")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise ConfigError(
            f"cannot deploy to {target}: it holds files of something else; choose a new folder"
        )
    if not target.resolve().parent.is_dir():
        raise ConfigError(
            f"cannot deploy to {target}: there is no folder {target.parent}; create it"
        )


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _collect_file_sizes(made: Path) -> dict[str, int]:
    return {
        str(f.relative_to(made)): f.stat().st_size for f in sorted(made.rglob("*")) if f.is_file()
    }


def _collect_file_hashes(made: Path) -> dict[str, dict[str, Any]]:
    return {
        name: {"bytes": size, "sha256": hashlib.sha256((made / name).read_bytes()).hexdigest()}
        for name, size in _collect_file_sizes(made).items()
    }


def _collect_versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
