"""Atomic writing of files and folders, and the names of written files.

A killed run leaves the old or the new version, never a partial one. All writers of the package use
`replace_file` or `replace_folder`.

Work is done under a temporary name beside the target, ``.NAME.lingeronnx-PID-RANDOM``, which its
process holds a lock on. What a killed process left has none: the next run that writes into the
folder removes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from .errors import ConfigError
from .escaping import escape_file_text

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: no lock says whose a temporary is, so none is removed
    fcntl = None

__all__ = [
    "DEPLOYMENT_VERSION",
    "JOURNAL_VERSION",
    "REPORT_VERSION",
    "FileVersion",
    "resolve_write_target",
    "check_writable",
    "check_writable_folder",
    "chip_file_path",
    "ensure_folder",
    "read_user_file",
    "resolve_path",
    "created_folder",
    "describe_irregular_file",
    "find_stale_part_files",
    "replace_file",
    "update_folder",
    "replace_folder",
    "temporary_folder",
    "link_missing_entries",
    "write_text",
]


class FileVersion(NamedTuple):
    """The version of a kind of file in JSON: the entry `key` has it.

    Files of lingeronnx 0.1 have no entry, which means version 1.

    Attributes
    ----------
    key
        Name of the JSON entry.
    latest
        Latest version, which is written.
    remedy
        How to write the file again, for messages.
    """

    key: str
    latest: int
    remedy: str

    def make_entry(self) -> dict[str, int]:
        """Return the JSON entry {key: latest version}, which a new file gets."""
        return {self.key: self.latest}

    def check(self, body: object, where: str | os.PathLike[str]) -> None:
        """Raise ConfigError if the JSON object `body` of file `where` has an unknown version.

        Known are the integers 1 to `latest`; a missing entry, and a body that is no object, count
        as 1.
        """
        number = body.get(self.key, 1) if isinstance(body, dict) else 1
        if type(number) is not int or not 1 <= number <= self.latest:
            known = "1" if self.latest == 1 else f"1 to {self.latest}"
            raise ConfigError(
                f"{where} has {self.key} {number!r}; this lingeronnx reads {known}: upgrade it, or "
                f"{self.remedy}"
            )


REPORT_VERSION = FileVersion("lingeronnx_report", 1, "quantize again with --json")
DEPLOYMENT_VERSION = FileVersion("lingeronnx_deploy", 1, "deploy the model again")
JOURNAL_VERSION = FileVersion("lingeronnx_journal", 1, "start again without --resume")

_TEMPORARY = re.compile(
    r"\.(?P<target>.+)\.lingeronnx-\d+-[0-9a-f]{8}(?P<old>-old)?(?:\.\w*)?", re.DOTALL
)
_MAX_NAME_BYTES = 200  # of the target's name in a temporary name; names have at most 255 bytes
_SUFFIX = re.compile(r"\.\w{1,8}", re.ASCII)
_EXCHANGE, _AT_CWD = 2, -100  # constants of renameat2 on Linux
_cleaned_folders: set[Path] = set()  # folders in which this process removed stale files

_FILE_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@contextlib.contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` on success and is removed on any error.

    A symbolic link is followed; the folder must exist.

    Raises
    ------
    ConfigError
        If the folder is missing or not writable, or `path` exists and is no regular file; also in
        place of an OSError of the block.
    """
    target = resolve_write_target(path)
    with contextlib.ExitStack() as held:
        try:
            temporary = held.enter_context(
                _locked_temporary(
                    target, lambda name: os.close(os.open(name, _CREATE_FLAGS, 0o666))
                )
            )
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror}; create the folder or choose another name"
            ) from error
        try:
            yield temporary
            temporary.replace(target)
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror or error}; make room, or choose another "
                "place"
            ) from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` atomically, in UTF-8, with invisible characters escaped.

    Line feeds and tabs stay. The folder must exist. Raises ConfigError if it cannot be written.
    """
    with replace_file(path) as temporary:
        temporary.write_text(escape_file_text(text), encoding="utf-8")


def resolve_write_target(path: str | os.PathLike[str]) -> Path:
    """Return the file to write for `path`, following symbolic links.

    Raises
    ------
    ConfigError
        If `path` is a folder, a device, a pipe, a socket or a link to itself.
    """
    kind = describe_irregular_file(path)
    if kind == "a folder":
        raise ConfigError(f"cannot write {path}: it is a folder; give a file name")
    if kind is not None:
        raise ConfigError(
            f"cannot write {path}: it is {kind}, no regular file; give the name of a file"
        )
    return resolve_path(path) if os.path.islink(path) else Path(path)


def resolve_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of `path`, following symbolic links; a link to itself stays."""
    return Path(os.path.realpath(path))  # `Path.resolve` raises RuntimeError for such a link


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check, without writing, that `replace_file` can be expected to replace `path`.

    Raises
    ------
    ConfigError
        If its folder is missing or not writable, or `path` is no regular file.
    """
    folder = resolve_write_target(path).parent
    if not folder.is_dir():
        raise ConfigError(
            f"cannot write {path}: {os.strerror(errno.ENOENT)}; create the folder or choose "
            "another name"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"cannot write {path}: {os.strerror(errno.EACCES)}; create the folder or choose "
            "another name"
        )


def check_writable_folder(path: str | os.PathLike[str]) -> None:
    """Check, without writing, that files can be expected to be written into the folder `path`.

    It may be absent, as may its parents: `created_folder` with ``parents`` creates them.

    Raises
    ------
    ConfigError
        If `path` or the nearest existing parent is not a folder, or is not writable.
    """
    folder = resolve_path(path)
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise ConfigError(f"cannot write into {path}: {nearest} is a file; give a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(
            f"cannot write into {path}: no permission to write into {nearest}; choose another place"
        )


def describe_irregular_file(path: str | os.PathLike[str]) -> str | None:
    """Describe `path`, such as "a pipe", "a folder", "a device" or "a link to itself".

    None if it is a regular file, or a link to one, or if its status cannot be read, as for an
    absent file.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return "a link to itself" if error.errno == errno.ELOOP else None
    return next((kind for test, kind in _FILE_KINDS if test(mode)), None)


def read_user_file(path: str | os.PathLike[str], description: str, max_bytes: int) -> bytes:
    """Return the contents of a user's file of at most `max_bytes` bytes.

    `description` names the file in messages, such as "the log".

    Raises
    ------
    ConfigError
        If it cannot be read, is larger, or is no regular file.
    """
    name = os.fspath(path)
    if (kind := describe_irregular_file(path)) is not None:
        raise ConfigError(
            f"cannot read {description} {name}: it is {kind}, no regular file; write what it gives "
            "to a file first"
        )
    try:
        size = os.stat(path).st_size
        if size > max_bytes:
            raise ConfigError(
                f"{description} {name} has {size:,} bytes; at most {max_bytes:,} are read"
            )
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {description} {name}: {error.strerror}; give the path of a file"
        ) from error


def chip_file_path(path: Path) -> Path:
    """Return the path STEM_chip.SUFFIX of the chip part, beside the file `path` of the graph."""
    return path.with_name(f"{path.stem}_chip{path.suffix}")


def part_file_path(path: Path, number: int) -> Path:
    """Return the path STEM_chipN.SUFFIX of chip part N, beside the file `path` of the graph."""
    return path.with_name(f"{path.stem}_chip{number}{path.suffix}")


def find_stale_part_files(path: Path, written: Collection[Path]) -> list[str]:
    """Return the sorted names of part files of `path` that are not among `written`.

    Part files are named ``STEM_chipN.SUFFIX`` and lie in the same folder.
    """
    part = re.compile(rf"{re.escape(path.stem)}_chip\d*{re.escape(path.suffix)}")
    written_names = {file.name for file in written}
    names = [file.name for file in path.absolute().parent.iterdir()]
    return sorted(name for name in names if part.fullmatch(name) and name not in written_names)


@contextlib.contextmanager
def replace_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new folder that replaces `path` atomically on success; on errors nothing changes.

    The contents of the old folder are removed. A symbolic link is followed. OSErrors of the block
    are not converted.

    Raises
    ------
    ConfigError
        If `path` is the current folder or contains it.
    """
    target = resolve_path(path)
    if Path.cwd().is_relative_to(target):
        raise ConfigError(
            f"cannot replace {path}: it is the folder this command runs in; give a folder of its "
            "own"
        )
    with _locked_temporary(target, os.mkdir) as temporary:
        yield temporary
        if target.exists():
            _swap_folders(temporary, target)  # the old folder is removed at the end of the block
        else:
            temporary.replace(target)


@contextlib.contextmanager
def update_folder(path: str | os.PathLike[str], dropped_names: Collection[str]) -> Iterator[Path]:
    """Yield a new folder that replaces `path` on success; entries that it lacks are taken over.

    Entries of the old folder that were not written are kept, except those in `dropped_names`. On an
    error nothing changes.

    Raises
    ------
    ConfigError
        If `path` is no folder, or its parent cannot be written.
    """
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise ConfigError(f"cannot make the folder {path}: it is a file, give a folder")
    with contextlib.ExitStack() as held:
        try:
            folder = held.enter_context(replace_folder(target))
        except OSError as error:
            raise ConfigError(
                f"cannot make the folder {path}: {error.strerror} ({target.parent}); choose "
                "another place"
            ) from error
        yield folder
        try:
            link_missing_entries(target, folder, dropped_names)
            held.close()
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror or error}; make room, or choose another "
                "place"
            ) from error


def link_missing_entries(old: Path, new: Path, dropped_names: Collection[str]) -> None:
    """Link entries of folder `old` into `new` unless they exist there or are in `dropped_names`.

    Links are hard ones, or copies where these are not possible; folders are copied with linked
    files. Nothing if `old` does not exist.
    """
    for entry in sorted(old.iterdir()) if old.exists() else ():
        target = new / entry.name
        if entry.name in dropped_names or target.exists():
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, target, symlinks=True, copy_function=_link_or_copy)
        else:
            _link_or_copy(entry, target)


def _link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Create `target` as a hard link to `source`, or as a copy if that is not supported."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


@contextlib.contextmanager
def created_folder(path: str | os.PathLike[str], parents: bool = False) -> Iterator[Path]:
    """Yield the folder `path`, created if needed; if the block fails, remove it again if it is new.

    It is only removed if it is empty. With `parents`, missing parents are created and removed as
    well.

    Raises
    ------
    ConfigError
        If the folder cannot be created.
    """
    folders = [Path(path), *Path(path).parents] if parents else [Path(path)]
    new_folders = [folder for folder in folders if not os.path.lexists(folder)]
    target = ensure_folder(path, parents)
    try:
        yield target
    except BaseException:
        with contextlib.suppress(OSError):  # not empty
            for folder in new_folders:
                folder.rmdir()
        raise


def ensure_folder(path: str | os.PathLike[str], parents: bool = False) -> Path:
    """Create the folder `path` if it is absent, with missing parents if `parents`; return it.

    Raises
    ------
    ConfigError
        If the folder cannot be created.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=parents, exist_ok=True)
    except OSError as error:
        remedy = "it is a file, give a folder" if folder.is_file() else "choose another place"
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror}; {remedy}") from error
    return folder


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a temporary folder that only this user can read, removed at the end of the block."""
    target = Path(tempfile.gettempdir(), "scratch")
    with _locked_temporary(target, lambda name: os.mkdir(name, 0o700)) as folder:
        yield folder


def _swap_folders(new: Path, target: Path) -> None:
    """Exchange the contents of the folders `new` and `target` by exchanging their names.

    By one system call if possible, else in three renames under a lock; if the second fails, the
    first is undone and the error raised.
    """
    if _try_atomic_swap(new, target):
        return
    old = new.with_name(f"{new.name}-old")  # `_remove_stale_temporaries` restores such a folder
    lock = _acquire_lock(target)
    try:
        target.replace(old)
        try:
            new.replace(target)
        except OSError:
            old.replace(target)
            raise
        old.replace(new)
    finally:
        _release_lock(lock)


def _try_atomic_swap(new: Path, target: Path) -> bool:
    """Exchange the names `new` and `target` by one system call; return whether it succeeded.

    False on systems other than Linux, with an old C library, and if the call fails.
    """
    if sys.platform != "linux":
        return False
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # an older C library
        return False
    sys.audit("os.rename", str(new), str(target), -1, -1)  # as os.rename does
    return not call(_AT_CWD, os.fsencode(new), _AT_CWD, os.fsencode(target), _EXCHANGE)


_CREATE_FLAGS = os.O_CREAT | os.O_EXCL | os.O_WRONLY


@contextlib.contextmanager
def _locked_temporary(target: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a new path beside `target`, created by `create` and locked by this process.

    At the end of the block, the path is removed if it still exists.
    """
    _remove_stale_temporaries(target.parent)
    suffix = target.suffix if _SUFFIX.fullmatch(target.suffix) else ""
    stem = os.fsdecode(os.fsencode(target.name)[:_MAX_NAME_BYTES])
    while True:
        name = target.with_name(f".{stem}.lingeronnx-{os.getpid()}-{secrets.token_hex(4)}{suffix}")
        create(name)
        lock = _acquire_lock(name)
        if lock is None or _is_same_file(lock, name):
            break
        _release_lock(lock)  # another process removed the path as stale before the lock
    try:
        yield name
    finally:
        _remove_path(name)
        _release_lock(lock)


def _remove_stale_temporaries(folder: Path) -> None:
    """Remove temporary files of this user in `folder` whose process has ended, once per folder.

    They are recognized by their names and the missing lock. An old folder that was moved away and
    not yet replaced gets its name back. Errors are ignored.
    """
    if fcntl is None or folder in _cleaned_folders:
        return
    _cleaned_folders.add(folder)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            match = _TEMPORARY.fullmatch(name)
            if match is None or (folder / name).lstat().st_uid != os.geteuid():
                continue
            lock = _acquire_lock(folder / name, wait=False)
            if lock is None:
                continue
            if match["old"] and not (folder / match["target"]).exists():
                (folder / name).replace(folder / match["target"])
            else:
                _remove_path(folder / name)
            _release_lock(lock)


def _acquire_lock(path: Path, wait: bool = True) -> int | None:
    """Lock `path` exclusively, and return a file descriptor, or None if that is impossible.

    With `wait`, another process's lock is waited for, else the result is None then. The lock ends
    with the process, or when the descriptor is closed.
    """
    if fcntl is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # locked by another process, or a file system without locks
        os.close(descriptor)
        return None
    return descriptor


def _release_lock(lock: int | None) -> None:
    """Close the descriptor of a lock, which releases it; does nothing for None."""
    if lock is not None:
        os.close(lock)


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Whether `path`, links not followed, is the file open as `descriptor`; False if it is gone."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _remove_path(path: Path) -> None:
    """Remove a file, link or folder, if it exists; errors are ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
