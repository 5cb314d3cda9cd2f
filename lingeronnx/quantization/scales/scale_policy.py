"""The policy for choosing scales: settings, overrides of single tensors, and 16 bits for states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ...ir import ir
from ...ir.plan import Affine
from ...operators.lowerings import Op
from ...targets import Target
from ..calibration.calibrators import (
    choose_affine_qparams,
    choose_row_scales,
    choose_symmetric_scale,
)
from ..calibration.statistics import ConsumerFunction, TensorStats
from ..partition import Partition
from ..prepare.preparation import PreparedModel
from ..prepare.recurrent_states import find_16bit_state_tensors
from ..settings import parse_group_size

__all__ = [
    "ScalePolicy",
    "TensorScalePolicy",
    "build_scale_policy",
    "describe_ineffective_overrides",
    "resolve_scale_policy",
]

#: Override settings that apply to a layer, not to its output tensor.
_LAYER_KEYS = {"weight_bits", "out_bits"}
#: Override settings that determine the width of an output.
_WIDTH_KEYS = {"bits", "out_bits", "scale"}


@dataclass(frozen=True)
class ScalePolicy:
    """Settings for choosing scales, with overrides of single tensors.

    Attributes
    ----------
    mode
        Kind of scales: "q-value" for powers of two, "max-value" for free scales.
    bits, weight_bits
        Default widths of activations and weights.
    calibrator, percentile
        Default calibrator and its percentage.
    overrides
        {tensor: {"calibrator", "percentile", "scale", "bits" or "out_bits": value}}.
    weight_scales
        "tensor", "channel" for one scale per output channel of a layer, or "group:N" for one per N
        weights of a row of a fully connected layer, and per channel of other layers.
    asymmetric
        Whether activations of at most 8 bits have zero points if all adjacent operators support
        them.
    weights_refined
        Whether weights are refined later.
    fixed_qparams
        {tensor or weight: parameters that are used instead of calibration}.
    widened_weights
        {weight that gets more bits than requested, because its layer does not support fewer: (node,
        reason)}.
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
    fixed_qparams: Mapping[str, Affine] = field(default_factory=dict)
    widened_weights: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def policy_for_tensors(self, names: Iterable[str], bits: int) -> TensorScalePolicy:
        """Return the policy of the tensors `names`, which share a scale.

        For each setting the override of the first tensor that has one wins, else the policy's.

        Parameters
        ----------
        names
            The tensors.
        bits
            Width without an override.
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
        """Number of weights of a row that share a scale, from `weight_scales`.

        None without groups.
        """
        return parse_group_size(self.weight_scales)

    def width(self, *names: str) -> int:
        """Return the bits of activations `names` that share a scale: overridden, or the default."""
        return self.policy_for_tensors(names, self.bits).bits

    def weight_bits_for(self, name: str) -> int:
        """Return the bits of the weight `name`: overridden, or `self.weight_bits`."""
        return self.policy_for_tensors([name], self.weight_bits).bits

    def with_fixed_scales(self, scales: Mapping[str, float]) -> ScalePolicy:
        """Return a copy with fixed `scales` ({tensor: scale}), in addition to its other overrides.

        They replace a scale that is overridden already.
        """
        fixed = {
            name: {**self.overrides.get(name, {}), "scale": scale} for name, scale in scales.items()
        }
        return replace(self, overrides={**self.overrides, **fixed})

    @property
    def out_bits(self) -> dict[str, int | str]:
        """{tensor: output width, bits or "float"} of overrides with another width than 8."""
        return {
            name: settings["out_bits"]
            for name, settings in self.overrides.items()
            if settings.get("out_bits", 8) != 8
        }


class TensorScalePolicy(NamedTuple):
    """Policy for the scale of one tensor, or of several that share it.

    Attributes
    ----------
    bits
        Width in bits.
    scale
        Scale set by the user, or None.
    calibrator, percentile
        Calibrator and its percentage.
    power_of_two
        Whether only powers of two are allowed.
    allows_zero_point
        Whether a zero point is allowed; with a fixed scale, and above 8 bits, it is 0 anyway.
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
        """Choose (scale, zero point) of a tensor with statistics `stats` by the calibrator.

        The scale is in steps per unit; a scale set by the user is ignored.

        Parameters
        ----------
        stats
            Statistics of the tensor.
        consumer
            Function that is the only consumer of the tensor, whose result's error counts.
        """
        return choose_affine_qparams(
            stats,
            self.bits,
            power_of_two=self.power_of_two,
            calibrator=self.calibrator,
            percentile=self.percentile,
            consumer=consumer,
        )

    def choose_scale(self, stats: TensorStats, consumer: ConsumerFunction | None = None) -> float:
        """Choose the scale, without zero point, of a tensor with statistics `stats`.

        It is in steps per unit, by the calibrator; a scale set by the user is ignored. `consumer`
        is the function that is the only consumer of the tensor, whose result's error counts.
        """
        return choose_symmetric_scale(
            stats,
            self.bits,
            power_of_two=self.power_of_two,
            calibrator=self.calibrator,
            percentile=self.percentile,
            consumer=consumer,
        )

    def choose_row_scales(self, rows: np.ndarray) -> list[float]:
        """Choose the scale, without zero point, of each of `rows` [R, n], none of which is all 0.

        They are in steps per unit, by the calibrator; a scale set by the user is ignored.
        """
        return choose_row_scales(
            rows,
            self.bits,
            power_of_two=self.power_of_two,
            calibrator=self.calibrator,
            percentile=self.percentile,
        )


