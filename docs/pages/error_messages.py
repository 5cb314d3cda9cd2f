"""docs/reference/errors.md: every message that a user can meet, read from the code that raises it.

A message is written as *what is wrong; what to do*: the sources are parsed, never run, and each
text is cut at its first semicolon, or at a colon behind which it says what to do, or the limit.
What is filled in at run time stands as `…`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .markdown import MADE, cell, table

__all__ = ["AREAS", "GROUPS", "Message", "Module", "messages", "page"]

_ROOT = Path(__file__).parents[2]
_OPEN = "…"
_CUT = re.compile(
    r"; |: "
    r"(?=(?:add|build|call|choose|export|give|install|leave|lower|make|measure|name|pass|pip|put|quantize|raise|"
    r"say|set|take|use|write) )"
)
_LIMIT = re.compile(r": (?=it is (?:an? |\d|…)|it must|at least|sizes are )")

_HEAD = f"""{MADE}

# Error messages

A command that cannot go on prints one line that begins with `error:` and ends with exit code 1; a wrong option ends
with 2. In Python the same line is the text of an exception. No half-written file is left. Exit code 70, with a
traceback, is a fault of lingeronnx: please report it, with the archive that it names. If ONNX's checker rejects
the model of a command that fails so, its reason is the error instead, with exit code 1.

