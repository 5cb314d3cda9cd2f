"""A model that another tool has quantized, on the integer simulator, beside our own quantization of the float model.

    python benchmarks/from_qdq.py FLOAT.onnx --calib DATA --test DATA [--quantized FILE.onnx ...]
        [--by onnxruntime nncf] [--platform venus] [--samples 200] [--limit N] [--calib-limit N]

--by quantizes FLOAT.onnx here, with the tool's defaults but for what its line says (onnxruntime: unsigned, and signed
with channels; nncf where it is installed), on the first --samples of the calibration data.
--quantized takes files as they are. One line for each: the metric that onnxruntime computes for the
file, and that of our integers made from it,
with its scales (with data, to choose between two powers of two), with its weights alone, and as
`quantize` chooses by what it measures; the SQNR of each against the float model. The last line is
our own from the float model, the first the float model itself.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import lingeronnx as lo
from lingeronnx.runtime.data import Data


class _Reader:
    def __init__(self, items: list[dict[str, np.ndarray]]) -> None:
        self._items = iter(items)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._items, None)


def _samples(model: str, data: str, count: int) -> list[dict[str, np.ndarray]]:
    batches = Data(data, lo.Session(model).inputs, limit=count).batches(1)
    return [feeds for feeds, _ in batches]


def _made(
    model: str, tool: str, items: list[dict[str, np.ndarray]], folder: Path
) -> Iterator[tuple[str, str]]:
    """Yield (title, file) of `model` quantized by `tool`."""
    if tool == "onnxruntime":
        from onnxruntime.quantization import QuantType, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        plain = str(folder / "prepared.onnx")
        quant_pre_process(model, plain)
        choices = (
            ("u8s8", QuantType.QUInt8, False),
            ("s8s8 symmetric, channels", QuantType.QInt8, True),
        )
        for title, kind, channels in choices:
            path = str(folder / f"{tool}_{channels}.onnx")
            extra = {"ActivationSymmetric": kind is QuantType.QInt8}
            quantize_static(
                plain,
                path,
                _Reader(items),
                per_channel=channels,
                activation_type=kind,
                weight_type=QuantType.QInt8,
                extra_options=extra,
            )
            yield f"{tool} {title}", path
    else:
        import nncf
        import onnx

        path = str(folder / f"{tool}.onnx")
        onnx.save(
            nncf.quantize(onnx.load(model), nncf.Dataset(items), subset_size=len(items)), path
        )
        yield tool, path


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--quantized", nargs="*", default=[])
    parser.add_argument("--by", nargs="*", choices=["onnxruntime", "nncf"], default=[])
    parser.add_argument("--platform", nargs="*", default=["venus"])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--limit", type=int)
    parser.add_argument(
        "--calib-limit", type=int, help="calibration samples for our integers; default all"
    )
    args = parser.parse_args()

    def score(model: Any) -> float:
        return float(lo.evaluate(model, args.test, limit=args.limit).value)

    def fidelity(model: Any) -> float:
        return float(
            lo.evaluate(
                model, args.test, metric="sqnr", baseline=args.model, limit=args.limit
            ).value
        )

    def line(title: str, told: str) -> None:
        print(f"{title:46s} {told}", flush=True)

    line("float", f"{score(args.model):.2f}")
    with tempfile.TemporaryDirectory() as folder:
        items = _samples(args.model, args.calib, args.samples) if args.by else []
        files = [(Path(path).name, path) for path in args.quantized]
        files += [
            found for tool in args.by for found in _made(args.model, tool, items, Path(folder))
        ]
        for title, path in files:
            line(f"{title}, in onnxruntime", f"{score(path):.2f}  {fidelity(path):.1f} dB")
            for platform in args.platform:
                for what, again in (
                    ("its scales", False),
                    ("its weights alone", True),
                    ("as quantize chooses", None),
                ):
                    made = lo.quantize(
                        path,
                        args.calib,
                        platform=platform,
                        requantize=again,
                        limit=args.calib_limit,
                    )
                    session = made.session()
                    ready = ", chip-ready" if made.report.chip_ready else ""
                    told = f"{score(session):.2f}  {fidelity(session):.1f} dB{ready}"
                    line(f"  -> {platform}, {what}", told)
                    for note in made.report.notes if again is None else ():
                        if "requantize" in note:
                            print(f"     {note}", flush=True)
    for platform in args.platform:
        own = lo.quantize(args.model, args.calib, platform=platform).session()
        line(f"our own -> {platform}", f"{score(own):.2f}  {fidelity(own):.1f} dB")


if __name__ == "__main__":
    main()
