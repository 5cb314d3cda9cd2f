"""What a kernel computes as a model-local function of standard operators on integers."""

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

#: The domain of the functions.
DOMAIN = "lingeronnx.integers"

_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    **LAYER_WRITERS,
    **ROW_WRITERS,
    **RECURRENT_WRITERS,
}


def build_kernel_function(
    kernel: Kernel, name: str, shapes: Shapes, types: Sequence[np.dtype], opset: int
) -> ir.Function:
    """Return the function `name` that maps integers of `types` as `kernel` does.

    Raises NotExactError where there is none.
    shapes : of the inputs; the first size, of the batch, is not looked at where the kernel works
    sample by sample.
    """
    if type(kernel) not in _WRITERS:
        raise NotExactError(f"{type(kernel).__name__} has no form in integer operators")
    do = IntegerNodes()
    inputs = [ir.Value(name=f"x{number}") for number in range(len(types))]
    outputs = _WRITERS[type(kernel)](do, kernel, inputs, shapes, types)
    for number, value in enumerate(outputs):
        value.name = f"y{number}"
    body = ir.Graph(inputs, outputs, nodes=do.nodes, opset_imports={"": opset}, name=name)
    return ir.Function(DOMAIN, name, graph=body, attributes=[])
