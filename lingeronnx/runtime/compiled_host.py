"""Compile the host parts of a deployed program and call them.

A session with these host parts computes exactly the floats of the program.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import ConfigError, ModelError
from ..common.files import DEPLOYMENT_VERSION
from .program_parts import ProgramPart

__all__ = ["CompiledHost"]

_COMPILER_FLAGS = ("-std=c99", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w")


class CompiledHost:
    """The host parts that `deploy` wrote, as functions of arrays.

    Parameters
    ----------
    folder
        The deployed folder.
    parts
        Entries of the program's parts in the manifest; read from the folder if None.

    Raises
    ------
    ConfigError
        If the folder has no C program, or the compiler fails.
    """

    def __init__(
        self, folder: str | os.PathLike[str], parts: Sequence[dict[str, Any]] | None = None
    ) -> None:
        """Store the entries of the host parts by name; each part is compiled when it is first used.

        `folder` is that of the deployed program; `parts` are the entries of its manifest, None to
        read them from there. Raises ConfigError if the manifest cannot be read.
        """
        self._folder = Path(folder)
        entries = _load_manifest_parts(self._folder) if parts is None else parts
        self._host_entries = {entry["name"]: entry for entry in entries if not entry["chip"]}
        self._functions: dict[str, Any] = {}

    def __call__(self, part: ProgramPart, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Compute the outputs of host part `part` for one sample, in order; compiled at first use.

        Arrays are converted to the types in the manifest.

        Raises
        ------
        ModelError
            If the folder has no such part with these inputs, or an input has another shape.
        ConfigError
            If the part cannot be compiled.
        """
        entry = self._host_entries.get(part.name)
        if entry is None or len(entry["inputs"]) != len(arrays):
            raise ModelError(
                f"{self._folder} has no {part.name} with {len(arrays)} inputs; pass the folder "
                "that this model was deployed to"
            )
        if part.name not in self._functions:
            self._functions[part.name] = self._compile_part(entry)
        inputs = []
        for (name, dtype, shape), array in zip(entry["inputs"], arrays, strict=True):
            if list(array.shape) != shape:
                raise ModelError(
                    f"{self._folder}: input '{name}' of {part.name} has shape {shape}, not "
                    f"{list(array.shape)}; deploy again"
                )
            inputs.append(np.ascontiguousarray(array, dtype))
        outputs = [np.zeros(shape, dtype) for _, dtype, shape in entry["outputs"]]
        scratch = np.zeros(entry["scratch"] + 16, np.uint8)
        scratch_address = scratch.ctypes.data + -scratch.ctypes.data % 16
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*inputs, *outputs)]
        self._functions[part.name](*pointers, ctypes.c_void_p(scratch_address))
        return outputs

    def _compile_part(self, entry: dict[str, Any]) -> Any:  # noqa: ANN401 - a foreign function
        """Compile the C of a host part and return its function; `entry` is that of the manifest.

        The compiler is that in the environment variable CC, or cc. Raises ConfigError if there is
        none or it fails.
        """
        source, compiler = self._folder / entry["source"], shlex.split(os.environ.get("CC", "cc"))
        if not compiler or shutil.which(compiler[0]) is None:
            raise ConfigError("no C compiler found for the host parts; install one, or set CC")
        with tempfile.TemporaryDirectory(prefix="lingeronnx-host-") as name:
            library = Path(name) / f"{entry['name']}.so"
            argv = [*compiler, *_COMPILER_FLAGS, "-o", str(library), str(source), "-lm"]
            process = subprocess.run(argv, capture_output=True, text=True, check=False)
            if process.returncode:
                errors = [line for line in process.stderr.splitlines() if "error" in line]
                message = errors[0] if errors else "no error message"
                raise ConfigError(
                    f"cannot compile {source} ({message}); set CC to use another compiler"
                )
            # The library stays loaded after the file is deleted.
            return getattr(ctypes.CDLL(str(library)), entry["function"])


def _load_manifest_parts(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of all program parts in the manifest.json of a deployed folder.

    Raises ConfigError if there is none, it cannot be read, or it has no C program.
    """
    try:
        body = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        DEPLOYMENT_VERSION.check(body, folder / "manifest.json")
        return list(body["program"]["parts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder} has no manifest.json with a C program in it; deploy the model again"
        ) from error
