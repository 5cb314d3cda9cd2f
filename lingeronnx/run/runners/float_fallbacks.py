"""Float nodes between integer ones.

`FloatFallback`, one step of a simulator program that onnxruntime computes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from simulator.kernel import NumpyKernel, TensorSpec

from ...errors import ModelError
from ...graph import ir, operators
from .batching import (
    PARALLEL_SAMPLES,
    Batching,
    align_array,
    build_parallel_model,
    choose_batching,
    flatten_padded,
    pad_to_vector,
    repeat_samples,
    repeats_to_fill_vectors,
    split_aligned,
)
from .ort_errors import explain_ort_error
from .sessions import open_ort_session

if TYPE_CHECKING:
    from .sessions import OrtSession

__all__ = [
    "FallbackSessionCache",
    "FloatFallback",
    "extract_submodel",
    "find_ancestors",
    "iter_read_values",
]

#: Float nodes opened in onnxruntime, by what they and their constants are.
FallbackSessionCache = dict[bytes, "OrtSession"]


def _random_like(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    """Return random values in place of `like`.

    Normal ones, or 0 and 1, which counts and indices may be.
    """
    values = (
        rng.standard_normal(like.shape)
        if like.dtype.kind == "f"
        else rng.integers(0, 2, like.shape)
    )
    return values.astype(like.dtype)


def iter_read_values(node: ir.Node) -> Iterator[ir.Value | None]:
    """Yield what a node reads: its inputs, and what its subgraphs take from around them."""
    yield from node.inputs
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            inner = list(ir.iter_nodes_recursive(attribute.value))
            for value in (v for part in inner for v in part.inputs if v is not None):
                maker = value.producer()
                if (maker is None and value.graph is node.graph) or (
                    maker is not None and maker.graph is node.graph
                ):
                    yield value


def find_ancestors(graph: Iterable[ir.Node], wanted: Collection[str]) -> list[ir.Node]:
    """Return the nodes of `graph` that make the tensors `wanted`, in its order.

    Subgraphs count as their node.
    """
    needed, found = set(wanted), []
    for node in reversed(list(graph)):
        if any(value.name in needed for value in node.outputs):
            found.append(node)
            needed.update(str(value.name) for value in iter_read_values(node) if value is not None)
    return found[::-1]


def _constant_array(value: ir.Value) -> np.ndarray:
    array = ir.find_constant(value)
    assert array is not None
    return array


#: Samples from which on `PARALLEL_SAMPLES` in one call take less than so many calls.
_MIN_PARALLEL_SAMPLES = 3


def _take_padded_chunk(array: np.ndarray, at: int) -> np.ndarray:
    """Return `PARALLEL_SAMPLES` samples from the `at`-th on, the last one repeated where there are fewer."""
    return pad_to_vector(array[at : at + PARALLEL_SAMPLES])


def extract_submodel(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    inputs: Mapping[str, ir.Value],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    """Return `nodes` of `model` as a model of their own, of open shapes.

    Inputs and constants by name.
    """
    graph = onnx.GraphProto(name="island")
    graph.node.extend(ir.node_proto(node) for node in nodes)
    graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items()
    )
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


def _hash_model(proto: onnx.ModelProto) -> bytes:
    """Return what tells models of float nodes apart, piece by piece.

    As a whole one may be too large for protobuf.
    """
    made = hashlib.blake2b(digest_size=16)
    graph = proto.graph
    for piece in (
        *proto.opset_import,
        *proto.functions,
        *graph.initializer,
        *graph.node,
        *graph.input,
        *graph.output,
    ):
        content = piece.SerializeToString(deterministic=True)
        made.update(len(content).to_bytes(8, "little"))
        made.update(content)
    return made.digest()


class FloatFallback(NumpyKernel):
    """Float nodes between integer ones, run by onnxruntime as one step of a simulator program.

    nodes : consecutive nodes of the graph. The step's inputs and outputs are `inputs` and
    `outputs`, in that order. A sample's outputs are the same in any batch, to the last bit: see
    `choose_batching`. Sample by sample when the nodes mix samples or were written for one sample
    only.

    fallback_sessions : {digest: session} of islands that are shared; one of the same nodes and
    constants is taken from there, or put there.
    """

    def __init__(
        self,
        model: ir.Model,
        nodes: Sequence[ir.Node],
        keep: Collection[str],
        fallback_sessions: FallbackSessionCache | None = None,
    ) -> None:
        self._opened = {} if fallback_sessions is None else fallback_sessions
        inside = {str(out.name) for node in nodes for out in node.outputs if out.name}
        outside_reads = {
            str(v.name)
            for node in nodes
            for v in node.outputs
            if v.name in keep
            or v.is_graph_output()
            or any(use.node not in nodes for use in v.uses())
        }
        seen: dict[str, ir.Value] = {}
        constants: dict[str, ir.Value] = {}
        for node in nodes:
            for value in iter_read_values(node):
                if value is None or value.name in inside:
                    continue
                (constants if ir.find_constant(value) is not None else seen)[str(value.name)] = (
                    value
                )
        self.inputs = tuple(seen)
        self.outputs = tuple(
            str(o.name) for node in nodes for o in node.outputs if o.name in outside_reads
        )
        self.names = tuple(str(node.name) for node in nodes)
        #: The nodes as a model of their own.
        self.proto = extract_submodel(
            model, nodes, seen, self.outputs, {n: _constant_array(v) for n, v in constants.items()}
        )
        self._nodes = tuple(nodes)
        self._batching, self._times = Batching.SINGLE, 1
        self._session: OrtSession | None = None
        self._abreast: OrtSession | None = None
        self._mixes: bool | None = None
        self._specs: tuple[TensorSpec, ...] = ()
        #: Whether axis 0 of some input or output is no batch axis: then arrays are taken as they come.
        self._whole = any(
            node.op_type in (*operators.SHAPE_QUERY_OPS, "NonZero") and not node.domain
            for node in nodes
        )

    def _open_session(self, proto: onnx.ModelProto) -> OrtSession:
        key = _hash_model(proto)
        if key not in self._opened:
            self._opened[key] = open_ort_session(proto, f"float node {self.names[0]}", threads=1)
        return self._opened[key]

    def _run(self, arrays: Sequence[np.ndarray], several: bool = False) -> list[np.ndarray]:
        """Compute; several : `PARALLEL_SAMPLES` samples, each by itself."""
        if several and self._abreast is None:
            self._abreast = self._open_session(build_parallel_model(self.proto))
        elif self._session is None:
            self._session = self._open_session(self.proto)
        session = self._abreast if several else self._session
        assert session is not None
        try:
            return list(
                session.run(list(self.outputs), dict(zip(self.inputs, arrays, strict=True)))
            )
        except Exception as error:
            raise ModelError(
                f"float node {self.names[0]} does not run ({explain_ort_error(error)}); does the "
                "model run in "
                "onnxruntime?"
            ) from error

    def run_batch(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of one run on `arrays` as they are; ModelError where that fails."""
        return self._check_results(self._run(arrays))

    def _check_results(self, results: Sequence[Any]) -> list[np.ndarray]:
        """Return `results`; ModelError where one is text, a sequence, or nothing at all."""
        for name, result in zip(self.outputs, results, strict=True):
            if isinstance(result, np.ndarray) and not result.dtype.hasobject:
                continue
            kind = {np.ndarray: "text", list: "a sequence"}.get(
                type(result), f"a {type(result).__name__}"
            )
            raise ModelError(
                f"float node {self.names[0]}: '{name}' is {kind}; float nodes beside integers hand "
                "on tensors of "
                "numbers only: leave it to the program around the model, or take a sequence apart "
                "where it is made"
            )
        return list(results)

    def needs_single_samples(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether the inputs `arrays`, batch on axis 0, are several samples that must be computed one by one."""
        count = arrays[0].shape[0] if arrays and arrays[0].ndim else 1
        return count != 1 and not self._whole and self._mixes_samples(arrays)

    def _mixes_samples(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether two samples together give something else than each gives alone."""
        if self._mixes is None:
            rng = np.random.default_rng(0)
            ones = [[_random_like(rng, a[:1]) for a in arrays] for _ in range(2)]
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
        """Compute the outputs of a batch.

        ModelError when their shapes are not those that `infer` found.
        """
        results = self._compute(arrays)
        for name, result, spec in zip(self.outputs, results, self._specs, strict=False):
            if result.shape[1:] != spec.shape[1:] or (self._whole and result.shape != spec.shape):
                raise ModelError(
                    f"float node {self.names[0]}: the shape of '{name}' depends on the values it "
                    "is given; "
                    "take the node out, and compute it in your program"
                )
        return results

    def _compute(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        if self._whole or not arrays:
            return tuple(self._run([align_array(a) for a in arrays]))
        count, how = len(arrays[0]), self._batching
        if how is Batching.FLATTENED:
            shape = arrays[0].shape
            return tuple(
                r.reshape(-1)[: arrays[0].size].reshape(shape)
                for r in self._run([flatten_padded(a) for a in arrays])
            )
        if how is Batching.REPEATED:
            if not self._mixes_samples(arrays):
                results = self._run([repeat_samples(a, self._times) for a in arrays])
                return tuple(np.ascontiguousarray(result[:: self._times]) for result in results)
            how = Batching.PARALLEL
        if how is Batching.PARALLEL and count >= _MIN_PARALLEL_SAMPLES:
            runs = [
                self._run([_take_padded_chunk(a, at) for a in arrays], True)
                for at in range(0, count, PARALLEL_SAMPLES)
            ]
            return tuple(np.concatenate(column)[:count] for column in zip(*runs, strict=True))
        if how in (Batching.SINGLE, Batching.PARALLEL) or (
            (count > 1 or how is Batching.PADDED) and self._mixes_samples(arrays)
        ):
            parts = [self._run(sample) for sample in zip(*map(split_aligned, arrays), strict=True)]
            return tuple(np.concatenate(column) for column in zip(*parts, strict=True))
        if how is Batching.PADDED:
            return tuple(result[:count] for result in self._run([pad_to_vector(a) for a in arrays]))
        return tuple(self._run([align_array(a) for a in arrays]))

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the outputs' specs, by running on zeros.

        The inputs are of the types given, whatever the file says.
        """
        for value, spec in zip(self.proto.graph.input, specs, strict=True):
            value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(spec.dtype)
        self._whole = self._whole or any(spec.shape[:1] != (1,) for spec in specs)
        try:
            results = self._run([np.zeros(spec.shape, spec.dtype) for spec in specs])
        except ModelError as error:
            whole = [
                spec.dtype.kind in "iu" and spec.dtype.itemsize >= 4 for spec in specs
            ]  # such as a shape has
            numbers = [name for name, is_whole in zip(self.inputs, whole, strict=True) if is_whole]
            if not numbers:
                raise
            raise ModelError(
                f"float node {self.names[0]}: its sizes depend on the values of "
                f"{', '.join(numbers)}; where that is a "
                "setting, fix it with --fix NAME=VALUE"
            ) from error
        self._check_results(results)
        self._whole = self._whole or any(result.shape[:1] != (1,) for result in results)
        self._specs = tuple(TensorSpec(result.shape, result.dtype) for result in results)
        self._times = repeats_to_fill_vectors((*specs, *self._specs))
        self._batching = choose_batching(
            self._nodes, self.proto.graph.initializer, (*specs, *self._specs)
        )
        return self._specs

    def supports_batch(self, specs: Sequence[TensorSpec], batched: Sequence[bool]) -> bool:
        """Every input and output has the batch on axis 0."""
        return not self._whole
