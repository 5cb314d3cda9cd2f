"""Bring any ONNX container into one form.

Functions inlined, Constant nodes as initializers, dead nodes gone.
Initializers that are also listed as graph inputs (IR version 3) are constants here.
"""

from __future__ import annotations

from ...graph import ir


def lift_constants(model: ir.Model) -> int:
    """Prepare `model` in place; return the number of changes."""
    count = _remove_initializers_from_inputs(model)
    foreign = any(function.domain != ir.FUNCTION_DOMAIN for function in model.functions.values())
    if foreign:
        ir.inline_functions(model)
    lifted = ir.lift_constants(model)
    remove_dead_nodes(model)
    return count + foreign + lifted


def _remove_initializers_from_inputs(model: ir.Model) -> int:
    inputs = model.graph.inputs
    both = [value for value in inputs if value.const_value is not None]
    for value in both:
        inputs.remove(value)
    return len(both)


def remove_dead_nodes(model: ir.Model) -> int:
    """Drop what the other passes left unused; not counted as a change."""
    ir.remove_unused(model)
    model.graph.sort()
    return 0
