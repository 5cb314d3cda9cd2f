"""The host parts of a deployed program, compiled here and called.

Then a session computes their very floats.
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

from ..errors import ConfigError, ModelError
from ..files import DEPLOYMENT_VERSION
from .program_parts import ProgramPart

__all__ = ["CompiledHost"]

_COMPILER_FLAGS = ("-std=c99", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w")


class CompiledHost:
    """What `deploy` wrote for the host, as functions of arrays.

    folder : a deployed one. parts : what its manifest tells of the program's parts, where it is not
    written yet.

    Raises ConfigError for a folder without a C program, and where the compiler fails.
    """

    def __init__(
        self, folder: str | os.PathLike[str], parts: Sequence[dict[str, Any]] | None = None
    ) -> None:
        self._folder = Path(folder)
        told = _load_manifest_parts(self._folder) if parts is None else parts
        self._found = {part["name"]: part for part in told if not part["chip"]}
        self._functions: dict[str, Any] = {}

    def __call__(self, part: ProgramPart, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of one host part for one sample.

        ModelError where it is another model's.
        """
        told = self._found.get(part.name)
        if told is None or len(told["inputs"]) != len(arrays):
            raise ModelError(
                f"{self._folder} has no {part.name} with {len(arrays)} inputs; give the folder "
                "that this model was "
                "deployed to"
            )
        if part.name not in self._functions:
            self._functions[part.name] = self._compile_part(told)
        given = []
        for (name, dtype, shape), array in zip(told["inputs"], arrays, strict=True):
            if list(array.shape) != shape:
                raise ModelError(
                    f"{self._folder}: input '{name}' of {part.name} is {shape}, not "
                    f"{list(array.shape)}; deploy again"
                )
            given.append(np.ascontiguousarray(array, dtype))
        made = [np.zeros(shape, dtype) for _, dtype, shape in told["outputs"]]
        scratch = np.zeros(told["scratch"] + 16, np.uint8)
        start = scratch.ctypes.data + -scratch.ctypes.data % 16
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*given, *made)]
        self._functions[part.name](*pointers, ctypes.c_void_p(start))
        return made

    def _compile_part(self, told: dict[str, Any]) -> Any:  # noqa: ANN401 - a foreign function
        source, words = self._folder / told["source"], shlex.split(os.environ.get("CC", "cc"))
        if not words or shutil.which(words[0]) is None:
            raise ConfigError(
                "no C compiler on the PATH for the host parts; install one, or name it in CC"
            )
        with tempfile.TemporaryDirectory(prefix="lingeronnx-host-") as place:
            made = Path(place) / f"{told['name']}.so"
            call = [*words, *_COMPILER_FLAGS, "-o", str(made), str(source), "-lm"]
            done = subprocess.run(call, capture_output=True, text=True, check=False)
            if done.returncode:
                said = [line for line in done.stderr.splitlines() if "error" in line] or [
                    "it says nothing"
                ]
                raise ConfigError(
                    f"cannot compile {source} ({said[0]}); name another compiler in CC"
                )
            return getattr(
                ctypes.CDLL(str(made)), told["function"]
            )  # it stays loaded when the file is gone


def _load_manifest_parts(folder: Path) -> list[dict[str, Any]]:
    """Return what the folder's manifest tells of the program's parts."""
    try:
        body = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        DEPLOYMENT_VERSION.check(body, folder / "manifest.json")
        return list(body["program"]["parts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder} has no manifest.json with a C program in it; deploy the model again"
        ) from error
