"""Planted faults: the advisor's first finding names the layer and the cause. A few here; all of them when slow."""

import numpy as np
import pytest

from benchmarks.planted_faults import KINDS, SHARED, concat_scale, dense_net, judged, resnet


@pytest.fixture(scope="module")
def dense():
    return dense_net()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_one_of_each_kind(dense, kind):
    outcome = judged(kind(dense, np.random.default_rng(3)))
    assert outcome.layer, f"{outcome.wanted}; said: {outcome.first}"
    assert outcome.cause, f"{outcome.wanted}; said: {outcome.first}"


@pytest.mark.slow
def test_the_whole_table(dense):
    """At least 12 kinds and 8 models of each: the layer in 90 %, the cause in 80 %."""
    nets = [dense, resnet()] if SHARED.is_dir() else [dense]
    outcomes = {}
    for kind in KINDS:
        fit = [net for net in nets if kind is not concat_scale or net is dense]
        outcomes[kind.__name__] = [
            judged(kind(net, np.random.default_rng(seed))) for net in fit for seed in range(8 // len(fit))
        ]
    for name, found in outcomes.items():
        print(f"{name:20} layer {sum(o.layer for o in found)}, cause {sum(o.cause for o in found)} of {len(found)}")
    everything = [outcome for found in outcomes.values() for outcome in found]
    assert len(outcomes) >= 12
    assert all(len(found) >= 8 for found in outcomes.values())
    assert np.mean([outcome.layer for outcome in everything]) >= 0.9
    assert np.mean([outcome.cause for outcome in everything]) >= 0.8
