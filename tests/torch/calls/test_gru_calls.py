"""`lo.torch.init(net, (nn.GRU,), platform=CHIP)`: a GRU that a chip computes step by step."""

import numpy as np
import pytest
import torch
from torch import nn

import lingeronnx as lo
from tests.case_selection import mark_rest_slow


class Recurrent(nn.Module):
    """A GRU, and a linear layer on each step unless `classes` is 0."""

    def __init__(self, classes, bidirectional=False):
        super().__init__()
        self.g = nn.GRU(6, 5, batch_first=True, bidirectional=bidirectional)
        self.fc = nn.Linear(5 * (1 + bidirectional), classes) if classes else nn.Identity()

    def forward(self, x):
        return self.fc(self.g(x)[0])


def make_net(classes, bidirectional=False):
    """Return a net with the same weights each time, and an input of four steps."""
    torch.manual_seed(0)
    return Recurrent(classes, bidirectional), torch.randn(1, 4, 6)


CASES = mark_rest_slow(
    2,
    [
        ("venus", 3, (nn.GRU,), False),
        ("venusA", 3, (nn.GRU,), False),
        ("arcs", 0, (nn.GRU,), False),
        ("arcs", 3, (nn.GRU, nn.Linear), True),
        ("venusA", 3, (nn.GRU, nn.Linear), False),
        ("venus", 0, (nn.GRU,), True),
    ],
)


@pytest.mark.parametrize("platform, classes, types, bidirectional", CASES)
def test_a_gru_on_a_chip(platform, classes, types, bidirectional, tmp_path):
    """The call of the old scripts; what the net gives in evaluation is what the file computes."""
    net, x = make_net(classes, bidirectional)
    net = lo.torch.init(net, types, platform=platform)
    net(x)
    net.eval()
    lo.torch.export(net, x, tmp_path / "net.onnx")
    with torch.no_grad():
        expected = net(x).numpy()
    session = lo.Session(tmp_path / "net.onnx")
    assert session.is_integer
    np.testing.assert_allclose(session(x.numpy()), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("platform", mark_rest_slow(1, ["arcs", "generic", "venusA"]))
def test_gradients_of_both_biases(platform):
    """Reset and update gates add two biases: both get the gradient of the float loss."""
    net, x = make_net(3)
    loss_of = torch.linspace(-1, 1, 12).reshape(1, 4, 3)
    differences = {
        name: differentiate(net, name, lambda: float((net(x).detach() * loss_of).sum()))
        for name in ("g.bias_ih_l0", "g.bias_hh_l0")
    }
    net = lo.torch.init(net, (nn.GRU, nn.Linear), platform=platform)
    net(x)
    net.eval()
    (net(x) * loss_of).sum().backward()
    for name, expected in differences.items():
        gradient = dict(net.named_parameters())[name].grad.numpy()
        for gate in (slice(0, 5), slice(5, 10), slice(10, 15)):  # reset, update, new
            assert np.abs(gradient[gate]).min() > 0
            cosine = gradient[gate] @ expected[gate]
            cosine /= np.linalg.norm(gradient[gate]) * np.linalg.norm(expected[gate])
            assert cosine > 0.98, (name, gate, cosine)


def differentiate(net, name, loss, step=1e-2):
    """Return the central differences of `loss()` by the elements of parameter `name`."""
    flat = dict(net.named_parameters())[name].data.reshape(-1)
    differences = np.zeros(flat.numel())
    for index in range(flat.numel()):
        value = float(flat[index])
        losses = []
        for changed in (value + step, value - step):
            flat[index] = changed
            losses.append(loss())
        flat[index] = value
        differences[index] = (losses[0] - losses[1]) / (2 * step)
    return differences
