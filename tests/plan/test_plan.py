"""What of a plan results depend on."""

from dataclasses import replace
from pathlib import Path

from lingeronnx.ir.plan import Plan

SAVED = Path(__file__).parents[1] / "files" / "0.2" / "conv_plan.json"


def test_the_note_of_settings_is_no_content():
    """Law: two plans of the same scales have the same content, another scale another one; 0.1 noted
    no settings.
    """
    plan = Plan.from_json(SAVED.read_text())
    assert plan.settings is not None
    assert (
        replace(plan, settings=None).content
        == replace(plan, settings={"effort": "best"}).content
        == plan.content
    )
    other = Plan.from_json(SAVED.read_text().replace('"bits": 8', '"bits": 7', 1))
    assert other.content != plan.content
