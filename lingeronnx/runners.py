"""Running models: `FloatRunner` in onnxruntime, `IntRunner` in the integer simulator with float islands.

Both have ``run(feed) -> stream``: `(tensor name, array, scale or None)` in graph order. This is the only file that
imports onnxruntime; it is imported when a float operator has to run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as oir

from simulator.kernel import Call, MachineError, PlainKernel, Spec

from . import ir
from .data import InputSpec
from .errors import DataError, ModelError
from .ops import Bound, Op, attributes, integer_op, is_quantized_domain
from .platforms import Platform, platform

__all__ = ["FloatIsland", "FloatRunner", "IntRunner", "Item", "Stream", "Walk", "WalkStep", "input_specs"]

Item = tuple[str, np.ndarray, float | None]
Stream = Iterator[Item]


def ort_session(proto: onnx.ModelProto, label: str, threads: int = 0) -> Any:
    """Open an onnxruntime session; ModelError with onnxruntime's own words when it refuses the model."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"onnxruntime cannot run {label}: {_clean(error)}") from error


def _clean(error: Exception) -> str:
    text = str(error).strip().splitlines()[0]
    return text.partition("] : ")[2] or text


def input_specs(model: ir.Graph) -> list[InputSpec]:
    """Return the fed inputs of `model`."""
    specs = []
    for value in model.graph.inputs:
        if value.const_value is None:
            dtype = np.dtype(np.float32) if value.dtype is None else value.dtype.numpy()
            specs.append(InputSpec(str(value.name), ir.shape(value), np.dtype(dtype)))
    return specs


class FloatRunner:
    """A float model in onnxruntime that yields all, or the named, tensors of a run.

    model : a graph before lowering.
    outputs : names to yield; None for every tensor. Raises ModelError when onnxruntime refuses the model.
    """

    def __init__(self, model: ir.Graph, outputs: Collection[str] | None = None) -> None:
        proto = ir.to_proto(model)
        wanted = [str(v.name) for v in ir.values(model) if outputs is None or v.name in outputs]
        self._inputs = [str(v.name) for v in model.graph.inputs if v.const_value is None]
        fetch = [name for name in wanted if name not in self._inputs]
        del proto.graph.output[:]
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in fetch)
        self._names = wanted
        self._fetch = fetch
        self._session = ort_session(proto, "the float model")

    def run(self, feed: Mapping[str, np.ndarray]) -> Stream:
        """Run one batch and yield `(name, array, None)`; arrays as onnxruntime computed them."""
        given = {name: np.asarray(feed[name]) for name in self._inputs}
        try:
            results = dict(zip(self._fetch, self._session.run(self._fetch, given), strict=True))
        except Exception as error:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in given.items())
            raise ModelError(f"onnxruntime failed on inputs {shapes}: {_clean(error)}") from error
        for name in self._names:
            array = given[name] if name in given else results[name]
            yield name, array, None


