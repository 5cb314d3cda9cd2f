"""The passes on the user's own graph: sound, refuse, float32, raise-opset, sequences; and control
flow.
"""

import numpy as np
import onnx
import pytest

from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir
from lingeronnx.ir.expansion_limits import MAX_UNROLLED_ITERATIONS
from lingeronnx.quantization.normalize.entry.convert_model import (
    MAX_IR_VERSION,
    MAX_OPSET,
    TARGET_OPSET,
    convert_opset,
    convert_to_float32,
)
from lingeronnx.quantization.normalize.entry.lift_constants import lift_constants
from lingeronnx.quantization.normalize.entry.reject_unsupported import (
    MAX_TENSOR_ELEMENTS,
    check_schemas,
    reject_unsupported,
)
from lingeronnx.quantization.normalize.entry.sequences import replace_sequences
from lingeronnx.quantization.normalize.folding.control_flow import (
    inline_static_control_flow,
    reject_control_flow,
)
from tests.passes.helpers import (
    changes,
    check_pass_fires,
    check_pass_leaves_alone,
    feeds,
    graph,
    ops,
    outputs,
    proto,
    rand,
    reasons,
)

PLAIN = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"

# ---- sound ---------------------------------------------------------------------------------------------------------


def test_a_sound_graph_passes():
    """Nothing is changed, also with operators of other domains."""
    assert changes(check_schemas, graph(PLAIN)) == 0
    made = proto("g (float[N,4] x) => (float[N,4] y) { y = other.Thing(x, x, x) }")
    made.opset_import.append(onnx.helper.make_opsetid("other", 1))
    assert changes(check_schemas, ir.from_proto(made)) == 0


