"""Operators that select elements along each axis: Tile, Expand, iqPad, Resize, ShuffleChannel.

Input and output have the same scale.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simulator.kernel import Kernel

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import AttributeValue, get_int
from ...ir.plan import Affine
from ...targets.arithmetic import PadArithmetic
from .. import shape_inference as rules
from .._integer_op import Attr, Format, make_zero_point_attributes, make_zero_point_spec
from .._kernel_info import KernelInfo
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

__all__ = ["FAMILY", "TILE", "EXPAND", "PAD", "RESIZE", "SHUFFLE_CHANNEL", "nearest_positions"]


class _IndexedIntegerOp(Format):
    """Base of operators that copy elements: each output position has one in the input."""

    domain = ""
    supports_zero_points = True

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return a kernel that selects the `source_positions` of each axis, or fills in a constant.

        An axis whose positions are unchanged is passed as None.
        """
        from simulator.kernels import IndexSelect

        indices: list[np.ndarray | None] = []
        for axis, size in enumerate(info.input_shapes[0]):
            positions = self.source_positions(info, axis, size)
            is_unchanged = np.array_equal(positions, np.arange(size))
            indices.append(None if is_unchanged else positions)
        return IndexSelect(tuple(indices), self.fill_value(info))

    def source_positions(self, info: KernelInfo, axis: int, size: int) -> np.ndarray:
        """Return the input position of each output position along `axis`, or -1 for padding.

        `size` is the size of the axis in the input. Subclasses must override it.
        """
        raise NotImplementedError

    def fill_value(self, info: KernelInfo) -> int | None:
        """Return the integer for output positions without an input position (-1).

        None if there are no such positions, as by default.
        """
        return None

    def read_per_axis_constant(self, info: KernelInfo, index: int, label: str) -> list[int]:
        """Return constant input `index` as a list of one integer per axis of input 0.

        Its type is int64 or int32. Raises ModelError if it is not constant or has another length;
        `label` names it in messages.
        """
        constant = info.require_constant(index, "int64 int32", label)
        values = [int(value) for value in constant.reshape(-1)]
        rank = len(info.input_shapes[0])
        if len(values) != rank:
            raise ModelError(
                f"{info.label}: its {label} has {len(values)} values; it must have one per axis, "
                f"{rank}"
            )
        return values


class Tile(_IndexedIntegerOp):
    """Repetition of the tensor along its axes."""

    name = "Tile"

    def source_positions(self, info: KernelInfo, axis: int, size: int) -> np.ndarray:
        """Return the input position of each output position along `axis`, of `size` elements.

        All positions, repeated as often as constant input 1 gives for the axis.
        """
        repeats = self.read_per_axis_constant(info, 1, "number of repeats")
        return np.tile(np.arange(size), repeats[axis])


TILE = Tile()


class Expand(_IndexedIntegerOp):
    """Repetition along axes of size 1."""

    name = "Expand"

    def source_positions(self, info: KernelInfo, axis: int, size: int) -> np.ndarray:
        """Return the input position of each output position along `axis`, of `size` elements.

        For size 1 these are zeros, as many as the target size, else 0 ... size - 1. Raises
        ModelError if the target size of another axis is neither 1 nor its size.
        """
        output_size = self.read_per_axis_constant(info, 1, "shape")[axis]
        if size != 1 and output_size not in (1, size):
            raise ModelError(
                f"{info.label}: axis {axis} of size {size} does not expand to {output_size}"
            )
        return np.zeros(output_size, int) if size == 1 else np.arange(size)


EXPAND = Expand()


#: Mode attribute -> mode of `np.pad`, by `PadArithmetic.swapped`.
_PAD_MODES = {
    False: {"constant": "constant", "reflect": "reflect", "edge": "edge"},
    True: {"constant": "constant", "reflect": "edge", "replicate": "reflect"},
}


