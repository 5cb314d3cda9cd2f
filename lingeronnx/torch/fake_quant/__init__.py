"""Fake quantizers: the computation of each simulator kernel in torch, with gradients.

There is one function per type of kernel: `FAKE_QUANTIZERS` joins the `KERNELS` of the modules, one
for each family of operators. Tensors contain counts: integers in floating point. The forward
pass gives the integers of the simulator bit for bit; the backward pass that of the real function.

    f(kernel, inputs, context) -> outputs

Products and sums are exact: they are computed in float32 if they stay below 2^23, else in float64.
Operators with other arithmetic (softmax, layer norm, recurrent layers) take their forward values
from the simulator's kernel. `UNTRAINABLE_KERNELS` lists the kernels that no lowered graph contains,
with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel
from simulator.kernels.recurrent.layer import RecurrentKernel

from ...common.errors import ModelError
from ...ir import ir
from ...operators.extension import get_fake_quantizers
from ...operators.recurrent.integer_op import input_indices
from . import (
    activation_tables,
    batch_norm,
    clamp,
    concat,
    conv,
    elementwise,
    linear,
    normalization,
    pool,
    quant_dequant,
    recurrent,
    repeat_resize,
    reshape,
    selection,
)
from .common import FakeQuantContext, FakeQuantizer, subtract_zero_points

__all__ = ["UNTRAINABLE_KERNELS", "FAKE_QUANTIZERS", "get_fake_quantizer", "map_parameter_inputs"]


def get_fake_quantizer(kernel: Kernel) -> FakeQuantizer:
    """Return the function that computes a kernel in torch, with gradients, by the kernel's class.

    Functions of operators that users registered are found too. Raises ModelError if there is none.
    """
    kernel_type = type(kernel)
    if kernel_type in UNTRAINABLE_KERNELS:
        raise ModelError(
            f"{kernel_type.__name__} has no fake quantizer to train through: "
            f"{UNTRAINABLE_KERNELS[kernel_type]}"
        )
    fake_quantizer = FAKE_QUANTIZERS.get(kernel_type) or get_fake_quantizers().get(kernel_type)
    if fake_quantizer is None:
        raise ModelError(
            f"{kernel_type.__name__} has no fake quantizer to train through; keep the node in float"
        )
    return fake_quantizer


def map_parameter_inputs(kernel: Kernel, node: ir.Node) -> dict[int | str, ir.Value]:
    """Return {key: input value} of the inputs of `node`, by the keys that parameters have.

    Keys are input indices, or names such as "weight_x" for recurrent layers; absent inputs are
    omitted.
    """
    if isinstance(kernel, RecurrentKernel):
        index_by_key: Mapping[Any, int] = input_indices(node)
    else:
        index_by_key = {index: index for index in range(len(node.inputs))}
    inputs: dict[int | str, ir.Value] = {}
    for key, index in index_by_key.items():
        value = node.inputs[index]
        if value is not None:
            inputs[key] = value
    return inputs


def _zero_point_kernel(
    kernel: k.ZeroPointKernel, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Run the fake quantizer of the inner kernel on the inputs minus their zero points.

    An input with a zero point counts as int16, since the difference needs nine bits.
    """
    # int8 minus a zero point needs nine bits.
    dtypes = [
        np.dtype(np.int16) if zero_point else dtype
        for zero_point, dtype in zip(kernel.zero_points, context.input_dtypes, strict=True)
    ]
    inner = kernel.kernel
    fake_quantize = get_fake_quantizer(inner)
    differences = subtract_zero_points(inputs, *kernel.zero_points)
    return fake_quantize(inner, differences, replace(context, input_dtypes=dtypes))


def _constant(
    kernel: k.Constant, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Raise ModelError: a network contains constants as tensors, not as steps."""
    raise ModelError("a constant is not a step of a network")


#: Simulator kernel -> its fake quantizer. The two kernels listed here belong to no family.
FAKE_QUANTIZERS: Mapping[type, FakeQuantizer] = {
    **quant_dequant.KERNELS,
    **conv.KERNELS,
    **linear.KERNELS,
    **batch_norm.KERNELS,
    **pool.KERNELS,
    **recurrent.KERNELS,
    **normalization.KERNELS,
    **elementwise.KERNELS,
    **clamp.KERNELS,
    **activation_tables.KERNELS,
    **concat.KERNELS,
    **selection.KERNELS,
    **reshape.KERNELS,
    **repeat_resize.KERNELS,
    k.Constant: _constant,
    k.ZeroPointKernel: _zero_point_kernel,
}

#: Kernels that no lowered graph contains -> reason.
UNTRAINABLE_KERNELS: Mapping[type, str] = dict.fromkeys(
    (k.TrainedLstm, k.TrainedGru),
    "it has the arithmetic of the training side, but a lowered graph uses that of the executor",
)
