"""Stop runs of models with loops after a timeout: a loop may have no end."""

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
    """Whether `proto`, with subgraphs and functions, has a node of type `op_type`."""
    nodes = list(proto.graph.node)
    for function in proto.functions:
        nodes += function.node
    return any(node.op_type == op_type for node in iter_nodes_recursive(nodes))


def with_loop_timeout(
    run: Callable[..., Any], make_options: Callable[[], Any]
) -> Callable[..., Any]:
    """Return a function that calls onnxruntime's `run` and stops it after a timeout.

    It then raises ModelError. The timeout is LINGERONNX_LOOP_SECONDS, read at each call.
    `make_options` creates onnxruntime's options of a run.
    """

    def run_with_timeout(names: Any, feeds: Any) -> Any:  # noqa: ANN401 - types of onnxruntime
        """Run the session on `feeds` and return the tensors `names`, as the wrapped `run` does.

        A timer ends the run after the time limit; ModelError is raised then. Other errors are
        passed on.
        """
        limit, options = _read_timeout_seconds(), make_options()
        timer = threading.Timer(limit, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            return run(names, feeds, options)
        except Exception as error:
            if options.terminate:
                raise ModelError(
                    f"loops ran for {limit:g} seconds, the limit set by "
                    f"{_ENVIRONMENT_VARIABLE}; reduce the batch size, or export the model with "
                    "fewer iterations"
                ) from error
            raise
        finally:
            timer.cancel()

    return run_with_timeout


def _read_timeout_seconds() -> float:
    """Return the seconds in LINGERONNX_LOOP_SECONDS, or the default if it is unset or empty.

    Raises ConfigError unless it is a positive number.
    """
    text = os.environ.get(_ENVIRONMENT_VARIABLE) or str(_DEFAULT_TIMEOUT_SECONDS)
    try:
        limit = float(text)
        if not 0 < limit < threading.TIMEOUT_MAX:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"{_ENVIRONMENT_VARIABLE}={text}: expected a positive number of seconds"
        ) from None
    return limit
