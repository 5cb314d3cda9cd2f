"""Session: an ONNX file, integer or float, with the face of onnxruntime's InferenceSession.

Integer graphs run in the simulator, bit for bit as the chip; float graphs in onnxruntime. Any batch
size.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ConfigError, DataError, suggest_nearest
from ..formats import is_quantized_domain
from ..formats.node_validation import check_nodes
from ..graph import ir
from ..graph.dynamic_tail import DynamicTail, split_dynamic_tail
from ..graph.name_mapping import restore_user_names
from ..plan import Affine
from ..targets import PLATFORMS, Target, get_target
from .compiled_host import CompiledHost
from .data import InputSpec
from .float_names import map_to_float_names
from .integer.runner import IntegerRunner, detect_target
from .parts_runner import PartsRunner
from .program_parts import split_into_parts
from .runners import FallbackSessionCache, FloatRunner, get_input_specs
from .runners import Stream as Tensors
from .runners.tail_runner import TailRunner
from .streaming import Stream

__all__ = ["NodeArg", "Session", "open_lowered_session"]


@dataclass(frozen=True)
class NodeArg:
    """A graph input or output.

    Name, shape (None where any size goes) and type, as in onnxruntime.
    """

    name: str
    shape: list[int | None]
    type: str


class Session:
    """Runs a model, integer or float; used like onnxruntime's InferenceSession.

    Float outputs are real values, integer outputs integers. An input that feeds a Quant takes real
    values, or an array of the Quant's integer type, which is taken as quantized already. If a
    file's tensors were renamed for a chip's packer, the user's own names are used here.

    Parameters
    ----------
    path
        A file, a graph in memory, or what `quantize` returned.
    arithmetic
        Whose integers are computed: "executor" (the chip's) or "training" (those of the software
        that the network was trained with). None takes the training side's for graphs of domain
        `linger`, and the executor's for all others.
    platform
        The platform that computes an integer graph, by name or as a `Target` of your own; None: the
        one that the graph was made for.
    host
        A folder that `deploy` wrote from this graph: its own C computes the float parts, compiled
        here, so that every integer is the program's. One sample after another.

    Raises
    ------
    ModelError
        Where the training side's arithmetic is not known.
    ConfigError
        For another word.
    """

    def __init__(
        self,
        path: ir.ModelLike,
        arithmetic: str | None = None,
        platform: str | Target | None = None,
        host: str | os.PathLike[str] | None = None,
    ) -> None:
        self.model = restore_user_names(ir.as_model(path))
        self.is_integer = is_integer_graph(self.model)
        for what, given in (("arithmetic", arithmetic), ("platform", platform), ("host", host)):
            if not self.is_integer and given is not None:
                raise ConfigError(
                    f"{what} = '{given}' is for integer graphs; this one has no integer operator"
                )
        if self.is_integer:
            check_nodes(self.model)
        row = None if platform is None else get_target(platform)
        self._given = arithmetic, row, host
        self._names = [str(v.name) for v in self.model.graph.outputs]
        self._tail = split_dynamic_tail(self.model) if self.is_integer and host is None else None
        body = self.model if self._tail is None else self._tail.body
        self._runner: IntegerRunner | PartsRunner | None = None
        if self.is_integer and host is None:
            self._runner = IntegerRunner(body, arithmetic, row)
        elif self.is_integer and host is not None:
            parts = split_into_parts(self.model, row or detect_target(self.model))
            self._runner = PartsRunner(parts, arithmetic, row, CompiledHost(host))
        self.inputs: list[InputSpec] = (
            self._runner.inputs if self._runner is not None else get_input_specs(self.model)
        )
        self._float: dict[frozenset[str] | None, FloatRunner] = {}
        self._behind: TailRunner | None = None
        self._watches: list[Callable[[str, np.ndarray, Affine | None], None]] = []

    def __reduce__(self) -> tuple[object, ...]:
        """Say how the session is opened again in another process.

        ConfigError for what cannot be sent there.
        """
        arithmetic, row, host = self._given
        if row is not None and row not in PLATFORMS:
            raise ConfigError(
                f"the session is for {row.name}, a platform of your own, and cannot be sent "
                "elsewhere; "
                "leave workers and cluster out"
            )
        return _reopen_session, (
            ir.to_bytes(self.model),
            arithmetic,
            None if row is None else row.name,
            host,
        )

    @property
    def nbytes(self) -> int:
        """Bytes that an integer session holds for tensors between inputs and outputs.

        0 before the first run.
        A batch is computed in blocks, so that this does not grow with it beyond a block for each
        thread.
        """
        return 0 if self._runner is None else int(self._runner.nbytes)

    def get_inputs(self) -> list[NodeArg]:
        """Return the graph inputs."""
        return [_make_node_arg(v) for v in self.model.graph.inputs if v.const_value is None]

    def get_outputs(self) -> list[NodeArg]:
        """Return the graph outputs."""
        return [_make_node_arg(v) for v in self.model.graph.outputs]

    @property
    def floats(self) -> dict[str, str]:
        """{integer tensor: the float tensor whose values it holds}, of those that meet a Quant or a Dequant."""
        return map_to_float_names(self.model)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, ArrayLike]) -> list[np.ndarray]:
        """Return the tensors `names` (None: the graph outputs) for a batch.

        Any tensor of the graph may be named.
        """
        wanted = list(names) if names is not None else self._names
        results = {name: array for name, array, _ in self.taps(feeds, wanted)}
        if lost := [name for name in wanted if name not in results]:
            raise ConfigError(
                f"tensor '{lost[0]}' is not computed by itself: it lies between float nodes that "
                "run "
                "as one and has no batch axis, or before the quantized input that was fed; take "
                "one behind it"
            )
        return [results[name] for name in wanted]

    def __call__(self, given: Mapping[str, ArrayLike] | ArrayLike) -> np.ndarray | list[np.ndarray]:
        """Run a batch: feeds by input name, or the array of a single input.

        Return the output itself where there is one, else a list.
        """
        if not isinstance(given, Mapping):
            if len(self.inputs) != 1:
                raise DataError(
                    f"the model has {len(self.inputs)} inputs; use run(None, {{name: array}})"
                )
            given = {self.inputs[0].name: given}
        results = self.run(None, given)
        return results[0] if len(results) == 1 else results

    @contextlib.contextmanager
    def watched(self, watch: Callable[[str, np.ndarray, Affine | None], None]) -> Iterator[Session]:
        """Call `watch` with every tensor of every run in the block, as `tensors` yields them."""
        self._watches.append(watch)
        try:
            yield self
        finally:
            self._watches.remove(watch)

    def stream(
        self, state: Mapping[str, str], start: Mapping[str, np.ndarray] | None = None
    ) -> Stream:
        """Return a face of this session that feeds outputs back into inputs from call to call, as `state` says.

        state : {output: input}. start : values of these inputs to begin with; zeros for the others.
        """
        return Stream(self, state, start)

    def taps(
        self,
        feeds: Mapping[str, ArrayLike],
        names: Sequence[str] | None = None,
        force: Mapping[str, np.ndarray] | None = None,
    ) -> Iterator[tuple[str, np.ndarray, float | Affine | None]]:
        """Yield `(name, array, scale or None)` for all tensors, or the named ones, in graph order.

        Integer tensors come as integers with their scale (counts per real unit), float ones with
        None; integers over the scale are real values. Where another integer than 0 stands for 0 the
        scale is an `Affine`, by which integers are divided as by a number.

        Parameters
        ----------
        feeds
            Arrays by input name.
        names
            The tensors to yield; None: all.
        force
            Tensors of an integer graph, among those named, that all their readers find as given
            here. What is yielded is still what their own node computed.

        Raises
        ------
        DataError
            For a wrong input, and for forced integers of another type or shape than the tensor's.
        ConfigError
            For an unknown tensor name.
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
        """Yield `(name, array, how it is held or None)`, otherwise as `taps`."""
        if not isinstance(feeds, Mapping):
            raise DataError(f"the feeds are a {type(feeds).__name__}; give {{name: array}}")
        given = self._check_fast(feeds) or self._check_feeds(feeds)
        if names is not None:
            self._check_names(names)
        if not self._watches:
            return self._tensors(given, names, force)
        return self._notify_watchers(self._tensors(given, None, force), names)

    def _notify_watchers(self, tensors: Tensors, names: Sequence[str] | None) -> Tensors:
        """Show every tensor to those who watch, and yield the named ones."""
        for item in tensors:
            for watch in self._watches:
                watch(*item)
            if names is None or item[0] in names:
                yield item

    def _tensors(
        self,
        given: Mapping[str, np.ndarray],
        names: Sequence[str] | None,
        force: Mapping[str, np.ndarray] | None,
    ) -> Tensors:
        """Run feeds that were checked, and yield the tensors."""
        if self._tail is not None:
            return self._with_tail(self._tail, given, names, force)
        if self._runner is not None:
            return self._runner.run(given, names, force)
        if force:
            raise ConfigError("tensors can be forced in integer graphs only; this one is float")
        key = None if names is None else frozenset(names)
        if key not in self._float:
            self._float[key] = FloatRunner(self.model, names)
        return self._float[key].run(given)

    def _with_tail(
        self,
        tail: DynamicTail,
        given: Mapping[str, np.ndarray],
        names: Sequence[str] | None,
        force: Mapping[str, np.ndarray] | None,
    ) -> Tensors:
        """Run what has sizes that the data decide behind the rest, sample by sample where it is made for one."""
        inner = {str(v.name) for v in ir.iter_values(tail.model)} - set(tail.input_names)
        wanted = (
            None
            if names is None
            else {*(name for name in names if name not in inner), *tail.input_names}
        )
        feeds = {name: array for name, array in given.items() if name in tail.input_names}
        assert self._runner is not None  # only an integer graph has a tail
        for name, array, scale in self._runner.run(
            given, None if wanted is None else list(wanted), force
        ):
            if name in tail.input_names:
                feeds[name] = array
            if names is None or name in names:
                yield name, array, scale
        if names is None or inner.intersection(names):
            if self._behind is None:
                self._behind = TailRunner(tail)
            samples = max(
                (
                    spec.count_samples(given[spec.name])
                    for spec in self.inputs
                    if spec.is_single_sample
                ),
                default=1,
            )
            yield from self._behind.run(
                feeds, None if names is None else [n for n in names if n in inner], samples
            )

    def _check_feeds(self, feeds: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
        from .data import Data

        return next(iter(Data([dict(feeds)], self.inputs, what="feeds").batches(1 << 30)))[0]

    def _check_fast(self, feeds: Mapping[str, ArrayLike]) -> dict[str, np.ndarray] | None:
        """Return feeds that need no conversion, checked as `Data` checks them.

        None: let `Data` look closer.
        """
        given: dict[str, np.ndarray] = {}
        counts = set()
        for spec in self.inputs:
            array = feeds.get(spec.name)
            if (
                type(array) is not np.ndarray
                or array.dtype != spec.dtype
                or not spec.shape
                or not array.size
            ):
                return None
            shape, want, axis = array.shape, spec.shape, spec.axis
            if axis is None or not spec.accepts_any_batch or len(shape) != len(want):
                return None
            if any(
                w not in (None, h)
                for i, (h, w) in enumerate(zip(shape, want, strict=True))
                if i != axis
            ):
                return None
            if spec.dtype.kind == "f" and not np.isfinite(array).all():
                return None
            counts.add(shape[axis])
            given[spec.name] = array
        return given if len(given) == len(feeds) and len(counts) == 1 else None

    @cached_property
    def _tensor_names(self) -> dict[str, None]:
        """The names of all tensors, in graph order."""
        return dict.fromkeys(str(v.name) for v in ir.iter_values(self.model))

    def _check_names(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._tensor_names:
                raise ConfigError(
                    "the model has no tensor "
                    f"'{name}'{suggest_nearest(name, list(self._tensor_names))}; "
                    "a viewer such as Netron shows the names"
                )


def open_lowered_session(
    graph: ir.Model, target: Target, fallback_sessions: FallbackSessionCache | None = None
) -> Session:
    """Return a session on what was lowered for `target`.

    A graph in which nothing is an integer is of no platform.
    fallback_sessions : the host's parts that were opened before, to be taken again, and to be added
    to; see `FloatFallback`.
    """
    session = Session(graph, platform=target if is_integer_graph(graph) else None)
    if isinstance(session._runner, IntegerRunner) and fallback_sessions is not None:
        session._runner.fallback_sessions = fallback_sessions
    return session


def _reopen_session(
    content: bytes,
    arithmetic: str | None,
    platform: str | None,
    host: str | os.PathLike[str] | None,
) -> Session:
    """Open a session on what `ir.to_bytes` wrote."""
    return Session(ir.from_bytes(content), arithmetic, platform, host)


def is_integer_graph(model: ir.Model) -> bool:
    """Whether any node of `model` is an integer operator of the quantized dialects."""
    return any(is_quantized_domain(node) for node in model.graph)


def _make_node_arg(value: ir.Value) -> NodeArg:
    kinds = {"FLOAT": "float", "DOUBLE": "double", "FLOAT16": "float16"}
    kind = "float" if value.dtype is None else kinds.get(value.dtype.name, value.dtype.name.lower())
    return NodeArg(str(value.name), list(ir.get_shape(value) or ()), f"tensor({kind})")
