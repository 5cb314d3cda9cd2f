"""Compiled code in files: what is damaged, or may be somebody else's, is never run, and made
anew.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simulator import _disk_cache, native
from simulator._jit import jit
from simulator.native import NativeLoop

ROOT = Path(__file__).resolve().parents[2]
AS_ROOT = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid(), reason="gives files to another user"
)
OTHER = 12345


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """Return an empty cache's place, used until the end of the test."""
    monkeypatch.setenv("LINGERONNX_CACHE_DIR", str(tmp_path))
    forget = _disk_cache.cache_folder.cache_clear
    forget()
    _disk_cache._remove_stale_files.cache_clear()
    yield tmp_path
    forget()


def flip(path):
    """Turn one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def link(path):
    """Put a link to the same bytes in its place."""
    path.rename(path.with_suffix(".true"))
    path.symlink_to(path.with_suffix(".true"))


def pipe(path):
    """Put a pipe in its place, which nobody writes into."""
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "a bit of the code": flip,
    "a bit of the checksum": lambda path: path.write_bytes(
        bytes([path.read_bytes()[0] ^ 128]) + path.read_bytes()[1:]
    ),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a checksum alone": lambda path: path.write_bytes(path.read_bytes()[:32]),
    "empty": lambda path: path.write_bytes(b""),
    "appended": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "as older versions wrote it": lambda path: path.write_bytes(path.read_bytes()[32:]),
    "the group may write": lambda path: path.chmod(0o620),
    "all may write": lambda path: path.chmod(0o602),
    "a link": link,
    "a pipe": pipe,
    "another user's": lambda path: os.chown(path, OTHER, OTHER),
}


@pytest.mark.parametrize(
    "damage", [pytest.param(d, marks=AS_ROOT) if "user" in d else d for d in DAMAGE]
)
def test_what_is_damaged_is_not_there(cache, damage):
    """Law: nothing is read but what this user wrote, every bit of it; it is replaced by what is
    written next.
    """
    _disk_cache.write_code("name", "o", b"some code")
    assert _disk_cache.read_code("name", "o") == b"some code"
    DAMAGE[damage](Path(_disk_cache.cache_folder(), "name.o"))
    assert _disk_cache.read_code("name", "o") is None
    _disk_cache.write_code("name", "o", b"some code")
    assert _disk_cache.read_code("name", "o") == b"some code"


def test_code_stands_under_its_name_alone(cache):
    """Law: one file in another's place, of another key or kind, is not read."""
    for name, kind in (("one", "o"), ("other", "o"), ("one", "loop")):
        _disk_cache.write_code(name, kind, f"{name} {kind}".encode())
    one = Path(_disk_cache.cache_folder(), "one.o")
    for file in ("other.o", "one.loop"):
        one.write_bytes(one.with_name(file).read_bytes())
        assert _disk_cache.read_code("one", "o") is None


@pytest.mark.parametrize("what", ["hash_sources", "_environment_key"])
def test_code_is_of_these_sources_and_this_machine(cache, monkeypatch, what):
    _disk_cache.write_code("name", "o", b"code")
    folder = _disk_cache.cache_folder()
    monkeypatch.setattr(_disk_cache, what, lambda: "other")
    monkeypatch.setattr(_disk_cache, "cache_folder", lambda: folder)
    assert _disk_cache.read_code("name", "o") is None


def test_the_folder_is_its_owners_alone(cache):
    _disk_cache.write_code("name", "o", b"code")
    folder = Path(_disk_cache.cache_folder())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "name.o").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["name.o"]


def test_what_killed_processes_left_is_removed(cache):
    """Law: what was being written an hour ago is removed; what is being written now stays."""
    folder = Path(_disk_cache.cache_folder())
    for name, age in (("a.part", 7200), ("b.lock", 7200), ("c.part", 0), ("d.o", 7200)):
        path = folder / name
        path.write_bytes(b"")
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    _disk_cache.write_code("e", "o", b"code")
    assert sorted(path.name for path in folder.iterdir()) == ["c.part", "d.o", "e.o"]


