"""The proof of a program on a PC.

Compiled with cc against the stand-in executor, its chip parts in the simulator.
    (a) chip parts and borders   what the program quantizes, dequantizes and copies equals the
    simulator's, bit for bit (b) host parts               each output within 1e-5 of its range, over
    all calls, of onnxruntime's, on the
                                 program's own inputs; or within what `rounding` found that single
                                 precision costs
    (c) the whole program        equals, bit for bit, a run of the parts that calls the program's
    own host parts

Against onnxruntime as the host, the integers that differ are counted: the C library's exp and tanh
differ from it in the last bits, and a value near a tie may be rounded the other way. In a stream
such a value moves the states, and with them later calls: so calls are also computed from the
program's own states, where only ties may make a difference.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...run.compiled_host import CompiledHost
from ...run.parts_runner import PartRun, PartsRunner
from ...run.program_parts import PartitionedProgram
from ..dumps import absolute_difference, max_magnitude
from .build import HOST_FLAGS, OWN_FLAGS, build_stub_containers, compile_program, get_stub_folder
from .program import BoardProgram, ChipPart
from .program_files import compute_crcs, describe_program
from .proof import Proof
from .vectors import PartVector, collect_vectors

__all__ = [
    "LoadedProgram",
    "build_shared_library",
    "build_stub_packages",
    "describe_first_difference",
    "is_bit_equal",
    "prove_program",
    "run_known_answer_test",
]

_COMPUTE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_void_p)
)
_WATCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
)


_OWN_SOURCE_COUNT = 2  # of `list_sources`, before those of host parts


class _Package(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class LoadedProgram:
    """A program loaded into this process, its chip parts computed by the simulator."""

    def __init__(
        self, made: Path, program: BoardProgram, runner: PartsRunner, packages: Sequence[bytes]
    ) -> None:
        self._library = ctypes.CDLL(str(made))
        self.program = program
        self.observed: list[tuple[int, int, int, bytes]] = []
        self._chip_parts = {
            part.package_index: (part, runner) for part in program.unique_chip_parts
        }
        self._error: Exception | None = None
        self._callbacks = [_COMPUTE(self._compute), _WATCH(self._record)]
        self._library.standin_compute(self._callbacks[0])
        self._get_function("watch")(self._callbacks[1])
        self._memory = [ctypes.create_string_buffer(len(blob) + 64) for blob in packages]
        given = (_Package * len(packages))()
        for number, (held, blob) in enumerate(zip(self._memory, packages, strict=True)):
            start = ctypes.addressof(held) + -ctypes.addressof(held) % 64
            ctypes.memmove(start, blob, len(blob))
            given[number] = _Package(start, len(blob))
        self.status = int(self._get_function("init")(given))
        self.executor = int(self._get_function("executor_status")())

    def _get_function(self, name: str) -> Any:  # noqa: ANN401 - a foreign function
        return getattr(self._library, f"{self.program.prefix}_{name}")

    def _compute(self, number: int, inputs: object, outputs: object) -> int:
        try:
            part, runner = self._chip_parts[number]
            given = {}
            for i, port in enumerate(part.inputs):
                memory = ctypes.string_at(inputs[i], port.bytes)  # type: ignore[index]
                given[port.tensor] = np.frombuffer(memory, port.dtype).reshape(port.shape)
            made = runner.run_chip_part(
                part.name, {port.name: given[port.tensor] for port in part.inputs}
            )
            for i, port in enumerate(part.outputs):
                raw = np.ascontiguousarray(made[port.tensor]).tobytes()
                ctypes.memmove(outputs[i], raw, len(raw))  # type: ignore[index]
        except Exception as error:
            self._error = error
            return 1
        return 0

    def _record(self, part: int, output: int, port: int, data: int, size: int) -> int:
        self.observed.append((part, output, port, ctypes.string_at(data, size) if size else b""))
        return 0

    def run(self, feeds: Mapping[str, np.ndarray]) -> tuple[int, dict[str, np.ndarray]]:
        """Compute one call; return its code and outputs. What was shown stands in `observed`."""
        self.observed.clear()
        ins = [
            np.ascontiguousarray(np.asarray(feeds[a.tensor], a.dtype)) for a in self.program.inputs
        ]
        outs = [np.zeros(a.shape, a.dtype) for a in self.program.outputs]
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*ins, *outs)]
        code = int(self._get_function("run")(*pointers))
        if self._error is not None:
            raise self._error
        return code, {a.tensor: made for a, made in zip(self.program.outputs, outs, strict=True)}

    def reset(self) -> None:
        """Begin anew."""
        self._get_function("reset")()

    def close(self) -> None:
        """Close the program."""
        self._get_function("deinit")()


def list_sources(program: BoardProgram, folder: Path) -> list[tuple[Path, tuple[str, ...]]]:
    """Return the program's C files with their flags, without main.c."""
    include, up = f"-I{get_stub_folder()}", program.prefix.upper()
    own = (*OWN_FLAGS, include, f"-D{up}_WATCH")
    found = [
        (folder / f"{program.stem}{end}.c", own) for end in ("", "_selftest")
    ]  # `_OWN_SOURCE_COUNT` of them
    return [
        *found,
        *(
            (folder / f"{program.stem}_{part.name}.c", HOST_FLAGS)
            for part in program.unique_host_parts
        ),
    ]


