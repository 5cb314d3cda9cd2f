"""Files of torch.save, written atomically and read without executing code.

`Checkpoint` is the file from which a training resumes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ...common.errors import DataError
from ...common.files import replace_file

__all__ = ["Checkpoint", "read_value", "write_value"]


def read_value(path: Path) -> Any:
    """Return tensors and plain values of a file of torch.save, on the CPU.

    Raises DataError for any other content; no code of the file is executed.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for damaged files
        raise DataError(
            f"{path} is not a file of tensors written by torch.save ({type(error).__name__})"
        ) from error


def write_value(path: Path, value: Any) -> None:
    """Write tensors and plain values to a file atomically.

    Equal values give equal bytes: if torch opened the file itself, it would store the file name.
    Raises ConfigError if the file cannot be written.
    """
    with replace_file(path) as temporary, temporary.open("wb") as file:
        torch.save(value, file)


class Checkpoint:
    """The state of a training run in the file `path`, whose folder must exist."""

    def __init__(self, path: Path) -> None:
        """Store the path of the file; nothing is read or written yet."""
        self.path = path

    def write(self, state: dict[str, Any]) -> None:
        """Write the state of the training to the file, replacing it atomically.

        Raises ConfigError if it cannot be written.
        """
        write_value(self.path, state)

    def read(self) -> dict[str, Any]:
        """Return the state in the file, or an empty dict if there is no file.

        No code of the file is executed. Raises DataError if it is not a checkpoint.
        """
        if not self.path.exists():
            return {}
        try:
            return dict(torch.load(self.path, weights_only=True))
        except Exception as error:  # torch raises many types for damaged files
            raise DataError(
                f"{self.path} is not a checkpoint of a training run ({type(error).__name__}); "
                "remove it or omit --resume"
            ) from error
