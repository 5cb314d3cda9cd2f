"""The models of onnx's own test suite, as the installed onnx brings them.

Knows nothing of lingeronnx.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

__all__ = ["Model", "node_models", "stored_models"]


@dataclass(frozen=True)
class Model:
    """A model of the suite and the inputs that come with it.

    None where it brings none, or no plain arrays.
    """

    name: str
    proto: onnx.ModelProto
    feed: Mapping[str, np.ndarray] | None


def node_models() -> Iterator[Model]:
    """Yield the models of the node tests, which onnx makes on the spot."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        if case.model is not None:
            arrays = case.data_sets[0][0] if case.data_sets else ()
            yield Model(case.name, case.model, _feed(case.model, arrays))


def stored_models() -> Iterator[Model]:
    """Yield the models that onnx ships as files."""
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for path in sorted((data / kind).glob("*/model.onnx")):
            proto = onnx.load(path)
            files = sorted(
                (path.parent / "test_data_set_0").glob("input_*.pb"), key=lambda f: int(f.stem[6:])
            )
            yield Model(
                f"{kind}/{path.parent.name}", proto, _feed(proto, [_stored(file) for file in files])
            )


def _stored(file: Path) -> np.ndarray | None:
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(file.read_bytes())
        return onnx.numpy_helper.to_array(tensor)
    except Exception:  # a sequence or an optional: no array
        return None


def _feed(proto: onnx.ModelProto, arrays: object) -> dict[str, np.ndarray] | None:
    """Return {input: array}; None where there is none, or one of them is no array of numbers."""
    held = {value.name for value in proto.graph.initializer}
    names = [value.name for value in proto.graph.input if value.name not in held]
    given = list(arrays)  # type: ignore[call-overload]
    plain = given and all(
        isinstance(a, np.ndarray | np.generic) and np.asarray(a).dtype.kind in "fiub" for a in given
    )
    return dict(zip(names, map(np.asarray, given), strict=False)) if plain else None