def build_shared_library(
    program: BoardProgram, folder: Path, made: Path, flags: Sequence[str] = ("-O1",)
) -> str:
    """Compile the program in `folder` with the stand-in as a shared library.

    Return the warnings on our own C.
    """
    all_of_it = list_sources(program, folder)
    stand = [(get_stub_folder() / "standin.c", ("-std=c99", f"-I{get_stub_folder()}"))]
    said = compile_program([*all_of_it, *stand], made, (*flags, "-fPIC")).splitlines()
    own = tuple(str(path) for path, _ in all_of_it[:_OWN_SOURCE_COUNT])
    return "\n".join(line for line in said if "warning:" in line and line.startswith(own))


def prove_program(
    program: BoardProgram,
    parts: PartitionedProgram,
    folder: Path,
    calls: Sequence[Sequence[PartRun]],
    feeds: Sequence[Mapping[str, np.ndarray]],
) -> Proof:
    """Compile the program in `folder` and prove it on the calls `feeds`, in turn.

    calls : what the golden vectors are made of, for the run without Python. That one replays them
    for each part by itself, and for the whole program what was found here: near a tie its own
    floats make another integer.
    """
    proof = Proof()
    with tempfile.TemporaryDirectory(prefix="lingeronnx-try-") as name:
        place = Path(name)
        proof.warnings = build_shared_library(program, folder, place / "program.so").count(
            "warning:"
        )
        host = CompiledHost(folder, describe_program(program)["parts"])
        plain, own = PartsRunner(parts, "executor"), PartsRunner(parts, "executor", host=host)
        packages = build_stub_packages(program, folder)
        running = LoadedProgram(place / "program.so", program, plain, packages)
        try:
            if running.status:
                said = (
                    f"{program.prefix}_init returns {running.status}, the executor "
                    f"{running.executor}"
                )
                proof.failed.append(said)
            else:
                _prove_calls(proof, program, running, plain, own, feeds)
                if not proof.failed:
                    _compare_host_parts(proof, program, plain)
                if not proof.failed:
                    _prove_calls(
                        proof,
                        program,
                        running,
                        plain,
                        own,
                        make_border_inputs(program, feeds),
                        borders_only=True,
                    )
        finally:
            running.close()
        if not proof.failed:
            vectors = [collect_vectors(program, call) for call in calls]
            said = run_known_answer_test(program, folder, place, [*vectors, *proof.seen])
            if not said.startswith("PASS"):
                proof.failed.append(f"the known-answer test says: {said or 'nothing'}")
    return proof


def build_stub_packages(
    program: BoardProgram, folder: Path, vectors: Sequence[Sequence[PartVector]] = ()
) -> list[bytes]:
    """Return the stand-in's packages as the program in `folder` takes them.

    One blob, or one for each chip part.
    """
    packages = list(build_stub_containers(program, compute_crcs(folder, program), vectors).values())
    many = f"_PACKAGES {len(packages)} " in (folder / f"{program.stem}.h").read_text(
        encoding="utf-8"
    )
    return packages if many else [b"".join(packages)]


