"""explicit-pads: auto_pad becomes numbers, a zero Pad in front of a convolution goes into it."""

import itertools

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.layers.resolve_padding import resolve_padding
from tests.passes.helpers import changes, check_pass_fires, check_pass_leaves_alone, graph, rand

TOLERANCE = 1e-5
IN = "g (float[N,3,7,8] x)"
END = "y = ReduceMax<keepdims = 0>(c) }"


def pads_of(model, kind="Conv"):
    return next(ir.get_attr(node, "pads") for node in model.graph if node.op_type == kind)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "mode, stride, kernel",
    list(
        itertools.product(
            ("SAME_UPPER", "SAME_LOWER", "VALID"),
            ("1, 1", "2, 1", "3, 2"),
            ((3, 3), (2, 4), (1, 5)),
        )
    ),
)
def test_auto_pad_of_conv(mode, stride, kernel):
    """SAME puts the odd zero at the end (UPPER) or the beginning (LOWER); VALID has none."""
    text = f'{IN} => (float y) {{ c = Conv<auto_pad = "{mode}", strides = [{stride}]>(x, w) {END}'
    model = graph(text, w=rand(4, 3, *kernel))
    check_pass_fires(model, resolve_padding, 1, ["Conv", "ReduceMax"], atol=TOLERANCE)
    assert "auto_pad" not in model.graph.node(0).attributes
    if mode == "VALID":
        assert pads_of(model) == [0, 0, 0, 0]


def test_upper_and_lower_differ():
    """4 zeros over a kernel of 2: after, or before."""
    found = []
    for mode in ("SAME_UPPER", "SAME_LOWER"):
        model = graph(
            f'{IN} => (float y) {{ c = Conv<auto_pad = "{mode}">(x, w) {END}', w=rand(4, 3, 2, 2)
        )
        check_pass_fires(model, resolve_padding, 1, ["Conv", "ReduceMax"], atol=TOLERANCE)
        found.append(pads_of(model))
    assert found == [[0, 0, 1, 1], [1, 1, 0, 0]]


@pytest.mark.parametrize("mode", ("SAME_UPPER", "SAME_LOWER", "VALID"))
@pytest.mark.parametrize("kind", ("MaxPool", "AveragePool"))
def test_auto_pad_of_pools(kind, mode):
    """Pools too; an average still leaves the padding out."""
    text = (
        f'{IN} => (float y) {{ c = {kind}<auto_pad = "{mode}", kernel_shape = [3, 2], strides '
        "= "
        f"[2, 2]>(x) {END}"
    )
    check_pass_fires(graph(text), resolve_padding, 1, [kind, "ReduceMax"], atol=TOLERANCE)


def test_auto_pad_with_dilation():
    """A dilated kernel reaches further."""
    text = f'{IN} => (float y) {{ c = Conv<auto_pad = "SAME_UPPER", dilations = [2, 2]>(x, w) {END}'
    model = graph(text, w=rand(4, 3, 3, 3))
    assert changes(resolve_padding, model) == 1  # onnxruntime runs the result only
    assert pads_of(model) == [2, 2, 2, 2]
    check_pass_leaves_alone(model, resolve_padding)


def test_auto_pad_in_one_dimension():
    """A Conv of one dimension has two numbers."""
    text = (
        'g (float[N,3,9] x) => (float y) { c = Conv<auto_pad = "SAME_UPPER", strides = '
        f"[2]>(x, w) {END}"
    )
    check_pass_fires(
        graph(text, w=rand(4, 3, 4)), resolve_padding, 1, ["Conv", "ReduceMax"], atol=TOLERANCE
    )


def test_refuses_unknown_size():
    """SAME depends on the size of the map: without it the node stays."""
    text = 'g (float[N,3,H,W] x) => (float y) { c = Conv<auto_pad = "SAME_UPPER">(x, w) ' + END
    assert changes(resolve_padding, graph(text, w=rand(4, 3, 2, 2))) == 0


PAD = "p = Pad(x, pads) c = Conv(p, w) "


@pytest.mark.parametrize(
    "pads", ([0, 0, 1, 2, 0, 0, 3, 4], [0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0, 1, 1])
)
def test_pad_goes_into_conv(pads):
    """The four numbers of a Pad are added to the convolution's own."""
    text = f"{IN} => (float y) {{ p = Pad(x, pads) c = Conv<pads = [1, 0, 0, 1]>(p, w) {END}"
    model = graph(text, pads=np.array(pads), w=rand(4, 3, 3, 3))
    check_pass_fires(model, resolve_padding, 1, ["Conv", "ReduceMax"], atol=TOLERANCE)
    assert pads_of(model) == [
        a + b for a, b in zip([1, 0, 0, 1], pads[2:4] + pads[6:], strict=True)
    ]


@pytest.mark.parametrize("value", (None, 0.0))
def test_pad_with_explicit_zero(value):
    """The value zero may be written out or left out."""
    arrays = {} if value is None else {"v": np.float32(value)}
    text = f"{IN} => (float y) {{ p = Pad(x, pads{', v' if arrays else ''}) c = Conv(p, w) {END}"
    model = graph(text, pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]), w=rand(4, 3, 3, 3), **arrays)
    check_pass_fires(model, resolve_padding, 1, ["Conv", "ReduceMax"], atol=TOLERANCE)


