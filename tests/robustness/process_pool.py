"""Cases in processes that may die: forked from one that has loaded everything, watched, and
replaced.

Each process takes every n-th case. It has `SECONDS` of processor time for one, then it is ended:
the case hangs. The clock says nothing on a machine that does other things.
"""

import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.robustness import calls
from tests.robustness.case_generators import make_common_cases, make_valid_cases
from tests.robustness.monitors import Monitor

__all__ = ["SECONDS", "load", "run"]

SECONDS = 20  # of processor time for one case
MEMORY = 2 << 30  # bytes that one case may take beside what the process has
_ADDRESSES = (
    24 << 30
)  # bytes of addresses: an array of a hostile size is refused by the system, not tried
_CASES = 1000  # that a process runs before it is replaced
_TICK = os.sysconf("SC_CLK_TCK")


def run(cases, processes, done, until=None, nice=10):
    """Run `cases`, a list of (name, function that makes the case); call done(name, outcome) as each
    one ends.

    until : the time (time.monotonic) at which no further case is begun.
    """
    load()
    context = multiprocessing.get_context("fork")
    waiting = [list(range(start, len(cases), processes))[::-1] for start in range(processes)]
    workers = [None] * processes
    try:
        while any(waiting) or any(workers):
            for index in range(processes):
                if (
                    workers[index] is None
                    and waiting[index]
                    and (until is None or time.monotonic() < until)
                ):
                    workers[index] = _Worker(context, cases, waiting[index], until, nice)
                elif workers[index] is None:
                    waiting[index] = []
                else:
                    for number, found in workers[index].poll():
                        waiting[index].remove(number)
                        done(cases[number][0], found)
                    if workers[index].ended:
                        workers[index].close()
                        workers[index] = None
            time.sleep(0.1)
    finally:
        for worker in filter(None, workers):
            worker.close()


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, context, cases, numbers, until, nice):
        self.pipe, inner = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_work, args=(inner, cases, numbers[::-1][:_CASES], until, nice), daemon=True
        )
        self.process.start()
        inner.close()
        self.now, self.begun, self.ended = None, 0.0, False

    def poll(self):
        """Yield (number, outcome) of what has ended."""
        try:
            while self.pipe.poll():
                what, number, *rest = self.pipe.recv()
                if what == "begin":
                    self.now, self.begun = number, _spent(self.process.pid)
                else:
                    self.now = None
                    yield number, rest[0]
        except (EOFError, OSError):
            self.ended = True
        if self.ended and self.now is not None:
            self.process.join()
            code = self.process.exitcode
            name = signal.Signals(-code).name if code is not None and code < 0 else f"exit {code}"
            yield self.now, {"kind": "signal", "where": name, "text": ""}
            self.now = None
        elif self.now is not None and _spent(self.process.pid) - self.begun > SECONDS:
            number, self.now, self.ended = self.now, None, True
            yield number, {"kind": "hang", "where": _where(self.process.pid), "text": ""}

    def close(self):
        """End the process."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()


def _spent(pid):
    """Return the processor time of a process so far, in seconds."""
    with contextlib.suppress(OSError, IndexError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICK
    return 0.0


def _where(pid):
    """Return where a process is, as it has written it itself (faulthandler answers SIGUSR1)."""
    told = Path(tempfile.gettempdir()) / f"hostile-{pid}.txt"
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.3)
        lines = [
            line.strip()
            for line in told.read_text().splitlines()
            if "/lingeronnx/" in line or "/simulator/" in line
        ]
        told.unlink()
        return lines[0].replace('File "', "").split("/")[-1] if lines else "?"
    return "?"


def load(usual=False):
    """Load what the commands load and compile, so that processes begin with it; with one thread, as
    forks need.

    usual : run what many cases have in common, too.
    """
    os.environ.update(OMP_NUM_THREADS="1", LINGERONNX_THREADS="1")
    import importlib
    import pkgutil

    import lingeronnx
    import simulator

    ours = [
        m.name
        for p in (lingeronnx, simulator)
        for m in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")
    ]
    for name in (
        "onnxruntime",
        "yaml",
        "PIL.Image",
        "rich.console",
        "torch",
        "click.testing",
        "numba",
        *ours,
    ):
        with contextlib.suppress(ImportError):
            if not name.endswith("__main__"):
                importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            for case in make_valid_cases():
                case.write(folder)
                assert calls.outcome(case)["kind"] == "ok", case.call
            for number, case in enumerate(make_common_cases() if usual else ()):
                case.write(str(number))
                os.chdir(str(number))
                calls.outcome(case)
                os.chdir(folder)
        finally:
            os.chdir(before)


def _work(pipe, cases, numbers, until, nice):
    """Run cases in a folder that is empty for each; say before and after which one it is."""
    import faulthandler

    os.nice(nice)
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    trace = open(Path(tempfile.gettempdir()) / f"hostile-{os.getpid()}.txt", "w")  # noqa: SIM115 - open as long as the process
    faulthandler.register(signal.SIGUSR1, trace, all_threads=False)
    sys.stdin.close()
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    errors = folder / "stderr"
    with errors.open("wb") as file:  # what C++ writes past Python
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    monitor = Monitor(folder / "scratch")
    try:
        for number in numbers:
            if until is not None and time.monotonic() > until:
                break
            pipe.send(("begin", number))
            case = cases[number][1]()
            before, place = _peak(), folder / "case"
            errors.write_bytes(b"")
            place.mkdir()
            case.write(place)
            os.chdir(place)
            try:
                with monitor.watch(place):
                    found = calls.outcome(case)
            except BaseException as error:  # what got out of the call in spite of all
                found = {
                    "kind": "signal",
                    "where": f"{type(error).__name__} in the worker",
                    "text": "",
                }
            os.chdir(folder)
            outside = monitor.find_violation(case, place)
            shutil.rmtree(place, ignore_errors=True)
            found = _beside(found, errors.read_bytes().decode("utf-8", "replace"), _peak() - before)
            if outside and found["kind"] in ("ok", "line"):
                found = {"kind": "outside", "where": outside, "text": found["text"]}
            found["reached"] = sorted(monitor.stages)
            pipe.send(("end", number, found))
            if found["kind"] in calls.BAD or _peak() > before + MEMORY // 4:
                break  # what it left behind is not the next one's business
    finally:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
        trace.close()
        Path(trace.name).unlink(missing_ok=True)
        pipe.close()
        os._exit(0)


def _beside(found, text, grown):
    """Return an outcome after a look at what went past Python: text on stderr, and memory."""
    if found["kind"] in ("ok", "line") and grown > MEMORY:
        return {"kind": "memory", "where": f"{grown >> 30} GiB", "text": found["text"]}
    if found["kind"] in ("ok", "line") and text.strip("\0 \n"):
        return {"kind": "foreign", "where": "stderr", "text": text[-2000:]}
    return found


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
