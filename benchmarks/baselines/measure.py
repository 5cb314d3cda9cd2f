"""One row's worth of work.

A model quantized as `lingeronnx quantize` does it, judged, and measured on test data.
Models and data: those of this repository, and beside the checkout, where they exist,
../shared/models with ../shared/data/loaders.py and ../shared/models/real with
../shared/data/real_models.py, which says how each of those is measured.
"""

from __future__ import annotations

import importlib.util
import math
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import lingeronnx as lo
from benchmarks.model_cases import CASES
from lingeronnx.ir import ir
from tests.packer import judge

from .table import Case

__all__ = ["Subject", "find_subject", "get_states", "measure_case"]

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
CHIPS = ("venus", "arcs", "venusA")
_FEW = 1000  # samples on which SQNR is measured


@dataclass(frozen=True)
class Subject:
    """A model and its data. files : what must be there. output : whose SQNR is told.

    Real : its name in real_models.
    """

    model: Path
    calib: str
    test: str
    output: str | None = None
    classes: bool = True
    real: str = ""
    files: tuple[Path, ...] = field(default=())

    @property
    def find_missing_file(self) -> str:
        """Which of its files is not there; empty where all are."""
        lost = [path for path in (self.model, *self.files) if not path.is_file()]
        return f"there is no {lost[0].name}" if lost else ""


def find_subject(name: str) -> Subject:
    """Find a model of the table: in models/, in `benchmarks.model_cases`, or "real/NAME".

    Raises
    ------
    ValueError
        If there is no model of that name.
    """
    models = SHARED / "models"
    if name.startswith("real/"):
        loaders = SHARED / "data" / "real_models.py"
        if not loaders.is_file():
            return Subject(loaders, "", "")
        short = name.removeprefix("real/")
        file, calib, test, _ = _real().MODELS[short]
        data = (f"{loaders}:{function.__name__}" for function in (calib, test))
        return Subject(models / "real" / file, *data, real=short)
    if name in CASES:
        case, loaders = CASES[name], SHARED / "data" / "loaders.py"
        return Subject(
            models / case.file,
            case.get_calibration_data(loaders),
            case.get_test_data(loaders),
            case.output,
            case.classes,
            files=(loaders,),
        )
    own = ROOT / "models"
    if not (own / f"{name}.onnx").is_file():
        raise ValueError(f"the baseline table has an unknown model '{name}'")
    if name == "shapes_detector":
        drawn = own / "drawn_shapes.py"
        return Subject(
            own / f"{name}.onnx", f"{drawn}:calib", f"{drawn}:test", classes=False, files=(drawn,)
        )
    return Subject(
        own / f"{name}.onnx", str(own / "digits_calib.npz"), str(own / "digits_test.npz")
    )


def _real() -> ModuleType:
    spec = importlib.util.spec_from_file_location("real_models", SHARED / "data" / "real_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure_case(case: Case) -> dict[str, bool | float]:
    """Return {measure: value} of a case. Raises what quantizing and measuring raise."""
    at, options = find_subject(case.model), _options(case.settings)
    limit = options.pop("limit", None)
    if states := get_states(at):
        options["state"] = states
    result = lo.quantize(at.model, at.calib, platform=case.platform, **options)
    found: dict[str, bool | float] = {}
    if case.platform in CHIPS:
        found["chip-ready"] = bool(result.report.chip_ready)
        found["packs"] = _check_packing(result, case.platform)
    found["integer MACs, %"] = 100 * result.report.integer_macs
    return found | (_real_figures(at, result) if at.real else _measure_figures(at, result, limit))


def get_states(subject: Subject) -> dict[str, str]:
    """Return {output: input} of a model's states; empty if it has none."""
    return dict(_real().MODELS[subject.real][3]) if subject.real else {}


def _options(settings: str) -> dict[str, Any]:
    """Return a row's settings as `quantize` takes them."""
    words, options = iter(shlex.split(settings)), {}
    for word in words:
        name, value = word.removeprefix("--").replace("-", "_"), next(words)
        if name == "fix":
            given, _, number = value.partition("=")
            options.setdefault(name, {})[given] = float(number)
        else:
            options[name] = int(value) if value.isdigit() else value
    return options


def _check_packing(result: lo.QuantizedModel, platform: str) -> bool:
    """Say whether what is written packs with the printed arguments and comes out right, by the tests' own judge."""
    if not result.report.packer:
        return False
    part = result.graph if result.chip is None else result.chip
    return bool(
        judge(
            ir.to_proto(result.platform.with_safe_names(part)),
            platform,
            shlex.split(result.report.packer)[1:],
        ).right
    )


def _measure_figures(at: Subject, result: lo.QuantizedModel, limit: int | None) -> dict[str, float]:
    session = result.session()
    found = {}
    if at.classes and not at.calib.endswith(("kws_calib", "vww_calib")):  # they have no labels
        found["top-1, %"] = lo.evaluate(session, at.test, metric="top1", limit=limit).value
    few = min(limit or _FEW, _FEW)
    found["SQNR, dB"] = lo.evaluate(
        session, at.test, metric="sqnr", baseline=at.model, output=at.output, limit=few
    ).value
    return found


def _real_figures(at: Subject, result: lo.QuantizedModel) -> dict[str, float]:
    """Return what real_models.py measures; of a model with states not the SQNR of these."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        result.save(path)
        figures = _real().measure(at.real, path)
    return _named(figures, bool(_real().MODELS[at.real][3]))


def _named(figures: Mapping[str, float], streams: bool) -> dict[str, float]:
    told = {key: float(value) for key, value in figures.items() if "%" in key or "IoU" in key}
    levels = {
        key: float(value)
        for key, value in figures.items()
        if key not in told and key != "float boxes"
    }
    told.pop("float top-1, %", None)
    for name in list(levels)[:1] if streams else levels:
        told[f"SQNR of {name}, dB"] = levels[name]
    return {key.replace("|", "/"): value for key, value in told.items() if math.isfinite(value)}
