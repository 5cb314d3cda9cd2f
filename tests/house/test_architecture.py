"""Laws about imports: who may know whom. Read from the sources, so that a forgotten import fails here and not later."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lingeronnx.formats import FORMATS, TRAINED_ONLY
from lingeronnx.targets import PLATFORMS

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for package in ("lingeronnx", "simulator") for path in (ROOT / package).rglob("*.py"))

#: Folders of `targets` that are a vendor's: each stands on the core, which finds it by name and never imports it.
VENDORS = ("luna",)

# A part of the package -> the parts it may import besides its own. Data flows to the right:
# cli -> api -> {tuning, repair} -> {search, torch} -> analysis -> flow -> {passes, fit} -> run -> ops -> emit
# -> formats -> plan -> targets -> graph
BASE = {
    "alike",
    "errors",
    "files",
    "json_values",
    "number_words",
    "pages",
    "plan",
    "targets",
    "formats",
    "graph",
    "emit",
    "ops",
    "run",
}
FLOW = BASE | {"qdq", "conversion", "passes", "fit", "flow"}
ALLOWED = {
    "alike": set(),
    "errors": set(),
    "files": {"errors"},
    "json_values": set(),
    "number_words": set(),
    "pages": {"alike", "json_values"},
    "graph": {"errors", "files"},
    "targets": {"errors", "files", "graph"},
    "plan": {"errors", "files", "graph", "targets"},
    "formats": {"errors", "graph", "plan", "targets"},
    "emit": {"errors", "graph", "plan", "targets", "formats"},
    "ops": {"errors", "graph", "plan", "targets", "formats", "emit"},
    "run": BASE - {"emit"},
    "qdq": BASE,
    "conversion": BASE | {"qdq"},
    "passes": BASE,
    "fit": BASE | {"passes"},
    "luna": BASE | {"passes", "fit"},
    "flow": FLOW,
    "analysis": FLOW,
    "repair": BASE | {"schemas"},
    "reference": {"targets"},  # an oracle: no operator, no runner
    "schemas": {"errors", "graph", "formats", "plan", "targets"},
    "extension": {"errors", "formats", "ops", "reference", "schemas"},  # fills their tables
    "deployment": FLOW,
    "search": FLOW | {"analysis"},
    "torch": FLOW | {"analysis", "extension"},
    "quantization": FLOW | {"search"},
    "tuning": FLOW | {"torch"},
    "report_page": FLOW | {"analysis", "search"},
    "api": None,
    "compat": None,
    "demo": None,  # below the command line, anything
    "support": None,
    "cli": None,
    "__main__": {"cli"},
    "__init__": None,  # the public names
}

#: The parts from the ground up: each imports from the lines above its own only, inside functions and for annotations
#: too. ALLOWED says which of these it needs.
LAYERS = (
    ("alike", "errors", "json_values", "number_words"),
    ("files", "pages"),
    ("graph",),  # the one adapter to onnx_ir
    ("targets",),  # what may be asked of a chip
    ("plan", "reference"),
    ("formats",),  # the integer operators
    ("schemas",),
    ("emit",),
    ("ops",),  # the rules by which float operators become them
    ("extension",),
    ("run",),
    ("qdq",),
    ("conversion", "passes", "repair"),
    ("fit",),
    ("flow", *VENDORS),  # nobody imports a vendor: what stands above may not either
    ("analysis", "deployment"),
    ("search", "torch"),
    ("quantization", "report_page", "tuning"),
    ("api",),
    ("compat",),
    ("__init__", "demo", "support"),  # the public names, loaded when they are first used
    ("cli",),
    ("__main__",),
)
HOMES = {
    "onnx_ir": ("lingeronnx/graph/ir.py",),
    "onnxruntime": ("lingeronnx/run/runners/sessions.py",),
    "click": ("lingeronnx/cli/",),
    "torch": ("lingeronnx/torch/",),
}


def part(path):
    """Return the part of lingeronnx that a file belongs to: its module, or its folder."""
    return part_of(path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"))


def part_of(module):
    """Return the part that a module below lingeronnx belongs to; a vendor's folder is one of its own."""
    names = module.split(".")[1:] or ["__init__"]
    return names[1] if names[0] == "targets" and len(names) > 1 and names[1] in VENDORS else names[0]


@functools.cache
def nodes(path):
    """Return every syntax node of a file; several laws look at the same ones."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@functools.cache
def imports(path):
    """Return [(absolute module, imported names, the node)] of every import in a file, also inside functions."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [(alias.name, [], node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module.split(".") if node.module else ())))
            found.append((module, [a.name for a in node.names], node))
    return found


@functools.cache
def parts_imported(path):
    """Return [(part of lingeronnx, source text)] that a file imports."""
    found = []
    for module, names, node in imports(path):
        if module == "lingeronnx":
            found += [(name, ast.unparse(node)) for name in names]
        elif module.startswith("lingeronnx."):
            found += [(part_of(f"{module}.{name}"), ast.unparse(node)) for name in names or [""]]
    return found


