"""Train the digits model of the demo and write it with its data.

The network is small but holds the shapes that matter to a quantizer: Conv-BN-ReLU, a depthwise
Conv-BN-ReLU6, a pointwise convolution without an activation, max pooling, a residual Add (one
tensor read by two nodes), global average pooling and a linear layer. Batch normalisation stays
unfolded in the file: folding it is the quantizer's work.

Reads scikit-learn's handwritten digits (1797 grey images of 8x8 pixels, 0..16) and writes, into
``--out`` or beside this file, where links lead to the package's ``lingeronnx/cli/demo_model/``:

- ``digits_cnn.onnx``: opset 13, ``input`` float32 [N, 1, 8, 8] = pixels / 16 in [0, 1], ``logits`` float32 [N, 10];
- ``digits_calib.npz``: 100 images the training never saw, for calibration;
- ``digits_test.npz``: 500 images, looked at once, after the last epoch.

Every choice (split, initial weights, order, shifts) follows from ``--seed``; one thread keeps the
order of float sums. The weights kept are those of the last epoch: nothing is selected by test
accuracy.

Needs ``pip install '.[torch]' scikit-learn`` and less than a minute on one CPU core::

    python models/train_digits.py
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from sklearn.datasets import load_digits
from torch import nn

CALIB, TEST = 100, 500
CLASSES = 10
OPSET = 13


class ConvBN(nn.Module):
    """A convolution that keeps height and width, batch normalisation, perhaps an activation.

    Parameters
    ----------
    inputs, outputs : int
        Channels read and written.
    size : int
        Side of the square kernel, odd.
    act : nn.Module, optional
        What follows the normalisation.
    groups : int
        Channel groups; ``groups == inputs`` makes it depthwise.
    """

    def __init__(
        self, inputs: int, outputs: int, size: int, act: nn.Module | None = None, *, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, inputs, H, W] to [N, outputs, H, W]."""
        x = self.bn(self.conv(x))
        return x if self.act is None else self.act(x)


class DigitsCNN(nn.Module):
    """Classify 8x8 grey images: [N, 1, 8, 8] in [0, 1] -> logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBN(1, 16, 3, nn.ReLU())
        self.depthwise = ConvBN(16, 16, 3, nn.ReLU6(), groups=16)
        self.pointwise = ConvBN(16, 32, 1)
        self.pool = nn.MaxPool2d(2)
        self.block1 = ConvBN(32, 32, 3, nn.ReLU())
        self.block2 = ConvBN(32, 32, 3)
        self.block_act = nn.ReLU()
        self.widen = ConvBN(32, 64, 1, nn.ReLU())
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, 1, 8, 8] to logits [N, 10]."""
        x = self.pool(self.pointwise(self.depthwise(self.stem(x))))
        x = self.block_act(x + self.block2(self.block1(x)))
        return self.classifier(torch.flatten(self.average(self.widen(x)), 1))


def split_digits(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Shuffle the digits and cut them into three disjoint parts.

    Parameters
    ----------
    seed : int
        Seed of the shuffle.

    Returns
    -------
    dict
        ``train``, ``calib`` and ``test``, each (images float32 [N, 1, 8, 8] in [0, 1], labels int64
        [N]).
    """
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    cuts = np.split(order, [len(order) - TEST - CALIB, len(order) - TEST])
    return {
        name: (images[rows], labels[rows])
        for name, rows in zip(("train", "calib", "test"), cuts, strict=True)
    }


def shift(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Move each image by -1, 0 or 1 pixel in both directions, padding with background.

    Parameters
    ----------
    images : torch.Tensor
        float32 [N, 1, 8, 8].
    generator : torch.Generator
        Source of the offsets.

    Returns
    -------
    torch.Tensor
        float32 [N, 1, 8, 8].
    """
    count, _, height, width = images.shape
    padded = nn.functional.pad(images, (1, 1, 1, 1))[:, 0]
    offsets = torch.randint(0, 3, (2, count, 1, 1), generator=generator)
    rows = offsets[0] + torch.arange(height)[:, None]
    columns = offsets[1] + torch.arange(width)
    return padded[torch.arange(count)[:, None, None], rows, columns][:, None]


def train(
    images: np.ndarray, labels: np.ndarray, *, epochs: int, batch: int, lr: float, seed: int
) -> DigitsCNN:
    """Train from scratch: AdamW, one-cycle learning rate, random shifts, label smoothing.

    Parameters
    ----------
    images : np.ndarray
        float32 [N, 1, 8, 8] in [0, 1].
    labels : np.ndarray
        int64 [N].
    epochs, batch : int
        Passes over the data and images per step; a last, smaller batch is dropped.
    lr : float
        Peak learning rate.
    seed : int
        Seed of weights, order and shifts.

    Returns
    -------
    DigitsCNN
        The model after the last epoch, in evaluation mode.
    """
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    model = DigitsCNN()
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
            optimizer.step()
            schedule.step()
            total += loss.item()
        if (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1}/{epochs}: loss {total / steps:.4f}")
    return model.eval()


def export(model: DigitsCNN, path: Path) -> None:
    """Write the model as ONNX, batch axis free, batch normalisation unfolded.

    Parameters
    ----------
    model : DigitsCNN
        In evaluation mode.
    path : Path
        File to write.
    """
    torch.onnx.export(
        model,
        (torch.zeros(1, 1, 8, 8),),
        str(path),
        opset_version=OPSET,
        input_names=["input"],
        output_names=["logits"],
        dynamic_axes={"input": {0: "N"}, "logits": {0: "N"}},
        # anything else folds the normalisation into the convolutions
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
        dynamo=False,
    )
    onnx.checker.check_model(onnx.load(path), full_check=True)


def check(model: DigitsCNN, path: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the accuracy of the file in onnxruntime, once it agrees with the torch model.

    Parameters
    ----------
    model : DigitsCNN
        In evaluation mode.
    path : Path
        The exported file.
    images : np.ndarray
        float32 [N, 1, 8, 8].
    labels : np.ndarray
        int64 [N].

    Returns
    -------
    float
        Share of images classified right, 0..1.

    Raises
    ------
    AssertionError
        When logits differ by more than 1e-4 or any predicted class differs.
    """
    with torch.no_grad():
        expected = model(torch.from_numpy(images)).numpy()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    actual = session.run(None, {"input": images})[0]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(actual.argmax(1), expected.argmax(1))
    return float((actual.argmax(1) == labels).mean())


def main() -> None:
    """Train, export, check, and write the data files."""
    parser = argparse.ArgumentParser(
        description="Train the digits model of the demo and write it with its data."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).resolve().parent,
        help="folder for the three files",
    )
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-3)
    args = parser.parse_args()

    parts = split_digits(args.seed)
    model = train(*parts["train"], epochs=args.epochs, batch=args.batch, lr=args.lr, seed=args.seed)

    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "digits_cnn.onnx"
    export(model, path)
    for name in ("calib", "test"):
        images, labels = parts[name]
        np.savez_compressed(args.out / f"digits_{name}.npz", input=images, labels=labels)

    size = sum(parameter.numel() for parameter in model.parameters())
    for name, (images, labels) in parts.items():
        print(f"{name}: {check(model, path, images, labels):.2%} of {len(labels)}")
    print(f"{size} parameters, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
