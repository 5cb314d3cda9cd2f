"""Graphs as PyTorch's two exporters write them; `export_torch.py` made the files (torch 2.13.0,
random weights).
"""

from pathlib import Path

import pytest

import lingeronnx as lo
from lingeronnx.targets import PLATFORMS
from tests.artefacts import quantized
from tests.onnx_files.helpers import close, images, rand

FOLDER = Path(__file__).parent / "torch"
SHAPES = {"small": (3, 17, 17), "mobile": (3, 12, 12), "residual": (3, 8, 8)}
FILES = sorted(path for path in FOLDER.glob("*.onnx") if path.name.partition("_")[0] in SHAPES)


def test_the_files_are_there():
    """Three models, both exporters."""
    assert {path.name.partition("_")[0] for path in FILES} == set(SHAPES)
    assert sum("dynamo" in path.name for path in FILES) == 9
    assert sum("script" in path.name for path in FILES) == 7


@pytest.mark.sweep
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_exported(path):
    """All of it in integers, whatever the exporter made of it; batches of 4 take any number of
    samples.
    """
    data = images(*SHAPES[path.name.partition("_")[0]], count=6)
    found = quantized(path, "generic", data, effort="fast")
    assert found.report.integer_macs == 1
    assert not found.report.float_nodes
    assert not found.report.host_part
    assert close(found)
    assert found.session()(data[:3]).shape == (3, 4 if path.name.startswith("small") else 3)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "target", [target for target in PLATFORMS if target.has_packer], ids=lambda target: target.name
)
def test_a_recurrent_layer_with_the_batch_first(target):
    """The newer exporter reckons the sizes behind it from a tensor whose batch is on axis 1."""
    data = rand(16, 7, 6, seed=3)
    found = lo.quantize(
        FOLDER / "recurrent_dynamo_dynamic.onnx", data, platform=target.name, effort="fast"
    )
    assert found.report.chip_ready, found.report.findings
    assert not found.report.float_nodes
    assert close(found)


@pytest.mark.parametrize("name", SHAPES)
def test_every_exporter_gives_the_same_layers(name):
    """The operators left do not depend on who wrote the file, but for the spelling of a Reshape."""
    layers = set()
    for path in FILES:
        if path.name.startswith(name):
            found = quantized(path, "generic", images(*SHAPES[name], count=6), effort="fast")
            counts = dict(found.report.layers)
            counts["Reshape"] = counts.get("Reshape", 0) + counts.pop("Flatten", 0)
            layers.add(tuple(sorted(counts.items())))
    assert len(layers) == 1, layers
