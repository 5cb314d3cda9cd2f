"""Inline functions, convert Constant nodes to initializers, and remove dead nodes.

Functions of `ir.FUNCTION_DOMAIN` are not inlined: each represents one operator. Initializers that
are also listed as graph inputs (IR version 3) are treated as constants.
"""

from __future__ import annotations

from ....common.errors import ModelError
from ....ir import ir


def lift_constants(model: ir.Model) -> int:
    """Convert Constant nodes of `model` to initializers, in place; return the number of changes.

    Also takes initializers out of the graph inputs, inlines functions of other domains than ours
    (counted as one change), and removes dead nodes (not counted).
    """
    inputs = model.graph.inputs
    constants = [value for value in inputs if value.const_value is not None]
    for value in constants:
        inputs.remove(value)
    has_functions = any(
        function.domain != ir.FUNCTION_DOMAIN for function in model.functions.values()
    )
    if has_functions:
        ir.InlinePass()(model)
    lifted = ir.lift_constants(model)
    remove_dead_nodes(model)
    return len(constants) + has_functions + lifted


def remove_dead_nodes(model: ir.Model) -> int:
    """Remove nodes of `model` whose results are not used, and sort the graph, in place.

    Always returns 0: this does not count as a change.
    """
    ir.remove_unused(model)
    model.graph.sort()
    return 0


def inline_functions(model: ir.Model) -> int:
    """Inline all functions of other domains than ours, in place; return how many there were.

    Unused ones are removed. Raises ModelError if one cannot be inlined or uses another opset
    version.
    """
    functions = [
        function for function in model.functions.values() if function.domain != ir.FUNCTION_DOMAIN
    ]
    if not functions:
        return 0
    for function in functions:
        _check_opset(model, function)
    try:
        ir.InlinePass()(model)
    except Exception as error:
        cause = error.__cause__ or error
        raise ModelError(
            f"function {functions[0].name} cannot be inlined ({str(cause).splitlines()[0]}); "
            "export the model without functions"
        ) from error
    for function in functions:  # functions that are never called remain
        model.functions.pop(function.identifier(), None)
    ir.assign_node_names(model)
    return len(functions)


def _check_opset(model: ir.Model, function: ir.Function) -> None:
    """Raise ModelError if `function` imports another version of the default opset than `model`.

    If `model` imports none, it gets that of the function, or 13 if the function has none either.
    """
    version = function.opset_imports.get("")
    model_version = model.graph.opset_imports.setdefault("", version or 13)
    if version is not None and version != model_version:
        raise ModelError(
            f"function {function.name} uses opset {version}, but the model uses opset "
            f"{model_version}; export the model without functions"
        )
