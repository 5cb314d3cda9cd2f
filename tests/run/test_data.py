"""Calibration and evaluation data: every form gives the same batches; what does not fit is told in
one line.
"""

import sys
import types

import numpy as np
import pytest

from lingeronnx.common.errors import DataError
from lingeronnx.runtime.data import Data, InputSpec
from tests.each import check_each

F32 = np.dtype(np.float32)
ONE = [InputSpec("image", (None, 2, 3), F32)]
TWO = [InputSpec("a", (None, 2), F32), InputSpec("b", (None, 3), F32)]
X = np.arange(42, dtype=np.float32).reshape(7, 2, 3)
LABELS = np.arange(7)


def gathered(data, size=3):
    """Return all feeds and labels of `data`, read in batches of `size`."""
    batches = list(data.batches(size))
    assert all(len(next(iter(feeds.values()))) <= size for feeds, _ in batches)
    feeds = {name: np.concatenate([b[0][name] for b in batches]) for name in batches[0][0]}
    labels = None if batches[0][1] is None else np.concatenate([b[1] for b in batches])
    return feeds, labels


# ---- every form ------------------------------------------------------------------------------------------------------


def npz(folder):
    np.savez(folder / "calib.npz", image=X, labels=LABELS)
    return folder / "calib.npz"


def npz_other_key(folder):
    np.savez(folder / "calib.npz", pixels=X, labels=LABELS, classes=np.array(["cat", "dog"]))
    return str(folder / "calib.npz")


def folder_of_npz(folder):
    np.savez(folder / "b.npz", image=X[4:], labels=LABELS[4:])
    np.savez(folder / "a.npz", image=X[:4], labels=LABELS[:4])
    (folder / "notes.txt").write_text("not data")
    return folder


def from_file(folder):
    np.savez(folder / "arrays.npz", x=X, y=LABELS)
    text = f"""
import numpy as np
def calib():
    z = np.load({str(folder / "arrays.npz")!r})
    for i in range(7):
        yield {{"image": z["x"][i : i + 1]}}, z["y"][i : i + 1]
"""
    (folder / "loaders.py").write_text(text)
    return f"{folder / 'loaders.py'}:calib"


def from_module(folder):
    module = types.ModuleType("loaders_of_a_test")
    module.calib = lambda: [
        {"image": X[:5], "labels": LABELS[:5]},
        {"image": X[5:], "labels": LABELS[5:]},
    ]
    sys.modules["loaders_of_a_test"] = module
    return "loaders_of_a_test:calib"


LABELLED = (
    npz,
    npz_other_key,
    folder_of_npz,
    from_file,
    from_module,
    lambda folder: {"image": X, "labels": LABELS},
    lambda folder: [({"image": X[:2]}, LABELS[:2]), ({"image": X[2:]}, LABELS[2:])],
    lambda folder: (({"image": X[i : i + 1]}, LABELS[i : i + 1]) for i in range(7)),
    lambda folder: lambda: iter([{"image": X, "labels": LABELS}]),
    lambda folder: [(X, LABELS)],
)
BARE = (
    lambda folder: X,
    lambda folder: {"image": X},
    lambda folder: {"whatever": X},
    lambda folder: [X[:3], X[3:]],
    lambda folder: (X[i : i + 1] for i in range(7)),
    lambda folder: np.save(folder / "calib.npy", X) or folder / "calib.npy",
    lambda folder: np.save(folder / "calib.npy", X) or folder,
    lambda folder: X.astype(np.float64),
)


@pytest.mark.parametrize("size", (1, 3, 7, 100))
@pytest.mark.parametrize("make", LABELLED)
def test_labelled_forms(make, size, tmp_path):
    """Files, folders, functions, dicts, lists and generators with labels."""
    feeds, labels = gathered(Data(make(tmp_path), ONE), size)
    np.testing.assert_array_equal(feeds["image"], X)
    np.testing.assert_array_equal(labels, LABELS)


@pytest.mark.parametrize("make", BARE)
def test_bare_forms(make, tmp_path):
    """Arrays of any kind, without labels, feed the only input; the type becomes the model's."""
    feeds, labels = gathered(Data(make(tmp_path), ONE))
    np.testing.assert_array_equal(feeds["image"], X)
    assert feeds["image"].dtype == np.float32
    assert labels is None


def test_two_inputs():
    """Several inputs go by name."""
    source = {"b": np.ones((5, 3), np.float32), "a": np.zeros((5, 2), np.float32)}
    feeds, _ = gathered(Data(source, TWO), 2)
    assert {name: a.shape for name, a in feeds.items()} == {"a": (5, 2), "b": (5, 3)}


