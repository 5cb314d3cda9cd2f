"""Every float operator that the bridge knows can be one of its steps: quantized beside integers, it
is computed there.

onnx's own cases are the float nodes. In front of each stands a Reshape of the graph's one input,
behind it a Reshape to one sample; two integer operators stand beside it. The bridge gives what
onnxruntime gives, to 1e-4.
"""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import lingeronnx as lo
from lingeronnx.common.errors import LingerOnnxError
from lingeronnx.targets import get_target

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # a graph for each operator

from lingeronnx.torch.qat import float_fallback  # noqa: E402
from lingeronnx.torch.qat.float_fallback import FLOAT_OPERATORS  # noqa: E402
from lingeronnx.torch.qat.qat_module import QatModule  # noqa: E402
from tests.torch.qat.test_float_fallback import APART, cases  # noqa: E402, F401

TRIES = 12  # of onnx's cases of an operator

#: Nodes from x [N, 16] to y, for operators whose cases in onnx a pass writes in another way, or that have none.
OWN = {
    "Cast": "i = Cast<to = 7>(x)  r = Cast<to = 1>(i)  y = Sin(r)",
    "ConstantOfShape": "s = Shape(x)  c = ConstantOfShape(s)  y = Sub(c, x)",
    "GlobalAveragePool": "r = Reshape(x, five)  p = GlobalAveragePool(r)  y = Reshape(p, row)",
    "GlobalLpPool": "r = Reshape(x, four)  p = GlobalLpPool<p = 3>(r)  y = Reshape(p, row)",
    "GlobalMaxPool": "r = Reshape(x, five)  p = GlobalMaxPool(r)  y = Reshape(p, row)",
    "IsInf": "e = Exp(x)  q = Mul(e, huge)  i = IsInf(q)  y = Cast<to = 1>(i)",
    "IsNaN": "e = Log(x)  i = IsNaN(e)  y = Cast<to = 1>(i)",
    "Range": (
        "s = Size(x)  r = Range(zero, s, one)  c = Cast<to = 1>(r)  m = ReduceMax(c)  y = Sub(x, m)"
    ),
    "Reshape": "r = Reshape(x, four)  z = Sin(r)  y = Reshape(z, row)",
    "Shape": "s = Shape(x)  c = ConstantOfShape(s)  y = Sub(c, x)",
    "Size": "s = Size(x)  c = Cast<to = 1>(s)  y = Sub(x, c)",
}

#: Operators that passes always take out of a graph, and where the bridge meets them.
ELSEWHERE = {"Identity": "what a net computes from its parameters: torch.calls.expressions"}


def own_model(nodes):
    """Return `nodes` beside two integer operators, and an input for one sample."""
    text = f"""<ir_version: 9, opset_import: ["": 18]> g (float[N, 16] x) => (y, integers)
    <int64[5] five = {{0, 2, 2, 2, 2}}, int64[4] four = {{0, 2, 2, 4}}, int64[2] row = {{0, -1}}, int64 zero = {{0}},
     int64 one = {{1}}, float huge = {{3e38}}> {{ {nodes}  gate = Sigmoid(x)  integers = Mul(x, gate) }}"""
    model = onnx.parser.parse_model(text)
    for i, node in enumerate(model.graph.node):
        node.name = f"{'own' if node.output[0] in ('gate', 'integers') else 'case'}{i}"
    for value in model.graph.output:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return model, np.linspace(-2, 2, 16, dtype=np.float32)[None]


def beside_integers(case):
    """Return (a model in which the case's nodes stand beside a product in integers, its input for
    one sample).
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.opset_import[0].version = max(model.opset_import[0].version, 13)
    graph, arrays = model.graph, case.data_sets[0][0]
    nodes, inputs, outputs = (
        list(graph.node),
        list(graph.input),
        [value.name for value in graph.output],
    )
    for field in ("node", "input", "output", "value_info"):
        graph.ClearField(field)

    def constant(name, array):
        graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(op_type, reads, name, **attributes):
        graph.node.append(
            helper.make_node(op_type, reads, [name], name=f"own_{name}", **attributes)
        )
        return name

    data = next((i for i, a in enumerate(arrays) if a.dtype.kind == "f" and a.ndim), 0)
    graph.input.append(helper.make_tensor_value_info("flat", 1, [1, arrays[data].size]))
    shaped = add(
        "Reshape", ["flat", constant("own_shape", np.array(arrays[data].shape, np.int64))], "shaped"
    )
    add("Cast", [shaped], inputs[data].name, to=inputs[data].type.tensor_type.elem_type)
    for i, value in enumerate(inputs):
        if i != data:
            constant(value.name, arrays[i])
    for i, node in enumerate(nodes):
        node.name = f"case{i}"
    graph.node.extend(nodes)
    for i, name in enumerate(outputs):
        real = add("Cast", [name], f"real{i}", to=1)
        add("Reshape", [real, constant(f"own_row{i}", np.array([1, -1], np.int64))], f"result{i}")
        graph.output.append(helper.make_tensor_value_info(f"result{i}", 1, None))
    add("Mul", ["flat", add("Sigmoid", ["flat"], "gate")], "integers")
    graph.output.append(helper.make_tensor_value_info("integers", 1, [1, arrays[data].size]))
    return model, np.nan_to_num(arrays[data].astype(np.float32).reshape(1, -1), posinf=9, neginf=-9)


def reaches(model, flat, op_type, monkeypatch, path):
    """Whether the bridge computes `op_type` for the quantized model; asserts that all outputs are
    onnxruntime's.
    """
    (given,) = (value.name for value in model.graph.input)
    onnx.save(model, path)
    names = [node.name for node in model.graph.node if node.name.startswith("case")]
    try:
        made = lo.quantize(path, [{given: flat}], platform="generic", effort="fast", skip=names)
    except LingerOnnxError:  # a pass took all of these nodes, or one that no platform computes
        return False
    bridge, session = (
        QatModule(made.float_graph, made.plan, get_target("generic"), {given: flat}),
        made.session(),
    )
    called = set()
    spies = {
        n: lambda *xs, n=n, f=f: (called.add(n), f(*xs))[1] for n, f in FLOAT_OPERATORS.items()
    }
    monkeypatch.setattr(float_fallback, "FLOAT_OPERATORS", spies)
    got = bridge({given: torch.from_numpy(flat)})
    monkeypatch.undo()
    for value, want in zip(made.graph.graph.outputs, session.run(None, {given: flat}), strict=True):
        have = got[value.name].detach().numpy()
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
    return op_type in called


@pytest.mark.filterwarnings("ignore")  # infinities and NaN in onnx's data
@pytest.mark.parametrize("op_type", sorted(FLOAT_OPERATORS))
def test_reached(op_type, cases, monkeypatch, tmp_path):  # noqa: F811
    """Some case of the operator comes to the bridge, which computes it."""
    if op_type in OWN:
        found = reaches(*own_model(OWN[op_type]), op_type, monkeypatch, tmp_path / "own.onnx")
    else:
        some = [
            case
            for name, case in cases.items()
            if name not in APART
            and op_type in {n.op_type for n in case.model.graph.node}
            and case.data_sets[0][0]
        ]
        some.sort(key=lambda case: len(case.model.graph.node))
        found = any(
            reaches(*beside_integers(case), op_type, monkeypatch, tmp_path / "case.onnx")
            for case in some[:TRIES]
        )
    assert found is (op_type not in ELSEWHERE)
