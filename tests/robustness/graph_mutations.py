"""The first grammar for models: changes of an ONNX graph by one who knows what its parts mean.

A change takes a protobuf model and random numbers and changes the model in place. What protobuf
itself refuses raises TypeError or ValueError, and is no file then.
"""

import copy

import numpy as np
from onnx import AttributeProto, TensorProto, checker, helper, numpy_helper

from tests.robustness.values import FLOATS, INTS, TEXTS, pick

__all__ = ["CHANGES", "mutate_model"]

_STANDARD = (
    "Relu",
    "Conv",
    "Gemm",
    "MatMul",
    "Reshape",
    "Transpose",
    "Concat",
    "LSTM",
    "GRU",
    "RNN",
    "Gather",
    "Softmax",
    "QuantizeLinear",
    "DequantizeLinear",
    "MaxPool",
    "AveragePool",
    "Clip",
    "Pad",
    "Split",
    "Cast",
    "Resize",
    "NonZero",
    "Unique",
    "TopK",
    "Where",
    "Expand",
    "Tile",
    "Slice",
    "Squeeze",
    "Unsqueeze",
    "Shape",
    "Range",
    "BatchNormalization",
    "LayerNormalization",
    "InstanceNormalization",
    "ConvTranspose",
    "Einsum",
    "Loop",
    "If",
    "Scan",
    "NonMaxSuppression",
    "CumSum",
    "ScatterND",
    "GatherND",
    "ReduceMean",
    "ReduceSum",
    "ArgMax",
    "Pow",
    "Div",
    "Mod",
    "QLinearConv",
    "QLinearMatMul",
    "ConvInteger",
    "DynamicQuantizeLinear",
    "Compress",
    "DepthToSpace",
    "SpaceToDepth",
    "Identity",
    "Flatten",
    "OneHot",
    "EyeLike",
    "RandomNormal",
    "StringNormalizer",
    "SequenceConstruct",
    "SequenceAt",
    "Optional",
    "Dropout",
    "Constant",
    "ConstantOfShape",
    "GridSample",
    "STFT",
    "DFT",
    "Bernoulli",
    "Trilu",
    "GlobalAveragePool",
    "Attention",
    "Nothing",
)
_OURS = (
    "Quant",
    "Dequant",
    "Requant",
    "Conv2dInt",
    "Conv1dInt",
    "ConvTranspose2dInt",
    "LinearInt",
    "BatchNorm2dInt",
    "LSTMInt",
    "GRUInt",
    "iqAdd",
    "iqMul",
    "iqSub",
    "iqDiv",
    "iqCat",
    "iqSum",
    "iqSigmoid",
    "iqTanh",
    "SoftmaxInt",
    "LayerNormInt",
    "BmmInt",
    "AvgPool2dInt",
    "ReluX",
    "iqVar",
    "GluInt",
    "QConv2d",
    "QLinear",
    "QAdd",
    "QGRU",
)
_NAMES = (
    "pads",
    "strides",
    "kernel_shape",
    "dilations",
    "group",
    "axis",
    "axes",
    "perm",
    "auto_pad",
    "epsilon",
    "transB",
    "keepdims",
    "value",
    "value_int",
    "value_ints",
    "to",
    "mode",
    "alpha",
    "ceil_mode",
    "scale_x",
    "scale_w",
    "scale_o",
    "scale_y",
    "data_bits",
    "o_bits",
    "parameter_bits",
    "x_bits",
    "w_bits",
    "zero_point_x",
    "zero_point_o",
    "platform",
    "quant_mode",
    "hidden_size",
    "direction",
    "layout",
    "go_forward",
    "batch_first",
    "equation",
    "body",
    "then_branch",
    "allowzero",
    "block_size",
    "dim",
    "output_padding",
    "num_outputs",
    "scale_h",
    "scale_iw",
    "scale_hw",
    "axis_w",
    "activations",
    "split",
    "starts",
    "ends",
)
_DOMAINS = (
    "",
    "ai.onnx",
    "thinker",
    "linger",
    "ai.onnx.ml",
    "com.microsoft",
    "lingeronnx",
    "nobody",
    "\n",
)
_LOCATIONS = (
    "",
    ".",
    "..",
    "a\0b",
    "/dev/zero",
    "/etc/hostname",
    "missing.bin",
    "data.bin",
    "data.bin",
    "../data.bin",
    "m.onnx",
    "x" * 300,
    "é",
    "/proc/self/mem",
    "data.bin/x",
    "~/x",
)
_NUMBERS = (
    "0",
    "-1",
    "1",
    "8",
    "4096",
    str(2**40),
    str(2**63),
    str(2**64),
    "9" * 5000,
    "",
    "x",
    "1.5",
    " 1",
    "inf",
    "٣",
)


