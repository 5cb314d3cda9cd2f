"""Float operators in torch against onnx's own node tests and onnxruntime; tolerance 1e-5 relative,
1e-6 absolute.
"""

import itertools
import warnings
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir
from lingeronnx.runtime.runners import FloatFallback
from simulator.kernel import TensorSpec
from tests.case_selection import limit_examples

torch = pytest.importorskip("torch")

from lingeronnx.torch.fake_quant.common import FakeQuantContext  # noqa: E402
from lingeronnx.torch.qat.float_fallback import FLOAT_OPERATORS, TorchFallback  # noqa: E402

RTOL, ATOL = 1e-5, 1e-6
few = limit_examples(25, derandomize=True)

#: onnx's cases that are not computed as they stand there, and why.
APART = {
    "averagepool_2d_ceil_last_window_starts_on_pad": "its data are written down with four digits",
    "resize_downsample_scales_linear_align_corners": (
        "onnxruntime, which runs islands, computes something else: below"
    ),
    "resize_downsample_scales_cubic_align_corners": "as the one before",
    "batchnorm_example_training_mode": "refused: training mode",
    "batchnorm_epsilon_training_mode": "refused: training mode",
    **{
        f"{name}_batchwise": "refused: layout 1, which a pass turns"
        for name in ("gru", "lstm", "simple_rnn")
    },
    **{
        f"training_dropout{name}": "refused: training mode"
        for name in ("", "_mask", "_default", "_default_mask")
    },
}

#: Operators that no gradient goes through: they give indices, truths, steps, or what only shapes decide.
FLAT = {
    "And",
    "ArgMax",
    "ArgMin",
    "Cast",
    "Ceil",
    "ConstantOfShape",
    "Equal",
    "EyeLike",
    "Floor",
    "Greater",
    "GreaterOrEqual",
    "Hardmax",
    "IsInf",
    "IsNaN",
    "Less",
    "LessOrEqual",
    "Not",
    "OneHot",
    "Or",
    "Range",
    "Round",
    "Shape",
    "Sign",
    "Size",
    "Xor",
}


def run(model, arrays, outputs=None):
    """Return the model's outputs, or `outputs`, as an island with these nodes computes them in
    torch.
    """
    names = [value.name for value in model.graph.input]
    outputs = outputs or [value.name for value in model.graph.output]
    fallback = SimpleNamespace(
        proto=model, inputs=names, outputs=outputs, needs_single_samples=lambda arrays: False
    )
    tensors = [a if torch.is_tensor(a) else torch.from_numpy(np.array(a)) for a in arrays]
    return TorchFallback(fallback)(fallback, tensors, FakeQuantContext([]))


def close(got, want, rtol=RTOL, atol=ATOL):
    got = got.detach().numpy()
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype == np.float16:
        rtol, atol = 2e-3, 1e-3
    if want.dtype.kind == "f":
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol
        )
    else:
        np.testing.assert_array_equal(got, want)


def single(op_type, arrays, outputs=1, opset=17, names=None, **attributes):
    """Return a model of one node; an array of None is an absent input."""
    inputs = [("" if a is None else f"i{n}") for n, a in enumerate(arrays)]
    infos = [
        helper.make_tensor_value_info(f"i{n}", helper.np_dtype_to_tensor_dtype(a.dtype), None)
        for n, a in enumerate(arrays)
        if a is not None
    ]
    names = names or [f"o{n}" for n in range(outputs)]
    node = helper.make_node(op_type, inputs, names, name="it", **attributes)
    results = [onnx.ValueInfoProto(name=n) for n in names if n]
    graph = helper.make_graph([node], "g", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def reference(model, arrays):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {v.name: a for v, a in zip(session.get_inputs(), arrays, strict=True)})


def agrees(op_type, arrays, sums_products=False, **options):
    """Assert that torch computes the outputs of onnxruntime.

    With `sums_products` the absolute tolerance is relative to the largest output: sums of large
    terms that cancel keep the rounding error of the terms.
    """
    model, fed = single(op_type, arrays, **options), [a for a in arrays if a is not None]
    for got, want in zip(run(model, fed), reference(model, fed), strict=True):
        largest = float(np.abs(want).max(initial=1.0)) if sums_products else 1.0
        close(got, want, atol=ATOL * largest)


