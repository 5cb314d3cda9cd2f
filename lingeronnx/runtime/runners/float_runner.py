"""Run a complete float model: `FloatRunner` for its tensors, `ShapeRunner` for their shapes.

Running a model yields a stream in graph order: `(tensor name, array, qparams or None)`. An
onnxruntime session keeps all requested tensors in memory until a run ends. If that is too much, the
model is split into stages that run one after the other; no node is computed twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx

from ...common.errors import ModelError
from ...ir import ir
from ...ir.batch_axes import guess_batch_axis, infer_batch_axes
from ...ir.plan import Affine
from ..data import InputSpec
from .missing_kernels import replace_missing_kernels
from .ort_errors import explain_ort_error
from .sessions import open_ort_session, run_session, to_array

if TYPE_CHECKING:
    from .sessions import OrtSession

__all__ = [
    "FloatRunner",
    "Item",
    "ShapeRunner",
    "Stream",
    "get_input_specs",
    "ModelStage",
    "group_tensors_by_size",
    "split_into_stages",
]

#: Maximum bytes of one sample's requested tensors in one session.
MAX_STAGE_BYTES = 1 << 26

#: (tensor, array, quantization parameters of integers or None)
Item = tuple[str, np.ndarray, Affine | None]
Stream = Iterator[Item]


def get_input_specs(model: ir.Model) -> list[InputSpec]:
    """Return the specs of the graph inputs of `model` that are fed: those without a default value.

    The dtype is float32 if unknown; the batch axis is the inferred one, else 0.
    """
    specs, axes = [], infer_batch_axes(model)
    for value in model.graph.inputs:
        if value.const_value is None:
            dtype = np.dtype(np.float32) if value.dtype is None else value.dtype.numpy()
            name = str(value.name)
            specs.append(InputSpec(name, ir.get_shape(value), np.dtype(dtype), axes.get(name, 0)))
    return specs


def _clear_folded_batch_dims(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Make axis 0 unknown in `proto` for tensors that have samples and another axis on axis 0.

    In place. It is declared as N, and onnxruntime assumes tensors with equal symbols to be equally
    large: they would share memory.
    """
    folded = {str(value.name) for value in ir.iter_values(model) if ir.has_folded_batch(value)}
    for info in proto.graph.value_info:
        if info.name in folded:
            info.type.tensor_type.shape.dim[0].Clear()


