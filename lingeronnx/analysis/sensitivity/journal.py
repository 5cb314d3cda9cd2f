"""Results appended as they come, so that a killed run can go on.

JSON lines, the first says what they are results of.
A line is one `write`; what a killed process left of its last line is cut off when the file is read
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from ...errors import ConfigError
from ...files import JOURNAL_VERSION, write_text

__all__ = ["CLI_HINTS", "Journal", "ResumeHints", "hash_parts"]

# Bytes of a digest; a header's entry of as many, in hexadecimal, means nothing to a reader.
_DIGEST = 16


@dataclass(frozen=True)
class ResumeHints:
    """How a user begins anew, and goes on, in words."""

    restart: str
    resume: str


CLI_HINTS = ResumeHints("drop --resume to begin anew", "go on with --resume")


def hash_parts(*parts: bytes) -> str:
    """Return a digest of all `parts`, one after the other, in hexadecimal."""
    hasher = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


class Journal:
    """The file `path`; `header` says what its results depend on. Without a path nothing is kept.

    resume : go on behind the results that are there, where there are; else the file is begun anew.
    ways : how its user does either, for messages. Raises ConfigError where results are of something
    else, and where the file cannot be read or written.
    """

    def __init__(
        self,
        path: Path | None,
        header: Mapping[str, Any],
        resume: bool,
        ways: ResumeHints = CLI_HINTS,
    ) -> None:
        self._path, self._ways = path, ways
        self._header = json.loads(json.dumps(header))
        self._file: IO[str] | None = None
        if path is None:
            return
        try:
            if not (resume and self._truncate_partial_line(path)):
                write_text(
                    path, json.dumps({**JOURNAL_VERSION.make_entry(), **self._header}) + "\n"
                )
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror}; make room, or choose another place"
            ) from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with contextlib.suppress(
                OSError
            ):  # of a line that could not be written, which was told
                self._file.close()

    def _truncate_partial_line(self, path: Path) -> bool:
        """Cut off what is no whole line, check the first; False where there is none."""
        if not path.exists():
            return False
        with path.open("r+b") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
        first = content.partition(b"\n")[0] if b"\n" in content else b""
        if not first:
            return False
        self._check(self._parse_line(first))
        return True

    def _check(self, header: object) -> None:
        JOURNAL_VERSION.check(header, str(self._path))
        for key, value in self._header.items():
            other = header.get(key) if isinstance(header, dict) else None
            if other != value:
                digest = isinstance(value, str) and len(value) == 2 * _DIGEST
                raise self.stale_error(
                    f"another {key}"
                    if digest
                    else f"{key} = {json.dumps(other)}, not {json.dumps(value)}"
                )

    def stale_error(self, of: str) -> ConfigError:
        """Return the error that the results are `of` something else."""
        return ConfigError(
            f"{self._path} holds results of {of}; {self._ways.restart}, or choose another folder"
        )

    @contextlib.contextmanager
    def guard_records(self) -> Iterator[None]:
        """Inside, results of the file are taken up.

        ConfigError where they are none that `add` was given.
        """
        try:
            yield
        except (
            AttributeError,
            IndexError,
            KeyError,
            OverflowError,
            TypeError,
            ValueError,
        ) as error:
            raise self._damaged_error() from error

    def records(self, part: str) -> Iterator[dict[str, Any]]:
        """Return an iterator over the results of `part` that are there now, in order."""
        return islice(self._iter_records(part), sum(1 for _ in self._iter_records(part)))

    def _iter_records(self, part: str) -> Iterator[dict[str, Any]]:
        if self._path is None:
            return
        with self._path.open("rb") as file:
            next(file)
            for line in file:
                record = self._parse_line(line)
                if not isinstance(record, dict):
                    raise self._damaged_error()
                if record.get("part") == part:
                    yield record

    def add(self, record: Mapping[str, Any]) -> None:
        """Append one result; its `part` says what it is one of."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise ConfigError(
                f"cannot write {self._path}: {error.strerror}; make room and {self._ways.resume}"
            ) from error

    def _parse_line(self, line: bytes) -> Any:  # noqa: ANN401 - JSON
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._damaged_error() from error

    def _damaged_error(self) -> ConfigError:
        return ConfigError(f"{self._path} is damaged; {self._ways.restart}")
