"""How many threads: variables of the environment, CPU affinity, quotas of control groups, and cores."""

import os

import pytest

from lingeronnx.runtime.runners import sessions
from simulator import _threads


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A process without variables that may use 8 processors, and files that describe its groups."""
    for name in ("LINGERONNX_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_threads, "_PROCESS_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(_threads, "_GROUP_ROOT", tmp_path / "fs")
    monkeypatch.setattr(_threads, "_PROCESSORS", tmp_path / "cpu")
    monkeypatch.setattr(_threads, "_get_affinity", lambda: set(range(8)))
    _threads._read_quota.cache_clear()
    yield tmp_path
    _threads._read_quota.cache_clear()


def write(folder, **files):
    """Write files of a folder, "__" in a name for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize(
    "ours, openmp, expected",
    (
        (None, None, 8),
        ("3", "5", 3),
        ("0", "5", 5),
        (None, "5", 5),
        (None, "4,2", 4),
        (None, "all", 8),
        (None, "0", 8),
        (None, "99999", 1024),
    ),
)
def test_variables_come_first(system, monkeypatch, ours, openmp, expected):
    for name, value in (("LINGERONNX_THREADS", ours), ("OMP_NUM_THREADS", openmp)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert _threads.choose_threads() == expected


@pytest.mark.parametrize("text", ("-1", "two", "1025", "1.5"))
def test_an_invalid_number_is_refused(system, monkeypatch, text):
    monkeypatch.setenv("LINGERONNX_THREADS", text)
    with pytest.raises(ValueError, match="LINGERONNX_THREADS is"):
        _threads.choose_threads()


@pytest.mark.parametrize(
    "limit, expected",
    (
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("1600000 100000", 8),
        ("damaged", 8),
        ("1 0", 8),
    ),
)
def test_a_quota_of_version_2(system, limit, expected):
    write(system, cgroup="0::/app/job\n")
    write(system / "fs" / "app" / "job", cpu__max=limit)
    assert _threads.count_usable_processors() == expected


def test_an_outer_group_limits_its_inner_ones(system):
    write(system, cgroup="0::/app/job\n")
    write(system / "fs" / "app" / "job", cpu__max="400000 100000")
    write(system / "fs" / "app", cpu__max="300000 100000")
    write(system / "fs", cpu__max="max 100000")
    assert _threads.count_usable_processors() == 3


def test_a_container_sees_its_own_group_as_the_root(system):
    """The path is that of the host, and does not exist inside."""
    write(system, cgroup="0::/docker/0123\n")
    write(system / "fs", cpu__max="250000 100000")
    assert _threads.count_usable_processors() == 3


@pytest.mark.parametrize("folder", ("cpu,cpuacct", "cpu"))
@pytest.mark.parametrize("quota, expected", (("-1", 8), ("50000", 1), ("350000", 4)))
def test_a_quota_of_version_1(system, folder, quota, expected):
    """Only the group of the controller "cpu" counts, not that of "cpuset"."""
    write(system, cgroup="5:cpuset:/tiny\n4:cpu,cpuacct:/app\n0::/\n")
    write(system / "fs" / "cpuset" / "tiny", cpu__cfs_quota_us="1", cpu__cfs_period_us="100000")
    write(system / "fs" / folder / "app", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert _threads.count_usable_processors() == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_the_affinity_counts(monkeypatch):
    monkeypatch.delenv("LINGERONNX_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert _threads.choose_threads() == _threads.count_usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    "siblings, cores", ((("0-1", "0-1"), 1), (("0", "1"), 2), (("0", None), None))
)
def test_hyperthreads_of_one_core(system, monkeypatch, siblings, cores):
    monkeypatch.setattr(_threads, "_get_affinity", lambda: {0, 1})
    for processor, text in enumerate(siblings):
        if text is not None:
            write(system / "cpu" / f"cpu{processor}" / "topology", thread_siblings_list=text)
    assert _threads.count_usable_cores() == cores


@pytest.mark.parametrize("usable, expected", ((8, 0), (3, 3)))
def test_onnxruntime_is_told_of_a_restriction_only(system, monkeypatch, usable, expected):
    """It starts a thread for each core of the system, whatever the process may use."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(_threads, "_get_affinity", lambda: set(range(usable)))
    assert sessions._requested_threads() == expected
