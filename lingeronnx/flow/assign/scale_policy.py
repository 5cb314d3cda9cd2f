"""How scales are chosen.

The settings, the user's overrides of single tensors, and 16 bits where a state needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...graph import ir
from ...ops import Op
from ...plan import Affine
from ...plan.config import parse_group_size
from ...targets import Target
from ..observe.statistics import ConsumerFunction, TensorStats
from ..partition import Partition
from ..prepare.preparation import PreparedModel
from ..prepare.recurrent_states import find_16bit_state_tensors
from .calibrators import choose_affine_qparams, choose_symmetric_scale

__all__ = [
    "ScalePolicy",
    "TensorScalePolicy",
    "build_scale_policy",
    "describe_ineffective_overrides",
    "resolve_scale_policy",
]

#: What an override says of a layer, not of the tensor that it gives.
_LAYER_KEYS = {"weight_bits", "out_bits"}
#: What settles how an output that leaves the integers is held.
_WIDTH_KEYS = {"bits", "out_bits", "scale"}


@dataclass(frozen=True)
class ScalePolicy:
    """How scales are chosen: mode, widths and calibrator, and what the user said of single tensors.

    weight_scales : "tensor", "channel" for one scale for each output channel of a layer, or
    "group:N" for one for each N weights of a row of a fully connected layer, and for each channel
    of the others. asymmetric : whether activations of at most 8 bits have zero points, where all
    operators around take them. overrides : {tensor: {"calibrator", "percentile", "scale", "bits" or
    "out_bits": value}} weights_refined : whether weights are refined under the scales.
    held : {tensor or weight: how it is held, whatever calibration would say}
    widened_weights : {weight that has more bits than it was told, as the target has no fewer there:
    (its node, why)}
    """

    mode: str
    bits: int
    weight_bits: int
    calibrator: str
    percentile: float
    overrides: Mapping[str, Mapping[str, Any]]
    weight_scales: str = "tensor"
    asymmetric: bool = False
    weights_refined: bool = False
    held: Mapping[str, Affine] = field(default_factory=dict)
    widened_weights: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def policy_for_tensors(self, names: Iterable[str], bits: int) -> TensorScalePolicy:
        """Return the settings of a class of tensors, `bits` wide by default.

        The first with an override wins.
        """
        settings: dict[str, Any] = {}
        for name in names:
            settings = {**self.overrides.get(name, {}), **settings}
        return TensorScalePolicy(
            settings.get("bits", bits),
            settings.get("scale"),
            settings.get("calibrator", self.calibrator),
            settings.get("percentile", self.percentile),
            self.mode == "q-value",
            self.asymmetric,
        )

    @property
    def group_size(self) -> int | None:
        """How many weights of a row share a scale, None without groups."""
        return parse_group_size(self.weight_scales)

    def width(self, *names: str) -> int:
        """Return the bits of activations that share a scale."""
        return self.policy_for_tensors(names, self.bits).bits

    def weight_bits_for(self, name: str) -> int:
        """Return the bits of a weight."""
        return self.policy_for_tensors([name], self.weight_bits).bits

    def with_fixed_scales(self, scales: Mapping[str, float]) -> ScalePolicy:
        """Return the same with fixed `scales` for some tensors."""
        own = {
            name: {**self.overrides.get(name, {}), "scale": scale} for name, scale in scales.items()
        }
        return replace(self, overrides={**self.overrides, **own})

    @property
    def out_bits(self) -> dict[str, int | str]:
        """{tensor: width of a layer's output that leaves the integers}; 8 is what it has anyway."""
        return {
            name: own["out_bits"]
            for name, own in self.overrides.items()
            if own.get("out_bits", 8) != 8
        }


@dataclass(frozen=True)
class TensorScalePolicy:
    """How the scale of one class of tensors is chosen; `scale` where the user fixed it, else None.

    allows_zero_point : whether the class may have one; with a fixed scale, and above 8 bits, it is
    0.
    """

    bits: int
    scale: float | None
    calibrator: str
    percentile: float
    power_of_two: bool
    allows_zero_point: bool = False

    def choose_qparams(
        self, stats: TensorStats, consumer: ConsumerFunction | None = None
    ) -> tuple[float, int]:
        """Return scale and zero point for what was seen, which the curve `consumer` alone reads."""
        return choose_affine_qparams(
            stats,
            self.bits,
            power_of_two=self.power_of_two,
            calibrator=self.calibrator,
            percentile=self.percentile,
            consumer=consumer,
        )

    def choose_scale(self, stats: TensorStats, consumer: ConsumerFunction | None = None) -> float:
        """Return the scale for what was seen, which the curve `consumer` alone reads."""
        return choose_symmetric_scale(
            stats,
            self.bits,
            power_of_two=self.power_of_two,
            calibrator=self.calibrator,
            percentile=self.percentile,
            consumer=consumer,
        )


def resolve_scale_policy(prepared: PreparedModel, partition: Partition) -> ScalePolicy:
    """Return how the scales of `partition` are chosen."""
    conf = prepared.conf
    wide = (
        find_16bit_state_tensors(partition, conf.state, prepared.target) if conf.bits < 16 else []
    )
    return build_scale_policy(prepared, partition, wide)


def build_scale_policy(
    prepared: PreparedModel, partition: Partition, wide_names: Sequence[str]
) -> ScalePolicy:
    """Return the settings of `prepared`, with overrides resolved to tensors and weights of the partitioned graph.

    wide_names : tensors and weights that have 16 bits where no override says otherwise. Weights
    that were told fewer bits than the target has in their layer have the least that it has
    everywhere. What an override says of a layer that moved to the host is left out:
    `describe_ineffective_overrides` tells it. Where layers may move, what a part hands to the host
    before another part has all bits that a layer writes, unless an override says otherwise.
    """
    conf, target, selectors = prepared.conf, prepared.target, prepared.selectors(partition.graph)
    own: dict[str, dict[str, Any]] = {name: {"bits": 16} for name in wide_names}
    by_output = {ir.output_name(node): node for node in selectors.graph.graph}
    for selector, override in conf.overrides.items():
        settings = override.to_settings
        for name in selectors.tensors(selector):
            node = by_output.get(name)
            moved = node is not None and str(node.name) in prepared.moved
            of_layers = _LAYER_KEYS if moved else {"weight_bits"}
            own.setdefault(name, {}).update(
                {k: v for k, v in settings.items() if k not in of_layers}
            )
            weights = (
                _quantized_weight_names(node, partition.ops) if "weight_bits" in settings else []
            )
            for weight in weights:
                own.setdefault(weight, {})["bits"] = settings["weight_bits"]
    for name in (
        partition.wide_outputs_between_parts(target) if prepared.allows_layer_offload else ()
    ):  # a program of ours reads them
        if _WIDTH_KEYS.isdisjoint(own.get(name, {})) and max(target.out_bits) > min(
            target.out_bits
        ):
            own.setdefault(name, {})["out_bits"] = max(target.out_bits)
    stay = _find_widened_weights(partition, own, conf.weight_bits, target)
    for weight in stay:
        own.setdefault(weight, {})["bits"] = min(target.bits)
    return ScalePolicy(
        mode=conf.mode,
        bits=conf.bits,
        weight_bits=conf.weight_bits,
        calibrator=conf.calibrator,
        percentile=conf.percentile,
        overrides=own,
        weight_scales=conf.weight_scales,
        asymmetric=conf.activations == "asymmetric",
        weights_refined=conf.effort != "fast",
        widened_weights=stay,
    )


def describe_ineffective_overrides(prepared: PreparedModel) -> list[str]:
    """Return a line for each override of a tensor whose layer moved to the host, where it says nothing to the chip.

    What it says of the tensor still holds where a layer of the chip reads that.
    """
    found, parts = [], prepared.parts
    by_output = {ir.output_name(node): str(node.name) for node in parts.graph.graph}
    selectors = prepared.selectors(parts.graph) if prepared.conf.overrides else None
    for selector, override in prepared.conf.overrides.items():
        for name in selectors.tensors(selector) if selectors is not None else ():
            why = prepared.moved.get(by_output.get(name, ""))
            idle = override.to_settings.keys() & (
                _LAYER_KEYS if name in parts.activations else override.to_settings.keys()
            )
            if why is not None and idle:
                what = ", ".join(
                    f"{key} {override.to_settings[key]}"
                    for key in override.to_settings
                    if key in idle
                )
                found.append(
                    f"override '{selector}': '{name}' is computed by the host ({why}); {what} has "
                    "no effect"
                )
    return found


def _find_widened_weights(
    partition: Partition, own: Mapping[str, Mapping[str, Any]], bits: int, target: Target
) -> dict[str, tuple[str, str]]:
    """Return {weight: (its node, why)} of those that were told fewer bits than the target has for their layer."""
    stay = {}
    for node, op in partition.integer_nodes:
        for weight in (ir.input_name(node, index) for index in op.weight_inputs(node)):
            told = own.get(weight, {}).get("bits", bits)
            if told not in target.bits:
                many = own.get(ir.output_name(node), {}).get("out_bits", 8) != 8
                why = (
                    "its output has more than 8 bits"
                    if many
                    else target.vendor.explain_rejected_weight_bits(node, told, target)
                )
                if why is not None:
                    stay[weight] = (str(node.name), why)
    return stay


def _quantized_weight_names(node: ir.Node | None, ops: Mapping[str, Op]) -> list[str]:
    """Return the names of the quantized weights of a float node."""
    op = ops.get(str(node.name)) if node is not None else None
    return (
        []
        if node is None or op is None
        else [ir.input_name(node, index) for index in op.weight_inputs(node)]
    )