def test_input_without_a_batch():
    """An input that the model fixes to a size other than 1 on axis 0 is fed whole with every
    batch.
    """
    specs = [InputSpec("x", (None, 2), F32), InputSpec("table", (4, 3), F32)]
    source = {"x": np.ones((5, 2), np.float32), "table": np.ones((4, 3), np.float32)}
    shapes = [{n: a.shape for n, a in feeds.items()} for feeds, _ in Data(source, specs).batches(3)]
    assert shapes == [{"x": (3, 2), "table": (4, 3)}, {"x": (2, 2), "table": (4, 3)}]


@pytest.mark.parametrize("limit", (1, 4, 7, 9))
def test_limit(limit):
    """At most `limit` samples, however the source is cut."""
    for source in (X, [X[:2], X[2:]], (x[None] for x in X)):
        assert len(gathered(Data(source, ONE, limit=limit), 3)[0]["image"]) == min(limit, 7)


def test_read_again():
    """Files, arrays, lists and functions can be read twice; a generator once, and says so."""
    for source in (X, [X], lambda: iter([X])):
        data = Data(source, ONE)
        assert data.is_rereadable
        assert len(gathered(data)[0]["image"]) == len(gathered(data)[0]["image"]) == 7
    data = Data((x[None] for x in X), ONE)
    assert not data.is_rereadable
    assert len(gathered(data)[0]["image"]) == 7
    with pytest.raises(
        DataError, match="a generator can be read only once; pass a list or a function"
    ):
        gathered(data)


def test_first_leaves_a_generator_whole():
    """Looking at the first sample loses none."""
    data = Data((x[None] for x in X), ONE)
    np.testing.assert_array_equal(data.first()["image"], X[:1])
    np.testing.assert_array_equal(data.first()["image"], X[:1])
    np.testing.assert_array_equal(gathered(data)[0]["image"], X)


# ---- types -----------------------------------------------------------------------------------------------------------


def test_uint8_is_converted_with_a_note():
    """Pixels become floats as they are, and the user is told once."""
    data = Data([X.astype(np.uint8)] * 2, ONE, label="calibration data")
    assert gathered(data)[0]["image"].dtype == np.float32
    assert [note for note in data.notes if "uint8" in note] == [
        "calibration data: input 'image' is uint8, converted to float32 without scaling"
    ]


@pytest.mark.parametrize("dtype", (np.int8, np.int16))
def test_int8_and_int16_stay(dtype):
    """Signed integers of a Quant's type are taken as quantized already: no conversion, no note."""
    data = Data(X.astype(dtype), ONE)
    assert gathered(data)[0]["image"].dtype == dtype
    assert data.notes == []


def test_integer_inputs():
    """Ids of another width are taken when no value changes."""
    specs = [InputSpec("ids", (None, 2), np.dtype(np.int64))]
    assert gathered(Data(np.ones((3, 2), np.int32), specs))[0]["ids"].dtype == np.int64
    with pytest.raises(DataError, match="input 'ids' is float32, the model takes int64"):
        gathered(Data(np.ones((3, 2), np.float32), specs))


def test_key_note():
    """An array under another key is fed to the only input, and the user is told."""
    data = Data({"pixels": X}, ONE)
    gathered(data)
    assert data.notes == ["data: array 'pixels' is fed to input 'image'"]


# ---- what does not fit -----------------------------------------------------------------------------------------------

