"""What these tests share: onnxruntime with its own settings, and a kernel's function in it."""

import onnxruntime as ort

from lingeronnx.interchange.qdq.exact.write import DOMAIN, build_kernel_function
from lingeronnx.ir import ir


def session(model):
    return ort.InferenceSession(ir.to_bytes(model), providers=["CPUExecutionProvider"])


def called(kernel, *arrays, opset=13):
    """What onnxruntime computes for the function of a kernel."""
    written = build_kernel_function(
        kernel, "f", [a.shape for a in arrays], [a.dtype for a in arrays], opset
    )
    inputs = [
        ir.Value(
            name=f"x{i}",
            shape=ir.Shape(a.shape),
            type=ir.TensorType(ir.DataType.from_numpy(a.dtype)),
        )
        for i, a in enumerate(arrays)
    ]
    call = ir.node("f", inputs, {}, domain=DOMAIN, num_outputs=len(written.outputs))
    for number, value in enumerate(call.outputs):
        value.name = f"out{number}"
    graph = ir.Graph(
        inputs, call.outputs, nodes=[call], opset_imports={"": opset, DOMAIN: 1}, name="g"
    )
    model = ir.Model(graph, ir_version=8, functions=[written])
    proto = ir.to_proto(model)
    for value, spec in zip(proto.graph.output, call.outputs, strict=True):
        value.name = str(spec.name)
        value.ClearField("type")
    content = proto.SerializeToString()
    found = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    return found.run(None, {f"x{i}": a for i, a in enumerate(arrays)})
