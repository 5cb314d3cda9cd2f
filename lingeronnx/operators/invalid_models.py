"""Unexpected exceptions on models that are not valid ONNX.

Many invalid models work: a wrong declared shape is corrected, an unused node is removed. ONNX's
checker, which is strict and takes time on large models, therefore runs only after a failure. If it
rejects the model, that is the error to report; if not, the exception is a bug in lingeronnx.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

import onnx

from ..common.command_lines import find_model_paths
from ..common.errors import LingerOnnxError, ModelError
from ..ir import ir

__all__ = ["explain_invalid_models", "raise_if_invalid"]

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def explain_invalid_models(call: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """Decorate `call` so that its unexpected exceptions on invalid models become ModelError.

    Models are recognized among the arguments, as in `raise_if_invalid`. Other exceptions, errors of
    the user and of the system are unchanged.
    """

    @functools.wraps(call)
    def call_and_explain(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        try:
            return call(*args, **kwargs)
        except (LingerOnnxError, OSError, MemoryError):
            raise
        except Exception as error:
            raise_if_invalid([*args, *kwargs.values()], error)
            raise

    return call_and_explain


def raise_if_invalid(arguments: Iterable[object], error: BaseException) -> None:
    """Raise ModelError from `error` if ONNX's checker rejects a model among `arguments`.

    Models are ONNX models, IR models and words that name an .onnx file (`find_model_paths`). The
    message quotes the checker and names the place of `error`, whose traceback is kept as the cause.
    """
    for name, model in _iter_models(arguments):
        reason = _find_invalidity(model)
        if reason:
            raise ModelError(
                f"{name} is not a valid ONNX model, and an unexpected error followed "
                f"({_locate(error)}): {reason}; correct the model, and report the error if it stays"
            ) from error


def _iter_models(
    arguments: Iterable[object],
) -> Iterator[tuple[str, onnx.ModelProto | ir.Model | Path]]:
    """Yield (name for messages, model or path) of each model among `arguments`."""
    for argument in arguments:
        if isinstance(argument, onnx.ModelProto | ir.Model):
            yield "the model", argument
        elif isinstance(argument, str | Path):
            for path in find_model_paths([str(argument)]):
                yield path.name, path


def _find_invalidity(model: onnx.ModelProto | ir.Model | Path) -> str:
    """Return the reason for which ONNX's checker rejects `model`.

    "" if it does not, or fails itself.
    """
    from .schemas import check_model  # registers schemas, which only a failure needs

    try:
        check_model(model)
    except ModelError as error:
        return str(error)
    except Exception:  # noqa: BLE001 - must not hide the error that is to be explained
        return ""
    return ""


def _locate(error: BaseException) -> str:
    """Return the type of `error` and the file and line that raised it, for a message."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
