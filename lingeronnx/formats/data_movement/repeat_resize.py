"""Operators that repeat or surround: Tile, Expand, iqPad, Resize, ShuffleChannel.

Scales pass through.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simulator.kernel import Kernel

from ...errors import ModelError
from ...graph import ir
from ...graph.attributes import AttributeValue, get_int
from ...plan import Affine
from ...targets.arithmetic import PadArithmetic
from .. import shape_inference as rules
from .._base import Attr, Format, KernelInfo, make_zero_point_attributes, make_zero_point_spec
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

__all__ = ["FAMILY", "TILE", "EXPAND", "PAD", "RESIZE", "SHUFFLE_CHANNEL", "nearest_positions"]


class _IndexedIntegerOp(Format):
    """Bound to the positions that each axis of the output reads."""

    domain = ""
    supports_zero_points = True

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the positions of each axis; those that stay as they are count as none."""
        from simulator.kernels import IndexSelect

        shape = info.input_shapes[0]
        places = [self.source_positions(info, axis, size) for axis, size in enumerate(shape)]
        same = [np.array_equal(p, np.arange(n)) for p, n in zip(places, shape, strict=True)]
        return IndexSelect(
            tuple(None if s else p for s, p in zip(same, places, strict=True)),
            self.fill_value(info),
        )

    def source_positions(self, bound: KernelInfo, axis: int, size: int) -> np.ndarray:
        """Return the positions of an axis of `size`."""
        raise NotImplementedError

    def fill_value(self, bound: KernelInfo) -> int | None:
        """Return what stands at position -1."""
        return None

    def read_per_axis_constant(self, bound: KernelInfo, index: int, what: str) -> list[int]:
        """Return constant input `index`, one number per axis."""
        values = [int(v) for v in bound.require_constant(index, "int64 int32", what).reshape(-1)]
        if len(values) != len(bound.input_shapes[0]):
            raise ModelError(
                f"{bound.label}: its {what} has {len(values)} numbers; one per axis is needed"
            )
        return values


class Tile(_IndexedIntegerOp):
    """Repetition of the whole tensor along its axes."""

    name = "Tile"

    def source_positions(self, bound: KernelInfo, axis: int, size: int) -> np.ndarray:
        """Return all positions, again and again."""
        return np.tile(
            np.arange(size), self.read_per_axis_constant(bound, 1, "number of repeats")[axis]
        )


TILE = Tile()


class Expand(_IndexedIntegerOp):
    """Repeat along axes of size 1."""

    name = "Expand"

    def source_positions(self, bound: KernelInfo, axis: int, size: int) -> np.ndarray:
        """Zero throughout, or as it is."""
        wanted = self.read_per_axis_constant(bound, 1, "shape")[axis]
        if size != 1 and wanted not in (1, size):
            raise ModelError(
                f"{bound.label}: axis {axis} of size {size} does not expand to {wanted}"
            )
        return np.zeros(wanted, int) if size == 1 else np.arange(size)


EXPAND = Expand()


#: What the modes do, by `PadArithmetic.swapped`.
_PAD_MODES = {
    False: {"constant": "constant", "reflect": "reflect", "edge": "edge"},
    True: {"constant": "constant", "reflect": "edge", "replicate": "reflect"},
}


