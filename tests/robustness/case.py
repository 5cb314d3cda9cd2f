"""A case: files, and what is called in the folder that holds them. Known by its kind and its seed,
or kept as a zip.
"""

import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Case", "write_member"]

_CALL, _DATE = "call.json", (2020, 1, 1, 0, 0, 0)


def write_member(file, name, content):
    """Add `content` to an open zip file as `name`, with a date that is always the same."""
    file.writestr(zipfile.ZipInfo(name, _DATE), content, file.compression)


@dataclass(frozen=True)
class Case:
    """Files by name, and the words of a command; `["api", name, ...]` is a call of `calls.API`
    instead.
    """

    call: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def write(self, folder):
        """Put the files into `folder`."""
        for name, content in self.files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def packed(self):
        """Return the case as the bytes of a zip file, the same ones for the same case."""
        told = json.dumps({"call": self.call, "environment": self.environment}).encode()
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in {_CALL: told, **self.files}.items():
                write_member(file, name, content)
        return out.getvalue()

    @staticmethod
    def read(path):
        """Return the case that `packed` wrote."""
        with zipfile.ZipFile(path) as file:
            files = {name: file.read(name) for name in file.namelist()}
        told = json.loads(files.pop(_CALL))
        return Case(told["call"], files, told["environment"])
