"""Prove a program on a PC, with the stand-in executor and the simulator as its chip parts.

    (a) chip parts and conversions    the values that the program quantizes, dequantizes and copies
                                      are bit-equal to the simulator's
    (b) host parts                    for the program's inputs, each output is within 1e-5 of its
                                      range in all calls of onnxruntime's, or within the tolerance
                                      of `host_tolerances`
    (c) complete program              is bit-equal to a run of the parts that calls the program's
                                      compiled host parts

Integers that differ from a run with onnxruntime as the host are counted: exp and tanh of the C
library differ in the last bits, and a value near a tie may be rounded the other way. In a stream
such a value changes the states, and with them later calls. Calls are therefore also computed from
the program's states, where only ties may make a difference.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...runtime.compiled_host import CompiledHost
from ...runtime.parts_runner import PartRun, PartsRunner
from ...runtime.program_parts import PartitionedProgram
from ..dumps import absolute_difference, max_magnitude
from .build import (
    HOST_FLAGS,
    PROGRAM_FLAGS,
    build_stub_containers,
    compile_program,
    get_stub_folder,
)
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
_PROGRAM_SOURCE_COUNT = 2  # files of `list_sources` before those of host parts


class _Package(ctypes.Structure):
    """A package in memory as the C function `init` takes it: address and size in bytes."""

    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class LoadedProgram:
    """A program loaded into this process, whose chip parts the simulator computes.

    status, executor : codes that `init` and `executor_status` returned. observed : (part, whether
    it is an output, port, bytes) of all tensors in the last call.
    """

    def __init__(
        self, library: Path, program: BoardProgram, runner: PartsRunner, packages: Sequence[bytes]
    ) -> None:
        """Load the library, copy the packages to memory aligned to 64 bytes, and call its `init`.

        `status` and `executor` get the codes that `init` and the executor return. `runner` computes
        the chip parts; `packages` are the contents for `init`, in its order.
        """
        self._library = ctypes.CDLL(str(library))
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
        package_array = (_Package * len(packages))()
        for index, (buffer, blob) in enumerate(zip(self._memory, packages, strict=True)):
            start = ctypes.addressof(buffer) + -ctypes.addressof(buffer) % 64
            ctypes.memmove(start, blob, len(blob))
            package_array[index] = _Package(start, len(blob))
        self.status = int(self._get_function("init")(package_array))
        self.executor = int(self._get_function("executor_status")())

    def _get_function(self, name: str) -> Any:  # noqa: ANN401 - a foreign function
        """Return the C function "<prefix>_<name>" of the program."""
        return getattr(self._library, f"{self.program.prefix}_{name}")

    def _compute(self, package_index: int, inputs: Any, outputs: Any) -> int:  # noqa: ANN401
        """Compute a chip part in the simulator; called by the stand-in executor.

        `inputs` and `outputs` are pointers to the buffers of its ports. Returns 0, or 1 if an
        exception was stored in `_error`.
        """
        try:
            part, runner = self._chip_parts[package_index]
            feeds = {}
            for index, port in enumerate(part.inputs):
                data = ctypes.string_at(inputs[index], port.bytes)
                feeds[port.tensor] = np.frombuffer(data, port.dtype).reshape(port.shape)
            results = runner.run_chip_part(
                part.name, {port.name: feeds[port.tensor] for port in part.inputs}
            )
            for index, position in enumerate(part.list_executor_outputs()):
                raw = np.ascontiguousarray(results[part.outputs[position].tensor]).tobytes()
                ctypes.memmove(outputs[index], raw, len(raw))
        except Exception as error:
            self._error = error
            return 1
        return 0

    def _record(self, part: int, output: int, port: int, data: int, size: int) -> int:
        """Store a copy of a tensor in `observed`; called by the program for every port of a part.

        `data` is the address of its `size` bytes. Always returns 0, which lets the call continue.
        """
        self.observed.append((part, output, port, ctypes.string_at(data, size) if size else b""))
        return 0

    def run(self, feeds: Mapping[str, np.ndarray]) -> tuple[int, dict[str, np.ndarray]]:
        """Compute one call on `feeds` by input name; return its code and {output: array}.

        A code of 0 is success. The tensors of all parts are then in `observed`. Exceptions of the
        simulator are raised.
        """
        self.observed.clear()
        inputs = [
            np.ascontiguousarray(np.asarray(feeds[tensor.tensor], tensor.dtype))
            for tensor in self.program.inputs
        ]
        outputs = {t.tensor: np.zeros(t.shape, t.dtype) for t in self.program.outputs}
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*inputs, *outputs.values())]
        code = int(self._get_function("run")(*pointers))
        if self._error is not None:
            raise self._error
        return code, outputs

    def reset(self) -> None:
        """Reset all states to zero."""
        self._get_function("reset")()

    def close(self) -> None:
        """Call the program's "<prefix>_deinit", which releases its packages and the executor."""
        self._get_function("deinit")()


