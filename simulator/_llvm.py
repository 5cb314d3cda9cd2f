"""LLVM without Numba: the text of a module -> machine code, for this processor or, as assembly, for any.

What is compiled for this processor is kept beside Numba's own files (`_jit.cache_folder`). Writing a text costs more
than reading its code: code is therefore found by the function that would write its text, and its arguments. That
suffices because the folder is named by a hash of all sources. Knows nothing of what the code does.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from llvmlite import binding

from simulator._jit import cache_folder, config

__all__ = ["address", "alone", "assembly", "linked", "read", "write"]


@cache
def _initialize(everything: bool) -> None:
    if everything:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
    else:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()


def _machine(triple: str, features: Sequence[str], jit: bool) -> Any:
    target = binding.Target.from_triple(triple or binding.get_process_triple())
    return target.create_target_machine(opt=3, features=",".join(f"+{name}" for name in features), jit=jit)


def _optimized(text: str, machine: Any) -> Any:
    module = binding.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    return module


def assembly(text: str, triple: str, features: Sequence[str]) -> str:
    """Return the assembly of the LLVM module `text` for the target `triple` ("" is this machine) with `features`."""
    _initialize(True)
    machine = _machine(triple, features, jit=False)
    return str(machine.emit_assembly(_optimized(text, machine)))


def address(text: Callable[..., str], arguments: tuple[Any, ...], name: str, features: tuple[str, ...]) -> int:
    """Return the address of function `name` of the LLVM module that ``text(*arguments)`` writes.

    It is compiled for this processor with `features`, and lives as long as the process. The arguments are hashable, and
    their `repr` says all of them.
    """
    with _LOCK:
        return _address(text, arguments, name, features)


_LOCK = Lock()  # two threads must not link the same code


@cache
def _address(text: Callable[..., str], arguments: tuple[Any, ...], name: str, features: tuple[str, ...]) -> int:
    _initialize(False)
    machine = _machine("", features, jit=True)
    what = f"{text.__module__}.{text.__qualname__}{arguments!r}"
    key = hashlib.sha256("\n".join([what, *features, machine.triple, repr(binding.llvm_version_info)]).encode())
    short = key.hexdigest()[:24]
    code = read(short, "o")
    if code is None:
        code = machine.emit_object(_optimized(text(*arguments), machine))
        write(short, "o", code)
    return linked(code, name, short, {})


def linked(code: bytes, name: str, key: str, given: Mapping[str, int]) -> int:
    """Link an object file, and return the address of its function `name`, which lives as long as the process.

    key : names the code. given : addresses of functions that it calls, besides those of the C library.
    """
    _initialize(False)
    near = binding.get_process_triple().startswith(("aarch64", "arm64"))
    holder, place = (_linked_near if near else _linked_anywhere)(code, name, key, given)
    _LINKED.append(holder)
    return place


_LINKED: list[Any] = []  # code lives as long as what stands for it


def _linked_anywhere(code: bytes, name: str, key: str, given: Mapping[str, int]) -> tuple[Any, int]:
    library = binding.JITLibraryBuilder().add_object_img(code).export_symbol(name).add_current_process()
    for called, place in given.items():
        library.import_symbol(called, place)
    made = library.link(_linker(), key)
    return made, int(made[name])


@cache
def _linker() -> Any:
    return binding.create_lljit_compiler(_machine("", (), jit=True))


def _linked_near(code: bytes, name: str, _: str, given: Mapping[str, int]) -> tuple[Any, int]:
    """Link with all sections side by side, as ARM's instructions need it: they reach 4 GiB.

    What does it in llvmlite is the older of its two linkers. It takes more time, so it is used where it must be.
    """
    for called, place in given.items():
        binding.add_symbol(called, place)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine("", (), jit=True))
    engine.add_object_file(binding.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, int(engine.get_function_address(name))


def _file(key: str, kind: str) -> Path | None:
    folder = None if config.DISABLE_JIT else cache_folder()
    return None if folder is None else Path(folder) / f"{key}.{kind}"


def read(key: str, kind: str) -> bytes | None:
    """Return what is kept under a key, None for nothing."""
    path = _file(key, kind)
    try:
        return path.read_bytes() if path is not None else None
    except OSError:
        return None


@contextmanager
def alone(key: str) -> Iterator[None]:
    """Let no other process make what is kept under a key meanwhile; where files have no locks, let all.

    The system lets go of what a process held that has ended.
    """
    path = _file(key, "lock")
    with ExitStack() as held:
        with suppress(ImportError, OSError):
            from fcntl import LOCK_EX, flock  # not on Windows

            if path is not None:
                file = held.enter_context(path.open("wb"))
                held.callback(path.unlink, missing_ok=True)  # who comes later finds what is kept
                flock(file, LOCK_EX)
        yield


def write(key: str, kind: str, content: bytes) -> None:
    """Keep bytes under a key, in place at once, so that no other process reads half of them."""
    path = _file(key, kind)
    if path is None:
        return
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError:
        return
