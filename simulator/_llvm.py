"""Compile LLVM modules without Numba: machine code for this processor, or assembly for any.

Machine code for this processor is cached in files (`_disk_cache`). Writing a module takes longer
than reading its code, so the cache key is the function that would write the module, with its
arguments. This suffices because a cache folder belongs to one version of the sources. Must not
know: the meaning of the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from threading import Lock
from typing import Any

from llvmlite import binding

from simulator import _disk_cache

__all__ = ["emit_assembly", "get_function_address", "link_object"]


@cache
def _initialize(all_targets: bool) -> None:
    """Initialize LLVM and its assembly printers, for this processor or all targets; once each."""
    if all_targets:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
    else:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()


def _make_target_machine(triple: str, features: Sequence[str], jit: bool) -> Any:
    """Make LLVM's code generator for a processor, at optimization level 3.

    `triple` is LLVM's name of the target, "" for this machine; `features` are the extensions to
    use. `jit` says whether the code runs in this process.
    """
    target = binding.Target.from_triple(triple or binding.get_process_triple())
    return target.create_target_machine(
        opt=3, features=",".join(f"+{name}" for name in features), jit=jit
    )


def _optimize(text: str, machine: Any) -> Any:
    """Parse the LLVM module `text` and optimize it for `machine` at level 2; return the module."""
    module = binding.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    builder = binding.create_pass_builder(
        machine, binding.create_pipeline_tuning_options(speed_level=2)
    )
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    return module


def emit_assembly(text: str, triple: str, features: Sequence[str]) -> str:
    """Compile an LLVM module to assembly text for any processor.

    Parameters
    ----------
    text
        The module.
    triple
        LLVM's target triple; "" is this machine.
    features
        Instruction set extensions that the code may use.
    """
    _initialize(True)
    machine = _make_target_machine(triple, features, jit=False)
    return str(machine.emit_assembly(_optimize(text, machine)))


def get_function_address(
    write_ir: Callable[..., str], arguments: tuple[Any, ...], name: str, features: tuple[str, ...]
) -> int:
    """Compile the LLVM module ``write_ir(*arguments)`` and return the address of a function.

    Parameters
    ----------
    write_ir
        Function that writes the module; not called if its code is cached.
    arguments
        Its arguments: hashable, and with a `repr` that identifies them.
    name
        Function of the module.
    features
        Instruction set extensions of this processor that the code may use.

    Returns
    -------
    int
        Address of the code, which lives as long as the process.
    """
    with _LOCK:
        return _load_or_compile(write_ir, arguments, name, features)


_LOCK = Lock()  # two threads must not link the same code


@cache
def _load_or_compile(
    write_ir: Callable[..., str], arguments: tuple[Any, ...], name: str, features: tuple[str, ...]
) -> int:
    """Return the address of function `name` of the module that write_ir(*arguments) writes.

    Cached code is linked; if there is none, or LLVM cannot link it, the module is compiled for
    processor extensions `features` and cached.
    """
    _initialize(False)
    machine = _make_target_machine("", features, jit=True)
    key = _disk_cache.make_cache_key(
        f"{write_ir.__module__}.{write_ir.__qualname__}{arguments!r}", *features, machine.triple
    )
    code = _disk_cache.read_code(key, "o")
    if code is not None:
        with suppress(RuntimeError):  # LLVM cannot link the cached code: compile it again
            return link_object(code, name, {})
    code = machine.emit_object(_optimize(write_ir(*arguments), machine))
    _disk_cache.write_code(key, "o", code)
    return link_object(code, name, {})


def link_object(code: bytes, name: str, external_symbols: Mapping[str, int]) -> int:
    """Link an object file and return the address of its function `name`.

    Parameters
    ----------
    code
        The object file.
    name
        Function of the object file.
    external_symbols
        Addresses of the functions that it calls, other than those of the C library.

    Returns
    -------
    int
        Address of the function, which lives as long as the process.

    Raises
    ------
    RuntimeError
        If LLVM cannot link the file.
    """
    _initialize(False)
    is_arm = binding.get_process_triple().startswith(("aarch64", "arm64"))
    link = _link_with_mcjit if is_arm else _link_with_lljit
    owner, address = link(code, name, external_symbols)
    _LINKED_OBJECTS.append(owner)
    return address


_LINKED_OBJECTS: list[Any] = []  # code is freed with the object that owns it
_LINK_COUNTER = count()  # library names of a linker must be unique


def _link_with_lljit(
    code: bytes, name: str, external_symbols: Mapping[str, int]
) -> tuple[Any, int]:
    """Link object file `code` with LLVM's ORC JIT; return (owner, address of function `name`).

    `external_symbols` maps symbols that the code calls to addresses. The code is freed with its
    owner. Raises RuntimeError if it cannot be linked.
    """
    builder = (
        binding.JITLibraryBuilder().add_object_img(code).export_symbol(name).add_current_process()
    )
    for symbol, address in external_symbols.items():
        builder.import_symbol(symbol, address)
    library = builder.link(_get_lljit(), f"code {next(_LINK_COUNTER)}")
    return library, int(library[name])


@cache
def _get_lljit() -> Any:
    """Return the ORC JIT for the basic instructions of this processor, the same on each call."""
    return binding.create_lljit_compiler(_make_target_machine("", (), jit=True))


def _link_with_mcjit(
    code: bytes, name: str, external_symbols: Mapping[str, int]
) -> tuple[Any, int]:
    """Link object file `code` with LLVM's MCJIT; return (owner, address of function `name`).

    All sections are close to each other, because ARM instructions address only +-4 GiB; in llvmlite
    only MCJIT, the older and slower linker, does this. `external_symbols` maps symbols that the
    code calls to addresses.
    """
    for symbol, address in external_symbols.items():
        binding.add_symbol(symbol, address)
    engine = binding.create_mcjit_compiler(
        binding.parse_assembly(""), _make_target_machine("", (), jit=True)
    )
    engine.add_object_file(binding.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, int(engine.get_function_address(name))
