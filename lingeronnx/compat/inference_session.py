"""`InferenceSession` and its companions, with the names and the strictness of onnxruntime.

A script goes on with ``import lingeronnx as ort``: integer graphs run in the simulator, float
models in onnxruntime itself. As there, names, types and shapes of the feeds must be those of the
graph; `Session`, which this is a thin layer of, converts and accepts more. What differs is an error
that says so, or stands in `docs/tutorials/coming-from-onnxruntime.md`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import onnx

from ..common.errors import ConfigError, DataError, ModelError, suggest_nearest
from ..ir import ir
from ..quantization import QuantizedModel
from ..runtime.data import InputSpec
from ..runtime.session import NodeArg, Session

__all__ = [
    "ExecutionMode",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "get_available_providers",
    "get_device",
]

_PROVIDER = "CPUExecutionProvider"
Provider = str | tuple[str, Mapping[str, Any]]


def get_available_providers() -> list[str]:
    """Return the names of the execution providers: the processor alone."""
    return [_PROVIDER]


def get_device() -> str:
    """Return the device that sessions compute on, "CPU"."""
    return "CPU"


class GraphOptimizationLevel(IntEnum):
    """Levels of onnxruntime; integer graphs run as they are at each."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Execution modes of onnxruntime, without effect on results."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass
class SessionOptions:
    """Options of a session, as in onnxruntime; those for speed and logs have no effect.

    The number of threads is the environment variable ``LINGERONNX_THREADS``. Profiling, custom
    operators and files of optimized models are refused when a session is made.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    optimized_model_filepath: str = ""
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    use_deterministic_compute: bool = True
    config_entries: dict[str, str] = field(default_factory=dict)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store a configuration entry, which has no effect."""
        self.config_entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Return a stored entry; ConfigError if there is none."""
        if key not in self.config_entries:
            raise ConfigError(f"SessionOptions has no configuration entry '{key}'")
        return self.config_entries[key]

    def register_custom_ops_library(self, path: str) -> None:
        """Raise ConfigError: libraries of custom operators cannot be loaded."""
        raise ConfigError(f"custom operators of {path} cannot be loaded; use onnxruntime for them")


@dataclass
class RunOptions:
    """Options of a run, as in onnxruntime; without effect."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    terminate: bool = False
    only_execute_path_to_fetches: bool = False


