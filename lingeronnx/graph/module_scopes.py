"""Find the module of the training framework that a node was exported from.

torch's newer exporter stores the module names in the metadata of a node ("layer1.conv1"), the older
one in its name ("/layer1/conv1/Conv"). In other files the module is the name of the node.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from . import ir

__all__ = ["format_node_label", "get_module_name"]

_NAME_SCOPES_KEY = "pkg.torch.onnx.name_scopes"


def get_module_name(node: ir.Node) -> str:
    """Return the torch module that `node` was exported from, or the name of the node."""
    if scopes := _parse_name_scopes(node.metadata_props.get(_NAME_SCOPES_KEY, "")):
        return scopes[-1]
    name = str(node.name or "")
    parts = name.split("/")
    return ".".join(parts[1:-1]) if name.startswith("/") and len(parts) > 2 else name


def format_node_label(node: str, module: str) -> str:
    """Return "node (module)", or only the node name if the module adds no information."""
    return f"{node} ({module})" if module and module not in node.replace("/", ".") else node


def _parse_name_scopes(text: str) -> Sequence[str]:
    """Parse the exporter's list of scopes to the modules around a node, outermost first.

    The last entry of the list is the node itself, which is removed.
    """
    try:
        scopes = ast.literal_eval(text) if text else []
    except (SyntaxError, ValueError):
        return []
    return [str(scope) for scope in scopes[:-1] if scope] if isinstance(scopes, list) else []