class Pad(_IndexedIntegerOp):
    """Padding with a constant, the edge, or the reflection."""

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

    def make_qparams_attributes(self, qparams: Affine) -> dict[str, AttributeValue]:
        """Return the node attributes for scale and zero point, the same for input and output."""
        return {
            "scale_x": qparams.scale,
            "scale_o": qparams.scale,
            **make_zero_point_attributes(x=qparams, o=qparams),
        }

    def source_positions(self, info: KernelInfo, axis: int, size: int) -> np.ndarray:
        """Return the input position of each output position along `axis`, of `size` elements.

        In mode constant it is -1 at padded positions, else the position that is copied there.
        Raises ModelError unless `pads` are two values of at least 0 per axis, all starts before all
        ends, and the mode is known.
        """
        pads = [int(p) for p in info.require_constant(1, "int64", "pads").reshape(-1)]
        rank = len(info.input_shapes[0])
        if len(pads) != 2 * rank or min(pads) < 0:
            raise ModelError(
                f"{info.label}: pads are {pads}; they must be {2 * rank} values of at least 0"
            )
        mode = _PAD_MODES[info.expect_arithmetic(PadArithmetic).swapped].get(
            str(info.attributes["mode"])
        )
        if mode is None:
            raise ModelError(f"{info.label}: mode {info.attributes['mode']} is not supported")
        axis_pads = pads[axis], pads[axis + rank]
        if mode == "constant":
            return np.pad(np.arange(size), axis_pads, constant_values=-1)
        indices: np.ndarray = np.pad(
            np.arange(size),
            axis_pads,
            mode=mode,  # type: ignore[call-overload]
        )
        return indices

    def fill_value(self, info: KernelInfo) -> int | None:
        """Return the integer that fills padded positions: constant input 2, 0 if it is absent."""
        return int(info.constants[2].reshape(-1)[0]) if 2 in info.constants else 0

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a Pad of the node's mode to `builder`; return [its output].

        It fills with the dequantized constant, that of the integer 0 without one.
        """
        value = builder.add_constant(
            np.float32(builder.dequantize_scalar(self.fill_value(builder.info) or 0)), "value"
        )
        mode = _PAD_MODES[builder.info.expect_arithmetic(PadArithmetic).swapped][
            str(builder.attrs["mode"])
        ]
        return [builder("Pad", builder.float_input(), builder.raw_input(1), value, mode=mode)]


PAD = Pad()


class Resize(_IndexedIntegerOp):
    """Nearest-neighbor resizing."""

    name = "Resize"
    attributes = (
        Attr("mode", "s", "nearest"),
        Attr("coordinate_transformation_mode", "s", "half_pixel"),
        Attr("nearest_mode", "s", "round_prefer_floor"),
    )

    def source_positions(self, info: KernelInfo, axis: int, size: int) -> np.ndarray:
        """Return the nearest input position of each output position along `axis`.

        The axis has `size` elements in the input. By the coordinate and tie rules of ONNX. The
        output has int(size * factor) positions, with the factors at constant input 2. Raises
        ModelError for other modes than nearest, unknown coordinate modes, and a wrong number of
        factors.
        """
        factors = info.require_constant(2, "float32", "list of factors").reshape(-1)
        factor = float(factors[axis])
        modes = (
            str(info.attributes["coordinate_transformation_mode"]),
            str(info.attributes["nearest_mode"]),
        )
        positions = _compute_nearest_positions(*modes, factor, size, int(size * factor))
        if (
            positions is None
            or info.attributes["mode"] != "nearest"
            or len(factors) != len(info.input_shapes[0])
        ):
            raise ModelError(
                f"{info.label}: mode = {info.attributes['mode']}, coordinate mode {modes[0]}; only "
                "nearest-neighbor resizing has an integer form"
            )
        return positions


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
    """Return the input position of each output position of a nearest Resize along one axis.

    The factor is count / size, whatever factors the node has.

    Parameters
    ----------
    node
        The Resize.
    size, count
        Size of the axis in input and output.

    Returns
    -------
    np.ndarray or None
        Positions, int [count]; None if the coordinate mode has no integer form.
    """
    modes = (
        ir.get_attr(node, "coordinate_transformation_mode", "half_pixel"),
        ir.get_attr(node, "nearest_mode", "round_prefer_floor"),
    )
    return _compute_nearest_positions(*modes, count / size, size, count)


def _compute_nearest_positions(
    coordinates: str, ties: str, factor: float, size: int, count: int
) -> np.ndarray | None:
    """Return the nearest input position of each of `count` output positions, int [count].

    `coordinates` and `ties` are the ONNX modes, `factor` is output size / input size, and positions
    are clipped to 0 ... `size` - 1. None for an unknown coordinate mode.
    """
    coordinate = COORDINATE_TRANSFORMS.get(coordinates)
    if coordinate is None:
        return None
    x = coordinate(np.arange(count), factor, size, count)
    return np.asarray(np.clip(_NEAREST_MODES[ties](x), 0, size - 1).astype(int))


class ShuffleChannel(_IndexedIntegerOp):
    """Channel shuffle: with groups of k channels, channel g*k + i moves to i*groups + g."""

    name = "ShuffleChannel"
    signature = Signature("x:integer", "integer", rules.keep_input_shape(rules.input_type))
    domain = "thinker"
    attributes = (Attr("groups", "i"), Attr("axis", "i", 1))

    def source_positions(self, info: KernelInfo, axis: int, size: int) -> np.ndarray:
        """Return the input position of each output position along `axis`, of `size` elements.

        On the channel axis, output i * groups + g comes from input g * k + i, with k = size /
        groups; other axes are unchanged. Raises ModelError if `groups` does not divide `size`.
        """
        groups = get_int(info.attributes, "groups")
        if axis != get_int(info.attributes, "axis") % len(info.input_shapes[0]):
            return np.arange(size)
        if groups < 1 or size % groups:
            raise ModelError(
                f"{info.label}: groups = {groups}; it must be a divisor of the {size} channels"
            )
        return np.arange(size).reshape(groups, -1).T.reshape(-1)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a Gather with the shuffled order of the channels to `builder`.

        Return [its output].
        """
        axis = get_int(builder.attrs, "axis") % len(builder.info.input_shapes[0])
        order = builder.add_constant(
            self.source_positions(builder.info, axis, builder.info.input_shapes[0][axis]), "order"
        )
        return [builder("Gather", builder.float_input(), order, axis=axis)]


SHUFFLE_CHANNEL = ShuffleChannel()


FAMILY: tuple[Format, ...] = (TILE, EXPAND, PAD, RESIZE, SHUFFLE_CHANNEL)
