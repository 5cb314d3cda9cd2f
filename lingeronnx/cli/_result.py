"""What `quantize` and `finetune` end with: what was written, for people and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..files import REPORT_VERSION
from ._shared import current_command_line, print_json
from .report import show_report
from .show import console_for, show_deployment

if TYPE_CHECKING:
    from ..deployment import Deployment
    from ..flow import WrittenFiles

__all__ = ["show_result"]


def show_result(
    model: Path, written: WrittenFiles, as_json: bool, deployed: Deployment | None = None
) -> None:
    """Print what became of `model` and what was deployed, and with --json the object."""
    again = "" if written.report.search is not None else current_command_line()
    show_report(console_for(as_json), model, written, again)
    if deployed is not None:
        show_deployment(console_for(as_json), deployed)
    if as_json:
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
                **({} if deployed is None else {"deployment": deployed.to_dict()}),
            }
        )
