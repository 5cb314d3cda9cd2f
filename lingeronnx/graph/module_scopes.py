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
    """Return the dotted name of the torch module that `node` was exported from.

    This is the innermost scope in the metadata; else for a name "/a/b/Op" its middle, "a.b"; else
    the name of the node itself.
    """
    if scopes := _parse_name_scopes(node.metadata_props.get(_NAME_SCOPES_KEY, "")):
        return scopes[-1]
    name = str(node.name or "")
    parts = name.split("/")
    return ".".join(parts[1:-1]) if name.startswith("/") and len(parts) > 2 else name


def format_node_label(node: str, module: str) -> str:
    """Return "node (module)", or only `node` if `module` is empty or contained in the node's name.

    For the comparison, "/" in the node's name counts as ".".
    """
    return f"{node} ({module})" if module and module not in node.replace("/", ".") else node


def _parse_name_scopes(text: str) -> Sequence[str]:
    """Parse the exporter's list of scopes to the modules around a node, outermost first.

    `text` is a Python list as text. Its last entry, the node itself, and empty entries are removed.
    [] if it is empty or not a list.
    """
    try:
        scopes = ast.literal_eval(text) if text else []
    except (SyntaxError, ValueError):
        return []
    return [str(scope) for scope in scopes[:-1] if scope] if isinstance(scopes, list) else []
