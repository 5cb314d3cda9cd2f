"""A training script in the vendor's calls.

A MobileNetV2 from a float checkpoint, trained as integers, exported.
    python benchmarks/torch_training.py MODEL.onnx --train DATA --test DATA [-o OUT.onnx]
    [--platform venus]
        [--epochs 2] [--limit 2000] [--normalize] [--calibrate] [--quantize-last]

MODEL is a MobileNetV2 as `models/mobilenet_v2.py` has it; its initializers are the float
checkpoint. DATA is what the commands take, with labels. --normalize clamps weights, biases and
outputs in training; --calibrate takes the scales from calibration instead of the running maximum;
without --quantize-last the last layer stays in float. Prints the loss of each epoch, top-1 of the
float net, of the module in evaluation and of the integer graph, and whether the last two answer
alike on every test sample.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import lingeronnx as lo
from lingeronnx.runtime.data import Data, InputSpec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from models.mobilenet_v2 import MobileNetV2, from_onnx  # noqa: E402

SIZES = (3, 32, 32)


def load(source: str, limit: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures float32 [N, 3, 32, 32] and labels int64 [N]."""
    parts = list(
        Data(
            source, [InputSpec("input", (None, *SIZES), np.dtype(np.float32))], limit=limit
        ).batches(256)
    )
    pictures = np.concatenate([feed["input"] for feed, _ in parts])
    return torch.from_numpy(pictures), torch.from_numpy(
        np.concatenate([np.asarray(own) for _, own in parts])
    ).long()


def predict_classes(net: nn.Module, pictures: torch.Tensor) -> np.ndarray:
    """Return the classes that `net` gives in evaluation, [N]."""
    net.eval()
    with torch.no_grad():
        return torch.cat([net(part).argmax(1) for part in pictures.split(100)]).numpy()


def train(
    net: nn.Module, pictures: torch.Tensor, labels: torch.Tensor, epochs: int, seed: int
) -> None:
    """Train `net` with Adam at 1e-4 in batches of 32."""
    net.train()
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    order = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        start, total = time.perf_counter(), 0.0
        rows = torch.randperm(len(pictures), generator=order).split(32)
        for index in rows:
            loss = nn.functional.cross_entropy(net(pictures[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(
            f"epoch {epoch + 1}: loss {total / len(rows):.3f}, {time.perf_counter() - start:.0f} s",
            flush=True,
        )


def main() -> None:
    """Train, export, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("-o", "--output", default="trained.onnx")
    parser.add_argument("--platform", default="venus")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=2000)
    parser.add_argument("--normalize", action="store_true")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--quantize-last", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    pictures, labels = load(args.train, None)
    seen, truth = load(args.test, args.limit)
    checkpoint = from_onnx(args.model)

    net = MobileNetV2()
    net.load_state_dict(checkpoint, strict=False)  # no counters of batches in the file
    print(f"float: {100 * np.mean(predict_classes(net, seen) == truth.numpy()):.2f} %", flush=True)

    lo.torch.trace_layers(net, net, pictures[:32])
    if args.normalize:
        lo.torch.normalize_layers(net)
    if not args.quantize_last:
        lo.torch.disable_quant(net.fc)
    net = lo.torch.init(
        net,
        mode=lo.torch.QuantMode.QValue,
        out_bits=8,
        platform=args.platform,
        calib=args.train if args.calibrate else None,
    )
    net.load_state_dict(checkpoint, strict=False)
    before = predict_classes(net, seen)
    print(f"before training: {100 * np.mean(before == truth.numpy()):.2f} %", flush=True)
    train(net, pictures, labels, args.epochs, args.seed)
    module = predict_classes(net, seen)
    done = lo.torch.export(
        net, pictures[:1], args.output, input_names=["input"], output_names=["output"]
    )
    integer = lo.Session(args.output).run(None, {"input": seen.numpy()})[0].argmax(1)
    print(f"module in evaluation: {100 * np.mean(module == truth.numpy()):.2f} %")
    print(f"integer graph: {100 * np.mean(integer == truth.numpy()):.2f} %, on {len(seen)} samples")
    print(f"the same answers: {int((module == integer).sum())} of {len(seen)}")
    ready = "yes" if done.report.chip_ready else "no"
    print(
        f"chip-ready: {ready}; {100 * done.report.integer_macs:.1f} % of the multiply-accumulates "
        "in integers"
    )


if __name__ == "__main__":
    main()
