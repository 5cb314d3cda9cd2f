"""Demo: quantizes the digits model that is part of the package.

The output on the terminal is left to the command line.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ... import api
from ...common.files import created_folder
from ...targets import DEFAULT

__all__ = ["Demo", "demo"]

_DIGITS = Path(__file__).resolve().parent
_SHOWN = 6  # digits to show


@dataclass(frozen=True)
class Demo:
    """Result of the demo.

    Attributes
    ----------
    model, data, output
        Float model, test data and written integer graph.
    result
        The quantized model.
    evaluation
        Accuracy on the test data.
    images
        First test images, float32 [N, 8, 8] in 0 to 1.
    classes
        Classes of these images by the integer graph, [N].
    seconds
        Duration.
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
    """Quantize the digits model for the default platform, evaluate it on test data and save it.

    Parameters
    ----------
    folder
        Folder of the integer graph; created if necessary.
    progress
        Progress callback, as for `quantize`.

    Raises
    ------
    ConfigError
        If the folder cannot be created.
    """
    model, calib = _DIGITS / "digits_cnn.onnx", _DIGITS / "digits_calib.npz"
    test = _DIGITS / "digits_test.npz"
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