def test_pad_of_old_opsets():
    """Before opset 11 the numbers are attributes."""
    text = f"{IN} => (float y) {{ p = Pad<pads = [0,0,1,1,0,0,1,1]>(x) c = Conv(p, w) {END}"
    check_pass_fires(
        graph(text, opset=9, w=rand(4, 3, 3, 3)),
        resolve_padding,
        1,
        ["Conv", "ReduceMax"],
        atol=TOLERANCE,
    )


def test_pad_before_auto_pad():
    """SAME is resolved on the padded map first, then the Pad goes in."""
    text = (
        f'{IN} => (float y) {{ p = Pad(x, pads) c = Conv<auto_pad = "SAME_UPPER", strides = '
        "[2, "
        f"2]>(p, w) {END}"
    )
    model = graph(text, pads=np.array([0, 0, 1, 0, 0, 0, 0, 1]), w=rand(4, 3, 3, 3))
    check_pass_fires(model, resolve_padding, 2, ["Conv", "ReduceMax"], atol=TOLERANCE)


def test_notset_is_no_auto_pad():
    """Exporters write auto_pad = NOTSET: the numbers hold."""
    text = (
        f'{IN} => (float y) {{ p = Pad(x, pads) c = Conv<auto_pad = "NOTSET", pads = [1, 0, 0, '
        f"1]>(p, w) {END}"
    )
    model = graph(text, pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]), w=rand(4, 3, 3, 3))
    check_pass_fires(model, resolve_padding, 1, ["Conv", "ReduceMax"], atol=TOLERANCE)


def test_refuses_pad_before_unresolved_auto_pad():
    """Where SAME cannot be resolved the convolution has no numbers to add to."""
    text = (
        "g (float[N,3,H,W] x) => (float y) { p = Pad(x, pads) c = Conv<auto_pad = "
        '"SAME_UPPER">(p, '
        "w) "
    ) + END
    model = graph(text, pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]), w=rand(4, 3, 2, 2))
    assert changes(resolve_padding, model) == 0
    assert "pads" not in model.graph.node(1).attributes


@pytest.mark.parametrize("mode", ("reflect", "edge"))
def test_refuses_other_modes(mode):
    """Padding with anything but a constant."""
    text = f'{IN} => (float y) {{ p = Pad<mode = "{mode}">(x, pads) c = Conv(p, w) {END}'
    check_pass_leaves_alone(
        graph(text, pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]), w=rand(4, 3, 3, 3)), resolve_padding
    )


def test_refuses_another_value():
    """Padding with a number that is not zero."""
    text = f"{IN} => (float y) {{ p = Pad(x, pads, v) c = Conv(p, w) {END}"
    arrays = {
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "v": np.float32(0.5),
        "w": rand(4, 3, 3, 3),
    }
    check_pass_leaves_alone(graph(text, **arrays), resolve_padding)


@pytest.mark.parametrize("pads", ([0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]))
def test_refuses_channels(pads):
    """A convolution cannot pad its channels."""
    text = f"{IN} => (float y) {{ {PAD} {END}"
    check_pass_leaves_alone(graph(text, pads=np.array(pads), w=rand(4, 4, 3, 3)), resolve_padding)


def test_refuses_the_batch():
    """A convolution cannot pad the batch."""
    text = f"{IN} => (float y) {{ {PAD} {END}"
    check_pass_leaves_alone(
        graph(text, pads=np.array([1, 0, 0, 0, 0, 0, 0, 0]), w=rand(4, 3, 3, 3)), resolve_padding
    )


def test_refuses_cropping():
    """A negative pad cuts: a convolution cannot."""
    text = f"{IN} => (float y) {{ {PAD} {END}"
    check_pass_leaves_alone(
        graph(text, pads=np.array([0, 0, -1, 0, 0, 0, 0, 0]), w=rand(4, 3, 3, 3)), resolve_padding
    )


def test_refuses_a_second_reader():
    """The padded map is read elsewhere."""
    text = f"{IN} => (float y, float z) {{ {PAD} z = ReduceMin<keepdims = 0>(p) {END}"
    check_pass_leaves_alone(
        graph(text, pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]), w=rand(4, 3, 3, 3)), resolve_padding
    )


def test_refuses_pads_of_the_run():
    """Numbers, or a value, that are graph inputs."""
    text = f"{IN[:-1]}, int64[8] pads) => (float y) {{ {PAD} {END}"
    assert changes(resolve_padding, graph(text, w=rand(4, 3, 3, 3))) == 0
    text = f"{IN[:-1]}, float v) => (float y) {{ p = Pad(x, pads, v) c = Conv(p, w) {END}"
    assert (
        changes(
            resolve_padding,
            graph(text, pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]), w=rand(4, 3, 3, 3)),
        )
        == 0
    )


def test_axes():
    """Pads of some axes only (opset 18)."""
    text = f"{IN} => (float y) {{ p = Pad(x, pads, v, axes) c = Conv(p, w) {END}"
    arrays = {
        "pads": np.array([1, 1, 1, 1]),
        "axes": np.array([2, 3]),
        "v": np.float32(0),
        "w": rand(4, 3, 3, 3),
    }
    check_pass_fires(
        graph(text, opset=18, **arrays), resolve_padding, 1, ["Conv", "ReduceMax"], atol=0
    )


def test_refuses_a_maximum_of_any_numbers():
    """A zero may win over negative numbers: a Pad before MaxPool stays."""
    text = f"{IN} => (float y) {{ p = Pad(x, pads) c = MaxPool<kernel_shape = [2, 2]>(p) {END}"
    check_pass_leaves_alone(graph(text, pads=np.array([0, 0, 1, 1, 0, 0, 1, 1])), resolve_padding)
