"""Write a kernel as a model-local function of standard operators on integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator.kernel import Kernel

from ...graph import ir
from .layers import LAYER_WRITERS, KernelWriter, Shapes
from .nodes import IntegerNodes, NotExactError
from .recurrent import RECURRENT_WRITERS
from .rows import ROW_WRITERS

__all__ = ["DOMAIN", "build_kernel_function"]

#: Domain of the functions.
DOMAIN = "lingeronnx.integers"

_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    **LAYER_WRITERS,
    **ROW_WRITERS,
    **RECURRENT_WRITERS,
}


def build_kernel_function(
    kernel: Kernel, name: str, shapes: Shapes, types: Sequence[np.dtype], opset: int
) -> ir.Function:
    """Build a function that computes the same integers as a kernel.

    Its inputs are named x0, x1, ..., its outputs y0, y1, ...

    Parameters
    ----------
    kernel
        Kernel of the simulator.
    name
        Name of the function.
    shapes
        Shapes of the inputs; the batch dimension is ignored if the kernel works sample by sample.
    types
        Types of the inputs.
    opset
        Opset of the function's nodes.

    Raises
    ------
    NotExactError
        If the kernel has no exact form in integer operators.
    """
    if type(kernel) not in _WRITERS:
        raise NotExactError(f"{type(kernel).__name__} has no form in integer operators")
    builder = IntegerNodes()
    inputs = [ir.Value(name=f"x{index}") for index in range(len(types))]
    outputs = _WRITERS[type(kernel)](builder, kernel, inputs, shapes, types)
    for index, value in enumerate(outputs):
        value.name = f"y{index}"
    body = ir.Graph(inputs, outputs, nodes=builder.nodes, opset_imports={"": opset}, name=name)
    return ir.Function(DOMAIN, name, graph=body, attributes=[])
