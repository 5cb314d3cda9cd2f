"""Host parts as C: what becomes of the generator's text."""

import ctypes
import re
import shutil
import subprocess

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from lingeronnx.common.errors import ConfigError, ConstraintError
from lingeronnx.deployment.c_program import host_source
from lingeronnx.deployment.c_program.build import HOST_FLAGS
from lingeronnx.ir import ir
from tests import nets

needs_generator = pytest.mark.skipif(
    host_source.explain_missing_generator() is not None, reason="emx-onnx-cgen is not installed"
)


def chain(op="Softmax"):
    net = nets.Net(8, 4, seed=1)
    a = net.node("Mul", "x", net.const(np.float32(2)))
    return net.graph(net.node("Sqrt", net.node("Exp", net.node(op, a)), out="y"))


@needs_generator
def test_arrays_lie_in_given_memory():
    """No array is left on the stack of the model's function, nothing is global but the function, no
    heap.
    """
    x = np.zeros((1, 8, 4), np.float32)
    found = host_source.generate_host_source(ir.to_proto(chain()), "m_host1", [x], [x])
    assert found.declaration == "void m_host1(const float *input0, float *output0, void *scratch__)"
    body = found.text.partition("static void m_host1_nodes(")[2]
    assert not re.search(r"^ +\w+ \w+(\[\d+\])+;", body, re.M)
    assert (
        found.scratch_bytes == 2 * x.nbytes
    )  # three arrays between four nodes; the first's bytes serve the third
    assert not re.search(
        r"^(?!static|EMX_NODE_FN|void m_host1\(|#|/|\s|\}|typedef)[\w ]+\(", found.text, re.M
    )
    assert "#define EMX_NODE_FN static inline" in found.text
    assert "malloc" not in found.text


