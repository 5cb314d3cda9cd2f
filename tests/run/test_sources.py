"""Data as people have them: pictures, data loaders, data sets, calibration data readers."""

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from lingeronnx.cli import main
from lingeronnx.common.errors import ConfigError, DataError
from lingeronnx.ir import ir
from lingeronnx.runtime.data import Data, InputSpec
from lingeronnx.runtime.data.pictures import Pictures
from tests import nets

SPEC = [InputSpec("x", (None, 2), np.dtype(np.float32))]
X = np.arange(20, dtype=np.float32).reshape(10, 2)
LABELS = np.arange(10)


def collected(source, inputs=SPEC, size=4):
    """Return all samples and labels that a source gives."""
    parts = list(Data(source, inputs).batches(size))
    labels = None if parts[0][1] is None else np.concatenate([part[1] for part in parts])
    return {name: np.concatenate([part[0][name] for part in parts]) for name in parts[0][0]}, labels


class Reader:
    """What onnxruntime's calibrators read."""

    def __init__(self):
        self.rows = iter(X)

    def get_next(self):
        row = next(self.rows, None)
        return None if row is None else {"x": row[None]}


class Rewound(Reader):
    def rewind(self):
        self.rows = iter(X)


class Rows:
    """A data set: single samples by number."""

    def __init__(self, entry):
        self.entry = entry

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return self.entry(index)


