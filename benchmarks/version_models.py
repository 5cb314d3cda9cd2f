"""The models that two versions are compared on, with a few samples of data and the settings that each needs.

Sets: `own` (models/ of this repository), `options` (version_options.py), `shared` (../shared/models
with its loaders), `real` (../shared/models/real, with states and fixed inputs as
data/real_models.py names them), `first` (../shared/models/first_attempts, random inputs) and
`suite` (the models of onnx's own test suite). A set whose folder does not exist is empty. Only
`options` knows of lingeronnx, whose plans it makes with the version under test.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import version_options
from default_quantization import random_feeds
from onnx_suite import node_models, stored_models

__all__ = ["SETS", "Entry", "Feed", "iterate_entries"]

HERE = Path(__file__).resolve().parents[1]
SHARED = HERE.parent / "shared"
SETS = ("own", "options", "shared", "real", "first", "suite")

Feed = Mapping[str, np.ndarray]

#: Shared model -> what its loader's functions are called, where it is not the last word of the name.
_LOADERS = {
    "cifar_mobilenetv2_uneven": "mobilenetv2",
    "cifar_mobilenetv2": "mobilenetv2",
    "cifar_resnet_bn": "resnet_bn",
    "mlperf_tiny_resnet8_fix": "resnet8",
    "fsdd_attention": "sequence",
    "fsdd_attention_op13": "sequence",
    "fsdd_gru": "sequence",
    "fsdd_lstm": "sequence",
}


@dataclass(frozen=True)
class Entry:
    """One model.

    model : a file, or a model in memory. data : called with a number of samples; calibration data
    for `quantize` (None: none), and feeds to run one after the other. settings : further ones of
    `quantize`, such as state.
    """

    name: str
    model: Path | onnx.ModelProto
    data: Callable[[int], tuple[Any, Sequence[Feed]]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    platforms: tuple[str, ...] = ()
    deploys: bool = True

    def serves(self, platform: str) -> bool:
        """Whether the model is compared on a platform; on all if none is named."""
        return not self.platforms or platform in self.platforms

    def build_settings(self) -> dict[str, Any]:
        """Build the settings of `quantize`.

        A value that can be called is made anew for each run.
        """
        return {key: value() if callable(value) else value for key, value in self.settings.items()}


def iterate_entries(sets: Sequence[str], every: int) -> Iterator[Entry]:
    """Yield the models of some sets; every : of onnx's suite, one of so many."""
    made = {"own": _own, "options": _options, "shared": _shared, "real": _real, "first": _first}
    for name in sets:
        yield from made[name]() if name in made else islice(_suite(), 0, None, every)


def _own() -> Iterator[Entry]:
    for path in sorted((HERE / "models").glob("*.onnx")):
        yield Entry(path.stem, path, _random(path) if path.stem == "shapes_detector" else _digits)


def _options() -> Iterator[Entry]:
    for name, model, data, settings, platforms in version_options.rows():
        yield Entry(f"options/{name}", model, data, settings, platforms)


def _digits(count: int) -> tuple[Any, Sequence[Feed]]:
    calib, test = (
        np.load(HERE / "models" / f"digits_{part}.npz")["input"][:count]
        for part in ("calib", "test")
    )
    return {"input": calib}, [{"input": test}]


def _shared() -> Iterator[Entry]:
    for path in sorted((SHARED / "models").glob("*.onnx")):
        yield Entry(path.stem, path, _loaded(_LOADERS.get(path.stem, path.stem.rpartition("_")[2])))


def _loaded(stem: str) -> Callable[[int], tuple[Any, Sequence[Feed]]]:
    def data(count: int) -> tuple[Any, Sequence[Feed]]:
        module = _module(SHARED / "data" / "loaders.py")
        parts = []
        for part in ("calib", "test"):
            ((samples, _),) = getattr(module, f"{stem}_{part}")()
            parts.append(_cut(samples, count))
        return parts[0], [parts[1]]

    return data


def _real() -> Iterator[Entry]:
    if not (SHARED / "models" / "real").is_dir():
        return
    module = _module(SHARED / "data" / "real_models.py")
    for name, (file, calib, test, states) in module.MODELS.items():
        fixed = module.FIXED.get(name, {})
        settings: dict[str, Any] = {"state": states} if states else {}
        if fixed:
            settings["fix"] = {key: value.tolist() for key, value in fixed.items()}
        yield Entry(
            Path(file).stem,
            SHARED / "models" / "real" / file,
            _stream(calib, test, states, fixed),
            settings,
        )


def _stream(
    calib: Callable[[], Any], test: Callable[[], Any], states: Mapping[str, str], fixed: Feed
) -> Callable[[int], tuple[Any, Sequence[Feed]]]:
    """Return the data of a real model.

    Calls where it has states, else a batch and its fixed inputs.
    """

    def data(count: int) -> tuple[Any, Sequence[Feed]]:
        if states:
            return list(islice(calib(), count)), list(islice(test(), count))
        first, second = (_cut(next(iter(side()))[0], count) for side in (calib, test))
        return first, [{**second, **fixed}]

    return data


def _first() -> Iterator[Entry]:
    for path in sorted((SHARED / "models" / "first_attempts").glob("*.onnx")):
        yield Entry(path.stem, path, _random(path))


def _random(path: Path) -> Callable[[int], tuple[Any, Sequence[Feed]]]:
    return lambda count: (random_feeds(path, count, 0, {}), random_feeds(path, count, 1, {}))


def _suite() -> Iterator[Entry]:
    np.random.seed(0)  # the suite's own inputs are drawn from numpy's one generator
    for model in (*node_models(), *stored_models()):
        feeds = [dict(model.feed)] if model.feed else []
        yield Entry(
            f"suite/{model.name}",
            model.proto,
            lambda count, feeds=feeds: (feeds or None, feeds),
            deploys=False,
        )


def _cut(samples: Feed, count: int) -> dict[str, np.ndarray]:
    return {key: array[:count] for key, array in samples.items()}


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
