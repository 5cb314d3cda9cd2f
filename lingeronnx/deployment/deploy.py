"""Write the files that a board needs for an integer graph into one folder, all or none.

STEM.onnx                     the complete graph
STEM_chip.onnx                the part that is packed
STEM_host_head.onnx           the host part before the chip, if there is one
STEM_host_tail.onnx           the host part after the chip, if there is one
STEM_chip1.onnx, STEM_host1.onnx ...    instead, if there are several chip parts
STEM.h, STEM.c ...            the program (`c_program`)
pack.sh                       the packer command
golden/                       golden vectors (`golden`)
README.md, manifest.json      the steps; hashes and versions
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

from ..common.deprecation import keep_old_members
from ..common.errors import ConfigError, DataError
from ..common.escaping import make_c_identifier
from ..common.files import DEPLOYMENT_VERSION, replace_folder, resolve_path, write_text
from ..ir import ir
from ..ir.plan.synthetic_calibration import collect_calibration_warnings
from ..quantization import generate_synthetic_inputs
from ..runtime.streaming import CallCount
from ..targets import DEFAULT_LATENCY_OPTIONS, LatencyOptions, require_measured
from .c_program.object_sizes import ProgramSizes
from .c_program.proof import Proof
from .deployment_contents import DeploymentContents, partition_graph, ports_to_dict
from .ports import Ports
from .simulation import read_integer_graph, run_samples

__all__ = ["MANIFEST", "Deployment", "is_valid_stem", "check_folder", "deploy"]

MANIFEST = "manifest.json"
#: Stems of the program's other files, of standard C headers (which `-I.` would shadow), prefixes
#: that would collide with other identifiers of model.c, and targets of make and CMake.
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
    """Result of `deploy`.

    files : {path below folder: bytes}. command : packer command. ports : of the first chip part.
    notes : remarks for the user. proof : of the C program, if it was tried. contents : the data
    that the files were written from. sizes : static memory and flash of the program's object files;
    None if there is no program.
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
    sizes: ProgramSizes | None = None

    def to_dict(self) -> dict[str, object]:
        """Return folder, files, packer command, ports, notes, sizes and proof as JSON-ready values.

        Sizes and proof only if there are any.
        """
        return {
            "folder": str(self.folder),
            "stem": self.stem,
            "platform": self.platform,
            "files": dict(self.files),
            "packer": self.command,
            **ports_to_dict(self.ports),
            "notes": list(self.notes),
            **({} if self.sizes is None else {"sizes": self.sizes.to_dict()}),
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
    calls: CallCount | None = None,
    notes: Sequence[str] = (),
    packages: str = "one",
    attempt: bool = False,
    wish: LatencyOptions = DEFAULT_LATENCY_OPTIONS,
    allow_unmeasured: bool = False,
) -> Deployment:
    """Write the files that a board needs for an integer graph into `folder`.

    Parameters
    ----------
    model
        The integer graph.
    folder
        Output folder. It is created, or replaced completely if `deploy` wrote it (it then has a
        manifest) or it is empty.
    data
        Inputs of the golden vectors; synthetic inputs if None, which a note reports.
    stem
        Beginning of the file names; default that of the file `model`, or "model". Characters that C
        names do not allow are replaced.
    samples
        Number of samples to write golden vectors for.
    state
        {output: input} of states fed back from call to call. An item of the data is then one call.
    calls
        With `state`: number of consecutive calls in an item of the data, or "all" for one sample
        per call; None: one. An item of several calls is a sequence that begins with zero states.
    notes
        Further remarks for the README.
    packages
        "one" blob of all parts, or "many" files.
    attempt
        Compile the program here, run it on further inputs and prove it. If the proof fails, nothing
        is written.
    wish
        Requirements on the time on the chip.
    allow_unmeasured
        Allow versions of the executor and operators that are known from reading only.

    Raises
    ------
    ConstraintError
        If the chip cannot run a part of the graph, or a call takes too long.
    ConfigError
        If the executor was never measured and this is not allowed, the folder contains other files,
        or the proof fails. Errors of `Session` and `Data` are passed on.
    """
    target_folder = Path(folder)
    check_folder(target_folder)
    graph = read_integer_graph(model)
    unmeasured = require_measured(graph.target, graph.operators.values(), allow_unmeasured)
    partition = partition_graph(graph, wish)
    default_stem = Path(model).stem if isinstance(model, str | os.PathLike) else "model"
    name, stem_notes = _resolve_stem(stem or default_stem)
    warnings = collect_calibration_warnings(graph.session.model)
    notes = [*(f"WARNING: {text}" for text in (*unmeasured, *warnings)), *notes, *stem_notes]
    state = state or {}
    if data is None:
        notes.append(
            "golden vectors were generated from synthetic inputs; pass real data with --input"
        )
        specs = [spec for spec in graph.session.inputs if spec.name not in set(state.values())]
        data = generate_synthetic_inputs(specs, 0)
        calls = 1 if state else None
    runs = {
        index: run.with_names(graph.device)
        for index, run in run_samples(graph, data, 0, samples, state, calls).items()
    }
    if not runs:
        raise DataError("the input data are empty; golden vectors need at least one sample")
    state_pairs = {graph.device[output]: graph.device[fed] for output, fed in state.items()}
    contents = DeploymentContents.build(
        graph, partition, name, runs, state_pairs, packages == "many"
    )
    notes += contents.notes()
    if attempt and contents.program is None:
        raise ConfigError(f"--try runs the C program: {contents.missing_program_reason}")
    try:
        with replace_folder(target_folder) as new_folder:
            commands = contents.write_files(new_folder)
            proof = contents.prove(new_folder) if attempt else None
            all_notes = [*notes, *(proof.lines() if proof else ())]
            sizes = contents.measure_sizes(new_folder)
            contents.write_texts(new_folder, commands, all_notes, _write_manifest, sizes)
            files = _collect_file_sizes(new_folder)
    except OSError as error:
        raise _make_write_error(target_folder, error) from error
    return Deployment(
        folder=target_folder,
        stem=name,
        platform=graph.target.name,
        files=files,
        command="; ".join(commands),
        ports=contents.ports,
        notes=tuple(notes),
        contents=contents,
        proof=proof,
        sizes=sizes,
    )


