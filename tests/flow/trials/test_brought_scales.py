"""A model quantized elsewhere: its scales kept against its weights quantized anew, by samples that
neither saw.
"""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.quantization.trials.imported_or_requantized import MIN_SAMPLES
from tests import nets
from tests.nets import samples

FREE = {"platform": "generic", "mode": "max-value", "weight_scales": "channel"}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A net of free scales, chosen by data of a smaller range."""
    net, path = nets.shortcut(), tmp_path_factory.mktemp("foreign") / "foreign.onnx"
    feeds = {name: 0.3 * array for name, array in samples(net, 32).items()}
    lo.convert(lo.quantize(net, feeds, effort="fast", **FREE).graph, "qdq").save(path)
    return path, samples(net, 48, seed=3)


def told(made):
    return [note for note in made.report.notes if "requantize" in note and "scales" in note]


def sqnr(made, feeds):
    want = lo.Session(nets.shortcut()).run(None, feeds)[0]
    return 10 * np.log10((want**2).sum() / ((made.session().run(None, feeds)[0] - want) ** 2).sum())


def test_the_better_is_taken_and_told(foreign):
    """Measured again here, on samples that nobody has seen: what was taken is the better of the two
    by far.
    """
    path, feeds = foreign
    made = lo.quantize(path, feeds, platform="venus")
    [note] = told(made)
    assert "measured on 12 held-out samples" in note
    kept, anew = (
        lo.quantize(path, feeds, platform="venus", requantize=wish) for wish in (False, True)
    )
    assert not told(kept)
    assert not told(anew)
    fresh = samples(nets.shortcut(), 64, seed=9)
    levels = {name: sqnr(one, fresh) for name, one in (("kept", kept), ("anew", anew))}
    best = max(levels, key=levels.get)
    assert abs(levels["kept"] - levels["anew"]) > 0.5
    assert made.plan == {"kept": kept, "anew": anew}[best].plan
    assert ("using the requantized weights" in note) == (best == "anew")


def test_scales_that_all_stay_are_not_questioned(foreign):
    path, feeds = foreign
    made = lo.quantize(path, feeds, **FREE)
    assert made.report.taken
    assert not told(made)


@pytest.mark.parametrize(
    ("settings", "count", "word"),
    (
        ({"effort": "fast"}, 48, "effort is fast"),
        ({}, MIN_SAMPLES - 1, f"{MIN_SAMPLES - 1} calibration samples are too few"),
    ),
    ids=("fast", "few"),
)
def test_what_is_not_measured_is_named(foreign, settings, count, word):
    path, feeds = foreign
    made = lo.quantize(
        path, {name: array[:count] for name, array in feeds.items()}, platform="venus", **settings
    )
    [note] = told(made)
    assert "not evaluated" in note
    assert word in note
    assert made.report.taken


def test_without_data_nothing_is_measured(foreign):
    path, _ = foreign
    assert not told(lo.quantize(path, None, platform="venus"))


def test_command(foreign, tmp_path):
    path, feeds = foreign
    np.savez(tmp_path / "x.npz", **feeds)
    for options, many in (((), 1), (("--no-requantize",), 0), (("--requantize",), 0)):
        files = [str(path), "-o", str(tmp_path / "q.onnx"), "--calib", str(tmp_path / "x.npz")]
        done = CliRunner().invoke(
            cli.main, ["quantize", *files, "--json", "--platform", "venus", *options]
        )
        assert done.exit_code == 0, done.output
        notes = json.loads(done.stdout)["notes"]
        assert sum("held-out samples" in note for note in notes) == many
