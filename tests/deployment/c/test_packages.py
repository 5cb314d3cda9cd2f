"""The header in front of each package, as Python and as pack.sh write it."""

import os
import shutil
import subprocess

import pytest

from lingeronnx.deployment.c_program.packages import (
    PackedPart,
    compute_arguments_crc,
    format_pack_script,
    make_package,
    make_package_header,
)


def test_header():
    """64 bytes with the CRC-32, padding to 64."""
    whole = make_package(
        make_package_header("venus", 3, 0x01020304, compute_arguments_crc(["-p", "venus"])), b"abc"
    )
    assert len(whole) == 128
    assert whole[:8] == b"LNGRPKG1"
    assert whole[8:20] == b"venus".ljust(12, b"\0")
    assert whole[32:40] == bytes([3, 0, 0, 0, 4, 3, 2, 1])
    assert whole[56:64] == bytes([0xC2, 0x41, 0x24, 0x35, 3, 0, 0, 0])
    assert whole[64:] == b"abc" + bytes(61)


@pytest.mark.skipif(shutil.which("gzip") is None, reason="no gzip here")
@pytest.mark.parametrize("one", ("all.pkg", None))
@pytest.mark.parametrize("size", (1, 63, 64, 65))
def test_script(tmp_path, one, size):
    """The shell writes the same bytes, into one blob or a file each."""
    heads = [make_package_header("arcs", k, 7 + k, 9) for k in range(2)]
    parts = [
        PackedPart(f"g{k}.onnx", f"p{k}.pkg", f"tpacker p{k}.pkg {k}", heads[k]) for k in range(2)
    ]
    (tmp_path / "pack.sh").write_text(format_pack_script("arcs", one, parts))
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "tpacker").write_text(f'#!/bin/sh\nhead -c {size} /dev/zero | tr "\\0" "$2" > "$1"\n')
    (fake / "tpacker").chmod(0o755)
    env = {**os.environ, "PATH": f"{fake}:{os.environ['PATH']}"}
    subprocess.run(["sh", str(tmp_path / "pack.sh")], check=True, env=env)
    want = [make_package(heads[k], str(k).encode() * size) for k in range(2)]
    names = sorted(p.name for p in tmp_path.glob("*.pkg"))
    if one:
        assert names == [one]
        assert (tmp_path / one).read_bytes() == b"".join(want)
    else:
        assert names == ["p0.pkg", "p1.pkg"]
        assert [(tmp_path / name).read_bytes() for name in names] == want
    assert not list(tmp_path.glob("*.raw"))
