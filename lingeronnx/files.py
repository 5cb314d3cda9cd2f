"""Writing files and folders so that a killed run leaves the old or the new one, never half of one; and their names.

Knows nothing of models: every writer of the package goes through `replace_file` or
`replace_folder`.

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
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from .errors import ConfigError

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
    "chip_file_path",
    "ensure_folder",
    "read_user_file",
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


@dataclass(frozen=True)
class FileVersion:
    """The version of a kind of file in JSON: the entry `key` has it.

    What 0.1 wrote has none, which is version 1.
    remedy : what writes the file again, in words.
    """

    key: str
    latest: int
    remedy: str

    def make_entry(self) -> dict[str, int]:
        """Return the entry of a file that is written now."""
        return {self.key: self.latest}

    def check(self, body: object, where: str | os.PathLike[str]) -> None:
        """Raise ConfigError, naming `where`, for a file of a version that is not known here."""
        number = body.get(self.key, 1) if isinstance(body, dict) else 1
        if type(number) is not int or not 1 <= number <= self.latest:
            known = "1" if self.latest == 1 else f"1 to {self.latest}"
            raise ConfigError(
                f"{where} has {self.key} {number!r}; this lingeronnx reads {known}: upgrade it, or "
                f"{self.remedy}"
            )


REPORT_VERSION = FileVersion("lingeronnx_report", 1, "quantize again with --json")
DEPLOYMENT_VERSION = FileVersion("lingeronnx_deploy", 1, "deploy the model again")
JOURNAL_VERSION = FileVersion("lingeronnx_journal", 1, "begin anew without --resume")

_TEMPORARY = re.compile(
    r"\.(?P<target>.+)\.lingeronnx-\d+-[0-9a-f]{8}(?P<old>-old)?(?:\.\w*)?", re.DOTALL
)
_MAX_NAME_BYTES = 200  # of a target's name in that of its temporary; a name may have 255
_SUFFIX = re.compile(r"\.\w{1,8}", re.ASCII)
_EXCHANGE, _AT_CWD = 2, -100  # of Linux' renameat2
_cleaned_folders: set[Path] = set()  # the folders this process has looked through

_FILE_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


# ---- files -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name beside `path`.

    On success it replaces `path`, on any error it is removed.
    Of a link, the file that it leads to is replaced. Raises ConfigError when the folder is missing
    or not writable, and where `path` is there and no regular file.
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
    """Write `text` (UTF-8) to `path` as a whole or not at all."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def resolve_write_target(path: str | os.PathLike[str]) -> Path:
    """Return the file that is written where `path` is told.

    Where a link leads to, else `path` itself.
    Raises ConfigError where something is there that is no regular file: a folder, a device, a pipe.
    """
    what = describe_irregular_file(path)
    if what == "a folder":
        raise ConfigError(f"cannot write {path}: it is a folder; give a file name")
    if what is not None:
        raise ConfigError(
            f"cannot write {path}: it is {what}, no regular file; give the name of a file"
        )
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def describe_irregular_file(path: str | os.PathLike[str]) -> str | None:
    """Return what is at `path`, such as "a pipe", where it is no regular file.

    None for one, and where nothing is.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return "a link to itself" if error.errno == errno.ELOOP else None
    return next((what for test, what in _FILE_KINDS if test(mode)), None)


def read_user_file(path: str | os.PathLike[str], description: str, max_bytes: int) -> bytes:
    """Return what is in a user's file of at most so many bytes.

    `description` it is, such as "the log".
    ConfigError for one that cannot be read, is larger, or is no regular file.
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
    """Return the name of the file with the part for the packer, beside the file `path` of the whole graph."""
    return path.with_name(f"{path.stem}_chip{path.suffix}")


def part_file_path(path: Path, number: int) -> Path:
    """Return the name of the file with the chip's part of that number, beside the file `path` of the whole graph."""
    return path.with_name(f"{path.stem}_chip{number}{path.suffix}")


def find_stale_part_files(path: Path, written: Collection[Path]) -> list[str]:
    """Return names of files beside `path` that are called as parts of it and were not `written`, in order."""
    part = re.compile(rf"{re.escape(path.stem)}_chip\d*{re.escape(path.suffix)}")
    mine = {file.name for file in written}
    return sorted(
        file.name
        for file in path.absolute().parent.iterdir()
        if part.fullmatch(file.name) and file.name not in mine
    )


