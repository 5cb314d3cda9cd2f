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

from ...errors import ConfigError
from ...files import JOURNAL_VERSION, check_writable, write_text

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
        """Open the file to resume; any other one is written with the first record.

        `header` has what the results depend on, as JSON-ready values; `ways` words the messages. An
        incomplete last line of a file to resume is removed. A run that is refused before it has a
        result leaves no file, and does not change one that exists. Without a path nothing is
        stored.

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
        """Write the header into a new file, and open it for appending."""
        write_text(path, json.dumps({**JOURNAL_VERSION.make_entry(), **self._header}) + "\n")
        return path.open("a", encoding="utf-8")

    def _write_error(self, error: OSError) -> ConfigError:
        """Return the error that the file cannot be started."""
        return ConfigError(
            f"cannot write {self._path}: {error.strerror}; free some space, or use another folder"
        )

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Close the file; an error of a pending write is ignored.

        A run that ends well without a new result has a file, too.
        """
        if self._file is None and self._path is not None and error_type is None:
            self._file = self._start(self._path)
        if self._file is not None:
            with contextlib.suppress(OSError):  # a failed write, which was reported already
                self._file.close()

    def _truncate_partial_line(self, path: Path) -> bool:
        """Remove an incomplete last line and check the header; return whether there is a header.

        False, too, if the file does not exist.

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
        """Raise ConfigError if the header of the file differs from this journal's, or its version.

        Digests are not shown in the message.
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
        """Return the error that the results are for `subject` instead."""
        return ConfigError(
            f"{self._path} contains results for {subject}; {self._ways.restart}, or use a "
            "different folder"
        )

    @contextlib.contextmanager
    def guard_records(self) -> Iterator[None]:
        """Context that turns errors of processing damaged records into a ConfigError.

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
        """Return an iterator over the records of `part` that exist now, in order.

        Records added later are not yielded. Raises ConfigError if a line is damaged.
        """
        return islice(self._iter_records(part), sum(1 for _ in self._iter_records(part)))

    def _iter_records(self, part: str) -> Iterator[dict[str, Any]]:
        """Yield all records whose "part" is `part`, including those added during the iteration.

        Empty without a file. Raises ConfigError at a damaged line.
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
        """Append one record; its "part" names the kind of result. Nothing is done without a file.

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
        """Parse a line as JSON; ConfigError if it is damaged."""
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._damaged_error() from error

    def _damaged_error(self) -> ConfigError:
        """Return the error for a damaged file, with the remedy."""
        return ConfigError(f"{self._path} is damaged; {self._ways.restart}")
