"""A float graph under a plan as a torch module that computes the integers of the simulator.

The graph is lowered under the plan. Its steps are run by fake quantizers, so that the module
computes the integers of the integer graph bit for bit, with gradients to the float initializers.
These are its parameters, under their names in the graph. After a change of scales the graph is
lowered again; nothing is edited in place.

This module owns the parameters and the execution. It knows no training, and no operators: their
computation is up to the fake quantizers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from simulator.kernel import Kernel, Step, TensorSpec
from simulator.kernels import Clip, Constant, Dequant, MaxPool, Reshape, Transpose

from ...ir import ir
from ...ir.plan import ConstantSource, Plan
from ...quantization.lower import lower
from ...quantization.partition import Partition
from ...runtime.integer.runner import IntegerRunner
from ...runtime.runners import FloatFallback, get_input_specs
from ...targets import Target
from ..fake_quant import get_fake_quantizer, map_parameter_inputs
from ..fake_quant.common import FakeQuantContext, to_counts
from ..fake_quant.rounding import get_scale_factor, round_with_gradient
from .float_fallback import TorchFallback

__all__ = ["FakeQuantNetwork", "QatModule"]

_ALL = slice(None)
_DATA_MOVEMENT_KERNELS = (Clip, Dequant, MaxPool, Reshape, Transpose)
_NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class FakeQuantStep:
    """A step of an integer graph.

    Attributes
    ----------
    kernel, compute
        The kernel, and the fake quantizer (or torch fallback) that computes it.
    inputs, outputs
        Names of the tensors.
    dtypes
        Integer types of the inputs.
    parameter_sources
        Key in `FakeQuantContext.parameters` -> integer initializer that follows from a parameter.
    plan_tensor
        Name of the output in the plan.
    is_data_movement
        Whether the step only moves or clips values.
    """

    kernel: Kernel
    compute: Any
    inputs: Sequence[str]
    outputs: Sequence[str]
    dtypes: Sequence[np.dtype]
    parameter_sources: Mapping[int | str, str]
    plan_tensor: str
    is_data_movement: bool


class FakeQuantNetwork:
    """The steps of an integer graph as fake quantizers, without parameters.

    Parameters
    ----------
    graph
        The integer graph.
    shapes
        Shapes of the inputs, for a batch of 1.
    sources
        Integer initializers -> the float initializers that they are computed from.
    input_specs
        Shapes and types of the tensors to feed, if these are not the graph inputs, such as the
        outputs of Quants.
    floats
        Integer tensors -> float tensors, where the names differ.
    target
        Platform; None for that of the graph.

    Attributes
    ----------
    held : mapping
        Quantization parameters of the integer tensors by name.
    constants : dict
        Arrays of constant tensors.
    parameter_tensors : dict
        Constant tensors that are parameters -> integer initializer.
    steps : list of FakeQuantStep
    is_per_sample : bool
        Whether the samples of a batch are computed together; otherwise a step mixes them, and they
        run one by one.

    Raises
    ------
    ModelError
        If a kernel or a float operator has no fake quantizer.
    """

    def __init__(
        self,
        graph: ir.Model,
        shapes: Mapping[str, Sequence[int]],
        sources: Mapping[str, ConstantSource],
        input_specs: Mapping[str, TensorSpec] | None = None,
        floats: Mapping[str, str] = MappingProxyType({}),
        target: Target | None = None,
    ) -> None:
        """Bind the kernels of an integer graph, and make a fake-quantized step of each.

        Parameters
        ----------
        shapes
            The shape of each input for one sample; used only without `input_specs`.
        sources
            The origin of each constant of the graph that is computed from a parameter, by its name.
        input_specs
            Shapes and types of the inputs, or None for those of `shapes`.
        floats
            The plan's tensor for each integer tensor of another name.
        """
        runner = IntegerRunner(graph, target=target)
        self.inputs = list(runner.inputs)
        self.outputs = ir.get_output_names(graph)
        if input_specs is None:
            specs = {
                spec.name: TensorSpec(tuple(shapes[spec.name]), spec.dtype)
                for spec in runner.inputs
            }
        else:
            specs = dict(input_specs)
        bound = runner.bind(specs)
        self.held = bound.held
        self._floats = {**floats, **bound.integer_names}
        self.constants: dict[str, np.ndarray] = {}
        self.parameter_tensors: dict[str, str] = {}
        self.steps: list[FakeQuantStep] = []
        producers: dict[str, ir.Node] = {}
        for node in graph.graph:
            producers.update({str(value.name): node for value in node.outputs if value.name})
        for call in bound.steps:
            if not isinstance(call.kernel, Constant):
                input_dtypes = [bound.specs[name].dtype for name in call.inputs]
                step = self._make_step(call, producers[call.outputs[0]], input_dtypes, sources)
                self.steps.append(step)
                continue
            (name,) = call.outputs
            self.constants[name] = call.kernel.array
            if name in sources:
                self.parameter_tensors[name] = name
        self._last_reads: dict[str, int] = {}
        for index, step in enumerate(self.steps):
            self._last_reads.update(dict.fromkeys(step.inputs, index))
        self.is_per_sample = runner.runs_whole_batch or _is_per_sample(
            bound.steps, bound.specs, specs
        )
        self._batch_axes = runner.batch_axes

    def _make_step(
        self,
        call: Step,
        node: ir.Node,
        input_dtypes: Sequence[np.dtype],
        sources: Mapping[str, ConstantSource],
    ) -> FakeQuantStep:
        """Return the fake-quantized step for a kernel call of the integer graph, made by `node`.

        A float fallback runs its subgraph in torch. Inputs of `node` that are constants with an
        entry in `sources` become parameters of the step, by the kernel's field or input index.
        Raises ModelError if the kernel has no fake quantizer.
        """
        kernel = call.kernel
        parameter_sources: dict[int | str, str] = {}
        if isinstance(kernel, FloatFallback):
            compute: Any = TorchFallback(kernel)
        else:
            compute = get_fake_quantizer(kernel)
            for key, value in map_parameter_inputs(kernel, node).items():
                if value.name in sources and value.name not in call.inputs:
                    parameter_sources[key] = str(value.name)
        return FakeQuantStep(
            kernel=kernel,
            compute=compute,
            inputs=call.inputs,
            outputs=call.outputs,
            dtypes=input_dtypes,
            parameter_sources=parameter_sources,
            plan_tensor=self.get_plan_name(call.outputs[0]),
            is_data_movement=isinstance(kernel, _DATA_MOVEMENT_KERNELS),
        )

    def get_plan_name(self, tensor: str) -> str:
        """Return the name in the plan of a tensor of the integer graph.

        It is the name of the float tensor that `tensor` represents, by default the same name.
        """
        return self._floats.get(tensor, tensor)

    def walk(
        self,
        feed: Mapping[str, Any],
        parameters: Mapping[str, Any],
        log2_scales: Mapping[str, Any],
        step_range: slice = _ALL,
        clip_limits: Mapping[str, float] = _NONE,
        float_overrides: Mapping[str, Any] = _NONE,
    ) -> Iterator[tuple[str, Any]]:
        """Run steps of the integer graph; yield name and value of each output, integers as counts.

        Samples run one by one if a step mixes them. Tensors are dropped after their last use.

        Parameters
        ----------
        feed
            Real inputs, or the tensors that the steps of `step_range` read.
        parameters
            Counts by integer initializer.
        log2_scales
            log2 of learned scales, by name in the plan.
        step_range
            The steps to run.
        clip_limits
            Name in the plan -> limit of the counts, relative to the zero point.
        float_overrides
            Tensors that replace float constants, by name.
        """
        if not self.is_per_sample and self._get_batch_size(feed) > 1:
            yield from self._run_sample_by_sample(
                feed, parameters, log2_scales, step_range, clip_limits, float_overrides
            )
            return
        like = next(iter(feed.values()))
        tensors = {**feed}
        for name, array in self.constants.items():
            tensors[name] = to_counts(array, like)
        for name, source in self.parameter_tensors.items():
            if source in parameters:
                tensors[name] = parameters[source]
        for index in range(*step_range.indices(len(self.steps))):
            step = self.steps[index]
            context = FakeQuantContext(
                step.dtypes,
                _select_parameters(step, parameters),
                log2_scales.get(step.plan_tensor),
                float_overrides,
            )
            results = step.compute(step.kernel, [tensors[name] for name in step.inputs], context)
            limit = clip_limits.get(step.plan_tensor)
            for name, tensor in zip(step.outputs, results, strict=True):
                tensors[name] = tensor if limit is None else self._clip(name, tensor, limit)
                yield name, tensors[name]
            for name in step.inputs:
                if self._last_reads[name] == index and name not in feed:
                    del tensors[name]

    def _clip(self, name: str, counts: Any, limit: float) -> Any:
        """Return `counts` of tensor `name` clamped to its zero point +- `limit` (in counts).

        The zero point is 0 for a tensor without quantization parameters.
        """
        zero_point = self.held[name].zero_point if name in self.held else 0
        return torch.clamp(counts, zero_point - limit, zero_point + limit)

    @cached_property
    def single_tensor_cuts(self) -> list[tuple[int, str]]:
        """The places where a single tensor is live, as pairs (step index, tensor name).

        Live after a step are the tensors that later steps read, and the outputs.
        """
        last_reads = {**self._last_reads, **dict.fromkeys(self.outputs, len(self.steps))}
        live, cuts = {spec.name for spec in self.inputs}, []
        for index, step in enumerate(self.steps):
            live = {name for name in (*live, *step.outputs) if last_reads.get(name, -1) > index}
            if len(live) == 1:
                cuts.append((index, next(iter(live))))
        return cuts

    def _run_sample_by_sample(
        self,
        feed: Mapping[str, Any],
        parameters: Mapping[str, Any],
        log2_scales: Mapping[str, Any],
        step_range: slice,
        clip_limits: Mapping[str, float],
        float_overrides: Mapping[str, Any],
    ) -> Iterator[tuple[str, Any]]:
        """Run the steps for each sample of `feed` separately; yield (name, concatenated value).

        Samples are cut and joined on each tensor's batch axis; outputs without an axis of size 1
        there are joined on axis 0. The other arguments are passed on for each sample: counts by
        initializer in `parameters`, `log2_scales` by name, the steps `step_range`, `clip_limits` of
        counts, and `float_overrides` of constants.
        """
        walks = []
        for index in range(self._get_batch_size(feed)):
            sample = {
                name: tensor.narrow(self._batch_axes.get(name, 0), index, 1)
                for name, tensor in feed.items()
            }
            walks.append(
                self.walk(sample, parameters, log2_scales, step_range, clip_limits, float_overrides)
            )
        for items in zip(*walks, strict=True):
            name, first = items[0]
            axis = self._batch_axes.get(name, 0)
            has_batch_axis = first.ndim > axis and first.shape[axis] == 1
            yield name, torch.cat([tensor for _, tensor in items], axis if has_batch_axis else 0)

    def _get_batch_size(self, feed: Mapping[str, Any]) -> int:
        """Return the number of samples: the first tensor's size on its batch axis."""
        name, first = next(iter(feed.items()))
        return int(first.shape[self._batch_axes.get(name, 0)])


