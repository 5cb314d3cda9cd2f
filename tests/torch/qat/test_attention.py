"""Attention of torch.nn, whose batch stands on axis 1 inside or outside: integers throughout."""

import numpy as np
import pytest
import torch
from torch import nn

import lingeronnx as lo
from tests.case_selection import choose_fast_subset, mark_rest_slow

STEPS, WIDTH = 8, 16


class Net(nn.Module):
    """A linear layer, attention or encoder layers of torch.nn, the mean over time, a linear
    layer.
    """

    def __init__(self, kind, batch_first):
        super().__init__()
        self.entry, self.exit = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 3)
        self.kind, self.batch_first = kind, batch_first
        if kind == "encoder":
            layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=batch_first)
            self.inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        else:
            self.inner = nn.MultiheadAttention(WIDTH, 4, batch_first=batch_first)

    def forward(self, x):
        x = self.entry(x)
        weights = None
        if self.kind == "encoder":
            y = self.inner(x)
        else:
            y, weights = self.inner(
                x, x, x, need_weights=self.kind == "weights", average_attn_weights=False
            )
        y = self.exit(y.mean(dim=1 if self.batch_first else 0))
        return y if weights is None else (y, weights)


class Outside(nn.Module):
    """A model that is time first inside, for inputs that are batch first."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x.transpose(0, 1))


def net(kind, form):
    torch.manual_seed(0)
    made = Net(kind, form == "batch first").eval()
    return Outside(made) if form == "turned inside" else made


FORMS = ("batch first", "turned inside", "time first")


@pytest.mark.parametrize(
    "exporter", ("torchscript", pytest.param("dynamo", marks=pytest.mark.slow))
)
@pytest.mark.parametrize("form", mark_rest_slow(1, FORMS))
@pytest.mark.parametrize("kind", mark_rest_slow(1, ("encoder", "weights", "attention")))
def test_whole(kind, form, exporter, tmp_path):
    """Nothing is in float on generic, arcs and venusA but the turn of an input whose batch is on
    axis 1.
    """
    axis = 1 if form == "time first" else 0
    model, path = net(kind, form), tmp_path / "m.onnx"
    example = torch.randn(STEPS, 2, 6) if axis else torch.randn(2, STEPS, 6)
    lo.export(model, (example,), path, exporter=exporter, dynamic_axes={"x": {axis: "N"}})
    rng = np.random.default_rng(0)
    calib, test = (
        np.moveaxis(rng.standard_normal((count, STEPS, 6)).astype(np.float32), 0, axis)
        for count in (32, 16)
    )
    want = model(torch.from_numpy(test))
    wants = [t.detach().numpy() for t in (want if isinstance(want, tuple) else (want,))]
    for platform in (
        choose_fast_subset(2, ("arcs", "generic", "venusA"))
        if exporter == "torchscript"
        else ("arcs",)
    ):
        told = {"batch_axis": {"x": 1}} if axis else {}
        done = lo.quantize(
            path, {"x": np.ascontiguousarray(calib)}, platform=platform, effort="fast", **told
        )
        assert done.report.integer_macs == 1
        assert not done.report.float_nodes
        assert [node.op_type for node in done.report.host_part] == ["Transpose"] * axis
        assert done.report.chip_ready == (platform != "generic")
        for got, expected in zip(
            done.session().run(None, {"x": np.ascontiguousarray(test)}), wants, strict=True
        ):
            assert 20 * np.log10(np.linalg.norm(expected) / np.linalg.norm(got - expected)) > 25
