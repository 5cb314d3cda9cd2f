"""Dumps of host parts: which tensor they are of, and what of them is wrong."""

from types import SimpleNamespace

import numpy as np

from lingeronnx.deployment.dumps import Dumped
from lingeronnx.deployment.host_dumps import HostDump, host_dumps
from lingeronnx.deployment.simulated import SampleRun


def shown(name, array, dims=None):
    return Dumped(name, name, dims or array.shape, data=array.tobytes())


def test_which_tensor():
    """By part and tensor, as the packed file calls it; what has no part, or the shape of none, is left out."""
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.int64)
    run = SampleRun({"b": b}, {"u/a": a}, {})
    graph = SimpleNamespace(device={"u/a": "renamed/a"})
    given = [shown("host1_renamed_a", a), shown("host12_b", b), shown("renamed_a", a), shown("host1_b", b, (2, 2))]
    found = host_dumps(graph, run, given)
    assert [(one.tensor, one.off.any()) for one in found] == [("u/a", False), ("b", False)]


def test_what_is_off():
    """Floats within 1e-5 of their range, no-numbers and infinities where they belong, integers exactly."""
    want = np.array([1.0, -100.0, np.nan, np.inf, 0.0], np.float32)
    have = np.array([1.0009, -100.0, np.nan, np.inf, 0.002], np.float32)
    assert HostDump("t", shown("t", have), have, want).off.tolist() == [False, False, False, False, True]
    wrong = np.array([1.0, -100.0, 0.0, -np.inf, np.nan], np.float32)
    assert HostDump("t", shown("t", wrong), wrong, want).off.tolist() == [False, False, True, True, True]
    counts = np.array([3, 4])
    assert HostDump("t", shown("t", counts), counts + [0, 1], counts).off.tolist() == [False, True]
    assert HostDump("t", shown("t", counts), None, counts).off.all()
