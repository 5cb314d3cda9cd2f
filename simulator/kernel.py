"""The interface between operator kernels and programs.

Owns: `Array`, `TensorSpec`, `Kernel`, `NumpyKernel`, `Step`, `SimulatorError`. Must not know: any
particular operator, how programs run, Numba and LLVM.

Shapes are logical: batch, channels, space (NCHW). Physically a tensor is either *plain* (stored in
its logical shape) or *channel-last* (the channel axis, 1, is moved to the end; only tensors with
three or more axes). Both are C-contiguous.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
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
    "data_address",
    "have_equal_parameters",
    "require",
]

Array: TypeAlias = np.ndarray
RunFunction: TypeAlias = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]

#: Bytes of a Python object before its fields; the first field of an array is its data address.
_OBJECT_HEADER_BYTES = object.__basicsize__


def data_address(array: Array) -> int:
    """Return the address of the elements of `array`, ten times as fast as `array.ctypes.data`."""
    return ctypes.c_size_t.from_address(id(array) + _OBJECT_HEADER_BYTES).value


class SimulatorError(ValueError):
    """Inconsistent steps: unknown names, unsupported shapes or dtypes, wrong feeds."""


def require(condition: bool, message: str) -> None:
    """Raise `SimulatorError` with `message` unless `condition` is true."""
    if not condition:
        raise SimulatorError(message)


@dataclass(frozen=True)
class TensorSpec:
    """Logical shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __post_init__(self) -> None:
        """Convert the shape to a tuple of int, and the dtype to NumPy's."""
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def __str__(self) -> str:
        """Format dtype and shape as text such as int8[1,3,8]."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def stack(self, count: int) -> TensorSpec:
        """Return the spec of `count` tensors of this one stacked along axis 0."""
        return TensorSpec((count * self.shape[0], *self.shape[1:]), self.dtype)

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes, elements times bytes per element."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Kernel:
    """One operator with its constants; an immutable value that threads may share.

    Class attribute `layout` is the layout of the arrays that the kernel computes on: "nhwc" is
    channel-last, "plain" is plain, "any" follows the layout of its inputs.
    """

    layout: ClassVar[str] = "plain"
    #: Whether the plain output has the elements of the plain input in the same order (no copy).
    is_view: ClassVar[bool] = False

    @property
    def is_per_sample(self) -> bool:
        """Whether axis 0 is only a batch axis for this kernel; True in this base class."""
        return True

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the specs of the outputs for input specs.

        This base raises NotImplementedError; subclasses define it.

        Raises
        ------
        SimulatorError
            If the inputs are not supported; `compile_program` adds the name of the step.
        """
        raise NotImplementedError

    def build(
        self, specs: Sequence[TensorSpec], channel_last: bool
    ) -> RunFunction | tuple[RunFunction, ...]:
        """Compile the kernel for input specs and a layout; weights are packed here.

        This base raises NotImplementedError; subclasses define it.

        Parameters
        ----------
        specs
            Logical specs of the inputs.
        channel_last
            Layout of all inputs and outputs.

        Returns
        -------
        RunFunction or tuple of RunFunction
            Functions ``run(inputs, outputs)`` on physical arrays that fill preallocated outputs; of
            several functions, each fills a part of the outputs. They must be safe to call from
            several threads and, if the kernel is per sample, accept any length of axis 0. A
            `native.NativeLoop` runs without Python overhead.
        """
        raise NotImplementedError

    def fuse(self, consumer: Kernel, specs: Sequence[TensorSpec]) -> Kernel | None:
        """Return one kernel that computes this one and then `consumer` bit-exactly, or None.

        `specs` are those of this kernel's inputs. Some kernels fuse a consumer that clamps, or
        looks up a table; this base returns None.
        """
        return None

    def make_per_sample(self, rank: int) -> Kernel | None:
        """Return a kernel that applies this one to each sample of a batch; None in this base class.

        Called for kernels that mix elements along axis 0 of a sample. `rank` is the number of axes
        of the first input.
        """
        return None

    @property
    def clamp_bounds(self) -> tuple[int, int] | None:
        """Bounds (low, high) if the kernel only clamps its input; None, as in this base, if not."""
        return None

    def is_nonnegative(self, inputs: Sequence[bool]) -> bool:
        """Whether no element of an output is negative; `inputs` says the same of each input.

        Of a view the input decides; otherwise this base returns False.
        """
        return self.is_view and all(inputs)

    def assume_nonnegative_input(self) -> Kernel:
        """Return a kernel for inputs that have no negative element; this kernel in the base."""
        return self

    def supports_batch(self, specs: Sequence[TensorSpec], batched: Sequence[bool]) -> bool:
        """Whether samples stacked along axis 0 of the `batched` inputs are stacked in every output.

        A sample has as many rows along axis 0 as its spec: 1, or more where attention heads are
        merged with the batch. This default requires a kernel that works per sample, the same number
        of rows in all batched inputs and in all outputs, and that a longer axis 0 changes no other
        dimension. False if `infer` rejects the inputs.
        """
        heads = {spec.shape[:1] for spec, flag in zip(specs, batched, strict=True) if flag}
        if not self.is_per_sample or len(heads) != 1 or () in heads:
            return False
        (head,) = heads
        # 7919 is a prime that no model uses as a dimension: no other axis matches by accident
        stacked = [
            spec.stack(7919) if flag else spec for spec, flag in zip(specs, batched, strict=True)
        ]
        try:
            outputs = self.infer(*specs)
            if any(output.shape[:1] != head for output in outputs):
                return False
            expected = tuple(output.stack(7919) for output in outputs)
            return tuple(self.infer(*stacked)) == expected
        except SimulatorError:
            return False


