"""Cases that people thought of: what a file, an option or a function may hold that no program
likes.
"""

import io
import json
import zipfile

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.robustness.case import Case, write_member
from tests.robustness.case_generators import read_valid_file

__all__ = ["LISTED"]

_QUICK = ["--calib", "d.npz", "--effort", "fast"]


def _float(change=None, call=("quantize", "m.onnx", *_QUICK), **files):
    """Return a case on our small convolutional net after `change`."""
    return _changed("conv.onnx", change, call, files)


def _integer(change=None, call=("simulate", "m.onnx", "--input", "d.npz"), **files):
    return _changed("conv_venus.onnx", change, call, files)


def _changed(name, change, call, files):
    model = onnx.ModelProto.FromString(read_valid_file(name))
    if change is not None:
        change(model)
    own = {
        "m.onnx": model.SerializeToString(),
        "d.npz": read_valid_file("conv.npz"),
        "f.onnx": read_valid_file("conv.onnx"),
        "data.bin": bytes(64),
    }
    return Case(
        list(call), {**own, **{key.replace("__", "."): value for key, value in files.items()}}
    )


def _external(**entries):
    def change(model):
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)

    return change


def _attribute(kind, name, value):
    """Give the first node of a kind another attribute."""

    def change(model):
        node = next(n for n in model.graph.node if n.op_type == kind)
        for old in [a for a in node.attribute if a.name == name]:
            node.attribute.remove(old)
        if value is not None:
            node.attribute.append(helper.make_attribute(name, value))

    return change


def _inputs(kind, count):
    def change(model):
        node = next(n for n in model.graph.node if n.op_type == kind)
        del node.input[count:]

    return change


def _weight(kind, array):
    """Put another constant in place of the weight of the first node of a kind."""

    def change(model):
        node = next(n for n in model.graph.node if n.op_type == kind)
        tensor = next(t for t in model.graph.initializer if t.name == node.input[1])
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    return change


def _behind(kind, outputs=1, **attributes):
    """Put a node behind the input of the graph."""

    def change(model):
        old = model.graph.input[0].name
        for node in model.graph.node:
            for place, name in enumerate(node.input):
                if name == old:
                    node.input[place] = "moved"
        new = helper.make_node(
            kind, [old], ["moved", *(f"more{i}" for i in range(1, outputs))], **attributes
        )
        model.graph.node.insert(0, new)

    return change


def _ends_in(kind, of, **attributes):
    """Let the output of the graph be what a further node makes of it: `of` is the type."""

    def change(model):
        new = helper.make_node(
            kind, [model.graph.output[0].name], ["last"], name="Last", **attributes
        )
        model.graph.node.append(new)
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name="last", type=of))

    return change


_TEXT = _ends_in(
    "Cast", helper.make_tensor_type_proto(onnx.TensorProto.STRING, None), to=onnx.TensorProto.STRING
)
_SEQUENCE = _ends_in(
    "SequenceConstruct", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
)


def _ends_in_uneven_sequence(model):
    """Let the output of the graph be a sequence of tensors of different shapes."""
    result = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
    _ends_in("SplitToSequence", result, axis=1)(model)
    model.graph.node[-1].input.append("pieces")
    size = model.graph.initializer[-1].dims[0]  # as many outputs as the last bias has elements
    array = np.array([1, size - 1], np.int64)
    model.graph.initializer.append(numpy_helper.from_array(array, "pieces"))


def _with(name, content, *call):
    return _float(None, ("quantize", "m.onnx", *_QUICK, *call), **{name: content})


def _plan(change):
    body = json.loads(read_valid_file("conv_plan.json"))
    change(body)
    return _with("p__json", json.dumps(body).encode(), "--plan", "p.json")


def _function(body, call=("quantize", "m.onnx", "--calib", "u.py:f", "--effort", "fast")):
    text = "import numpy as np\nclass Bad(Exception):\n    def __str__(self): raise ValueError\n"
    return _float(None, call, u__py=f"{text}def f(*a):\n    {body}\n".encode())


def _metric(body):
    return _function(body, ("evaluate", "f.onnx", "--data", "d.npz", "--metric", "u.py:f"))


def _npz(**arrays):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, array in arrays.items():
            held = io.BytesIO()
            np.save(held, array)
            write_member(file, f"{name}.npy", held.getvalue())
    return out.getvalue()


def _words(*words, environment=None):
    files = {
        "m.onnx": read_valid_file("conv.onnx"),
        "q.onnx": read_valid_file("conv_venus.onnx"),
        "d.npz": read_valid_file("conv.npz"),
        "o.bin": bytes(5),
    }
    return Case(list(words), files, environment or {})


_SIMULATE = ("simulate", "q.onnx", "--input", "d.npz")

