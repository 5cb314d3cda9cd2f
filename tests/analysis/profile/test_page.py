"""The page of `profile`: every row of the table, for a browser, and as data."""

import numpy as np

import lingeronnx as lo
from lingeronnx.analysis.profile.page import render_profile_page
from tests.nets import plain
from tests.pages.test_document import data, self_contained

X = np.random.default_rng(0).standard_normal((8, 3, 12, 12)).astype(np.float32)


def test_the_rows_are_those_of_the_profile(tmp_path):
    recorded = lo.profile(plain(), {"x": X}, tmp_path / "p", types=["Conv"])
    text = (tmp_path / "p" / "profile.html").read_text()
    assert self_contained(text)
    assert text == render_profile_page(recorded, "the model", types=["Conv"])
    assert data(text, "profile") == recorded.to_dict(types=["Conv"])
    assert text.count('<tr role="row">') == 1 + len(recorded.select(types=["Conv"]))
    (read,) = (row for row in recorded.to_dict() if row["tensor"] == "x" and row["op"] == "Conv")
    assert f">{X.min():.6g}<" in text
    assert f">{read['max']:.6g}<" in text
    assert "Profile of the model" in text


def test_names_cannot_break_out_of_the_page():
    net = plain()
    next(iter(net.graph)).name = "<script>alert(1)</script>"
    recorded = lo.profile(net, {"x": X})
    assert "<script>alert" not in render_profile_page(recorded, "<b>.onnx")
