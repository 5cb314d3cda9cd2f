"""Inline functions, convert Constant nodes to initializers, and remove dead nodes.

Initializers that are also listed as graph inputs (IR version 3) are treated as constants.
"""

from __future__ import annotations

from ...graph import ir


def lift_constants(model: ir.Model) -> int:
    """Convert the constants of `model` in place; return the number of changes."""
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
    """Remove graph inputs that are initializers; return how many there were."""
    inputs = model.graph.inputs
    constants = [value for value in inputs if value.const_value is not None]
    for value in constants:
        inputs.remove(value)
    return len(constants)


def remove_dead_nodes(model: ir.Model) -> int:
    """Remove nodes whose results are not used, and return 0: this does not count as a change."""
    ir.remove_unused(model)
    model.graph.sort()
    return 0
