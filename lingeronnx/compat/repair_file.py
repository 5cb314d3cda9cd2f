"""`fix_dequant`: repair a legacy graph and write the result to a file in the same folder."""

from __future__ import annotations

import os
from pathlib import Path

from .. import api
from ..common.errors import RepairError
from ..common.escaping import escape_invisible

__all__ = ["fix_dequant"]


def fix_dequant(path: str | os.PathLike[str], check: bool = False) -> Path:
    """Repair a legacy quantized graph and write it to ``<name>_fix.onnx`` in the same folder.

    Prints the findings, the edits, with `check` the outputs of the run, and the file written.
    Nothing is written if an error is raised.

    Parameters
    ----------
    path
        The graph to repair.
    check
        Whether to run the repaired graph on random inputs before it is written.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    RepairError
        If the graph cannot be repaired, or does not run with `check`. Other errors are those of
        `lo.fix_dequant`.
    """
    fixed = api.fix_dequant(path, check)
    if fixed.trial_run is not None and fixed.trial_run.error is not None:
        raise RepairError(
            f"{os.fspath(path)}: the repaired graph does not run ({fixed.trial_run.error}); "
            "pass check=False to write it anyway"
        )
    target = Path(path).with_name(f"{Path(path).stem}_fix.onnx")
    fixed.save(target)
    lines = list(fixed.report.lines())
    if fixed.trial_run is not None:
        lines += fixed.trial_run.lines()
    for line in [*lines, f"written: {target}"]:
        print(escape_invisible(line))
    return target
