"""Pictures of drawn squares, discs and crosses with their boxes, and what a detector finds in them; numpy alone.

lingeronnx quantize models/shapes_detector.onnx --calib models/drawn_shapes.py:calib
"""

from __future__ import annotations

import numpy as np

SIZE, KINDS = 96, 3  # pixels of a side; square, disc, cross
_SCORE, _SUPPRESS = (
    0.4,
    0.5,
)  # a detection scores that at least; of two that overlap so much the better one stays


def draw(count: int, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return pictures float32 [count, 3, SIZE, SIZE] in [0, 1], and of each its rows of x0, y0, x1, y1, kind."""
    rng = np.random.default_rng(seed)
    pictures = rng.uniform(0, 0.6, (count, 3, 1, 1)) + rng.normal(0, 0.05, (count, 3, SIZE, SIZE))
    at = np.arange(SIZE) + 0.5
    truth = []
    for picture in pictures:
        rows: list[tuple[float, ...]] = []
        for _ in range(rng.integers(1, 5)):
            side = 10 * 7 ** rng.uniform()
            x, y = rng.uniform(side / 2, SIZE - side / 2, 2)
            if any(
                max(abs(x - (r[0] + r[2]) / 2), abs(y - (r[1] + r[3]) / 2))
                < (side + r[2] - r[0]) / 2
                for r in rows
            ):
                continue
            kind = int(rng.integers(KINDS))
            dx, dy = np.abs(at - x)[None], np.abs(at - y)[:, None]
            inside = (
                np.maximum(dx, dy),
                np.hypot(dx, dy),
                np.maximum(dx, dy) + 3 * np.minimum(dx, dy),
            )[kind]
            reach = side / 2 if kind < 2 else side / 2 * 1.5
            mask = (inside < reach) & (np.maximum(dx, dy) < side / 2)
            picture[:, mask] = (rng.uniform(0.4, 1, 3))[:, None]
            rows.append((x - side / 2, y - side / 2, x + side / 2, y + side / 2, kind))
        truth.append(np.array(rows))
    return np.clip(pictures, 0, 1).astype(np.float32), truth


def calib() -> list[dict[str, np.ndarray]]:
    """Return what the detector is calibrated with."""
    return [{"pictures": draw(64, 1)[0]}]


def test() -> list[dict[str, np.ndarray]]:
    """Return what the detector is measured on."""
    return [{"pictures": draw(200, 2)[0]}]


def overlap(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the intersection over union of boxes [N, 4] and [M, 4], [N, M]."""
    low, high = (
        np.maximum(one[:, None, :2], other[None, :, :2]),
        np.minimum(one[:, None, 2:4], other[None, :, 2:4]),
    )
    both = np.prod(np.maximum(high - low, 0), axis=2)
    area, size = (np.prod(boxes[:, 2:4] - boxes[:, :2], axis=1) for boxes in (one, other))
    return both / np.maximum(area[:, None] + size[None] - both, 1e-9)


def detections(output: np.ndarray) -> list[np.ndarray]:
    """Return of each picture the rows of x0, y0, x1, y1, kind, score that a detector's output [N, 4 + KINDS, M] tells.

    output : centres and sizes in pixels, then scores. A detection beside a better one of its kind
    is left out.
    """
    found = []
    for boxes, scores in zip(
        output[:, :4].transpose(0, 2, 1), output[:, 4:].transpose(0, 2, 1), strict=True
    ):
        corners = np.concatenate(
            [boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], axis=1
        )
        kind, best = scores.argmax(axis=1), scores.max(axis=1)
        rows = np.column_stack([corners, kind, best])[best >= _SCORE]
        rows = rows[np.argsort(-rows[:, 5], kind="stable")]
        kept: list[int] = []
        near = overlap(rows, rows)
        for i in range(len(rows)):
            if not any(near[i, j] > _SUPPRESS and rows[i, 4] == rows[j, 4] for j in kept):
                kept.append(i)
        found.append(rows[kept])
    return found


def found_again(
    want: list[np.ndarray], have: list[np.ndarray], least: float = 0.5
) -> tuple[int, int]:
    """Return how many of the boxes `want` are among `have` (same kind, overlap of `least`), and how many there are."""
    hits = 0
    for one, other in zip(want, have, strict=True):
        if len(one) and len(other):
            near = overlap(one, other) * (one[:, None, 4] == other[None, :, 4])
            hits += int((near.max(axis=1) > least).sum())
    return hits, sum(map(len, want))
