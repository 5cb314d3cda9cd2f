"""Check the rules about the structure of the code that need a syntax tree.

    python -m benchmarks.check_structure [CHECKOUT] [--rules]

Each source file of `lingeronnx/` and `simulator/` is parsed once. Every violation is printed as
`path:line: rule: message`, and the exit code is 1 if there is any. `--rules` prints the rules.

Rules that need the imports between packages only are contracts of import-linter in pyproject.toml.
Rules about single lines are ruff's. Names of targets and of operators come from the installed
`lingeronnx`; all else is read from the sources of the checkout.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import gc
import inspect
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple, TypeVar

import onnx

from benchmarks import operator_lists, operator_names
from lingeronnx.operators.integer_ops import INTEGER_OPS, TRAINING_ONLY_OPS
from lingeronnx.targets import PLATFORMS

__all__ = ["RULES", "Checkout", "Rule", "SourceFile", "Violation", "main", "read_checkout"]

_Node = TypeVar("_Node", bound=ast.AST)

PACKAGES = ("lingeronnx", "simulator")

#: Where modules are imported by name, and why.
IMPORT_BY_NAME_HOMES = {
    "lingeronnx/__init__.py": "public names, loaded on first use; type checkers see import statements",
    "lingeronnx/common/lazy_names.py": "public names of packages, as above",
    "lingeronnx/targets/registry.py": "the listed vendors, which stand above the registry",
    "simulator/kernels/__init__.py": "operators, loaded on first use; type checkers see import statements",
    "lingeronnx/ir/_deferred_import.py": "modules of other packages, loaded on first use",
    "lingeronnx/runtime/data/functions.py": "the user's module",
    "lingeronnx/torch/exporter/model_source.py": "the user's module",
    "lingeronnx/torch/dynamo.py": "a module of torch that may be missing",
}

#: Where the name of a chip is a word of something else, and why.
CHIP_NAME_HOMES = {
    "lingeronnx/luna/": "the vendor's folder",
    "lingeronnx/targets/arithmetic.py": "tables of the simulator are called after chips",
    "lingeronnx/operators/pool/integer_op.py": "two ways of the simulator's average are called after chips",
    "lingeronnx/operators/*/reference.py": "an oracle shares nothing with what it judges, names included",
    "lingeronnx/interchange/repair/": "it reads graphs that other tools wrote",
    "simulator/": "tables and kernels are called after the chips that have them",
}
#: Chips of other tools' platforms, which no target here is called after.
FOREIGN_CHIPS = ("mars", "jupiter")

#: Where integer operators are called by name, and why. All other code asks the format.
OPERATOR_NAME_HOMES = {
    "lingeronnx/operators/*/integer_op.py": "the integer operators themselves",
    "lingeronnx/operators/shape_inference.py": "the schemas of standard operators, by name",
    "lingeronnx/luna/": "a chip is keyed by the names that its packer knows",
    "lingeronnx/targets/": "stands below the formats: a target is keyed by the names",
    "lingeronnx/operators/*/reference.py": "an oracle shares nothing with what it judges, names included",
    "lingeronnx/quantization/normalize/entry/reject_unsupported.py": (
        "QLinear begins the names of onnxruntime's own operators"
    ),
}

#: Where classes are called after the operators of ONNX that they define.
OPERATOR_CLASS_FILES = (
    "lingeronnx/operators/*/integer_op.py",
    "lingeronnx/operators/*/reference.py",
    "lingeronnx/operators/_reference_op.py",
)

#: Files, or folders, of a family of operators. The import contracts in pyproject.toml name each.
FAMILY_FILES = (
    "__init__",
    "exact_qdq",
    "integer_op",
    "lowering",
    "reference",
    "table_functions",
    "training_kernels",
)

#: Files beside those of the families in lingeronnx/torch/fake_quant/.
FAKE_QUANTIZER_HELPERS = ("__init__", "common", "lstm_gradient", "rounding")

#: Where "@" is a rule of the packer's, and not a mark in a tensor's name.
#: `escaping` escapes it for Markdown and spreadsheets.
AT_SIGN_HOMES = (
    "lingeronnx/common/escaping.py",
    "lingeronnx/luna/packer/",
    "lingeronnx/targets/_target.py",  # versions in names of platforms
)
#: Where names are parsed that somebody else made: torch's exporter writes module paths into names,
#: parameters are matched by the ends of theirs, functions carry their kind before an underscore.
FOREIGN_NAME_READERS = (
    "lingeronnx/torch/exporter/exporters.py",
    "lingeronnx/torch/exporter/cleanup.py",
    "lingeronnx/torch/checkpoint/parameters.py",
)
_PARSING_METHODS = frozenset(
    [
        "endswith",
        "partition",
        "removeprefix",
        "removesuffix",
        "rpartition",
        "rsplit",
        "split",
        "startswith",
    ]
)
_GRAPH_NAME = re.compile(
    r"(value|tensor|node|source|output|result|step)\w*\.(name|output)\b"
    r"|_name\(|\borigin\("
)

#: Uses of `Any` per 1,000 lines, outside torch/. The limit only falls: it is to be lowered where
#: the code stays below it by the slack.
MAX_ANY_PER_1000_LINES = 2.7
ANY_SLACK = 0.5

MAX_POSITIONAL = 7
#: Calls with more positional arguments, by path and function, and why.
LONG_CALLS = {
    "lingeronnx/deployment/c_program/program.py:HostPart": "the fields of a record, in order"
}
_VARIADIC_BUILTINS = frozenset(["max", "min", "print", "range", "zip"])

#: Extras of setup.cfg that no user installs for what the packages import.
DEVELOPER_EXTRAS = ("test", "bench", "docs", "dev")
#: Distributions whose module has another name.
MODULES = {
    "PyYAML": "yaml",
    "Pillow": "PIL",
    "onnx-ir": "onnx_ir",
    "emx-onnx-cgen": "emx_onnx_cgen",
}


class Violation(NamedTuple):
    """One place that breaks a rule; `path` is relative to the checkout."""

    path: str
    line: int
    message: str


class Import(NamedTuple):
    """One `import module` or `from module import names`; `module` is absolute."""

    module: str
    names: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class SourceFile:
    """One parsed file.

    Attributes
    ----------
    path
        POSIX path relative to the checkout.
    text
        Source text.
    """

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Syntax tree."""
        return ast.parse(self.text, self.path)

    @cached_property
    def _nodes_by_type(self) -> dict[type[ast.AST], list[ast.AST]]:
        nodes = defaultdict(list)
        for node in ast.walk(self.tree):
            nodes[type(node)].append(node)
        return nodes

    def nodes_of(self, node_type: type[_Node]) -> list[_Node]:
        """All nodes of one type."""
        return self._nodes_by_type.get(node_type, [])

    @property
    def module(self) -> str:
        """Dotted name of the module; that of the package for an `__init__.py`."""
        return self.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

    @property
    def package(self) -> str:
        """Name of the part below `lingeronnx`: its folder, or its module."""
        return (self.module.split(".")[1:] or [""])[0]

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """All imports, also inside functions and under TYPE_CHECKING."""
        folders = self.path.split("/")[:-1]
        imports = []
        for node in self.nodes_of(ast.Import):
            imports += [Import(alias.name, (), node.lineno) for alias in node.names]
        for node in self.nodes_of(ast.ImportFrom):
            base = folders[: len(folders) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = tuple(alias.name for alias in node.names)
            imports.append(Import(module, names, node.lineno))
        return tuple(imports)

    @cached_property
    def strings(self) -> tuple[ast.Constant, ...]:
        """All string constants but docstrings and other bare strings."""
        bare = {id(node.value) for node in self.nodes_of(ast.Expr)}
        strings = (node for node in self.nodes_of(ast.Constant) if isinstance(node.value, str))
        return tuple(string for string in strings if id(string) not in bare)


@dataclass(frozen=True)
class Checkout:
    """The sources of a checkout: the files of both packages, sorted by path."""

    root: Path
    files: tuple[SourceFile, ...]

    @property
    def core_files(self) -> tuple[SourceFile, ...]:
        """Files of `lingeronnx/`."""
        return tuple(file for file in self.files if file.path.startswith("lingeronnx/"))

    @cached_property
    def third_party(self) -> dict[str, tuple[str, int]]:
        """Imported modules from elsewhere, each with path and line of one import."""
        ours = {*sys.stdlib_module_names, *PACKAGES}
        modules = {}
        for file in self.files:
            for each in file.imports:
                if (name := each.module.split(".")[0]) not in ours:
                    modules[name] = (file.path, each.line)
        return modules


def read_checkout(root: Path) -> Checkout:
    """Read the source files of a checkout."""
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    files = (SourceFile(p.relative_to(root).as_posix(), p.read_text("utf-8")) for p in paths)
    return Checkout(root, tuple(files))


# ---- imports and dependencies --------------------------------------------------------------------


def find_import_cycles(checkout: Checkout) -> Iterator[Violation]:
    """No file imports itself by way of others, neither inside functions nor for annotations."""
    files = {file.module: file for file in checkout.files}
    lines = {file.module: _imported_modules(file, files) for file in checkout.files}
    try:
        TopologicalSorter(lines).prepare()
    except CycleError as error:
        imported, importer, *_ = cycle = error.args[1]
        path = files[importer].path
        yield Violation(path, lines[importer][imported], f"import cycle: {' <- '.join(cycle)}")


def _imported_modules(file: SourceFile, files: dict[str, SourceFile]) -> dict[str, int]:
    """Return the modules of the checkout that a file imports, with the line of each import.

    `from package import a` imports `package.a` alone if that is a module.
    """
    lines = {}
    for each in file.imports:
        modules = {f"{each.module}.{name}" for name in each.names} & files.keys()
        if not modules or len(modules) < len(each.names):
            modules |= {each.module} & files.keys()
        lines |= dict.fromkeys(sorted(modules - {file.module}), each.line)
    return lines


def find_imports_by_name(checkout: Checkout) -> Iterator[Violation]:
    """A module is imported by a statement, which the import rules see, and by name only for a reason."""
    for file in checkout.files:
        if is_listed(file.path, IMPORT_BY_NAME_HOMES):
            continue
        for node in file.nodes_of(ast.Call):
            if re.search(r"\b(import_module|__import__)$", ast.unparse(node.func)):
                message = f"{ast.unparse(node)!r} imports by name; write an import statement"
                yield Violation(file.path, node.lineno, message)


def find_dependency_mismatches(checkout: Checkout) -> Iterator[Violation]:
    """What setup.cfg declares for users is what the packages import."""
    declared = _declared_modules(checkout.root / "setup.cfg")
    for module, line in declared.items():
        if module not in checkout.third_party:
            yield Violation("setup.cfg", line, f"no file imports {module}")
    for module, (path, line) in checkout.third_party.items():
        if module not in declared:
            yield Violation(path, line, f"setup.cfg does not declare {module}")


def _declared_modules(settings_file: Path) -> dict[str, int]:
    """Return the modules of all requirements that users install, with their lines in setup.cfg."""
    text = settings_file.read_text("utf-8")
    settings = configparser.ConfigParser()
    settings.read_string(text)
    extras = settings["options.extras_require"]
    sections = [extras[name] for name in extras if name not in DEVELOPER_EXTRAS]
    requirements = [settings["options"]["install_requires"], *sections]
    lines = [line.strip() for line in text.splitlines()]
    own_name = settings.get("metadata", "name", fallback="")
    modules = {}
    for requirement in "\n".join(requirements).splitlines():
        name = re.match(r"[\w-]+(?!!=|[\w-])", requirement)  # "!=" excludes what others import
        if name and name[0] != own_name:  # an extra that joins others
            modules[MODULES.get(name[0], name[0])] = lines.index(requirement) + 1
    return modules


def find_stale_type_overrides(checkout: Checkout) -> Iterator[Violation]:
    """The exceptions for mypy name modules that the packages import, or their own."""
    own_modules = {file.module for file in checkout.files}
    text = (checkout.root / "pyproject.toml").read_text("utf-8")
    for override in tomllib.loads(text)["tool"]["mypy"]["overrides"]:
        for pattern in override["module"]:
            module = pattern.removesuffix(".*")
            if module not in checkout.third_party and module not in own_modules:
                line = text[: text.index(f'"{pattern}"')].count("\n") + 1
                yield Violation("pyproject.toml", line, f"no file imports {pattern}")


# ---- names ---------------------------------------------------------------------------------------


def find_chip_names(checkout: Checkout) -> Iterator[Violation]:
    """The name of a chip stands in its vendor's folder only; other code asks the target."""
    chips = [target.name for target in PLATFORMS if target.has_packer]
    pattern = re.compile(rf"\b({'|'.join([*chips, *FOREIGN_CHIPS])})\b")
    for file in checkout.files:
        if is_listed(file.path, CHIP_NAME_HOMES):
            continue
        for string in file.strings:
            if pattern.search(string.value):
                yield Violation(file.path, string.lineno, f"{string.value!r} names a chip")


def find_platform_comparisons(checkout: Checkout) -> Iterator[Violation]:
    """No code compares with the name of a platform; it asks the target."""
    platforms = {target.name for target in PLATFORMS}
    for file in checkout.core_files:
        for node in file.nodes_of(ast.Compare):
            if platforms & _constants_of(node):
                yield Violation(file.path, node.lineno, f"{ast.unparse(node)!r} names a platform")


def find_integer_operator_names(checkout: Checkout) -> Iterator[Violation]:
    """Only formats, targets and the oracle write the name of an integer operator."""
    formats = (*INTEGER_OPS, *TRAINING_ONLY_OPS)
    names = set()
    for form in formats:
        names |= {name for name in form.names if form.domain or name != form.name}
    for file in checkout.core_files:
        if is_listed(file.path, OPERATOR_NAME_HOMES):
            continue
        for node in file.nodes_of(ast.Constant):
            if node.value in names:
                message = f"{node.value!r} is an integer operator; take it from lingeronnx.operators.integer_ops"
                yield Violation(file.path, node.lineno, message)
        for node in file.nodes_of(ast.Compare):
            if _compares_format_name(node):
                message = f"{ast.unparse(node)!r}: compare with the format itself"
                yield Violation(file.path, node.lineno, message)


def is_listed(path: str, patterns: Iterable[str]) -> bool:
    """Whether a path begins with one of some patterns, in which * stands for any text."""
    return any(fnmatchcase(path, f"{pattern}*") for pattern in patterns)


def _compares_format_name(node: ast.Compare) -> bool:
    is_name = re.search(r"\b(op|form|format|rule)\.name$", ast.unparse(node.left))
    return is_name is not None and bool(_constants_of(*node.comparators))


def _constants_of(*trees: ast.AST) -> set[object]:
    """Return the values of all constants in some syntax trees."""
    nodes = (node for tree in trees for node in ast.walk(tree))
    return {node.value for node in nodes if isinstance(node, ast.Constant)}


def find_parsed_names(checkout: Checkout) -> Iterator[Violation]:
    """The name of a tensor or node is never parsed, and no mark is written into one."""
    for file in checkout.core_files:
        if not file.path.startswith(AT_SIGN_HOMES):
            for string in file.strings:
                if "@" in string.value:
                    message = f"{string.value!r} has a mark; keep it in data beside the name"
                    yield Violation(file.path, string.lineno, message)
        if file.path in FOREIGN_NAME_READERS:
            continue
        for node in file.nodes_of(ast.Call):
            if _parses_graph_name(node):
                yield Violation(file.path, node.lineno, f"{ast.unparse(node)!r} parses a name")


def _parses_graph_name(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _PARSING_METHODS:
        return False
    return _GRAPH_NAME.search(ast.unparse(call.func.value)) is not None


def find_operator_lists(checkout: Checkout) -> Iterator[Violation]:
    """Three names of ONNX operators stand together only for a reason that is given."""
    unused = set(operator_names.REASONS)
    for file in checkout.files:
        words = {word for string in file.strings for word in string.value.split()}
        if len(words & operator_names.NAMES) < operator_names.MIN_NAMES:
            continue  # saves the search, which takes as long as all other rules together
        for each in operator_names.find_operator_collections(file.tree):
            owner = f"{file.path}:{each.owner}"
            reasons = {prefix for prefix in operator_names.REASONS if is_listed(owner, [prefix])}
            unused -= reasons
            if not reasons:
                message = (
                    f"{each.owner} lists {', '.join(each.names)}; "
                    "ask lingeronnx/ir/float_ops.py, or give a reason in operator_names.REASONS"
                )
                yield Violation(file.path, each.line, message)
    for prefix in sorted(unused):
        yield Violation("benchmarks/operator_names.py", 1, f"no list is left for reason {prefix!r}")


def find_integer_operator_lists(checkout: Checkout) -> Iterator[Violation]:
    """What several integer operators have in common is an attribute of each, not a list elsewhere."""
    for file in checkout.core_files:
        if not operator_lists.is_counted(file.path):
            continue
        for each in operator_lists.find_integer_operator_collections(file.tree):
            message = f"a list of {', '.join(each.names)}; ask an attribute of the operator"
            yield Violation(file.path, each.line, message)


def find_unknown_family_files(checkout: Checkout) -> Iterator[Violation]:
    """A family of operators has files of known kinds; its fake quantizers are called after it."""
    families = set()
    for file in checkout.core_files:
        parts = Path(file.path).with_suffix("").parts[2:]
        if not file.path.startswith("lingeronnx/operators/") or len(parts) < 2:
            continue
        families.add(parts[0])
        if parts[1] not in FAMILY_FILES:
            message = f"no kind of file in a family of operators; known: {', '.join(FAMILY_FILES)}"
            yield Violation(file.path, 1, message)
    known = {*families, *FAKE_QUANTIZER_HELPERS}
    for file in checkout.core_files:
        path = Path(file.path)
        is_fake_quantizer = path.parent.as_posix() == "lingeronnx/torch/fake_quant"
        if is_fake_quantizer and path.stem not in known:
            yield Violation(file.path, 1, f"{path.stem} is no family in lingeronnx/operators/")


def find_duplicate_classes(checkout: Checkout) -> Iterator[Violation]:
    """No two classes have one name, a leading underscore aside; classes of operators may."""
    operators = {schema.name.lower() for schema in onnx.defs.get_all_schemas_with_history()}
    classes = defaultdict(list)
    for file in checkout.files:
        nodes = file.nodes_of(ast.ClassDef)
        if is_listed(file.path, OPERATOR_CLASS_FILES):
            operators |= {node.name.lstrip("_").lower() for node in nodes}
        for node in nodes:
            classes[node.name.lstrip("_")].append((file.path, node.lineno))
    for name, places in sorted(classes.items()):
        if name.lower() not in operators:
            for path, line in places[1:]:
                message = f"{name} is also the name of a class in {places[0][0]}:{places[0][1]}"
                yield Violation(path, line, message)


# ---- functions and modules -----------------------------------------------------------------------


def find_excess_any(checkout: Checkout) -> Iterator[Violation]:
    """A type is named wherever there is one; what may be anything is `object`, not `Any`."""
    files = [file for file in checkout.core_files if file.package != "torch"]
    uses = sum(node.id == "Any" for file in files for node in file.nodes_of(ast.Name))
    lines = sum(file.text.count("\n") for file in files)
    rate = 1000 * uses / max(lines, 1)
    limits = f"limits are {MAX_ANY_PER_1000_LINES - ANY_SLACK:.1f} and {MAX_ANY_PER_1000_LINES}"
    if not MAX_ANY_PER_1000_LINES - ANY_SLACK < rate <= MAX_ANY_PER_1000_LINES:
        message = f"Any is used {rate:.2f} times per 1,000 lines; {limits}"
        yield Violation("lingeronnx/__init__.py", 1, message)


def find_silent_passes(checkout: Checkout) -> Iterator[Violation]:
    """A pass says why it leaves a node alone, unless it is declared `handles_all`."""
    files = [
        file
        for file in checkout.files
        if file.path.startswith("lingeronnx/quantization/normalize/")
    ]
    incomplete = set()
    for file in files:
        for call in file.nodes_of(ast.Call):
            is_pass = ast.unparse(call.func) == "Pass" and len(call.args) > 1
            if is_pass and all(keyword.arg != "handles_all" for keyword in call.keywords):
                incomplete.add(ast.unparse(call.args[1]))
    for file in files:
        for node in file.nodes_of(ast.FunctionDef):
            returns = node.returns and ast.unparse(node.returns)
            if node.name in incomplete and returns == "int":
                message = f"{node.name} returns a count; return a PassResult with its reasons"
                yield Violation(file.path, node.lineno, message)


def find_long_calls(checkout: Checkout) -> Iterator[Violation]:
    """A call has at most seven positional arguments; jitted code, which has no others, may."""
    functions = (node for file in checkout.files for node in file.nodes_of(ast.FunctionDef))
    variadic = _VARIADIC_BUILTINS | {f.name for f in functions if f.args.vararg is not None}
    for file in checkout.core_files:
        for node in file.nodes_of(ast.Call):
            if len(node.args) <= MAX_POSITIONAL:
                continue
            name = ast.unparse(node.func)
            if name not in variadic and f"{file.path}:{name}" not in LONG_CALLS:
                message = f"{name} gets {len(node.args)} positional arguments; name some of them"
                yield Violation(file.path, node.lineno, message)


def find_wrong_exports(checkout: Checkout) -> Iterator[Violation]:
    """Every name in a list `__all__` is defined in its module and stands there once."""
    for file in checkout.files:
        for node in file.nodes_of(ast.Assign):
            if ast.unparse(node.targets[0]) != "__all__" or not isinstance(node.value, ast.List):
                continue
            exported = [ast.literal_eval(element) for element in node.value.elts]
            defined = set(_defined_names(file.tree))
            for name in sorted({*exported}):
                if name not in defined:
                    yield Violation(file.path, node.lineno, f"{name} is not defined")
                if exported.count(name) > 1:
                    yield Violation(file.path, node.lineno, f"{name} stands there twice")


def _defined_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module binds outside of functions and classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        else:
            yield from _defined_names(node)


@dataclass(frozen=True)
class Rule:
    """A rule: its name in messages, and the function that yields its violations."""

    name: str
    check: Callable[[Checkout], Iterator[Violation]]

    @property
    def text(self) -> str:
        """First line of the docstring of the check."""
        return (inspect.getdoc(self.check) or "").partition("\n")[0]


RULES = (
    Rule("import-cycle", find_import_cycles),
    Rule("import-by-name", find_imports_by_name),
    Rule("dependency", find_dependency_mismatches),
    Rule("type-override", find_stale_type_overrides),
    Rule("chip-name", find_chip_names),
    Rule("platform-comparison", find_platform_comparisons),
    Rule("integer-operator-name", find_integer_operator_names),
    Rule("parsed-name", find_parsed_names),
    Rule("operator-list", find_operator_lists),
    Rule("integer-operator-list", find_integer_operator_lists),
    Rule("family-file", find_unknown_family_files),
    Rule("duplicate-class", find_duplicate_classes),
    Rule("any", find_excess_any),
    Rule("silent-pass", find_silent_passes),
    Rule("long-call", find_long_calls),
    Rule("export", find_wrong_exports),
)


def main() -> None:
    """Print the rules, or all violations in a checkout; exit with 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--rules", action="store_true", help="print the rules and do nothing else")
    arguments = parser.parse_args()
    if arguments.rules:
        print("\n".join(f"{rule.name}: {rule.text}" for rule in RULES))
        return
    checkout = read_checkout(arguments.checkout)
    lines = [
        f"{violation.path}:{violation.line}: {rule.name}: {violation.message}"
        for rule in RULES
        for violation in rule.check(checkout)
    ]
    print("\n".join(lines) or f"{len(checkout.files)} files follow {len(RULES)} rules")
    if lines:
        sys.exit(1)


if __name__ == "__main__":
    gc.disable()  # it would look through millions of nodes again and again
    main()
