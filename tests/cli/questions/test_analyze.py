"""`lingeronnx analyze weights`: a weight with one large number is marked, its log too."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from tests.cli.helpers import CommandFolder


def test_an_outlier_is_marked(here: CommandFolder) -> None:
    model = onnx.load(here.folder / "tiny.onnx")
    (weight,) = (t for t in model.graph.initializer if t.name == "w")
    array = np.full((2, 200, 3, 3), 0.01, np.float32)
    array[0, 0, 0, 0] = 5.0
    weight.CopyFrom(numpy_helper.from_array(array, "w"))
    onnx.save(model, here.folder / "far.onnx")
    rows = {
        each["name"]: each
        for each in here.json("analyze", "weights", "far.onnx", "-o", "far.log")["rows"]
    }
    assert [name for name, row in rows.items() if row["outlier"]] == ["w"]
    assert "!!!" in (here.folder / "far.log").read_text()