class FloatIsland(PlainKernel):
    """Float nodes between integer ones, run by onnxruntime as one step of a simulator program.

    nodes : consecutive nodes of the graph. The step's inputs and outputs are `inputs` and `outputs`, in that order.
    Sample by sample when the nodes mix samples or were written for one sample only.
    """

    def __init__(self, model: ir.Graph, nodes: Sequence[ir.Node], keep: Collection[str]) -> None:
        inside = {str(out.name) for node in nodes for out in node.outputs if out.name}
        outside_reads = {
            str(v.name) for node in nodes for v in node.outputs
            if v.name in keep or v.is_graph_output() or any(use.node not in nodes for use in v.uses())
        }  # fmt: skip
        seen: dict[str, ir.Value] = {}
        constants: dict[str, ir.Value] = {}
        for node in nodes:
            for value in node.inputs:
                if value is None or value.name in inside:
                    continue
                (constants if ir.const(value) is not None else seen)[str(value.name)] = value
        self.inputs = tuple(seen)
        self.outputs = tuple(str(o.name) for node in nodes for o in node.outputs if o.name in outside_reads)
        self.names = tuple(str(node.name) for node in nodes)
        self._proto = self._model(model, nodes, seen, constants)
        self._session: Any = None
        self._one_by_one: bool | None = None

    def _model(
        self, model: ir.Graph, nodes: Sequence[ir.Node], seen: Mapping[str, ir.Value], constants: Mapping[str, ir.Value]
    ) -> onnx.ModelProto:
        graph = onnx.GraphProto(name="island")
        graph.node.extend(oir.serde.serialize_node(node) for node in nodes)
        for name, value in constants.items():
            array = ir.const(value)
            assert array is not None
            graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        for name, value in seen.items():
            kind = onnx.TensorProto.FLOAT if value.dtype is None else int(value.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(name, kind, None))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.outputs)
        proto = onnx.ModelProto(ir_version=max(model.ir_version or 8, 8), graph=graph)
        used = {node.domain for node in nodes}
        for domain, version in model.opset_imports.items():
            if domain in used or domain in ("", "ai.onnx"):
                proto.opset_import.append(onnx.helper.make_opsetid(domain, version))
        for function in model.functions.values():
            proto.functions.append(oir.to_proto(function))
        return proto

    def _run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self._session is None:
            self._session = ort_session(self._proto, f"float node {self.names[0]}", threads=1)
        try:
            return list(self._session.run(list(self.outputs), dict(zip(self.inputs, arrays, strict=True))))
        except Exception as error:
            raise ModelError(f"onnxruntime failed on float node {self.names[0]}: {_clean(error)}") from error

    def _alone(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether a batch must be cut into samples: two samples together must give what each gives alone."""
        if self._one_by_one is None:
            rng = np.random.default_rng(0)
            ones = [[rng.standard_normal(a[:1].shape).astype(a.dtype) for a in arrays] for _ in range(2)]
            apart = [self._run(one) for one in ones]
            try:
                both = self._run([np.concatenate(pair) for pair in zip(*ones, strict=True)])
                self._one_by_one = not all(
                    t.shape == (2 * a.shape[0], *a.shape[1:])
                    and np.allclose(t, np.concatenate([a, b]), rtol=1e-4, atol=1e-5, equal_nan=True)
                    for t, a, b in zip(both, *apart, strict=True)
                )
            except (ModelError, ValueError, IndexError):
                self._one_by_one = True
        return self._one_by_one

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Compute the outputs of a batch."""
        count = arrays[0].shape[0] if arrays and arrays[0].ndim else 1
        if count == 1 or not self._alone(arrays):
            return tuple(self._run(arrays))
        parts = [self._run([a[i : i + 1] for a in arrays]) for i in range(count)]
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        """Return the outputs' specs, by running on zeros."""
        results = self(*(np.zeros(spec.shape, spec.dtype) for spec in specs))
        return tuple(Spec(result.shape, result.dtype) for result in results)


class IntRunner:
    """An integer graph in the simulator; float nodes between integer ones run as islands.

    model : a graph after lowering, or a vendor's. Raises ModelError for operators and attributes it cannot take.
    """

    def __init__(self, model: ir.Graph) -> None:
        self.model = model
        self.row = _row_of(model)
        self.inputs = input_specs(model)
        self._consts = {name: ir.const(value) for name, value in model.graph.initializers.items()}
        for node in model.graph:
            if node.op_type == "Constant" and not node.domain:
                self._consts[str(node.outputs[0].name)] = np.asarray(ir.attr(node, "value"))
        #: Whether axis 0 of some input is a fixed size other than 1: no batch axis, shapes are exact.
        self.whole = any(spec.shape and spec.shape[0] not in (None, 1) for spec in self.inputs)
        self._programs: dict[Any, tuple[Any, dict[str, float]]] = {}

    @property
    def input_scales(self) -> dict[str, tuple[float, int] | None]:
        """(scale, bits) by input of the Quant nodes that read it; None where there is none, or several disagree."""
        found: dict[str, tuple[float, int] | None] = {}
        for value in self.model.graph.inputs:
            quants = {
                (float(ir.attr(use.node, "scale_x")), int(ir.attr(use.node, "data_bits", 8)))
                for use in value.uses() if use.node.op_type == "Quant"
            }  # fmt: skip
            found[str(value.name)] = quants.pop() if len(quants) == 1 else None
        return found

    def run(
        self, feed: Mapping[str, np.ndarray], keep: Collection[str] | None = None,
        force: Mapping[str, np.ndarray] | None = None,
    ) -> Stream:  # fmt: skip
        """Run a batch and yield `(name, array, scale or None)` in graph order.

        feed : by input name; real values, or for an input that feeds a Quant an array of its integer type, which is
            taken as quantized already. keep : the tensors to yield, None for all. force : tensors to replace by given
            integers (or reals), which must be kept.
        """
        given = {spec.name: np.asarray(feed[spec.name]) for spec in self.inputs}
        quantized = frozenset(name for name, array in given.items() if self._is_quantized(name, array))
        fed = self._fed(given, quantized)
        specs = {name: Spec(array.shape if self.whole else (1, *array.shape[1:]), array.dtype)
                 for name, array in fed.items()}  # fmt: skip
        key = tuple(specs.items()), None if keep is None else frozenset(keep)
        if key not in self._programs:
            self._programs[key] = self._compile(specs, keep, quantized)
        program, scales = self._programs[key]
        for name, array in _run_program(program, fed, force or {}, self.whole):
            yield name, array, scales.get(name)

    def walk(self, feed: Mapping[str, np.ndarray]) -> Walk:
        """Return a walk through the steps on one batch of real inputs; see `Walk`."""
        given = {spec.name: np.asarray(feed[spec.name]) for spec in self.inputs}
        binder = _Binder(self.model, self.row, self._consts, {n: Spec((1, *a.shape[1:]), a.dtype) for n, a in
                                                             given.items()}, not self.whole)  # fmt: skip
        binder.run()
        return Walk(binder, given)

    def _is_quantized(self, name: str, array: np.ndarray) -> bool:
        declared = next(spec.dtype for spec in self.inputs if spec.name == name)
        if declared.kind != "f" or array.dtype not in (np.dtype(np.int8), np.dtype(np.int16)):
            return False
        found = self.input_scales[name]
        if found is None:
            raise DataError(f"input '{name}' is {array.dtype}: it feeds no Quant, or several of different scales; "
                            "give real values")
        bits = 8 * array.dtype.itemsize
        if bits != (8 if found[1] <= 8 else 16):
            raise DataError(f"input '{name}' is {array.dtype}, its Quant writes {found[1]} bits; give that type or "
                            "real values")
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
                if use.node.op_type == "Quant":
                    feed[str(use.node.outputs[0].name)] = given[name]
                else:
                    feed[name] = (given[name] / scale).astype(np.float32)
        return feed

    def _compile(
        self, specs: Mapping[str, Spec], keep: Collection[str] | None, quantized: Collection[str]
    ) -> tuple[Any, dict[str, float]]:
        from simulator import machine

        binder = _Binder(self.model, self.row, self._consts, specs, not self.whole)
        binder.run()
        for value in self.model.graph.inputs:
            found = self.input_scales[str(value.name)] if value.name in quantized else None
            for use in value.uses() if found else ():
                binder.scales[str(use.node.outputs[0].name)] = found[0]
        wanted = None if keep is None else [name for name in keep if name in binder.specs]
        try:
            return machine.compile(binder.steps, specs, wanted), binder.scales
        except machine.MachineError as error:
            raise ModelError(str(error)) from error


@dataclass
class WalkStep:
    """One step of a walk: the tensor it writes, the kernel that computed it, what it read and wrote (whole batch)."""

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

    def __iter__(self) -> Iterator[WalkStep]:
        for index, call in enumerate(self._binder.steps):
            self._step = call
            self._compute(call)
            read = [self._arrays[name] for name in call.inputs]
            yield WalkStep(call.outputs[0], call.fn, read, self._arrays[call.outputs[0]])
            for name in call.inputs:
                if self._last[name] == index:
                    del self._arrays[name]

    def redo(self, kernel: Any) -> np.ndarray:
        """Compute the current step again with `kernel`, for later steps too, and return the result."""
        assert self._step is not None
        self._compute(Call(kernel, self._step.inputs, self._step.outputs))
        return self._arrays[self._step.outputs[0]]

    def _compute(self, call: Call) -> None:
        from simulator import machine

        specs = {name: self._binder.specs[name] for name in call.inputs}
        program = machine.compile([call], specs, call.outputs)
        feed = {name: self._arrays[name] for name in call.inputs}
        self._arrays.update(_run_program(program, feed, {}, False))


def _run_program(
    program: Any, feed: Mapping[str, np.ndarray], force: Mapping[str, np.ndarray], whole: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """Run a batch, sample by sample where the program mixes samples."""
    count = len(next(iter(feed.values()))) if feed else 1
    if program.per_sample or whole or count == 1:
        yield from program.run(feed, force)
        return
    runs = [
        program.run({n: a[i : i + 1] for n, a in feed.items()}, {n: a[i : i + 1] for n, a in force.items()})
        for i in range(count)
    ]
    for items in zip(*runs, strict=True):
        yield items[0][0], np.concatenate([array for _, array in items])


def _row_of(model: ir.Graph) -> Platform:
    """Return the platform a graph was made for: our metadata, else any node's `platform`, else venus."""
    name = model.metadata_props.get("lingeronnx.platform")
    if name is None:
        name = next((n for node in model.graph if (n := ir.attr(node, "platform"))), "venus")
    return platform(str(name))


class _Binder:
    """Turns the nodes of an integer graph into simulator steps, inferring types on the way."""

    def __init__(
        self, model: ir.Graph, row: Platform, consts: Mapping[str, Any], specs: Mapping[str, Spec], batched: bool
    ) -> None:
        self._model, self._row, self._consts, self._batched = model, row, consts, batched
        self.specs = dict(specs)
        self.scales: dict[str, float] = {}
        self.steps: list[Call] = []
        self._pending: list[ir.Node] = []

    def run(self) -> None:
        """Fill `steps`, `specs` of every tensor and `scales` of the integer ones."""
        for node in self._model.graph:
            if all(str(v.name) in self.specs for v in node.outputs if v.name):
                continue  # a Quant whose output is fed, already quantized
            if node.op_type == "Constant" and not node.domain:
                continue
            op = self._integer(node)
            if op is None:
                self._pending.append(node)
                continue
            waiting = {str(v.name) for n in self._pending for v in n.outputs}
            if any(v is not None and v.name in waiting for v in node.inputs):
                self._flush()
            self._bind(op, node)
        self._flush()

    def _integer(self, node: ir.Node) -> Op | None:
        op = integer_op(node)
        if is_quantized_domain(node):
            if op is None:
                raise ModelError(f"{node.op_type} {node.name}: not an integer operator that this lingeronnx knows")
            return op
        if op is None or op.domain:
            return None
        source = self.specs.get(str(node.inputs[0].name)) if node.inputs and node.inputs[0] is not None else None
        return op if source is not None and source.dtype.kind == "i" and source.dtype.itemsize < 8 else None

    def _bind(self, op: Op, node: ir.Node) -> None:
        attrs = attributes(op, node)
        names = [str(v.name) if v is not None else "" for v in node.inputs]
        consts = {i: self._consts[name] for i, name in enumerate(names) if name in self._consts}
        for index in op.data(node):
            if index in consts:
                self._constant(names[index], consts[index])
            elif names[index] not in self.specs:
                raise ModelError(f"{node.op_type} {node.name}: its input '{names[index]}' is computed nowhere")
        self._check_scales(op, node, attrs, names)
        bound = Bound(
            node, attrs, consts, self._row.ops.get(op.name, next(iter(self._row.ops.values()))),
            [self.specs[name].shape if name in self.specs else () for name in names], self._batched,
        )  # fmt: skip
        fn = bound_kernel(op, bound)
        inputs = tuple(names[i] for i in op.data(node))
        outputs = tuple(str(v.name) for v in node.outputs if v.name)
        self._append(Call(fn, inputs, outputs))
        scale = op.out_scale(attrs, [self.scales.get(name) for name in names])
        if scale is not None:
            self.scales.update(dict.fromkeys(outputs, scale))

    def _check_scales(self, op: Op, node: ir.Node, attrs: Mapping[str, Any], names: Sequence[str]) -> None:
        for index, scale in op.read_scales(attrs).items():
            own = self.scales.get(names[index]) if index < len(names) else None
            if own is not None and own != scale:
                raise ModelError(
                    f"{node.op_type} {node.name}: reads '{names[index]}' at scale {scale:g}, its producer writes "
                    f"{own:g}; repair the graph with fix-dequant"
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
            island = FloatIsland(self._model, self._pending, ())
            self._pending = []
            self._append(Call(island, island.inputs, island.outputs))


def bound_kernel(op: Op, bound: Bound) -> Any:
    """Return the kernel of a bound node; what the simulator refuses becomes a ModelError naming the node."""
    try:
        return op.bind(bound)
    except ModelError:
        raise
    except ValueError as error:
        raise ModelError(f"{bound.where}: {error}") from error