LISTED = {
    # external data
    "NUL in a location": _float(_external(location="a\0b")),
    "a length of 2^40": _float(_external(location="data.bin", offset="0", length=str(2**40))),
    "an offset of 2^70": _float(_external(location="data.bin", offset=str(2**70), length="8")),
    "a negative length": _float(_external(location="data.bin", offset="0", length="-7")),
    "a length of 5,000 digits": _float(_external(location="data.bin", length="9" * 5000)),
    "an endless device": _float(_external(location="/dev/zero", length="8")),
    "a name too long": _float(_external(location="x" * 5000, length="8")),
    "no location": _float(_external(length="8")),
    # integer graphs
    **{
        f"{name} of {kind} is {value!r:.20}": _integer(_attribute(kind, name, value))
        for kind, name in (
            ("Conv2dInt", "strides"),
            ("Conv2dInt", "pads"),
            ("Conv2dInt", "group"),
            ("Conv2dInt", "scale_x"),
            ("Conv2dInt", "kernel_shape"),
            ("Quant", "data_bits"),
            ("Quant", "scale_x"),
            ("LinearInt", "scale_o"),
            ("LinearInt", "data_bits"),
            ("MaxPool", "strides"),
            ("Conv2dInt", "dilations"),
            ("iqAdd", "scale_y"),
        )
        for value in ("x", 2**62, -1, 0, [2**40, 1], 0.5, float("nan"), [1.0], None)
        if not (kind == "iqAdd" and value is None)
    },
    **{
        f"{kind} with {count} inputs": _integer(_inputs(kind, count))
        for kind in ("Conv2dInt", "LinearInt", "iqAdd", "Quant", "Dequant")
        for count in (0, 1)
    },
    **{
        f"weight {array.dtype} {array.shape} of {kind}": _integer(_weight(kind, array))
        for kind in ("Conv2dInt", "LinearInt")
        for array in (
            np.zeros((), np.int8),
            np.zeros(3, np.int8),
            np.zeros((0, 3, 3, 3), np.int8),
            np.zeros((2, 2), np.float32),
            np.zeros((8, 9, 3, 3), np.int8),
            np.zeros((8, 3, 0, 3), np.int8),
            np.array("x", object),
        )
    },
    # float graphs
    **{
        f"Transpose {perm}": _float(_behind("Transpose", perm=perm))
        for perm in (
            [0, 1, 2],
            [0, 0, 1, 2],
            [0, 1, 2, 9],
            [-1, 0, 1, 2],
            [0, 2, 3, 1],
            [2**40, 1, 2, 3],
        )
    },
    "NonZero": _float(_behind("NonZero")),
    "Unique": _float(_behind("Unique", 4)),
    "Unique along an axis": _float(_behind("Unique", 4, axis=1)),
    "NonZero in the API": _float(_behind("NonZero"), ("api", "quantize", "venus")),
    "a ModelProto": _float(None, ("api", "proto", "venus")),
    "an integer ModelProto": _integer(None, ("api", "proto", "venus")),
    "rows of a weight that are no multiple of the gates": _changed(
        "lstm_venus.onnx",
        _weight("LSTMInt", np.zeros((31, 6), np.int8)),
        ("convert", "m.onnx", "--to", "qdq", "-o", "q.onnx"),
        {},
    ),
    # outputs that are no numbers
    **{
        f"{what} as an output, {call[0]}": make(change, call)
        for what, change in (
            ("text", _TEXT),
            ("a sequence", _SEQUENCE),
            ("an uneven sequence", _ends_in_uneven_sequence),
        )
        for make, call in (
            (_float, ("quantize", "m.onnx", *_QUICK)),
            (_float, ("simulate", "m.onnx", "--input", "d.npz", "-o", "o.npz")),
            (_float, ("profile", "m.onnx", "--data", "d.npz", "-o", "p")),
            (_float, ("sensitivity", "m.onnx", "--calib", "d.npz", "-o", "s")),
            (_float, ("badcase", "m.onnx", "m.onnx", "--data", "d.npz")),
            (_float, ("compare", "m.onnx", "f.onnx", "--data", "d.npz", "-o", "c")),
        )
    },
    **{
        f"{what} as an output behind integers, {call[0]}": _integer(change, call)
        for what, change in (("text", _TEXT), ("a sequence", _SEQUENCE))
        for call in (
            ("simulate", "m.onnx", "--input", "d.npz"),
            ("profile", "m.onnx", "--data", "d.npz", "-o", "p"),
            ("deploy", "m.onnx", "--input", "d.npz", "-o", "out"),
        )
    },
    **{
        f"{kind} as an output, evaluate": _integer(
            change,
            ("evaluate", "m.onnx", "--baseline", "b.onnx", "--data", "d.npz"),
            b__onnx=_float(change).files["m.onnx"],
        )
        for kind, change in (
            ("a sum", _ends_in("ReduceSum", helper.make_tensor_type_proto(1, None), keepdims=0)),
            ("a shape", _ends_in("Shape", helper.make_tensor_type_proto(7, None))),
        )
    },
    # text files
    "YAML of brackets": _with("q__yaml", b"[" * 5000, "--config", "q.yaml"),
    "YAML with inf": _with("q__yaml", b"memory: .inf", "--config", "q.yaml"),
    "YAML with bits of 5,000 digits": _with(
        "q__yaml", b"bits: " + b"9" * 5000, "--config", "q.yaml"
    ),
    "YAML with a number of 300 digits": _with(
        "q__yaml", b"limit: " + b"9" * 300, "--config", "q.yaml"
    ),
    "YAML with a seed of 300 digits": _with(
        "q__yaml", b"seed: " + b"9" * 300, "--config", "q.yaml"
    ),
    "YAML that refers to itself": _with("q__yaml", b"skip: &a [*a]", "--config", "q.yaml"),
    "YAML that is a list": _with("q__yaml", b"- 1", "--config", "q.yaml"),
    "YAML with NUL": _with("q__yaml", b"bits: \0", "--config", "q.yaml"),
    "YAML with an override of inf": _with(
        "q__yaml", b"overrides: {t3: {scale: .inf}}", "--config", "q.yaml"
    ),
    "a plan of brackets": _with("p__json", b"[" * 100_000, "--plan", "p.json"),
    "a plan with a scale of inf": _plan(lambda b: b["tensors"]["t0"].update(scale=float("inf"))),
    "a plan with a scale of 2^-62": _plan(lambda b: b["tensors"]["t0"].update(scale=2.0**-62)),
    "a plan with a scale of 2^62": _plan(lambda b: b["tensors"]["k0"].update(scale=2.0**62)),
    "a plan with scales of 2^62": _plan(
        lambda b: [t.update(scale=2.0**62) for t in b["tensors"].values()]
    ),
    "a plan with scales of 2^-62": _plan(
        lambda b: [t.update(scale=2.0**-62) for t in b["tensors"].values()]
    ),
    "a plan with 10^400 bits": _plan(lambda b: b["tensors"]["t0"].update(bits=10**400)),
    "a plan with 5,000 digits": _with(
        "p__json", b'{"lingeronnx_plan": ' + b"9" * 5000 + b"}", "--plan", "p.json"
    ),
    "a plan with an axis": _plan(lambda b: b["tensors"]["k0"].update(scale=[1.0, 2.0], axis=2**40)),
    "a plan with a zero point": _plan(lambda b: b["tensors"]["t0"].update(zero_point=2**70)),
    "a plan with transforms": _plan(
        lambda b: b.update(transforms={"t0": {"factor": [0.0, float("nan")]}})
    ),
    "a plan without tensors": _plan(lambda b: b.update(tensors={})),
    # text files that are none
    "an endless plan": _words("quantize", "m.onnx", *_QUICK, "--plan", "/dev/zero"),
    "an endless configuration": _words("quantize", "m.onnx", *_QUICK, "--config", "/dev/zero"),
    # options
    "--image-size nan,2": _words(*_SIMULATE, "--image-size", "nan,2"),
    "--image-size inf,2": _words(*_SIMULATE, "--image-size", "inf,2"),
    "--image-size 0,0": _words(*_SIMULATE, "--image-size", "0,0"),
    "--min-sqnr inf": _words("quantize", "m.onnx", *_QUICK, "--min-sqnr", "inf"),
    "--min-sqnr nan": _words("quantize", "m.onnx", *_QUICK, "--min-sqnr", "nan"),
    "--budget nan": _words("quantize", "m.onnx", *_QUICK, "--min-sqnr", "10", "--budget", "nan"),
    "--max-drop inf": _words("quantize", "m.onnx", *_QUICK, "--max-drop", "inf", "--eval", "d.npz"),
    "--max-flash 10^30": _words(
        "quantize", "m.onnx", *_QUICK, "--min-sqnr", "10", "--max-flash", "1" + "0" * 30
    ),
    "--memory inf": _words("quantize", "m.onnx", *_QUICK, "--memory", "inf"),
    "--memory nan": _words("quantize", "m.onnx", *_QUICK, "--memory", "nan"),
    "--memory 1e-9": _words("quantize", "m.onnx", *_QUICK, "--memory", "1e-9"),
    "--bits 10^30": _words("quantize", "m.onnx", *_QUICK, "--bits", "1" + "0" * 30),
    "--seed 10^30": _words("quantize", "m.onnx", *_QUICK, "--seed", "1" + "0" * 30),
    "--batch 2^62": _words(*_SIMULATE, "--batch", str(2**62)),
    "--limit 2^70": _words(*_SIMULATE, "--limit", str(2**70)),
    "--samples 2^62": _words("deploy", "q.onnx", "-o", "out", "--samples", str(2**62)),
    "--sample 2^62": _words(
        "verify", "q.onnx", "--input", "d.npz", "--device-output", "o.bin", "--sample", str(2**62)
    ),
    "--batch-axis of 5,000 digits": _words(
        "quantize", "m.onnx", *_QUICK, "--batch-axis", "x=" + "9" * 5000
    ),
    "--batch-axis 99": _words("quantize", "m.onnx", *_QUICK, "--batch-axis", "x=99"),
    "--batch-axis of another script": _words("quantize", "m.onnx", *_QUICK, "--batch-axis", "x=٣"),
    "--fix nan": _words("quantize", "m.onnx", "--effort", "fast", "--fix", "x=nan"),
    "a lone quote": _words("check", "q.onnx", "--packer-args", "'"),
    "a lone quote for verify": _words(
        "verify", "q.onnx", "--input", "d.npz", "--device-output", "o.bin", "--packer-args", '"'
    ),
    "threads abc": _words(*_SIMULATE, environment={"LINGERONNX_THREADS": "abc"}),
    "threads abc, float": _words(
        "quantize", "m.onnx", *_QUICK, environment={"LINGERONNX_THREADS": "abc"}
    ),
    "10^9 threads": _words(*_SIMULATE, environment={"LINGERONNX_THREADS": "1" + "0" * 9}),
    "rows of nobody": _words(*_SIMULATE, environment={"LINGERONNX_SIMD": "abc"}),
    "NUL in a path": _words("api", "path", "a\0b"),
    "NUL in data": _words("api", "data", "a\0b"),
    "a path too long": _words("simulate", "x" * 5000, "--input", "d.npz"),
    "a selector that is no pattern": _words("quantize", "m.onnx", *_QUICK, "--skip", "["),
    "an override of inf": _words("quantize", "m.onnx", *_QUICK, "--override", "t3=scale:inf"),
    "an override of 2^999": _words("quantize", "m.onnx", *_QUICK, "--override", "t3=scale:2^999"),
    "a pattern without an end": _words(
        "analyze", "outputs", "m.onnx", "--data", "d.npz", "--match", "("
    ),
    # functions
    "an exception without a text": _function("raise Bad"),
    "SystemExit": _function("raise SystemExit(0)"),
    "a module that exits": _words("simulate", "q.onnx", "--input", "u.py:f"),
    "a batch of 2^33 rows": _function("return [np.broadcast_to(np.float32(0), (2**33, 3, 8, 8))]"),
    "a batch of 2^33 integers": _function(
        "return [np.broadcast_to(np.uint8(0), (2**33, 3, 8, 8))]"
    ),
    "a metric without a text": _metric("raise Bad"),
    "a metric that exits": _metric("raise SystemExit(0)"),
    "a metric of nothing": _metric("return None"),
    "a metric of a list": _metric("return [1, 2]"),
    "a metric of nan": _metric("return float('nan')"),
    "data of None": _function("return None"),
    "data of objects": _function("return [object()]"),
    "a generator of nothing": _function("return iter(())"),
    # checkpoints
    "an empty checkpoint": Case(
        ["checkpoint", "a.pt", "-o", "b.pt", "--to", "torch"], {"a.pt": b""}
    ),
    "a checkpoint of text": Case(["analyze", "weights", "a.pt"], {"a.pt": b"text"}),
    "a folder as a checkpoint": Case(["analyze", "weights", "a.pt"], {"a.pt/x": b""}),
    "an empty zip as a checkpoint": Case(
        ["analyze", "weights", "a.pt"], {"a.pt": b"PK\5\6" + bytes(18)}
    ),
    # data
    "labels of text": _float(
        None,
        ("evaluate", "m.onnx", "--data", "l.npz"),
        l__npz=_npz(x=np.zeros((2, 3, 8, 8), "f4"), labels=np.array(["cat", "dog"])),
    ),
    "labels for a single number": _float(
        _ends_in("ReduceSum", helper.make_tensor_type_proto(1, []), keepdims=0),
        ("evaluate", "m.onnx", "--data", "l.npz"),
        l__npz=_npz(x=np.zeros((2, 3, 8, 8), "f4"), labels=np.array([0, 1])),
    ),
    "labels for text": _float(
        _TEXT,
        ("evaluate", "m.onnx", "--data", "l.npz"),
        l__npz=_npz(x=np.zeros((2, 3, 8, 8), "f4"), labels=np.array([0, 1])),
    ),
    "labels of 2^62": _float(
        None,
        ("evaluate", "m.onnx", "--data", "l.npz"),
        l__npz=_npz(x=np.zeros((2, 3, 8, 8), "f4"), labels=np.array([2**62, -1])),
    ),
}
