"""Running float operators: `FloatRunner` for a whole model, `FloatIsland` for a step between integer ones.

The only file that imports onnxruntime, and only when a float operator has to run. A stream is what running a model
yields, in graph order: `(tensor name, array, scale or None)`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx

from simulator.kernel import PlainKernel, Spec

from ..errors import ModelError
from ..graph import ir, operators
from ..graph.batch_axes import batch_axes, open_axis
from ..plan import Affine
from .data import InputSpec
from .refusal import reason
from .stages import Stage, groups, stages

if TYPE_CHECKING:
    import onnxruntime

    OrtSession: TypeAlias = onnxruntime.InferenceSession

__all__ = [
    "FloatIsland", "FloatRunner", "Islands", "Item", "ShapeRunner", "Stream", "constant", "input_specs",
    "ort_session", "reads", "submodel",
]  # fmt: skip

#: Float nodes opened in onnxruntime, by what they and their constants are.
Islands = dict[bytes, "OrtSession"]

#: (tensor, array, how its integers are held; None where it is real)
Item = tuple[str, np.ndarray, Affine | None]
Stream = Iterator[Item]

#: Types of outputs that are handed over one by one.
_COPIED = frozenset(
    f"tensor({kind})"
    for kind in ("bool", "double", "float", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
)


def ort_session(
    proto: onnx.ModelProto,
    label: str,
    threads: int = 0,
    apart: Mapping[str, np.ndarray] = MappingProxyType({}),
    plain: bool = False,
) -> OrtSession:
    """Open an onnxruntime session on `proto`, which may be used up; ModelError when onnxruntime refuses the model.

    threads : 0 for `LINGERONNX_THREADS`, else the number of processors. apart : constants that `proto` lacks
    (`ir.outline`), which have to be kept as long as the session is used. plain : every node as it stands, and no
    weight in another form: for a run or two.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4  # what fails is raised; no second copy of it on stderr
    options.intra_op_num_threads = threads or int(os.environ.get("LINGERONNX_THREADS") or 0)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # between two runs it only costs
    options.enable_cpu_mem_arena = False  # it would keep the most that one run ever took
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_DISABLE_ALL if plain else level.ORT_ENABLE_BASIC
    if plain:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED  # a Shape as soon as it can be told
    stored = [tensor.name for tensor in proto.graph.initializer if tensor.name in apart]
    if stored:
        values = [ort.OrtValue.ortvalue_from_numpy(apart[name]) for name in stored]
        options.add_external_initializers(stored, values)
    try:
        with ir.openable(proto) as content:
            return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if stored:  # onnxruntime takes no constant that it has dropped: then they are the model's
            return ort_session(ir.whole(proto, apart), label, threads, plain=plain)
        raise ModelError(f"onnxruntime cannot run {label}: {reason(error)}") from error


def input_specs(model: ir.Graph) -> list[InputSpec]:
    """Return the fed inputs of `model`."""
    specs, axes = [], batch_axes(model)
    for value in model.graph.inputs:
        if value.const_value is None:
            dtype = np.dtype(np.float32) if value.dtype is None else value.dtype.numpy()
            name = str(value.name)
            specs.append(InputSpec(name, ir.shape(value), np.dtype(dtype), axes.get(name, 0)))
    return specs


def _forget_folded(proto: onnx.ModelProto, model: ir.Graph) -> None:
    """Take out the first size of tensors that hold samples and something else on axis 0.

    It is written as N, and onnxruntime takes tensors whose sizes read alike for equally large: they share memory.
    """
    folded = {str(value.name) for value in ir.values(model) if ir.has_folded_batch(value)}
    for info in proto.graph.value_info:
        if info.name in folded:
            info.type.tensor_type.shape.dim[0].Clear()


class ShapeRunner:
    """The shapes of all tensors of a float model, by runs in which no tensor is held longer than it is read.

    Raises ModelError where onnxruntime refuses the model, or can tell no shape of what is no tensor.
    """

    def __init__(self, model: ir.Graph) -> None:
        proto, self._apart = ir.outline(model)
        self._inputs = [str(v.name) for v in model.graph.inputs if v.const_value is None]
        self._names = [name for v in ir.values(model) if (name := str(v.name)) not in self._inputs]
        del proto.graph.output[:], proto.graph.value_info[:]  # what a file says of shapes may be wrong
        for name in self._names:
            proto.graph.node.add(op_type="Shape", input=[name], output=[f"{name}#shape"])
            proto.graph.output.append(onnx.ValueInfoProto(name=f"{name}#shape"))
        self._session = ort_session(proto, "the float model", apart=self._apart, plain=True)

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
        """Return {tensor: shape}, the inputs among them; ModelError where the model does not run on `feed`."""
        given = {name: np.asarray(feed[name]) for name in self._inputs}
        try:
            found = self._session.run([f"{name}#shape" for name in self._names], given)
        except Exception as error:
            raise ModelError(_does_not_run(given, error)) from error
        shapes = {name: array.shape for name, array in given.items()}
        return {**shapes, **{n: tuple(map(int, shape)) for n, shape in zip(self._names, found, strict=True)}}


