"""Small files that ask for much: what is too much is told in one line before it is done; through
the real commands.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from lingeronnx.common.errors import DataError, ModelError
from lingeronnx.ir import ir
from lingeronnx.runtime.data import Data, InputSpec, archives
from lingeronnx.runtime.runners import sessions
from tests.cli.helpers import TINY, CommandFolder, samples, write_model

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])
SPEC = InputSpec("x", (None, 4), np.dtype(np.float32))


def told(here: CommandFolder, words: str, *args: object) -> None:
    """Run a command that must fail in one line with `words`."""
    result = here(*args)
    assert result.exit_code == 1, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def model(
    nodes: list[onnx.NodeProto], *, turns: int | None = None, functions: tuple = ()
) -> onnx.ModelProto:
    held = [] if turns is None else [helper.make_tensor("turns", TensorProto.INT64, [], [turns])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    graph = helper.make_graph(nodes, "g", [X], [Y], held)
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


def doubling(levels: int) -> onnx.ModelProto:
    """Functions each of which calls the next one twice."""
    functions = []
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    for level in range(levels):
        name, domain = (f"f{level + 1}", "local") if level + 1 < levels else ("Relu", "")
        nodes = [
            helper.make_node(name, [a], [b], domain=domain) for a, b in (("x", "t"), ("t", "y"))
        ]
        functions.append(helper.make_function("local", f"f{level}", ["x"], ["y"], nodes, opsets))
    return model(
        [helper.make_node("f0", ["x"], ["y"], "call", domain="local")], functions=tuple(functions)
    )


def loop(turns: int, goes_on: str = "Identity") -> onnx.ModelProto:
    """A loop of so many turns; goes_on : "Not" makes its end a computed one."""
    scalar = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", 7), ("c", 9))]
    state = helper.make_tensor_value_info("s", TensorProto.FLOAT, None)
    after = [
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("n", 1, None),
    ]
    nodes = [helper.make_node("Identity", ["c"], ["go"]), helper.make_node("Relu", ["s"], ["n"])]
    if goes_on != "Identity":
        nodes[:1] = [
            helper.make_node(goes_on, ["c"], ["no"]),
            helper.make_node(goes_on, ["no"], ["go"]),
        ]
    body = helper.make_graph(nodes, "body", [*scalar, state], after)
    return model(
        [helper.make_node("Loop", ["turns", "", "x"], ["y"], "loop", body=body)], turns=turns
    )


# ---- models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["quantize", "simulate"])
def test_functions_that_double(here: CommandFolder, command: str) -> None:
    """They are counted before one is inlined."""
    onnx.save(doubling(40), "deep.onnx")
    assert os.path.getsize("deep.onnx") < 4000
    words = "f0 call: nested functions or loops expand to 1099511627776 nodes"
    told(
        here,
        words,
        command,
        "deep.onnx",
        "--calib" if command == "quantize" else "--input",
        "calib.npz",
    )


def test_functions_that_are_few() -> None:
    """A few levels are inlined; one that calls itself is refused."""
    assert ir.from_proto(doubling(5)).functions
    proto = doubling(3)
    proto.functions[2].node[0].op_type, proto.functions[2].node[0].domain = "f0", "local"
    with pytest.raises(ModelError, match="calls itself"):
        ir.from_proto(proto)


def test_a_loop_without_end(here: CommandFolder) -> None:
    """The turns of a loop whose number stands in the file are counted, those of loops in it too."""
    onnx.save(loop(1 << 62), "loop.onnx")
    assert os.path.getsize("loop.onnx") < 400
    told(here, "its loops execute more than", "simulate", "loop.onnx", "--input", "calib.npz")
    ir.from_proto(loop(1000))


def test_a_loop_whose_end_is_computed(here: CommandFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of it ends after a while."""
    monkeypatch.setattr(sessions, "_DEFAULT_LOOP_TIMEOUT_SECONDS", 0.5)
    onnx.save(loop(1 << 62, "Not"), "loop.onnx")
    np.savez("four.npz", x=np.ones((2, 4), np.float32))
    told(here, "loops ran for 0.5 seconds", "simulate", "loop.onnx", "--input", "four.npz")
    monkeypatch.setenv("LINGERONNX_LOOP_SECONDS", "soon")
    told(
        here,
        "LINGERONNX_LOOP_SECONDS=soon: expected a positive number",
        "simulate",
        "loop.onnx",
        "--input",
        "four.npz",
    )


EXTERNAL = {
    "outside": ({"location": "../w.data"}, "outside the folder of the model"),
    "no text": ({"location": "w\0.data"}, "names no file for its external data"),
    "far": ({"location": "w.data", "offset": str(1 << 40)}, "it is incomplete"),
    "long": ({"location": "w.data", "length": str(1 << 40)}, "it is incomplete"),
    "negative": ({"location": "w.data", "offset": "-1"}, "malformed external data (offset -1)"),
    "digits": ({"location": "w.data", "length": "9" * 5000}, "malformed external data"),
    "pipe": ({"location": "pipe"}, "which is a pipe, not a regular file"),
}


@pytest.mark.parametrize("case", EXTERNAL)
def test_external_data(here: CommandFolder, case: str) -> None:
    """No more is read than the file has, and from no pipe."""
    entries, words = EXTERNAL[case]
    os.mkfifo("pipe")
    Path("w.data").write_bytes(bytes(64))
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])])
    tensor = proto.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.extend(
        onnx.StringStringEntryProto(key=key, value=value) for key, value in entries.items()
    )
    Path("far.onnx").write_bytes(proto.SerializeToString())
    told(here, words, "simulate", "far.onnx", "--input", "calib.npz")


# ---- data --------------------------------------------------------------------------------------------------------


