"""Laws: ONNX's checker accepts every graph that we write or measured, and rejects invalid ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, helper

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.operators.integer_ops import INTEGER_OPS
from lingeronnx.operators.schemas import (
    NONSTANDARD_USAGE,
    SCHEMA_DOMAIN,
    SCHEMA_VERSION,
    to_checkable_model,
)
from lingeronnx.targets import PLATFORMS
from tests.case_selection import mark_rest_slow
from tests.nets import NETS, quantized

GOLDEN = Path(os.environ.get("LINGERONNX_GOLDEN", Path(__file__).parents[1] / "golden")) / "luna"
CASES = json.loads((GOLDEN / "index.json").read_text())["cases"]
NAMES = [target.name for target in PLATFORMS]


@pytest.fixture(autouse=True)
def schemas():
    """Register; twice is once."""
    lo.register_schemas()
    before = len(defs.get_all_schemas())
    lo.register_schemas()
    assert len(defs.get_all_schemas()) == before


def node_of(proto, op_type):
    """Return the first node of an operator."""
    return next(node for node in proto.graph.node if node.op_type == op_type)


def types(proto):
    """Return the inferred (element type, sizes with None for free ones) of each tensor."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.value_info[:]
    graph = onnx.shape_inference.infer_shapes(copy, strict_mode=True).graph
    inferred = {}
    for value in (*graph.value_info, *graph.output):
        sizes = [dim.dim_value or None for dim in value.type.tensor_type.shape.dim]
        inferred[value.name] = (value.type.tensor_type.elem_type, sizes)
    return inferred


# ---- what is right -----------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("platform", NAMES)
@pytest.mark.parametrize("build", mark_rest_slow(2, NETS), ids=lambda f: f.__name__)
def test_what_quantize_writes(build, platform, tmp_path):
    """From a file, from memory, and by ONNX's own checker; inference finds the types and sizes that
    were declared.
    """
    model = quantized(build(), platform=platform, effort="fast")
    path = tmp_path / "net.onnx"
    model.save(path)
    lo.check_model(path)
    lo.check_model(model.graph)
    proto = ir.to_proto(model.graph)
    onnx.checker.check_model(proto)
    inferred = types(to_checkable_model(proto))
    for node in model.graph.graph:
        for value in node.outputs:
            declared = [d if isinstance(d, int) else None for d in value.shape]
            assert inferred[value.name] == (int(value.dtype), declared), value.name


@pytest.mark.slow
@pytest.mark.parametrize("platform", NAMES)
def test_shipped_model(platform):
    """The trained digits classifier."""
    models = Path(__file__).parents[2] / "models"
    calib = np.load(models / "digits_calib.npz")
    name = calib.files[0]
    model = lo.quantize(models / "digits_cnn.onnx", {name: calib[name]}, platform=platform)
    lo.check_model(model.graph)
    onnx.checker.check_model(ir.to_proto(model.graph))


@pytest.mark.parametrize("platform", NAMES)
def test_float_fallbacks(platform):
    """Layers left in float, and the nodes between them."""
    model = NETS[0]()
    skip = [str(node.name) for node in model.graph if node.op_type == "Conv"][1:]
    graph = quantized(model, platform=platform, skip=skip, effort="fast").graph
    assert any(node.op_type == "Conv" for node in graph.graph)
    lo.check_model(graph)


def test_golden_graphs():
    """Every measured graph passes, and inference finds the types and sizes that the chip's executor
    gave.
    """
    known = {name for form in INTEGER_OPS for name in form.names}
    passed = 0
    for case in CASES:
        proto = onnx.load(GOLDEN / f"{case['name']}.onnx")
        if not {node.op_type for node in proto.graph.node} <= known:
            continue
        lo.check_model(proto)
        copy = to_checkable_model(proto)
        inferred, writers = (
            types(copy),
            {name: node for node in copy.graph.node for name in node.output},
        )
        for output, expected in case["outputs"].items():
            tensor = writers[output].input[0] if writers[output].op_type == "Dequant" else output
            elem, sizes = inferred[tensor]
            assert sizes == expected["shape"], case["name"]
            assert helper.tensor_dtype_to_np_dtype(elem) == expected["dtype"], case["name"]
        passed += 1
    assert passed >= 598


