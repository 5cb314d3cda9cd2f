"""Result of trying a program on a PC, as values and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from .vectors import PartVector

__all__ = ["MAX_TIE_DISTANCE", "Proof"]

#: Distance from a tie in LSBs: values that are rounded the other way only because of the host's
#: last bits are nearer than this.
MAX_TIE_DISTANCE = 1e-4


@dataclass
class Proof:
    """What was compared when a program was tried, and the result.

    Each sentence of `lines` is about values that were compared; without any it is left out.

    calls : number of calls. failed : errors, as lines. chip_values : number of values at chip parts
    and conversions that are bit-equal to the simulator's. host_values : number of values of host
    parts within their tolerance of onnxruntime's. output_values : number of values of the complete
    program's outputs that are bit-equal to a session with its compiled host parts. known_answers :
    whether the known-answer test passed. host : largest difference of a host part from onnxruntime,
    as a fraction of its output's range. integers : number compared with a run
    with onnxruntime as the host, which feeds back its own states; differing : of them; largest :
    largest difference in LSBs. fallen : those that differ in calls that begin with the program's
    states. tie : of the first of these in each call, the largest distance of a value from a tie, in
    LSBs. warnings : of the compiler, on the program's C. cores : memory on small cores, as lines.
    seen : inputs and outputs of the program's parts, call by call.
    """

    calls: int = 0
    failed: list[str] = field(default_factory=list)
    chip_values: int = 0
    host_values: int = 0
    output_values: int = 0
    known_answers: bool = False
    host: float = 0.0
    integers: int = 0
    differing: int = 0
    largest: int = 0
    fallen: int = 0
    tie: float = 0.0
    warnings: int = 0
    cores: list[str] = field(default_factory=list)
    seen: list[list[PartVector]] = field(default_factory=list, repr=False)

    def to_dict(self) -> dict[str, object]:
        """Return figures and errors as JSON-ready values, without the recorded tensors."""
        names = [field_info.name for field_info in fields(self) if field_info.name != "seen"]
        return {name: getattr(self, name) for name in names}

    def lines(self) -> list[str]:
        """Return the result as lines of text: only the errors if there are any, else the figures.

        The figures are the comparisons that succeeded, and how many integers differ from a
        reference.
        """
        if self.failed:
            return [f"tried on a PC, {self.calls} calls: {error}" for error in self.failed]
        claims = "; ".join(self._iterate_claims()) or "nothing was compared"
        lines = [f"tried on a PC, {self.calls} calls: {claims}"]
        if self.integers:
            comparison = (
                f"{self.differing} of {self.integers} integers differ from a run with onnxruntime "
                "as the host"
            )
            if self.differing:
                comparison += self._format_differences()
            lines.append(comparison)
        if self.warnings:
            lines.append(
                f"{self.warnings} compiler warnings in the generated C; run `make` to see them"
            )
        return [*lines, *self.cores]

    def _iterate_claims(self) -> Iterator[str]:
        """Yield a sentence for each comparison that succeeded, with its number of values."""
        if self.chip_values:
            yield (
                "chip parts and conversions are bit-equal to the simulator's "
                f"({self.chip_values:,} values)"
            )
        if self.host_values:
            yield (
                f"host parts are within {self.host:.1g} of their range of onnxruntime "
                f"({self.host_values:,} values)"
            )
        if self.output_values:
            yield (
                "the complete program is bit-equal to a session with its compiled host parts "
                f"({self.output_values:,} values)"
            )
        if self.known_answers:
            yield "the known-answer test passes"

    def _format_differences(self) -> str:
        """Describe the integers that differ from a run with onnxruntime, as the end of a sentence.

        It tells the largest difference, those in calls that begin with the same states, and how far
        from a tie the first ones are, with a hint if that is too far for differing last bits.
        """
        same_states = ""
        if self.fallen != self.differing:
            same_states = f"; {self.fallen} in calls that begin with the same states"
        hint = ""
        if self.tie > MAX_TIE_DISTANCE:
            hint = (
                f", more than the {MAX_TIE_DISTANCE:g} that differing last bits explain: an "
                "upstream host part amplifies them"
            )
        return (
            f" (by at most {self.largest}{same_states}; the first of a call is {self.tie:.1g} LSB "
            f"from a tie{hint})"
        )