class ShapeRunner:
    """Computes the shapes of all tensors of a float model, releasing tensors as early as possible.

    Raises
    ------
    ModelError
        If onnxruntime does not support the model, or a value is not a tensor.
    """

    def __init__(self, model: ir.Model) -> None:
        """Open a session that returns the shapes of all tensors of `model` except its inputs.

        A Shape node is added per tensor, in a copy. Raises ModelError if onnxruntime does not
        support the model.
        """
        proto, self._external_constants = ir.detach_large_constants(model)
        self._inputs = [str(v.name) for v in model.graph.inputs if v.const_value is None]
        names = [str(value.name) for value in ir.iter_values(model)]
        self._names = [name for name in names if name not in self._inputs]
        del proto.graph.output[:]
        del proto.graph.value_info[:]  # shapes in the file may be wrong
        for name in self._names:
            proto.graph.node.add(op_type="Shape", input=[name], output=[f"{name}#shape"])
            proto.graph.output.append(onnx.ValueInfoProto(name=f"{name}#shape"))
        self._session = open_ort_session(
            proto,
            "the float model",
            external_constants=self._external_constants,
            disable_optimizations=True,
        )

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor by name, inputs included, for the arrays in `feed`.

        Raises
        ------
        ModelError
            If the model does not run on `feed`.
        """
        inputs = {name: np.asarray(feed[name]) for name in self._inputs}
        try:
            results = self._session.run([f"{name}#shape" for name in self._names], inputs)
        except Exception as error:
            raise ModelError(_format_run_error(inputs, error)) from error
        shapes = {name: array.shape for name, array in inputs.items()}
        for name, shape in zip(self._names, results, strict=True):
            shapes[name] = tuple(map(int, shape))
        return shapes


def _format_run_error(inputs: Mapping[str, np.ndarray], error: Exception) -> str:
    """Format the message for `error`, raised by a run on `inputs`, with the shape of each input."""
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
    return (
        f"the model does not run on inputs {shapes}: {explain_ort_error(error)}; pass shapes "
        "that it supports"
    )


class FloatRunner:
    """Runs a float model in onnxruntime and yields all tensors, or those named.

    Parameters
    ----------
    model
        A graph before lowering.
    outputs
        Tensors to yield; None for all.
    splits_batches
        Whether samples run one by one if the model fails on a batch and runs on its first sample: a
        file may leave the batch open and yet take one sample.

    Raises
    ------
    ModelError
        If onnxruntime does not support the model.
    """

    def __init__(
        self,
        model: ir.Model,
        outputs: Collection[str] | None = None,
        *,
        splits_batches: bool = False,
    ) -> None:
        """Split the model into stages, and open a session for each.

        There is one stage unless the tensors are too large to be in memory at once. `outputs` are
        the tensors that `run` can yield, None for all. Raises ModelError if onnxruntime does not
        support the model. Operators that it lacks are replaced by their function bodies, in a copy.
        """
        model = replace_missing_kernels(model)
        proto, self._external_constants = ir.detach_large_constants(model)
        _clear_folded_batch_dims(proto, model)
        values = list(ir.iter_values(model))
        self._names = [str(v.name) for v in values if outputs is None or v.name in outputs]
        self._inputs = [str(v.name) for v in model.graph.inputs if v.const_value is None]
        del proto.graph.output[:]
        specs = get_input_specs(model)
        #: Inputs of a model for single samples: larger batches run one by one.
        self._single_sample_specs = {spec.name: spec for spec in specs if spec.is_single_sample}
        #: Inputs of any number of samples, of which a failed batch is divided.
        self._divisible_specs = {
            spec.name: spec
            for spec in specs
            if splits_batches and spec.axis is not None and spec.accepts_any_batch
        }
        #: Whether all input shapes are known; otherwise open axes are no sign of a batch axis.
        self._has_known_shapes = all(
            spec.shape is not None and None not in spec.shape for spec in specs
        )
        self._model = model
        #: Groups of outputs that are in memory at once; several for a model with large tensors.
        self.groups = group_tensors_by_size(
            model, [name for name in self._names if name not in self._inputs]
        )
        if len(self.groups) == 1:
            self._stages = [ModelStage(proto, self._inputs, self.groups[0], ())]
        else:
            types = {str(value.name): int(value.dtype or 0) for value in values}
            self._stages = split_into_stages(proto, self.groups, types)
        self._sessions: list[OrtSession] = []
        for stage in self._stages:
            stage.proto.graph.output.extend(
                onnx.ValueInfoProto(name=name) for name in (*stage.outputs, *stage.handed_on)
            )
            self._sessions.append(
                open_ort_session(
                    stage.proto, "the float model", external_constants=self._external_constants
                )
            )

    @cached_property
    def _axes(self) -> dict[str, int]:
        """The batch axis of every tensor by name.

        It is computed at first use, because shapes of the graph may be inferred after this runner
        was created.
        """
        axes = {}
        for value in ir.iter_values(self._model):
            axes[str(value.name)] = guess_batch_axis(value) if self._has_known_shapes else 0
        for name, spec in self._single_sample_specs.items():
            axes[name] = spec.axis or 0
        return axes

    def has_batch_first(self, names: Collection[str]) -> bool:
        """Whether all of the tensors `names` have the batch on axis 0."""
        return not any(self._axes[name] for name in names)

    def run(self, feed: Mapping[str, np.ndarray], names: Collection[str] | None = None) -> Stream:
        """Run a batch and yield `(name, array, None)`, with arrays as onnxruntime computes them.

        `names` are the tensors to yield, of the runner's outputs; None for all. Samples of a model
        for single samples run one by one and are concatenated along the batch axis. Raises
        ModelError if onnxruntime fails.
        """
        outputs = [name for name in self._names if names is None or name in names]
        inputs = {name: np.asarray(feed[name]) for name in self._inputs}
        specs = self._single_sample_specs
        count = max((spec.count_samples(inputs[name]) for name, spec in specs.items()), default=1)
        if count == 1:
            yield from self._run_batch(inputs, outputs)
            return
        runs = [list(self._run(self._slice_sample(inputs, i), outputs)) for i in range(count)]
        for items in zip(*runs, strict=True):
            name, arrays = items[0][0], [np.atleast_1d(array) for _, array, _ in items]
            axis = self._axes[name]
            if arrays[0].shape[axis:][:1] != (1,):
                axis = 0  # the axis is dynamic for another reason
            yield name, np.concatenate(arrays, axis), None

    def _run_batch(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Stream:
        """Run a batch, or its samples one by one if that fails and `splits_batches` was set.

        Yields like `run`. An error behind the first tensor that is no input, which only a model in
        stages can raise, is passed on.
        """
        stream = self._run(inputs, outputs)
        head = []
        try:
            for item in stream:
                head.append(item)
                if item[0] not in self._inputs:
                    break
        except ModelError:
            if not self._switch_to_single_samples(inputs):
                raise
            yield from self.run(inputs, outputs)
            return
        yield from head
        yield from stream

    def _switch_to_single_samples(self, inputs: Mapping[str, np.ndarray]) -> bool:
        """Run samples one by one from now on, if the model takes the first one of `inputs`.

        Returns whether it does: it runs on that sample, and each graph output has one sample then.
        If it does not, or there is only one sample, nothing changes.
        """
        specs, previous = self._divisible_specs, self._single_sample_specs
        if max((spec.count_samples(inputs[name]) for name, spec in specs.items()), default=1) == 1:
            return False
        self._single_sample_specs = specs
        self.__dict__.pop("_axes", None)  # depends on the inputs of single samples
        outputs = [name for name in ir.get_output_names(self._model) if name in self._names]
        try:
            first = self._run(self._slice_sample(inputs, 0), outputs or self._names[-1:])
            is_single = all(array.shape[self._axes[name]] == 1 for name, array, _ in first)
        except (ModelError, IndexError):  # an output without that axis
            is_single = False
        if is_single:
            self._divisible_specs = {}
        else:
            self._single_sample_specs = previous
            self.__dict__.pop("_axes", None)
        return is_single

    def _slice_sample(self, inputs: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
        """Return a copy of `inputs` with only sample `index` of those that take a single sample."""
        sample = dict(inputs)
        for name, spec in self._single_sample_specs.items():
            sample[name] = spec.slice_samples(inputs[name], index, index + 1)
        return sample

    def _run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Stream:
        """Run the stages that are needed, and yield (name, array, None) of the tensors `outputs`.

        Graph inputs come first, then the other tensors stage by stage. Arrays are released as soon
        as no later stage reads them. Raises ModelError if onnxruntime fails.
        """
        yield from ((name, inputs[name], None) for name in outputs if name in inputs)
        arrays: dict[str, Any] = dict(inputs)
        remaining = {name for name in outputs if name not in inputs}
        for index, (stage, session) in enumerate(zip(self._stages, self._sessions, strict=True)):
            if not remaining:
                return
            later_inputs = set[str]().union(*(later.inputs for later in self._stages[index + 1 :]))
            needed = remaining | later_inputs
            fetched = [name for name in (*stage.outputs, *stage.handed_on) if name in needed]
            results: dict[str, Any] = {}
            if fetched:
                feeds = {name: arrays[name] for name in stage.inputs}
                try:
                    results.update(zip(fetched, run_session(session, fetched, feeds), strict=True))
                except Exception as error:
                    raise ModelError(_format_run_error(inputs, error)) from error
                del feeds
            arrays = {
                name: value for name, value in {**arrays, **results}.items() if name in later_inputs
            }
            for name in stage.outputs:
                if name in remaining:  # popped, so that only the caller keeps the array
                    yield name, to_array(results.pop(name)), None
            remaining.difference_update(stage.outputs)


class ModelStage(NamedTuple):
    """Nodes that run together.

    proto : model without declared outputs. inputs : tensors that it consumes. outputs : requested
    tensors. handed_on : other tensors that later stages consume.
    """

    proto: onnx.ModelProto
    inputs: Sequence[str]
    outputs: Sequence[str]
    handed_on: Sequence[str]


def group_tensors_by_size(model: ir.Model, names: Sequence[str]) -> list[list[str]]:
    """Group consecutive tensors that have together at most `MAX_STAGE_BYTES` bytes per sample.

    An element counts as 4 bytes. The order is that of `names`; a larger tensor is in a group of its
    own. There is one group if shapes or types are not known, or nodes have subgraphs.
    """
    values = {str(value.name): value for value in ir.iter_values(model)}
    has_subgraphs = any(ir.has_subgraphs(node) for node in model.graph)
    if has_subgraphs or any(v.dtype is None or v.shape is None for v in values.values()):
        return [list(names)]
    groups: list[list[str]] = [[]]
    group_bytes = 0
    for name in names:
        tensor_bytes = 4 * math.prod(int(size or 1) for size in ir.get_shape(values[name]) or ())
        if groups[-1] and group_bytes + tensor_bytes > MAX_STAGE_BYTES:
            groups.append([])
            group_bytes = 0
        groups[-1].append(name)
        group_bytes += tensor_bytes
    return groups


def split_into_stages(
    proto: onnx.ModelProto, groups: Sequence[Sequence[str]], types: Mapping[str, int]
) -> list[ModelStage]:
    """Split a model into one stage per group of requested tensors.

    A stage ends after the last node of its group. Nodes that no requested tensor depends on are
    removed. `proto` is not modified.

    Parameters
    ----------
    proto
        The model.
    groups
        Requested tensors, in graph order.
    types
        ONNX element types of all tensors.
    """
    nodes = _find_ancestors(proto, set(itertools.chain.from_iterable(groups)))
    position: dict[str, int] = {}
    for index, node in enumerate(nodes):
        position.update(dict.fromkeys(node.output, index))
    stages, start = [], 0
    for group_index, group in enumerate(groups):
        end = len(nodes)
        if group_index < len(groups) - 1:
            end = max(start, *(position[name] + 1 for name in group))
        later_inputs = set(itertools.chain.from_iterable(node.input for node in nodes[end:]))
        stages.append(_make_stage(proto, nodes[start:end], group, later_inputs, types))
        start = end
    return stages


def _make_stage(
    proto: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    later_inputs: set[str],
    types: Mapping[str, int],
) -> ModelStage:
    """Make a stage of the consecutive `nodes` of `proto`, which is not modified.

    `outputs` are the tensors that it yields, `later_inputs` those that later stages consume, which
    are handed on unless they are in `outputs`; `types` maps tensors to ONNX element types.
    """
    computed = set(itertools.chain.from_iterable(node.output for node in nodes))
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    consumed = dict.fromkeys(itertools.chain.from_iterable(node.input for node in nodes))
    external = [name for name in consumed if name and name not in computed]
    inputs = [name for name in external if name not in constants]
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    graph = model.graph
    del graph.node[:], graph.initializer[:], graph.input[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(constants[name] for name in external if name in constants)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(name, types[name], None) for name in inputs
    )
    handed_on = sorted(name for name in computed & later_inputs if name not in outputs)
    return ModelStage(model, inputs, list(outputs), handed_on)


def _find_ancestors(proto: onnx.ModelProto, names: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes on which tensors `names` depend, producers included, in graph order.

    Tensors that only subgraphs read are not followed.
    """
    needed, nodes = set(names), []
    for node in reversed(proto.graph.node):
        if not needed.isdisjoint(node.output):
            nodes.append(node)
            needed.update(name for name in node.input if name)
    return nodes[::-1]
