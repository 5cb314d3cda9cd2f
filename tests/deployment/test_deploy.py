"""The folder for a board: complete, true, and together equal to the whole graph."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner

from lingeronnx import api
from lingeronnx.cli import main
from lingeronnx.common.errors import ConfigError, ConstraintError, DataError, ModelError
from lingeronnx.common.escaping import make_c_identifier
from lingeronnx.deployment import verify
from lingeronnx.deployment.c_program import packages
from lingeronnx.deployment.c_program.source_files import StaticMemory
from lingeronnx.deployment.header import make_header
from lingeronnx.deployment.ports import Port, Ports, StateFeedback
from lingeronnx.ir import ir
from lingeronnx.runtime.session import Session
from tests import nets
from tests.ops.test_recurrent_forms import WIDTH, T, streaming

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
STATE = {"h_out": "h", "c_out": "c"}

pytestmark = pytest.mark.usefixtures("c_tools")


def both_ends():
    """Float nodes before and behind the integers, an output that leaves the chip as it is, one of
    the host alone.
    """
    net = nets.Net(3, 8, 8, seed=4)
    e = net.node("Erf", "x")
    a = net.node("Relu", net.conv(e, (8, 3, 3, 3), pads=[1] * 4))
    flat = net.node(
        "Flatten",
        net.node("MaxPool", net.conv(a, (6, 8, 3, 3)), kernel_shape=[2, 2], strides=[2, 2]),
    )
    logits = net.linear(flat, (54, 5), out="logits")
    probabilities = net.node("Softmax", logits, axis=1, out="probabilities")
    high = net.node("Sqrt", probabilities, out="high")
    return net.graph("logits", high, net.node("Abs", e, out="loud"))


def calls():
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((3, T, WIDTH)).astype(np.float32)} for _ in range(5)]


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """Return the folder of the net with both ends, its whole graph and its data."""
    data = nets.samples(both_ends(), 24)
    found = api.quantize(both_ends(), data, effort="fast")
    folder = tmp_path_factory.mktemp("ends") / "board"
    return api.deploy(found, folder, data, stem="ends"), found.graph, data


@pytest.fixture(scope="module")
def spotter(tmp_path_factory):
    """Return the folder of a recurrent net with states, and its whole graph."""
    found = api.quantize(streaming("LSTM"), calls(), platform="arcs", state=STATE, effort="fast")
    folder = tmp_path_factory.mktemp("spotter") / "board"
    return api.deploy(found, folder, calls(), stem="spotter", state=STATE), found.graph


def chain(folder, stem, feeds, wanted):
    """Run head, chip and tail one after another, each from its file."""
    known = dict(feeds)
    for part in ("host_head", "chip", "host_tail"):
        file = folder / f"{stem}_{part}.onnx"
        if not file.is_file():
            continue
        if part == "chip":
            session = Session(file)
            names = [a.name for a in session.get_outputs()]
            known.update(
                zip(
                    names,
                    session.run(None, {a.name: known[a.name] for a in session.get_inputs()}),
                    strict=True,
                )
            )
        else:
            host = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
            names = [a.name for a in host.get_outputs()]
            known.update(
                zip(
                    names,
                    host.run(None, {a.name: known[a.name] for a in host.get_inputs()}),
                    strict=True,
                )
            )
    return [known[name] for name in wanted]


# ---- the parts -------------------------------------------------------------------------------------------------------


def test_head_chip_tail(ends):
    """Together they are the whole graph, for every output."""
    done, graph, data = ends
    assert {
        "ends_host_head.onnx",
        "ends_host_tail.onnx",
        "ends_chip.onnx",
        "ends.onnx",
    } <= done.files.keys()
    wanted = [v.name for v in graph.graph.outputs]
    assert wanted == ["logits", "high", "loud"]
    for i in range(4):
        feeds = {"x": data["x"][i : i + 1]}
        for file in (graph, done.folder / "ends.onnx"):
            whole = Session(file).run(None, feeds)
            for want, have in zip(whole, chain(done.folder, "ends", feeds, wanted), strict=True):
                np.testing.assert_array_equal(want, have)
    chip = onnx.load(done.folder / "ends_chip.onnx").graph
    assert {n.op_type for n in chip.node} <= {
        "Quant",
        "Dequant",
        "Conv2dInt",
        "Relu",
        "MaxPool",
        "Flatten",
        "LinearInt",
        "Reshape",
    }


def test_a_graph_without_types(ends, tmp_path):
    """A file that tells the type of nothing but what the host computes for the chip is cut at the
    same places.
    """
    done, graph, data = ends
    bare = onnx.load(done.folder / "ends.onnx")
    (fed,) = [
        v
        for v in bare.graph.value_info
        if v.name in {n.input[0] for n in bare.graph.node if n.op_type == "Quant"}
    ]
    del bare.graph.value_info[:], bare.graph.output[0]
    bare.graph.value_info.append(fed)
    onnx.save(bare, tmp_path / "bare.onnx")
    again = api.deploy(tmp_path / "bare.onnx", tmp_path / "board", data)
    assert [p.name for p in again.ports.outputs] == [p.name for p in done.ports.outputs]
    feeds, wanted = {"x": data["x"][:1]}, ["high", "loud"]
    for want, have in zip(
        Session(graph).run(wanted, feeds), chain(again.folder, "bare", feeds, wanted), strict=True
    ):
        np.testing.assert_array_equal(want, have)


def test_missing_states_are_named_with_their_option(spotter, tmp_path):
    with pytest.raises(DataError, match=r"no array for input 'h'.*--state h_out=h"):
        api.deploy(spotter[1], tmp_path / "board", calls(), stem="spotter")


def test_states(spotter):
    """Call by call, the integers of the paired outputs, shifted, are the next call's inputs."""
    done, graph = spotter
    ports = done.ports
    assert len(ports.states) == 2
    assert not ports.host_states
    wanted = [v.name for v in graph.graph.outputs]
    stream = Session(graph).stream(STATE)
    chip = Session(done.folder / "spotter_chip.onnx")
    held = {p.name: np.zeros(p.shape, p.dtype) for p in ports.inputs}
    for call in calls():
        x = call["x"][:1]
        want = stream.run(wanted, {"x": x})
        names = [p.tensor for p in ports.outputs]
        have = chip.run(names, {**held, "x": x})
        for output, name in STATE.items():
            index = next(
                s.output
                for s in ports.states
                if ports.inputs[s.input].elements and s.input == _input(done, name)
            )
            real = have[index] / 2.0 ** ports.outputs[index].shift
            np.testing.assert_array_equal(
                want[wanted.index(output)].reshape(-1), real.astype(np.float32).reshape(-1)
            )
        for state in ports.states:
            assert (
                state.shift == ports.inputs[state.input].shift - ports.outputs[state.output].shift
            )
            port = ports.inputs[state.input]
            wide = have[state.output].astype(np.int64)
            wide = (
                wide << state.shift
                if state.shift >= 0
                else (wide + (1 << (-state.shift - 1))) >> -state.shift
            )
            held[port.name] = np.clip(wide, -128, 127).astype(port.dtype).reshape(port.shape)


