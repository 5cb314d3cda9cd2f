"""Profiles that are written and read again."""

from __future__ import annotations

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.analysis.profile.profile_file import load_profile, save_profile


def test_a_profile_that_is_read_goes_on_as_the_one_written(made, tmp_path) -> None:
    home, _, profile = made
    again = load_profile(home / "p")
    assert (again.text(), again.model) == (profile.text(), profile.model)
    assert {n: len(s.channels) for n, s in again.tensors.items()} == {
        n: len(s.channels) for n, s in profile.tensors.items()
    }
    for name, seen in profile.tensors.items():
        have, want = again.tensors[name].distribution, seen.distribution
        assert (have.count, have.low, have.high, have.mean) == (
            want.count,
            want.low,
            want.high,
            want.mean,
        )
        assert have.variance == pytest.approx(want.variance)
        np.testing.assert_array_equal(
            have.histogram.bins(have.low, have.high), want.histogram.bins(want.low, want.high)
        )
        have.add(np.array([1e3, -1e3]))
        want = load_profile(home / "p").tensors[name].distribution
        want.add(np.array([1e3, -1e3]))
        assert have.histogram.quantile(0.5) == want.histogram.quantile(0.5)
    save_profile(load_profile(home / "p"), tmp_path / "b.npz")
    assert (tmp_path / "b.npz").read_bytes() == (home / "p" / "profile.npz").read_bytes()


def test_what_is_no_profile(made, tmp_path) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", lingeronnx_profile=np.array([{}], object))
    (tmp_path / "cut.npz").write_bytes((made[0] / "p" / "profile.npz").read_bytes()[:900])
    for name in ("other.npz", "pickled.npz", "cut.npz"):
        with pytest.raises(lo.DataError, match=f"{name} is not a lingeronnx profile"):
            load_profile(tmp_path / name)
    with pytest.raises(lo.DataError, match="cannot read the profile"):
        load_profile(tmp_path / "none.npz")