def list_sources(program: BoardProgram, folder: Path) -> list[tuple[Path, tuple[str, ...]]]:
    """Return (C file, compiler flags) of the program in `folder`, without main.c.

    The first two are the program and its self-test, then come the unique host parts.
    """
    include, prefix = f"-I{get_stub_folder()}", program.prefix.upper()
    program_flags = (*PROGRAM_FLAGS, include, f"-D{prefix}_WATCH")
    sources: list[tuple[Path, tuple[str, ...]]] = [
        (folder / f"{program.stem}.c", program_flags),
        (folder / f"{program.stem}_selftest.c", program_flags),
    ]
    for part in program.unique_host_parts:
        sources.append((folder / f"{program.stem}_{part.name}.c", HOST_FLAGS))
    return sources


def build_shared_library(
    program: BoardProgram, folder: Path, output: Path, flags: Sequence[str] = ("-O1",)
) -> str:
    """Compile the program in `folder` with the stand-in executor as a shared library `output`.

    Returns the lines of the compiler's warnings on the program's C, without those on host parts;
    raises ConfigError if compilation fails.
    """
    sources = list_sources(program, folder)
    messages = compile_program([*sources, _get_stub_source()], output, (*flags, "-fPIC"))
    program_paths = tuple(str(path) for path, _ in sources[:_PROGRAM_SOURCE_COUNT])
    warnings = [
        line
        for line in messages.splitlines()
        if "warning:" in line and line.startswith(program_paths)
    ]
    return "\n".join(warnings)


def _get_stub_source() -> tuple[Path, tuple[str, ...]]:
    """Return (C file of the stand-in for the executor, compiler flags that it needs)."""
    return get_stub_folder() / "standin.c", ("-std=c99", f"-I{get_stub_folder()}")


def prove_program(
    program: BoardProgram,
    parts: PartitionedProgram,
    folder: Path,
    calls: Sequence[Sequence[PartRun]],
    feeds: Sequence[Mapping[str, np.ndarray]],
) -> Proof:
    """Compile the program in `folder` and prove it on consecutive calls.

    Parameters
    ----------
    program, parts
        The program, and the parts that it was built from.
    folder
        The deployed folder.
    calls
        Part runs of the golden vectors, which the known-answer test replays for single parts. For
        the complete program it replays the vectors of the calls here, because the program's floats
        may become another integer near a tie.
    feeds
        Inputs of the calls.

    Returns
    -------
    Proof
        Figures of the comparisons, and errors (`failed`) if there are any; it stops at the first.
        Compilation happens in a temporary folder and raises ConfigError if it fails.
    """
    proof = Proof()
    with tempfile.TemporaryDirectory(prefix="lingeronnx-try-") as name:
        build_folder = Path(name)
        library = build_folder / "program.so"
        proof.warnings = build_shared_library(program, folder, library).count("warning:")
        compiled_host = CompiledHost(folder, describe_program(program)["parts"])
        runners = _Runners(
            reference=PartsRunner(parts, "executor"),
            compiled=PartsRunner(parts, "executor", host=compiled_host),
        )
        packages = build_stub_packages(program, folder)
        loaded = LoadedProgram(library, program, runners.reference, packages)
        try:
            _prove_loaded_program(proof, loaded, runners, feeds)
        finally:
            loaded.close()
        if not proof.failed:
            vectors = [collect_vectors(program, call) for call in calls]
            verdict = run_known_answer_test(program, folder, build_folder, [*vectors, *proof.seen])
            proof.known_answers = verdict.startswith("PASS")
            if not proof.known_answers:
                proof.failed.append(f"the known-answer test prints: {verdict or 'nothing'}")
    return proof


class _Runners(NamedTuple):
    """Runners of the parts in Python: with onnxruntime, or the program's C, as the host."""

    reference: PartsRunner
    compiled: PartsRunner


def _prove_loaded_program(
    proof: Proof,
    loaded: LoadedProgram,
    runners: _Runners,
    feeds: Sequence[Mapping[str, np.ndarray]],
) -> None:
    """Compare a loaded program with references: calls, host parts and conversions, in order.

    `feeds` are the inputs of consecutive calls; conversions get extreme inputs. Stops at the first
    error, which is added to `proof.failed`, first of all a status of `init` other than 0.
    """
    program = loaded.program
    if loaded.status:
        proof.failed.append(
            f"{program.prefix}_init returns {loaded.status}, the executor {loaded.executor}"
        )
        return
    _prove_calls(proof, loaded, runners, feeds)
    if not proof.failed:
        _compare_host_parts(proof, program, runners.reference)
    if not proof.failed:
        extreme_feeds = make_border_inputs(program, feeds)
        _prove_calls(proof, loaded, runners, extreme_feeds, borders_only=True)


