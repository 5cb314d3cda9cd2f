"""Run integer graphs: batches through compiled programs of simulator steps.

`IntegerRunner.run` yields the same stream as `runners.FloatRunner`. `bind` creates the steps,
`walk` executes them one by one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simulator.kernel import SimulatorError, TensorSpec

from ...common.errors import ConfigError, DataError, ModelError
from ...ir import ir
from ...ir.batch_axes import guess_batch_axis
from ...ir.plan import Affine
from ...operators.integer_ops import QUANT
from ...targets import DEFAULT, Target, get_target
from ...targets.arithmetic import QuantArithmetic
from ..data import InputSpec
from ..runners import FallbackSessionCache, Stream, get_input_specs
from .bind import Binder, BoundGraph
from .dialects import ArithmeticSide
from .walk import GraphWalk, run_program

if TYPE_CHECKING:
    from simulator.program import Program

__all__ = ["IntegerRunner", "detect_target"]

_MAX_DIRECT_PROGRAMS = 64  # types and shapes of feeds whose program is cached


class IntegerRunner:
    """Runs an integer graph in the simulator; float nodes between integer ones run in onnxruntime.

    Parameters
    ----------
    model
        A graph after lowering, or of a vendor.
    arithmetic
        "executor" or "training"; None is the default of the graph's dialect.
    target
        The platform; None is the one that the graph was made for.

    Raises
    ------
    ModelError
        If operators or attributes are not supported.
    """

    def __init__(
        self, model: ir.Model, arithmetic: str | None = None, target: Target | None = None
    ) -> None:
        """Resolve platform and arithmetic, and read inputs, constants and batch axes of `model`.

        Programs are compiled when feeds of new shapes arrive. Raises ConfigError for invalid
        LINGERONNX_SIMD or LINGERONNX_THREADS.
        """
        self.model = model
        self.target = detect_target(model) if target is None else target
        self.side = ArithmeticSide.resolve(model, self.target, arithmetic)
        #: Inputs of Quants to more bits than the platform supports; they are fed as integers.
        self._wide = _find_wide_inputs(model, self.target)
        self.inputs = [
            spec._replace(dtype=np.dtype(np.int32)) if spec.name in self._wide else spec
            for spec in get_input_specs(model)
        ]
        self.consts = _collect_constants(model)
        self.runs_whole_batch = _needs_whole_batch(self.inputs)
        self.batch_axes = _find_batch_axes(model, self.inputs)
        self._programs: dict[Any, tuple[Program, dict[str, Affine]]] = {}
        self._direct: dict[Any, _DirectProgram] = {}
        #: Sessions of float nodes, which programs for other shapes share; see `FloatFallback`.
        self.fallback_sessions: FallbackSessionCache = {}
        _check_simd_settings()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors between inputs and outputs in all programs so far.

        0 before the first run.
        """
        return sum(program.nbytes for program, _ in self._programs.values())

    @property
    def per_sample(self) -> bool:
        """Whether samples could follow one another along axis 0 in all programs so far."""
        return all(program.accepts_batches for program, _ in self._programs.values())

    @property
    def input_qparams(self) -> dict[str, Affine | None]:
        """Graph input -> quantization parameters of the Quants that consume it.

        None if there are no Quants or their parameters differ.
        """
        qparams: dict[str, Affine | None] = {}
        for value in self.model.graph.inputs:
            quants = [use.node for use in value.uses() if use.node.op_type == QUANT.name]
            distinct = {QUANT.node_qparams(node) for node in quants}
            qparams[str(value.name)] = distinct.pop() if len(distinct) == 1 else None
        return qparams

    def run(
        self,
        feed: Mapping[str, np.ndarray],
        names: Collection[str] | None = None,
        force: Mapping[str, np.ndarray] | None = None,
    ) -> Stream:
        """Run a batch and yield `(name, array, qparams or None)` in graph order.

        Parameters
        ----------
        feed
            Arrays by input name: real values, or for an input of a Quant an array of its integer
            type, which is taken as already quantized.
        names
            Tensors to yield; None for all.
        force
            Arrays that the consumers of these tensors get instead; they must be in `names`. The
            arrays that their nodes computed are yielded.

        Raises
        ------
        DataError
            If forced arrays have another type or shape, or an input cannot be fed as integers.
        """
        inputs = {spec.name: np.asarray(feed[spec.name]) for spec in self.inputs}
        direct_key = _make_direct_key(inputs, names)
        direct = None if force else self._direct.get(direct_key)
        if direct is not None:
            for name, array in direct.run(inputs).items():
                yield name, array, direct.held.get(name)
            return
        quantized = frozenset(
            name for name, array in inputs.items() if self._is_quantized(name, array)
        )
        stacked, count = self._stack_samples(inputs)
        program_feed = self._make_program_feed(stacked, quantized)
        specs = _make_specs(program_feed, count)
        key = tuple(specs.items()), None if names is None else frozenset(names)
        if key not in self._programs:
            self._programs[key] = self._compile(specs, names, quantized)
        program, qparams = self._programs[key]
        self._cache_direct_program(direct_key, inputs, count, program_feed, program, qparams)
        forced = {
            name: _stack_along_axis0(array, count, self.batch_axes.get(name, 0))
            for name, array in (force or {}).items()
        }
        try:
            for name, array in run_program(program, program_feed, forced, count):
                array = _unstack_samples(array, count, self.batch_axes.get(name, 0))
                yield name, array, qparams.get(name)
        except SimulatorError as error:  # only forced arrays can be invalid: feeds were checked
            raise DataError(str(error)) from error

    def _cache_direct_program(
        self,
        key: object,
        inputs: Mapping[str, np.ndarray],
        samples: int,
        program_feed: Mapping[str, np.ndarray],
        program: Program,
        qparams: Mapping[str, Affine],
    ) -> None:
        """Cache `program` under `key` if it takes the inputs unchanged and needs no unstacking.

        `key` identifies types and shapes of the inputs. At most `_MAX_DIRECT_PROGRAMS` are cached.
        """
        names = {id(array): name for name, array in inputs.items()}
        sources = {name: names.get(id(array), "") for name, array in program_feed.items()}
        if "" in sources.values() or len(names) != len(inputs):
            return
        has_batch_first = not any(self.batch_axes.get(name) for name in program.output_names)
        is_unstacked = self.runs_whole_batch or (program.accepts_batches and has_batch_first)
        if is_unstacked and len(self._direct) < _MAX_DIRECT_PROGRAMS:
            self._direct[key] = _DirectProgram(program, sources, qparams, samples)

    def run_directly(
        self, feeds: Mapping[str, ArrayLike], names: Sequence[str]
    ) -> dict[str, np.ndarray] | None:
        """Return the tensors `names` if a program for such feeds is known, else None.

        Feeds are checked only for what an earlier `run` with the same shapes and types did not:
        they must be plain arrays, and finite.
        """
        inputs: dict[str, np.ndarray] = {}
        for spec in self.inputs:
            array = feeds.get(spec.name)
            if type(array) is not np.ndarray or not _is_surely_finite(array):
                return None
            inputs[spec.name] = array
        direct = self._direct.get(_make_direct_key(inputs, names))
        return None if direct is None or len(feeds) != len(inputs) else direct.run(inputs)

    def walk(
        self, feed: Mapping[str, np.ndarray], outputs: Collection[str] | None = None
    ) -> GraphWalk:
        """Return an iterator over the steps of the graph on one batch of real inputs.

        Nothing is computed yet; each step runs when it is requested, on the complete batch.
        `outputs` are the tensors to compute, with all tensors upstream; None for all.
        """
        inputs = {spec.name: np.asarray(feed[spec.name]) for spec in self.inputs}
        stacked, count = self._stack_samples(inputs)
        binder = self._make_binder(_make_specs(stacked, count))
        binder.run(None if outputs is None else ir.find_ancestors(self.model.graph, outputs))
        return GraphWalk(binder, stacked)

    def bind(
        self, specs: Mapping[str, TensorSpec], nodes: Sequence[ir.Node] | None = None
    ) -> BoundGraph:
        """Return the simulator steps for feeds of `specs`, without running them.

        A spec is the shape and type of one sample, with a batch axis 0 of size 1. With `nodes`,
        only those are converted, and `specs` has what they read. Raises ModelError for nodes that
        are not supported.
        """
        binder = self._make_binder(specs)
        binder.run(nodes)
        return BoundGraph(binder.steps, binder.specs, binder.held, binder.integer_names)

    def _make_binder(
        self, specs: Mapping[str, TensorSpec], keep: Collection[str] | None = ()
    ) -> Binder:
        """Make a binder of this graph for feeds of `specs` (input -> shape and type of one sample).

        `keep` are inner tensors of float nodes to keep besides outputs, None for all.
        """
        return Binder(
            self.model,
            self.side,
            self.consts,
            specs,
            not self.runs_whole_batch,
            keep,
            self.fallback_sessions,
        )

    def _stack_samples(
        self, inputs: Mapping[str, np.ndarray]
    ) -> tuple[Mapping[str, np.ndarray], int]:
        """Return the inputs with their samples one after another along axis 0, and their number.

        The number is that of the first input with a batch axis, or 1 without one. Inputs without
        samples are repeated for each sample. If the batch must run as a whole, it counts as one
        sample.
        """
        if self.runs_whole_batch:
            return inputs, 1
        counts = [s.count_samples(inputs[s.name]) for s in self.inputs if s.axis is not None]
        count, stacked = counts[0] if counts else 1, {}
        for spec in self.inputs:
            array = inputs[spec.name]
            if spec.axis:
                array = np.concatenate(np.split(array, array.shape[spec.axis], spec.axis))
            elif spec.axis is None and array.ndim and count > 1:
                array = np.concatenate([array] * count)
            stacked[spec.name] = array
        return stacked, count

    def _is_quantized(self, name: str, array: np.ndarray) -> bool:
        """Whether `array` feeds input `name` with the integers of its Quant, not with real values.

        Raises
        ------
        DataError
            If it is an int8 or int16 array for a float input, but matches no single Quant.
        """
        expected_dtype = next(spec.dtype for spec in self.inputs if spec.name == name)
        if name in self._wide:
            return True
        if expected_dtype.kind != "f" or array.dtype not in (np.dtype(np.int8), np.dtype(np.int16)):
            return False
        qparams = self.input_qparams[name]
        if qparams is None:
            raise DataError(
                f"input '{name}' is {array.dtype}: it feeds no Quant, or several of different "
                "scales; pass real values"
            )
        bits = 8 * array.dtype.itemsize
        if bits != (8 if qparams.bits <= 8 else 16):
            raise DataError(
                f"input '{name}' is {array.dtype}, its Quant writes {qparams.bits} bits; pass that "
                "type or real values"
            )
        return True

    def _make_program_feed(
        self, inputs: Mapping[str, np.ndarray], quantized: Collection[str]
    ) -> dict[str, np.ndarray]:
        """Return a program's feed by tensor: outputs of Quants replace the inputs in `quantized`.

        Such an input is fed real values as well if nodes other than Quants read it. Inputs of the
        model that are not in `inputs` are left out.
        """
        feed: dict[str, np.ndarray] = {}
        for value in self.model.graph.inputs:
            name = str(value.name)
            if name not in inputs:
                continue
            if name not in quantized:
                feed[name] = inputs[name]
                continue
            qparams = self.input_qparams[name]
            assert qparams is not None
            for use in value.uses():
                if use.node.op_type == QUANT.name:
                    feed[str(use.node.outputs[0].name)] = inputs[name]
                else:
                    feed[name] = qparams.real(inputs[name]).astype(np.float32)
        return feed

    def _compile(
        self,
        specs: Mapping[str, TensorSpec],
        names: Collection[str] | None,
        quantized: Collection[str],
    ) -> tuple[Program, dict[str, Affine]]:
        """Compile a program for feeds of `specs`; return it with the qparams of integer tensors.

        `names` are the tensors to yield, None for all; `quantized` the inputs that are fed
        integers. Raises ModelError if the simulator does not support a step.
        """
        from simulator import program

        binder = self._make_binder(specs, names)
        binder.run()
        for value in self.model.graph.inputs:
            qparams = self.input_qparams[str(value.name)] if value.name in quantized else None
            if qparams is not None:
                binder.held.update({ir.output_name(use.node): qparams for use in value.uses()})
        outputs = _select_outputs(binder, names)
        try:
            return program.compile_program(binder.steps, specs, outputs), binder.held
        except program.SimulatorError as error:
            raise ModelError(str(error)) from error


