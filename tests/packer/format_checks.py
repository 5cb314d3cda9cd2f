"""What the packer refuses in names, attributes, order and types, before any operator is looked
at.
"""

import math

from onnx import TensorProto

from tests.packer.graph import Refused, attributes

CONV = (
    "data_bits",
    "parameter_bits",
    "o_bits",
    "kernel_shape",
    "pads",
    "strides",
    "dilations",
    "group",
    "scale_x",
    "scale_w",
    "scale_o",
)
POOL = ("kernel_shape", "pads", "strides")
NEEDED = {
    "Quant": ("scale_x", "data_bits"),
    "Dequant": ("scale_o",),
    "Requant": ("scale_x", "scale_o", "data_bits", "o_bits"),
    "Conv1dInt": CONV,
    "Conv2dInt": CONV,
    "ConvTranspose2dInt": CONV,
    "LinearInt": ("data_bits", "parameter_bits", "o_bits", "scale_x", "scale_w", "scale_o"),
    "AvgPool2dInt": (*POOL, "ceil_mode", "scale_x", "scale_o"),
    "MaxPool": POOL,
    "BatchNorm2dInt": ("scale_x", "scale_w", "scale_o"),
    "LayerNormInt": ("scale_x", "scale_w", "scale_o"),
    "GluInt": ("dim", "o_bits", "scale_x", "scale_o"),
    "SoftmaxInt": ("scale_x", "scale_o"),
    "iqCat": ("scale_o",),
    "BmmInt": ("scale_x", "scale_o"),
    "iqMul": ("scale_x",),
    "LSTMInt": (
        "batch_first",
        "hidden_size",
        "input_size",
        "scale_x",
        "scale_iw",
        "scale_hw",
        "scale_o",
        "scale_h",
    ),
    "iqAdd": ("scale_x", "scale_y", "scale_o"),
    "iqSub": ("scale_x", "scale_y", "scale_o"),
    "iqSigmoid": ("scale_x", "scale_o"),
    "iqTanh": ("scale_x", "scale_o", "platform_quant"),
    "iqPad": ("mode",),
    "Transpose": ("perm",),
    "Split": ("axis", "dims"),
}
BOTH_MODES = ("Conv1dInt", "Conv2dInt", "ConvTranspose2dInt", "LinearInt", "LSTMInt")
VENUS_MODE = (*BOTH_MODES, "BmmInt", "iqAdd", "iqSub", "iqMul")
OTHER_MODE = (*BOTH_MODES, "Requant")
KNOWN = (
    *NEEDED,
    "Relu",
    "Prelu",
    "Clip",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Gather",
    "Resize",
    "Tile",
    "Expand",
    "GRUInt",
    "Constant",
)
ONLY_VENUS = ("Resize",)


def names(model):
    """Names the packer cannot hold; tensors that vanish (constants, around Quant and Dequant) are
    free.
    """
    graph = model.graph
    consts = {t.name for t in graph.initializer} | {
        n.output[0] for n in graph.node if n.op_type == "Constant"
    }
    vanish = {name for n in graph.node if n.op_type == "Quant" for name in n.output}
    vanish |= {name for n in graph.node if n.op_type == "Dequant" for name in n.output}
    inputs = [v.name for v in graph.input if v.name not in consts]
    kept = [
        *inputs,
        *(name for n in graph.node for name in n.output if name and name not in vanish | consts),
    ]
    for name in inputs:
        if "@" in name:
            raise Refused(f"graph input '{name}': its name is cut at '@'")
    for node in graph.node:
        if node.op_type == "Dequant" and "@" in node.input[0]:
            raise Refused(f"'{node.input[0]}' becomes a graph output and its name is cut at '@'")
        for name in node.input:
            if name.startswith("Scale"):
                raise Refused(f"'{name}' is read under a name that begins with 'Scale'")
    cut = [name.split("@")[0] for name in kept]
    if len(cut) != len(set(cut)):
        raise Refused("two tensors have one name, or share the part before '@'")
    labels = [n.name or f"{n.op_type}_{n.output[0]}" for n in graph.node if n.op_type != "Constant"]
    made = [
        label
        for label, n in zip(labels, (n for n in graph.node if n.op_type != "Constant"), strict=True)
        if not n.name
    ]
    for label in made:
        if labels.count(label) > 1:
            raise Refused(f"node name '{label}' exists twice")


