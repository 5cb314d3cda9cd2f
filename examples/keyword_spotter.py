# %% [markdown]
# # A keyword spotter, from a torch model to the C program
#
# A second of sound becomes 61 spectra, a small convolution net says which of eight words it was.
# The words are made by rules (`synthetic.py`): put your recordings in their place. About a minute
# of processor time.
#
#     pip install 'lingeronnx[torch,c]'

# %%
import os
from pathlib import Path

import numpy as np
import torch
from synthetic import RATE, WORDS, spectrum, words

import lingeronnx as lo

SHORT = "LINGERONNX_SHORT" in os.environ  # a few steps only: for tests
OUT = Path("build/examples")
OUT.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)

# %% [markdown]
# **Data.** What the net sees is computed on the host: the logarithm of 32 bands of each spectrum.

# %%
BANDS = np.maximum(0, 1 - np.abs(np.linspace(0, 31, 129) - np.arange(32)[:, None])).astype(
    np.float32
)


def features(sound):
    """Return float32 [N, 1, 61, 32], about -1 to 1."""
    power = np.abs(spectrum(sound)) ** 2 @ BANDS.T
    return (np.log10(power + 1e-3)[:, None] / 3).astype(np.float32)


assert features(np.zeros((1, RATE), np.float32)).shape == (1, 1, 61, 32)
sounds, labels = words(64 if SHORT else 1500, seed=1)
test_sounds, test_labels = words(64 if SHORT else 500, seed=2)
train, test = features(sounds), features(test_sounds)


# %% [markdown]
# **The model and its training**, in plain PyTorch: nothing in it knows of quantization.


# %%
def layer(inputs, outputs, size, stride=1, groups=1):
    """Return a convolution with batch normalization and Relu."""
    convolution = torch.nn.Conv2d(
        inputs, outputs, size, stride, size // 2, groups=groups, bias=False
    )
    return torch.nn.Sequential(convolution, torch.nn.BatchNorm2d(outputs), torch.nn.ReLU())


class Spotter(torch.nn.Module):
    """A convolution, three depthwise separable ones, the mean, and a linear layer."""

    def __init__(self, width=24):
        super().__init__()
        blocks = [layer(1, width, 5, stride=2)]
        for stride in (2, 1, 2):
            blocks += [layer(width, width, 3, stride, groups=width), layer(width, width, 1)]
        self.blocks = torch.nn.Sequential(*blocks)
        self.words = torch.nn.Linear(width, len(WORDS))

    def forward(self, features):
        """Map [N, 1, 61, 32] to logits [N, 8]."""
        return self.words(self.blocks(features).mean((2, 3)))


model = Spotter()
x, y = torch.from_numpy(train), torch.from_numpy(labels)
steps = 5 if SHORT else 400
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, steps)
for _ in range(steps):
    batch = torch.randint(len(x), (48,))
    loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

# %% [markdown]
# **Export and quantize.** 200 samples without labels are enough to find the scales. The accuracy is measured on the
# simulator, which computes the chip's integers.

# %%
path = OUT / "spotter.onnx"
lo.export(model.eval(), (x[:2],), path)
calibration, held_out = {"features": train[:200]}, [({"features": test}, test_labels)]
quantized = lo.quantize(path, calibration, platform="venus", progress=lo.ProgressBar())
accuracy = lo.evaluate(quantized.session(), held_out, metric="top1", baseline=path)
print(
    f"float {accuracy.baseline:.1f} %, integer {accuracy.value:.1f} %, chip-ready "
    f"{quantized.report.chip_ready}"
)

# %% [markdown]
# **Fine-tune.** Training goes on through the integer arithmetic; the float net is the teacher. The best epoch is kept,
# and where none is better than the start, the start.

# %%
tuned = lo.finetune(
    path, {"features": train[: 64 if SHORT else 500]}, platform="venus", epochs=1 if SHORT else 3
)
tuned.write(OUT / "spotter_quant.onnx")
for name, each in (("quantized", quantized), ("fine-tuned", tuned)):
    right = lo.evaluate(each.session(), held_out, metric="top1").value
    near = lo.evaluate(each.session(), held_out[0][0], metric="sqnr", baseline=path).value
    print(f"{name}: {right:.1f} %, logits {near:.1f} dB from the float model")

# %% [markdown]
# **Deploy.** One folder with the chip's part, the packer's command, golden vectors and the C program. `attempt=True`
# (`--try` on the command line) compiles the program here, runs it and compares every integer.

# %%
board = lo.deploy(
    tuned, OUT / "spotter_board", {"features": test[:20]}, stem="spotter", attempt=True
)
print(f"{board.folder}: {len(board.files)} files")
print("\n".join(board.proof.lines() if board.proof else board.notes))
print("pack it with", board.command)
