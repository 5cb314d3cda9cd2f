"""What a kernel is: the protocol between the operators and the machine.

Owns: `TensorSpec`, `Kernel`, `NumpyKernel`, `Step`, `SimulatorError`. Must not know: any particular
operator, how programs run.

Shapes are logical: batch, channels, space (NCHW). Physically a tensor is either *plain* (as its
logical shape says) or
*channel-last* (the axis of channels, 1, moved to the end; tensors of three and more axes only). Both are C-contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

__all__ = [
    "Array",
    "Kernel",
    "NumpyKernel",
    "RunFunction",
    "SimulatorError",
    "Step",
    "TensorSpec",
    "require",
]

Array: TypeAlias = np.ndarray
RunFunction: TypeAlias = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]


class SimulatorError(ValueError):
    """Steps that do not fit together.

    Unknown names, shapes or dtypes a kernel cannot take, wrong feeds.
    """


def require(condition: bool, message: str) -> None:
    """Raise `SimulatorError(message)` unless the condition holds."""
    if not condition:
        raise SimulatorError(message)


@dataclass(frozen=True)
class TensorSpec:
    """Logical shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def nbytes(self) -> int:
        """Return the size of the tensor in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Kernel:
    """One operator with its constants inside; a value without state, so that threads may share it.

    Class attribute `layout`: "nhwc" wants channel-last arrays, "any" takes whatever its inputs
    have, "plain" wants plain.
    """

    layout: ClassVar[str] = "plain"
    #: Whether the plain output holds the numbers of the plain input in their order, and nothing need be computed.
    is_view: ClassVar[bool] = False

    @property
    def is_per_sample(self) -> bool:
        """Whether axis 0 is only a batch axis for this kernel."""
        return True

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the specs of the outputs.

        Raises
        ------
        SimulatorError
            When the inputs do not fit; the machine adds which step it was.
        """
        raise NotImplementedError

    def build(
        self, specs: Sequence[TensorSpec], channel_last: bool
    ) -> RunFunction | tuple[RunFunction, ...]:
        """Compile for input specs and layout (of all inputs and outputs); weights are packed here.

        The result takes physical arrays and fills preallocated ones; of several each fills a part
        of them. It must be safe to call from several threads and, where the kernel is per sample,
        accept any length of axis 0. A `native.NativeLoop` costs no time in Python.
        """
        raise NotImplementedError

    def fuse(self, consumer: Kernel) -> Kernel | None:
        """Return one kernel that does this and then `consumer` with the same integers, or None."""
        return None

    def make_per_sample(self, rank: int) -> Kernel | None:
        """Return the kernel that does this in a batch for each sample by itself.

        None where it has none.
        rank : of the inputs. Asked of a kernel that mixes what lies along axis 0 of a sample.
        """
        return None

    @property
    def clamp_bounds(self) -> tuple[int, int] | None:
        """(low, high) when the kernel only clamps its input, else None."""
        return None

    def supports_batch(self, specs: Sequence[TensorSpec], batched: Sequence[bool]) -> bool:
        """Whether samples may follow each other along axis 0 of the `batched` inputs, and then do so in every output.

        A sample has as many rows of axis 0 as `specs` say: 1, or another number where heads of
        attention were joined with the batch. Here all inputs and outputs have as many, and what is
        longer changes nothing else.
        """
        rows = {s.shape[:1] for s, b in zip(specs, batched, strict=True) if b}
        if not self.is_per_sample or len(rows) != 1 or () in rows:
            return False
        (own,) = rows
        many = 7919 * own[0]  # a prime no model uses as a size, so that no axis fits by accident
        longer = [
            TensorSpec((many, *s.shape[1:]), s.dtype) if b else s
            for s, b in zip(specs, batched, strict=True)
        ]
        try:
            return all(
                one.shape[:1] == own and more == TensorSpec((many, *one.shape[1:]), one.dtype)
                for one, more in zip(self.infer(*specs), self.infer(*longer), strict=True)
            )
        except SimulatorError:
            return False


class NumpyKernel(Kernel):
    """A kernel in NumPy: subclasses give `infer` and `__call__(*arrays) -> tuple of arrays`, on plain arrays."""

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the outputs for plain arrays of the inputs."""
        raise NotImplementedError

    def build(
        self, specs: Sequence[TensorSpec], channel_last: bool
    ) -> RunFunction | tuple[RunFunction, ...]:
        """Wrap `__call__` so that it fills preallocated arrays."""

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            for out, value in zip(outs, self(*ins), strict=True):
                value = np.asarray(value)
                if value.shape != out.shape or value.dtype != out.dtype:
                    raise SimulatorError(
                        f"{type(self).__name__} gave {value.dtype}{list(value.shape)} where it "
                        "announced "
                        f"{out.dtype}{list(out.shape)}"
                    )
                out[...] = value

        return run

    def supports_batch(self, specs: Sequence[TensorSpec], batched: Sequence[bool]) -> bool:
        """Take the subclass's word for samples of one row, `is_per_sample`.

        To infer twice may take long.
        """
        alone = all(spec.shape[:1] == (1,) for spec, b in zip(specs, batched, strict=True) if b)
        return self.is_per_sample and (alone or super().supports_batch(specs, batched))


@dataclass(frozen=True, eq=False)
class Step:
    """One step: `outputs = fn(*inputs)`, by tensor name."""

    kernel: Kernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