def test_every_operator_has_a_schema():
    """Each in domain thinker, with the attributes of its table: required ones required, defaults as
    they are.
    """
    for form in INTEGER_OPS:
        schema = defs.get_schema(form.name, SCHEMA_VERSION, SCHEMA_DOMAIN)
        for attr in form.attributes:
            held = schema.attributes[attr.name]
            if form.domain != SCHEMA_DOMAIN:
                continue  # the standard's own word on what is required
            assert held.required == attr.is_required, f"{form.name} {attr.name}"
            if not attr.is_required and attr.default is not None:
                default = helper.get_attribute_value(held.default_value)
                assert (
                    default.decode() if isinstance(default, bytes) else default
                ) == pytest.approx(attr.default)


@pytest.mark.parametrize("op_type", NONSTANDARD_USAGE)
def test_exemptions_are_needed(op_type):
    """Each operator that is exempt from the standard's schema is one of ours, and moves only where
    it is integer.
    """
    assert op_type in {form.name for form in INTEGER_OPS}
    attributes = {"axes": [0], "dims": [4], "slope": 2}
    for elem, domain in ((TensorProto.INT8, SCHEMA_DOMAIN), (TensorProto.FLOAT, "")):
        ends = [
            helper.make_tensor_value_info("x", elem, [1, 4]),
            helper.make_tensor_value_info("y", elem, None),
        ]
        graph = helper.make_graph(
            [helper.make_node(op_type, ["x"], ["y"], **attributes)], "g", ends[:1], ends[1:]
        )
        assert to_checkable_model(helper.make_model(graph)).graph.node[0].domain == domain


def test_other_names():
    """Names of other generations are checked as today's; the model given stays as it was."""
    proto = ir.to_proto(quantized(NETS[0](), platform="venus", effort="fast").graph)
    node = node_of(proto, "Conv2dInt")
    node.op_type, node.domain = "QConv2d", "linger"
    next(a for a in node.attribute if a.name == "strides").name = "stride"
    proto.opset_import.append(helper.make_opsetid("linger", 1))
    before = proto.SerializeToString()
    lo.check_model(proto)
    assert proto.SerializeToString() == before
    next(a for a in node.attribute if a.name == "stride").name = "stridess"
    with pytest.raises(lo.ModelError, match="stridess"):
        lo.check_model(proto)


# ---- what is wrong -----------------------------------------------------------------------------


@pytest.fixture
def proto():
    """A small quantized net."""
    return ir.to_proto(quantized(NETS[0](), platform="venus", effort="fast").graph)


def assert_rejected(proto, match, plain=True):
    """Both the helper and, where types do not matter, ONNX's checker alone refuse a graph."""
    with pytest.raises(lo.ModelError, match=match):
        lo.check_model(proto)
    if plain:
        with pytest.raises(onnx.checker.ValidationError, match=match):
            onnx.checker.check_model(proto)


@pytest.mark.parametrize(
    "op_type, name", (("Conv2dInt", "scale_w"), ("Quant", "scale_x"), ("Dequant", "scale_o"))
)
def test_missing_attribute(proto, op_type, name):
    """A required attribute."""
    node = node_of(proto, op_type)
    del node.attribute[[a.name for a in node.attribute].index(name)]
    assert_rejected(proto, name)


@pytest.mark.parametrize(
    "name, value", (("strides", 1.0), ("scale_x", 16), ("platform_quant", 1), ("group", [1]))
)
def test_wrong_attribute_type(proto, name, value):
    """An attribute of another type."""
    node = node_of(proto, "Conv2dInt")
    next(a for a in node.attribute if a.name == name).CopyFrom(helper.make_attribute(name, value))
    assert_rejected(proto, name)


def test_misspelt_attribute(proto):
    """An attribute that no schema knows."""
    node_of(proto, "LinearInt").attribute.append(helper.make_attribute("scale_y", 2.0))
    assert_rejected(proto, "scale_y")


def test_unknown_operator(proto):
    """The nearest name is told; ONNX alone does not look at operators of a domain it does not
    know.
    """
    node_of(proto, "LinearInt").op_type = "LinearIn"
    assert_rejected(proto, "unknown operator; did you mean 'LinearInt'", plain=False)


