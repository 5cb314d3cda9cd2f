"""A speech net of projected LSTMs.

Trained, exported, quantized, and measured in float and in integers.
    python benchmarks/projected_lstm.py --train TRAIN.npz --test TEST.npz [-o FOLDER] [--platform
    generic venus]

Both files hold ``features`` [N, mel, time] and ``labels`` [N], such as log-mel features of spoken
digits. The net is two `UBLSTMP` layers, a mean over time and a linear layer. The training samples
are warped, shifted, masked and mixed anew in every epoch; the weights are those of the last epoch.
Cells beyond 1.5 cost something in training, because most platforms cut what a forget gate keeps at
2. The training file serves for calibration too. One line per platform: accuracy in float and in
integers, the share of multiply-accumulates done in integers, and what was left in float. Some
ten minutes on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import lingeronnx as lo
from lingeronnx.torch.training_api.lstmp import UBLSTMP

RANGE = 1.5  # of what a forget gate keeps of a cell


class Speech(nn.Module):
    """Two bidirectional projected layers, the mean over time, a linear layer.

    [N, T, mel] -> logits [N, classes].
    """

    def __init__(self, mel: int, classes: int, state: int, cells: int) -> None:
        super().__init__()
        self.first = UBLSTMP(mel, state, cells)
        self.second = UBLSTMP(2 * state, state, cells)
        self.drop = nn.Dropout(0.3)
        self.classes = nn.Linear(2 * state, classes)

    def forward(self, features: Tensor) -> Tensor:
        """Map [N, T, mel] to logits [N, classes]."""
        return self.classes(self.second(self.first(features)[0])[0].mean(dim=1))

    def with_excess(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits with dropout, and how far kept cells go beyond the range, squared, on average."""
        y, first = steps(self.first, features)
        y, second = steps(self.second, self.drop(y))
        return self.classes(self.drop(y.mean(dim=1))), first + second


def steps(layer: UBLSTMP, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `layer` gives for x [N, T, I], step by step, and the mean square of what its cells keep beyond RANGE.

    Both directions are done at once, on axis 0.
    """
    sides = (layer.forward_lstmp, layer.backward_lstmp)
    both = torch.stack([x, x.flip(1)])
    sums = torch.stack([side.input_linearity(part) for side, part in zip(sides, both, strict=True)])
    r = torch.stack(
        [side.state_linearity.weight @ side.state_projection.weight for side in sides]
    ).transpose(1, 2)
    h = c = x.new_zeros(2, len(x), sides[0].cell_size)
    states, excess = [], x.new_zeros(())
    for each in sums.unbind(2):
        i, f, g, o = torch.baddbmm(each, h, r).chunk(4, dim=2)
        kept = f.sigmoid() * c
        excess = excess + (kept.abs() - RANGE).relu().square().mean()
        c = kept + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    one, two = torch.stack(states, dim=2)
    y = torch.cat([sides[0].state_projection(one), sides[1].state_projection(two.flip(1))], dim=2)
    return y, excess / len(states)


def load(path: Path) -> tuple[Tensor, Tensor]:
    """Return features float32 [N, T, mel] and labels int64 [N]."""
    held = np.load(path)
    x = held["features"].astype(np.float32).transpose(0, 2, 1)
    return torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(
        held["labels"].astype(np.int64)
    )


def varied(x: Tensor, rng: torch.Generator) -> Tensor:
    """Return [N, T, mel] spoken faster or slower, moved in time and pitch, with some bands and frames hidden."""
    count, length, mel = x.shape

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, generator=rng)

    floor = x.amin()
    at = torch.arange(length)[None, :, None] * uniform(0.8, 1.25) + uniform(-6, 6)
    band = torch.arange(mel)[None, None, :] + uniform(-1.5, 1.5)
    grid = torch.stack(
        torch.broadcast_tensors(band * 2 / (mel - 1) - 1, at * 2 / (length - 1) - 1), dim=-1
    )
    moved = nn.functional.grid_sample((x - floor)[:, None], grid, align_corners=True)[:, 0] + floor
    for axis, size, most in ((1, length, 8), (2, mel, 6)):
        start, wide = uniform(0, size), uniform(0, most)
        place = (
            torch.arange(size).reshape(1, -1, 1)
            if axis == 1
            else torch.arange(size).reshape(1, 1, -1)
        )
        moved = torch.where((place >= start) & (place < start + wide), floor, moved)
    return (moved + 0.1 * torch.randn(moved.shape, generator=rng)) * uniform(0.9, 1.1)


def train(
    model: Speech, x: Tensor, labels: Tensor, epochs: int, batch: int, rate: float, seed: int
) -> None:
    """Train `model` in place: AdamW, one-cycle rate, varied and mixed samples."""
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    steps = len(x) // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * steps)
    targets = nn.functional.one_hot(labels).float()
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(x), generator=rng)[: steps * batch].split(batch):
            other = rows[torch.randperm(batch, generator=rng)]
            share = torch.rand(batch, 1, generator=rng) * 0.3
            both = (1 - share[..., None]) * varied(x[rows], rng) + share[..., None] * varied(
                x[other], rng
            )
            logits, excess = model.with_excess(both)
            loss = nn.functional.cross_entropy(
                logits, (1 - share) * targets[rows] + share * targets[other]
            )
            loss = loss + 10 * excess
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        if (epoch + 1) % 20 == 0:
            print(f"epoch {epoch + 1}/{epochs}: loss {total / steps:.3f}", flush=True)
    model.eval()


def main() -> None:
    """Parse the arguments, train, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("build"), help="folder for the model"
    )
    parser.add_argument("--platform", nargs="*", default=["generic", "venus"])
    parser.add_argument("--state", type=int, default=32, help="size of the projected state")
    parser.add_argument("--cells", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=360)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(
        1
    )  # the order of sums, and with it the weights, does not depend on the machine's cores
    x, labels = load(args.train)
    test, truth = load(args.test)
    model = Speech(x.shape[2], int(labels.max()) + 1, args.state, args.cells)
    train(model, x, labels, args.epochs, args.batch, args.lr, args.seed)
    with torch.no_grad():
        print(
            f"torch: {100 * (model(test).argmax(1) == truth).float().mean():.2f} % of {len(truth)}"
        )
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "projected_lstm.onnx"
    lo.export(model, (x[:2],), path, output_names=["logits"])
    for platform in args.platform:
        mode = "max-value" if platform == "generic" else "q-value"
        result = lo.quantize(path, {"features": x.numpy()}, platform=platform, mode=mode)
        result.save(args.output / f"projected_lstm_{platform}.onnx")
        held_out = [({"features": test.numpy()}, truth.numpy())]
        found = lo.evaluate(result.session(), held_out, metric="top1", baseline=path)
        report = result.report
        left = "; ".join(f"{node.node}: {node.why}" for node in report.float_nodes) or "nothing"
        chip = "" if not report.is_chip else f"  chip-ready {'yes' if report.chip_ready else 'no'}"
        print(
            f"{platform:8s} float {found.baseline:.2f} %  integer {found.value:.2f} % of "
            f"{found.samples}"
            f"  integer MACs {100 * report.integer_macs:.1f} %{chip}  in float: {left}"
        )


if __name__ == "__main__":
    main()
