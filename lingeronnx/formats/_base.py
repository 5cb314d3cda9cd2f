"""What an integer operator is: the class every file of this package fills in.

One `Format` per integer operator, and one instance of each. It is the only reader and writer of
that operator's names, in every dialect, and of its attributes; it says at which scales a node reads
and writes, and which simulator kernel computes it. It knows no float operator, no chip's limits and
no graph around the node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from simulator.kernel import Kernel

from ..errors import ModelError
from ..graph import ir
from ..graph.attributes import Attributes, AttributeValue, get_int, get_number, get_scales
from ..plan import Affine, PerAxis, PerTensor
from ..targets.arithmetic import Arithmetic
from ._kernel_info import QUANT_MODES, ZEROING_SHIFT, KernelInfo
from .float_model import FloatNodeBuilder
from .shape_inference import Signature

__all__ = [
    "ZEROING_SHIFT",
    "QUANT_MODES",
    "ATTRIBUTE_RENAMES",
    "Attr",
    "KernelInfo",
    "Format",
    "UnaryIntegerOp",
    "make_qparams",
    "read_attributes",
    "qparams_from_attributes",
    "find_nonzero_zero_point",
    "rename_dim_to_axis",
    "make_zero_point_spec",
    "make_zero_point_attributes",
]

#: Attribute names of later dialects -> the names used here.
ATTRIBUTE_RENAMES: Mapping[str, str] = MappingProxyType(
    {"x_bits": "data_bits", "w_bits": "parameter_bits", "stride": "strides", "scale_i": "scale_x"}
)

_REQUIRED = object()


@dataclass(frozen=True)
class Attr:
    """One attribute of an integer operator.

    Name, kind (i, f, s, ints) and default (absent = required).
    """

    name: str
    kind: str
    default: Any = _REQUIRED
    unit: str = ""

    @property
    def is_required(self) -> bool:
        """Whether a graph without it is wrong."""
        return self.default is _REQUIRED


def make_zero_point_spec(key: str) -> Attr:
    """Return the attribute with the zero point of what `scale_<key>` is the scale of.

    Absent it is 0.
    """
    return Attr(f"zero_point_{key}", "i", 0)


def make_zero_point_attributes(**held: Affine | None) -> dict[str, int]:
    """Return the attributes of `make_zero_point_spec` for tensors held so.

    None for a zero point of 0.
    """
    return {
        f"zero_point_{key}": q.zero_point
        for key, q in held.items()
        if q is not None and q.zero_point
    }


def find_nonzero_zero_point(attrs: Attributes) -> str | None:
    """Return the first of a node's attributes that hold a zero point other than 0, None where there is none."""
    return next(
        (key for key, value in attrs.items() if key.startswith("zero_point") and value), None
    )


def qparams_from_attributes(attrs: Attributes, key: str) -> Affine:
    """Return what the attribute `scale_<key>` says, with the zero point beside it and the width of the node."""
    bits = get_int(attrs, "o_bits" if key == "o" else "data_bits", 8)
    return make_qparams(
        get_number(attrs, f"scale_{key}"), bits, get_int(attrs, f"zero_point_{key}", 0)
    )


def make_qparams(scale: float, bits: int, zero_point: int) -> Affine:
    """Return how attributes of a node say that a tensor is held.

    ModelError where no integers are held so.
    """
    try:
        return Affine(scale, bits, zero_point=zero_point)
    except ValueError as error:
        raise ModelError(f"attributes of a node say how integers are held: {error}") from error


def read_attributes(form: Format, node: ir.Node) -> dict[str, AttributeValue]:
    """Return the attributes of an integer node by current names with defaults.

    ModelError for a missing one.
    """
    stated = {
        ATTRIBUTE_RENAMES.get(name, name): ir.get_attr(node, name) for name in node.attributes
    }
    for spec in form.attributes:
        if spec.name not in stated:
            if spec.is_required:
                raise ModelError(f"{node.op_type} {node.name}: attribute {spec.name} is missing")
            stated[spec.name] = spec.default
        value = stated[spec.name]
        if spec.name.startswith("scale_") and value is not None:
            _check_scale(form, node, spec.name, get_scales(stated, spec.name))
    for name, value in stated.items():  # of any dialect
        if name.endswith("_bits") and value is not None and not 2 <= get_int(stated, name) <= 32:
            raise ModelError(f"{node.op_type} {node.name}: {name} = {value}; it must be 2 to 32")
    return stated


