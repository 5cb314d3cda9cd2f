"""A finding about one tensor of a comparison, and its construction from the tensor's row."""

from __future__ import annotations

from dataclasses import dataclass

from ...common.escaping import quote_shell
from .join import ComparedTensor

__all__ = ["LayerFinding", "format_distinct_from", "format_override", "make_finding"]

#: SQNR of an ordinary 8-bit tensor. A finding's weight is the shortfall from it.
_FULL_SQNR_DB = 35.0


@dataclass(frozen=True)
class LayerFinding:
    """A problem with one tensor.

    Parameters
    ----------
    layer
        The tensor, by the user's name.
    node, operator, module
        Name, type and module of the operator that produces it in the float model.
    kind
        Kind of the problem, in a few words.
    measured, limit
        The measured value and its limit, as text; the limit is empty if nothing is to be measured.
    remedy
        How to fix it, as text.
    options
        Options of `quantize` that may fix it.
    weight
        How much is lost, in dB.
    order
        Priority: 0 for wrong data to 3 for minor problems.
    also
        Tensors with the same scale and the same problem.
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
        """The location as text: module, operator type, node name and tensor, "a.b: Conv n 'x'".

        The module is left out if it is empty or the node's name. The node is left out if its name
        contains the module's path.
        """
        has_module = self.module not in ("", self.node)
        node = self.node
        if has_module and self.module.replace(".", "/") in self.node:
            node = ""
        texts = (f"{self.module}:" if has_module else "", self.operator, node, f"'{self.layer}'")
        return " ".join(text for text in texts if text)

    @property
    def evidence(self) -> str:
        """The measured value, with its limit if there is one, as text."""
        return f"{self.measured} (limit: {self.limit})" if self.limit else self.measured

    def to_dict(self) -> dict[str, object]:
        """Return all fields of the finding by name, as JSON-ready values."""
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
    """Create a finding about the tensor of `row`.

    Its weight is the shortfall of `sqnr_db` from 35 dB (an ordinary 8-bit tensor), at least 0.
    `sqnr_db` is the SQNR that the tensor is left with, in dB; None takes that of its own layer.
    """
    if sqnr_db is None:
        sqnr_db = row.effective.sqnr
    return LayerFinding(
        layer=row.name,
        node=row.nodes[0],
        operator=row.kinds[0],
        kind=kind,
        measured=measured,
        limit=limit,
        remedy=remedy,
        options=options,
        weight=_FULL_SQNR_DB - min(sqnr_db, _FULL_SQNR_DB),
        order=order,
        module=row.module,
    )


def format_distinct_from(
    value: float, limit: float, template: str = "{:.{d}f}", digits: int = 1
) -> str:
    """Format a value with enough digits that its text differs from that of `limit`.

    `template` is a format string with the number of digits `d`, which begins at `digits` and grows
    by at most 5; if that is not enough, `digits` digits are used.
    """
    for d in range(digits, digits + 6):
        if template.format(value, d=d) != template.format(limit, d=d):
            return template.format(value, d=d)
    return template.format(value, d=digits)


def format_override(row: ComparedTensor, setting: str) -> str:
    """Format `--override 'TENSOR=SETTING'`, an option of `quantize`, quoted for a shell."""
    return f"--override {quote_shell(f'{row.name}={setting}')}"