The lines of this page are those of the code. `{_OPEN}` stands for what is filled in: a name, a number, a file. Search
the page for the words around it. Where a line's second column is empty, what stands above the tables helps.
"""


class Group(NamedTuple):
    """A class of messages: its heading, and what is said of all of them."""

    title: str
    text: str


#: Exception -> what it means, and what to do where a line says nothing of it.
GROUPS = {
    "ModelError": Group(
        "The model",
        "The file is damaged, or holds an operator, a shape or a value that cannot be used. Where "
        "a line says nothing "
        "else, export the model again, with a newer exporter or another opset, and look at the "
        "node that it names.",
    ),
    "DataError": Group(
        "The data",
        "Calibration or evaluation data do not fit the model. Where a line says nothing else, "
        "compare the names, "
        "shapes and types of your arrays with the inputs of the model.",
    ),
    "ConfigError": Group(
        "Options and settings",
        "An option, a selector, an argument of a call or a configuration file is wrong. Where a "
        "line says nothing "
        "else, give one of the values that it lists; `lingeronnx COMMAND --help` has all options.",
    ),
    "ConstraintError": Group(
        "Limits that you asked to hold",
        "The model breaks a limit of the target, and an option or a call asked for that to be an "
        "error. Where a line "
        "says nothing else, `lingeronnx check MODEL` says which layer is in the way and what "
        "helps.",
    ),
    "RepairError": Group(
        "Repair of old graphs",
        "A graph that cannot be repaired without guessing. All findings stand on standard output; "
        "export the model "
        "again, or mend by hand what they name.",
    ),
    "SimulatorError": Group(
        "The simulator",
        "An integer graph asks the simulator for something that no operator computes. It was "
        "changed after it was "
        "written, or was not written by lingeronnx: quantize again.",
    ),
    "UsageError": Group(
        "The command line",
        "Options that do not go together. The exit code is 2.",
    ),
}

#: Begin of a path, * for any text -> what its messages are about; the longest that fits counts.
AREAS = {
    "": "Calls",
    "analysis": "Comparing, profiles, sensitivity",
    "cli": "Commands",
    "compat": "Calls of other tools",
    "deployment": "Deploying and verifying",
    "common/files": "Files that are written",
    "quantization/legalize": "Rewrites",
    "quantization": "Quantizing",
    "operators": "Integer graphs",
    "operators/chip_part": "Calls",
    "operators/extension": "Calls",
    "operators/lowering_context": "Calls",
    "operators/references": "Calls",
    "ir": "Reading a model",
    "operators/*/lowering": "Quantizing",
    "quantization/normalize": "Reading a model",
    "ir/plan": "Configuration and plans",
    "interchange/qdq": "QuantizeLinear and DequantizeLinear",
    "interchange/repair": "Repair",
    "runtime": "Running a model",
    "runtime/data": "Reading data",
    "operators/schemas": "Files that are read",
    "search": "Search",
    "simulator": "Simulator",
    "luna": "Targets",
    "targets": "Targets",
    "torch": "PyTorch",
}

_SAME = {
    "BadParameter": "UsageError",
    "UnsupportedScaleError": "ConstraintError",
    "LingerOnnxError": "ConfigError",
}
# errors.code_of_others(sentence, kind): the sentence, and a reason in brackets
_SENTENCE = "wrap_user_errors"
_MAKER = re.compile("|".join([*GROUPS, *_SAME, _SENTENCE]))
_Function = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


class Message(NamedTuple):
    """One text that is raised. group : a key of GROUPS. area : what of AREAS it is about."""

    group: str
    area: str
    text: str

    @property
    def parts(self) -> tuple[str, str]:
        """Return (what is wrong, the rest: limit and remedy)."""
        cut = _CUT if _CUT.search(self.text) else _LIMIT
        what, rest, *_ = [*cut.split(self.text, maxsplit=1), ""]
        return what, rest


def page() -> str:
    """Return the page."""
    by_group: dict[str, dict[str, set[Message]]] = defaultdict(lambda: defaultdict(set))
    for message in messages():
        by_group[message.group][message.area].add(message)
    lines = [_HEAD]
    for key, group in GROUPS.items():
        kind = "" if key == "UsageError" else f" (`{key}`)"
        lines += [f"## {group.title}{kind}", "", group.text, ""]
        for area, found in sorted(by_group[key].items()):
            lines += [
                f"### {group.title}: {area[0].lower() + area[1:] if area[1].islower() else area}",
                "",
            ]
            lines += table(
                ["message", "limit, remedy"], (_row(each) for each in sorted(found, key=_order))
            )
    return "\n".join(lines).rstrip() + "\n"


def _order(message: Message) -> tuple[str, str]:
    return re.sub(r"\W", "", message.text.lower()), message.text


def _row(message: Message) -> list[str]:
    what, rest = message.parts
    fence = "``" if "`" in what else "`"
    pad = " " if "`" in what else ""
    return [
        f"{fence}{pad}{what.replace('|', chr(92) + '|')}{pad}{fence}",
        cell(rest.replace("`", "")),
    ]


@cache
def messages() -> tuple[Message, ...]:
    """Return every message of the sources."""
    collected: list[Message] = []
    for root in ("lingeronnx", "simulator"):
        for path in sorted((_ROOT / root).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if _MAKER.search(text):  # other files need not be parsed
                collected += Module(path.relative_to(_ROOT).as_posix(), text).messages()
    return tuple(collected)


class Module:
    """The source of one module."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._nodes = _nodes_by_function(ast.parse(text))
        self._functions = defaultdict(list)
        for function in self._nodes:
            if not isinstance(function, ast.Module):
                self._functions[function.name].append(function)

    def messages(self) -> Iterator[Message]:
        """Yield the messages that the module makes."""
        for function, nodes in self._nodes.items():
            for node in nodes:
                if isinstance(node, ast.Call) and node.args:
                    for group, text in self._raised(node, function):
                        yield Message(group, self._area(), text)

    def _area(self) -> str:
        place = self._path.removeprefix("lingeronnx/")
        fits = [key for key in AREAS if fnmatchcase(place, f"{key}[/.]*")]
        return AREAS[max(fits, key=len, default="")]

    def _raised(self, call: ast.Call, function: _Function) -> Iterator[tuple[str, str]]:
        """Yield (group, text) of a call that makes an exception of ours, or hands a sentence to one."""
        name = _last_name(call.func)
        group = _SAME.get(name, name)
        if name == _SENTENCE and len(call.args) > 1:
            for text in self._texts(call.args[0], function):
                yield _last_name(call.args[1]), f"{text} ({_OPEN})"
        elif group in GROUPS:
            for text in self._texts(call.args[0], function):
                if re.search(r"\w", text):
                    yield group, text

    def _texts(self, value: ast.expr, function: _Function) -> Iterator[str]:
        """Yield what a message may be: a choice of two gives two, a name what is assigned to it."""
        for text in self._alternatives(value, function, 3):
            yield re.sub(rf"{_OPEN}(?:, {_OPEN}|{_OPEN})+", _OPEN, " ".join(text.split()))

    def _alternatives(self, value: ast.expr, function: _Function, depth: int) -> list[str]:
        if isinstance(value, ast.Constant):
            return [value.value] if isinstance(value.value, str) else [_OPEN]
        if isinstance(value, ast.JoinedStr):
            return ["".join(_filled(part) for part in value.values)]
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            left, right = (
                self._alternatives(side, function, depth) for side in (value.left, value.right)
            )
            return [a + b for a in left for b in right]
        if isinstance(value, ast.IfExp):
            return [
                text
                for side in (value.body, value.orelse)
                for text in self._alternatives(side, function, depth)
            ]
        if depth and isinstance(value, ast.Name):
            return self._assigned(value.id, function, depth - 1) or [_OPEN]
        if depth and isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            return self._returned(value.func.id, depth - 1) or [_OPEN]
        return [_OPEN]

    def _assigned(self, name: str, function: _Function, depth: int) -> list[str]:
        """Return what a name of a function may hold."""
        assignments = (
            n for n in self._nodes[function] if isinstance(n, ast.Assign | ast.NamedExpr)
        )
        values = [n.value for n in assignments if any(ast.unparse(t) == name for t in _targets(n))]
        return [text for value in values for text in self._alternatives(value, function, depth)]

    def _returned(self, name: str, depth: int) -> list[str]:
        """Return what the functions of this module with a name may return."""
        texts = []
        for function in self._functions[name]:
            for node in self._nodes[function]:
                if isinstance(node, ast.Return) and node.value:
                    texts += self._alternatives(node.value, function, depth)
        return texts


def _nodes_by_function(tree: ast.Module) -> dict[_Function, list[ast.AST]]:
    """Return the nodes of the module and of each function in it, those of functions within apart."""
    nodes: dict[_Function, list[ast.AST]] = {tree: []}
    waiting: list[tuple[_Function, ast.AST]] = [(tree, tree)]
    while waiting:
        function, node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                nodes[child] = []
                waiting.append((child, child))
            else:
                nodes[function].append(child)
                waiting.append((function, child))
    return nodes


def _last_name(value: ast.expr) -> str:
    """Return the name behind the last dot of an expression.

    "" if it is neither a name nor an attribute.
    """
    return value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")


def _targets(node: ast.Assign | ast.NamedExpr) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _filled(part: ast.expr) -> str:
    """Return a part of a formatted text.

    A proposal for a mistyped name is left out, for it is not always there.
    """
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    return "" if ast.unparse(part.value).startswith("suggest_nearest(") else _OPEN
