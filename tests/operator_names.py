"""Where names of ONNX's operators stand together in the sources: each such collection is a fact about operators.

    python -m tests.operator_names [FOLDER]     # print every collection of three or more names, and how many there are

A collection holds different names: a tuple, list, set or dict (its keys), what `|`, `-` and `&` make of such, a chain
of comparisons, or a text of names with blanks between. A name may stand in a pair with its domain. Read from the
sources, so that nothing is imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import onnx

__all__ = ["LEAST", "Collection", "collections"]

#: So many names are a collection.
LEAST = 3
_NAMES = frozenset(schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain)
_DISPLAYS = (ast.Tuple, ast.List, ast.Set, ast.Dict)


class Collection(NamedTuple):
    """Names that stand together; `owner` is the constant or the function that they stand in, "" for a file's own."""

    file: str
    line: int
    owner: str
    names: tuple[str, ...]


def _literals(node: ast.expr) -> list[str]:
    """Return the operators that a collection, or an expression of collections, names itself."""
    if isinstance(node, ast.BinOp):
        return [*_literals(node.left), *_literals(node.right)]
    if isinstance(node, ast.BoolOp):
        return [name for value in node.values for name in _literals(value)]
    if isinstance(node, ast.Compare):
        return [name for side in node.comparators for name in (_literals(side) or _name(side))]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = node.value.split()
        return words if len(words) >= LEAST and all(word in _NAMES for word in words) else []
    if isinstance(node, _DISPLAYS):
        items = node.keys if isinstance(node, ast.Dict) else node.elts
        return [name for item in items for name in (_name(item) or _literals(item) if item is not None else ())]
    return []


def _name(node: ast.expr | None) -> list[str]:
    """Return the operator that an element is, also one with its domain in front."""
    if isinstance(node, ast.Tuple) and len(node.elts) == 2:
        node = node.elts[1]
    known = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _NAMES
    return [node.value] if known else []  # type: ignore[union-attr, list-item]


def _owned(node: ast.AST, owner: str) -> str:
    """Return what names in `node` stand in."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return f"{owner}.{node.name}".removeprefix(".")
    if isinstance(node, ast.Assign | ast.AnnAssign) and "." not in owner and (not owner or owner[0].isupper()):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return f"{owner}.{ast.unparse(target)}".removeprefix(".")
    return owner


def _found(node: ast.AST, owner: str) -> Iterator[tuple[int, str, list[str]]]:
    owner = _owned(node, owner)
    if owner == "__all__":
        return
    if isinstance(node, ast.expr) and len(names := list(dict.fromkeys(_literals(node)))) >= LEAST:
        yield node.lineno, owner, names
        return
    for child in ast.iter_child_nodes(node):
        yield from _found(child, owner)


def collections(root: Path) -> list[Collection]:
    """Return all collections of names in the packages below `root`."""
    found = []
    for package in ("lingeronnx", "simulator"):
        for path in sorted((root / package).rglob("*.py")):
            for line, owner, names in _found(ast.parse(path.read_text()), ""):
                found.append(Collection(path.relative_to(root).as_posix(), line, owner, tuple(names)))
    return found


def main() -> None:
    """Print the collections of a checkout."""
    all_of_them = collections(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])
    for each in all_of_them:
        print(f"{each.file}:{each.line} {each.owner}: {' '.join(each.names)}")
    files = {each.file for each in all_of_them}
    print(
        f"{len(all_of_them)} collections of {sum(len(each.names) for each in all_of_them)} names in {len(files)} files"
    )


if __name__ == "__main__":
    main()
