"""A net whose own code reads its data cannot be right for all of them: `init` names the place,
once.
"""

import inspect
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import lingeronnx as lo
from lingeronnx.torch.exporter.data_dependence import DataDependenceTracker

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
W = nn.Parameter(torch.ones(4))


class Branch(nn.Module):
    """Two linear layers, one for each sign of the sum."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        if x.sum() > 0:
            return self.up(x)
        return self.down(x)


class Shapes(nn.Module):
    """Decides by sizes, by a parameter and by a buffer, and asks a layer of torch that looks at its
    mask.
    """

    def __init__(self):
        super().__init__()
        self.a, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(1))
        self.block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.register_buffer("on", torch.ones(1))

    def forward(self, x):
        x = self.a(x) if x.shape[1] == 4 and len(x) < 100 and x.dim() == 2 else x
        if self.on.item() and self.scale.sum() > -5:
            x = torch.relu(x)
        return self.block(x[:, None])[:, 0]


def test_init_names_the_place():
    """One line with file and line, at the first call or at once; the other branch would give
    something else.
    """
    line = inspect.getsourcelines(Branch.forward)[1] + 1
    words = (
        rf"test_decisions.py line {line}: this depends on the data \(bool\(\)\); the graph keeps"
    )
    with pytest.warns(UserWarning, match=words) as seen:
        lo.torch.init(Branch(), out_bits=8, example_inputs=X)
    assert len([w for w in seen if "depends on the data" in str(w.message)]) == 1
    net = lo.torch.init(Branch(), out_bits=8)
    with pytest.warns(UserWarning, match=words):
        net(X)


def test_sizes_and_parameters_decide_freely():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="not trained")
        lo.torch.init(Shapes(), out_bits=8, example_inputs=X)


def _masked(x):
    chosen = x[x > 0]
    return chosen / len(chosen)


def _filled(x):
    held = torch.zeros(3, 4)
    held[0] = x[0]
    return held if held[0, 0] > 100 else x


#: What reads the data -> how.
READS = {
    "bool()": lambda x: x if (x > 0).any() else -x,
    "item()": lambda x: x * x.max().item(),
    "int()": lambda x: x[int(x.argmax()) % 3],
    "float()": lambda x: x * float(x.mean()),
    "an index": lambda x: x * (1, 2, 3)[x.argmax() % 3],
    "tolist()": lambda x: x + sum(x[0].tolist()),
    "numpy()": lambda x: x + torch.from_numpy(x.numpy()),
    "equal()": lambda x: x if torch.equal(x, x.abs()) else -x,
    "allclose()": lambda x: x if torch.allclose(x, x.abs()) else -x,
    "in": lambda x: x if 1.5 in x else -x,
    "shape": lambda x: x * torch.nonzero(x > 0).shape[0],
    "size()": lambda x: x * torch.masked_select(x, x > 0).size(0),
    "numel()": lambda x: x * torch.unique(x).numel(),
    "len()": _masked,
    "bool() of what was written into": _filled,
}


@pytest.mark.parametrize("what", READS)
def test_what_reads_data_is_found(what):
    with torch.no_grad(), DataDependenceTracker([X]) as found:
        READS[what](X)
    assert list(found.locations.values()) == [what.partition(" of")[0]]
    (place,) = found.locations
    assert place.startswith("test_decisions.py line ")


#: What reads no data, or reads what does not depend on the inputs.
FREE = {
    "sizes": lambda x: x if x.shape[0] > 2 and len(x) and x.size(1) and x.numel() else -x,
    "parameters": lambda x: x * W.sum().item() if W.mean() > 0 else x,
    "where": lambda x: torch.where(x > 0, x, -x),
    "a mask": lambda x: x[x > 0].sum() + x[x > 0].sum().shape.numel(),
    "iteration": lambda x: sum(row for row in x),
    "layers of torch": lambda x: nn.MultiheadAttention(4, 2, batch_first=True)(
        x[None], x[None], x[None]
    )[0],
    "recurrent layers": lambda x: nn.LSTM(4, 5)(x)[0],
    "types": lambda x: (
        x if x.dtype == torch.float32 and x.is_floating_point() and not x.requires_grad else -x
    ),
}


@pytest.mark.parametrize("what", FREE)
def test_what_reads_none_is_not(what):
    with torch.no_grad(), DataDependenceTracker([X]) as found:
        FREE[what](X)
    assert found.lines() == []


class Read(nn.Module):
    """Adds what NumPy computes of the input, which a trace does not see."""

    def forward(self, x):
        doubled = 2 * np.asarray(x.detach())
        return x + torch.from_numpy(doubled)


def test_an_export_names_the_place(tmp_path):
    """`np.asarray(tensor)` in a forward that is exported: one line, also where the export fails."""
    line = inspect.getsourcelines(Read.forward)[1] + 1
    words = (
        rf"test_decisions.py line {line}: this depends on the data \(numpy\(\)\); the graph keeps"
    )
    path = tmp_path / "read.onnx"
    with pytest.warns(UserWarning, match=words):
        exported = lo.torch.export(Read(), X, path, dynamic_axes={}, opset_version=12)
    assert len(exported.data_reads) == 1
    assert exported.data_reads[0] in exported.notes
    with pytest.raises(lo.ModelError, match=words):  # the constant has the batch of the example
        lo.torch.export(Read(), X, path, opset_version=12)
