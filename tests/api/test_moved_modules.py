"""Modules that moved: their former places warn, and give the same objects."""

import importlib

import pytest

import lingeronnx as lo
from lingeronnx import operators

#: Former module -> its name that is asked for.
FORMER = {
    "lingeronnx.extension": "extended",
    "lingeronnx.formats": "Format",
    "lingeronnx.formats.shape_inference": "Signature",
    "lingeronnx.ops": "Op",
    "lingeronnx.reference": "reference_ops",
    "lingeronnx.run.program_parts": "split_into_parts",
    "lingeronnx.schemas": "check_model",
}


@pytest.mark.parametrize("former", FORMER)
def test_a_former_module_warns_and_gives_the_same_object(former):
    module, name = importlib.import_module(former), FORMER[former]
    with pytest.warns(
        DeprecationWarning, match=rf"{former}\.{name} is deprecated .* 0\.3; use lingeronnx\."
    ):
        value = getattr(module, name)
    home = importlib.import_module(value.__module__)
    assert getattr(home, name) is value
    assert home.__name__.startswith(("lingeronnx.operators", "lingeronnx.runtime"))


def test_an_unknown_name_of_a_former_module_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        importlib.import_module("lingeronnx.formats").nothing  # noqa: B018


def test_operators_is_the_module_for_authors():
    """Each name is there, and those of `lo` are the same."""
    assert [name for name in operators.__all__ if getattr(operators, name, None) is None] == []
    assert operators.Violation is lo.Violation
    assert operators.extended is lo.extended
    with pytest.raises(AttributeError, match="nothing"):
        operators.nothing  # noqa: B018