def _select_outputs(binder: Binder, names: Collection[str] | None) -> list[str] | None:
    """Return the names of the tensors that a program outputs: those of `names` that it has.

    For None, all tensors that the graph has (not integers before a dequantization that the graph
    lacks); the result None means all tensors of the program.
    """
    if names is not None:
        return [name for name in names if name in binder.specs]
    if binder.integer_names:
        return [name for name in binder.specs if name not in binder.integer_names]
    return None


def _needs_whole_batch(specs: Sequence[InputSpec]) -> bool:
    """Whether a batch must run as a whole, because an input fixes its size to more than 1.

    An input without samples has that effect as well, unless the model is for single samples: then
    it is repeated for each sample.
    """
    if any(spec.is_single_sample for spec in specs):
        specs = [spec for spec in specs if spec.axis is not None]
    return any(not spec.accepts_any_batch for spec in specs)


def _find_batch_axes(model: ir.Model, specs: Sequence[InputSpec]) -> dict[str, int]:
    """Return tensor name -> batch axis, for tensors where it is not 0, and for all inputs.

    An input without a batch axis gets 0.
    """
    batch_axes = {}
    for value in ir.iter_values(model):
        if axis := guess_batch_axis(value):
            batch_axes[str(value.name)] = axis
    batch_axes.update({spec.name: spec.axis or 0 for spec in specs})
    return batch_axes


