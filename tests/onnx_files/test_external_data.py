"""External data and the size limit of one file: weights beside the model, as a whole or not at
all.
"""

import re
import subprocess
import sys

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir, onnx_file
from tests.onnx_files.helpers import close, images, proto, rand, save
from tests.passes.helpers import outputs

TEXT = """g (float[N,3,8,8] x) => (float[N,5] y) {
    c = Conv<strides = [2, 2]>(x, w) r = Relu(c) f = Flatten(r) y = MatMul(f, w2) }"""


def model():
    return proto(TEXT, w=rand(16, 3, 3, 3), w2=rand(144, 5))


def external(tmp_path, location="model.data", offset=0):
    """Write a model whose initializers lie in `location`; return its path."""
    stored = model()
    data = b"\0" * offset
    for tensor in stored.graph.initializer:
        entries = {"location": location, "offset": len(data), "length": len(tensor.raw_data)}
        data += tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.extend(
            onnx.StringStringEntryProto(key=k, value=str(v)) for k, v in entries.items()
        )
    (tmp_path / "model.data").write_bytes(data)
    return save(stored, tmp_path / "model.onnx")


def test_reads_external_data(tmp_path):
    """The same numbers as from one file."""
    feed = {"x": images(3, 8, 8)}
    found = outputs(ir.load(external(tmp_path, offset=64)), feed)
    np.testing.assert_array_equal(found["y"], outputs(ir.from_proto(model()), feed)["y"])


@pytest.mark.parametrize("location", ("../model.data", "/etc/hostname", "a/../../model.data", ""))
def test_refuses_a_file_elsewhere(tmp_path, location):
    """Nothing outside the model's folder is read."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "model.data").write_bytes(b"secret" * 1000)
    with pytest.raises(
        ModelError,
        match="outside the folder of the model; move the file to the folder of the model",
    ):
        ir.load(external(inside, location))


def test_refuses_a_link_that_leads_out(tmp_path):
    """Nor through a symbolic link."""
    inside = tmp_path / "inside"
    inside.mkdir()
    path = external(inside)
    (inside / "model.data").replace(tmp_path / "elsewhere")
    (inside / "model.data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="outside the folder"):
        ir.load(path)


def test_missing_file(tmp_path):
    """Which tensor, which file."""
    path = external(tmp_path)
    (tmp_path / "model.data").unlink()
    with pytest.raises(
        ModelError, match=r"'w' has its data in 'model.data', which cannot be read \(No such file"
    ):
        ir.load(path)


def test_short_file(tmp_path):
    """A half-copied data file."""
    path = external(tmp_path)
    data = (tmp_path / "model.data").read_bytes()
    (tmp_path / "model.data").write_bytes(data[:-8])
    with pytest.raises(
        ModelError, match="'w2' needs 2880 bytes at offset 1728 of 'model.data', but .* incomplete"
    ):
        ir.load(path)


def test_the_whole_of_quantize_above_the_limit(tmp_path, monkeypatch):
    """With the limit forced low every session goes through a file; the result is the same, saved in
    two files.
    """
    path, data = save(model(), tmp_path / "model.onnx"), images(3, 8, 8)
    small = lo.quantize(path, data, platform="generic")
    small.save(tmp_path / "small.onnx")
    monkeypatch.setattr(onnx_file, "MAX_MODEL_BYTES", 1000)
    big = lo.quantize(path, data, platform="generic")
    assert close(big)
    big.save(tmp_path / "big.onnx")
    names = sorted(p.name for p in tmp_path.iterdir())
    assert re.fullmatch(r"big\.onnx\.[0-9a-f]{16}\.data", names.pop(1))
    assert names == ["big.onnx", "model.onnx", "small.onnx"]
    feed = {"x": data}
    first, second = (
        lo.Session(tmp_path / name).run(None, feed)[0] for name in ("small.onnx", "big.onnx")
    )
    np.testing.assert_array_equal(first, second)
    assert onnx.load(tmp_path / "big.onnx", load_external_data=False).ByteSize() < 3000


def test_saving_is_all_or_nothing(tmp_path, monkeypatch):
    """What cannot be written leaves the old files."""
    graph = ir.from_proto(model())
    monkeypatch.setattr(onnx_file, "MAX_MODEL_BYTES", 1000)
    ir.save(graph, tmp_path / "m.onnx")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lingeronnx.ir.onnx_file.move_to_external_data", fail)
    with pytest.raises(lo.common.errors.ConfigError, match="No space left"):
        ir.save(graph, tmp_path / "m.onnx")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def named(folder):
    """Return the weight `w` of the model in a folder, as it is read."""
    return {t.name: t for t in onnx.load(folder / "m.onnx").graph.initializer}["w"].raw_data


KILLED = """
import os, pathlib, sys
import numpy as np
from lingeronnx.ir import ir, onnx_file
onnx_file.MAX_MODEL_BYTES = 1000
graph = ir.load(sys.argv[1])
value = graph.graph.initializers["w"]
value.const_value = ir.tensor(2 * value.const_value.numpy(), name="w")
rename, calls = pathlib.Path.replace, []
def killed(self, target):
    calls.append(target)
    if len(calls) == int(sys.argv[2]):
        os._exit(9)
    return rename(self, target)
pathlib.Path.replace = killed
ir.save(graph, sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("renames, left", ((1, "old"), (2, "old"), (3, "new")))
def test_a_kill_leaves_the_old_model_or_the_new_one(renames, left, tmp_path, monkeypatch):
    """Before, between and after the two renames: the model is read with its own data."""
    monkeypatch.setattr(onnx_file, "MAX_MODEL_BYTES", 1000)
    ir.save(ir.from_proto(model()), tmp_path / "m.onnx")
    old = np.frombuffer(named(tmp_path), np.float32)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "m.onnx"), str(renames)], check=False
    )
    assert done.returncode == (0 if left == "new" else 9)
    np.testing.assert_array_equal(
        np.frombuffer(named(tmp_path), np.float32), old * (2 if left == "new" else 1)
    )
    ir.save(ir.from_proto(model()), tmp_path / "m.onnx")  # the next one tidies up
    assert (
        len([p for p in tmp_path.iterdir() if p.name.endswith(".data") and p.name[0] != "."]) == 1
    )


def test_small_after_large(tmp_path, monkeypatch):
    """The data of the model that was there go with it; other files stay, whatever they are
    called.
    """
    other = tmp_path / "m.onnx.data"
    other.write_bytes(b"somebody's")
    with monkeypatch.context() as patch:
        patch.setattr(onnx_file, "MAX_MODEL_BYTES", 1000)
        ir.save(ir.from_proto(model()), tmp_path / "m.onnx")
    ir.save(ir.from_proto(model()), tmp_path / "m.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
