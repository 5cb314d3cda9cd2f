"""`QuantAnalysis`: compare two models on the sample on which they differ most."""

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
from ..common.errors import ConfigError, DataError
from ..common.files import ensure_folder
from ..ir import ir
from ..quantization import QuantizedModel
from ..quantization.lower import extract_plan
from ..runtime.data import Data
from ..runtime.dump import write_npz
from ..runtime.session import Session
from .inputs import (
    Model,
    OnnxModel,
    convert_inputs,
    get_initialised_model,
    get_trace_exporter,
    is_module,
    is_onnx_model,
)
from .profilers import EXPORTED_FILE

__all__ = ["BAD_CASE_FILE", "QuantAnalysis"]

BAD_CASE_FILE = "badcase.npz"
_ANALYSIS_TYPES = ("fake_quant", "quantized")
#: Batch size in samples that makes each item of the data one step.
_UNLIMITED_BATCH = 1 << 30


class QuantAnalysis:
    """Comparison of two models on the sample on which they differ most, the bad case.

    Parameters
    ----------
    baseline_model
        The float model: a path, graph, `Session` or torch module, which is exported when its inputs
        are known; or a result of `quantize` or a net after `lo.torch.init`, whose plan is computed
        in float.
    analysis_model
        A result of `quantize`, or a net after `lo.torch.init` that was called; for "quantized" also
        an integer graph.
    analysis_model_type
        "fake_quant" to compute the plan in float, "quantized" to compute in integers.
    out_dir
        Folder of all files, by default the current one.

    Raises
    ------
    ConfigError
        If `analysis_model_type` is unknown or does not match `analysis_model`.
    """

    def __init__(
        self,
        baseline_model: Model,
        analysis_model: Model,
        analysis_model_type: str,
        out_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Check the arguments and keep the models; create `out_dir` (None: the working folder).

        Nothing is run. Raises ConfigError for an unknown `analysis_model_type`, or for "fake_quant"
        if the analysed model is no result of `quantize`.
        """
        if analysis_model_type not in _ANALYSIS_TYPES:
            raise ConfigError(
                f"analysis_model_type = '{analysis_model_type}'; it must be one of "
                f"{', '.join(_ANALYSIS_TYPES)}"
            )
        baseline_model = get_initialised_model(baseline_model) or baseline_model
        self._trace_exporter = get_trace_exporter(analysis_model)
        analysis_model = get_initialised_model(analysis_model) or analysis_model
        if not is_onnx_model(analysis_model):
            raise ConfigError(
                f"the analysed {type(analysis_model).__name__} is a float module; call "
                "lo.torch.init and the net once, or pass a result of quantize"
            )
        if analysis_model_type == "fake_quant" and not isinstance(analysis_model, QuantizedModel):
            raise ConfigError(
                "fake_quant computes a plan in float: pass a result of quantize, not a file or "
                "graph"
            )
        self._baseline = baseline_model
        self._analysed: OnnxModel = analysis_model
        self._type = analysis_model_type
        self.out_dir = ensure_folder(out_dir or ".")
        self._bad_case: dict[str, np.ndarray] | None = None
        self._profiles: tuple[Path, Path] | None = None
        self._comparison: Comparison | None = None
        self._exported: Session | None = None

    # ---- the bad case ---------------------------------------------------------------------------

    def auto_find_bad_case(
        self,
        data_generator: object,
        num_steps: int | None = None,
        metric: str = "L1",
        device: object = None,
        custom_metric_func: Callable[..., float] | None = None,
        custom_metric_order_seq: str | None = None,
    ) -> dict[str, np.ndarray]:
        """Find the sample whose first output differs most, store it as the bad case and return it.

        A torch module without a bad case is exported with the first sample, which is the bad case
        until the worst one is found. A comparison made before is dropped.

        Parameters
        ----------
        data_generator
            Items of data, each of which is a step.
        num_steps
            Number of items to evaluate, by default all.
        metric
            Cosine, MSE, L1, KL, SQNR or custom.
        device
            Ignored.
        custom_metric_func
            Function of the outputs of both models for a batch of one sample: baseline, analysed.
            Replaces `metric`.
        custom_metric_order_seq
            "ascending" if the smallest value of `custom_metric_func` is the worst, "descending" if
            the largest is. Required with `custom_metric_func`.

        Returns
        -------
        dict of str to ndarray
            Feeds by input name.

        Raises
        ------
        ConfigError
            If only one of the function and its order is given, if `metric` is "custom" without
            them, or if another argument is wrong.
        DataError
            If the data do not fit the model, or contain no sample.
        """
        custom = {
            "custom_metric_func": custom_metric_func,
            "custom_metric_order_seq": custom_metric_order_seq,
        }
        missing = [name for name, argument in custom.items() if argument is None]
        if metric == "custom" and missing:
            raise ConfigError(
                f"metric = 'custom' needs a function and its order: {' and '.join(missing)} missing"
            )
        if len(missing) == 1:
            raise ConfigError(
                "custom_metric_func and custom_metric_order_seq belong together; pass both or "
                "neither"
            )
        if is_module(self._baseline) and self._bad_case is None:
            # The export needs inputs.
            self.set_bad_case(Data(data_generator, self._analysis_source().inputs).first())
        bad_case = find_bad_case(
            self._baseline_source(),
            self._analysis_source(),
            data_generator,
            metric=custom_metric_func or metric,
            order=custom_metric_order_seq,
            steps=num_steps,
            batch=_UNLIMITED_BATCH,
        )
        self.set_bad_case(bad_case.feeds)
        return dict(bad_case.feeds)

    def set_bad_case(self, data: object) -> None:
        """Use `data` as the bad case, the sample on which the models are compared.

        It is feeds by input name, an array, or a tuple of inputs. A comparison made before is
        dropped. Raises DataError for anything else.
        """
        self._bad_case = self._to_feeds(data)
        self._comparison = None

    def save_bad_case(self) -> Path:
        """Write the bad case to ``{out_dir}/badcase.npz`` and return its path.

        Raises ConfigError if there is no bad case.
        """
        write_npz(self.out_dir / BAD_CASE_FILE, self._require_bad_case())
        return self.out_dir / BAD_CASE_FILE

    def load_bad_case(self, filename: str | os.PathLike[str] | None = None) -> None:
        """Read the bad case from a file.

        Parameters
        ----------
        filename
            An .npz, .pt or .pth file. By default ``{out_dir}/badcase.npz`` or, if there is none,
            ``badcase.pt``.

        Raises
        ------
        DataError
            If the file cannot be read.
        """
        path = Path(filename) if filename is not None else self.out_dir / BAD_CASE_FILE
        if filename is None and not path.exists() and path.with_suffix(".pt").exists():
            path = path.with_suffix(".pt")
        if path.suffix in (".pt", ".pth"):
            from ..torch.checkpoint.file import read_value

            value = read_value(path)
            self.set_bad_case(tuple(value) if isinstance(value, list) else value)
            return
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                self.set_bad_case({name: arrays[name] for name in arrays.files})
        except (OSError, ValueError, EOFError) as error:
            raise DataError(
                f"cannot read the bad case {path} ({type(error).__name__}); pass an .npz file "
                "with one array per input"
            ) from error

    # ---- the comparison -------------------------------------------------------------------------

    def set_model_profiler_dir(
        self,
        baseline_model_profiler_path: str | os.PathLike[str],
        analysis_model_profiler_path: str | os.PathLike[str],
    ) -> None:
        """Take the tensors of both models from folders written by `ModelProfiler`.

        `run` is not needed in this case. Raises ConfigError for the analysis type "fake_quant";
        whether the folders contain profiles is checked by `compare_per_layer`.
        """
        if self._type != "quantized":
            raise ConfigError(
                "a profile contains the tensors of a float model or an integer graph, not of a "
                "plan in float; pass analysis_model_type = 'quantized'"
            )
        self._profiles = Path(baseline_model_profiler_path), Path(analysis_model_profiler_path)
        self._comparison = None

    def run(self, device: object = None) -> None:
        """Run both models on the bad case and compare all tensors; `device` is ignored.

        Raises ConfigError if there is no bad case.
        """
        self._comparison = compare(
            self._baseline_source(), self._analysis_source(), self._require_bad_case()
        )

    def compare_per_layer(self) -> Comparison:
        """Write the comparison of all tensors on the bad case to `out_dir`, and return it.

        The files are abnormal_layer_advisor.txt, profiler.html, compare_per_layer_out.txt and .csv.
        If profiles were set instead of a run, they are compared here.

        Returns
        -------
        Comparison
            The contents of the files.

        Raises
        ------
        ConfigError
            If neither `run` nor `set_model_profiler_dir` was called.
        """
        if self._profiles is not None and self._comparison is None:
            self._comparison = compare_kept(
                self._float_session(), self._integer_session(), self._profiles
            )
        if self._comparison is None:
            raise ConfigError("no comparison yet: call run() or set_model_profiler_dir() first")
        write_comparison(self._comparison, self.out_dir)
        return self._comparison

    def sensitivity(
        self, device: object = None, metric: str | Sequence[str] = "L1", reserve: bool = False
    ) -> list[list[object]]:
        """Measure the sensitivity of the operators on the bad case, most sensitive first.

        The operators are quantized with the plan of the analysed model and compared with the float
        baseline. The result is also written to sensitive_ops.txt and .json, and to .pt if PyTorch
        is installed.

        Parameters
        ----------
        device
            Ignored.
        metric
            One or several metrics.
        reserve
            Whether to reverse the order: least sensitive first.

        Returns
        -------
        list
            Rows of [operator, "activation", "weight" or "both", operator type, value, ...].

        Raises
        ------
        ConfigError
            If the baseline is a result of `quantize`.
        """
        if isinstance(self._baseline, QuantizedModel):
            raise ConfigError(
                "the baseline is a result of quantize; pass the float model to measure sensitivity"
            )
        analysed = self._analysed
        if isinstance(analysed, QuantizedModel):
            plan = analysed.plan
        else:
            plan = extract_plan(self._integer_session().model)
        result = sensitivity(
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
        rows = result.to_list()
        try:
            from ..torch.checkpoint.file import write_value
        except ConfigError:  # PyTorch is not installed
            return rows
        write_value(self.out_dir / "sensitive_ops.pt", rows)
        return rows

    def clean(self) -> None:
        """Remove the intermediate files from `out_dir`, but not the reports.

        These are the journal of the sensitivity and the exported baseline.
        """
        for name in (JOURNAL_FILE, "baseline.onnx"):
            (self.out_dir / name).unlink(missing_ok=True)

    # ---- the two models -------------------------------------------------------------------------

    def _require_bad_case(self) -> dict[str, np.ndarray]:
        """Return the feeds of the bad case by input name; ConfigError if none was set."""
        if self._bad_case is None:
            raise ConfigError(
                "no bad case yet; call auto_find_bad_case, set_bad_case or load_bad_case first"
            )
        return self._bad_case

    def _to_feeds(self, data: object) -> dict[str, np.ndarray]:
        """Convert a bad case to feeds by input name of the analysed model.

        A mapping is taken as it is, a tuple has one value per input, and a single array is for the
        only input. Raises DataError for anything else.
        """
        names = self._input_names()
        inputs = convert_inputs(data, names)
        if isinstance(inputs, np.ndarray) and len(names) == 1:
            inputs = {names[0]: inputs}
        if not isinstance(inputs, Mapping):
            raise DataError(
                f"a bad case must contain the inputs {', '.join(names)}; got a "
                f"{type(data).__name__}"
            )
        return {str(name): np.asarray(array) for name, array in inputs.items()}

    def _input_names(self) -> list[str]:
        """Return the input names of the analysed model."""
        return [spec.name for spec in self._analysis_source().inputs]

    def _float_session(self) -> Session:
        """Return a session on the float baseline, opened once.

        A torch module is exported with the bad case, unless its profile has the export.
        """
        if isinstance(self._baseline, Session):
            return self._baseline
        if self._exported is None:
            if isinstance(self._baseline, str | os.PathLike | ir.Model):
                self._exported = Session(self._baseline)
            else:
                self._exported = self._export_baseline()
        return self._exported

    def _export_baseline(self) -> Session:
        """Return a session on the ONNX export of the baseline, a torch module.

        It is the export in its profile, if `set_model_profiler_dir` was called and it is there,
        else a new one with the bad case to `out_dir`/baseline.onnx.
        """
        if self._profiles is not None:
            exported_path = self._profiles[0] / EXPORTED_FILE
            if exported_path.exists():
                return Session(exported_path)
        from ..torch.exporter.hooks import export_session_for

        return export_session_for(
            self._baseline,
            self._require_bad_case(),
            self.out_dir / "baseline.onnx",
            self._trace_exporter,
        )

    def _baseline_source(self) -> TensorSource:
        """Return the source of the baseline's tensors for comparison.

        For a result of quantize it is its plan computed in float, else the float model.
        """
        if isinstance(self._baseline, QuantizedModel):
            return PlannedSource(self._baseline.float_graph, self._baseline.plan)
        return open_source(self._float_session())

    def _analysis_source(self) -> TensorSource:
        """Return the source of the analysed model's tensors for comparison.

        For the type "fake_quant" it is the plan computed in float, else the integer graph.
        """
        if self._type == "fake_quant" and isinstance(self._analysed, QuantizedModel):
            return PlannedSource(self._analysed.float_graph, self._analysed.plan)
        return IntegerSource(self._integer_session())

    def _integer_session(self) -> Session:
        """Return a session on the analysed integer graph; ConfigError if the model is float."""
        model = self._analysed
        if isinstance(model, QuantizedModel):
            return model.runner
        session = model if isinstance(model, Session) else Session(model)
        if not session.is_integer:
            raise ConfigError("the analysed model has no integer operators; quantize it first")
        return session
