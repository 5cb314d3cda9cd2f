"""Makes the corpus: ``python -m tests.repair.corpus``. Each file is one way of not being a
graph.
"""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.repair.helpers import FC, graph

HERE = Path(__file__).resolve().parent / "corpus"
BODY = f"""[q] q = thinker.Quant<scale_x=64.0, data_bits=8>(x)
[f] f = thinker.LinearInt{FC}(q, w, b)
[s] y = Softmax<axis=1>(f)"""


def legacy():
    """Return a graph whose Dequant is missing."""
    return graph(BODY)


def cyclic():
    model = legacy()
    model.graph.node[0].input[0] = "f"
    return model


def own_output():
    model = legacy()
    model.graph.node[1].input[0] = "f"
    return model


def no_initializers():
    model = legacy()
    del model.graph.initializer[:]
    return model


def huge_input():
    model = legacy()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 62
    return model


def huge_weight():
    model = legacy()
    model.graph.initializer[0].dims[0] = 1 << 50
    return model


def negative_size():
    model = legacy()
    model.graph.initializer[0].dims[0] = -4
    return model


def huge_reshape():
    model = graph(f"""[q] q = thinker.Quant<scale_x=64.0, data_bits=8>(x)
        [f] f = thinker.LinearInt{FC}(q, w, b)
        [n] n = Constant<value_ints=[1000000, 1000000, 4]>()
        [e] e = Expand(f, n)
        [s] y = Softmax<axis=1>(e)""")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    return model


def nested(depth):
    """Return a graph with subgraphs inside of subgraphs."""
    inner = helper.make_graph(
        [helper.make_node("Softmax", ["f"], ["o"])],
        "leaf",
        [],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)],
    )
    for _ in range(depth):
        node = helper.make_node("If", ["flag"], ["o"], then_branch=inner, else_branch=inner)
        out = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
        inner = helper.make_graph([node], "level", [], [out])
    model = legacy()
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    model.graph.node[2].CopyFrom(
        helper.make_node("If", ["flag"], ["y"], then_branch=inner, else_branch=inner)
    )
    return model


def recursive_function():
    """Return a graph that calls a function which calls itself."""
    model = legacy()
    body = [helper.make_node("again", ["a"], ["c"], domain="own")]
    function = helper.make_function(
        "own", "again", ["a"], ["c"], body, [helper.make_opsetid("own", 1)]
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[2].domain, model.graph.node[2].op_type = "own", "again"
    del model.graph.node[2].attribute[:]
    return model


def no_scale():
    model = legacy()
    del model.graph.node[1].attribute[:]
    return model


def no_output():
    model = legacy()
    del model.graph.output[:]
    return model


def lost_output():
    model = legacy()
    model.graph.output[0].name = "z"
    del model.graph.node[2]
    model.graph.node[1].input[0] = "somewhere"
    return model


def all_empty_names():
    model = legacy()
    for node in model.graph.node:
        node.name = ""
        for index in range(len(node.output)):
            node.output[index] = ""
    return model


def outside_data():
    model = legacy()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../etc/passwd")
    return model


def unknown_opset():
    model = legacy()
    model.opset_import[0].version = 1 << 40
    return model


def shadowed():
    """Return a graph whose branch writes a name of the graph around it."""
    model = nested(0)
    for attribute in model.graph.node[2].attribute:
        attribute.g.node[0].output[0] = attribute.g.output[0].name = "q"
    return model


MODELS = {
    "cyclic": cyclic,
    "own_output": own_output,
    "no_initializers": no_initializers,
    "huge_input": huge_input,
    "huge_weight": huge_weight,
    "negative_size": negative_size,
    "huge_reshape": huge_reshape,
    "nested": lambda: nested(5),
    "recursive_function": recursive_function,
    "no_scale": no_scale,
    "no_output": no_output,
    "lost_output": lost_output,
    "all_empty_names": all_empty_names,
    "outside_data": outside_data,
    "unknown_opset": unknown_opset,
    "shadowed": shadowed,
}


def deep(levels):
    """Return the bytes of messages nested so deeply that no parser takes them."""
    data = b""
    for _ in range(levels):
        data = b"\x3a" + onnx_varint(len(data)) + data
    return data


def onnx_varint(number):
    """Return a number as protobuf writes lengths."""
    parts = []
    while True:
        number, low = number >> 7, number & 127
        parts.append(low | (128 if number else 0))
        if not number:
            return bytes(parts)


def files():
    """Yield (name, bytes)."""
    for name, make in MODELS.items():
        yield name, make().SerializeToString(deterministic=True)
    whole = legacy().SerializeToString(deterministic=True)
    yield "empty", b""
    yield "truncated", whole[: len(whole) * 2 // 3]
    yield "text", b"this is no model at all\n"
    yield "bad_utf8", whole.replace(b"LinearInt", b"Linear\xff\xfe\x80", 1)
    yield "deep", deep(300)
    yield "zeros", bytes(64)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name, data in files():
        (HERE / f"{name}.onnx").write_bytes(data)
    onnx.load(HERE / "nested.onnx")
