"""Exceptions of lingeronnx; the branch says whose fault it is.

    LingerOnnxError          the user's side: one line, exit code 1, no traceback
    |-- ModelError           the model file is corrupt, or holds an operator or shape that cannot be used
    |-- ConstraintError      a limit of the chosen platform is broken and the caller asked for that to be an error
    |-- ConfigError          an option, a selector or a configuration file is wrong
    |-- DataError            calibration or evaluation data do not fit the model
    `-- RepairError          a legacy graph that cannot be repaired
    InternalError            our side: a law of the design does not hold; shown with its traceback,
    exit code 70

A message is one line: what, where (node and tensor name), the value, the limit, the remedy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = [
    "ConfigError",
    "ConstraintError",
    "DataError",
    "InternalError",
    "LingerOnnxError",
    "ModelError",
    "RepairError",
    "format_exception",
    "split_words",
    "suggest_nearest",
    "wrap_user_errors",
]


class LingerOnnxError(Exception):
    """Base of everything a user can cause and mend; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ModelError(LingerOnnxError):
    """The model file cannot be read, or holds something that cannot be used."""


class ConstraintError(LingerOnnxError):
    """The model breaks a limit of the platform where the caller asked for an error."""


class ConfigError(LingerOnnxError):
    """An option, a selector or a configuration file is wrong."""


class DataError(LingerOnnxError):
    """Calibration or evaluation data do not fit the model."""


class RepairError(LingerOnnxError):
    """A legacy graph that cannot be repaired; says why.

    `report` holds all that was found, where there is a report.
    """

    def __init__(self, message: str, report: Any = None) -> None:  # noqa: ANN401 - of a part above this file
        super().__init__(message)
        self.report = report


class InternalError(Exception):
    """A promise of lingeronnx itself does not hold: a bug, please report it."""


def suggest_nearest(word: str, known: object) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest of `known` (an iterable of str), or an empty string."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)  # type: ignore[call-overload]
    return f"; did you mean '{close[0]}'?" if close else ""


def format_exception(error: BaseException) -> str:
    """Return the type and the first line of an exception of others.

    A text that cannot be had is left out.
    """
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # an exception of a user's may raise while it says what it is
        lines = []
    kind = type(error).__name__
    return f"{kind}: {lines[0][:300]}" if lines else kind


@contextlib.contextmanager
def wrap_user_errors(message: str, kind: type[LingerOnnxError]) -> Iterator[None]:
    """Turn whatever a user's code raises inside into a `kind` that says `message` and the reason.

    SystemExit too: a function that is called for its result does not end the process. Ctrl-C goes
    through.
    """
    try:
        yield
    except (LingerOnnxError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise kind(f"{message} ({format_exception(error)})") from error


def split_words(line: str) -> list[str]:
    """Return the words of a line as a shell has them.

    ConfigError where it has a quote without an end.
    """
    import shlex

    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigError(
            f"the arguments {line[:80]!r} cannot be split into words ({error}); close each "
            "quotation mark"
        ) from error
