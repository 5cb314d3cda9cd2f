"""The runner of passes: requirements, answers, failures, and what --debug-dump and --notes show of
them.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.common.errors import ConfigError, InternalError, ModelError
from lingeronnx.ir import ir
from lingeronnx.quantization.normalize import (
    CONTROL_FLOW_PASSES,
    ENTRY_PASSES,
    NORMALIZATION_PASSES,
    Pass,
    PassLog,
    PassResult,
    SkipReason,
    normalize,
    resolve_control_flow,
    run_entry_passes,
)
from lingeronnx.quantization.normalize._pass import (
    CONSTANTS_LIFTED,
    FUNCTIONS_INLINED,
    NO_SUBGRAPHS,
    SHAPES_KNOWN,
    PassRun,
    run_passes,
)
from tests.passes.helpers import feeds, graph, ops, positive, proto, rand

MODELS = Path(lo.__file__).parents[1] / "models"

NORM = """g (float[N,3,8,8] x) => (float[N,4,8,8] y, float[N,4,8,8] z) {
    c = Conv<pads = [1, 1, 1, 1]>(x, w) n = BatchNormalization(c, g, b, m, v) y = Relu(n) z = Relu(c)
}"""
ARRAYS = {"w": rand(4, 3, 3, 3), "g": rand(4), "b": rand(4), "m": rand(4), "v": positive(4)}
WHY = "BatchNormalization BatchNormalization_n stays: the output of Conv_c is used elsewhere too"

#: A requirement -> a graph that breaks it, and what is said of that.
BROKEN = (
    (
        CONSTANTS_LIFTED,
        "g (float[N,2] x) => (float[N,2] y) { k = Constant<value_float = 2.0>() y = Mul(x, k) }",
        "constants as initializers, .*: Constant_k is a Constant node",
    ),
    (
        SHAPES_KNOWN,
        "g (float[N,2] x) => (float[N,2] y) { k = Relu(x) y = Neg(k) }",
        "a shape for every tensor, .*: 'k' has none",
    ),
    (
        NO_SUBGRAPHS,
        """g (float[N,2] x, bool c) => (float[N,2] y) {
        y = If(c)<then_branch = t () => (float[N,2] a) { a = Neg(x) }, else_branch = e () => (float[N,2] b) {
        b = Relu(x) }> }""",
        "no subgraphs, .*: If If_y has one",
    ),
)


def test_a_pass_runs_only_if_its_operators_are_there():
    """Functions of this package count by their base names; a pass that did not run is observed."""
    ran, seen = [], []
    steps = tuple(
        Pass(name, lambda model, name=name: ran.append(name) or 0, operators=operators)
        for name, operators in (("any", ()), ("relu", ("Neg", "Relu")), ("split", ("Split",)))
    )
    model = graph("g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }")
    changes = run_passes(steps, model, lambda run, _: seen.append(run.name))
    assert ran == ["any", "relu"]
    assert seen == list(changes) == ["any", "relu", "split"]


@pytest.mark.parametrize("net", ["digits_cnn", "digits_gru", "digits_attention"])
def test_passes_need_the_operators_that_they_name(net):
    """A pass that is not run because no node has one of its operators would have no effect."""
    model = ir.load(MODELS / f"{net}.onnx")
    model, _ = run_entry_passes(model)
    size = {str(value.name): ir.require_shape(value) for value in model.graph.inputs}
    feed = {
        name: np.zeros([dim if isinstance(dim, int) else 1 for dim in dims], np.float32)
        for name, dims in size.items()
    }
    resolve_control_flow(model, feed)
    op_types = {ir.base_op_type(node) for node in model.graph}
    skipped = [step for step in NORMALIZATION_PASSES if not step.concerns(op_types)]
    assert len(skipped) >= 5
    for step in skipped:
        result = step.run(model)
        if isinstance(result, PassResult):
            assert not result.skip_reasons, step.name
            result = result.changes
        assert result == 0, step.name


@pytest.mark.parametrize("need, text, message", BROKEN, ids=lambda part: getattr(part, "name", ""))
def test_a_requirement_is_checked(need, text, message):
    """The runner names the pass, what it requires, what ran before and where that does not hold; it
    does not run it.
    """
    ran = []
    steps = (
        Pass("first", lambda model: 0),
        Pass("needy", lambda model: ran.append(model) or 0, (need,)),
    )
    with pytest.raises(InternalError, match=f"pass needy requires {message}") as caught:
        run_passes(steps, graph(text))
    assert "after passes first" in str(caught.value)
    assert not ran


def test_conditions_of_a_pass_that_does_not_run_are_not_checked():
    """A pass without one of its operators needs nothing; the operators are those of the graph as the
    passes before left it.
    """
    need, text, _ = BROKEN[0]
    steps = (Pass("needy", lambda model: 0, (need,), operators=["Split"]),)
    assert run_passes(steps, graph(text)) == {"needy": 0}

    def rename(model):
        model.graph[0].op_type = "Neg"
        return 1

    ran = []
    steps = (
        Pass("rename", rename, operators=["Relu"]),
        Pass("old", lambda model: ran.append("old") or 0, operators=["Relu"]),
        Pass("new", lambda model: ran.append("new") or 0, operators=["Neg"]),
    )
    run_passes(steps, graph("g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }"))
    assert ran == ["new"]


def test_functions_and_inputs_are_checked():
    """A function of somebody else, and an initializer that is listed as an input, are told by
    name.
    """
    made = proto("g (float[N,2] x) => (float[N,2] y) { y = other.Twice(x) }")
    body = onnx.parser.parse_function(
        '<domain: "other", opset_import: ["" : 13]> Twice (a) => (b) { b = Add(a, a) }'
    )
    made.functions.append(body)
    made.opset_import.append(onnx.helper.make_opsetid("other", 1))
    assert FUNCTIONS_INLINED.find_violation(ir.from_proto(made)) == "function Twice is not inlined"
    old = proto("g (float[N,2] x, float[2] k) => (float[N,2] y) { y = Mul(x, k) }", k=rand(2))
    assert CONSTANTS_LIFTED.find_violation(ir.from_proto(old)) == "initializer 'k' is a graph input"


@pytest.mark.parametrize(
    "need",
    (FUNCTIONS_INLINED, CONSTANTS_LIFTED, SHAPES_KNOWN, NO_SUBGRAPHS),
    ids=lambda need: need.name,
)
def test_requirements_hold_where_they_should(need):
    """On a graph without functions, constants as nodes, subgraphs and unknown shapes."""
    assert need.find_violation(graph("g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }")) is None


def test_every_pass_says_what_it_needs():
    """Only those that make a graph readable, or look at it as it came, need nothing."""
    free = {
        step.name
        for step in (*ENTRY_PASSES, *CONTROL_FLOW_PASSES, *NORMALIZATION_PASSES)
        if not step.requires and not step.keeps
    }
    assert free == {"sound", "inline-functions", "prepare", "check-control"}
    assert len({step.name for step in ENTRY_PASSES}) == len(ENTRY_PASSES)


def test_an_error_of_the_user_goes_through():
    """What a pass says of the model is not wrapped."""

    def refuse(model):
        raise ModelError("no")

    with pytest.raises(ModelError, match="^no$"):
        run_passes(
            (Pass("refusing", refuse),), graph("g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }")
        )


def test_answers_reach_the_watcher():
    """Counts and reasons, in order, also of passes that only count; changes of one name are
    summed.
    """
    steps = (
        Pass("a", lambda model: 2),
        Pass("b", lambda model: PassResult(0, (SkipReason(model.graph[0], "so"),))),
        Pass("a", lambda model: 1),
    )
    seen = PassLog()
    assert run_passes(steps, graph("g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }"), seen) == {
        "a": 3,
        "b": 0,
    }
    assert [(s.name, s.changes) for s in seen.steps] == [("a", 2), ("b", 0), ("a", 1)]
    assert seen.format_skip_reasons() == ["b: Relu Relu_y stays: so"]
    assert list(seen.steps[1].lines()) == ["b: 0 changes", "  Relu Relu_y stays: so"]


def test_only_the_last_reason_counts():
    """A pass that runs again and then acts has nothing to say."""
    seen = PassLog()
    model = graph("g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }")
    run_passes(
        (Pass("a", lambda m: PassResult(0, (SkipReason(None, "w"),))), Pass("a", lambda m: 1)),
        model,
        seen,
    )
    assert seen.format_skip_reasons() == []


def test_the_dump(tmp_path):
    """Every graph that a pass changed is a valid model; the text says what each pass did or why
    not.
    """
    seen = PassLog(tmp_path / "dump")
    model, _ = run_entry_passes(graph(NORM, **ARRAYS), seen)
    resolve_control_flow(model, {name: array[:1] for name, array in feeds(model).items()}, seen)
    normalize(model, seen)
    text = (tmp_path / "dump" / "passes.txt").read_text().splitlines()
    assert text[0] == "00 sound: 0 changes"
    assert f"     {WHY}" in text
    assert (
        sum(line[:2].isdigit() for line in text)
        == len(seen.steps)
        == len(ENTRY_PASSES) + len(NORMALIZATION_PASSES)
    )
    acted = [f"{i:02}_{s.name}.onnx" for i, s in enumerate(seen.steps) if s.changes]
    assert sorted(p.name for p in (tmp_path / "dump").iterdir()) == [*acted, "passes.txt"]
    for name in acted:
        onnx.checker.check_model(str(tmp_path / "dump" / name), full_check=True)


def test_the_dump_of_a_pass_that_fails(tmp_path):
    """What ran before it is there."""
    seen = PassLog(tmp_path)

    def fail(model):
        raise ZeroDivisionError("oh")

    with pytest.raises(InternalError, match="pass broken failed after passes fine: oh"):
        run_passes(
            (Pass("fine", lambda model: 1), Pass("broken", fail)), graph(NORM, **ARRAYS), seen
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00_fine.onnx", "passes.txt"]


def test_quantize_shows_it(tmp_path):
    """The command and the function: --debug-dump writes, --notes full tells in the report; without
    them neither.
    """
    path = tmp_path / "m.onnx"
    onnx.save(proto(NORM, **ARRAYS), path)
    given = ["quantize", str(path), "--effort", "fast", "-o", str(tmp_path / "q.onnx")]
    done = CliRunner().invoke(
        cli.main, [*given, "--debug-dump", str(tmp_path / "d"), "--notes", "full", "--json"]
    )
    assert done.exit_code == 0
    assert f"fold-batch-norm: {WHY}" in done.stdout
    names = sorted(p.name for p in (tmp_path / "d").iterdir())
    assert "passes.txt" in names
    last = (tmp_path / "d" / "passes.txt").read_text().splitlines()[-1]
    assert last.endswith("fit: 0 changes")
    plain = lo.quantize(path, rand(4, 3, 8, 8), effort="fast")
    assert not any("stays" in note for note in plain.report.notes)
    full = lo.quantize(
        path, rand(4, 3, 8, 8), effort="fast", notes="full", debug_dump=tmp_path / "e"
    )
    assert f"fold-batch-norm: {WHY}" in full.report.notes
    assert ops(full.graph) == ops(plain.graph)
    first, second = (
        np.concatenate([a.ravel() for a in r.session().run(None, {"x": rand(2, 3, 8, 8)})])
        for r in (plain, full)
    )
    np.testing.assert_array_equal(first, second)


def test_a_folder_that_cannot_be(tmp_path):
    """One line."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot make the folder .*file: File exists"):
        PassLog(tmp_path / "file")(
            PassRun("a", 0), graph("g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }")
        )
