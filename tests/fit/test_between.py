"""Rewrites that depend on a node's context: constants between layers, epsilons of layer norms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.luna import VENUS
from lingeronnx.quantization.legalize import legalize_graph
from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.targets import GENERIC, PLATFORMS
from tests.case_selection import limit_examples
from tests.nets import Net
from tests.passes.helpers import feeds, graph, interface, ops, outputs, positive, rand

CHIPS = [target for target in PLATFORMS if target.has_packer]


def between(step, size="4,6", **held):
    """Return a layer, a Sigmoid, `step` (s -> d), and a second one beside it, a layer;
    normalised.
    """
    text = f"""g (float[N,{size}] x) => (float[N,{size}] y, float[N,{size}] e) {{
        c = MatMul(x, w) s = Sigmoid(c) d = {step} e = Sqrt(d) f = Softplus(d) y = MatMul(f, w)
    }}"""
    wide = int(size.split(",")[-1])
    model = graph(text, w=rand(wide, wide), **held)
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    normalize(model)
    return model


def same(model, target, expected_ops, atol=1e-5):
    """Legalize `model`; assert its operators, function and names, and an idle second run."""
    feed, names = feeds(model, 3), interface(model)
    want = outputs(model, feed)
    rewrites = legalize_graph(model, target)
    assert ops(model) == expected_ops
    assert interface(model) == names
    for name, array in outputs(model, feed).items():
        np.testing.assert_allclose(array, want[name], rtol=0, atol=atol)
    assert legalize_graph(model, target) == []
    return rewrites


STEPS = {
    "one factor": ("Mul(s, k)", positive(1)),
    "one divisor": ("Div(s, k)", positive(1)),
    "one summand": ("Add(k, s)", positive(1)),
    "from one number": ("Sub(k, s)", 2 * positive(1)),
    "from several": ("Sub(k, s)", 2 * positive(4, 6)),
}


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
@pytest.mark.parametrize("name", STEPS)
def test_a_constant_between_layers(name, target):
    step, k = STEPS[name]
    expected_ops = [
        "Linear",
        "Sigmoid",
        "Reshape",
        "BatchNormalization",
        "Reshape",
        "Sqrt",
        "Softplus",
        "Linear",
    ]
    (rewrite,) = same(between(step, k=k), target, expected_ops)
    assert rewrite.cost == "exact"


@limit_examples(20)
@given(
    st.sampled_from(("Add", "Sub", "Mul", "Div")),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.data(),
)
def test_any_constant(kind, sizes, data):
    """Law: whatever axes the constant varies along, and on whichever side it stands, the function
    stays.
    """
    shape = [data.draw(st.sampled_from((1, n))) for n in sizes]
    k = positive(*shape[data.draw(st.integers(0, len(shape))) :])
    order = "k, s" if kind != "Div" and data.draw(st.booleans()) else "s, k"
    size = ",".join(map(str, sizes))
    model = between(f"{kind}({order})", size, k=k + 1)
    feed = feeds(model, 3)
    want = outputs(model, feed)
    legalize_graph(model, VENUS)
    for name, array in outputs(model, feed).items():
        np.testing.assert_allclose(array, want[name], rtol=0, atol=1e-5, equal_nan=True)


def test_a_sign_between_layers():
    same(
        between("Neg(s)"),
        VENUS,
        [
            "Linear",
            "Sigmoid",
            "Reshape",
            "BatchNormalization",
            "Reshape",
            "Sqrt",
            "Softplus",
            "Linear",
        ],
    )


@pytest.mark.parametrize("step", ("Div(k, s)", "Pow(s, k)"))
def test_no_straight_line_stays(step):
    model = between(step, k=positive(1))
    assert "BatchNormalization" not in {
        node.op_type for node in (legalize_graph(model, VENUS), model)[1].graph
    }


@pytest.mark.parametrize(
    "text",
    (
        "d = Div(x, k) y = MatMul(d, w)",
        "c = MatMul(x, w) s = Sigmoid(c) y = Sub(k, s)",
    ),
    ids=("in front", "behind"),
)
def test_outside_the_layers_the_host_does_it(text):
    model = graph(
        f"g (float[N,4,6] x) => (float[N,4,6] y) {{ {text} }}", w=rand(6, 6), k=positive(1)
    )
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    normalize(model)
    assert legalize_graph(model, VENUS) == []


def test_tables_need_no_rewrite():
    assert legalize_graph(between("Sub(k, s)", k=positive(1)), GENERIC) == []


# ---- epsilon -----------------------------------------------------------------------------------


def build_layer_norm(front, epsilon, opset):
    """Return a layer, `front` (c -> s), a layer norm of s, a layer; normalised."""
    text = f"""g (float[N,4,6] x) => (float[N,4,6] y) {{
        c = MatMul(x, w) {front} m = ReduceMean<axes = [-1]>(s) d = Sub(s, m) q = Mul(d, d)
        v = ReduceMean<axes = [-1]>(q) e = Add(v, eps) r = Sqrt(e) n = Div(d, r) y = MatMul(n, w)
    }}"""
    model = graph(text, opset=opset, w=rand(6, 6), eps=np.float32(epsilon))
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    normalize(model)
    return model


@pytest.mark.parametrize("opset", (13, 17))
def test_the_layer_in_front_takes_epsilon_up(opset):
    """Exactly: the chip's epsilon of a smaller input is the model's of its own."""
    model = build_layer_norm("s = Relu(c)", 1e-3, opset)
    before = ops(model)
    (rewrite,) = same(
        model, VENUS, [*before[:2], before[2] + ("_2" if opset < 17 else ""), before[3]]
    )
    assert rewrite.cost == "exact"
    (norm,) = (node for node in model.graph if ir.base_op_type(node) == "LayerNormalization")
    assert ir.get_attr(norm, "epsilon") == pytest.approx(VENUS.layer_norm_limits.epsilon)


@pytest.mark.parametrize("epsilon", (1e-4, 1e-3, 1e-2))
def test_else_a_power_of_two(epsilon):
    """Of a sum no weight takes the factor up: a power of two in front, which moves no integer."""
    model = build_layer_norm("s = Add(c, x)", epsilon, 17)
    expected_ops = [
        "Linear",
        "Add",
        "Reshape",
        "BatchNormalization",
        "Reshape",
        "LayerNormalization",
        "Linear",
    ]
    rewrites = same(model, VENUS, expected_ops)
    assert [d.node for d in rewrites] == ["Div_n", "Div_n_small"]
    norm = next(node for node in model.graph if node.op_type == "BatchNormalization")
    (factor,) = set(ir.const_value(norm.inputs[1]).tolist())
    assert np.log2(factor) == round(np.log2(factor))
    new_epsilon = ir.get_attr(
        next(n for n in model.graph if n.op_type == "LayerNormalization"), "epsilon"
    )
    assert new_epsilon == pytest.approx(epsilon * factor**2)
    assert 0.5 <= new_epsilon / VENUS.layer_norm_limits.epsilon <= 2


def test_a_smaller_epsilon_is_the_chips():
    assert legalize_graph(build_layer_norm("s = Add(c, x)", 1e-6, 17), VENUS) == []


_AFFINE = ["Reshape", "BatchNormalization", "Reshape"]
BOUNDS = {
    "a lower end": ("Clip(s, k)", 0.3, None, "Relu"),
    "an upper end": ("Clip(s, , k)", None, 0.6, "Relu"),
    "two ends": ("Clip(s, k, m)", 0.3, 0.6, "Clip"),
}


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
@pytest.mark.parametrize("name", BOUNDS)
def test_a_clip_between_layers(name, target):
    """It is a ReLU, or a ReLU6, of the distance to a bound."""
    step, low, high, middle = BOUNDS[name]
    constants = {"k": np.float32(high if low is None else low)} | (
        {"m": np.float32(high)} if middle == "Clip" else {}
    )
    expected_ops = ["Linear", "Sigmoid", *_AFFINE, middle, *_AFFINE, "Sqrt", "Softplus", "Linear"]
    rewrites = same(between(step, **constants), target, expected_ops)
    assert "difference to a bound" in rewrites[0].what


def test_a_clip_at_an_end_stays():
    """In front of the first layer, behind the last, and where there is a Clip."""
    for text in (
        "g (float[N,6] x) => (float[N,6] y) { c = Clip(x, k) y = MatMul(c, w) }",
        "g (float[N,6] x) => (float[N,6] y) { c = MatMul(x, w) y = Clip(c, k) }",
    ):
        model = graph(text, w=rand(6, 6), k=np.float32(-0.4))
        trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
        assert legalize_graph(model, VENUS) == []
    assert legalize_graph(between("Clip(s, k)", k=np.float32(0.3)), GENERIC) == []


@pytest.mark.sweep
@pytest.mark.parametrize("ends", [(-0.4, None), (0.1, None), (None, 0.5), (-0.3, 0.6)])
def test_a_clip_behind_an_activation_is_an_integer_on_a_chip(ends):
    """As keras writes ``maximum(leaky_relu(x), -0.4)``."""
    net = Net(4, 8, 8, seed=3)
    low, high = ("" if end is None else net.const(np.float32(end)) for end in ends)
    leaky = net.node("LeakyRelu", net.conv("x", (8, 4, 3, 3), pads=[1] * 4), alpha=0.2)
    cut = net.node("Clip", leaky, low, *([high] if high else []))
    model = net.graph(net.node("Relu", net.conv(cut, (8, 8, 3, 3), pads=[1] * 4)))
    data = np.random.default_rng(0).standard_normal((32, 4, 8, 8)).astype(np.float32)
    for platform in ("venus", "generic"):
        result = lo.quantize(model, data, platform=platform)
        assert not result.report.float_nodes
        assert min(output["sqnr"] for output in result.report.outputs.values()) > 27
