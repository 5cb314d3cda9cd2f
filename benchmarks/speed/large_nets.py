"""Large networks with random weights, in PyTorch: their layers and sizes are those of the originals.

ResNet-18 and -50, a detector built as YOLOv8n, MiniLM-L6 (token numbers in, a vector for a sentence
out) and ViT-B/16. Batch normalizations have the statistics of random images, so that activations
have ordinary ranges.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["LARGE_NETS", "LargeNet"]

_OPSET = 17
_SEED = 0
_TOKENS, _VOCABULARY = 128, 30522


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution that keeps the size but for its stride, and a batch normalization."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions; as a bottleneck 1x1, 3x3 and 1x1 to four times the channels."""

    def __init__(self, inputs: int, width: int, stride: int, is_bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if is_bottleneck else width
        if is_bottleneck:
            layers = [
                conv_norm(inputs, width, 1),
                conv_norm(width, width, 3, stride),
                conv_norm(width, outputs, 1),
            ]
        else:
            layers = [conv_norm(inputs, width, 3, stride), conv_norm(width, outputs, 3)]
        self.layers = nn.ModuleList(layers)
        self.short: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.short = conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the map [N, outputs, H / stride, W / stride]."""
        y = x
        for layer in self.layers[:-1]:
            y = F.relu(layer(y))
        return F.relu(self.layers[-1](y) + self.short(x))


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, and a classifier of 1,000 classes."""

    def __init__(self, blocks: tuple[int, ...], is_bottleneck: bool) -> None:
        super().__init__()
        self.stem = conv_norm(3, 64, 7, 2)
        stages, channels = [], 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            for block in range(count):
                stride = 2 if stage and not block else 1
                stages.append(ResidualBlock(channels, width, stride, is_bottleneck))
                channels = 4 * width if is_bottleneck else width
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(channels, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of images [N, 3, 224, 224]."""
        x = self.stages(F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def conv_silu(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Return a convolution, a batch normalization and SiLU."""
    return nn.Sequential(conv_norm(inputs, outputs, kernel, stride), nn.SiLU())


class SplitBlock(nn.Module):
    """YOLOv8's C2f: half of the channels go through blocks, and all results are joined."""

    def __init__(self, inputs: int, outputs: int, count: int, adds: bool) -> None:
        super().__init__()
        self.half, self.adds = outputs // 2, adds
        self.first = conv_silu(inputs, outputs, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(conv_silu(self.half, self.half), conv_silu(self.half, self.half))
            for _ in range(count)
        )
        self.last = conv_silu((2 + count) * self.half, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the map [N, outputs, H, W]."""
        parts = list(self.first(x).split(self.half, 1))
        for block in self.blocks:
            y = block(parts[-1])
            parts.append(parts[-1] + y if self.adds else y)
        return self.last(torch.cat(parts, 1))


class PyramidPool(nn.Module):
    """YOLOv8's SPPF: three max pools one after the other, joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = conv_silu(channels, channels // 2, 1)
        self.last = conv_silu(2 * channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the map [N, channels, H, W]."""
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return self.last(torch.cat(parts, 1))


class Detector(nn.Module):
    """YOLOv8n's backbone, neck and heads of 80 classes, without the decoding of boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv_silu(3, 16, 3, 2), conv_silu(16, 32, 3, 2), SplitBlock(32, 32, 1, True)
        )
        self.to_8 = nn.Sequential(conv_silu(32, 64, 3, 2), SplitBlock(64, 64, 2, True))
        self.to_16 = nn.Sequential(conv_silu(64, 128, 3, 2), SplitBlock(128, 128, 2, True))
        self.to_32 = nn.Sequential(
            conv_silu(128, 256, 3, 2), SplitBlock(256, 256, 1, True), PyramidPool(256)
        )
        self.up_16, self.up_8 = SplitBlock(384, 128, 1, False), SplitBlock(192, 64, 1, False)
        self.down_16, self.join_16 = conv_silu(64, 64, 3, 2), SplitBlock(192, 128, 1, False)
        self.down_32, self.join_32 = conv_silu(128, 128, 3, 2), SplitBlock(384, 256, 1, False)
        self.boxes = nn.ModuleList(self._head(width, 64, 64) for width in (64, 128, 256))
        self.classes = nn.ModuleList(self._head(width, 80, 80) for width in (64, 128, 256))

    @staticmethod
    def _head(inputs: int, width: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            conv_silu(inputs, width), conv_silu(width, width), nn.Conv2d(width, outputs, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return box and class logits [N, 144, cells] of images [N, 3, S, S]."""
        at_8 = self.to_8(self.stem(x))
        at_16 = self.to_16(at_8)
        at_32 = self.to_32(at_16)
        up_16 = self.up_16(torch.cat([F.interpolate(at_32, scale_factor=2.0), at_16], 1))
        up_8 = self.up_8(torch.cat([F.interpolate(up_16, scale_factor=2.0), at_8], 1))
        down_16 = self.join_16(torch.cat([self.down_16(up_8), up_16], 1))
        down_32 = self.join_32(torch.cat([self.down_32(down_16), at_32], 1))
        levels = zip(self.boxes, self.classes, (up_8, down_16, down_32), strict=True)
        return torch.cat([torch.cat([b(m), c(m)], 1).flatten(2) for b, c, m in levels], 2)


class EncoderLayer(nn.Module):
    """Attention and two linear layers, each with a residual and a layer norm before or after."""

    def __init__(self, width: int, heads: int, is_norm_first: bool) -> None:
        super().__init__()
        self.heads, self.is_norm_first = heads, is_norm_first
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.reduce = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Return the attention's output of [N, T, width]."""
        batch, steps, width = x.shape
        size = width // self.heads
        q, k, v = self.qkv(x).reshape(batch, steps, 3, self.heads, size).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) * size**-0.5, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, steps, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [N, T, width]."""
        first, second = self.norms
        if self.is_norm_first:
            x = x + self.attend(first(x))
            return x + self.reduce(F.gelu(self.expand(second(x))))
        x = first(x + self.attend(x))
        return second(x + self.reduce(F.gelu(self.expand(x))))


class SentenceEncoder(nn.Module):
    """MiniLM-L6: 6 layers of width 384 and 12 heads; the mean over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_VOCABULARY, 384)
        self.positions = nn.Parameter(torch.randn(1, _TOKENS, 384) * 0.02)
        self.norm = nn.LayerNorm(384)
        self.layers = nn.Sequential(*(EncoderLayer(384, 12, False) for _ in range(6)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return vectors [N, 384] of token numbers [N, 128]."""
        return self.layers(self.norm(self.words(tokens) + self.positions)).mean(1)


class VisionTransformer(nn.Module):
    """ViT-B/16: 12 layers of width 768 and 12 heads, 1,000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, 768) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 197, 768) * 0.02)
        self.layers = nn.Sequential(*(EncoderLayer(768, 12, True) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of images [N, 3, 224, 224]."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


@dataclass(frozen=True)
class LargeNet:
    """A network and the shape of a sample; `takes_tokens` if that is token numbers."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    takes_tokens: bool = False

    def draw_sample(self, seed: int) -> np.ndarray:
        """Return a random sample."""
        rng = np.random.default_rng(seed)
        if self.takes_tokens:
            return rng.integers(0, _VOCABULARY, self.shape)
        return rng.standard_normal(self.shape).astype(np.float32)

    def export(self) -> onnx.ModelProto:
        """Return the network as ONNX, with the input "x" and a dynamic batch."""
        torch.manual_seed(_SEED)
        net = self.make()
        x = torch.from_numpy(self.draw_sample(0))
        with torch.no_grad():
            net.train()
            for module in net.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.momentum = None  # the mean of what it has seen
            net(x)
        net.eval()
        buffer, options = io.BytesIO(), {"input_names": ["x"], "output_names": ["y"]}
        arguments: dict[str, Any] = {**options, "opset_version": _OPSET, "dynamo": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                net, (x,), buffer, dynamic_axes={"x": {0: "N"}, "y": {0: "N"}}, **arguments
            )
        return onnx.load_from_string(buffer.getvalue())


LARGE_NETS = {
    "ResNet-18": LargeNet(lambda: ResNet((2, 2, 2, 2), False), (1, 3, 224, 224)),
    "ResNet-50": LargeNet(lambda: ResNet((3, 4, 6, 3), True), (1, 3, 224, 224)),
    "YOLOv8n-like, 320": LargeNet(Detector, (1, 3, 320, 320)),
    "YOLOv8n-like, 640": LargeNet(Detector, (1, 3, 640, 640)),
    "MiniLM-L6, 128 tokens": LargeNet(SentenceEncoder, (1, _TOKENS), True),
    "ViT-B/16": LargeNet(VisionTransformer, (1, 3, 224, 224)),
}
