"""Recorded sources: read once, the same samples in every pass, large ones in a file that is gone."""

import gc
import os
import tempfile

import numpy as np
import pytest

from lingeronnx.common.errors import DataError
from lingeronnx.runtime.data import Data, InputSpec
from lingeronnx.runtime.data.recording import RecordedItems
from lingeronnx.runtime.data.sources import open_items

SPEC = [InputSpec("x", (None, 2), np.dtype(np.float32))]
X = np.arange(20, dtype=np.float32).reshape(10, 2)


class Augmented:
    """Other samples in every pass, all in one buffer."""

    def __init__(self):
        self.passes, self.reads = 0, 0

    def __iter__(self):
        self.passes += 1
        rng, buffer = np.random.default_rng(self.passes), np.empty((1, 2), np.float32)
        for row in X:
            self.reads += 1
            buffer[:] = row + rng.standard_normal(2)
            yield {"x": buffer}, np.array([int(row[0])])


def read_samples(data, size=4):
    return np.concatenate([feeds["x"] for feeds, _ in data.batches(size)])


def read_items(items):
    return [(feeds["x"].copy(), labels) for feeds, labels in items]


def test_every_pass_yields_the_samples_of_the_first():
    source = Augmented()
    data = Data(source, SPEC, record=True)
    head = data.first(3)["x"]
    assert source.reads < len(X)  # as far as needed
    first, second = read_samples(data), read_samples(data, 3)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first[:3], head)
    np.testing.assert_array_equal(read_samples(Data(data.source, SPEC, record=True)), first)
    assert (source.passes, source.reads) == (1, len(X))


@pytest.mark.parametrize(
    "create",
    [
        lambda: (row[None] for row in X),
        lambda: lambda: (row[None] for row in X),
        lambda: [X[:3], X[3:]],
        lambda: X,
    ],
    ids=["generator", "function", "list", "array"],
)
def test_recorded_data_can_be_read_again(create):
    data = Data(create(), SPEC, record=True)
    assert data.is_rereadable
    for _ in range(2):
        np.testing.assert_array_equal(read_samples(data), X)


@pytest.mark.parametrize("limit", [0, 24, 1 << 20])
def test_items_beyond_the_memory_limit_are_in_a_file_without_a_name(limit, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    values = [
        ({"x": X[:1], "flag": np.array(True)}, [1]),
        (np.asfortranarray(X.astype(np.float16)), np.array(["a"])),
        ({"x": np.zeros((0, 2))}, None),
    ]
    recorded = RecordedItems(lambda: iter(values), "data", limit)
    for _ in range(2):
        loaded = list(recorded)
        for (feeds, labels), (expected, expected_labels) in zip(loaded, values, strict=True):
            np.testing.assert_equal(feeds, expected)
            np.testing.assert_equal(labels, expected_labels)
        assert loaded[1][0].dtype == np.float16
    assert os.listdir(tmp_path) == []  # nothing to remove, even after a crash
    assert (recorded._file is None) == (limit > 1000)
    file = recorded._file
    del recorded
    gc.collect()
    assert file is None or file.closed


def test_interleaved_passes():
    recorded = RecordedItems(iter(Augmented()).__iter__, "data", 0)
    first = iter(recorded)
    partial = read_items([next(first), next(first)])
    other = read_items(recorded)
    partial += read_items(first)
    np.testing.assert_equal(partial, other)


def test_errors_of_the_source_come_in_every_pass():
    def items():
        yield X[:2]
        raise RuntimeError("no more")

    data = Data(items, SPEC, label="calibration data", record=True)
    for _ in range(2):
        with pytest.raises(DataError, match="calibration data: reading it failed .*no more"):
            read_samples(data)


def test_a_full_disk_is_one_line(monkeypatch):
    class Full:
        def seek(self, offset):
            pass

        def write(self, data):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    recorded = RecordedItems(lambda: iter([(X, None)]), "calibration data", 0)
    with pytest.raises(DataError, match=r"calibration data: .*No space left.*TMPDIR.*--limit"):
        list(recorded)


def test_what_does_not_change_is_not_recorded(tmp_path):
    np.savez(tmp_path / "x.npz", x=X)
    for source in (X, {"x": X}, [X], tmp_path / "x.npz", tmp_path):
        opened = open_items(source, "data")
        assert opened.record() is opened