def resolve_scale_policy(
    prepared: PreparedModel, partition: Partition, wide_states: Sequence[str] = ()
) -> ScalePolicy:
    """Return the policy for scales, with 16 bits for tensors and weights that states depend on.

    Which these are follows from the setting `state`; none if activations have 16 bits anyway. The
    tensors `wide_states` have 16 bits as well.
    """
    conf = prepared.conf
    wide_names = list(wide_states)
    if conf.state and conf.bits < 16:
        wide_names += find_16bit_state_tensors(partition, conf.state, prepared.target)
    return build_scale_policy(prepared, partition, wide_names)


def build_scale_policy(
    prepared: PreparedModel, partition: Partition, wide_names: Sequence[str]
) -> ScalePolicy:
    """Return the policy for scales: settings and overrides by tensor and weight of the graph.

    Settings for a layer that moved to the host are ignored. On chips, outputs of layers from which
    float nodes compute inputs of another chip part get the largest output width of a layer, unless
    an override sets a width: the host reads them, and nothing is rounded. Weights whose width their
    layer does not support get the smallest width of `target.bits`.

    Parameters
    ----------
    prepared, partition
        The model and its partition.
    wide_names
        Tensors and weights with a default of 16 bits.
    """
    conf, target = prepared.conf, prepared.target
    overrides = {name: {"bits": 16} for name in wide_names}
    if conf.overrides:
        _add_user_overrides(overrides, prepared, partition)
    has_wide_outputs = target.has_packer and max(target.out_bits) > min(target.out_bits)
    if has_wide_outputs and prepared.read is None:
        for name in partition.wide_outputs_between_parts(target):
            settings = overrides.setdefault(name, {})
            if _WIDTH_KEYS.isdisjoint(settings):
                settings["out_bits"] = max(target.out_bits)
    widened_weights = _find_widened_weights(partition, overrides, conf.weight_bits, target)
    for weight in widened_weights:
        overrides.setdefault(weight, {})["bits"] = min(target.bits)
    return ScalePolicy(
        mode=conf.mode,
        bits=conf.bits,
        weight_bits=conf.weight_bits,
        calibrator=conf.calibrator,
        percentile=conf.percentile,
        overrides=overrides,
        weight_scales=conf.weight_scales,
        asymmetric=conf.activations == "asymmetric",
        weights_refined=prepared.recipe.refines_weights,
        widened_weights=widened_weights,
    )


def _add_user_overrides(
    overrides: dict[str, dict[str, Any]], prepared: PreparedModel, partition: Partition
) -> None:
    """Add the user's overrides to `overrides` ({tensor or weight: settings}), in place.

    `weight_bits` become the bits of the node's weights. Of a node that was moved to the host, the
    settings of a layer (widths of weights and of the output) are ignored. Of a layer whose result
    the host computes from that of an integer layer, they apply to the latter. User settings replace
    those in `overrides`.
    """
    selectors = prepared.selectors(partition.graph)
    nodes_by_output = {ir.output_name(node): node for node in selectors.graph.graph}
    for selector, override in prepared.conf.overrides.items():
        settings = override.to_settings
        for name in selectors.tensors(selector):
            node = nodes_by_output.get(name)
            is_offloaded = node is not None and str(node.name) in prepared.moved
            layer = None if is_offloaded else _find_integer_layer(node, partition)
            is_rewritten = layer is not None and layer is not node
            ignored_keys = _LAYER_KEYS if is_offloaded or is_rewritten else {"weight_bits"}
            overrides.setdefault(name, {}).update(
                {key: value for key, value in settings.items() if key not in ignored_keys}
            )
            if layer is not None and is_rewritten and "out_bits" in settings:
                overrides.setdefault(ir.output_name(layer), {})["out_bits"] = settings["out_bits"]
            if "weight_bits" in settings:
                for weight in _quantized_weight_names(layer, partition.ops):
                    overrides.setdefault(weight, {})["bits"] = settings["weight_bits"]


