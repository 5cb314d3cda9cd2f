"""Small torch modules for the tests of this folder, with seeded weights, as `lingeronnx export`
reads them.
"""

from dataclasses import dataclass

import torch
from torch import nn


class Block(nn.Module):
    """Conv-BN with a residual; the operators Add and Relu are the block's own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)) + x)


class Cnn(nn.Module):
    """[N, 2, 6, 6] -> [N, 3]: nested Sequential, dropout, one linear layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3)
        self.layer1 = nn.Sequential(Block(4), nn.Sequential(Block(4), nn.MaxPool2d(2)))
        self.drop = nn.Dropout(0.5)
        self.twice = nn.Linear(4, 4)
        self.fc = nn.Linear(4, 3)

    def forward(self, image):
        x = self.layer1(self.stem(image))
        x = self.drop(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))
        return self.fc(self.twice(self.twice(x)))


#: What both exporters must call the nodes of `Cnn`.
CNN_NODES = [
    "/stem/Conv",
    "/layer1/0/conv/Conv",
    "/layer1/0/bn/BatchNormalization",
    "/layer1/0/Add",
    "/layer1/0/Relu",
    "/layer1/1/0/conv/Conv",
    "/layer1/1/0/bn/BatchNormalization",
    "/layer1/1/0/Add",
    "/layer1/1/0/Relu",
    "/layer1/1/1/MaxPool",
    "/GlobalAveragePool",
    "/Flatten",
    "/twice/Gemm",
    "/twice/Gemm_1",
    "/fc/Gemm",
]


class Rnn(nn.Module):
    """[N, 5, 4] -> [N, 3]: the last step of a recurrent layer."""

    def __init__(self, kind=nn.LSTM, **settings) -> None:
        super().__init__()
        self.rnn = kind(4, 6, batch_first=True, **settings)
        self.fc = nn.Linear(12 if settings.get("bidirectional") else 6, 3)

    def forward(self, x):
        return self.fc(self.rnn(x)[0][:, -1])


class Attention(nn.Module):
    """[N, 5, 8] -> [N, 8]: two heads, learned positions, layer normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.position = nn.Parameter(torch.randn(5, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        x = x + self.position
        split = (x.size(0), x.size(1), 2, 4)
        q, k, v = self.q(x).view(split), self.k(x).view(split), self.v(x).view(split)
        scores = torch.softmax(q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / 2, -1)
        y = (scores @ v.transpose(1, 2)).transpose(1, 2).reshape(x.shape)
        return self.norm(x + self.out(y)).mean(1)


class Tagger(nn.Module):
    """A dict argument, a number, keyword arguments; a dict with a tuple in it comes out. Two layers
    share a weight.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("position", torch.randn(1, 8, 4), persistent=False)

    def forward(self, batch, scale=2.0, *, mask=None):
        ids = batch["ids"]
        x = self.table(ids) + self.position[:, : ids.shape[1]]
        x = self.second(self.first(x)) * scale
        if mask is not None:
            x = x * mask[..., None]
        return {"tags": x, "rest": (x.mean(1), None, batch["features"] + 1)}


class Bessel(nn.Module):
    """An operator that ONNX has not."""

    def forward(self, x):
        return torch.special.bessel_j0(x)


class Unsupported(nn.Module):
    """The operator stands in ``head.1.0``."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(3, 3), nn.Sequential(Bessel()))

    def forward(self, x):
        return self.head(x)


@dataclass
class Size:
    """A configuration, as model files have them."""

    width: int = 3


def linear(size: Size | None = None):
    """Return a module."""
    torch.manual_seed(0)
    return nn.Linear(4, (size or Size()).width)


def with_arguments():
    """Return a module and its arguments."""
    return linear(), (torch.zeros(1, 4),)


def failing():
    """Raise."""
    raise RuntimeError("no weights here")


module = linear()
number = 3


def seeded(kind, *args, **settings):
    """Return ``kind(...)`` with seeded weights, and running statistics that are not those of a new
    layer.
    """
    torch.manual_seed(1)
    made = kind(*args, **settings)
    for part in made.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            part.weight.data.uniform_(0.5, 2)
    return made
