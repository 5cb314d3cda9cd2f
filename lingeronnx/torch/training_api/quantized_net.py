"""A net after `init`: calls run the planned graph with the parameters of the net.

In training the scales of activations follow the running extremes of the tensors of the float net,

    r <- r + (extreme of the batch - r) / 10

and those of weights follow their current extremes; in evaluation all scales are constant. With
calibration data they are always constant. The first call traces the net unless `init` did.
`state_dict` contains plan and extremes besides the weights.

This module owns the running extremes and the saved state. How a net is traced is in `trace`.
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

from ...common.errors import ConfigError
from ...ir import ir
from ...ir.plan import Plan
from ...quantization import QuantizedModel, build_quantized_model
from ...quantization.calibration import TensorStats
from ...quantization.scales import assign_qparams, group_shared_scales
from ...runtime.runners import FloatFallback
from ...targets import get_target
from ..fake_quant.common import FakeQuantContext
from ..qat.float_fallback import TorchFallback
from .module_wrappers import WrappedModule, get_or_create_annotations, update_module_class
from .parameter_constants import NetParameters
from .trace import Settings, Traced, get_layer_bits, trace_net

__all__ = ["QatState", "QuantizedNet", "get_qat_state"]

_KEY, _EXTRA = "lingeronnx_state", "_extra_state"
_RANGE_MOMENTUM = 0.1  # of a batch in the running extremes

Ranges = dict[str, tuple[float, float]]


class QatState:
    """State of an initialised net besides its modules.

    Parameters
    ----------
    settings
        Settings of `init`.
    settings_fingerprint
        Text of everything that the plan depends on besides weights.
    """

    def __init__(self, settings: Settings, settings_fingerprint: str) -> None:
        """Hold the settings of `init` for a net that has not been traced yet.

        `settings_fingerprint` is a text of everything that the plan depends on besides weights;
        checkpoints contain it.
        """
        self.settings, self.fingerprint = settings, settings_fingerprint
        self.traced: Traced | None = None
        self._ranges: Ranges = {}
        self._saved: Mapping[str, Any] = {}
        self._floats: TorchFallback | None = None

    def trace(self, net: nn.Module, args: Any, kwargs: Any) -> Traced:
        """Trace `net` with the given arguments and wrap the modules that are quantized.

        A loaded checkpoint gives the plan and ranges; raises ConfigError if it was saved with other
        settings. Otherwise the ranges are the initial ones. Changes the classes of modules in
        place.
        """
        if self._saved and self._saved["settings"] != self.fingerprint:
            raise ConfigError(
                "the checkpoint was saved with other settings of init; initialise the net with the "
                "same settings, or load the float checkpoint"
            )
        plan = Plan.from_json(self._saved["plan"], "the checkpoint") if self._saved else None
        frozen = self._saved.get("frozen", {})
        traced = self.traced = trace_net(net, args, kwargs, self.settings, plan, frozen)
        self._ranges = _get_initial_ranges(traced)
        if self._saved:
            saved_ranges = self._saved["ranges"].items()
            self._ranges = {name: (float(low), float(high)) for name, (low, high) in saved_ranges}
        elif traced.output_limits and self.settings.calib is None:
            with torch.no_grad():
                traced.update_constants()
            self._update_plan(traced)
        self._floats = None
        for module in net.modules():
            annotations = get_or_create_annotations(module)
            annotations.is_quantized = module in traced.quantized_modules
        for module in net.modules():
            update_module_class(module, QuantizedNet if module is net else WrappedModule)
        return traced

    def trace_on_example(self, net: nn.Module, example: Any) -> Traced:
        """Trace `net` with example arguments, wrap the quantized modules, and return the trace.

        `example` is a tuple of arguments, a dict of keyword arguments, or a single argument.
        """
        if isinstance(example, dict):
            return self.trace(net, (), example)
        return self.trace(net, example if isinstance(example, tuple) else (example,), {})

    def run(self, net: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call the net with fake quantization, and return the result of its forward.

        Traces `net` if needed. In training mode without calibration data the ranges, and so the
        scales, follow the batch.
        """
        traced = self.traced or self.trace(net, args, kwargs)
        feed = traced.get_feed(net, args, kwargs)
        tensors = traced.update_constants()
        if net.training and self.settings.calib is None:
            self._update_ranges(traced, feed, tensors)
        return traced.result(traced.qat_module(feed))

    # ---- running extremes -----------------------------------------------------------------------

    def _update_ranges(
        self, traced: Traced, feed: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
    ) -> None:
        """Move the running extremes towards those of a batch, and update the scales accordingly.

        Each extreme moves by `_RANGE_MOMENTUM` towards that of the batch, clipped to the limits of
        the tensor; a tensor without extremes takes those of the batch. `feed` are the inputs,
        `tensors` the current constants by name.
        """
        with torch.no_grad():
            batch_ranges = {
                name: (float(tensor.min()), float(tensor.max()))
                for name, tensor in self._compute_activations(traced, feed, tensors)
            }
        for name, (low, high) in batch_ranges.items():
            new_low, new_high = _clip_range(traced, name, low, high)
            old_low, old_high = self._ranges.get(name, (new_low, new_high))
            self._ranges[name] = (
                old_low + _RANGE_MOMENTUM * (new_low - old_low),
                old_high + _RANGE_MOMENTUM * (new_high - old_high),
            )
        self._update_plan(traced)

    def _update_plan(self, traced: Traced) -> None:
        """Set the scales of `traced` to those of the running extremes and the current weights.

        The channel factors (transforms) of the plan stay.
        """
        planned, qat_module = traced.planned, traced.qat_module
        stats = {name: _make_range_stats(low, high) for name, (low, high) in self._ranges.items()}
        assert planned.basis.policy is not None
        partition = planned.partition.with_graph(qat_module.export_float_graph())
        shared_scales = group_shared_scales(partition, qat_module.target)
        plan, _ = assign_qparams(
            partition, shared_scales, stats, qat_module.target, planned.basis.policy
        )
        qat_module.set_plan(replace(plan, transforms=planned.plan.transforms))

    def _compute_activations(
        self, traced: Traced, feed: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
    ) -> list[tuple[str, Tensor]]:
        """Return (name, tensor) of the float net's tensors that the graph quantizes, for a batch.

        `feed` are the inputs, `tensors` the current constants by name. Empty tensors are left out.
        """
        activations = set(traced.planned.partition.activations)
        if self._floats is None:
            graph = _insert_output_clamps(traced.planned.graph, traced.output_limits)
            self._fallback = FloatFallback(graph, list(graph.graph), activations)
            self._floats = TorchFallback(self._fallback)
        fallback = self._fallback
        inputs = [feed[name] for name in fallback.inputs]
        outputs = self._floats(fallback, inputs, FakeQuantContext((), floats=tensors))
        tensors_by_name = [*feed.items(), *zip(fallback.outputs, outputs, strict=True)]
        return [
            (name, tensor)
            for name, tensor in tensors_by_name
            if name in activations and tensor.numel()
        ]

    # ---- saved state ----------------------------------------------------------------------------

    def to_state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: "settings", "plan" (JSON), "ranges" and "frozen".

        Ranges are the running extremes by tensor; frozen constants are left out if there are none.
        Before the trace it is the loaded state, which may be empty.
        """
        if self.traced is None:
            return dict(self._saved)
        state: dict[str, Any] = {
            "settings": self.fingerprint,
            "plan": self.traced.qat_module.plan.to_json(),
            "ranges": {name: list(bounds) for name, bounds in self._ranges.items()},
        }
        frozen = self.traced.frozen_constants
        return {**state, "frozen": frozen} if frozen else state

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take the saved scales and ranges, and drop the trace: the next call traces the net again.

        `saved` has "settings", "plan", "ranges" and possibly "frozen"; an empty one means a fresh
        start.
        """
        self._saved, self.traced = saved, None

    def __deepcopy__(self, memo: Any) -> QatState:
        """Return an untraced copy with the same settings, scales and ranges.

        The first call of its net traces that net.
        """
        copy = QatState(self.settings, self.fingerprint)
        copy.load_state_dict(self.to_state_dict())
        return copy

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle: settings (platform by name), fingerprint, saved scales."""
        settings = {**vars(self.settings), "platform": self.settings.platform.name}
        return {"settings": settings, "told": self.fingerprint, "saved": self.to_state_dict()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restore a pickled state as untraced; the first call traces the net again.

        `state` has "settings" (platform by name), "told" (the fingerprint) and "saved" (scales,
        ranges).
        """
        settings = state["settings"]
        fresh = QatState(
            Settings(**{**settings, "platform": get_target(settings["platform"])}), state["told"]
        )
        fresh.load_state_dict(state["saved"])
        self.__dict__.update(fresh.__dict__)

    def build_quantized_model(self) -> QuantizedModel:
        """Return the integer graph for the current parameters and scales.

        Raises ConfigError if the net is not traced yet.
        """
        if self.traced is None:
            raise ConfigError(
                "the net is not traced yet: call it once, or pass example_inputs to init"
            )
        with torch.no_grad():
            self.traced.update_constants()
        qat_module = self.traced.qat_module
        return build_quantized_model(
            replace(self.traced.planned, plan=qat_module.plan),
            qat_module.export_float_graph(),
        )


