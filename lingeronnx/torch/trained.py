"""A net after `init`: each call goes through the bridge, with the net's own parameters.

In training the scales follow the running extremes of the float net's tensors,

    r <- r + (extreme of the batch - r) / 10

and those of the weights their extremes as they are; in evaluation all stay. With calibration data they stay throughout.
The first call traces the net, where `init` did not. `state_dict` keeps plan and extremes beside the weights.

Owns: the running extremes, what is saved. Must not know: how a net is traced (`traced`), files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..flow import QuantizedModel, complete
from ..flow.assign import assign, tie_classes
from ..flow.observe import TensorStats
from ..graph import ir
from ..plan import Plan
from ..platforms import platform
from ..run.runners import FloatIsland
from .derived import Parameters
from .fake_quant import At
from .floats import TorchIsland
from .marks import Counterpart, dress, marks_of
from .traced import Settings, Traced, trace, widths_of

__all__ = ["Initialised", "State", "state_of"]

_KEY, _EXTRA = "lingeronnx_state", "_extra_state"
_SHARE = 0.1  # of a batch in the running extremes

Ranges = dict[str, tuple[float, float]]


class State:
    """What an initialised net has besides its modules."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.traced: Traced | None = None
        self._ranges: Ranges = {}
        self._saved: Mapping[str, Any] = {}
        self._floats: TorchIsland | None = None

    def trace(self, net: nn.Module, args: Any, kwargs: Any) -> Traced:
        """Trace `net` on the given arguments and show in it what is quantized."""
        plan = Plan.from_json(self._saved["plan"], "the checkpoint") if self._saved else None
        found = self.traced = trace(net, args, kwargs, self.settings, plan)
        basis = found.planned.basis.stats
        self._ranges = {name: (s.low, s.high) for name, s in basis.items() if name in found.planned.parts.activations}
        if self._saved:
            self._ranges = {name: (float(low), float(high)) for name, (low, high) in self._saved["ranges"].items()}
        self._floats = None
        for module in found.chosen:
            marks = marks_of(module)
            marks.quantized, marks.widths = True, marks.widths or self.settings.widths
        for module in net.modules():
            dress(module, Initialised if module is net else Counterpart)
        return found

    def run(self, net: nn.Module, args: Any, kwargs: Any) -> Any:
        """Return what the net gives, as its integers will."""
        traced = self.traced or self.trace(net, args, kwargs)
        feed = traced.feed(net, args, kwargs)
        bridge = traced.bridge.train(net.training)
        tensors = traced.lend()
        if net.training and self.settings.calib is None:
            self._follow(traced, feed, tensors)
        bridge.output_limits = _limits(traced, feed) if net.training else {}
        return traced.result(bridge(feed))

    # ---- running extremes ------------------------------------------------------------------------------------------

    def _follow(self, traced: Traced, feed: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
        """Let the running extremes follow this batch, and the plan follow them."""
        planned = traced.planned
        with torch.no_grad():
            seen = {name: (float(x.min()), float(x.max())) for name, x in self._activations(traced, feed, tensors)}
        for name, (low, high) in seen.items():
            old = self._ranges.get(name, (low, high))
            top = float(traced.limits[name].max()) if name in traced.limits else np.inf
            new = max(low, -top), min(high, top)
            self._ranges[name] = old[0] + _SHARE * (new[0] - old[0]), old[1] + _SHARE * (new[1] - old[1])
        stats = {name: _stats(low, high) for name, (low, high) in self._ranges.items()}
        assert planned.basis.choice is not None
        parts = planned.parts.on(traced.bridge.current())
        plan, _ = assign(parts, tie_classes(parts, traced.bridge.row), stats, traced.bridge.row, planned.basis.choice)
        traced.bridge.set_plan(replace(plan, transforms=planned.plan.transforms))

    def _activations(
        self, traced: Traced, feed: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
    ) -> list[tuple[str, Tensor]]:
        """Return the float net's tensors that become integers, for the weights as they are."""
        wanted = set(traced.planned.parts.activations)
        if self._floats is None:
            graph = _limited(traced.planned.graph, traced.limits)
            self._island = FloatIsland(graph, list(graph.graph), wanted)
            self._floats = TorchIsland(self._island)
        island = self._island
        results = self._floats(island, [feed[name] for name in island.inputs], At((), floats=tensors))
        found = [*feed.items(), *zip(island.outputs, results, strict=True)]
        return [(name, tensor) for name, tensor in found if name in wanted and tensor.numel()]

    # ---- what is kept ----------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """Return the plan as JSON and the running extremes; nothing before the trace."""
        if self.traced is None:
            return dict(self._saved)
        return {"plan": self.traced.bridge.plan.to_json(), "ranges": {n: list(r) for n, r in self._ranges.items()}}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over what `saved` returned, or forget everything: the next call traces anew."""
        self._saved, self.traced = saved, None

    def __deepcopy__(self, memo: Any) -> State:
        """Return a state that traces anew at its first call, with the same scales."""
        copy = State(self.settings)
        copy.restore(self.saved())
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self.settings), "platform": self.settings.platform.name, "saved": self.saved()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        settings = {key: value for key, value in state.items() if key != "saved"}
        fresh = State(Settings(**{**settings, "platform": platform(state["platform"])}))
        self.__dict__.update(fresh.__dict__)
        self.restore(state["saved"])

    def quantized(self) -> QuantizedModel:
        """Return the integer graph of the net as it stands; ConfigError before the trace."""
        if self.traced is None:
            raise ConfigError("the net has not been traced yet: call it once, or give init example_inputs")
        with torch.no_grad():
            self.traced.lend()
        bridge = self.traced.bridge
        return complete(replace(self.traced.planned, plan=bridge.plan), bridge.current())


def _stats(low: float, high: float) -> TensorStats:
    """Return statistics that say the extremes alone."""
    squares = max(low * low, high * high)
    return TensorStats(1, low, high, squares, 0, np.zeros(1, np.int64))


def _limits(traced: Traced, feed: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the limits of clamped outputs as what counts are compared with."""
    like = next(iter(feed.values()))
    found = {}
    for name, sizes in traced.limits.items():
        axes = len(ir.shape(_value(traced.planned.graph, name)) or ()) - 2
        tensor = torch.from_numpy(sizes.astype(np.float32)).to(like.device)
        found[name] = tensor.reshape(-1, *[1] * max(axes, 0)) if len(sizes) > 1 else float(sizes[0])
    return found


def _value(graph: ir.Graph, name: str) -> ir.Value:
    return next(value for value in ir.values(graph) if value.name == name)


def _limited(graph: ir.Graph, limits: Mapping[str, np.ndarray]) -> ir.Graph:
    """Return `graph` with clamped outputs cut for whatever reads them; their names stay those of what is cut."""
    if not limits:
        return graph
    copy = ir.clone(graph)
    for value in [value for value in ir.values(copy) if value.name in limits]:
        sizes, rank = limits[str(value.name)], len(ir.shape(value) or ())
        top = sizes.astype(np.float32).reshape(-1, *[1] * (rank - 2 if len(sizes) > 1 else 0))
        readers = [(use.node, use.idx) for use in value.uses()]
        after = ir.producer(value)
        assert after is not None
        for kind, bound in (("Min", top), ("Max", -top)):
            limit = ir.add_initializer(copy, ir.fresh_name(copy, f"{value.name}_{kind}"), bound)
            node = ir.make_node(
                kind, [value, limit], output=ir.fresh_name(copy, f"{value.name}_cut"), of=after, what=kind
            )
            copy.graph.insert_after(after, node)
            after, value = node, node.outputs[0]
        for reader, index in readers:
            reader.replace_input_with(index, value)
    return copy


class Initialised(Counterpart):
    """A whole net after `init`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the net's own forward returns, computed as its integers will be."""
        return state_of(self).run(self, args, kwargs)

    def get_extra_state(self) -> Any:
        """Return scales and running extremes, for `state_dict`."""
        return state_of(self).saved()

    def set_extra_state(self, state: Any) -> None:
        """Take over scales and running extremes."""
        state_of(self).restore(state)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: Any
    ) -> None:
        """Take the state_dict of the float net as well: then the net is traced anew."""
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        if f"{prefix}{_EXTRA}" in missing:
            missing.remove(f"{prefix}{_EXTRA}")
            state_of(self).restore({})


def state_of(net: nn.Module) -> State:
    """Return the state of an initialised net; ConfigError for another module."""
    found = net.__dict__.get(_KEY)
    if found is None:
        raise ConfigError(f"the {type(net).__name__} has not been initialised: call lo.torch.init first")
    state: State = found
    return state


def initialise(net: nn.Module, settings: Settings) -> State:
    """Make `net` an initialised one, not yet traced."""
    state = net.__dict__[_KEY] = State(settings)
    parameters = Parameters(net)
    for path, module in net.named_modules():
        marks = marks_of(module)
        marks.inside, marks.chosen = True, widths_of(parameters.chain(path), settings) is not None
    dress(net, Initialised)
    return state
