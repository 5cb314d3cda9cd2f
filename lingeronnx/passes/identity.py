"""Drop nodes that pass their input on: Identity, Dropout at inference, no-op Cast, Pad, Transpose, Concat of one.

Where the node stands between a graph input and a graph output both names are needed and it stays.
"""

from __future__ import annotations

import numpy as np

from .. import ir


def drop_identity(model: ir.Graph) -> int:
    """Remove pass-through nodes of `model`; return how many."""
    dropped = 0
    for node in list(model.graph):
        if not node.inputs or node.inputs[0] is None or not _passes_through(node):
            continue
        keep = node.inputs[0]
        if any(extra.uses() or extra.is_graph_output() for extra in node.outputs[1:]):
            continue
        if ir.removable(node, keep):
            ir.remove(model, node, keep)
            dropped += 1
    return dropped


def _passes_through(node: ir.Node) -> bool:
    source = node.inputs[0]
    kind = node.op_type if node.domain in ("", "ai.onnx") else ""
    if kind in ("Identity", "Dropout"):
        training = node.inputs[2] if kind == "Dropout" and len(node.inputs) > 2 else None
        mode = ir.const(training)
        return training is None or (mode is not None and not mode.any())
    if kind == "Cast":
        return source is not None and source.dtype is not None and int(source.dtype) == ir.attr(node, "to")
    if kind == "Pad":
        pads = ir.attr(node, "pads") or (ir.const(node.inputs[1]) if len(node.inputs) > 1 else None)
        return pads is not None and not np.any(np.asarray(pads))
    if kind == "Transpose":
        perm = ir.attr(node, "perm")
        return perm is not None and perm == sorted(perm)
    return kind == "Concat" and len(node.inputs) == 1