def _input(done, name):
    """Return the place among the chip's inputs of what the head makes of graph input `name`."""
    head = onnx.load(done.folder / "spotter_host_head.onnx").graph
    (made,) = [n.output[0] for n in head.node if name in n.input]
    return [p.name for p in done.ports.inputs].index(made)


# ---- the files -------------------------------------------------------------------------------------------------------


def folders(ends, spotter):
    return (ends[0], spotter[0])


def test_manifest(ends, spotter):
    """Every file is listed, with its hash and size; versions and ports stand there."""
    for done in folders(ends, spotter):
        body = json.loads((done.folder / "manifest.json").read_text())
        files = {str(f.relative_to(done.folder)) for f in done.folder.rglob("*") if f.is_file()}
        assert files == {*body["files"], "manifest.json"} == done.files.keys()
        for name, entry in body["files"].items():
            content = (done.folder / name).read_bytes()
            assert (entry["bytes"], entry["sha256"]) == (
                len(content),
                hashlib.sha256(content).hexdigest(),
            )
        assert body["platform"] == done.platform
        assert {"lingeronnx", "onnx", "numpy"} <= body["versions"].keys()
        assert [p["name"] for p in body["inputs"]] == [p.name for p in done.ports.inputs]
        assert list(body["parts"])[-2].endswith("_chip.onnx")


