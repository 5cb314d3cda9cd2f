"""Per-channel scale and offset: BatchNorm2dInt, ``y = sat(rescale(x*w[c] + b[c]))``, int8 weight, int32 bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import formats
from ..emit import Lowering
from ..graph import ir
from ..plan import QParams
from .conv import WeightLayer

__all__ = ["BatchNorm2d", "factors", "parameter_values", "scaled_channels", "with_parameter"]


def factors(node: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (a, c) of ``y = a*x + c`` per channel in float64, or None when a parameter is not constant."""
    arrays = [ir.const(value) for value in node.inputs[1:5]]
    if any(array is None for array in arrays):
        return None
    gamma, beta, mean, var = (np.asarray(array, np.float64) for array in arrays)
    a = gamma / np.sqrt(var + ir.attr(node, "epsilon", 1e-5))
    return a, beta - mean * a


class BatchNorm2d(WeightLayer):
    """Batch normalisation that no layer could take up.

    Its integer weight is ``gamma / sqrt(var + eps)``, kept in the plan under the name of gamma.
    """

    format = formats.BATCH_NORM2D
    floats = (("", "BatchNormalization"),)

    def reject(self, node: ir.Node) -> str | None:
        """Four dimensions and constant parameters."""
        if factors(node) is None:
            return "its parameters are computed at run time"
        if len(ir.shape(node.inputs[0]) or ()) != 4:
            return "its input is not four-dimensional"
        return None

    def macs(self, node: ir.Node) -> int:
        """Not counted: one multiplication per element, like other element-wise operators."""
        return 0

    def lower(self, node: ir.Node, low: Any) -> None:
        """Emit with the folded factor and offset."""
        found = factors(node)
        assert found is not None
        factor, offset = found
        attrs = self.lowered_attributes(node, low)
        w = low.read(node, 1)
        held = np.clip(np.floor(factor * w.scale + 0.5), w.low, w.high)
        weight = low.array(ir.read_name(node, 1), held.astype(np.int8 if w.bits <= 8 else np.int16), own=True)
        bias = low.integers(
            f"{node.outputs[0].name}_bias", offset, attrs["scale_x"] * attrs["scale_w"], low.is_wide(node)
        )
        low.emit(formats.BATCH_NORM2D, node, [low.integer(node, 0), weight, bias], attrs)


def scaled_channels(
    low: Lowering,
    node: ir.Node,
    what: str,
    value: ir.Value,
    x: QParams,
    o: QParams,
    w: QParams,
    factors: float | np.ndarray,
) -> ir.Value:
    """Emit ``value * factors`` per channel on the way to `node`'s output, `value` [N, C, H, W] held as `x`; return it.

    o : how the product is held. w : how the factors (one, or one per channel) are.
    """
    shape = ir.shape(node.outputs[0]) or ()
    channels = int(shape[1] or 1)
    held = np.clip(np.floor(np.broadcast_to(factors, (channels,)) * w.scale + 0.5), w.low, w.high)
    held = held.astype(np.int8 if w.bits <= 8 else np.int16)
    base = f"{node.outputs[0].name}_{what}"
    given = [low.array(f"{base}_factor", held), low.array(f"{base}_offset", np.zeros(channels, np.int32))]
    return low.insert(formats.BATCH_NORM2D, node, what, [value, *given], formats.BATCH_NORM2D.scales(x, w, o), shape, o)


def parameter_values(node: ir.Node, index: int) -> np.ndarray | None:
    """Return the real values behind quantized parameter `index` of any weight layer (float64 or float32)."""
    if node.op_type == "BatchNormalization" and not node.domain:
        found = factors(node)
        return None if found is None else found[0]
    return ir.const(node.inputs[index])


def with_parameter(node: ir.Node, index: int, values: np.ndarray) -> dict[int, np.ndarray]:
    """Return the inputs of `node`, by index, with which quantized parameter `index` has the real `values`."""
    old = ir.const(node.inputs[index])
    assert old is not None
    if node.op_type != "BatchNormalization" or node.domain:
        return {index: values.astype(old.dtype)}
    found = factors(node)
    assert found is not None
    beta, mean, var = (np.asarray(ir.const(value), np.float64) for value in node.inputs[2:5])
    gamma = values * np.sqrt(var + ir.attr(node, "epsilon", 1e-5))
    return {1: gamma.astype(old.dtype), 2: (beta + mean * (values - found[0])).astype(old.dtype)}
