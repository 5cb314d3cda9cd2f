"""Expensive results that several tests need, built once per run and shared between the test
processes.

An artefact is keyed by a hash of the sources, of its kind and of everything that it is built from.
The first process that asks for it builds it, under a file lock; the others wait and load it. Every
caller gets a copy of its own, so that a test may modify what it gets.

The folder is made for each run and removed at its end. `LINGERONNX_TEST_ARTEFACTS` names one that
is kept instead: then a second run with the same sources builds nothing anew.
"""

from __future__ import annotations

import atexit
import copyreg
import fcntl
import functools
import hashlib
import io
import os
import pickle
import shutil
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.quantization import QuantizedModel
from tests import nets

__all__ = ["FOLDER", "build_folder", "cached", "folder_of", "quantized", "source_digest"]

T = TypeVar("T")

#: Environment variable with the folder of the artefacts; the first process of a run sets it, the others inherit it.
FOLDER = "LINGERONNX_TEST_ARTEFACTS"
_SOURCES = "LINGERONNX_TEST_SOURCES"
_ROOT = Path(__file__).resolve().parents[1]

copyreg.pickle(
    types.MappingProxyType, lambda proxy: (_make_proxy, (dict(proxy),))
)  # targets hold some


def _make_proxy(content: dict[Any, Any]) -> types.MappingProxyType[Any, Any]:
    return types.MappingProxyType(content)


def source_digest() -> str:
    """Compute a hash of all Python sources of the packages; once per run, the other processes
    inherit it.
    """
    known = os.environ.get(_SOURCES)
    if known is None:
        digest = hashlib.sha256()
        for package in ("lingeronnx", "simulator"):
            for path in sorted((_ROOT / package).rglob("*.py")):
                digest.update(path.read_bytes())
        known = os.environ[_SOURCES] = digest.hexdigest()
    return known


@functools.cache
def build_folder() -> Path:
    """Return the folder of this run's artefacts. Outside pytest, make one that this process removes
    when it ends.
    """
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="lingeronnx-artefacts-")
        atexit.register(shutil.rmtree, os.environ[FOLDER], ignore_errors=True)
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _encode(part: object) -> bytes:
    """Serialize one part of a key: graphs and models by content, files by their bytes, arrays with
    type and shape.
    """
    if isinstance(part, ir.Model):
        part = ir.to_proto(part)
    if isinstance(part, onnx.ModelProto):
        return b"model" + part.SerializeToString(deterministic=True)
    if isinstance(part, np.ndarray):
        return f"array {part.dtype} {part.shape}".encode() + np.ascontiguousarray(part).tobytes()
    if isinstance(part, Path):
        return b"file" + part.read_bytes()
    if isinstance(part, Mapping):
        return b"{" + b",".join(_encode(key) + b":" + _encode(part[key]) for key in part) + b"}"
    if isinstance(part, list | tuple):
        return b"[" + b",".join(map(_encode, part)) + b"]"
    if callable(part):
        raise TypeError(
            f"{part!r} cannot be part of the key of an artefact: two functions of one name may "
            "differ"
        )
    return repr(part).encode()


def _digest(kind: str, parts: object) -> str:
    return f"{kind}-{hashlib.sha256(source_digest().encode() + _encode(parts)).hexdigest()[:32]}"


@contextmanager
def _locked(path: Path):
    """Hold an exclusive lock on `path` among all processes of the run."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pickle_deep(value: object) -> bytes:
    """Pickle a value whose objects refer to each other in long chains, as the nodes of a graph do.

    pickle recurses once per link of a chain: a thread with a stack of its own allows more of them.
    """
    content, errors = io.BytesIO(), []

    def dump() -> None:
        try:
            pickle.dump(value, content, protocol=pickle.HIGHEST_PROTOCOL)
        except BaseException as error:
            errors.append(error)

    recursion_limit, stack_bytes = sys.getrecursionlimit(), threading.stack_size(512 << 20)
    sys.setrecursionlimit(200_000)
    try:
        thread = threading.Thread(target=dump)
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(recursion_limit)
        threading.stack_size(stack_bytes)
    if errors:
        raise errors[0]
    return content.getvalue()


def cached(kind: str, parts: object, build: Callable[[], T]) -> T:
    """Return a copy of what `build` returns for these parts, building it if no process did before.

    kind : a word for messages and file names. parts : everything that the result depends on besides
    the sources. The result is pickled. An error of `build` is raised and not kept.
    """
    path = build_folder() / f"{_digest(kind, parts)}.pickle"
    with _locked(path.with_suffix(".lock")):
        if not path.is_file():
            path.with_suffix(".part").write_bytes(_pickle_deep(build()))
            path.with_suffix(".part").rename(path)
    return pickle.loads(path.read_bytes())


def folder_of(
    kind: str, parts: object, build: Callable[[Path], object], copy_to: Path | None = None
) -> Path:
    """Return a folder that `build(folder)` has filled: the shared one to read, or a copy at
    `copy_to` to change.
    """
    path = build_folder() / _digest(kind, parts)
    with _locked(path.with_suffix(".lock")):
        if not path.is_dir():
            part = path.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            build(part)
            part.rename(path)
    return path if copy_to is None else Path(shutil.copytree(path, copy_to, symlinks=True))


def quantized(
    model: ir.Model | onnx.ModelProto | Path, platform: str, data: object = None, **options: Any
) -> QuantizedModel:
    """Return `quantize(model, data, platform=platform, **options)`; `data` is `nets.samples(model)`
    if not given.
    """
    if data is None:
        data = nets.samples(ir.from_proto(model) if isinstance(model, onnx.ModelProto) else model)
    build = functools.partial(quantize, model, data, platform=platform, **options)
    return cached("quantized", (model, platform, data, options), build)