def test_shape_inference_says_that_an_attribute_is_missing():
    inputs = [onnx.helper.make_tensor_value_info(name, 3, [1, 2]) for name in "ab"]
    node = onnx.helper.make_node("iqCat", ["a", "b"], ["y"], domain="thinker")  # without dim
    graph = onnx.helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")])
    opsets = [onnx.helper.make_opsetid(domain, 1) for domain in ("", "thinker")]
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    with pytest.raises(onnx.shape_inference.InferenceError, match="attribute 'axis' is missing"):
        onnx.shape_inference.infer_shapes(model)


def test_wrong_number_of_inputs(proto):
    """A weight layer without a weight, and with too much."""
    node = node_of(proto, "Conv2dInt")
    original_inputs = list(node.input)
    for inputs in (original_inputs[:1], [*original_inputs, original_inputs[0]]):
        node.input[:] = inputs
        assert_rejected(proto, "input")


def test_wrong_types(proto):
    """Real numbers where integers belong, and a weight in int32."""
    quant = node_of(proto, "Quant")
    node = node_of(proto, "Conv2dInt")
    node.input[0] = quant.input[0]
    assert_rejected(proto, "float", plain=False)
    node.input[0] = quant.output[0]
    lo.check_model(proto)
    weight = next(t for t in proto.graph.initializer if t.name == node.input[1])
    weight.CopyFrom(
        onnx.numpy_helper.from_array(
            onnx.numpy_helper.to_array(weight).astype(np.int32), weight.name
        )
    )
    assert_rejected(proto, "type", plain=False)


def test_contradicting_shape(proto):
    """A declared size that does not follow from the inputs."""
    name = node_of(proto, "Conv2dInt").output[0]
    value = next(v for v in proto.graph.value_info if v.name == name)
    value.type.tensor_type.shape.dim[2].dim_value += 1
    assert_rejected(proto, "shape", plain=False)


def test_no_file(tmp_path):
    """A missing file is the user's fault."""
    with pytest.raises(lo.ModelError):
        lo.check_model(tmp_path / "none.onnx")


def test_a_float_gather_is_onnx_own():
    """The check accepts a float Gather of ONNX before an integer part."""
    integers = helper.make_tensor_value_info("x", TensorProto.INT32, [1, 3])
    table = helper.make_tensor("table", TensorProto.FLOAT, [5, 2], np.ones(10))
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["t"]),
        helper.make_node("Quant", ["t"], ["y"], domain=SCHEMA_DOMAIN, scale_x=64.0, data_bits=8),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT8, [1, 3, 2])]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(SCHEMA_DOMAIN, SCHEMA_VERSION)]
    graph = helper.make_graph(nodes, "net", [integers], outputs, [table])
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    assert [node.domain for node in to_checkable_model(model).graph.node] == ["", SCHEMA_DOMAIN]
    lo.check_model(model)


def test_the_reference_evaluator_can_be_imported_afterwards():
    """It refuses names that two domains share, such as ArgMax, where it meets them while it is
    imported.
    """
    code = "import lingeronnx as lo; lo.register_schemas(); import onnx.reference"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("op_type", ("LSTMInt", "GRUInt", "LinearInt"))
@pytest.mark.parametrize("declared", (TensorProto.FLOAT, TensorProto.INT8))
def test_last_states_are_real_where_the_graph_says_so(op_type, declared):
    """Recurrent nodes declare float states by an attribute; other nodes do not."""
    node = helper.make_node(op_type, ["x"], ["y", "h"], domain=SCHEMA_DOMAIN)
    values = [
        helper.make_tensor_value_info(name, kind, [1])
        for name, kind in (("y", TensorProto.INT8), ("h", declared))
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.INT8, [1])]
    copy = to_checkable_model(helper.make_model(helper.make_graph([node], "g", inputs, values)))
    types = [
        attribute.i for attribute in copy.graph.node[0].attribute if attribute.name == "state_type"
    ]
    is_recurrent = op_type != "LinearInt"
    assert types == ([TensorProto.FLOAT] if is_recurrent and declared == TensorProto.FLOAT else [])