def packed(path: str, rows: int, name: str = "x") -> None:
    """Write an archive of zeros, packed a thousand times smaller."""
    np.savez_compressed(path, **{name: np.zeros((rows, 4), np.float32)})


def test_a_large_archive_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are those of a small one; labels go along; with a limit nothing is unpacked behind
    it.
    """
    rows = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    np.savez_compressed(
        tmp_path / "a.npz", x=rows, labels=np.arange(1000), words=np.array(["a", "b"])
    )
    whole = list(Data(str(tmp_path / "a.npz"), [SPEC]).batches(64))
    monkeypatch.setattr(archives, "_CHUNK_BYTES", 8192)
    sizes: list[int] = []
    read = archives._read_rows
    monkeypatch.setattr(archives, "_read_rows", lambda *args: sizes.append(args[2]) or read(*args))
    parts = list(Data(str(tmp_path / "a.npz"), [SPEC]).batches(64))
    np.testing.assert_array_equal(
        *(np.concatenate([f["x"] for f, _ in found]) for found in (whole, parts))
    )
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in parts]), np.arange(1000))
    assert max(sizes) < 600
    sizes.clear()
    assert (
        sum(len(f["x"]) for f, _ in Data(str(tmp_path / "a.npz"), [SPEC], limit=10).batches(4))
        == 10
    )
    assert sum(sizes) < 1000


def test_an_archive_that_must_be_unpacked_as_a_whole(
    here: CommandFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take so much memory; where it takes more, nothing is unpacked."""
    monkeypatch.setattr(archives, "_CHUNK_BYTES", 1 << 16)
    monkeypatch.setattr(archives, "_MAX_BYTES", 1 << 18)
    packed("big.npz", 1 << 16, name="other")
    words = "expands to 1048576 bytes, of which 1048576 are needed at once; the limit is 262144"
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "z"], ["y"])],
        "g",
        [X, helper.make_tensor_value_info("z", 1, ["N", 4])],
        [Y],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        "two.onnx",
    )
    told(here, words, "simulate", "two.onnx", "--input", "big.npz")


@pytest.mark.parametrize("name", ["lie.npz", "lie.npy"])
def test_a_header_that_lies(here: CommandFolder, name: str) -> None:
    """A shape of terabytes over a few bytes is a damaged file."""
    with open("lie.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 4)}
        )
        file.write(bytes(64))
    with zipfile.ZipFile("lie.npz", "w") as archive:
        archive.write("lie.npy", "x.npy")
    told(here, f"{name} is not a readable", "simulate", "tiny.onnx", "--input", name)


def test_pipes_are_no_data(here: CommandFolder) -> None:
    """Nobody waits for a pipe that nobody writes into."""
    os.mkfifo("pipe.npz")
    told(here, "it is a pipe, not a regular file", "simulate", "tiny.onnx", "--input", "pipe.npz")


def test_empty_samples_without_end(here: CommandFolder) -> None:
    """A generator of them is left after a while, at the first look and in the run."""
    Path("gen.py").write_text(
        "import numpy as np\ndef f():\n    while True: yield np.zeros((0, 2, 4, 4), np.float32)\n"
    )
    told(
        here,
        "items in a row have no samples",
        "quantize",
        "tiny.onnx",
        "--calib",
        "gen.py:f",
        "-o",
        "q.onnx",
    )
    told(here, "items in a row have no samples", "simulate", "tiny.onnx", "--input", "gen.py:f")


def test_empty_items_between_others() -> None:
    """Some are no harm."""
    items = [np.zeros((k % 2, 4), np.float32) for k in range(3000)]
    assert sum(len(feeds["x"]) for feeds, _ in Data(items, [SPEC]).batches(64)) == 1500
    with pytest.raises(DataError, match="1001 items in a row"):
        list(Data([np.zeros((0, 4), np.float32)] * 2000, [SPEC]).batches(64))


def write_png_header(path: str, width: int, height: int) -> None:
    """Write a PNG of one bit a pixel as far as its sizes, which are judged before any pixel is
    read.
    """
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = [struct.pack(">I", 13) + header, struct.pack(">I", 0) + b"IDAT"]
    checked = b"".join(chunk + struct.pack(">I", zlib.crc32(chunk[4:])) for chunk in chunks)
    Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + checked)


def test_large_pictures(here: CommandFolder) -> None:
    """Of files and for models there is a limit in pixels."""
    pytest.importorskip("PIL.Image")
    write_model(here.folder / "tiny.onnx", TINY)
    Path("pictures").mkdir()
    write_png_header("pictures/a.png", 16384, 16384)
    size = ("--image-size", "4,4", "--color", "gray")
    told(here, "limit; reduce its size", "simulate", "tiny.onnx", "--input", "pictures", *size)
    write_png_header("pictures/a.png", 16384, 8192)
    told(here, "has 16384 x 8192 pixels", "simulate", "tiny.onnx", "--input", "pictures", *size)
    told(
        here,
        "at most 16777216 pixels",
        "simulate",
        "tiny.onnx",
        "--input",
        "pictures",
        "--image-size",
        "16384,16384",
    )


def test_one_line_of_a_log(quant: CommandFolder) -> None:
    """Spaces and digits without end cost no more than their reading."""
    gap, line = " " * 200_000, "crc32_calc = 0x1, data = [0x1-0x1-0x1], name = "
    Path("log.txt").write_text(f"{line}{gap}y##_{'1' * 5000}{gap}z\ncrc32_calc{gap}\n")
    np.savez("one.npz", x=samples(1))
    result = quant("verify", "tiny_quant.onnx", "--input", "one.npz", "--device-log", "log.txt")
    assert result.exit_code == 1
    assert "Traceback" not in result.output
