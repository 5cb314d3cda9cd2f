"""The machine: named steps -> a program that runs any batch.

Owns: checking that steps fit together, fusing a Relu or Clip into the kernel before it, the choice of layouts, the reuse of
buffers, the cutting of batches into blocks and their distribution over threads, taps and forced tensors. Must not know: any
particular operator (it asks the `Kernel`), rounding.

A program computes the same integers for every block size and every number of threads, because kernels share no state and
every sample is computed alone. Each worker thread has its own buffers; packed weights are shared.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from simulator._jit import jit
from simulator.kernel import Call, Kernel, MachineError, PlainKernel, Run, Spec, require

__all__ = ["Call", "Kernel", "MachineError", "PlainKernel", "Program", "Spec", "compile"]

_CACHE_BYTES = 512 * 1024  # what the inputs and outputs of a step may take of a core's second-level cache
_MAX_BLOCK = 32

PLAIN, LAST = "plain", "channel-last"


def compile(
    steps: Sequence[Call],
    inputs: Mapping[str, Spec],
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
        Specs of the fed tensors. Axis 0 is 1 and stands for the batch where every kernel works sample by sample; otherwise
        the shapes are exact.
    keep
        Names that a run yields; None keeps every tensor.
    block
        Samples computed together; by default as many as fit the cache.
    threads
        Worker threads; by default `LINGERONNX_THREADS`, else the number of processors.

    Raises
    ------
    MachineError
        Naming the step, when names, shapes or dtypes do not fit.
    """
    steps = [step for step in steps]
    specs, batched = _infer(steps, inputs)
    kept = set(specs) if keep is None else set(keep)
    require(kept <= set(specs), f"no step makes {sorted(kept - set(specs))}, which shall be kept")
    follows = all(_follows(step, specs, batched) for step in steps) and all(_one(spec) for spec in inputs.values())
    layout = _Layout(inputs, specs, batched if follows else set(), kept)
    for step in _fuse(steps, kept):
        layout.add(step)
    if threads is None:
        threads = int(os.environ.get("LINGERONNX_THREADS") or os.cpu_count() or 1)
    order = [*inputs, *(name for step in steps for name in step.outputs)]
    return Program(
        inputs=dict(inputs),
        names=tuple(name for name in order if name in kept),
        per_sample=follows,
        threads=max(threads, 1),
        block=max(block, 1) if block else layout.block_size(),
        _buffers=layout.finish(),
        _ops=tuple(layout.ops),
        _fed={name: layout.places[name][PLAIN] for name in inputs},
        _constants=layout.constants,
    )


def _one(spec: Spec) -> bool:
    return spec.shape[:1] == (1,)


def _infer(steps: Sequence[Call], inputs: Mapping[str, Spec]) -> tuple[dict[str, Spec], set[str]]:
    """Return the spec of every tensor and the names of those that depend on a fed one."""
    specs, batched = dict(inputs), set(inputs)
    for step in steps:
        where = f"{type(step.fn).__name__} -> {', '.join(step.outputs)}"
        missing = [name for name in step.inputs if name not in specs]
        require(not missing, f"{where}: reads {missing}, which nothing made before it")
        again = [name for name in step.outputs if name in specs]
        require(not again, f"{where}: makes {again} a second time")
        given = [specs[name] for name in step.inputs]
        listed = ", ".join(f"{name} {spec}" for name, spec in zip(step.inputs, given, strict=True))
        try:
            made = step.fn.infer(*given)
        except MachineError as error:
            raise MachineError(f"{where}: {error} (inputs: {listed})") from error
        except (TypeError, ValueError) as error:
            raise MachineError(f"{where}: cannot take its inputs {listed}: {error}") from error
        require(len(made) == len(step.outputs), f"{where}: makes {len(made)} outputs, not {len(step.outputs)}")
        specs.update(zip(step.outputs, made, strict=True))
        if batched.intersection(step.inputs):
            batched.update(step.outputs)
    return specs, batched


def _follows(step: Call, specs: Mapping[str, Spec], batched: Collection[str]) -> bool:
    """Whether the step works sample by sample on the tensors it reads."""
    flags = [name in batched for name in step.inputs]
    return not any(flags) or step.fn.follows_batch([specs[name] for name in step.inputs], flags)


