"""Running integer graphs: batches through compiled programs of simulator steps.

`IntegerRunner.run` yields the same stream as `runners.FloatRunner`. `bind` makes the steps, `walk`
goes through them one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.kernel import SimulatorError, TensorSpec

from ...errors import ConfigError, DataError, ModelError
from ...formats import QUANT
from ...graph import ir
from ...graph.batch_axes import find_dynamic_axis
from ...plan import Affine
from ...targets import DEFAULT, Target, get_target
from ...targets.arithmetic import QuantArithmetic
from ..runners import FallbackSessionCache, Stream, find_ancestors, get_input_specs
from .bind import Binder, BoundGraph
from .dialects import ArithmeticSide
from .walk import GraphWalk, run_program

if TYPE_CHECKING:
    from simulator.program import Program

__all__ = ["IntegerRunner", "detect_target"]

_MAX_DIRECT_PROGRAMS = (
    64  # types and shapes of feeds whose program is found without looking at the graph
)


class IntegerRunner:
    """An integer graph in the simulator; float nodes between integer ones run as float fallbacks.

    model : a graph after lowering, or a vendor's. Raises ModelError for operators and attributes it
    cannot take. arithmetic : "executor" or "training"; None is what the graph's dialect means by
    default. row : the platform; None is the one that the graph was made for.
    """

    def __init__(
        self, model: ir.Model, arithmetic: str | None = None, target: Target | None = None
    ) -> None:
        self.model = model
        self.target = detect_target(model) if target is None else target
        self.side = ArithmeticSide.resolve(model, self.target, arithmetic)
        #: Inputs of Quants to more bits than the platform's Quant can write: they are fed as integers.
        self._wide = _wide_inputs(model, self.target)
        self.inputs = [
            replace(spec, dtype=np.dtype(np.int32)) if spec.name in self._wide else spec
            for spec in get_input_specs(model)
        ]
        held = {name: ir.const_value(value) for name, value in model.graph.initializers.items()}
        self.consts = {name: array for name, array in held.items() if array is not None}
        for node in model.graph:
            if node.op_type == "Constant" and not node.domain:
                self.consts[ir.output_name(node)] = np.asarray(ir.get_attr(node, "value"))
        #: Whether some input has no batch axis, or one of a fixed size other than 1: shapes are exact. A setting beside
        #: inputs for one sample is no such case: it goes along with every sample.
        self.runs_whole_batch = any(not spec.accepts_any_batch for spec in self.inputs)
        if any(spec.is_single_sample for spec in self.inputs):
            self.runs_whole_batch = any(
                not spec.accepts_any_batch for spec in self.inputs if spec.axis is not None
            )
        #: Float tensors that have the batch at another axis, such as the last states of a recurrent layer.
        self.batch_axes = {
            str(v.name): axis for v in ir.iter_values(model) if (axis := find_dynamic_axis(v))
        }
        self.batch_axes.update({spec.name: spec.axis or 0 for spec in self.inputs})
        self._programs: dict[Any, tuple[Program, dict[str, Affine]]] = {}
        self._direct: dict[Any, _DirectProgram] = {}
        #: The float nodes that were opened in onnxruntime: programs for other shapes share them; see `FloatFallback`.
        self.fallback_sessions: FallbackSessionCache = {}
        _check_simd_settings()

    @property
    def nbytes(self) -> int:
        """Bytes held for tensors between the inputs and outputs of the runs so far."""
        return sum(program.nbytes for program, _ in self._programs.values())

    @property
    def per_sample(self) -> bool:
        """Whether in all runs so far samples may follow one another along axis 0."""
        return all(program.accepts_batches for program, _ in self._programs.values())

    @property
    def input_qparams(self) -> dict[str, Affine | None]:
        """How the Quant nodes that read an input hold it, by input.

        None where there is none, or several disagree.
        """
        found: dict[str, Affine | None] = {}
        for value in self.model.graph.inputs:
            nodes = [use.node for use in value.uses() if use.node.op_type == QUANT.name]
            quants = {QUANT.held(node) for node in nodes}
            found[str(value.name)] = quants.pop() if len(quants) == 1 else None
        return found

    def run(
        self,
        feed: Mapping[str, np.ndarray],
        keep: Collection[str] | None = None,
        force: Mapping[str, np.ndarray] | None = None,
    ) -> Stream:
        """Run a batch and yield `(name, array, how it is held or None)` in graph order.

        feed : by input name; real values, or for an input that feeds a Quant an array of its
        integer type, which is
            taken as quantized already. keep : the tensors to yield, None for all. force : tensors
            to replace by given integers (or reals), which must be kept; DataError where they do not
            fit.
        """
        given = {spec.name: np.asarray(feed[spec.name]) for spec in self.inputs}
        known = (
            tuple((array.dtype, array.shape) for array in given.values()),
            None if keep is None else tuple(keep),
        )
        if not force and (direct := self._direct.get(known)) is not None:
            for name, array in direct.program.run(
                {to: given[name] for to, name in direct.feeds.items()}
            ):
                yield name, array, direct.held.get(name)
            return
        quantized = frozenset(
            name for name, array in given.items() if self._is_quantized(name, array)
        )
        count = self._count(given)
        fed = self._program_feed(
            given if self.runs_whole_batch else self._stack_samples(given), quantized
        )
        rows = 1 if self.runs_whole_batch else count
        specs = {
            name: TensorSpec(
                (len(array) // rows, *array.shape[1:]) if array.ndim else (), array.dtype
            )
            for name, array in fed.items()
        }
        key = tuple(specs.items()), None if keep is None else frozenset(keep)
        if key not in self._programs:
            self._programs[key] = self._compile(specs, keep, quantized)
        program, held = self._programs[key]
        self._cache_direct_program(known, given, fed, program, held)
        forced = {
            name: _stack_along_axis0(array, count, self.batch_axes.get(name, 0))
            for name, array in (force or {}).items()
        }
        try:
            for name, array in run_program(program, fed, forced, count):
                yield (
                    name,
                    _unstack_samples(array, count, self.batch_axes.get(name, 0)),
                    held.get(name),
                )
        except (
            SimulatorError
        ) as error:  # the feeds were checked: what is forced has another type, shape or name
            raise DataError(str(error)) from error

    def _cache_direct_program(
        self,
        known: object,
        given: Mapping[str, np.ndarray],
        fed: Mapping[str, np.ndarray],
        program: Program,
        held: Mapping[str, Affine],
    ) -> None:
        """Note that feeds of these types and shapes go into `program` as they are, where that is so."""
        names = {id(array): name for name, array in given.items()}
        as_it_is = all(id(array) in names for array in fed.values()) and len(names) == len(given)
        plain = self.runs_whole_batch or (
            program.accepts_batches
            and not set(program.output_names) & {n for n, a in self.batch_axes.items() if a}
        )
        if as_it_is and plain and len(self._direct) < _MAX_DIRECT_PROGRAMS:
            self._direct[known] = _DirectProgram(
                program, {to: names[id(array)] for to, array in fed.items()}, held
            )

    def walk(
        self, feed: Mapping[str, np.ndarray], wanted: Collection[str] | None = None
    ) -> GraphWalk:
        """Return a `GraphWalk` on one batch of real inputs through the steps that lead to `wanted` (None: all)."""
        given = {spec.name: np.asarray(feed[spec.name]) for spec in self.inputs}
        count = self._count(given)
        given = given if self.runs_whole_batch else self._stack_samples(given)
        specs = {
            n: TensorSpec((len(a) // count, *a.shape[1:]) if a.ndim else (), a.dtype)
            for n, a in given.items()
        }
        binder = Binder(
            self.model,
            self.side,
            self.consts,
            specs,
            not self.runs_whole_batch,
            fallback_sessions=self.fallback_sessions,
        )
        binder.run(None if wanted is None else find_ancestors(self.model.graph, wanted))
        return GraphWalk(binder, given)

    def bind(self, specs: Mapping[str, TensorSpec]) -> BoundGraph:
        """Return the steps for feeds of `specs` (of one sample, batch of 1 on axis 0)."""
        binder = Binder(
            self.model,
            self.side,
            self.consts,
            specs,
            not self.runs_whole_batch,
            fallback_sessions=self.fallback_sessions,
        )
        binder.run()
        return BoundGraph(binder.steps, binder.specs, binder.held, binder.integer_names)

    def _count(self, given: Mapping[str, np.ndarray]) -> int:
        """Return the number of samples fed."""
        first = next((spec for spec in self.inputs if spec.axis is not None), None)
        return (
            1 if self.runs_whole_batch or first is None else first.count_samples(given[first.name])
        )

    def _stack_samples(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the feed with the samples of every input one after another along axis 0.

        What has none is repeated.
        """
        count, found = self._count(given), {}
        for spec in self.inputs:
            array = found[spec.name] = given[spec.name]
            if spec.axis:
                found[spec.name] = np.concatenate(
                    np.split(array, array.shape[spec.axis], spec.axis)
                )
            elif spec.axis is None and array.ndim and count > 1:
                found[spec.name] = np.concatenate([array] * count)
        return found

    def _is_quantized(self, name: str, array: np.ndarray) -> bool:
        declared = next(spec.dtype for spec in self.inputs if spec.name == name)
        if name in self._wide:
            return True
        if declared.kind != "f" or array.dtype not in (np.dtype(np.int8), np.dtype(np.int16)):
            return False
        found = self.input_qparams[name]
        if found is None:
            raise DataError(
                f"input '{name}' is {array.dtype}: it feeds no Quant, or several of different "
                "scales; give real values"
            )
        bits = 8 * array.dtype.itemsize
        if bits != (8 if found.bits <= 8 else 16):
            raise DataError(
                f"input '{name}' is {array.dtype}, its Quant writes {found.bits} bits; give that "
                "type or real values"
            )
        return True

    def _program_feed(
        self, given: Mapping[str, np.ndarray], quantized: Collection[str]
    ) -> dict[str, np.ndarray]:
        """Return the program's feed.

        For quantized inputs, the outputs of their Quants in place of the input.
        """
        feed: dict[str, np.ndarray] = {}
        for value in self.model.graph.inputs:
            name = str(value.name)
            if name not in given:
                continue
            if name not in quantized:
                feed[name] = given[name]
                continue
            held = self.input_qparams[name]
            assert held is not None
            for use in value.uses():
                if use.node.op_type == QUANT.name:
                    feed[str(use.node.outputs[0].name)] = given[name]
                else:
                    feed[name] = held.real(given[name]).astype(np.float32)
        return feed

    def _compile(
        self,
        specs: Mapping[str, TensorSpec],
        keep: Collection[str] | None,
        quantized: Collection[str],
    ) -> tuple[Program, dict[str, Affine]]:
        from simulator import program

        binder = Binder(
            self.model,
            self.side,
            self.consts,
            specs,
            not self.runs_whole_batch,
            keep,
            self.fallback_sessions,
        )
        binder.run()
        for value in self.model.graph.inputs:
            found = self.input_qparams[str(value.name)] if value.name in quantized else None
            if found is not None:
                binder.held.update({ir.output_name(use.node): found for use in value.uses()})
        wanted = None if keep is None else [name for name in keep if name in binder.specs]
        if binder.integer_names and keep is None:
            wanted = [name for name in binder.specs if name not in binder.integer_names]
        try:
            return program.compile_program(binder.steps, specs, wanted), binder.held
        except program.SimulatorError as error:
            raise ModelError(str(error)) from error