@dataclass(frozen=True)
class ModelMetadata:
    """Metadata of a model, as in onnxruntime."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class OrtValue:
    """A tensor in the memory of the processor."""

    def __init__(self, array: np.ndarray) -> None:
        """Hold `array`; use `ortvalue_from_numpy`."""
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(
        array: np.ndarray, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return `array` as a value; ConfigError for another device than "cpu"."""
        _check_device(device_type)
        return OrtValue(np.array(array))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any = np.float32,  # noqa: ANN401 - as in NumPy
        device_type: str = "cpu",
        device_id: int = 0,
    ) -> OrtValue:
        """Return zeros of a shape and NumPy type; ConfigError for another device than "cpu"."""
        _check_device(device_type)
        return OrtValue(np.zeros(shape, element_type))

    def numpy(self) -> np.ndarray:
        """Return the array."""
        return self._array

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Return the type, such as "tensor(float)"."""
        return _format_type(self._array.dtype)

    def element_type(self) -> int:
        """Return the number of the type in ONNX."""
        return int(onnx.helper.np_dtype_to_tensor_dtype(self._array.dtype))

    def device_name(self) -> str:
        """Return "cpu"."""
        return "cpu"

    def has_value(self) -> bool:
        """Whether there is a tensor; always true."""
        return True

    def is_tensor(self) -> bool:
        """Whether the value is a dense tensor; always true."""
        return True

    def update_inplace(self, array: np.ndarray) -> None:
        """Copy the elements of `array`, of the same shape and type, into this value."""
        if array.shape != self._array.shape or array.dtype != self._array.dtype:
            raise DataError(
                f"the value is {self._array.dtype} {list(self._array.shape)}; got {array.dtype} "
                f"{list(array.shape)}"
            )
        self._array[...] = array


class IOBinding:
    """Inputs and outputs that are bound to a session before it runs."""

    def __init__(self, session: InferenceSession) -> None:
        """Start without bound inputs and outputs."""
        self._session = session
        self._inputs: dict[str, np.ndarray] = {}
        self._targets: dict[str, OrtValue | None] = {}
        self._outputs: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an array to an input."""
        self._inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value to an input."""
        self._inputs[name] = ortvalue.numpy()

    def bind_input(self, name: str, *_args: object, **_settings: object) -> None:
        """Raise ConfigError: memory is not read by its address."""
        raise ConfigError(
            f"bind_input of '{name}': memory is not read by its address here; use bind_cpu_input "
            "or bind_ortvalue_input"
        )

    def bind_output(self, name: str, device_type: str = "cpu", *_: object, **__: object) -> None:
        """Bind an output, whose memory the session provides."""
        _check_device(device_type)
        self._targets[name] = None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to a value of its shape and type, which a run overwrites."""
        self._targets[name] = ortvalue

    def clear_binding_inputs(self) -> None:
        """Forget the bound inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the bound outputs, and those of the last run."""
        self._targets.clear()
        self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Do nothing: all memory is that of the processor."""

    def synchronize_outputs(self) -> None:
        """Do nothing: all memory is that of the processor."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order in which they were bound."""
        return list(self._outputs)

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return the outputs of the last run as arrays."""
        return [value.numpy() for value in self._outputs]

    def _run(self) -> None:
        """Run the session on the bound inputs, and keep the bound outputs."""
        results = self._session.run(list(self._targets) or None, self._inputs)
        targets = list(self._targets.values()) or [None] * len(results)
        self._outputs = []
        for target, array in zip(targets, results, strict=True):
            if target is not None:
                target.update_inplace(array)
            self._outputs.append(OrtValue(array) if target is None else target)


class InferenceSession:
    """Runs a model as onnxruntime's class of this name does, with the same calls and strictness.

    Parameters
    ----------
    path_or_bytes
        A file, its bytes, a graph in memory, or the result of `quantize`.
    sess_options
        Options, of this package or of onnxruntime.
    providers
        Names of execution providers, or pairs of name and options. All but the processor's are left
        out, with a warning as there.
    provider_options
        Options of each provider, without effect.

    Raises
    ------
    ConfigError
        For options that have an effect there and none here, such as profiling.
    ModelError
        If the model cannot be read.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str] | ir.Model | QuantizedModel,
        sess_options: Any = None,  # noqa: ANN401 - ours, or onnxruntime's
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        """Load the model and check options and providers."""
        for name in settings:
            raise ConfigError(f"InferenceSession has no argument '{name}' here; omit it")
        self._options = SessionOptions() if sess_options is None else sess_options
        _check_options(self._options)
        _check_providers(providers)
        self._session = Session(_load(path_or_bytes))
        self._inputs = {arg.name: arg for arg in self._session.get_inputs()}
        self._outputs = {arg.name: arg for arg in self._session.get_outputs()}

    # ---- the model ----------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """Return name, shape and type of the inputs; a dimension of any size is None."""
        return list(self._inputs.values())

    def get_outputs(self) -> list[NodeArg]:
        """Return name, shape and type of the outputs; a dimension of any size is None."""
        return list(self._outputs.values())

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs with default values; they keep these."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of the file."""
        model = self._session.model
        return ModelMetadata(
            producer_name=model.producer_name or "",
            graph_name=model.graph.name or "",
            domain=model.domain or "",
            description=model.doc_string or "",
            graph_description=model.graph.doc_string or "",
            version=model.model_version or 0,
            custom_metadata_map=dict(model.metadata_props),
        )

    # ---- providers and options ----------------------------------------------------------------

    def get_session_options(self) -> Any:  # noqa: ANN401 - ours, or onnxruntime's
        """Return the options of the session."""
        return self._options

    def get_providers(self) -> list[str]:
        """Return the names of the providers in use."""
        return [_PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of each provider."""
        return {_PROVIDER: {}}

    def set_providers(
        self,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Check the providers; the processor's stays."""
        _check_providers(providers)

    def enable_fallback(self) -> None:
        """Do nothing: there is one provider."""

    def disable_fallback(self) -> None:
        """Do nothing: there is one provider."""

    def end_profiling(self) -> str:
        """Raise ConfigError: there is no profile."""
        raise ConfigError("there is no profile; `lingeronnx profile` and `trace` show more")

    # ---- runs ---------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, np.ndarray | OrtValue],
        run_options: object = None,
    ) -> list[np.ndarray]:
        """Run the model and return the outputs as a list.

        Parameters
        ----------
        output_names
            Outputs to return, in this order; None or [] for all.
        input_feed
            An array, or value, of exactly the type and shape of each input.
        run_options
            Without effect.

        Raises
        ------
        DataError
            If an input is missing, unknown, or has another type or shape.
        ConfigError
            If there is no such output.
        """
        names = list(output_names or self._outputs)
        for name in names:
            if name not in self._outputs:
                raise ConfigError(
                    f"the model has no output '{name}'{suggest_nearest(name, self._outputs)}; "
                    f"outputs are {', '.join(self._outputs)}"
                )
        feeds = self._check_feeds(input_feed)
        results = dict(zip(names, self._session.run(names, feeds), strict=True))
        return [results[name] for name in names]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: object = None,
    ) -> list[OrtValue]:
        """Run the model on values and return values; otherwise as `run`."""
        results = self.run(output_names, input_dict_ort_values, run_options)
        return [OrtValue(array) for array in results]

    def io_binding(self) -> IOBinding:
        """Return an object that inputs and outputs are bound to."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: object = None) -> None:
        """Run the model on the bound inputs."""
        iobinding._run()

    def run_async(self, *_args: object, **_settings: object) -> None:
        """Raise ConfigError: runs are not asynchronous."""
        raise ConfigError("run_async: call run in a thread of your own; it releases the lock")

    def _check_feeds(self, feeds: Mapping[str, np.ndarray | OrtValue]) -> dict[str, np.ndarray]:
        """Return the arrays of `feeds` by input name.

        Raises DataError if an input is missing, unknown, or has another type or shape.
        """
        if not isinstance(feeds, Mapping):
            raise DataError(f"the feeds are a {type(feeds).__name__}; pass {{name: array}}")
        for name in feeds:
            if name not in self._inputs:
                raise DataError(
                    f"the model has no input '{name}'{suggest_nearest(str(name), self._inputs)}; "
                    f"inputs are {', '.join(self._inputs)}"
                )
        arrays: dict[str, np.ndarray] = {}
        for name, arg in self._inputs.items():
            if name not in feeds:
                raise DataError(f"input '{name}' is missing; the model needs all its inputs")
            value = feeds[name]
            array = value.numpy() if isinstance(value, OrtValue) else value
            _check_array(arg, array)
            arrays[name] = array
        return arrays


# ---- checks -------------------------------------------------------------------------------------


def _load(source: object) -> Any:  # noqa: ANN401 - whatever Session takes
    """Return the model in bytes of a file; anything else as it is.

    Raises ModelError if the bytes are no model.
    """
    if not isinstance(source, bytes | bytearray | memoryview):
        return source
    try:
        proto = onnx.load_from_string(bytes(source))
    except Exception as error:  # protobuf's DecodeError, which depends on its implementation
        raise ModelError("the bytes are not an ONNX model; pass those of an .onnx file") from error
    if not proto.HasField("graph"):
        raise ModelError("the bytes are not an ONNX model: they contain no graph")
    return ir.convert_user_model(proto)


def _check_options(options: object) -> None:
    """Raise ConfigError for options that have an effect in onnxruntime and none here."""
    if getattr(options, "enable_profiling", False):
        raise ConfigError(
            "enable_profiling: a session writes no profile; `lingeronnx profile` and `trace` show "
            "tensors and time"
        )
    if getattr(options, "optimized_model_filepath", ""):
        raise ConfigError("optimized_model_filepath: integer graphs run as they are; omit it")


def _check_providers(providers: Sequence[Provider] | None) -> None:
    """Warn of providers that are not available; ConfigError for anything but names and pairs."""
    for provider in providers or ():
        name = provider[0] if isinstance(provider, tuple) and provider else provider
        if not isinstance(name, str):
            raise ConfigError(f"providers: {provider!r} is no name and no pair of name and options")
        if name != _PROVIDER:
            warnings.warn(
                f"provider '{name}' is not available; {_PROVIDER} computes the model", stacklevel=3
            )


def _check_device(device_type: str) -> None:
    """Raise ConfigError unless a device is the processor."""
    if device_type != "cpu":
        raise ConfigError(f"device '{device_type}' is not available; use cpu")


def _format_type(dtype: np.dtype) -> str:
    """Return a NumPy type in onnxruntime's spelling, such as "tensor(float)"."""
    name = onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(dtype))
    return f"tensor({name.lower()})"


def _check_array(arg: NodeArg, array: object) -> None:
    """Raise DataError unless `array` has exactly the type, rank and fixed sizes of an input."""
    if not isinstance(array, np.ndarray):
        raise DataError(
            f"input '{arg.name}' is a {type(array).__name__}; pass a NumPy array of {arg.type}"
        )
    actual_type = _format_type(array.dtype)
    if actual_type != arg.type:
        raise DataError(
            f"input '{arg.name}' is {actual_type}, but the model needs {arg.type}; convert it, or "
            "use lo.Session, which converts"
        )
    fits = len(arg.shape) == array.ndim and all(
        expected is None or expected == size
        for expected, size in zip(arg.shape, array.shape, strict=True)
    )
    if not fits:
        expected = ["any" if size is None else size for size in arg.shape]
        spec = InputSpec(arg.name, tuple(arg.shape), array.dtype)
        remedy = spec.suggest_layout(array.shape) or "; lo.Session runs any batch size"
        raise DataError(
            f"input '{arg.name}' has shape {list(array.shape)}, but the model needs "
            f"[{', '.join(map(str, expected))}]{remedy}"
        )