@pytest.fixture(scope="module")
def cases():
    """Return onnx's node cases that are made of operators in the table, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx overflows on purpose
        from onnx.backend.test.case.node import collect_testcases

        found = {case.name.removeprefix("test_"): case for case in collect_testcases()}
    return {name: case for name, case in found.items() if case.model is not None and _known(case)}


def _known(case):
    kinds = {(n.domain, n.op_type) for n in case.model.graph.node}
    arrays = [a for data in case.data_sets for side in data for a in side]
    return kinds <= {("", name) for name in (*FLOAT_OPERATORS, "Constant")} and all(
        map(_usual, arrays)
    )


def _usual(array):
    """Whether torch computes with this type: none of the larger unsigned ones, no text, no
    sequences.
    """
    return isinstance(array, np.ndarray | np.generic) and array.dtype in (
        np.float32,
        np.float64,
        np.float16,
        np.int8,
        np.int16,
        np.int32,
        np.int64,
        np.uint8,
        np.bool_,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch warns of a view's strides
def test_node_cases(cases):
    """Every case of onnx gives its numbers, and every operator of the table has one."""
    wrong, seen = [], set()
    for name, case in cases.items():
        if name in APART:
            continue
        for arrays, want in case.data_sets:
            try:
                for got, array in zip(run(case.model, arrays), want, strict=True):
                    close(got, array)
            except Exception as error:
                wrong.append(f"{name}: {' '.join(str(error).split())[:200]}")
        seen.update(node.op_type for node in case.model.graph.node)
    assert not wrong, "\n".join(wrong)
    assert len(cases) > 900
    assert APART.keys() <= cases.keys()
    assert set(FLOAT_OPERATORS) - seen == {"GlobalLpPool"}  # which onnx has no case for: below


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_gradients(cases):
    """Where the numbers follow the inputs, the gradient is the numerical one (float64, tolerance
    1e-5).
    """
    done, random = set(), torch.Generator().manual_seed(0)
    for name, case in cases.items():
        nodes, (arrays, _), *_ = case.model.graph.node, *case.data_sets
        if (
            len(nodes) != 1
            or nodes[0].op_type in done | FLAT
            or name in APART
            or name.endswith("ceil")
        ):
            continue
        floats = [i for i, a in enumerate(arrays) if a.dtype in (np.float32, np.float64)]
        if (
            not floats
            or sum(arrays[i].size for i in floats) > 20000
            or 0 in (arrays[i].size for i in floats)
        ):
            continue
        if nodes[0].op_type in (
            "Clip",
            "Pad",
            "Pow",
            "Resize",
            "Dropout",
        ):  # further inputs are settings
            floats = floats[:1]
        tensors = [torch.from_numpy(np.array(a)) for a in arrays]
        for i in floats:  # a little aside, off the corners
            aside = 0.001 + 0.01 * torch.rand(
                tensors[i].shape, dtype=torch.float64, generator=random
            )
            tensors[i] = (tensors[i].double() + aside).requires_grad_()

        def compute(*given, model=case.model, tensors=tensors, floats=floats):
            fed = [given[floats.index(i)] if i in floats else t for i, t in enumerate(tensors)]
            return tuple(t for t in run(model, fed) if t.dtype == torch.float64 and t.requires_grad)

        given = [tensors[i] for i in floats]
        if not compute(*given):
            continue
        assert torch.autograd.gradcheck(
            compute, given, eps=1e-6, atol=1e-5, rtol=1e-3, fast_mode=True
        ), name
        done.add(nodes[0].op_type)
    assert set(FLOAT_OPERATORS) - FLAT - done == {"GlobalLpPool", "Trilu"}  # no case, integers only
    assert len(done) > 90


@pytest.mark.parametrize("op_type", ("LSTM", "GRU", "RNN"))
@pytest.mark.parametrize("direction", ("forward", "reverse", "bidirectional"))
def test_recurrent_forms(op_type, direction):
    """Directions, first states, lengths, peepholes, activations, clipping and both resets, in every
    combination.
    """
    rng = np.random.default_rng(0)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    d, t, n, i, h = (2 if direction == "bidirectional" else 1), 5, 3, 4, 6

    def real(*shape):
        return (0.7 * rng.standard_normal(shape)).astype(np.float32)

    x, w, r = real(t, n, i), real(d, gates * h, i), real(d, gates * h, h)
    lengths = np.array([5, 2, 3], np.int32)
    extras = {
        "LSTM": [
            {},
            {"clip": 0.6},
            {"input_forget": 1},
            {"activations": ["HardSigmoid", "Softsign", "Relu"] * d},
        ],
        "GRU": [
            {},
            {"linear_before_reset": 1},
            {
                "activations": ["Sigmoid", "ScaledTanh"] * d,
                "activation_alpha": [0.8] * d,
                "activation_beta": [1.3] * d,
            },
        ],
        "RNN": [{}, {"activations": ["LeakyRelu"] * d, "activation_alpha": [0.2, 0.4][:d]}],
    }[op_type]
    # 2: first states, but no peepholes
    for bias, long, start, extra in itertools.product(
        (0, 1), (0, 1), (0, 1, 2)[: gates - 1], extras
    ):
        arrays = [
            x,
            w,
            r,
            real(d, 2 * gates * h) if bias else None,
            lengths if long else None,
            real(d, n, h) if start else None,
        ]
        if op_type == "LSTM":
            arrays += [real(d, n, h), real(d, 3 * h)][: 3 - start] if start else []
        agrees(
            op_type,
            arrays,
            outputs=3 if op_type == "LSTM" else 2,
            opset=14,
            hidden_size=h,
            direction=direction,
            **extra,
        )


def image(draw, rank, least=5):
    return [draw(st.integers(least, 9)) for _ in range(rank)]


def per_axis(draw, rank, low, high):
    return [draw(st.integers(low, high)) for _ in range(rank)]


@few
@given(st.data())
def test_windows(data):
    """Convolutions and pools over one to three axes, all strides, dilations, pads, groups,
    ceil_mode and auto_pad.
    """
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    rank, kind = (
        draw(st.integers(1, 3)),
        draw(st.sampled_from(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"))),
    )
    space, kernel = image(draw, rank), per_axis(draw, rank, 1, 3)
    options = {"strides": per_axis(draw, rank, 1, 3)}
    auto = draw(st.sampled_from(("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")))
    if auto != "NOTSET" and kind != "ConvTranspose":
        options["auto_pad"] = auto
        if auto.startswith("SAME"):  # onnxruntime rejects the negative pads of a longer stride
            options["strides"] = [
                min(s, k) for s, k in zip(options["strides"], kernel, strict=True)
            ]
    else:
        options["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
        if kind in ("Conv", "MaxPool", "ConvTranspose"):
            options["dilations"] = per_axis(draw, rank, 1, 2)
        if kind in ("MaxPool", "AveragePool"):
            options["ceil_mode"] = draw(st.integers(0, 1))
    if kind == "AveragePool":
        options["count_include_pad"] = draw(st.integers(0, 1))
    group, channels = draw(st.sampled_from(((1, 2), (2, 4), (4, 4)))), 4
    x = rng.standard_normal((2, channels, *space)).astype(np.float32)
    arrays = [x]
    if kind.startswith("Conv"):
        groups, outputs = group
        shape = (outputs, channels // groups) if kind == "Conv" else (channels, outputs // groups)
        bias = rng.standard_normal(outputs).astype(np.float32) if draw(st.booleans()) else None
        arrays += [rng.standard_normal((*shape, *kernel)).astype(np.float32), bias]
        options["group"] = groups
        if kind == "ConvTranspose" and draw(st.booleans()):
            options["output_padding"] = [
                draw(st.integers(0, max(s - 1, 0))) for s in options["strides"]
            ]
    else:
        options["kernel_shape"] = kernel
    outputs = 2 if kind == "MaxPool" and draw(st.booleans()) else 1
    agrees(kind, arrays, "Conv" in kind, outputs=outputs, opset=18, **options)


@few
@given(st.data())
def test_resize(data):
    """Nearest, linear and cubic, by factors and by sizes, in every way to count places."""
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    x = rng.standard_normal((1, 2, *image(draw, 2, 3))).astype(np.float32)
    options = {"mode": draw(st.sampled_from(("nearest", "linear", "cubic")))}
    options["coordinate_transformation_mode"] = draw(
        st.sampled_from(("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"))
    )
    if options["mode"] == "nearest":
        options["nearest_mode"] = draw(
            st.sampled_from(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
        )
    sizes, factors = None, None
    if draw(st.booleans()):
        sizes = np.array([1, 2, *(draw(st.integers(2, 14)) for _ in range(2))], np.int64)
    else:
        factors = np.array(
            [1, 1, *(draw(st.sampled_from((0.5, 0.75, 1.0, 1.5, 2.0, 3.0))) for _ in range(2))],
            np.float32,
        )
    agrees("Resize", [x, None, factors, sizes], opset=18, **options)


def test_onnxruntimes_own_way():
    """What onnx's cases leave out or have otherwise than onnxruntime, which runs the islands."""
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    scales = np.array([1, 1, 0.6, 0.6], np.float32)
    for mode in ("linear", "cubic"):
        agrees(
            "Resize",
            [x, None, scales],
            opset=13,
            mode=mode,
            coordinate_transformation_mode="align_corners",
        )
    agrees(
        "GlobalLpPool",
        [np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)],
        p=3,
    )


