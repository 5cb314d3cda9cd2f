"""Buffers of a program: physical layouts, conversions between them, and reuse of memory.

Owns: `ProgramLayout`, which builds steps one after another into `BuiltStep`s on numbered `Buffer`s,
and the two layout conversions. A tensor is converted at the first step that needs the other layout,
and at most once. Must not know: any particular operator, batches, threads.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator._transpose import transpose_matrices
from simulator.kernel import Array, Kernel, RunFunction, Step, TensorSpec
from simulator.native import InputRef, NativeLoop, OutputRef

__all__ = [
    "CHANNEL_LAST",
    "PLAIN",
    "Buffer",
    "BuiltStep",
    "ProgramLayout",
    "make_layout_copy",
    "content_key",
]

PLAIN, CHANNEL_LAST = "plain", "channel-last"


def make_layout_copy(spec: TensorSpec, layout: str) -> NativeLoop:
    """Return a loop that copies a tensor of logical `spec` from the other layout to `layout`.

    A plain tensor is [N, C, *space], a channel-last one [N, *space, C].
    """
    plain = (-1, spec.shape[1], math.prod(spec.shape[2:]))
    channel_last = (plain[0], plain[2], plain[1])
    source, target = (plain, channel_last) if layout == CHANNEL_LAST else (channel_last, plain)
    return NativeLoop(transpose_matrices, (InputRef(0, source), OutputRef(0, target)))


@dataclass(frozen=True)
class BuiltStep:
    """A built step: the function to run and the buffers that it reads and fills."""

    run: RunFunction
    input_buffers: tuple[int, ...]
    output_buffers: tuple[int, ...]


@dataclass(frozen=True)
class Buffer:
    """A physical tensor.

    Attributes
    ----------
    spec
        Physical spec of one sample.
    is_batched
        Whether the samples of a block are stacked along axis 0.
    slot
        Memory slot, shared with buffers that are live at other times; -1 for constants, aliases and
        arrays of the caller.
    name
        Name of the caller's array, for fed tensors and outputs of the program; else "".
    memory_id
        Buffer whose memory it uses: its own id, or that of a buffer with the same elements in
        another shape.
    """

    spec: TensorSpec
    is_batched: bool
    memory_id: int
    slot: int = -1
    name: str = ""


class ProgramLayout:
    """Builds steps one after another on numbered buffers.

    Parameters
    ----------
    inputs
        Names of the fed tensors.
    specs
        Logical specs of all tensors.
    batched
        Names of the tensors whose axis 0 is the batch.
    output_names
        Names of the tensors that a run yields.

    Attributes
    ----------
    steps
        Steps built so far, including layout conversions.
    buffer_ids
        Tensor name -> layout -> buffer id.
    constants
        Buffer id -> value, for steps without inputs. They run once, when they are added.
    """

    def __init__(
        self,
        inputs: Collection[str],
        specs: Mapping[str, TensorSpec],
        batched: Collection[str],
        output_names: Collection[str],
    ) -> None:
        """Start with the buffers of the graph `inputs`, in the plain layout, and no steps.

        `specs` maps every tensor to its spec, `batched` are those with a batch axis, `output_names`
        those that a run yields.
        """
        self.steps: list[BuiltStep] = []
        self.buffer_ids: dict[str, dict[str, int]] = defaultdict(dict)
        self.constants: dict[int, Array] = {}
        self._specs, self._batched = specs, batched
        self._input_names, self._output_names = set(inputs), set(output_names)
        self._buffers: list[Buffer] = []
        self._built_kernels: dict[Hashable, tuple[RunFunction, ...]] = {}
        for name in inputs:
            self._add_buffer(name, PLAIN)

    def add(self, step: Step) -> None:
        """Build one step in the layout of its kernel, converting inputs that have the other.

        A view becomes an alias of its input unless the run yields one of the two. A step without
        inputs is computed at once, as a constant. Outputs of the run are converted to the plain
        layout.
        """
        last = self._runs_channel_last(step)
        input_ids = tuple(self._get_or_convert(name, last) for name in step.inputs)
        tensors = (*step.inputs, *step.outputs)
        if step.kernel.is_view and self._output_names.isdisjoint(tensors):
            self._add_buffer(step.outputs[0], PLAIN, alias_of=input_ids[0])
            return
        output_ids = tuple(
            self._add_buffer(name, self._layout(name, last)) for name in step.outputs
        )
        input_specs = tuple(self._specs[name] for name in step.inputs)
        run_functions = self._build_kernel(step.kernel, input_specs, last)
        if not step.inputs:
            output_specs = [self._buffers[buffer_id].spec for buffer_id in output_ids]
            values = [np.empty(spec.shape, spec.dtype) for spec in output_specs]
            for run in run_functions:
                run([], values)
            self.constants.update(zip(output_ids, values, strict=True))
            return
        self.steps += [BuiltStep(run, input_ids, output_ids) for run in run_functions]
        for name in self._output_names.intersection(step.outputs):
            self._get_or_convert(name, last=False)

    def _build_kernel(
        self, kernel: Kernel, specs: tuple[TensorSpec, ...], last: bool
    ) -> tuple[RunFunction, ...]:
        """Return the functions of `kernel` for inputs `specs`, built once.

        Kernels with equal contents share the result and packed weights. `last` says whether arrays
        are channel-last.
        """
        key = content_key(kernel), specs, last
        if key not in self._built_kernels:
            built = kernel.build(specs, last)
            self._built_kernels[key] = built if isinstance(built, tuple) else (built,)
        return self._built_kernels[key]

    def max_step_bytes(self) -> int:
        """Return the bytes per sample that the largest step reads and writes, at least 1."""
        largest = 1
        for step in self.steps:
            buffer_ids = (*step.input_buffers, *step.output_buffers)
            step_bytes = sum(self._buffers[buffer_id].spec.nbytes for buffer_id in buffer_ids)
            largest = max(largest, step_bytes)
        return largest

    def assign_slots(self) -> tuple[Buffer, ...]:
        """Return the buffers with a memory slot each; -1 for those that need none.

        None need constants, the caller's tensors and aliases. Buffers share a slot if their
        lifetimes do not overlap; among the free slots the one closest in size is used.
        """
        last_steps: dict[int, int] = {}  # buffer id -> index of the last step that uses it
        for index, step in enumerate(self.steps):
            last_steps.update(dict.fromkeys(self._get_memory_ids(step), index))
        free: list[int] = []
        slots: dict[int, int] = {}
        slot_sizes: list[int] = []
        for index, step in enumerate(self.steps):
            for buffer_id in step.output_buffers:
                is_external = buffer_id in self.constants or self._buffers[buffer_id].name
                if is_external or buffer_id in slots:
                    continue
                size = self._buffers[buffer_id].spec.nbytes
                slots[buffer_id] = _take_slot(free, slot_sizes, size)
            for buffer_id in self._get_memory_ids(step):
                if last_steps[buffer_id] == index and buffer_id in slots:
                    free.append(slots[buffer_id])
        return tuple(
            replace(buffer, slot=slots.get(buffer_id, -1))
            for buffer_id, buffer in enumerate(self._buffers)
        )

    def _get_memory_ids(self, step: BuiltStep) -> set[int]:
        """Return the ids of the buffers with the inputs and outputs of `step`, aliases resolved."""
        return {self._buffers[i].memory_id for i in (*step.input_buffers, *step.output_buffers)}

    def _runs_channel_last(self, step: Step) -> bool:
        """Whether `step` runs on channel-last arrays, by the layout of its kernel.

        A kernel of layout "any" does if one of its inputs is channel-last already and all tensors
        have rank 3, or all have rank 4.
        """
        if step.kernel.layout != "any":
            return step.kernel.layout == "nhwc"
        ranks = {len(self._specs[name].shape) for name in (*step.inputs, *step.outputs)}
        return ranks in ({3}, {4}) and any(
            CHANNEL_LAST in self.buffer_ids[name] for name in step.inputs
        )

    def _layout(self, name: str, last: bool) -> str:
        """Return the layout of tensor `name` in a step that runs channel-last if `last`.

        Tensors of other ranks than 3 and 4 are always plain.
        """
        return CHANNEL_LAST if last and len(self._specs[name].shape) in (3, 4) else PLAIN

    def _add_buffer(self, name: str, layout: str, alias_of: int = -1) -> int:
        """Add a buffer for tensor `name` in `layout`; return its id.

        It is an alias of buffer `alias_of` unless that is -1. A plain buffer of an input or output
        belongs to the caller. An alias of a constant becomes a constant of its own shape; other
        aliases refer to the buffer that has the memory.
        """
        spec = self._specs[name]
        if layout == CHANNEL_LAST:
            spec = TensorSpec((spec.shape[0], *spec.shape[2:], spec.shape[1]), spec.dtype)
        buffer_id = len(self._buffers)
        if alias_of in self.constants:
            self.constants[buffer_id] = self.constants[alias_of].reshape(spec.shape)
            alias_of = -1
        is_callers = layout == PLAIN and (name in self._output_names or name in self._input_names)
        memory_id = buffer_id if alias_of < 0 else self._buffers[alias_of].memory_id
        self._buffers.append(
            Buffer(spec, name in self._batched, memory_id, name=name if is_callers else "")
        )
        self.buffer_ids[name][layout] = buffer_id
        return buffer_id

    def _get_or_convert(self, name: str, last: bool) -> int:
        """Return the buffer of `name` in the requested layout; add a conversion if none exists.

        With one channel or one pixel the layouts coincide: the buffer is then an alias, unless an
        output of the run is to become plain.
        """
        layout = self._layout(name, last)
        if layout in self.buffer_ids[name]:
            return self.buffer_ids[name][layout]
        (source,) = self.buffer_ids[name].values()
        spec = self._specs[name]
        channels, space = spec.shape[1], math.prod(spec.shape[2:])
        if 1 in (channels, space) and (layout == CHANNEL_LAST or name not in self._output_names):
            return self._add_buffer(name, layout, alias_of=source)  # both layouts coincide
        target = self._add_buffer(name, layout)
        self.steps.append(BuiltStep(make_layout_copy(spec, layout), (source,), (target,)))
        return target


def _take_slot(free: list[int], slot_sizes: list[int], size: int) -> int:
    """Return the free slot closest to `size` bytes, or a new one, enlarged if need be.

    Both lists are updated in place: `free`, and `slot_sizes` (bytes of each slot).
    """
    if free:
        slot = min(free, key=lambda candidate: abs(slot_sizes[candidate] - size))
        free.remove(slot)
    else:
        slot = len(slot_sizes)
        slot_sizes.append(0)
    slot_sizes[slot] = max(slot_sizes[slot], size)
    return slot


_PLAIN_TYPES = frozenset({bool, int, float, str, bytes, type(None)})


def content_key(value: Any) -> Hashable:
    """Return a key that is equal for two values only if they have the same class and contents.

    Arrays are hashed; sequences, mappings and dataclasses are compared by their members, numbers,
    texts, dtypes and classes by their `repr`. Any other object equals only itself, as long as it
    lives.
    """
    kind = type(value)
    if kind in _PLAIN_TYPES:  # most members; the general case below takes longer
        return kind, repr(value)
    if isinstance(value, np.ndarray):
        digest = hashlib.blake2b(np.ascontiguousarray(value).data, digest_size=16).digest()
        return "array", value.dtype.str, value.shape, digest
    if isinstance(value, tuple | list):
        return kind, tuple([content_key(member) for member in value])
    if isinstance(value, Mapping):
        return type(value), tuple(
            (content_key(name), content_key(member)) for name, member in value.items()
        )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return kind, tuple([content_key(member) for member in members])
    if isinstance(value, bool | int | float | str | bytes | np.generic | np.dtype | type | None):
        return type(value), repr(value)
    return "object", id(value)
