"""Measure how Python code reads: names, docstrings, nesting, complexity.

    python -m benchmarks.readability lingeronnx simulator [--limits] [--sample N --seed S]

Nothing is imported or run. With ``--limits`` the exit status is 1 if a figure exceeds its limit.
``--sample`` prints N functions (path, line, name), drawn with a seed, for a person to read.

The limits are close to the worst figures of onnx-ir, onnxscript, httpx, stumpy, librosa and equinox
(measured with this script on 2026-11-28): filler names 0.03-1.4 %, participles 0.1-2.5 %, "what" in
0-1.6 % of docstrings, nested conditionals 0-2, comprehensions with several "for" 0-4, inside
another 0-3, complexity above 10 in 1.6-6.8 % of functions, lines over 100 columns 0-2.5 %.
"""

from __future__ import annotations

import argparse
import ast
import collections
import pathlib
import random
import re
import sys
from collections.abc import Iterator

from radon.complexity import cc_visit

FILLER_NAMES = frozenset(
    [
        "found",
        "made",
        "done",
        "told",
        "kept",
        "what",
        "why",
        "whole",
        "wanted",
        "given",
        "taken",
        "own",
        "more",
        "most",
        "least",
        "rest",
        "left",
        "seen",
        "said",
        "anew",
        "other",
        "each",
        "every",
        "one",
        "some",
    ]
)
PARTICIPLES = frozenset(
    [
        "told",
        "found",
        "made",
        "kept",
        "taken",
        "given",
        "written",
        "seen",
        "met",
        "brought",
        "drawn",
        "chosen",
        "held",
        "sent",
        "cut",
    ]
)
NOT_PARTICIPLES = frozenset(
    [
        "read",
        "need",
        "seed",
        "feed",
        "speed",
        "embed",
        "exceed",
        "proceed",
        "succeed",
        "breed",
        "bed",
        "red",
        "shed",
        "indeed",
    ]
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LIMITS = {
    "filler names, % of local names": 1.4,
    "functions named by a participle only, %": 1.5,
    "docstrings with 'what', %": 1.6,
    "nested conditional expressions": 5,
    "comprehensions with several 'for'": 60,
    "comprehensions inside another": 20,
    "functions with complexity above 10, %": 5,
    "lines over 100 columns, %": 1.0,
}


def nodes_of_function(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions and classes defined inside it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield from nodes_of_function(child)


def local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return parameters and names bound in the function's own body."""
    arguments = function.args
    parameters = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    names = {parameter.arg for parameter in parameters if parameter is not None}
    for node in nodes_of_function(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names - {"self", "cls", "_"}


def is_participle(name: str) -> bool:
    """Return whether a name is a single past participle."""
    word = name.strip("_")
    return word not in NOT_PARTICIPLES and (
        word in PARTICIPLES or re.fullmatch("[a-z]+ed", word) is not None
    )


def contains(node: ast.AST, types: tuple[type, ...]) -> bool:
    """Return whether a syntax tree contains a node of these types below `node`."""
    return any(
        isinstance(inner, types)
        for child in ast.iter_child_nodes(node)
        for inner in ast.walk(child)
    )


def measure(
    paths: list[pathlib.Path],
) -> tuple[dict[str, float], list[tuple[pathlib.Path, int, str]]]:
    """Return the figures over all files, and every function as (path, line, name)."""
    count: collections.Counter[str] = collections.Counter()
    complexities: list[int] = []
    functions: list[tuple[pathlib.Path, int, str]] = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        count["lines"] += len(lines)
        count["long"] += sum(len(line) > 100 for line in lines)
        complexities += [block.complexity for block in cc_visit(text) if block.letter in "FM"]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, FUNCTIONS):
                functions.append((path, node.lineno, node.name))
                names = local_names(node)
                count["locals"] += len(names)
                count["filler"] += len(names & FILLER_NAMES)
                count["participles"] += is_participle(node.name)
            if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)) and (
                docstring := ast.get_docstring(node)
            ):
                count["docstrings"] += 1
                count["with what"] += re.search(r"\bwhat\b", docstring, re.IGNORECASE) is not None
            if isinstance(node, ast.IfExp):
                count["nested"] += contains(node, (ast.IfExp,))
            if isinstance(node, COMPREHENSIONS):
                count["comprehensions"] += 1
                count["several for"] += len(node.generators) > 1
                count["inside another"] += contains(node, COMPREHENSIONS)
    figures = {
        "files": len(paths),
        "lines": count["lines"],
        "functions": len(functions),
        "filler names, % of local names": round(100 * count["filler"] / max(1, count["locals"]), 2),
        "functions named by a participle only, %": round(
            100 * count["participles"] / max(1, len(functions)), 1
        ),
        "docstrings with 'what', %": round(
            100 * count["with what"] / max(1, count["docstrings"]), 1
        ),
        "nested conditional expressions": count["nested"],
        "comprehensions with several 'for'": count["several for"],
        "comprehensions inside another": count["inside another"],
        "comprehensions per 1,000 lines": round(
            1000 * count["comprehensions"] / max(1, count["lines"]), 1
        ),
        "functions with complexity above 10, %": round(
            100 * sum(complexity > 10 for complexity in complexities) / max(1, len(complexities)), 1
        ),
        "mean complexity": round(sum(complexities) / max(1, len(complexities)), 2),
        "lines over 100 columns, %": round(100 * count["long"] / max(1, count["lines"]), 2),
    }
    return figures, functions


def main() -> int:
    """Print the figures; return 1 if ``--limits`` was given and one is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument(
        "--limits", action="store_true", help="exit 1 if a figure is past its limit"
    )
    parser.add_argument(
        "--sample", type=int, default=0, metavar="N", help="print N functions to read"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    paths = sorted(path for folder in arguments.folders for path in folder.rglob("*.py"))
    figures, functions = measure(paths)
    for name, value in figures.items():
        print(f"{name}: {value:g}" + (f" (limit {LIMITS[name]:g})" if name in LIMITS else ""))
    for path, line, name in random.Random(arguments.seed).sample(
        functions, min(arguments.sample, len(functions))
    ):
        print(f"{path}:{line} {name}")
    exceeded = [
        f"{name} {figures[name]:g} of {limit:g}"
        for name, limit in LIMITS.items()
        if figures[name] > limit
    ]
    print(
        f"{len(LIMITS) - len(exceeded)} of {len(LIMITS)} limits kept"
        + (": past " + ", ".join(exceeded) if exceeded else "")
    )
    return int(arguments.limits and bool(exceeded))


if __name__ == "__main__":
    sys.exit(main())
