"""Fine-tuning, measured.

Plain scales, post-training quantization, and fine-tuning, on the integer simulator.
    python benchmarks/finetuning.py MODEL --calib DATA --test DATA [--platform venus] [--weight-bits
    8] [--epochs 10]

DATA is what the commands take. Nothing here sees the labels of the test data but the last line of
each measurement.
"""

import argparse
import time

import lingeronnx as lo


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--platform", default="venus")
    parser.add_argument("--mode")
    parser.add_argument("--weight-bits", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--loss", default="distill")
    args = parser.parse_args()
    common = {"platform": args.platform, "mode": args.mode, "weight_bits": args.weight_bits}

    def show(what: str, result: lo.QuantizedModel, seconds: float) -> None:
        top = lo.evaluate(result.session(), args.test, metric="top1", baseline=args.model)
        noise = lo.evaluate(result.session(), args.test, metric="sqnr", baseline=args.model)
        print(
            f"{what:<34} {top.value:6.2f} % (float {top.baseline:.2f} %)  {noise.value:5.1f} dB  "
            f"{100 * result.report.integer_macs:.1f} % integer MACs  {seconds:6.1f} s",
            flush=True,
        )

    for what, make, settings in (
        ("plain max scales", lo.quantize, {"calibrator": "max", "effort": "fast"}),
        ("fine-tuned from plain max scales", lo.finetune, {"calibrator": "max", "effort": "fast"}),
        ("post-training quantization", lo.quantize, {}),
        ("fine-tuned (defaults)", lo.finetune, {}),
        ("fine-tuned, max scales", lo.finetune, {"calibrator": "max"}),
    ):
        more = {"epochs": args.epochs, "loss": args.loss} if make is lo.finetune else {}
        start = time.perf_counter()
        result = make(args.model, args.calib, **common, **settings, **more)
        show(what, result, time.perf_counter() - start)


if __name__ == "__main__":
    main()
