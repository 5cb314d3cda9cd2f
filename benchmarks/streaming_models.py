"""Small recurrent nets that are called step by step, with their states fed back, for `benchmarks.c_programs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.packability_agreement import Model
from lingeronnx.ir import ir
from tests.ops.test_recurrent_forms import WIDTH, T, streaming

STATES = {"LSTM": {"h_out": "h", "c_out": "c"}, "GRU": {"h_out": "h"}}
#: Calls that calibrate, and others that are tried.
CALLS = 200


def write_streaming_models(folder: Path) -> list[Model]:
    """Return the nets, written into `folder`.

    4 steps of 5 numbers in a call, 7 states, 3 outputs.
    """
    found = []
    for kind, state in STATES.items():
        path = folder / f"stream_{kind.lower()}.onnx"
        ir.save(streaming(kind), path)
        found.append(Model(path.stem, path, f"{__file__}:iterate_calib_calls", {"state": state}))
    return found


def iterate_calib_calls() -> Iterator[dict[str, np.ndarray]]:
    """Yield seeded calls."""
    return _calls(0)


def iterate_test_calls() -> Iterator[dict[str, np.ndarray]]:
    """Yield others."""
    return _calls(1)


def _calls(seed: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    for _ in range(CALLS):
        yield {"x": rng.standard_normal((1, T, WIDTH)).astype(np.float32)}