def of_each(files):
    """Let a law of one file be a test of all of them; it names each file that breaks the law."""

    def made(law):
        def test():
            broken = []
            for path in files:
                try:
                    law(path)
                except AssertionError as error:
                    broken.append(f"{path.relative_to(ROOT)}: {error}")
            assert not broken, "\n".join(broken)

        test.__name__, test.__doc__ = law.__name__, law.__doc__
        return test

    return made


OURS = [path for path in FILES if path.parent.parts[len(ROOT.parts)] == "lingeronnx"]


def test_the_tables_are_complete():
    """Every part of the package has a row and a layer: a new file must say what it may know, and where it stands."""
    parts = {part(path) for path in OURS}
    assert not parts - ALLOWED.keys(), f"add a row to ALLOWED for {parts - ALLOWED.keys()}"
    placed = [name for layer in LAYERS for name in layer]
    assert sorted(placed) == sorted(parts)


@of_each(OURS)
def test_nothing_imports_upwards(path):
    """Law: a part imports from lower layers alone; not even a neighbour of its own."""
    height = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    for other, text in parts_imported(path):
        if other in height and other != part(path):
            assert height[other] < height[part(path)], f"{text}: {part(path)} stands below {other}, or beside it"


def files_imported(path, known):
    """Return the files of the package that a file imports; a package stands for its __init__."""
    found = set()
    for module, names, _ in imports(path):
        found |= {known[name] for name in (module, *(f"{module}.{name}" for name in names)) if name in known}
        if any(f"{module}.{name}" in known for name in names) and not any(f"{module}.{n}" not in known for n in names):
            found.discard(known.get(module))  # only files of a folder are named
    return found - {path}


def test_no_circles():
    """Law: no file imports itself by way of others, inside functions and for annotations neither."""
    known = {}
    for path in OURS:
        dotted = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        known[dotted.removesuffix(".__init__")] = path
    waiting = {path: files_imported(path, known) for path in OURS}
    while free := [path for path, needs in waiting.items() if not needs & waiting.keys()]:
        for path in free:
            del waiting[path]
    assert not waiting, f"in a circle, or above one: {sorted(str(p.relative_to(ROOT)) for p in waiting)}"


@of_each(OURS)
def test_direction(path):
    """Imports point one way."""
    allowed = ALLOWED.get(part(path))
    for other, text in parts_imported(path):
        assert other != "cli" or part(path) in ("cli", "__main__"), f"{text}: only __main__ imports the command line"
        assert other not in ("demo", "__main__") or part(path) in ("cli",), text
        if allowed is not None and other != part(path):
            assert other in allowed, f"{text}: {part(path)} may not know {other}"


@of_each(OURS)
def test_homes_of_the_heavy(path):
    """onnx_ir in graph/ir.py, onnxruntime in run/runners/sessions.py, click in cli/, torch in torch/, nowhere else."""
    here = path.relative_to(ROOT).as_posix()
    for module, _, node in imports(path):
        for name, homes in HOMES.items():
            if module.split(".")[0] == name:
                assert here.startswith(homes), ast.unparse(node)


@of_each(sorted((ROOT / "simulator").rglob("*.py")))
def test_simulator_is_a_leaf(path):
    """The simulator knows nothing of ONNX, of lingeronnx or of anything but numpy and numba."""
    for module, _, node in imports(path):
        top = module.split(".")[0]
        assert top in {"simulator", "numpy", "numba", "llvmlite"} | sys.stdlib_module_names, ast.unparse(node)


@of_each(OURS)
def test_nobody_imports_a_vendor(path):
    """A vendor's folder has a door to the core, and the core none to it: it asks the target, found by name."""
    for other, text in parts_imported(path):
        assert other not in VENDORS or part(path) == other, f"{text}: only the registry knows {other}, by its name"


#: Where a chip's name is a word of something else's, and why.
CHIPS_BY_NAME = {
    "lingeronnx/targets/luna/": "their home",
    "lingeronnx/targets/arithmetic.py": "the simulator's tables are called after them",
    "lingeronnx/formats/pool.py": "so are two ways of the simulator's average",
    "lingeronnx/reference/": "an oracle shares nothing with what it judges, the names of tables included",
    "lingeronnx/repair/": "it reads graphs from elsewhere",
    "simulator/": "tables and kernels are called after the chips that have them",
}


@of_each(FILES)
def test_no_chip_by_name(path):
    """A chip's name stands in its vendor's folder alone: everybody else asks the row, or takes the registry's first."""
    if path.relative_to(ROOT).as_posix().startswith(tuple(CHIPS_BY_NAME)):
        return
    names = re.compile(rf"\b({'|'.join(target.name for target in PLATFORMS if target.packs)}|mars|jupiter)\b")
    texts = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}  # docstrings
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            assert not names.search(node.value), f"line {node.lineno}: {node.value!r}"


