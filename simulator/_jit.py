"""The one door to Numba.

`jit` for kernels, `register_inline` for the scalar functions they are made of.
Owns the compile options, and when Numba is imported: not before something must be compiled, because
that takes longer than a small model runs (`_code` keeps machine code that needs no Numba). What a
module declares for Numba waits until then. Knows nothing of what is compiled.

Options: `nogil`, because programs run on plain threads (Numba's own threading layer is not safe to
call from several threads, so `parallel=True` is never used), and never `fastmath`: floats appear
only where the NPU's own arithmetic passes through them.

Numba's own disk cache is not used. It looks at the file of the cached function only, and would keep
stale code when a callee in another file changed; and its files are pickles, which run whatever
somebody put there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cached_property, update_wrapper
from threading import RLock
from typing import Any

__all__ = [
    "JittedFunction",
    "config",
    "import_numba",
    "intrinsic",
    "jit",
    "overload",
    "register_inline",
]


class _Config:
    @property
    def DISABLE_JIT(self) -> bool:
        """Whether Numba is told to leave Python as it is (NUMBA_DISABLE_JIT)."""
        told = getattr(
            sys.modules.get("numba.core.config"), "DISABLE_JIT", None
        )  # absent while it is being imported
        return bool(int(os.environ.get("NUMBA_DISABLE_JIT") or 0) if told is None else told)


config = _Config()


#: Of what only compiled code calls: no C interface, which costs compilation. Numba's annotations leave this option out.
_INLINE_OPTIONS: Any = {"no_cfunc_wrapper": True}
_LOCK = RLock()
_PENDING_DECLARATIONS: list[Callable[[], Any]] = []  # what Numba has to be told before it compiles


def import_numba() -> Any:
    """Import Numba, tell it what has been declared, and return it."""
    import numba

    with _LOCK:
        while _PENDING_DECLARATIONS:
            _PENDING_DECLARATIONS.pop(0)()
    return numba


def register_inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let kernels call `function`; in Python it stays what it is."""

    def tell() -> None:
        from numba.extending import register_jitable

        register_jitable(**_INLINE_OPTIONS)(function)

    _PENDING_DECLARATIONS.append(tell)
    return function


def overload(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Say what kernels call in place of `function`, as `numba.extending.overload`."""

    def declare(made: Callable[..., Any]) -> Callable[..., Any]:
        def tell() -> None:
            from numba.extending import overload as declared

            declared(function, jit_options=_INLINE_OPTIONS)(made)

        _PENDING_DECLARATIONS.append(tell)
        return made

    return declare


class intrinsic:
    """What kernels call and LLVM's builder writes, as `numba.extending.intrinsic`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        _PENDING_DECLARATIONS.append(lambda: self._numba_intrinsic)

    @cached_property
    def _numba_intrinsic(self) -> Any:
        from numba.extending import intrinsic as made

        return made(self._function)

    @property
    def _numba_type_(self) -> Any:
        """What Numba takes it for where a kernel names it."""
        from numba.core.registry import cpu_target

        return cpu_target.typing_context.resolve_value_type(self._numba_intrinsic)


class JittedFunction:
    """A function that is compiled where a `native.NativeLoop` or another one needs it.

    Called, it runs in Python.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Run without machine code."""
        return self.py_func(*arguments)

    @cached_property
    def dispatcher(self) -> Any:
        """The function for other compiled code alone.

        Nothing in it takes or returns Python objects.
        """
        options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        return import_numba().njit(nogil=True, error_model="numpy", **options)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        """What Numba takes it for where a kernel names it."""
        return import_numba().types.Dispatcher(self.dispatcher)


def jit(function: Callable[..., Any]) -> JittedFunction:
    """Let `function` be compiled when it is first needed for new types.

    The code releases the GIL.
    """
    return JittedFunction(function)
