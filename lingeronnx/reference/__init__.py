"""The integer operators as plain classes for ONNX's reference evaluator: slow, obvious, independent of the simulator.

    from onnx.reference import ReferenceEvaluator
    import lingeronnx as lo
    model = onnx.load("model_quant.onnx")
    y = ReferenceEvaluator(model, new_ops=lo.reference_ops("arcs")).run(None, {"x": x})

One small class per operator, in NumPy and Python integers, written from docs/numerics.md; each family has a file, and
lists its classes in `FAMILY`. They share no code with the
simulator, so that each judges the other. A graph runs as it is written: with its own batch size, where `Session` takes
any. They compute what the executor computes; graphs of the training side's arithmetic are not for them.
"""

from __future__ import annotations

from ..targets import DEFAULT, Target, by_name
from . import border, curves, elementwise, layers, move, pool, recurrent, rows
from ._base import Integer

__all__ = ["Integer", "add_class", "reference_ops", "remove_class"]

_CLASSES = tuple(
    base for family in (border, layers, elementwise, move, pool, curves, rows, recurrent) for base in family.FAMILY
)

_ADDED: list[type[Integer]] = []

#: Standard operators that ONNX's own classes compute on integers as well.
STOCK = ("Reshape", "Flatten", "Transpose", "Slice", "Gather", "Tile", "Expand")


def add_class(base: type[Integer]) -> None:
    """Let `reference_ops` have another plain class."""
    _ADDED.append(base)


def remove_class(base: type[Integer]) -> None:
    """Take out what `add_class` put in."""
    _ADDED[:] = [other for other in _ADDED if other is not base]


def reference_ops(platform: str | Target = DEFAULT.name) -> list[type[Integer]]:
    """Return the classes for `ReferenceEvaluator(model, new_ops=...)`.

    platform : the target of nodes without an attribute `platform`, by name or as a row of one's own; graphs for venus
        and for `generic` have none.
    Raises ConfigError for an unknown platform.
    """
    default = by_name(platform)
    found = []
    for base in (*_CLASSES, *_ADDED):
        for name in base.names:
            for domain in base.domains:
                body = {"op_domain": domain, "default": default, "__doc__": base.__doc__, "__module__": __name__}
                found.append(type(name, (base,), body))
    return found
