"""Convert a transposed convolution with stride 1 to a convolution with the flipped weight.

With taps t at dilation d, ``y[o] = sum x[i] * w[t]`` over ``i + t*d = o + p``. Counted from the
last tap, ``t' = k-1 - t``, this is ``i = o + t'*d - ((k-1)*d - p)``: a convolution with the padding
``(k-1)*d - p``. The weight [I, O/G, k...] becomes [O, I/G, k...], group by group. Each output
element is the same sum.

Applied if it helps: for several groups, which no platform supports, and before a
BatchNormalization, which a convolution can absorb. Not applied if the padding exceeds the extent of
the kernel.
"""

from __future__ import annotations

import numpy as np

from ....ir import ir
from .._pass import PassResult, SkipReason

__all__ = ["convert_unit_stride_conv_transpose"]


def convert_unit_stride_conv_transpose(model: ir.Model) -> PassResult:
    """Convert ConvTranspose nodes of `model` with stride 1 to Conv, in place.

    Only those that platforms support better as Conv: with several groups, or only read by a
    BatchNormalization. The weight must be constant and the resulting padding not negative; such
    nodes that fail are skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "ConvTranspose" or node.domain or not _is_beneficial(node):
            continue
        weight = ir.const_value(node.inputs[1])
        if weight is None:
            skipped.append(SkipReason(node, "its weight is computed at run time"))
            continue
        reason = _explain_unconvertible(node, weight.shape[2:])
        if reason:
            skipped.append(SkipReason(node, reason))
            continue
        _replace_with_conv(model, node, weight)
        changes += 1
    return PassResult(changes, skipped)


def _is_beneficial(node: ir.Node) -> bool:
    """Whether platforms support the ConvTranspose `node` better as a Conv.

    That holds for several groups, and if a BatchNormalization is the only consumer.
    """
    if ir.get_attr(node, "group", 1) > 1:
        return True
    consumer = ir.sole_consumer(node.outputs[0])
    return consumer is not None and consumer.op_type == "BatchNormalization"


def _explain_unconvertible(node: ir.Node, kernel: tuple[int, ...]) -> str:
    """Return the reason why a transposed convolution of this kernel size is no convolution, or "".

    Reasons: `auto_pad` or `output_shape`, a stride other than 1 or an `output_padding`, or pads
    larger than (k - 1) * dilation.
    """
    rank = len(kernel)
    if ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes:
        return "its padding depends on a requested output size"
    has_stride = set(ir.get_attr(node, "strides", [1] * rank)) != {1}
    if has_stride or any(ir.get_attr(node, "output_padding", [0] * rank)):
        return "it has a stride"
    if min(_conv_pads(node, kernel)) < 0:
        return "its padding exceeds the extent of its kernel"
    return ""


def _conv_pads(node: ir.Node, kernel: tuple[int, ...]) -> list[int]:
    """Return the pads of the Conv that equals the ConvTranspose `node` of stride 1.

    They are (k - 1) * d - p, all begins, then all ends, with p the pads and d the dilations of
    `node`, and k the sizes in `kernel`. They may be negative.
    """
    rank = len(kernel)
    dilations = ir.get_attr(node, "dilations", [1] * rank)
    extents = [(taps - 1) * dilation for taps, dilation in zip(kernel, dilations, strict=True)]
    pads = ir.get_attr(node, "pads", [0] * 2 * rank)
    return [extent - pad for extent, pad in zip([*extents, *extents], pads, strict=True)]


def _replace_with_conv(model: ir.Model, node: ir.Node, weight: np.ndarray) -> None:
    """Replace `node`, a ConvTranspose with the weight [I, O/G, k...] and stride 1, by a Conv.

    The weight is flipped in space, and its channels are exchanged within each group.
    """
    kernel, group = weight.shape[2:], int(ir.get_attr(node, "group", 1))
    flipped = np.flip(weight, axis=tuple(range(2, weight.ndim)))
    groups = flipped.reshape(group, -1, *flipped.shape[1:]).swapaxes(1, 2)  # [G, O/G, I/G, k...]
    conv_weight = ir.add_initializer(
        model,
        ir.unique_tensor_name(model, f"{ir.input_name(node, 1)}_turned"),
        np.ascontiguousarray(groups.reshape(-1, *groups.shape[2:])),
    )
    attributes = {
        "kernel_shape": list(kernel),
        "strides": [1] * len(kernel),
        "dilations": list(ir.get_attr(node, "dilations", [1] * len(kernel))),
        "pads": _conv_pads(node, kernel),
        "group": group,
    }
    inputs = [node.inputs[0], conv_weight, *node.inputs[2:]]
    conv = ir.make_node("Conv", inputs, attributes, origin=node, output="", like=node.outputs[0])
    ir.replace_nodes(model, [node], [conv])
