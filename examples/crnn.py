# %% [markdown]
# # A reader of lines (CRNN), from a torch model to the C program
#
# A picture of a line, 16 x 96 grey pixels, becomes 48 columns; an LSTM runs over them in both
# directions and says for each which digit is there, or none (CTC). The lines are drawn by rules
# (`drawn.py`): put yours in their place.
#
#     pip install 'lingeronnx[torch,c]'

# %%
import os
from pathlib import Path

import numpy as np
import torch
from drawn import lines

import lingeronnx as lo

SHORT = "LINGERONNX_SHORT" in os.environ  # a few steps only: for tests
OUT = Path("build/examples")
OUT.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)

# %% [markdown]
# **Data.** Three to six digits in a line, each of a size, place and slant of its own.

# %%
train, texts = lines(64 if SHORT else 3000, seed=1)
test, test_texts = lines(64 if SHORT else 500, seed=2)
train, test = train - 0.5, test - 0.5  # what goes in is about 0 on the mean


def read(logits):
    """Return the text of each line.

    The best class of each column, repeats taken once, class 0 (none) left out.
    """
    best = logits.argmax(axis=2)
    changed = np.diff(best, axis=1, prepend=0) != 0
    return [
        "".join(str(c - 1) for c in row[new & (row > 0)])
        for row, new in zip(best, changed, strict=True)
    ]


def right(session):
    """Return how many lines of the test are read without a mistake, in percent."""
    return 100 * np.mean(
        [
            a == b
            for a, b in zip(read(session.run(None, {"line": test})[0]), test_texts, strict=True)
        ]
    )


# %% [markdown]
# **The model and its training.** The last convolution takes the height that is left, so that columns become steps.


# %%
def layer(inputs, outputs, size=3, stride=1, groups=1):
    """Return a convolution with batch normalization and Relu."""
    convolution = torch.nn.Conv2d(
        inputs, outputs, size, stride, size // 2, groups=groups, bias=False
    )
    return torch.nn.Sequential(convolution, torch.nn.BatchNorm2d(outputs), torch.nn.ReLU())


class Reader(torch.nn.Module):
    """Three convolutions, one over the whole height, an LSTM in both directions, a linear layer."""

    def __init__(self, width=32):
        super().__init__()
        height = torch.nn.Sequential(
            torch.nn.Conv2d(width, width, (4, 1), bias=False),
            torch.nn.BatchNorm2d(width),
            torch.nn.ReLU(),
        )
        self.columns = torch.nn.Sequential(
            layer(1, 16, stride=2), layer(16, 16), layer(16, width, stride=(2, 1)), height
        )
        self.lstm = torch.nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.classes = torch.nn.Linear(2 * width, 11)

    def forward(self, line):
        """Map [N, 1, 16, 96] to logits [N, 48, 11]."""
        steps = self.columns(line).squeeze(2).transpose(1, 2)
        return self.classes(self.lstm(steps)[0])


model = Reader()
x = torch.from_numpy(train)
digits = torch.tensor([[int(c) + 1 for c in text.ljust(6, "0")] for text in texts])
lengths = torch.tensor([len(text) for text in texts])
steps = 5 if SHORT else 600
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, steps)
ctc = torch.nn.CTCLoss(zero_infinity=True)
for _ in range(steps):
    batch = torch.randint(len(x), (32,))
    classes = model(x[batch]).log_softmax(2).transpose(0, 1)
    loss = ctc(classes, digits[batch], torch.full((32,), len(classes)), lengths[batch])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()

# %% [markdown]
# **Export and quantize.** 200 lines without texts are enough to find the scales.

# %%
path = OUT / "crnn.onnx"
lo.export(model.eval(), (x[:2],), path)
quantized = lo.quantize(path, {"line": train[:200]}, platform="venus")
quantized.write(OUT / "crnn_quant.onnx")
for name, session in (("float", lo.Session(path)), ("integer", quantized.session())):
    print(f"{name}: {right(session):.1f} % of the lines without a mistake")
print(f"chip-ready {quantized.report.chip_ready}")

# %% [markdown]
# **Deploy.** One folder with the chip's part, the packer's command, golden vectors and the C program. `attempt=True`
# (`--try` on the command line) compiles the program here, runs it and compares every integer.

# %%
board = lo.deploy(quantized, OUT / "crnn_board", {"line": test[:20]}, stem="crnn", attempt=True)
print(f"{board.folder}: {len(board.files)} files")
print("\n".join(board.proof.lines() if board.proof else board.notes))
print("pack it with", board.command)
