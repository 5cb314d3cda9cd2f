"""Results of the C generator and the C compiler, kept for all test processes.

The generator, emx-onnx-cgen, reads and compiles its 169 Jinja templates anew for each host part,
which takes more than a second; many tests compile the same C file with the same flags. Here Jinja
keeps its compiled templates, and objects are kept by the content of the source, of all headers that
it can include, and by the flags.

What is generated and linked is the same as without, except that the fast tier compiles with `-O0`
instead of `-O1`, and without debug information. Other levels stay: the warnings of an optimizing
compiler are looked for with those.
"""

import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lingeronnx.deployment.c_program import build, host_source
from tests.artefacts import build_folder
from tests.case_selection import TIER

__all__ = ["call_or_copy", "drop_optimization", "keep_objects", "keep_templates"]


def keep_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the generator, where it is installed, keep its compiled templates."""
    if host_source.explain_missing_generator() is not None:
        return
    import jinja2
    from emx_onnx_cgen.codegen import c_emitter

    folder = _make_folder("templates")
    cache = jinja2.FileSystemBytecodeCache(str(folder))
    monkeypatch.setattr(
        c_emitter, "Environment", functools.partial(c_emitter.Environment, bytecode_cache=cache)
    )


def keep_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `build.compile_program` copy an object that was compiled before."""
    compile_source, folder = build.run_compiler, _make_folder("objects")

    def call(words: Sequence[str]) -> str:
        return call_or_copy(
            compile_source, folder, drop_optimization(words) if TIER == "fast" else words
        )

    monkeypatch.setattr(build, "run_compiler", call)


def drop_optimization(words: Sequence[str]) -> list[str]:
    """Change a compiler's call so that it takes a third of the time."""
    return ["-O0" if word == "-O1" else word for word in words if word != "-g"]


def call_or_copy(call: Callable[[Sequence[str]], str], folder: Path, words: Sequence[str]) -> str:
    """Compile a source with `call(words)`, or copy its object from `folder` if it was compiled
    there without a warning.

    `words` that do not compile one source to one object, such as those that link, are always
    called.
    """
    if "-c" not in words or not str(words[-1]).endswith(".c"):
        return call(words)
    place = words.index("-o") + 1
    made = Path(words[place])
    kept = folder / f"{_hash_inputs([*words[: place - 1], *words[place + 1 :]])}.o"
    if kept.is_file():
        shutil.copyfile(kept, made)
        return ""
    output = call(words)
    if not output:
        part = kept.with_suffix(f".{os.getpid()}")
        shutil.copyfile(made, part)
        part.rename(kept)
    return output


def _hash_inputs(words: Sequence[str]) -> str:
    """Hash a compiler's call: its flags, its source, and all headers below the folders that it
    looks into.
    """
    source = Path(words[-1])
    digest = hashlib.sha256(source.read_bytes())
    folders = [source.parent]
    for word in words[:-1]:
        if word.startswith("-I"):
            folders.append(Path(word[2:]))
        else:
            digest.update(word.encode() + b"\n")
    for folder in folders:
        for header in sorted(folder.rglob("*.h")):
            digest.update(str(header.relative_to(folder)).encode() + b"\n" + header.read_bytes())
    return digest.hexdigest()


def _make_folder(name: str) -> Path:
    folder = build_folder() / name
    folder.mkdir(exist_ok=True)
    return folder
