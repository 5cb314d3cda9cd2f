"""The integer operators as plain classes for ONNX's reference evaluator: slow, obvious, independent of the simulator.

    from onnx.reference import ReferenceEvaluator
    import lingeronnx as lo
    model = onnx.load("model_quant.onnx")
    y = ReferenceEvaluator(model, new_ops=lo.reference_ops("arcs")).run(None, {"x": x})

One small class per operator, in NumPy and Python integers, written from docs/numerics.md. They share no code with the
simulator, so that each judges the other. A graph runs as it is written: with its own batch size, where `Session` takes
any. They compute what the executor computes; graphs of the training side's arithmetic are not for them.
"""

from __future__ import annotations

from typing import Any

from ..platforms import Platform
from ..platforms import platform as row_of
from .border import Dequant, Quant, Requant
from .curves import Glu, Sigmoid, Table, Tanh
from .elementwise import Add, Clip, Div, Mul, Relu, Sub
from .layers import BatchNorm2d, Bmm, Conv, Conv1d, ConvTranspose, Linear
from .move import ArgMax, Concat, Gather, Pad, Resize, ShuffleChannel, Split, Squeeze, Unsqueeze
from .pool import AvgPool, MaxPool
from .recurrent import Gru, Lstm
from .rows import LayerNorm, LogSoftmax, Softmax

__all__ = ["reference_ops"]

_THINKER = (
    Quant, Dequant, Requant, Conv, Conv1d, ConvTranspose, Linear, Bmm, BatchNorm2d, Add, Sub, Mul, Div, Concat, Pad,
    AvgPool, Gather, ShuffleChannel, Sigmoid, Tanh, Table, Glu, Softmax, LogSoftmax, LayerNorm, Lstm, Gru,
)  # fmt: skip
_STANDARD = (MaxPool, Relu, Clip, Split, ArgMax, Resize, Squeeze, Unsqueeze)

#: Standard operators that ONNX's own classes compute on integers as well.
STOCK = ("Reshape", "Flatten", "Transpose", "Slice", "Gather", "Tile", "Expand")


def reference_ops(platform: str | Platform = "venus") -> list[type[Any]]:
    """Return the classes for `ReferenceEvaluator(model, new_ops=...)`.

    platform : the target of nodes without an attribute `platform`, by name or as a row of one's own; graphs for venus
        and for `generic` have none.
    Raises ConfigError for an unknown platform.
    """
    default = row_of(platform)
    found = []
    for family, domains in ((_THINKER, ("thinker", "linger")), (_STANDARD, ("", "thinker", "linger"))):
        for base in family:
            for name in base.names:
                for domain in domains:
                    body = {"op_domain": domain, "default": default, "__doc__": base.__doc__, "__module__": __name__}
                    found.append(type(name, (base,), body))
    return found