def build_stub_packages(
    program: BoardProgram, folder: Path, vectors: Sequence[Sequence[PartVector]] = ()
) -> list[bytes]:
    """Build the packages of all chip parts for the stand-in executor.

    Returns one package for each unique chip part, or all of them in one blob if the header in
    `folder` does not declare so many. `folder` has the ONNX files, for their CRCs. `vectors` are
    the calls that the stand-in replays.
    """
    packages = list(build_stub_containers(program, compute_crcs(folder, program), vectors).values())
    header = (folder / f"{program.stem}.h").read_text(encoding="utf-8")
    is_separate = f"_PACKAGES {len(packages)} " in header
    return packages if is_separate else [b"".join(packages)]


def run_known_answer_test(
    program: BoardProgram,
    folder: Path,
    build_folder: Path,
    vectors: Sequence[Sequence[PartVector]],
    flags: Sequence[str] = ("-O1",),
) -> str:
    """Compile the known-answer test and run it on packages that replay `vectors`.

    Returns the last line that it prints (of stdout, else of stderr), or "exit code N". Executable
    and packages are written to `build_folder`; `folder` has the C files and golden/.
    """
    sources = list_sources(program, folder)
    main_source = (folder / "main.c", sources[0][1])
    executable = build_folder / "known_answers"
    compile_program([main_source, *sources, _get_stub_source()], executable, flags)
    paths = []
    for index, content in enumerate(build_stub_packages(program, folder, vectors)):
        path = build_folder / f"{index}.pkg"
        path.write_bytes(content)
        paths.append(str(path))
    process = subprocess.run(
        [str(executable), "--golden", str(folder / "golden"), *paths],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )
    lines = [*process.stderr.splitlines(), *process.stdout.splitlines()]
    return lines[-1] if lines else f"exit code {process.returncode}"


def _prove_calls(
    proof: Proof,
    loaded: LoadedProgram,
    runners: _Runners,
    feeds: Sequence[Mapping[str, np.ndarray]],
    borders_only: bool = False,
) -> None:
    """Run consecutive calls; the program and each reference continue from their own states.

    Figures are added to `proof`, and errors to `proof.failed`, after which it returns.

    Parameters
    ----------
    proof
        Result so far; modified.
    loaded, runners
        The program, and the runners of its reference with onnxruntime and with compiled host parts.
    feeds
        Inputs of the calls.
    borders_only
        Whether only values that must be equal are compared; host parts are then not recorded and
        differences from a run with onnxruntime not counted.
    """
    program = loaded.program
    states: dict[str, np.ndarray] = {
        fed.tensor: np.zeros(fed.shape, fed.dtype) for fed, _ in program.states
    }
    reference_states = dict(states)
    loaded.reset()
    for index, inputs in enumerate(feeds):
        code, outputs = loaded.run(inputs)
        if code:
            proof.failed.append(f"call {index}: {program.prefix}_run returns {code}")
            return
        expected = list(runners.compiled.iter_parts({**inputs, **states}))
        vectors = collect_vectors(program, expected)
        errors = _find_call_errors(proof, loaded, vectors, _collect_outputs(expected), outputs)
        proof.failed += [f"call {index}: {error}" for error in errors]
        if proof.failed:
            return
        previous_states, states = states, _get_next_states(program, expected)
        proof.calls += 1
        if borders_only:
            continue
        proof.seen.append(vectors)
        reference = list(runners.reference.iter_parts({**inputs, **reference_states}))
        same_state_reference = reference
        if not _are_states_equal(previous_states, reference_states):
            same_state_feeds = {**inputs, **previous_states}
            same_state_reference = list(runners.reference.iter_parts(same_state_feeds))
        _count_differences(proof, expected, reference)
        _count_same_state_differences(proof, program, expected, same_state_reference)
        reference_states = _get_next_states(program, reference)


def _are_states_equal(
    states: Mapping[str, np.ndarray], other_states: Mapping[str, np.ndarray]
) -> bool:
    """Whether `states` has equal arrays for all of `other_states`; NaN equals NaN."""
    return all(
        np.array_equal(states[name], array, equal_nan=True) for name, array in other_states.items()
    )


