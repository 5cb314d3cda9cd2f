"""Groups of a weight's rows through the bridge: the session's real numbers, and gradients that
reach every weight.
"""

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.ir.plan import PerGroup
from lingeronnx.targets import GENERIC
from tests import nets
from tests.flow.assign.test_group_scales import flat, grouped, rows

torch = pytest.importorskip("torch")

from lingeronnx.torch.qat.qat_module import QatModule  # noqa: E402

SETTINGS = (
    {"weight_bits": 4, "mode": "max-value"},
    {"weight_bits": 8, "mode": "q-value"},
    {"weight_bits": 4, "overrides": {"y": {"out_bits": "float"}}},
)


@pytest.mark.parametrize("build", [flat, rows], ids=lambda f: f.__name__)
@pytest.mark.parametrize("settings", SETTINGS, ids=("free", "powers", "float"))
def test_whole_nets(build, settings):
    """Also where the last layer leaves the integers."""
    result, feed = grouped(build, effort="fast", **settings), nets.samples(build(), 5, seed=2)
    names = [name for name, q in result.plan.tensors.items() if isinstance(q.granularity, PerGroup)]
    assert len(names) == 2
    bridge = QatModule(result.float_graph, result.plan, GENERIC, feed)
    got = bridge({name: torch.from_numpy(array) for name, array in feed.items()})["y"]
    (want,) = lo.Session(result.graph).run(None, feed)
    np.testing.assert_array_equal(got.detach().numpy().astype(np.float32), want)
    got.square().sum().backward()
    for name in names:
        assert bridge.parameter_of[name].grad.abs().sum() > 0
