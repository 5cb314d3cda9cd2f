"""The number of computing threads: what the user set, else what the process may use.

`LINGERONNX_THREADS` comes first, then `OMP_NUM_THREADS`, then the processors of the process's CPU
affinity, of which its control group may have a quota (containers: `docker run --cpus 2`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from simulator.kernel import SimulatorError

__all__ = [
    "choose_threads",
    "count_usable_cores",
    "count_usable_processors",
    "get_configured_threads",
]

_MAX_THREADS = 1024
_PROCESS_GROUPS = Path("/proc/self/cgroup")
_GROUP_ROOT = Path("/sys/fs/cgroup")
_PROCESSORS = Path("/sys/devices/system/cpu")


def get_configured_threads() -> int:
    """Return the value of `LINGERONNX_THREADS`, else that of `OMP_NUM_THREADS`, or 0 without both.

    Of a list in `OMP_NUM_THREADS` the first number counts; what OpenMP would ignore is ignored.

    Raises
    ------
    SimulatorError
        If `LINGERONNX_THREADS` is not an integer from 0 to 1024.
    """
    text = os.environ.get("LINGERONNX_THREADS", "").strip() or "0"
    if not (text.isdecimal() and len(text) < 10 and int(text) <= _MAX_THREADS):
        raise SimulatorError(
            f"LINGERONNX_THREADS is '{text[:40]}'; it must be a number of threads up to "
            f"{_MAX_THREADS}"
        )
    if int(text):
        return int(text)
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if not (text.isascii() and text.isdecimal()):
        return 0
    return min(int(text[:9]), _MAX_THREADS)


def choose_threads() -> int:
    """Return the number of threads to compute with: the configured one, else all usable processors.

    Raises SimulatorError if `LINGERONNX_THREADS` is invalid.
    """
    return get_configured_threads() or count_usable_processors()


def count_usable_processors() -> int:
    """Return how many processors this process may keep busy: its affinity, limited by its quota."""
    count = len(_get_affinity())
    quota = _read_quota()
    return count if quota is None else max(1, min(count, math.ceil(quota)))


def count_usable_cores() -> int | None:
    """Return the number of cores of the processors in the affinity; None if unknown.

    Fewer cores than processors means that some are hyperthreads of one core.
    """
    cores = set()
    for processor in _get_affinity():
        path = _PROCESSORS / f"cpu{processor}" / "topology" / "thread_siblings_list"
        try:
            cores.add(path.read_text().strip())
        except OSError:
            return None
    return len(cores)


def _get_affinity() -> set[int]:
    """Return the processors that the scheduler may run this process on; all where unknown."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


@cache
def _read_quota() -> float | None:
    """Return the processors that the control group of this process may use; None without limit.

    A group is also limited by those that contain it, so the smallest quota counts.
    """
    quotas = []
    for folder in _iterate_group_folders():
        try:
            quotas.append(_read_folder_quota(folder))
        except (OSError, ValueError, ZeroDivisionError):  # another version, or not readable
            continue
    return min((quota for quota in quotas if quota is not None), default=None)


def _iterate_group_folders() -> Iterator[Path]:
    """Yield the folders of the groups of this process that may limit processors, inner ones first.

    A container may see its own group as the root: paths that do not exist yield their parents.
    """
    try:
        lines = _PROCESS_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        names = (controllers, "cpu") if controllers else ("unified", ".")  # or version 2
        folders = [_GROUP_ROOT / name for name in names if (_GROUP_ROOT / name).is_dir()]
        if not folders:
            continue
        group = Path(path.lstrip("/"))
        for inner in (group, *group.parents):
            yield folders[0] / inner


def _read_folder_quota(folder: Path) -> float | None:
    """Return the quota of processors in the folder of a control group; None without limit.

    Raises OSError if it has none, ValueError if it cannot be read.
    """
    limit = folder / "cpu.max"  # version 2: "max 100000" or "150000 100000"
    if limit.is_file():
        quota, period = limit.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    microseconds = int((folder / "cpu.cfs_quota_us").read_text())  # version 1: -1 without limit
    period_us = int((folder / "cpu.cfs_period_us").read_text())
    return microseconds / period_us if microseconds > 0 else None