def _does_not_run(given: Mapping[str, np.ndarray], error: Exception) -> str:
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in given.items())
    return f"the model does not run on inputs {shapes}: {reason(error)}"


class FloatRunner:
    """A float model in onnxruntime that yields all, or the named, tensors of a run.

    model : a graph before lowering.
    outputs : names to yield; None for every tensor. Raises ModelError when onnxruntime refuses the model.
    """

    def __init__(self, model: ir.Graph, outputs: Collection[str] | None = None) -> None:
        proto, self._apart = ir.outline(model)
        _forget_folded(proto, model)
        self._names = [str(v.name) for v in ir.values(model) if outputs is None or v.name in outputs]
        self._inputs = [str(v.name) for v in model.graph.inputs if v.const_value is None]
        del proto.graph.output[:]
        specs = input_specs(model)
        #: The inputs of a model that is written for one sample: larger batches are run one by one.
        self._single = {spec.name: spec for spec in specs if spec.single}
        sized = all(spec.shape is not None and None not in spec.shape for spec in specs)  # else open axes mean nothing
        self._model, self._sized = model, sized
        #: Outputs that are held at once: of a model with large tensors not all.
        self.groups = groups(model, [name for name in self._names if name not in self._inputs])
        if len(self.groups) == 1:
            self._stages = [Stage(proto, self._inputs, self.groups[0], ())]
        else:
            self._stages = stages(proto, self.groups, {str(v.name): int(v.dtype or 0) for v in ir.values(model)})
        self._sessions = [self._opened(stage) for stage in self._stages]

    def _opened(self, stage: Stage) -> OrtSession:
        stage.proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in (*stage.outputs, *stage.border))
        return ort_session(stage.proto, "the float model", apart=self._apart)

    @cached_property
    def _axes(self) -> dict[str, int]:
        """The axis of the samples in every tensor; asked for late, when the graph's shapes may have been traced."""
        axes = {str(v.name): open_axis(v) if self._sized else 0 for v in ir.values(self._model)}
        return {**axes, **{name: spec.axis or 0 for name, spec in self._single.items()}}

    def batch_first(self, names: Collection[str]) -> bool:
        """Whether all of the tensors `names` have the samples on axis 0."""
        return not any(self._axes[name] for name in names)

    def run(self, feed: Mapping[str, np.ndarray], names: Collection[str] | None = None) -> Stream:
        """Run one batch and yield `(name, array, None)`; arrays as onnxruntime computed them.

        names : those to yield of the outputs that the runner has; None for all.
        """
        wanted = [name for name in self._names if names is None or name in names]
        given = {name: np.asarray(feed[name]) for name in self._inputs}
        count = max((spec.count(given[name]) for name, spec in self._single.items()), default=1)
        if count == 1:
            yield from self._run(given, wanted)
            return

        def sample(name: str, i: int) -> np.ndarray:
            return self._single[name].samples(given[name], i, i + 1) if name in self._single else given[name]

        runs = [list(self._run({name: sample(name, i) for name in given}, wanted)) for i in range(count)]
        for items in zip(*runs, strict=True):
            name, arrays = items[0][0], [np.atleast_1d(array) for _, array, _ in items]
            axis = (
                self._axes[name] if arrays[0].shape[self._axes[name] :][:1] == (1,) else 0
            )  # else open for its own sake
            yield name, np.concatenate(arrays, axis), None

    def _run(self, given: Mapping[str, np.ndarray], wanted: Sequence[str]) -> Stream:
        yield from ((name, given[name], None) for name in wanted if name in given)
        held: dict[str, Any] = dict(given)
        left = {name for name in wanted if name not in given}
        for number, (stage, session) in enumerate(zip(self._stages, self._sessions, strict=True)):
            if not left:
                return
            later = {name for stage in self._stages[number + 1 :] for name in stage.inputs}
            fetch = [name for name in (*stage.outputs, *stage.border) if name in left or name in later]
            try:
                found = _fetched(session, fetch, {name: held[name] for name in stage.inputs}) if fetch else ()
            except Exception as error:
                raise ModelError(_does_not_run(given, error)) from error
            results = dict(zip(fetch, found, strict=True))
            del found
            held = {name: value for name, value in {**held, **results}.items() if name in later}
            for name in stage.outputs:  # whoever asks is the only one that holds an array
                if name in left:
                    yield name, _array(results.pop(name)), None
            left.difference_update(stage.outputs)


