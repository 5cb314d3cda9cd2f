"""Draw mutants from the AST of the source, apply one to a checkout, and instrument a checkout to see who runs it.

A *site* is a place in the source that one of six rules can change; a *mutant* is a site with its
replacement. Sites are stratified by package: each package gets at least one mutant and the others
in proportion to its sites. Within a package the rule is drawn first, then the site, so that
frequent rules (comparisons) do not crowd out rare ones (error classes).
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

SOURCE_PACKAGES = ("lingeronnx", "simulator")

COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
ARITHMETIC = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
#: Constants of rounding and saturation; other numbers are mostly indices and sizes of messages.
CONSTANTS = {
    0.5,
    1,
    2,
    7,
    8,
    15,
    16,
    31,
    32,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    65536,
    2147483647,
}
ERROR_CLASSES = {
    "ModelError",
    "ConstraintError",
    "ConfigError",
    "DataError",
    "RepairError",
    "ValueError",
    "TypeError",
}

Position = tuple[int, int, int, int]


@dataclass(frozen=True)
class Mutant:
    """A change of one place of the source.

    path : file, relative to the root of the checkout.
    position : first line (from 1), first column, last line, end column (characters of the UTF-8
    line, as in `ast`). original, replacement : text of the place before and after.
    """

    number: int
    path: str
    package: str
    rule: str
    position: Position
    original: str
    replacement: str


def list_sources(root: Path) -> list[Path]:
    """List the source files of the packages under test, in order of their names."""
    return [path for package in SOURCE_PACKAGES for path in sorted((root / package).rglob("*.py"))]


def package_of(path: str) -> str:
    """Name the stratum of a file.

    The folder below `lingeronnx`, `core` for the modules beside them, or `simulator`.
    """
    parts = Path(path).parts
    if parts[0] != "lingeronnx":
        return parts[0]
    return parts[1] if len(parts) > 2 else "core"


def position_of(node: ast.expr | ast.stmt) -> Position:
    """Return the extent of a node; `ast` gives every parsed expression and statement an end."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def mutate_node(node: ast.AST) -> Iterator[tuple[str, ast.expr, str]]:
    """Yield (rule, expression to replace, replacement) for each rule that applies to a node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield (
            "comparison",
            node,
            _join(node.left, COMPARISONS[type(node.ops[0])], node.comparators[0]),
        )
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_text(node):
        yield "arithmetic", node, _join(node.left, ARITHMETIC[type(node.op)], node.right)
    if isinstance(node, ast.Constant) and _is_rounding_constant(node.value):
        yield "constant", node, repr(node.value + (0.25 if isinstance(node.value, float) else 1))
    if isinstance(node, ast.Call) and _can_swap(node):
        texts = [ast.unparse(argument) for argument in (*node.args, *node.keywords)]
        texts[:2] = texts[1::-1]
        yield "swapped arguments", node, f"{ast.unparse(node.func)}({', '.join(texts)})"
    if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
        yield "dropped branch", node.test, f"(False and ({ast.unparse(node.test)}))"
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        error = node.exc.func
        if isinstance(error, ast.Name) and error.id in ERROR_CLASSES:
            yield "error class", error, "RuntimeError"


def _is_rounding_constant(value: object) -> TypeGuard[int | float]:
    return type(value) in (int, float) and value in CONSTANTS


def _join(left: ast.expr, operator: str, right: ast.expr) -> str:
    return f"(({ast.unparse(left)}) {operator} ({ast.unparse(right)}))"


def _can_swap(call: ast.Call) -> bool:
    """Whether a call has two different positional arguments at its start."""
    if len(call.args) < 2 or any(isinstance(argument, ast.Starred) for argument in call.args[:2]):
        return False
    return ast.unparse(call.args[0]) != ast.unparse(call.args[1])


def _is_text(node: ast.BinOp) -> bool:
    """Whether an operand of a sum or product is a string or a list.

    A mutant of it fails at once, and shows nothing.
    """
    kinds = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    return any(
        isinstance(side, kinds)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def walk_code(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without annotations, format specifications, decorators and `__all__`."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "format_spec", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == "__all__":
                continue
            if isinstance(child, ast.AST):
                yield from walk_code(child)


def find_sites(root: Path) -> Iterator[Mutant]:
    """Yield every site of the packages under test, unnumbered."""
    for path in list_sources(root):
        text = path.read_text()
        name = path.relative_to(root).as_posix()
        for node in walk_code(ast.parse(text)):
            for rule, place, replacement in mutate_node(node):
                original = ast.get_source_segment(text, place)
                if original is not None:
                    yield Mutant(
                        0, name, package_of(name), rule, position_of(place), original, replacement
                    )


def draw_mutants(root: Path, count: int, seed: int) -> list[Mutant]:
    """Draw `count` mutants, stratified by package."""
    by_package: dict[str, dict[str, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for site in find_sites(root):
        by_package[site.package][site.rule].append(site)
    sizes = {
        package: sum(map(len, rules.values())) for package, rules in sorted(by_package.items())
    }
    quotas = share_out(sizes, count)
    generator = random.Random(seed)
    drawn: list[Mutant] = []
    for package, quota in quotas.items():
        rules = by_package[package]
        for _ in range(quota):
            rule = generator.choice(sorted(name for name, sites in rules.items() if sites))
            site = rules[rule].pop(generator.randrange(len(rules[rule])))
            drawn.append(
                Mutant(
                    len(drawn) + 1,
                    *[getattr(site, name) for name in list(Mutant.__annotations__)[1:]],
                )
            )
    return drawn


def share_out(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Give each package one mutant and the others by largest remainder of its share of the sites."""
    spare = count - len(sizes)
    if spare < 0:
        raise ValueError(
            f"{count} mutants are fewer than the {len(sizes)} packages: each needs one"
        )
    exact = {name: spare * size / sum(sizes.values()) for name, size in sizes.items()}
    quotas = {name: 1 + int(share) for name, share in exact.items()}
    by_remainder = sorted(sizes, key=lambda name: exact[name] % 1, reverse=True)
    for name in by_remainder[: count - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def apply_mutant(root: Path, mutant: Mutant) -> str:
    """Write the mutated file into a checkout and return the text that it had before.

    Raises
    ------
    ValueError
        The place does not hold the original text: the checkout is of another version.
    """
    path = root / mutant.path
    before = path.read_text()
    lines = before.encode().splitlines(keepends=True)
    first, start, last, end = mutant.position
    head = b"".join(lines[: first - 1]) + lines[first - 1][:start]
    tail = lines[last - 1][end:] + b"".join(lines[last:])
    middle = before.encode()[len(head) : len(before.encode()) - len(tail)].decode()
    if middle != mutant.original:
        place = f"{mutant.path}:{first}"
        raise ValueError(
            f"{place} holds {middle!r}, but mutant {mutant.number} replaces {mutant.original!r}"
        )
    after = (head + mutant.replacement.encode() + tail).decode()
    ast.parse(after)
    path.write_text(after)
    return before


# ---- who runs a site ---------------------------------------------------------------------------------------------

PROBE = '''"""Note which test runs which mutated place: one line per place and test, in a file of each process."""
import os

_SEEN = set()


def hit(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "import").rpartition(" (")[0] or "import"
    if (number, test) not in _SEEN:
        _SEEN.add((number, test))
        with open(os.path.join({folder!r}, str(os.getpid())), "a") as journal:
            journal.write(f"{{number}}\\t{{test}}\\n")
    return True
'''


def instrument(root: Path, mutants: list[Mutant], folder: Path) -> list[int]:
    """Insert a call of the probe before the statement of each mutant.

    Return the numbers of those that cannot have one.
    Code that Numba compiles cannot call Python; its mutants are left to the tests of the same
    package.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (root / "mutant_probe.py").write_text(PROBE.format(folder=str(folder)))
    left_out = []
    by_path = defaultdict(list)
    for mutant in mutants:
        by_path[mutant.path].append(mutant)
    for name, group in by_path.items():
        tree = ast.parse((root / name).read_text())
        for mutant in group:
            if not _insert_probe(tree, mutant):
                left_out.append(mutant.number)
        (root / name).write_text(ast.unparse(ast.fix_missing_locations(tree)))
    return left_out


def _insert_probe(tree: ast.Module, mutant: Mutant) -> bool:
    """Insert a call of the probe before the innermost statement of a mutant, except in jitted code."""
    blocks: list[tuple[list[ast.stmt], ast.stmt]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _contains(node, mutant) and _is_jitted(node):
            return False
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                blocks += [(block, child) for child in block if _contains(child, mutant)]
    if not blocks:
        return False
    block, statement = max(blocks, key=lambda pair: position_of(pair[1])[:2])
    (call,) = ast.parse(f'__import__("mutant_probe").hit({mutant.number})').body
    block.insert(block.index(statement), call)
    return True


def _is_jitted(function: ast.FunctionDef) -> bool:
    names = {ast.unparse(mark).split("(")[0] for mark in function.decorator_list}
    return bool(names & {"jit", "inline", "njit"})


def _contains(node: ast.AST, mutant: Mutant) -> bool:
    if not isinstance(node, ast.stmt) or not hasattr(node, "lineno"):
        return False  # an exception handler, or a probe of another mutant
    first, start, last, end = position_of(node)
    return (first, start) <= mutant.position[:2] and mutant.position[2:] <= (last, end)
