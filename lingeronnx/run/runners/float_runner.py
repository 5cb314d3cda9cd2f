"""Running a whole float model: `FloatRunner` for its tensors, `ShapeRunner` for their shapes.

A stream is what running a model yields, in graph order: `(tensor name, array, scale or None)`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ...errors import ModelError
from ...graph import ir
from ...graph.batch_axes import find_dynamic_axis, infer_batch_axes
from ...plan import Affine
from ..data import InputSpec
from .model_stages import ModelStage, group_tensors_by_size, split_into_stages
from .ort_errors import explain_ort_error
from .sessions import open_ort_session, run_session, to_array

if TYPE_CHECKING:
    from .sessions import OrtSession

__all__ = ["FloatRunner", "Item", "ShapeRunner", "Stream", "get_input_specs"]

#: (tensor, array, how its integers are held; None where it is real)
Item = tuple[str, np.ndarray, Affine | None]
Stream = Iterator[Item]


def get_input_specs(model: ir.Model) -> list[InputSpec]:
    """Return the fed inputs of `model`."""
    specs, axes = [], infer_batch_axes(model)
    for value in model.graph.inputs:
        if value.const_value is None:
            dtype = np.dtype(np.float32) if value.dtype is None else value.dtype.numpy()
            name = str(value.name)
            specs.append(InputSpec(name, ir.get_shape(value), np.dtype(dtype), axes.get(name, 0)))
    return specs


def _clear_folded_batch_dims(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Take out the first size of tensors that hold samples and something else on axis 0.

    It is written as N, and onnxruntime takes tensors whose sizes read alike for equally large: they
    share memory.
    """
    folded = {str(value.name) for value in ir.iter_values(model) if ir.has_folded_batch(value)}
    for info in proto.graph.value_info:
        if info.name in folded:
            info.type.tensor_type.shape.dim[0].Clear()


class ShapeRunner:
    """The shapes of all tensors of a float model, by runs in which no tensor is held longer than it is read.

    Raises ModelError where onnxruntime refuses the model, or can tell no shape of what is no
    tensor.
    """

    def __init__(self, model: ir.Model) -> None:
        proto, self._apart = ir.detach_large_constants(model)
        self._inputs = [str(v.name) for v in model.graph.inputs if v.const_value is None]
        self._names = [
            name for v in ir.iter_values(model) if (name := str(v.name)) not in self._inputs
        ]
        del (
            proto.graph.output[:],
            proto.graph.value_info[:],
        )  # what a file says of shapes may be wrong
        for name in self._names:
            proto.graph.node.add(op_type="Shape", input=[name], output=[f"{name}#shape"])
            proto.graph.output.append(onnx.ValueInfoProto(name=f"{name}#shape"))
        self._session = open_ort_session(
            proto, "the float model", external_constants=self._apart, disable_optimizations=True
        )

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
        """Return {tensor: shape}, the inputs among them.

        ModelError where the model does not run on `feed`.
        """
        given = {name: np.asarray(feed[name]) for name in self._inputs}
        try:
            found = self._session.run([f"{name}#shape" for name in self._names], given)
        except Exception as error:
            raise ModelError(_format_run_error(given, error)) from error
        shapes = {name: array.shape for name, array in given.items()}
        return {
            **shapes,
            **{n: tuple(map(int, shape)) for n, shape in zip(self._names, found, strict=True)},
        }


def _format_run_error(given: Mapping[str, np.ndarray], error: Exception) -> str:
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in given.items())
    return (
        f"the model does not run on inputs {shapes}: {explain_ort_error(error)}; give shapes "
        "that it runs with"
    )


class FloatRunner:
    """A float model in onnxruntime that yields all, or the named, tensors of a run.

    model : a graph before lowering.
    outputs : names to yield; None for every tensor. Raises ModelError when onnxruntime refuses the
    model.
    """

    def __init__(self, model: ir.Model, outputs: Collection[str] | None = None) -> None:
        proto, self._apart = ir.detach_large_constants(model)
        _clear_folded_batch_dims(proto, model)
        self._names = [
            str(v.name) for v in ir.iter_values(model) if outputs is None or v.name in outputs
        ]
        self._inputs = [str(v.name) for v in model.graph.inputs if v.const_value is None]
        del proto.graph.output[:]
        specs = get_input_specs(model)
        #: The inputs of a model that is written for one sample: larger batches are run one by one.
        self._single = {spec.name: spec for spec in specs if spec.is_single_sample}
        sized = all(
            spec.shape is not None and None not in spec.shape for spec in specs
        )  # else open axes mean nothing
        self._model, self._sized = model, sized
        #: Outputs that are held at once: of a model with large tensors not all.
        self.groups = group_tensors_by_size(
            model, [name for name in self._names if name not in self._inputs]
        )
        if len(self.groups) == 1:
            self._stages = [ModelStage(proto, self._inputs, self.groups[0], ())]
        else:
            self._stages = split_into_stages(
                proto, self.groups, {str(v.name): int(v.dtype or 0) for v in ir.iter_values(model)}
            )
        self._sessions = [self._open_stage(stage) for stage in self._stages]

    def _open_stage(self, stage: ModelStage) -> OrtSession:
        stage.proto.graph.output.extend(
            onnx.ValueInfoProto(name=n) for n in (*stage.outputs, *stage.handed_on)
        )
        return open_ort_session(stage.proto, "the float model", external_constants=self._apart)

    @cached_property
    def _axes(self) -> dict[str, int]:
        """The axis of the samples in every tensor.

        Asked for late, when the graph's shapes may have been traced.
        """
        axes = {
            str(v.name): find_dynamic_axis(v) if self._sized else 0
            for v in ir.iter_values(self._model)
        }
        return {**axes, **{name: spec.axis or 0 for name, spec in self._single.items()}}

    def has_batch_first(self, names: Collection[str]) -> bool:
        """Whether all of the tensors `names` have the samples on axis 0."""
        return not any(self._axes[name] for name in names)

    def run(self, feed: Mapping[str, np.ndarray], names: Collection[str] | None = None) -> Stream:
        """Run one batch and yield `(name, array, None)`; arrays as onnxruntime computed them.

        names : those to yield of the outputs that the runner has; None for all.
        """
        wanted = [name for name in self._names if names is None or name in names]
        given = {name: np.asarray(feed[name]) for name in self._inputs}
        count = max(
            (spec.count_samples(given[name]) for name, spec in self._single.items()), default=1
        )
        if count == 1:
            yield from self._run(given, wanted)
            return

        def sample(name: str, i: int) -> np.ndarray:
            return (
                self._single[name].slice_samples(given[name], i, i + 1)
                if name in self._single
                else given[name]
            )

        runs = [
            list(self._run({name: sample(name, i) for name in given}, wanted)) for i in range(count)
        ]
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
            fetch = [
                name for name in (*stage.outputs, *stage.handed_on) if name in left or name in later
            ]
            try:
                found = (
                    run_session(session, fetch, {name: held[name] for name in stage.inputs})
                    if fetch
                    else ()
                )
            except Exception as error:
                raise ModelError(_format_run_error(given, error)) from error
            results = dict(zip(fetch, found, strict=True))
            del found
            held = {name: value for name, value in {**held, **results}.items() if name in later}
            for name in stage.outputs:  # whoever asks is the only one that holds an array
                if name in left:
                    yield name, to_array(results.pop(name)), None
            left.difference_update(stage.outputs)
