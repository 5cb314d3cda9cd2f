"""LLVM without Numba: the text of a module -> machine code, for this processor or, as assembly, for any.

What is compiled for this processor is kept in files (`_disk_cache`). Writing a text costs more than
reading its code: code is therefore found by the function that would write its text, and its
arguments. That suffices because files are of one state of the sources. Knows nothing of what the
code does.
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
def _initialize(everything: bool) -> None:
    if everything:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
    else:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()


def _make_target_machine(triple: str, features: Sequence[str], jit: bool) -> Any:
    target = binding.Target.from_triple(triple or binding.get_process_triple())
    return target.create_target_machine(
        opt=3, features=",".join(f"+{name}" for name in features), jit=jit
    )


def _optimize(text: str, machine: Any) -> Any:
    module = binding.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    builder = binding.create_pass_builder(
        machine, binding.create_pipeline_tuning_options(speed_level=2)
    )
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    return module


def emit_assembly(text: str, triple: str, features: Sequence[str]) -> str:
    """Return the assembly of the LLVM module `text` for the target `triple` ("" is this machine) with `features`."""
    _initialize(True)
    machine = _make_target_machine(triple, features, jit=False)
    return str(machine.emit_assembly(_optimize(text, machine)))


def get_function_address(
    write_ir: Callable[..., str], arguments: tuple[Any, ...], name: str, features: tuple[str, ...]
) -> int:
    """Return the address of function `name` of the LLVM module that ``write_ir(*arguments)`` writes.

    It is compiled for this processor with `features`, and lives as long as the process. The
    arguments are hashable, and their `repr` says all of them.
    """
    with _LOCK:
        return _load_or_compile(write_ir, arguments, name, features)


_LOCK = Lock()  # two threads must not link the same code


@cache
def _load_or_compile(
    text: Callable[..., str], arguments: tuple[Any, ...], name: str, features: tuple[str, ...]
) -> int:
    _initialize(False)
    machine = _make_target_machine("", features, jit=True)
    key = _disk_cache.make_cache_key(
        f"{text.__module__}.{text.__qualname__}{arguments!r}", *features, machine.triple
    )
    code = _disk_cache.read_code(key, "o")
    if code is not None:
        with suppress(RuntimeError):  # what LLVM says of code that it cannot link
            return link_object(code, name, {})
    code = machine.emit_object(_optimize(text(*arguments), machine))
    _disk_cache.write_code(key, "o", code)
    return link_object(code, name, {})


def link_object(code: bytes, name: str, external_symbols: Mapping[str, int]) -> int:
    """Link an object file, and return the address of its function `name`, which lives as long as the process.

    external_symbols : addresses of functions that it calls, besides those of the C library. Raises
    RuntimeError where LLVM cannot link it.
    """
    _initialize(False)
    near = binding.get_process_triple().startswith(("aarch64", "arm64"))
    holder, place = (_link_with_mcjit if near else _link_with_lljit)(code, name, external_symbols)
    _LINKED_OBJECTS.append(holder)
    return place


_LINKED_OBJECTS: list[Any] = []  # code lives as long as what stands for it
_LINK_COUNTER = count()  # a linker knows a name once


def _link_with_lljit(code: bytes, name: str, given: Mapping[str, int]) -> tuple[Any, int]:
    library = (
        binding.JITLibraryBuilder().add_object_img(code).export_symbol(name).add_current_process()
    )
    for called, place in given.items():
        library.import_symbol(called, place)
    made = library.link(_get_lljit(), f"code {next(_LINK_COUNTER)}")
    return made, int(made[name])


@cache
def _get_lljit() -> Any:
    return binding.create_lljit_compiler(_make_target_machine("", (), jit=True))


def _link_with_mcjit(code: bytes, name: str, given: Mapping[str, int]) -> tuple[Any, int]:
    """Link with all sections side by side, as ARM's instructions need it: they reach 4 GiB.

    What does it in llvmlite is the older of its two linkers. It takes more time, so it is used
    where it must be.
    """
    for called, place in given.items():
        binding.add_symbol(called, place)
    engine = binding.create_mcjit_compiler(
        binding.parse_assembly(""), _make_target_machine("", (), jit=True)
    )
    engine.add_object_file(binding.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, int(engine.get_function_address(name))
