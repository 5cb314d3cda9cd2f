"""The machine code of jitted functions for given types.

From a file of this cache, else compiled by Numba, and kept.
Numba's own cache needs Numba to be read. A file here holds the symbol of the function, the names
that its code calls of Numba's two libraries in C, and the code; LLVM alone links it. The libraries
are modules of their own, which can be loaded without the rest. Where a function calls anything
else, nothing is kept.

Types are written as plain values, `argument_type`: of an array its dtype and rank, of a tuple its
class and members.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from typing import Any, TypeAlias

import numpy as np
from llvmlite import binding

from simulator import _disk_cache, _llvm
from simulator._jit import JittedFunction, import_numba

__all__ = ["ArgumentType", "argument_type", "get_function_address"]

ArgumentType: TypeAlias = Any  # a type, or a tuple of what stands for one
_SCALAR_TYPES: dict[type, str] = {type(None): "none", bool: "bool", int: "int64", float: "float64"}
#: Numba's libraries: what their functions begin with in code, the module, its place.
_LIBRARIES = (
    ("NRT_", "numba.core.runtime._nrt_python", ("core", "runtime")),
    ("numba_", "numba._helperlib", ()),
)
_LOCK = RLock()


def argument_type(value: Any) -> ArgumentType:
    """Return what stands for the type of an argument.

    Arrays are contiguous and may be written, whatever they say.
    """
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return "array", value.dtype, value.ndim
    if isinstance(value, tuple):
        return type(value), tuple(argument_type(member) for member in value)
    return _SCALAR_TYPES.get(type(value)) or value.dtype


def _numba_type(found: ArgumentType) -> Any:
    from numba import from_dtype, types

    if isinstance(found, str | np.dtype):
        return types.none if found == "none" else from_dtype(np.dtype(found))
    if found[0] == "array":
        return types.Array(from_dtype(found[1]), found[2], "C")
    cls, members = found[0], tuple(_numba_type(member) for member in found[1])
    if cls is tuple:
        return types.Tuple(members)
    if len(set(members)) == 1:
        return types.NamedUniTuple(members[0], len(members), cls)
    return types.NamedTuple(members, cls)


def get_function_address(function: JittedFunction, kinds: tuple[ArgumentType, ...]) -> int:
    """Return the address of a function's code for arguments of these kinds, as long as the process lives."""
    with _LOCK:
        return _load_or_compile(function, kinds)


@cache
def _load_or_compile(function: JittedFunction, kinds: tuple[ArgumentType, ...]) -> int:
    key = _disk_cache.make_cache_key(
        f"{function.py_func.__module__}.{function.py_func.__qualname__}", _type_key(kinds)
    )
    found = _load_cached(key)
    if found is None:
        with _disk_cache.exclusive_lock(key):  # meanwhile another process may have compiled it
            found = _load_cached(key)
            if found is None:
                found = _compile_and_store(function, kinds, key)
    return found


def _load_cached(key: str) -> int | None:
    """Return the address of code from a file, None where there is none that fits and can be linked."""
    kept = _disk_cache.read_code(key, "loop")
    if kept is None:
        return None
    head, _, code = kept.partition(b"\n")
    symbol, names = json.loads(head)
    given = {name: place for name in names if (place := _library_function_address(name))}
    if len(given) < len(names):
        return None
    try:
        return _llvm.link_object(code, symbol, given)
    except RuntimeError:  # what LLVM says of code that it cannot link
        return None


def _compile_and_store(function: JittedFunction, kinds: tuple[ArgumentType, ...], key: str) -> int:
    import_numba()
    given = tuple(_numba_type(found) for found in kinds)
    function.dispatcher.compile(given)
    compiled = function.dispatcher.overloads[given]
    library, symbol = compiled.library, compiled.fndesc.llvm_func_name
    found = int(library.get_pointer_to_function(symbol))
    called = [
        f.name
        for f in library._final_module.functions
        if f.is_declaration and not f.name.startswith("llvm.")
    ]
    names = [name for name in called if _library_function_address(name)]
    if all(binding.address_of_symbol(name) for name in {*called} - {*names}):
        _disk_cache.write_code(
            key,
            "loop",
            json.dumps([symbol, names]).encode() + b"\n" + library._get_compiled_object(),
        )
    return found


def _type_key(found: ArgumentType) -> str:
    """Return kinds as text, classes by their full names."""
    if isinstance(found, type):
        return f"{found.__module__}.{found.__qualname__}"
    return f"({','.join(map(_type_key, found))})" if isinstance(found, tuple) else str(found)


def _library_function_address(name: str) -> int | None:
    """Return the address of a function of Numba's libraries, None where they have no such one."""
    for prefix, module, folders in _LIBRARIES:
        if name.startswith(prefix):
            return _library_functions(module, folders).get(name.removeprefix(prefix))
    return None


@cache
def _library_functions(module: str, folders: tuple[str, ...]) -> Mapping[str, int]:
    """Return the functions of a library by name, without importing the package that it is in."""
    package = find_spec("numba")
    if package is None or package.origin is None:
        return {}
    folder = str(Path(package.origin).parent.joinpath(*folders))
    found = FileFinder(folder, (ExtensionFileLoader, EXTENSION_SUFFIXES)).find_spec(
        module.rpartition(".")[2]
    )
    spec = (
        spec_from_file_location(module, found.origin)
        if found is not None and found.origin
        else None
    )
    if spec is None or spec.loader is None:
        return {}
    library = module_from_spec(spec)
    spec.loader.exec_module(library)
    functions: Mapping[str, int] = library.c_helpers
    return functions
