"""What the tests of passes share: a graph from ONNX text, and one call that checks every promise of
a pass.
"""

import numpy as np
import onnx
import onnx.parser

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.runners import FloatRunner


def rand(*shape, seed=0):
    """Return seeded float32 numbers around zero."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def positive(*shape, seed=0):
    """Return seeded float32 numbers between 0.5 and 1.5."""
    return np.random.default_rng([seed, *shape]).uniform(0.5, 1.5, shape).astype(np.float32)


def proto(text, /, *, opset=13, **arrays):
    """Return the model of ONNX text ``g (...) => (...) {...}``; `arrays` are its initializers by
    name.
    """
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()
    )
    return model


def graph(text, /, *, opset=13, **arrays):
    """Return `proto` in memory."""
    return ir.from_proto(proto(text, opset=opset, **arrays))


def feeds(model, size=2):
    """Return `size` seeded samples for the float inputs of `model` (True for a bool)."""
    feed = {}
    for value in model.graph.inputs:
        if value.const_value is None:
            dims = ir.get_shape(value)
            shape = tuple(
                size if i == 0 and d is None else 1 if d is None else d for i, d in enumerate(dims)
            )
            kind = value.dtype.numpy()
            feed[str(value.name)] = (
                rand(*shape, seed=len(feed)) if kind.kind == "f" else np.ones(shape, kind)
            )
    return feed


def outputs(model, feed):
    """Return the graph outputs in onnxruntime, by name."""
    names = [str(v.name) for v in model.graph.outputs]
    return {name: array for name, array, _ in FloatRunner(model, names).run(feed)}


def run_all_tensors(model, feed):
    """Return every tensor of a run in onnxruntime, by name."""
    return {name: array for name, array, _ in FloatRunner(model).run(feed)}


def ops(model):
    """Return the operator types in graph order."""
    return [node.op_type for node in model.graph]


def interface(model):
    """Return the names of the fed inputs and of the outputs, in order."""
    given = [str(v.name) for v in model.graph.inputs if v.const_value is None]
    return given, [str(v.name) for v in model.graph.outputs]


def changes(run, model):
    """Run a pass and return how many changes it made."""
    answer = run(model)
    return answer if isinstance(answer, int) else answer.changes


def reasons(run, model):
    """Run a pass, which must refuse wherever it might act; return its reasons as "node: why"."""
    answer = run(model)
    assert answer.changes == 0
    return [f"{reason.kind} {reason.name}: {reason.explanation}" for reason in answer.skip_reasons]


def check_pass_fires(model, run, count, left, *, atol, trace=True):
    """Run pass `run`, which must act `count` times and leave the operators `left`; check every
    promise of a pass.

    Same outputs within `atol` in onnxruntime, valid ONNX, the names of inputs, outputs and
    surviving tensors kept, the original untouched by sharing, and a second run that changes
    nothing.
    """
    feed = feeds(model)
    if trace:
        trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    before, names, tensors = outputs(model, feed), interface(model), run_all_tensors(model, feed)
    assert changes(run, model) == count
    assert ops(model) == left
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert interface(model) == names
    after = outputs(model, feed)
    for name, want in before.items():
        assert after[name].shape == want.shape
        np.testing.assert_allclose(after[name], want, rtol=0, atol=atol)
    for name, array in run_all_tensors(
        model, feed
    ).items():  # a tensor that keeps its name keeps its meaning
        if name in tensors:
            np.testing.assert_allclose(array, tensors[name], rtol=0, atol=atol)
    assert changes(run, model) == 0
    assert ops(model) == left
    return model


def check_pass_leaves_alone(model, run, *, trace=True):
    """Run pass `run`, which must refuse: nothing fires, the graph and its results are the same."""
    nodes = ops(model)
    return check_pass_fires(model, run, 0, nodes, atol=0, trace=trace)