def _fuse(steps: Sequence[Call], kept: Collection[str]) -> list[Call]:
    """Let kernels absorb the only reader of their output, where that output is not kept."""
    readers = Counter(name for step in steps for name in step.inputs)
    fused: list[Call] = []
    made: dict[str, int] = {}
    for step in steps:
        before = made.get(step.inputs[0]) if len(step.inputs) == 1 else None
        if before is not None and readers[step.inputs[0]] == 1 and step.inputs[0] not in kept:
            first = fused[before]
            kernel = first.fn.absorb(step.fn) if len(first.outputs) == 1 else None
            if kernel is not None:
                fused[before] = Call(kernel, first.inputs, step.outputs)
                made[step.outputs[0]] = before
                continue
        made.update(dict.fromkeys(step.outputs, len(fused)))
        fused.append(step)
    return fused


@dataclass(frozen=True)
class _Op:
    """One built step: what to call, on which buffers, and which of its outputs are kept (name, buffer, channel-last)."""

    run: Run
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    kept: tuple[tuple[str, int, bool], ...]


@dataclass(frozen=True)
class _Buffer:
    """A physical tensor. Axis 0 follows the block where `batched`; `slot` is the memory it shares with others in turn."""

    shape: tuple[int, ...]
    dtype: np.dtype
    batched: bool
    slot: int = -1

    def nbytes(self, samples: int) -> int:
        return Spec(self.sized(samples), self.dtype).nbytes

    def sized(self, samples: int) -> tuple[int, ...]:
        return (samples, *self.shape[1:]) if self.batched else self.shape