def _write_manifest(folder: Path, body: Mapping[str, object]) -> None:
    """Write the manifest: `body`, package versions, and size and hash of every file in `folder`."""
    manifest = {
        **DEPLOYMENT_VERSION.make_entry(),
        **body,
        "versions": _collect_versions(),
        "files": _collect_file_hashes(folder),
    }
    write_text(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")


def _sanitize_stem(text: str) -> str:
    """Return `text` with all characters but letters, digits, "_" and "-" replaced by "_".

    The packer's dump mode rejects others. Leading "-" are removed; "model" if nothing is left.
    "_model" is appended to a name that is reserved in C or by its tools.
    """
    stem = re.sub(r"[^\w-]", "_", text).lstrip("-") or "model"
    return f"{stem}_model" if stem.lower() in _RESERVED_STEMS else stem


def _make_write_error(target: Path, error: OSError) -> ConfigError:
    """Return the ConfigError that the folder `target` cannot be written, with the reason."""
    reason = error.strerror or error  # errors of loading a library have no strerror
    return ConfigError(f"cannot deploy to {target}: {reason}; free space, or choose another folder")


def _resolve_stem(requested: str) -> tuple[str, list[str]]:
    """Return the beginning of file and C names for `requested`, sanitized, and notes.

    There is one note if `requested` is reserved, so that "_model" is appended.
    """
    name = _sanitize_stem(requested)
    if name != f"{requested}_model":
        return name, []
    return name, [
        f"files and C names begin with {name}, because {requested} is reserved in C or its tools"
    ]


def is_valid_stem(text: str) -> bool:
    """Whether files and C names can begin with `text` unchanged.

    It must be a lower-case C identifier, have no characters that the packer rejects, and not be
    reserved in C or its tools.
    """
    return text == _sanitize_stem(text) == make_c_identifier(text)


def check_folder(target: Path) -> None:
    """Check that `target` is a directory that `deploy` may create or replace.

    Raises
    ------
    ConfigError
        If it is a symbolic link or a file, is not empty and has no manifest of `deploy`, or has no
        parent directory.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ConfigError(f"cannot deploy to {target}: not a directory; choose another name")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise ConfigError(
            f"cannot deploy to {target}: directory is not empty and was not created by deploy; "
            "choose a new one"
        )
    if not resolve_path(target).parent.is_dir():
        raise ConfigError(
            f"cannot deploy to {target}: the directory {target.parent} does not exist; create it"
        )


def _collect_file_sizes(folder: Path) -> dict[str, int]:
    """Return {path relative to `folder`: bytes} of all its files."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.stat().st_size for path in paths}


def _collect_file_hashes(folder: Path) -> dict[str, dict[str, Any]]:
    """Return {path relative to `folder`: size and SHA-256} of all its files."""
    return {
        name: {"bytes": size, "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest()}
        for name, size in _collect_file_sizes(folder).items()
    }


def _collect_versions() -> dict[str, str]:
    """Return {package: version} of the installed ones of `_PACKAGES`."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
