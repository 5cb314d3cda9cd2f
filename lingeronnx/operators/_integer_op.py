"""Base class of integer operator definitions.

There is one subclass of `Format` and one instance per integer operator. Only this class reads and
writes the names of the operator in every dialect and its attributes. It also defines the
quantization parameters of inputs and outputs, and the simulator kernel. It does not depend on float
operators, limits of chips or the graph around the node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from simulator.kernel import Kernel

from ..common.errors import ModelError
from ..ir import ir
from ..ir.attributes import Attributes, AttributeValue, get_int, get_number, get_scales
from ..ir.plan import Affine, PerAxis, PerTensor
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
    "WidthAxes",
    "make_qparams",
    "read_attributes",
    "qparams_from_attributes",
    "find_nonzero_zero_point",
    "rename_dim_to_axis",
    "make_zero_point_spec",
    "make_zero_point_attributes",
]

#: Attribute names of later dialects -> names used here.
ATTRIBUTE_RENAMES: Mapping[str, str] = MappingProxyType(
    {"x_bits": "data_bits", "w_bits": "parameter_bits", "stride": "strides", "scale_i": "scale_x"}
)

_REQUIRED = object()


class Attr(NamedTuple):
    """An attribute of an integer operator.

    Attributes
    ----------
    name
        Name of the attribute.
    kind
        Type: "i", "f", "s" or "ints".
    default
        Default value; without one, the attribute is required.
    unit
        Unit, for documentation.
    """

    name: str
    kind: str
    default: Any = _REQUIRED
    unit: str = ""

    @property
    def is_required(self) -> bool:
        """Whether a node must have the attribute, as it has no default."""
        return self.default is _REQUIRED


def make_zero_point_spec(key: str) -> Attr:
    """Return the optional integer attribute `zero_point_<key>`, whose default is 0.

    It accompanies `scale_<key>`.
    """
    return Attr(f"zero_point_{key}", "i", 0)


def make_zero_point_attributes(**qparams: Affine | None) -> dict[str, int]:
    """Return {"zero_point_<key>": zero point} for those `qparams` whose zero point is not 0.

    A keyword is the key of a scale attribute ("x", "o", ...), its value the quantization parameters
    or None, which gives no attribute.
    """
    attributes = {}
    for key, q in qparams.items():
        if q is not None and q.zero_point:
            attributes[f"zero_point_{key}"] = q.zero_point
    return attributes


def find_nonzero_zero_point(attrs: Attributes) -> str | None:
    """Return the first attribute that begins with zero_point and has a nonzero value, or None."""
    return next(
        (key for key, value in attrs.items() if key.startswith("zero_point") and value), None
    )


def qparams_from_attributes(attrs: Attributes, key: str) -> Affine:
    """Return the quantization parameters in the attributes `scale_<key>` and `zero_point_<key>`.

    They are per tensor. The bits are `o_bits` for key "o", else `data_bits`, 8 if absent; an absent
    zero point is 0. Raises ModelError if the scale is absent or a value is invalid.
    """
    bits = get_int(attrs, "o_bits" if key == "o" else "data_bits", 8)
    return make_qparams(
        get_number(attrs, f"scale_{key}"), bits, get_int(attrs, f"zero_point_{key}", 0)
    )


def make_qparams(scale: float, bits: int, zero_point: int) -> Affine:
    """Return per-tensor quantization parameters read from a file.

    Raises
    ------
    ModelError
        If `Affine` rejects the scale, the bits or the zero point.
    """
    try:
        return Affine(scale, bits, zero_point=zero_point)
    except ValueError as error:
        raise ModelError(f"invalid quantization parameters of a node: {error}") from error


def read_attributes(form: Format, node: ir.Node) -> dict[str, AttributeValue]:
    """Return the attributes of an integer node by current names, with defaults.

    Attributes that `form` does not know are included.

    Raises
    ------
    ModelError
        If a required attribute is missing, a scale is not a positive finite number or an
        unsupported list, or a bit width (any attribute ..._bits) is not 2 to 32.
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
    """Raise ModelError unless the scale attribute `name` of `node` is positive and finite.

    Only `scale_w` may be a list, and only of an operator with a channel axis; then each element is
    checked.
    """
    if isinstance(value, list) and (form.channel_axis is None or name != "scale_w"):
        raise ModelError(
            f"{node.op_type} {node.name}: {name} is a list of {len(value)}; it must be a scalar"
        )
    for scale in value if isinstance(value, list) else [value]:
        if not (math.isfinite(scale) and scale > 0):
            raise ModelError(
                f"{node.op_type} {node.name}: {name} = {scale:g}; a scale is a positive number"
            )


