"""What a proof of a program found, as values and as lines."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from .vectors import PartVector

__all__ = ["MAX_TIE_DISTANCE", "Proof"]

#: Counts from a tie: where the host's last bits alone differ, what is rounded the other way is nearer to one.
MAX_TIE_DISTANCE = 1e-4


@dataclass
class Proof:
    """What was found. calls : how many. failed : what is wrong, as lines.

    host : the largest difference of a host part from onnxruntime, as a fraction of its output's
    range. integers : compared with onnxruntime as the host, which feeds back states of its own;
    differing : of them; largest : counts. fallen : of them differ where a call begins with the
    program's own states. tie : of the first of these in a call, the farthest that a value was from
    a tie, in counts. warnings : of the compiler, on the program's own C. cores : what it takes on
    small cores, as lines. seen : what the parts of the program read and wrote, call by call.
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
        """Return it as JSON-ready values, without what was seen."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "seen"}

    def lines(self) -> list[str]:
        """Return it as lines for people."""
        plain = (
            f"{self.differing} of {self.integers} integers differ from a run with onnxruntime "
            "as the host"
        )
        states = (
            ""
            if self.fallen == self.differing
            else f"; where a call begins with the same states, {self.fallen}"
        )
        far = (
            f", more than the {MAX_TIE_DISTANCE:g} of last bits: a host part before it makes much "
            "of them"
        ) * (self.tie > MAX_TIE_DISTANCE)
        more = (
            f" (by {self.largest} at most{states}; the first of a call lies {self.tie:.1g} "
            f"counts from a tie{far})"
        )
        proved = (
            f"tried on a PC, {self.calls} calls: chip parts and borders equal to the last integer; "
            "host parts within "
            f"{self.host:.1g} of their range of onnxruntime; the whole program equal bit for bit "
            "to a session with its "
            "own host parts"
        )
        warned = [
            f"the C compiler warns {self.warnings} times of the program's own C: `make` shows where"
        ]
        return [
            proved,
            plain + (more if self.differing else ""),
            *(warned if self.warnings else ()),
            *self.cores,
        ]
