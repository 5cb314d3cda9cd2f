"""Forms that the most versions of packer and executor accept, where these cost nothing.

An LSTMInt over [1, T, T] forward with batch_first 1 gives the same integers in every version that
was measured. With batch_first 0, which arcs and venusA need for other shapes, later versions of the
executor compute one step only.
"""

from __future__ import annotations

from ...ir import ir
from ...operators.integer_ops import LSTM
from ...targets import Target
from ...targets._target import AppliedRewrite
from ..packer_profile import get_packer_profile
from .node_builders import get_dims

__all__ = ["write_portable_forms"]


def write_portable_forms(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Set batch_first 1 on each LSTMInt with as many steps as features, in place.

    The integers stay the same. Nodes in reverse direction stay as they are: the form was not
    measured for them. Returns one description per changed node.
    """
    rewrites: list[AppliedRewrite] = []
    if LSTM.name in get_packer_profile(target).follow_batch_first:
        return rewrites
    for node in graph.graph:
        if node.op_type != LSTM.name or ir.get_attr(node, "batch_first", 0):
            continue
        shape = get_dims(ir.require_input(node))
        is_square = len(shape) == 3 and shape[0] == 1 and shape[1] == shape[2]
        if is_square and ir.get_attr(node, "go_forward", 1):
            ir.set_attr(node, "batch_first", 1)
            description = "batch_first is 1, which later versions of the executor need as well"
            rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites
