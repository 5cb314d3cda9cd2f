"""Reference implementations of the integer operators for the reference evaluator of ONNX.

    from onnx.reference import ReferenceEvaluator
    import lingeronnx as lo
    model = onnx.load("model_quant.onnx")
    y = ReferenceEvaluator(model, new_ops=lo.reference_ops("arcs")).run(None, {"x": x})

There is one small class per operator, in NumPy and Python integers, written from
docs/reference/numerics.md.
Each family of operators lists its classes in `FAMILY` of its `reference`. The classes are slow and
simple, and share no code with the simulator, so that each can verify the other. A graph runs with
its own batch size, whereas `Session` accepts any. The classes compute the arithmetic of the
executor, not that of the training software.
"""

from __future__ import annotations

from ..targets import DEFAULT, Target, get_target
from ._reference_op import Integer
from .activation_tables import reference as activation_tables
from .batch_norm import reference as batch_norm
from .clamp import reference as clamp
from .concat import reference as concat
from .conv import reference as conv
from .elementwise import reference as elementwise
from .linear import reference as linear
from .normalization import reference as normalization
from .pool import reference as pool
from .quant_dequant import reference as quant_dequant
from .recurrent import reference as recurrent
from .repeat_resize import reference as repeat_resize
from .reshape import reference as reshape
from .selection import reference as selection

__all__ = ["Integer", "reference_ops", "register_reference_op", "unregister_reference_op"]

_REFERENCE_OPS = (
    *quant_dequant.FAMILY,
    *conv.FAMILY,
    *linear.FAMILY,
    *batch_norm.FAMILY,
    *elementwise.FAMILY,
    *clamp.FAMILY,
    *concat.FAMILY,
    *repeat_resize.FAMILY,
    *selection.FAMILY,
    *reshape.FAMILY,
    *pool.FAMILY,
    *activation_tables.FAMILY,
    *normalization.FAMILY,
    *recurrent.FAMILY,
)

_REGISTERED_OPS: list[type[Integer]] = []

#: Standard operators whose ONNX implementations also support integers.
ONNX_NATIVE_OPS = ("Reshape", "Flatten", "Transpose", "Slice", "Gather", "Tile", "Expand")


def register_reference_op(base: type[Integer]) -> None:
    """Add the class `base` of a reference operator to those that `reference_ops` returns."""
    _REGISTERED_OPS.append(base)


def unregister_reference_op(base: type[Integer]) -> None:
    """Remove the class `base`, which was added by `register_reference_op`.

    Nothing if it is absent.
    """
    _REGISTERED_OPS[:] = [op for op in _REGISTERED_OPS if op is not base]


def reference_ops(platform: str | Target = DEFAULT.name) -> list[type[Integer]]:
    """Return the classes for `ReferenceEvaluator(model, new_ops=...)`.

    Parameters
    ----------
    platform
        Target of nodes without an attribute `platform`: a name or a `Target`. Graphs for venus and
        `generic` do not have this attribute.

    Returns
    -------
    list of type
        One class per operator name and domain.

    Raises
    ------
    ConfigError
        If the platform is unknown.
    """
    default = get_target(platform)
    classes = []
    for base in (*_REFERENCE_OPS, *_REGISTERED_OPS):
        for name in base.names:
            for domain in base.domains:
                body = {
                    "op_domain": domain,
                    "default_target": default,
                    "__doc__": base.__doc__,
                    "__module__": __name__,
                }
                classes.append(type(name, (base,), body))
    return classes
