"""The fake quantizer: what the kernel computes, in torch, with gradients."""

import numpy as np


def squash(kernel, inputs, at):
    """Return the kernel's integers; backwards a straight line."""
    import torch

    from lingeronnx.torch.fake_quant.rounding import straight_through

    (x,) = inputs
    exact = torch.from_numpy(kernel.table.astype(np.float32))[x.detach().long() + 128]
    return (straight_through(x * (exact.abs().max() / 128), exact),)
