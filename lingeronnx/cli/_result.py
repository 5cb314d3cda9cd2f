"""What `quantize` and `finetune` end with: the files they write and what is shown of them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ._shared import print_json
from .show import console_for, show_deployment, show_report

if TYPE_CHECKING:
    from ..deployment import Deployment
    from ..flow import QuantizedModel
    from ..flow.report import Report

__all__ = ["Written"]


@dataclass(frozen=True)
class Written:
    """The files of one run: the model that was read, the integer graph, the part for the packer, the plan or None."""

    model: Path
    output: Path
    chip: Path
    plan: Path | None

    def write(self, result: QuantizedModel, to: str = "thinker") -> None:
        """Write them; the part for the packer only where there is one."""
        from ..files import write_text

        result.save(self.output, to)
        if result.chip is not None:
            result.save_chip(self.chip, to)
        if self.plan is not None:
            write_text(self.plan, result.plan.to_json())

    def show(self, result: QuantizedModel, report: Report, as_json: bool, deployed: Deployment | None = None) -> None:
        """Print `report` and what was deployed, and with --json the object."""
        part = self.chip if result.chip is not None else None
        report = _repacked(report, part or self.output)
        show_report(console_for(as_json), report, self.model, self.output, self.plan, part)
        if deployed is not None:
            show_deployment(console_for(as_json), deployed)
        if as_json:
            print_json({"model": self.model, "output": self.output, "chip_part": part, "plan": self.plan,
                        **report.to_dict(),
                        **({} if deployed is None else {"deployment": deployed.to_dict()})})  # fmt: skip


def _repacked(report: Report, output: Path) -> Report:
    """Put the file that is really written into the packer's line."""
    from ..packer.arguments import shell

    if not report.packer:
        return report
    return replace(report, packer=shell(shlex.split(report.packer_args), str(output), str(output.with_suffix(".pkg"))))
