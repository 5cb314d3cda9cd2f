"""The bridge: a float graph and its plan as a torch module that computes what the integer simulator computes.

The graph is lowered under the plan. Then its steps are walked with fake quantizers, so that the
module has the integers of the integer graph, to the last bit, and gradients to the float
initializers. Those are its parameters, by their names in the graph: ``state_dict`` speaks the
user's names. After a change of scales the graph is lowered again; nothing is edited in place.

Owns: parameters, the walk. Must not know: training, operators (it asks the fake quantizers), files.
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

from ...flow.lower import lower
from ...flow.partition import Partition
from ...graph import ir
from ...plan import ConstantSource, Plan
from ...run.integer.runner import IntegerRunner
from ...run.runners import FloatFallback, get_input_specs
from ...targets import Target
from .fake_common import FakeQuantContext, to_counts
from .fake_quant import get_fake_quantizer, map_parameter_inputs
from .float_fallback import TorchFallback
from .rounding import get_scale_factor, round_with_gradient

__all__ = ["FakeQuantNetwork", "QatModule"]

_ALL = slice(None)
_DATA_MOVEMENT_KERNELS = (Clip, Dequant, MaxPool, Reshape, Transpose)
_NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class FakeQuantStep:
    """One step: kernel, function in torch, what it reads and writes, parameters, the tensor whose scale it writes."""

    kernel: Kernel
    compute: Any
    inputs: Sequence[str]
    outputs: Sequence[str]
    dtypes: Sequence[np.dtype]
    parameter_sources: Mapping[
        int | str, str
    ]  # what `FakeQuantContext.parameters` calls a parameter -> integer initializer with a source
    plan_tensor: str  # the plan's name of the output
    is_data_movement: bool  # whether it only moves or cuts off numbers


class FakeQuantNetwork:
    """The steps of an integer graph as fake quantizers: the walk, without parameters of its own.

    graph : an integer graph. sizes : shapes of the fed inputs for one sample, batch of 1 on axis 0.
    sources : the integer initializers that hold a float one. fed : the types of the fed tensors,
    where these are others than the inputs, such as the outputs of Quants. floats : the float
    tensors that integer ones hold, where the two have different names. row : the platform, None for
    the graph's own. Raises ModelError for a kernel or a float operator without a fake quantizer.
    """

    def __init__(
        self,
        graph: ir.Model,
        sizes: Mapping[str, Sequence[int]],
        sources: Mapping[str, ConstantSource],
        input_specs: Mapping[str, TensorSpec] | None = None,
        floats: Mapping[str, str] = MappingProxyType({}),
        target: Target | None = None,
    ) -> None:
        runner = IntegerRunner(graph, target=target)
        self.inputs = list(runner.inputs)
        self.outputs = [str(v.name) for v in graph.graph.outputs]
        specs = (
            dict(input_specs)
            if input_specs is not None
            else {s.name: TensorSpec(tuple(sizes[s.name]), s.dtype) for s in runner.inputs}
        )
        found = runner.bind(specs)
        self.held = found.held
        self._floats = {**floats, **found.integer_names}
        nodes = {str(v.name): node for node in graph.graph for v in node.outputs if v.name}
        self.constants: dict[str, np.ndarray] = {}
        self.parameter_tensors: dict[
            str, str
        ] = {}  # constant tensors that are parameters: tensor -> integer initializer
        self.steps: list[FakeQuantStep] = []
        for call in found.steps:
            if isinstance(call.kernel, Constant):
                (name,) = call.outputs
                self.constants[name] = call.kernel.array
                if name in sources:
                    self.parameter_tensors[name] = name
                continue
            node = nodes[call.outputs[0]]
            compute = (
                TorchFallback(call.kernel)
                if isinstance(call.kernel, FloatFallback)
                else get_fake_quantizer(call.kernel)
            )
            given = (
                {}
                if isinstance(call.kernel, FloatFallback)
                else {
                    key: str(v.name)
                    for key, v in map_parameter_inputs(call.kernel, node).items()
                    if v.name in sources and v.name not in call.inputs
                }
            )
            dtypes = [found.specs[name].dtype for name in call.inputs]
            written, moves = (
                self.get_plan_name(call.outputs[0]),
                isinstance(call.kernel, _DATA_MOVEMENT_KERNELS),
            )
            self.steps.append(
                FakeQuantStep(
                    kernel=call.kernel,
                    compute=compute,
                    inputs=call.inputs,
                    outputs=call.outputs,
                    dtypes=dtypes,
                    parameter_sources=given,
                    plan_tensor=written,
                    is_data_movement=moves,
                )
            )
        self._last = {name: i for i, step in enumerate(self.steps) for name in step.inputs}
        #: Whether samples go through side by side; otherwise a step mixes them, and they go one by one.
        self.is_per_sample = runner.runs_whole_batch or _is_per_sample(
            found.steps, found.specs, specs
        )
        self._axes = runner.batch_axes

    def get_plan_name(self, tensor: str) -> str:
        """Return what the plan calls a tensor: the float one that it holds."""
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
        """Yield (name, tensor) of every step's outputs; integers as counts.

        feed : real inputs, or where `step_range` of the steps is walked, what that reads.
        parameters : counts by integer initializer. probes : log2 of scales by the plan's name.
        limits : the plan's name -> what |counts| are cut at, counted from the zero point. floats :
        tensors in place of float constants, by name.
        """
        if not self.is_per_sample and self._get_batch_size(feed) > 1:
            yield from self._run_sample_by_sample(
                feed, parameters, log2_scales, step_range, clip_limits, float_overrides
            )
            return
        like = next(iter(feed.values()))
        known = {**feed, **{name: to_counts(array, like) for name, array in self.constants.items()}}
        known.update(
            {
                name: parameters[source]
                for name, source in self.parameter_tensors.items()
                if source in parameters
            }
        )
        for index in range(*step_range.indices(len(self.steps))):
            step = self.steps[index]
            at = FakeQuantContext(
                step.dtypes,
                {
                    i: parameters[name]
                    for i, name in step.parameter_sources.items()
                    if name in parameters
                },
                log2_scales.get(step.plan_tensor),
                float_overrides,
            )
            results = step.compute(step.kernel, [known[name] for name in step.inputs], at)
            for name, tensor in zip(step.outputs, results, strict=True):
                limit = clip_limits.get(step.plan_tensor)
                zero = self.held[name].zero_point if name in self.held else 0
                known[name] = (
                    tensor if limit is None else torch.clamp(tensor, zero - limit, zero + limit)
                )
                yield name, known[name]
            for name in step.inputs:
                if self._last[name] == index and name not in feed:
                    del known[name]

    @cached_property
    def single_tensor_cuts(self) -> list[tuple[int, str]]:
        """Return (index of a step, tensor) where that tensor is all that later steps read of what came before."""
        last = {**self._last, **dict.fromkeys(self.outputs, len(self.steps))}
        live, found = {spec.name for spec in self.inputs}, []
        for index, step in enumerate(self.steps):
            live = {name for name in (*live, *step.outputs) if last.get(name, -1) > index}
            if len(live) == 1:
                found.append((index, next(iter(live))))
        return found

    def _run_sample_by_sample(
        self,
        feed: Mapping[str, Any],
        parameters: Mapping[str, Any],
        probes: Mapping[str, Any],
        part: slice,
        limits: Mapping[str, float],
        floats: Mapping[str, Any],
    ) -> Iterator[tuple[str, Any]]:
        axes = self._axes
        samples = [
            {name: x.narrow(axes.get(name, 0), i, 1) for name, x in feed.items()}
            for i in range(self._get_batch_size(feed))
        ]
        walks = [self.walk(sample, parameters, probes, part, limits, floats) for sample in samples]
        for items in zip(*walks, strict=True):
            (name, first), axis = items[0], axes.get(items[0][0], 0)
            own = first.ndim > axis and first.shape[axis] == 1
            yield name, torch.cat([tensor for _, tensor in items], axis if own else 0)

    def _get_batch_size(self, feed: Mapping[str, Any]) -> int:
        """Return the number of samples fed."""
        name, first = next(iter(feed.items()))
        return int(first.shape[self._axes.get(name, 0)])


def _is_per_sample(
    steps: Sequence[Step], specs: Mapping[str, TensorSpec], fed: Collection[str]
) -> bool:
    batched = set(fed)
    for call in steps:
        flags = [name in batched for name in call.inputs]
        if any(flags):
            if not call.kernel.supports_batch([specs[name] for name in call.inputs], flags):
                return False
            if any(specs[name].shape[:1] != (1,) for name in call.outputs):
                return False  # the batch and another axis are one
            batched.update(call.outputs)
    return True


class QatModule(nn.Module):
    """A float graph under a plan, as the integers will compute it, with gradients.

    model : the normalised float graph, which is left as it is. plan, row : its scales and the
    platform. feed : one sample (or several) of real inputs, for the sizes. trainable : the
    initializers to train; None for every float one that the integer graph holds.

    Called with a dict of real inputs (tensors, batch on axis 0) it returns a dict of the graph's
    outputs.
    """

    def __init__(
        self,
        model: ir.Model,
        plan: Plan,
        target: Target,
        feed: Mapping[str, np.ndarray],
        trainable: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.target = ir.clone(model), target
        #: What of the model becomes integer; a plan with other float nodes is another bridge's.
        self.partition = Partition.build(self.model, plan.floats, target)
        axes = {spec.name: spec.axis for spec in get_input_specs(model)}
        self._sizes = {
            name: [
                1 if i == axes.get(name, 0) else n for i, n in enumerate(np.asarray(array).shape)
            ]
            for name, array in feed.items()
        }
        self.plan = plan
        #: log2 of scales that are learned, by the plan's name.
        self.log2_scales: Mapping[str, Any] = {}
        #: What |real values| are cut at in training, by the plan's name.
        self.output_clip_limits: Mapping[str, float] = {}
        #: Tensors that are computed with in place of initializers, by name; see `substitute_initializers`.
        self.substituted: Mapping[str, Any] = {}
        #: Parameters that are rounded by another rule for now: name -> (parameter, source) -> counts, same shape.
        self.rounding_rules: Mapping[str, Any] = {}
        self._lower()
        wanted = {source.name for source in self._sources.values()}
        self.parameter_of: dict[str, Any] = {}
        for name in sorted(wanted if trainable is None else wanted & set(trainable)):
            array = ir.const_value(self.model.graph.initializers[name])
            assert array is not None
            self._register(name, nn.Parameter(torch.from_numpy(np.array(array, np.float32))))
        self._views: dict[tuple[str, tuple[int, ...]], Any] = {}

    def _lower(self) -> None:
        lowered = lower(self.partition, self.plan, self.target)
        self._sources = lowered.constant_sources
        self.network = FakeQuantNetwork(
            lowered.graph, self._sizes, self._sources, floats=lowered.floats, target=self.target
        )

    def _register(self, name: str, parameter: nn.Parameter) -> None:
        """Register a parameter under the graph's name as it is, whatever it holds.

        Dots, slashes, a method's name.
        """
        self._parameters[name] = (
            parameter  # register_parameter refuses such names; nothing else minds them
        )
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
        """Take a dot in a name as part of it, not as the name of a module that is not there."""
        unknown: list[str] = []
        super()._load_from_state_dict(
            state_dict, prefix, metadata, strict, missing, unknown, errors
        )
        unexpected += [key for key in unknown if key.removeprefix(prefix) not in self._parameters]

    def set_plan(self, plan: Plan) -> None:
        """Lower again under another plan."""
        if plan != self.plan:
            self.plan = plan
            self._lower()

    @property
    def used_initializers(self) -> set[str]:
        """The float initializers that are computed with.

        Those that integer ones hold, and those of float nodes.
        """
        fallbacks = (
            step.compute for step in self.network.steps if isinstance(step.compute, TorchFallback)
        )
        return {s.name for s in self._sources.values()} | {
            name for fallback in fallbacks for name in fallback.constant_names
        }

    def export_float_graph(self) -> ir.Model:
        """Return the float graph with the tensors that were lent."""
        copy = ir.clone(self.model)
        for name, tensor in self.substituted.items():
            ir.set_initializer_value(copy.graph.initializers[name], tensor.detach().cpu().numpy())
        return copy

    def substitute_initializers(self, tensors: Mapping[str, Any]) -> None:
        """Compute with `tensors` in place of the float initializers of these names, in float nodes as well."""
        self.substituted = tensors
        self.parameter_of.update(tensors)

    def get_source_name(self, name: str) -> str:
        """Return the float initializer that an integer one holds, or nothing."""
        source = self._sources.get(name)
        return "" if source is None else source.name

    @property
    def untrainable_initializers(self) -> list[str]:
        """The float initializers that integer nodes hold in a form nothing is trained in.

        Not single bounds.
        """
        held = {source.name for source in self._sources.values()}
        return [
            str(name)
            for name, value in self.model.graph.initializers.items()
            if name not in held
            and (array := ir.const_value(value)) is not None
            and array.dtype.kind == "f"
            and array.ndim
        ]

    def get_weights(self) -> dict[str, np.ndarray]:
        """Return the parameters as float32 arrays by initializer name."""
        return {name: p.detach().cpu().numpy().copy() for name, p in self.parameter_of.items()}

    def forward(self, feed: Mapping[str, Any], taps: Sequence[str] = ()) -> dict[str, Any]:
        """Return the graph outputs (and `taps`, by the plan's names) as real values for a batch of real inputs."""
        found: dict[str, Any] = {}
        wanted = {*self.network.outputs, *taps}
        for name, tensor in self.integers(feed):
            own = self.network.get_plan_name(name)
            if own in wanted:
                held = self.network.held.get(name)
                found[own] = tensor if held is None else (tensor - held.zero_point) / held.scale
        return found

    def integers(self, feed: Mapping[str, Any], part: slice = _ALL) -> Iterator[tuple[str, Any]]:
        """Yield (name, tensor) of every tensor of the integer graph, integers as counts.

        See `FakeQuantNetwork.walk`.
        """
        limits = _NONE
        if self.training and self.output_clip_limits:
            held = self.plan.tensors
            limits = {
                name: top * held[name].scale
                for name, top in self.output_clip_limits.items()
                if name in held
            }
        return self.network.walk(
            feed, self._quantize_parameters(part), self.log2_scales, part, limits, self.substituted
        )

    def _quantize_parameters(self, part: slice = _ALL) -> dict[str, Any]:
        """Return the integer initializers that `part` of the steps reads and that have parameters."""
        read = {
            name
            for step in self.network.steps[part]
            for name in (*step.parameter_sources.values(), *step.inputs)
        }
        return {
            name: self._quantize_parameter(name, source)
            for name, source in self._sources.items()
            if name in read and source.name in self.parameter_of
        }

    def _quantize_parameter(self, name: str, source: ConstantSource) -> Any:
        """Return an integer initializer as lowering makes it of the parameter, or by the rule that stands in."""
        rule = self.rounding_rules.get(source.name)
        wide = source.qparams.bits > 16  # a bias
        if rule is not None and not wide:
            return self._rearrange(rule(self.parameter_of[source.name], source), name, source)
        parameter = self.parameter_of[source.name]
        probe = None if wide else self.log2_scales.get(source.name)
        moved = self._rearrange(
            parameter.double() * get_scale_factor(source.qparams, parameter), name, source
        )
        return round_with_gradient(moved, source.qparams.low, source.qparams.high, probe)

    def _rearrange(self, parameter: Any, name: str, source: ConstantSource) -> Any:
        """Return the parameter as `source.view` rearranges it."""
        key = name, tuple(parameter.shape)
        if key not in self._views:
            places = np.arange(1, parameter.numel() + 1).reshape(parameter.shape)
            moved = np.asarray(source.view(places))
            same = moved.size == places.size and np.array_equal(
                moved.reshape(-1), places.reshape(-1)
            )
            self._views[key] = (
                moved.shape,
                None if same else torch.from_numpy(moved.reshape(-1).copy()),
            )
        shape, index = self._views[key]
        if index is None:
            return parameter.reshape(shape)
        padded = torch.cat([parameter.new_zeros(1), parameter.reshape(-1)])
        return padded[index.to(parameter.device)].reshape(shape)
