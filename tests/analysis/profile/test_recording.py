"""Tensors that were kept stand for the model that was run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.analysis.profile.recording import RecordedSession


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
    with pytest.raises(lo.DataError, match="sample 1 of the batch is not in the profile"):
        recorded.run(None, {"x": np.stack([x[0], x[1] + 1])})
    with pytest.raises(lo.DataError, match="is of another model"):
        RecordedSession(lo.Session(home / "quant.onnx"), home / "p")
    lo.profile(home / "net.onnx", x, tmp_path / "bare")
    with pytest.raises(lo.DataError, match="has no tensors: record it with --keep"):
        RecordedSession(session, tmp_path / "bare")


def test_compare_from_profiles(made, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    home, _, _ = made

    def run(*words):
        return CliRunner().invoke(cli.main, [str(word) for word in words])

    models = home / "net.onnx", home / "quant.onnx"
    for model, out in zip(models, ("f", "q"), strict=True):
        assert (
            run("profile", model, "--data", home / "data.npz", "-o", out, "--keep").exit_code == 0
        )
    result = run("compare", *models, "--profiles", "f", "q", "-o", "kept", "--json")
    assert result.exit_code == 0, result.output
    again = run("compare", *models, "--data", home / "data.npz", "-o", "run", "--json")
    assert again.exit_code == 0, again.output
    kept, ran = (json.loads(each.stdout)["layers"] for each in (result, again))
    assert [row["mod_name"] for row in kept] == [row["mod_name"] for row in ran]
    for ours, theirs in zip(kept, ran, strict=True):
        assert ours["Cosine"] == pytest.approx(theirs["Cosine"], rel=1e-5)
        assert ours["L1"] == pytest.approx(theirs["L1"], rel=1e-4, abs=1e-9)
        assert ours["local_L1"] is None
    assert (tmp_path / "kept" / "compare_per_layer_out.csv").exists()
    assert run("compare", *models, "-o", "x").exit_code == 2
    swapped = run("compare", *models, "--profiles", "q", "f", "-o", "x")
    assert (swapped.exit_code, "is of another model" in swapped.output) == (1, True)
