"""Run a quantized net on damaged files of compiled code.

The integers stay right, and the files are made anew.
    python benchmarks/reliability/damaged_cache.py -n 1000

Each case is a copy of a warm cache with one file damaged (a bit, a cut, another file's bytes,
another user's, ...), or with a folder that others could write in. A process of its own runs a small
quantized net on it. Prints a table by kind of damage, and exits with 1 where an integer was wrong,
a process failed, or a damaged file stayed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

_OTHER = 12345  # another user
# seconds of processor time of a process; by the clock many times as many, as the machine may be
# busy
_LIMIT = 60
_SETUP = """
import sys
import numpy as np
import onnx
import lingeronnx as lo
model = onnx.parser.parse_model('''
<ir_version: 8, opset_import: ["": 13]>
small (float[N, 3, 6, 6] x) => (float[N, 3, 3, 3] y) {
    y = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x)
}
''')
data = np.random.default_rng(0).standard_normal((8, 3, 6, 6)).astype(np.float32)
lo.quantize(lo.ir.ir.from_proto(model), data, platform="generic").save(sys.argv[1])
"""


def _flip(path: Path, rng: Random, others: list[Path]) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _cut(path: Path, rng: Random, others: list[Path]) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def _empty(path: Path, rng: Random, others: list[Path]) -> None:
    path.write_bytes(b"")


def _append(path: Path, rng: Random, others: list[Path]) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 100)))


def _punch_hole(path: Path, rng: Random, others: list[Path]) -> None:
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content))
    content[start : start + 512] = bytes(255 - byte for byte in content[start : start + 512])
    path.write_bytes(content)


def _swap(path: Path, rng: Random, others: list[Path]) -> None:
    path.write_bytes(rng.choice(others).read_bytes())


def _overwrite_randomly(path: Path, rng: Random, others: list[Path]) -> None:
    path.write_bytes(rng.randbytes(path.stat().st_size))


def _make_group_writable(path: Path, rng: Random, others: list[Path]) -> None:
    path.chmod(path.stat().st_mode | 0o020)


def _make_world_writable(path: Path, rng: Random, others: list[Path]) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def _linked(path: Path, rng: Random, others: list[Path]) -> None:
    moved = path.rename(path.with_name(f"{path.name}.moved"))
    path.symlink_to(moved)


def _change_owner(path: Path, rng: Random, others: list[Path]) -> None:
    os.chown(path, _OTHER, _OTHER)


_Damage = Callable[[Path, Random, list[Path]], None]
_FILES: dict[str, _Damage] = {
    "one bit": _flip,
    "cut": _cut,
    "empty": _empty,
    "appended": _append,
    "512 bytes turned over": _punch_hole,
    "another file's bytes": _swap,
    "noise": _overwrite_randomly,
    "group may write": _make_group_writable,
    "all may write": _make_world_writable,
    "a link": _linked,
    "another user's": _change_owner,
}
_FOLDERS: dict[str, _Damage] = {
    "folder: group may write": _make_group_writable,
    "folder: all may write": _make_world_writable,
    "folder: a link": _linked,
    "folder: another user's": _change_owner,
}
_FAILED = ("signal", "exit", "hang")
_ROUNDS = 15  # of so many bits, cuts and swaps there is one of each other kind


def main() -> int:
    """Run the cases, print the table, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", type=int, default=1000, help="how many damaged copies (1000)")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    root = os.geteuid() == 0
    kinds = [kind for kind in (*_FILES, *_FOLDERS) if root or "user" not in kind]
    kinds += [
        kind for kind in ("one bit", "cut", "another file's bytes") for _ in range(_ROUNDS - 1)
    ]
    with tempfile.TemporaryDirectory(prefix="damaged-") as place:
        return _run(
            Path(place), [kinds[i % len(kinds)] for i in range(asked.n)], Random(asked.seed)
        )


