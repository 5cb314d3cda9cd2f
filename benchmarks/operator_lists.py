"""Count lists of operators outside the packages that say what an operator is.

    python -m benchmarks.operator_lists [CHECKOUT] [--list]

What several operators have in common is an attribute of each: of an integer operator (`Format`), of
its lowering rule (`Op`), or of a float operator (`ir/float_ops.py`). A list of names elsewhere is
forgotten when an operator is added. Counted are

    integer   collections of two or more integer operators: names, values such as `CONV2D`, or
              their names (`CONV2D.name`)
    float     collections of three or more names of standard operators (`operator_names`); those
              that have a reason there state no fact, or are one way of each operator to do a thing

Not counted: operators/ and luna/, which own such facts, the rewrites of normalize/ and legalize/,
and the table of float operators.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

from benchmarks.operator_names import REASONS, OperatorCollection, find_operator_collections
from lingeronnx.operators import integer_ops
from lingeronnx.operators.integer_ops import Format

__all__ = ["find_integer_operator_collections", "is_counted", "main"]

OWNERS = (
    "lingeronnx/operators/",
    "lingeronnx/luna/",
    "lingeronnx/targets/",
    "lingeronnx/quantization/normalize/",
    "lingeronnx/quantization/legalize/",
    "lingeronnx/ir/float_ops.py",
    # former places
    "lingeronnx/formats/",
    "lingeronnx/ops/",
    "lingeronnx/reference/",
    "lingeronnx/passes/",
    "lingeronnx/fit/",
    "lingeronnx/graph/operators.py",
)

_VALUES = {name: value for name, value in vars(integer_ops).items() if isinstance(value, Format)}
#: Names that only an integer operator has.
_NAMES = {
    name for value in _VALUES.values() for name in value.names if value.domain or name != value.name
}


def is_counted(path: str) -> bool:
    """Whether lists of operators in a source file count."""
    return path.startswith("lingeronnx/") and not path.startswith(OWNERS)


def find_integer_operator_collections(
    tree: ast.AST, owner: str = ""
) -> Iterator[OperatorCollection]:
    """Yield the tuples, lists, sets and dicts (their keys) of two or more integer operators."""
    if isinstance(tree, ast.FunctionDef | ast.ClassDef):
        owner = f"{owner}.{tree.name}".removeprefix(".")
    if isinstance(tree, ast.Assign) and ast.unparse(tree.targets[0]) == "__all__":
        return
    if isinstance(tree, ast.Tuple | ast.List | ast.Set | ast.Dict):
        elements = tree.keys if isinstance(tree, ast.Dict) else tree.elts
        names = tuple(dict.fromkeys(name for each in elements if (name := _name_of(each))))
        if len(names) > 1:
            yield OperatorCollection(tree.lineno, owner, names)
            return
    for child in ast.iter_child_nodes(tree):
        yield from find_integer_operator_collections(child, owner)


def _name_of(node: ast.expr | None) -> str | None:
    """Return the name of the integer operator that an element is, or None."""
    if isinstance(node, ast.Attribute) and node.attr == "name":
        node = node.value
    if isinstance(node, ast.Constant) and node.value in _NAMES:
        return str(node.value)
    word = getattr(node, "id", None) or getattr(node, "attr", None)
    return _VALUES[word].name if word in _VALUES else None


def main() -> None:
    """Print the counts, and with --list each collection."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--list", action="store_true", help="print each collection")
    arguments = parser.parse_args()
    found: dict[str, list[str]] = {"integer": [], "float": [], "float, with a reason": []}
    for file in sorted((arguments.checkout / "lingeronnx").rglob("*.py")):
        path = file.relative_to(arguments.checkout).as_posix()
        if not is_counted(path):
            continue
        tree = ast.parse(file.read_text("utf-8"))
        for each in find_integer_operator_collections(tree):
            found["integer"].append(f"{path}:{each.line}: {', '.join(each.names)}")
        for each in find_operator_collections(tree):
            has_reason = any(f"{path}:{each.owner}".startswith(prefix) for prefix in REASONS)
            kind = "float, with a reason" if has_reason else "float"
            found[kind].append(f"{path}:{each.line}: {', '.join(each.names[:8])}")
    for kind, lines in found.items():
        print(f"{kind}: {len(lines)}")
        if arguments.list:
            print(*(f"    {line}" for line in lines), sep="\n")


if __name__ == "__main__":
    main()
