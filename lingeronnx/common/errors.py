"""Exceptions of lingeronnx: user errors and internal errors.

    LingerOnnxError          user error: one line, exit code 1, no traceback
    |-- ModelError           the model is corrupt, or has an unsupported operator or shape
    |-- ConstraintError      a limit of the platform is violated, and the caller requested an error
    |-- ConfigError          an option, a selector or a configuration file is invalid
    |-- DataError            calibration or evaluation data do not match the model
    `-- RepairError          a legacy graph cannot be repaired
    InternalError            bug in lingeronnx: shown with its traceback, exit code 70

A message is one line: problem, location (node and tensor name), value, limit, remedy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .escaping import escape_invisible

__all__ = [
    "ConfigError",
    "ConstraintError",
    "DataError",
    "InternalError",
    "LingerOnnxError",
    "ModelError",
    "RepairError",
    "format_exception",
    "get_exception_text",
    "split_words",
    "suggest_nearest",
    "wrap_user_errors",
]


class LingerOnnxError(Exception):
    """Base of errors that a user can cause and fix.

    The message is one line without control characters, whatever names are in it.
    """

    def __init__(self, message: str) -> None:
        """Store the message as one line: runs of white space become single spaces.

        Control characters and others without a glyph are escaped.
        """
        super().__init__(escape_invisible(" ".join(message.split())))


class ModelError(LingerOnnxError):
    """The model cannot be read, or contains an operator or shape that is not supported."""


class ConstraintError(LingerOnnxError):
    """The model violates a limit of the platform, and the caller requested an error."""


class ConfigError(LingerOnnxError):
    """An option, a selector or a configuration file is invalid."""


class DataError(LingerOnnxError):
    """Calibration or evaluation data do not match the model."""


class RepairError(LingerOnnxError):
    """A legacy graph cannot be repaired.

    Attributes
    ----------
    report
        All findings, or None if there is no report.
    """

    def __init__(self, message: str, report: Any = None) -> None:  # noqa: ANN401 - of a part above this file
        """Store the message, and in `report` the findings about the graph, or None."""
        super().__init__(message)
        self.report = report


class InternalError(Exception):
    """An internal error: a bug in lingeronnx; please report it."""


def suggest_nearest(word: str, known: object) -> str:
    """Return ``"; did you mean 'x'?"`` for the word in `known` closest to `word`.

    Parameters
    ----------
    word
        The unknown word.
    known
        Iterable of the known words.

    Returns
    -------
    str
        The suggestion, or an empty string if no word is similar.
    """
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)  # type: ignore[call-overload]
    return f"; did you mean '{close[0]}'?" if close else ""


def get_exception_text(error: BaseException) -> str:
    """Return the message of any exception; "" if `str` fails, as it may for user code.

    Only KeyboardInterrupt is passed on.
    """
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return ""


def format_exception(error: BaseException) -> str:
    """Return the type and the first line of the message of any exception, at most 300 characters.

    The message is omitted if it is empty or `str` fails.
    """
    lines = get_exception_text(error).strip().splitlines()
    kind = type(error).__name__
    return f"{kind}: {lines[0][:300]}" if lines else kind


@contextlib.contextmanager
def wrap_user_errors(message: str, kind: type[LingerOnnxError]) -> Iterator[None]:
    """Context manager that converts exceptions of user code in its block to `kind`.

    The message is `message` and the reason in parentheses. SystemExit, GeneratorExit and others
    that do not inherit from Exception are converted, too: user code must not end the process.
    LingerOnnxError and KeyboardInterrupt are not converted. The block must not contain a `yield`,
    whose generator is closed by a GeneratorExit.
    """
    try:
        yield
    except (LingerOnnxError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise kind(f"{message} ({format_exception(error)})") from error


def split_words(line: str) -> list[str]:
    """Split a command line into words by the rules of a shell.

    Raises
    ------
    ConfigError
        If a quotation mark is not closed.
    """
    import shlex

    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigError(
            f"the arguments {line[:80]!r} cannot be split into words ({error}); close each "
            "quotation mark"
        ) from error
