"""Nodes that stand in no graph.

What a rewrite would make, so that limits can be asked before it is made.
A limit reads a node's operator, attributes, sizes and constants. A loose node has these and nothing
else.
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
    """Return a tensor of the given sizes; a size of None or text is not known.

    Parameters
    ----------
    shape
        The sizes.
    name
        What it is called.
    like
        A tensor whose type it has.
    constant
        Its elements, of that shape.
    computed
        A node writes it: it is no graph input.
    """
    value = ir.make_node("Loose", [], output=name).outputs[0] if computed else ir.Value(name=name)
    value.shape = ir.make_shape(list(shape))
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
    """Return a node in no graph that reads `inputs` and writes one tensor of the sizes `output_shape`."""
    node = ir.make_node(op_type, inputs, attributes, name=name, output=output, domain=domain)
    node.outputs[0].shape = ir.make_shape(list(output_shape))
    return node
