"""Profiles: the table against numpy, TensorBoard's file against the format's definition, files that are read again."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.analysis.profile.events import EVENTS_VERSION, crc32c
from lingeronnx.analysis.profile.profile import COLUMNS, entries, origin
from lingeronnx.analysis.profile.profile_file import load_profile, save_profile
from lingeronnx.analysis.profile.recording import RecordedSession
from lingeronnx.graph import ir
from tests.nets import plain

ROOT = Path(__file__).parents[2]
HEAD = "Index | Op Name | Mod Name | Attr | Dtype | Scale | Min | Max | Mean | Var | Shape"


def table(text: str) -> list[dict[str, str]]:
    lines = [line for line in text.splitlines() if not line.startswith("+")]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A float file, its data, its integer graph, and the profile of the float model with everything on."""
    home = tmp_path_factory.mktemp("profile")
    ir.save(plain(), home / "net.onnx")
    x = np.random.default_rng(1).standard_normal((50, 3, 12, 12)).astype(np.float32)
    np.savez(home / "data.npz", x=x)
    quantized = lo.quantize(home / "net.onnx", x, platform="venus", effort="fast")
    quantized.save(home / "quant.onnx")
    profile = lo.profile(home / "net.onnx", x, home / "p", tensorboard=True, per_channel=True, keep=True, batch=7)
    return home, x, profile


def test_every_row_against_numpy(made) -> None:
    home, x, _ = made
    session = lo.Session(home / "net.onnx")
    real = {name: array for name, array, _ in session.taps({"x": x})}
    real |= {name: ir.const(value) for name, value in session.model.graph.initializers.items()}
    rows = table((home / "p" / "statistic.txt").read_text())
    assert " | ".join(rows[0]) == HEAD == " | ".join(COLUMNS)
    assert [row["Index"] for row in rows] == [str(i) for i in range(len(rows))]
    want = []
    for node in session.model.graph:
        kinds = {"Conv": ["input", "weight", "bias"], "Gemm": ["input", "weight", "bias"]}.get(node.op_type, ["input"])
        want += [(node.op_type, node.name, kind, str(v.name)) for kind, v in zip(kinds, node.inputs, strict=False)]
        want += [(node.op_type, node.name, "output", str(node.outputs[0].name))]
    assert [(row["Op Name"], row["Mod Name"], row["Attr"]) for row in rows] == [line[:3] for line in want]
    for row, (_, _, attr, name) in zip(rows, want, strict=True):
        array = real[name].astype(np.float64)
        found = [float(row[key]) for key in ("Min", "Max", "Mean", "Var")]
        np.testing.assert_allclose(found, [array.min(), array.max(), array.mean(), array.var()], rtol=1e-5, atol=1e-9)
        assert (row["Dtype"], row["Scale"]) == ("float32", "-")
        shape = array.shape if attr in ("weight", "bias") else (7, *array.shape[1:])
        assert json.loads(row["Shape"]) == list(shape)


def test_integers_count_as_the_users_values(made) -> None:
    home, x, _ = made
    session = lo.Session(home / "quant.onnx")
    profile = lo.profile(home / "quant.onnx", x)
    conv = next(n for n in session.model.graph if n.op_type == "Conv2dInt")
    rows = {row["attr"]: row for row in profile.to_dict(prefixes=[str(conv.name)])}
    ((_, array, scale),) = session.taps({"x": x}, [str(conv.outputs[0].name)])
    factor = 1.0
    moved = json.loads(session.model.metadata_props.get("lingeronnx.transforms", "{}"))
    user = session.floats.get(str(conv.outputs[0].name), str(conv.outputs[0].name))
    if user in moved:
        factor = np.array(moved[user]).reshape(1, -1, 1, 1)
    assert rows["output"]["max"] == pytest.approx((array / scale / factor).max(), rel=1e-6)
    assert (rows["output"]["dtype"], rows["output"]["scale"]) == ("int8", scale)
    weight, bias = (ir.const(conv.inputs[i]) for i in (1, 2))
    scale_x, scale_w = ir.attr(conv, "scale_x"), ir.attr(conv, "scale_w")
    assert rows["weight"]["max"] == pytest.approx(weight.max() / scale_w)
    assert rows["bias"]["max"] == pytest.approx(bias.max() / scale_w / scale_x)
    assert rows["bias"]["dtype"] == "int32"


def test_filters(made) -> None:
    _, _, profile = made
    assert {e.op for e in profile.chosen(types=["Conv"])} == {"Conv"}
    first = profile.entries[0].module
    assert {e.module for e in profile.chosen(prefixes=[first])} == {first}
    with pytest.raises(lo.ConfigError, match="no operator fits prefixes .* its types are Conv"):
        profile.chosen(types=["Lstm"])


