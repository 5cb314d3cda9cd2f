"""How the house is kept, counted from the sources of one checkout or of several, side by side.

    python benchmarks/house.py CHECKOUT... [--list ROW]

ROW is the start of a row's name: what it counts is printed, one line each, for the last checkout. Nothing is imported:
all figures are read from the files of lingeronnx/, simulator/ and tests/, and from setup.cfg.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path

import onnx

#: Modules whose name says when or how, not what: adverbs, and participles without the thing that they speak of.
_HOW = frozenset(
    [
        "ahead",
        "closer",
        "beyond",
        "chosen",
        "taken",
        "borrowed",
        "wide",
        "loose",
        "told",
        "joined",
        "made",
        "later",
        "next",
        "finer",
        "refined",
        "measured",
        "observed",
        "planned",
        "prepared",
        "rewritten",
        "derived",
        "traced",
        "watch",
        "wanted",
        "found",
        "given",
        "held",
        "seen",
        "saved",
        "massive",
    ]
)
#: Names of distributions whose module has another name.
_MODULES = {"pyyaml": "yaml", "scikit-learn": "sklearn", "pillow": "PIL", "onnx-ir": "onnx_ir", "pytest-xdist": "xdist",
            "emx-onnx-cgen": "emx_onnx_cgen"}  # fmt: skip
_POSITIONAL, _LINES, _FUNCTION = 8, 400, 60


class House:
    """The sources of one checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = sorted(p for name in ("lingeronnx", "simulator") for p in (root / name).rglob("*.py"))

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """The syntax trees, by path below the checkout."""
        return {str(p.relative_to(self.root)): ast.parse(p.read_text(encoding="utf-8")) for p in self.files}

    def packages(self) -> Iterator[str]:
        """Yield the files of the largest package, its folders apart."""
        folders = defaultdict(list)
        for path in self.trees:
            if not path.endswith("__init__.py"):
                folders[str(Path(path).parent)].append(path)
        yield from max(folders.values(), key=len)

    def untested(self) -> Iterator[str]:
        """Yield the modules that no test file is named after, those apart whose first comment says why not."""
        tests = {p.stem.removeprefix("test_") for p in (self.root / "tests").rglob("test_*.py")}
        for path in self.trees:
            stem, folder = Path(path).stem, Path(path).parent.name
            alone = {stem.strip("_"), f"{folder}_{stem.strip('_')}", f"{stem.strip('_')}_{folder}"}
            if stem != "__init__" and not alone & tests:
                yield path

    def unseen(self) -> Iterator[str]:
        """Yield the modules that no test file is named after and none imports, nor a name that they define."""
        imported: set[str] = set()
        for test in (self.root / "tests").rglob("*.py"):
            for node in ast.walk(ast.parse(test.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                elif isinstance(node, ast.Import):
                    imported |= {alias.name for alias in node.names}
        for path in self.untested():
            module = path.removesuffix(".py").replace("/", ".")
            package = module.rpartition(".")[0]
            kinds = (ast.FunctionDef, ast.ClassDef)
            defined = {node.name for node in self.trees[path].body if isinstance(node, kinds)}
            if not imported & {module, *(f"{package}.{name}" for name in defined)}:
                yield path

    def twice(self) -> Iterator[str]:
        """Yield the names that several classes have, a leading underscore not counted; operators' names apart."""
        named = defaultdict(list)
        operators = {schema.name.lower() for schema in onnx.defs.get_all_schemas_with_history()}
        for path, tree in self.trees.items():
            classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
            if path.startswith(("lingeronnx/reference/", "lingeronnx/formats/")):
                operators |= {node.name.lstrip("_").lower() for node in classes}
            for node in classes:
                named[node.name.lstrip("_")].append(f"{path}:{node.lineno}")
        for name, places in sorted(named.items()):
            if len(places) > 1 and name.lower() not in operators:
                yield f"{name}: {', '.join(places)}"

    def positional(self) -> Iterator[str]:
        """Yield the calls with eight positional arguments or more; jitted code knows no other ones."""
        nodes = [node for tree in self.trees.values() for node in ast.walk(tree)]
        any_number = {n.name for n in nodes if isinstance(n, ast.FunctionDef) and n.args.vararg is not None}
        for path, tree in self.trees.items():
            if path.startswith("simulator/"):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and len(node.args) >= _POSITIONAL and not _display(node, any_number):
                    yield f"{path}:{node.lineno} {ast.unparse(node.func)}"

    def adverbs(self) -> Iterator[str]:
        """Yield the modules whose name is an adverb or a participle that says nothing."""
        yield from (path for path in self.trees if Path(path).stem.strip("_") in _HOW)

    def long_files(self) -> Iterator[str]:
        """Yield the files above 400 lines."""
        for path in self.trees:
            count = len((self.root / path).read_text(encoding="utf-8").splitlines())
            if count > _LINES:
                yield f"{path} {count}"

    def long_functions(self) -> Iterator[str]:
        """Yield the functions above 60 lines."""
        for path, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= _FUNCTION:
                    yield f"{path}:{node.lineno} {node.name}"

    def silent_passes(self) -> Iterator[str]:
        """Yield the passes that never say why they leave a node alone, and are not declared to leave none."""
        below = {path: tree for path, tree in self.trees.items() if path.startswith("lingeronnx/passes/")}
        nodes = [node for tree in below.values() for node in ast.walk(tree)]
        calls = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "Pass" and len(n.args) > 1]
        calls = [call for call in calls if all(word.arg != "complete" for word in call.keywords)]
        listed = {ast.unparse(call.args[1]) for call in calls}
        functions = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name in listed]
        yield from sorted({f.name for f in functions if f.returns is not None and ast.unparse(f.returns) == "int"})

    def undeclared(self) -> Iterator[str]:
        """Yield the dependencies that setup.cfg declares for users and no file imports."""
        settings = configparser.ConfigParser()
        settings.read(self.root / "setup.cfg")
        extras = {k: v for k, v in settings["options.extras_require"].items() if k not in ("test", "docs", "dev")}
        declared = [settings["options"]["install_requires"], *extras.values()]
        texts = "\n".join(p.read_text(encoding="utf-8") for p in self.files)
        for line in "\n".join(declared).splitlines():
            name = re.split(r"[<>=!\[~ ]", line.strip())[0].lower()
            module = _MODULES.get(name, name.replace("-", "_"))
            if (
                name
                and not name.startswith("#")
                and not re.search(rf"(import|from|find_spec\(['\"]) ?{module}\b", texts)
            ):
                yield name

    def lines(self) -> int:
        """Return the lines of the packages."""
        return sum(len(p.read_text(encoding="utf-8").splitlines()) for p in self.files)

    def loose_tests(self) -> Iterator[str]:
        """Yield the tests that lie in no folder."""
        yield from (p.name for p in sorted((self.root / "tests").glob("test_*.py")))


