"""Fake quantizers: what each simulator kernel computes, in torch, with gradients.

One function per kind of kernel (`FAKE_QUANTIZERS`, of the tables in `fake_sums`, `fake_values` and
`fake_recurrent`): a bound kernel says everything that an operator's node says.
Tensors hold counts, which are whole numbers in floating point. The forward pass gives the
simulator's integers to the last bit. The backward pass is that of the real function.

    f(kernel, inputs, at) -> outputs          at: the types of the inputs, the parameters, the
    output's scale

Products and sums are exact: they are computed in float32 where they stay below 2^23, else in
float64. Operators of another arithmetic (softmax, layer norm, recurrent layers) take their forward
value from the simulator's kernel. A kernel that no lowered graph holds, and through which nothing
trains, stands in `UNTRAINABLE_KERNELS` with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel
from simulator.kernels.recurrent.layer import RecurrentKernel

from ...errors import ModelError
from ...extension import get_fake_quantizers
from ...formats import recurrent
from ...graph import ir
from .fake_common import FakeQuantContext, FakeQuantizer, subtract_zero_points
from .fake_recurrent import RECURRENT
from .fake_sums import SUM_FAKE_QUANTIZERS
from .fake_values import VALUE_FAKE_QUANTIZERS

__all__ = ["UNTRAINABLE_KERNELS", "FAKE_QUANTIZERS", "get_fake_quantizer", "map_parameter_inputs"]


def get_fake_quantizer(kernel: Kernel) -> FakeQuantizer:
    """Return the fake quantizer of a kernel; ModelError where it has none."""
    kind = type(kernel)
    if kind in UNTRAINABLE_KERNELS:
        raise ModelError(
            f"{kind.__name__} has no fake quantizer to train through: {UNTRAINABLE_KERNELS[kind]}"
        )
    found = FAKE_QUANTIZERS.get(kind) or get_fake_quantizers().get(kind)
    if found is None:
        raise ModelError(
            f"{kind.__name__} has no fake quantizer to train through; leave the node in float"
        )
    return found


def map_parameter_inputs(kernel: Kernel, node: ir.Node) -> dict[int | str, ir.Value]:
    """Return the inputs of a kernel's node by what `FakeQuantContext.parameters` calls them."""
    if isinstance(kernel, RecurrentKernel):
        found: Mapping[Any, int] = recurrent.input_indices(node)
    else:
        found = {index: index for index in range(len(node.inputs))}
    return {key: value for key, index in found.items() if (value := node.inputs[index]) is not None}


def _centered(
    kernel: k.ZeroPointKernel, inputs: Sequence[Any], at: FakeQuantContext
) -> tuple[Any, ...]:
    kinds = [
        np.dtype(np.int16) if zero else kind
        for zero, kind in zip(kernel.zero_points, at.input_dtypes, strict=True)
    ]
    compute = get_fake_quantizer(kernel.kernel)
    return compute(
        kernel.kernel,
        subtract_zero_points(inputs, *kernel.zero_points),
        replace(at, input_dtypes=kinds),
    )


#: Kernel -> its fake quantizer.
FAKE_QUANTIZERS: Mapping[type, FakeQuantizer] = {
    **SUM_FAKE_QUANTIZERS,
    **VALUE_FAKE_QUANTIZERS,
    **RECURRENT,
    k.ZeroPointKernel: _centered,
}

#: Kernels that no bridge holds -> why.
UNTRAINABLE_KERNELS: Mapping[type, str] = dict.fromkeys(
    (k.TrainedLstm, k.TrainedGru),
    "it is the training side's arithmetic, and a lowered graph always means the executor's",
)