# ---- TensorBoard -------------------------------------------------------------------------------------------------


def event_class():
    """Build TensorFlow's messages from their published definition, for protobuf's own parser."""
    kinds = {"d": 1, "i": 3, "s": 9, "m": 11}
    file = descriptor_pb2.FileDescriptorProto(name="event_test.proto", package="t", syntax="proto3")
    for name, fields in {
        "Histo": [
            ("min", 1, "d"),
            ("max", 2, "d"),
            ("num", 3, "d"),
            ("sum", 4, "d"),
            ("sum_squares", 5, "d"),
            ("bucket_limit", 6, "d*"),
            ("bucket", 7, "d*"),
        ],
        "Value": [("tag", 1, "s"), ("histo", 5, "m:Histo")],
        "Summary": [("value", 1, "m*:Value")],
        "Event": [("wall_time", 1, "d"), ("step", 2, "i"), ("file_version", 3, "s"), ("summary", 5, "m:Summary")],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            message.field.add(
                name=field,
                number=number,
                type=kinds[kind[0]],
                label=3 if "*" in kind else 1,
                type_name=f".t.{kind.partition(':')[2]}" if ":" in kind else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))


def naive_crc(data: bytes) -> int:
    """CRC-32C bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_crc_by_its_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283 == naive_crc(b"123456789")


def read_events(path) -> list:
    data, at, events, kind = path.read_bytes(), 0, [], event_class()
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        body = data[at + 12 : at + 12 + length]
        for start, part in ((at + 8, data[at : at + 8]), (at + 12 + length, body)):
            crc = naive_crc(part)
            assert struct.unpack_from("<I", data, start)[0] == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32
        events.append(kind.FromString(body))
        at += 16 + length
    return events


def test_events_are_what_the_format_says(made, tmp_path) -> None:
    home, x, profile = made
    (file,) = profile.tensorboard(tmp_path, types=["Gemm"]).iterdir()
    assert "tfevents" in file.name
    first, *rest = read_events(file)
    assert first.file_version == EVENTS_VERSION.decode()
    session = lo.Session(home / "net.onnx")
    gemm = next(n for n in session.model.graph if n.op_type == "Gemm")
    roles = zip(("input", "weight", "bias", "output"), (*gemm.inputs, gemm.outputs[0]), strict=True)
    tags = [event.summary.value[0].tag for event in rest]
    assert tags == [f"{gemm.name}/{attr}/{value.name}" for attr, value in roles]
    (y,) = session.run(None, {"x": x})
    histo = rest[-1].summary.value[0].histo
    assert (histo.min, histo.max, histo.num) == (y.min(), y.max(), y.size)
    np.testing.assert_allclose([histo.sum, histo.sum_squares], [y.sum(dtype=float), (y.astype(float) ** 2).sum()])
    assert len(histo.bucket) == len(histo.bucket_limit)
    assert sum(histo.bucket) == y.size
    np.testing.assert_array_equal(histo.bucket[1:], np.histogram(y.astype(np.float64), np.array(histo.bucket_limit))[0])


def test_a_histogram_per_channel(made) -> None:
    home, x, profile = made
    events = read_events(next((home / "p" / "tensorboard").iterdir()))[1:]
    histos = {event.summary.value[0].tag: event.summary.value[0].histo for event in events}
    assert len(histos) == len(events)
    conv = next(e for e in profile.entries if e.op == "Conv" and e.attr == "output")
    ((_, array, _),) = lo.Session(home / "net.onnx").taps({"x": x}, [conv.tensor])
    for channel in range(array.shape[1]):
        histo = histos[f"{conv.module}/output/{conv.tensor}/{channel}"]
        assert (histo.min, histo.max) == (array[:, channel].min(), array[:, channel].max())
    with pytest.raises(lo.ConfigError, match="made without channels"):
        lo.profile(home / "net.onnx", x).tensorboard(home / "q", force_per_channel=True)


# ---- files -------------------------------------------------------------------------------------------------------


def test_a_profile_that_is_read_goes_on_as_the_one_written(made, tmp_path) -> None:
    home, _, profile = made
    again = load_profile(home / "p")
    assert (again.text(), again.model) == (profile.text(), profile.model)
    assert {n: len(s.channels) for n, s in again.seen.items()} == {n: len(s.channels) for n, s in profile.seen.items()}
    for name, seen in profile.seen.items():
        have, want = again.seen[name].spread, seen.spread
        assert (have.count, have.low, have.high, have.mean) == (want.count, want.low, want.high, want.mean)
        assert have.variance == pytest.approx(want.variance)
        np.testing.assert_array_equal(
            have.histogram.bins(have.low, have.high), want.histogram.bins(want.low, want.high)
        )
        have.add(np.array([1e3, -1e3]))
        want = load_profile(home / "p").seen[name].spread
        want.add(np.array([1e3, -1e3]))
        assert have.histogram.quantile(0.5) == want.histogram.quantile(0.5)
    save_profile(load_profile(home / "p"), tmp_path / "b.npz")
    assert (tmp_path / "b.npz").read_bytes() == (home / "p" / "profile.npz").read_bytes()


def test_what_is_no_profile(made, tmp_path) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", lingeronnx_profile=np.array([{}], object))
    (tmp_path / "cut.npz").write_bytes((made[0] / "p" / "profile.npz").read_bytes()[:900])
    for name in ("other.npz", "pickled.npz", "cut.npz"):
        with pytest.raises(lo.DataError, match=f"{name} is no profile that lingeronnx wrote"):
            load_profile(tmp_path / name)
    with pytest.raises(lo.DataError, match="cannot read the profile"):
        load_profile(tmp_path / "none.npz")


def test_kept_tensors_stand_for_the_model(made, tmp_path) -> None:
    home, x, _ = made
    session = lo.Session(home / "net.onnx")
    recorded = RecordedSession(session, home / "p")
    want = {name: array for name, array, _ in session.taps({"x": x})}
    for _ in range(2):
        parts: dict[str, list] = {}
        for feeds in recorded.batches(9):
            for name, array, scale in recorded.taps(feeds):
                assert scale is None
                parts.setdefault(name, []).append(array)
        assert parts.keys() == want.keys()
        for name, arrays in parts.items():
            np.testing.assert_allclose(np.concatenate(arrays), want[name], atol=1e-5)
    (last,) = recorded.run(None, {"x": x[::-7]})  # in any order
    np.testing.assert_allclose(last, session.run(None, {"x": x[::-7]})[0], atol=1e-5)
    with pytest.raises(lo.DataError, match="sample 1 of the batch is not among those of the profile"):
        recorded.run(None, {"x": np.stack([x[0], x[1] + 1])})
    with pytest.raises(lo.DataError, match="was made of another model"):
        RecordedSession(lo.Session(home / "quant.onnx"), home / "p")
    lo.profile(home / "net.onnx", x, tmp_path / "bare")
    with pytest.raises(lo.DataError, match="has no tensors: make it with --keep"):
        RecordedSession(session, tmp_path / "bare")


def test_compare_from_profiles(made, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    home, _, _ = made

    def run(*words):
        return CliRunner().invoke(cli.main, [str(word) for word in words])

    models = home / "net.onnx", home / "quant.onnx"
    for model, out in zip(models, ("f", "q"), strict=True):
        assert run("profile", model, "--data", home / "data.npz", "-o", out, "--keep").exit_code == 0
    done = run("compare", *models, "--profiles", "f", "q", "-o", "kept", "--json")
    assert done.exit_code == 0, done.output
    again = run("compare", *models, "--data", home / "data.npz", "-o", "run", "--json")
    assert again.exit_code == 0, again.output
    kept, ran = (json.loads(each.stdout)["layers"] for each in (done, again))
    assert [row["mod_name"] for row in kept] == [row["mod_name"] for row in ran]
    for ours, theirs in zip(kept, ran, strict=True):
        assert ours["Cosine"] == pytest.approx(theirs["Cosine"], rel=1e-5)
        assert ours["L1"] == pytest.approx(theirs["L1"], rel=1e-4, abs=1e-9)
        assert ours["local_L1"] is None
    assert (tmp_path / "kept" / "compare_per_layer_out.csv").exists()
    assert run("compare", *models, "-o", "x").exit_code == 2
    swapped = run("compare", *models, "--profiles", "q", "f", "-o", "x")
    assert (swapped.exit_code, "was made of another model" in swapped.output) == (1, True)


# ---- where it comes from -----------------------------------------------------------------------------------------


def node_with(**told):
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 13]>
        m (float[N, 2] x) => (float[N, 2] y) { y = Relu(x) }""")
    for key, value in told.items():
        if key == "doc":
            proto.graph.node[0].doc_string = value
        else:
            proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value=value)
    return ir.from_proto(proto).graph.node(0)