def _get_next_states(program: BoardProgram, runs: Sequence[PartRun]) -> dict[str, np.ndarray]:
    """Return {state input: array} of the next call, from the parts' outputs in this one."""
    outputs = _collect_outputs(runs)
    return {fed.tensor: outputs[output.tensor] for fed, output in program.states}


def make_border_inputs(
    program: BoardProgram, feeds: Sequence[Mapping[str, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    """Make three calls from the first of `feeds`, with float inputs that are hard to quantize.

    These are 16 times the values, values rounded down to a multiple of a power of two of about
    1/512 of the largest (ties), and zeros. Other inputs are unchanged.
    """
    names = {tensor.tensor for tensor in program.inputs if tensor.dtype == "float32"}
    units = {}
    for name in names:
        max_abs = float(np.abs(feeds[0][name]).max(initial=0.0)) or 1.0
        units[name] = 2.0 ** np.floor(np.log2(max_abs / 512))

    def transform(function: Callable[[np.ndarray, float], np.ndarray]) -> dict[str, np.ndarray]:
        """Return the first call's inputs with each float input x replaced by function(x, unit)."""
        changed_inputs = {
            name: function(feeds[0][name], units[name]).astype(np.float32) for name in names
        }
        return {**feeds[0], **changed_inputs}

    return [
        transform(lambda array, unit: array * 16),
        transform(lambda array, unit: np.floor(array / unit) * unit),
        transform(lambda array, unit: np.zeros_like(array)),
    ]


def _collect_outputs(runs: Sequence[PartRun]) -> dict[str, np.ndarray]:
    """Return {tensor: array} of the outputs of all parts."""
    outputs: dict[str, np.ndarray] = {}
    for run in runs:
        outputs.update(run.outputs)
    return outputs


def _find_call_errors(
    proof: Proof,
    loaded: LoadedProgram,
    vectors: Sequence[PartVector],
    expected: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
) -> list[str]:
    """Compare a call's tensors with `vectors` and its outputs with `expected`, bit by bit.

    Values that are equal are counted in `proof`. Returns the first error of a part, or else all
    errors of outputs; empty if all are equal.
    """
    program = loaded.program
    observed = {(part, output, port): raw for part, output, port, raw in loaded.observed}
    for index, (part, vector) in enumerate(zip(program.parts, vectors, strict=True)):
        directions = [("input", 0, i, array) for i, array in enumerate(vector.inputs)]
        directions += [("output", 1, i, array) for i, array in enumerate(vector.outputs)]
        for direction, is_output, port, array in directions:
            raw = observed.get((index, is_output, port))
            if raw is None:
                return [f"{part.name} did not run"]
            if not is_bit_equal(raw, array):
                difference = describe_first_difference(raw, array)
                return [f"{part.name}, {direction} {port}: {difference}"]
            if isinstance(part, ChipPart):
                proof.chip_values += array.size
    errors = []
    for tensor in program.outputs:
        array, raw = expected[tensor.tensor], outputs[tensor.tensor].tobytes()
        if not is_bit_equal(raw, array):
            errors.append(f"output '{tensor.tensor}': {describe_first_difference(raw, array)}")
        else:
            proof.output_values += array.size
    return errors


def is_bit_equal(raw: bytes, array: np.ndarray) -> bool:
    """Whether `raw` has the bytes of `array`.

    Floats also count as equal by value, and any two NaNs.
    """
    if raw == np.ascontiguousarray(array).tobytes():
        return True
    values = np.frombuffer(raw, array.dtype)
    return (
        array.dtype.kind == "f"
        and len(values) == array.size
        and np.array_equal(values, array.reshape(-1), equal_nan=True)
    )


def describe_first_difference(raw: bytes, array: np.ndarray) -> str:
    """Return text on how many elements of `raw` differ from `array`, and the first of them.

    `raw` has elements of the type of `array`; if the sizes are equal, at least one must differ.
    """
    actual, expected = np.frombuffer(raw, array.dtype), array.reshape(-1)
    if actual.size != expected.size:
        return f"{actual.size} elements, expected {expected.size}"
    differing = np.flatnonzero(actual != expected)
    first = differing[0]
    return (
        f"{len(differing)} of {expected.size} differ, first element {first} is {actual[first]}, "
        f"expected {expected[first]}"
    )


def _compare_host_parts(proof: Proof, program: BoardProgram, reference: PartsRunner) -> None:
    """Compare the host parts with onnxruntime, for the inputs in all calls of `proof.seen`.

    Errors are added to `proof.failed`; only float32 outputs have a tolerance, others must be equal.
    """
    for index, part in enumerate(program.parts):
        if isinstance(part, ChipPart):
            continue
        vectors = [call[index] for call in proof.seen]
        expected = [reference.run_host_part(part.name, vector.inputs) for vector in vectors]
        for position, tensor in enumerate(part.targets):
            expected_arrays = [outputs[position] for outputs in expected]
            actual_arrays = [vector.outputs[position] for vector in vectors]
            tolerance = None
            if tensor.dtype == "float32":
                tolerance = program.host_tolerances[tensor.tensor]
            error = _compare_host_output(proof, expected_arrays, actual_arrays, tolerance)
            if error is not None:
                proof.failed.append(f"{part.name}: output '{tensor.tensor}' {error}")


def _compare_host_output(
    proof: Proof,
    expected: Sequence[np.ndarray],
    actual: Sequence[np.ndarray],
    tolerance: float | None,
) -> str | None:
    """Compare an output in all calls; return an error, or None if it is within its tolerance.

    The relative error of a float is also noted in `proof.host` if it is the largest so far, and
    values within the tolerance are counted.

    Parameters
    ----------
    proof
        Result, which is modified.
    expected, actual
        Values in each call.
    tolerance
        Of a float, as a fraction of its largest magnitude in all calls, inclusive; None for types
        that must be equal.
    """
    count = sum(array.size for array in actual)
    if tolerance is None:
        if all(map(np.array_equal, expected, actual)):
            proof.host_values += count
            return None
        return "differs from onnxruntime's"
    differences = map(absolute_difference, actual, expected)
    max_difference = max(float(difference.max(initial=0.0)) for difference in differences)
    relative = max_difference and float(np.divide(max_difference, max_magnitude(expected)))
    proof.host = max(proof.host, relative)
    if relative <= tolerance:
        proof.host_values += count
        return None
    return f"differs by {relative:.2g} of its range from onnxruntime's; the limit is {tolerance:g}"


def _diff_integers(run: PartRun, reference: PartRun) -> dict[str, np.ndarray]:
    """Return {tensor: absolute difference, int64} of a chip part's integer tensors in two runs.

    Empty for a host part.
    """
    if not run.part.chip:
        return {}
    integers = {name: array for name, array, _ in run.tensors if array.dtype.kind == "i"}
    references = {name: array for name, array, _ in reference.tensors}
    return {
        name: np.abs(array.astype(np.int64) - references[name]) for name, array in integers.items()
    }


def _count_differences(
    proof: Proof, runs: Sequence[PartRun], references: Sequence[PartRun]
) -> None:
    """Add to `proof` the number of integers that differ from a run with onnxruntime as the host.

    Also the number of all integers, and the largest difference.
    """
    for run, reference in zip(runs, references, strict=True):
        for difference in _diff_integers(run, reference).values():
            proof.integers += difference.size
            proof.differing += int(np.count_nonzero(difference))
            proof.largest = max(proof.largest, int(difference.max(initial=0)))


def _count_same_state_differences(
    proof: Proof,
    program: BoardProgram,
    runs: Sequence[PartRun],
    references: Sequence[PartRun],
) -> None:
    """Count the integers that differ from a reference call with equal states, in `proof.fallen`.

    If the first differing input of a chip part in the call has a Quant, `proof.tie` is raised to
    the largest distance of its differing values from a tie.
    """
    differences = [
        _diff_integers(run, reference) for run, reference in zip(runs, references, strict=True)
    ]
    for tensors in differences:
        proof.fallen += sum(int(np.count_nonzero(array)) for array in tensors.values())
    for index, part in enumerate(program.parts):
        if not isinstance(part, ChipPart):
            continue
        for position, port in enumerate(part.inputs):
            difference = differences[index].get(port.tensor)
            if difference is not None and difference.any():
                if part.quantized[position]:
                    distance = _measure_tie_distance(runs[index], references[index], part, position)
                    proof.tie = max(proof.tie, distance)
                return


def _measure_tie_distance(run: PartRun, reference: PartRun, part: ChipPart, index: int) -> float:
    """Return the largest distance from a tie, in LSBs, of input values with different integers.

    Of the two runs, the value that is nearer to the tie counts. `index` is that of a quantized
    input of `part`.
    """
    port, name = part.inputs[index], part.sources[index].tensor
    scaled = [
        np.asarray(part_run.inputs[name], np.float64) * 2.0 ** (port.shift or 0)
        for part_run in (run, reference)
    ]
    differs = np.not_equal(*(np.floor(values + 0.5) for values in scaled))
    distances = [np.abs(values - np.floor(values) - 0.5) for values in scaled]
    return float(np.minimum(*distances)[differs].max(initial=0.0))
