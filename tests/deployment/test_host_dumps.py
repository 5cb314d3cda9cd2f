"""Dumps of host parts: which tensor they are of, and what of them is wrong."""

from types import SimpleNamespace

import numpy as np
import pytest

from lingeronnx.deployment import host_dumps as module
from lingeronnx.deployment.dumps import DumpedTensor
from lingeronnx.deployment.host_dumps import HostDump, match_host_dumps, read_manifest_tolerances
from lingeronnx.deployment.simulation import SampleRun


def shown(name, array, dims=None):
    return DumpedTensor(name, name, dims or array.shape, data=array.tobytes())


def graph_of(*parts):
    """Return what `match_host_dumps` asks of a graph whose host parts are `parts`."""
    names = [name for part in parts for name in (*part.inputs, *part.outputs)]
    return SimpleNamespace(
        session=SimpleNamespace(model=parts),
        target=None,
        device={name: name.replace("u/", "renamed/") for name in names},
    )


def test_which_tensor(monkeypatch):
    """By part, side and port, whatever is left of the tensor's name; a port that the graph has not
    is left out.
    """
    one = SimpleNamespace(name="host1", inputs=("b",), outputs=("u/a", "u/long"))
    monkeypatch.setattr(
        module, "split_into_parts", lambda model, target: SimpleNamespace(host_parts=model)
    )
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.int64)
    run = SampleRun({"b": b}, {"u/a": a, "u/long": a + 1}, {})
    given = [
        shown("host1_out0_renamed_a", a),
        shown("host1_out1_renam", a),
        shown("host1_in0_b", b),
    ]
    odd = [
        shown("host1_in1_b", b),
        shown("host2_in0_b", b),
        shown("renamed_a", a),
        shown("host1_b", b),
    ]
    found = match_host_dumps(graph_of(one), run, [*given, *odd], {})
    assert [(f.tensor, f.mismatches.any()) for f in found] == [
        ("u/a", False),
        ("u/long", True),
        ("b", False),
    ]
    assert (
        match_host_dumps(graph_of(), run, given, {}) == []
    )  # a chip part alone has no such tensors
    wide = match_host_dumps(graph_of(one), run, given, {"renamed/long": 1.0})
    assert [f.mismatches.any() for f in wide] == [False, False, False]


def test_what_is_off():
    """Floats within what they may be, no-numbers and infinities where they belong, integers
    exactly.
    """
    want = np.array([1.0, -100.0, np.nan, np.inf, 0.0], np.float32)
    have = np.array([1.0009, -100.0, np.nan, np.inf, 0.002], np.float32)
    assert HostDump("t", shown("t", have), have, want, 1e-3).mismatches.tolist() == [
        False,
        False,
        False,
        False,
        True,
    ]
    wrong = np.array([1.0, -100.0, 0.0, -np.inf, np.nan], np.float32)
    assert HostDump("t", shown("t", wrong), wrong, want, 1e-3).mismatches.tolist() == [
        False,
        False,
        True,
        True,
        True,
    ]
    counts = np.array([3, 4])
    assert HostDump("t", shown("t", counts), counts + [0, 1], counts, 0.0).mismatches.tolist() == [
        False,
        True,
    ]
    assert HostDump("t", shown("t", counts), None, counts, 0.0).mismatches.all()


@pytest.mark.parametrize("text", (None, "{", "[]", '{"program": {"host_limits": {"x": 1}}}'))
def test_no_manifest_of_ours(tmp_path, text):
    """A file of that name which `deploy` did not write says nothing."""
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    assert read_manifest_tolerances(tmp_path / "model.onnx") == {}
    assert read_manifest_tolerances(object()) == {}