#: What breaks an operator's schema -> (body, what is said).
UNSOUND = {
    "too few inputs": ("y = Add(x)", r"Add Add_y: .*; the file is malformed, export it again"),
    "an unknown attribute": (
        "y = Relu<slope = 1.0>(x)",
        r"Relu Relu_y: .*slope.*; the file is malformed",
    ),
    "a wrong type of attribute": (
        'y = Softmax<axis = "last">(x)',
        r"Softmax .*axis.*; the file is malformed",
    ),
    "inside a branch": (
        """c = Constant<value = bool {1}>()
        y = If(c)<then_branch = t () => (float[N,4] a) { a = Add(x) }, else_branch = e () => (float[N,4] b) {
        b = Relu(x) }>""",
        r"Add .*; the file is malformed",
    ),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound(name):
    """The node is named, in subgraphs too."""
    body, said = UNSOUND[name]
    with pytest.raises(ModelError, match=said):
        check_schemas(graph(f"g (float[N,4] x) => (float[N,4] y) {{ {body} }}"))


def test_an_input_without_type():
    """It is named."""
    model = graph(PLAIN)
    model.graph.inputs[0].type = None
    with pytest.raises(ModelError, match="graph input 'x' has no element type"):
        check_schemas(model)


# ---- refuse --------------------------------------------------------------------------------------------------------

#: What no pass can help with -> (text, what is said).
REFUSED = {
    "quantized": (
        "g (float[N,4] x) => (uint8[N,4] y) { y = QuantizeLinear(x, s) }",
        "QuantizeLinear QuantizeLinear_y: this operator on integers is not supported",
    ),
    "sequence": (
        (
            "g (float[N,4] x) => (float[N,4] y) { s = SequenceConstruct(x) y = "
            "ConcatFromSequence<axis "
            "= 0>(s) }"
        ),
        "SequenceConstruct .*: sequences and optional values cannot be quantized",
    ),
    "training": (
        (
            "g (float[N,4] x) => (float[N,4] y) { y, a, b = BatchNormalization<training_mode = "
            "1>(x,g,g,g,g) }"
        ),
        "BatchNormalization .*: the model is in training mode; call eval",
    ),
    "text": (
        "g (float[N,4] x) => (string[N,4] y) { y = Cast<to = 8>(x) }",
        "output 'y' is text, which no platform supports; end the model at 'x', the input of Cast",
    ),
    "text of nothing": (
        (
            "g (float[N,4] x) => (float[N,4] y, string z) {y = Relu(x) z = "
            'Constant<value_string="a">()}'
        ),
        "output 'z' is text, which no platform supports; remove it, and",
    ),
    "nothing": (
        "g (float[N,0] x) => (float[N,0] y) { y = Relu(x) }",
        r"tensor 'x' has shape \[\?, 0\]; sizes must be positive",
    ),
    "absurd": (
        (
            f"g (float[1,{MAX_TENSOR_ELEMENTS + 1}] x) => (float[1,{MAX_TENSOR_ELEMENTS + 1}] y) {{ y "
            "= Relu(x) }"
        ),
        "would have shape .*; sizes must be positive, and the limit per tensor",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """One clear line."""
    text, said = REFUSED[name]
    held = (
        {"s": np.float32(0.1)}
        if name == "quantized"
        else {"g": rand(4)}
        if name == "training"
        else {}
    )
    with pytest.raises(ModelError, match=said):
        reject_unsupported(graph(text, opset=15, **held))


def test_not_refused():
    """A plain graph; a Dropout in training mode that nobody reads is none."""
    assert changes(reject_unsupported, graph(PLAIN)) == 0


# ---- float32 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, dtype, atol", (("float16", np.float16, 1e-2), ("double", np.float64, 1e-6))
)
def test_other_floats(kind, dtype, atol):
    """Inputs, weights, constants, casts and outputs become float32; the numbers are the same."""
    code = {"float16": 10, "double": 11}[kind]
    text = f"""g ({kind}[N,4] x) => ({kind}[N,3] y) {{
        i = Cast<to = 7>(x) b = Cast<to = {code}>(i) s = Add(x, b) y = MatMul(s, w) }}"""
    model = graph(text, w=rand(4, 3).astype(dtype))
    x = rand(2, 4).astype(dtype)
    want = outputs(graph(text, w=rand(4, 3).astype(dtype)), {"x": x})["y"]
    assert changes(convert_to_float32, model) == 4
    assert {v.dtype.name for v in (*model.graph.inputs, *model.graph.outputs)} == {"FLOAT"}
    found = outputs(model, {"x": x.astype(np.float32)})["y"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, want.astype(np.float32), rtol=0, atol=atol)
    assert changes(convert_to_float32, model) == 0


def test_float32_and_integers_stay():
    """There is nothing to do."""
    check_pass_leaves_alone(
        graph(
            "g (float[N,4] x, int64[N,4] i) => (float[N,4] y, int64[N,4] j) { y = Relu(x) j = "
            "Add(i, i) }"
        ),
        convert_to_float32,
    )


# ---- raise-opset ---------------------------------------------------------------------------------------------------

#: Old forms -> (opset, inputs and outputs, body).
OLD = {
    "Add along an axis": (
        6,
        "float[N,3,2] x",
        "float[N,3,2] y",
        "y = Add<broadcast = 1, axis = 1>(x, c)",
    ),
    "Sub along the last axes": (
        6,
        "float[N,2,3] x",
        "float[N,2,3] y",
        "y = Sub<broadcast = 1>(x, c)",
    ),
    "PRelu": (6, "float[N,3,2] x", "float[N,3,2] y", "y = PRelu(x, c)"),
    "Gemm": (6, "float[N,4] x", "float[N,3] y", "y = Gemm<broadcast = 1>(x, m, c)"),
    "Clip": (7, "float[N,4] x", "float[N,4] y", "y = Clip<min = -0.5, max = 0.5>(x)"),
    "Pad": (9, "float[N,4] x", "float[N,6] y", "y = Pad<pads = [0, 1, 0, 1], value = 2.0>(x)"),
    "Slice": (
        9,
        "float[N,4] x",
        "float[N,2] y",
        "y = Slice<axes = [1], starts = [1], ends = [3]>(x)",
    ),
    "Slice without axes": (
        9,
        "float[N,4] x",
        "float[N,4] y",
        "y = Slice<starts = [0], ends = [9]>(x)",
    ),
    "Dropout": (10, "float[N,4] x", "float[N,4] y", "y = Dropout<ratio = 0.5>(x)"),
    "Upsample": (9, "float[N,1,2,2] x", "float[N,1,4,4] y", "y = Upsample(x, s)"),
    "Resize": (10, "float[N,1,2,2] x", "float[N,1,4,4] y", "y = Resize(x, s)"),
    "TopK": (9, "float[N,4] x", "float[N,2] y", "y, i = TopK<k = 2>(x)"),
    "Scatter": (9, "float[N,4] x", "float[N,4] y", "y = Scatter<axis = 1>(x, at, new)"),
}


#: What opset 6 means: axis 0 of the second operand is the axis that is named, or its last axis is the last.
MEANT = {
    "Add along an axis": lambda x, held: x + held["c"][:, None],
    "Sub along the last axes": lambda x, held: x - held["c"],
    "PRelu": lambda x, held: np.where(x < 0, held["c"][:, None] * x, x),
    "Gemm": lambda x, held: x @ held["m"] + held["c"],
}


@pytest.mark.parametrize("name", OLD)
def test_old_forms(name):
    """One rewrite and one for the number itself; the same function in opset 12; a second run
    changes nothing.
    """
    opset, given, out, body = OLD[name]
    held = {"s": np.array([1, 1, 2, 2], np.float32)} if "s)" in body else {}
    held |= {"c": rand(3)} if "c)" in body else {}
    held |= {"m": rand(4, 3)} if "m," in body else {}
    if name == "Scatter":
        held = {"at": np.array([[0, 2], [1, 3]]), "new": rand(2, 2)}
    text = f"g ({given}) => ({out}) {{ {body} }}"
    model, before = graph(text, opset=opset, **held), graph(text, opset=opset, **held)
    feed = feeds(model)
    assert changes(convert_opset, model) == 2
    assert ir.get_opset(model) == TARGET_OPSET
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    want = (
        MEANT[name](feed["x"], held) if opset < 7 else outputs(before, feed)["y"]
    )  # which onnxruntime does not run
    np.testing.assert_allclose(outputs(model, feed)["y"], want, rtol=1e-6, atol=1e-6)
    assert changes(convert_opset, model) == 0


@pytest.mark.parametrize("opset", (12, 13, 17))
def test_newer_ones_stay(opset):
    """From opset 12 on a model keeps its own."""
    model = graph(PLAIN, opset=opset)
    assert changes(convert_opset, model) == 0
    assert ir.get_opset(model) == opset


def test_too_new_is_relabelled():
    """Where no operator changed since `MAX_OPSET`."""
    model = graph(PLAIN)
    model.graph.opset_imports[""] = MAX_OPSET + 1
    assert changes(convert_opset, model) == 1
    assert ir.get_opset(model) == MAX_OPSET


def test_a_newer_file_format():
    """Of the version that onnxruntime reads at most."""
    model = graph(PLAIN)
    model.ir_version = 99
    convert_opset(model)
    assert model.ir_version == MAX_IR_VERSION


SCAN = (
    "Scan<num_scan_inputs = 1, directions = [0], body = b (float[4] i) => (float[4] o) { o = "
    "Relu(i) }>"
)

#: What cannot be raised -> (opset, body, what is said).
LOST = {
    "too old": (5, "y = Relu(x)", "the model uses opset 5; the oldest supported opset is 6"),
    "sizes that nobody tells": (
        6,
        "r = Custom(x) y = Add<broadcast = 1, axis = 0>(r, g)",
        "how it broadcasts in opset 6 depends on shapes",
    ),
    "in training mode": (
        6,
        "y = BatchNormalization<is_test = 0>(x, g, g, g, g)",
        "the model is in training mode",
    ),
    "no newer form": (
        7,
        "y = BatchNormalization<spatial = 0>(x, g, g, g, g)",
        "spatial = 0 does not exist in newer opsets",
    ),
    "gone": (8, f"y = {SCAN}(, x)", "its attribute 'directions' does not exist in opset 12"),
}


@pytest.mark.parametrize("name", LOST)
def test_lost(name):
    """One line that names the node, or the opset."""
    opset, body, said = LOST[name]
    held = {"g": rand(4)} if "g)" in body else {}
    with pytest.raises(ModelError, match=said):
        convert_opset(
            graph(f"g (float[N,4,4] x) => (float[N,4,4] y) {{ {body} }}", opset=opset, **held)
        )


# ---- sequences -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", (12, 13))
def test_a_split_sequence(opset):
    """Elements of known sizes are outputs of a Split."""
    text = """g (float[N,6] x) => (float[N,2] y, float[N,4] z) {
        s = SplitToSequence<axis = 1>(x, n) y = SequenceAt(s, zero) z = SequenceAt(s, one) }"""
    held = {"n": np.array([2, 4]), "zero": np.array(0), "one": np.array(-1)}
    check_pass_fires(
        graph(text, opset=opset, **held),
        replace_sequences,
        1,
        ["Split", "Identity", "Identity"],
        atol=0,
        trace=False,
    )


def test_parts_of_one_size():
    """One number is the size of all parts but the last."""
    text = """g (float[N,5] x) => (float[N,1] y) { s = SplitToSequence<axis = 1>(x, n) y = SequenceAt(s, two) }"""
    model = check_pass_fires(
        graph(text, n=np.array(2), two=np.array(2)),
        replace_sequences,
        1,
        ["Split", "Identity"],
        atol=0,
        trace=False,
    )
    assert len(next(iter(model.graph)).outputs) == 3


@pytest.mark.parametrize("new_axis, kinds", ((0, []), (1, ["Unsqueeze", "Unsqueeze"])))
def test_a_made_sequence(new_axis, kinds):
    """Elements by place, and all of them joined or stacked."""
    text = f"""g (float[N,3] x) => (float[N,3] y, float z) {{ n = Neg(x) s = SequenceConstruct(x, n)
        y = SequenceAt(s, one) c = ConcatFromSequence<axis = 1, new_axis = {new_axis}>(s)
        z = ReduceMean<keepdims = 0>(c) }}"""
    model = graph(text, one=np.array(1))
    check_pass_fires(
        model,
        replace_sequences,
        2,
        ["Neg", "Identity", *kinds, "Concat", "ReduceMean"],
        atol=0,
        trace=False,
    )


#: Sequences that stay -> (inputs, outputs, body, whose reason).
UNKNOWN = {
    "sizes of the run": (
        "float[N,6] x, int64[2] n",
        "float[A,B] y",
        "s = SplitToSequence<axis = 1>(x, n) y = SequenceAt(s, zero)",
        ["SplitToSequence", "SequenceAt"],
    ),
    "a place of the run": (
        "float[N,6] x, int64 at",
        "float[A,B] y",
        "s = SplitToSequence<axis = 1>(x, n) y = SequenceAt(s, at)",
        ["SplitToSequence", "SequenceAt"],
    ),
    "a place outside": (
        "float[N,6] x",
        "float[A,B] y",
        "s = SequenceConstruct(x) y = SequenceAt(s, nine)",
        ["SequenceAt"],
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_sequences(name):
    """`reject_unsupported` will name them; this pass says why it left them."""
    given, out, body, kinds = UNKNOWN[name]
    known = {"zero": np.array(0), "nine": np.array(9), "n": np.array([2, 4])}
    held = {
        key: array for key, array in known.items() if f" {key})" in body and f" {key}" not in given
    }
    model = graph(f"g ({given}) => ({out}) {{ {body} }}", **held)
    nodes = ops(model)
    assert [text.split(" ")[0] for text in reasons(replace_sequences, model)] == kinds
    assert ops(model) == nodes


# ---- control flow --------------------------------------------------------------------------------------------------

IF = """y = If(c)<then_branch = t () => (float[N,4] a) { a = Neg(x) }, else_branch = e () => (float[N,4] b) {
    i = Relu(x) b = Abs(i) }>"""
LOOP = """y, ys = Loop(turns, {start}, x)<body = b (int64 i, bool c, float[N,4] s) =>
    (bool o, float[N,4] r, float[N,4] scan) {{ {goes} r = Add(s, k) scan = Neg(r) }}>"""


@pytest.mark.parametrize(
    "taken, left", ((True, ["Neg", "Identity"]), (False, ["Relu", "Abs", "Identity"]))
)
def test_a_decided_if(taken, left):
    """The branch that is taken stands in its place."""
    model = graph(f"g (float[N,4] x) => (float[N,4] y) {{ {IF} }}", c=np.array(taken))
    check_pass_fires(model, inline_static_control_flow, 1, left, atol=0, trace=False)


@pytest.mark.parametrize("start", ("", "go"))
def test_a_counted_loop(start):
    """States go on from turn to turn; what is scanned is stacked."""
    text = f"""g (float[N,4] x) => (float[N,4] y, float[3,N,4] ys) {{
        {LOOP.format(start=start, goes="o = Identity(c)")} }}"""
    held = {"turns": np.array(3), "k": rand(4), **({"go": np.array(True)} if start else {})}
    left = ["Identity", "Add", "Neg"] * 3 + ["Unsqueeze"] * 3 + ["Concat", "Identity", "Identity"]
    model = graph(text, **held)
    x = rand(2, 4)
    want = outputs(graph(text, **held), {"x": x})
    assert changes(inline_static_control_flow, model) == 1
    assert ops(model) == left
    for name, array in outputs(model, {"x": x}).items():
        np.testing.assert_allclose(array, want[name], rtol=0, atol=1e-6)
    assert changes(inline_static_control_flow, model) == 0
    assert changes(reject_control_flow, model) == 0


SCAN = """s, ys = Scan<num_scan_inputs = 1{more}, body = b (float[N,5] a, float[N,5] e) =>
    (float[N,5] r, float[N,5] scan) {{ r = Add(a, e) scan = Neg(r) }}>(start, x)"""


@pytest.mark.parametrize(
    ("more", "shape"),
    [
        (", scan_input_axes = [1], scan_output_axes = [1]", "N,3,5"),
        (", scan_input_axes = [-2], scan_output_directions = [1]", "3,N,5"),
        (", scan_input_axes = [1], scan_input_directions = [1]", "3,N,5"),
    ],
)
def test_a_scan_of_known_length(more, shape):
    """Each element is selected; what is scanned is stacked along the axis that the node names."""
    text = f"""g (float[N,3,5] x, float[N,5] start) => (float[N,5] s, float[{shape}] ys) {{
        {SCAN.format(more=more)} }}"""
    feed = {"x": rand(2, 3, 5), "start": rand(2, 5)}
    want = outputs(graph(text), feed)
    model = graph(text)
    assert changes(inline_static_control_flow, model) == 1
    assert "Scan" not in ops(model)
    for name, array in outputs(model, feed).items():
        np.testing.assert_allclose(array, want[name], rtol=0, atol=1e-6)


def test_a_scan_of_unknown_length_stays():
    text = f"""g (float[T,N,5] x, float[N,5] start) => (float[N,5] s, float[T,N,5] ys) {{
        {SCAN.format(more="")} }}"""
    model = graph(text)
    assert changes(inline_static_control_flow, model) == 0
    with pytest.raises(ModelError, match="of unknown length"):
        reject_control_flow(model)


WHILE = """y, n, m, ys = Loop({turns}, go, x, zero, most)<
    body = b (int64 i, bool c, float[N,4] s, int32 at, int32 end) =>
    (bool o, float[N,4] r, int32 next, int32 same, float[N,4] scan) {{
        next = Add(at, step) f = Cast<to = 1>(next) e = Cast<to = 1>(end) o = Less(f, e) same = Identity(end)
        r = Add(s, k) scan = Neg(r) }}>"""


@pytest.mark.parametrize(
    ("turns", "most", "step", "count"),
    [("", 7, 3, 3), ("", 1, 3, 1), ("two", 7, 3, 2), ("many", 7, 1, 7)],
)
def test_a_loop_whose_condition_counts(turns, most, step, count):
    """A `while` that compares a counter turns as often as constants say, or as its number does
    where that is less.
    """
    text = f"""g (float[N,4] x) => (float[N,4] y, float[{count},N,4] ys) {{ {WHILE.format(turns=turns)} }}"""
    held = {
        "zero": np.array(0, np.int32),
        "most": np.array(most, np.int32),
        "step": np.array(step, np.int32),
    }
    held |= {
        "go": np.array(True),
        "k": rand(4),
        "two": np.array(2),
        "many": np.array(MAX_UNROLLED_ITERATIONS + 9),
    }
    model = graph(text, **held)
    x = rand(2, 4)
    want = outputs(graph(text, **held), {"x": x})
    assert changes(inline_static_control_flow, model) == 1
    assert ops(model).count("Neg") == count
    for name, array in outputs(model, {"x": x}).items():
        np.testing.assert_allclose(array, want[name], rtol=0, atol=1e-6)
    assert changes(inline_static_control_flow, model) == 0


def test_a_counter_of_the_run_or_without_end_stays():
    """Turns that depend on an input, or that are more than may be written out, are left."""
    held = {
        "zero": np.array(0, np.int32),
        "step": np.array(1, np.int32),
        "go": np.array(True),
        "k": rand(4),
    }
    for given, more in (
        (", int32 most", {}),
        ("", {"most": np.array(MAX_UNROLLED_ITERATIONS + 1, np.int32)}),
    ):
        text = f"g (float[N,4] x{given}) => (float[N,4] y) {{ {WHILE.format(turns='')} }}"
        model = graph(text, **held, **more)
        assert changes(inline_static_control_flow, model) == 0
        assert "Loop" in ops(model)


EARLY = "m = ReduceMax<keepdims = 0>(s) z = Constant<value_float = 9.0>() o = Less(m, z)"
TURNS = (
    f"only loops of at most {MAX_UNROLLED_ITERATIONS} iterations with a trip count known before "
    "the run are supported"
)
#: Control flow that stays -> (inputs, body, constants, reason).
OPEN = {
    "a condition of the run": (
        "",
        f"m = ReduceMax<keepdims = 0>(x) c = Cast<to = 9>(m) {IF}",
        {},
        "If If_y: its condition is computed at run time",
    ),
    "a setting": (", bool c", IF, {}, "If If_y: its condition depends on input 'c'"),
    "a number of the run": (
        ", int64 turns",
        LOOP.format(start="", goes="o = Identity(c)"),
        {},
        "Loop Loop_y: its trip count depends on input 'turns'",
    ),
    "too many turns": (
        "",
        LOOP.format(start="", goes="o = Identity(c)"),
        {"turns": np.array(MAX_UNROLLED_ITERATIONS + 1)},
        f"Loop Loop_y: {TURNS}",
    ),
    "an early end": (
        "",
        LOOP.format(start="", goes=EARLY),
        {"turns": np.array(3)},
        f"Loop Loop_y: {TURNS}",
    ),
    "a start of the run": (
        ", bool go",
        LOOP.format(start="go", goes="o = Identity(c)"),
        {"turns": np.array(3)},
        "Loop Loop_y: its trip count depends on input 'go'",
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_open_control_flow(name):
    """The pass leaves it, with the reason that `reject_control_flow` gives the user."""
    more, body, held, why = OPEN[name]
    given = {"k": rand(4), **held} if "Loop" in body else held
    model = graph(f"g (float[N,4] x{more}) => (float[N,4] y) {{ {body} }}", **given)
    lift_constants(model)
    nodes = ops(model)
    assert reasons(inline_static_control_flow, model) == [why]
    assert ops(model) == nodes
    setting = {"a setting": "c", "a number of the run": "turns", "a start of the run": "go"}.get(
        name
    )
    remedy = (
        f"fix that input: --fix {setting}={1 if setting == 'c' else 'VALUE'}"
        if setting
        else "export the model without it"
    )
    with pytest.raises(ModelError, match=f"{why}; {remedy}"):
        reject_control_flow(model)
