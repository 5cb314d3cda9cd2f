"""`AnalysisQuant`: rank the layers of a model by the loss of quantizing each one alone."""

from __future__ import annotations

import math
import os
import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..analysis.sensitivity.journal import ResumeHints
from ..analysis.sensitivity.ranking import Sensitivity
from ..analysis.sensitivity.sensitivity import sensitivity
from ..common.errors import ConfigError
from ..common.files import ensure_folder, write_text
from ..common.text import format_table
from ..ir import ir
from ..quantization import require_data

__all__ = ["AnalysisQuant"]

RANKING_FILE = "analysis.txt"


class AnalysisQuant:
    """Sensitivity analysis: the loss of quantizing each layer of a float model alone.

    An interrupted analysis continues from its checkpoint, which is rejected if it belongs to
    another model, other data or other settings.

    Parameters
    ----------
    model_dir
        The ``.onnx`` file, or a folder that contains exactly one.
    model_filename, params_filename
        Must be None: they belong to a format of two files.
    eval_function
        Called with a model that can be called with feeds, as a `Session`. Returns a number; larger
        is better. It brings its own data.
    data_loader
        Calibration data.
    save_dir
        Folder for analysis.txt and the histograms.
    checkpoint_name
        Name of the file with intermediate results. It is a text file, so the suffix becomes
        ``.jsonl``.
    num_histogram_plots
        Number of histograms of the best and of the worst layers; 0 draws none.
    ptq_config
        Settings of `quantize`: a mapping or a YAML file. A mapping may also have `workers`, the
        number of processes; `eval_function` must be a function of a module then.

    Raises
    ------
    ConfigError
        If `eval_function` is missing, or `model_filename` or `params_filename` is given.
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
        """Check the arguments, and find the .onnx file of `model_dir`, a file or a folder with one.

        Nothing is run or written. Raises ConfigError for `model_filename` or `params_filename` (of
        a format of two files), a folder without exactly one .onnx file, an `eval_function` that
        cannot be called, or a negative `num_histogram_plots`.
        """
        filenames = {"model_filename": model_filename, "params_filename": params_filename}
        for name, filename in filenames.items():
            if filename is not None:
                raise ConfigError(
                    f"{name} = '{filename}' belongs to a format of two files; pass the .onnx file "
                    "as model_dir"
                )
        if not callable(eval_function):
            raise ConfigError(
                "eval_function is missing; pass a function of a model that returns a number "
                "(larger is better)"
            )
        if num_histogram_plots < 0:
            raise ConfigError(f"num_histogram_plots = {num_histogram_plots}; it must be 0 or more")
        self.model = _find_model_file(Path(model_dir))
        self.save_dir, self.num_histogram_plots = Path(save_dir), num_histogram_plots
        self._journal = Path(checkpoint_name).with_suffix(".jsonl").name
        self._eval, self._calib = eval_function, data_loader
        self._workers: int | None = None
        if isinstance(ptq_config, Mapping):
            ptq_config = dict(ptq_config)
            self._workers = ptq_config.pop("workers", None)
        self._config = ptq_config
        if self._workers is not None:
            _check_picklable(eval_function)

    def analysis(self) -> Sensitivity:
        """Quantize each layer alone, rank the layers, and write the files to `save_dir`.

        The files are those of `sensitivity`, the text RANKING_FILE, and the journal, from which an
        earlier run is resumed.

        Returns
        -------
        Sensitivity
            The ranking, most sensitive layer first.

        Raises
        ------
        ConfigError
            If the model is a float model and there is no `data_loader`, or if `eval_function`
            returns no number.
        """
        if self._calib is None:
            require_data(
                "AnalysisQuant calibrates a float model: pass data_loader",
                ir.load(self.model),
                None,
            )
        folder = ensure_folder(self.save_dir)
        assert self._eval is not None
        result = sensitivity(
            self.model,
            self._calib,
            folder=folder,
            function=_CheckedEvaluation(self._eval),
            journal=self._journal,
            ways=_RESUME_HINTS,
            resume=True,
            plots=self.num_histogram_plots,
            workers=self._workers,
            config=self._config,
        )
        write_text(folder / RANKING_FILE, _format_ranking(result))
        return result


_RESUME_HINTS = ResumeHints(
    "delete it to start over, or pass another save_dir or checkpoint_name", "call analysis() again"
)


class _CheckedEvaluation:
    """The user's evaluation function, whose result must not be NaN."""

    def __init__(self, function: Callable[[Any], float]) -> None:
        """Wrap `function`, and take over its name and module."""
        self.__wrapped__ = function
        self.__name__ = self.__qualname__ = getattr(
            function, "__qualname__", type(function).__qualname__
        )
        self.__module__ = getattr(function, "__module__", type(function).__module__)

    def __call__(self, model: Any) -> float:  # noqa: ANN401 - any argument of the function
        """Call the user's function with `model` and return its result as a float.

        Raises ConfigError if it is NaN.
        """
        value = float(self.__wrapped__(model))
        if math.isnan(value):
            raise ConfigError(
                f"eval_function {self.__name__} returned nan; it must return a number"
            )
        return value


def _check_picklable(function: Callable[[Any], float]) -> None:
    """Raise ConfigError if worker processes cannot get `function`, as a lambda or a closure."""
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise ConfigError(
            f"eval_function {name} cannot be passed to worker processes, since it is a lambda or "
            "defined in another function; define it at the top of a module, or omit workers"
        ) from error


def _find_model_file(path: Path) -> Path:
    """Return `path`, or the only ``.onnx`` file in it if it is a folder.

    Whether the file exists is not checked. Raises ConfigError if the folder has none or several.
    """
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.onnx"))
    if len(files) != 1:
        raise ConfigError(
            f"folder {path} contains {len(files)} .onnx files; pass the file itself as model_dir"
        )
    return files[0]


def _format_ranking(result: Sensitivity) -> str:
    """Format the ranking as text: float and quantized values, a table, and advised options.

    The table has rank, layer, type, value and loss, most sensitive layer first. A line says how
    many layers share their value with others. Options that skip the worst layers come last, if any
    help.
    """
    rows = []
    for rank, entry in enumerate(result.ranking, 1):
        value = entry.values[0]
        loss = result.exact - value
        rows.append((str(rank), entry.name, entry.op_type, f"{value:.6g}", f"{loss:.6g}"))
    lines = [
        f"float model: {result.exact:.6g}; all layers quantized: {result.quantized:.6g}",
        format_table(("rank", "layer", "type", "quant metric", "loss"), rows),
    ]
    value_counts = Counter(entry.values[0] for entry in result.ranking)
    tied_count = sum(count for count in value_counts.values() if count > 1)
    if tied_count:
        lines.append(
            f"{tied_count} layers share their value with other layers, so their order is "
            "arbitrary; use a finer metric"
        )
    if result.best is not None:
        lines += ["quantize next with:", " ".join(result.best.options), ""]
    return "\n".join(lines)
