"""Running integer graphs: nodes bound to simulator steps, batches through compiled programs, walks step by step.

`IntRunner.run` yields the same stream as `runners.FloatRunner`. Float nodes between integer ones become steps too
(`runners.FloatIsland`). Knows operators only through `ops`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.kernel import Call, MachineError, Spec

from ..errors import ConfigError, DataError, ModelError
from ..formats import QUANT, Bound, Format, attributes, is_quantized_domain, known_format, other_zero
from ..graph import ir
from ..graph.batch_axes import open_axis
from ..plan import real, zero_of
from ..platforms import GENERIC, Platform, platform
from ..platforms.arithmetic import Quantizer
from .generations import Side
from .runners import FloatIsland, Stream, input_specs, reads

__all__ = ["IntRunner", "Steps", "Walk", "WalkStep", "row_of", "sizes"]


_SHAPES = 64  # types and shapes of feeds whose program is found without looking at the graph


class IntRunner:
    """An integer graph in the simulator; float nodes between integer ones run as islands.

    model : a graph after lowering, or a vendor's. Raises ModelError for operators and attributes it cannot take.
    arithmetic : "executor" or "training"; None is what the graph's generation means by default.
    row : the platform; None is the one that the graph was made for.
    """

    def __init__(self, model: ir.Graph, arithmetic: str | None = None, row: Platform | None = None) -> None:
        self.model = model
        self.row = row_of(model) if row is None else row
        self.side = Side.of(model, self.row, arithmetic)
        #: Inputs of Quants to more bits than the platform's Quant can write: they are fed as integers.
        self._wide = _wide_inputs(model, self.row)
        self.inputs = [
            replace(spec, dtype=np.dtype(np.int32)) if spec.name in self._wide else spec for spec in input_specs(model)
        ]
        self._consts = {name: ir.const(value) for name, value in model.graph.initializers.items()}
        for node in model.graph:
            if node.op_type == "Constant" and not node.domain:
                self._consts[ir.written_name(node)] = np.asarray(ir.attr(node, "value"))
        #: Whether some input has no batch axis, or one of a fixed size other than 1: shapes are exact.
        self.whole = any(not spec.batched for spec in self.inputs)
        #: Float tensors that have the batch at another axis, such as the last states of a recurrent layer.
        self.batch_axes = {str(v.name): axis for v in ir.values(model) if (axis := open_axis(v))}
        self.batch_axes.update({spec.name: spec.axis or 0 for spec in self.inputs})
        self._programs: dict[Any, tuple[Any, dict[str, float]]] = {}
        self._direct: dict[Any, _Direct] = {}
        _check_row()

    @property
    def nbytes(self) -> int:
        """Bytes held for tensors between the inputs and outputs of the runs so far."""
        return sum(program.nbytes for program, _ in self._programs.values())

    @property
    def input_scales(self) -> dict[str, tuple[float, int] | None]:
        """(scale, bits) by input of the Quant nodes that read it; None where there is none, or several disagree.

        The scale knows its zero point.
        """
        found: dict[str, tuple[float, int] | None] = {}
        for value in self.model.graph.inputs:
            nodes = [use.node for use in value.uses() if use.node.op_type == QUANT.name]
            quants = [(QUANT.scale(node), int(ir.attr(node, "data_bits", 8))) for node in nodes]
            alike = len({(float(scale), zero_of(scale), bits) for scale, bits in quants}) == 1
            found[str(value.name)] = quants[0] if alike else None
        return found

    def run(
        self,
        feed: Mapping[str, np.ndarray],
        keep: Collection[str] | None = None,
        force: Mapping[str, np.ndarray] | None = None,
    ) -> Stream:
        """Run a batch and yield `(name, array, scale or None)` in graph order.

        feed : by input name; real values, or for an input that feeds a Quant an array of its integer type, which is
            taken as quantized already. keep : the tensors to yield, None for all. force : tensors to replace by given
            integers (or reals), which must be kept.
        """
        given = {spec.name: np.asarray(feed[spec.name]) for spec in self.inputs}
        known = tuple((array.dtype, array.shape) for array in given.values()), None if keep is None else tuple(keep)
        if not force and (direct := self._direct.get(known)) is not None:
            for name, array in direct.program.run({to: given[name] for to, name in direct.feeds.items()}):
                yield name, array, direct.scales.get(name)
            return
        quantized = frozenset(name for name, array in given.items() if self._is_quantized(name, array))
        count = self._count(given)
        fed = self._fed(given if self.whole else self._stacked(given), quantized)
        rows = 1 if self.whole else count
        specs = {
            name: Spec((len(array) // rows, *array.shape[1:]) if array.ndim else (), array.dtype)
            for name, array in fed.items()
        }
        key = tuple(specs.items()), None if keep is None else frozenset(keep)
        if key not in self._programs:
            self._programs[key] = self._compile(specs, keep, quantized)
        program, scales = self._programs[key]
        self._remember(known, given, fed, program, scales)
        forced = {name: _in_rows(array, count, self.batch_axes.get(name, 0)) for name, array in (force or {}).items()}
        for name, array in _run_program(program, fed, forced, count):
            yield name, _batched(array, count, self.batch_axes.get(name, 0)), scales.get(name)

    def _remember(
        self,
        known: Any,
        given: Mapping[str, np.ndarray],
        fed: Mapping[str, np.ndarray],
        program: Any,
        scales: Mapping[str, float],
    ) -> None:
        """Note that feeds of these types and shapes go into `program` as they are, where that is so."""
        names = {id(array): name for name, array in given.items()}
        as_it_is = all(id(array) in names for array in fed.values()) and len(names) == len(given)
        plain = self.whole or (
            program.per_sample and not set(program.names) & {n for n, a in self.batch_axes.items() if a}
        )
        if as_it_is and plain and len(self._direct) < _SHAPES:
            self._direct[known] = _Direct(program, {to: names[id(array)] for to, array in fed.items()}, scales)

    def walk(self, feed: Mapping[str, np.ndarray], wanted: Collection[str] | None = None) -> Walk:
        """Return a walk on one batch of real inputs through the steps that lead to `wanted` (None: all); see `Walk`."""
        given = {spec.name: np.asarray(feed[spec.name]) for spec in self.inputs}
        count = self._count(given)
        given = given if self.whole else self._stacked(given)
        specs = {n: Spec((len(a) // count, *a.shape[1:]) if a.ndim else (), a.dtype) for n, a in given.items()}
        binder = _Binder(self.model, self.side, self._consts, specs, not self.whole)
        binder.run(None if wanted is None else self._leading_to(wanted))
        return Walk(binder, given)

    def _leading_to(self, wanted: Collection[str]) -> list[ir.Node]:
        """Return the nodes that the tensors `wanted` depend on, in graph order."""
        needed, found = set(wanted), []
        for node in reversed(list(self.model.graph)):
            if any(value.name in needed for value in node.outputs):
                found.append(node)
                needed.update(str(value.name) for value in reads(node) if value is not None)
        return found[::-1]

    def bind(self, specs: Mapping[str, Spec]) -> Steps:
        """Return the steps for feeds of `specs` (of one sample, batch of 1 on axis 0)."""
        binder = _Binder(self.model, self.side, self._consts, specs, not self.whole)
        binder.run()
        return Steps(binder.steps, binder.specs, binder.scales, binder.inner)

    def _count(self, given: Mapping[str, np.ndarray]) -> int:
        """Return the number of samples fed."""
        first = next(iter(self.inputs), None)
        return 1 if self.whole or first is None else first.count(given[first.name])

    def _stacked(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the feed with the samples of every input one after another along axis 0."""
        return {
            spec.name: np.concatenate(np.split(given[spec.name], given[spec.name].shape[spec.axis], spec.axis))
            if spec.axis
            else given[spec.name]
            for spec in self.inputs
        }

    def _is_quantized(self, name: str, array: np.ndarray) -> bool:
        declared = next(spec.dtype for spec in self.inputs if spec.name == name)
        if name in self._wide:
            return True
        if declared.kind != "f" or array.dtype not in (np.dtype(np.int8), np.dtype(np.int16)):
            return False
        found = self.input_scales[name]
        if found is None:
            raise DataError(
                f"input '{name}' is {array.dtype}: it feeds no Quant, or several of different scales; give real values"
            )
        bits = 8 * array.dtype.itemsize
        if bits != (8 if found[1] <= 8 else 16):
            raise DataError(
                f"input '{name}' is {array.dtype}, its Quant writes {found[1]} bits; give that type or real values"
            )
        return True

    def _fed(self, given: Mapping[str, np.ndarray], quantized: Collection[str]) -> dict[str, np.ndarray]:
        """Return the program's feed: for quantized inputs, the outputs of their Quants in place of the input."""
        feed: dict[str, np.ndarray] = {}
        for value in self.model.graph.inputs:
            name = str(value.name)
            if name not in given:
                continue
            if name not in quantized:
                feed[name] = given[name]
                continue
            scale, _ = self.input_scales[name]  # type: ignore[misc]
            for use in value.uses():
                if use.node.op_type == QUANT.name:
                    feed[str(use.node.outputs[0].name)] = given[name]
                else:
                    feed[name] = real(given[name], scale).astype(np.float32)
        return feed

    def _compile(
        self, specs: Mapping[str, Spec], keep: Collection[str] | None, quantized: Collection[str]
    ) -> tuple[Any, dict[str, float]]:
        from simulator import machine

        binder = _Binder(self.model, self.side, self._consts, specs, not self.whole, keep)
        binder.run()
        for value in self.model.graph.inputs:
            found = self.input_scales[str(value.name)] if value.name in quantized else None
            if found is not None:
                binder.scales.update({ir.written_name(use.node): found[0] for use in value.uses()})
        wanted = None if keep is None else [name for name in keep if name in binder.specs]
        if binder.inner and keep is None:
            wanted = [name for name in binder.specs if name not in binder.inner]
        try:
            return machine.compile(binder.steps, specs, wanted), binder.scales
        except machine.MachineError as error:
            raise ModelError(str(error)) from error