SOURCES = {
    "reader": (Reader, False),
    "reader that goes back": (Rewound, False),
    "pairs": (lambda: [(X[:5], LABELS[:5]), (X[5:], LABELS[5:])], True),
    "lists of two arrays": (lambda: [[X[:5], LABELS[:5]], [X[5:], LABELS[5:]]], True),
    "lists of one array": (lambda: [[X]], False),
    "dict and labels": (lambda: [({"x": X}, LABELS)], True),
    "dict with label": (lambda: [{"x": X, "label": LABELS, "name": ["a"] * 10}], True),
    "data set of pairs": (lambda: Rows(lambda i: (X[i], i)), True),
    "data set of dicts": (
        lambda: Rows(lambda i: {"x": X[i].tolist(), "label": i, "text": "no number"}),
        True,
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources(name):
    """Every form gives the same samples."""
    make, labelled = SOURCES[name]
    feeds, labels = collected(make())
    np.testing.assert_array_equal(feeds["x"], X)
    assert (labels is not None) == labelled
    if labelled:
        np.testing.assert_array_equal(labels, LABELS)


def test_torch_loader():
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, TensorDataset

    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(LABELS))
    for source in (DataLoader(pairs, batch_size=3), pairs):
        feeds, labels = collected(source)
        np.testing.assert_array_equal(feeds["x"], X)
        np.testing.assert_array_equal(labels, LABELS)


def test_onnxruntime_reader():
    from onnxruntime.quantization import CalibrationDataReader

    class Own(CalibrationDataReader):
        def __init__(self):
            self.rows = iter(X)

        def get_next(self):
            row = next(self.rows, None)
            return None if row is None else {"x": row[None]}

    np.testing.assert_array_equal(collected(Own())[0]["x"], X)


@pytest.mark.parametrize(
    "make", [lambda: [{"x": row[None]} for row in X], Reader, lambda: iter([X[:3], X[3:]])]
)
def test_first_joins_items(make):
    """Looking at the first samples goes beyond the first item and uses nothing up."""
    data = Data(make(), SPEC)
    np.testing.assert_array_equal(data.first(7)["x"], X[:7])
    np.testing.assert_array_equal(data.first()["x"], X[:1])
    np.testing.assert_array_equal(data.first(99)["x"], X)
    np.testing.assert_array_equal(np.concatenate([feeds["x"] for feeds, _ in data.batches(3)]), X)


def test_first_samples_are_read_once_where_they_are_small():
    """Fewer than before are a part of what is kept; more are read."""
    opened = []

    def items():
        opened.append(None)
        return [{"x": row[None]} for row in X]

    data = Data(items, SPEC)
    for size, times in ((2, 1), (1, 1), (2, 1), (5, 2), (3, 2), (99, 3), (len(X), 3)):
        np.testing.assert_array_equal(data.first(size)["x"], X[:size])
        assert len(opened) == times


def test_first_samples_are_read_again_where_they_are_large():
    """They would take memory for as long as there is a use of the data."""
    opened = []

    def items():
        opened.append(None)
        return [np.ones((2, 1 << 20), np.float32)]

    data = Data(items, [InputSpec("x", (None, 1 << 20), np.dtype(np.float32))])
    assert [len(data.first(size)["x"]) for size in (2, 2, 1)] == [2, 2, 1]
    assert len(opened) == 3


def test_first_stops_at_another_size():
    spec = [InputSpec("x", (None, None), np.dtype(np.float32))]
    items = [
        np.zeros((1, 2), np.float32),
        np.zeros((2, 2), np.float32),
        np.zeros((1, 3), np.float32),
    ]
    assert Data(items, spec).first(9)["x"].shape == (3, 2)


# ---- pictures ----------------------------------------------------------------------------------------------------


def painted(folder, colours, size=(8, 4)):
    """Write a picture of one colour each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, colour in enumerate(colours):
        Image.new("RGB", size, colour).save(folder / f"{number}.png")


def only(pictures):
    ((array, labels),) = pictures
    return array, labels


def test_layout_and_colours(tmp_path):
    painted(tmp_path, [(10, 20, 30)])
    array, labels = only(Pictures(tmp_path, (5, 3)))
    assert (array.shape, array.dtype, labels) == ((1, 3, 3, 5), np.float32, None)
    assert array[0, :, 0, 0].tolist() == [10, 20, 30]
    assert only(Pictures(tmp_path, (5, 3), color="bgr"))[0][0, :, 0, 0].tolist() == [30, 20, 10]
    array, _ = only(Pictures(tmp_path, (5, 3), layout="nhwc", mean=(10, 10, 10), std=(1, 2, 4)))
    assert array.shape == (1, 3, 5, 3)
    assert array[0, 0, 0].tolist() == [0, 5, 5]
    gray, _ = only(Pictures(tmp_path, (5, 3), color="gray", mean=8, std=2))
    assert gray.shape == (1, 1, 3, 5)
    assert abs(gray[0, 0, 0, 0] - 5) <= 0.5  # luminance of (10, 20, 30) is 18


def test_resize(tmp_path):
    """A picture twice as wide as high, left half black, right half white, made square."""
    picture = np.zeros((4, 8, 3), np.uint8)
    picture[:, 4:] = 255
    Image.fromarray(picture).save(tmp_path / "a.png")
    fit, crop, pad = (
        only(Pictures(tmp_path, (4, 4), resize=how))[0][0, 0] for how in ("fit", "crop", "pad")
    )
    assert fit[0, 0] == crop[0, 0] == 0
    assert fit[0, 3] == crop[0, 3] == 255
    assert pad[0].tolist() == pad[3].tolist() == [0, 0, 0, 0]
    assert pad[1, 3] == 255


def test_classes(tmp_path):
    """Sub-folders are classes in the order of their names."""
    painted(tmp_path / "cat", [(1, 1, 1), (2, 2, 2)])
    painted(tmp_path / "dog", [(3, 3, 3)])
    array, labels = only(Pictures(tmp_path, (2, 2)))
    assert labels.tolist() == [0, 0, 1]
    assert array[:, 0, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"size": (0, 4)}, "size"),
        ({"std": 0}, "std 0; it must be positive"),
        ({"mean": (1, 2)}, "pass one number, or one for each of 3"),
        ({"layout": "chwn"}, "layout 'chwn'; expected one of nchw, nhwc"),
        ({"resize": "zoom"}, "resize 'zoom'"),
    ],
)
def test_wrong_settings(settings, message, tmp_path):
    painted(tmp_path, [(0, 0, 0)])
    with pytest.raises(ConfigError, match=message):
        Pictures(tmp_path, **{"size": (4, 4), **settings})


def test_wrong_folders(tmp_path):
    with pytest.raises(DataError, match="has no picture"):
        Pictures(tmp_path, (4, 4))
    with pytest.raises(DataError, match="cannot read the folder"):
        Pictures(tmp_path / "nowhere", (4, 4))
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"a\.png is not a readable picture"):
        list(Pictures(tmp_path, (4, 4)))
    with pytest.raises(DataError, match="specify their format with --image-size"):
        Data(str(tmp_path), SPEC)


def test_command_line(tmp_path):
    """A folder of pictures calibrates and measures."""
    rng = np.random.default_rng(0)
    for kind in ("a", "b"):
        painted(
            tmp_path / "data" / kind,
            [tuple(rng.integers(0, 255, 3).tolist()) for _ in range(4)],
            (12, 12),
        )
    ir.save(nets.plain(), tmp_path / "net.onnx")
    run = ["quantize", str(tmp_path / "net.onnx"), "--calib", str(tmp_path / "data"), "--json"]
    wrong = CliRunner().invoke(main, run)
    assert (wrong.exit_code, "--image-size" in wrong.output) == (1, True)
    options = [
        "--image-size",
        "12,12",
        "--mean",
        "127",
        "--std",
        "128",
        "--eval",
        str(tmp_path / "data"),
    ]
    done = CliRunner().invoke(main, [*run, *options])
    assert done.exit_code == 0, done.output
    assert '"samples": 8' in done.output
    for given, message in (
        (["--mean", "1"], "--mean needs --image-size"),
        (["--image-size", "12"], "width and height"),
        (["--image-size", "12,12", "--calib", str(tmp_path / "x.npz")], "drop the option"),
    ):
        wrong = CliRunner().invoke(main, [*run, *given])
        assert (wrong.exit_code, message in wrong.output) == (2, True), wrong.output


@pytest.mark.parametrize(
    "command",
    [
        ("simulate", "net.onnx", "--input", "x.npz"),
        ("evaluate", "net.onnx", "--data", "x.npz"),
        ("compare", "net.onnx", "net.onnx", "--data", "x.npz", "-o", "out"),
        ("diff", "net.onnx", "net.onnx"),
        ("quantize", "net.onnx"),
        ("deploy", "net.onnx", "-o", "out", "--calib", "x.npz"),
    ],
    ids=lambda command: command[0],
)
def test_an_image_size_without_a_folder_is_refused(command, tmp_path, monkeypatch):
    """Data in files are never resized, so the option would have no effect."""
    monkeypatch.chdir(tmp_path)
    ir.save(nets.plain(), "net.onnx")
    np.savez("x.npz", x=np.ones((2, 3, 12, 12), np.float32))
    refused = CliRunner().invoke(main, [*command, "--image-size", "8,8"])
    assert refused.exit_code == 2, refused.output
    given = "no data" if "x.npz" not in command else "'x.npz'"
    assert f"loads a folder of pictures as DATA, not {given}" in " ".join(refused.output.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx", "x.npz"]