def run_known_answer_test(
    program: BoardProgram,
    folder: Path,
    place: Path,
    vectors: Sequence[Sequence[PartVector]],
    flags: Sequence[str] = ("-O1",),
) -> str:
    """Compile the known-answer test in `place`, run it on packages that replay `vectors`.

    Return its last line.
    """
    own = list_sources(program, folder)
    stand = [(get_stub_folder() / "standin.c", ("-std=c99", f"-I{get_stub_folder()}"))]
    compile_program([(folder / "main.c", own[0][1]), *own, *stand], place / "known_answers", flags)
    paths = []
    for number, content in enumerate(build_stub_packages(program, folder, vectors)):
        paths.append(place / f"{number}.pkg")
        paths[-1].write_bytes(content)
    done = subprocess.run(
        [str(place / "known_answers"), "--golden", str(folder / "golden"), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )
    lines = [*done.stderr.splitlines(), *done.stdout.splitlines()]
    return lines[-1] if lines else f"exit code {done.returncode}"


def _prove_calls(
    proof: Proof,
    program: BoardProgram,
    running: LoadedProgram,
    plain: PartsRunner,
    own: PartsRunner,
    feeds: Sequence[Mapping[str, np.ndarray]],
    borders_only: bool = False,
) -> None:
    """Run call by call, each from the states that the program itself, and each reference, has come to.

    borders_only : only what must be equal is compared, not the host parts with onnxruntime, nor
    integers counted.
    """
    ours: dict[str, np.ndarray] = {
        one.tensor: np.zeros(one.shape, one.dtype) for one, _ in program.states
    }
    theirs = dict(ours)
    running.reset()
    for number, given in enumerate(feeds):
        code, outputs = running.run(given)
        if code:
            proof.failed.append(f"call {number}: {program.prefix}_run returns {code}")
            return
        want = list(own.iter_parts({**given, **ours}))
        vectors = collect_vectors(program, want)
        wrong = _find_call_errors(program, running, vectors, _collect_outputs(want), outputs)
        proof.failed += [f"call {number}: {text}" for text in wrong]
        if proof.failed:
            return
        before, ours = ours, _get_next_states(program, want)
        proof.calls += 1
        if borders_only:
            continue
        proof.seen.append(vectors)
        reference = near = list(plain.iter_parts({**given, **theirs}))
        if any(
            not np.array_equal(before[name], array, equal_nan=True)
            for name, array in theirs.items()
        ):
            near = list(plain.iter_parts({**given, **before}))
        _count_differences(proof, want, reference)
        _count_same_state_differences(proof, program, want, near)
        theirs = _get_next_states(program, reference)


def _get_next_states(program: BoardProgram, runs: Sequence[PartRun]) -> dict[str, np.ndarray]:
    made = _collect_outputs(runs)
    return {one.tensor: made[two.tensor] for one, two in program.states}


def make_border_inputs(
    program: BoardProgram, feeds: Sequence[Mapping[str, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    """Return calls that are hard for borders.

    Values far outside, halves between two integers, zeros.
    """
    names = {array.tensor for array in program.inputs if array.dtype == "float32"}
    largest = {name: float(np.abs(feeds[0][name]).max(initial=0.0)) or 1.0 for name in names}
    fine = {name: 2.0 ** np.floor(np.log2(size / 512)) for name, size in largest.items()}

    def changed(change: Callable[[np.ndarray, float], np.ndarray]) -> dict[str, np.ndarray]:
        return {
            **feeds[0],
            **{name: change(feeds[0][name], fine[name]).astype(np.float32) for name in names},
        }

    return [
        changed(lambda a, unit: a * 16),
        changed(lambda a, unit: np.floor(a / unit) * unit),
        changed(lambda a, unit: np.zeros_like(a)),
    ]


def _collect_outputs(runs: Sequence[PartRun]) -> dict[str, np.ndarray]:
    return {name: array for run in runs for name, array in run.outputs.items()}


def _find_call_errors(
    program: BoardProgram,
    running: LoadedProgram,
    vectors: Sequence[PartVector],
    want: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
) -> list[str]:
    """Return what is wrong with one call, whose parts must read and write `vectors`, and whose outputs are `want`."""
    failed = []
    shown = {(part, output, port): raw for part, output, port, raw in running.observed}
    for number, (part, vector) in enumerate(zip(program.parts, vectors, strict=True)):
        for output, side in ((0, vector.inputs), (1, vector.outputs)):
            for port, array in enumerate(side):
                raw = shown.get((number, output, port))
                if raw is None:
                    failed.append(f"{part.name} did not run")
                elif not is_bit_equal(raw, array):
                    word = "output" if output else "input"
                    failed.append(
                        f"{part.name}, {word} {port}: {describe_first_difference(raw, array)}"
                    )
        if failed:
            return failed[:1]
    for end in program.outputs:
        wanted, have = want[end.tensor], outputs[end.tensor].tobytes()
        if not is_bit_equal(have, wanted):
            failed.append(f"output '{end.tensor}': {describe_first_difference(have, wanted)}")
    return failed


def is_bit_equal(raw: bytes, array: np.ndarray) -> bool:
    """Whether bytes are the array; any no-number is as good as another."""
    if raw == np.ascontiguousarray(array).tobytes():
        return True
    have = np.frombuffer(raw, array.dtype)
    return (
        array.dtype.kind == "f"
        and len(have) == array.size
        and np.array_equal(have, array.reshape(-1), equal_nan=True)
    )


def describe_first_difference(raw: bytes, array: np.ndarray) -> str:
    """Return where bytes differ from the array that they should be, in words."""
    have, flat = np.frombuffer(raw, array.dtype), array.reshape(-1)
    if have.size != flat.size:
        return f"{have.size} elements, expected {flat.size}"
    off = np.flatnonzero(have != flat)
    return (
        f"{len(off)} of {flat.size} differ, first element {off[0]} is {have[off[0]]}, expected "
        f"{flat[off[0]]}"
    )


def _compare_host_parts(proof: Proof, program: BoardProgram, plain: PartsRunner) -> None:
    """Compare the host parts, on the program's own inputs, with onnxruntime.

    A range is that of all calls together.
    """
    for number, part in enumerate(program.parts):
        if isinstance(part, ChipPart):
            continue
        made = [call[number].outputs for call in proof.seen]
        wanted = [plain.run_host_part(part.name, call[number].inputs) for call in proof.seen]
        for array, want, have in zip(
            part.targets, zip(*wanted, strict=True), zip(*made, strict=True), strict=True
        ):
            if array.dtype != "float32":
                if not all(map(np.array_equal, want, have)):
                    proof.failed.append(
                        f"{part.name}: output '{array.tensor}' differs from onnxruntime's"
                    )
                continue
            farthest = max(
                float(one.max(initial=0.0)) for one in map(absolute_difference, have, want)
            )
            off = farthest and float(np.divide(farthest, max_magnitude(want)))
            proof.host = max(proof.host, off)
            if off > (limit := program.host_tolerances[array.tensor]):
                text = (
                    f"output '{array.tensor}' is {off:.2g} of its range from onnxruntime's, "
                    f"more than {limit:g}"
                )
                proof.failed.append(f"{part.name}: {text}")


def _diff_integers(want: PartRun, reference: PartRun) -> dict[str, np.ndarray]:
    """Return by how much each integer of a chip part differs from that of another run."""
    a, b = ({n: x for n, x, _ in run.tensors if x.dtype.kind == "i"} for run in (want, reference))
    return (
        {name: np.abs(array.astype(np.int64) - b[name]) for name, array in a.items()}
        if want.part.chip
        else {}
    )


def _count_differences(proof: Proof, want: Sequence[PartRun], reference: Sequence[PartRun]) -> None:
    """Count integers that differ from a run with onnxruntime as the host."""
    for one, two in zip(want, reference, strict=True):
        for apart in _diff_integers(one, two).values():
            proof.integers += apart.size
            proof.differing += int(np.count_nonzero(apart))
            proof.largest = max(proof.largest, int(apart.max(initial=0)))


def _count_same_state_differences(
    proof: Proof, program: BoardProgram, want: Sequence[PartRun], near: Sequence[PartRun]
) -> None:
    """Count integers that differ where one call begins with the same states, and see how near a tie the first is."""
    found = [_diff_integers(one, two) for one, two in zip(want, near, strict=True)]
    proof.fallen += sum(
        int(np.count_nonzero(apart)) for tensors in found for apart in tensors.values()
    )
    for part, one, two, tensors in zip(program.parts, want, near, found, strict=True):
        if not isinstance(part, ChipPart):
            continue
        for index, port in enumerate(part.inputs):
            if port.tensor in tensors and tensors[port.tensor].any():
                proof.tie = max(
                    proof.tie,
                    _measure_tie_distance(one, two, part, index) if part.quantized[index] else 0.0,
                )
                return


def _measure_tie_distance(one: PartRun, two: PartRun, part: ChipPart, index: int) -> float:
    """Return how far from a tie, in counts, the values of an input are that became other integers."""
    port, name = part.inputs[index], part.sources[index].tensor
    reals = [
        np.asarray(run.inputs[name], np.float64) * 2.0 ** (port.shift or 0) for run in (one, two)
    ]
    off = np.not_equal(*(np.floor(real + 0.5) for real in reals))
    near = [np.abs(real - np.floor(real) - 0.5) for real in reals]
    return float(np.minimum(*near)[off].max(initial=0.0))
