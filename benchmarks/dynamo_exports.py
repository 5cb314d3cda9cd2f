"""Compare what both of torch's exporters make of twelve architectures, at several opsets.

    python benchmarks/dynamo_exports.py FOLDER [--only NAME ...] [--exports dynamo-23 ...]
        [--platforms generic] [--output TABLE.md]

Each network is small and has seeded random weights; parameters that begin as one number are drawn,
and batch normalizations have the statistics of some samples. `torch.onnx.export` writes it with
dynamo at opsets 18, 20, 23 and 25, and with TorchScript at 18. Each file is quantized with defaults
on 48 standard normal samples, and 32 others are compared with onnxruntime on the float file: SQNR in
dB of the worst output. The table states where an export differs from the first one of its network by
more than 1 point of integer multiply-accumulates or more than 1 dB.

FOLDER/results.jsonl keeps each row, and an interrupted run continues. Exit code 1 if an export, or
a quantization, failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

EXPORTS = (
    ("torchscript", 18),
    ("dynamo", 18),
    ("dynamo", 20),
    ("dynamo", 23),
    ("dynamo", 25),
)
_CALIB, _EVAL = 48, 32  # samples
_MAX_MAC_DIFFERENCE, _MAX_SQNR_DIFFERENCE = 0.01, 1.0

# ---- networks ------------------------------------------------------------------------------------


def conv_norm(inputs: int, outputs: int, kernel: int = 3, **options: Any) -> nn.Sequential:
    """Return a convolution with padding, and a batch normalization."""
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Two residual blocks of two convolutions each, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 16)
        self.first = nn.ModuleList([conv_norm(16, 16), conv_norm(16, 16)])
        self.second = nn.ModuleList([conv_norm(16, 32, stride=2), conv_norm(32, 32)])
        self.short = conv_norm(16, 32, 1, stride=2)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of [N, 3, 32, 32]."""
        x = F.relu(self.stem(x))
        x = F.relu(x + self.first[1](F.relu(self.first[0](x))))
        x = F.relu(self.short(x) + self.second[1](F.relu(self.second[0](x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class SqueezeExcite(nn.Module):
    """Factors per channel, from the means of the map."""

    def __init__(self, channels: int, gate: nn.Module) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)
        self.gate = gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scaled map."""
        means = F.adaptive_avg_pool2d(x, 1)
        return x * self.gate(self.expand(F.relu(self.reduce(means))))


def inverted_residual(activation: Callable[[], nn.Module], gate: nn.Module) -> nn.Sequential:
    """Return an expansion to 32 channels, a depthwise convolution, and a projection to 16."""
    return nn.Sequential(
        conv_norm(16, 32, 1),
        activation(),
        conv_norm(32, 32, groups=32),
        activation(),
        SqueezeExcite(32, gate),
        conv_norm(32, 16, 1),
    )


class MobileNet(nn.Module):
    """Two inverted residuals with squeeze and excite, as in MobileNetV3 and EfficientNet."""

    def __init__(self, activation: Callable[[], nn.Module], gate: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_norm(3, 16, stride=2), activation())
        self.blocks = nn.ModuleList([inverted_residual(activation, gate) for _ in range(2)])
        self.head = nn.Sequential(conv_norm(16, 48, 1), activation())
        self.classifier = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of [N, 3, 32, 32]."""
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.classifier(self.head(x).mean((2, 3)))


class ConvNeXt(nn.Module):
    """Patches, and two blocks with layer normalization of channels, GELU and layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 4, stride=4)
        self.depthwise = nn.ModuleList([nn.Conv2d(24, 24, 7, padding=3, groups=24) for _ in "ab"])
        self.norms = nn.ModuleList([nn.LayerNorm(24) for _ in "ab"])
        self.expand = nn.ModuleList([nn.Linear(24, 48) for _ in "ab"])
        self.reduce = nn.ModuleList([nn.Linear(48, 24) for _ in "ab"])
        self.scales = nn.ParameterList([torch.ones(24) for _ in "ab"])
        self.head = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of [N, 3, 32, 32]."""
        x = self.stem(x)
        layers = zip(self.depthwise, self.norms, self.expand, self.reduce, self.scales, strict=True)
        for depthwise, norm, expand, reduce, scale in layers:
            y = norm(depthwise(x).permute(0, 2, 3, 1))
            y = reduce(F.gelu(expand(y))) * scale
            x = x + y.permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    """One step down and two ways up: a transposed convolution and a bilinear resize."""

    def __init__(self) -> None:
        super().__init__()
        self.top, self.middle, self.bottom = conv_norm(3, 12), conv_norm(12, 16), conv_norm(16, 16)
        self.up = nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.join, self.last = conv_norm(32, 12), conv_norm(24, 8)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a map of two channels for [N, 3, 32, 32]."""
        top = F.relu(self.top(x))
        middle = F.relu(self.middle(F.max_pool2d(top, 2)))
        bottom = F.relu(self.bottom(F.max_pool2d(middle, 2)))
        y = F.relu(self.join(torch.cat([middle, self.up(bottom)], 1)))
        y = F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.head(F.relu(self.last(torch.cat([top, y], 1))))


class TCN(nn.Module):
    """Dilated causal convolutions with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(8, 16, 1)
        self.layers = nn.ModuleList([nn.Conv1d(16, 16, 3, dilation=d) for d in (1, 2, 4)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(16) for _ in range(3)])
        self.head = nn.Conv1d(16, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a sequence of six channels for [N, 8, 40]."""
        x = self.stem(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            pad = 2 * layer.dilation[0]
            x = x + F.relu(norm(layer(F.pad(x, (pad, 0)))))
        return self.head(x)


class CRNN(nn.Module):
    """Convolutions over an image of text, and a bidirectional LSTM over its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv_norm(1, 8), conv_norm(8, 16)
        self.lstm = nn.LSTM(16 * 4, 16, bidirectional=True, batch_first=True)
        self.head = nn.Linear(32, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores per column for [N, 1, 16, 40]."""
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        columns = x.permute(0, 3, 1, 2).flatten(2)
        return self.head(self.lstm(columns)[0])


class GRULSTM(nn.Module):
    """A GRU, an LSTM, and a classifier of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(12, 20, batch_first=True)
        self.lstm = nn.LSTM(20, 16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of [N, 20, 12]."""
        return self.head(self.lstm(self.gru(x)[0])[0][:, -1])


class Encoder(nn.Module):
    """Two transformer encoder layers of torch, over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of [N, 16, 8]."""
        return self.head(self.encoder(self.embed(x)).mean(1))


class Attention(nn.Module):
    """Self-attention by `scaled_dot_product_attention`, queries, keys and values in one product."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape of `x`, [N, T, size]."""
        n, t, c = x.shape
        q, k, v = (
            self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(n, t, c))


class ViT(nn.Module):
    """Patches with a class token and positions, and two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, stride=8)
        self.token, self.positions = (
            nn.Parameter(torch.zeros(1, 1, 32)),
            nn.Parameter(torch.zeros(1, 17, 32)),
        )
        self.attention = nn.ModuleList([Attention(32, 4) for _ in "ab"])
        self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in "abcd"])
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in "ab"]
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of [N, 3, 32, 32]."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for k in range(2):
            x = x + self.attention[k](self.norms[2 * k](x))
            x = x + self.layers[k](self.norms[2 * k + 1](x))
        return self.head(x[:, 0])


class RMSNorm(nn.RMSNorm):
    """torch's module, written out for TorchScript, which has no symbol for it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` divided by its root mean square, times the weight."""
        if not torch.jit.is_tracing():
            return super().forward(x)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Decoder(nn.Module):
    """A decoder layer with cache: RMS norm, rotary positions, grouped heads and SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([RMSNorm(32, eps=1e-6) for _ in "ab"])
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16)
        self.out = nn.Linear(32, 32)
        self.gate, self.up, self.down = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 32)
        self.head = nn.Linear(32, 20)
        angles = torch.arange(6, 8)[:, None] / 100 ** (torch.arange(4) / 4)
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` [N, heads, 2, 8] with rotary positions."""
        first, second = x.chunk(2, -1)
        return x * self.cosine + torch.cat([-second, first], -1) * self.sine

    def forward(
        self, x: torch.Tensor, past_key: torch.Tensor, past_value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits of [N, 2, 32], and the cache [N, 2, 6, 8] with two more positions."""
        n, t, _ = x.shape
        y = self.norms[0](x)
        q = self.rotate(self.q(y).view(n, t, 4, 8).transpose(1, 2))
        k = self.rotate(self.k(y).view(n, t, 2, 8).transpose(1, 2))
        v = self.v(y).view(n, t, 2, 8).transpose(1, 2)
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
        a = F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
        x = x + self.out(a.transpose(1, 2).reshape(n, t, 32))
        y = self.norms[1](x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return self.head(x), k, v


class Conformer(nn.Module):
    """A conformer block: two half feed-forward layers, attention and a gated convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in "abcde"])
        self.feed = nn.ModuleList(
            [nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32)) for _ in "ab"]
        )
        self.attention = Attention(32, 4)
        self.gated, self.back = nn.Conv1d(32, 64, 1), nn.Conv1d(32, 32, 1)
        self.depthwise, self.batch_norm = (
            nn.Conv1d(32, 32, 7, padding=3, groups=32),
            nn.BatchNorm1d(32),
        )
        self.head = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores per step for [N, 20, 32]."""
        x = x + 0.5 * self.feed[0](self.norms[0](x))
        x = x + self.attention(self.norms[1](x))
        y = F.glu(self.gated(self.norms[2](x).transpose(1, 2)), 1)
        x = x + self.back(F.silu(self.batch_norm(self.depthwise(y)))).transpose(1, 2)
        x = x + 0.5 * self.feed[1](self.norms[3](x))
        return self.head(self.norms[4](x))


_IMAGE = {"x": (3, 32, 32)}

#: Network -> its constructor, and the shape of each input without the batch.
NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], Mapping[str, tuple[int, ...]]]] = {
    "resnet": (ResNet, _IMAGE),
    "mobilenetv3": (lambda: MobileNet(nn.Hardswish, nn.Hardsigmoid()), _IMAGE),
    "efficientnet": (lambda: MobileNet(nn.SiLU, nn.Sigmoid()), _IMAGE),
    "convnext": (ConvNeXt, _IMAGE),
    "unet": (UNet, _IMAGE),
    "tcn": (TCN, {"x": (8, 40)}),
    "crnn": (CRNN, {"x": (1, 16, 40)}),
    "gru-lstm": (GRULSTM, {"x": (20, 12)}),
    "encoder": (Encoder, {"x": (16, 8)}),
    "decoder": (Decoder, {"x": (2, 32), "past_key": (2, 6, 8), "past_value": (2, 6, 8)}),
    "vit": (ViT, _IMAGE),
    "conformer": (Conformer, {"x": (20, 32)}),
}


def draw_samples(name: str, count: int, seed: int) -> dict[str, np.ndarray]:
    """Draw standard normal inputs of a network, [count, ...] float32."""
    rng = np.random.default_rng(seed)
    shapes = NETWORKS[name][1]
    return {
        key: rng.standard_normal((count, *shape)).astype(np.float32)
        for key, shape in shapes.items()
    }


def make_network(name: str) -> nn.Module:
    """Return a network with seeded weights and settled batch normalizations, for inference."""
    torch.manual_seed(0)
    network = NETWORKS[name][0]()
    with torch.no_grad():
        for key, value in network.named_parameters():
            if bool((value == value.reshape(-1)[0]).all()):
                noise = 0.2 * torch.randn_like(value)
                value.copy_(noise if key.endswith("bias") or not value.any() else 1 + noise)
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = None
        network.train()
        network(*map(torch.from_numpy, draw_samples(name, 16, 3).values()))
    return network.eval()


# ---- measurements --------------------------------------------------------------------------------


def write_export(name: str, exporter: str, opset: int, path: Path) -> None:
    """Write a network as ONNX, with a batch of one."""
    inputs = tuple(torch.from_numpy(array) for array in draw_samples(name, 1, 4).values())
    torch.onnx.export(
        make_network(name),
        inputs,
        str(path),
        input_names=list(NETWORKS[name][1]),
        opset_version=opset,
        dynamo=exporter == "dynamo",
        verbose=False,
    )


def measure(name: str, path: Path, platform: str) -> dict[str, Any]:
    """Quantize a file with defaults, and measure it on samples that calibration did not see."""
    import onnxruntime as ort

    import lingeronnx as lo

    start = time.process_time()
    result = lo.quantize(str(path), draw_samples(name, _CALIB, 1), platform=platform)
    seconds, report = time.process_time() - start, result.report
    target = path.with_name(f"{path.stem}-{platform}.onnx")
    result.write(str(target))
    reference, session = ort.InferenceSession(str(path)), lo.Session(str(target))
    names = [value.name for value in reference.get_outputs()]
    samples = draw_samples(name, _EVAL, 2)
    signal, noise = np.zeros(len(names)), np.zeros(len(names))
    for index in range(_EVAL):
        feed = {key: array[index : index + 1] for key, array in samples.items()}
        pairs = zip(reference.run(names, feed), session.run(names, feed), strict=True)
        for k, (expected, actual) in enumerate(pairs):
            signal[k] += (expected.astype(np.float64) ** 2).sum()
            noise[k] += ((expected.astype(np.float64) - actual) ** 2).sum()
    host = [node.op_type for node in (*report.float_nodes, *report.host_part)]
    return {
        "integer MACs": report.integer_macs,
        "chip-ready": report.chip_ready,
        "SQNR": float((10 * np.log10(signal / np.maximum(noise, 1e-30))).min()),
        "float": sorted(set(host)),
        "seconds": seconds,
    }


def describe_difference(first: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Describe by what an export differs from the first of its network; "" within the limits."""
    if "error" in row or "error" in first:
        return ""
    texts = []
    macs = row["integer MACs"] - first["integer MACs"]
    if abs(macs) > _MAX_MAC_DIFFERENCE:
        texts.append(f"{100 * macs:+.1f} points")
    sqnr = row["SQNR"] - first["SQNR"]
    if abs(sqnr) > _MAX_SQNR_DIFFERENCE:
        texts.append(f"{sqnr:+.1f} dB")
    return ", ".join(texts)


def format_table(rows: Mapping[str, Mapping[str, Any]], platforms: Sequence[str]) -> str:
    """Format all rows as Markdown."""
    lines = [
        (
            "| network | platform | exporter | opset | integer MACs | chip-ready | SQNR, dB | CPU s | in float "
            "| difference |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in NETWORKS:
        for platform in platforms:
            keys = [f"{name} {exporter} {opset} {platform}" for exporter, opset in EXPORTS]
            first = rows.get(keys[0], {"error": ""})
            for key in keys:
                if key in rows:
                    lines.append(_format_row(key, rows[key], describe_difference(first, rows[key])))
    return "\n".join(lines) + "\n"


def _format_row(key: str, row: Mapping[str, Any], difference: str) -> str:
    """Format one line of the table."""
    name, exporter, opset, platform = key.split()
    start = f"| {name} | {platform} | {exporter} | {opset} |"
    if "error" in row:
        return f"{start} - | - | - | - | {row['error']} | |"
    ready = "yes" if row["chip-ready"] else "no"
    return (
        f"{start} {100 * row['integer MACs']:.1f} % | {ready} | {row['SQNR']:.1f} | "
        f"{row['seconds']:.1f} | {', '.join(row['float'])} | {difference} |"
    )


def main() -> int:
    """Measure all rows that the folder does not contain yet, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    every = [f"{exporter}-{opset}" for exporter, opset in EXPORTS]
    parser.add_argument("--exports", nargs="+", choices=every, default=every)
    parser.add_argument("--platforms", nargs="+", default=["generic"])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    journal = arguments.folder / "results.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    rows: dict[str, Any] = dict(json.loads(line) for line in lines)
    for name in arguments.only:
        for exporter, opset in (each.split("-") for each in arguments.exports):
            path = arguments.folder / f"{name}-{exporter}-{opset}.onnx"
            for platform in arguments.platforms:
                key = f"{name} {exporter} {opset} {platform}"
                if key in rows:
                    continue
                try:
                    if not path.exists():
                        write_export(name, exporter, int(opset), path)
                    rows[key] = measure(name, path, platform)
                except Exception as error:  # a row of the table
                    text = " ".join(str(error).split())[:300]
                    rows[key] = {"error": f"{type(error).__name__}: {text}"}
                print(_format_row(key, rows[key], ""), flush=True)
                with journal.open("a") as file:
                    file.write(json.dumps([key, rows[key]]) + "\n")
    if arguments.output:
        arguments.output.write_text(format_table(rows, arguments.platforms))
    return int(any("error" in row for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