def _check_row() -> None:
    """Raise ConfigError where LINGERONNX_SIMD names no row of instructions that this processor has."""
    from simulator.rows import row

    try:
        row()
    except MachineError as error:
        raise ConfigError(str(error)) from error


@dataclass(frozen=True)
class _Direct:
    """A program that takes feeds of certain types and shapes as they are; feeds: its input -> the graph's."""

    program: Any
    feeds: Mapping[str, str]
    scales: Mapping[str, float]


@dataclass(frozen=True)
class Steps:
    """The steps of a graph, and of every tensor its type, of the integer ones their scale.

    inner : {tensor that the graph does not have: the float tensor of the graph whose integers it holds}
    """

    steps: Sequence[Call]
    specs: Mapping[str, Spec]
    scales: Mapping[str, float]
    inner: Mapping[str, str]


@dataclass
class WalkStep:
    """One step of a walk: the tensor it writes, the kernel that computed it, what it read and wrote (whole batch).

    Where a node writes floats, two steps have its output: that with the integers, and their Dequant.
    """

    output: str
    kernel: Any
    inputs: list[np.ndarray]
    array: np.ndarray


class Walk:
    """Runs a graph step by step over one batch; a step can be done again with another kernel before going on."""

    def __init__(self, binder: _Binder, feed: Mapping[str, np.ndarray]) -> None:
        self._binder, self._arrays = binder, dict(feed)
        self._last = {name: i for i, call in enumerate(binder.steps) for name in call.inputs}
        self._step: Call | None = None
        self._shown: WalkStep | None = None

    def __iter__(self) -> Iterator[WalkStep]:
        for index, call in enumerate(self._binder.steps):
            self._step = call
            self._compute(call)
            read = [self._arrays[name] for name in call.inputs]
            name = call.outputs[0]
            self._shown = WalkStep(self._binder.inner.get(name, name), call.fn, read, self._arrays[name])
            yield self._shown
            for name in dict.fromkeys(call.inputs):  # a step may read one tensor twice
                if self._last[name] == index:
                    del self._arrays[name]

    def held(self, name: str) -> np.ndarray | None:
        """Return the whole batch of a tensor that is computed, and still needed; else None."""
        return self._arrays.get(name)

    def redo(self, kernel: Any) -> None:
        """Compute the current step again with `kernel`, for later steps too; the step holds the new result.

        The old one is let go first.
        """
        assert self._step is not None
        assert self._shown is not None
        self._shown.array = np.empty(0)
        for name in self._step.outputs:
            del self._arrays[name]
        self._compute(Call(kernel, self._step.inputs, self._step.outputs))
        self._shown.array = self._arrays[self._step.outputs[0]]

    def _compute(self, call: Call) -> None:
        from simulator import machine

        specs = {name: self._binder.specs[name] for name in call.inputs}
        program = machine.compile([call], specs, call.outputs)
        feed = {name: self._arrays[name] for name in call.inputs}
        rows = {name: max(specs[name].shape[:1], default=1) for name in call.inputs}  # of one sample
        count = max((len(a) // rows[n] for n, a in feed.items() if a.ndim), default=1)
        feed = {n: np.concatenate([a] * count) if a.ndim and len(a) == rows[n] else a for n, a in feed.items()}
        self._arrays.update(_run_program(program, feed, {}, count))


def _run_program(
    program: Any, feed: Mapping[str, np.ndarray], force: Mapping[str, np.ndarray], count: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Run a batch of `count` samples, one by one where the program mixes samples."""
    if program.per_sample or count == 1:
        yield from program.run(feed, force)
        return

    def sample(arrays: Mapping[str, np.ndarray], i: int) -> dict[str, np.ndarray]:
        return {n: a[i * len(a) // count : (i + 1) * len(a) // count] for n, a in arrays.items()}

    runs = [program.run(sample(feed, i), sample(force, i)) for i in range(count)]
    for items in zip(*runs, strict=True):
        yield items[0][0], np.concatenate([np.atleast_1d(array) for _, array in items])


def row_of(model: ir.Graph) -> Platform:
    """Return the platform a graph was made for: our metadata, else any node's `platform`, else venus."""
    name = model.metadata_props.get("lingeronnx.platform")
    if name is None:
        name = next((n for node in model.graph if (n := ir.attr(node, "platform"))), "venus")
    return platform(str(name))


def _batched(array: np.ndarray, count: int, axis: int) -> np.ndarray:
    """Return an array whose samples, one of them at `axis` of each, came out one after another along axis 0."""
    if not axis or count == 1 or array.ndim <= axis or array.shape[axis] != 1 or array.shape[0] % count:
        return array
    return np.concatenate(np.split(array, count), axis=axis)


def _in_rows(array: np.ndarray, count: int, axis: int) -> np.ndarray:
    """Return an array whose samples lie along `axis` with one after another along axis 0: what `_batched` undoes."""
    if not axis or count == 1 or array.ndim <= axis or array.shape[axis] != count:
        return array
    return np.concatenate(np.split(array, count, axis))


def _wide_inputs(model: ir.Graph, row: Platform) -> set[str]:
    quantizer = row.computes(QUANT.name, Quantizer)
    widest = 32 if quantizer is None else quantizer.widest
    quants = [
        node for node in model.graph if node.op_type == QUANT.name and widest < int(ir.attr(node, "data_bits", 8)) <= 32
    ]
    return {ir.read_name(node) for node in quants if ir.source(node).is_graph_input()}


class _Binder:
    """Turns the nodes of an integer graph into simulator steps, inferring types on the way."""

    def __init__(
        self,
        model: ir.Graph,
        side: Side,
        consts: Mapping[str, Any],
        specs: Mapping[str, Spec],
        batched: bool,
        keep: Collection[str] | None = (),
    ) -> None:
        self._model, self._side, self._consts, self._batched, self._keep = model, side, consts, batched, keep
        self.specs = dict(specs)
        self.scales: dict[str, float] = {}
        self.steps: list[Call] = []
        #: Tensors that the graph does not have: the integers behind an output that a node writes in float.
        self.inner: dict[str, str] = {}
        self._taken = {str(v.name) for v in ir.values(model)}
        self._pending: list[ir.Node] = []

    def run(self, nodes: Sequence[ir.Node] | None = None) -> None:
        """Fill `steps`, `specs` of every tensor and `scales` of the integer ones, for some nodes or all."""
        for node in self._model.graph if nodes is None else nodes:
            if all(str(v.name) in self.specs for v in node.outputs if v.name):
                continue  # a Quant whose output is fed, already quantized
            if node.op_type == "Constant" and not node.domain:
                continue
            form = self._integer(node)
            if form is None:
                self._pending.append(node)
                continue
            waiting = {str(v.name) for n in self._pending for v in n.outputs}
            if any(v is not None and v.name in waiting for v in node.inputs):
                self._flush()
            self._bind(form, node)
        self._flush()

    def _integer(self, node: ir.Node) -> Format | None:
        form = known_format(node)
        if is_quantized_domain(node):
            return form
        if form is None or form.domain:
            return None
        source = str(node.inputs[0].name) if node.inputs and node.inputs[0] is not None else ""
        known = self.specs.get(source, self._consts.get(source))  # a Gather may read a constant table
        return form if known is not None and known.dtype.kind == "i" and known.dtype.itemsize < 8 else None

    def _bind(self, form: Format, node: ir.Node) -> None:
        attrs = attributes(form, node)
        names = [str(v.name) if v is not None else "" for v in node.inputs]
        consts = {i: self._consts[name] for i, name in enumerate(names) if name in self._consts}
        for index in form.operands(node):
            if index in consts:
                self._constant(names[index], consts[index])
            elif names[index] not in self.specs:
                raise ModelError(f"{node.op_type} {node.name}: its input '{names[index]}' is computed nowhere")
        self._check_scales(form, node, attrs, names)
        if not self._side.row.zero_points and (key := other_zero(attrs)) is not None:
            raise ModelError(
                f"{node.op_type} {node.name}: {key} = {attrs[key]}; on {self._side.row.name} the integer 0 stands for 0"
            )
        bound = Bound(
            node,
            attrs,
            consts,
            self._side.arithmetic(form, node),
            [self.specs[name].shape if name in self.specs else () for name in names],
            self._batched,
            [self.specs[name].dtype if name in self.specs else None for name in names],
        )
        fn = bound_kernel(form, bound)
        inputs = tuple(names[i] for i in form.operands(node))
        reals = {str(node.outputs[i].name) for i in form.reals(bound)}
        outputs = tuple(str(v.name) for v in node.outputs if v.name)
        held = {name: ir.free_name(f"{name}_q", self._taken) for name in outputs if name in reals}
        self._append(Call(fn, inputs, tuple(held.get(name, name) for name in outputs)))
        scales = form.out_scales(bound, [self.scales.get(name) for name in names])
        for value, scale in zip(node.outputs, scales, strict=False):
            if value.name in reals and scale is not None:
                self._real(value.name, held[value.name], scale)
            elif value.name and scale is not None:
                self.scales[value.name] = scale

    def _real(self, name: str, held: str, scale: float) -> None:
        """Dequantize the integers `held` of tensor `name`."""
        from simulator.kernels import Dequant

        self._append(Call(Dequant(scale), (held,), (name,)))
        self.inner[held] = name
        self._taken.add(held)

    def _check_scales(self, form: Format, node: ir.Node, attrs: Mapping[str, Any], names: Sequence[str]) -> None:
        read = form.read_scales(attrs)
        for index, scale in read.items():
            own = self.scales.get(names[index]) if index < len(names) else None
            if own is not None and own != scale:
                raise ModelError(
                    f"{node.op_type} {node.name}: reads '{names[index]}' at scale {scale:g}, its producer writes "
                    f"{own:g}; repair the graph with fix-dequant"
                )
        for index, name in enumerate(names):
            zero = zero_of(self.scales.get(name))
            taken = zero_of(read[index]) if index in read else zero if form.zero_points else 0
            if name in self.scales and zero != taken:
                raise ModelError(
                    f"{node.op_type} {node.name}: reads '{name}' with zero point {taken}, its producer writes {zero}"
                )

    def _constant(self, name: str, array: np.ndarray) -> None:
        from simulator.kernels import Constant

        if name not in self.specs:
            self._append(Call(Constant(array), (), (name,)))

    def _append(self, call: Call) -> None:
        self.steps.append(call)
        try:
            results = call.fn.infer(*(self.specs[name] for name in call.inputs))
        except MachineError as error:
            raise ModelError(f"the node that writes '{call.outputs[0]}': {error}") from error
        self.specs.update(zip(call.outputs, results, strict=False))

    def _flush(self) -> None:
        if self._pending:
            results = [v for node in self._pending for v in node.outputs]
            inner = {str(v.name) for v in results if (ir.shape(v) or (0,))[0] in (None, 1)}  # those with a batch axis
            island = FloatIsland(self._model, self._pending, inner if self._keep is None else inner & set(self._keep))
            self._pending = []
            if island.outputs:  # else nobody reads what they compute
                self._append(Call(island, island.inputs, island.outputs))


def bound_kernel(form: Format, bound: Bound) -> Any:
    """Return the kernel of a bound node; what the simulator refuses becomes a ModelError naming the node.

    Raises InternalError for a platform's row that has an arithmetic of another kind for the operator.
    """
    bound.how(form.kind)
    try:
        return form.bind(bound)
    except ModelError:
        raise
    except ValueError as error:
        raise ModelError(f"{bound.where}: {error}") from error


class _Sizer(_Binder):
    """Binds what it can, whatever the scales: for the sizes of tensors in graphs that may be wrong."""

    def _bind(self, form: Format, node: ir.Node) -> None:
        with contextlib.suppress(ModelError, ValueError, KeyError, IndexError, TypeError):
            super()._bind(form, node)

    def _integer(self, node: ir.Node) -> Format | None:
        with contextlib.suppress(ModelError):
            return super()._integer(node)
        return None

    def _check_scales(self, form: Format, node: ir.Node, attrs: Mapping[str, Any], names: Sequence[str]) -> None:
        pass

    def _flush(self) -> None:
        self._pending = []


def sizes(model: ir.Graph) -> dict[ir.Value, tuple[int | None, ...]]:
    """Return the shapes of the integer `model`'s tensors for one sample, as far as they follow from its inputs'.

    Nothing is run and no scale is looked at, so that a graph with mistakes has sizes too.
    """
    runner = IntRunner(model, row=GENERIC)
    specs = {
        s.name: Spec((s.shape[0] or 1, *(int(d or 0) for d in s.shape[1:])), s.dtype)
        for s in runner.inputs
        if s.shape and None not in s.shape[1:]
    }
    binder = _Sizer(model, Side(GENERIC), runner._consts, specs, not runner.whole)
    binder.run()
    return {v: binder.specs[v.name].shape for node in model.graph for v in node.outputs if v.name in binder.specs}
