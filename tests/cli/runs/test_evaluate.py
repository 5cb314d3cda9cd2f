"""`lingeronnx evaluate`: top-1 of labels that the model itself gave, and what changes it."""

from __future__ import annotations

import numpy as np

from tests.cli.helpers import CommandFolder, samples


def test_labels_of_the_model_itself(here: CommandFolder) -> None:
    body = here.json("evaluate", "tiny.onnx", "--data", "test.npz")
    assert (body["metric"], body["value"], body["samples"]) == ("top1", 100.0, len(samples()))


def test_one_wrong_label_counts_as_one(here: CommandFolder) -> None:
    data = dict(np.load(here.folder / "test.npz"))
    data["labels"][4] = (data["labels"][4] + 1) % 3
    np.savez(here.folder / "wrong.npz", **data)
    body = here.json("evaluate", "tiny.onnx", "--data", "wrong.npz")
    assert body["value"] == 100 * (1 - 1 / len(samples()))
