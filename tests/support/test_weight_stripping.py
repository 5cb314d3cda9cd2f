"""A model without its weights: the same graph, and no number of the user's in it."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lingeronnx as lo
from lingeronnx.cli.support.bug_report import strip_weights

TEXT = """
<ir_version: 10, opset_import: ["": 17], doc_string: "secret",
 metadata_props: ["author": "secret", "lingeronnx.names": "{}"]>
net (float[N, 2, 4, 4] x) => (float[N, 2, 8] y)
<float[2, 2, 3, 3] w, int64[3] shape, float[] limit, int8[100] q, int64[100] far>
{
    c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w)
    m = Min(c, limit)
    k = Constant<value = float[4] {9.25, 9.25, 9.25, 9.25}>()
    r = Add(m, k)
    y = Reshape(r, shape)
}
"""


def model():
    proto = onnx.parser.parse_model(TEXT)
    values = {
        "w": np.full((2, 2, 3, 3), 9.25, np.float32),
        "shape": np.array([0, 2, -1]),
        "limit": np.float32(6.0),
        "q": np.full(100, 77, np.int8),
        "far": np.full(100, 77),
    }
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), k) for k, v in values.items()
    )
    return proto


def test_the_graph_is_the_same_and_the_numbers_are_not():
    before, after = model(), strip_weights(model())
    assert [n.op_type for n in after.graph.node] == [n.op_type for n in before.graph.node]
    shapes = [
        [(t.name, t.data_type, tuple(t.dims)) for t in m.graph.initializer] for m in (before, after)
    ]
    assert shapes[0] == shapes[1]
    kept = {t.name: numpy_helper.to_array(t) for t in after.graph.initializer}
    assert kept["shape"].tolist() == [0, 2, -1]  # without it the graph would be another one
    assert kept["limit"] == np.float32(6.0)
    for name in ("w", "q", "far"):
        assert not np.isin(kept[name], [9.25, 77]).any(), name
    (constant,) = (n for n in after.graph.node if n.op_type == "Constant")
    assert not np.isin(numpy_helper.to_array(constant.attribute[0].t), 9.25).any()
    assert b"secret" not in after.SerializeToString()
    assert [p.key for p in after.metadata_props] == ["lingeronnx.names"]


def test_it_can_be_quantized_as_the_model_can():
    bare = strip_weights(model())
    x = np.random.default_rng(0).standard_normal((8, 2, 4, 4)).astype(np.float32)
    assert lo.quantize(bare, x, platform="generic", effort="fast").report.integer_macs == 1.0


@pytest.mark.parametrize(
    "kind",
    [
        TensorProto.BOOL,
        TensorProto.UINT8,
        TensorProto.FLOAT16,
        TensorProto.STRING,
        TensorProto.INT4,
        TensorProto.BFLOAT16,
        TensorProto.DOUBLE,
    ],
)
def test_every_type_has_a_pattern(kind):
    proto = model()
    proto.graph.initializer.append(
        helper.make_tensor(
            "t", kind, [100], [b"secret"] * 100 if kind == TensorProto.STRING else [1] * 100
        )
    )
    (made,) = (t for t in strip_weights(proto).graph.initializer if t.name == "t")
    assert (made.data_type, list(made.dims)) == (kind, [100])
    assert b"secret" not in made.SerializeToString()


def test_data_elsewhere_are_not_needed():
    proto = model()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="gone.bin")
    made = strip_weights(proto).graph.initializer[0]
    assert made.data_location == TensorProto.DEFAULT
    assert numpy_helper.to_array(made).shape == (2, 2, 3, 3)


def test_too_much_is_left_out():
    proto = model()
    proto.graph.initializer[0].dims[:] = [1 << 20, 1 << 20]
    assert strip_weights(proto) is None
