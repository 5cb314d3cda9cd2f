"""What counts as evidence that one integer graph is better than another, and how far both are from the float model.

Only real data that can be read again are evidence, and only where nobody fixed the weights or asked for no effort. Of
an output behind a Softmax a few undecided rows tell nearly all of the error: some hundred rows are no evidence.
"""

from __future__ import annotations

import math

from ...graph import ir, operators
from ..prepare.preparation import Prepared
from ..report.comparison import Compared
from .gains import ERRORS, gain

__all__ = ["CAP", "CLEAR", "gained", "is_better", "is_evidence", "is_real", "level", "levels"]

CAP = 100.0  #: dB: beyond that nothing is gained
CLEAR = 0.2  #: dB of the mean SQNR of the outputs
_ROWS = 500  # of a Softmax


def is_evidence(compared_model: Compared) -> bool:
    """Whether what the samples say of `compared_model` and of graphs like it decides which of them is kept."""
    return is_real(compared_model.prepared) and not _few_rows(compared_model)


def is_real(prepared: Prepared) -> bool:
    """Whether the samples are real and can be read again, and something may be chosen by them."""
    return (
        prepared.conf.effort != "fast"
        and not prepared.synthetic
        and not prepared.weights_fixed
        and prepared.data.rereadable
    )


def _few_rows(compared_model: Compared) -> bool:
    """Whether an output is what a Softmax gives for fewer rows than say how far it is from the float model's."""
    for value in compared_model.prepared.graph.graph.outputs:
        maker = ir.producer(value)
        if maker is not None and maker.op_type in operators.SHARES:
            shape = ir.shape(value) or ()
            rows = math.prod(size or 1 for size in shape[1:-1])
            if rows * compared_model.fidelity.errors.shape[-1] < _ROWS:
                return True
    return False


def is_better(old: Compared, new: Compared) -> bool:
    """Whether the outputs are clearly nearer, and by more than chance; what is not finite by now has no chance."""
    chance = gain(old.fidelity.errors, new.fidelity.errors, old.fidelity.power, 0).error
    value = gained(old, new)
    return value >= CLEAR and not value <= ERRORS * chance


def gained(old: Compared, new: Compared) -> float:
    """Return by how many dB the outputs are nearer on average, no gain where the farthest of them is farther."""
    before, after = (levels(result) for result in (old, new))
    if not before or min(after) < min(before):
        return 0.0
    return (sum(after) - sum(before)) / len(before)


def levels(compared_model: Compared) -> list[float]:
    """Return the SQNR of the outputs and of the parts that they join; what is not finite is the worst."""
    every = [output["sqnr"] for output in compared_model.fidelity.outputs.values()]
    every += [part.sqnr for part in compared_model.fidelity.parts]
    return [level(sqnr) for sqnr in every]


def level(sqnr: float) -> float:
    """Return the level that counts: what is not finite in the integer graph alone is the worst."""
    return -CAP if sqnr != sqnr else max(min(sqnr, CAP), -CAP)
