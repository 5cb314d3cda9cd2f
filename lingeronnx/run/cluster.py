"""The same items of work in this process, in several processes, or on a Dask cluster.

A `Job` is what every worker is given once, models and settings; an item is a few samples, which go
to one worker. What an item gives does not depend on where it is worked on, and results come in the
order of the items, so that whoever adds them up gets the same bits for any number of workers. Knows
nothing of what is computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..errors import ConfigError

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as Remote

__all__ = ["Job", "map_jobs"]

_LOG = logging.getLogger(__name__)
_PREFETCH_PER_WORKER = 2  # items for each worker that are on their way: one is worked on, one waits
_MAX_TRIES = 4  # how often an item is given out whose worker went away
_TIMEOUT_SECONDS = 10  # seconds in which a cluster answers
_RETRY_DELAY_SECONDS = 0.5  # seconds before data are sent again


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Future = TypeVar("_Future")
_In = TypeVar("_In", contravariant=True)
_Out = TypeVar("_Out", covariant=True)


class Job(Protocol[_In, _Out]):
    """What every worker is given once; it can be pickled."""

    def start(self) -> Callable[[_In], _Out]:
        """Return the function of one item.

        Sessions and the like are opened here, at the place of work.
        """
        ...


def map_jobs(
    job: Job[_Item, _Result],
    items: Iterable[_Item],
    workers: int | None = None,
    cluster: str | None = None,
) -> Generator[_Result, None, None]:
    """Yield what `job` makes of every item, in their order.

    workers : processes; None works here. cluster : the address of a Dask scheduler. An item is
    taken from `items` only when somebody is about to work on it. Raises ConfigError where both are
    given, where the job cannot be sent, where no cluster answers, and where workers are killed;
    what the job itself raises comes through. A worker of a cluster that is gone is told on the log,
    and its items go to others.
    """
    if workers is not None and cluster is not None:
        raise ConfigError("workers and cluster: give one of the two")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers = {workers}; at least 1 is needed")
    if cluster is not None:
        yield from _map_on_cluster(_pickle_job(job), items, cluster)
    elif workers is not None:
        yield from _map_in_processes(_pickle_job(job), items, workers)
    else:
        yield from map(job.start(), items)


@dataclass(frozen=True)
class _PackedJob(Generic[_Item, _Result]):
    """A job on its way; `key` is the same for equal jobs."""

    body: bytes
    key: str


def _pickle_job(job: Job[_Item, _Result]) -> _PackedJob[_Item, _Result]:
    try:
        body = pickle.dumps(job)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"this cannot be sent to other processes ({error}); name functions as "
            "file.py:function, or leave the "
            "workers out"
        ) from error
    return _PackedJob(body, hashlib.blake2b(body, digest_size=16).hexdigest())


@dataclass
class _WorkerState:
    """What a worker process holds: the functions of the jobs it was given."""

    functions: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def run_item(self, job: _PackedJob[_Item, _Result], item: _Item) -> _Result:
        """Work on an item, one at a time: sessions may not be shared by threads."""
        with self.lock:
            if job.key not in self.functions:
                self.functions.clear()  # one job after another; its models are large
                self.functions[job.key] = pickle.loads(job.body).start()
            return self.functions[job.key](item)


_WORKER_STATE = _WorkerState()


# ---- processes ---------------------------------------------------------------------------------------------------


@dataclass
class _ReceivedJob:
    job: _PackedJob | None = None


_RECEIVED_JOB = _ReceivedJob()


def _init_worker(job: _PackedJob, threads: int) -> None:
    os.environ["LINGERONNX_THREADS"] = str(threads)
    _RECEIVED_JOB.job = job


def _run_in_worker(item: Any) -> Any:  # noqa: ANN401 - of the job that the process was given
    assert _RECEIVED_JOB.job is not None
    return _WORKER_STATE.run_item(_RECEIVED_JOB.job, item)


def _map_in_processes(
    job: _PackedJob[_Item, _Result], items: Iterable[_Item], workers: int
) -> Iterator[_Result]:
    threads = max(1, (os.cpu_count() or 1) // workers)
    # spawn: the threads of onnxruntime and the simulator do not survive a fork
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _init_worker, (job, threads))
    try:
        with contextlib.closing(
            _submit_in_order(items, lambda item: pool.submit(_run_in_worker, item), workers)
        ) as ahead:
            for _, future in ahead:
                yield future.result()
    except BrokenProcessPool as error:
        raise ConfigError(
            "a worker process ended before its work did: killed, out of memory, or started by a "
            "script without the "
            "line if __name__ == '__main__':"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _submit_in_order(
    items: Iterable[_Item], submit: Callable[[_Item], _Future], workers: int
) -> Generator[tuple[_Item, _Future], None, None]:
    """Yield (item, what `submit` returned), in order, with a few items given out ahead."""
    waiting: deque[tuple[_Item, _Future]] = deque()
    for item in items:
        waiting.append((item, submit(item)))
        if len(waiting) >= _PREFETCH_PER_WORKER * workers:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


# ---- Dask --------------------------------------------------------------------------------------------------------


def _run_on_dask_worker(job: _PackedJob[_Item, _Result], item: _Item) -> _Result:
    os.environ.setdefault("LINGERONNX_THREADS", "1")  # the cluster has a process for each core
    return _WORKER_STATE.run_item(job, item)


def _map_on_cluster(
    job: _PackedJob[_Item, _Result], items: Iterable[_Item], address: str
) -> Iterator[_Result]:
    try:
        from distributed import Client
    except ImportError as error:
        raise ConfigError("a cluster needs Dask: pip install 'lingeronnx[cluster]'") from error
    try:
        client = Client(address, timeout=_TIMEOUT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:  # a timeout is an OSError
        raise ConfigError(
            f"no Dask scheduler answers at {address} within {_TIMEOUT_SECONDS} seconds; start one "
            "with: dask scheduler"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise ConfigError(
                f"the cluster at {address} has no worker; start some with: dask worker {address}"
            ) from error
        sent, there = _ClusterJob(client, job), set(client.ncores())
        with contextlib.closing(_submit_in_order(items, sent.submit, len(there))) as ahead:
            for item, future in ahead:
                result = sent.result(item, future)
                there = _log_lost_workers(there, set(client.ncores()))
                yield result


def _log_lost_workers(before: set[str], now: set[str]) -> set[str]:
    """Return the workers that are there now; say which are gone."""
    for worker in sorted(before - now):
        _LOG.warning(
            "the cluster lost the worker %s; its work goes to the other %d", worker, len(now)
        )
    return now


class _ClusterJob(Generic[_Item, _Result]):
    """A job that the workers of a cluster have."""

    def __init__(self, client: Client, job: _PackedJob[_Item, _Result]) -> None:
        self._client, self._job = client, job
        self._given = self._scatter_with_retry(job, broadcast=True)

    def _scatter_with_retry(self, data: object, broadcast: bool = False) -> object:
        """Bring data to one worker, or to all.

        Again where the one that was chosen is just going away.
        """
        for _ in range(_MAX_TRIES - 1):
            with contextlib.suppress(OSError):
                return self._client.scatter(data, broadcast=broadcast, hash=False)
            time.sleep(_RETRY_DELAY_SECONDS)
        return self._client.scatter(data, broadcast=broadcast, hash=False)

    def submit(self, item: _Item) -> Remote[_Result]:
        """Send the item to one worker."""
        return self._client.submit(
            _run_on_dask_worker, self._given, self._scatter_with_retry(item), pure=False
        )

    def result(self, item: _Item, future: Remote[_Result]) -> _Result:
        """Return what became of the item.

        It goes to another worker where the one that had it is gone.
        """
        from distributed import KilledWorker

        for _ in range(_MAX_TRIES - 1):
            try:
                return future.result()
            except (CancelledError, KilledWorker):  # data die with the worker that holds them
                self._given = self._scatter_with_retry(self._job, broadcast=True)
                future = self.submit(item)
        try:
            return future.result()
        except (CancelledError, KilledWorker) as error:
            raise ConfigError(
                f"the cluster's workers were killed {_MAX_TRIES} times over one item of work; give "
                "them more memory"
            ) from error
