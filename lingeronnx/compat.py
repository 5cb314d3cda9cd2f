"""The calls that people know from other tools, on ONNX models; thin faces, the work is done by the functions below.

`docs/coming-from.md` says for each tool what is called what. Models are paths, `QuantizedModel`s or `Session`s where
the originals take torch modules; a torch module does as well where PyTorch is installed.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from .analysis.outliers import OUTPUTS, Outputs, Row, grid, layers_of, matcher
from .api import wb_analyse
from .errors import ConfigError, DataError
from .files import write_text
from .flow import QuantizedModel
from .run.session import Session

__all__ = ["Dumper", "wb_analyse"]


# ---- weight and output tables ------------------------------------------------------------------------------------


class Dumper:
    """Tables of what the layers of a model put out, over all calls in a ``with`` block.

        with Dumper() as d:
            d.analyse_layer_output(session, match_pattern="root.")
            session(x)
            d.save_out_analyse_log(save_log_path="Analyse_layer_output.log")

    Layers are called by their nodes (in a torch module by their path), and the pattern, a regular expression, is looked
    for in that name with ``root.`` before it. Constant memory; exactness as in `analysis.outliers`.
    """

    def __init__(self) -> None:
        self._tables: list[Outputs] = []
        self._watching = ExitStack()

    def __enter__(self) -> Dumper:
        return self

    def __exit__(self, *_: object) -> None:
        self._watching.close()

    def analyse_layer_output(self, model: Any, match_pattern: str = "root.") -> None:
        """Follow a `Session`, a `QuantizedModel` or a torch module: each call of it counts from now on.

        Raises ConfigError for anything else, and where no layer fits.
        """
        if isinstance(model, QuantizedModel | Session):
            session = model if isinstance(model, Session) else model.runner
            table = Outputs(layers_of(session, match_pattern, "root."))
            self._watching.enter_context(session.watched(table.add))
        elif hasattr(model, "named_modules"):
            from .torch.watch import watched

            table = Outputs()
            self._watching.enter_context(watched(model, matcher(match_pattern, "root."), table.add))
        else:
            raise ConfigError(f"a {type(model).__name__} cannot be followed; give lo.Session(path) or a QuantizedModel")
        self._tables.append(table)

    def save_out_analyse_log(self, save_log_path: str | os.PathLike[str] = "Analyse_layer_output.log") -> list[Row]:
        """Write the table and return its rows; DataError where the model was not called."""
        rows = [row for table in self._tables for row in table.rows()]
        if not rows:
            raise DataError("nothing was seen: call the model between analyse_layer_output and save_out_analyse_log")
        write_text(save_log_path, grid(rows, OUTPUTS))
        return rows
