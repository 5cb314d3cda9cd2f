"""Machine code of jitted functions for argument types, from the disk cache or compiled by Numba.

Numba's disk cache cannot be read without importing Numba. A file of this cache contains the symbol
of the function, the names of the functions in Numba's two C libraries that it calls, and the object
code, so LLVM alone can link it. The libraries are separate modules, which can be loaded without
Numba. Anything else that it calls must be in the C library, else it cannot be linked.

Types are represented as plain values, see `argument_type`: an array by its dtype and rank, a tuple
by its class and members.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from typing import Any, TypeAlias

import numpy as np

from simulator import _disk_cache, _llvm
from simulator._jit import JittedFunction, import_numba

__all__ = ["ArgumentType", "argument_type", "get_function_address"]

ArgumentType: TypeAlias = Any  # the name of a scalar type, or a tuple for an array or a tuple
_SCALAR_TYPES: dict[type, str] = {type(None): "none", bool: "bool", int: "int64", float: "float64"}
#: Numba's C libraries: prefix of their functions in object code, module, folders within Numba.
_LIBRARIES = (
    ("NRT_", "numba.core.runtime._nrt_python", ("core", "runtime")),
    ("numba_", "numba._helperlib", ()),
)
_LOCK = RLock()


def argument_type(value: Any) -> ArgumentType:
    """Return a hashable representation of the type of argument `value`.

    Arrays give ("array", dtype, ndim), tuples (class, types of the members), numbers and None a
    text or a dtype. Arrays must be C-contiguous (asserted); they are treated as writeable, whatever
    their flags say.
    """
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return "array", value.dtype, value.ndim
    if isinstance(value, tuple):
        return type(value), tuple(argument_type(member) for member in value)
    return _SCALAR_TYPES.get(type(value)) or value.dtype


def _numba_type(argument: ArgumentType) -> Any:
    """Convert an argument type, as a plain value, to Numba's type.

    A text or dtype is a number ("none" is None), ("array", dtype, ndim) a C-contiguous array, and
    (class, members) a tuple or named tuple.
    """
    from numba import from_dtype, types

    if isinstance(argument, str | np.dtype):
        return types.none if argument == "none" else from_dtype(np.dtype(argument))
    if argument[0] == "array":
        return types.Array(from_dtype(argument[1]), argument[2], "C")
    cls, members = argument[0], tuple(_numba_type(member) for member in argument[1])
    if cls is tuple:
        return types.Tuple(members)
    if len(set(members)) == 1:
        return types.NamedUniTuple(members[0], len(members), cls)
    return types.NamedTuple(members, cls)


def get_function_address(function: JittedFunction, kinds: tuple[ArgumentType, ...]) -> int:
    """Return the address of the machine code of `function` for argument types `kinds`.

    Taken from the disk cache, or compiled if necessary. The code lives as long as the process; only
    one thread compiles at a time.
    """
    with _LOCK:
        return _load_or_compile(function, kinds)


@cache
def _load_or_compile(function: JittedFunction, kinds: tuple[ArgumentType, ...]) -> int:
    """Return the address of the machine code of `function` for `kinds`, compiled if not cached.

    `kinds` are plain values, one per argument. One process compiles, under a lock; others wait and
    then load its code.
    """
    key = _disk_cache.make_cache_key(
        f"{function.py_func.__module__}.{function.py_func.__qualname__}", _type_key(kinds)
    )
    address = _load_cached(key)
    if address is None:
        with _disk_cache.exclusive_lock(key):
            address = _load_cached(key)  # another process may have compiled it meanwhile
            if address is None:
                address = _compile_and_store(function, kinds, key)
    return address


def _load_cached(key: str) -> int | None:
    """Link the code cached under `key` and return its address; None if there is none.

    None also if it cannot be linked, or calls an unknown function of Numba's C libraries.
    """
    content = _disk_cache.read_code(key, "loop")
    if content is None:
        return None
    head, _, code = content.partition(b"\n")
    symbol, names = json.loads(head)
    external_symbols: dict[str, int] = {}
    for name in names:
        address = _library_function_address(name)
        if not address:
            return None
        external_symbols[name] = address
    try:
        return _llvm.link_object(code, symbol, external_symbols)
    except RuntimeError:  # LLVM cannot link the code
        return None


def _compile_and_store(function: JittedFunction, kinds: tuple[ArgumentType, ...], key: str) -> int:
    """Compile `function` for argument types `kinds` with Numba; return the address of its code.

    The code is cached under `key`. Raises RuntimeError if it cannot be linked without Numba.
    """
    import_numba()
    signature = tuple(_numba_type(kind) for kind in kinds)
    with _paused_garbage_collection():
        function.dispatcher.compile(signature)
        compiled = function.dispatcher.overloads[signature]
        code = compiled.library.emit_object()
    symbol = compiled.fndesc.llvm_func_name
    addresses: dict[str, int] = {}
    for name in compiled.library.list_external_symbols():
        if address := _library_function_address(name):
            addresses[name] = address
    address = _llvm.link_object(code, symbol, addresses)
    head = json.dumps([symbol, list(addresses)]).encode()
    _disk_cache.write_code(key, "loop", head + b"\n" + code)
    return address


@contextmanager
def _paused_garbage_collection() -> Iterator[None]:
    """Collect no garbage while the context is open: Numba leaves little, and creates much else.

    Collections would take a tenth of the time of compilation.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _type_key(kind: ArgumentType) -> str:
    """Format an argument type as text for a cache key; classes by their full names."""
    if isinstance(kind, type):
        return f"{kind.__module__}.{kind.__qualname__}"
    return f"({','.join(map(_type_key, kind))})" if isinstance(kind, tuple) else str(kind)


def _library_function_address(name: str) -> int | None:
    """Return the address of function `name` of Numba's two C libraries, or None if they lack it.

    Its prefix says which library.
    """
    for prefix, module, folders in _LIBRARIES:
        if name.startswith(prefix):
            return _library_functions(module, folders).get(name.removeprefix(prefix))
    return None


@cache
def _library_functions(module: str, folders: tuple[str, ...]) -> Mapping[str, int]:
    """Return name -> address for the functions of a C library of Numba, without importing Numba.

    `module` is the extension module, `folders` lead to it from Numba's. Empty if it is not found.
    """
    package = find_spec("numba")
    if package is None or package.origin is None:
        return {}
    folder = str(Path(package.origin).parent.joinpath(*folders))
    finder = FileFinder(folder, (ExtensionFileLoader, EXTENSION_SUFFIXES))
    extension = finder.find_spec(module.rpartition(".")[2])
    if extension is None or not extension.origin:
        return {}
    spec = spec_from_file_location(module, extension.origin)
    if spec is None or spec.loader is None:
        return {}
    library = module_from_spec(spec)
    spec.loader.exec_module(library)
    functions: Mapping[str, int] = library.c_helpers
    return functions