def _check_scale(form: Format, node: ir.Node, name: str, value: float | list[float]) -> None:
    if isinstance(value, list) and (form.channel_axis is None or name != "scale_w"):
        raise ModelError(
            f"{node.op_type} {node.name}: {name} is a list of {len(value)}; it must be one number"
        )
    for scale in value if isinstance(value, list) else [value]:
        if not (math.isfinite(scale) and scale > 0):
            raise ModelError(
                f"{node.op_type} {node.name}: {name} = {scale:g}; a scale is a positive number"
            )


class Format:
    """One integer operator. Subclasses override what differs.

    The defaults fit an operator that moves data.
    name : what it is called, in the domain `domain` ("" is ONNX's own).
    v3_name : its name in graphs of dialect v3 (domain `linger`), None where that has no other.
    aliases : further names that some dialect has for it.
    kind : the class of arithmetic that a platform's row has for it.
    attributes : what a node says of itself, its scales and widths among them.
    weight_scales : the attributes that hold the scales of constant inputs, with the indices of
    these. channel_axis : the axis of its weight (input 1) along which there may be a scale for each
    element, None: one scale. weight_ranks : how many axes its weight has, one of these; empty: any
    number but 0. supports_group_scales : whether its weight, a matrix [O, I], may have a scale for
    each group of a row. supports_zero_points : whether the integers that it reads and writes may
    have another zero point than 0. width : the attribute with the number of bits of what it writes.
    allows_float_output : whether what it writes is real where a node has no scale_o.
    signature : what it reads and writes; None: as ONNX's operator of that name, on integers.
    extra_attributes : attributes that some dialect writes and that mean nothing for the numbers.
    nonstandard_usage : how graphs use ONNX's own operator beyond the standard.
    nonstandard_attribute : where they do so, with this attribute. v1_implicit_attributes :
    attributes that dialect v1 leaves out where they say 8. v3_attribute_names : attributes that
    have another name in dialect v3. has_inexact_float_model : whether real numbers between its
    input and output give other integers than it by more than rounding.
    """

    name: str
    v3_name: str | None = None
    aliases: tuple[str, ...] = ()
    domain = "thinker"
    kind: type[Arithmetic] = Arithmetic
    attributes: tuple[Attr, ...] = ()
    weight_scales: Mapping[str, int] = MappingProxyType({"scale_w": 1})
    channel_axis: int | None = None
    weight_ranks: tuple[int, ...] = ()
    supports_group_scales = False
    supports_zero_points = False
    width = "o_bits"
    allows_float_output = False
    signature: Signature | None = None
    extra_attributes: tuple[Attr, ...] = ()
    nonstandard_usage = ""
    nonstandard_attribute = ""
    v1_implicit_attributes: tuple[str, ...] = ()
    v3_attribute_names: Mapping[str, str] = MappingProxyType(
        {"data_bits": "x_bits", "parameter_bits": "w_bits"}
    )
    has_inexact_float_model = False

    def __repr__(self) -> str:
        return self.name

    @property
    def names(self) -> tuple[str, ...]:
        """All its names, today's first."""
        return (self.name, *(() if self.v3_name is None else (self.v3_name,)), *self.aliases)

    @cached_property
    def allowed_attributes(self) -> frozenset[str]:
        """The names of all attributes that a node may have, but for those that its platform wants on it."""
        return frozenset(spec.name for spec in (*self.attributes, *self.extra_attributes))

    def can_check_limits(self, node: ir.Node) -> bool:
        """Whether limits can be judged.

        All inputs that a node needs have known sizes, and lists are lists.
        """
        told = ["x:any"] if self.signature is None else self.signature.inputs.split()
        count = max(sum(not text.endswith(("?", "*")) for text in told), 1)
        sized = len(node.inputs) >= count and all(
            ir.get_shape(value) is not None for value in node.inputs[:count]
        )
        lists = (ir.get_attr(node, spec.name) for spec in self.attributes if spec.kind == "ints")
        return sized and all(value is None or isinstance(value, Sequence) for value in lists)

    def constant_parameters(self, node: ir.Node) -> dict[int, tuple[str, tuple[int, ...]]]:
        """Return {input index: (kind as in `Signature`, numbers of axes, empty for any)} of weights and biases."""
        told = (
            []
            if self.signature is None
            else [text.split(":")[1] for text in self.signature.inputs.split()]
        )
        kinds = {index: kind.rstrip("?*") for index, kind in enumerate(told[: len(node.inputs)])}
        axes = {"weight": self.weight_ranks, "bias": ()}
        return {index: (kind, axes[kind]) for index, kind in kinds.items() if kind in axes}

    def kernel_inputs(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs that the simulator's kernel reads."""
        return [0]

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the simulator kernel that computes a node.

        ModelError for a node that cannot be computed.
        """
        raise NotImplementedError(self.name)

    def bits(self, attrs: Attributes) -> int | None:
        """Return the width of what is written, None where it is that of input 0."""
        return None if attrs.get(self.width) is None else get_int(attrs, self.width)

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return the scale of the output (counts per unit), given the input tensors' scales.

        None for real numbers.
        """
        return (
            qparams_from_attributes(attrs, "o")
            if attrs.get("scale_o") is not None
            else (scales[0] if scales else None)
        )

    def all_output_qparams(
        self, bound: KernelInfo, scales: Sequence[Affine | None]
    ) -> list[Affine | None]:
        """Return the scale of every output, the same for all by default."""
        return [self.output_qparams(bound.attributes, scales)] * len(bound.node.outputs)

    def float_outputs(self, bound: KernelInfo) -> list[int]:
        """Return the indices of outputs that the kernel gives as integers and the graph has as real numbers."""
        return []

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return the scale at which each input is read, by input index, where an attribute says so."""
        return {} if attrs.get("scale_x") is None else {0: qparams_from_attributes(attrs, "x")}

    def weight_qparams(self, attrs: Attributes, node: ir.Node, key: str) -> Affine:
        """Return how the constant weight is held whose scale is the attribute `key` of `weight_scales`."""
        scale = get_scales(attrs, key)
        if (
            isinstance(scale, list) and len(scale) == 1
        ):  # of the one channel, or damage that binding the node names
            scale = scale[0]
        along = PerAxis(self.channel_axis or 0) if isinstance(scale, list) else PerTensor()
        return Affine(scale, get_int(attrs, "parameter_bits", 8), along)

    # ---- in real numbers -------------------------------------------------------------------------------------------

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the real values of a node's outputs, in nodes of standard operators that `builder` makes.

        An operator that moves integers means itself. Raises ModelError where standard operators
        have no such thing.
        """
        if self.domain:
            raise ModelError(f"{builder.info.label}: standard operators have no counterpart")
        read = set(self.kernel_inputs(builder.node))
        return builder.add_same_op(
            *(
                builder.float_input(i) if i in read else builder.raw_input(i)
                for i in range(len(builder.node.inputs))
            )
        )

    # ---- the other dialect --------------------------------------------------------------------------------------

    @property
    def first(self) -> Format:
        """The operator that it is in dialect v1."""
        return self

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return the attributes of dialect v3, under today's names, of a node of dialect v1 with so many inputs."""
        scaled = attrs.get("scale_o") is not None
        widths = {"data_bits": 8, "o_bits": 8 if scaled else None}
        return {**widths, **attrs}

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes of dialect v1 of a `node` of dialect v3, both under today's names."""
        kept = dict(attrs)
        kept.pop("zero_point", None)
        plain = {key for key in kept if key in self.v1_implicit_attributes or key[:2] == "x_"}
        return {
            k: v
            for k, v in kept.items()
            if k not in plain or not isinstance(v, int | float) or v != 8
        }

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Return why dialect v1 has no such node as this `node` of dialect v3, or None."""
        return None


class UnaryIntegerOp(Format):
    """One tensor in, one out, each with a scale and a width of its own."""

    def scales(self, x: Affine, o: Affine) -> dict[str, AttributeValue]:
        """Return the attributes of a node that reads `x` and writes `o`."""
        attrs = {"data_bits": x.bits, "o_bits": o.bits, "scale_x": x.scale, "scale_o": o.scale}
        return {**attrs, **make_zero_point_attributes(x=x, o=o)}


def rename_dim_to_axis(attrs: Attributes) -> dict[str, AttributeValue]:
    """Return attributes whose axis is called so; older graphs call it dim."""
    renamed = dict(attrs)
    dim = renamed.pop("dim", None)
    return {**renamed, "axis": dim if renamed.get("axis") is None else renamed["axis"]}