@needs_generator
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
@pytest.mark.parametrize("given", ("scales", "sizes"))
@pytest.mark.parametrize("roi", ([], [0] * 4 + [1] * 4))
@pytest.mark.parametrize("mode", ("half_pixel", "pytorch_half_pixel", "asymmetric"))
def test_resize_with_inputs_that_say_nothing(mode, roi, given, tmp_path):
    """As exporters write it in opset 11, an empty roi, or one that is not read: the C gives
    onnxruntime's floats.
    """
    x, half = (
        np.random.default_rng(0).standard_normal((1, 3, 8, 6)).astype(np.float32),
        np.float32([1, 1, 0.5, 0.5]),
    )
    arrays = {"roi": np.float32(roi), "scales": half if given == "scales" else np.float32([])}
    if given == "sizes":
        arrays["sizes"] = np.int64([1, 3, 4, 3])
    node = helper.make_node(
        "Resize", ["x", *arrays], ["y"], mode="linear", coordinate_transformation_mode=mode
    )
    ends = [
        helper.make_tensor_value_info(n, 1, s) for n, s in (("x", x.shape), ("y", (1, 3, 4, 3)))
    ]
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = host_source.generate_host_source(model, "m_host1", [x], [want])
    (tmp_path / "a.c").write_text(found.text)
    subprocess.run(
        ["cc", *HOST_FLAGS, "-shared", "-fPIC", "-o", tmp_path / "a.so", tmp_path / "a.c", "-lm"],
        check=True,
    )
    have, scratch = np.zeros_like(want), np.zeros(found.scratch_bytes + 16, np.uint8)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, have, scratch)]
    ctypes.CDLL(str(tmp_path / "a.so")).m_host1(*pointers)
    np.testing.assert_allclose(have, want, atol=1e-5)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("Scaler", {"offset": [0.5, -1.0, 3.0, 0.1], "scale": [2.0, 0.3, 1e-3, 7.0]}),
        ("Scaler", {"offset": [0.25], "scale": [3.0]}),
        ("Binarizer", {"threshold": 0.5}),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_operators_of_scikit_learn_get_standard_forms(op_type, attributes, dtype):
    """The generator takes them, and they compute the same floats."""
    if (op_type, dtype) == ("Binarizer", np.int64):
        pytest.skip("onnxruntime has no kernel")
    x = (np.random.default_rng(0).standard_normal((1, 4)) * 5).astype(dtype)
    node = helper.make_node(op_type, ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", elem_type, (1, 4))],
        [helper.make_tensor_value_info("y", 1, (1, 4))],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    standard = host_source.fix_sample_shapes(model, [x], [want])
    assert {node.domain for node in standard.graph.node} == {""}
    (have,) = ort.InferenceSession(standard.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(have, want)
    if host_source.explain_missing_generator() is None:
        text = host_source.generate_host_source(model, "m_host1", [x], [want]).text
        assert "void m_host1(" in text


@needs_generator
def test_what_is_not_taken():
    """An operator that the generator has not is named in one line."""
    model = ir.to_proto(chain())
    model.graph.node[0].op_type = "Unheard"
    x = np.zeros((1, 8, 4), np.float32)
    with pytest.raises(ConstraintError, match="Unheard"):
        host_source.generate_host_source(model, "m_host1", [x], [x])


@needs_generator
@pytest.mark.parametrize(
    "body, shape, why",
    (
        (
            "a = Relu(x) [last] y = Slice(a, s, e, w, m)",
            (1, 4),
            "Slice last (not with these attributes and types)",
        ),
        (
            (
                "a = Relu(x) [last] b = NonZero(a) c = Cast <to = 1> (b) y = ReduceSum <keepdims = 1> "
                "(c)"
            ),
            (1, 1),
            "NonZero last (the shape of its output depends on values)",
        ),
    ),
)
def test_the_node_that_is_not_taken(body, shape, why):
    """By its name, in words of our own."""
    constants = "int64[1] s = {3}, int64[1] e = {-9}, int64[1] w = {1}, int64[1] m = {-1}"
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y) '
        f"<{constants}> {{ {body} }}"
    )
    x = np.ones((1, 4), np.float32)
    with pytest.raises(ConstraintError) as told:
        host_source.generate_host_source(
            onnx.parser.parse_model(text), "m_host1", [x], [np.ones(shape, np.float32)]
        )
    assert f"cannot write m_host1 as C: {why}; remove it from the model" in str(told.value)


@needs_generator
def test_unknown_lines_are_refused():
    """What the generator's function holds beside arrays and calls is not passed on."""
    text = "_Bool m_nodes_load(const char *path) {\n    (void)path;\n}\n\n"
    text += "void m_nodes(const float x[1][2], float y[1][2]) {\n"
    with pytest.raises(ConstraintError, match="an unknown form of line: y"):
        host_source._rewrite_source(text + "    y[0][0] = 1;\n}\n", "m")
    with pytest.raises(ConstraintError, match="malloc"):
        host_source._rewrite_source("/* malloc */" + text + "}\n", "m")
    with pytest.raises(ConstraintError, match="form"):
        host_source._rewrite_source("void other(void);", "m")
    for variable in ("static float last[3];", "    static const struct point p = {0};"):
        attribute = host_source._UNUSED_ATTRIBUTE
        with pytest.raises(ConstraintError, match="an unknown form of variable: static"):
            host_source._rewrite_source(f"{attribute}\n{variable}\n{text}}}\n", "m")
    with pytest.raises(ConstraintError, match="an unknown attribute of constants"):
        host_source._rewrite_source("const EMX_UNUSED float k[2] = {1, 2};\n" + text + "}\n", "m")


def test_without_the_generator(monkeypatch):
    def missing(_):
        raise host_source.PackageNotFoundError

    monkeypatch.setattr(host_source, "version", missing)
    with pytest.raises(ConfigError, match=re.escape("pip install 'lingeronnx[c]'")):
        host_source.generate_host_source(onnx.ModelProto(), "m", [], [])
    monkeypatch.setattr(host_source, "version", lambda _: "1.3.0")
    assert "not 1.3.0" in str(host_source.explain_missing_generator())
