"""Cache compiled code in files that only this user can have written, for this machine.

Whoever writes such a file controls the code that the reading process executes. The folder is
therefore created for its owner only, and a folder or file is used only if it belongs to this user
and no one else may write to it. The code is preceded by a checksum, keyed by everything that the
code depends on: the file's name, the sources of this package, the processor, the versions of Numba
and LLVM. If the checksum does not match, the code is compiled again and the file replaced.

The folder is below `LINGERONNX_CACHE_DIR`, else below the user's cache folder. Its name contains a
hash over all sources of this package, since code may inline parts of any of them. If another user
could have written to it, a private folder replaces it until the process ends. If no folder can be
created, nothing is cached. Must not know: the meaning of the code.
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

_CHECKSUM_BYTES = 32  # the checksum precedes the code
_STALE_SECONDS = 3600.0  # the writer of an older partial file is assumed dead
_PARTIAL_SUFFIX = ".part"  # of files that are being written


@cache
def hash_sources() -> str:
    """Return 16 hex digits of a hash over the paths and contents of all sources of this package."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _environment_key() -> str:
    """Return a text with everything that code depends on besides the sources of this package.

    These are the versions of Numba and LLVM, the processor, and NUMBA_* environment variables.
    """
    settings = sorted(
        f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_")
    )
    features = binding.get_host_cpu_features().flatten()
    versions = version("numba"), version("llvmlite"), repr(binding.llvm_version_info)
    return "\n".join([*versions, binding.get_host_cpu_name(), features, *settings])


def make_cache_key(*identifiers: str) -> str:
    """Return the cache name, 24 hex digits, of the code with these identifiers on this machine."""
    return hashlib.sha256("\n".join([*identifiers, _environment_key()]).encode()).hexdigest()[:24]


@cache
def cache_folder() -> str | None:
    """Return the folder of the compiled code, created if necessary, or None if that fails.

    It is `lingeronnx-<hash of the sources>` in LINGERONNX_CACHE_DIR, else XDG_CACHE_HOME, else
    ~/.cache. If another user could have written to it, a warning is printed to stderr and a private
    temporary folder is used instead: this process sets LINGERONNX_CACHE_DIR to it, for child
    processes too, and removes it at exit.
    """
    configured = os.environ.get("LINGERONNX_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(configured or Path("~/.cache").expanduser())
        folder = _create_folder(base)
        reason = _explain_untrusted(folder.lstat())
        if not reason:
            return str(folder)
        _warn(
            f"lingeronnx: the cache folder of compiled code {folder} {reason}; using a private "
            "folder for this run"
        )
        base = Path(tempfile.mkdtemp(prefix="lingeronnx-"))
        atexit.register(_remove_if_owner, base, os.getpid())
        os.environ["LINGERONNX_CACHE_DIR"] = str(base)  # child processes use it too
        return str(_create_folder(base))
    except (OSError, RuntimeError):  # RuntimeError: the user has no home directory
        return None


def _create_folder(base: Path) -> Path:
    """Create the folder for the sources of this package below `base`, and `base`; return it.

    A new folder is accessible to its owner only; an existing one is not checked. Raises OSError if
    it cannot be created.
    """
    folder = base / f"lingeronnx-{hash_sources()}"
    base.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return folder


def _warn(line: str) -> None:
    """Print `line` to stderr; errors, as when stderr is closed, are ignored."""
    with suppress(OSError, ValueError):  # stderr may be closed
        if sys.stderr is not None:
            print(line, file=sys.stderr)


def _remove_if_owner(folder: Path, owner: int) -> None:
    """Remove `folder` if this is the process with id `owner`, so not in forked children."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _explain_untrusted(status: os.stat_result) -> str | None:
    """Explain why another user could have written the file or folder with `status`; else None.

    Reasons are a link, another owner, and write permission of group or others.
    """
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():  # Windows has no user ids
        return "belongs to another user"
    if os.name == "posix" and status.st_mode & 0o022:
        return "may be written by other users"
    return None


def _file_path(name: str, kind: str) -> Path | None:
    """Return the path of the cached file NAME.KIND.

    None if there is no cache or JIT is disabled.
    """
    folder = None if config.DISABLE_JIT else cache_folder()
    return None if folder is None else Path(folder) / f"{name}.{kind}"


def read_code(name: str, kind: str) -> bytes | None:
    """Return the code cached in file NAME.KIND, or None if there is none or it cannot be trusted.

    Trusted is a regular file of this user that others cannot write, whose checksum is right.
    """
    path = _file_path(name, kind)
    if path is None:
        return None
    flags = [getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC")]
    try:
        with open(os.open(path, os.O_RDONLY | sum(flags)), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or _explain_untrusted(status):
                return None
            content = file.read()
    except OSError:
        return None
    code = content[_CHECKSUM_BYTES:]
    return code if content[:_CHECKSUM_BYTES] == _compute_checksum(path.name, code) else None


def _compute_checksum(name: str, code: bytes) -> bytes:
    """Return the keyed checksum of `code` stored in file `name`.

    The key depends on the name, the sources of this package, and the environment (processor,
    Numba).
    """
    secret = hashlib.blake2b(
        "\n".join([name, hash_sources(), _environment_key()]).encode()
    ).digest()
    return hashlib.blake2b(
        code, key=secret, digest_size=_CHECKSUM_BYTES, person=b"lingeronnx code"
    ).digest()


def write_code(name: str, kind: str, code: bytes) -> None:
    """Cache `code` in file NAME.KIND, which appears atomically, never half written.

    Nothing happens without a cache folder, or if the file cannot be written. Partial files and
    locks of killed processes are removed first, once per folder.
    """
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
    """Remove partial files and locks of killed processes from `folder`, once per process.

    These are the ones last modified more than `_STALE_SECONDS` seconds ago; errors are ignored.
    """
    with suppress(OSError):
        for path in (*folder.glob(f"*{_PARTIAL_SUFFIX}"), *folder.glob("*.lock")):
            if time.time() - path.lstat().st_mtime > _STALE_SECONDS:
                path.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(name: str) -> Iterator[None]:
    """Lock a cache name while the context is open, so that only one process compiles its code.

    Waits for the lock; the lock file is removed at the end. Without a cache folder or file locks
    (Windows) nothing is locked. The system releases the locks of a process that ends.
    """
    path = _file_path(name, "lock")
    with ExitStack() as stack:
        with suppress(ImportError, OSError):
            from fcntl import LOCK_EX, flock  # not on Windows

            if path is not None:
                file = stack.enter_context(path.open("wb"))
                stack.callback(path.unlink, missing_ok=True)  # later processes read the code
                flock(file, LOCK_EX)
        yield
