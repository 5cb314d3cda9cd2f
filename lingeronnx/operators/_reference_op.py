"""Base classes of the reference operators: names, target, attributes, accumulator rescaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from onnx.reference.op_run import OpRun

from ..targets import Target, get_target
from ..targets.arithmetic import Arithmetic
from ._reference_arithmetic import requantize

__all__ = [
    "Attributes",
    "Integer",
    "Outputs",
    "StandardOpRun",
    "expect_arithmetic",
    "get_optional_input",
]

#: Result of an operator: one array, or one per output.
Outputs = np.ndarray | tuple[np.ndarray, ...]

_Kind = TypeVar("_Kind", bound=Arithmetic)

#: Attribute names of later dialects -> names used here.
_ATTRIBUTE_RENAMES = {
    "x_bits": "data_bits",
    "w_bits": "parameter_bits",
    "stride": "strides",
    "scale_i": "scale_x",
}


class Attributes(dict[str, Any]):
    """Attributes of a node by current names; missing bit widths are 8."""

    def scale(self, key: str) -> float:
        """Return the scale in attribute `key`, such as scale_x, as a float.

        Raises
        ------
        ValueError
            If it is missing.
        """
        value = self.get(key)
        if value is None:
            raise ValueError(f"attribute {key} is missing")
        return float(value)

    def zero_point(self, key: str) -> int:
        """Return the attribute `zero_point_<key>` (`key` is x, y or o), 0 by default."""
        return int(self.get(f"zero_point_{key}") or 0)

    def subtract_zero_point(self, values: np.ndarray, key: str) -> np.ndarray:
        """Return the integers `values`, in int64, less attribute `zero_point_<key>` (default 0)."""
        return values.astype(np.int64) - self.zero_point(key)

    @property
    def o_bits(self) -> int:
        """Bits of the output, 8 by default or if the attribute is 0."""
        return int(self.get("o_bits") or 8)


def get_optional_input(inputs: Sequence[np.ndarray | None], index: int) -> np.ndarray | None:
    """Return input `index` of a node, or None if it is absent or there are fewer `inputs`."""
    return inputs[index] if index < len(inputs) else None


def expect_arithmetic(arithmetic: Arithmetic, kind: type[_Kind]) -> _Kind:
    """Return `arithmetic`, that of a target for an operator, checked to be of class `kind`.

    Raises
    ------
    ValueError
        If it is of another class.
    """
    if not isinstance(arithmetic, kind):
        raise ValueError(
            f"its arithmetic is {type(arithmetic).__name__}; it must be {kind.__name__}"
        )
    return arithmetic


class Integer(OpRun):
    """Reference implementation of an integer operator; subclasses define `compute`.

    `reference_ops` creates one class per name and domain.

    Attributes
    ----------
    names
        Operator types, the current one first.
    domains
        Domains of nodes of these types.
    default_target
        Target of nodes without an attribute `platform`.
    """

    names: tuple[str, ...] = ()
    domains: tuple[str, ...] = ("thinker", "linger")
    op_schema = None  # ONNX has no schema of these operators; attributes are those of the node
    default_target: Target

    def _run(self, *inputs: np.ndarray, **attributes: object) -> tuple[np.ndarray, ...]:
        """Compute the node by `compute` and return its outputs as a tuple; called by the evaluator.

        The target is that of attribute `platform`, else the default target of the class. Attributes
        are renamed to their current names. Raises ValueError, which names the node, if the target
        has no such operator or `compute` raises one.
        """
        renamed = Attributes(
            {_ATTRIBUTE_RENAMES.get(key, key): value for key, value in attributes.items()}
        )
        target = self.default_target
        target_name = str(renamed.get("platform", target.chip))
        if target_name != target.chip:
            target = get_target(target_name)
        arithmetic = target.find_arithmetic(self.names[0])
        try:
            if arithmetic is None:
                raise ValueError(f"{target.name} has no such operator")
            result = self.compute(renamed, arithmetic, *inputs)
        except ValueError as error:
            raise ValueError(f"{self.onnx_node.op_type} {self.onnx_node.name}: {error}") from error
        return result if isinstance(result, tuple) else (result,)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the output of the node, or a tuple of outputs; subclasses implement it.

        Parameters
        ----------
        a
            Attributes of the node.
        arithmetic
            Arithmetic of the target for this operator.
        *inputs
            Inputs of the node.

        Raises
        ------
        ValueError
            If attributes are invalid or not supported.
        """
        raise NotImplementedError

    @staticmethod
    def requantize_accumulator(
        acc: np.ndarray, a: Attributes, arithmetic: Arithmetic, *scales: str, axis: int = 1
    ) -> np.ndarray:
        """Requantize the accumulator `acc` to the output's scale, bits and zero point.

        Parameters
        ----------
        acc
            Accumulator, whose scale is the product of the attributes `scales`.
        a
            Attributes of the node, with scale_o, o_bits (default 8) and zero_point_o (default 0).
        arithmetic
            Arithmetic of the target; may define the bits of the output.
        *scales
            Names of scale attributes. If scale_w is a list of n scales, channel c along `axis` has
            scale c modulo n.
        axis
            Channel axis of `acc`.

        Raises
        ------
        ValueError
            There are several scales, and the target requantizes by shifts or their number does not
            divide that of the channels.
        """
        channel_scales = a.get("scale_w")
        if "scale_w" in scales and isinstance(channel_scales, Sequence):
            if arithmetic.requantize.shifts or acc.shape[axis] % len(channel_scales):
                raise ValueError(
                    f"scale_w has {len(channel_scales)} values for {acc.shape[axis]} outputs"
                )
            channels = []
            for index, channel in enumerate(np.moveaxis(acc, axis, 0)):
                scale_w = channel_scales[index % len(channel_scales)]
                channel_attributes = Attributes({**a, "scale_w": scale_w})
                channels.append(
                    Integer.requantize_accumulator(channel, channel_attributes, arithmetic, *scales)
                )
            return np.stack(channels, axis)
        acc_scale = 1.0
        for key in scales:
            acc_scale *= a.scale(key)
        bits = arithmetic.requantize.bits or a.o_bits
        ratio = a.scale("scale_o") / acc_scale
        return requantize(acc, ratio, bits, arithmetic.requantize, a.zero_point("o"))


class StandardOpRun(Integer):
    """A standard operator that integer graphs use in a vendor form, such as on int8.

    Nodes in the standard form are computed by the implementation of ONNX.
    """

    domains = ("", "thinker", "linger")

    def _run(self, *inputs: np.ndarray, **attributes: object) -> tuple[np.ndarray, ...]:
        """Compute the node in its integer form or by ONNX's own operator.

        Return a tuple of outputs. The integer form is taken if the domain is not ONNX's or
        `is_vendor_form` is true.
        """
        if self.op_domain or self.is_vendor_form(inputs, attributes):
            return super()._run(*inputs, **attributes)
        from onnx.reference.ops import load_op

        onnx_class = load_op("", self.onnx_node.op_type, self.run_params["opsets"][""])
        outputs: tuple[np.ndarray, ...] = onnx_class(self.onnx_node, self.run_params).run(*inputs)
        return outputs

    def is_vendor_form(
        self, inputs: Sequence[np.ndarray], attributes: Mapping[str, object]
    ) -> bool:
        """Whether a standard node is to be computed in its integer form, not by ONNX's operator.

        By default it is if input 0 is int8, int16 or int32; subclasses may look at `attributes`.
        """
        return inputs[0].dtype.kind == "i" and inputs[0].dtype.itemsize < 8