def _run(place: Path, kinds: list[str], rng: Random) -> int:
    model, warm = place / "small.onnx", place / "warm"
    environment = {**os.environ, "LINGERONNX_CACHE_DIR": str(warm), "LINGERONNX_THREADS": "1"}
    command = [sys.executable, "-c", _SETUP, str(model)]
    subprocess.run(
        command, env={**environment, "LINGERONNX_CACHE_DIR": str(place / "else")}, check=True
    )
    os.environ.update(environment)
    want = ""
    for _ in range(
        2
    ):  # the first run compiles; it is the second that a damaged cache is compared with
        told = _child(model)
        want = told.partition(" ")[0]
    (folder,) = warm.iterdir()
    files = sorted(folder.iterdir())
    print(
        f"{len(files)} files of compiled code, {sum(f.stat().st_size for f in files)} bytes; "
        f"integers {want}"
    )
    found: dict[str, Counter[str]] = defaultdict(Counter)
    start = time.perf_counter()
    for number, kind in enumerate(kinds):
        copy = place / "copy"
        shutil.copytree(warm, copy)
        hurt = copy / folder.name
        if kind in _FILES:
            chosen = rng.choice(files)
            hurt = hurt / chosen.name
            _FILES[kind](hurt, rng, [f for f in files if f.read_bytes() != chosen.read_bytes()])
        else:
            _FOLDERS[kind](hurt, rng, files)
        os.environ["LINGERONNX_CACHE_DIR"] = str(copy)
        told = _child(model, hurt)
        integers, _, state = told.partition(" ")
        found[kind]["runs"] += 1
        found[kind]["right integers"] += integers == want
        wanted = "sound" if kind in _FILES else "elsewhere"
        found[kind]["compiled anew"] += state == wanted
        if integers != want or state != wanted:
            failed = (
                told.split(":")[0]
                if told.startswith(_FAILED)
                else "wrong integers"
                if integers != want
                else state
            )
            found[kind][failed] += 1
            print(f"case {number}, {kind}, {hurt.name}: {told}")
        shutil.rmtree(copy)
        if not (number + 1) % 100:
            print(
                f"{number + 1} of {len(kinds)}, {time.perf_counter() - start:.0f} s",
                file=sys.stderr,
            )
    return _table(found)


def _table(found: dict[str, Counter[str]]) -> int:
    columns = list(
        dict.fromkeys(
            [
                "runs",
                "right integers",
                "compiled anew",
                "wrong integers",
                *_FAILED,
                *(name for row in found.values() for name in row),
            ]
        )
    )
    print("| damage |", " | ".join(columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    total: Counter[str] = Counter()
    for kind in (*_FILES, *_FOLDERS):
        if kind in found:
            print(f"| {kind} |", " | ".join(str(found[kind][c]) for c in columns), "|")
            total.update(found[kind])
    print("| all |", " | ".join(str(total[c]) for c in columns), "|")
    return int(not total["runs"] == total["right integers"] == total["compiled anew"])


@cache
def _warm_up() -> None:
    """Import what takes long, and compile something that is not ours, before a process is forked."""
    import numba
    import numpy as np

    import lingeronnx  # noqa: F401
    import simulator.kernels  # noqa: F401
    from simulator._jit import import_numba

    import_numba()
    numba.njit(lambda x: x.sum())(np.zeros(1))


def _child(model: Path, hurt: Path | None = None) -> str:
    """Run the model in a forked process.

    Return a hash of all integers and what became of the damaged file.
    "sound": it was replaced, "stayed": it was not, "elsewhere": its folder is not used, "whole":
    nothing was damaged.
    """
    import numba  # noqa: F401

    import lingeronnx  # noqa: F401 - before the fork, as all that takes long

    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (_LIMIT, _LIMIT + 1))
        signal.alarm(20 * _LIMIT)
        code = 1
        try:
            os.write(writing, _run_child(model, hurt).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as file:
        told = file.read().decode()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return (
            "hang"
            if number in (signal.SIGALRM, signal.SIGXCPU)
            else f"signal: {signal.Signals(number).name}"
        )
    return told if told else f"exit: {os.WEXITSTATUS(status)}"


def _run_child(model: Path, hurt: Path | None) -> str:
    import numpy as np

    import lingeronnx as lo
    from simulator import _disk_cache

    digest = hashlib.blake2b(digest_size=8)
    session = lo.Session(model)
    x = np.random.default_rng(1).standard_normal((5, 3, 6, 6)).astype(np.float32)
    for name, array, _ in session.taps({"x": x}):
        digest.update(name.encode() + array.tobytes())
    folder = Path(str(_disk_cache.cache_folder()))
    if hurt is None:
        state = "whole"
    elif hurt.name == folder.name:
        state = "stayed" if hurt == folder else "elsewhere"
        shutil.rmtree(folder.parent if hurt != folder else folder)
    else:
        state = (
            "sound" if _disk_cache.read_code(hurt.stem, hurt.suffix[1:]) is not None else "stayed"
        )
    return f"{digest.hexdigest()} {state}"


if __name__ == "__main__":
    sys.exit(main())
