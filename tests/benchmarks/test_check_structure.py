"""The rules of benchmarks/check_structure.py: each sees its fault, and nothing else."""

import ast
import sys
from textwrap import dedent

import pytest

from benchmarks import operator_names
from benchmarks.check_structure import RULES, main, read_checkout
from tests.each import check_each

#: A checkout with faults. A line that breaks a rule ends with a comment that names the rule.
SOURCES = {
    "setup.cfg": """\
        [options]
        install_requires =
            numpy>=2.0
            never-imported>=1  # dependency
        [options.extras_require]
        pictures =
            Pillow>=10
        test =
            pytest>=8
        """,
    "pyproject.toml": """\
        [[tool.mypy.overrides]]
        module = [
            "numpy.*",
            "absent.*",  # type-override
        ]
        """,
    "lingeronnx/__init__.py": """\
        x: Any = 1  # any
        """,
    "lingeronnx/first.py": """\
        import json
        import undeclared  # dependency
        from PIL import Image

        def f():
            from . import second
            importlib.import_module("lingeronnx.second")  # import-by-name
        """,
    "lingeronnx/second.py": """\
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from lingeronnx.first import f  # import-cycle
        """,
    "lingeronnx/names.py": '''\
        """A docstring may name venus, and x@y."""
        A = "only on venus"  # chip-name
        B = "invenusible"
        C = platform == "generic"  # platform-comparison
        D = platform.is_packed
        E = "Conv2dInt"  # integer-operator-name
        F = rule.name == "Conv"  # integer-operator-name
        G = "x@y"  # parsed-name
        H = value.name.partition("_")  # parsed-name
        I = path.name.partition("_")
        J = ("Relu", "Tanh", "Abs")  # operator-list
        K = ("Relu", "Tanh", "Abs")
        L = (CONV2D, LINEAR)  # integer-operator-list
        M = {formats.CONV2D.name: 1, "other": 2}
        ''',
    "lingeronnx/operators/conv/integer_op.py": """\
        A = (CONV2D, CONV1D)
        """,
    "lingeronnx/operators/conv/helpers.py": """\
        import json  # family-file
        """,
    "lingeronnx/torch/fake_quant/conv.py": """\
        import json
        """,
    "lingeronnx/torch/fake_quant/convolution.py": """\
        import json  # family-file
        """,
    "lingeronnx/luna/chip.py": """\
        NAME = "venus"
        MARK = "Conv2dInt"
        """,
    "lingeronnx/luna/packer/names.py": """\
        MARK = "@"
        """,
    "lingeronnx/classes.py": """\
        class Thing: ...
        class Conv: ...
        """,
    "simulator/classes.py": """\
        import numpy
        class _Thing: ...  # duplicate-class
        class _Conv: ...
        kernel(1, 2, 3, 4, 5, 6, 7, 8)
        """,
    "lingeronnx/quantization/normalize/some.py": """\
        def silent(model) -> int: ...  # silent-pass
        def complete(model) -> int: ...
        def answering(model) -> Answer: ...
        PASSES = (
            Pass("silent", silent),
            Pass("complete", complete, handles_all=True),
            Pass("answering", answering),
        )
        """,
    "lingeronnx/calls.py": """\
        def gather(*values): ...
        gather(1, 2, 3, 4, 5, 6, 7, 8)
        max(1, 2, 3, 4, 5, 6, 7, 8)
        long(1, 2, 3, 4, 5, 6, 7, 8)  # long-call
        long(1, 2, 3, 4, 5, 6, 7, eighth=8)
        """,
    "lingeronnx/exports.py": """\
        from json import imported as renamed
        __all__ = ["renamed", "Defined", "constant", "imported"]  # export
        class Defined: ...
        if True:
            constant = 1
        """,
    "lingeronnx/exports_again.py": """\
        __all__ = ["constant", "constant"]  # export
        constant = 1
        """,
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Return the checkout with faults; one list has a reason, and one reason has no list."""
    reasons = {"lingeronnx/names.py:K": "a test", "lingeronnx/gone.py:": "of a list that is gone"}
    monkeypatch.setattr(operator_names, "REASONS", reasons)
    for path, source in SOURCES.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(source))
    return read_checkout(tmp_path)


def test_each_rule_reports_its_faults_only(checkout):
    expected = {("benchmarks/operator_names.py", 1, "operator-list")}
    for path, source in SOURCES.items():
        for number, line in enumerate(dedent(source).splitlines(), 1):
            if "  # " in line:
                expected.add((path, number, line.rpartition("  # ")[2]))
    reported = []
    for rule in RULES:
        reported += [(each.path, each.line, rule.name) for each in rule.check(checkout)]
    assert sorted(reported) == sorted(expected)
    assert {rule for _, _, rule in reported} == {rule.name for rule in RULES}


def test_violations_are_printed_and_fail_the_command(checkout, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["check_structure", str(checkout.root)])
    with pytest.raises(SystemExit, match="1"):
        main()
    line = "lingeronnx/names.py:2: chip-name: 'only on venus' names a chip\n"
    assert line in capsys.readouterr().out


def test_rules_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["check_structure", "--rules"])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [rule.name for rule in RULES]
    assert all(line.partition(": ")[2].endswith(".") for line in lines)


def test_collections_of_operator_names():
    cases = (
        ('A = ("Relu", "Tanh", "Abs")', 3),
        ('A = {"Relu": 1, "Tanh": 2, "Abs": 3}', 3),
        ('A = frozenset({"Relu"} | B - {"Tanh", "Abs"})', 3),
        ('A = [("", "Relu"), ("", "Tanh"), ("", "Abs")]', 3),
        ('A = "Relu Tanh Abs".split()', 3),
        ('def f(a):\n    return a in ("Relu", "Tanh") or a == "Abs"', 3),
        ('def f(a):\n    return a in (*B, "Relu", "Tanh", "Abs", "abs")', 3),
        ('A = ("Relu", "Tanh", "Relu")', 0),
        ('__all__ = ["Relu", "Tanh", "Abs"]', 0),
        ('A = "Relu Tanh and Abs"', 0),
    )

    def check(source, count):
        collections = operator_names.find_operator_collections(ast.parse(source))
        assert [len(each.names) for each in collections] == [count] * (count > 0)

    check_each(check, cases)
