"""A layer in front of a sum makes up for what the other side of the sum has lost."""

from __future__ import annotations

import numpy as np

from lingeronnx.ir import ir
from lingeronnx.quantization import (
    RefinementOptions,
    build_candidate,
    plan_model,
    prepare_model,
    refine_weights,
)
from lingeronnx.runtime.metrics import Agreement
from lingeronnx.runtime.session import LoweredSession
from tests.nets import Net


def net():
    """One convolution of 3 bits, and a sum of it with what another one makes of it."""
    n = Net(3, 8, 8, seed=5)
    a = n.node("Relu", n.conv("x", (8, 3, 3, 3), pads=[1, 1, 1, 1]), out="a")
    b = n.conv(a, (8, 8, 3, 3), pads=[1, 1, 1, 1], gain=0.5, out="b")
    n.node("Add", a, b, out="s")
    return n.graph("s")


def smooth(count, seed):
    """Random images whose neighbouring pixels are alike."""
    x = np.random.default_rng(seed).standard_normal((count, 3, 4, 4))
    return x.repeat(2, 2).repeat(2, 3).astype(np.float32)


def test_the_sum_comes_nearer_on_unseen_data():
    """The side that is left makes up for the coarse one; without the switch it aims at its own
    float output.
    """
    model, test = net(), {"x": smooth(64, 1)}
    prepared = prepare_model(
        model, {"x": smooth(128, 0)}, None, {"platform": "generic", "overrides": {"a": {"bits": 4}}}
    )
    planned = plan_model(prepared)
    want = next(a for n, a, _ in prepared.source.run(test, ["s"]))
    levels = []
    for methods in (
        RefinementOptions(match_float_outputs=True),
        RefinementOptions(match_float_outputs=True, compensate_summands=True),
    ):
        made = build_candidate(planned, refine_weights(planned, methods))
        measure = Agreement()
        measure.add(want, LoweredSession(made.lowered.graph, prepared.target).run(["s"], test)[0])
        levels.append(measure.sqnr)
    assert levels[1] > levels[0] + 0.1


def test_few_bits_take_every_method_by_themselves():
    """Weights of 4 bits are refined by all methods, whatever is asked for; others are not."""
    for bits, alike in ((4, True), (8, False)):
        prepared = prepare_model(
            net(), {"x": smooth(64, 0)}, None, {"platform": "generic", "weight_bits": bits}
        )
        planned = plan_model(prepared)
        graphs = [
            refine_weights(planned, methods)
            for methods in (RefinementOptions(), RefinementOptions.all())
        ]
        weights = [
            [ir.const_value(v) for v in graph.graph.initializers.values()] for graph in graphs
        ]
        assert all(map(np.array_equal, *weights)) == alike
