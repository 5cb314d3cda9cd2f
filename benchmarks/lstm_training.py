"""What a step of training an LSTM through its integers costs, in processor seconds of the float net's.

    python benchmarks/lstm_training.py

Nets of `torch.nn.LSTM` and one Linear on random data, batches of 32, Adam; `lo.torch.init` with
both types named. Each figure is the median of five epochs of 128 samples, on one thread, after one
that is not counted. Prints a table of Markdown.
"""

from __future__ import annotations

import time
import warnings
from statistics import median

import torch
from torch import nn

import lingeronnx as lo

#: Name -> inputs, units, layers, whether in both directions, steps.
NETS = {
    "digits": (40, 64, 1, False, 64),
    "deep": (40, 128, 2, True, 100),
    "long": (40, 32, 1, False, 300),
    "wide": (64, 256, 2, False, 100),
}
MODES = {"venus": lo.torch.QuantMode.QValue, "generic": lo.torch.QuantMode.MaxValue}


class Net(nn.Module):
    """An LSTM, its mean over time, ten classes."""

    def __init__(self, inputs: int, units: int, layers: int, both: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, units, num_layers=layers, bidirectional=both, batch_first=True)
        self.fc = nn.Linear(units * (1 + both), 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, T, inputs] to scores [N, 10]."""
        y, _ = self.lstm(x)
        scores: torch.Tensor = self.fc(y.mean(1))
        return scores


def epoch(net: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> float:
    """Train one epoch and return its processor seconds."""
    net.train()
    optimizer, start = torch.optim.Adam(net.parameters(), 1e-3), time.process_time()
    for part, own in zip(x.split(32), labels.split(32), strict=True):
        loss = nn.functional.cross_entropy(net(part), own)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.process_time() - start


def measure_epochs(net: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the median of five epochs after one that builds and compiles."""
    epoch(net, x[:32], labels[:32])
    return median(epoch(net, x, labels) for _ in range(5))


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(
        "| net | layers x units, steps | float, s | "
        + " | ".join(f"{name}, times" for name in MODES)
        + " |"
    )
    print("|---|---|---:|" + "---:|" * len(MODES))
    for name, (inputs, units, layers, both, steps) in NETS.items():
        torch.manual_seed(0)
        x, labels = torch.randn(128, steps, inputs), torch.randint(0, 10, (128,))
        base = measure_epochs(Net(inputs, units, layers, both), x, labels)
        row = []
        for platform, mode in MODES.items():
            net = Net(inputs, units, layers, both)
            types = (nn.LSTM, nn.Linear)
            whole = lo.torch.init(
                net, mode=mode, out_bits=8, platform=platform, quant_modules=types
            )
            row.append(f"{measure_epochs(whole, x, labels) / base:.1f}")
        ways = ", both ways" if both else ""
        print(
            f"| {name} | {layers} x {units}{ways}, {steps} | {base:.2f} | {' | '.join(row)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