def test_the_place_in_the_source() -> None:
    dynamo = (
        'File "/home/me/net.py", line 7, in forward\n    return self.r(x)\n  File "/env/torch/nn/modules/a.py", '
        "line 143, in forward\n    return F.relu(input)"
    )
    script = "/env/torch/nn/functional.py(5): relu\n/home/me/net.py(7): forward\n/home/me/main.py(90): <module>\n"
    assert origin(node_with(meta=dynamo)) == "/home/me/net.py:7 in forward"
    assert origin(node_with(doc=script)) == "/home/me/net.py:7 in forward"
    assert origin(node_with(doc="made by hand")) == ""


@pytest.mark.slow
def test_stack_column_of_torchs_own_export(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    from lingeronnx.torch.exporter.exporters import quiet

    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    with quiet():
        torch.onnx.export(
            net, (torch.zeros(1, 4),), tmp_path / "n.onnx", dynamo=True, verbose=False, external_data=False
        )
    profile = lo.profile(tmp_path / "n.onnx", np.zeros((1, 4), np.float32))
    stacks = {row["Op Name"]: row["Stack"] for row in table(profile.text(with_stack=True))}
    assert stacks.keys() == {"Gemm", "Relu"}
    assert all(".py:" in stack for stack in stacks.values())


# ---- the familiar face and the command ---------------------------------------------------------------------------


def test_model_profiler(made, tmp_path) -> None:
    home, x, _ = made
    session = lo.Session(home / "net.onnx")
    with lo.ModelProfiler(session, tmp_path / "p") as p:
        session(x[:20])
        session(x[20:])
    p.get_info_manager.table(types=["Conv"])
    rows = table((tmp_path / "p" / "statistic.txt").read_text())
    assert {row["Op Name"] for row in rows} == {"Conv"}
    p.get_info_manager.table(out_dir=tmp_path / "q", with_stack=True)
    assert table((tmp_path / "q" / "statistic.txt").read_text())[0]["Stack"] == "unknown"
    p.get_info_manager.tensorboard(types=["Gemm"], force_per_channel=True)
    tags = {e.summary.value[0].tag for e in read_events(next((tmp_path / "p" / "tensorboard").iterdir()))[1:]}
    gemm = next(e for e in entries(session.model) if e.op == "Gemm" and e.attr == "output")
    assert {f"{gemm.module}/output/{gemm.tensor}/{c}" for c in range(5)} < tags
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == [
        "profile.npz",
        "statistic.txt",
        "tensorboard",
        "tensors",
    ]
    with lo.ModelProfiler(session, tmp_path / "r") as idle:
        pass
    with pytest.raises(lo.ConfigError, match="the model was not called"):
        idle.get_info_manager.table()


@pytest.mark.slow
def test_model_profiler_on_a_torch_module(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    with lo.ModelProfiler(net, tmp_path / "p") as p:
        net(x[:4])
        net(x[4:])
    p.get_info_manager.table()
    rows = table((tmp_path / "p" / "statistic.txt").read_text())
    (relu,) = (row for row in rows if row["Op Name"] == "Relu" and row["Attr"] == "output")
    assert float(relu["Max"]) == pytest.approx(net(x).max().item(), rel=1e-5)


def test_the_command(made, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = made[0]
    call = ["profile", home / "quant.onnx", "--data", home / "data.npz", "-o", "out", "--type", "Conv2dInt", "--stack",
            "--tensorboard", "--keep", "--json"]  # fmt: skip
    done = CliRunner().invoke(cli.main, [str(word) for word in call])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert {row["op"] for row in rows} == {"Conv2dInt"}
    assert len(rows) == len(table((tmp_path / "out" / "statistic.txt").read_text()))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "profile.npz",
        "statistic.txt",
        "tensorboard",
        "tensors",
    ]
    wrong = CliRunner().invoke(cli.main, [str(word) for word in [*call[:4], "-o", "no/where"]])
    assert (wrong.exit_code, wrong.output.count("\n")) == (1, 1)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(tmp_path) -> None:
    """Law: the peak with 2,048 samples is that with 64, to a tenth; each run has a process of its own."""
    digits = ROOT / "models" / "digits_cnn.onnx"
    code = (
        "import resource, sys, numpy as np, lingeronnx as lo\n"
        "def data():\n"
        "    rng = np.random.default_rng(0)\n"
        "    for _ in range(int(sys.argv[2]) // 64):\n"
        "        yield rng.standard_normal((64, 1, 8, 8)).astype(np.float32)\n"
        "lo.profile(sys.argv[1], data, 'out', tensorboard=True)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    peaks = [
        int(
            subprocess.run(
                [sys.executable, "-c", code, str(digits), str(count)],
                cwd=tmp_path,
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            ).stdout
        )
        for count in (64, 2048)
    ]
    assert peaks[1] <= 1.1 * peaks[0]