@of_each(OURS)
def test_no_platform_by_name(path):
    """Nobody compares a platform's name."""
    for node in nodes(path):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            literals = {n.value for side in sides for n in ast.walk(side) if isinstance(n, ast.Constant)}
            assert not literals & {target.name for target in PLATFORMS}, f"line {node.lineno}: {ast.unparse(node)}"


#: Where integer operators are called by name, and why. Everybody else asks the format, and so does the rule (`ops`).
CALLED_BY_NAME = {
    "lingeronnx/formats/": "their home",
    "lingeronnx/targets/": "stands below the formats: a row is keyed by the names",
    "lingeronnx/reference/": "an oracle shares nothing with what it judges, names included",
    "lingeronnx/passes/entry/refuse.py": "QLinear begins the names of onnxruntime's own operators",
}


@of_each(OURS)
def test_no_operator_by_name(path):
    """Only formats, targets and the oracle write the name of an integer operator, in any generation."""
    if path.relative_to(ROOT).as_posix().startswith(tuple(CALLED_BY_NAME)):
        return
    names = {name for form in (*FORMATS, *TRAINED_ONLY) for name in form.names if form.domain or name != form.name}
    for node in nodes(path):
        written = isinstance(node, ast.Constant) and node.value in names
        assert not written, f"line {node.lineno}: '{node.value}'; take it from lingeronnx.formats"
        if isinstance(node, ast.Compare) and re.search(r"\b(op|form|format|rule)\.name$", ast.unparse(node.left)):
            literals = [n for side in node.comparators for n in ast.walk(side) if isinstance(n, ast.Constant)]
            assert not literals, f"line {node.lineno}: {ast.unparse(node)}; compare with the format itself"


def test_names_mean_one_operator():
    """No two formats share a name in any generation: that is how a node finds its own."""
    names = [name for form in (*FORMATS, *TRAINED_ONLY) for name in dict.fromkeys(form.names)]
    assert len(names) == len(set(names))


#: Where "@" is a rule of the packer's, not a mark in a name of ours.
ABOUT_AT = ("lingeronnx/targets/luna/packer/",)

#: What takes a string apart, and where it is a name of somebody else's making: torch's exporter writes module paths
#: into names, parameters are matched by the ends of theirs, functions carry their kind before an underscore.
APART = {"partition", "rpartition", "split", "rsplit", "removesuffix", "removeprefix", "startswith", "endswith"}
FOREIGN_NAMES = (
    "lingeronnx/torch/exporter/exporters.py",
    "lingeronnx/torch/exporter/cleanup.py",
    "lingeronnx/torch/checkpoint/parameters.py",
)


@of_each(OURS)
def test_nobody_reads_a_name(path):
    """A name means nothing: what a tensor or a node is stands in data beside it, and no mark is written into names."""
    here = path.relative_to(ROOT).as_posix()
    texts = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}  # docstrings
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            assert "@" not in node.value or here.startswith(ABOUT_AT), f"line {node.lineno}: {node.value!r}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in APART:
            whose = ast.unparse(node.func.value)
            of_graph = re.search(
                r"(value|tensor|node|source|output|result|step)\w*\.(name|output)\b|_name\(|\borigin\(", whose
            )
            assert not of_graph or here in FOREIGN_NAMES, f"line {node.lineno}: {ast.unparse(node)}"


def test_no_star_imports():
    """A star hides who knows whom."""
    for path in FILES:
        assert not any("*" in names for _, names, _ in imports(path)), path


#: How often a thousand lines say Any, outside torch/ and jitted code. It only falls: lower it when fewer do.
ANY = 3.8


def test_few_things_may_be_anything():
    """A type is named wherever there is one; what may be anything at all is `object`."""
    files = [path for path in FILES if path.is_relative_to(ROOT / "lingeronnx") and part(path) != "torch"]
    said = sum(isinstance(node, ast.Name) and node.id == "Any" for path in files for node in nodes(path))
    lines = sum(len(path.read_text().splitlines()) for path in files)
    found = 1000 * said / lines
    assert ANY - 0.5 < found <= ANY, f"{said} in {lines} lines: {found:.2f} per 1,000"


HEAVY = ("torch", "numba", "onnxruntime", "onnx", "onnx_ir", "llvmlite", "pydantic", "yaml", "rich", "click")


#: What a session on an integer graph can do without; "sympy.core" stands for all of sympy, which `graph` puts off.
NOT_OF_A_SESSION = ("torch", "onnxruntime", "numba", "pydantic", "yaml", "sympy.core", "lingeronnx.flow")


@pytest.mark.parametrize(
    "module, banned",
    (("lingeronnx", HEAVY), ("lingeronnx.cli", HEAVY[:6]), ("lingeronnx.run.simulation", NOT_OF_A_SESSION)),
)
def test_import_is_light(module, banned):
    """Importing the package, the command line, or what runs a graph loads nothing heavy before it is needed."""
    code = f"import sys, {module}; print([m for m in {banned} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
