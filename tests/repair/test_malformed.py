"""Law: whatever the file, the command ends with 0 or with 1 and one line; it writes a whole graph
or nothing.

The corpus holds files that are damaged beyond what a repair is for. `corpus.py` made them.
"""

import shutil
from pathlib import Path
from random import Random

import onnx
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from lingeronnx import cli
from tests.case_selection import limit_examples
from tests.repair.damage import DAMAGES

HERE = Path(__file__).resolve()
CORPUS = sorted((HERE.parent / "corpus").glob("*.onnx"))
GRAPHS = sorted((HERE.parents[1] / "golden" / "dequant").glob("*.onnx"))

STANDARD = (
    "Identity",
    "Concat",
    "If",
    "Loop",
    "Gather",
    "Clip",
    "Resize",
    "Where",
    "Split",
    "Cast",
    "ArgMax",
)
QUANTIZED = ("Dequant", "Quant", "LSTMInt", "GRUInt", "Gather", "ArgMax", "Nothing", "iqCat")

quick = limit_examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
few = limit_examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])


def command(path, *options):
    """Run the command on a file and hold the law."""
    before, out = path.read_bytes(), path.with_name("out.onnx")
    out.unlink(missing_ok=True)
    result = CliRunner().invoke(cli.main, ["fix-dequant", str(path), "-o", str(out), *options])
    assert result.exit_code in (0, 1), result.output + str(result.exception)
    assert "Traceback" not in result.output
    if result.exit_code and "--check" not in options:
        assert not out.exists()
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("error: ")
    if out.exists():
        onnx.load(out)
        assert CliRunner().invoke(cli.main, ["fix-dequant", str(out), "--dry-run"]).exit_code == 0
    assert path.read_bytes() == before
    assert {p.name for p in path.parent.iterdir()} <= {path.name, "out.onnx"}
    return result


def test_corpus_is_there():
    """The corpus is not empty."""
    assert len(CORPUS) >= 15


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
@pytest.mark.parametrize("options", ((), ("--check",)))
def test_corpus(path, options, tmp_path):
    """Every file of the corpus, without and with a run."""
    copy = tmp_path / "model.onnx"
    shutil.copy(path, copy)
    command(copy, *options)


def garble(data, rng):
    """Return `data` with some bytes changed, cut out, doubled, or the end cut off."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0 and place < len(data):
            data[place] = rng.randrange(256)
        elif kind == 1:
            del data[place : place + rng.randint(1, 20)]
        elif kind == 2:
            data[place:place] = data[place : place + rng.randint(1, 200)]
        elif kind == 3:
            data[place:place] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 12)))
        elif rng.random() < 0.2:
            del data[place:]
    return bytes(data)


def _garbled(tmp_path, path, seed, options=()):
    copy = tmp_path / "model.onnx"
    copy.write_bytes(garble(path.read_bytes(), Random(seed)))
    command(copy, *options)


@quick
@given(st.sampled_from(GRAPHS), st.integers(0, 1 << 40))
def test_garbled(tmp_path, path, seed):
    """Bytes of a graph changed at random."""
    _garbled(tmp_path, path, seed)


@pytest.mark.slow
@few
@given(st.sampled_from(GRAPHS), st.integers(0, 1 << 40))
def test_garbled_and_run(tmp_path, path, seed):
    """The same, and what still is a graph is run."""
    _garbled(tmp_path, path, seed, ("--check",))


@quick
@given(st.binary(max_size=400))
def test_any_bytes(tmp_path, data):
    """Any bytes at all."""
    copy = tmp_path / "model.onnx"
    copy.write_bytes(data)
    command(copy)


def mix(model, rng):
    """Change a graph field by field: names, operators, attributes, types and sizes, from what is in
    it.
    """
    names = sorted({n for node in model.graph.node for n in (*node.input, *node.output)}) + [
        "",
        "nowhere",
    ]
    nodes, kinds = model.graph.node, [(n.domain, n.op_type) for n in model.graph.node]
    kinds += [
        ("", k)
        for k in [
            "Identity",
            "Concat",
            "If",
            "Loop",
            "Gather",
            "Clip",
            "Resize",
            "Where",
            "Split",
            "Cast",
            "ArgMax",
        ]
    ]
    kinds += [
        ("thinker", k)
        for k in ["Dequant", "Quant", "LSTMInt", "GRUInt", "Gather", "ArgMax", "Nothing", "iqCat"]
    ]
    for _ in range(rng.randint(1, 6)):
        node = rng.choice(nodes)
        what = rng.randrange(9)
        if what == 0 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        elif what == 1 and node.output:
            node.output[rng.randrange(len(node.output))] = rng.choice(names)
        elif what == 2:
            node.domain, node.op_type = rng.choice(kinds)
        elif what == 3 and node.attribute:
            attribute = rng.choice(node.attribute)
            attribute.type = rng.choice(list(onnx.AttributeProto.AttributeType.values()))
        elif what == 4 and node.attribute:
            attribute = rng.choice(node.attribute)
            attribute.f, attribute.i = (
                rng.choice([float("nan"), float("inf"), -1.0, 0.0]),
                rng.choice([-1, 0, 1 << 62]),
            )
        elif what == 5:
            values = rng.choice([model.graph.input, model.graph.output, model.graph.initializer])
            if values:
                rng.choice(values).name = rng.choice(names)
        elif what == 6:
            value = rng.choice([*model.graph.input, *model.graph.output])
            value.type.tensor_type.elem_type = rng.choice([0, 1, 3, 5, 6, 7, 9, 16, 99])
            if rng.random() < 0.5:
                value.type.tensor_type.shape.dim.add().dim_value = rng.choice([-1, 0, 1 << 40])
        elif what == 7 and len(nodes) > 1:
            del nodes[rng.randrange(len(nodes))]
        else:
            node.input.append(rng.choice(names))
    return model


def _mixed(tmp_path, path, seed, options=()):
    rng = Random(seed)
    model = onnx.load(path)
    for damage in rng.sample(DAMAGES, rng.randint(0, 3)):
        if model.graph.node:
            damage(model, rng)
    copy = tmp_path / "model.onnx"
    copy.write_bytes(mix(model, rng).SerializeToString())
    command(copy, *options)


@quick
@given(st.sampled_from(GRAPHS), st.integers(0, 1 << 40))
def test_mixed(tmp_path, path, seed):
    """Sound protobuf of an unsound graph."""
    _mixed(tmp_path, path, seed)


@pytest.mark.slow
@few
@given(st.sampled_from(GRAPHS), st.integers(0, 1 << 40))
def test_mixed_and_run(tmp_path, path, seed):
    """The same, and what can be repaired is run."""
    _mixed(tmp_path, path, seed, ("--check",))
