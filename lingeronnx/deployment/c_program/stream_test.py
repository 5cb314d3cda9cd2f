"""A stream of many calls through a compiled program, which must stay right, and as close to the plain session."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ...run.compiled_host import CompiledHost
from ...run.parts_runner import PartsRunner
from ...run.program_parts import PartitionedProgram
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

#: Calls whose errors are added up in one figure.
WINDOW_CALLS = 1000


@dataclass
class StreamTestResult:
    """What was found. calls : how many.

    Failed : the first call that differs from a session with the program's host.
    errors : of each stretch of 1,000 calls the root of the mean square of the differences from the
    plain session, as a fraction of that of its outputs. differing : outputs that differ at all, of
    `outputs`.
    """

    calls: int = 0
    failed: list[str] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    differing: int = 0
    outputs: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready values."""
        return asdict(self)

    @property
    def is_error_growing(self) -> bool:
        """Whether the last stretch is farther from the plain session than the first, by more than rounding explains."""
        return len(self.errors) > 1 and self.errors[-1] > 2 * self.errors[0] + 1e-6


def run_stream_test(
    program: BoardProgram,
    parts: PartitionedProgram,
    folder: Path,
    feeds: Iterable[Mapping[str, np.ndarray]],
) -> StreamTestResult:
    """Run the program in `folder` call by call on `feeds`, states kept, beside two sessions that keep their own.

    One has the program's compiled host parts, and must give the same bits; the other is the plain
    session.
    """
    found = StreamTestResult()
    with tempfile.TemporaryDirectory(prefix="lingeronnx-stream-") as name:
        made = Path(name) / "program.so"
        build_shared_library(program, folder, made, ("-O2",))
        host = CompiledHost(folder, describe_program(program)["parts"])
        plain, own = PartsRunner(parts, "executor"), PartsRunner(parts, "executor", host=host)
        running = LoadedProgram(made, program, plain, build_stub_packages(program, folder))
        try:
            if running.status:
                found.failed.append(f"{program.prefix}_init returns {running.status}")
            else:
                _run_calls(found, program, running, (own, plain), feeds)
        finally:
            running.close()
    return found


def _run_calls(
    found: StreamTestResult,
    program: BoardProgram,
    running: LoadedProgram,
    sessions: tuple[PartsRunner, PartsRunner],
    feeds: Iterable[Mapping[str, np.ndarray]],
) -> None:
    zeros = {one.tensor: np.zeros(one.shape, one.dtype) for one, _ in program.states}
    states = [dict(zeros), dict(zeros)]
    error = power = 0.0
    running.reset()
    for given in feeds:
        code, outputs = running.run(given)
        runs = []
        for session, held in zip(sessions, states, strict=True):
            made = {
                name: array
                for run in session.iter_parts({**given, **held})
                for name, array in run.outputs.items()
            }
            held.update({one.tensor: made[two.tensor] for one, two in program.states})
            runs.append(made)
        for end in program.outputs:
            have, own, plain = outputs[end.tensor], *(made[end.tensor] for made in runs)
            if code or not is_bit_equal(have.tobytes(), own):
                why = (
                    f"returns {code}"
                    if code
                    else f"'{end.tensor}': {describe_first_difference(have.tobytes(), own)}"
                )
                found.failed.append(f"call {found.calls}: {why}")
                return
            gap = have.astype(np.float64) - plain.reshape(have.shape)
            error, power = (
                error + float((gap**2).sum()),
                power + float((plain.astype(np.float64) ** 2).sum()),
            )
            found.differing += int(np.count_nonzero(gap))
            found.outputs += gap.size
        found.calls += 1
        if found.calls % WINDOW_CALLS == 0:
            found.errors.append(float(np.sqrt(error / power)) if power else float(np.sqrt(error)))
            error = power = 0.0
