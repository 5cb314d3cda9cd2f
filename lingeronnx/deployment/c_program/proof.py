"""Result of proving a program on a PC, as values and as text."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from .vectors import PartVector

__all__ = ["MAX_TIE_DISTANCE", "Proof"]

#: Distance from a tie in LSBs: values that are rounded the other way only because of the host's
#: last bits are nearer than this.
MAX_TIE_DISTANCE = 1e-4


@dataclass
class Proof:
    """Result of proving a program.

    calls : number of calls. failed : errors, as lines. host : largest difference of a host part
    from onnxruntime, as a fraction of its output's range. integers : number compared with a run
    with onnxruntime as the host, which feeds back its own states; differing : of them; largest :
    largest difference in LSBs. fallen : those that differ in calls that begin with the program's
    states. tie : of the first of these in each call, the largest distance of a value from a tie, in
    LSBs. warnings : of the compiler, on the program's C. cores : memory on small cores, as lines.
    seen : inputs and outputs of the program's parts, call by call.
    """

    calls: int = 0
    failed: list[str] = field(default_factory=list)
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
        """Return the figures as JSON-ready values, without `seen`."""
        names = [field_info.name for field_info in fields(self) if field_info.name != "seen"]
        return {name: getattr(self, name) for name in names}

    def lines(self) -> list[str]:
        """Return the figures as text, one line per topic."""
        summary = (
            f"tried on a PC, {self.calls} calls: chip parts and conversions are bit-exact; host "
            f"parts are within {self.host:.1g} of their range of onnxruntime; the complete program "
            "is bit-equal to a session with its compiled host parts"
        )
        comparison = (
            f"{self.differing} of {self.integers} integers differ from a run with onnxruntime "
            "as the host"
        )
        if self.differing:
            comparison += self._format_differences()
        lines = [summary, comparison]
        if self.warnings:
            lines.append(
                f"{self.warnings} compiler warnings in the generated C; run `make` to see them"
            )
        return [*lines, *self.cores]

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
