"""Train a small detector of drawn shapes, built and exported as YOLOv8 is.

Boxes and scores joined in one output.
Two levels (strides 8 and 16), for each a branch for boxes, a distribution over 8 distances for each
side, and one for classes. The file holds the decoding too: the expectation of the distances,
centres and sizes in pixels beside the sigmoids of the scores, `output` float32 [N, 4 + 3, 180].
Writes, beside this file or into ``--out``, ``shapes_detector.onnx``; the pictures come from
``drawn_shapes.py``.

Every choice follows from ``--seed``; one thread keeps the order of float sums. Needs ``pip install
'.[torch]'`` and about two minutes on one CPU core::

    python models/train_detector.py
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from drawn_shapes import KINDS, SIZE, detections, draw, found_again
from torch import nn
from torch.nn import functional

import lingeronnx as lo

BINS, STRIDES = 8, (8, 16)
LARGE = 32  # pixels: from there on a shape belongs to the second level


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution with batch normalisation and ReLU."""
    layers = (
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )
    return nn.Sequential(*layers)


def cells() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the centres [2, M] of all cells, in strides, and their strides [1, M]."""
    centres, strides = [], []
    for stride in STRIDES:
        at = torch.arange(SIZE // stride) + 0.5
        y, x = torch.meshgrid(at, at, indexing="ij")
        centres.append(torch.stack([x.flatten(), y.flatten()]))
        strides.append(torch.full((1, len(at) ** 2), float(stride)))
    return torch.cat(centres, 1), torch.cat(strides, 1)


class Detector(nn.Module):
    """Boxes and scores of shapes: [N, 3, SIZE, SIZE] in [0, 1] -> [N, 4 + KINDS, M]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(block(3, 12, 2), block(12, 20, 2), block(20, 28, 2))
        self.deep = nn.Sequential(block(28, 36, 2), block(36, 36))
        self.boxes = nn.ModuleList(
            nn.Sequential(block(c, 24), nn.Conv2d(24, 4 * BINS, 1)) for c in (28, 36)
        )
        self.kinds = nn.ModuleList(
            nn.Sequential(block(c, 24), nn.Conv2d(24, KINDS, 1)) for c in (28, 36)
        )
        self.expect = nn.Conv2d(BINS, 1, 1, bias=False)
        self.expect.weight.data = torch.arange(BINS, dtype=torch.float32).view(1, BINS, 1, 1)
        self.expect.weight.requires_grad_(False)
        centres, strides = cells()
        self.register_buffer("centres", centres[None])
        self.register_buffer("strides", strides[None])
        for head in self.kinds:
            head[-1].bias.data.fill_(-4.0)

    def heads(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the raw distances [N, 4 * BINS, M] and scores [N, KINDS, M]."""
        near = self.stem(pictures)
        maps = near, self.deep(near)
        found = [
            torch.cat([boxes(x), kinds(x)], 1).flatten(2)
            for x, boxes, kinds in zip(maps, self.boxes, self.kinds, strict=True)
        ]
        both = torch.cat(found, 2)
        return both[:, : 4 * BINS], both[:, 4 * BINS :]

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Map pictures to boxes in pixels and scores."""
        raw, scores = self.heads(pictures)
        sides = self.expect(raw.view(-1, 4, BINS, raw.shape[2]).transpose(1, 2).softmax(1)).view(
            -1, 4, raw.shape[2]
        )
        low, high = self.centres - sides[:, :2], self.centres + sides[:, 2:]
        boxes = torch.cat([(low + high) / 2, high - low], 1) * self.strides
        return torch.cat([boxes, scores.sigmoid()], 1)


def targets(truth: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the scores [N, KINDS, M], the sides in strides [N, 4, M] and which cells have some [N, M]."""
    centres, strides = cells()
    at = (centres * strides).numpy()
    scores = np.zeros((len(truth), KINDS, at.shape[1]), np.float32)
    sides = np.zeros((len(truth), 4, at.shape[1]), np.float32)
    for number, rows in enumerate(truth):
        for x0, y0, x1, y1, kind in rows:
            stride = STRIDES[int(x1 - x0 >= LARGE)]
            middle = np.array([[x0 + x1], [y0 + y1]]) / 2
            mine = (strides[0].numpy() == stride) & (np.abs(at - middle).max(0) <= 0.75 * stride)
            scores[number, :, mine] = np.eye(KINDS)[int(kind)]
            box = np.stack([at[0] - x0, at[1] - y0, x1 - at[0], y1 - at[1]]) / stride
            sides[number][:, mine] = np.clip(box, 0, BINS - 1.01)[:, mine]
    return torch.from_numpy(scores), torch.from_numpy(sides), torch.from_numpy(scores.max(1) > 0)


def loss(model: Detector, pictures: torch.Tensor, truth: list[np.ndarray]) -> torch.Tensor:
    """Return the cross entropies of the scores and of the distances."""
    raw, scores = model.heads(pictures)
    wanted, sides, mine = targets(truth)
    some = mine.sum().clamp(min=1)
    kinds = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="sum") / some
    logits = raw.view(-1, 4, BINS, raw.shape[2]).permute(0, 3, 1, 2)[mine].reshape(-1, BINS)
    exact = sides.permute(0, 2, 1)[mine].reshape(-1)
    left = exact.floor().long()
    part = exact - left
    told = functional.cross_entropy
    distances = (
        told(logits, left, reduction="none") * (1 - part)
        + told(logits, left + 1, reduction="none") * part
    )
    return kinds + distances.mean()


def train(seed: int, steps: int) -> Detector:
    """Return the detector after so many batches of 16 fresh pictures."""
    torch.manual_seed(seed)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for step in range(steps):
        pictures, truth = draw(16, seed + 1000 + step)
        optimizer.zero_grad()
        value = loss(model, torch.from_numpy(pictures), truth)
        value.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {value.item():.3f}", flush=True)
    return model.eval()


def main() -> None:
    """Train, export, and say what the float model finds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--steps", type=int, default=450)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = train(options.seed, options.steps)
    path = options.out / "shapes_detector.onnx"
    pictures, truth = draw(200, 2)
    lo.export(
        model,
        torch.from_numpy(pictures[:2]),
        path,
        input_names=["pictures"],
        output_names=["output"],
    )
    output = onnxruntime.InferenceSession(path).run(None, {"pictures": pictures})[0]
    hits, all_of_them = found_again(truth, detections(output))
    wrong = sum(map(len, detections(output)))
    print(f"{path}: {hits} of {all_of_them} shapes found, {wrong} detections in all")


if __name__ == "__main__":
    main()
