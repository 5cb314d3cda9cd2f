"""What the reference operators have in common: names, the platform, attributes.

And the way to ONNX's own operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from onnx.reference.op_run import OpRun

from ..targets import Target, get_target
from ..targets.arithmetic import Arithmetic
from ._arithmetic import requantize

__all__ = [
    "Attributes",
    "Integer",
    "Outputs",
    "StandardOpRun",
    "expect_arithmetic",
    "get_optional_input",
]

#: What an operator gives: one array, or one for each output.
Outputs = np.ndarray | tuple[np.ndarray, ...]

_Kind = TypeVar("_Kind", bound=Arithmetic)

#: Attribute names of later generations -> today's.
_ATTRIBUTE_RENAMES = {
    "x_bits": "data_bits",
    "w_bits": "parameter_bits",
    "stride": "strides",
    "scale_i": "scale_x",
}


class Attributes(dict[str, Any]):
    """A node's attributes by today's names; what the node leaves out is 8 bits, or absent."""

    def scale(self, key: str) -> float:
        """Return a scale; ValueError when it is missing."""
        value = self.get(key)
        if value is None:
            raise ValueError(f"attribute {key} is missing")
        return float(value)

    def zero_point(self, key: str) -> int:
        """Return the integer that stands for 0 at `scale_<key>`."""
        return int(self.get(f"zero_point_{key}") or 0)

    def subtract_zero_point(self, values: np.ndarray, key: str) -> np.ndarray:
        """Return integers at `scale_<key>` less what stands for 0, int64."""
        return values.astype(np.int64) - self.zero_point(key)

    @property
    def o_bits(self) -> int:
        """Width of the result."""
        return int(self.get("o_bits") or 8)


def get_optional_input(inputs: Sequence[np.ndarray | None], index: int) -> np.ndarray | None:
    """Return input `index`, None where a node has none there."""
    return inputs[index] if index < len(inputs) else None


def expect_arithmetic(how: Arithmetic, kind: type[_Kind]) -> _Kind:
    """Return the arithmetic, which the platform's row must have of this class (ValueError otherwise)."""
    if not isinstance(how, kind):
        raise ValueError(f"its arithmetic is {type(how).__name__}; it must be {kind.__name__}")
    return how


class Integer(OpRun):
    """An operator of domain `thinker`.

    Subclasses bring `compute`; `reference_ops` makes one class per name of it.
    names : op types, the current one first. domains : where nodes of these types stand
    default_target : the platform of nodes that do not name one
    """

    names: tuple[str, ...] = ()
    domains: tuple[str, ...] = ("thinker", "linger")
    op_schema = None  # attributes are what the node says; ONNX knows none of these operators
    default_target: Target

    def _run(self, *inputs: np.ndarray, **attributes: object) -> tuple[np.ndarray, ...]:
        found = Attributes(
            {_ATTRIBUTE_RENAMES.get(key, key): value for key, value in attributes.items()}
        )
        named = str(found.get("platform", self.default_target.name))
        target = self.default_target if named == self.default_target.name else get_target(named)
        how = target.find_arithmetic(self.names[0])
        try:
            if how is None:
                raise ValueError(f"{target.name} has no such operator")
            result = self.compute(found, how, *inputs)
        except ValueError as error:
            raise ValueError(f"{self.onnx_node.op_type} {self.onnx_node.name}: {error}") from error
        return result if isinstance(result, tuple) else (result,)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the output, or a tuple of them.

        `arithmetic` is the platform's arithmetic of this operator.
        """
        raise NotImplementedError

    @staticmethod
    def requantize_accumulator(
        acc: np.ndarray, a: Attributes, how: Arithmetic, *scales: str, axis: int = 1
    ) -> np.ndarray:
        """Return `acc`, whose scale is the product of those named, at scale_o and o_bits, or the platform's width.

        Where scale_w is a list, channel c along `axis` has number c of it, which begins again after
        the last one.
        """
        channels = a.get("scale_w")
        if "scale_w" in scales and isinstance(channels, Sequence):
            if how.requantize.shifts or acc.shape[axis] % len(channels):
                raise ValueError(
                    f"scale_w has {len(channels)} numbers for {acc.shape[axis]} outputs"
                )
            parts = [
                Integer.requantize_accumulator(
                    part, Attributes({**a, "scale_w": channels[c % len(channels)]}), how, *scales
                )
                for c, part in enumerate(np.moveaxis(acc, axis, 0))
            ]
            return np.stack(parts, axis)
        held = 1.0
        for key in scales:
            held *= a.scale(key)
        width = how.requantize.bits or a.o_bits
        return requantize(acc, a.scale("scale_o") / held, width, how.requantize, a.zero_point("o"))


class StandardOpRun(Integer):
    """An operator of ONNX's own domain that the format uses in a form of its own.

    Others go to ONNX's class.
    """

    domains = ("", "thinker", "linger")

    def _run(self, *inputs: np.ndarray, **attributes: object) -> tuple[np.ndarray, ...]:
        if self.op_domain or self.is_vendor_form(inputs, attributes):
            return super()._run(*inputs, **attributes)
        from onnx.reference.ops import load_op

        theirs = load_op("", self.onnx_node.op_type, self.run_params["opsets"][""])
        return theirs(self.onnx_node, self.run_params).run(*inputs)

    def is_vendor_form(
        self, inputs: Sequence[np.ndarray], attributes: Mapping[str, object]
    ) -> bool:
        """Whether the node is in the format's own form.

        By default whether it works on narrow integers.
        """
        return inputs[0].dtype.kind == "i" and inputs[0].dtype.itemsize < 8