def _get_initial_ranges(traced: Traced) -> Ranges:
    """Return activation name -> (low, high) in the statistics of the trace.

    Both are limited by the output clamp of the layer, if it has one.
    """
    activations = traced.planned.partition.activations
    return {
        name: _clip_range(traced, name, stats.low, stats.high)
        for name, stats in traced.planned.basis.stats.items()
        if name in activations
    }


def _clip_range(traced: Traced, name: str, low: float, high: float) -> tuple[float, float]:
    """Return (low, high) limited to +- the limit of the output clamp of tensor `name`, if any."""
    limit = traced.output_limits.get(name, math.inf)
    return max(low, -limit), min(high, limit)


def _make_range_stats(low: float, high: float) -> TensorStats:
    """Return tensor statistics with the extremes `low` and `high`; all else is a placeholder."""
    squares = max(low * low, high * high)
    return TensorStats(1, low, high, squares, 0, np.zeros(1, np.int64))


def _insert_output_clamps(graph: ir.Model, limits: Mapping[str, float]) -> ir.Model:
    """Return a copy of `graph` in which the consumers of some tensors read clamped values.

    Without `limits` it is `graph` itself.

    Parameters
    ----------
    limits
        Largest absolute value by tensor name. The tensors themselves keep their names and values.
    """
    if not limits:
        return graph
    copy = graph.clone()
    for value in [value for value in ir.iter_values(copy) if value.name in limits]:
        limit = np.array(limits[str(value.name)], np.float32)
        consumers = [(use.node, use.idx) for use in value.uses()]
        previous = ir.producer(value)
        assert previous is not None
        for op_type, bound in (("Min", limit), ("Max", -limit)):
            bound_name = ir.unique_tensor_name(copy, f"{value.name}_{op_type}")
            node = ir.make_node(
                op_type,
                [value, ir.add_initializer(copy, bound_name, bound)],
                output=ir.unique_tensor_name(copy, f"{value.name}_cut"),
                origin=previous,
                suffix=op_type,
            )
            copy.graph.insert_after(previous, node)
            previous, value = node, node.outputs[0]
        for consumer, index in consumers:
            consumer.replace_input_with(index, value)
    return copy


