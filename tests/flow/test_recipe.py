"""Efforts as recipes: which steps each one runs, and that only the recipe knows the words."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest

import lingeronnx
from lingeronnx.quantization import prepare_model
from lingeronnx.quantization.recipe import (
    DRAFT_EFFORT,
    EFFORTS,
    RECIPES,
    get_equalizing_effort,
    refines_weights,
)
from lingeronnx.quantization.trials import TRIALS

PACKAGE = Path(lingeronnx.__file__).parent
DIGITS = PACKAGE.parent / "models" / "digits_cnn.onnx"


def _switches(effort):
    """Return the yes-or-no fields of a recipe."""
    return [value for value in RECIPES[effort] if isinstance(value, bool)]


def test_slower_efforts_run_all_steps_of_faster_ones():
    recipes = [_switches(effort) for effort in EFFORTS]
    for faster, slower in pairwise(recipes):
        assert all(new >= old for old, new in zip(faster, slower, strict=True))


def test_draft_is_the_cheapest():
    assert not any(_switches(DRAFT_EFFORT))
    assert len(RECIPES[DRAFT_EFFORT].trials) == min(len(RECIPES[e].trials) for e in EFFORTS)


@pytest.mark.parametrize("effort", EFFORTS)
def test_recipe_names_trials(effort):
    recipe = RECIPES[effort]
    assert TRIALS.keys() >= set(recipe.trials) >= set(recipe.trials_after_offload)


def test_prepared_model_has_the_recipe_of_its_effort():
    prepared = prepare_model(DIGITS, None, None, {"effort": "best"})
    assert prepared.recipe == RECIPES["best"]
    assert prepared.draft.recipe == RECIPES[DRAFT_EFFORT]
    assert prepared.draft.conf == prepared.conf


@pytest.mark.parametrize("equalizes", [True, False])
def test_equalizing_effort_is_the_cheapest(equalizes):
    effort = get_equalizing_effort(equalizes)
    assert RECIPES[effort].equalizes_channels == equalizes
    cheaper = EFFORTS[: EFFORTS.index(effort)]
    assert all(RECIPES[other].equalizes_channels != equalizes for other in cheaper)


@pytest.mark.parametrize(
    ("settings", "refined"),
    [({}, True), ({"effort": "fast"}, False), ({"effort": "best"}, True), ({"effort": 3}, True)],
)
def test_recorded_settings(settings, refined):
    """Settings at their defaults are not recorded, and a file may contain any value."""
    assert refines_weights(settings) == refined


def test_no_other_module_compares_an_effort():
    """A comparison with an effort's name belongs into the recipe, as a field."""
    comparisons = []
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        if "effort" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Compare) and "effort" in ast.unparse(node.left):
                constants = [c.value for c in node.comparators if isinstance(c, ast.Constant)]
                comparisons += [(path.name, node.lineno) for c in constants if c in EFFORTS]
    assert not comparisons
