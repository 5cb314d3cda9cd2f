"""A few random nets of every family on every platform; `make fuzz-nets N=...` runs any number
(benchmarks/results/fuzzing.md).
"""

from collections import Counter
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from lingeronnx.interchange.qdq.difference import SimulatorDifference
from lingeronnx.ir import ir
from tests.fuzz import __main__ as command
from tests.fuzz import packability_checks, serialization_checks
from tests.fuzz.checks import CHECKS, failures
from tests.fuzz.families import FAMILIES
from tests.fuzz.journal import Journal, fell, tables
from tests.fuzz.known_differences import KNOWN, find_known_reason
from tests.fuzz.nets import case
from tests.fuzz.quantized_case import PLATFORMS, QuantizedCase, copied, run_float
from tests.fuzz.shrink import shrink

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "operators.md"
SEEDS = 2  # of each family on each platform
cached_case = cache(case)  # for tests that only read it
ONCE = (
    ("rows", 60, "venusA"),
    ("twice", 25, "venusA"),
    ("attention", 6, "venusA"),
    ("narrow", 2001, "arcs"),  # rows left over
    ("narrow", 2007, "venus"),  # a wide pool
    ("narrow", 2009, "venusA"),  # squeeze and excite
    ("narrow", 2021, "venus"),  # a reshaped output
    ("narrow", 2035, "arcs"),  # names of grouped convolutions
    ("narrow", 2038, "venus"),  # groups of one output
    ("narrow", 2048, "venus"),  # constants of an LSTM with gaps
    ("narrow", 6682, "arcs"),  # a layer norm that writes into the padding of its input
    ("parts", 100, "venus"),
)  # where judges once differed, or what was called right was not


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_disagrees(family, platform):
    """No two of our tools say different things about these nets, but for what is known."""
    for seed in range(SEEDS):
        found = failures(QuantizedCase(case(family, seed), platform))
        assert {
            check: texts for check, texts in found.items() if not all(map(find_known_reason, texts))
        } == {}, seed


@pytest.mark.parametrize(("family", "seed", "platform"), ONCE)
def test_the_judges_agree_where_they_once_did_not(family, seed, platform):
    made = QuantizedCase(case(family, seed), platform)
    assert failures(made, ["promise", "alarm", "parts"]) == {}
    assert made.result.report.chip_ready or made.chip_parts


@pytest.mark.deep
@pytest.mark.parametrize("place", KNOWN, ids=lambda place: f"{place.family}{place.seed}")
def test_what_is_known_is_still_there(place):
    """An entry goes when its cause is mended."""
    found = failures(QuantizedCase(case(place.family, place.seed), place.platform))
    assert any(place.says(text) for texts in found.values() for text in texts)


# ---- the generator ---------------------------------------------------------------------------------------------------


def test_a_seed_is_a_net():
    """The same seed gives the same net and the same data, another seed another net."""
    for family in FAMILIES:
        first, again, other = case(family, 3), case(family, 3), case(family, 4)
        assert first.digest == again.digest != other.digest
        assert all(np.array_equal(first.data[name], again.data[name]) for name in first.data)


def test_sizes_are_right():
    """The generator knows the shape of every output, as onnxruntime computes it; nothing becomes
    infinite.
    """
    for family in FAMILIES:
        for seed in range(8):
            net = cached_case(family, seed)
            found = run_float(net.model, {name: array[:1] for name, array in net.data.items()})
            assert all(array.shape[1:] == net.sizes[name] for name, array in found.items())
            assert all(np.isfinite(array).all() for array in found.values())


