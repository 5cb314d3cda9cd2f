"""Views of contiguous arrays in other shapes, for kernels.

Numba's `reshape` calls a C function that checks strides, which takes longer than a short row. Must
not know: operators.
"""

from __future__ import annotations

from typing import Any

from simulator._jit import intrinsic, overload

__all__ = ["view_as"]

_numba_intrinsic: Any = intrinsic  # a call leaves out the first argument, the typing context


def view_as(x: Any, shape: tuple[Any, ...]) -> Any:
    """Return C-contiguous `x` as an array of `shape`, which has as many elements.

    Compiled code does not check the number of elements.
    """
    return x.reshape(shape)


@overload(view_as)
def _overload_view_as(x: Any, shape: Any) -> Any:
    """Return the compiled implementation of `view_as`."""

    def implementation(x: Any, shape: Any) -> Any:
        """Return a view on the memory of `x`."""
        return _make_view(x, shape)

    return implementation


@_numba_intrinsic
def _make_view(typingctx: Any, x: Any, shape: Any) -> Any:
    """Return a view of C-contiguous `x` with the sizes in the tuple `shape`.

    Numba calls this intrinsic, which returns the signature and the code generator.
    """
    from numba import types
    from numba.core import cgutils
    from numba.np.arrayobj import make_array, populate_array

    view = types.Array(x.dtype, len(shape), "C")

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        """Emit the array structure of the view, which shares the memory of `x`."""
        source = make_array(x)(context, builder, args[0])
        target = make_array(view)(context, builder)
        sizes = [
            context.cast(builder, size, kind, types.intp)
            for size, kind in zip(cgutils.unpack_tuple(builder, args[1]), shape, strict=True)
        ]
        strides: list[Any] = []
        step = source.itemsize
        for size in reversed(sizes):
            strides.insert(0, step)
            step = builder.mul(step, size)
        populate_array(
            target, source.data, sizes, strides, source.itemsize, source.meminfo, source.parent
        )
        value = target._getvalue()
        if context.enable_nrt:
            context.nrt.incref(builder, view, value)
        return value

    return view(x, shape), codegen
