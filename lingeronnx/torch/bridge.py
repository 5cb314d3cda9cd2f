"""The bridge: a float graph and its plan as a torch module that computes what the integer simulator computes.

The graph is lowered under the plan and its steps are walked with their twins, so that the module has the integers of
the integer graph, to the last bit, and gradients to the float initializers. Those are its parameters, by their names in
the graph: ``state_dict`` speaks the user's names. After a change of scales the graph is lowered again; nothing is
edited in place.

Owns: parameters, the walk. Must not know: training, operators (it asks the twins), files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from simulator.kernel import Call, Kernel, Spec
from simulator.kernels import Constant

from .. import ir
from ..int_runner import IntRunner
from ..lower import Lowering, Source
from ..plan import Plan
from ..platforms import Platform
from ..runners import FloatIsland
from .floats import FloatTwin
from .rounding import rounded
from .twins import At, counts, twin_of

__all__ = ["Bridge", "Network"]


@dataclass(frozen=True)
class _Step:
    """One step: its kernel and twin, what it reads and writes, its parameters and the tensor whose scale it writes."""

    kernel: Kernel
    twin: Any
    inputs: Sequence[str]
    outputs: Sequence[str]
    dtypes: Sequence[np.dtype]
    given: Mapping[int, str]  # node input -> integer initializer with a source
    written: str  # the plan's name of the output


class Network:
    """The steps of an integer graph as twins: the walk, without parameters of its own.

    graph : an integer graph. sizes : shapes of the fed inputs for one sample, batch of 1 on axis 0. sources : the
    integer initializers that hold a float one. fed : the types of the fed tensors, where these are others than the
    inputs, such as the outputs of Quants. Raises ModelError for a kernel or a float operator without a twin.
    """

    def __init__(
        self, graph: ir.Graph, sizes: Mapping[str, Sequence[int]], sources: Mapping[str, Source],
        fed: Mapping[str, Spec] | None = None,
    ) -> None:  # fmt: skip
        runner = IntRunner(graph)
        self.inputs = list(runner.inputs)
        self.outputs = [str(v.name) for v in graph.graph.outputs]
        specs = dict(fed) if fed is not None else {
            s.name: Spec(tuple(sizes[s.name]), s.dtype) for s in runner.inputs
        }  # fmt: skip
        found = runner.bind(specs)
        self.scales = found.scales
        nodes = {str(v.name): node for node in graph.graph for v in node.outputs if v.name}
        self.constants: dict[str, np.ndarray] = {}
        self.learned: dict[str, str] = {}  # constant tensors that are parameters: tensor -> integer initializer
        self.steps: list[_Step] = []
        for call in found.steps:
            if isinstance(call.fn, Constant):
                (name,) = call.outputs
                self.constants[name] = call.fn.array
                if name in sources:
                    self.learned[name] = name
                continue
            node = nodes[call.outputs[0]]
            twin = FloatTwin(call.fn) if isinstance(call.fn, FloatIsland) else twin_of(call.fn)
            given = {} if isinstance(call.fn, FloatIsland) else {
                i: str(v.name) for i, v in enumerate(node.inputs) if v is not None and v.name in sources
                and v.name not in call.inputs
            }  # fmt: skip
            dtypes = [found.specs[name].dtype for name in call.inputs]
            self.steps.append(_Step(call.fn, twin, call.inputs, call.outputs, dtypes, given,
                                    call.outputs[0].partition("@q")[0]))  # fmt: skip
        self._last = {name: i for i, step in enumerate(self.steps) for name in step.inputs}
        self._batch_axes = runner._batch_axes
        #: Whether samples go through side by side; otherwise a step mixes them, and they go one by one.
        self.per_sample = runner.whole or _per_sample(found.steps, found.specs, specs)

    def walk(
        self, feed: Mapping[str, Any], parameters: Mapping[str, Any], probes: Mapping[str, Any]
    ) -> Iterator[tuple[str, Any]]:
        """Yield (name, tensor) of every step's outputs; integers as counts.

        feed : real inputs. parameters : counts by integer initializer. probes : log2 of scales by the plan's name.
        """
        if not self.per_sample and len(next(iter(feed.values()))) > 1:
            yield from self._one_by_one(feed, parameters, probes)
            return
        like = next(iter(feed.values()))
        known = {**feed, **{name: counts(array, like) for name, array in self.constants.items()}}
        known.update({name: parameters[source] for name, source in self.learned.items() if source in parameters})
        for index, step in enumerate(self.steps):
            at = At(step.dtypes, {i: parameters[name] for i, name in step.given.items() if name in parameters},
                    probes.get(step.written))  # fmt: skip
            results = step.twin(step.kernel, [known[name] for name in step.inputs], at)
            for name, tensor in zip(step.outputs, results, strict=True):
                known[name] = tensor
                yield name, tensor
            for name in step.inputs:
                if self._last[name] == index and name not in feed:
                    del known[name]

    def _one_by_one(
        self, feed: Mapping[str, Any], parameters: Mapping[str, Any], probes: Mapping[str, Any]
    ) -> Iterator[tuple[str, Any]]:
        count = len(next(iter(feed.values())))
        samples = [{name: x[i : i + 1] for name, x in feed.items()} for i in range(count)]
        for items in zip(*(self.walk(sample, parameters, probes) for sample in samples), strict=True):
            (name, first), axis = items[0], self._batch_axes.get(items[0][0], 0)
            own = first.ndim > axis and first.shape[axis] == 1
            yield name, torch.cat([tensor for _, tensor in items], axis if own else 0)


def _per_sample(steps: Sequence[Call], specs: Mapping[str, Spec], fed: Collection[str]) -> bool:
    batched = set(fed)
    for call in steps:
        flags = [name in batched for name in call.inputs]
        if any(flags):
            if not call.fn.follows_batch([specs[name] for name in call.inputs], flags):
                return False
            batched.update(call.outputs)
    return True


class Bridge(nn.Module):
    """A float graph under a plan, as the integers will compute it, with gradients.

    model : the normalised float graph, which is left as it is. plan, row : its scales and the platform. feed : one
    sample (or several) of real inputs, for the sizes. trainable : the initializers to train; None for every float one
    that the integer graph holds.

    Called with a dict of real inputs (tensors, batch on axis 0) it returns a dict of the graph's outputs.
    """

    def __init__(
        self, model: ir.Graph, plan: Plan, row: Platform, feed: Mapping[str, np.ndarray],
        trainable: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.row = ir.clone(model), row
        self._sizes = {name: (1, *np.asarray(array).shape[1:]) for name, array in feed.items()}
        self.plan = plan
        self.scale_logs: Mapping[str, Any] = {}
        self._build()
        wanted = {source.name for source in self._sources.values()}
        self.parameter_of: dict[str, nn.Parameter] = {}
        for name in sorted(wanted if trainable is None else wanted & set(trainable)):
            array = ir.const(self.model.graph.initializers[name])
            assert array is not None
            self._hold(name, nn.Parameter(torch.from_numpy(np.array(array, np.float32))))
        self._views: dict[tuple[str, tuple[int, ...]], Any] = {}

    def _build(self) -> None:
        lowering = Lowering(self.model, self.plan, self.row)
        graph = lowering.run()
        self._sources = lowering.sources
        self.network = Network(graph, self._sizes, self._sources)

    def _hold(self, name: str, parameter: nn.Parameter) -> None:
        """Register a parameter under the graph's name as it is, whatever it holds: dots, slashes, a method's name."""
        self._parameters[name] = parameter  # register_parameter refuses such names; nothing else minds them
        self.parameter_of[name] = parameter

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: Any
    ) -> None:
        """Take a dot in a name as part of it, not as the name of a module that is not there."""
        unknown: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unknown, errors)
        unexpected += [key for key in unknown if key.removeprefix(prefix) not in self._parameters]

    def set_plan(self, plan: Plan) -> None:
        """Lower again under another plan."""
        if plan != self.plan:
            self.plan = plan
            self._build()

    def weights(self) -> dict[str, np.ndarray]:
        """Return the parameters as float32 arrays by initializer name."""
        return {name: p.detach().cpu().numpy().copy() for name, p in self.parameter_of.items()}

    def forward(self, feed: Mapping[str, Any], taps: Sequence[str] = ()) -> dict[str, Any]:
        """Return the graph outputs (and `taps`, as real values) by name for a batch of real inputs."""
        found: dict[str, Any] = {}
        wanted = {*self.network.outputs, *taps}
        for name, tensor in self.network.walk(feed, self._counts(), self.scale_logs):
            own = name.partition("@q")[0]
            if name in wanted:
                found[name] = tensor
            elif own in wanted and own not in found:
                found[own] = tensor / self.network.scales[name]
        for name in taps:
            scale = self.network.scales.get(name)
            if name in found and scale is not None:
                found[name] = found[name] / scale
        return found

    def integers(self, feed: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield (name, tensor) of every tensor of the integer graph, integers as counts."""
        return self.network.walk(feed, self._counts(), self.scale_logs)

    def _counts(self) -> dict[str, Any]:
        """Return the integer initializers that have parameters, rounded as lowering rounds them."""
        return {name: self._rounded(name, source) for name, source in self._sources.items()
                if source.name in self.parameter_of}  # fmt: skip

    def _rounded(self, name: str, source: Source) -> Any:
        parameter = self.parameter_of[source.name]
        return rounded(self._viewed(parameter, name, source).double() * source.scale, source.low, source.high,
                       self.scale_logs.get(source.name) if source.high < 1 << 30 else None)  # fmt: skip

    def _viewed(self, parameter: Any, name: str, source: Source) -> Any:
        """Return the parameter as `source.view` rearranges it."""
        key = name, tuple(parameter.shape)
        if key not in self._views:
            places = np.arange(1, parameter.numel() + 1).reshape(parameter.shape)
            moved = np.asarray(source.view(places))
            same = moved.size == places.size and np.array_equal(moved.reshape(-1), places.reshape(-1))
            self._views[key] = moved.shape, None if same else torch.from_numpy(moved.reshape(-1).copy())
        shape, index = self._views[key]
        if index is None:
            return parameter.reshape(shape)
        padded = torch.cat([parameter.new_zeros(1), parameter.reshape(-1)])
        return padded[index.to(parameter.device)].reshape(shape)


def missing(bridge: Bridge) -> list[str]:
    """Return the float initializers of the graph that integer layers hold in another form, and so are not trained."""
    held = {source.name for source in bridge._sources.values()}
    return [str(name) for name, value in bridge.model.graph.initializers.items()
            if name not in held and (array := ir.const(value)) is not None and array.dtype.kind == "f"]  # fmt: skip
