"""The section on the steps of `quantize` in docs/explanation/architecture.md.

Steps and trials with the first sentence of their docstrings, requirements, criteria and efforts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from lingeronnx.quantization import (
    Candidate,
    RequantizedWeights,
    build_candidate,
    measure_on_held_out,
    plan_model,
    prepare_model,
    refine_weights,
)
from lingeronnx.quantization.recipe import EFFORTS, RECIPES
from lingeronnx.quantization.trials import TRIALS, offload_rejected_layers
from lingeronnx.quantization.trials.best_effort import MethodSelection
from lingeronnx.quantization.trials.chip_parts import ReturningLayers, SmallParts
from lingeronnx.quantization.trials.held_out import OtherCalibrator, UnrefinedWeights
from lingeronnx.quantization.trials.low_sqnr_nodes import LowSqnrNodes

from .markdown import cell, table

__all__ = ["page"]

_PAGE = Path(__file__).parents[1] / "explanation" / "architecture.md"
_BEGIN, _END = "<!-- begin: steps, written by `make docs-reference` -->", "<!-- end: steps -->"

_FIRST_STEPS: tuple[tuple[str, object], ...] = (
    ("prepare", prepare_model),
    ("plan", plan_model),
    ("refine", refine_weights),
    ("measure", build_candidate),
)
_LAST_STEPS: tuple[tuple[str, object], ...] = (
    ("offload", offload_rejected_layers),
    ("held_out", measure_on_held_out),
    ("finish", Candidate.result),
)
#: Trials that no recipe names, with the step that runs them.
_INNER_TRIALS: tuple[tuple[Callable[..., object], str], ...] = (
    (LowSqnrNodes, "in `ends`"),
    (MethodSelection, "in `methods`"),
    (ReturningLayers, "in `offload`"),
    (SmallParts, "in `offload`"),
    (RequantizedWeights, "after `offload`"),
    (OtherCalibrator, "in `held_out`"),
    (UnrefinedWeights, "in `held_out`"),
)


def page() -> str:
    """Return the architecture page with the present tables of steps and trials."""
    text = _PAGE.read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    after = rest.split(_END)[1]
    return f"{before}{_BEGIN}\n\n{_tables()}\n\n{_END}{after}"


def _tables() -> str:
    """Return the table of steps and that of trials."""
    trials = "; ".join(f"{effort}: {', '.join(RECIPES[effort].trials)}" for effort in EFFORTS)
    steps = [
        *((f"`{name}`", _first_sentence(step)) for name, step in _FIRST_STEPS),
        ("trials", f"Run the trials of the recipe ({trials})."),
        *((f"`{name}`", _first_sentence(step)) for name, step in _LAST_STEPS),
    ]
    rows = [_trial_row(create, _efforts_of(name)) for name, create in TRIALS.items()]
    rows += [_trial_row(create, place) for create, place in _INNER_TRIALS]
    lines = [
        *table(("step", "what it does"), steps),
        *table(("trial", "tries", "needs", "kept if", "runs"), rows),
    ]
    return "\n".join(lines).rstrip()


def _first_sentence(documented: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    text = documented.__doc__ or ""
    return cell(text.strip().split("\n\n")[0])


def _efforts_of(name: str) -> str:
    """Return the efforts whose recipe names a trial."""
    return ", ".join(effort for effort in EFFORTS if name in RECIPES[effort].trials)


def _trial_row(create: Callable[..., object], runs: str) -> tuple[str, str, str, str, str]:
    """Return a row on a trial: name, what it tries and needs, thresholds, and where it runs."""
    text = _first_sentence(create).removeprefix("Trial: ")
    requirements = create.requirements  # type: ignore[attr-defined]
    needs = "; ".join(requirement.description for requirement in requirements)
    criterion = getattr(create, "criterion", None)
    thresholds = {} if criterion is None else criterion.thresholds
    kept = ", ".join(_format_thresholds(thresholds.items())) or "by alternative"
    return f"`{create.name}`", text, needs, kept, runs  # type: ignore[attr-defined]


def _format_thresholds(thresholds: Iterable[tuple[str, float]]) -> list[str]:
    """Return each threshold of a criterion as a condition."""
    conditions = {
        "mean_db": "mean gain >= {} dB, lowest SQNR not lower",
        "errors": "gain > {} standard errors",
        "some_db": "some output gains {} dB",
        "loss_db": "none loses more than {} dB",
    }
    texts = [conditions[name].format(f"{value:g}") for name, value in thresholds]
    return [text.replace("gain > 0 standard errors", "gain > 0") for text in texts]
