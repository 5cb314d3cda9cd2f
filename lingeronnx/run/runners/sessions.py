"""Models opened in onnxruntime, and run.

The only file that imports onnxruntime, and only when a float operator has to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx

from ...errors import ConfigError, ModelError
from ...graph import ir
from .loop_timeout import contains_op, with_loop_timeout
from .ort_errors import explain_ort_error

if TYPE_CHECKING:
    import onnxruntime

    OrtSession: TypeAlias = onnxruntime.InferenceSession

__all__ = ["open_default_ort_session", "open_ort_session", "run_session", "to_array"]

#: Types of outputs that are handed over one by one.
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


def open_ort_session(
    proto: onnx.ModelProto,
    label: str,
    threads: int = 0,
    external_constants: Mapping[str, np.ndarray] = MappingProxyType({}),
    disable_optimizations: bool = False,
) -> OrtSession:
    """Open an onnxruntime session on `proto`, which may be used up.

    ModelError when onnxruntime refuses the model.
    threads : 0 for `LINGERONNX_THREADS`, else the number of processors. apart : constants that
    `proto` lacks (`ir.detach_large_constants`), which have to be kept as long as the session is
    used. plain : every node as it stands, and no weight in another form: for a run or two.
    """
    import onnxruntime as ort

    turning = contains_op(proto, "Loop")
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what fails is raised; no second copy of it on stderr
    options.intra_op_num_threads = threads or _requested_threads()
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # between two runs it only costs
    options.enable_cpu_mem_arena = False  # it would keep the most that one run ever took
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = (
        level.ORT_DISABLE_ALL if disable_optimizations else level.ORT_ENABLE_BASIC
    )
    if disable_optimizations:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.execution_order = (
            ort.ExecutionOrder.PRIORITY_BASED
        )  # a Shape as soon as it can be told
    stored = [
        tensor.name for tensor in proto.graph.initializer if tensor.name in external_constants
    ]
    if stored:
        values = [ort.OrtValue.ortvalue_from_numpy(external_constants[name]) for name in stored]
        options.add_external_initializers(stored, values)
    try:
        with ir.session_source(proto) as content:
            session = ort.InferenceSession(
                content,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=_unsafe_optimizers(proto),
            )
    except Exception as error:
        if stored:  # onnxruntime takes no constant that it has dropped: then they are the model's
            return open_ort_session(
                ir.reattach_constants(proto, external_constants),
                label,
                threads,
                disable_optimizations=disable_optimizations,
            )
        raise ModelError(f"onnxruntime cannot run {label}: {explain_ort_error(error)}") from error
    if turning:
        session.run = with_loop_timeout(session.run, ort.RunOptions)
        session.run_with_ort_values = with_loop_timeout(session.run_with_ort_values, ort.RunOptions)
    return session


def _unsafe_optimizers(proto: onnx.ModelProto) -> list[str]:
    """Return the optimizations to leave out.

    Of models with branches the one that inlines those it can decide.
    onnxruntime 1.32 ends the whole process there where branches within branches know all their
    sizes.
    """
    return ["ConstantFolding"] if contains_op(proto, "If") else []


def open_default_ort_session(content: bytes) -> OrtSession:
    """Return a session with onnxruntime's own settings, all its optimizations among them."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_session(
    session: OrtSession, names: Sequence[str], given: Mapping[str, Any]
) -> Sequence[Any]:
    """Run a session; return arrays, or what `to_array` makes arrays of, so that not all are there twice at once."""
    import onnxruntime as ort

    plain = all(not isinstance(a, np.ndarray) or a.dtype.kind in "fiub" for a in given.values())
    if not plain or not all(value.type in _ORT_VALUE_TYPES for value in session.get_outputs()):
        return list(session.run(names, {name: to_array(value) for name, value in given.items()}))
    feeds = {
        name: ort.OrtValue.ortvalue_from_numpy(np.asarray(value, order="C"))
        if isinstance(value, np.ndarray)
        else value
        for name, value in given.items()
    }
    return list(session.run_with_ort_values(names, feeds))


def to_array(result: Any) -> Any:  # noqa: ANN401 - an OrtValue, which has no types
    """Return an array; a sequence of tensors stays a list of them."""
    return result if isinstance(result, np.ndarray | list) else result.numpy()


def _requested_threads() -> int:
    """Return what `LINGERONNX_THREADS` says, 0 where it says nothing.

    ConfigError where it is no number.
    """
    from simulator._threads import get_configured_threads

    try:
        return get_configured_threads()
    except ValueError as error:
        raise ConfigError(str(error)) from error
