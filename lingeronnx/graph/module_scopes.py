"""By what name a user knows a node: the module of the training framework that it comes from.

torch's newer exporter keeps the modules' names in a node's metadata ("layer1.conv1"), the older one
in its name ("/layer1/conv1/Conv"). Of other files it is the node's own name.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from . import ir

__all__ = ["format_node_label", "get_module_name"]

_NAME_SCOPES_KEY = "pkg.torch.onnx.name_scopes"


def get_module_name(node: ir.Node) -> str:
    """Return the module of a node as torch calls it, else the node's name."""
    if scopes := _parse_name_scopes(node.metadata_props.get(_NAME_SCOPES_KEY, "")):
        return scopes[-1]
    name = str(node.name or "")
    parts = name.split("/")
    return ".".join(parts[1:-1]) if name.startswith("/") and len(parts) > 2 else name


def format_node_label(node: str, module: str) -> str:
    """Return both names of a node, one where the other says no more."""
    return f"{node} ({module})" if module and module not in node.replace("/", ".") else node


def _parse_name_scopes(text: str) -> Sequence[str]:
    """Return the modules around a node, the outermost first, from the list that the exporter wrote; it ends with it."""
    try:
        scopes = ast.literal_eval(text) if text else []
    except (SyntaxError, ValueError):
        return []
    return [str(scope) for scope in scopes[:-1] if scope] if isinstance(scopes, list) else []
