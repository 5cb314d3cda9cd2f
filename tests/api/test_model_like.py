"""Every call takes a model as a file, a protobuf model, a graph in memory, or what `quantize`
returned.
"""

import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from tests import nets

FLOAT = nets.branches()
X = nets.samples(FLOAT, 4, seed=3)["x"]

#: Calls of an integer model, and a folder for what they write.
CALLS = {
    "check": lambda model, folder: lo.check(model, platform="venus").findings,
    "check_model": lambda model, folder: lo.check_model(model),
    "compare": lambda model, folder: len(lo.compare(ir.to_proto(FLOAT), model, X).rows),
    "convert": lambda model, folder: len(lo.convert(model, "qdq").graph.graph),
    "deploy": lambda model, folder: lo.deploy(
        model, folder / "board", X, stem="net"
    ).folder.is_dir(),
    "evaluate": lambda model, folder: lo.evaluate(model, X, metric="sqnr", baseline=FLOAT).value,
    "find_bad_case": lambda model, folder: lo.find_bad_case(FLOAT, model, X).index,
    "report": lambda model, folder: [
        path.name for path in lo.report(FLOAT, model, X, folder / "page")
    ],
    "Session": lambda model, folder: lo.Session(model)(X)[0].tobytes(),
    "simulate": lambda model, folder: sorted(lo.simulate(model, X).arrays),
}


@pytest.fixture(scope="module")
def quantized():
    """What `quantize` returns."""
    return nets.quantized(FLOAT)


@pytest.mark.sweep
@pytest.mark.parametrize("call", CALLS)
def test_a_call_takes_a_model_in_every_form(call, quantized, tmp_path) -> None:
    ir.save(quantized.graph, tmp_path / "net.onnx")
    forms = {
        "file": tmp_path / "net.onnx",
        "protobuf": ir.to_proto(quantized.graph),
        "graph": quantized.graph,
        "quantized": quantized,
    }
    found = {}
    for name, model in forms.items():
        (tmp_path / name).mkdir()
        found[name] = CALLS[call](model, tmp_path / name)
    assert all(result == found["file"] for result in found.values()), found


@pytest.mark.parametrize("call", ["check", "check_model", "Session", "convert"])
def test_what_is_no_model_is_refused(call, tmp_path) -> None:
    with pytest.raises(
        lo.ModelError, match="a dict is not a model; pass the path of an .onnx file"
    ):
        CALLS[call]({}, tmp_path)


def test_a_graph_to_be_changed_is_copied_where_others_hold_it(quantized, tmp_path) -> None:
    held = quantized.graph
    before = ir.compute_digest(held)
    assert ir.as_owned_model(quantized) is not held
    assert ir.as_owned_model(held) is not held
    assert ir.as_model(quantized) is held
    with pytest.raises(lo.ModelError, match="quantized already"):
        lo.quantize(quantized, X)
    assert ir.compute_digest(held) == before
