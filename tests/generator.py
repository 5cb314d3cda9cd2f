"""Compiled templates of emx-onnx-cgen, shared by the test processes.

The generator reads and compiles its 169 Jinja templates anew for each host part, which takes more than a second. Here
Jinja keeps the compiled templates in the folder of the artefacts. The C that the generator writes is the same.
"""

import functools

import jinja2
import pytest
from emx_onnx_cgen.codegen import c_emitter

from tests.artefacts import build_folder

__all__ = ["patch_environment"]


def patch_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the generator keep its compiled templates."""
    folder = build_folder() / "templates"
    folder.mkdir(exist_ok=True)
    cache = jinja2.FileSystemBytecodeCache(str(folder))
    monkeypatch.setattr(c_emitter, "Environment", functools.partial(c_emitter.Environment, bytecode_cache=cache))
