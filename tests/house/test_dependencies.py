"""What setup.cfg declares is what the packages import: nothing too much, nothing in silence."""

import ast
import configparser
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = [path for name in ("lingeronnx", "simulator") for path in sorted((ROOT / name).rglob("*.py"))]

#: Distributions whose module has another name.
MODULES = {"PyYAML": "yaml", "Pillow": "PIL", "onnx-ir": "onnx_ir", "emx-onnx-cgen": "emx_onnx_cgen"}


def third_party():
    """Return {module: a file that imports it} of what the packages import from elsewhere, inside functions too."""
    found = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            found |= {name.split(".")[0]: path.relative_to(ROOT).as_posix() for name in names}
    return {
        name: path for name, path in found.items() if name not in (*sys.stdlib_module_names, "lingeronnx", "simulator")
    }


def requirements(*extras):
    """Return {module: its line in setup.cfg} of what users install, and with these extras."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    lines = [settings["options"]["install_requires"], *(settings["options.extras_require"][name] for name in extras)]
    lines = [line for line in "\n".join(lines).splitlines() if line and not line.startswith("#")]
    names = {re.match(r"[\w-]+", line)[0]: line for line in lines}
    return {MODULES.get(name, name): line for name, line in names.items()}


USERS = ("c", "report", "torch", "pictures", "cluster")


def test_what_is_declared_is_imported():
    assert sorted(requirements(*USERS).keys() - third_party().keys()) == []


def test_what_is_imported_is_declared():
    declared = requirements(*USERS)
    assert {name: path for name, path in third_party().items() if name not in declared} == {}


def test_extras_are_for_users_or_for_the_house():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert sorted(settings["options.extras_require"]) == sorted((*USERS, "test", "docs", "dev"))


def test_the_type_checker_is_told_of_imported_modules_only():
    (others, torch) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    told = {name.removesuffix(".*") for name in (*others["module"], *torch["module"])}
    assert sorted(told - third_party().keys()) == []
