"""Compiled code in files: only what this user wrote, for this machine, and nobody changed since.

Whoever writes such a file decides what the reader's process does. So the folder is made for its
owner alone. It is used only where it belongs to this user and nobody else may write in it, and so
is each file. In front of the code stands a checksum, keyed by all that the code depends on: the
file's name, the sources of this package, the processor, the versions of Numba and LLVM. Where it
does not fit, the code is compiled anew and the file replaced.

The folder stands below `LINGERONNX_CACHE_DIR`, else below the user's cache folder. Its name has a
hash over all sources of this package, since code may have parts of any. Where another user could
have written in it, a private one takes its place until the process ends. Where no folder can be
made, nothing is kept. Knows nothing of what the code does.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from llvmlite import binding

from simulator._jit import config

__all__ = ["cache_folder", "exclusive_lock", "make_cache_key", "read_code", "write_code"]

_CHECKSUM_BYTES = 32  # bytes of the checksum in front of the code
_STALE_SECONDS = 3600.0  # seconds after which a file that is being written has lost its writer
_PARTIAL_SUFFIX = ".part"  # what the names of files that are being written end with


@cache
def hash_sources() -> str:
    """Return a short hash over the names and contents of all sources of this package."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _environment_key() -> str:
    """Return all that code depends on besides the sources."""
    settings = sorted(
        f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_")
    )
    features = binding.get_host_cpu_features().flatten()
    versions = version("numba"), version("llvmlite"), repr(binding.llvm_version_info)
    return "\n".join([*versions, binding.get_host_cpu_name(), features, *settings])


def make_cache_key(*what: str) -> str:
    """Return the name under which code is kept that is known by these words, on this machine."""
    return hashlib.sha256("\n".join([*what, _environment_key()]).encode()).hexdigest()[:24]


@cache
def cache_folder() -> str | None:
    """Return the folder of the compiled code, created if need be; None where there can be none.

    Where another user could have written in it, a line on stderr says so, and the folder is a
    private one.
    """
    given = os.environ.get("LINGERONNX_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(given or Path("~/.cache").expanduser())
        folder = _create_folder(base)
        reason = _explain_untrusted(folder.lstat())
        if not reason:
            return str(folder)
        _warn(
            f"lingeronnx: the cache of compiled code {folder} {reason}; a private one is used "
            "until this run ends"
        )
        base = Path(tempfile.mkdtemp(prefix="lingeronnx-"))
        atexit.register(_remove_if_owner, base, os.getpid())
        os.environ["LINGERONNX_CACHE_DIR"] = str(
            base
        )  # processes that are started from here use it too
        return str(_create_folder(base))
    except (OSError, RuntimeError):  # the latter where the user has no home
        return None


def _create_folder(base: Path) -> Path:
    """Return the folder of this version below `base`, for its owner alone if it is new."""
    folder = base / f"lingeronnx-{hash_sources()}"
    base.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return folder


def _warn(line: str) -> None:
    with suppress(OSError, ValueError):  # stderr may be closed
        if sys.stderr is not None:
            print(line, file=sys.stderr)


def _remove_if_owner(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a child that it was copied to
        shutil.rmtree(folder, ignore_errors=True)


def _explain_untrusted(found: os.stat_result) -> str | None:
    """Return why another user could have written what has this status, None where nobody else could."""
    if stat.S_ISLNK(found.st_mode):
        return "is a link"
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():  # Windows has other ways
        return "belongs to another user"
    return "may be written by other users" if os.name == "posix" and found.st_mode & 0o022 else None


def _file_path(name: str, kind: str) -> Path | None:
    folder = None if config.DISABLE_JIT else cache_folder()
    return None if folder is None else Path(folder) / f"{name}.{kind}"


def read_code(name: str, kind: str) -> bytes | None:
    """Return what is kept under a name, None for nothing, and for what is not as this user wrote it."""
    path = _file_path(name, kind)
    if path is None:
        return None
    flags = [getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC")]
    try:
        with open(os.open(path, os.O_RDONLY | sum(flags)), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or _explain_untrusted(found):
                return None
            content = file.read()
    except OSError:
        return None
    code = content[_CHECKSUM_BYTES:]
    return code if content[:_CHECKSUM_BYTES] == _compute_checksum(path.name, code) else None


def _compute_checksum(name: str, code: bytes) -> bytes:
    """Return the checksum of code in a file of this name, for these sources on this machine."""
    secret = hashlib.blake2b(
        "\n".join([name, hash_sources(), _environment_key()]).encode()
    ).digest()
    return hashlib.blake2b(
        code, key=secret, digest_size=_CHECKSUM_BYTES, person=b"lingeronnx code"
    ).digest()


def write_code(name: str, kind: str, code: bytes) -> None:
    """Keep bytes under a name, in place at once, so that no other process reads half of them."""
    path = _file_path(name, kind)
    if path is None:
        return
    _remove_stale_files(path.parent)
    with (
        suppress(OSError),
        tempfile.NamedTemporaryFile(dir=path.parent, suffix=_PARTIAL_SUFFIX, delete=False) as file,
    ):
        try:
            file.write(_compute_checksum(path.name, code) + code)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


@cache
def _remove_stale_files(folder: Path) -> None:
    """Remove what killed processes left; of a folder once."""
    with suppress(OSError):
        for path in (*folder.glob(f"*{_PARTIAL_SUFFIX}"), *folder.glob("*.lock")):
            if time.time() - path.lstat().st_mtime > _STALE_SECONDS:
                path.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(name: str) -> Iterator[None]:
    """Let no other process make what is kept under a name meanwhile.

    Where files have no locks, let all.
    The system lets go of what a process held that has ended.
    """
    path = _file_path(name, "lock")
    with ExitStack() as held:
        with suppress(ImportError, OSError):
            from fcntl import LOCK_EX, flock  # not on Windows

            if path is not None:
                file = held.enter_context(path.open("wb"))
                held.callback(path.unlink, missing_ok=True)  # who comes later finds what is kept
                flock(file, LOCK_EX)
        yield