def platform(model, wanted):
    """One platform in the whole graph, and the wanted one; none stands for venus."""
    found = {
        attributes(n)["platform"] for n in model.graph.node if "platform" in attributes(n)
    } or {"venus"}
    if len(found) > 1:
        raise Refused(f"two platforms in one graph: {sorted(found)}")
    if found != {wanted}:
        raise Refused(f"the graph is for {found.pop()}, not for {wanted}")


def order(graph):
    """Every node reads what an earlier one wrote; every graph input is read; a constant remains."""
    ready = {*graph.inputs, *(name for name, t in graph.tensors.items() if t.const is not None)}
    for node in graph.nodes:
        for name in node.inputs:
            if name and name not in ready:
                raise Refused(f"{node.name} reads '{name}', which no earlier node wrote")
        ready |= set(node.outputs)
    for name in graph.inputs:
        if not graph.readers(name):
            raise Refused(f"graph input '{name}' is read by nobody")
    used = {
        name for node in graph.nodes if node.op not in ("Quant", "Dequant") for name in node.inputs
    }
    if not any(t.const is not None and name in used for name, t in graph.tensors.items()):
        raise Refused("the graph holds no constant")


def needed(op, platform, inputs):
    """Return the names of the attributes that node type `op` with that many inputs may not lack."""
    names = list(NEEDED.get(op, ()))
    if platform == "venus":
        names += ["platform_quant"] * (op in VENUS_MODE)
        names += ["dim"] * (op == "SoftmaxInt") + ["output_padding"] * (op == "ConvTranspose2dInt")
    else:
        names += ["quant_mode"] * (op in OTHER_MODE) + ["platform"] * (op == "iqSigmoid")
        names += ["axis"] * (op == "SoftmaxInt")
    if op == "iqCat":
        names += ["dim", *(f"scale_x_{i}" for i in range(inputs))]
    return names


def operators(graph, platform):
    """Known operators with all they need."""
    for node in graph.nodes:
        if node.op not in KNOWN:
            raise Refused(f"{node.op} {node.name}: no such operator")
        if node.op == "Clip" or (node.op in ONLY_VENUS and platform != "venus"):
            raise Refused(f"{node.op} {node.name}: not on {platform}")
        cat = node.op == "iqCat" and "dim" not in node.attrs and "axis" in node.attrs
        missing = [
            key for key in needed(node.op, platform, len(node.inputs)) if key not in node.attrs
        ]
        if missing and not (cat and missing == ["dim"]):
            raise Refused(f"{node.op} {node.name}: attribute {missing[0]} is missing")
        if node.op in ("Squeeze", "Unsqueeze") and len(node.inputs) > 1:
            raise Refused(f"{node.op} {node.name}: its axes must be an attribute")
        for key, value in node.attrs.items():
            if key.startswith("scale_") and math.frexp(value)[0] != 0.5:
                raise Refused(f"{node.op} {node.name}: {key} = {value} is no power of 2")


def scales(graph):
    """Readers name the scale their input was written at; an unknown or unset scale (0.5) passes in
    some.
    """
    for node in graph.nodes:
        reads = {0: "scale_x", 1: "scale_y"}
        if node.op == "Quant":
            continue
        if node.op == "Dequant":
            reads = {0: "scale_o"}
        if node.op == "iqCat":
            reads = {i: f"scale_x_{i}" for i in range(len(node.inputs))}
        for index, key in reads.items():
            if key in node.attrs and index < len(node.inputs):
                tensor = graph.tensors[node.inputs[index]]
                if (
                    tensor.const is None
                    and tensor.scale is not None
                    and tensor.scale != node.attrs[key]
                ):
                    raise Refused(
                        f"{node.op} {node.name}: {key} = {node.attrs[key]} reads '{tensor.name}' "
                        "that was "
                        f"written at {tensor.scale}"
                    )


def inputs(model):
    """A graph input without a Quant must be int8 if an integer operator reads it."""
    floats = {
        v.name for v in model.graph.input if v.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    for node in model.graph.node:
        if node.op_type.endswith("Int") and node.input[0] in floats:
            raise Refused(f"{node.op_type} {node.name}: its input '{node.input[0]}' is not int8")
