"""Train three small sequence models on handwritten digits, read row by row, and export them.

A digit of 8x8 pixels is a sequence of 8 steps with 8 features. The three networks hold what a
quantizer meets in models of sound and text: an LSTM, a GRU, and self-attention (two heads, learned
positions, layer normalisation, residuals). Data, split and augmentation are those of
``train_digits.py``, so that ``digits_calib.npz`` and ``digits_test.npz`` serve these models too.
Writes, beside this file or into ``--out``:

- ``digits_lstm.onnx``, ``digits_gru.onnx``, ``digits_attention.onnx``: opset 18, ``input`` float32 [N, 1, 8, 8] =
  pixels / 16 in [0, 1], ``logits`` float32 [N, 10].

They are exported by `lingeronnx.export`: nodes are named by module path, initializers as in the
state_dict, and the files are compared with torch. Every choice follows from ``--seed``; one thread
keeps the order of float sums; the weights kept are those of the last epoch.

Needs ``pip install '.[torch]' scikit-learn`` and about a minute on one CPU core::

    python models/train_sequences.py
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn
from train_digits import CLASSES, shift, split_digits

import lingeronnx as lo

ROW = 8  # pixels in a row: the features of one step
STEPS = 8  # rows


class Recurrent(nn.Module):
    """Classify by the last state of a recurrent layer: [N, 1, 8, 8] in [0, 1] -> logits [N, 10].

    Parameters
    ----------
    kind : type
        ``nn.LSTM`` or ``nn.GRU``.
    width : int
        Units of the layer.
    """

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], width: int = 40) -> None:
        super().__init__()
        self.rnn = kind(ROW, width, batch_first=True)
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map [N, 1, 8, 8] to logits [N, 10]."""
        states, _ = self.rnn(input.squeeze(1))
        return self.classifier(states[:, -1])


class Attention(nn.Module):
    """Self-attention over a sequence: [N, T, width] -> [N, T, width].

    Parameters
    ----------
    width : int
        Features of a step.
    heads : int
        Heads; each sees ``width / heads`` features.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, T, width] to [N, T, width]."""
        count, steps, width = x.shape
        split = (count, steps, self.heads, width // self.heads)
        query = self.query(x).view(split).transpose(1, 2)  # [N, heads, T, width / heads]
        key = self.key(x).view(split).transpose(1, 2)
        value = self.value(x).view(split).transpose(1, 2)
        scores = torch.softmax(query @ key.transpose(2, 3) / split[3] ** 0.5, dim=-1)
        return self.mix((scores @ value).transpose(1, 2).reshape(count, steps, width))


class Attentive(nn.Module):
    """One block of a transformer over the rows: [N, 1, 8, 8] in [0, 1] -> logits [N, 10]."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(ROW, width)
        self.position = nn.Parameter(torch.randn(STEPS, width) * 0.1)
        self.attention = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.norm2 = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map [N, 1, 8, 8] to logits [N, 10]."""
        x = self.embed(input.squeeze(1)) + self.position
        x = self.norm1(x + self.attention(x))
        x = self.norm2(x + self.feed(x))
        return self.classifier(x.mean(1))


#: Name of the file -> the model, untrained.
NETS = {
    "digits_lstm": lambda: Recurrent(nn.LSTM),
    "digits_gru": lambda: Recurrent(nn.GRU),
    "digits_attention": Attentive,
}


def train(
    model: nn.Module,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    epochs: int,
    batch: int,
    lr: float,
    seed: int,
) -> None:
    """Train in place: AdamW, one-cycle learning rate, random shifts, label smoothing, clipped gradients.

    Parameters
    ----------
    model : nn.Module
        The network.
    images : np.ndarray
        float32 [N, 1, 8, 8] in [0, 1].
    labels : np.ndarray
        int64 [N].
    epochs, batch : int
        Passes over the data and images per step; a last, smaller batch is dropped.
    lr : float
        Peak learning rate.
    seed : int
        Seed of order and shifts.
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    steps = len(y) // batch
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, lr, epochs=epochs, steps_per_epoch=steps
    )
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    for epoch in range(epochs):
        order = torch.randperm(len(y), generator=generator)
        total = 0.0
        for rows in order[: steps * batch].split(batch):
            optimizer.zero_grad()
            loss = loss_of(model(shift(x[rows], generator)), y[rows])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        if (epoch + 1) % 20 == 0:
            print(f"epoch {epoch + 1}/{epochs}: loss {total / steps:.4f}")


def accuracy(path: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images, 0..1, that the file classifies right in onnxruntime.

    Parameters
    ----------
    path : Path
        The exported file.
    images : np.ndarray
        float32 [N, 1, 8, 8].
    labels : np.ndarray
        int64 [N].
    """
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return float((session.run(None, {"input": images})[0].argmax(1) == labels).mean())


def main() -> None:
    """Train, export and measure the three models."""
    parser = argparse.ArgumentParser(
        description="Train three small sequence models on digits and export them."
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).resolve().parent, help="folder for the files"
    )
    parser.add_argument("--only", choices=NETS, action="append", help="train this one; repeatable")
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-3)
    args = parser.parse_args()

    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    parts = split_digits(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.only or NETS:
        torch.manual_seed(args.seed)
        model = NETS[name]()
        train(
            model, *parts["train"], epochs=args.epochs, batch=args.batch, lr=args.lr, seed=args.seed
        )
        path = args.out / f"{name}.onnx"
        done = lo.export(model, torch.zeros(1, 1, STEPS, ROW), path, output_names=["logits"])
        told = ", ".join(f"{part} {accuracy(path, *data):.2%}" for part, data in parts.items())
        print(f"{name}: {done.parameters} parameters, {path.stat().st_size} bytes, {told}")


if __name__ == "__main__":
    main()
