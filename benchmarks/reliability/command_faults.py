"""Faults put into every command that writes.

Kills, full disks, closed streams, forbidden folders, clocks, two at once.
    python -m benchmarks.reliability.command_faults                           every command, every
    kind: an hour on one core python -m benchmarks.reliability.command_faults --commands deploy
    --kills 200 python -m benchmarks.reliability.command_faults --kinds full twice

Each command runs where an older run of it, on other data, has left its results. Then every file,
and every folder that is written as one, must be the old one or the new one, byte for byte; whatever
else lies there must be gone after the next run. A fault is told in one line. The table has a row
for each command: how many of each kind, and what was wrong.

A kill is a SIGKILL in front of the k-th change of the file system (opening for writing, making,
renaming, removing), counted by Python's audit hook: every k, with the older results there and
without. Kills beyond these come at random times. Commands run in children of a process that has run
each command once, with one thread, so that a child begins with all imports and compiled code;
streams and locales in cold ones.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import onnx

KINDS = ("kill", "full", "streams", "forbidden", "clock", "twice")
EVENTS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate")
LIMIT = 300  # seconds of one run
SECONDS = re.compile(
    rb'(?<=>)\d+(?=</td>)|(?<="seconds":)[\d.e-]+'
)  # that an attempt of a search took, in its page
CHECKPOINTS = {"old": "one_asr.pt", "new": "one_torch.pt"}
ONNXRUNTIME = ".ses"  # its number of the session, which it keeps where temporary files lie

TINY = """
<ir_version: 8, opset_import: ["": 13]>
tiny (float[N, 2, 4, 4] x) => (float[N, 3] y) {
    c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w, b)
    r = Relu(c)
    p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(r)
    f = Flatten(p)
    y = Gemm<transB=1>(f, v, d)
}
"""
NET = """
import torch
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU())
def old():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU())
"""
#: What a board of the nodes of `TINY` prints, in cycles.
BOARD = (
    "[I] Conv2dInt | {} | (1,2,4,4) | (1,2,4,4)\n[I] MaxPool | {} | (1,2,4,4) | (1,2,2,2)\n"
    "[I] Flatten | {} | (1,2,2,2) | (1,8)\n[I] LinearInt | {} | (1,8) | (1,3)\n"
)
CYCLES = {"old": (2676, 1762, 1315, 9034), "new": (3676, 2762, 2315, 19034)}
BUG, ARCHIVE = 70, "lingeronnx-report-"  # exit code of a bug of ours; how its archive's name begins


@dataclass(frozen=True)
class Command:
    """line : what is run, with {v} for "new" or "old".

    Units : what it writes that is old or new as a whole.
    journals : files that grow, and are what a killed run left of them until the next run. bug : the
    call that a planted bug ends; then the archive for a report is what is written. kinds : the
    faults that it can be given.
    """

    name: str
    line: str
    units: tuple[str, ...]
    journals: tuple[str, ...] = ()
    bug: str = ""
    kinds: tuple[str, ...] = KINDS

    @property
    def code(self) -> int:
        """The exit code of an undisturbed run."""
        return BUG if self.bug else 0

    def planted(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which its bug, where it has one, is there."""
        if not self.bug:
            return contextlib.nullcontext()
        return mock.patch(f"lingeronnx.api.{self.bug}", side_effect=RuntimeError("planted"))

    def args(self, version: str) -> list[str]:
        """Return the words of the command line."""
        return self.line.format(v=version).split()


