"""Scales chosen by the error at the outputs: what is moved, what stays, and what the platform does
not hold.
"""

from __future__ import annotations

import math

import pytest

from lingeronnx import api
from lingeronnx.quantization import plan_model, prepare_model
from lingeronnx.quantization.methods.scale_search import search_scales_by_output_error
from lingeronnx.quantization.scales import group_shared_scales, legalize
from tests import nets
from tests.flow.trials.test_cross_validation import classifier


def planned(**settings):
    """Return a planned net of two convolutions with a sum behind them."""
    net = nets.shortcut()
    return plan_model(prepare_model(net, nets.samples(net, 32), None, settings))


def climbing(plan, score):
    """Return what says of plan after plan whether its score is above the highest so far."""
    highest = score(plan)

    def better(found):
        nonlocal highest
        if score(found) <= highest:
            return False
        highest = score(found)
        return True

    return better


@pytest.mark.parametrize(
    ("platform", "mode", "step"), [("venus", "q-value", 1.0), ("generic", "max-value", 0.25)]
)
def test_climbs_to_the_best_scale_that_is_held(platform, mode, step):
    """A score with its top some steps away, in both directions: the scales are the wished ones,
    shared ones too.
    """
    made = planned(platform=platform, mode=mode)
    parts, plan, target = made.partition, made.plan, made.prepared.target
    shared = [
        group for group in group_shared_scales(parts, target) if group.tensors[0] in plan.tensors
    ]
    wish = {
        group.tensors[0]: -2 * step if number % 2 else step for number, group in enumerate(shared)
    }
    wish[shared[0].tensors[0]] = 0.0

    def off(found):
        return {
            name: abs(math.log2(found.tensors[name].scale / plan.tensors[name].scale) - far)
            for name, far in wish.items()
        }

    found = search_scales_by_output_error(
        parts, plan, shared, target, frozenset(), climbing(plan, lambda p: -sum(off(p).values()))
    )
    assert found is not plan
    assert legalize(found, parts, shared, target)[0] == found
    for group in shared:
        assert len({found.tensors[name].scale for name in group.tensors}) == 1
    if not target.needs_power_of_two_scales:  # a chip may not hold them all beside each other
        assert max(off(found).values()) < 1e-6
    assert sum(off(found).values()) < sum(off(plan).values())


def test_what_is_fixed_or_gains_nothing_stays():
    """No step is taken that is not clearly better, none on a fixed tensor."""
    made = planned()
    parts, plan, target = made.partition, made.plan, made.prepared.target
    shared = group_shared_scales(parts, target)
    assert (
        search_scales_by_output_error(parts, plan, shared, target, frozenset(), lambda _: False)
        is plan
    )
    fixed = frozenset(name for group in shared for name in group.tensors)
    assert search_scales_by_output_error(parts, plan, shared, target, fixed, lambda _: True) is plan


def test_a_scale_of_the_users_stays():
    """With --effort best a fixed scale is still what was asked for."""
    net = classifier()
    images = nets.samples(net, 16)
    name = next(iter(api.quantize(net, images, effort="fast").plan.tensors))
    result = api.quantize(net, images, effort="best", overrides={name: {"scale": 2.0**3}})
    assert result.plan.tensors[name].scale == 8.0