def sizes_are_true(folder, stem):
    """Compare what the README says with the files."""
    text = (folder / "DETAILS.md").read_text()
    rows = {m[1]: int(m[2]) for m in re.finditer(r"^\| ([^|]+?) \| (\d+) \|$", text, re.M)}
    golden = [f.stat().st_size for f in (folder / "golden").rglob("*") if f.is_file()]
    assert rows.pop(f"golden/ ({len(golden)} files)") == sum(golden)
    beside = {f.name: f.stat().st_size for f in folder.iterdir() if f.is_file()}
    assert rows == {
        n: s for n, s in beside.items() if n not in ("README.md", "DETAILS.md", "manifest.json")
    }
    constants = onnx.load(folder / f"{stem}_chip.onnx").graph.initializer
    assert (
        "Constants of the chip graph: "
        f"{sum(onnx.numpy_helper.to_array(c).nbytes for c in constants)} bytes"
    ) in text
    ports = re.findall(r"^\| (input|output) (\d+) \| .* \| (\d+) \| [^|]+ \|$", text, re.M)
    for word, number, size in ports:
        assert (folder / "golden" / "0" / f"{word}{number}.bin").stat().st_size == int(size)
    assert ports


def test_readme(ends, spotter):
    for done, stem in zip(folders(ends, spotter), ("ends", "spotter"), strict=True):
        sizes_are_true(done.folder, stem)
        text = (done.folder / "README.md").read_text()
        assert done.command in text
        assert len(text.splitlines()) <= 60
        details = (done.folder / "DETAILS.md").read_text()
        for name in done.files:
            assert (
                name in details
                or name.startswith("golden/")
                or name in ("README.md", "DETAILS.md", "manifest.json")
            )


def test_golden(ends, spotter):
    """`verify` agrees with them, sample by sample; the raw files are what goes in and comes out."""
    for done in folders(ends, spotter):
        chip = done.folder / f"{done.stem}_chip.onnx"
        session = Session(chip)
        for number in range(3):
            place = done.folder / "golden" / str(number)
            found = verify(chip, place / "input.npz", dump=place)
            assert found.agrees
            assert not found.unknown
            assert not found.unseen
            feeds = {}
            for index, port in enumerate(done.ports.inputs):
                feeds[port.name] = np.fromfile(place / f"input{index}.bin", port.dtype).reshape(
                    port.shape
                )
            outputs = session.run([p.tensor for p in done.ports.outputs], feeds)
            for index, array in enumerate(outputs):
                assert (place / f"output{index}.bin").read_bytes() == array.tobytes()
        assert not (done.folder / "golden" / "3").exists()