@pytest.mark.parametrize("corners", ((0.0, 1.0), (0.1, 0.6), (-0.3, 1.2)))
def test_resize_of_a_region(corners):
    """Beyond the picture the extrapolation value stands, also for places in the last pixel's other
    half.
    """
    x = np.arange(1, 25, dtype=np.float32).reshape(1, 1, 4, 6)
    first, last = corners
    roi = np.array([0, 0, first, first, 1, 1, last, last], np.float32)
    options = {
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 7.0,
        "mode": "linear",
    }
    agrees("Resize", [x, roi, None, np.array([1, 1, 5, 9], np.int64)], opset=13, **options)


OLD = (
    ("Softmax", {"axis": 1}),
    ("Softmax", {}),
    ("LogSoftmax", {"axis": 2}),
    ("Hardmax", {"axis": 1}),
    ("Squeeze", {"axes": [1]}),
    ("Unsqueeze", {"axes": [0, -1]}),
    ("ReduceSum", {"axes": [1, 2], "keepdims": 0}),
    ("ReduceMean", {"axes": [-1]}),
    ("ReduceL2", {}),
    ("Split", {"axis": 3, "split": [1, 3, 1], "outputs": 3}),
    ("Split", {"axis": 2, "outputs": 2}),
    ("Selu", {}),
    ("ThresholdedRelu", {"alpha": 0.3}),
    ("MeanVarianceNormalization", {"axes": [0, 2]}),
)