_NO_FILE = (
    ValueError,
    TypeError,
    IndexError,
    OverflowError,
    KeyError,
    OSError,
    RuntimeError,
    checker.ValidationError,
)


def mutate_model(model, rng, count):
    """Return a copy of `model` after `count` changes; what cannot be done is left out."""
    found = copy.deepcopy(model)
    for _ in range(count):
        before = copy.deepcopy(found)
        try:
            pick(rng, CHANGES)(found, rng)
            found.SerializeToString()
        except (
            ValueError,
            TypeError,
            IndexError,
            OverflowError,
            KeyError,
            OSError,
            RuntimeError,
            checker.ValidationError,
        ):
            found = before
    return found


def _node(model, rng):
    return pick(rng, model.graph.node)


def _tensor(model, rng):
    return pick(rng, model.graph.initializer)


def _names(model):
    made = [name for node in model.graph.node for name in (*node.input, *node.output)]
    return [*made, *(t.name for t in model.graph.initializer), *(v.name for v in model.graph.input)]


def _value(rng, old=None):
    """Return something that an attribute could hold, often of the kind that it has."""
    kind = old.type if old is not None and rng.integers(3) else int(rng.integers(1, 9))
    if kind == AttributeProto.FLOAT:
        return float(np.float32(pick(rng, FLOATS[:-1])))
    if kind == AttributeProto.INT:
        return pick(rng, INTS)
    if kind == AttributeProto.STRING:
        return pick(rng, TEXTS)
    if kind == AttributeProto.INTS:
        return [pick(rng, INTS) for _ in range(int(rng.integers(1, 7)))]
    if kind == AttributeProto.FLOATS:
        return [float(pick(rng, FLOATS[:-1])) for _ in range(int(rng.integers(1, 5)))]
    if kind == AttributeProto.STRINGS:
        return [pick(rng, TEXTS) for _ in range(2)]
    if kind == AttributeProto.TENSOR:
        return numpy_helper.from_array(_array(rng))
    return helper.make_graph(
        [helper.make_node("Relu", ["x"], ["inner"])],
        "inner",
        [],
        [helper.make_tensor_value_info("inner", 1, None)],
    )


def _array(rng):
    shape = pick(rng, [(), (0,), (1,), (2,), (4,), (2, 3), (1, 1, 1), (3, 3, 3, 3)])
    kind = pick(
        rng,
        [
            np.float32,
            np.float64,
            np.float16,
            np.int8,
            np.int16,
            np.int32,
            np.int64,
            np.uint8,
            np.bool_,
        ],
    )
    if kind in (np.float32, np.float64, np.float16):
        with np.errstate(all="ignore"):
            return np.full(shape, pick(rng, FLOATS)).astype(kind)
    info = (0, 1) if kind is np.bool_ else (np.iinfo(kind).min, np.iinfo(kind).max)
    return np.full(shape, pick(rng, [*info, *info, 0, 1])).astype(kind)


def attribute_value(model, rng):
    """Another value for an attribute that is there: a list of another length, or another number in
    it, too.
    """
    node = _node(model, rng)
    attribute = pick(rng, node.attribute)
    held = getattr(attribute, "ints" if attribute.type == AttributeProto.INTS else "floats")
    if len(held) and rng.integers(2):
        if rng.integers(2):
            held[int(rng.integers(len(held)))] = pick(
                rng, INTS if attribute.type == AttributeProto.INTS else FLOATS[:-1]
            )
        elif rng.integers(2):
            held.pop()
        else:
            held.append(held[0])
        return
    attribute.CopyFrom(helper.make_attribute(attribute.name, _value(rng, attribute)))


def attribute_added(model, rng):
    """An attribute of a name that some operator knows."""
    node, name = _node(model, rng), pick(rng, _NAMES)
    for old in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(old)
    node.attribute.append(helper.make_attribute(name, _value(rng)))


def attribute_gone(model, rng):
    """An attribute less, twice, without its type, or empty."""
    node = _node(model, rng)
    index = int(rng.integers(len(node.attribute)))
    way = rng.integers(4)
    if way == 0:
        node.attribute.append(node.attribute[index])
    elif way == 1:
        node.attribute[index].type = int(rng.integers(0, 16))
    else:
        node.attribute.pop(index)


def operator(model, rng):
    """Another operator, or another domain."""
    node = _node(model, rng)
    if rng.integers(3):
        node.op_type = pick(rng, _STANDARD if rng.integers(2) else _OURS)
        if rng.integers(2):
            node.domain = "thinker" if node.op_type in _OURS else ""
    else:
        node.domain = pick(rng, _DOMAINS)


