"""Moments of the inputs: what is measured of which array, and that a graph keeps it."""

import json

import numpy as np
import pytest

from lingeronnx.common.errors import ModelError
from lingeronnx.runtime.input_moments import (
    METADATA_KEY,
    compute_channel_spread,
    compute_moments,
    load_channel_spreads,
    load_input_moments,
    store_input_moments,
)
from tests.nets import plain

RNG = np.random.default_rng(0)


def test_pictures_have_moments_of_each_channel_and_the_rest_one_for_all():
    picture = RNG.normal(size=(5, 3, 4, 4)) * np.array([1, 2, 4]).reshape(1, 3, 1, 1) + 7
    mean, std = compute_moments(picture)
    assert mean.shape == std.shape == (3,)
    for channel in range(3):
        assert mean[channel] == pytest.approx(picture[:, channel].mean())
        assert std[channel] == pytest.approx(picture[:, channel].std())
    for shape in ((5, 12), (2, 17, 4, 4), (6,)):  # rows, more channels than pictures have, a line
        array = RNG.normal(size=shape)
        mean, std = compute_moments(array)
        assert (mean.tolist(), std.tolist()) == (
            [pytest.approx(array.mean())],
            [pytest.approx(array.std())],
        )


def test_what_was_noted_is_read_with_six_digits_and_integers_are_left_out():
    model = plain()
    assert load_input_moments(model) == {}
    feeds = {
        "x": RNG.normal(size=(4, 3, 2, 2)).astype(np.float32),
        "index": np.arange(4),
        "none": np.zeros((0, 3)),
    }
    store_input_moments(model, feeds)
    noted = load_input_moments(model)
    assert list(noted) == ["x"]
    for read, measured in zip(noted["x"], compute_moments(feeds["x"]), strict=True):
        np.testing.assert_allclose(read, measured, rtol=1e-5)


def test_the_spread_of_channels_leaves_out_what_they_have_in_common():
    """Brightness of a sample moves all its channels; only what moves them apart is counted."""
    brightness = RNG.normal(size=(50, 1, 1, 1)) * 10
    apart = RNG.normal(size=(50, 2, 1, 1)) * np.array([1, 1]).reshape(1, 2, 1, 1)
    pictures = np.broadcast_to(brightness + apart, (50, 2, 3, 3))
    half = (apart[:, 0] - apart[:, 1]).ravel() / 2
    expected = [float(np.std(half)), float(np.std(-half))]
    assert compute_channel_spread(pictures).tolist() == pytest.approx(expected)
    model = plain()
    store_input_moments(model, {"x": pictures.astype(np.float32), "row": np.zeros((3, 4))})
    ((name, (count, spread)),) = load_channel_spreads(model).items()
    assert (name, count) == ("x", 50)
    np.testing.assert_allclose(spread, expected, rtol=1e-4)


@pytest.mark.parametrize("count, spread", [(0, [1, 1]), ([2, 3], [1, 1]), (4, [1]), (4, 1)])
def test_a_spread_that_does_not_fit_is_an_error(count, spread):
    model = plain()
    entry = {"mean": [0, 0], "std": [1, 1], "samples": count, "spread": spread}
    model.metadata_props[METADATA_KEY] = json.dumps({"x": entry})
    with pytest.raises(ModelError, match="are corrupt; quantize the model again"):
        load_channel_spreads(model)


def test_nothing_to_note_leaves_the_graph_as_it_is():
    model = plain()
    before = dict(model.metadata_props)
    store_input_moments(model, {"index": np.arange(4)})
    assert dict(model.metadata_props) == before
