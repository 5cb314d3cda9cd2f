"""The header that `pack.sh` writes in front of each package, and blobs of several packages.

The header has 64 bytes, little-endian. The package of the packer follows, padded to a multiple of
64 bytes:

     0  "LNGRPKG1"          8  chip, 12 bytes          20  executor version, 12 bytes
    32  package index      36  CRC-32 of the part's ONNX file
    40  CRC-32 of the packer's arguments               44  12 zero bytes
    56  CRC-32 of the package                          60  its size in bytes

A blob is a concatenation of packages; the headers are its index. In a shell the last two fields
come from gzip, whose output ends with exactly these.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from ...common.escaping import escape_comment, join_shell, quote_shell

__all__ = [
    "EXECUTOR_VERSION",
    "PACKER_ENVIRONMENT",
    "PackedPart",
    "compute_arguments_crc",
    "format_pack_script",
    "make_package",
    "make_package_header",
]

#: Version of the executor whose interface the program uses.
EXECUTOR_VERSION = "3.0.4"


class PackedPart(NamedTuple):
    """A chip part in pack.sh: ONNX file, package file, packer command, and the package's header."""

    graph: str
    package: str
    command: str
    header: bytes


def compute_arguments_crc(argv: Sequence[str]) -> int:
    """Return the CRC-32 of the packer's arguments, joined by NUL."""
    return zlib.crc32("\0".join(argv).encode())


def make_package_header(chip: str, package_index: int, graph_crc: int, arguments_crc: int) -> bytes:
    """Return the first 56 bytes of a package, which are known before the packer runs.

    They are a mark, the chip, the executor version, the package's index, and the CRC-32 of the ONNX
    file and of the packer's arguments, padded with zeros.
    """
    return struct.pack(
        "<8s12s12sIII12x",
        b"LNGRPKG1",
        chip.encode(),
        EXECUTOR_VERSION.encode(),
        package_index,
        graph_crc,
        arguments_crc,
    )


def make_package(header: bytes, package: bytes) -> bytes:
    """Return a package with its 64-byte header, padded with zeros to a multiple of 64 bytes.

    `header` has the first 56 bytes; CRC-32 and size of the package are appended to it.
    """
    body = header + struct.pack("<II", zlib.crc32(package), len(package)) + package
    return body + bytes(-len(body) % 64)


#: What pack.sh prints if the packer fails.
PACKER_ENVIRONMENT = (
    "tpacker failed. If it could not import a module: it needs a virtual environment of its own, "
    "with onnx <= 1.18 (for onnx.mapping), numpy < 2 and sympy; that of lingeronnx has newer ones."
)


#: What pack.sh prints if the packer is not there.
NO_PACKER = (
    "tpacker is not on the PATH: it is the vendor's packer, in a virtual environment of its own; "
    "activate that for this command, or add its bin folder to PATH."
)


def format_pack_script(platform: str, blob_file: str | None, parts: Sequence[PackedPart]) -> str:
    """Return the text of pack.sh, which packs `parts` in order and adds their headers.

    `blob_file` is the file that joins all packages; None for one file per part.
    """
    graphs = ", ".join(part.graph for part in parts)
    packages = [part.package for part in parts]
    outputs = escape_comment(blob_file or ", ".join(packages))
    lines = [
        "#!/bin/sh",
        f"# Packs {escape_comment(graphs)} for {platform} into {outputs}; needs the",
        "# vendor's packer, tpacker, on the PATH. The program checks the header in front of each",
        "# package: see README.md.",
        "set -eu",
        'cd "$(dirname "$0")"',
        "",
        "command -v tpacker > /dev/null || {",
        f'  echo "{NO_PACKER}" >&2',
        "  exit 1",
        "}",
        "",
        "explain() {",
        f'  echo "{PACKER_ENVIRONMENT}" >&2',
        "  exit 1",
        "}",
        "",
        "finish() { # package file, 56 bytes in octal",
        "  {",
        '    printf "$2"',
        '    gzip -c "$1.raw" | tail -c 8 # CRC-32 and size',
        '    cat "$1.raw"',
        '    dd if=/dev/zero bs=1 count=$(((64 - $(wc -c < "$1.raw") % 64) % 64)) 2>/dev/null',
        '  } > "$1"',
        '  rm "$1.raw"',
        "}",
        "",
    ]
    for part in parts:
        octal = "".join(f"\\{byte:03o}" for byte in part.header)
        package, raw = quote_shell(part.package), quote_shell(f"{part.package}.raw")
        lines += [
            f"{part.command} || explain",
            f"mv {package} {raw}",
            f"finish {package} '{octal}'",
            "",
        ]
    if blob_file is not None and packages != [blob_file]:
        names = join_shell(packages)
        lines += [f"cat {names} > {quote_shell(blob_file)}", f"rm {names}"]
    return "\n".join(lines).rstrip() + "\n"
