"""The demo on the digits that ship with the package.

Knows files and one small model only; what is printed is the command line's business.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import api
from ..files import created_folder
from ..targets import DEFAULT

__all__ = ["Demo", "demo"]

_DIGITS = Path(__file__).resolve().parent
_SHOWN = 6  # digits to show


@dataclass(frozen=True)
class Demo:
    """What the demo did.

    images : the first held-out digits, float32 [N, 8, 8] in 0 to 1. classes : what the integer
    graph says of them.
    """

    model: Path
    data: Path
    output: Path
    result: api.QuantizedModel
    evaluation: api.Evaluation
    images: np.ndarray
    classes: np.ndarray
    seconds: float


def demo(folder: Path = Path("build"), progress: api.Progress | None = None) -> Demo:
    """Quantize the digits model for the default chip, measure it on digits it never saw, write the graph into `folder`.

    Raises ConfigError where `folder` cannot be made.
    """
    model, calib, test = (
        _DIGITS / n for n in ("digits_cnn.onnx", "digits_calib.npz", "digits_test.npz")
    )
    start = time.perf_counter()
    result = api.quantize(model, str(calib), platform=DEFAULT, progress=progress)
    session = result.session()
    evaluation = api.evaluate(session, str(test), metric="top1", baseline=model, progress=progress)
    shown = api.simulate(session, str(test), taps=["input"], limit=_SHOWN)
    output = folder / f"{model.stem}_quant.onnx"
    with created_folder(folder):
        result.save(output)
    classes = shown.arrays["logits"].argmax(axis=1)
    seconds = time.perf_counter() - start
    return Demo(
        model=model,
        data=test,
        output=output,
        result=result,
        evaluation=evaluation,
        images=shown.arrays["input"][:, 0],
        classes=classes,
        seconds=seconds,
    )