class Pad(_IndexedIntegerOp):
    """Surround with a constant, the edge, or the reflection."""

    name = "iqPad"
    signature = Signature(
        "x:integer pads:index value:number?",
        "integer",
        rules.infer_like_standard("Pad", rules.input_type),
    )
    kind = PadArithmetic
    domain = "thinker"
    attributes = (
        Attr("mode", "s", "constant"),
        Attr("scale_x", "f", None),
        Attr("scale_o", "f", None),
        make_zero_point_spec("x"),
        make_zero_point_spec("o"),
    )

    def scales(self, q: Affine) -> dict[str, AttributeValue]:
        """Return the attributes of a node that reads and writes `q`."""
        return {"scale_x": q.scale, "scale_o": q.scale, **make_zero_point_attributes(x=q, o=q)}

    def source_positions(self, bound: KernelInfo, axis: int, size: int) -> np.ndarray:
        """-1 outside, or what the mode finds there."""
        pads = [int(p) for p in bound.require_constant(1, "int64", "pads").reshape(-1)]
        rank = len(bound.input_shapes[0])
        if len(pads) != 2 * rank or min(pads) < 0:
            raise ModelError(f"{bound.label}: pads {pads} do not fit {rank} axes")
        mode = _PAD_MODES[bound.expect_arithmetic(PadArithmetic).swapped].get(
            str(bound.attributes["mode"])
        )
        if mode is None:
            raise ModelError(f"{bound.label}: no such mode: {bound.attributes['mode']}")
        around = pads[axis], pads[axis + rank]
        if mode == "constant":
            return np.pad(np.arange(size), around, constant_values=-1)
        return np.pad(np.arange(size), around, mode=mode)  # type: ignore[call-overload]

    def fill_value(self, bound: KernelInfo) -> int | None:
        """The constant, 0 by default."""
        return int(bound.constants[2].reshape(-1)[0]) if 2 in bound.constants else 0

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the standard operator, the constant in real numbers."""
        value = builder.add_constant(
            np.float32(builder.dequantize_scalar(self.fill_value(builder.info) or 0)), "value"
        )
        mode = _PAD_MODES[builder.info.expect_arithmetic(PadArithmetic).swapped][
            str(builder.attrs["mode"])
        ]
        return [builder("Pad", builder.float_input(), builder.raw_input(1), value, mode=mode)]


PAD = Pad()


class Resize(_IndexedIntegerOp):
    """Enlarge by whole factors, taking the nearest element."""

    name = "Resize"
    attributes = (
        Attr("mode", "s", "nearest"),
        Attr("coordinate_transformation_mode", "s", "half_pixel"),
        Attr("nearest_mode", "s", "round_prefer_floor"),
    )

    def source_positions(self, bound: KernelInfo, axis: int, size: int) -> np.ndarray:
        """The nearest element, by ONNX's rules for coordinates and ties."""
        factors = bound.require_constant(2, "float32", "list of factors").reshape(-1)
        factor = float(factors[axis])
        modes = (
            str(bound.attributes["coordinate_transformation_mode"]),
            str(bound.attributes["nearest_mode"]),
        )
        places = _compute_nearest_positions(*modes, factor, size, int(size * factor))
        if (
            places is None
            or bound.attributes["mode"] != "nearest"
            or len(factors) != len(bound.input_shapes[0])
        ):
            raise ModelError(
                f"{bound.label}: only resizing to the nearest element has an integer form"
            )
        return places


RESIZE = Resize()


COORDINATE_TRANSFORMS: dict[str, Callable[[np.ndarray, float, int, int], np.ndarray]] = {
    "half_pixel": lambda i, s, n, m: (i + 0.5) / s - 0.5,
    "pytorch_half_pixel": lambda i, s, n, m: (i + 0.5) / s - 0.5 if m > 1 else i * 0.0,
    "asymmetric": lambda i, s, n, m: i / s,
    "align_corners": lambda i, s, n, m: i * (n - 1) / (m - 1) if m > 1 else i * 0.0,
    "tf_half_pixel_for_nn": lambda i, s, n, m: (i + 0.5) / s,
}


_NEAREST_MODES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def nearest_positions(node: ir.Node, size: int, count: int) -> np.ndarray | None:
    """Return the position of an axis of `size` that each of the `count` of a nearest Resize reads.

    None for coordinates that have no integer form.
    """
    modes = (
        ir.get_attr(node, "coordinate_transformation_mode", "half_pixel"),
        ir.get_attr(node, "nearest_mode", "round_prefer_floor"),
    )
    return _compute_nearest_positions(*modes, count / size, size, count)


def _compute_nearest_positions(
    coordinates: str, ties: str, factor: float, size: int, count: int
) -> np.ndarray | None:
    coordinate = COORDINATE_TRANSFORMS.get(coordinates)
    if coordinate is None:
        return None
    x = coordinate(np.arange(count), factor, size, count)
    return np.asarray(np.clip(_NEAREST_MODES[ties](x), 0, size - 1).astype(int))


class ShuffleChannel(_IndexedIntegerOp):
    """Channels in groups, written column by column: channel g*k + i goes to i*groups + g."""

    name = "ShuffleChannel"
    signature = Signature("x:integer", "integer", rules.keep_input_shape(rules.input_type))
    domain = "thinker"
    attributes = (Attr("groups", "i"), Attr("axis", "i", 1))

    def source_positions(self, bound: KernelInfo, axis: int, size: int) -> np.ndarray:
        """The transposed order along its axis."""
        groups = get_int(bound.attributes, "groups")
        if axis != get_int(bound.attributes, "axis") % len(bound.input_shapes[0]):
            return np.arange(size)
        if groups < 1 or size % groups:
            raise ModelError(f"{bound.label}: {size} channels do not fall into {groups} groups")
        return np.arange(size).reshape(groups, -1).T.reshape(-1)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the channels in their new order."""
        axis = get_int(builder.attrs, "axis") % len(builder.info.input_shapes[0])
        order = builder.add_constant(
            self.source_positions(builder.info, axis, builder.info.input_shapes[0][axis]), "order"
        )
        return [builder("Gather", builder.float_input(), order, axis=axis)]


SHUFFLE_CHANNEL = ShuffleChannel()


FAMILY: tuple[Format, ...] = (TILE, EXPAND, PAD, RESIZE, SHUFFLE_CHANNEL)