def inserted(model, rng):
    """A node of any operator between a tensor and those who read it."""
    index = int(rng.integers(len(model.graph.node)))
    node = model.graph.node[index]
    old = node.output[0]
    node.output[0] = f"{old}_before"
    kind = pick(rng, _STANDARD if rng.integers(3) else _OURS)
    extra = [pick(rng, _names(model)) for _ in range(int(rng.integers(3)))]
    new = helper.make_node(
        kind, [node.output[0], *extra], [old], domain="thinker" if kind in _OURS else ""
    )
    for _ in range(int(rng.integers(3))):
        new.attribute.append(helper.make_attribute(pick(rng, _NAMES), _value(rng)))
    model.graph.node.insert(index + 1, new)


def wiring(model, rng):
    """Another name for an input or output of a node; one more or less; two of them exchanged."""
    node = _node(model, rng)
    side = node.input if rng.integers(3) else node.output
    way = rng.integers(5)
    if way == 0:
        side.append(pick(rng, [*_names(model), "", "nowhere"]))
    elif way == 1:
        side.pop(int(rng.integers(len(side))))
    elif way == 2 and len(side) > 1:
        side[0], side[1] = side[1], side[0]
    elif way == 3:
        del side[:]
    else:
        side[int(rng.integers(len(side)))] = pick(rng, [*_names(model), "", "nowhere"])


def nodes(model, rng):
    """A node less, twice, or elsewhere."""
    index = int(rng.integers(len(model.graph.node)))
    node = copy.deepcopy(model.graph.node[index])
    way = rng.integers(4)
    if way == 0:
        model.graph.node.append(node)
    else:
        del model.graph.node[index]
        if way == 1:
            model.graph.node.insert(int(rng.integers(len(model.graph.node) + 1)), node)
        elif way == 2 and node.input:
            for other in model.graph.node:
                for place, name in enumerate(other.input):
                    if name in node.output:
                        other.input[place] = node.input[0]


def dims(model, rng):
    """Sizes of a constant, with or without data that fit them."""
    tensor = _tensor(model, rng)
    array = numpy_helper.to_array(tensor)
    way = rng.integers(6)
    if way == 0:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = pick(rng, INTS)
    elif way == 1:
        tensor.dims.append(1)
    elif way == 2:
        tensor.CopyFrom(numpy_helper.from_array(array.reshape(-1), tensor.name))
    elif way == 3:
        tensor.CopyFrom(numpy_helper.from_array(array.T.copy(), tensor.name))
    elif way == 4:
        axis = int(rng.integers(array.ndim))
        keep = int(rng.integers(0, array.shape[axis] + 1))
        tensor.CopyFrom(numpy_helper.from_array(np.take(array, np.arange(keep), axis), tensor.name))
    else:
        tensor.CopyFrom(numpy_helper.from_array(_array(rng), tensor.name))