def _check_simd_settings() -> None:
    """Raise ConfigError where LINGERONNX_SIMD names no row that this processor has, or LINGERONNX_THREADS no number."""
    from simulator._threads import get_configured_threads
    from simulator.instruction_sets import get_instruction_set

    try:
        get_configured_threads()
        get_instruction_set()
    except SimulatorError as error:
        raise ConfigError(str(error)) from error


@dataclass(frozen=True)
class _DirectProgram:
    """A program that takes feeds of certain types and shapes as they are.

    Feeds: its input -> the graph's.
    """

    program: Program
    feeds: Mapping[str, str]
    held: Mapping[str, Affine]


def detect_target(model: ir.Model) -> Target:
    """Return the platform a graph was made for.

    Our metadata, else any node's `platform`, else the first chip.
    """
    name = model.metadata_props.get("lingeronnx.platform")
    if name is None:
        name = next(
            (n for node in model.graph if (n := ir.get_attr(node, "platform"))), DEFAULT.name
        )
    return get_target(str(name))


def _unstack_samples(array: np.ndarray, count: int, axis: int) -> np.ndarray:
    """Return an array whose samples, one of them at `axis` of each, came out one after another along axis 0."""
    if (
        not axis
        or count == 1
        or array.ndim <= axis
        or array.shape[axis] != 1
        or array.shape[0] % count
    ):
        return array
    return np.concatenate(np.split(array, count), axis=axis)


def _stack_along_axis0(array: np.ndarray, count: int, axis: int) -> np.ndarray:
    """Return an array whose samples lie along `axis` with one after another along axis 0.

    What `_unstack_samples` undoes.
    """
    if not axis or count == 1 or array.ndim <= axis or array.shape[axis] != count:
        return array
    return np.concatenate(np.split(array, count, axis))


def _wide_inputs(model: ir.Model, target: Target) -> set[str]:
    quantizer = target.get_arithmetic(QUANT.name, QuantArithmetic)
    widest = 32 if quantizer is None else quantizer.widest
    quants = [
        node
        for node in model.graph
        if node.op_type == QUANT.name and widest < int(ir.get_attr(node, "data_bits", 8)) <= 32
    ]
    return {ir.input_name(node) for node in quants if ir.require_input(node).is_graph_input()}
