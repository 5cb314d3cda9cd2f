"""A training script in the vendor's calls on the repository's digits: trained, exported, and the
same in integers.
"""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import lingeronnx as lo

MODELS = Path(__file__).parents[3] / "models"


def net_and_checkpoint():
    """Return the class that the digits model was trained as, and the initializers of its file."""
    spec = importlib.util.spec_from_file_location("train_digits", MODELS / "train_digits.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    held = onnx.load(MODELS / "digits_cnn.onnx").graph.initializer
    checkpoint = {t.name: torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for t in held}
    return module.DigitsCNN(), checkpoint


@pytest.mark.slow
def test_script(tmp_path):
    """Every call in its place: half of the calibration pictures to train on, all 500 test pictures
    alike.
    """
    pytest.importorskip("sklearn")  # which models/train_digits.py reads its pictures from
    data = np.load(MODELS / "digits_calib.npz")
    x, labels = torch.from_numpy(data["input"]), torch.from_numpy(data["labels"])
    net, checkpoint = net_and_checkpoint()

    lo.torch.trace_layers(net, net, x[:8])
    lo.torch.disable_normalize(net.classifier)
    lo.torch.normalize_module(net.stem.conv, normalize_weight_value=4)
    lo.torch.normalize_layers(net)
    lo.torch.disable_quant(net.classifier)
    lo.torch.init(net, mode=lo.torch.QuantMode.QValue, out_bits=8)
    found = net.load_state_dict(checkpoint, strict=False)
    assert not found.unexpected_keys
    assert all("num_batches_tracked" in name for name in found.missing_keys)
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    net.train()
    for rows in torch.arange(50).split(25):
        loss = nn.functional.cross_entropy(net(x[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    result = lo.torch.export(
        net, x[:1], tmp_path / "digits.onnx", input_names=["input"], output_names=["logits"]
    )
    assert result.report.chip_ready

    test = np.load(MODELS / "digits_test.npz")
    with torch.no_grad():
        module = net(torch.from_numpy(test["input"])).argmax(1).numpy()
    integer = lo.Session(tmp_path / "digits.onnx").run(None, {"input": test["input"]})[0].argmax(1)
    np.testing.assert_array_equal(integer, module)
    assert np.mean(integer == test["labels"]) > 0.98