def _fetched(session: OrtSession, names: Sequence[str], given: Mapping[str, Any]) -> Sequence[Any]:
    """Run a session; return arrays, or what `_array` makes arrays of, so that not all are there twice at once."""
    import onnxruntime as ort

    plain = all(not isinstance(a, np.ndarray) or a.dtype.kind in "fiub" for a in given.values())
    if not plain or not all(value.type in _COPIED for value in session.get_outputs()):
        return list(session.run(names, {name: _array(value) for name, value in given.items()}))
    feeds = {
        name: ort.OrtValue.ortvalue_from_numpy(np.asarray(value, order="C")) if isinstance(value, np.ndarray) else value
        for name, value in given.items()
    }
    return list(session.run_with_ort_values(names, feeds))


def _array(result: Any) -> Any:  # noqa: ANN401 - an OrtValue, which has no types
    """Return an array; a sequence of tensors stays a list of them."""
    return result if isinstance(result, np.ndarray | list) else result.numpy()


def _trial(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    """Return random values in place of `like`: normal ones, or 0 and 1, which counts and indices may be."""
    values = rng.standard_normal(like.shape) if like.dtype.kind == "f" else rng.integers(0, 2, like.shape)
    return values.astype(like.dtype)


def reads(node: ir.Node) -> Iterator[ir.Value | None]:
    """Yield what a node reads: its inputs, and what its subgraphs take from around them."""
    yield from node.inputs
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            inner = list(ir.all_nodes(attribute.value))
            for value in (v for part in inner for v in part.inputs if v is not None):
                maker = value.producer()
                if (maker is None and value.graph is node.graph) or (maker is not None and maker.graph is node.graph):
                    yield value


def constant(value: ir.Value) -> np.ndarray | None:
    """Return what a value holds: an initializer, or the value of a Constant node."""
    maker = value.producer()
    if maker is not None and maker.op_type == "Constant" and not maker.domain:
        return np.asarray(ir.attr(maker, "value")) if "value" in maker.attributes else None
    return ir.const(value)


def _held(value: ir.Value) -> np.ndarray:
    array = constant(value)
    assert array is not None
    return array


def submodel(
    model: ir.Graph,
    nodes: Sequence[ir.Node],
    inputs: Mapping[str, ir.Value],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    """Return `nodes` of `model` as a model of their own, of open shapes; inputs and constants by name."""
    graph = onnx.GraphProto(name="island")
    graph.node.extend(ir.node_proto(node) for node in nodes)
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    for name, value in inputs.items():
        kind = onnx.TensorProto.FLOAT if value.dtype is None else int(value.dtype)
        graph.input.append(onnx.helper.make_tensor_value_info(name, kind, None))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    proto = onnx.ModelProto(ir_version=max(model.ir_version or 8, 8), graph=graph)
    used = {node.domain for node in nodes}
    for domain, version in model.opset_imports.items():
        if domain in used or domain in ("", "ai.onnx"):
            proto.opset_import.append(onnx.helper.make_opsetid(domain, version))
    for function in model.functions.values():
        proto.functions.append(ir.function_proto(function))
    return proto


def _digest(proto: onnx.ModelProto) -> bytes:
    """Return what tells models of float nodes apart, piece by piece: as a whole one may be too large for protobuf."""
    made = hashlib.blake2b(digest_size=16)
    graph = proto.graph
    for piece in (*proto.opset_import, *proto.functions, *graph.initializer, *graph.node, *graph.input, *graph.output):
        content = piece.SerializeToString(deterministic=True)
        made.update(len(content).to_bytes(8, "little"))
        made.update(content)
    return made.digest()


class FloatIsland(PlainKernel):
    """Float nodes between integer ones, run by onnxruntime as one step of a simulator program.

    nodes : consecutive nodes of the graph. The step's inputs and outputs are `inputs` and `outputs`, in that order.
    Sample by sample when the nodes mix samples or were written for one sample only.

    opened : {digest: session} of islands that are shared; one of the same nodes and constants is taken from there, or
    put there.
    """

    def __init__(
        self,
        model: ir.Graph,
        nodes: Sequence[ir.Node],
        keep: Collection[str],
        opened: Islands | None = None,
    ) -> None:
        self._opened = {} if opened is None else opened
        inside = {str(out.name) for node in nodes for out in node.outputs if out.name}
        outside_reads = {
            str(v.name)
            for node in nodes
            for v in node.outputs
            if v.name in keep or v.is_graph_output() or any(use.node not in nodes for use in v.uses())
        }
        seen: dict[str, ir.Value] = {}
        constants: dict[str, ir.Value] = {}
        for node in nodes:
            for value in reads(node):
                if value is None or value.name in inside:
                    continue
                (constants if constant(value) is not None else seen)[str(value.name)] = value
        self.inputs = tuple(seen)
        self.outputs = tuple(str(o.name) for node in nodes for o in node.outputs if o.name in outside_reads)
        self.names = tuple(str(node.name) for node in nodes)
        #: The nodes as a model of their own.
        self.proto = submodel(model, nodes, seen, self.outputs, {n: _held(v) for n, v in constants.items()})
        self._session: OrtSession | None = None
        self._mixes: bool | None = None
        self._specs: tuple[Spec, ...] = ()
        #: Whether axis 0 of some input or output is no batch axis: then arrays are taken as they come.
        self._whole = any(node.op_type in (*operators.SIZES, "NonZero") and not node.domain for node in nodes)

    def _run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self._session is None:
            key = _digest(self.proto)
            if key not in self._opened:
                self._opened[key] = ort_session(self.proto, f"float node {self.names[0]}", threads=1)
            self._session = self._opened[key]
        try:
            return list(self._session.run(list(self.outputs), dict(zip(self.inputs, arrays, strict=True))))
        except Exception as error:
            raise ModelError(f"float node {self.names[0]} does not run: {reason(error)}") from error

    def together(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of one run on `arrays` as they are; ModelError where that fails."""
        return self._run(arrays)

    def one_by_one(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether the inputs `arrays`, batch on axis 0, are several samples that must be computed one by one."""
        count = arrays[0].shape[0] if arrays and arrays[0].ndim else 1
        return count != 1 and not self._whole and self._mixed(arrays)

    def _mixed(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether two samples together give something else than each gives alone."""
        if self._mixes is None:
            rng = np.random.default_rng(0)
            ones = [[_trial(rng, a[:1]) for a in arrays] for _ in range(2)]
            apart = [self._run(one) for one in ones]
            try:
                both = self._run([np.concatenate(pair) for pair in zip(*ones, strict=True)])
                self._mixes = not all(
                    t.shape == (2 * a.shape[0], *a.shape[1:])
                    and np.allclose(t, np.concatenate([a, b]), rtol=1e-4, atol=1e-5, equal_nan=True)
                    for t, a, b in zip(both, *apart, strict=True)
                )
            except (ModelError, ValueError, IndexError):
                self._mixes = True
        return self._mixes

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Compute the outputs of a batch; ModelError when their shapes are not those that `infer` found."""
        results = self._compute(arrays)
        for name, result, spec in zip(self.outputs, results, self._specs, strict=False):
            if result.shape[1:] != spec.shape[1:] or (self._whole and result.shape != spec.shape):
                raise ModelError(f"float node {self.names[0]}: the shape of '{name}' depends on the values it is given")
        return results

    def _compute(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        if not self.one_by_one(arrays):
            return tuple(self._run(arrays))
        parts = [self._run([a[i : i + 1] for a in arrays]) for i in range(len(arrays[0]))]
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        """Return the outputs' specs, by running on zeros; the inputs are of the types given, whatever the file says."""
        for value, spec in zip(self.proto.graph.input, specs, strict=True):
            value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(spec.dtype)
        self._whole = self._whole or any(spec.shape[:1] != (1,) for spec in specs)
        try:
            results = self._compute([np.zeros(spec.shape, spec.dtype) for spec in specs])
        except ModelError as error:
            numbers = [name for name, spec in zip(self.inputs, specs, strict=True) if spec.dtype.kind in "iu"]
            if not numbers:
                raise
            raise ModelError(
                f"float node {self.names[0]}: its sizes depend on the values of {', '.join(numbers)}; where that is a "
                "setting, fix it with --fix NAME=VALUE"
            ) from error
        self._whole = self._whole or any(result.shape[:1] != (1,) for result in results)
        self._specs = tuple(Spec(result.shape, result.dtype) for result in results)
        return self._specs

    def follows_batch(self, specs: Sequence[Spec], batched: Sequence[bool]) -> bool:
        """Every input and output has the batch on axis 0."""
        return not self._whole