def _select_parameters(step: FakeQuantStep, parameters: Mapping[str, Any]) -> dict[int | str, Any]:
    """Return the parameters of `step` that are in `parameters` (counts by integer initializer).

    The keys of the result are the kernel's field names or input indices.
    """
    return {
        key: parameters[name] for key, name in step.parameter_sources.items() if name in parameters
    }


def _is_per_sample(
    steps: Sequence[Step], specs: Mapping[str, TensorSpec], input_names: Collection[str]
) -> bool:
    """Whether all steps compute the samples of a batch independently, on axis 0.

    `specs` are the tensors' shapes and types for one sample, `input_names` the inputs; steps that
    do not depend on inputs do not count. An output without the batch of 1 on axis 0 is a no.
    """
    batched = set(input_names)
    for call in steps:
        is_batched = [name in batched for name in call.inputs]
        if not any(is_batched):
            continue
        if not call.kernel.supports_batch([specs[name] for name in call.inputs], is_batched):
            return False
        if any(specs[name].shape[:1] != (1,) for name in call.outputs):
            return False  # the batch is merged with another axis
        batched.update(call.outputs)
    return True


class QatModule(nn.Module):
    """A float graph under a plan, computed like its integer graph, with gradients.

    Called with a dict of real inputs (tensors, batch on axis 0) it returns a dict of the graph
    outputs.

    Parameters
    ----------
    model
        The normalized float graph, which is not modified.
    plan, target
        The scales, and the platform.
    feed
        One or several samples of real inputs, for the shapes.
    trainable
        The initializers to train; None for all float initializers in the integer graph.

    Attributes
    ----------
    partition
        Partition of the graph; it requires plans with the same float nodes.
    log2_scales
        log2 of learned scales, by name in the plan.
    output_clip_limits
        Largest absolute real value of tensors in training, by name in the plan.
    substituted
        Tensors that replace initializers, by name; see `substitute_initializers`.
    rounding_rules
        Parameter -> function (parameter, source) -> counts that replaces rounding to nearest.
    parameter_of
        The parameters, and substituted tensors, by initializer name.
    """

    def __init__(
        self,
        model: ir.Model,
        plan: Plan,
        target: Target,
        feed: Mapping[str, np.ndarray],
        trainable: Sequence[str] | None = None,
    ) -> None:
        """Lower a clone of `model` with `plan`, and register its trainable constants as parameters.

        Parameters
        ----------
        feed
            Sample inputs, from which the shapes are taken.
        trainable
            The names of the initializers to train, or None for all that integers are computed from.
        """
        super().__init__()
        self.model, self.target = model.clone(), target
        self.partition = Partition.build(self.model, plan.floats, target)
        self._shapes = _get_sample_shapes(model, feed)
        self.plan = plan
        self.log2_scales: Mapping[str, Any] = {}
        self.output_clip_limits: Mapping[str, float] = {}
        self.substituted: Mapping[str, Any] = {}
        self.rounding_rules: Mapping[str, Any] = {}
        self._lower()
        names = {source.name for source in self._sources.values()}
        if trainable is not None:
            names &= set(trainable)
        self.parameter_of: dict[str, Any] = {}
        for name in sorted(names):
            array = ir.const_value(self.model.graph.initializers[name])
            assert array is not None
            self._register(name, nn.Parameter(torch.from_numpy(np.array(array, np.float32))))
        self._rearrangements: dict[tuple[str, tuple[int, ...]], Any] = {}

    def _lower(self) -> None:
        """Lower the graph to integers under the current plan.

        Replaces `network` and constant sources.
        """
        lowered = lower(self.partition, self.plan, self.target)
        self._sources = lowered.constant_sources
        self.network = FakeQuantNetwork(
            lowered.graph, self._shapes, self._sources, floats=lowered.floats, target=self.target
        )

    def _register(self, name: str, parameter: nn.Parameter) -> None:
        """Register a parameter under `name`, which may contain dots or be the name of a method.

        Adds it to `parameter_of`, too.
        """
        self._parameters[name] = parameter  # register_parameter rejects such names
        self.parameter_of[name] = parameter

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: Any,
        unexpected: Any,
        errors: Any,
    ) -> None:
        """Load parameters whose names may contain dots that do not separate modules.

        Called by torch's `load_state_dict`. Keys with such names are not reported as unexpected.
        """
        unknown: list[str] = []
        super()._load_from_state_dict(
            state_dict, prefix, metadata, strict, missing, unknown, errors
        )
        unexpected += [key for key in unknown if key.removeprefix(prefix) not in self._parameters]

    def set_plan(self, plan: Plan) -> None:
        """Replace the plan and lower the graph again; does nothing for an equal plan."""
        if plan != self.plan:
            self.plan = plan
            self._lower()

    @property
    def used_initializers(self) -> set[str]:
        """The float initializers that integer constants come from, or that float nodes read."""
        names = {source.name for source in self._sources.values()}
        for step in self.network.steps:
            if isinstance(step.compute, TorchFallback):
                names.update(step.compute.constant_names)
        return names

    def export_float_graph(self) -> ir.Model:
        """Return a copy of the float graph, with the current values of substituted initializers.

        The module's own parameters keep the values that they have in the graph.
        """
        copy = self.model.clone()
        for name, tensor in self.substituted.items():
            ir.set_initializer_value(copy.graph.initializers[name], tensor.detach().cpu().numpy())
        return copy

    def substitute_initializers(self, tensors: Mapping[str, Any]) -> None:
        """Compute with `tensors` instead of the float initializers of these names.

        `parameter_of` has the tensors from then on.
        """
        self.substituted = tensors
        self.parameter_of.update(tensors)

    def get_source_name(self, name: str) -> str:
        """Return the float initializer that integer initializer `name` is computed from, or ""."""
        source = self._sources.get(name)
        return "" if source is None else source.name

    @property
    def untrainable_initializers(self) -> list[str]:
        """The names of float initializers that no integer initializer follows from.

        Scalars are left out; in the order of the model.
        """
        trainable = {source.name for source in self._sources.values()}
        names = []
        for name, value in self.model.graph.initializers.items():
            array = ir.const_value(value)
            if array is None or array.dtype.kind != "f" or not array.ndim:
                continue
            if name not in trainable:
                names.append(str(name))
        return names

    def get_weights(self) -> dict[str, np.ndarray]:
        """Return copies of parameters and substituted tensors as arrays, by initializer name."""
        return {
            name: parameter.detach().cpu().numpy().copy()
            for name, parameter in self.parameter_of.items()
        }

    def forward(self, feed: Mapping[str, Any], taps: Sequence[str] = ()) -> dict[str, Any]:
        """Run a batch and return real values.

        Parameters
        ----------
        feed
            Real inputs by name, batch on axis 0.
        taps
            Further tensors to return, by name in the plan.

        Returns
        -------
        dict
            Graph outputs and taps by name.
        """
        results: dict[str, Any] = {}
        requested = {*self.network.outputs, *taps}
        for name, tensor in self.integers(feed):
            plan_name = self.network.get_plan_name(name)
            if plan_name in requested:
                qparams = self.network.held.get(name)
                if qparams is not None:
                    tensor = (tensor - qparams.zero_point) / qparams.scale
                results[plan_name] = tensor
        return results

    def integers(
        self, feed: Mapping[str, Any], step_range: slice = _ALL
    ) -> Iterator[tuple[str, Any]]:
        """Run steps and yield the name and value of each tensor of the integer graph, as counts.

        `feed` are real inputs by name, or the tensors that the steps of `step_range` read. In
        training mode the outputs of layers are clipped to `output_clip_limits`.
        """
        clip_limits = _NONE
        if self.training and self.output_clip_limits:
            qparams = self.plan.tensors
            clip_limits = {
                name: limit * qparams[name].scale
                for name, limit in self.output_clip_limits.items()
                if name in qparams
            }
        parameters = self._quantize_parameters(step_range)
        return self.network.walk(
            feed, parameters, self.log2_scales, step_range, clip_limits, self.substituted
        )

    def _quantize_parameters(self, step_range: slice = _ALL) -> dict[str, Any]:
        """Return integer initializer -> counts, with gradients, for those that `step_range` reads.

        Only initializers that are computed from a parameter or substituted tensor.
        """
        names: set[str] = set()
        for step in self.network.steps[step_range]:
            names.update(step.parameter_sources.values(), step.inputs)
        return {
            name: self._quantize_parameter(name, source)
            for name, source in self._sources.items()
            if name in names and source.name in self.parameter_of
        }

    def _quantize_parameter(self, name: str, source: ConstantSource) -> Any:
        """Return the counts of integer initializer `name` from its parameter: scaled and rounded.

        The gradient passes the rounding. A rounding rule of the parameter replaces rounding to
        nearest. A bias (more than 16 bits) uses neither a rounding rule nor a learned scale.
        """
        parameter, qparams = self.parameter_of[source.name], source.qparams
        is_bias = qparams.bits > 16
        rule = self.rounding_rules.get(source.name)
        if rule is not None and not is_bias:
            return self._rearrange(rule(parameter, source), name, source)
        log2_scale = None if is_bias else self.log2_scales.get(source.name)
        counts = self._rearrange(
            parameter.double() * get_scale_factor(qparams, parameter), name, source
        )
        return round_with_gradient(counts, qparams.low, qparams.high, log2_scale)

    def _rearrange(self, parameter: Any, name: str, source: ConstantSource) -> Any:
        """Return the elements of `parameter` in the arrangement of integer initializer `name`.

        `source.view` arranges and pads them with zeros; it must only move elements. The arrangement
        is found once per name and shape. Gradients reach the parameter.
        """
        key = name, tuple(parameter.shape)
        if key not in self._rearrangements:
            numbers = np.arange(1, parameter.numel() + 1).reshape(parameter.shape)
            arranged = np.asarray(source.view(numbers))
            indices = None
            if not np.array_equal(arranged.reshape(-1), numbers.reshape(-1)):
                indices = torch.from_numpy(arranged.reshape(-1).copy())
            self._rearrangements[key] = arranged.shape, indices
        shape, indices = self._rearrangements[key]
        if indices is None:
            return parameter.reshape(shape)
        padded = torch.cat([parameter.new_zeros(1), parameter.reshape(-1)])
        return padded[indices.to(parameter.device)].reshape(shape)


def _get_sample_shapes(model: ir.Model, feed: Mapping[str, np.ndarray]) -> dict[str, list[int]]:
    """Return input name -> shape, with size 1 on its batch axis, of the arrays in `feed`."""
    batch_axes = {spec.name: spec.axis for spec in get_input_specs(model)}
    shapes = {}
    for name, array in feed.items():
        shape = list(np.asarray(array).shape)
        batch_axis = batch_axes.get(name, 0)
        if batch_axis is not None and batch_axis < len(shape):
            shape[batch_axis] = 1
        shapes[name] = shape
    return shapes