BAD = X.copy()
BAD[4, 1, 1] = np.nan
#: Shape of the data, shape that the model takes, and the last part of the message.
LAYOUTS = (
    (
        (4, 8, 9, 3),
        (None, 3, 8, 9),
        r"\(NHWC\): pass array.transpose\(0, 3, 1, 2\), or --layout nchw",
    ),
    (
        (4, 3, 8, 9),
        (None, 8, 9, 3),
        r"\(NCHW\): pass array.transpose\(0, 2, 3, 1\), or --layout nhwc",
    ),
    ((4, 8, 9, 3), (None, 3, None, None), r"channels last \(NHWC\): pass array"),
    ((8, 9, 3), (None, 3, 8, 9), r"pass array.transpose\(2, 0, 1\)\[None\]$"),
    ((4, 50, 40), (None, 40, 50), r"look transposed: pass array.transpose\(0, 2, 1\)$"),
    ((3, 8, 9), (None, 3, 8, 9), r"\[N, 3, 8, 9\]; add the batch axis$"),
    ((4, 9, 8, 3), (None, 3, 8, 9), r"\[N, 3, 8, 9\]$"),
    ((500, 64, 40), (None, 1, 40, 64), r"\[N, 1, 40, 64\]$"),
)
ERRORS = (
    (X[0], ONE, r"has shape \[2, 3\], the model takes \[N, 2, 3\]; add the batch axis"),
    (
        X[:, :, :2],
        ONE,
        r"data, item 0: input 'image' has shape \[7, 2, 2\], the model takes \[N, 2, 3\]",
    ),
    *(
        (np.zeros(shape), [InputSpec("image", takes, F32)], message)
        for shape, takes, message in LAYOUTS
    ),
    ({"imag": X, "other": X}, ONE, "'imag' is not an input of the model; did you mean 'image'"),
    ({"a": np.ones((2, 2))}, TWO, "no array for input 'b'; the data have a"),
    ({"a": np.ones((2, 2)), "b": np.ones((3, 3))}, TWO, r"batch sizes differ \(a 2, b 3\)"),
    ({"image": X, "labels": LABELS[:3]}, ONE, r"batch sizes differ \(image 7, labels 3\)"),
    (X, TWO, "a bare array for a model with inputs a, b; pass a dict by name"),
    (BAD, ONE, "input 'image' has NaN or infinity in sample 4; clean the data"),
    ([X, BAD], ONE, "data, item 1: input 'image' has NaN"),
    ([{"image": np.array([["a"]])}], ONE, "input 'image'|no array for input 'image'"),
    ([], ONE, "is empty"),
    (X[:0], ONE, "is empty"),
    (3, ONE, "cannot read a int; pass a path, arrays or an iterable of feeds"),
    ("nowhere.npz", ONE, "cannot read nowhere.npz: No such file"),
    (
        "nonsense",
        ONE,
        "cannot interpret 'nonsense'; expected an .npz or .npy file, a folder, or module:function",
    ),
    ("no_such_module_x:calib", ONE, "importing no_such_module_x failed"),
    ("no_such_file.py:calib", ONE, "no file no_such_file.py"),
    ("json:lods", ONE, "json has no function 'lods'; did you mean 'loads'"),
)


def test_errors():
    """One line: what, where, the value, the remedy."""

    def check(source, specs, message):
        with pytest.raises(DataError, match=message) as caught:
            gathered(Data(source, specs))
        assert "\n" not in str(caught.value)

    check_each(check, ERRORS)


@pytest.mark.parametrize("content", (b"", b"PK\x03\x04 cut off", b"\x93NUMPY\x01\x00"))
@pytest.mark.parametrize("suffix", (".npz", ".npy"))
def test_damaged_files(content, suffix, tmp_path):
    """A truncated file is named."""
    path = tmp_path / f"calib{suffix}"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"calib{suffix} is not a readable {suffix} file"):
        gathered(Data(path, ONE))


@pytest.mark.parametrize("content", (b"1,2\n", b"\x80\x04K\x01.", b"\x93NUMPI"))
def test_no_file_of_numpy(content, tmp_path):
    """The message says what the file is not, without numpy's advice to load pickles."""
    path = tmp_path / "calib.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="begins neither as an .npy nor as an .npz file") as caught:
        gathered(Data(path, ONE))
    assert "pickle" not in str(caught.value)


def test_pickles_are_not_loaded(tmp_path):
    """A file that could run code is refused."""
    np.savez(tmp_path / "calib.npz", image=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="not a readable .npz file"):
        gathered(Data(tmp_path / "calib.npz", ONE))


def test_empty_folder(tmp_path):
    """A folder without arrays is named."""
    with pytest.raises(DataError, match="has no .npz or .npy file"):
        gathered(Data(tmp_path, ONE))


def test_a_source_without_an_end_is_refused_and_one_with_a_limit_read():
    """A generator that goes on past `most` gets one line; a limit, or a list as long, does not."""

    def endless():
        while True:
            yield np.zeros((1, 3), np.float32)

    spec = InputSpec("x", (None, 3), np.dtype(np.float32))
    with pytest.raises(DataError, match="read 10 samples from a source of unknown length"):
        list(Data(endless, [spec], max_samples=10).batches(4))
    assert (
        sum(
            len(feeds["x"])
            for feeds, _ in Data(endless, [spec], limit=12, max_samples=10).batches(4)
        )
        == 12
    )
    many = [np.zeros((1, 3), np.float32)] * 12
    assert sum(len(feeds["x"]) for feeds, _ in Data(many, [spec], max_samples=10).batches(4)) == 12
