"""The gradient of an LSTM around given states, against autograd step by step."""

import pytest
import torch

from lingeronnx.torch.fake_quant.lstm_gradient import LstmTrace, apply_lstm

T, N, H = 7, 3, 4
UNIT, TOP = 100.0, 128


def plain(a, h, c, wh, bh, alive):
    """Return y, the last state and cell of real steps, without rounding."""
    states = []
    for t in range(T):
        i, f, g, o = (a[t] + (h @ wh.T + bh) * 0.01).chunk(4, -1)
        cell = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        new = torch.sigmoid(o) * torch.tanh(cell) * UNIT
        h, c = torch.where(alive[t], new, h), torch.where(alive[t], cell, c)
        states.append(torch.where(alive[t], new, 0.0))
    return torch.stack(states), h, c


@pytest.mark.parametrize("form", ("whole", "ends", "begins later"))
def test_gradient(form):
    """Without rounding the states are the real ones: every gradient is autograd's, whoever
    waits.
    """
    rng = torch.Generator().manual_seed(5)
    sizes = {"a": (T, N, 4 * H), "h": (N, H), "c": (N, H), "wh": (4 * H, H), "bh": (4 * H,)}
    given = {
        key: torch.randn(size, generator=rng, dtype=torch.float64) for key, size in sizes.items()
    }
    given["h"] *= 20
    lengths = torch.tensor([T, 4, 0])
    alive = (torch.arange(T)[:, None] < lengths)[..., None]
    alive = (
        torch.ones_like(alive)
        if form == "whole"
        else alive.flip(0)
        if form == "begins later"
        else alive
    )
    weights = [
        torch.randn(size, generator=rng, dtype=torch.float64)
        for size in ((T, N, H), (N, H), (N, H))
    ]
    gradients = []
    for exact in (False, True):
        leaves = [v.clone().requires_grad_() for v in given.values()]
        made = plain(*leaves, alive)
        if exact:
            walk = LstmTrace(made[0].detach(), None if form == "whole" else alive, 0.01, UNIT, TOP)
            leaves = [v.clone().requires_grad_() for v in given.values()]
            again = apply_lstm(walk, *leaves)
            for got, want in zip(again, made, strict=True):
                assert torch.allclose(got, want)
            made = again
        sum((w * v).sum() for w, v in zip(weights, made, strict=True)).backward()
        gradients.append([leaf.grad for leaf in leaves])
    for key, want, got in zip(given, *gradients, strict=True):
        assert torch.allclose(want, got), key


def test_what_is_cut_off_has_no_gradient():
    """A state beyond the largest count hands nothing back; the scale feels all of its distance."""
    a = torch.full((1, 1, 4), 8.0, requires_grad=True)
    h, c, wh, bh = (torch.zeros(size) for size in ((1, 1), (1, 1), (4, 1), (4,)))
    probe = torch.zeros((), requires_grad=True)
    y, _, _ = apply_lstm(
        LstmTrace(torch.full((1, 1, 1), 127.0), None, 1.0, 200.0, TOP), a, h, c, wh, bh, probe
    )
    y.sum().backward()
    assert not a.grad.any()
    assert probe.grad.item() == pytest.approx(-127.0 * torch.log(torch.tensor(2.0)).item())