class _Layout:
    """Builds the steps one after the other: decides layouts, inserts conversions, counts buffers."""

    def __init__(
        self, inputs: Mapping[str, Spec], specs: Mapping[str, Spec], batched: Collection[str], kept: Collection[str]
    ) -> None:
        self.specs, self.batched, self.kept = specs, batched, kept
        self.buffers: list[_Buffer] = []
        self.places: dict[str, dict[str, int]] = defaultdict(dict)  # name -> layout -> buffer
        self.ops: list[_Op] = []
        self.constants: dict[int, np.ndarray] = {}
        for name in inputs:
            self._new(name, PLAIN)
        self.fed = len(self.buffers)

    def add(self, step: Call) -> None:
        """Build one step."""
        given = [self.specs[name] for name in step.inputs]
        last = self._channel_last(step)
        ins = tuple(self._at(name, last) for name in step.inputs)
        outs = tuple(self._new(name, LAST if last and self._can(name) else PLAIN) for name in step.outputs)
        run = step.fn.build(given, last)
        if not step.inputs:
            arrays = [np.empty(self.buffers[at].shape, self.buffers[at].dtype) for at in outs]
            run([], arrays)
            self.constants.update(zip(outs, arrays, strict=True))
        kept = tuple(
            (name, at, last and self._can(name)) for name, at in zip(step.outputs, outs, strict=True) if name in self.kept
        )
        self.ops.append(_Op(run, ins, outs, kept))

    def block_size(self) -> int:
        """Return how many samples keep the largest step within the cache."""
        largest = max((sum(self.buffers[at].nbytes(1) for at in (*op.ins, *op.outs)) for op in self.ops), default=1)
        return min(max(_CACHE_BYTES // max(largest, 1), 1), _MAX_BLOCK)

    def finish(self) -> tuple[_Buffer, ...]:
        """Give every buffer a slot, one slot serving several buffers whose lives do not overlap."""
        ends = {at: place for place, op in enumerate(self.ops) for at in (*op.ins, *op.outs)}
        free: list[int] = []
        slots: dict[int, int] = {}
        sizes: list[int] = []
        for place, op in enumerate(self.ops):
            for at in op.outs:
                if at in self.constants:
                    continue
                size = self.buffers[at].nbytes(1)
                fit = min(free, key=lambda slot: abs(sizes[slot] - size), default=None)
                if fit is None:
                    fit = len(sizes)
                    sizes.append(0)
                else:
                    free.remove(fit)
                slots[at], sizes[fit] = fit, max(sizes[fit], size)
            free += [slots[at] for at in {*op.ins, *op.outs} if ends[at] == place and at in slots]
        return tuple(
            _Buffer(buffer.shape, buffer.dtype, buffer.batched, slots.get(at, -1)) for at, buffer in enumerate(self.buffers)
        )

    def _can(self, name: str) -> bool:
        return len(self.specs[name].shape) in (3, 4)

    def _channel_last(self, step: Call) -> bool:
        if step.fn.layout != "any":
            return step.fn.layout == "nhwc"
        ranks = {len(self.specs[name].shape) for name in (*step.inputs, *step.outputs)}
        return ranks in ({3}, {4}) and any(LAST in self.places[name] for name in step.inputs)

    def _new(self, name: str, layout: str) -> int:
        spec = self.specs[name]
        shape = (spec.shape[0], *spec.shape[2:], spec.shape[1]) if layout == LAST else spec.shape
        self.buffers.append(_Buffer(shape, spec.dtype, name in self.batched))
        self.places[name][layout] = len(self.buffers) - 1
        return len(self.buffers) - 1

    def _at(self, name: str, last: bool) -> int:
        """Return the buffer that holds `name` in the wanted layout, converting it if there is none yet."""
        layout = LAST if last and self._can(name) else PLAIN
        if layout not in self.places[name]:
            (source,) = self.places[name].values()
            target = self._new(name, layout)
            self.ops.append(_Op(_to_last if layout == LAST else _to_plain, (source,), (target,), ()))
        return self.places[name][layout]


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
        Samples computed together and worker threads.
    """

    inputs: dict[str, Spec]
    names: tuple[str, ...]
    per_sample: bool
    block: int
    threads: int
    _buffers: tuple[_Buffer, ...] = field(repr=False)
    _ops: tuple[_Op, ...] = field(repr=False)
    _fed: dict[str, int] = field(repr=False)
    _constants: dict[int, np.ndarray] = field(repr=False)
    _idle: dict[int, list[list[np.ndarray]]] = field(default_factory=lambda: defaultdict(list), repr=False)

    def run(
        self, feed: Mapping[str, np.ndarray], force: Mapping[str, np.ndarray] | None = None
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Compute and yield (name, array) for every kept tensor: fed ones first, then in the order of the steps.

        Parameters
        ----------
        feed
            Arrays in logical layout, of the dtypes of `inputs`.
        force
            Kept tensors that later steps shall read as given here. What is yielded is still what the step computed from its
            (perhaps forced) inputs, so that the error of a step can be seen apart from the errors before it.

        Yields
        ------
        tuple
            Name and array in logical layout; the array is the caller's to keep.

        Raises
        ------
        MachineError
            When names, shapes or dtypes of the arrays are not those of the program.
        """
        samples = self._check(feed)
        forced = self._check_forced(force or {}, samples)
        feed = {name: np.ascontiguousarray(feed[name]) for name in self.inputs}
        made = {name: at for op in self._ops for name, at, _ in op.kept}
        results = {name: np.empty(self._logical(name, at, samples), self._buffers[at].dtype) for name, at in made.items()}
        self._compute(feed, forced, results, samples)
        for name in self.names:
            yield name, feed[name].copy() if name in feed else results[name]

    def _logical(self, name: str, at: int, samples: int) -> tuple[int, ...]:
        shape = self._buffers[at].sized(samples)
        last = any(last for op in self._ops for kept, _, last in op.kept if kept == name)
        return (shape[0], shape[-1], *shape[1:-1]) if last else shape

    def _check(self, feed: Mapping[str, np.ndarray]) -> int:
        """Return the number of samples fed, after checking the feeds."""
        require(set(feed) == set(self.inputs), f"the program takes {sorted(self.inputs)}, not {sorted(feed)}")
        lengths = set()
        for name, spec in self.inputs.items():
            x = feed[name]
            require(isinstance(x, np.ndarray) and x.dtype == spec.dtype, f"{name} must be an array of {spec.dtype}")
            if self.per_sample:
                fits = x.ndim == len(spec.shape) and x.shape[1:] == spec.shape[1:]
                require(fits, f"{name} must be {spec} with any batch, not {list(x.shape)}")
                lengths.add(len(x))
            else:
                require(x.shape == spec.shape, f"{name} must be exactly {spec}, not {list(x.shape)}")
        require(len(lengths) <= 1, f"the feeds have different batches: {sorted(lengths)}")
        return lengths.pop() if lengths else 1

    def _check_forced(self, force: Mapping[str, np.ndarray], samples: int) -> dict[str, np.ndarray]:
        """Return the forced arrays, contiguous, after checking them."""
        require(set(force) <= set(self.names), f"only kept tensors can be forced, not {sorted(set(force) - set(self.names))}")
        made = {name: at for op in self._ops for name, at, _ in op.kept}
        for name, x in force.items():
            if name in made:
                at = made[name]
                want = Spec(self._logical(name, at, samples), self._buffers[at].dtype)
            else:
                spec = self.inputs[name]
                want = Spec((samples, *spec.shape[1:]) if self.per_sample else spec.shape, spec.dtype)
            fits = x.shape == want.shape and x.dtype == want.dtype
            require(fits, f"{name} is forced to {x.dtype}{list(x.shape)} where the program has {want}")
        return {name: np.ascontiguousarray(x) for name, x in force.items()}

    def _compute(
        self, feed: dict[str, np.ndarray], force: dict[str, np.ndarray], results: dict[str, np.ndarray], samples: int
    ) -> None:
        """Cut the batch into even blocks and hand them to the workers."""
        if not self.per_sample:
            self._run_block(feed, force, results, slice(0, 1), 1)
            return
        size = max(min(self.block, -(-samples // self.threads)), 1)
        count = max(-(-samples // size), 1)
        parts = [slice(samples * i // count, samples * (i + 1) // count) for i in range(count)]

        def work(part: slice) -> None:
            self._run_block(feed, force, results, part, part.stop - part.start)

        if self.threads == 1 or len(parts) <= 1:
            for part in parts:
                work(part)
        else:
            with ThreadPoolExecutor(min(self.threads, len(parts))) as pool:
                list(pool.map(work, parts))

    def _run_block(
        self,
        feed: dict[str, np.ndarray],
        force: dict[str, np.ndarray],
        results: dict[str, np.ndarray],
        part: slice,
        samples: int,
    ) -> None:
        """Compute one block on buffers of its own, copying out what is kept."""
        idle = self._idle[samples]
        try:
            arrays = idle.pop()
        except IndexError:
            arrays = self._allocate(samples)
        values = list(arrays)
        for name, at in self._fed.items():
            given = force.get(name, feed[name])
            values[at] = given[part] if self.per_sample else given
        for op in self._ops:
            if op.ins or op.outs[0] not in self._constants:
                op.run([values[at] for at in op.ins], [values[at] for at in op.outs])
            for name, at, last in op.kept:
                place = part if self._buffers[at].batched else slice(None)
                (_to_plain if last else _copy)([values[at]], [results[name][place]])
                if name in force:
                    values[at] = np.empty_like(values[at])
                    (_to_last if last else _copy)([force[name][place]], [values[at]])
        idle.append(arrays)

    def _allocate(self, samples: int) -> list[np.ndarray]:
        """Return one array per buffer, those of a slot sharing memory; feeds get none."""
        sizes: dict[int, int] = defaultdict(int)
        for buffer in self._buffers:
            sizes[buffer.slot] = max(sizes[buffer.slot], buffer.nbytes(samples))
        sizes.pop(-1, None)
        memory = {slot: np.empty(size, np.uint8) for slot, size in sizes.items()}
        nothing = np.empty(0, np.uint8)
        arrays = []
        for at, buffer in enumerate(self._buffers):
            if buffer.slot < 0:
                arrays.append(self._constants.get(at, nothing))
            else:
                flat = memory[buffer.slot][: buffer.nbytes(samples)].view(buffer.dtype)
                arrays.append(flat.reshape(buffer.sized(samples)))
        return arrays


# --- layouts ---------------------------------------------------------------------------------------------------------------


@jit
def _swap(x, out):
    """Transpose every matrix of x [N, A, B] into out [N, B, A]."""
    for n in range(x.shape[0]):
        for b in range(x.shape[2]):
            for a in range(x.shape[1]):
                out[n, b, a] = x[n, a, b]


def _to_last(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
    """Copy plain [N, C, *space] to channel-last [N, *space, C]."""
    (x,), (out,) = ins, outs
    samples, channels = x.shape[:2]
    space = int(np.prod(x.shape[2:]))
    _swap(x.reshape(samples, channels, space), out.reshape(samples, space, channels))


def _to_plain(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
    """Copy channel-last [N, *space, C] to plain [N, C, *space]."""
    (x,), (out,) = ins, outs
    samples, channels = x.shape[0], x.shape[-1]
    space = int(np.prod(x.shape[1:-1]))
    _swap(x.reshape(samples, space, channels), out.reshape(samples, channels, space))


def _copy(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
    np.copyto(outs[0], ins[0])