COMMANDS = (
    Command(
        "quantize",
        "quantize tiny.onnx --calib {v}.npz --effort fast -o o/q.onnx --save-plan o/plan.json",
        ("o/q.onnx", "o/plan.json"),
    ),
    Command(
        "search",
        "quantize tiny.onnx --calib {v}.npz --effort fast --min-sqnr 20 --budget 2 -o o/q.onnx",
        ("o/q.onnx", "o/q_search.html", "o/q_search.svg"),
        ("o/q_search.jsonl",),
    ),
    Command("deploy", "deploy {v}_q.onnx --input {v}.npz -o o/board", ("o/board",)),
    Command("convert", "convert {v}_q.onnx --to qdq -o o/c.onnx", ("o/c.onnx",)),
    Command("fix-dequant", "fix-dequant {v}_q.onnx -o o/f.onnx", ("o/f.onnx",)),
    Command(
        "simulate",
        "simulate {v}_q.onnx --input {v}.npz --dump o/dump -o o/out.npz",
        ("o/dump", "o/out.npz"),
    ),
    Command(
        "compare",
        "compare tiny.onnx {v}_q.onnx --data {v}.npz -o o/cmp",
        tuple(
            f"o/cmp/{n}"
            for n in (
                "compare_per_layer_out.txt",
                "compare_per_layer_out.csv",
                "abnormal_layer_advisor.txt",
                "profiler.html",
            )
        ),
    ),
    Command(
        "profile",
        "profile {v}_q.onnx --data {v}.npz --keep -o o/prof",
        ("o/prof/statistic.txt", "o/prof/profile.npz", "o/prof/tensors"),
    ),
    Command(
        "sensitivity",
        "sensitivity tiny.onnx --calib {v}.npz -o o/sens",
        tuple(f"o/sens/sensitive_ops.{end}" for end in ("txt", "json", "html")),
        ("o/sens/sensitivity.jsonl",),
    ),
    Command(
        "check",
        "check {v}_q.onnx -o o/check",
        tuple(
            f"o/check/{name}"
            for name in (
                "check.txt",
                "check.json",
                "check.html",
                "model_check_result.txt",
                "model_check_result.json",
            )
        ),
    ),
    Command("badcase", "badcase tiny.onnx {v}_q.onnx --data {v}.npz -o o/bad.npz", ("o/bad.npz",)),
    Command("export", "export net.py:{v} -o o/e.onnx --input-shape x=1,2,8,8", ("o/e.onnx",)),
    Command("checkpoint", "checkpoint {v}.pt -o o/c.pt --to plain", ("o/c.pt",)),
    Command(
        "finetune",
        "finetune tiny.onnx --train {v}.npz --epochs 1 -o o/t.onnx --checkpoint o/t.ckpt",
        ("o/t.onnx",),
        ("o/t.ckpt",),
    ),
    Command("trace", "trace {v}_layers.onnx -o o/trace.json", ("o/trace.json",)),
    Command(
        "profile-board",
        "profile-board {v}.log --model new_q.onnx -o o/timing.json",
        ("o/timing.json",),
    ),
    Command(
        "archive", "convert {v}_q.onnx --to qdq -o o/c.onnx", (), bug="convert", kinds=("kill",)
    ),
)


@dataclass
class Row:
    """What was tried of a command, and what was wrong."""

    name: str
    tried: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def count(self, kind: str) -> None:
        """Note that a fault of this kind was tried."""
        self.tried[kind] = self.tried.get(kind, 0) + 1


# ---- a run -------------------------------------------------------------------------------------------------------


class ForkedCommand:
    """A command in a fork of this process, in `folder`; prepare : called in there first."""

    def __init__(
        self, args: Sequence[str], folder: Path, prepare: Callable[[], None] = lambda: None
    ) -> None:
        self._reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writer)
            return
        try:
            os.chdir(folder)
            os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(writer, 2)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
            prepare()
            from lingeronnx.cli import main
            from lingeronnx.common import files

            # as in a new process, which has looked through no folder
            files._cleaned_folders.clear()
            main(list(args), prog_name="lingeronnx")
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)

    def wait(self) -> tuple[int, str]:
        """Return its exit code, minus the signal where one ended it, and what it told on stderr."""
        told, end = b"", time.monotonic() + LIMIT
        while time.monotonic() < end:
            if select.select([self._reader], [], [], 0.2)[0]:
                part = os.read(self._reader, 65536)
                told += part
                if not part:
                    break
        else:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self._reader)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), told.decode(
            errors="replace"
        ).strip()


def make_kill_hook(folder: Path, deadly: int, told: int | None = None) -> Callable[[], None]:
    """Return what lets a child kill itself in front of its `deadly`-th change of `folder`.

    `told` : where it counts.
    """

    def prepare() -> None:
        seen = 0

        def hook(event: str, given: tuple[object, ...]) -> None:
            nonlocal seen
            if event not in EVENTS and not (event == "open" and is_write_mode(given[2])):
                return
            if not isinstance(given[0], str | os.PathLike) or not is_below(
                os.fspath(given[0]), folder
            ):
                return
            seen += 1
            if told is not None:
                os.write(told, b".")
            if seen == deadly:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)

    return prepare


def is_write_mode(flags: object) -> bool:
    """Whether a file is opened to be written."""
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def is_below(path: str, folder: Path) -> bool:
    """Whether `path` lies in `folder`, in which the run began."""
    return not path.startswith("/") or path.startswith(str(folder))


# ---- what must be ------------------------------------------------------------------------------------------------


