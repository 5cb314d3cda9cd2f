"""Run float nodes between integer ones in onnxruntime, as one step of a simulator program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from simulator.kernel import NumpyKernel, TensorSpec

from ...common.errors import ModelError
from ...common.hashing import hash_framed_parts
from ...ir import float_ops, ir
from ...ir.function_bodies import has_body_for_ranks
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
    "collect_inputs",
    "extract_submodel",
]

#: Sessions of float nodes, by a digest of the nodes and their constants.
FallbackSessionCache = dict[bytes, "OrtSession"]


def _random_like(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    """Return random values of the shape and type of `like`: normal floats, or integers 0 and 1.

    The latter are valid indices as well.
    """
    if like.dtype.kind == "f":
        return rng.standard_normal(like.shape).astype(like.dtype)
    return rng.integers(0, 2, like.shape).astype(like.dtype)


def collect_inputs(
    nodes: Sequence[ir.Node],
) -> tuple[dict[str, ir.Value], dict[str, np.ndarray]]:
    """Return the variable and the constant inputs of some nodes, by name.

    Tensors that the nodes compute themselves are left out.
    """
    computed: set[str] = set()
    for node in nodes:
        computed.update(str(value.name) for value in node.outputs if value.name)
    variables: dict[str, ir.Value] = {}
    constants: dict[str, np.ndarray] = {}
    for node in nodes:
        for value in ir.iter_read_values(node):
            if value is None or value.name in computed:
                continue
            array = ir.find_constant(value)
            if array is not None:
                constants[str(value.name)] = array
            else:
                variables[str(value.name)] = value
    return variables, constants


def _list_outputs(nodes: Sequence[ir.Node], keep: Collection[str]) -> list[str]:
    """Return the outputs of `nodes` that are in `keep`, graph outputs, or consumed by other nodes.

    The names are in the order of the nodes.
    """
    outputs = []
    for node in nodes:
        for value in node.outputs:
            is_consumed = any(use.node not in nodes for use in value.uses())
            if value.name in keep or value.is_graph_output() or is_consumed:
                outputs.append(str(value.name))
    return outputs


#: Number of samples for which one parallel call is faster than single calls.
_MIN_PARALLEL_SAMPLES = 3


def _take_padded_chunk(array: np.ndarray, start: int) -> np.ndarray:
    """Return `PARALLEL_SAMPLES` samples from index `start` on.

    The last sample is repeated if there are fewer.
    """
    return pad_to_vector(array[start : start + PARALLEL_SAMPLES])


def extract_submodel(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    inputs: Mapping[str, ir.Value],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    """Return some nodes of `model` as a separate model without declared sizes.

    Parameters
    ----------
    model
        The model; its opsets and functions are copied.
    nodes
        Nodes of the model, in order.
    inputs
        Variable inputs of the nodes, by name.
    outputs
        Tensors to output.
    constants
        Constant inputs of the nodes, by name.
    """
    graph = onnx.GraphProto(name="island")
    graph.node.extend(ir.serialize_node(node) for node in nodes)
    graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    # Where onnxruntime inlines such a body, it builds it for the declared ranks. Functions of
    # single elements are also run on flattened arrays.
    opset = ir.get_opset(model)
    needs_ranks = any(
        node.op_type not in float_ops.UNARY_ELEMENTWISE_OPS and has_body_for_ranks(node, opset)
        for node in nodes
    )
    for name, value in inputs.items():
        elem_type = onnx.TensorProto.FLOAT if value.dtype is None else int(value.dtype)
        shape = ir.get_shape(value) if needs_ranks else None
        dims = None if shape is None else [None] * len(shape)
        graph.input.append(onnx.helper.make_tensor_value_info(name, elem_type, dims))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    proto = onnx.ModelProto(ir_version=max(model.ir_version or 8, 8), graph=graph)
    domains = {"", "ai.onnx", *(node.domain for node in nodes)}
    for domain, version in model.opset_imports.items():
        if domain in domains:
            proto.opset_import.append(onnx.helper.make_opsetid(domain, version))
    for function in model.functions.values():
        proto.functions.append(ir.serialize_function(function))
    return proto


def _hash_model(proto: onnx.ModelProto) -> bytes:
    """Return a digest of `proto`'s opsets, functions, constants, nodes, inputs and outputs.

    They are hashed one by one, because protobuf cannot serialize more than 2 GB.
    """
    graph = proto.graph
    components = (
        *proto.opset_import,
        *proto.functions,
        *graph.initializer,
        *graph.node,
        *graph.input,
        *graph.output,
    )
    return hash_framed_parts(
        component.SerializeToString(deterministic=True) for component in components
    )


def _concatenate_outputs(runs: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, ...]:
    """Concatenate each output over several runs on axis 0; one array per output."""
    return tuple(np.concatenate(arrays) for arrays in zip(*runs, strict=True))


class FloatFallback(NumpyKernel):
    """Float nodes between integer ones, run by onnxruntime as one step of a simulator program.

    A sample's outputs are bit-equal in any batch. Samples run one by one if the nodes mix samples
    or were written for one sample only.

    Parameters
    ----------
    model
        The graph.
    nodes
        Consecutive nodes of the graph.
    keep
        Tensors to output in addition to those that other nodes consume.
    fallback_sessions
        {digest: session} of float nodes to share; a session of equal nodes is taken from it, or
        added.

    Attributes
    ----------
    inputs, outputs
        Tensors of the step, in order.
    proto
        The nodes as a separate model.
    """

    def __init__(
        self,
        model: ir.Model,
        nodes: Sequence[ir.Node],
        keep: Collection[str],
        fallback_sessions: FallbackSessionCache | None = None,
    ) -> None:
        """Extract `nodes` as a separate model; sessions are opened when first needed.

        `keep` are tensors to output besides those consumed outside; `fallback_sessions` (digest ->
        session) is shared with other fallbacks.
        """
        self._fallback_sessions = {} if fallback_sessions is None else fallback_sessions
        variables, constants = collect_inputs(nodes)
        self.inputs = tuple(variables)
        self.outputs = tuple(_list_outputs(nodes, keep))
        self.names = tuple(str(node.name) for node in nodes)
        self.proto = extract_submodel(model, nodes, variables, self.outputs, constants)
        self._nodes = tuple(nodes)
        self._batching, self._times = Batching.SINGLE, 1
        self._session: OrtSession | None = None
        self._parallel_session: OrtSession | None = None
        self._mixes: bool | None = None
        self._specs: tuple[TensorSpec, ...] = ()
        #: Whether axis 0 of an input or output is not a batch axis: then arrays are run unchanged.
        self._has_no_batch_axis = any(
            node.op_type in (*float_ops.SHAPE_QUERY_OPS, "NonZero") and not node.domain
            for node in nodes
        )

    def _open_session(self, proto: onnx.ModelProto) -> OrtSession:
        """Return a session of one thread on `proto`.

        Equal models share a session of the cache; raises ModelError if onnxruntime does not support
        it.
        """
        key = _hash_model(proto)
        if key not in self._fallback_sessions:
            self._fallback_sessions[key] = open_ort_session(
                proto, f"float node {self.names[0]}", threads=1
            )
        return self._fallback_sessions[key]

    def _run(self, arrays: Sequence[np.ndarray], parallel: bool = False) -> list[np.ndarray]:
        """Run onnxruntime on `arrays`, the inputs in order; return the outputs.

        If `parallel`, the arrays have `PARALLEL_SAMPLES` samples that are computed separately. The
        session is opened at the first run. Raises ModelError if it fails.
        """
        if parallel and self._parallel_session is None:
            self._parallel_session = self._open_session(build_parallel_model(self.proto))
        elif self._session is None:
            self._session = self._open_session(self.proto)
        session = self._parallel_session if parallel else self._session
        assert session is not None
        try:
            feeds = dict(zip(self.inputs, arrays, strict=True))
            return list(session.run(list(self.outputs), feeds))
        except Exception as error:
            raise ModelError(
                f"float node {self.names[0]} does not run ({explain_ort_error(error)}); check that "
                "the model runs in onnxruntime"
            ) from error

    def run_batch(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run `arrays` once, unchanged, and return the outputs.

        Raises
        ------
        ModelError
            If onnxruntime fails, or an output is not a numeric tensor.
        """
        return self._check_results(self._run(arrays))

    def _check_results(self, results: Sequence[Any]) -> list[np.ndarray]:
        """Return `results`, one per output, as a list.

        Raises ModelError if one is text, a sequence or missing.
        """
        for name, result in zip(self.outputs, results, strict=True):
            if isinstance(result, np.ndarray) and not result.dtype.hasobject:
                continue
            descriptions = {np.ndarray: "text", list: "a sequence"}
            result_type = type(result)
            description = descriptions.get(result_type, f"a {result_type.__name__}")
            raise ModelError(
                f"float node {self.names[0]}: '{name}' is {description}; float nodes between "
                "integer nodes can only pass numeric tensors; handle this in the calling program, "
                "or split the sequence where it is created"
            )
        return list(results)

    def needs_single_samples(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether `arrays` are several samples, batch on axis 0, that must run one by one.

        They must if samples of one batch affect each other's results, which is tried once. Arrays
        without a batch axis are one sample.
        """
        count = arrays[0].shape[0] if arrays and arrays[0].ndim else 1
        return count != 1 and not self._has_no_batch_axis and self._mixes_samples(arrays)

    def _mixes_samples(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether two random samples in one batch have other results than separately; tried once.

        `arrays` give the shapes and types of the inputs.
        """
        if self._mixes is None:
            rng = np.random.default_rng(0)
            first = [_random_like(rng, array[:1]) for array in arrays]
            second = [_random_like(rng, array[:1]) for array in arrays]
            self._mixes = not self._is_batch_independent(first, second)
        return self._mixes

    def _is_batch_independent(
        self, first: Sequence[np.ndarray], second: Sequence[np.ndarray]
    ) -> bool:
        """Whether a batch of two samples gives the results of both samples, up to rounding.

        False also if the batch does not run.
        """
        first_results, second_results = self._run(first), self._run(second)
        try:
            batch = [np.concatenate(pair) for pair in zip(first, second, strict=True)]
            for result, a, b in zip(self._run(batch), first_results, second_results, strict=True):
                if result.shape != (2 * a.shape[0], *a.shape[1:]):
                    return False
                expected = np.concatenate([a, b])
                if not np.allclose(result, expected, rtol=1e-4, atol=1e-5, equal_nan=True):
                    return False
        except (ModelError, ValueError, IndexError):
            return False
        return True

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Compute the outputs of a batch; arrays are in the order of `inputs` and `outputs`.

        Raises
        ------
        ModelError
            If the shapes of the results are not those inferred before, or onnxruntime fails.
        """
        results = self._compute(arrays)
        for name, result, spec in zip(self.outputs, results, self._specs, strict=False):
            if result.shape[1:] != spec.shape[1:] or (
                self._has_no_batch_axis and result.shape != spec.shape
            ):
                raise ModelError(
                    f"float node {self.names[0]}: the shape of '{name}' depends on input values; "
                    "remove the node, and compute it in the calling program"
                )
        return results

    def _compute(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Compute the outputs of a batch so that each sample is bit-equal in any batch.

        The chosen batching is used; samples run one by one if they would mix. Without a batch axis
        the arrays are run unchanged.
        """
        if self._has_no_batch_axis or not arrays:
            return tuple(self._run([align_array(array) for array in arrays]))
        count, batching = len(arrays[0]), self._batching
        if batching is Batching.FLATTENED:
            return self._compute_flattened(arrays)
        if batching is Batching.REPEATED:
            if not self._mixes_samples(arrays):
                return self._compute_repeated(arrays)
            batching = Batching.PARALLEL
        if batching is Batching.PARALLEL and count >= _MIN_PARALLEL_SAMPLES:
            return self._compute_parallel(arrays)
        is_separate = batching in (Batching.SINGLE, Batching.PARALLEL)
        has_several_samples = count > 1 or batching is Batching.PADDED
        if is_separate or (has_several_samples and self._mixes_samples(arrays)):
            samples = zip(*map(split_aligned, arrays), strict=True)
            return _concatenate_outputs([self._run(sample) for sample in samples])
        if batching is Batching.PADDED:
            results = self._run([pad_to_vector(array) for array in arrays])
            return tuple(result[:count] for result in results)
        return tuple(self._run([align_array(array) for array in arrays]))

    def _compute_flattened(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Compute elementwise nodes in one run on all elements as one padded line.

        All inputs and outputs have the shape of the first array.
        """
        shape, size = arrays[0].shape, arrays[0].size
        results = self._run([flatten_padded(array) for array in arrays])
        return tuple(result.reshape(-1)[:size].reshape(shape) for result in results)

    def _compute_repeated(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Run a batch with each sample repeated, so that it is aligned; return the first copies."""
        results = self._run([repeat_samples(array, self._times) for array in arrays])
        return tuple(np.ascontiguousarray(result[:: self._times]) for result in results)

    def _compute_parallel(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Compute a batch in runs of `PARALLEL_SAMPLES` samples that are computed separately.

        The last run is padded with the last sample.
        """
        count, runs = len(arrays[0]), []
        for start in range(0, count, PARALLEL_SAMPLES):
            chunks = [_take_padded_chunk(array, start) for array in arrays]
            runs.append(self._run(chunks, parallel=True))
        return tuple(output[:count] for output in _concatenate_outputs(runs))

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the types of the outputs for inputs of `specs`, by running on zeros.

        It also chooses the batching of later runs, and replaces the types of inputs in the file by
        those of `specs`. ModelError if the node does not run on zeros, as when shapes depend on the
        values of inputs.
        """
        for value, spec in zip(self.proto.graph.input, specs, strict=True):
            value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(spec.dtype)
        self._has_no_batch_axis |= any(spec.shape[:1] != (1,) for spec in specs)
        try:
            results = self._run([np.zeros(spec.shape, spec.dtype) for spec in specs])
        except ModelError as error:
            shape_inputs = self._find_shape_inputs(specs)
            if not shape_inputs:
                raise
            raise ModelError(
                f"float node {self.names[0]}: its shapes depend on the values of "
                f"{', '.join(shape_inputs)}; if that is a setting, fix it with --fix NAME=VALUE"
            ) from error
        self._check_results(results)
        self._has_no_batch_axis |= any(result.shape[:1] != (1,) for result in results)
        self._specs = tuple(TensorSpec(result.shape, result.dtype) for result in results)
        all_specs = (*specs, *self._specs)
        self._times = repeats_to_fill_vectors(all_specs)
        self._batching = choose_batching(self._nodes, self.proto.graph.initializer, all_specs)
        return self._specs

    def _find_shape_inputs(self, specs: Sequence[TensorSpec]) -> list[str]:
        """Return the names of integer inputs of at least 32 bits, which may contain shapes.

        `specs` has one entry per input, in order.
        """
        names = []
        for name, spec in zip(self.inputs, specs, strict=True):
            if spec.dtype.kind in "iu" and spec.dtype.itemsize >= 4:
                names.append(name)
        return names

    def supports_batch(self, specs: Sequence[TensorSpec], batched: Sequence[bool]) -> bool:
        """Whether every input and output of the step has the batch on axis 0.

        The arguments are not used.
        """
        return not self._has_no_batch_axis
