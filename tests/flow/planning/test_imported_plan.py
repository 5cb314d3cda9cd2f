"""A plan makes the file again, byte by byte: also the note of the settings that its scales come
from.
"""

from __future__ import annotations

import json

import pytest

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError
from lingeronnx.ir import ir
from lingeronnx.quantization.lower import extract_plan
from lingeronnx.runtime.provenance import load_quantize_settings
from tests import nets
from tests.case_selection import mark_rest_slow

FIXED = {"type:Conv": {"calibrator": "percentile", "percentile": 99.5}, "y": {"scale": 8.0}}
SETTINGS = (
    {},
    {"calibrator": "max"},
    {"overrides": FIXED},
    {"skip": ("y",), "fit": False},
    {"platform": "generic", "mode": "max-value", "weight_scales": "channel", "effort": "fast"},
    {"platform": "generic", "mode": "max-value", "activations": "asymmetric"},
    {"platform": "generic", "bits": 16, "weight_bits": 4, "percentile": 99.5},
)


def again(text, **options):
    """Quantize a net under the plan of this text; only what is no scale is said once more."""
    plan = lo.Plan.from_json(text)
    kept = {key: options[key] for key in ("effort", "fit") if key in options}
    return nets.quantized(
        nets.shortcut(), plan=plan, platform=plan.platform, mode=plan.mode, **kept
    )


@pytest.mark.sweep
@pytest.mark.parametrize(
    "options", mark_rest_slow(4, SETTINGS), ids=lambda o: "-".join(o) or "defaults"
)
def test_a_plan_makes_the_file_again(options):
    """Law: whatever the settings, their plan alone gives the same bytes, and a plan of these bytes
    knows them.
    """
    made = nets.quantized(nets.shortcut(), **options)
    assert ir.to_bytes(again(made.plan.to_json(), **options).graph) == ir.to_bytes(made.graph)
    assert (
        extract_plan(made.graph).settings
        == made.plan.settings
        == load_quantize_settings(made.graph)
    )
    named = {key for key in options if key not in ("platform", "skip", "overrides")}
    assert named <= made.plan.settings.keys()


def test_a_plan_of_old_knows_no_settings():
    """It is read, and neither it nor the file made from it makes any up."""
    made = nets.quantized(nets.shortcut(), calibrator="max")
    body = json.loads(made.plan.to_json())
    assert body.pop("settings") == {"calibrator": "max"}
    old = lo.Plan.from_json(json.dumps(body))
    assert old.settings is None
    assert old == made.plan
    assert "settings" not in json.loads(old.to_json())
    assert load_quantize_settings(again(json.dumps(body)).graph) is None


@pytest.mark.parametrize("settings", (["max"], "max", 3))
def test_settings_are_a_record(settings):
    """Anything else is refused in a line."""
    body = json.loads(nets.quantized(nets.shortcut(), effort="fast").plan.to_json())
    with pytest.raises(
        ConfigError,
        match="p.json: 'settings' is .*; it must map setting names to values.*--save-plan",
    ):
        lo.Plan.from_json(json.dumps({**body, "settings": settings}), "p.json")