def read_tree(path: Path) -> object:
    """Return all that a file or a folder holds; None where there is none."""
    if path.is_dir():
        return {
            str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()
        }
    if not path.exists():
        return None
    held = path.read_bytes()
    return SECONDS.sub(b"", held) if path.suffix == ".html" else held


def find_leftovers(folder: Path, command: Command) -> list[str]:
    """Return what lies in the folders that are written into, beside what the command writes."""
    known = [folder / name for name in (*command.units, *command.journals)]
    found = [
        p for name in ("o", "tmp") for p in (folder / name).rglob("*") if p.name != ONNXRUNTIME
    ]
    found += [p for p in folder.iterdir() if ARCHIVE in p.name and not is_complete_archive(p)]
    return sorted(
        str(p.relative_to(folder))
        for p in found
        if not any(p == unit or p.is_relative_to(unit) or unit.is_relative_to(p) for unit in known)
    )


def is_complete_archive(path: Path) -> bool:
    """Whether `path` is the finished archive of a bug, nothing of it missing."""
    if not path.name.startswith(ARCHIVE) or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return archive.testzip() is None and "README.txt" in archive.namelist()


class FaultSandbox:
    """A folder with inputs, and what a command writes there of the old and of the new data."""

    def __init__(
        self, base: Path, command: Command, kills: int = 0, rng: random.Random | None = None
    ) -> None:
        self.base, self.command, self.home = base, command, base / "run"
        self.kills, self.rng = kills, rng or random.Random(0)
        self.states: dict[str, Path] = {}
        self.seconds = 0.0
        for version in ("old", "new"):
            self.reset("nothing")
            start = time.monotonic()
            code, told = self.run(version)
            self.seconds = time.monotonic() - start
            if code != command.code:
                raise SystemExit(f"{command.name}: {code}: {told}")
            self.states[version] = base / f"{command.name}_{version}"
            shutil.copytree(self.home / "o", self.states[version])
        self.wanted = {
            unit: [read_tree(state / Path(unit).relative_to("o")) for state in self.states.values()]
            for unit in command.units
        }

    def start(
        self, version: str = "new", prepare: Callable[[], None] = lambda: None
    ) -> ForkedCommand:
        """Begin to run the command."""

        def planting() -> None:
            self.command.planted().__enter__()  # until the child ends
            prepare()

        return ForkedCommand(self.command.args(version), self.home, planting)

    def run(
        self, version: str = "new", prepare: Callable[[], None] = lambda: None
    ) -> tuple[int, str]:
        """Run the command; return its exit code and what it told."""
        return self.start(version, prepare).wait()

    def reset(self, state: str) -> None:
        """Begin anew, with the results of `state`: old, new or nothing."""
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self.base / "inputs", self.home)
        (self.home / "tmp").mkdir()
        if state in self.states:
            shutil.copytree(self.states[state], self.home / "o")
        else:
            (self.home / "o").mkdir()

    def check_after_fault(self, what: str, row: Row, state: str, finished: bool) -> None:
        """Add to `row` what is wrong after a fault.

        Then, where something was left, run the command again.
        """
        before = {"old": 0, "nothing": None}[state]
        for unit, versions in self.wanted.items():
            found = read_tree(self.home / unit)
            right = (
                [versions[1]]
                if finished
                else [versions[1], None if before is None else versions[before]]
            )
            if found not in right:
                row.wrong.append(f"{what}: {unit} is neither old nor new")
        if finished and self.command.bug and not any(map(is_complete_archive, self.home.iterdir())):
            row.wrong.append(f"{what}: no archive")
        if not finished and not find_leftovers(self.home, self.command):
            return
        if not finished:
            code, told = self.run()
            if code != self.command.code:
                row.wrong.append(f"{what}: the next run ends with {code}: {told[-200:]}")
        if left := find_leftovers(self.home, self.command):
            row.wrong.append(f"{what}: {', '.join(left[:3])} stay")


# ---- the faults --------------------------------------------------------------------------------------------------


