"""Nodes outside of any graph, to check the limits of a rewrite before it is made.

A limit depends on a node's operator, attributes, shapes and constants, which a detached node has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import ir

__all__ = ["make_detached_node", "make_detached_value"]


def make_detached_value(
    shape: Sequence[ir.Dim],
    *,
    name: str = "x",
    like: ir.Value | None = None,
    constant: np.ndarray | None = None,
    computed: bool = False,
) -> ir.Value:
    """Create a tensor outside of any graph.

    Parameters
    ----------
    shape
        The shape; a dimension of None or str is unknown.
    name
        Name of the tensor.
    like
        Tensor whose type it takes; without one the type is unknown.
    constant
        Its elements, of that shape.
    computed
        Whether it has a producer; otherwise it is like a graph input.
    """
    value = ir.make_node("Loose", [], output=name).outputs[0] if computed else ir.Value(name=name)
    value.shape = ir.Shape(list(shape))
    if like is not None:
        value.type = like.type
    if constant is not None:
        value.const_value = ir.tensor(constant, name=name)
    return value


def make_detached_node(
    op_type: str,
    inputs: Sequence[ir.Value],
    output_shape: Sequence[ir.Dim],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
    name: str = "loose",
    output: str = "y",
) -> ir.Node:
    """Create a node outside of any graph with one output, called `output`, of shape `output_shape`.

    The output has no element type; `inputs` are not copied.
    """
    node = ir.make_node(op_type, inputs, attributes, name=name, output=output, domain=domain)
    node.outputs[0].shape = ir.Shape(list(output_shape))
    return node
