"""Open models in onnxruntime, and run them.

This is the only file that imports onnxruntime, and only when a float operator has to run. Runs of
models with loops are stopped after a timeout: a loop may have no end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx

from ...common.errors import ConfigError, ModelError
from ...ir import ir
from ...ir.attributes import iter_nodes_recursive
from .ort_errors import explain_ort_error

if TYPE_CHECKING:
    import onnxruntime

    OrtSession: TypeAlias = onnxruntime.InferenceSession

__all__ = [
    "open_default_ort_session",
    "open_ort_session",
    "run_session",
    "to_array",
]

#: Output types that onnxruntime can return as OrtValues, without copying all at once.
_ORT_VALUE_TYPES = frozenset(
    f"tensor({kind})"
    for kind in (
        "bool",
        "double",
        "float",
        "float16",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
    )
)

_LOOP_TIMEOUT_VARIABLE, _DEFAULT_LOOP_TIMEOUT_SECONDS = "LINGERONNX_LOOP_SECONDS", 15.0


def open_ort_session(
    proto: onnx.ModelProto,
    label: str,
    threads: int = 0,
    external_constants: Mapping[str, np.ndarray] = MappingProxyType({}),
    disable_optimizations: bool = False,
) -> OrtSession:
    """Open an onnxruntime session on the CPU.

    Runs of a model with a Loop are stopped after a timeout with ModelError.

    Parameters
    ----------
    proto
        The model; it may be modified.
    label
        Description of the model, for messages.
    threads
        Number of threads; 0 for that of the environment, or else the cores that the process may
        use.
    external_constants
        Constants that `proto` lacks (`ir.detach_large_constants`). They must be kept alive as long
        as the session.
    disable_optimizations
        Run every node unchanged and do not repack weights; faster for a run or two.

    Raises
    ------
    ModelError
        If onnxruntime does not support the model.
    """
    import onnxruntime as ort

    op_types = _collect_op_types(proto)
    # Its constant folding inlines branches with a constant condition, and onnxruntime 1.32 crashes
    # there if nested branches have known shapes.
    unsafe_optimizers = ["ConstantFolding"] if "If" in op_types else []
    options = _make_session_options(threads, disable_optimizations)
    external_names = [
        tensor.name for tensor in proto.graph.initializer if tensor.name in external_constants
    ]
    if external_names:
        values = [
            ort.OrtValue.ortvalue_from_numpy(external_constants[name]) for name in external_names
        ]
        options.add_external_initializers(external_names, values)
    try:
        with ir.session_source(proto) as content:
            session = ort.InferenceSession(
                content,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=unsafe_optimizers,
            )
    except Exception as error:
        if external_names:  # onnxruntime rejects external constants that it optimized away
            return open_ort_session(
                ir.reattach_constants(proto, external_constants),
                label,
                threads,
                disable_optimizations=disable_optimizations,
            )
        raise ModelError(f"onnxruntime cannot run {label}: {explain_ort_error(error)}") from error
    if "Loop" in op_types:
        session.run = _with_loop_timeout(session.run, ort.RunOptions)
        session.run_with_ort_values = _with_loop_timeout(
            session.run_with_ort_values, ort.RunOptions
        )
    return session


def _make_session_options(threads: int, disable_optimizations: bool) -> onnxruntime.SessionOptions:
    """Make options of an onnxruntime session.

    `threads` 0 takes the number in the environment, or else the cores that the process may use.
    Threads do not spin, memory is not kept between runs, and nothing is logged. Optimizations are
    the basic ones; with `disable_optimizations` there are none, and weights are not repacked.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4  # errors are raised, and not printed on stderr as well
    options.intra_op_num_threads = threads or _requested_threads()
    # Spinning between runs wastes CPU time, and the arena would keep the peak memory of all runs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = False
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = (
        level.ORT_DISABLE_ALL if disable_optimizations else level.ORT_ENABLE_BASIC
    )
    if disable_optimizations:
        options.add_session_config_entry("session.disable_prepacking", "1")
        # A Shape runs as soon as its input is known.
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    return options


