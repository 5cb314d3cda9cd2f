"""How far the core knows its vendor, counted from the sources of two checkouts.

    python benchmarks/vendor_coupling.py BEFORE AFTER

A file of the core is one of lingeronnx/ outside the vendor's parts: in the older layout packer/,
chip/ and the rows and packings of platforms/, in the newer one targets/luna/. Counted are files
that import from there, tests for an absent packing, strings that name a chip (docstrings, repair/
and the oracle apart), and files that know the two generations of the vendor's graphs.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

_VENDOR = re.compile(
    r"lingeronnx\.(packer|chip|targets\.luna|platforms\.(packing|faults|luna|venus|arcs|venusa|trained))\b"
)
_GENERATIONS = re.compile(r"lingeronnx\.(conversion|run\.generations)\b")
_ABSENT = re.compile(r"\bpacking is (not )?None")
_OPEN = re.compile(r"\b(conv|pool) is (not )?None")
_CHIPS = re.compile(r"\b(venus|arcs|venusA)\b")
_APART = ("lingeronnx/repair/", "lingeronnx/reference/")


def iterate_core_files(root: Path) -> Iterator[tuple[Path, ast.Module, str]]:
    """Yield the files of the core with their syntax trees and their modules' names."""
    for path in sorted((root / "lingeronnx").rglob("*.py")):
        dotted = ".".join(path.relative_to(root).with_suffix("").parts)
        if not _VENDOR.match(dotted):
            yield path, ast.parse(path.read_text(encoding="utf-8")), dotted


def iterate_imports(tree: ast.Module, dotted: str) -> Iterator[str]:
    """Yield what a file imports, as absolute names down to the single one."""
    package = (
        dotted.removesuffix(".__init__").split(".")
        if dotted.endswith(".__init__")
        else dotted.split(".")[:-1]
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def count_chip_names(tree: ast.Module) -> int:
    """Return how many strings name a chip, docstrings apart."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [
        n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    return sum(bool(_CHIPS.search(n.value)) for n in strings if id(n) not in texts)


def count_couplings(root: Path) -> dict[str, int]:
    """Return the figures of a checkout."""
    what = (
        "files that import the vendor",
        "tests for an absent packing",
        "tests for absent limits of windows",
        "strings that name a chip",
        "files that import the generations' code",
    )
    found = dict.fromkeys(what, 0)
    for path, tree, dotted in iterate_core_files(root):
        names = list(iterate_imports(tree, dotted))
        found[what[0]] += any(_VENDOR.match(name) for name in names) or _faults(names)
        found[what[4]] += any(_GENERATIONS.match(name) for name in names)
        text = path.read_text(encoding="utf-8")
        found[what[1]] += len(_ABSENT.findall(text))
        found[what[2]] += len(_OPEN.findall(text))
        if not path.relative_to(root).as_posix().startswith(_APART):
            found[what[3]] += count_chip_names(tree)
    return found


def _faults(names: list[str]) -> bool:
    """Whether a file takes the vendor's faults by way of the package that lists the platforms."""
    return any(
        re.match(r"lingeronnx\.platforms\.(Fault|Packing|VENUS|ARCS|VENUSA)$", name)
        for name in names
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    args = parser.parse_args()
    before, after = count_couplings(args.before), count_couplings(args.after)
    print("| of the core | before | after |\n|---|---|---|")
    for what in before:
        print(f"| {what} | {before[what]} | {after[what]} |")


if __name__ == "__main__":
    main()
