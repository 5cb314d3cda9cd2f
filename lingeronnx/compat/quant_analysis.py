"""`QuantAnalysis`: two models compared on the input on which they differ most."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..analysis.compare.badcase import find_bad_case
from ..analysis.compare.compare import Comparison, compare, write_comparison
from ..analysis.compare.sources import IntegerSource, PlannedSource, TensorSource, open_source
from ..analysis.profile.recording import compare_kept
from ..analysis.sensitivity.sensitivity import JOURNAL_FILE, sensitivity
from ..errors import ConfigError, DataError
from ..files import ensure_folder
from ..flow import QuantizedModel
from ..flow.lower import extract_plan
from ..graph import ir
from ..run.data import Data
from ..run.dump import write_npz
from ..run.session import Session
from .inputs import Model, convert_inputs, is_module
from .profilers import EXPORTED_FILE

__all__ = ["BAD_CASE_FILE", "QuantAnalysis"]

BAD_CASE_FILE = "badcase.npz"
_ANALYSIS_TYPES = ("fake_quant", "quantized")
_UNLIMITED_BATCH = 1 << 30  # samples: an item of the data is a step


class QuantAnalysis:
    """Two models compared on the input on which they differ most.

    baseline_model : float: a path, graph, `Session` or torch module (exported when its inputs are
    known); or what
        `quantize` returned, whose plan is computed in float.
    analysis_model : what `quantize` returned; for "quantized" an integer graph as well.
    analysis_model_type : "fake_quant", the plan computed in float, or "quantized", the integers.
    out_dir : for all files, default the current folder.
    """

    def __init__(
        self,
        baseline_model: Model,
        analysis_model: str | os.PathLike[str] | ir.Model | Session | QuantizedModel,
        analysis_model_type: str,
        out_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if analysis_model_type not in _ANALYSIS_TYPES:
            raise ConfigError(
                f"analysis_model_type = '{analysis_model_type}'; it is one of "
                f"{', '.join(_ANALYSIS_TYPES)}"
            )
        if analysis_model_type == "fake_quant" and not isinstance(analysis_model, QuantizedModel):
            raise ConfigError(
                "fake_quant computes a plan in float: give what quantize returned, not a file or "
                "graph"
            )
        self._given, self._analysed, self._type = (
            baseline_model,
            analysis_model,
            analysis_model_type,
        )
        self.out_dir = ensure_folder(out_dir or ".")
        self._bad_case: dict[str, np.ndarray] | None = None
        self._profiles: tuple[Path, Path] | None = None
        self._found: Comparison | None = None
        self._exported: Session | None = None

    # ---- the bad case ------------------------------------------------------------------------------------------------

    def auto_find_bad_case(
        self,
        data_generator: object,
        num_steps: int | None = None,
        metric: str = "L1",
        device: object = None,
        custom_metric_func: Callable[..., float] | None = None,
        custom_metric_order_seq: str | None = None,
    ) -> dict[str, np.ndarray]:
        """Find, keep and return the sample whose first output differs most.

        num_steps : items of the data that are looked at, default all. metric : Cosine, MSE, L1, KL,
        SQNR or custom. custom_metric_func : of (baseline's output, analysed one's), a batch of one,
        instead; custom_metric_order_seq : "ascending" or "descending", whether the least or the
        largest value is the worst: both or none are given. device : not looked at.
        """
        custom = {
            "custom_metric_func": custom_metric_func,
            "custom_metric_order_seq": custom_metric_order_seq,
        }
        if metric == "custom" and (
            lost := [name for name, given in custom.items() if given is None]
        ):
            raise ConfigError(
                f"metric = 'custom' needs a function and its order: {' and '.join(lost)} missing"
            )
        if (custom_metric_func is None) != (custom_metric_order_seq is None):
            raise ConfigError(
                "custom_metric_func and custom_metric_order_seq go together: give both or none"
            )
        if is_module(self._given) and self._bad_case is None:
            self.set_bad_case(
                Data(data_generator, self._analysis_source().inputs).first()
            )  # to export with
        found = find_bad_case(
            self._baseline_source(),
            self._analysis_source(),
            data_generator,
            metric=custom_metric_func or metric,
            order=custom_metric_order_seq,
            steps=num_steps,
            batch=_UNLIMITED_BATCH,
        )
        self.set_bad_case(found.feeds)
        return dict(found.feeds)

    def set_bad_case(self, data: object) -> None:
        """Use `data`, feeds by input name, an array or a tuple of inputs, as the bad case."""
        self._bad_case = self._to_feeds(data)
        self._found = None

    def save_bad_case(self) -> Path:
        """Write the bad case to ``{out_dir}/badcase.npz`` and return its path."""
        write_npz(self.out_dir / BAD_CASE_FILE, self._require_bad_case())
        return self.out_dir / BAD_CASE_FILE

    def load_bad_case(self, filename: str | os.PathLike[str] | None = None) -> None:
        """Read a bad case: default ``{out_dir}/badcase.npz``, or ``badcase.pt`` where that alone is there."""
        path = Path(filename) if filename is not None else self.out_dir / BAD_CASE_FILE
        if filename is None and not path.exists() and path.with_suffix(".pt").exists():
            path = path.with_suffix(".pt")
        if path.suffix in (".pt", ".pth"):
            from ..torch.checkpoint.file import read_value

            found = read_value(path)
            self.set_bad_case(tuple(found) if isinstance(found, list) else found)
            return
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                self.set_bad_case({name: arrays[name] for name in arrays.files})
        except (OSError, ValueError, EOFError) as error:
            raise DataError(
                f"cannot read the bad case {path} ({type(error).__name__}); give an .npz with an "
                "array for each input"
            ) from error

    # ---- the comparison ----------------------------------------------------------------------------------------------

    def set_model_profiler_dir(
        self,
        baseline_model_profiler_path: str | os.PathLike[str],
        analysis_model_profiler_path: str | os.PathLike[str],
    ) -> None:
        """Read what both models compute from folders that `ModelProfiler` wrote.

        `run` is not needed then.
        """
        if self._type != "quantized":
            raise ConfigError(
                "a profile holds what a float model or an integer graph computed, not a plan in "
                "float; "
                "give analysis_model_type = 'quantized'"
            )
        self._profiles = Path(baseline_model_profiler_path), Path(analysis_model_profiler_path)
        self._found = None

    def run(self, device: object = None) -> None:
        """Run both models on the bad case and keep every tensor's measures.

        Device : not looked at.
        """
        self._found = compare(
            self._baseline_source(), self._analysis_source(), self._require_bad_case()
        )

    def compare_per_layer(self) -> Comparison:
        """Write abnormal_layer_advisor.txt, profiler.html, compare_per_layer_out.txt and .csv.

        Return what is in them.
        Raises ConfigError before `run`, unless there are profiles.
        """
        if self._profiles is not None and self._found is None:
            self._found = compare_kept(
                self._float_session(), self._integer_session(), self._profiles
            )
        if self._found is None:
            raise ConfigError(
                "nothing is compared yet: call run() first, or set_model_profiler_dir()"
            )
        write_comparison(self._found, self.out_dir)
        return self._found

    def sensitivity(
        self, device: object = None, metric: str | Sequence[str] = "L1", reserve: bool = False
    ) -> list[list[object]]:
        """Return [[operator, "activation" | "weight" | "both", type, value, ...], ...], the most sensitive first.

        On the bad case, under the analysed model's own plan, against the float baseline. Written to
        sensitive_ops.txt and .json, and where PyTorch is installed to .pt. metric : one or several.
        reserve : the least sensitive first. device : not looked at.
        """
        if isinstance(self._given, QuantizedModel):
            raise ConfigError(
                "the baseline is a plan; the sensitivity of a model is measured against its float "
                "model"
            )
        analysed = self._analysed
        plan = (
            analysed.plan
            if isinstance(analysed, QuantizedModel)
            else extract_plan(self._integer_session().model)
        )
        found = sensitivity(
            self._float_session().model,
            self._require_bad_case(),
            folder=self.out_dir,
            metric=metric,
            what="all",
            reserve=reserve,
            plan=plan,
            platform=plan.platform,
            mode=plan.mode,
        )
        rows = found.to_list()
        try:
            from ..torch.checkpoint.file import write_value
        except ConfigError:  # PyTorch is not installed
            return rows
        write_value(self.out_dir / "sensitive_ops.pt", rows)
        return rows

    def clean(self) -> None:
        """Remove what was kept on the way; the reports stay."""
        for name in (JOURNAL_FILE, "baseline.onnx"):
            (self.out_dir / name).unlink(missing_ok=True)

    # ---- the two models ----------------------------------------------------------------------------------------------

    def _require_bad_case(self) -> dict[str, np.ndarray]:
        if self._bad_case is None:
            raise ConfigError(
                "there is no bad case yet; call auto_find_bad_case, set_bad_case or load_bad_case "
                "first"
            )
        return self._bad_case

    def _to_feeds(self, data: object) -> dict[str, np.ndarray]:
        names = self._input_names()
        found = convert_inputs(data, names)
        if isinstance(found, np.ndarray) and len(names) == 1:
            found = {names[0]: found}
        if not isinstance(found, Mapping):
            raise DataError(
                f"a bad case is feeds for the inputs {', '.join(names)}; got a "
                f"{type(data).__name__}"
            )
        return {str(name): np.asarray(array) for name, array in found.items()}

    def _input_names(self) -> list[str]:
        return [spec.name for spec in self._analysis_source().inputs]

    def _float_session(self) -> Session:
        """Return the float baseline; a torch module is exported with the bad case."""
        if isinstance(self._given, Session):
            return self._given
        if self._exported is None:
            given = self._given
            self._exported = (
                Session(given)
                if isinstance(given, str | os.PathLike | ir.Model)
                else self._export_baseline()
            )
        return self._exported

    def _export_baseline(self) -> Session:
        """Return a session on the export of a torch module.

        Its profiler's, where there is a profile, or a new one.
        """
        if self._profiles is not None and (written := self._profiles[0] / EXPORTED_FILE).exists():
            return Session(written)
        from ..torch.exporter.hooks import export_session_for

        return export_session_for(
            self._given, self._require_bad_case(), self.out_dir / "baseline.onnx"
        )

    def _baseline_source(self) -> TensorSource:
        if isinstance(self._given, QuantizedModel):
            return PlannedSource(self._given.float_graph, self._given.plan)
        return open_source(self._float_session())

    def _analysis_source(self) -> TensorSource:
        if self._type == "fake_quant" and isinstance(self._analysed, QuantizedModel):
            return PlannedSource(self._analysed.float_graph, self._analysed.plan)
        return IntegerSource(self._integer_session())

    def _integer_session(self) -> Session:
        given = self._analysed
        if isinstance(given, QuantizedModel):
            return given.runner
        session = given if isinstance(given, Session) else Session(given)
        if not session.is_integer:
            raise ConfigError("the analysed model has no integer operator; quantize it first")
        return session
