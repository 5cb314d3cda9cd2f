"""Read a folder of pictures as data: resized, normalized and in the layout of a network.

    value = (pixel - mean) / std          pixel 0 to 255; mean and std scalar or one per channel

Needs Pillow, which the core does not install. Knows nothing of models.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...common.errors import ConfigError, DataError
from ...common.files import describe_irregular_file

if TYPE_CHECKING:
    from types import ModuleType

    from PIL.Image import Image

__all__ = ["Pictures", "is_picture"]

_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
_CHUNK_VALUES = 1 << 22  # elements of one item
_MAX_SIDE = 1 << 14  # width or height for a model
_MAX_PIXELS = 1 << 24  # of a picture for a model
_MAX_FILE_PIXELS = 1 << 26  # of a picture in a file: a few hundred MB

Color = Literal["rgb", "bgr", "gray"]
Layout = Literal["nchw", "nhwc"]
Resize = Literal["fit", "crop", "pad"]


def is_picture(path: Path) -> bool:
    """Whether the suffix of `path` is that of a picture, in any case; the file is not read."""
    return path.suffix.lower() in _SUFFIXES


class Pictures:
    """The pictures of a folder, in the order of their names.

    Subfolders are classes, numbered in the order of their names.

    Parameters
    ----------
    folder
        Folder with pictures, or with subfolders of pictures.
    size
        Width and height in pixels.
    mean, std
        One value per channel in the order of `color`, or one for all; in pixel values of 0 to 255.
    layout
        "nchw": float32 [N, C, H, W]; "nhwc": float32 [N, H, W, C].
    color
        Order of the channels; "gray" has one channel.
    resize
        "fit": scaled to `size` without preserving the aspect ratio. "crop": scaled to cover `size`
        and cropped to the center. "pad": scaled to fit into `size` and padded with black.

    Raises
    ------
    ConfigError
        For an invalid size, mean or std, or if Pillow is not installed.
    DataError
        If the folder has no picture, or one that cannot be read.
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
        """Check the options, list the files and import Pillow; pictures are read later.

        `size` is (width, height) in pixels; `mean` and `std` are one number, or one per channel.
        Raises ConfigError for an invalid option or without Pillow, DataError for a folder without
        pictures.
        """
        for value, choices, option in (
            (layout, ("nchw", "nhwc"), "layout"),
            (color, ("rgb", "bgr", "gray"), "color"),
            (resize, ("fit", "crop", "pad"), "resize"),
        ):
            if value not in choices:
                raise ConfigError(
                    f"pictures: {option} '{value}'; expected one of {', '.join(choices)}"
                )
        if not all(0 < side <= _MAX_SIDE for side in size) or size[0] * size[1] > _MAX_PIXELS:
            raise ConfigError(
                f"pictures: size {size}; width and height must be 1 to {_MAX_SIDE}, with at most "
                f"{_MAX_PIXELS} pixels"
            )
        self.size = int(size[0]), int(size[1])
        self.layout, self.color, self.resize = layout, color, resize
        channels = 1 if color == "gray" else 3
        self._mean = _per_channel(mean, channels, "mean")
        self._std = _per_channel(std, channels, "std")
        if not (self._std > 0).all():
            raise ConfigError(f"pictures: std {std}; it must be positive")
        self.folder = Path(folder)
        self._files = self._list_files()
        _import_pillow()

    def __getstate__(self) -> dict[str, object]:
        """Return the state for pickling, with absolute paths for processes that run elsewhere."""
        files = [(path.absolute(), label) for path, label in self._files]
        return {**self.__dict__, "folder": self.folder.absolute(), "_files": files}

    def __len__(self) -> int:
        """Return the number of pictures in the folder."""
        return len(self._files)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield (float32 pictures, int64 class of each) for chunks of pictures, in file order.

        Pictures are (pixel - mean) / std, [N, C, H, W] or [N, H, W, C] by layout. Classes are None
        if a picture of the chunk has none. Raises DataError for a file that is not a readable
        picture.
        """
        width, height = self.size
        count = max(_CHUNK_VALUES // (width * height * len(self._mean)), 1)
        for start in range(0, len(self._files), count):
            chunk = self._files[start : start + count]
            labels = [label for _, label in chunk]
            pixels = np.stack([self._read_pixels(path) for path, _ in chunk])
            values = (pixels - self._mean) / self._std
            array = values if self.layout == "nhwc" else np.moveaxis(values, 3, 1)
            yield (
                np.ascontiguousarray(array, np.float32),
                None if None in labels else np.array(labels, np.int64),
            )

    def _list_files(self) -> list[tuple[Path, int | None]]:
        """Return (file, class or None) of every picture, in the order of names.

        Pictures in the folder itself have no class; without any, those in subfolders are listed,
        each subfolder a class. Raises DataError if there are none or the folder cannot be read.
        """
        try:
            entries = sorted(self.folder.iterdir())
        except OSError as error:
            raise DataError(
                f"pictures: cannot read the folder {self.folder}: {error.strerror}; pass a folder "
                "of pictures"
            ) from error
        files: list[tuple[Path, int | None]] = [
            (path, None) for path in entries if is_picture(path)
        ]
        files = files or _list_class_files([path for path in entries if path.is_dir()])
        if not files:
            raise DataError(
                f"pictures: the folder {self.folder} has no picture "
                f"({', '.join(sorted(_SUFFIXES))}); add some"
            )
        return files

    def _read_pixels(self, path: Path) -> np.ndarray:
        """Read a picture file as uint8 pixels [H, W, C], resized.

        The channels have the order of `color`. Raises DataError for a file that is irregular, too
        large, or not a picture.
        """
        pillow = _import_pillow()
        if (file_kind := describe_irregular_file(path)) is not None:
            raise DataError(
                f"pictures: {path} is {file_kind}, not a regular file; remove it from the folder"
            )
        try:
            # Pillow's warnings of large pictures are ignored, because the size is checked here.
            with warnings.catch_warnings(action="ignore"), pillow.open(path) as opened:
                if opened.width * opened.height > _MAX_FILE_PIXELS:
                    raise DataError(
                        f"pictures: {path} has {opened.width} x {opened.height} pixels; the limit "
                        f"is {_MAX_FILE_PIXELS}, reduce its size first"
                    )
                picture = opened.convert("L" if self.color == "gray" else "RGB")
        except DataError:
            raise
        except pillow.DecompressionBombError as error:
            raise DataError(
                f"pictures: {path} has far more than {_MAX_FILE_PIXELS} pixels, the limit; reduce "
                "its size first"
            ) from error
        except Exception as error:  # Pillow raises OSError, SyntaxError ... for corrupt files
            raise DataError(
                f"pictures: {path} is not a readable picture; remove it, or save it again"
            ) from error
        pixels = np.asarray(self._resize(picture)).reshape(self.size[1], self.size[0], -1)
        return pixels[:, :, ::-1] if self.color == "bgr" else pixels

    def _resize(self, picture: Image) -> Image:
        """Return `picture` resized to the size of these data, interpolated bilinearly.

        "fit" ignores the aspect ratio; "crop" covers the size and crops to the center; "pad" fits
        into it and pads with black.
        """
        pillow = _import_pillow()
        (width, height), resampling = self.size, pillow.Resampling.BILINEAR
        if self.resize == "fit":
            return picture.resize(self.size, resampling)
        ratios = width / picture.width, height / picture.height
        ratio = max(ratios) if self.resize == "crop" else min(ratios)
        scaled_size = max(round(picture.width * ratio), 1), max(round(picture.height * ratio), 1)
        scaled = picture.resize(scaled_size, resampling)
        x, y = (scaled.width - width) // 2, (scaled.height - height) // 2
        return scaled.crop((x, y, x + width, y + height))  # black beyond the edges


def _list_class_files(folders: Sequence[Path]) -> list[tuple[Path, int | None]]:
    """Return (file, class) of the pictures in `folders`; the class is the folder's index.

    Files are sorted by name within each folder.
    """
    files: list[tuple[Path, int | None]] = []
    for index, folder in enumerate(folders):
        files += [(path, index) for path in sorted(folder.iterdir()) if is_picture(path)]
    return files


def _per_channel(value: float | Sequence[float], channels: int, option: str) -> np.ndarray:
    """Return `value`, one number or one per channel, as float32 of shape [channels].

    Raises ConfigError for another number of values, NaN or infinity; `option` is the name there.
    """
    array = np.asarray(value, np.float32).reshape(-1)
    if array.size not in (1, channels) or not np.isfinite(array).all():
        raise ConfigError(
            f"pictures: {option} {value}; pass one number, or one for each of {channels} channels"
        )
    return np.broadcast_to(array, channels)


def _import_pillow() -> ModuleType:
    """Import and return Pillow's Image module.

    Raises ConfigError if Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError("pictures need Pillow: pip install 'lingeronnx[pictures]'") from None
    return Image
