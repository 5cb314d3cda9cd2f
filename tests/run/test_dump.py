"""Tensors in files: any name, the same bytes each time, and the summary of a tensor over its
batches.
"""

import math

import numpy as np
import pytest

from lingeronnx.ir.plan import Affine
from lingeronnx.runtime.dump import TensorSummary, qparams_from_json, qparams_to_json, write_npz

RNG = np.random.default_rng(0)


def test_npz_takes_any_name_and_gives_the_same_bytes_again(tmp_path):
    arrays = {
        "file": RNG.normal(size=(2, 3)),
        "a/b": np.arange(4, dtype=np.int8),
        "": np.float32(3),
    }
    for name in ("one.npz", "two.npz"):
        write_npz(tmp_path / name, arrays)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    with np.load(tmp_path / "one.npz") as read:
        assert set(read.files) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize("held", [None, Affine(16.0, 8), Affine(0.3, 16, zero_point=-5)])
def test_what_is_said_of_an_array_is_read_back(held):
    dtype = np.dtype(np.int16 if held is not None and held.bits == 16 else np.int8)
    assert qparams_from_json(qparams_to_json(held), dtype) == held


def test_a_summary_of_batches_is_that_of_all_at_once():
    whole, pieces = TensorSummary("t"), TensorSummary("t")
    array, held = RNG.integers(-100, 100, (7, 3, 2)).astype(np.int8), Affine(16.0, 8, zero_point=3)
    whole.add(array, held)
    for piece in (array[:2], array[2:3], array[3:]):
        pieces.add(piece, held)
    assert pieces.to_dict() == whole.to_dict()
    assert whole.shape == array.shape
    assert whole.mean == pytest.approx(array.mean())
    assert (whole.low, whole.high) == (array.min(), array.max())
    assert whole.real(3) == 0
    assert whole.real(19) == 1


@pytest.mark.parametrize(("old", "new"), [("first", "first_values"), ("held", "qparams")])
def test_former_names_of_a_summary_warn(old, new):
    summary = TensorSummary("t")
    summary.add(np.zeros((2, 3), np.int8), Affine(16.0, 8))
    with pytest.warns(
        DeprecationWarning, match=rf"TensorSummary\.{old}\b.*\bTensorSummary\.{new}\b"
    ):
        assert getattr(summary, old) == getattr(summary, new)


def test_a_summary_of_nothing_has_no_mean():
    assert math.isnan(TensorSummary("t").mean)
    empty = TensorSummary("t")
    empty.add(np.zeros((0, 3), np.float32), None)
    assert math.isnan(empty.mean)
    assert empty.real(2.5) == 2.5


def test_text_is_written_as_text(tmp_path):
    """onnxruntime hands labels over as objects, which no file without code in it holds."""
    write_npz(tmp_path / "o.npz", {"label": np.array([["cat"], ["a longer name"]], object)})
    with np.load(tmp_path / "o.npz", allow_pickle=False) as read:
        assert read["label"].tolist() == [["cat"], ["a longer name"]]
