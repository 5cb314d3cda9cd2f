"""Map a job over items in this process, in several processes, or on a Dask cluster.

A `Job` (models and settings) is sent to every worker once; an item is a few samples, which one
worker processes. The result of an item does not depend on the worker, and results are yielded in
the order of the items, so sums are bit-identical for any number of workers. Knows nothing of the
computation itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from ..common.errors import ConfigError
from ..common.hashing import hash_concatenation

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as Remote

__all__ = ["Job", "map_jobs"]

_LOG = logging.getLogger(__name__)
_PREFETCH_PER_WORKER = 2  # submitted items per worker: one is processed, one waits
_MAX_TRIES = 4  # attempts for an item whose worker was lost
_TIMEOUT_SECONDS = 10  # for a cluster to answer
_RETRY_DELAY_SECONDS = 0.5  # before data are sent again


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Future = TypeVar("_Future")
_In = TypeVar("_In", contravariant=True)
_Out = TypeVar("_Out", covariant=True)


class Job(Protocol[_In, _Out]):
    """Work that is sent to every worker once; it must be picklable."""

    def start(self) -> Callable[[_In], _Out]:
        """Return the function that processes one item.

        It is called once on the worker, so that sessions and the like are opened there.
        """
        ...


def map_jobs(
    job: Job[_Item, _Result],
    items: Iterable[_Item],
    workers: int | None = None,
    cluster: str | None = None,
) -> Generator[_Result, None, None]:
    """Yield the result of `job` for every item, in order.

    Parameters
    ----------
    job
        Work to do for each item.
    items
        Items; one is taken only when a worker is about to process it.
    workers
        Number of processes; None processes the items in this process.
    cluster
        Address of a Dask scheduler. A lost worker is logged, and its items are reassigned.

    Raises
    ------
    ConfigError
        If both workers and cluster are passed, `workers` is below 1, the job cannot be pickled, no
        cluster answers, or workers are killed. Exceptions of the job itself are passed on.
    """
    if workers is not None and cluster is not None:
        raise ConfigError("workers and cluster: pass only one of the two")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers = {workers}; at least 1 is needed")
    if cluster is not None:
        yield from _map_on_cluster(_pickle_job(job), items, cluster)
    elif workers is not None:
        yield from _map_in_processes(_pickle_job(job), items, workers)
    else:
        yield from map(job.start(), items)


class _PackedJob(NamedTuple, Generic[_Item, _Result]):
    """A pickled job; `key` is the same for equal jobs."""

    body: bytes
    key: str


def _pickle_job(job: Job[_Item, _Result]) -> _PackedJob[_Item, _Result]:
    """Pickle a job together with its key, a hash of the bytes.

    Raises ConfigError if it cannot be pickled.
    """
    try:
        body = pickle.dumps(job)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"cannot pickle the job for worker processes ({error}); pass functions as "
            "file.py:function, or omit --workers"
        ) from error
    return _PackedJob(body, hash_concatenation([body]))


@dataclass
class _WorkerState:
    """State of a worker process: the functions of the jobs that it received."""

    functions: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def run_item(self, job: _PackedJob[_Item, _Result], item: _Item) -> _Result:
        """Return the result of `job` for `item`.

        One item at a time, because threads must not share sessions. The function of a job is loaded
        at its first item, and replaces that of another job.
        """
        with self.lock:
            if job.key not in self.functions:
                self.functions.clear()  # jobs do not overlap, and models are large
                self.functions[job.key] = pickle.loads(job.body).start()
            result: _Result = self.functions[job.key](item)
            return result


_WORKER_STATE = _WorkerState()


# ---- processes -----------------------------------------------------------------------------------


@dataclass
class _ReceivedJob:
    """The job of this worker process; None before a worker process has received one."""

    job: _PackedJob[Any, Any] | None = None


_RECEIVED_JOB = _ReceivedJob()


def _init_worker(job: _PackedJob[Any, Any], threads: int) -> None:
    """Store `job` in a new worker process, and the number of threads in LINGERONNX_THREADS."""
    os.environ["LINGERONNX_THREADS"] = str(threads)
    _RECEIVED_JOB.job = job


def _run_in_worker(item: Any) -> Any:  # noqa: ANN401 - types of the job
    """Return the result for `item` of the job that this worker process received."""
    assert _RECEIVED_JOB.job is not None
    return _WORKER_STATE.run_item(_RECEIVED_JOB.job, item)


def _map_in_processes(
    job: _PackedJob[_Item, _Result], items: Iterable[_Item], workers: int
) -> Iterator[_Result]:
    """Yield the results of all items in order, computed by `workers` spawned processes.

    Each uses an equal part of the processors that this process may use. Raises ConfigError if a
    process dies; errors of the job are passed on. The processes end with the iterator.
    """
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
    from multiprocessing import get_context

    from simulator._threads import count_usable_processors

    threads = max(1, count_usable_processors() // workers)
    # spawn: the threads of onnxruntime and the simulator do not survive a fork
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _init_worker, (job, threads))
    futures = _submit_in_order(items, lambda item: pool.submit(_run_in_worker, item), workers)
    try:
        with contextlib.closing(futures):
            for _, future in futures:
                yield future.result()
    except BrokenProcessPool as error:
        raise ConfigError(
            "a worker process ended before its work was done: killed, out of memory, or started by "
            "a script without the line if __name__ == '__main__':"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _submit_in_order(
    items: Iterable[_Item], submit: Callable[[_Item], _Future], workers: int
) -> Generator[tuple[_Item, _Future], None, None]:
    """Yield (item, submitted result) in the order of `items`.

    `submit` starts the work on an item. Up to `_PREFETCH_PER_WORKER` * `workers` items are
    submitted before the first is yielded.
    """
    pending: deque[tuple[_Item, _Future]] = deque()
    for item in items:
        pending.append((item, submit(item)))
        if len(pending) >= _PREFETCH_PER_WORKER * workers:
            yield pending.popleft()
    while pending:
        yield pending.popleft()


# ---- Dask ----------------------------------------------------------------------------------------


def _run_on_dask_worker(job: _PackedJob[_Item, _Result], item: _Item) -> _Result:
    """Return the result of `job` for `item`, on a worker of a cluster.

    Uses one thread unless LINGERONNX_THREADS is set.
    """
    os.environ.setdefault("LINGERONNX_THREADS", "1")  # the cluster has a process for each core
    return _WORKER_STATE.run_item(job, item)


def _map_on_cluster(
    job: _PackedJob[_Item, _Result], items: Iterable[_Item], address: str
) -> Iterator[_Result]:
    """Yield the results of all items in order, computed by the Dask cluster at `address`.

    Lost workers are logged. Raises ConfigError if Dask is not installed, no scheduler answers, the
    cluster has no worker, or workers are killed again and again.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise ConfigError("a cluster needs Dask: pip install 'lingeronnx[cluster]'") from error
    try:
        client = Client(address, timeout=_TIMEOUT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:  # a timeout is an OSError
        raise ConfigError(
            f"no Dask scheduler answered at {address} within {_TIMEOUT_SECONDS} seconds; start one "
            "with: dask scheduler"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise ConfigError(
                f"the cluster at {address} has no worker; start some with: dask worker {address}"
            ) from error
        cluster_job, workers = _ClusterJob(client, job), set(client.ncores())
        futures = _submit_in_order(items, cluster_job.submit, len(workers))
        with contextlib.closing(futures):
            for item, future in futures:
                result = cluster_job.result(item, future)
                workers = _log_lost_workers(workers, set(client.ncores()))
                yield result


def _log_lost_workers(previous: set[str], current: set[str]) -> set[str]:
    """Log a warning for each worker of `previous` that is not in `current`; return `current`."""
    for worker in sorted(previous - current):
        _LOG.warning(
            "lost cluster worker %s; reassigning its work to the remaining %d", worker, len(current)
        )
    return current


class _ClusterJob(Generic[_Item, _Result]):
    """A job that was sent to all workers of a Dask cluster."""

    def __init__(self, client: Client, job: _PackedJob[_Item, _Result]) -> None:
        """Send the pickled `job` to all workers of the cluster that `client` is connected to."""
        self._client, self._job = client, job
        self._scattered_job = self._scatter_with_retry(job, broadcast=True)

    def _scatter_with_retry(self, data: object, broadcast: bool = False) -> object:
        """Send data to one worker, or to all if `broadcast`; return Dask's future of the data.

        An OSError is retried up to `_MAX_TRIES` times in all, since the selected worker may just be
        disappearing; the last one is passed on.
        """
        for _ in range(_MAX_TRIES - 1):
            with contextlib.suppress(OSError):
                return self._client.scatter(data, broadcast=broadcast, hash=False)
            time.sleep(_RETRY_DELAY_SECONDS)
        return self._client.scatter(data, broadcast=broadcast, hash=False)

    def submit(self, item: _Item) -> Remote[_Result]:
        """Send `item` to one worker and return the future of its result, without waiting."""
        return self._client.submit(
            _run_on_dask_worker, self._scattered_job, self._scatter_with_retry(item), pure=False
        )

    def result(self, item: _Item, future: Remote[_Result]) -> _Result:
        """Wait for `future` and return the result of `item`.

        If its worker was lost, the job and the item are sent again, up to `_MAX_TRIES` times in
        all; then ConfigError is raised.
        """
        from concurrent.futures import CancelledError

        from distributed import KilledWorker

        for _ in range(_MAX_TRIES - 1):
            try:
                return future.result()
            except (CancelledError, KilledWorker):  # data are lost with the worker that has them
                self._scattered_job = self._scatter_with_retry(self._job, broadcast=True)
                future = self.submit(item)
        try:
            return future.result()
        except (CancelledError, KilledWorker) as error:
            raise ConfigError(
                f"the cluster's workers were killed {_MAX_TRIES} times while processing one item; "
                "give them more memory"
            ) from error
