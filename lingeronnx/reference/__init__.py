"""The integer operators as plain classes for ONNX's reference evaluator.

Slow, obvious, independent of the simulator.
    from onnx.reference import ReferenceEvaluator
    import lingeronnx as lo
    model = onnx.load("model_quant.onnx")
    y = ReferenceEvaluator(model, new_ops=lo.reference_ops("arcs")).run(None, {"x": x})

One small class per operator, in NumPy and Python integers, written from docs/numerics.md; each
family has a file, and lists its classes in `FAMILY`. They share no code with the
simulator, so that each judges the other. A graph runs as it is written: with its own batch size,
where `Session` takes any. They compute what the executor computes; graphs of the training side's
arithmetic are not for them.
"""

from __future__ import annotations

from ..targets import DEFAULT, Target, get_target
from . import (
    activation_tables,
    data_movement,
    elementwise,
    layers,
    normalization,
    pool,
    quant_dequant,
    recurrent,
)
from ._base import Integer

__all__ = ["Integer", "reference_ops", "register_reference_op", "unregister_reference_op"]

_REFERENCE_OPS = tuple(
    base
    for family in (
        quant_dequant,
        layers,
        elementwise,
        data_movement,
        pool,
        activation_tables,
        normalization,
        recurrent,
    )
    for base in family.FAMILY
)

_REGISTERED_OPS: list[type[Integer]] = []

#: Standard operators that ONNX's own classes compute on integers as well.
ONNX_NATIVE_OPS = ("Reshape", "Flatten", "Transpose", "Slice", "Gather", "Tile", "Expand")


def register_reference_op(base: type[Integer]) -> None:
    """Let `reference_ops` have another plain class."""
    _REGISTERED_OPS.append(base)


def unregister_reference_op(base: type[Integer]) -> None:
    """Take out what `register_reference_op` put in."""
    _REGISTERED_OPS[:] = [other for other in _REGISTERED_OPS if other is not base]


def reference_ops(platform: str | Target = DEFAULT.name) -> list[type[Integer]]:
    """Return the classes for `ReferenceEvaluator(model, new_ops=...)`.

    platform : the target of nodes without an attribute `platform`, by name or as a row of one's
    own; graphs for venus
        and for `generic` have none.
    Raises ConfigError for an unknown platform.
    """
    default = get_target(platform)
    found = []
    for base in (*_REFERENCE_OPS, *_REGISTERED_OPS):
        for name in base.names:
            for domain in base.domains:
                body = {
                    "op_domain": domain,
                    "default_target": default,
                    "__doc__": base.__doc__,
                    "__module__": __name__,
                }
                found.append(type(name, (base,), body))
    return found