def test_a_full_disk_leaves_nothing(cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    folder = Path(_disk_cache.cache_folder())
    monkeypatch.setattr(os, "replace", full)
    _disk_cache.write_code("name", "o", b"code")
    assert list(folder.iterdir()) == []


def _linked(folder):
    folder.rename(folder.with_name("true"))
    folder.symlink_to(folder.with_name("true"))


SHARED = {
    "belongs to another user": lambda folder: os.chown(folder, OTHER, OTHER),
    "may be written by other users": lambda folder: folder.chmod(0o770),
    "is a link": _linked,
}
_PRINTED = (
    "from simulator import _disk_cache; print(_disk_cache.cache_folder()); "
    "print(_disk_cache.read_code('name', 'o'))"
)


@pytest.mark.parametrize(
    "reason", [pytest.param(r, marks=AS_ROOT) if r.endswith("user") else r for r in SHARED]
)
def test_a_folder_that_others_may_write_is_not_used(cache, reason):
    """Law: nothing of it is read; one line says why; a private folder takes its place until the
    process ends.
    """
    _disk_cache.write_code("name", "o", b"code")
    SHARED[reason](Path(_disk_cache.cache_folder()))
    environment = {**os.environ, "LINGERONNX_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", _PRINTED], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    folder, read = done.stdout.splitlines()
    assert read == "None"
    assert len(done.stderr.splitlines()) == 1
    assert reason in done.stderr
    assert not Path(folder).is_relative_to(cache)
    assert not Path(folder).parent.exists()


def test_another_process_shares_the_private_folder(cache):
    """Law: what a process starts uses its private folder, without a line of its own."""
    Path(_disk_cache.cache_folder()).chmod(0o777)
    code = (
        f"import subprocess, sys; {_PRINTED}; subprocess.run([sys.executable, '-c', {_PRINTED!r}])"
    )
    environment = {**os.environ, "LINGERONNX_CACHE_DIR": str(cache)}
    command = [sys.executable, "-uc", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert len(done.stderr.splitlines()) == 1
    assert len(set(done.stdout.splitlines())) == 2
    assert list(cache.rglob("*.o")) == []


def test_a_user_without_a_home_keeps_nothing(monkeypatch):
    def none(_):
        raise RuntimeError("Could not determine home directory.")

    for name in ("LINGERONNX_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", none)
    _disk_cache.cache_folder.cache_clear()
    assert _disk_cache.cache_folder() is None
    assert _disk_cache.read_code("name", "o") is None
    _disk_cache.cache_folder.cache_clear()


def _thrice(x, y):
    for i in range(x.size):
        y[i] = 3 * x[i]


@pytest.mark.parametrize("kind", ["loop", "o"])
@pytest.mark.parametrize("damage", ["a bit of the code", "half", "empty"])
def test_damaged_code_is_compiled_anew(cache, monkeypatch, kind, damage):
    """Law: with a damaged file the numbers are right, and the next process finds a sound one."""

    def computed():
        for remembered in (native._code_cache._load_or_compile, native._llvm._load_or_compile):
            remembered.cache_clear()
        native._get_code_addresses.cache_clear()
        x, y = np.arange(5), np.zeros(5, np.int64)
        NativeLoop(tripled, (x, y))((), ())
        return y.tolist()

    tripled = jit(_thrice)
    native.get_record_runner()  # stays what it is
    assert computed() == [0, 3, 6, 9, 12]
    files = list(cache.rglob(f"*.{kind}"))
    assert files
    for path in files:
        DAMAGE[damage](path)
        assert _disk_cache.read_code(path.stem, kind) is None
    assert computed() == [0, 3, 6, 9, 12]
    assert all(_disk_cache.read_code(path.stem, kind) for path in files)