def c_values(done, folder, compiler):
    """Compile the header strictly and return what a program sees of it."""
    name = make_c_identifier(done.stem)
    upper, lines = name.upper(), []
    for word, side in (("INPUT", done.ports.inputs), ("OUTPUT", done.ports.outputs)):
        for i in range(len(side)):
            macro = f"{upper}_{word}{i}"
            lines.append(
                f'printf("%s|%d|%d|%d|%d|%d\\n", {macro}_NAME, {macro}_RANK, {macro}_SIZE, '
                f"{macro}_BYTES,"
                f" {macro}_SHIFT, (int)sizeof({name}_{word.lower()}{i}_t));"
            )
            count = "for (i = 0; i < sizeof shape / sizeof *shape; i++) n *= shape[i];"
            lines.append(
                f'{{ int shape[] = {macro}_SHAPE, n = 1; unsigned i; {count} printf("%d\\n", n); }}'
            )
    lines += [
        (
            f'printf("%d %d %d\\n", {upper}_STATE{i}_OUTPUT, {upper}_STATE{i}_INPUT, '
            f"{upper}_STATE{i}_SHIFT);"
        )
        for i in range(len(done.ports.states))
    ]
    lines.append(f'printf("%d %d %d\\n", {upper}_INPUTS, {upper}_OUTPUTS, {upper}_STATES);')
    source = folder / "check.c"
    source.write_text(
        f'#include <stdio.h>\n#include "{done.stem}.h"\n#include "{done.stem}.h"\n'
        f"int main(void) {{\n{chr(10).join(lines)}\nreturn 0; }}\n"
    )
    program = folder / "check"
    subprocess.run(
        [
            compiler,
            "-std=c99",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            f"-I{done.folder}",
            str(source),
            "-o",
            str(program),
        ],
        check=True,
        capture_output=True,
    )
    return subprocess.run(
        [str(program)], check=True, capture_output=True, text=True
    ).stdout.splitlines()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
def test_header(ends, spotter, tmp_path):
    """It compiles without a warning, read twice, and says what the ports are."""
    for done in folders(ends, spotter):
        lines = iter(c_values(done, tmp_path, "gcc"))
        for port in (*done.ports.inputs, *done.ports.outputs):
            want = [
                port.package_name,
                *map(str, (len(port.shape), port.elements, port.bytes, port.shift, 1)),
            ]
            assert next(lines).split("|") == want
            assert int(next(lines)) == port.elements
        for state in done.ports.states:
            assert next(lines).split() == [str(state.output), str(state.input), str(state.shift)]
        counts = (len(done.ports.inputs), len(done.ports.outputs), len(done.ports.states))
        assert next(lines).split() == list(map(str, counts))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
def test_header_of_odd_names(tmp_path):
    """Any name becomes a string of its bytes; a comment cannot be broken out of; floats have no
    shift.
    """
    name = 'a"b\\c*/ ??= é\n'
    port = Port(name, "t", (), "float32", None, name)
    text = make_header(
        "3 odd*/name", "venus", Ports((port,), (port,), (StateFeedback(0, 0, -2),), {name: name})
    )
    (tmp_path / "o.h").write_text(text)
    prefix = make_c_identifier("3 odd*/name")
    (tmp_path / "o.c").write_text(
        f'#include <stdio.h>\n#include "o.h"\nint main(void) {{ {prefix}_input0_t v = 0; '
        f"fputs({prefix.upper()}_INPUT0_NAME, stdout); return (int)v; }}\n"
    )
    subprocess.run(
        ["gcc", "-std=c99", "-Wall", "-Werror", str(tmp_path / "o.c"), "-o", str(tmp_path / "o")],
        check=True,
    )
    assert (
        subprocess.run([str(tmp_path / "o")], check=True, capture_output=True).stdout
        == name.encode()
    )
    assert "SHIFT" not in text.partition("After a call")[0].replace("2^SHIFT", "")