def _display(node: ast.Call, any_number: Collection[str]) -> bool:
    """Whether a call only gathers values of one kind, as max(a, b, ..) and functions of `any_number` of them do."""
    return isinstance(node.func, ast.Name) and node.func.id in ("max", "min", "print", "range", "zip", *any_number)


ROWS = {
    "files of the largest package": House.packages,
    "modules without a test of their name": House.untested,
    "modules that no test names or imports": House.unseen,
    "names that several classes have": House.twice,
    "calls with eight positional arguments and more": House.positional,
    "modules named by adverbs": House.adverbs,
    "files above 400 lines": House.long_files,
    "functions above 60 lines": House.long_functions,
    "passes that give no reason": House.silent_passes,
    "dependencies declared and not imported": House.undeclared,
    "tests that lie in no folder": House.loose_tests,
}


def main() -> None:
    """Print one column for each checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--list", dest="row")
    args = parser.parse_args()
    houses = [House(root) for root in args.checkouts]
    if args.row:
        for name, row in ROWS.items():
            if name.startswith(args.row):
                print(*row(houses[-1]), sep="\n")
        return
    for name, row in ROWS.items():
        print(f"| {name} |", " | ".join(str(len(list(row(house)))) for house in houses), "|")
    print("| modules |", " | ".join(str(len(house.trees)) for house in houses), "|")
    print("| lines of code |", " | ".join(str(house.lines()) for house in houses), "|")


if __name__ == "__main__":
    main()