class QuantizedNet(WrappedModule):
    """Wrapper class of the root module of a net after `init`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the net's forward, computed with fake quantization.

        The first call traces the net; in training the scales follow the batch unless they are
        calibrated.
        """
        return get_qat_state(self).run(self, args, kwargs)

    def get_extra_state(self) -> Any:
        """Return the quantization's part of `state_dict`: settings, plan and running extremes."""
        return get_qat_state(self).to_state_dict()

    def set_extra_state(self, state: Any) -> None:
        """Take plan and running extremes from a state_dict; the next call traces the net again."""
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
        """Load the parameters of a state_dict, which may be that of the float net.

        Without a state of the quantization, which is then no error, the next call traces the net
        anew, with new scales.
        """
        super()._load_from_state_dict(
            state_dict, prefix, metadata, strict, missing, unexpected, errors
        )
        if f"{prefix}{_EXTRA}" in missing:
            missing.remove(f"{prefix}{_EXTRA}")
            get_qat_state(self).load_state_dict({})


def get_qat_state(net: nn.Module) -> QatState:
    """Return the quantization state that `init` attached to `net`.

    Raises ConfigError for a module that is not initialised.
    """
    if _KEY not in net.__dict__:
        raise ConfigError(f"the {type(net).__name__} is not initialised: call lo.torch.init first")
    state: QatState = net.__dict__[_KEY]
    return state


def initialise_net(net: nn.Module, settings: Settings) -> QatState:
    """Mark the modules of `net` to be quantized, and attach and return an untraced state.

    Changes the classes of all modules in place. The fingerprint of the state covers the settings
    and those of each layer.
    """
    parameters = NetParameters(net)
    layers = {}
    for path, module in net.named_modules():
        bits = get_layer_bits(parameters.get_module_chain(path), settings)
        if bits is not None:
            layers[path] = module, bits
        get_or_create_annotations(module).is_initialised = True
    layer_settings = {}
    for path, (module, bits) in layers.items():
        annotations = get_or_create_annotations(module)
        annotations.is_selected, annotations.is_quantized, annotations.bits = True, True, bits
        layer_settings[path] = repr(bits), repr(annotations.clamp)
    fingerprint = json.dumps(
        [settings.platform.name, settings.mode, repr(settings.widths), layer_settings]
    )
    state = net.__dict__[_KEY] = QatState(settings, fingerprint)
    for module in net.modules():
        update_module_class(module, QuantizedNet if module is net else WrappedModule)
    return state