def _make_specs(feed: Mapping[str, np.ndarray], count: int) -> dict[str, TensorSpec]:
    """Return tensor name -> spec of one sample, for arrays of `count` samples along axis 0.

    A sample has 1 / `count` of axis 0; scalars keep their shape.
    """
    specs = {}
    for name, array in feed.items():
        shape = (len(array) // count, *array.shape[1:]) if array.ndim else ()
        specs[name] = TensorSpec(shape, array.dtype)
    return specs


def _collect_constants(model: ir.Model) -> dict[str, np.ndarray]:
    """Return initializers and outputs of Constant nodes of `model` by name.

    A graph input with a default value is not a constant.
    """
    constants = {}
    for name, value in model.graph.initializers.items():
        array = ir.const_value(value)
        if array is not None:
            constants[name] = array
    for node in model.graph:
        if node.op_type == "Constant" and not node.domain:
            constants[ir.output_name(node)] = np.asarray(ir.get_attr(node, "value"))
    return constants


def _check_simd_settings() -> None:
    """Raise ConfigError if LINGERONNX_SIMD or LINGERONNX_THREADS is invalid for this processor."""
    from simulator._threads import get_configured_threads
    from simulator.instruction_sets import get_instruction_set

    try:
        get_configured_threads()
        get_instruction_set()
    except SimulatorError as error:
        raise ConfigError(str(error)) from error


class _DirectProgram(NamedTuple):
    """A program that takes feeds of certain types and shapes unchanged.

    feeds : {input of the program: input of the graph}. held : qparams of integer tensors. samples :
    number of samples in the feeds.
    """

    program: Program
    feeds: Mapping[str, str]
    held: Mapping[str, Affine]
    samples: int

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the program's outputs for arrays by name of the graph's inputs."""
        feed = {name: inputs[source] for name, source in self.feeds.items()}
        return self.program.run_checked(feed, self.samples)


def _make_direct_key(inputs: Mapping[str, np.ndarray], names: Collection[str] | None) -> object:
    """Return the key of a direct program: types and shapes of the inputs, and the outputs."""
    signature = tuple((array.dtype, array.shape) for array in inputs.values())
    return signature, None if names is None else tuple(names)


def _is_surely_finite(array: np.ndarray) -> bool:
    """Whether no element is infinite or NaN; False if that is not known without a closer look.

    The sum of squares is infinite or NaN if an element is, and may be infinite without one.
    """
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        return array.dtype.itemsize >= 4 and math.isfinite(flat.dot(flat))


def detect_target(model: ir.Model) -> Target:
    """Return the platform that a graph was made for.

    Its name is in the metadata, or else in a node's `platform`; the default is the first chip.
    Raises ConfigError for an unknown name.
    """
    name = model.metadata_props.get("lingeronnx.platform")
    if name is None:
        node_platforms = (ir.get_attr(node, "platform") for node in model.graph)
        name = next((platform for platform in node_platforms if platform), DEFAULT.name)
    return get_target(str(name))


def _unstack_samples(array: np.ndarray, count: int, axis: int) -> np.ndarray:
    """Move `count` samples that are stacked along axis 0 to their batch axis `axis`.

    An array that is not stacked so is returned unchanged.
    """
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
    """Return `array`, whose `count` samples lie along `axis`, with the samples along axis 0.

    Unchanged if `axis` is 0, `count` 1, or the array has another size there.
    """
    if not axis or count == 1 or array.ndim <= axis or array.shape[axis] != count:
        return array
    return np.concatenate(np.split(array, count, axis))


def _find_wide_inputs(model: ir.Model, target: Target) -> set[str]:
    """Return the graph inputs of Quants to more bits than the target's Quant can write, up to 32.

    They are fed as int32. Without a known Quant on the target there are none.
    """
    arithmetic = target.find_arithmetic(QUANT.name)
    max_bits = arithmetic.max_bits if isinstance(arithmetic, QuantArithmetic) else 32
    inputs = set()
    for node in model.graph:
        if node.op_type != QUANT.name:
            continue
        is_wide = max_bits < int(ir.get_attr(node, "data_bits", 8)) <= 32
        if is_wide and ir.require_input(node).is_graph_input():
            inputs.add(ir.input_name(node))
    return inputs