def test_every_operator_is_drawn():
    """Between them the families hold every float operator of docs/reference/operators.md, but for
    names of our own.
    """
    rows = [line.split(" | ") for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    taken = {kind for row in rows if len(row) == 6 for kind in row[1].split(", ")}
    assert {"Conv", "LSTM", "Resize", "Mish"} < taken
    missing = taken - {"Curve", "Silu", "Swish", "from ONNX", ""}
    for seed in range(100):
        missing -= {
            node.op_type
            for family in FAMILIES
            for node in cached_case(family, seed).model.graph.node
        }
        if not missing:
            break
    assert not missing


def test_the_hard_places_are_drawn():
    """One tensor twice in a node, of graph inputs too; several ends; odd sizes; one unit and
    sixteen; states.
    """
    nets = [cached_case(family, seed) for family in FAMILIES for seed in range(40)]
    twice, units, kinds = Counter(), set(), Counter()
    for net in nets:
        entries = {value.name for value in net.model.graph.input}
        for node in net.model.graph.node:
            double = {
                name for name, count in Counter(filter(None, node.input)).items() if count > 1
            }
            twice["input" if double & entries else "inner"] += bool(double)
            units |= {a.i for a in node.attribute if a.name == "hidden_size"}
        kinds["inputs"] += len(entries) > 1
        kinds["outputs"] += len(net.model.graph.output) > 1
        kinds["states"] += bool(net.state)
        kinds["fixed batch"] += (
            net.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
        )
    assert min(twice["input"], twice["inner"]) >= 5
    assert {1, 3, 5, 16} <= units
    assert min(kinds.values()) >= 20
    ranks = {
        len(value.type.tensor_type.shape.dim) for net in nets for value in net.model.graph.input
    }
    assert ranks == {2, 3, 4}


def describe_forms(net):
    """Yield the forms that packers and executors got wrong, of those that a net contains."""
    readers = Counter(name for node in net.model.graph.node for name in set(node.input))
    if any(readers[name] >= 3 for node in net.model.graph.node for name in node.output):
        yield "a tensor of three readers"
    if len(net.model.graph.output) > 1:
        yield "several outputs"
    for node in net.model.graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        size = net.sizes.get(node.input[0], ())
        if node.op_type == "Conv":
            group, rank = attributes["group"], len(attributes["kernel_shape"])
            if group > 1:
                kind = "depthwise" if group == size[0] else "grouped"
                yield f"{kind} {rank}-D"
            pads, strides = attributes["pads"], attributes["strides"]
            padded = size[1] + pads[0] + pads[rank] - attributes["kernel_shape"][0]
            if rank == 2 and padded % strides[0] and size[1] * size[2] > 16384 // 8:
                yield "rows left over"
        if node.op_type == "LSTM":
            steps, width = net.sizes["x0"]
            parity = "odd" if attributes["hidden_size"] % 2 else "even"
            yield f"{parity} LSTM, {'more' if steps > width else 'fewer'} steps than features"
        if node.op_type == "AveragePool" and attributes["kernel_shape"][1] > 7:
            yield "wide pool"
        if node.op_type == "Mul" and net.sizes.get(node.input[1], ())[1:] == (1, 1):
            yield "squeeze and excite"
        if node.op_type == "Concat" and len(size) == 3:
            yield "concatenation of maps"
        if node.op_type == "Softmax" and len(size) == 3 and size[0] > 1:
            yield "several heads"
        if node.op_type == "LayerNormalization" and size[-1] < 8:
            yield "narrow norm"


def test_the_forms_of_measured_rows_are_drawn():
    """The family of narrow nets has each of them in 200 nets, and more than once."""
    nets = [cached_case("narrow", seed) for seed in range(200)]
    drawn = Counter(form for net in nets for form in set(describe_forms(net)))
    lstms = {
        f"{p} LSTM, {n} steps than features" for p in ("odd", "even") for n in ("more", "fewer")
    }
    wanted = {f"{kind} {rank}-D" for kind in ("depthwise", "grouped") for rank in (1, 2)} | lstms
    wanted |= {"rows left over", "wide pool", "squeeze and excite", "concatenation of maps"}
    wanted |= {"several heads", "narrow norm", "several outputs", "a tensor of three readers"}
    assert wanted == set(drawn)
    assert min(drawn.values()) >= 2


# ---- a check can fail ------------------------------------------------------------------------------------------------


def off(result, **changes):
    """Return a result with another report."""
    return result.with_report(replace(result.report, **changes))


def other_tensors(made):
    made.tensors = {name: array + np.ones_like(array) for name, array in made.tensors.items()}


def other_float(made):
    proto = onnx.shape_inference.infer_shapes(ir.to_proto(made.result.float_graph))
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 1.1, tensor.name)
            )
    made.result = replace(made.result, float_graph=ir.from_proto(proto))


def other_weights(made):
    for tensor in made.proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT8:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(tensor), tensor.name)
            )


def no_room(made):
    made.result = off(made.result, packer_args="-p arcs -r 100")


def refused(made):
    made.result = off(made.result, chip_ready=False)


def no_reason(made):
    made.result = off(made.result, chip_ready=False, float_nodes=(), findings=())


def raises(made):
    made.result = None


SPOILED = {
    "normalised": other_float,
    "plain": other_weights,
    "blocks": other_tensors,
    "promise": no_room,
    "alarm": refused,
    "ahead": refused,
    "reason": no_reason,
    "file": other_tensors,
    "linger": other_tensors,
    "error": raises,
}


@pytest.fixture(scope="module")
def checked():
    """A net in which all checks find nothing, with everything that they computed."""
    made = QuantizedCase(case("image", 1), "arcs")
    assert failures(made) == {}
    assert made.result.report.chip_ready
    return made


@pytest.fixture
def made(checked):
    """A copy of it that a test may spoil."""
    made = copy(checked)
    made.proto = copied(checked.proto)
    return made


@pytest.mark.sweep
@pytest.mark.parametrize("check", SPOILED)
def test_a_check_can_fail(check, made):
    """Each one finds what was spoiled for it in a net that is right."""
    SPOILED[check](made)
    assert failures(made, [check] if check in CHECKS else None)[check]