def test_pack_script(tmp_path):
    """It calls the packer from anywhere with names as they are, spaces and quotes in the folder's
    among them.
    """
    net = nets.Net(3, 8, 8, seed=5)
    model = net.graph(net.conv("x", (4, 3, 3, 3), out="it's a $name"))
    found = api.quantize(model, nets.samples(model, 4), effort="fast")
    folder = tmp_path / "it's $HOME here"
    done = api.deploy(found, folder, nets.samples(model, 4), stem="my model.v2")
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "tpacker").write_text(
        '#!/bin/sh\npwd > called\nfor a in "$@"; do echo "$a" >> called; last=$a; done\nprintf '
        'packed > "$last"\n'
    )
    (fake / "tpacker").chmod(0o755)
    subprocess.run(
        ["sh", str(folder / "pack.sh")],
        check=True,
        env={**os.environ, "PATH": f"{fake}:{os.environ['PATH']}"},
    )
    called = (folder / "called").read_text().splitlines()
    assert called[0] == str(folder)
    assert called[1:] == [
        "-g",
        "my_model_v2_chip.onnx",
        "-p",
        "venus",
        "-d",
        "False",
        "-o",
        "my_model_v2.pkg",
    ]
    assert done.stem == "my_model_v2"
    graph = (folder / "my_model_v2_chip.onnx").read_bytes()
    head = packages.make_package_header(
        "venus", 0, zlib.crc32(graph), packages.compute_arguments_crc(called[3:7])
    )
    assert (folder / "my_model_v2.pkg").read_bytes() == packages.make_package(head, b"packed")


# ---- as a whole or not at all ----------------------------------------------------------------------------------------


def test_again_and_again(ends, tmp_path):
    """The same input gives the same bytes; a folder of ours is replaced, nothing old is left."""
    done, graph, data = ends
    for _ in range(2):
        again = api.deploy(graph, tmp_path / "board", data, stem="ends")
        assert (again.folder / "manifest.json").read_bytes() == (
            done.folder / "manifest.json"
        ).read_bytes()
        (tmp_path / "board" / "left.txt").write_text("old")
    api.deploy(graph, tmp_path / "board", data, stem="ends")
    assert not (tmp_path / "board" / "left.txt").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["board"]