def _find_integer_layer(node: ir.Node | None, partition: Partition) -> ir.Node | None:
    """Return the integer node that computes the layer of the user's model that `node` belongs to.

    That is `node` itself if it becomes an integer operator, or the only layer with weights that was
    created for the same node of the user's model, such as a product whose result the host scales.
    None if there is neither.
    """
    if node is None or str(node.name) in partition.ops:
        return node
    origin = ir.origin_name(node)
    layers = [
        layer
        for layer, op in partition.integer_nodes
        if ir.origin_name(layer) == origin and op.weight_inputs(layer)
    ]
    return layers[0] if len(layers) == 1 else None


def describe_ineffective_overrides(prepared: PreparedModel) -> list[str]:
    """Return a note for each override that is ignored because its layer runs on the host.

    It names the tensor, the reason and the settings. Settings for the tensor itself remain
    effective if it is an activation of the chip, and those of a layer if the host computes its
    result from that of an integer layer. Nodes that no integer form was found for are named only if
    the override selects nothing else. The list is empty without any.
    """
    parts = prepared.parts
    node_by_output = {ir.output_name(node): node for node in parts.graph.graph}
    selectors = prepared.selectors(parts.graph)
    notes = []
    for selector, override in prepared.conf.overrides.items():
        names = selectors.tensors(selector)
        nodes = [node_by_output[name] for name in names if name in node_by_output]
        has_integer_node = any(str(node.name) in parts.ops for node in nodes)
        for node in nodes:
            reason = prepared.moved.get(str(node.name))
            if reason is None and not has_integer_node:
                reason = parts.floats.get(str(node.name))
            if reason is None:
                continue
            name, settings = ir.output_name(node), override.to_settings
            if str(node.name) not in prepared.moved and _find_integer_layer(node, parts):
                settings = {key: settings[key] for key in settings.keys() - _LAYER_KEYS}
            ignored_keys = _LAYER_KEYS if name in parts.activations else settings.keys()
            ignored = [f"{key} {value}" for key, value in settings.items() if key in ignored_keys]
            if ignored:
                notes.append(
                    f"override '{selector}': '{name}' runs on the host ({reason}); "
                    f"{', '.join(ignored)} is ignored"
                )
    return notes


def _find_widened_weights(
    partition: Partition,
    overrides: Mapping[str, Mapping[str, Any]],
    default_bits: int,
    target: Target,
) -> dict[str, tuple[str, str]]:
    """Return {weight: (node, reason)} of weights whose requested width their layer cannot have.

    The requested width is that of `overrides`, else `default_bits`; one in `target.bits` is always
    supported. Others are not if the output has other than 8 bits or the target rejects them for the
    node.
    """
    widened = {}
    for node, op in partition.integer_nodes:
        out_bits = overrides.get(ir.output_name(node), {}).get("out_bits", 8)
        for index in op.weight_inputs(node):
            weight = ir.input_name(node, index)
            bits = overrides.get(weight, {}).get("bits", default_bits)
            if bits in target.bits:
                continue
            if out_bits != 8:
                widened[weight] = (str(node.name), "its output has more than 8 bits")
                continue
            reason = target.vendor.explain_rejected_weight_bits(node, bits, target)
            if reason is not None:
                widened[weight] = (str(node.name), reason)
    return widened


def _quantized_weight_names(node: ir.Node | None, ops: Mapping[str, Op]) -> list[str]:
    """Return the names of the quantized weights of `node`; [] for None or a float node.

    `ops` has the operators of integer nodes by node name.
    """
    op = ops.get(str(node.name)) if node is not None else None
    if node is None or op is None:
        return []
    return [ir.input_name(node, index) for index in op.weight_inputs(node)]