def test_parts_that_the_judges_differ_on(monkeypatch):
    """The first of two parts has outputs with and without Dequants; a problem of one judge, and
    another order of outputs, are found.
    """
    made = QuantizedCase(case("parts", 0), "arcs")
    assert failures(made, ["parts"]) == {}
    first, _ = made.chip_parts
    assert {ir.producer(value).op_type == "Dequant" for value in first.graph.graph.outputs} == {
        False,
        True,
    }
    honest = packability_checks.judge

    def reverse_outputs(*arguments):
        verdict = honest(*arguments)
        return replace(verdict, outputs=verdict.outputs[::-1], problems=["invented"])

    monkeypatch.setattr(packability_checks, "judge", reverse_outputs)
    texts = failures(made, ["parts"])["parts"]
    assert texts[0] == "chip1: ours: ready; tests/packer: invented"
    assert texts[1].startswith("chip1: outputs: ours [")


@pytest.mark.parametrize("check", ("qdq", "deploy", "repair"))
def test_what_they_compare_can_differ(check, made, monkeypatch):
    """The same for those whose other side is a call."""
    count = iter(range(99))
    spoil = {
        "qdq": (
            "measure_differences",
            lambda *_: [SimulatorDifference("t", "Conv2dInt", False, 2, 1.0)],
        ),
        "deploy": ("chained", lambda *_: {}),
        "repair": ("run_proto", lambda *_: {"y": np.array(next(count))}),
    }
    monkeypatch.setattr(serialization_checks, *spoil[check])
    assert failures(made, [check])[check]


# ---- the smallest net ------------------------------------------------------------------------------------------------


def test_shrink():
    """Of a transformer that fails where a Softmax is, a Softmax is left, on the smallest input."""
    net = case("attention", 0)
    small = shrink(
        net, lambda other: any(node.op_type == "Softmax" for node in other.model.graph.node)
    )
    assert [node.op_type for node in small.model.graph.node] == ["Softmax"]
    assert [d.dim_value for d in small.model.graph.input[0].type.tensor_type.shape.dim[1:]] == [
        1
    ] * 2 or 1
    onnx.checker.check_model(small.model)


def test_shrink_keeps_what_fails():
    """A net of which everything is needed stays."""
    net = case("twice", 0)
    count = len(net.model.graph.node)
    assert (
        shrink(net, lambda other: len(other.model.graph.node) >= count).digest == net.digest
        or count
    )


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command(tmp_path, capsys, monkeypatch):
    """Finished nets are not run again; a failing one is told, and the smallest that still fails is
    written.
    """
    words = [
        "-n",
        "2",
        "--family",
        "rows",
        "twice",
        "--chip",
        "venus",
        "--seed",
        "3",
        "--shrink",
        "5",
    ]
    words += ["--journal", str(tmp_path / "j" / "nets.jsonl")]
    monkeypatch.setitem(
        CHECKS, "reason", lambda made: ["no reason"] if made.case.family == "twice" else []
    )
    assert command.main(words) == 1
    told = capsys.readouterr().out
    assert "twice 3 venus: reason: no reason" in told
    assert "| all | " in told
    assert [path.name for path in (tmp_path / "j").glob("*.onnx")] == ["reason-twice-3-venus.onnx"]
    with (tmp_path / "j" / "nets.jsonl").open("a") as stream:
        stream.write('{"family": "cut o')
    monkeypatch.setattr(command, "_run", None)
    assert command.main(words) == 1
    assert "no reason" not in capsys.readouterr().out


def test_tables():
    """Shares by family and chip, failures by platform and family."""
    rows = [
        {
            "family": family,
            "seed": seed,
            "platform": "venus",
            "effort": "fast",
            "ready": seed > 0,
            "why": "" if seed else "strides must be one of (1, 2, 4); here 3",
            "failed": {"plain": ["x"]} if seed else {},
        }
        for family in ("image", "rows")
        for seed in range(4)
    ]
    text = "\n".join(tables(rows))
    assert "| all | 6 of 8 (75 %)" in text
    assert "| strides must be one of # # # | 2 | 0 | 0 |" in text
    assert "| plain | 6 |" in text
    assert "| plain | 3 | 3 |" in text
    assert Journal(Path("nowhere.jsonl")).rows == {}


def test_what_fell(tmp_path):
    """Of the nets that two journals have in common, those that lost their promise are named with
    the rule.
    """
    row = {
        "family": "rows",
        "seed": 1,
        "platform": "venus",
        "effort": "fast",
        "net": 7,
        "ready": True,
        "why": "",
    }
    before = Journal(tmp_path / "before.jsonl")
    for change in ({}, {"seed": 2}, {"seed": 3, "ready": False}, {"seed": 4, "net": 8}):
        before.add({**row, **change})
    worse = {"ready": False, "why": "strides are 4"}
    now = [{**row, **worse}, {**row, "seed": 2}, {**row, "seed": 3}, {**row, "seed": 4, **worse}]
    first, *rest = fell(now, Journal(before.path))
    assert first.startswith("3 nets are in ")
    assert first.endswith("2 were chip-ready, 2 are; 1 are not any more")
    assert rest == ["  rows 1 venus: strides are 4"]
