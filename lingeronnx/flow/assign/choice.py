"""What holds for single tensors: the user's overrides, and 16 bits where a state needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...graph import ir
from ...ops import Op
from ...plan.config import QuantConfig
from ..prepare.selectors import Selectors
from .scales import Choice

__all__ = ["chosen"]


def chosen(selectors: Selectors, ops: Mapping[str, Op], conf: QuantConfig, wide: Sequence[str]) -> Choice:
    """Return the settings of `conf`, with the overrides resolved to tensors and weights of the selectors' graph.

    ops : the rule of each node that becomes integer. wide : tensors and weights that have 16 bits where no override
    says otherwise.
    """
    own: dict[str, dict[str, Any]] = {name: {"bits": 16} for name in wide}
    by_output = {ir.written_name(node): node for node in selectors.graph.graph}
    for selector, override in conf.overrides.items():
        settings = override.settings
        for name in selectors.tensors(selector):
            own.setdefault(name, {}).update({k: v for k, v in settings.items() if k != "weight_bits"})
            weights = _weights(by_output.get(name), ops) if "weight_bits" in settings else []
            for weight in weights:
                own.setdefault(weight, {})["bits"] = settings["weight_bits"]
    return Choice(
        conf.mode,
        conf.bits,
        conf.weight_bits,
        conf.calibrator,
        conf.percentile,
        own,
        conf.weight_scales,
        conf.activations == "asymmetric",
    )


def _weights(node: ir.Node | None, ops: Mapping[str, Op]) -> list[str]:
    """Return the names of the quantized weights of a float node."""
    op = ops.get(str(node.name)) if node is not None else None
    return [] if node is None or op is None else [ir.read_name(node, index) for index in op.parameters(node)]
