"""The machine: named steps -> a program that runs any batch.

Owns: checking that steps fit together, fusing a Relu or Clip into the kernel before it, the cutting
of batches into blocks and their distribution over threads, taps and forced tensors. Must not know:
any particular operator (it asks the `Kernel`), where tensors live (`layout`), rounding.

A program computes the same integers for every block size and every number of threads, because
kernels share no state and every sample is computed alone. A batch is cut into blocks, as many for
each thread; a thread, the caller's among them, walks through the whole program with one block after
the other on buffers of its own. Packed weights are shared.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from simulator._threads import get_configured_threads
from simulator.kernel import Array, Kernel, NumpyKernel, SimulatorError, Step, TensorSpec, require
from simulator.layout import CHANNEL_LAST, PLAIN, Buffer, BuiltStep, ProgramLayout, stack_samples
from simulator.worker import Worker, slice_samples

__all__ = [
    "Kernel",
    "NumpyKernel",
    "Program",
    "SimulatorError",
    "Step",
    "TensorSpec",
    "compile_program",
]

_CACHE_BYTES = (
    512 * 1024
)  # what the inputs and outputs of a step may take of a core's second-level cache
_MAX_BLOCK_SAMPLES = 32
_MIN_THREAD_SECONDS = (
    150e-6  # seconds of work for which a thread is worth being woken, which takes almost as long
)
_MAX_CACHED_BLOCK_SIZES = 4  # sizes of blocks whose memory is kept for the next run


def compile_program(
    steps: Sequence[Step],
    inputs: Mapping[str, TensorSpec],
    keep: Collection[str] | None = None,
    *,
    block: int | None = None,
    threads: int | None = None,
) -> Program:
    """Check, fuse, lay out and build the steps.

    Parameters
    ----------
    steps
        In an order in which every tensor is made before it is read; each name is made once.
    inputs
        Specs of the fed tensors. Axis 0 is 1 and stands for the batch where every kernel works
        sample by sample; otherwise the shapes are exact.
    keep
        Names that a run yields; None keeps every tensor.
    block
        Samples computed together; by default as many as fit the cache.
    threads
        Threads that compute, the caller's among them; by default `LINGERONNX_THREADS`, else the
        number of processors.

    Raises
    ------
    SimulatorError
        Naming the step, when names, shapes or dtypes do not fit.
    """
    steps = list(steps)
    specs, batched = _infer(steps, inputs)
    kept = set(specs) if keep is None else set(keep)
    require(kept <= set(specs), f"no step makes {sorted(kept - set(specs))}, which shall be kept")
    follows = all(_has_unit_batch(spec) for spec in inputs.values())
    if follows:
        apart = [
            step if _supports_batch(step, specs, batched) else _make_per_sample(step, specs)
            for step in steps
        ]
        follows = all(_supports_batch(step, specs, batched) for step in apart)
        steps = apart if follows else steps
    layout = ProgramLayout(inputs, specs, batched if follows else set(), kept)
    for step in _fuse(steps, kept):
        layout.add(step)
    if threads is None:
        threads = get_configured_threads() or os.cpu_count() or 1
    order = [*inputs, *(name for step in steps for name in step.outputs)]
    return Program(
        inputs=dict(inputs),
        output_names=tuple(name for name in order if name in kept),
        accepts_batches=follows,
        threads=max(threads, 1),
        block=max(block, 1)
        if block
        else min(max(_CACHE_BYTES // layout.max_step_bytes(), 1), _MAX_BLOCK_SAMPLES),
        _specs={name: specs[name] for name in kept},
        _batched=frozenset(batched if follows else ()),
        _buffers=layout.assign_slots(),
        _ops=tuple(layout.steps),
        _places={name: dict(places) for name, places in layout.buffer_ids.items()},
        _constants=layout.constants,
    )


@cache
def _get_thread_pool(count: int) -> ThreadPoolExecutor:
    """Return the threads that compute beside a caller's, for all programs.

    Starting some costs as much as a step.
    """
    return ThreadPoolExecutor(count)


if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=_get_thread_pool.cache_clear)


def _has_unit_batch(spec: TensorSpec) -> bool:
    return spec.shape[:1] == (1,)


def _infer(
    steps: Sequence[Step], inputs: Mapping[str, TensorSpec]
) -> tuple[dict[str, TensorSpec], set[str]]:
    """Return the spec of every tensor and the names of those that depend on a fed one."""
    specs, batched = dict(inputs), set(inputs)
    for step in steps:
        where = f"{type(step.kernel).__name__} -> {', '.join(step.outputs)}"
        missing = [name for name in step.inputs if name not in specs]
        require(not missing, f"{where}: reads {missing}, which nothing made before it")
        again = [name for name in step.outputs if name in specs]
        require(not again, f"{where}: makes {again} a second time")
        given = [specs[name] for name in step.inputs]
        listed = ", ".join(f"{name} {spec}" for name, spec in zip(step.inputs, given, strict=True))
        try:
            made = step.kernel.infer(*given)
        except SimulatorError as error:
            raise SimulatorError(f"{where}: {error} (inputs: {listed})") from error
        except (TypeError, ValueError) as error:
            raise SimulatorError(f"{where}: cannot take its inputs {listed}: {error}") from error
        require(
            len(made) == len(step.outputs),
            f"{where}: makes {len(made)} outputs, not {len(step.outputs)}",
        )
        specs.update(zip(step.outputs, made, strict=True))
        if batched.intersection(step.inputs):
            batched.update(step.outputs)
    return specs, batched


def _supports_batch(step: Step, specs: Mapping[str, TensorSpec], batched: Collection[str]) -> bool:
    """Whether the step works sample by sample on the tensors it reads."""
    flags = [name in batched for name in step.inputs]
    return not any(flags) or step.kernel.supports_batch(
        [specs[name] for name in step.inputs], flags
    )


def _make_per_sample(step: Step, specs: Mapping[str, TensorSpec]) -> Step:
    """Return the step for each sample by itself, where there is such a kernel."""
    kernel = step.kernel.make_per_sample(len(specs[step.inputs[0]].shape)) if step.inputs else None
    return step if kernel is None else Step(kernel, step.inputs, step.outputs)


def _fuse(steps: Sequence[Step], kept: Collection[str]) -> list[Step]:
    """Let kernels absorb the only reader of their output, where that output is not kept."""
    readers = Counter(name for step in steps for name in step.inputs)
    fused: list[Step] = []
    made: dict[str, int] = {}
    for step in steps:
        before = made.get(step.inputs[0]) if len(step.inputs) == 1 else None
        if before is not None and readers[step.inputs[0]] == 1 and step.inputs[0] not in kept:
            first = fused[before]
            kernel = first.kernel.fuse(step.kernel) if len(first.outputs) == 1 else None
            if kernel is not None:
                fused[before] = Step(kernel, first.inputs, step.outputs)
                made[step.outputs[0]] = before
                continue
        made.update(dict.fromkeys(step.outputs, len(fused)))
        fused.append(step)
    return fused


def _to_contiguous(x: Array) -> Array:
    """Return `x` where compiled code can read it."""
    return x if x.flags.c_contiguous and x.flags.aligned else np.require(x, requirements=["C", "A"])


@dataclass(frozen=True, eq=False)
class Program:
    """Built steps. `run` may be called from several threads.

    Attributes
    ----------
    inputs
        Specs of the feeds.
    names
        What a run yields, in order.
    per_sample
        Whether any batch may be fed; otherwise feeds have exactly the shapes of `inputs`.
    block, threads
        Samples computed together, at most, and threads that compute, the caller's among them.
    """

    inputs: dict[str, TensorSpec]
    output_names: tuple[str, ...]
    accepts_batches: bool
    block: int
    threads: int
    _specs: dict[str, TensorSpec] = field(repr=False)
    _batched: frozenset[str] = field(repr=False)
    _buffers: tuple[Buffer, ...] = field(repr=False)
    _ops: tuple[BuiltStep, ...] = field(repr=False)
    _places: dict[str, dict[str, int]] = field(repr=False)
    _constants: dict[int, Array] = field(repr=False)
    _idle_workers: dict[int, list[Worker]] = field(
        default_factory=lambda: defaultdict(list), repr=False
    )
    #: Seconds that a sample took, at best; says how many threads are worth it, never what they compute.
    _seconds_per_sample: list[float] = field(default_factory=lambda: [1.0], repr=False)

    def run(
        self, feed: Mapping[str, Array], force: Mapping[str, Array] | None = None
    ) -> Iterator[tuple[str, Array]]:
        """Compute and yield (name, array) for every kept tensor.

        Fed ones first, then in the order of the steps.

        Parameters
        ----------
        feed
            Arrays in logical layout, of the dtypes of `inputs`.
        force
            Kept tensors that later steps shall read as given here. What is yielded is still what
            the step computed from its (perhaps forced) inputs, so that the error of a step can be
            seen apart from the errors before it.

        Yields
        ------
        tuple
            Name and array in logical layout; the array is the caller's to keep.

        Raises
        ------
        SimulatorError
            When names, shapes or dtypes of the arrays are not those of the program.
        """
        samples = self._check(feed)
        forced = self._check_forced(force or {}, samples)
        arrays = {name: _to_contiguous(feed[name]) for name in self.inputs}
        fed = dict(arrays)
        for name in self.output_names:
            if name not in arrays:
                arrays[name] = self._allocate_output(name, samples)
        self._compute(arrays, forced, samples)
        for name in self.output_names:
            yield name, fed[name].copy() if name in fed else arrays[name]

    @property
    def nbytes(self) -> int:
        """Bytes that it holds between runs for tensors that are not the caller's."""
        return sum(
            worker.nbytes for workers in list(self._idle_workers.values()) for worker in workers
        )

    def _allocate_output(self, name: str, samples: int) -> Array:
        """Return an array for a kept tensor: a constant has its values already."""
        at = self._places[name].get(PLAIN)
        if at in self._constants:
            return self._constants[at].copy()
        spec = self._specs[name]
        shape = (samples * spec.shape[0], *spec.shape[1:]) if name in self._batched else spec.shape
        return np.empty(shape, spec.dtype)

    def _spec(self, name: str, samples: int) -> TensorSpec:
        """Return the spec of a kept tensor for a batch of `samples`."""
        spec = self._specs[name]
        return stack_samples(spec, samples) if name in self._batched else spec

    def _check(self, feed: Mapping[str, Array]) -> int:
        """Return the number of samples fed, after checking the feeds."""
        if feed.keys() != self.inputs.keys():
            raise SimulatorError(f"the program takes {sorted(self.inputs)}, not {sorted(feed)}")
        lengths = set()
        for name, spec in self.inputs.items():
            x = feed[name]
            if x.dtype != spec.dtype:
                raise SimulatorError(f"{name} must be an array of {spec.dtype}, not {x.dtype}")
            if not self.accepts_batches and x.shape != spec.shape:
                raise SimulatorError(f"{name} must be exactly {spec}, not {list(x.shape)}")
            if x.ndim != len(spec.shape) or x.shape[1:] != spec.shape[1:]:
                raise SimulatorError(f"{name} must be {spec} with any batch, not {list(x.shape)}")
            if self.accepts_batches:
                lengths.add(len(x))
        if len(lengths) > 1:
            raise SimulatorError(f"the feeds have different batches: {sorted(lengths)}")
        return lengths.pop() if lengths else 1

    def _check_forced(self, force: Mapping[str, Array], samples: int) -> dict[str, Array]:
        """Return the forced arrays, contiguous, after checking them."""
        if not force:
            return {}
        unknown = sorted(set(force) - set(self.output_names))
        require(not unknown, f"only kept tensors can be forced, not {unknown}")
        for name, x in force.items():
            want = self._spec(name, samples)
            fits = x.shape == want.shape and x.dtype == want.dtype
            require(
                fits, f"{name} is forced to {x.dtype}{list(x.shape)} where the program has {want}"
            )
        return {name: np.asarray(x, order="C") for name, x in force.items()}

    def _compute(self, arrays: dict[str, Array], force: dict[str, Array], samples: int) -> None:
        """Cut the batch into even blocks and hand them to the workers."""
        if not self.accepts_batches:
            self._run_block(arrays, force, slice(0, 1), 1)
            return
        if not samples:
            return
        threads = max(
            min(
                self.threads,
                samples,
                int(samples * self._seconds_per_sample[0] / _MIN_THREAD_SECONDS),
            ),
            1,
        )
        each = -(
            -samples // (threads * self.block)
        )  # blocks for each thread, of at most `block` samples
        count = min(threads * each, samples)
        parts = iter(
            [slice(samples * i // count, samples * (i + 1) // count) for i in range(count)]
        )

        def work() -> None:
            for (
                part
            ) in parts:  # shared by the threads: each takes the next block when it is done with one
                self._run_block(arrays, force, part, part.stop - part.start)

        if threads == 1:
            work()
            return
        others = [_get_thread_pool(self.threads - 1).submit(work) for _ in range(threads - 1)]
        try:
            work()
        finally:
            others = [
                other for other in others if not other.cancel()
            ]  # what did not begin has nothing left to do
            wait(others)
        for other in others:
            other.result()

    def _run_block(
        self, arrays: dict[str, Array], force: dict[str, Array], part: slice, samples: int
    ) -> None:
        """Compute one block of the caller's arrays, on memory that no other block uses meanwhile."""
        idle = self._idle_workers[samples]
        try:
            worker = idle.pop()
        except IndexError:
            worker = Worker(self._buffers, self._ops, self._constants, samples)
        start = time.perf_counter()
        if force:
            worker.run_forced(
                arrays,
                part,
                {
                    self._places[name][PLAIN]: self._forced_buffers(name, x, part)
                    for name, x in force.items()
                },
            )
        else:
            worker.run(arrays, part)
            self._seconds_per_sample[0] = min(
                self._seconds_per_sample[0], (time.perf_counter() - start) / samples
            )
        idle.append(worker)
        if len(self._idle_workers) > _MAX_CACHED_BLOCK_SIZES:
            with contextlib.suppress(
                KeyError, StopIteration, RuntimeError
            ):  # another thread was first
                del self._idle_workers[next(iter(self._idle_workers))]

    def _forced_buffers(self, name: str, x: Array, part: slice) -> dict[int, Array]:
        """Return what the buffers of tensor `name` shall hold."""
        x = slice_samples(x, part, self._specs[name].shape[0]) if name in self._batched else x
        found = {self._places[name][PLAIN]: x}
        if CHANNEL_LAST in self._places[name]:
            found[self._places[name][CHANNEL_LAST]] = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        return found
