"""Operators that repeat or surround: Tile, Expand, iqPad, Resize, ShuffleChannel. Scales pass through."""

from __future__ import annotations

import math

import numpy as np

from ... import formats
from ...emit import Lowering
from ...formats.moves.spread import COORDINATES
from ...graph import ir
from ...targets import Target
from ...targets.limits import PadLimits
from .._base import Op
from ..scaling import Scaling
from .shape import moves_batch

__all__ = ["Expand", "Pad", "Resize", "Tile"]


class _Spread(Op):
    """As many axes as before, and the batch as it is."""

    moves = True

    def reject(self, node: ir.Node) -> str | None:
        """Same number of axes, the batch as it is."""
        source, result = ir.shape(node.inputs[0]), ir.shape(node.outputs[0])
        if source is None or result is None or len(source) != len(result):
            return "it adds axes" if source and result else "its shape is not known before the run"
        return moves_batch(node)


class Tile(_Spread):
    """Repetition along axes becomes Tile on integers."""

    format = formats.TILE
    floats = (("", "Tile"),)

    def reject(self, node: ir.Node) -> str | None:
        """Return why the repeats are not constants, or None."""
        return "its repeats are computed at run time" if ir.const(node.inputs[1]) is None else super().reject(node)

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with the repeats as they are."""
        repeats = ir.constant(node.inputs[1])
        constant = low.array(f"{node.outputs[0].name}_repeats", repeats.astype(np.int64))
        low.emit(formats.TILE, node, [low.integer(node, 0), constant], {})


class Expand(_Spread):
    """Repeat along axes of size 1."""

    format = formats.EXPAND
    floats = (("", "Expand"),)

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with the sizes of the result; 1 for the batch, which broadcasts."""
        target = [1, *(int(d or 1) for d in ir.known_shape(node.outputs[0])[1:])]
        constant = low.array(f"{node.outputs[0].name}_shape", np.array(target, np.int64))
        low.emit(formats.EXPAND, node, [low.integer(node, 0), constant], {})


def pad_form(node: ir.Node, target: Target) -> object:
    """padding around four-dimensional tensors only, with a constant | pad in the layer behind."""
    limits = target.limits(formats.PAD.name, PadLimits)
    if limits is None:
        return None
    mode, rank = ir.attr(node, "mode", "constant"), len(ir.shape(node.inputs[0]) or ())
    return None if mode in limits.modes and rank == limits.rank else f"{mode}, {rank} axes"


class Pad(_Spread):
    """Surround with a constant, the edge, or the reflection."""

    scaling = Scaling(factor="fixed")
    format = formats.PAD
    floats = (("", "Pad"),)
    constraints = (pad_form,)

    def reject(self, node: ir.Node) -> str | None:
        """Constant pads that add, a finite value."""
        pads, value = _pads(node), _value(node)
        if pads is None or value is None or not math.isfinite(value):
            return "its pads or its value are computed at run time, or not finite"
        if min(pads) < 0:
            return "it cuts instead of padding"
        return "its mode has no integer form" if ir.attr(node, "mode", "constant") == "wrap" else super().reject(node)

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with pads and the integer value as inputs."""
        q, pads, value = low.written(node), _pads(node), _value(node)
        assert value is not None
        integer = int(q.integers(np.array(value)))
        name = node.outputs[0].name
        constants = [
            low.array(f"{name}_pads", np.array(pads, np.int64)),
            low.array(f"{name}_value", np.array([integer], np.int64)),
        ]
        attrs = {"mode": ir.attr(node, "mode", "constant"), **formats.PAD.scales(q)}
        low.emit(formats.PAD, node, [low.integer(node, 0), *constants], attrs)


def _pads(node: ir.Node) -> list[int] | None:
    """Return the pads of a float Pad, two per axis, in any opset's form; None when computed."""
    pads = ir.attr(node, "pads")
    if pads is None:
        array = ir.const(node.inputs[1]) if len(node.inputs) > 1 else None
        pads = None if array is None else [int(p) for p in array.reshape(-1)]
    if pads is None or len(node.inputs) < 4 or node.inputs[3] is None:
        return pads
    axes, rank = ir.const(node.inputs[3]), len(ir.shape(node.inputs[0]) or ())
    if axes is None:
        return None
    full = [0] * 2 * rank
    for place, axis in enumerate(axes.reshape(-1).tolist()):
        full[axis % rank], full[axis % rank + rank] = pads[place], pads[place + len(pads) // 2]
    return full


def _value(node: ir.Node) -> float | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return float(ir.attr(node, "value", 0.0))
    array = ir.const(value)
    return None if array is None else float(array.reshape(-1)[0])


class Resize(_Spread):
    """Enlarge by whole factors, taking the nearest element."""

    format = formats.RESIZE
    floats = (("", "Resize"),)

    def reject(self, node: ir.Node) -> str | None:
        """Nearest, whole factors, without a region of interest."""
        reason = super().reject(node)
        if reason is not None:
            return reason
        if ir.attr(node, "mode", "nearest") != "nearest":
            return "it interpolates"
        if ir.attr(node, "coordinate_transformation_mode", "half_pixel") not in COORDINATES or ir.attr(node, "axes"):
            return "it resizes a part"
        sizes = list(zip(ir.shape(node.inputs[0]) or (), ir.shape(node.outputs[0]) or (), strict=True))[1:]
        whole = all(n and m and m % n == 0 for n, m in sizes)
        return None if whole else "its factors are not whole numbers"

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with whole factors in place of sizes."""
        sizes = zip(ir.known_shape(node.inputs[0])[1:], ir.known_shape(node.outputs[0])[1:], strict=True)
        factors = np.array([1.0, *(int(m or 1) // int(n or 1) for n, m in sizes)], np.float32)
        name = node.outputs[0].name
        constants = [low.array(f"{name}_roi", np.zeros(0, np.float32)), low.array(f"{name}_factors", factors)]
        attrs = {
            key: ir.attr(node, key)
            for key in ("coordinate_transformation_mode", "nearest_mode")
            if key in node.attributes
        }
        low.emit(formats.RESIZE, node, [low.integer(node, 0), *constants], {"mode": "nearest", **attrs})