class WidthAxes(NamedTuple):
    """The axes of input and weight that have the same size.

    If `is_grouped`, the input has that size times the groups.
    """

    input_axis: int
    weight_axis: int
    is_grouped: bool = False


class Format:
    """An integer operator; the defaults are those of operators that only move data.

    Attributes
    ----------
    name, domain
        Name and domain; domain "" is that of standard ONNX operators.
    v3_name
        Name in dialect v3 (domain `linger`), if it differs.
    aliases
        Further names in some dialects.
    kind
        Class of the arithmetic that targets define for it.
    attributes
        Attributes of a node, including scales and bit widths.
    weight_scales
        Attributes with scales of constant inputs -> indices of these inputs.
    channel_axis
        Axis of the weight (input 1) that may have one scale per element; None: one scale.
    weight_ranks
        Possible ranks of the weight; empty: any rank but 0.
    weight_dtypes
        Possible types of the weight.
    supports_group_scales
        Whether a weight [O, I] may have one scale per group of a row.
    supports_zero_points
        Whether activations may have nonzero zero points.
    width
        Attribute with the number of bits of the output.
    allows_float_output
        Whether the output is float if a node has no scale_o.
    signature
        Inputs and outputs; None: those of the standard operator of this name.
    extra_attributes
        Attributes of some dialects that do not affect the result.
    nonstandard_usage, nonstandard_attribute
        How graphs use a standard operator beyond the standard, and the attribute that shows it.
    v1_implicit_attributes
        Attributes that dialect v1 omits if they are 8.
    v3_attribute_names
        Attributes with another name in dialect v3.
    has_inexact_float_model
        Whether its float model differs from it by more than rounding.
    rounds_inside
        Whether it rounds values that it does not return. A lookup table does not.
    states
        State outputs of a recurrent layer and their bits (0: those of the sequence).
    width_axes
        Axes of input and weight that must have the same size; None without a weight.
    needs_single_sample
        Whether axis 0 of its input is the batch, of one sample on most chips.
    converts_to_or_from_float
        Whether it stands between float tensors and integers.
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
    weight_dtypes: tuple[str, ...] = ("int8", "int16")
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
    rounds_inside = False
    states: Mapping[str, int] = MappingProxyType({})
    width_axes: WidthAxes | None = None
    needs_single_sample = False
    converts_to_or_from_float = False

    def __repr__(self) -> str:
        """Return the current name of the operator."""
        return self.name

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the operator in any dialect, the current one first."""
        return (self.name, *(() if self.v3_name is None else (self.v3_name,)), *self.aliases)

    @cached_property
    def allowed_attributes(self) -> frozenset[str]:
        """Names of the attributes that a node of this operator may have in some dialect.

        The attribute that names the platform is not among them.
        """
        return frozenset(spec.name for spec in (*self.attributes, *self.extra_attributes))

    def can_check_limits(self, node: ir.Node) -> bool:
        """Whether `node` is complete enough to check a platform's limits on it.

        All required inputs (at least one) must be present and of known rank, and attributes of kind
        "ints" absent or sequences.
        """
        inputs = ["x:any"] if self.signature is None else self.signature.inputs.split()
        count = max(sum(not text.endswith(("?", "*")) for text in inputs), 1)
        if len(node.inputs) < count:
            return False
        if any(ir.get_shape(value) is None for value in node.inputs[:count]):
            return False
        lists = (ir.get_attr(node, spec.name) for spec in self.attributes if spec.kind == "ints")
        return all(value is None or isinstance(value, Sequence) for value in lists)

    def constant_parameters(self, node: ir.Node) -> dict[int, tuple[str, tuple[int, ...]]]:
        """Return input index -> (kind, possible ranks) of the weights and biases of `node`.

        The kind is "weight" or "bias", from the operator's signature; empty ranks mean any rank.
        Whether the inputs are constant is not checked. Empty without a signature.
        """
        if self.signature is None:
            return {}
        ranks = {"weight": self.weight_ranks, "bias": ()}
        parameters = {}
        for index, text in enumerate(self.signature.inputs.split()[: len(node.inputs)]):
            kind = text.split(":")[1].rstrip("?*")
            if kind in ranks:
                parameters[index] = (kind, ranks[kind])
        return parameters

    def kernel_inputs(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs of `node` that the simulator kernel reads at run time.

        By default [0]; other inputs are constants that the kernel holds.
        """
        return [0]

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the simulator kernel that computes the node described by `info`.

        Subclasses must override this: the base class raises NotImplementedError. Raises ModelError
        if the node cannot be computed.
        """
        raise NotImplementedError(self.name)

    def bits(self, attrs: Attributes) -> int | None:
        """Return the bits of the output of a node with the attributes `attrs`.

        None if its attribute for them (`o_bits`, usually) is absent: then they are those of input
        0.
        """
        return None if attrs.get(self.width) is None else get_int(attrs, self.width)

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return scale, bits and zero point of the output of a node, or None if it is float.

        `scales` has those of the inputs, None for float ones. By default: from `scale_o` if the
        attributes have it, else those of input 0.
        """
        if attrs.get("scale_o") is not None:
            return qparams_from_attributes(attrs, "o")
        return scales[0] if scales else None

    def all_output_qparams(
        self, info: KernelInfo, scales: Sequence[Affine | None]
    ) -> list[Affine | None]:
        """Return scale, bits and zero point of every output of the node, in order; None for float.

        `scales` has those of the inputs. By default all outputs have those of `output_qparams`.
        """
        return [self.output_qparams(info.attributes, scales)] * len(info.node.outputs)

    def float_outputs(self, info: KernelInfo) -> list[int]:
        """Return the indices of outputs that are integers in the kernel and float in the graph.

        The runner dequantizes them. By default there are none.
        """
        return []

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return input index -> scale, bits and zero point, as far as attributes determine them.

        By default those of input 0, if there is `scale_x`, else nothing.
        """
        return {} if attrs.get("scale_x") is None else {0: qparams_from_attributes(attrs, "x")}

    def weight_qparams(self, attrs: Attributes, node: ir.Node, key: str) -> Affine:
        """Return scales and bits of the constant weight whose scale is the attribute `key`.

        The bits are `parameter_bits` (8 if absent). A list of several scales is one per element of
        `channel_axis`; a list of one is per tensor.
        """
        scale = get_scales(attrs, key)
        if isinstance(scale, list) and len(scale) == 1:
            scale = scale[0]  # a wrong number of channels is an error when the kernel is made
        along = PerAxis(self.channel_axis or 0) if isinstance(scale, list) else PerTensor()
        return Affine(scale, get_int(attrs, "parameter_bits", 8), along)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append standard float operators that compute the node to `builder`; return their outputs.

        By default, for operators that move data, this is the operator itself: run-time inputs are
        float, the others unchanged.

        Raises
        ------
        ModelError
            If standard operators have no counterpart; by default, for every operator that is not in
            the standard domain.
        """
        if self.domain:
            raise ModelError(f"{builder.info.label}: standard operators have no counterpart")
        kernel_inputs = set(self.kernel_inputs(builder.node))
        inputs = []
        for index in range(len(builder.node.inputs)):
            is_activation = index in kernel_inputs
            inputs.append(builder.float_input(index) if is_activation else builder.raw_input(index))
        return builder.add_same_op(*inputs)

    @property
    def first(self) -> Format:
        """The operator of dialect v1 that computes the same; by default this operator itself."""
        return self

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return the attributes of a node with `inputs` inputs for dialect v3, by current names.

        By default, absent `data_bits` become 8, and absent `o_bits` 8 if there is a `scale_o`, else
        None. `attrs` is not modified.
        """
        has_output_scale = attrs.get("scale_o") is not None
        bits = {"data_bits": 8, "o_bits": 8 if has_output_scale else None}
        return {**bits, **attrs}

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes of `node`, of dialect v3, for dialect v1, by current names.

        By default, `zero_point` is dropped, and bit widths of 8 that v1 implies: those in
        `v1_implicit_attributes` and of keys that begin with "x_". `attrs` is not modified.
        """
        converted = {}
        for key, value in attrs.items():
            can_be_implicit = key in self.v1_implicit_attributes or key.startswith("x_")
            is_default = isinstance(value, int | float) and value == 8
            if key != "zero_point" and not (can_be_implicit and is_default):
                converted[key] = value
        return converted

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Explain why the v3 `node` has no counterpart in dialect v1, or None if it has one.

        `attrs` are its attributes in dialect v3. None by default.
        """
        return None


class UnaryIntegerOp(Format):
    """Base of integer operators with one input and one output, each with its own scale."""

    def make_qparams_attributes(
        self, input_qparams: Affine, output_qparams: Affine
    ) -> dict[str, AttributeValue]:
        """Return the node attributes that store bits, scales and nonzero zero points."""
        return {
            "data_bits": input_qparams.bits,
            "o_bits": output_qparams.bits,
            "scale_x": input_qparams.scale,
            "scale_o": output_qparams.scale,
            **make_zero_point_attributes(x=input_qparams, o=output_qparams),
        }


def rename_dim_to_axis(attrs: Attributes) -> dict[str, AttributeValue]:
    """Return a copy of `attrs` in which `dim`, an older name, is replaced by `axis`.

    `axis` keeps its value; if it is absent or None, it becomes the value of `dim` (None without
    one).
    """
    renamed = dict(attrs)
    dim = renamed.pop("dim", None)
    return {**renamed, "axis": dim if renamed.get("axis") is None else renamed["axis"]}
