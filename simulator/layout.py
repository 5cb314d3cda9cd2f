"""Where the tensors of a program live.

Physical layouts, conversions between them, buffers and their reuse.
Owns: `ProgramLayout`, which takes steps one after the other and builds them into `BuiltStep`s on
numbered `Buffer`s, and the two conversions. A tensor gets its other layout at the first step that
wants it and at most once. Must not know: any particular operator, batches, threads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from simulator._transpose import transpose_matrices
from simulator.content_key import content_key
from simulator.kernel import Array, Kernel, RunFunction, Step, TensorSpec
from simulator.native import InputRef, NativeLoop, OutputRef

__all__ = [
    "CHANNEL_LAST",
    "PLAIN",
    "Buffer",
    "BuiltStep",
    "ProgramLayout",
    "stack_samples",
    "make_to_channel_last",
    "make_to_plain",
]

PLAIN, CHANNEL_LAST = "plain", "channel-last"


def make_to_channel_last(spec: TensorSpec) -> NativeLoop:
    """Return the copy of plain [N, C, *space], logical `spec`, to channel-last [N, *space, C]."""
    channels, space = spec.shape[1], math.prod(spec.shape[2:])
    return NativeLoop(
        transpose_matrices,
        (InputRef(0, (-1, channels, space)), OutputRef(0, (-1, space, channels))),
    )


def make_to_plain(spec: TensorSpec) -> NativeLoop:
    """Return the copy of channel-last [N, *space, C] to plain [N, C, *space], logical `spec`."""
    channels, space = spec.shape[1], math.prod(spec.shape[2:])
    return NativeLoop(
        transpose_matrices,
        (InputRef(0, (-1, space, channels)), OutputRef(0, (-1, channels, space))),
    )


def stack_samples(spec: TensorSpec, samples: int) -> TensorSpec:
    """Return the spec of so many samples, each like `spec`, along axis 0."""
    return TensorSpec((samples * spec.shape[0], *spec.shape[1:]), spec.dtype)


@dataclass(frozen=True)
class BuiltStep:
    """One built step: what to call, on which buffers."""

    run: RunFunction
    input_buffers: tuple[int, ...]
    output_buffers: tuple[int, ...]


@dataclass(frozen=True)
class Buffer:
    """A physical tensor. Axis 0 follows the block where `is_batched`.

    Every sample has the rows of `spec`.
    `slot` is the memory it shares with others in turn.

    Slot -1 stands for no memory of its own: constants, and the arrays of the caller (`name`): fed
    and kept tensors. `alias_of` is the buffer whose numbers these are, in another shape.
    """

    spec: TensorSpec
    is_batched: bool
    slot: int = -1
    name: str = ""
    alias_of: int = -1

    def spec_for(self, samples: int) -> TensorSpec:
        """Return the physical spec for a block of `samples`."""
        return stack_samples(self.spec, samples) if self.is_batched else self.spec


class ProgramLayout:
    """Builds steps one after the other on numbered buffers.

    Parameters
    ----------
    inputs
        Names of the fed tensors.
    specs
        Logical specs of all tensors.
    batched
        Names of those whose axis 0 is the batch.
    kept
        Names of those that a run yields.

    Attributes
    ----------
    ops
        What has been built so far, conversions included.
    places
        Name -> layout -> number of the buffer.
    constants
        Number of the buffer -> value, for steps without inputs: they run here, once.
    """

    def __init__(
        self,
        inputs: Collection[str],
        specs: Mapping[str, TensorSpec],
        batched: Collection[str],
        kept: Collection[str],
    ) -> None:
        self.steps: list[BuiltStep] = []
        self.buffer_ids: dict[str, dict[str, int]] = defaultdict(dict)
        self.constants: dict[int, Array] = {}
        self._specs, self._batched, self._kept = specs, batched, set(kept)
        self._fed, self._buffers = set(inputs), list[Buffer]()
        self._runs: dict[Hashable, tuple[RunFunction, ...]] = {}
        for name in inputs:
            self._add_buffer(name, PLAIN)

    def add(self, step: Step) -> None:
        """Build one step in the layout it wants."""
        last = self._runs_channel_last(step)
        ins = tuple(self._get_or_convert(name, last) for name in step.inputs)
        if step.kernel.is_view and not self._kept.intersection((*step.inputs, *step.outputs)):
            self._add_buffer(step.outputs[0], PLAIN, of=ins[0])
            return
        outs = tuple(self._add_buffer(name, self._layout(name, last)) for name in step.outputs)
        runs = self._build_kernel(
            step.kernel, tuple(self._specs[name] for name in step.inputs), last
        )
        if not step.inputs:
            values = [
                np.empty(self._buffers[at].spec.shape, self._buffers[at].spec.dtype) for at in outs
            ]
            for run in runs:
                run([], values)
            self.constants.update(zip(outs, values, strict=True))
            return
        self.steps += [BuiltStep(run, ins, outs) for run in runs]
        for name in self._kept.intersection(step.outputs):
            self._get_or_convert(name, last=False)

    def _build_kernel(
        self, kernel: Kernel, specs: tuple[TensorSpec, ...], last: bool
    ) -> tuple[RunFunction, ...]:
        """Return what a kernel builds.

        Kernels that are alike share it, and with it their packed weights.
        """
        key = content_key(kernel), specs, last
        if key not in self._runs:
            built = kernel.build(specs, last)
            self._runs[key] = built if isinstance(built, tuple) else (built,)
        return self._runs[key]

    def max_step_bytes(self) -> int:
        """Return the bytes per sample that the largest step reads and writes."""
        return (
            max(
                (
                    sum(
                        self._buffers[at].spec.nbytes
                        for at in (*op.input_buffers, *op.output_buffers)
                    )
                    for op in self.steps
                ),
                default=1,
            )
            or 1
        )

    def assign_slots(self) -> tuple[Buffer, ...]:
        """Give every buffer a slot, one slot serving several buffers whose lives do not overlap."""
        ends = {
            self._resolve_alias(at): place
            for place, op in enumerate(self.steps)
            for at in (*op.input_buffers, *op.output_buffers)
        }
        free: list[int] = []
        slots: dict[int, int] = {}
        sizes: list[int] = []
        for place, op in enumerate(self.steps):
            for at in op.output_buffers:
                if at in self.constants or at in slots or self._buffers[at].name:
                    continue
                size = self._buffers[at].spec.nbytes
                if free:
                    slot = min(free, key=lambda slot: abs(sizes[slot] - size))  # noqa: B023 used at once
                    free.remove(slot)
                else:
                    slot = len(sizes)
                    sizes.append(0)
                slots[at], sizes[slot] = slot, max(sizes[slot], size)
            used = {self._resolve_alias(at) for at in (*op.input_buffers, *op.output_buffers)}
            free += [slots[at] for at in used if ends[at] == place and at in slots]
        return tuple(
            replace(buffer, slot=slots.get(at, -1)) for at, buffer in enumerate(self._buffers)
        )

    def _runs_channel_last(self, step: Step) -> bool:
        """Whether the step works channel-last.

        Because it wants to, or because one of its inputs lies so already.
        """
        if step.kernel.layout != "any":
            return step.kernel.layout == "nhwc"
        ranks = {len(self._specs[name].shape) for name in (*step.inputs, *step.outputs)}
        return ranks in ({3}, {4}) and any(
            CHANNEL_LAST in self.buffer_ids[name] for name in step.inputs
        )

    def _layout(self, name: str, last: bool) -> str:
        return CHANNEL_LAST if last and len(self._specs[name].shape) in (3, 4) else PLAIN

    def _resolve_alias(self, at: int) -> int:
        """Return the buffer that has the memory of buffer `at`."""
        return at if self._buffers[at].alias_of < 0 else self._buffers[at].alias_of

    def _add_buffer(self, name: str, layout: str, of: int = -1) -> int:
        """Number a new buffer for `name`, for the numbers of buffer `of` where that is given."""
        spec = self._specs[name]
        if layout == CHANNEL_LAST:
            spec = TensorSpec((spec.shape[0], *spec.shape[2:], spec.shape[1]), spec.dtype)
        given, number = (
            layout == PLAIN and (name in self._kept or name in self._fed),
            len(self._buffers),
        )
        if of in self.constants:
            self.constants[number], of = self.constants[of].reshape(spec.shape), -1
        root = -1 if of < 0 else self._resolve_alias(of)
        self._buffers.append(
            Buffer(spec, name in self._batched, name=name if given else "", alias_of=root)
        )
        self.buffer_ids[name][layout] = number
        return number

    def _get_or_convert(self, name: str, last: bool) -> int:
        """Return the buffer that holds `name` in the wanted layout, converting it if there is none yet."""
        layout = self._layout(name, last)
        if layout not in self.buffer_ids[name]:
            (source,) = self.buffer_ids[name].values()
            channels, space = self._specs[name].shape[1], math.prod(self._specs[name].shape[2:])
            if 1 in (channels, space) and (layout == CHANNEL_LAST or name not in self._kept):
                return self._add_buffer(name, layout, of=source)
            convert = (make_to_channel_last if layout == CHANNEL_LAST else make_to_plain)(
                self._specs[name]
            )
            self.steps.append(BuiltStep(convert, (source,), (self._add_buffer(name, layout),)))
        return self.buffer_ids[name][layout]
