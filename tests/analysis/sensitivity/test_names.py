"""Sensitivity of a model in which nodes have the names of tensors, and of one that is refused."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

import lingeronnx as lo
from lingeronnx.analysis.sensitivity.journal import Journal
from lingeronnx.analysis.sensitivity.sensitivity import JOURNAL_FILE, sensitivity

_RNG = np.random.default_rng(0)
X = _RNG.standard_normal((6, 4, 6, 6)).astype(np.float32)


def model(names=("c", "r", "x")):
    """Return Relu -> Conv -> Relu with tensors x, r, c and y, and nodes of these `names`."""
    weights = [
        numpy_helper.from_array(np.random.default_rng(1).standard_normal(s).astype("f4"), n)
        for n, s in (("w", (4, 4, 3, 3)), ("b", (4,)))
    ]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], names[0]),
        helper.make_node("Conv", ["r", "w", "b"], ["c"], names[1], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], names[2]),
    ]
    x = helper.make_tensor_value_info("x", 1, ["N", 4, 6, 6])
    y = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("what", ["all", "weight", "activation"])
@pytest.mark.parametrize("all_but_one", [False, True])
def test_nodes_that_have_the_names_of_tensors(what, all_but_one):
    """The figures are those of the model with other node names."""
    settings = {"what": what, "all_but_one": all_but_one, "platform": "venus"}
    found = sensitivity(model(), X, **settings)
    other = sensitivity(model(("first", "conv", "last")), X, **settings)
    assert [layer.values for layer in found.ranking] == [layer.values for layer in other.ranking]


def refuse(model):
    raise GeneratorExit


def test_a_refused_run_leaves_no_journal(tmp_path):
    """Nor does it change the journal of an earlier run."""
    path = tmp_path / JOURNAL_FILE
    proto = model(("first", "conv", "last"))
    with pytest.raises(lo.ConfigError, match="GeneratorExit"):
        sensitivity(proto, X, folder=tmp_path, function=refuse, order="ascending")
    assert list(tmp_path.iterdir()) == []
    path.write_text("an earlier run\n")
    with pytest.raises(lo.ConfigError, match="GeneratorExit"):
        sensitivity(proto, X, folder=tmp_path, function=refuse, order="ascending")
    assert path.read_text() == "an earlier run\n"


def test_a_journal_begins_with_its_first_record(tmp_path):
    """A run that ends well without one has a header, too."""
    path = tmp_path / "j.jsonl"
    with Journal(path, {"a": 1}, resume=False) as journal:
        assert list(journal.records("p")) == []
        assert not path.exists()
        journal.add({"part": "p", "value": 3})
        assert [record["value"] for record in journal.records("p")] == [3]
    path.unlink()
    with Journal(path, {"a": 1}, resume=False):
        pass
    assert len(path.read_text().splitlines()) == 1


def test_a_journal_in_no_folder(tmp_path):
    """The error comes before any work."""
    with pytest.raises(lo.ConfigError, match="cannot write .*missing"):
        Journal(tmp_path / "missing" / "j.jsonl", {}, resume=False)
