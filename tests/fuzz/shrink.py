"""A failing net made smaller, as long as the same check fails: outputs, nodes and inputs go, sizes
are halved.
"""

import dataclasses
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from tests.fuzz.nets import SAMPLES, samples

__all__ = ["shrink"]


def shrink(case, fails, seconds=60.0):
    """Return the smallest case found within the time for which `fails(case)` still holds."""
    end = time.monotonic() + seconds
    changed = True
    while changed:
        changed = False
        for candidates in (fewer_outputs, shorter, later, bypassed, halved):
            again = True
            while again:
                again = False
                for proto in candidates(case):
                    if time.monotonic() > end:
                        return case
                    smaller = accept_if_smaller(case, proto)
                    if smaller is not None and fails(smaller):
                        case, again, changed = smaller, True, True
                        break
    return case


def accept_if_smaller(case, proto):
    """Return the case with another model, where that is smaller than before and onnxruntime runs
    it; else None.
    """
    proto = pruned(proto)
    try:
        proto = onnx.shape_inference.infer_shapes(proto)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        session = ort.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        data = samples(proto, SAMPLES, case.seed, case.data)
        found = session.run(None, {name: array[:1] for name, array in data.items()})
    except Exception:  # whatever is wrong with a candidate, it is none
        return None
    if measure_size(proto) >= measure_size(case.model) or not all(
        np.isfinite(array).all() for array in found
    ):
        return None
    names = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    state = {output: given for output, given in case.state.items() if {output, given} <= names}
    return dataclasses.replace(case, model=proto, data=data, state=state)


def measure_size(proto):
    """Return what is to become less: nodes, then ends, then numbers."""
    graph = proto.graph
    sizes = [np.prod(t.dims, dtype=int) for t in graph.initializer]
    sizes += [
        np.prod([d.dim_value or 1 for d in v.type.tensor_type.shape.dim], dtype=int)
        for v in graph.input
    ]
    return len(graph.node), len(graph.input) + len(graph.output), int(sum(sizes))


def copied(case):
    """Return a copy of the model."""
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    return proto


def pruned(proto):
    """Return a model without nodes, constants and inputs that nobody reads."""
    graph, read, nodes = proto.graph, {v.name for v in proto.graph.output}, []
    for node in reversed(graph.node):
        if read.intersection(node.output):
            nodes.append(node)
            read.update(node.input)
    constants = [tensor for tensor in graph.initializer if tensor.name in read]
    inputs = [value for value in graph.input if value.name in read]
    for items, kept in (
        (graph.node, nodes[::-1]),
        (graph.initializer, constants),
        (graph.input, inputs),
    ):
        kept = [type(item).FromString(item.SerializeToString()) for item in kept]
        del items[:]
        items.extend(kept)
    del graph.value_info[:]
    return proto


def fewer_outputs(case):
    """Each output without the others, then all but one."""
    outputs = list(case.model.graph.output)
    if len(outputs) < 2:
        return
    for kept in (
        *([one] for one in outputs),
        *([o for o in outputs if o is not one] for one in outputs),
    ):
        proto = copied(case)
        del proto.graph.output[:]
        proto.graph.output.extend(kept)
        yield proto


def known(case):
    """Return {tensor: its type and shape} of the inner tensors whose first axis is the batch."""
    batch = case.model.graph.input[0].type.tensor_type.shape.dim[0]
    found = {}
    for value in case.model.graph.value_info:
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0] == batch and all(d.dim_value > 0 for d in dims[1:]):
            found[value.name] = value
    return found


def shorter(case):
    """An inner tensor as the only output, the earliest first."""
    values = known(case)
    for node in list(case.model.graph.node)[:-1]:
        for name in node.output:
            if name in values:
                proto = copied(case)
                del proto.graph.output[:]
                proto.graph.output.append(values[name])
                yield proto


def later(case):
    """An inner tensor as an input, the latest first."""
    values = known(case)
    for node in reversed(case.model.graph.node):
        for name in node.output:
            if name in values and values[name].type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
                proto = copied(case)
                maker = next(n for n in proto.graph.node if name in n.output)
                if len(maker.output) > 1:
                    continue
                proto.graph.node.remove(maker)
                proto.graph.input.append(values[name])
                yield proto


def bypassed(case):
    """A node left out, its readers reading what it read."""
    for place, node in enumerate(case.model.graph.node):
        constants = {t.name for t in case.model.graph.initializer}
        for source in dict.fromkeys(name for name in node.input if name and name not in constants):
            proto = copied(case)
            del proto.graph.node[place]
            for other in proto.graph.node:
                other.input[:] = [
                    source if name == node.output[0] else name for name in other.input
                ]
            if node.output[0] not in {value.name for value in proto.graph.output}:
                yield proto


def halved(case):
    """A size made half, or one less, wherever it occurs: constants, inputs, attributes."""
    sizes = {int(d) for t in case.model.graph.initializer for d in t.dims}
    sizes |= {d.dim_value for v in case.model.graph.input for d in v.type.tensor_type.shape.dim[1:]}
    for size in sorted(sizes - {0, 1}, reverse=True):
        for smaller in dict.fromkeys((size // 2, size - 1)):
            yield resized(case, size, smaller, every=True)
            yield resized(case, size, smaller, every=False)


def resized(case, size, smaller, every):
    """Return the model with one size in place of another; every : in constants of sizes and
    attributes too.
    """
    proto = copied(case)
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim[1:]:
            if dim.dim_value == size:
                dim.dim_value = smaller
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind == "f":
            array = array[tuple(slice(smaller) if d == size else slice(None) for d in array.shape)]
        elif every:
            array = np.where(array == size, smaller, array).astype(array.dtype)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
    for node in proto.graph.node if every else ():
        for attribute in node.attribute:
            if attribute.name in ("group", "hidden_size") and attribute.i == size:
                attribute.CopyFrom(helper.make_attribute(attribute.name, smaller))
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto
