"""Compile named steps into a program that runs any batch size.

Owns: checking that steps are consistent, fusing a Relu or Clip into its producer, splitting batches
into blocks and distributing the blocks over threads, yielding and overriding tensors. Must not
know: any particular operator (it asks the `Kernel`), memory layout (`layout`), rounding.

A program computes the same integers for every block size and every number of threads, because
kernels share no state and every sample is computed independently. A batch is split into blocks, the
same number for each thread. Each thread, including the caller's, runs the full program on one block
after another, in its own buffers. Packed weights are shared.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from simulator._threads import choose_threads
from simulator.kernel import Array, Kernel, NumpyKernel, SimulatorError, Step, TensorSpec, require
from simulator.layout import (
    CHANNEL_LAST,
    PLAIN,
    Buffer,
    BuiltStep,
    ProgramLayout,
)
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

#: Budget for the inputs and outputs of one step in a core's second-level cache.
_CACHE_BYTES = 1024 * 1024
_MAX_BLOCK_SAMPLES = 32
#: Minimum work of a thread; waking it takes almost as long.
_MIN_THREAD_SECONDS = 150e-6
_MAX_RANK = 64  # axes of an array, the limit of numpy
_MAX_ARRAY_BYTES = 1 << 47  # of one sample; addresses of a process have 47 bits
_MAX_CACHED_BLOCK_SIZES = 4  # block sizes whose memory is retained for the next run


def compile_program(
    steps: Sequence[Step],
    inputs: Mapping[str, TensorSpec],
    keep: Collection[str] | None = None,
    *,
    block: int | None = None,
    threads: int | None = None,
) -> Program:
    """Check, fuse, lay out and build steps.

    Parameters
    ----------
    steps
        Steps in execution order: every tensor is produced before it is read, and only once.
    inputs
        Specs of the fed tensors. If every kernel works sample by sample, axis 0 is 1 and stands for
        the batch; otherwise the shapes are exact.
    keep
        Names of the tensors that a run yields; None yields every tensor.
    block
        Maximum number of samples computed together; by default as many as fit the cache.
    threads
        Number of computing threads, including the caller's; by default that of the environment,
        else the number of processors that the process may use (`_threads`).

    Raises
    ------
    SimulatorError
        If names, shapes or dtypes are inconsistent; the message names the step.
    """
    steps = list(steps)
    specs, batched = _infer(steps, inputs)
    output_names = set(specs) if keep is None else set(keep)
    missing = sorted(output_names - set(specs))
    require(not missing, f"cannot keep {missing}: no step produces these tensors")
    batch_steps = _make_batch_steps(steps, inputs, specs, batched)
    accepts_batches = batch_steps is not None
    if batch_steps is None:
        batched = set()
    else:
        steps = batch_steps
    layout = ProgramLayout(inputs, specs, batched, output_names)
    for step in _propagate_signs(_fuse(steps, specs, output_names), output_names):
        layout.add(step)
    if threads is None:
        threads = choose_threads()
    if not block:
        block = min(_CACHE_BYTES // layout.max_step_bytes(), _MAX_BLOCK_SAMPLES)
    ordered_names = [*inputs, *(name for step in steps for name in step.outputs)]
    return Program(
        inputs=dict(inputs),
        output_names=tuple(name for name in ordered_names if name in output_names),
        accepts_batches=accepts_batches,
        threads=max(threads, 1),
        block=max(block, 1),
        _specs={name: specs[name] for name in output_names},
        _batched=frozenset(batched),
        _buffers=layout.assign_slots(),
        _steps=tuple(layout.steps),
        _buffer_ids={name: dict(by_layout) for name, by_layout in layout.buffer_ids.items()},
        _constants=layout.constants,
    )


def _make_batch_steps(
    steps: Sequence[Step],
    inputs: Mapping[str, TensorSpec],
    specs: Mapping[str, TensorSpec],
    batched: Collection[str],
) -> list[Step] | None:
    """Return equivalent steps that run any batch size, or None if a step mixes samples.

    A step that treats axis 0 otherwise is run per sample. None also if an input is not a single
    sample (axis 0 other than 1).
    """
    if any(spec.shape[:1] != (1,) for spec in inputs.values()):
        return None
    batch_steps = []
    for step in steps:
        if not _supports_batch(step, specs, batched):
            step = _make_per_sample(step, specs)
            if not _supports_batch(step, specs, batched):
                return None
        batch_steps.append(step)
    return batch_steps


@cache
def _get_thread_pool(count: int) -> ThreadPoolExecutor:
    """Return the pool of `count` threads that all programs share.

    It is created once, because starting threads costs as much as a step.
    """
    return ThreadPoolExecutor(count)


if hasattr(os, "register_at_fork"):  # a child process does not inherit its parent's threads
    os.register_at_fork(after_in_child=_get_thread_pool.cache_clear)


def _infer(
    steps: Sequence[Step], inputs: Mapping[str, TensorSpec]
) -> tuple[dict[str, TensorSpec], set[str]]:
    """Return the spec of every tensor, and the names of tensors that depend on a fed one.

    Raises SimulatorError, naming the step, if tensors are missing, duplicate or unsupported.
    """
    specs, batched = dict(inputs), set(inputs)
    for step in steps:
        label = f"{type(step.kernel).__name__} -> {', '.join(step.outputs)}"
        missing = [name for name in step.inputs if name not in specs]
        require(not missing, f"{label}: reads {missing}, which no earlier step produces")
        duplicates = [name for name in step.outputs if name in specs]
        require(not duplicates, f"{label}: produces {duplicates}, which already exist")
        output_specs = _infer_step(step, specs, label)
        specs.update(zip(step.outputs, output_specs, strict=True))
        if batched.intersection(step.inputs):
            batched.update(step.outputs)
    return specs, batched


def _infer_step(step: Step, specs: Mapping[str, TensorSpec], label: str) -> tuple[TensorSpec, ...]:
    """Return the output specs of one step; errors of its kernel gain `label` and the inputs.

    Raises SimulatorError if the kernel does not support the inputs, or has another number of
    outputs, or if no array can hold one.
    """
    try:
        output_specs = step.kernel.infer(*(specs[name] for name in step.inputs))
    except (TypeError, ValueError) as error:
        inputs = ", ".join(f"{name} {specs[name]}" for name in step.inputs)
        message = f"{label}: does not support its inputs {inputs}: {error}"
        if isinstance(error, SimulatorError):
            message = f"{label}: {error} (inputs: {inputs})"
        raise SimulatorError(message) from error
    require(
        len(output_specs) == len(step.outputs),
        f"{label}: has {len(output_specs)} outputs, expected {len(step.outputs)}",
    )
    for name, spec in zip(step.outputs, output_specs, strict=True):
        rank, nbytes = len(spec.shape), math.prod(spec.shape) * spec.dtype.itemsize
        if rank > _MAX_RANK:
            raise SimulatorError(
                f"{label}: '{name}' has {rank} axes; at most {_MAX_RANK} are supported: remove "
                "axes of size 1"
            )
        if nbytes > _MAX_ARRAY_BYTES:
            raise SimulatorError(
                f"{label}: '{name}' has {nbytes:,} bytes per sample; at most "
                f"{_MAX_ARRAY_BYTES:,} can be addressed: check the shapes in the file"
            )
    return output_specs


def _supports_batch(step: Step, specs: Mapping[str, TensorSpec], batched: Collection[str]) -> bool:
    """Whether the step computes every sample of its batched inputs independently.

    `batched` are the names of tensors with samples along axis 0; without such inputs it is True.
    """
    flags = [name in batched for name in step.inputs]
    if not any(flags):
        return True
    return step.kernel.supports_batch([specs[name] for name in step.inputs], flags)


def _make_per_sample(step: Step, specs: Mapping[str, TensorSpec]) -> Step:
    """Return `step` with a kernel that handles each sample separately.

    `step` itself if none exists.
    """
    if not step.inputs:
        return step
    kernel = step.kernel.make_per_sample(len(specs[step.inputs[0]].shape))
    return step if kernel is None else Step(kernel, step.inputs, step.outputs)


def _fuse(
    steps: Sequence[Step], specs: Mapping[str, TensorSpec], required_names: Collection[str]
) -> list[Step]:
    """Fuse each step into the producer of its only input, where nothing else reads that tensor.

    Returns new steps. `specs` are those of all tensors; `required_names` are the tensors that a run
    yields, which are never fused away.
    """
    read_counts = Counter(name for step in steps for name in step.inputs)
    fused: list[Step] = []
    producers: dict[str, int] = {}
    for step in steps:
        source = step.inputs[0] if len(step.inputs) == 1 else None
        if source in producers and read_counts[source] == 1 and source not in required_names:
            index = producers[source]
            merged = _fuse_pair(fused[index], step, specs)
            if merged is not None:
                fused[index] = merged
                producers[step.outputs[0]] = index
                continue
        producers.update(dict.fromkeys(step.outputs, len(fused)))
        fused.append(step)
    return fused


def _propagate_signs(steps: Sequence[Step], output_names: Collection[str]) -> list[Step]:
    """Return steps whose kernels know where their inputs have no negative elements.

    Nothing is known of fed tensors, nor of `output_names`: a run may replace their values.
    """
    nonnegative: set[str] = set()
    marked = []
    for step in steps:
        flags = [name in nonnegative for name in step.inputs]
        kernel = step.kernel.assume_nonnegative_input() if flags and all(flags) else step.kernel
        marked.append(Step(kernel, step.inputs, step.outputs))
        if step.kernel.is_nonnegative(flags):
            nonnegative.update(set(step.outputs).difference(output_names))
    return marked


def _fuse_pair(producer: Step, consumer: Step, specs: Mapping[str, TensorSpec]) -> Step | None:
    """Return one step for producer and consumer; None if the producer's kernel cannot fuse it.

    A producer with several outputs is not fused. `specs` are those of all tensors.
    """
    if len(producer.outputs) != 1:
        return None
    kernel = producer.kernel.fuse(consumer.kernel, [specs[name] for name in producer.inputs])
    return None if kernel is None else Step(kernel, producer.inputs, consumer.outputs)


def _to_contiguous(x: Array) -> Array:
    """Return `x` as a C-contiguous, aligned array, copied only if it is not one already."""
    return x if x.flags.c_contiguous and x.flags.aligned else np.require(x, requirements=["C", "A"])


@dataclass(frozen=True, eq=False)
class Program:
    """Built steps. `run` may be called from several threads.

    Attributes
    ----------
    inputs
        Specs of the feeds.
    output_names
        Names of the tensors that a run yields, in order.
    accepts_batches
        Whether any batch size may be fed; otherwise feeds have exactly the shapes of `inputs`.
    block
        Maximum number of samples computed together.
    threads
        Number of computing threads, including the caller's.
    """

    inputs: dict[str, TensorSpec]
    output_names: tuple[str, ...]
    accepts_batches: bool
    block: int
    threads: int
    _specs: dict[str, TensorSpec] = field(repr=False)
    _batched: frozenset[str] = field(repr=False)
    _buffers: tuple[Buffer, ...] = field(repr=False)
    _steps: tuple[BuiltStep, ...] = field(repr=False)
    _buffer_ids: dict[str, dict[str, int]] = field(repr=False)
    _constants: dict[int, Array] = field(repr=False)
    _idle_workers: dict[int, list[Worker]] = field(
        default_factory=lambda: defaultdict(list), repr=False
    )
    #: Shortest time per sample so far; decides only how many threads are worth starting.
    _seconds_per_sample: list[float] = field(default_factory=lambda: [1.0], repr=False)

    def run(
        self, feed: Mapping[str, Array], force: Mapping[str, Array] | None = None
    ) -> Iterator[tuple[str, Array]]:
        """Run the program and yield every tensor of `output_names`.

        Fed tensors come first, then the others in the order of the steps.

        Parameters
        ----------
        feed
            Arrays in logical layout, of the dtypes of `inputs`.
        force
            Values that later steps read in place of computed tensors, by name; only tensors of
            `output_names`. The yielded value is still the one computed from the (perhaps forced)
            inputs, so that the error of one step can be measured without the errors upstream.

        Yields
        ------
        tuple
            Name and array in logical layout; the caller owns the array.

        Raises
        ------
        SimulatorError
            If names, shapes or dtypes of the arrays differ from those of the program.
        """
        samples = self._check_feeds(feed)
        forced = self._check_forced(force or {}, samples)
        yield from self.run_checked(feed, samples, forced).items()

    def run_checked(
        self, feed: Mapping[str, Array], samples: int, force: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Run the program and return every tensor of `output_names`, without checks.

        The feeds are those of an earlier `run` but for their values: `samples` samples of the same
        shapes and types. `force` is as in `run`, with C-contiguous arrays.
        """
        arrays = {name: _to_contiguous(feed[name]) for name in self.inputs}
        results = {}
        for name in self.output_names:
            if name in arrays:
                results[name] = arrays[name].copy()
            else:
                results[name] = arrays[name] = self._allocate_output(name, samples)
        self._compute(arrays, force or {}, samples)
        return results

    @property
    def nbytes(self) -> int:
        """Bytes retained between runs for tensors that do not belong to the caller."""
        workers = itertools.chain.from_iterable(list(self._idle_workers.values()))
        return sum(worker.nbytes for worker in workers)

    def _allocate_output(self, name: str, samples: int) -> Array:
        """Return a new array for `samples` samples of output tensor `name`.

        It is uninitialized, except that of a constant, which contains the values.
        """
        buffer_id = self._buffer_ids[name].get(PLAIN)
        if buffer_id in self._constants:
            return self._constants[buffer_id].copy()
        spec, shape = self._specs[name], self._specs[name].shape
        if name in self._batched:
            shape = (shape[0] * samples, *shape[1:])
        return np.empty(shape, spec.dtype)

    def _get_spec(self, name: str, samples: int) -> TensorSpec:
        """Return the spec of output tensor `name` for a batch of `samples`."""
        spec = self._specs[name]
        return spec.stack(samples) if name in self._batched else spec

    def _check_feeds(self, feed: Mapping[str, Array]) -> int:
        """Check names, shapes and dtypes of the feeds, and return the number of samples.

        1 for a program without a batch axis; SimulatorError if the feeds do not match.
        """
        if feed.keys() != self.inputs.keys():
            raise SimulatorError(f"feeds must be exactly {sorted(self.inputs)}, got {sorted(feed)}")
        for name, spec in self.inputs.items():
            self._check_feed(name, spec, feed[name])
        if not self.accepts_batches or not feed:
            return 1
        batch_sizes = {len(x) for x in feed.values()}
        require(len(batch_sizes) == 1, f"feeds have different batch sizes: {sorted(batch_sizes)}")
        return batch_sizes.pop()

    def _check_feed(self, name: str, spec: TensorSpec, x: Array) -> None:
        """Raise `SimulatorError` unless an array is valid for the input `name` of `spec`.

        Shapes must be equal, apart from axis 0 if the program accepts batches.
        """
        if x.dtype != spec.dtype:
            raise SimulatorError(f"{name} must be an array of {spec.dtype}, not {x.dtype}")
        if not self.accepts_batches and x.shape != spec.shape:
            raise SimulatorError(f"{name} must be exactly {spec}, not {list(x.shape)}")
        if x.ndim != len(spec.shape) or x.shape[1:] != spec.shape[1:]:
            raise SimulatorError(f"{name} must be {spec} with any batch size, not {list(x.shape)}")

    def _check_forced(self, force: Mapping[str, Array], samples: int) -> dict[str, Array]:
        """Check names, shapes and dtypes of the forced arrays, and return them C-contiguous.

        SimulatorError for a tensor that the run does not yield, or a value that does not match.
        """
        if not force:
            return {}
        unknown = sorted(set(force) - set(self.output_names))
        require(not unknown, f"only tensors that a run yields can be forced, not {unknown}")
        for name, x in force.items():
            expected = self._get_spec(name, samples)
            require(
                x.shape == expected.shape and x.dtype == expected.dtype,
                f"the forced value of {name} is {x.dtype}{list(x.shape)}; it must be {expected}",
            )
        return {name: np.asarray(x, order="C") for name, x in force.items()}

    def _compute(self, arrays: dict[str, Array], force: Mapping[str, Array], samples: int) -> None:
        """Split the batch into even blocks and run them on the threads that are worth starting.

        Fills `arrays` in place. The measured time per sample decides how many threads start.
        """
        if not self.accepts_batches:
            self._run_block(arrays, force, slice(0, 1), 1)
            return
        if not samples:
            return
        useful_threads = int(samples * self._seconds_per_sample[0] / _MIN_THREAD_SECONDS)
        threads = max(min(self.threads, samples, useful_threads), 1)
        if threads == 1 and samples <= self.block:
            self._run_block(arrays, force, slice(0, samples), samples)
            return
        blocks_per_thread = -(-samples // (threads * self.block))  # of at most `block` samples
        count = min(threads * blocks_per_thread, samples)
        bounds = [samples * i // count for i in range(count + 1)]
        blocks = iter([slice(start, stop) for start, stop in itertools.pairwise(bounds)])

        def run_blocks() -> None:
            """Compute blocks from the shared iterator until none is left."""
            for block in blocks:  # shared: a thread that has finished a block takes the next one
                self._run_block(arrays, force, block, block.stop - block.start)

        if threads == 1:
            run_blocks()
            return
        pool = _get_thread_pool(self.threads - 1)
        futures = [pool.submit(run_blocks) for _ in range(threads - 1)]
        try:
            run_blocks()
        finally:  # a future that has not started has no blocks to run any more
            futures = [future for future in futures if not future.cancel()]
            wait(futures)
        for future in futures:
            future.result()

    def _run_block(
        self, arrays: dict[str, Array], force: Mapping[str, Array], block: slice, samples: int
    ) -> None:
        """Compute one block of the caller's arrays with a worker that no other block is using.

        `block` is its range of `samples` samples. Workers are cached by the number of samples, for
        a limited number of sizes. Runs without `force` update the time per sample.
        """
        idle = self._idle_workers[samples]
        try:
            worker = idle.pop()
        except IndexError:
            worker = Worker(self._buffers, self._steps, self._constants, samples)
        start = time.perf_counter()
        if force:
            overrides = {}
            for name, x in force.items():
                overrides[self._buffer_ids[name][PLAIN]] = self._forced_buffers(name, x, block)
            worker.run_forced(arrays, block, overrides)
        else:
            worker.run(arrays, block)
            self._seconds_per_sample[0] = min(
                self._seconds_per_sample[0], (time.perf_counter() - start) / samples
            )
        idle.append(worker)
        if len(self._idle_workers) > _MAX_CACHED_BLOCK_SIZES:
            # another thread may have removed the entry first
            with contextlib.suppress(KeyError, StopIteration, RuntimeError):
                del self._idle_workers[next(iter(self._idle_workers))]

    def _forced_buffers(self, name: str, x: Array, block: slice) -> dict[int, Array]:
        """Return the forced values of one block by buffer id: plain, and channel-last if it exists.

        Parameters
        ----------
        name
            Tensor to force.
        x
            Its forced value in logical layout, for the full batch.
        block
            Range of samples to select.
        """
        if name in self._batched:
            x = slice_samples(x, block, self._specs[name].shape[0])
        buffer_ids = self._buffer_ids[name]
        values = {buffer_ids[PLAIN]: x}
        if CHANNEL_LAST in buffer_ids:
            values[buffer_ids[CHANNEL_LAST]] = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        return values