def open_default_ort_session(content: bytes, label: str) -> OrtSession:
    """Open a session with onnxruntime's default settings and optimizations, on the CPU.

    content : the serialized model. label : its description in messages.

    Raises
    ------
    ModelError
        If onnxruntime rejects the model.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(
            "onnxruntime with its default settings cannot run "
            f"{label}: {explain_ort_error(error)}; check the attributes and shapes of the graph"
        ) from error


def run_session(
    session: OrtSession, names: Sequence[str], inputs: Mapping[str, Any]
) -> Sequence[Any]:
    """Run a session on `inputs` and return its outputs `names`, to be converted by `to_array`.

    They are OrtValues if all inputs and outputs are numeric, so that not all arrays are in memory
    twice at once; else arrays. Inputs may be either.
    """
    import onnxruntime as ort

    arrays = [value for value in inputs.values() if isinstance(value, np.ndarray)]
    is_numeric = all(array.dtype.kind in "fiub" for array in arrays)
    if not is_numeric or not all(value.type in _ORT_VALUE_TYPES for value in session.get_outputs()):
        return list(session.run(names, {name: to_array(value) for name, value in inputs.items()}))
    feeds = {}
    for name, value in inputs.items():
        if isinstance(value, np.ndarray):
            value = ort.OrtValue.ortvalue_from_numpy(np.asarray(value, order="C"))
        feeds[name] = value
    return list(session.run_with_ort_values(names, feeds))


def to_array(result: Any) -> Any:  # noqa: ANN401 - an OrtValue, which has no types
    """Convert an OrtValue to an array.

    Arrays and lists (sequences of tensors) are returned unchanged.
    """
    return result if isinstance(result, np.ndarray | list) else result.numpy()


def _requested_threads() -> int:
    """Return the number of threads in the environment, or a restriction of the process; else 0.

    0 is onnxruntime's own choice, a thread for each core of the system. It knows neither the CPU
    affinity of the process nor a quota of its control group.

    Raises
    ------
    ConfigError
        If `LINGERONNX_THREADS` is not a valid number of threads.
    """
    from simulator._threads import count_usable_processors, get_configured_threads

    usable = count_usable_processors()
    is_restricted = usable < (os.cpu_count() or 1)
    try:
        return get_configured_threads() or (usable if is_restricted else 0)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _collect_op_types(proto: onnx.ModelProto) -> set[str]:
    """Return the operators of the nodes of `proto`, with subgraphs and functions."""
    nodes = list(proto.graph.node)
    for function in proto.functions:
        nodes += function.node
    return {node.op_type for node in iter_nodes_recursive(nodes)}


def _with_loop_timeout(
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
        limit, options = _read_loop_timeout_seconds(), make_options()
        timer = threading.Timer(limit, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            return run(names, feeds, options)
        except Exception as error:
            if options.terminate:
                raise ModelError(
                    f"loops ran for {limit:g} seconds, the limit set by "
                    f"{_LOOP_TIMEOUT_VARIABLE}; reduce the batch size, or export the model with "
                    "fewer iterations"
                ) from error
            raise
        finally:
            timer.cancel()

    return run_with_timeout


def _read_loop_timeout_seconds() -> float:
    """Return the seconds in LINGERONNX_LOOP_SECONDS, or the default if it is unset or empty.

    Raises ConfigError unless it is a positive number.
    """
    text = os.environ.get(_LOOP_TIMEOUT_VARIABLE) or str(_DEFAULT_LOOP_TIMEOUT_SECONDS)
    try:
        limit = float(text)
        if not 0 < limit < threading.TIMEOUT_MAX:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"{_LOOP_TIMEOUT_VARIABLE}={text}: expected a positive number of seconds"
        ) from None
    return limit
