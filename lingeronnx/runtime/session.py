"""Run an ONNX file, integer or float, with the interface of onnxruntime's InferenceSession.

Integer graphs run in the simulator, which computes the integers of the chip's executor; float
graphs run in onnxruntime. Any batch size is possible.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ..common.deprecation import accept_old_parameters
from ..common.errors import ConfigError, DataError, suggest_nearest
from ..common.notebook import format_summary, render_fact_table, render_fragment
from ..ir import ir
from ..ir.dynamic_tail import DynamicTail, split_dynamic_tail
from ..ir.name_mapping import restore_user_names
from ..ir.plan import Affine
from ..operators.integer_ops import is_quantized_domain
from ..operators.invalid_models import explain_invalid_models
from ..operators.node_validation import check_nodes
from ..targets import Target, get_target, get_versions
from .compiled_host import CompiledHost
from .data import InputSpec
from .integer.runner import IntegerRunner, detect_target
from .parts_runner import PartsRunner
from .program_parts import split_into_parts
from .provenance import map_to_float_names
from .runners import FallbackSessionCache, FloatRunner, get_input_specs
from .runners import Stream as Tensors
from .runners.tail_runner import TailRunner
from .streaming import Stream

__all__ = ["NodeArg", "Session", "LoweredSession"]


_MAX_LISTED_ARGUMENTS = 8


@dataclass(frozen=True)
class NodeArg:
    """A graph input or output, as in onnxruntime.

    name : of the tensor. shape : None for dimensions of any size. type : such as "tensor(float)".
    """

    name: str
    shape: list[int | None]
    type: str


class Session:
    """Runs a model, integer or float; used like onnxruntime's InferenceSession.

    Float outputs are real values, integer outputs integers. An input that feeds a Quant takes real
    values, or an array of the Quant's integer type, which is taken as already quantized. If a
    file's tensors were renamed for a chip's packer, the user's names are used here.

    Parameters
    ----------
    path
        A file, a graph in memory, or the result of `quantize`.
    arithmetic
        Which integers are computed: "executor" (those of the chip) or "training" (those of the
        software that the network was trained with). None uses the training arithmetic for graphs
        of domain `linger`, and the executor's for all others.
    platform
        The platform that computes an integer graph, by name or as a custom `Target`; None uses the
        one that the graph was made for.
    host
        A folder that `deploy` wrote from this graph. Its C code computes the float parts, compiled
        on this machine, so that every integer equals the program's. Samples run one by one.

    Raises
    ------
    ModelError
        If the training arithmetic is not known.
    ConfigError
        If arithmetic or platform is unknown, or is passed for a float model.
    """

    @explain_invalid_models
    def __init__(
        self,
        path: ir.ModelLike,
        arithmetic: str | None = None,
        platform: str | Target | None = None,
        host: str | os.PathLike[str] | None = None,
    ) -> None:
        """Load `path` and create its runner: parts on `host`, integer, or float when first needed.

        `host` is the folder of a deployed program, whose compiled host parts are called. Raises
        ConfigError if an option for integer graphs is passed with a float model.
        """
        model = restore_user_names(ir.as_model(path))
        if is_integer_graph(model):
            check_nodes(model)
        else:
            _check_float_options(arithmetic=arithmetic, platform=platform, host=host)
        self._open(model, arithmetic, None if platform is None else get_target(platform), host)

    def _open(
        self,
        model: ir.Model,
        arithmetic: str | None,
        target: Target | None,
        host: str | os.PathLike[str] | None,
    ) -> None:
        """Create the runner of `model`, a valid graph with the user's names."""
        self.model = model
        self.is_integer = is_integer_graph(model)
        self._options = arithmetic, target, host
        self._names = ir.get_output_names(self.model)
        self._tail: DynamicTail | None = None
        self._runner: IntegerRunner | PartsRunner | None = None
        if self.is_integer and host is not None:
            parts = split_into_parts(self.model, target or detect_target(self.model))
            self._runner = PartsRunner(parts, arithmetic, target, CompiledHost(host))
        elif self.is_integer:
            self._tail = split_dynamic_tail(self.model)
            body = self.model if self._tail is None else self._tail.body
            self._runner = IntegerRunner(body, arithmetic, target)
        self.inputs: list[InputSpec] = (
            self._runner.inputs if self._runner is not None else get_input_specs(self.model)
        )
        self._float_runners: dict[frozenset[str] | None, FloatRunner] = {}
        self._tail_runner: TailRunner | None = None
        self._watches: list[Callable[[str, np.ndarray, Affine | None], None]] = []

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the session so that another process opens it again.

        Raises
        ------
        ConfigError
            If it is for a custom platform.
        """
        arithmetic, target, host = self._options
        if target is not None and target not in get_versions(target):
            raise ConfigError(
                f"the session is for the custom platform {target.name} and cannot be sent to other "
                "processes; omit workers and cluster"
            )
        platform = None if target is None else target.name
        return _reopen_session, (ir.to_bytes(self.model), arithmetic, platform, host)

    def __repr__(self) -> str:
        """Return the kind of the model, and name, shape and type of its inputs and outputs."""
        return format_summary(self._title, self._list_arguments())

    def _repr_html_(self) -> str:
        """Render inputs, outputs and the number of nodes by operator for a notebook."""
        counts = Counter(ir.display_op_type(node) for node in self.model.graph)
        operators = [(op_type, str(count)) for op_type, count in counts.most_common()]
        return render_fragment(
            self._title,
            render_fact_table("", self._list_arguments()),
            render_fact_table("Nodes by operator", operators),
        )

    @property
    def _title(self) -> str:
        """The kind of the model."""
        target = self.target
        kind = "a float model" if target is None else f"an integer graph for {target.name}"
        return f"Session of {kind}"

    def _list_arguments(self) -> list[tuple[str, str]]:
        """List (label, text) of the first inputs and outputs: name, type and shape."""
        facts = []
        for label, arguments in (("input", self.get_inputs()), ("output", self.get_outputs())):
            for arg in arguments[:_MAX_LISTED_ARGUMENTS]:
                sizes = ", ".join("any" if size is None else str(size) for size in arg.shape)
                facts.append((f"{label} {arg.name}", f"{arg.type} [{sizes}]"))
            if len(arguments) > _MAX_LISTED_ARGUMENTS:
                facts.append((f"{label}s", f"{len(arguments) - _MAX_LISTED_ARGUMENTS} more"))
        return facts

    @property
    def target(self) -> Target | None:
        """The platform that computes an integer graph; None for a float model."""
        return None if self._runner is None else self._options[1] or detect_target(self.model)

    @property
    def nbytes(self) -> int:
        """Bytes that an integer session keeps for tensors between inputs and outputs.

        It is 0 before the first run, and for a float model. A batch is computed in blocks, so it
        does not grow beyond one block per thread.
        """
        return 0 if self._runner is None else int(self._runner.nbytes)

    def get_inputs(self) -> list[NodeArg]:
        """Return name, shape and type of the graph inputs that are fed, as onnxruntime does.

        Inputs with a default value are left out.
        """
        return [_make_node_arg(v) for v in self.model.graph.inputs if v.const_value is None]

    def get_outputs(self) -> list[NodeArg]:
        """Return name, shape and type of the graph outputs, as onnxruntime does."""
        return [_make_node_arg(v) for v in self.model.graph.outputs]

    @property
    def floats(self) -> dict[str, str]:
        """Integer tensor at a Quant or Dequant -> the float tensor that it represents."""
        return map_to_float_names(self.model)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, ArrayLike]) -> list[np.ndarray]:
        """Run a batch and return some of its tensors.

        Parameters
        ----------
        names
            Tensors to return, of any in the graph; None for the graph outputs.
        feeds
            Arrays by input name.

        Raises
        ------
        ConfigError
            A tensor does not exist or is not available: it is internal to a fused float segment, or
            precedes the quantized input.
        """
        outputs = list(names) if names is not None else self._names
        results = self._run_directly(feeds, outputs)
        if results is None:
            results = {name: array for name, array, _ in self.taps(feeds, outputs)}
        for name in outputs:
            if name not in results:
                raise ConfigError(
                    f"tensor '{name}' is not available: it is internal to a fused float segment "
                    "without a batch axis, or precedes the quantized input; request a later tensor"
                )
        return [results[name] for name in outputs]

    def _run_directly(
        self, feeds: Mapping[str, ArrayLike], names: Sequence[str]
    ) -> dict[str, np.ndarray] | None:
        """Return the tensors `names` of an integer graph that was run on such feeds before.

        None if it was not, if feeds need a conversion, and with watches.
        """
        if self._tail is not None or self._watches or not isinstance(feeds, Mapping):
            return None
        runner = self._runner
        return runner.run_directly(feeds, names) if isinstance(runner, IntegerRunner) else None

    @accept_old_parameters("0.3", given="feeds")
    def __call__(self, feeds: Mapping[str, ArrayLike] | ArrayLike) -> np.ndarray | list[np.ndarray]:
        """Run a batch.

        Parameters
        ----------
        feeds
            Arrays by input name, or the array of a single input.

        Returns
        -------
        ndarray or list of ndarray
            The output if there is one, else a list of all outputs.

        Raises
        ------
        DataError
            An array is passed to a model with several inputs.
        """
        if not isinstance(feeds, Mapping):
            if len(self.inputs) != 1:
                raise DataError(
                    f"the model has {len(self.inputs)} inputs; use run(None, {{name: array}})"
                )
            feeds = {self.inputs[0].name: feeds}
        results = self.run(None, feeds)
        return results[0] if len(results) == 1 else results

    @contextlib.contextmanager
    def watched(self, watch: Callable[[str, np.ndarray, Affine | None], None]) -> Iterator[Session]:
        """Call `watch` with (name, array, qparams) of every tensor of every run in the block.

        qparams is None for real values. The context manager yields the session itself.
        """
        self._watches.append(watch)
        try:
            yield self
        finally:
            self._watches.remove(watch)

    def stream(
        self, state: Mapping[str, str], start: Mapping[str, np.ndarray] | None = None
    ) -> Stream:
        """Return a stream that feeds outputs back into inputs from call to call.

        Parameters
        ----------
        state
            {output: input}.
        start
            Initial values of these inputs; zeros for others.
        """
        return Stream(self, state, start)

    def taps(
        self,
        feeds: Mapping[str, ArrayLike],
        names: Sequence[str] | None = None,
        force: Mapping[str, np.ndarray] | None = None,
    ) -> Iterator[tuple[str, np.ndarray, float | Affine | None]]:
        """Yield `(name, array, scale or None)` for all tensors, or the named ones, in graph order.

        Integer tensors are yielded as integers with their scale; integer / scale is the real value.
        Float tensors have None. If the zero point is not 0, the scale is an `Affine`, by which
        integers can be divided like by a number.

        Parameters
        ----------
        feeds
            Arrays by input name.
        names
            The tensors to yield; None: all.
        force
            Arrays that the consumers of these tensors of an integer graph get instead. They must be
            among `names`; the arrays that their nodes computed are yielded.

        Raises
        ------
        DataError
            If an input is invalid, or forced integers have another type or shape than the tensor.
        ConfigError
            If a tensor name is unknown.
        """
        return (
            (name, array, held if held is None or held.shifted else held.scale)
            for name, array, held in self.tensors(feeds, names, force)
        )

    def tensors(
        self,
        feeds: Mapping[str, ArrayLike],
        names: Sequence[str] | None = None,
        force: Mapping[str, np.ndarray] | None = None,
    ) -> Tensors:
        """Yield `(name, array, qparams or None)` for all tensors, or the named ones, in order.

        `names` are the tensors to yield, None for all; `force` maps tensor names to arrays that
        their consumers get instead. Raises DataError if `feeds` is no mapping or an input is
        invalid, ConfigError for an unknown name.
        """
        if not isinstance(feeds, Mapping):
            raise DataError(f"the feeds are a {type(feeds).__name__}; pass {{name: array}}")
        inputs = self._check_fast(feeds) or self._check_feeds(feeds)
        if names is not None:
            self._check_names(names)
        if not self._watches:
            return self._tensors(inputs, names, force)
        return self._notify_watchers(self._tensors(inputs, None, force), names)

    def _notify_watchers(self, tensors: Tensors, names: Sequence[str] | None) -> Tensors:
        """Call each registered watch with every (name, array, qparams), and yield those in `names`.

        Yields all if `names` is None.
        """
        for item in tensors:
            for watch in self._watches:
                watch(*item)
            if names is None or item[0] in names:
                yield item

    def _tensors(
        self,
        inputs: Mapping[str, np.ndarray],
        names: Sequence[str] | None,
        force: Mapping[str, np.ndarray] | None,
    ) -> Tensors:
        """Run checked inputs and yield (name, array, qparams or None) of `names` (None: all).

        `force` maps tensors of an integer graph to arrays that their consumers get instead. Raises
        ConfigError if it is given for a float model.
        """
        if self._tail is not None:
            return self._run_with_tail(self._tail, inputs, names, force)
        if self._runner is not None:
            return self._runner.run(inputs, names, force)
        if force:
            raise ConfigError("tensors can be forced in integer graphs only; this one is float")
        key = None if names is None else frozenset(names)
        if key not in self._float_runners:
            self._float_runners[key] = FloatRunner(self.model, names, splits_batches=True)
        return self._float_runners[key].run(inputs)

    def _run_with_tail(
        self,
        tail: DynamicTail,
        inputs: Mapping[str, np.ndarray],
        names: Sequence[str] | None,
        force: Mapping[str, np.ndarray] | None,
    ) -> Tensors:
        """Run the integer graph, then its tail with data-dependent shapes if that is requested.

        Yields (name, array, qparams or None). `names` are the tensors to yield, None for all, the
        tail's included; `force` maps tensors, not in the tail, to arrays that their consumers get
        instead.
        """
        assert self._runner is not None  # only an integer graph has a tail
        tail_tensors = {str(v.name) for v in ir.iter_values(tail.model)} - set(tail.input_names)
        body_names = None
        if names is not None:
            body_names = list({*names, *tail.input_names} - tail_tensors)
        tail_feeds = {name: array for name, array in inputs.items() if name in tail.input_names}
        for name, array, qparams in self._runner.run(inputs, body_names, force):
            if name in tail.input_names:
                tail_feeds[name] = array
            if names is None or name in names:
                yield name, array, qparams
        tail_names = None if names is None else [name for name in names if name in tail_tensors]
        if tail_names == []:
            return
        if self._tail_runner is None:
            self._tail_runner = TailRunner(tail)
        single_sample_specs = [spec for spec in self.inputs if spec.is_single_sample]
        counts = [spec.count_samples(inputs[spec.name]) for spec in single_sample_specs]
        yield from self._tail_runner.run(tail_feeds, tail_names, max(counts, default=1))

    def _check_feeds(self, feeds: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
        """Return input name -> array, checked and converted to the inputs' types.

        Raises DataError if `feeds` do not fit the inputs.
        """
        from .data import Data

        data = Data([dict(feeds)], self.inputs, label="feeds", advice=self._suggest_stream)
        checked, _ = next(iter(data.batches(1 << 30)))
        return checked

    def _suggest_stream(self, missing: Sequence[str]) -> str:
        """Return how to feed an output back, if one has the shape of a missing input, else ""."""
        arguments = {arg.name: arg for arg in self.get_inputs()}
        shape = arguments[missing[0]].shape
        outputs = [arg.name for arg in self.get_outputs() if _may_be_equal(arg.shape, shape)]
        if not outputs:
            return ""
        pair = f'{{"{outputs[-1]}": "{missing[0]}"}}'
        return f"if it is a state, Session.stream({pair}) feeds it back from call to call"

    def _check_fast(self, feeds: Mapping[str, ArrayLike]) -> dict[str, np.ndarray] | None:
        """Return `feeds` by input name if they need no conversion.

        None if they must be checked in full. They need none if all inputs are arrays of exactly
        their type and shape, finite, with the same number of samples, and there are no others.
        """
        inputs: dict[str, np.ndarray] = {}
        counts = set()
        for spec in self.inputs:
            array = feeds.get(spec.name)
            if not isinstance(array, np.ndarray) or not _needs_no_conversion(array, spec):
                return None
            counts.add(spec.count_samples(array))
            inputs[spec.name] = array
        return inputs if len(inputs) == len(feeds) and len(counts) == 1 else None

    @cached_property
    def _tensor_names(self) -> dict[str, None]:
        """Names of all tensors, in graph order, as keys of a dict."""
        return dict.fromkeys(str(v.name) for v in ir.iter_values(self.model))

    def _check_names(self, names: Sequence[str]) -> None:
        """Raise ConfigError, with the nearest existing name, if a tensor of `names` is missing."""
        for name in names:
            if name not in self._tensor_names:
                raise ConfigError(
                    "the model has no tensor "
                    f"'{name}'{suggest_nearest(name, list(self._tensor_names))}; "
                    "a viewer such as Netron shows the names"
                )


class LoweredSession(Session):
    """A session on a graph that was lowered for a target; without integer operators, a float one.

    Names and nodes are those of lowering, and are not checked.
    """

    def __init__(
        self, graph: ir.Model, target: Target, fallback_sessions: FallbackSessionCache | None = None
    ) -> None:
        """Open `graph`, which was lowered for `target`.

        `fallback_sessions` (digest -> session) are sessions of float nodes to share and to add to.
        """
        self._open(graph, None, target if is_integer_graph(graph) else None, None)
        if isinstance(self._runner, IntegerRunner) and fallback_sessions is not None:
            self._runner.fallback_sessions = fallback_sessions

    def run_real(
        self, feed: Mapping[str, np.ndarray], names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Return {name: real values} of the tensors `names` for a batch that `Data` yielded.

        It is not checked again, and may have inputs that the graph lacks. Nothing is watched.
        """
        inputs = {spec.name: feed[spec.name] for spec in self.inputs}
        return {
            name: array if qparams is None else qparams.real(array)
            for name, array, qparams in self._tensors(inputs, names, None)
        }


