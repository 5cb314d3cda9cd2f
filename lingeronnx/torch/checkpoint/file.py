"""Files of torch.save: written whole or not at all, read without running any code.

`Checkpoint` resumes a training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ...errors import DataError
from ...files import replace_file

__all__ = ["Checkpoint", "read_value", "write_value"]


def read_value(path: Path) -> Any:
    """Return what torch.save wrote, tensors and plain values; DataError for anything else."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen kinds for damaged files
        raise DataError(
            f"{path} is no file of tensors that torch.save wrote ({type(error).__name__})"
        ) from error


def write_value(path: Path, value: Any) -> None:
    """Write tensors and plain values to `path`, as a whole or not at all.

    ConfigError where it cannot be written.
    The same values give the same bytes: torch would put the name of a file that it opens itself
    into the archive.
    """
    with replace_file(path) as beside, beside.open("wb") as file:
        torch.save(value, file)


class Checkpoint:
    """`path` : a file in a folder that exists; ConfigError where it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, state: dict[str, Any]) -> None:
        """Write the file anew, as a whole or not at all."""
        write_value(self.path, state)

    def read(self) -> dict[str, Any]:
        """Return what `write` wrote, nothing where there is no file.

        DataError for any other content.
        """
        if not self.path.exists():
            return {}
        try:
            return dict(torch.load(self.path, weights_only=True))
        except Exception as error:  # torch raises a dozen kinds for damaged files
            raise DataError(
                f"{self.path} is no checkpoint of a training run ({type(error).__name__}); remove "
                "it or drop --resume"
            ) from error