# ---- folders -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replace_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new folder that takes the place of `path`, all at once, when the block ends well.

    Else nothing changes.
    What the old folder held is gone then. Of a link, the folder that it leads to is replaced.
    Raises ConfigError for the folder that the process works in, or one that holds it; the block's
    OSErrors come through.
    """
    place = Path(path).resolve()
    if Path.cwd().is_relative_to(place):
        raise ConfigError(
            f"cannot replace {path}: it is the folder this command runs in; give a folder of its "
            "own"
        )
    with _locked_temporary(place, os.mkdir) as made:
        yield made
        if place.exists():
            _swap_folders(made, place)  # the old one goes where the block ends
        else:
            made.replace(place)


@contextlib.contextmanager
def update_folder(path: str | os.PathLike[str], dropped_names: Collection[str]) -> Iterator[Path]:
    """Replace a folder as `replace_folder` does, and keep its other entries except those in `dropped_names`.

    Raises ConfigError where `path` is no folder and where its parent cannot be written.
    """
    place = Path(path)
    if place.exists() and not place.is_dir():
        raise ConfigError(f"cannot make the folder {path}: it is a file, give a folder")
    with contextlib.ExitStack() as held:
        try:
            made = held.enter_context(replace_folder(place))
        except OSError as error:
            raise ConfigError(
                f"cannot make the folder {path}: {error.strerror} ({place.parent}); choose another "
                "place"
            ) from error
        yield made
        try:
            link_missing_entries(place, made, dropped_names)
            held.close()
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror or error}; make room, or choose another "
                "place"
            ) from error


def link_missing_entries(old: Path, new: Path, dropped_names: Collection[str]) -> None:
    """Link the entries of `old` into `new`, except those that exist there or are in `dropped_names`."""
    for other in sorted(old.iterdir()) if old.exists() else ():
        name = new / other.name
        if other.name in dropped_names or name.exists():
            continue
        if other.is_dir() and not other.is_symlink():
            shutil.copytree(other, name, symlinks=True, copy_function=_link_or_copy)
        else:
            _link_or_copy(other, name)


def _link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Let `target` be the file `source`, too, or a copy where the file system has no second names."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


@contextlib.contextmanager
def created_folder(path: str | os.PathLike[str], parents: bool = False) -> Iterator[Path]:
    """Yield the folder `path`, made where it is not there, and then removed again on an error that leaves it empty.

    parents : whether those above are made, too. Raises ConfigError where it cannot be made.
    """
    above = [Path(path), *Path(path).parents] if parents else [Path(path)]
    new = [each for each in above if not os.path.lexists(each)]
    home = ensure_folder(path, parents)
    try:
        yield home
    except BaseException:
        with contextlib.suppress(OSError):  # not empty
            for each in new:
                each.rmdir()
        raise


def ensure_folder(path: str | os.PathLike[str], parents: bool = False) -> Path:
    """Return the folder `path`, made where it is not there; ConfigError where it cannot be.

    Parents as in `created_folder`.
    """
    home = Path(path)
    try:
        home.mkdir(parents=parents, exist_ok=True)
    except OSError as error:
        remedy = "it is a file, give a folder" if home.is_file() else "choose another place"
        raise ConfigError(f"cannot make the folder {home}: {error.strerror}; {remedy}") from error
    return home


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder of this user alone in the system's place for temporary files.

    It goes with the block.
    """
    with _locked_temporary(
        Path(tempfile.gettempdir(), "scratch"), lambda name: os.mkdir(name, 0o700)
    ) as made:
        yield made


def _swap_folders(made: Path, place: Path) -> None:
    """Let two folders change their names."""
    if _try_atomic_swap(made, place):
        return
    old = made.with_name(
        f"{made.name}-old"
    )  # by this name `_remove_stale_temporaries` puts it back
    lock = _acquire_lock(place)
    try:
        place.replace(old)
        try:
            made.replace(place)
        except OSError:
            old.replace(place)
            raise
        old.replace(made)
    finally:
        _release_lock(lock)


def _try_atomic_swap(one: Path, other: Path) -> bool:
    """Change two names by a single call; False where this system or file system has none."""
    if sys.platform != "linux":
        return False
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # an older C library
        return False
    sys.audit("os.rename", str(one), str(other), -1, -1)  # as Python's own calls do
    return not call(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE)


# ---- temporary names ---------------------------------------------------------------------------------------------

_CREATE_FLAGS = os.O_CREAT | os.O_EXCL | os.O_WRONLY


@contextlib.contextmanager
def _locked_temporary(target: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a new name beside `target` that `create` made and this process holds a lock on.

    What has it then, goes.
    """
    _remove_stale_temporaries(target.parent)
    suffix = target.suffix if _SUFFIX.fullmatch(target.suffix) else ""
    stem = os.fsdecode(os.fsencode(target.name)[:_MAX_NAME_BYTES])
    while True:
        name = target.with_name(f".{stem}.lingeronnx-{os.getpid()}-{secrets.token_hex(4)}{suffix}")
        create(name)
        lock = _acquire_lock(name)
        if lock is None or _is_same_file(
            lock, name
        ):  # else another process took it for left behind, and removed it
            break
        _release_lock(lock)
    try:
        yield name
    finally:
        _remove_path(name)
        _release_lock(lock)


def _remove_stale_temporaries(folder: Path) -> None:
    """Remove what killed runs of this user left in `folder`.

    A folder whose new one never came gets its name back.
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
    """Return a descriptor that holds the lock on `path`.

    None where there is none to have, or another process has it.
    The lock ends with the process, however it ends.
    """
    if fcntl is None:
        return None
    try:
        found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(found, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # held; or a file system without locks, where nothing is swept either
        os.close(found)
        return None
    return found


def _release_lock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Whether `path` is the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _remove_path(path: Path) -> None:
    """Remove a file or a folder, where it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
