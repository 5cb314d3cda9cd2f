"""One thing that is wrong with a tensor of a comparison, and how it is made of that tensor's row."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ...message_grouping import escape_invisible
from .join import ComparedTensor

__all__ = ["LayerFinding", "format_distinct_from", "format_override", "make_finding"]

_FULL_SQNR_DB = (
    35.0  # dB: what 8 bits give an ordinary tensor; what is missing to it is a finding's weight
)


@dataclass(frozen=True)
class LayerFinding:
    """One thing that is wrong.

    layer : the tensor, by the user's name. node, operator, module : what writes it in the float
    model. kind : in a few words. measured, limit : what was seen, and what it should be. remedy :
    words. options : of `quantize`, to paste. weight : in dB, how much is lost; order : 0 the data
    ... 3 what costs little. also : tensors that share its scale.
    """

    layer: str
    node: str
    operator: str
    kind: str
    measured: str
    limit: str
    remedy: str
    options: tuple[str, ...]
    weight: float
    order: int
    also: tuple[str, ...] = ()
    module: str = ""

    @property
    def place(self) -> str:
        """The module by which the user knows it, the operator, its node where that says more, and the tensor."""
        known = [] if self.module in ("", self.node) else [f"{self.module}:"]
        node = "" if known and self.module.replace(".", "/") in self.node else self.node
        return " ".join(part for part in (*known, self.operator, node, f"'{self.layer}'") if part)

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready values."""
        return {**vars(self), "options": list(self.options), "also": list(self.also)}


def make_finding(
    row: ComparedTensor,
    *,
    kind: str,
    measured: str,
    limit: str,
    remedy: str,
    options: tuple[str, ...] = (),
    order: int,
    sqnr_db: float | None = None,
) -> LayerFinding:
    """Return what is wrong with the tensor of `row`.

    sqnr_db : in dB, what is left of the tensor; None for its own layer's SQNR. What is missing to 8
    bits is the weight.
    """
    weight = _FULL_SQNR_DB - min(row.effective.sqnr if sqnr_db is None else sqnr_db, _FULL_SQNR_DB)
    return LayerFinding(
        layer=row.name,
        node=row.nodes[0],
        operator=row.kinds[0],
        kind=kind,
        measured=measured,
        limit=limit,
        remedy=remedy,
        options=options,
        weight=weight,
        order=order,
        module=row.module,
    )


def format_distinct_from(
    value: float, limit: float, form: str = "{:.{d}f}", digits: int = 1
) -> str:
    """Return a value in as many digits as it takes to read as another number than the limit that it breaks."""
    for d in range(digits, digits + 6):
        if form.format(value, d=d) != form.format(limit, d=d):
            return form.format(value, d=d)
    return form.format(value, d=digits)


def format_override(row: ComparedTensor, setting: str) -> str:
    """Return the option of `quantize` that gives the tensor of `row` a setting of its own."""
    word = f"{row.name}={setting}"
    if (seen := escape_invisible(word)) != word:  # so that a shell reads what cannot be seen
        return "--override $'" + seen.replace("'", "\\'") + "'"
    return "--override " + shlex.quote(word)
