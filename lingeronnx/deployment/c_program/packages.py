"""The header that `pack.sh` puts in front of each package, and one blob of several packages.

64 bytes, little-endian, then the package as the packer wrote it, filled up to a multiple of 64:

     0  "LNGRPKG1"          8  chip, 12 bytes          20  executor's version, 12 bytes
    32  number of the part 36  CRC-32 of the part's ONNX file      40  CRC-32 of the packer's
    arguments 44  12 zeros           56  CRC-32 of the package   60  its bytes

A blob of several packages is one behind the other: the headers are its index. In a shell the last
two come from gzip, whose output ends with just these.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

__all__ = [
    "EXECUTOR_VERSION",
    "compute_arguments_crc",
    "format_pack_script",
    "make_package",
    "make_package_header",
]

#: The executor whose interface the program follows.
EXECUTOR_VERSION = "3.0.4"


def compute_arguments_crc(words: Sequence[str]) -> int:
    """Return the CRC-32 of the packer's arguments."""
    return zlib.crc32("\0".join(words).encode())


def make_package_header(chip: str, number: int, graph_crc: int, arguments_crc: int) -> bytes:
    """Return the first 56 bytes, which are known before the package is.

    Graph, arguments : CRC-32.
    """
    return struct.pack(
        "<8s12s12sIII12x",
        b"LNGRPKG1",
        chip.encode(),
        EXECUTOR_VERSION.encode(),
        number,
        graph_crc,
        arguments_crc,
    )


def make_package(head: bytes, package: bytes) -> bytes:
    """Return a package with its header, filled up to a multiple of 64 bytes."""
    body = head + struct.pack("<II", zlib.crc32(package), len(package)) + package
    return body + bytes(-len(body) % 64)


def format_pack_script(
    platform: str, blob_file: str | None, parts: Sequence[tuple[str, str, str, bytes]]
) -> str:
    """Return pack.sh. one : the blob's file; None: a file for each part.

    Parts : (graph, package, command, header).
    """
    graphs, made = (
        ", ".join(graph for graph, *_ in parts),
        ", ".join(package for _, package, *_ in parts),
    )
    lines = [
        "#!/bin/sh",
        f"# Packs {graphs} for {platform} into {blob_file or made}; needs the vendor's packer,",
        (
            "# tpacker, on the PATH. The program finds its header in front of each package: see "
            "README.md."
        ),
        "set -eu",
        'cd "$(dirname "$0")"',
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
    for _, package, command, head in parts:
        octal = "".join(f"\\{byte:03o}" for byte in head)
        lines += [command, f"mv {package} {package}.raw", f"finish {package} '{octal}'", ""]
    if blob_file is not None and [package for _, package, *_ in parts] != [blob_file]:
        names = " ".join(package for _, package, *_ in parts)
        lines += [f"cat {names} > {blob_file}", f"rm {names}"]
    return "\n".join(lines).rstrip() + "\n"