@pytest.mark.parametrize(
    "op_type, options", OLD, ids=[f"{name}{i}" for i, (name, _) in enumerate(OLD)]
)
def test_old_forms(op_type, options):
    """Before version 13 a softmax goes over several axes, and what are inputs today were
    attributes.
    """
    x = np.random.default_rng(2).standard_normal((2, 1, 4, 5)).astype(np.float32)
    agrees(op_type, [x], **{"opset": 12, **options})


def test_unknown_operators():
    """One line naming the node and a remedy, whether it stands in the graph, in a function or in
    another domain.
    """
    x = np.zeros((1, 3), np.float32)
    with pytest.raises(
        ModelError, match=r"^NonMaxSuppression it stays in float, .*cut the graph before it.*$"
    ):
        run(single("NonMaxSuppression", [x]), [x])
    model = single("Gelu", [x])
    model.graph.node[0].domain = "com.microsoft"
    with pytest.raises(ModelError, match=r"^com.microsoft::Gelu it stays in float"):
        run(model, [x])
    model = single("Twice", [x])
    model.graph.node[0].domain = "own"
    inner = helper.make_node("Det", ["a"], ["b"], name="inside")
    model.functions.append(
        helper.make_function("own", "Twice", ["a"], ["b"], [inner], [helper.make_opsetid("", 17)])
    )
    with pytest.raises(ModelError, match=r"^Det inside stays in float"):
        run(model, [x])


