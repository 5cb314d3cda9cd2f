"""What the tests of repair share: a plain reading of a graph's edges, small graphs from text, a
run.
"""

import numpy as np
import onnx
from onnx import numpy_helper

from lingeronnx.ir import ir
from lingeronnx.runtime.session import Session

QUANTIZED = ("thinker", "linger")


def edges(model):
    """Return {"reader[input]": [writer, its output, scale of the one Dequant between or None]}.

    Dequants and the main graph's Identity nodes count as wire. More than one Dequant is given as a
    list of scales. Readers in subgraphs are called "owner/branch/reader", graph outputs
    "graph_output:name".
    """
    origin = {t.name: (f"initializer:{t.name}", 0, []) for t in model.graph.initializer}
    origin |= {v.name: (f"input:{v.name}", 0, []) for v in model.graph.input}
    found = {}

    def look(name):
        writer, output, scales = origin.get(name, (f"missing:{name}", 0, []))
        return [writer, output, None if not scales else scales[0] if len(scales) == 1 else scales]

    def visit(graph, prefix):
        inside = {name for node in graph.node for name in node.output}
        for node in graph.node:
            scale = [a.f for a in node.attribute if a.name == "scale_o"]
            if node.op_type == "Dequant" and node.domain in QUANTIZED:
                writer, output, scales = origin.get(
                    node.input[0], (f"missing:{node.input[0]}", 0, [])
                )
                origin[node.output[0]] = (writer, output, [*scales, *scale])
                continue
            if node.op_type == "Identity" and not prefix:
                origin[node.output[0]] = origin.get(
                    node.input[0], (f"missing:{node.input[0]}", 0, [])
                )
                continue
            for index, name in enumerate(node.output):
                if name:
                    origin[name] = (node.name, index, [])
            for index, name in enumerate(node.input):
                if name and not (prefix and name in inside):
                    found[f"{prefix}{node.name}[{index}]"] = look(name)
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    visit(attribute.g, f"{prefix}{node.name}/{attribute.name}/")

    visit(model.graph, "")
    for value in model.graph.output:
        found[f"graph_output:{value.name}[0]"] = look(value.name)
    return found


def types(values):
    """Return {name: element type}."""
    return {v.name: v.type.tensor_type.elem_type for v in values}


HEAD = '<ir_version: 8, opset_import: ["": 13, "thinker": 1, "post": 1]>'

#: Attributes of a linear layer 4 -> 4 from scale 64 to scale 16.
FC = "<data_bits=8, parameter_bits=8, o_bits=8, scale_x=64.0, scale_w=64.0, scale_o=16.0>"


def graph(body, inputs="float[1, 4] x", outputs="float[1, 4] y"):
    """Return a model from ONNX's text form; w, b and v, c are the weights and biases of two linear
    layers 4 -> 4.
    """
    model = onnx.parser.parse_model(f"{HEAD} g ({inputs}) => ({outputs}) {{ {body} }}")
    read = {name for node in model.graph.node for name in node.input}
    for node in model.graph.node:
        node.name = node.name or f"{node.op_type}_{node.output[0]}"
    for name, dtype, shape in (
        ("w", "int8", (4, 4)),
        ("b", "int32", 4),
        ("v", "int8", (4, 4)),
        ("c", "int32", 4),
    ):
        if name in read:
            size = 16 if dtype == "int8" else 4
            array = ((np.arange(size) * 37 + len(name)) % 101 - 50).astype(dtype).reshape(shape)
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def outputs(model, feeds):
    """Return the graph outputs of a run."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    session = Session(ir.from_proto(copy))
    names = [str(v.name) for v in session.model.graph.outputs]
    return dict(zip(names, session.run(names, feeds), strict=True))
