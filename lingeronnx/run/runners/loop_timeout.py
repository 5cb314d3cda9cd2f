"""A run of a model with loops ends after a while.

How often they turn may be computed, and have no end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import onnx

from ...errors import ConfigError, ModelError
from ...graph.write_verification import iter_nodes_recursive

__all__ = ["contains_op", "with_loop_timeout"]

_ENVIRONMENT_VARIABLE, _DEFAULT_TIMEOUT_SECONDS = "LINGERONNX_LOOP_SECONDS", 15.0


def contains_op(proto: onnx.ModelProto, op_type: str) -> bool:
    """Whether `proto`, one of its subgraphs or of its functions has a node of that operator."""
    nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    return any(node.op_type == op_type for node in iter_nodes_recursive(nodes))


def with_loop_timeout(run: Callable[..., Any], options: Callable[[], Any]) -> Callable[..., Any]:
    """Return onnxruntime's `run` with an end.

    ModelError after the seconds that LINGERONNX_LOOP_SECONDS says.
    options : makes onnxruntime's options of one run.
    """

    def run_with_timeout(names: Any, feeds: Any) -> Any:  # noqa: ANN401 - as onnxruntime takes and gives them
        limit, own = _read_timeout_seconds(), options()
        timer = threading.Timer(limit, setattr, (own, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            return run(names, feeds, own)
        except Exception as error:
            if own.terminate:
                raise ModelError(
                    f"its loops turned for {limit:g} seconds, which is the limit "
                    f"({_ENVIRONMENT_VARIABLE}); give fewer "
                    "samples at "
                    "once, or export the model with fewer turns"
                ) from error
            raise
        finally:
            timer.cancel()

    return run_with_timeout


def _read_timeout_seconds() -> float:
    text = os.environ.get(_ENVIRONMENT_VARIABLE) or str(_DEFAULT_TIMEOUT_SECONDS)
    try:
        limit = float(text)
        if not 0 < limit < threading.TIMEOUT_MAX:
            raise ValueError
    except ValueError:
        raise ConfigError(f"{_ENVIRONMENT_VARIABLE}={text}: write a number of seconds") from None
    return limit
