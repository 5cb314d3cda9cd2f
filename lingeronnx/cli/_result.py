"""Print the result of `quantize` and `finetune`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.files import REPORT_VERSION
from ._shared import current_command_line, print_json
from .report import show_report
from .show import show_deployment
from .terminal import console_for, echo_text

if TYPE_CHECKING:
    from ..deployment import Deployment
    from ..quantization import StepRecord, WrittenFiles

__all__ = ["show_result"]


def show_result(
    model: Path,
    written: WrittenFiles,
    as_json: bool,
    deployed: Deployment | None = None,
    steps: Sequence[StepRecord] | None = None,
) -> None:
    """Print the report on `model` and the written files; with `as_json` a JSON object on stdout.

    Text then goes to stderr. Options are only suggested without a search. `deployed` is the folder
    for a board, if one was written, and `steps` those of the quantization, if they are wanted.
    """
    command_line = "" if written.report.search is not None else current_command_line()
    show_report(console_for(as_json), model, written, command_line)
    if deployed is not None:
        show_deployment(console_for(as_json), deployed)
    if steps is not None:
        from ..quantization import format_steps

        echo_text(f"\n{format_steps(steps)}\n", err=as_json)
    if not as_json:
        return
    step_entries = {} if steps is None else {"steps": [step.to_dict() for step in steps]}
    deployment = {} if deployed is None else {"deployment": deployed.to_dict()}
    print_json(
        {
            **REPORT_VERSION.make_entry(),
            "model": model,
            "output": written.graph,
            "chip_part": written.chip,
            "chip_parts": list(written.chip_parts),
            "plan": written.plan,
            "written": list(written.files),
            **written.report.to_dict(),
            **deployment,
            **step_entries,
        }
    )
