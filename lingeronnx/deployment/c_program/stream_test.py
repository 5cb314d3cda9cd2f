"""Run a long stream of calls through a compiled program, and compare it with sessions.

The program must stay exact, and its distance from a session with onnxruntime must not grow.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ...runtime.compiled_host import CompiledHost
from ...runtime.parts_runner import PartsRunner
from ...runtime.program_parts import PartitionedProgram
from .host_proof import (
    LoadedProgram,
    build_shared_library,
    build_stub_packages,
    describe_first_difference,
    is_bit_equal,
)
from .program import BoardProgram
from .program_files import describe_program

__all__ = ["StreamTestResult", "run_stream_test"]

#: Number of calls of which an error is computed.
WINDOW_CALLS = 1000


@dataclass
class StreamTestResult:
    """Result of a stream test.

    calls : number of calls. failed : the first call that differs from a session with the program's
    host parts. errors : for every 1,000 calls, the RMS difference from the session with
    onnxruntime, relative to the RMS of its outputs. outputs : number of output values; differing :
    of those, how many differ from the session with onnxruntime.
    """

    calls: int = 0
    failed: list[str] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    differing: int = 0
    outputs: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return all fields as JSON-ready values."""
        return asdict(self)

    @property
    def is_error_growing(self) -> bool:
        """Whether the error of the last 1,000 calls exceeds twice the first one's by over 1e-6.

        False with fewer than two errors.
        """
        return len(self.errors) > 1 and self.errors[-1] > 2 * self.errors[0] + 1e-6


def run_stream_test(
    program: BoardProgram,
    parts: PartitionedProgram,
    folder: Path,
    feeds: Iterable[Mapping[str, np.ndarray]],
) -> StreamTestResult:
    """Run the program in `folder` on a stream of inputs, and compare it with two sessions.

    One session has the program's compiled host parts and must be bit-equal; the other uses
    onnxruntime as the host. Each keeps its own states. Compilation happens in a temporary folder.
    The result's `failed` has the first error.
    """
    result = StreamTestResult()
    with tempfile.TemporaryDirectory(prefix="lingeronnx-stream-") as name:
        library = Path(name) / "program.so"
        build_shared_library(program, folder, library, ("-O2",))
        host = CompiledHost(folder, describe_program(program)["parts"])
        reference = PartsRunner(parts, "executor")
        compiled = PartsRunner(parts, "executor", host=host)
        packages = build_stub_packages(program, folder)
        loaded = LoadedProgram(library, program, reference, packages)
        try:
            if loaded.status:
                result.failed.append(f"{program.prefix}_init returns {loaded.status}")
            else:
                _run_calls(result, loaded, (compiled, reference), feeds)
        finally:
            loaded.close()
    return result


def _run_calls(
    result: StreamTestResult,
    loaded: LoadedProgram,
    sessions: tuple[PartsRunner, PartsRunner],
    feeds: Iterable[Mapping[str, np.ndarray]],
) -> None:
    """Run all calls, or stop at the first that is not bit-equal to the first session.

    Parameters
    ----------
    result
        Result that is updated: calls, failures, and the error against the second session.
    sessions
        Session with the compiled host parts, and the reference.
    feeds
        Inputs of each call without states, which are zeros at first and fed back.
    """
    program = loaded.program
    zeros = {fed.tensor: np.zeros(fed.shape, fed.dtype) for fed, _ in program.states}
    session_states = [dict(zeros), dict(zeros)]
    error = power = 0.0
    loaded.reset()
    for inputs in feeds:
        code, outputs = loaded.run(inputs)
        compiled, reference = (
            _run_session(session, program, inputs, states)
            for session, states in zip(sessions, session_states, strict=True)
        )
        for tensor in program.outputs:
            actual, name = outputs[tensor.tensor], tensor.tensor
            raw = actual.tobytes()
            if code:
                result.failed.append(f"call {result.calls}: returns {code}")
                return
            if not is_bit_equal(raw, compiled[name]):
                difference = describe_first_difference(raw, compiled[name])
                result.failed.append(f"call {result.calls}: '{name}': {difference}")
                return
            gap = actual.astype(np.float64) - reference[name].reshape(actual.shape)
            error += float((gap**2).sum())
            power += float((reference[name].astype(np.float64) ** 2).sum())
            result.differing += int(np.count_nonzero(gap))
            result.outputs += gap.size
        result.calls += 1
        if result.calls % WINDOW_CALLS == 0:
            relative = error / power if power else error
            result.errors.append(float(np.sqrt(relative)))
            error = power = 0.0


def _run_session(
    session: PartsRunner,
    program: BoardProgram,
    inputs: Mapping[str, np.ndarray],
    states: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Run one call in a session and return {tensor: array} of the outputs of all parts.

    `states` has the state inputs of the call, and is updated in place to those of the next.
    """
    outputs: dict[str, np.ndarray] = {}
    for run in session.iter_parts({**inputs, **states}):
        outputs.update(run.outputs)
    states.update({fed.tensor: outputs[output.tensor] for fed, output in program.states})
    return outputs
