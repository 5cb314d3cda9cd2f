"""The public names of the package: `__all__` lists what is importable, and nothing else is
promised.
"""

import ast
from pathlib import Path

import pytest

import lingeronnx


def test_all_is_importable():
    """Every name of ``__all__`` loads, from the module that defines it."""
    assert lingeronnx.__all__ == sorted(lingeronnx.__all__)
    for name in lingeronnx.__all__:
        found = getattr(lingeronnx, name)
        assert found.__name__ == name
        assert found.__module__.startswith("lingeronnx.")


def test_all_is_what_dir_shows():
    """``dir`` shows the public names and the version."""
    assert set(dir(lingeronnx)) == {*lingeronnx.__all__, *lingeronnx._PARTS, "__version__"}


def test_other_tools_calls_live_in_compat():
    """The old spellings are the same objects, and neither ``dir`` nor ``__all__`` shows them."""
    # `lo.fix_dequant` is our own, which writes nothing; `quantize_dynamic` never stood there
    other = {"fix_dequant", "quantize_dynamic"}
    assert {*lingeronnx._OLD_SPELLINGS} | other == {*lingeronnx.compat.__all__}
    for name in lingeronnx._OLD_SPELLINGS:
        with pytest.warns(
            DeprecationWarning,
            match=f"lo.{name} is deprecated and will be removed in 0.3; use lo.compat.{name}",
        ) as told:
            found = getattr(lingeronnx, name)
        assert found is getattr(lingeronnx.compat, name)
        assert told[0].filename == __file__
        assert name not in dir(lingeronnx)


def test_the_calls_of_our_own():
    """What the documentation promises under ``lo.``; a name that goes would break programs of
    others.
    """
    ours = (
        "Affine ConfigError Plan QuantConfig QuantizedModel Session Simulation Target check "
        "compare convert deploy "
        "evaluate export find_bad_case finetune fix_dequant profile quantize read_plan sensitivity "
        "simulate verify"
    )
    assert {*ours.split()} <= {*lingeronnx.__all__}


def test_type_checkers_see_the_same():
    """The imports under TYPE_CHECKING and the tables that load names lazily agree."""
    tree = ast.parse(Path(lingeronnx.__file__).read_text())
    (block,) = (
        n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"
    )
    seen = {
        alias.asname: node.module
        for node in block.body
        for alias in node.names
        if alias.name == alias.asname
    }
    old = dict.fromkeys(lingeronnx._OLD_SPELLINGS, "compat")
    old |= dict.fromkeys(lingeronnx._ONNXRUNTIME_NAMES, "compat.inference_session")
    assert seen == {**lingeronnx._HOME, **old, **dict.fromkeys(lingeronnx._PARTS)}


def test_unknown_name():
    """A misspelt name is an AttributeError, as of any module."""
    with pytest.raises(AttributeError, match="module 'lingeronnx' has no attribute 'quantise'"):
        _ = lingeronnx.quantise
