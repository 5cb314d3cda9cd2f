"""One thing that is wrong with a tensor of a comparison, and how it is made of that tensor's row."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ...graph.modules import called
from .join import ComparedTensor

__all__ = ["LayerFinding", "finding_of", "override"]

_BITS = 35.0  # dB: what 8 bits give an ordinary tensor; what is missing to it is a finding's weight


@dataclass(frozen=True)
class LayerFinding:
    """One thing that is wrong.

    layer : the tensor, by the user's name. node, operator, module : what writes it in the float model. kind : in a few
    words. measured, limit : what was seen, and what it should be. remedy : words. options : of `quantize`, to paste.
    weight : in dB, how much is lost; order : 0 the data ... 3 what costs little. also : tensors that share its scale.
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
        """The operator, its node, the module where that is another name, and the tensor."""
        return " ".join(part for part in (self.operator, called(self.node, self.module), f"'{self.layer}'") if part)

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready values."""
        return {**vars(self), "options": list(self.options), "also": list(self.also)}


def finding_of(
    row: ComparedTensor,
    *,
    kind: str,
    measured: str,
    limit: str,
    remedy: str,
    options: tuple[str, ...] = (),
    order: int,
    level: float | None = None,
) -> LayerFinding:
    """Return what is wrong with the tensor of `row`.

    level : in dB, what is left of the tensor; None for its own layer's SQNR. What is missing to 8 bits is the weight.
    """
    weight = _BITS - min(row.judged.sqnr if level is None else level, _BITS)
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


def override(row: ComparedTensor, setting: str) -> str:
    """Return the option of `quantize` that gives the tensor of `row` a setting of its own."""
    return "--override " + shlex.quote(f"{row.name}={setting}")