class NumpyKernel(Kernel):
    """A kernel in NumPy: subclasses define `infer` and `__call__`, which computes plain arrays."""

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Compute the outputs, a tuple of arrays, from plain input arrays.

        This base raises NotImplementedError; subclasses define it.
        """
        raise NotImplementedError

    def build(
        self, specs: Sequence[TensorSpec], channel_last: bool
    ) -> RunFunction | tuple[RunFunction, ...]:
        """Return a function that computes this kernel in NumPy and fills preallocated outputs.

        `specs` and `channel_last` are not used: arrays are plain.
        """

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            """Call the kernel on `ins`, and copy its outputs to `outs`.

            Raises SimulatorError if a shape or dtype differs from that of the array in `outs`.
            """
            for out, value in zip(outs, self(*ins), strict=True):
                value = np.asarray(value)
                if value.shape != out.shape or value.dtype != out.dtype:
                    raise SimulatorError(
                        f"{type(self).__name__} computed {value.dtype}{list(value.shape)}, but its "
                        f"inferred output is {out.dtype}{list(out.shape)}"
                    )
                out[...] = value

        return run

    def supports_batch(self, specs: Sequence[TensorSpec], batched: Sequence[bool]) -> bool:
        """Whether samples stacked along axis 0 of the `batched` inputs give stacked outputs.

        False unless `is_per_sample`; then True if samples have one row, which avoids a second
        inference that may be slow, and otherwise by inference.
        """
        if not self.is_per_sample:
            return False
        heads = [spec.shape[:1] for spec, flag in zip(specs, batched, strict=True) if flag]
        return all(head == (1,) for head in heads) or super().supports_batch(specs, batched)


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a program, `outputs = kernel(*inputs)`, by tensor name."""

    kernel: Kernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def have_equal_parameters(first: object, second: object) -> bool:
    """Whether two kernels, or parts of them, are of one class and have equal parameters.

    Such kernels compute the same numbers. Dataclasses are compared field by field, arrays by type,
    shape and values; False for objects of other classes that are not equal.
    """
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    if isinstance(first, tuple | list) and isinstance(second, tuple | list):
        pairs = list(zip(first, second, strict=False))
        return len(first) == len(second) and all(have_equal_parameters(*pair) for pair in pairs)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        keys_are_equal = first.keys() == second.keys()
        return keys_are_equal and all(
            have_equal_parameters(first[key], second[key]) for key in first
        )
    if is_dataclass(first) and is_dataclass(second):
        return all(
            have_equal_parameters(getattr(first, field.name), getattr(second, field.name))
            for field in fields(first)
        )
    return bool(first == second)
