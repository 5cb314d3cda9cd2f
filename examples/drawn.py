"""What stands in for your pictures in an example.

Faces and lines of digits, drawn by rules from a seed.
Figures on such pictures say what quantizing costs; they say nothing of how good a model would be on
real ones.
"""

import numpy as np

#: Digits of 5 x 7 points, a row of five points in each number.
DIGITS = np.array(
    [
        [14, 17, 19, 21, 25, 17, 14],
        [4, 12, 4, 4, 4, 4, 14],
        [14, 17, 1, 2, 4, 8, 31],
        [31, 2, 4, 2, 1, 17, 14],
        [2, 6, 10, 18, 31, 2, 2],
        [31, 16, 30, 1, 1, 17, 14],
        [6, 8, 16, 30, 17, 17, 14],
        [31, 1, 2, 4, 8, 8, 8],
        [14, 17, 17, 14, 17, 17, 14],
        [14, 17, 17, 15, 1, 2, 12],
    ]
)


def shade(rng: np.random.Generator, height: int, width: int, cells: int = 4) -> np.ndarray:
    """Return float [height, width] of slow random light and dark, about -1 to 1."""
    knots = rng.uniform(-1, 1, (cells, cells))
    rows, columns = (np.linspace(0, cells - 1, size) for size in (height, width))
    wide = np.stack([np.interp(columns, np.arange(cells), row) for row in knots])
    return np.stack([np.interp(rows, np.arange(cells), column) for column in wide.T], axis=1)


def faces(count: int, seed: int, size: int = 64) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return pictures, float32 [count, 1, size, size], 0 to 1, and of each its faces [M, 4].

    Left, top, right, bottom.
    A picture has up to three ovals; some are faces, others lack the eyes or stand on their heads.
    """
    rng = np.random.default_rng(seed)
    pictures, boxes = np.empty((count, 1, size, size), np.float32), []
    for picture in pictures[:, 0]:
        picture[:] = 0.45 + 0.3 * shade(rng, size, size, 6)
        found: list[tuple[float, ...]] = []
        taken: list[tuple[float, ...]] = []
        for _ in range(rng.integers(1, 4)):
            height = rng.uniform(16, 40)
            width = height * rng.uniform(0.7, 0.85)
            x, y = (
                rng.uniform(width / 2, size - width / 2),
                rng.uniform(height / 2, size - height / 2),
            )
            if any(
                abs(x - a) < (width + w) / 2 and abs(y - b) < (height + h) / 2
                for a, b, w, h in taken
            ):
                continue
            taken.append((x, y, width, height))
            kind = rng.choice(("face", "face", "bare", "turned"))
            _oval(picture, rng, (x, y, width, height), kind)
            if kind == "face":
                found.append((x - width / 2, y - height / 2, x + width / 2, y + height / 2))
        picture += rng.normal(0, 0.04, picture.shape)
        boxes.append(np.array(found, np.float32).reshape(-1, 4))
    return pictures.clip(0, 1), boxes


def _oval(
    picture: np.ndarray, rng: np.random.Generator, place: tuple[float, ...], kind: str
) -> None:
    """Draw an oval into a picture.

    A face, one without eyes ("bare"), or one upside down ("turned").
    """
    x, y, width, height = place
    tilt = rng.uniform(-0.25, 0.25) + (np.pi if kind == "turned" else 0)
    down, right = np.mgrid[: len(picture), : len(picture)] + 0.5
    u = (
        (right - x) * np.cos(tilt) + (down - y) * np.sin(tilt)
    ) / width  # -0.5 to 0.5 across the oval
    v = ((down - y) * np.cos(tilt) - (right - x) * np.sin(tilt)) / height

    def paint(middle: tuple[float, float], radius: tuple[float, float], light: float) -> None:
        far = np.hypot((u - middle[0]) / radius[0], (v - middle[1]) / radius[1])
        cover = np.clip((1 - far) * height * radius[1] + 0.5, 0, 1)  # the edge is a pixel wide
        picture[:] += (cover * (light - picture)).astype(picture.dtype)

    skin = rng.uniform(0.45, 0.95)
    paint((0, 0), (0.5, 0.5), skin)
    if kind != "bare":
        for side in (-1, 1):
            paint((0.2 * side, -0.1), (0.1, 0.07), skin - rng.uniform(0.3, 0.45))
    paint((0, 0.05), (0.05, 0.09), skin - 0.1)
    paint(
        (0, 0.27), (rng.uniform(0.15, 0.22), rng.uniform(0.04, 0.08)), skin - rng.uniform(0.2, 0.35)
    )


def lines(
    count: int, seed: int, digits: int = 6, height: int = 16, width: int = 96
) -> tuple[np.ndarray, list[str]]:
    """Return pictures of lines, float32 [count, 1, height, width], 0 to 1, and the digits of each, 3 to `digits`.

    Each digit has a size, a place and a slant of its own, each line its paper, its ink and its
    blur.
    """
    rng = np.random.default_rng(seed)
    glyphs = (DIGITS[:, :, None] >> np.arange(4, -1, -1)) & 1
    pictures, texts = np.empty((count, 1, height, width), np.float32), []
    for picture in pictures[:, 0]:
        text = rng.integers(10, size=rng.integers(3, digits + 1))
        ink, x = np.zeros((height, width)), rng.uniform(1, 8)
        for digit in text:
            tall, broad = rng.uniform(10, 14), rng.uniform(7, 10)
            top, slant = rng.uniform(0.5, height - tall - 0.5), rng.uniform(-0.2, 0.2)
            down, right = np.mgrid[:height, :width]
            row = (down - top) / tall * 7
            column = (right - x + slant * (down - height / 2)) / broad * 5
            inside = (row >= 0) & (row < 7) & (column >= 0) & (column < 5)
            ink[inside] = glyphs[digit][row[inside].astype(int), column[inside].astype(int)]
            x += broad + rng.uniform(1.5, 5)
        soft = rng.uniform(0, 0.3)
        for axis in (0, 1):
            ink = (1 - soft) * ink + soft / 2 * (np.roll(ink, 1, axis) + np.roll(ink, -1, axis))
        paper = rng.uniform(0.5, 0.9) + 0.15 * shade(rng, height, width)
        picture[:] = paper - ink * rng.uniform(0.25, 0.5) + rng.normal(0, 0.05, ink.shape)
        texts.append("".join(map(str, text)))
    return pictures.clip(0, 1), texts