def numbers(model, rng):
    """Values of a constant, and their type."""
    tensor = _tensor(model, rng)
    array = numpy_helper.to_array(tensor).copy()
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        if array.dtype.kind == "f":
            flat[: max(1, flat.size // int(rng.integers(1, 4)))] = pick(rng, FLOATS)
        elif array.dtype.kind in "iu":
            info = np.iinfo(array.dtype)
            flat[int(rng.integers(flat.size))] = max(info.min, min(info.max, pick(rng, INTS)))
        kind = pick(
            rng,
            [array.dtype] * 4
            + [np.dtype(n) for n in ("f8", "f2", "i1", "i2", "i4", "i8", "u1", "?")],
        )
        tensor.CopyFrom(
            numpy_helper.from_array(flat.reshape(array.shape).astype(kind), tensor.name)
        )


def stored(model, rng):
    """How a constant is stored: cut, in another field, of another type, in a file, or as a graph
    input too.
    """
    tensor = _tensor(model, rng)
    way = rng.integers(6)
    if way == 0:
        tensor.raw_data = tensor.raw_data[: int(rng.integers(len(tensor.raw_data) + 1))]
    elif way == 1:
        tensor.data_type = int(rng.integers(0, 30))
    elif way == 2:
        tensor.float_data.append(1.0)
    elif way == 3:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    elif way == 4:
        tensor.name = pick(rng, [*_names(model), *TEXTS])
    else:
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", pick(rng, _LOCATIONS)),
            ("offset", pick(rng, _NUMBERS)),
            ("length", pick(rng, _NUMBERS)),
        ):
            if rng.integers(4):
                tensor.external_data.add(key=key, value=value)
        if rng.integers(2):
            tensor.ClearField("raw_data")


def ends(model, rng):
    """Type, sizes and number of graph inputs and outputs."""
    side = pick(rng, [model.graph.input, model.graph.output, model.graph.value_info])
    value = pick(rng, side)
    way = rng.integers(7)
    shape = value.type.tensor_type.shape
    if way == 0:
        shape.dim[int(rng.integers(len(shape.dim)))].dim_value = pick(rng, INTS)
    elif way == 1:
        shape.dim[int(rng.integers(len(shape.dim)))].dim_param = pick(rng, TEXTS)
    elif way == 2:
        value.type.tensor_type.elem_type = int(rng.integers(0, 30))
    elif way == 3:
        value.type.tensor_type.ClearField("shape")
    elif way == 4:
        side.append(copy.deepcopy(value))
        side[-1].name = pick(rng, [*_names(model), "nowhere"])
    elif way == 5:
        side.remove(value)
    else:
        kind = pick(rng, ["sequence_type", "optional_type", "map_type", "sparse_tensor_type"])
        getattr(value.type, kind).SetInParent()


def named(model, rng):
    """A hostile name for a tensor, everywhere; for a node; for the graph."""
    old, new = pick(rng, _names(model)), pick(rng, TEXTS)
    if not rng.integers(3):
        _node(model, rng).name = new
        return
    for node in model.graph.node:
        for side in (node.input, node.output):
            for place, name in enumerate(side):
                if name == old:
                    side[place] = new
    for value in (
        *model.graph.input,
        *model.graph.output,
        *model.graph.value_info,
        *model.graph.initializer,
    ):
        if value.name == old:
            value.name = new


def header(model, rng):
    """Versions, opsets and metadata."""
    way = rng.integers(5)
    if way == 0:
        pick(rng, model.opset_import).version = pick(
            rng, (-1, 0, 1, 6, 7, 9, 10, 11, 12, 15, 18, 21, 23, 99, 2**40)
        )
    elif way == 1:
        pick(rng, model.opset_import).domain = pick(rng, _DOMAINS)
    elif way == 2:
        model.ir_version = pick(rng, (0, -1, 1, 3, 99, 2**60))
    elif way == 3:
        pick(rng, model.metadata_props).value = pick(
            rng, (*TEXTS, "{}", "[]", "{" * 3000, '{"tensors": 1}', "null")
        )
    else:
        key = pick(
            rng,
            (
                "lingeronnx.platform",
                "lingeronnx.names",
                "lingeronnx.made",
                "lingeronnx.states",
                "x",
            ),
        )
        value = pick(
            rng,
            (
                *TEXTS,
                "generic",
                "{}",
                '{"tensors": {"y": "x"}, "nodes": {}}',
                '{"tensors": {"y": 1}}',
                "[" * 3000,
            ),
        )
        helper.set_model_props(
            model, {**{p.key: p.value for p in model.metadata_props}, key: value}
        )


def inside(model, rng):
    """A node in a branch, in a loop, or in a function that calls functions."""
    index = int(rng.integers(len(model.graph.node)))
    node = copy.deepcopy(model.graph.node[index])
    outs = [helper.make_tensor_value_info(name, 1, None) for name in node.output]
    way = rng.integers(3)
    if way == 0:
        body = helper.make_graph([node], "body", [], outs)
        new = helper.make_node(
            "If", [pick(rng, _names(model))], list(node.output), then_branch=body, else_branch=body
        )
    elif way == 1:
        body = helper.make_graph(
            [node, helper.make_node("Identity", ["c"], ["c_out"])],
            "body",
            [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("c", 9, [])],
            [helper.make_tensor_value_info("c_out", 9, []), *outs],
        )
        model.graph.initializer.append(
            numpy_helper.from_array(np.array(pick(rng, (0, 1, 3, 1000, 2**62))), "trips")
        )
        new = helper.make_node("Loop", ["trips", ""], list(node.output), body=body)
    else:
        reads = list(dict.fromkeys(filter(None, node.input)))
        model.functions.append(
            helper.make_function(
                "mine",
                "F0",
                reads,
                list(node.output),
                [node],
                [copy.copy(o) for o in model.opset_import],
            )
        )
        if rng.integers(3) == 0:
            model.functions[0].node[0].op_type, model.functions[0].node[0].domain = "F0", "mine"
        model.opset_import.append(helper.make_opsetid("mine", 1))
        new = helper.make_node("F0", reads, list(node.output), domain="mine")
    model.graph.node[index].CopyFrom(new)


CHANGES = (
    attribute_value,
    attribute_value,
    attribute_added,
    attribute_gone,
    operator,
    inserted,
    wiring,
    wiring,
    nodes,
    dims,
    dims,
    numbers,
    stored,
    stored,
    ends,
    named,
    header,
    inside,
)
