"""`AnalysisQuant`: each layer quantized alone, judged by the user's own function, ranked."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..analysis.sensitivity.journal import ResumeHints
from ..analysis.sensitivity.ranking import Sensitivity
from ..analysis.sensitivity.sensitivity import sensitivity
from ..analysis.text import format_table
from ..errors import ConfigError
from ..files import ensure_folder, write_text
from ..flow import require_data
from ..graph import ir

__all__ = ["AnalysisQuant"]

RANKING_FILE = "analysis.txt"


class AnalysisQuant:
    """Ranks the layers of a float model by what is lost when each alone is quantized.

    model_dir : the ``.onnx`` file, or a folder that holds one. eval_function : called with
    something that is called
        with feeds as a `Session` is; returns a number, larger is better; its data are its own
        affair. data_loader : to calibrate on. save_dir : for analysis.txt and the histograms.
        checkpoint_name : of the file with the results so far, here text (``.jsonl`` for ``.pkl``):
        an interrupted analysis goes on from it, and refuses that of another model, data or setting.
        num_histogram_plots : of the best and of the worst layers; 0 draws none.
    ptq_config : settings of `quantize`, a mapping or a YAML file.
    Raises ConfigError without eval_function, and for model_filename and params_filename, which
    another format has.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        model_filename: str | None = None,
        params_filename: str | None = None,
        eval_function: Callable[[Any], float] | None = None,
        data_loader: object = None,
        save_dir: str | os.PathLike[str] = "analysis_results",
        checkpoint_name: str = "analysis_checkpoint.pkl",
        num_histogram_plots: int = 10,
        ptq_config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    ) -> None:
        for name, given in (
            ("model_filename", model_filename),
            ("params_filename", params_filename),
        ):
            if given is not None:
                raise ConfigError(
                    f"{name} = '{given}' belongs to a format of two files; give the .onnx as "
                    "model_dir"
                )
        if not callable(eval_function):
            raise ConfigError(
                "eval_function is missing; give a function of a model that returns a number, "
                "larger is better"
            )
        if num_histogram_plots < 0:
            raise ConfigError(f"num_histogram_plots = {num_histogram_plots}; give 0 or more")
        self.model = _find_model_file(Path(model_dir))
        self.save_dir, self.num_histogram_plots = Path(save_dir), num_histogram_plots
        self._journal = Path(checkpoint_name).with_suffix(".jsonl").name
        self._eval, self._calib, self._config = eval_function, data_loader, ptq_config

    def analysis(self) -> Sensitivity:
        """Quantize each layer alone, rank them, write the files; an interrupted analysis goes on.

        Raises ConfigError for a float model without data_loader, and where eval_function returns
        what is no number.
        """
        if self._calib is None:
            require_data(
                "AnalysisQuant calibrates a float model: give data_loader",
                ir.load(self.model),
                None,
            )
        home = ensure_folder(self.save_dir)
        assert self._eval is not None
        found = sensitivity(
            self.model,
            self._calib,
            folder=home,
            function=_CheckedEvaluation(self._eval),
            journal=self._journal,
            ways=_RESUME_HINTS,
            resume=True,
            plots=self.num_histogram_plots,
            config=self._config,
        )
        write_text(home / RANKING_FILE, _format_ranking(found))
        return found


_RESUME_HINTS = ResumeHints(
    "delete it to begin anew, or give another save_dir or checkpoint_name", "call analysis() again"
)


class _CheckedEvaluation:
    """The user's function, whose result must be a number that can be ranked."""

    def __init__(self, function: Callable[[Any], float]) -> None:
        self.__wrapped__ = function
        self.__name__ = self.__qualname__ = getattr(
            function, "__qualname__", type(function).__qualname__
        )
        self.__module__ = getattr(function, "__module__", type(function).__module__)

    def __call__(self, model: Any) -> float:  # noqa: ANN401 - whatever the function takes
        value = float(self.__wrapped__(model))
        if math.isnan(value):
            raise ConfigError(
                f"eval_function {self.__name__} returned nan: give a number, larger is better"
            )
        return value


def _find_model_file(path: Path) -> Path:
    """Return the model at `path`, or the only one in the folder `path`."""
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.onnx"))
    if len(found) != 1:
        raise ConfigError(
            f"the folder {path} holds {len(found)} .onnx files; give the file itself as model_dir"
        )
    return found[0]


def _format_ranking(result: Sensitivity) -> str:
    """Return the ranking, the most sensitive layer first, and what to leave out."""
    rows = [
        (
            str(number),
            row.name,
            row.op_type,
            f"{row.values[0]:.6g}",
            f"{result.exact - row.values[0]:.6g}",
        )
        for number, row in enumerate(result.ranking, 1)
    ]
    lines = [
        f"float model: {result.exact:.6g}; all layers quantized: {result.quantized:.6g}",
        format_table(("rank", "layer", "type", "quant metric", "loss"), rows),
    ]
    alike = Counter(row.values[0] for row in result.ranking)
    if tied := sum(count for count in alike.values() if count > 1):
        lines += [
            (
                f"{tied} layers have a value that others have too: their order says nothing; judge by "
                "a finer number"
            )
        ]
    if result.best is not None:
        lines += ["quantize next with:", " ".join(result.best.options), ""]
    return "\n".join(lines)
