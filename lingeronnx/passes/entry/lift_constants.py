"""Inline functions, convert Constant nodes to initializers, and remove dead nodes.

Initializers that are also listed as graph inputs (IR version 3) are treated as constants.
"""

from __future__ import annotations

from ...graph import ir


def lift_constants(model: ir.Model) -> int:
    """Convert Constant nodes of `model` to initializers, in place; return the number of changes.

    Also takes initializers out of the graph inputs, inlines functions of other domains than ours
    (counted as one change), and removes dead nodes (not counted).
    """
    count = _remove_initializers_from_inputs(model)
    has_functions = any(
        function.domain != ir.FUNCTION_DOMAIN for function in model.functions.values()
    )
    if has_functions:
        ir.inline_functions(model)
    lifted = ir.lift_constants(model)
    remove_dead_nodes(model)
    return count + has_functions + lifted


def _remove_initializers_from_inputs(model: ir.Model) -> int:
    """Remove the graph inputs that are initializers from the list of inputs; return the count."""
    inputs = model.graph.inputs
    constants = [value for value in inputs if value.const_value is not None]
    for value in constants:
        inputs.remove(value)
    return len(constants)


def remove_dead_nodes(model: ir.Model) -> int:
    """Remove nodes whose results are not used and sort the graph, in place; return 0.

    This does not count as a change.
    """
    ir.remove_unused(model)
    model.graph.sort()
    return 0
