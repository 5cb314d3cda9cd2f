"""Writing files so that a killed run leaves the old file or the new one, never half of one; and their names.

Knows nothing of models: every writer of the package goes through `replacing`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import ConfigError

__all__ = ["chip_file", "replacing", "write_text"]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it replaces `path`, on any error it is removed.

    Raises ConfigError when the folder is missing or not writable.
    """
    target = Path(path)
    if target.is_dir():
        raise ConfigError(f"cannot write {target}: it is a folder; give a file name")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
    except OSError as error:
        raise ConfigError(
            f"cannot write {target}: {error.strerror}; create the folder or choose another name"
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` (UTF-8) to `path` as a whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def chip_file(path: Path) -> Path:
    """Return the name of the file with the part for the packer, beside the file `path` of the whole graph."""
    return path.with_name(f"{path.stem}_chip{path.suffix}")