def _check_float_options(**options: object) -> None:
    """Raise ConfigError if one of `options`, which apply to integer graphs only, is not None."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(
                f"{name} = '{value}' is for integer graphs; this one has no integer operator"
            )


def _may_be_equal(shape: Sequence[int | None], other: Sequence[int | None]) -> bool:
    """Whether two declared shapes may be equal; a size of None may have any value."""
    return len(shape) == len(other) > 0 and all(
        size is None or expected is None or size == expected
        for size, expected in zip(shape, other, strict=True)
    )


def _needs_no_conversion(array: np.ndarray, spec: InputSpec) -> bool:
    """Whether `array` is a valid batch of an input that takes any batch size, without conversion.

    Its type and shape must match exactly, it must not be empty, and floats must be finite.
    """
    if type(array) is not np.ndarray or array.dtype != spec.dtype or not array.size:
        return False
    if not spec.shape or not spec.accepts_any_batch or not spec.matches_shape(array.shape):
        return False
    return spec.dtype.kind != "f" or bool(np.isfinite(array).all())


def _reopen_session(
    content: bytes,
    arithmetic: str | None,
    platform: str | None,
    host: str | os.PathLike[str] | None,
) -> Session:
    """Open a session on a serialized model, in the process that unpickles it.

    `arithmetic`, `platform` and `host` are the arguments of the original session.
    """
    return Session(ir.from_bytes(content), arithmetic, platform, host)


def is_integer_graph(model: ir.Model) -> bool:
    """Whether any node of `model` is an integer operator of the quantized domains."""
    return any(is_quantized_domain(node) for node in model.graph)


def _make_node_arg(value: ir.Value) -> NodeArg:
    """Describe a graph input or output as onnxruntime does: name, shape, "tensor(TYPE)".

    An unknown type counts as float, an unknown shape as [].
    """
    short_names = {"FLOAT": "float", "DOUBLE": "double", "FLOAT16": "float16"}
    type_name = "float"
    if value.dtype is not None:
        type_name = short_names.get(value.dtype.name, value.dtype.name.lower())
    return NodeArg(str(value.name), list(ir.get_shape(value) or ()), f"tensor({type_name})")