def inject_kills(place: FaultSandbox, row: Row) -> None:
    """Kill at every change of the file system, then at random times."""
    for state in ("old", "nothing"):
        place.reset(state)
        reader, writer = os.pipe()
        running = place.start(prepare=make_kill_hook(place.home, 0, writer))
        os.close(writer)
        running.wait()
        changes = len(os.read(reader, 65536))
        os.close(reader)
        row.tried["changes"] = max(row.tried.get("changes", 0), changes)
        for deadly in range(1, changes + 1, max(1, -(-2 * changes // max(place.kills, 1)))):
            place.reset(state)
            code, _ = place.run(prepare=make_kill_hook(place.home, deadly))
            row.count("kill")
            place.check_after_fault(
                f"killed at change {deadly} ({state})", row, state, code == place.command.code
            )
    while row.tried["kill"] < place.kills:
        place.reset("old")
        running = place.start()
        time.sleep(place.rng.uniform(0, place.seconds))
        os.kill(running.pid, signal.SIGKILL)
        code, _ = running.wait()
        row.count("kill")
        place.check_after_fault("killed at a random time", row, "old", code == place.command.code)


def inject_full_disk(place: FaultSandbox, row: Row) -> None:
    """Let every file end after so many bytes, as on a full disk."""
    sizes = sorted(p.stat().st_size for p in place.states["new"].rglob("*") if p.is_file())
    for limit in sorted({0, 1, sizes[len(sizes) // 2], sizes[-1] // 2, sizes[-1] - 1}):
        place.reset("old")
        code, told = place.run(
            prepare=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
        )
        row.count("full")
        check_error_line(row, f"files of {limit} bytes", code, told)
        place.check_after_fault(f"files of {limit} bytes", row, "old", code == place.command.code)


def check_error_line(row: Row, what: str, code: int, told: str) -> None:
    """A command that fails says so in one line, and is no bug of ours."""
    if code not in (0, 1) or "Traceback" in told or (code == 1 and len(told.splitlines()) != 1):
        row.wrong.append(f"{what}: exit code {code}: {(told.splitlines() or [''])[-1][:200]}")


#: Streams as a shell gives them, by name.
STREAMS = {
    "stdout closed": ">&-",
    "stderr closed": "2>&-",
    "both closed": ">&- 2>&-",
    "stdout full": ">/dev/full",
    "both full": ">/dev/full 2>/dev/full",
    "stdout cut off": "| head -c 1 >/dev/null",
}


def inject_closed_streams(place: FaultSandbox, row: Row) -> None:
    """Close streams, fill them, print to an ascii terminal; what was written stays."""
    settings: dict[str, tuple[str, Mapping[str, str]]] = {
        name: (tail, {}) for name, tail in STREAMS.items()
    }
    settings["ascii"] = ("", {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    for name, (tail, variables) in settings.items():
        place.reset("old")
        line = f"{sys.executable} -m lingeronnx {' '.join(place.command.args('new'))}"
        env = {
            **os.environ,
            "TMPDIR": str(place.home / "tmp"),
            "PYTHONPATH": os.getcwd(),
            **variables,
        }
        done = subprocess.run(
            ["bash", "-c", f"{line} {tail}"], cwd=place.home, env=env, capture_output=True
        )
        told = done.stderr.decode(errors="replace")
        row.count("streams")
        if "Traceback" in told or "Exception ignored" in told or done.returncode not in (0, 1):
            row.wrong.append(f"{name}: exit code {done.returncode}: {told.splitlines()[-1:]}")
        place.check_after_fault(name, row, "old", True)


def drop_privileges() -> None:
    """Let rights hold for this process, be it root's.

    Give up what goes past them, and nothing else.
    """
    size, data = ctypes.c_uint32 * 2, ctypes.c_uint32 * 6
    header, held, libc = size(0x20080522, 0), data(), ctypes.CDLL(None, use_errno=True)
    if libc.capget(header, held):
        raise OSError(ctypes.get_errno(), "capget")
    for word in (0, 1):  # effective and permitted: to write, to search, to own
        held[word] &= ~0b1110
    if libc.capset(header, held):
        raise OSError(ctypes.get_errno(), "capset")


def inject_permission_errors(place: FaultSandbox, row: Row) -> None:
    """Take the rights to write, then to search, away from the folder that is written into."""
    for mode in (0o555, 0o600):
        place.reset("old")
        (place.home / "o").chmod(mode)
        code, told = place.run(prepare=drop_privileges)
        (place.home / "o").chmod(0o755)
        row.count("forbidden")
        check_error_line(row, f"a folder of mode {mode:o}", code, told)
        place.check_after_fault(
            f"a folder of mode {mode:o}", row, "old", code == place.command.code
        )


def inject_wrong_clock(place: FaultSandbox, row: Row) -> None:
    """Set the clock to 1970, and to a year that no archive can hold."""
    for now in (0.0, 4_354_819_200.0):
        place.reset("old")

        def prepare(now: float = now) -> None:
            time.time = lambda: now

        code, told = place.run(prepare=prepare)
        row.count("clock")
        check_error_line(row, f"clock at {now:.0f}", code, told)
        place.check_after_fault(f"clock at {now:.0f}", row, "old", True)


def run_concurrently(place: FaultSandbox, row: Row) -> None:
    """Run the command twice at once."""
    place.reset("old")
    both = [place.start(), place.start()]
    row.count("twice")
    for running in both:
        check_error_line(row, "two at once", *running.wait())
    place.check_after_fault("two at once", row, "old", True)


# ---- the program -------------------------------------------------------------------------------------------------


def inputs(folder: Path) -> None:
    """Write models and data, old and new, into `folder`."""
    import lingeronnx as lo
    from lingeronnx.ir import ir

    folder.mkdir(parents=True)
    model = onnx.parser.parse_model(TINY)
    rng = np.random.default_rng(7)
    for name, shape in {"w": (2, 2, 3, 3), "b": (2,), "v": (3, 8), "d": (3,)}.items():
        array = rng.integers(-8, 8, shape).astype(np.float32) / 16
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, folder / "tiny.onnx")
    kept = Path(__file__).resolve().parents[2] / "tests" / "files" / "0.1"
    for version, name in CHECKPOINTS.items():
        shutil.copy(kept / name, folder / f"{version}.pt")
    (folder / "net.py").write_text(NET.replace("def net", "def new"))
    for factor, version in ((1, "old"), (5, "new")):
        x = factor * rng.integers(-16, 17, (20, 2, 4, 4)).astype(np.float32) / 16
        np.savez(folder / f"{version}.npz", x=x)
        lo.quantize(str(folder / "tiny.onnx"), x, effort="fast").save(folder / f"{version}_q.onnx")
        (folder / f"{version}.log").write_text(BOARD.format(*CYCLES[version]))
        graph = ir.to_proto(
            lo.quantize(str(folder / "tiny.onnx"), x, platform="arcs", effort="fast").graph
        )
        for node in graph.graph.node:  # a trace shows names, not what is computed
            node.name = f"{node.name}_{version}"
        onnx.save(graph, folder / f"{version}_layers.onnx")


def warm_up(base: Path, command: Command) -> None:
    """Run a command in this process, so that its children have imported and linked what it needs."""
    from lingeronnx.cli import main

    here, temporary = os.getcwd(), tempfile.tempdir
    home = base / "warm"
    shutil.copytree(base / "inputs", home)
    (home / "tmp").mkdir()
    (home / "o").mkdir()
    os.chdir(home)
    tempfile.tempdir = str(home / "tmp")
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        command.planted(),
    ):
        main(command.args("new"), prog_name="lingeronnx", standalone_mode=False)
    os.chdir(here)
    tempfile.tempdir = temporary
    shutil.rmtree(home)


def inject_faults(names: Sequence[str], kinds: Sequence[str], kills: int, seed: int) -> list[Row]:
    """Return a row for each of the commands called `names`."""
    run = {
        "kill": inject_kills,
        "full": inject_full_disk,
        "streams": inject_closed_streams,
        "forbidden": inject_permission_errors,
        "clock": inject_wrong_clock,
        "twice": run_concurrently,
    }
    rows = []
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        base = Path(made)
        base.chmod(0o755)
        inputs(base / "inputs")
        for command in COMMANDS:
            if command.name in names:
                row = Row(command.name)
                warm_up(base, command)
                place = FaultSandbox(base, command, kills, random.Random(seed))
                for kind in [kind for kind in kinds if kind in command.kinds]:
                    run[kind](place, row)
                rows.append(row)
                print(text(row), flush=True)
    return rows


def text(row: Row) -> str:
    """Return a row of the table, with what was wrong below it."""
    cells = " | ".join(str(row.tried.get(kind, 0)) for kind in ("changes", *KINDS))
    return "\n".join(
        [
            f"| {row.name} | {cells} | {len(row.wrong)} |",
            *(f"    {line}" for line in row.wrong[:20]),
        ]
    )


def main() -> None:
    """Print the table; exit code 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commands", nargs="*", default=[command.name for command in COMMANDS])
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--kills", type=int, default=200, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ.update(
        OMP_NUM_THREADS="1", LINGERONNX_THREADS="1"
    )  # a fork has no threads but the one that made it
    print(
        f"| command | changes | {' | '.join(KINDS)} | violations "
        f"|\n|---|{'---:|' * (len(KINDS) + 2)}"
    )
    rows = inject_faults(given.commands, given.kinds, given.kills, given.seed)
    raise SystemExit(any(row.wrong for row in rows))


if __name__ == "__main__":
    main()
