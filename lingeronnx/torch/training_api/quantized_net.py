"""A net after `init`: each call goes through the bridge, with the net's own parameters.

In training the scales follow the running extremes of the float net's tensors,

    r <- r + (extreme of the batch - r) / 10

and those of the weights their extremes as they are; in evaluation all stay. With calibration data
they stay throughout. The first call traces the net, where `init` did not. `state_dict` keeps plan
and extremes beside the weights.

Owns: the running extremes, what is saved. Must not know: how a net is traced (`trace_net`), files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import ConfigError
from ...flow import QuantizedModel, build_quantized_model
from ...flow.assign import assign_qparams, group_shared_scales
from ...flow.observe import TensorStats
from ...graph import ir
from ...plan import Plan
from ...run.runners import FloatFallback
from ...targets import get_target
from ..qat.fake_common import FakeQuantContext
from ..qat.float_fallback import TorchFallback
from .module_wrappers import WrappedModule, get_or_create_annotations, update_module_class
from .parameter_constants import NetParameters
from .trace import Settings, Traced, get_layer_bits, trace_net

__all__ = ["QatState", "QuantizedNet", "get_qat_state"]

_KEY, _EXTRA = "lingeronnx_state", "_extra_state"
_RANGE_MOMENTUM = 0.1  # of a batch in the running extremes

Ranges = dict[str, tuple[float, float]]


class QatState:
    """What an initialised net has besides its modules.

    Told : what its plan depends on besides weights, as text.
    """

    def __init__(self, settings: Settings, settings_fingerprint: str) -> None:
        self.settings, self.told = settings, settings_fingerprint
        self.traced: Traced | None = None
        self._ranges: Ranges = {}
        self._saved: Mapping[str, Any] = {}
        self._floats: TorchFallback | None = None

    def trace(self, net: nn.Module, args: Any, kwargs: Any) -> Traced:
        """Trace `net` on the given arguments and show in it what is quantized."""
        if self._saved and self._saved["settings"] != self.told:
            raise ConfigError(
                "the checkpoint was saved with other settings of init; initialise the net as it "
                "was then, or load the "
                "float checkpoint"
            )
        plan = Plan.from_json(self._saved["plan"], "the checkpoint") if self._saved else None
        found = self.traced = trace_net(
            net, args, kwargs, self.settings, plan, self._saved.get("frozen", {})
        )
        basis = found.planned.basis.stats
        wanted = found.planned.partition.activations
        self._ranges = {
            name: _clip_range(found, name, s.low, s.high)
            for name, s in basis.items()
            if name in wanted
        }
        if self._saved:
            self._ranges = {
                name: (float(low), float(high))
                for name, (low, high) in self._saved["ranges"].items()
            }
        elif found.output_limits and self.settings.calib is None:
            with torch.no_grad():
                found.update_constants()
            self._update_plan(found)
        self._floats = None
        for module in net.modules():
            get_or_create_annotations(module).is_quantized = module in found.quantized_modules
        for module in net.modules():
            update_module_class(module, QuantizedNet if module is net else WrappedModule)
        return found

    def run(self, net: nn.Module, args: Any, kwargs: Any) -> Any:
        """Return what the net gives, as its integers will."""
        traced = self.traced or self.trace(net, args, kwargs)
        feed = traced.get_feed(net, args, kwargs)
        tensors = traced.update_constants()
        if net.training and self.settings.calib is None:
            self._update_ranges(traced, feed, tensors)
        return traced.result(traced.bridge(feed))

    # ---- running extremes ------------------------------------------------------------------------------------------

    def _update_ranges(
        self, traced: Traced, feed: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
    ) -> None:
        """Let the running extremes follow this batch, and the plan follow them."""
        with torch.no_grad():
            seen = {
                name: (float(x.min()), float(x.max()))
                for name, x in self._compute_activations(traced, feed, tensors)
            }
        for name, (low, high) in seen.items():
            new = _clip_range(traced, name, low, high)
            old = self._ranges.get(name, new)
            self._ranges[name] = (
                old[0] + _RANGE_MOMENTUM * (new[0] - old[0]),
                old[1] + _RANGE_MOMENTUM * (new[1] - old[1]),
            )
        self._update_plan(traced)

    def _update_plan(self, traced: Traced) -> None:
        """Give the bridge the scales that the running extremes and the weights ask for."""
        planned = traced.planned
        stats = {name: _make_range_stats(low, high) for name, (low, high) in self._ranges.items()}
        assert planned.basis.policy is not None
        parts = planned.partition.with_graph(traced.bridge.export_float_graph())
        plan, _ = assign_qparams(
            parts,
            group_shared_scales(parts, traced.bridge.target),
            stats,
            traced.bridge.target,
            planned.basis.policy,
        )
        traced.bridge.set_plan(replace(plan, transforms=planned.plan.transforms))

    def _compute_activations(
        self, traced: Traced, feed: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
    ) -> list[tuple[str, Tensor]]:
        """Return the float net's tensors that become integers, for the weights as they are."""
        wanted = set(traced.planned.partition.activations)
        if self._floats is None:
            graph = _insert_output_clamps(traced.planned.graph, traced.output_limits)
            self._fallback = FloatFallback(graph, list(graph.graph), wanted)
            self._floats = TorchFallback(self._fallback)
        fallback = self._fallback
        results = self._floats(
            fallback, [feed[name] for name in fallback.inputs], FakeQuantContext((), floats=tensors)
        )
        found = [*feed.items(), *zip(fallback.outputs, results, strict=True)]
        return [(name, tensor) for name, tensor in found if name in wanted and tensor.numel()]

    # ---- what is kept ----------------------------------------------------------------------------------------------

    def to_state_dict(self) -> dict[str, Any]:
        """Return the settings, the plan as JSON, the running extremes and what is frozen.

        Nothing before the trace.
        """
        if self.traced is None:
            return dict(self._saved)
        ranges = {name: list(pair) for name, pair in self._ranges.items()}
        found = {"settings": self.told, "plan": self.traced.bridge.plan.to_json(), "ranges": ranges}
        return {**found, "frozen": frozen} if (frozen := self.traced.frozen_constants) else found

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over what `saved` returned, or forget everything: the next call traces anew."""
        self._saved, self.traced = saved, None

    def __deepcopy__(self, memo: Any) -> QatState:
        """Return a state that traces anew at its first call, with the same scales."""
        copy = QatState(self.settings, self.told)
        copy.load_state_dict(self.to_state_dict())
        return copy

    def __getstate__(self) -> dict[str, Any]:
        settings = {**vars(self.settings), "platform": self.settings.platform.name}
        return {"settings": settings, "told": self.told, "saved": self.to_state_dict()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        settings = state["settings"]
        fresh = QatState(
            Settings(**{**settings, "platform": get_target(settings["platform"])}), state["told"]
        )
        fresh.load_state_dict(state["saved"])
        self.__dict__.update(fresh.__dict__)

    def build_quantized_model(self) -> QuantizedModel:
        """Return the integer graph of the net as it stands; ConfigError before the trace."""
        if self.traced is None:
            raise ConfigError(
                "the net has not been traced yet: call it once, or give init example_inputs"
            )
        with torch.no_grad():
            self.traced.update_constants()
        bridge = self.traced.bridge
        return build_quantized_model(
            self.traced.prepared,
            replace(self.traced.planned, plan=bridge.plan),
            bridge.export_float_graph(),
        )


def _clip_range(traced: Traced, name: str, low: float, high: float) -> tuple[float, float]:
    """Return the extremes of a tensor as far as its clamp lets them go."""
    top = traced.output_limits.get(name, math.inf)
    return max(low, -top), min(high, top)


def _make_range_stats(low: float, high: float) -> TensorStats:
    """Return statistics that say the extremes alone."""
    squares = max(low * low, high * high)
    return TensorStats(1, low, high, squares, 0, np.zeros(1, np.int64))


def _insert_output_clamps(graph: ir.Model, limits: Mapping[str, float]) -> ir.Model:
    """Return `graph` with clamped outputs cut for whatever reads them.

    Their names stay those of what is cut.
    """
    if not limits:
        return graph
    copy = ir.clone(graph)
    for value in [value for value in ir.iter_values(copy) if value.name in limits]:
        top = np.array(limits[str(value.name)], np.float32)
        readers = [(use.node, use.idx) for use in value.uses()]
        after = ir.producer(value)
        assert after is not None
        for kind, bound in (("Min", top), ("Max", -top)):
            limit = ir.add_initializer(
                copy, ir.unique_tensor_name(copy, f"{value.name}_{kind}"), bound
            )
            node = ir.make_node(
                kind,
                [value, limit],
                output=ir.unique_tensor_name(copy, f"{value.name}_cut"),
                origin=after,
                suffix=kind,
            )
            copy.graph.insert_after(after, node)
            after, value = node, node.outputs[0]
        for reader, index in readers:
            reader.replace_input_with(index, value)
    return copy


class QuantizedNet(WrappedModule):
    """A whole net after `init`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the net's own forward returns, computed as its integers will be."""
        return get_qat_state(self).run(self, args, kwargs)

    def get_extra_state(self) -> Any:
        """Return scales and running extremes, for `state_dict`."""
        return get_qat_state(self).to_state_dict()

    def set_extra_state(self, state: Any) -> None:
        """Take over scales and running extremes."""
        get_qat_state(self).load_state_dict(state)

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
        """Take the state_dict of the float net as well: then the net is traced anew."""
        super()._load_from_state_dict(
            state_dict, prefix, metadata, strict, missing, unexpected, errors
        )
        if f"{prefix}{_EXTRA}" in missing:
            missing.remove(f"{prefix}{_EXTRA}")
            get_qat_state(self).load_state_dict({})


def get_qat_state(net: nn.Module) -> QatState:
    """Return the state of an initialised net; ConfigError for another module."""
    found = net.__dict__.get(_KEY)
    if found is None:
        raise ConfigError(
            f"the {type(net).__name__} has not been initialised: call lo.torch.init first"
        )
    state: QatState = found
    return state


def initialise_net(net: nn.Module, settings: Settings) -> QatState:
    """Make `net` an initialised one, not yet traced."""
    parameters, chosen = NetParameters(net), {}
    for path, module in net.named_modules():
        widths = get_layer_bits(parameters.get_module_chain(path), settings)
        if widths is not None:
            chosen[path] = module, widths
        get_or_create_annotations(module).is_initialised = True
    for module, widths in chosen.values():
        marks = get_or_create_annotations(module)
        marks.is_selected, marks.is_quantized, marks.bits = True, True, widths
    layers = {
        path: (repr(widths), repr(get_or_create_annotations(module).clamp))
        for path, (module, widths) in chosen.items()
    }
    told = json.dumps([settings.platform.name, settings.mode, repr(settings.widths), layers])
    state = net.__dict__[_KEY] = QatState(settings, told)
    for module in net.modules():
        update_module_class(module, QuantizedNet if module is net else WrappedModule)
    return state