def test_nothing_half_written(ends, tmp_path, monkeypatch):
    """Where something fails on the way, the folder is as it was."""
    _, graph, data = ends

    def broken(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lingeronnx.deployment.deployment_contents.make_readme", broken)
    with pytest.raises(ConfigError, match="No space left"):
        api.deploy(graph, tmp_path / "board", data)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    api.deploy(graph, tmp_path / "board", data, samples=1)
    before = (tmp_path / "board" / "manifest.json").read_bytes()
    monkeypatch.setattr("lingeronnx.deployment.deployment_contents.make_readme", broken)
    with pytest.raises(ConfigError, match="No space left"):
        api.deploy(graph, tmp_path / "board", data)
    assert (tmp_path / "board" / "manifest.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["board"]


def test_refusals(ends, tmp_path):
    _, graph, data = ends
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("dear")
    with pytest.raises(ConfigError, match="not created by deploy"):
        api.deploy(graph, tmp_path / "mine", data)
    with pytest.raises(ConfigError, match="not a directory"):
        api.deploy(graph, tmp_path / "mine" / "notes.txt", data)
    with pytest.raises(ConfigError, match="does not exist"):
        api.deploy(graph, tmp_path / "none" / "board", data)
    with pytest.raises(ConfigError, match="'mode' is for float models"):
        api.deploy(graph, tmp_path / "board", data, mode="q-value")
    with pytest.raises(ConstraintError, match="generic: it is not a chip"):
        api.deploy(nets.quantized(nets.plain(), platform="generic"), tmp_path / "board")
    net = nets.Net(3, 8, 8)
    alone = net.graph(net.node("Erf", "x", out="y"))
    with pytest.raises((ConstraintError, ModelError)):
        api.deploy(alone, tmp_path / "board", nets.samples(alone, 4), effort="fast")
    with pytest.raises(DataError, match="is empty"):
        api.deploy(graph, tmp_path / "board", [])
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


# ---- commands --------------------------------------------------------------------------------------------------------


def test_commands(tmp_path):
    """A float model, what became of it, and `quantize --deploy` give one folder; made-up vectors
    are confessed.
    """
    model = both_ends()
    ir.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "calib.npz", **nets.samples(model, 16))
    calib = ["--calib", str(tmp_path / "calib.npz"), "--effort", "fast"]
    run = CliRunner().invoke

    def ok(*words):
        found = run(main, [str(word) for word in words])
        assert found.exit_code == 0, found.output
        return found

    ok("deploy", tmp_path / "net.onnx", *calib, "-o", tmp_path / "a")
    both = ok("quantize", tmp_path / "net.onnx", *calib, "--deploy", tmp_path / "b", "--json")
    assert json.loads(both.stdout)["deployment"]["stem"] == "net_quant"
    body = json.loads(
        ok(
            "deploy",
            tmp_path / "net_quant.onnx",
            "--input",
            tmp_path / "calib.npz",
            "-o",
            tmp_path / "c",
            "--json",
        ).stdout
    )
    assert body["packer"].startswith("tpacker -g net_quant_chip.onnx -p venus")
    manifests = {(tmp_path / x / "manifest.json").read_bytes() for x in "abc"}
    assert len(manifests) == 1
    alone = ok("deploy", tmp_path / "net_quant.onnx", "--samples", "1", "-o", tmp_path / "d")
    assert "synthetic" in alone.output
    assert "synthetic" in (tmp_path / "d" / "README.md").read_text()
    bad = run(
        main, ["deploy", str(tmp_path / "net_quant.onnx"), "--bits", "8", "-o", str(tmp_path / "e")]
    )
    assert (bad.exit_code, bad.output.count("\n")) == (1, 1)
    assert not (tmp_path / "e").exists()
    checked = ok(
        "verify",
        tmp_path / "a" / "net_quant_chip.onnx",
        "--input",
        tmp_path / "a/golden/1/input.npz",
        "--device-dump",
        tmp_path / "a/golden/1",
    )
    assert "all equal" in checked.output


# ---- real models -----------------------------------------------------------------------------------------------------

REAL = (
    ("mlperf_tiny_kws", "kws_calib", {"skip": ["conv0"]}, True, True),
    ("mlperf_tiny_kws", "kws_calib", {}, False, True),
    ("mlperf_tiny_resnet8", "resnet8_calib", {}, False, True),
)


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "models").is_dir(), reason="no real models here")
@pytest.mark.parametrize("model, data, settings, head, tail", REAL)
def test_real_models(model, data, settings, head, tail, tmp_path):
    path, feeds = SHARED / "models" / f"{model}.onnx", f"{SHARED / 'data' / 'loaders.py'}:{data}"
    if settings:
        first = onnx.load(path).graph.node[0]
        settings = {"skip": [first.name or first.output[0]]}
    done = api.deploy(path, tmp_path / "board", feeds, effort="fast", limit=32, **settings)
    files = {f"{done.stem}{end}" for end in (".onnx", "_chip.onnx")}
    files |= {f"{done.stem}_host_head.onnx"} if head else set()
    files |= {f"{done.stem}_host_tail.onnx"} if tail else set()
    assert {name for name in done.files if name.endswith(".onnx")} == files
    sizes_are_true(done.folder, done.stem)
    if shutil.which("gcc"):
        assert c_values(done, tmp_path, "gcc")
    whole = Session(done.folder / f"{done.stem}.onnx")
    (given,) = whole.get_inputs()
    x = (
        np.random.default_rng(0)
        .standard_normal([int(d or 1) for d in given.shape])
        .astype(np.float32)
        * 20
    )
    wanted = [a.name for a in whole.get_outputs()]
    for want, have in zip(
        whole.run(None, {given.name: x}),
        chain(done.folder, done.stem, {given.name: x}, wanted),
        strict=True,
    ):
        np.testing.assert_array_equal(want, have)


