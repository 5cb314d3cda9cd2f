"""`fix_dequant`: a legacy graph repaired, written beside it."""

from __future__ import annotations

import os
from pathlib import Path

from .. import api
from ..errors import RepairError

__all__ = ["fix_dequant"]


def fix_dequant(path: str | os.PathLike[str], check: bool = False) -> Path:
    """Repair a legacy quantized graph, write it to ``<name>_fix.onnx`` beside it, and return that path.

    check : run the repaired graph on random inputs first; RepairError where it does not run. Raises
    as `lo.fix_dequant` does, which writes nothing by itself. Nothing is written where anything is
    raised.
    """
    fixed = api.fix_dequant(path, check)
    if fixed.trial_run is not None and fixed.trial_run.error is not None:
        raise RepairError(
            f"{os.fspath(path)}: the repaired graph does not run ({fixed.trial_run.error}); "
            "check=False writes it all the same"
        )
    for line in fixed.report.lines():
        print(line)
    target = Path(path).with_name(f"{Path(path).stem}_fix.onnx")
    fixed.save(target)
    return target
