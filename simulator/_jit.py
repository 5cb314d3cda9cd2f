"""Functions that Numba compiles: `jit` for kernels, `register_inline` for scalar functions.

Owns the compile options, and the time when Numba is imported: not before something must be
compiled, because the import takes longer than a small model runs (`_code_cache` stores machine code
that needs no Numba). Declarations for Numba are queued until then. `_kernel_compiler` is Numba's
compiler as used here. Must not know: the functions that are compiled.

Options: `nogil`, because programs run on plain threads (Numba's threading layer is not safe to call
from several threads, so `parallel=True` is never used), and never `fastmath`: floats appear only
where the NPU's arithmetic passes through them.

Numba's disk cache is not used. It checks only the file of the cached function, so the code would be
stale when a callee in another file changes; and its files are pickles, which execute whatever they
contain.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cached_property, update_wrapper
from threading import RLock
from typing import Any
from typing import overload as overload_types

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
    """Settings of Numba that are known without importing it."""

    @property
    def DISABLE_JIT(self) -> bool:
        """Whether compilation is disabled, so that kernels run in Python (NUMBA_DISABLE_JIT).

        Numba's own setting if it is imported, else the environment variable.
        """
        numba_config = sys.modules.get("numba.core.config")
        disabled = getattr(numba_config, "DISABLE_JIT", None)  # absent during Numba's import
        if disabled is None:
            disabled = int(os.environ.get("NUMBA_DISABLE_JIT") or 0)
        return bool(disabled)


config = _Config()


_LOCK = RLock()
_PENDING_DECLARATIONS: list[Callable[[], Any]] = []  # to run before Numba compiles anything


def _compile_options() -> Any:
    """Return Numba's options for functions that only compiled code calls: they need no wrappers."""
    from simulator._kernel_compiler import KernelCompiler

    return {
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
        "pipeline_class": KernelCompiler,
    }


def import_numba() -> Any:
    """Import Numba, run the declarations queued for it, each once, and return the module."""
    import numba

    with _LOCK:
        while _PENDING_DECLARATIONS:
            _PENDING_DECLARATIONS.pop(0)()
    return numba


def register_inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that kernels may call; it remains an ordinary Python function.

    The declaration to Numba is queued until kernels are compiled. Returns `function` itself.
    """

    def declare() -> None:
        """Declare the decorated function to Numba as one that compiled code inlines."""
        from numba.extending import register_jitable

        register_jitable(**_compile_options())(function)

    _PENDING_DECLARATIONS.append(declare)
    return function


def overload(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for the implementation of `function` in kernels.

    It does what `numba.extending.overload` does, but the declaration to Numba is queued until
    kernels are compiled, and the decorated function is returned unchanged.
    """

    def decorate(implementation: Callable[..., Any]) -> Callable[..., Any]:
        """Queue the declaration that `implementation` replaces `function` in kernels.

        Return it unchanged. The declaration is made when Numba is imported.
        """

        def declare() -> None:
            """Declare the implementation to Numba; called when Numba is imported."""
            from numba.extending import overload as numba_overload

            numba_overload(function, jit_options=_compile_options())(implementation)

        _PENDING_DECLARATIONS.append(declare)
        return implementation

    return decorate


class intrinsic:
    """Decorate a function that writes LLVM code, so that kernels can call it as a Numba intrinsic.

    The declaration to Numba is queued until kernels are compiled.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Store `function`, which writes LLVM code, and queue its declaration to Numba."""
        self._function = function
        _PENDING_DECLARATIONS.append(lambda: self._numba_intrinsic)

    @cached_property
    def _numba_intrinsic(self) -> Any:
        """Numba's intrinsic for the function; it is declared at the first access."""
        from numba.extending import intrinsic as numba_intrinsic

        return numba_intrinsic(self._function)

    @property
    def _numba_type_(self) -> Any:
        """Numba's type of this object where a kernel refers to it."""
        from numba.core.registry import cpu_target

        return cpu_target.typing_context.resolve_value_type(self._numba_intrinsic)


class JittedFunction:
    """A function that is compiled on demand by a `native.NativeLoop` or another kernel.

    Called from Python, it runs uncompiled.
    """

    def __init__(self, function: Callable[..., Any], allocates: bool) -> None:
        """Wrap `function`, a kernel in Python, without compiling it."""
        self.py_func = function
        self._allocates = allocates
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Run the function uncompiled, in Python, and return its result."""
        return self.py_func(*arguments)

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's dispatcher of the function, for calls from compiled code only."""
        options = {**_compile_options(), "_nrt": self._allocates}
        return import_numba().njit(nogil=True, error_model="numpy", **options)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        """Numba's type of this function where another kernel refers to it."""
        return import_numba().types.Dispatcher(self.dispatcher)


@overload_types
def jit(function: Callable[..., Any]) -> JittedFunction: ...
@overload_types
def jit(*, allocates: bool) -> Callable[[Callable[..., Any]], JittedFunction]: ...
def jit(function: Callable[..., Any] | None = None, *, allocates: bool = False) -> Any:
    """Decorate a kernel: it is compiled when first needed for new types, and releases the GIL.

    Called from Python, it runs uncompiled. ``@jit(allocates=True)`` is for a kernel that creates
    arrays: its code counts references to arrays, which takes longer to compile. Without it, Numba
    raises an error.
    """
    if function is None:
        return lambda decorated: JittedFunction(decorated, allocates)
    return JittedFunction(function, allocates)