def test_a_part_whose_end_has_another_name_on_the_chip(tmp_path):
    """Behind a LayerNormInt that writes past its plan arcs gets nodes of its own: golden vectors
    are of the whole's.
    """
    net = nets.Net(17, 32, seed=3)
    a = net.node(
        "Add", "x", net.const(0.2 * net.rng.standard_normal((1, 17, 32)).astype(np.float32))
    )
    ones, zeros = net.const(np.ones(32, np.float32)), net.const(np.zeros(32, np.float32))
    net.opset = 17
    b = net.node("Sin", net.node("LayerNormalization", a, ones, zeros, axis=-1, epsilon=1e-5))
    net.node(
        "MatMul", b, net.const(0.2 * net.rng.standard_normal((32, 4)).astype(np.float32)), out="y"
    )
    data = {"x": np.random.default_rng(1).standard_normal((8, 17, 32)).astype(np.float32)}
    found = api.quantize(net.proto("y"), data, platform="arcs", effort="fast")
    done = api.deploy(found, tmp_path / "board", data, stem="norm")
    chip = ir.load(done.folder / "norm_chip1.onnx")
    (end,) = [node for node in chip.graph if node.op_type == "Dequant"]
    whole = {str(v.name) for v in ir.iter_values(found.graph)}
    assert str(end.inputs[0].name) not in whole
    assert (done.folder / "golden").is_dir()


def test_a_file_whose_names_the_packer_misreads(tmp_path):
    """The folder has safe names, and so do its golden vectors, for a file as for a graph in memory;
    `verify` on the file finds its tensors in them.
    """
    data = nets.samples(nets.plain(), 4)
    graph = api.quantize(nets.plain(), data, effort="fast").graph.clone()
    (source,) = (str(value.name) for value in graph.graph.inputs)
    sums = next(str(n.outputs[0].name) for n in graph.graph if n.op_type == "LinearInt")
    ir.rename(graph, {source: "in:put", sums: "Scale,@"}, {})
    ir.save(graph, tmp_path / "odd.onnx")
    feeds = {"in:put": data[source]}
    for model in (tmp_path / "odd.onnx", graph):
        done = api.deploy(model, tmp_path / "board", feeds, stem="odd")
        assert [port.name for port in done.ports.inputs] == ["in_put"]
        place = done.folder / "golden" / "1"
        found = verify(model, place / "input.npz", dump=place)
        assert found.agrees
        assert not found.unknown
        assert "Scale,@" in found.compared


def two_layers(width, hidden):
    """Build a net of two chip parts with a host part between them."""
    net = nets.Net(width)
    a = net.node("Erf", net.linear("x", (width, hidden)))
    return net.graph(net.linear(a, (hidden, width), out="y"))


def test_psram_that_is_too_small_is_a_note(tmp_path):
    """One byte too few is told, with advice if there are several parts; as many as are needed are
    not.
    """
    one_layer = nets.Net(32)
    cases = (
        (two_layers(32, 24), "; fewer parts take less: quantize with --max-parts 1"),
        (one_layer.graph(one_layer.linear("x", (32, 24), out="y")), ""),
    )
    for number, (model, advice) in enumerate(cases):
        feed = nets.samples(model, 2)
        quantized = api.quantize(model, feed, platform="arcs", effort="fast")
        board = api.deploy(quantized, tmp_path / f"board{number}", feed, samples=1).contents
        psram_bytes = StaticMemory(board.program).psram_bytes
        notes = [
            replace(board, target=replace(board.target, external_memory=size)).notes()
            for size in (psram_bytes - 1, psram_bytes, None)
        ]
        want = (
            f"psram: {psram_bytes} bytes including the executor's objects; arcs has "
            f"{psram_bytes - 1}{advice}"
        )
        assert notes == [[want], [], []]


@pytest.mark.slow
def test_more_psram_than_the_chip_has_is_told(tmp_path):
    """Two parts whose weights fit one by one, and together by a hair: the executor's objects are
    too much.
    """
    model = two_layers(2048, 2040)
    feed = nets.samples(model, 2)
    made = api.quantize(model, feed, platform="arcs", effort="fast")
    done = api.deploy(made, tmp_path / "board", feed, samples=1, stem="two")
    assert made.report.program.psram_bytes <= 8 * 1024 * 1024
    (note,) = [note for note in done.notes if note.startswith("psram: ")]
    assert note.endswith("arcs has 8388608; fewer parts take less: quantize with --max-parts 1")
    assert note in (tmp_path / "board" / "README.md").read_text(encoding="utf-8")
