"""Write torch/*.onnx, the exported graphs that test_torch.py reads: run by hand, needs torch and
onnxscript.

    python tests/onnx_files/export_torch.py

Written with torch 2.13.0 (both exporters, seed 0, random weights); every file is one model as one
exporter writes it.
"""

from pathlib import Path

import onnx
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

FOLDER = Path(__file__).parent / "torch"


class Small(nn.Module):
    """F.pad, unfused batch normalisation, functional relu6, adaptive pool, view with x.size(0)."""

    shape = (3, 17, 17)

    def __init__(self):
        super().__init__()
        self.c1, self.bn = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6)
        self.c2, self.fc = nn.Conv2d(6, 6, 3, padding=1), nn.Linear(24, 4)

    def forward(self, x):
        x = F.relu(
            self.bn(self.c1(F.pad(x, (0, 0, 0, 0)) if x.shape[-1] > 99 else F.pad(x, (0, 1, 0, 1))))
        )
        x = F.adaptive_avg_pool2d(F.relu6(self.c2(x)), 2)
        return self.fc(x.view(x.size(0), -1))


class Mobile(nn.Module):
    """Inverted residual, hardtanh, mean over space."""

    shape = (3, 12, 12)

    def __init__(self):
        super().__init__()

        def block(i, o, k=3, s=1, g=1):
            return nn.Sequential(
                nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(o), nn.ReLU6()
            )

        self.stem, self.expand, self.depth = block(3, 4, s=2), block(4, 8, 1), block(8, 8, g=8)
        self.project, self.fc = (
            nn.Sequential(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4)),
            nn.Linear(4, 3),
        )

    def forward(self, x):
        x = self.stem(x)
        y = F.hardtanh(self.project(self.depth(self.expand(x))) + x, 0.0, 4.0)
        return self.fc(y.mean([2, 3]))


class Residual(nn.Module):
    """A residual block, chunk, split, cat, max pool, flatten."""

    shape = (3, 8, 8)

    def __init__(self):
        super().__init__()
        self.c, self.a, self.b = (nn.Conv2d(i, 4, 3, padding=1) for i in (3, 4, 4))
        self.bn, self.fc = nn.BatchNorm2d(4), nn.Linear(8, 3)

    def forward(self, x):
        x = F.relu(self.c(x))
        x = F.relu(x + self.b(F.relu(self.bn(self.a(x)))))
        u, v = torch.chunk(x, 2, 1)
        w, z = torch.split(x, [1, 3], dim=1)
        x = F.max_pool2d(torch.cat([u, z, v, w], 1), 3, 2, 1)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Recurrent(nn.Module):
    """A two-way GRU over [N, T, C], its last step."""

    shape = (7, 6)

    def __init__(self):
        super().__init__()
        self.gru, self.fc = nn.GRU(6, 5, batch_first=True, bidirectional=True), nn.Linear(10, 3)

    def forward(self, x):
        return self.fc(self.gru(x)[0][:, -1])


def export(model, name, batch, **settings):
    """Write one file, weights inside."""
    path = FOLDER / f"{name}.onnx"
    torch.onnx.export(model, (torch.randn(batch, *model.shape),), path, verbose=False, **settings)
    whole = onnx.load(path)
    for node in whole.graph.node:
        node.ClearField("metadata_props")  # stack traces of the exporting machine
        node.ClearField("doc_string")
    for value in (*whole.graph.value_info, *whole.graph.input, *whole.graph.output):
        value.ClearField("metadata_props")
    whole.graph.ClearField("metadata_props")
    whole.ClearField("metadata_props")
    onnx.save(whole, path)
    Path(f"{path}.data").unlink(missing_ok=True)


def main():
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    torch.manual_seed(0)
    dynamic = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    for kind in (Small, Mobile, Residual):
        model, name = kind().eval(), kind.__name__.lower()
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_()
                part.running_var.uniform_(0.5, 2)
        export(model, f"{name}_script9_batch4", 4, dynamo=False, opset_version=9)
        raw = {"do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE}
        if kind is not Small:  # its adaptive pool needs a size that this exporter loses
            export(model, f"{name}_script13_unfused", 1, dynamo=False, opset_version=13, **raw)
            axes = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
            export(model, f"{name}_script13_dynamic", 1, dynamo=False, opset_version=13, **axes)
        export(model, f"{name}_dynamo", 1, dynamo=True)
        export(model, f"{name}_dynamo_raw_batch4", 4, dynamo=True, optimize=False)
        export(model, f"{name}_dynamo_dynamic", 2, dynamo=True, **dynamic)
    export(Recurrent().eval(), "recurrent_dynamo_dynamic", 2, dynamo=True, **dynamic)


if __name__ == "__main__":
    main()
