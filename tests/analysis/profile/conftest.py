"""A profile, made once."""

from __future__ import annotations

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from tests.nets import plain


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A float file, its data, its integer graph, and the profile of the float model with everything
    on.
    """
    home = tmp_path_factory.mktemp("profile")
    ir.save(plain(), home / "net.onnx")
    x = np.random.default_rng(1).standard_normal((50, 3, 12, 12)).astype(np.float32)
    np.savez(home / "data.npz", x=x)
    quantized = lo.quantize(home / "net.onnx", x, platform="venus", effort="fast")
    quantized.save(home / "quant.onnx")
    profile = lo.profile(
        home / "net.onnx", x, home / "p", tensorboard=True, per_channel=True, keep=True, batch=7
    )
    return home, x, profile
