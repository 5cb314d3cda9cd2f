# %% [markdown]
# # A face detector, from a torch model to the C program
#
# A picture of 64 x 64 grey pixels becomes 8 x 8 cells; each says whether the middle of a face is
# near, and where its four sides are. The faces are drawn by rules (`drawn.py`): put your pictures
# in their place.
#
#     pip install 'lingeronnx[torch,c]'

# %%
import os
from pathlib import Path

import numpy as np
import torch
from drawn import faces

import lingeronnx as lo

SHORT = "LINGERONNX_SHORT" in os.environ  # a few steps only: for tests
OUT = Path("build/examples")
OUT.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)

# %% [markdown]
# **Data.** A cell of 8 x 8 pixels looks for a face where its middle lies in the inner half of one, or holds its centre.
# The four distances from there to the sides are told in units of 16 pixels.

# %%
CELLS, PIXELS, UNIT = 8, 8, 16
MIDDLES = (np.arange(CELLS) + 0.5) * PIXELS


def wanted(boxes):
    """Return of one picture what the net should say.

    [5, 8, 8], face or none, then four distances.
    """
    target = np.zeros((5, CELLS, CELLS), np.float32)
    for left, top, right, bottom in boxes:
        x, y, width, height = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
        near_x = np.abs(MIDDLES - x) <= np.maximum(width / 4, PIXELS / 2)
        near_y = np.abs(MIDDLES - y) <= np.maximum(height / 4, PIXELS / 2)
        row, column = np.nonzero(near_y[:, None] & near_x)
        target[0, row, column] = 1
        sides = (
            MIDDLES[column] - left,
            MIDDLES[row] - top,
            right - MIDDLES[column],
            bottom - MIDDLES[row],
        )
        target[1:, row, column] = np.stack(sides) / UNIT
    return target


train, boxes = faces(64 if SHORT else 3000, seed=1)
test, test_boxes = faces(64 if SHORT else 500, seed=2)
train, test = train - 0.5, test - 0.5  # what goes in is about 0 on the mean

# %% [markdown]
# **What it is measured by**, in NumPy: each cell above a half is a box, of boxes that overlap the surest stays; the
# average precision counts a box as right where it shares half of the area with a face that no surer
# box has found.


# %%
def overlap(box, others):
    """Return the shared area over the area of both, of a box with each of [M, 4]."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(sides.clip(0), axis=1)
    area, areas = np.prod(box[2:] - box[:2]), np.prod(others[:, 2:] - others[:, :2], axis=1)
    return shared / (area + areas - shared)


def found(scores, sides):
    """Return the boxes of one picture [M, 4] with their scores, the surest first.

    Both as the net gives them.
    """
    row, column = np.nonzero(
        scores[0] > -2
    )  # a logit: even what is not likely counts for the average precision
    distance = sides[:, row, column] * UNIT
    x, y, sure = MIDDLES[column], MIDDLES[row], scores[0, row, column]
    all_boxes = np.stack(
        [x - distance[0], y - distance[1], x + distance[2], y + distance[3]], axis=1
    )
    kept = []
    for which in np.argsort(-sure, kind="stable"):
        if not kept or overlap(all_boxes[which], all_boxes[kept]).max() < 0.4:
            kept.append(which)
    return all_boxes[kept], sure[kept]


def average_precision(session):
    """Return the area under precision over recall, in percent, on the pictures of the test."""
    scores, sides = session.run(["scores", "sides"], {"picture": test})
    rows = []
    for picture, truth in enumerate(test_boxes):
        left = np.ones(len(truth), bool)
        for box, sure in zip(*found(scores[picture], sides[picture]), strict=True):
            shares = overlap(box, truth) * left if len(truth) else np.zeros(1)
            right = shares.max() >= 0.5
            if right:
                left[shares.argmax()] = False
            rows.append((sure, right))
    right = np.array([hit for _, hit in sorted(rows, key=lambda row: -row[0])], float)
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    best_behind = np.maximum.accumulate(precision[::-1])[::-1]
    return 100 * (best_behind * right).sum() / sum(map(len, test_boxes))


# %% [markdown]
# **The model and its training.** Scores and sides have a head each: a chip has one scale for a tensor, and logits and
# distances need different ones.


# %%
def layer(inputs, outputs, size=3, stride=1, groups=1):
    """Return a convolution with batch normalization and Relu."""
    convolution = torch.nn.Conv2d(
        inputs, outputs, size, stride, size // 2, groups=groups, bias=False
    )
    return torch.nn.Sequential(convolution, torch.nn.BatchNorm2d(outputs), torch.nn.ReLU())


class Detector(torch.nn.Module):
    """A convolution, six depthwise separable ones, two heads."""

    def __init__(self):
        super().__init__()
        blocks, width = [layer(1, 16, stride=2)], 16
        for wider, stride in ((32, 2), (32, 1), (48, 2), (48, 1), (48, 1), (48, 1)):
            blocks += [layer(width, width, stride=stride, groups=width), layer(width, wider, 1)]
            width = wider
        self.blocks = torch.nn.Sequential(*blocks)
        self.scores, self.sides = torch.nn.Conv2d(width, 1, 1), torch.nn.Conv2d(width, 4, 1)

    def forward(self, picture):
        """Map [N, 1, 64, 64] to logits [N, 1, 8, 8] and distances [N, 4, 8, 8]."""
        seen = self.blocks(picture)
        return self.scores(seen), self.sides(seen)


model = Detector()
x, y = torch.from_numpy(train), torch.from_numpy(np.stack([wanted(each) for each in boxes]))
steps = 5 if SHORT else 600
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, steps)
for _ in range(steps):
    batch = torch.randint(len(x), (32,))
    scores, sides = model(x[batch])
    face, distances = y[batch, :1], y[batch, 1:]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, face)
    loss = loss + ((sides - distances).abs() * face).sum() / (4 * face.sum() + 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

# %% [markdown]
# **Export and quantize.** 200 pictures without boxes are enough to find the scales.

# %%
path = OUT / "detector.onnx"
lo.export(model.eval(), (x[:2],), path, output_names=["scores", "sides"])
quantized = lo.quantize(path, {"picture": train[:200]}, platform="arcs")
quantized.write(OUT / "detector_quant.onnx")
for name, session in (("float", lo.Session(path)), ("integer", quantized.session())):
    print(f"{name}: average precision {average_precision(session):.1f} %")
print(f"chip-ready {quantized.report.chip_ready}")

# %% [markdown]
# **Deploy.** One folder with the chip's part, the packer's command, golden vectors and the C program. `attempt=True`
# (`--try` on the command line) compiles the program here, runs it and compares every integer.

# %%
board = lo.deploy(
    quantized, OUT / "detector_board", {"picture": test[:20]}, stem="detector", attempt=True
)
print(f"{board.folder}: {len(board.files)} files")
print("\n".join(board.proof.lines() if board.proof else board.notes))
print("pack it with", board.command)
