"""What a chip that clips the cells of an LSTM costs, and what fitting the next layer's weights does.

    python benchmarks/clipped_cells.py MODELS LOADERS.py [--platform arcs]

Quantizes the LSTM on spoken digits with 8 and 4 bits in the last layer, each with and without fitting
its weights to the float model's outputs (by default that is done at 4 bits only), and on `generic`,
whose states have 16 bits. Prints for each the SQNR of the logits on the test data, the factor that
brings them closest to the float model's, the SQNR with that factor, and the top-1 accuracy.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from model_cases import CASES, add_folder_arguments

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine
from lingeronnx.quantization.methods.refine import RefinementOptions
from lingeronnx.runtime.data import Data

_CASE = "lstm"
_OPTIONS_BY_BITS = RefinementOptions.for_weight


def cut_before_softmax(path: str) -> ir.Model:
    """Load a model and make the logits its output in place of their Softmax."""
    model = ir.load(path)
    (output,) = model.graph.outputs
    softmax = ir.producer(output)
    assert softmax is not None
    assert softmax.op_type == "Softmax"
    (logits,) = (value for value in softmax.inputs if value is not None)
    model.graph.outputs[0] = logits
    model.graph.remove(softmax, safe=True)
    return model


def quantize_with_fit(
    model: ir.Model, calib: str, platform: str, bits: int, fits: bool
) -> lo.QuantizedModel:
    """Quantize with `bits` per weight where the platform has them; `fits` is whether weights are fitted."""

    def choose_options(options: RefinementOptions, qparams: Affine) -> RefinementOptions:
        return replace(_OPTIONS_BY_BITS(options, qparams), match_float_outputs=fits)

    with patch.object(RefinementOptions, "for_weight", choose_options):
        return lo.quantize(model, calib, platform=platform, weight_bits=bits)


def format_row(label: str, result: lo.QuantizedModel, samples: Any, expected: np.ndarray) -> str:
    """Format one row: SQNR, best factor, SQNR with it, top-1."""
    session = result.session()
    (name,) = (value.name for value in session.get_outputs())
    actual = np.concatenate([session.run([name], feed)[0] for feed, _ in samples])
    labels = np.concatenate([labels for _, labels in samples])
    factor = float((expected * actual).sum() / (actual * actual).sum())

    def measure_db(array: np.ndarray) -> float:
        return float(10 * np.log10((expected**2).sum() / ((expected - array) ** 2).sum()))

    top1 = 100 * float((actual.argmax(1) == labels).mean())
    return (
        f"| {label} | {measure_db(actual):.1f} | {factor:.2f} | {measure_db(factor * actual):.1f} | "
        f"{top1:.1f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_folder_arguments(parser)
    parser.add_argument("--platform", default="arcs")
    args = parser.parse_args()
    case = CASES[_CASE]
    model = cut_before_softmax(str(args.models / case.file))
    calib = case.get_calibration_data(args.loaders)
    reference = lo.Session(model)
    samples = list(Data(case.get_test_data(args.loaders), reference.inputs).batches(64))
    (name,) = (value.name for value in reference.get_outputs())
    expected = np.concatenate([reference.run([name], feed)[0] for feed, _ in samples])
    print("| weights of the last layer | SQNR, dB | best factor | SQNR with it, dB | top-1, % |")
    print("|---|---|---|---|---|")
    for bits in (8, 4):
        for fits in (False, True):
            label = f"{args.platform}, {bits} bits, {'fitted' if fits else 'rounded'}"
            result = quantize_with_fit(model, calib, args.platform, bits, fits)
            print(format_row(label, result, samples, expected), flush=True)
    result = lo.quantize(model, calib, platform="generic")
    print(format_row("generic, 8 bits", result, samples, expected))


if __name__ == "__main__":
    main()
