"""Model-local functions of exporters are inlined.

Our own (`ir.FUNCTION_DOMAIN`) stay: they are one operator each.
"""

from __future__ import annotations

from ...errors import ModelError
from ...graph import ir


def inline_functions(model: ir.Model) -> int:
    """Inline the functions of `model`; return how many there were.

    ModelError where that cannot be done.
    """
    foreign = [
        function for function in model.functions.values() if function.domain != ir.FUNCTION_DOMAIN
    ]
    if not foreign:
        return 0
    for function in foreign:
        version = function.opset_imports.get("")
        own = model.graph.opset_imports.setdefault("", version or 13)
        if version is not None and version != own:
            raise ModelError(
                f"function {function.name} is written in opset {version}, the model in {own}; "
                "export "
                "the model without functions"
            )
    try:
        ir.inline_functions(model)
    except Exception as error:
        cause = error.__cause__ or error
        raise ModelError(
            f"function {foreign[0].name} cannot be inlined ({str(cause).splitlines()[0]}); "
            "export the model without functions"
        ) from error
    for function in foreign:  # those that nobody calls
        model.functions.pop(function.identifier(), None)
    ir.assign_node_names(model)
    return len(foreign)
