"""A MobileNetV2 for pictures of 32x32 pixels as a torch module, and its weights out of an ONNX file.

The initializers of a file that torch exported carry the keys of the module's state_dict:
`from_onnx` takes them as they are. Names follow such a file: ``f.2.f.1.0`` is the depthwise
convolution of block 2.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from models.random_nets import BLOCKS


def layer(
    inputs: int,
    outputs: int,
    size: int,
    stride: int,
    groups: int,
    act: Callable[[], nn.Module] | None,
) -> nn.Sequential:
    """Return a convolution, its batch normalisation, and perhaps an activation."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *([act()] if act else []))


class Block(nn.Module):
    """Widen, filter each channel by itself, narrow; with the input added where the sizes allow."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, factor: int, act: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        wide = inputs * factor
        first = [layer(inputs, wide, 1, 1, 1, act)] if factor > 1 else []
        self.f = nn.Sequential(
            *first, layer(wide, wide, 3, stride, wide, act), layer(wide, outputs, 1, 1, 1, None)
        )
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, inputs, H, W] to [N, outputs, H / stride, W / stride]."""
        return x + self.f(x) if self.same else self.f(x)


class MobileNetV2(nn.Module):
    """Logits [N, classes] of pictures [N, 3, 32, 32]."""

    def __init__(self, classes: int = 10, act: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__()
        layers: list[nn.Module] = [layer(3, 16, 3, 1, 1, act)]
        channels = 16
        for outputs, stride, factor in BLOCKS:
            layers.append(Block(channels, outputs, stride, factor, act))
            channels = outputs
        self.f = nn.Sequential(*layers, layer(channels, 320, 1, 1, 1, act))
        self.fc = nn.Linear(320, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, 3, 32, 32] to [N, classes]."""
        return self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(self.f(x), 1), 1))


def from_onnx(path: str | Path) -> dict[str, Tensor]:
    """Return the initializers of an ONNX file as a state_dict."""
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    return {name: torch.from_numpy(np.array(array)) for name, array in held.items()}
