"""Models with the data that they are measured on, for the benchmarks that run over all of them.

The files stand in two folders that are named on the command line: one with the models, one with
`loaders.py`, whose functions give the data (`file.py:function`, as every command takes them).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CASES", "Case", "add_folder_arguments"]


@dataclass(frozen=True)
class Case:
    """One model.

    file : below the folder of models. data : the loader's name without "_calib" and "_test". output
    : the tensor whose SQNR is told, the input of the last Softmax where there is one. classes :
    whether the outputs are scores of classes.
    """

    file: str
    data: str
    output: str
    classes: bool = True

    def model(self, models: Path) -> str:
        """Return the path of the model."""
        return str(models / self.file)

    def get_calibration_data(self, loaders: Path) -> str:
        """Return the calibration data, as commands take them."""
        return f"{loaders}:{self.data}_calib"

    def get_test_data(self, loaders: Path) -> str:
        """Return the test data, as commands take them."""
        return f"{loaders}:{self.data}_test"


_DIGITS = "/m/fc/Gemm_output_0"

CASES = {
    "resnet8": Case("mlperf_tiny_resnet8.onnx", "resnet8", "dense"),
    "resnet8_jpeg": Case("mlperf_tiny_resnet8.onnx", "resnet8_jpeg", "dense"),
    "resnet_bn": Case("cifar_resnet_bn.onnx", "resnet_bn", "output"),
    "mobilenetv2": Case("cifar_mobilenetv2.onnx", "mobilenetv2", "output"),
    "mobilenetv2_uneven": Case("cifar_mobilenetv2_uneven.onnx", "mobilenetv2", "output"),
    "dscnn": Case("fsdd_dscnn.onnx", "dscnn", _DIGITS),
    "gru": Case("fsdd_gru.onnx", "sequence", _DIGITS),
    "lstm": Case("fsdd_lstm.onnx", "sequence", _DIGITS),
    "attention": Case("fsdd_attention.onnx", "sequence", _DIGITS),
    "attention_op13": Case("fsdd_attention_op13.onnx", "sequence", _DIGITS),
    "kws": Case("mlperf_tiny_kws.onnx", "kws", "logits"),
    "vww": Case("mlperf_tiny_vww.onnx", "vww", "dense"),
    "ad": Case("mlperf_tiny_ad.onnx", "ad", "output", classes=False),
}


def add_folder_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a script the two places and the choice of cases."""
    parser.add_argument("models", type=Path, help="the folder with the models")
    parser.add_argument("loaders", type=Path, help="the file loaders.py")
    parser.add_argument(
        "--only", nargs="*", choices=list(CASES), default=list(CASES), metavar="CASE"
    )