@pytest.mark.parametrize(
    "op_type, arrays, options",
    (
        ("Dropout", [np.ones((2, 2), np.float32), np.float32(0.5), np.bool_(True)], {}),
        (
            "BatchNormalization",
            [np.ones((1, 2, 2), np.float32), *[np.ones(2, np.float32)] * 4],
            {"training_mode": 1},
        ),
        ("RNN", [np.ones((1, 1, 1), np.float32)] * 3, {"hidden_size": 1, "activations": ["Sine"]}),
        ("RNN", [np.ones((1, 1, 1), np.float32)] * 3, {"hidden_size": 1, "layout": 1}),
        ("Cast", [np.ones(2, np.float32)], {"to": onnx.TensorProto.STRING}),
    ),
)
def test_refused(op_type, arrays, options):
    """What an operator is asked for and torch cannot do, in one line."""
    arrays = [np.asarray(a) for a in arrays]
    with pytest.raises(ModelError, match=rf"^{op_type} it: .*; .*$"):
        run(single(op_type, arrays, **options), arrays)


def test_functions():
    """A function's body sees the node's attributes, its own version, and no name of the graph."""
    nodes = [
        helper.make_node("LeakyRelu", ["a"], ["t"]),
        helper.make_node("Softmax", ["t"], ["b"], axis=1),
    ]
    slope = nodes[0].attribute.add()
    slope.name, slope.ref_attr_name, slope.type = "alpha", "slope", onnx.AttributeProto.FLOAT
    function = helper.make_function(
        "own", "Soft", ["a", "unused"], ["b"], nodes, [helper.make_opsetid("", 12)], ["slope"]
    )
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    model = single("Soft", [x], opset=17, slope=0.5)
    model.graph.node[0].domain = "own"
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(function)
    leaky = np.where(x < 0, x / 2, x).reshape(2, 12)
    want = np.exp(leaky) / np.exp(leaky).sum(1, keepdims=True)
    close(run(model, [x])[0], want.reshape(x.shape))


def test_absent_outputs_and_inputs():
    """An output that is left out does not become the value of inputs that are left out."""
    rng = np.random.default_rng(3)
    x, w, r = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((4, 1, 3), (1, 8, 3), (1, 8, 2))
    )
    model = single("LSTM", [x, w, r], names=["", "h"], hidden_size=2)
    model.graph.node.append(helper.make_node("Clip", ["h", "", "top"], ["y"]))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.05), "top"))
    model.graph.output[0].name = "y"
    close(run(model, [x, w, r])[0], reference(model, [x, w, r])[0])


def test_samples_that_touch_go_one_by_one():
    """An island that mixes the samples of a batch computes them apart, as in the simulator; others
    all at once.
    """
    x = np.random.default_rng(4).standard_normal((3, 4)).astype(np.float32)
    for axis, together in ((0, False), (1, True)):
        model = helper.make_model(
            helper.make_graph(
                [helper.make_node("Softmax", ["x"], ["y"], name="rows", axis=axis)],
                "g",
                [helper.make_tensor_value_info("x", 1, ["N", 4])],
                [helper.make_tensor_value_info("y", 1, ["N", 4])],
            ),
            opset_imports=[helper.make_opsetid("", 13)],
            ir_version=8,
        )
        graph = ir.from_proto(model)
        fallback = FloatFallback(graph, list(graph.graph), ["y"])
        fallback.infer(TensorSpec((1, 4), np.dtype(np.float32)))
        (got,) = TorchFallback(fallback)(fallback, [torch.from_numpy(x)], FakeQuantContext([]))
        close(got, fallback(x)[0])
        assert np.allclose(got.numpy(), 1.0) is not together
