"""A folder of pictures as data: read, resized, scaled and laid out as a network wants them.

    value = (pixel - mean) / std          pixel 0 to 255; mean and std one number, or one per colour

Needs Pillow, which the core does not install. Knows nothing of models.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...errors import ConfigError, DataError
from ...files import describe_irregular_file

if TYPE_CHECKING:
    from types import ModuleType

    from PIL.Image import Image

__all__ = ["Pictures", "is_picture"]

_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
_CHUNK_VALUES = 1 << 22  # elements of one item
_MAX_SIDE = 1 << 14  # of a picture for a model
_MAX_PIXELS = 1 << 24  # of one for a model
_MAX_FILE_PIXELS = 1 << 26  # of one in a file: a few hundred MB

Color = Literal["rgb", "bgr", "gray"]
Layout = Literal["nchw", "nhwc"]
Resize = Literal["fit", "crop", "pad"]


def is_picture(path: Path) -> bool:
    """Whether the name of the file says that it is a picture."""
    return path.suffix.lower() in _SUFFIXES


class Pictures:
    """The pictures of a folder, in the order of their names.

    Sub-folders are classes, numbered in that order.

    Parameters
    ----------
    folder
        Holds pictures, or sub-folders that do.
    size
        Width and height in pixels.
    mean, std
        Of each colour in the order of `color`, or one number for all; in pixel values of 0 to 255.
    layout
        "nchw": float32 [N, C, H, W]; "nhwc": float32 [N, H, W, C].
    color
        Order of the colours; "gray" has one channel.
    resize
        "fit": both sides are scaled to `size`, whatever that does to the proportions. "crop":
        scaled until it covers `size`, the middle is kept. "pad": scaled until it lies within
        `size`, black around it.

    Raises
    ------
    ConfigError
        For a size, mean or std that cannot be, and where Pillow is not installed.
    DataError
        Where the folder holds no picture, or one that cannot be read.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        size: tuple[int, int],
        *,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        layout: Layout = "nchw",
        color: Color = "rgb",
        resize: Resize = "fit",
    ) -> None:
        for value, known, what in (
            (layout, ("nchw", "nhwc"), "layout"),
            (color, ("rgb", "bgr", "gray"), "color"),
            (resize, ("fit", "crop", "pad"), "resize"),
        ):
            if value not in known:
                raise ConfigError(f"pictures: {what} '{value}'; it is one of {', '.join(known)}")
        if not all(0 < side <= _MAX_SIDE for side in size) or size[0] * size[1] > _MAX_PIXELS:
            raise ConfigError(
                f"pictures: size {size}; it is width and height, 1 to {_MAX_SIDE} each, "
                f"{_MAX_PIXELS} pixels together "
                "at most"
            )
        self.size, self.layout, self.color, self.resize = (
            (int(size[0]), int(size[1])),
            layout,
            color,
            resize,
        )
        channels = 1 if color == "gray" else 3
        self._mean, self._std = (
            _per_channel(v, channels, n) for v, n in ((mean, "mean"), (std, "std"))
        )
        if not (self._std > 0).all():
            raise ConfigError(f"pictures: std {std}; it must be positive")
        self.folder = Path(folder)
        self._files = self._list_files()
        _import_pillow()

    def __getstate__(self) -> dict[str, object]:
        """Another process may work in another folder."""
        files = [(path.absolute(), label) for path, label in self._files]
        return {**self.__dict__, "folder": self.folder.absolute(), "_files": files}

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield (float32 array of some pictures, int64 class of each or None)."""
        width, height = self.size
        count = max(_CHUNK_VALUES // (width * height * len(self._mean)), 1)
        for start in range(0, len(self._files), count):
            part = self._files[start : start + count]
            labels = [label for _, label in part]
            pixels = np.stack([self._read_pixels(path) for path, _ in part])
            values = (pixels - self._mean) / self._std
            array = values if self.layout == "nhwc" else np.moveaxis(values, 3, 1)
            yield (
                np.ascontiguousarray(array, np.float32),
                None if None in labels else np.array(labels, np.int64),
            )

    def _list_files(self) -> list[tuple[Path, int | None]]:
        """Return (file, class or None) of every picture."""
        try:
            entries = sorted(self.folder.iterdir())
        except OSError as error:
            raise DataError(
                f"pictures: cannot read the folder {self.folder}: {error.strerror}; give a folder "
                "of pictures"
            ) from error
        found: list[tuple[Path, int | None]] = [
            (path, None) for path in entries if is_picture(path)
        ]
        if not found:
            folders = [path for path in entries if path.is_dir()]
            found = [
                (path, number)
                for number, folder in enumerate(folders)
                for path in sorted(folder.iterdir())
                if is_picture(path)
            ]
        if not found:
            raise DataError(
                f"pictures: the folder {self.folder} holds no picture "
                f"({', '.join(sorted(_SUFFIXES))}); put some there"
            )
        return found

    def _read_pixels(self, path: Path) -> np.ndarray:
        """Return uint8 pixels [H, W, C]."""
        image = _import_pillow()
        if (odd := describe_irregular_file(path)) is not None:
            raise DataError(
                f"pictures: {path} is {odd}, no regular file; remove it from the folder"
            )
        try:
            with (
                warnings.catch_warnings(action="ignore"),
                image.open(path) as opened,
            ):  # large ones have a limit here
                if opened.width * opened.height > _MAX_FILE_PIXELS:
                    raise DataError(
                        f"pictures: {path} has {opened.width} x {opened.height} pixels; "
                        f"{_MAX_FILE_PIXELS} are the "
                        "limit, "
                        "make it smaller first"
                    )
                picture = opened.convert("L" if self.color == "gray" else "RGB")
        except DataError:
            raise
        except image.DecompressionBombError as error:
            raise DataError(
                f"pictures: {path} has far more than {_MAX_FILE_PIXELS} pixels, which are the "
                "limit; make it smaller "
                "first"
            ) from error
        except Exception as error:  # Pillow raises OSError, SyntaxError, ... for damaged files
            raise DataError(
                f"pictures: {path} is not a readable picture; take it out, or save it again"
            ) from error
        pixels = np.asarray(self._resize(picture)).reshape(self.size[1], self.size[0], -1)
        return pixels[:, :, ::-1] if self.color == "bgr" else pixels

    def _resize(self, picture: Image) -> Image:
        """Return the picture at `size`, bilinear."""
        image = _import_pillow()
        (width, height), filtered = self.size, image.Resampling.BILINEAR
        if self.resize == "fit":
            return picture.resize(self.size, filtered)
        ratios = width / picture.width, height / picture.height
        ratio = max(ratios) if self.resize == "crop" else min(ratios)
        scaled = picture.resize(
            (max(round(picture.width * ratio), 1), max(round(picture.height * ratio), 1)), filtered
        )
        left, top = (scaled.width - width) // 2, (scaled.height - height) // 2
        return scaled.crop((left, top, left + width, top + height))  # beyond the edges it is black


def _per_channel(value: float | Sequence[float], channels: int, what: str) -> np.ndarray:
    array = np.asarray(value, np.float32).reshape(-1)
    if array.size not in (1, channels) or not np.isfinite(array).all():
        raise ConfigError(
            f"pictures: {what} {value}; give one number, or {channels} as the colours are"
        )
    return np.broadcast_to(array, channels)


def _import_pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError("pictures need Pillow: pip install 'lingeronnx[pictures]'") from None
    return Image
