"""A file of results that are appended as they arrive, so that a killed run can be resumed.

The file consists of JSON lines; the first one is a header that identifies the results. A line is
written at once; an incomplete last line of a killed process is removed when the file is read again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from ...common.errors import ConfigError
from ...common.files import JOURNAL_VERSION, check_writable, write_text

__all__ = ["CLI_HINTS", "Journal", "ResumeHints"]

# A header value that is this many bytes in hexadecimal is a digest, which messages do not show.
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class ResumeHints:
    """How the user restarts and resumes, as text for messages."""

    restart: str
    resume: str


CLI_HINTS = ResumeHints("omit --resume to start over", "continue with --resume")


class Journal:
    """A journal of results.

    Parameters
    ----------
    path
        The file, or None to store nothing.
    header
        JSON-ready values that the results depend on.
    resume
        Whether to continue an existing file; otherwise the file is overwritten.
    ways
        How the user restarts and resumes, for messages.

    Raises
    ------
    ConfigError
        If the file contains results for something else, or cannot be read or written.
    """

    def __init__(
        self,
        path: Path | None,
        header: Mapping[str, Any],
        resume: bool,
        ways: ResumeHints = CLI_HINTS,
    ) -> None:
        """Open the file `path` if it is to be resumed.

        Otherwise the first record writes a new file. `header` has what the results depend on, as
        JSON-ready values; `ways` words the messages. An incomplete last line of a file to resume is
        removed. A run that is refused before it has a result leaves no file, and does not change
        one that exists. If `path` is None nothing is stored.

        Raises
        ------
        ConfigError
            If the file cannot be written, or the file to resume is damaged or has another header or
            version.
        """
        self._path, self._ways = path, ways
        self._header = json.loads(json.dumps(header))
        self._file: IO[str] | None = None
        if path is None:
            return
        try:
            check_writable(path)
            if resume and self._truncate_partial_line(path):
                self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._write_error(error) from error

    def _start(self, path: Path) -> IO[str]:
        """Write a new file `path` with the header line alone, and open it for appending."""
        write_text(path, json.dumps({**JOURNAL_VERSION.make_entry(), **self._header}) + "\n")
        return path.open("a", encoding="utf-8")

    def _write_error(self, error: OSError) -> ConfigError:
        """Return the ConfigError that the journal file cannot be written.

        `error` has the reason.
        """
        return ConfigError(
            f"cannot write {self._path}: {error.strerror}; free some space, or use another folder"
        )

    def __enter__(self) -> Journal:
        """Return this journal."""
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Close the file; an error of a pending write is ignored.

        If no record was added and no exception occurred, a file with the header alone is written
        first.
        """
        if self._file is None and self._path is not None and error_type is None:
            self._file = self._start(self._path)
        if self._file is not None:
            with contextlib.suppress(OSError):  # a failed write, which was reported already
                self._file.close()

    def _truncate_partial_line(self, path: Path) -> bool:
        """Remove an incomplete last line of the file and check its header.

        Returns whether the file has a header; False, too, if it does not exist.

        Raises
        ------
        ConfigError
            If the header differs from this journal's.
        """
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
        """Raise ConfigError if the file's header has another version or value than this journal's.

        The message names the first key that differs, and both values unless they are digests.
        """
        JOURNAL_VERSION.check(header, str(self._path))
        for key, value in self._header.items():
            stored = header.get(key) if isinstance(header, dict) else None
            if stored == value:
                continue
            if isinstance(value, str) and len(value) == 2 * _DIGEST_BYTES:
                raise self.stale_error(f"another {key}")
            stored_text, text = json.dumps(stored), json.dumps(value)
            raise self.stale_error(f"{key} = {stored_text}, not {text}")

    def stale_error(self, subject: str) -> ConfigError:
        """Return the ConfigError that the file has results for `subject`, with remedies."""
        return ConfigError(
            f"{self._path} contains results for {subject}; {self._ways.restart}, or use a "
            "different folder"
        )

    @contextlib.contextmanager
    def guard_records(self) -> Iterator[None]:
        """Return a context that turns errors of processing damaged records into a ConfigError.

        These are AttributeError, IndexError, KeyError, OverflowError, TypeError and ValueError.
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
        """Return an iterator over the records whose "part" is `part`, in the order of the file.

        Records added later are not yielded. Raises ConfigError if a line is damaged.
        """
        return islice(self._iter_records(part), sum(1 for _ in self._iter_records(part)))

    def _iter_records(self, part: str) -> Iterator[dict[str, Any]]:
        """Yield the records of the file whose "part" is `part`, including those added meanwhile.

        Nothing is yielded without a file. Raises ConfigError at a damaged line.
        """
        if self._path is None or self._file is None:
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
        """Append one record to the file at once; its "part" names the kind of result.

        The file is created if there is none yet. Does nothing if the journal has no path.

        Raises
        ------
        ConfigError
            If the file cannot be written.
        """
        if self._path is None:
            return
        if self._file is None:
            try:
                self._file = self._start(self._path)
            except OSError as error:
                raise self._write_error(error) from error
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise ConfigError(
                f"cannot write {self._path}: {error.strerror}; free some space and "
                f"{self._ways.resume}"
            ) from error

    def _parse_line(self, line: bytes) -> Any:  # noqa: ANN401 - JSON
        """Parse a line of the file as JSON; raise ConfigError if it is damaged."""
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._damaged_error() from error

    def _damaged_error(self) -> ConfigError:
        """Return the ConfigError that the file is damaged, with the remedy."""
        return ConfigError(f"{self._path} is damaged; {self._ways.restart}")
