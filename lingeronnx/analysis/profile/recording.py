"""Making a profile: a model run over data.

And tensors kept on disk, so that `compare` need not run the model again.
A profile's folder:

    statistic.txt   the table                        tensorboard/   histograms
    profile.html    the same as a page
    profile.npz     the profile, see `saved`         tensors/       with `keep`: every tensor of
    every sample, a dump as
                                                                    `simulate --dump` writes it

`RecordedSession` stands for a model whose tensors were kept: a session that reads instead of
computing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...errors import ConfigError, DataError
from ...files import update_folder, write_text
from ...graph import ir
from ...plan import Affine
from ...run.data import Data, Progress
from ...run.dump import DumpFolder
from ...run.runners import Stream
from ...run.session import Session
from ..compare.compare import compare
from ..compare.comparison import Comparison
from ..compare.sources import FloatSource, IntegerSource, Item, TensorSource, load_dump
from .page import render_profile_page
from .profile import TABLE_FILE, Profile, Recorder
from .profile_file import PROFILE_FILE, load_profile, save_profile

__all__ = ["TENSORS_FOLDER", "RecordedSession", "compare_kept", "open_recorded_source", "profile"]

#: The page, and the folder with the tensors, in a profile's folder.
PAGE_FILE, TENSORS_FOLDER = "profile.html", "tensors"

#: What an older profile leaves in the folder of a new one: nothing of these.
_PARTS = (TABLE_FILE, PAGE_FILE, PROFILE_FILE, TENSORS_FOLDER)


def profile(
    model: ir.ModelLike | Session,
    data: object,
    out_dir: str | os.PathLike[str] | None = None,
    *,
    prefixes: Sequence[str] | None = None,
    types: Sequence[str] | None = None,
    with_stack: bool = False,
    tensorboard: bool = False,
    per_channel: bool = False,
    keep: bool = False,
    batch: int = 16,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Run a model, integer or float, on data.

    Write its profile into the folder `out_dir` and return it.
    prefixes, types : of the operators in statistic.txt, profile.html and tensorboard/; profile.npz
    has all. with_stack : a column of statistic.txt that says where in the source an operator comes
    from. tensorboard : write histograms; per_channel : one per channel. keep : write all tensors
    too. Raises DataError and ConfigError.
    """
    session = model if isinstance(model, Session) else Session(model)
    if keep and out_dir is None:
        raise ConfigError("tensors can be kept in a folder only: give out_dir")
    source = Data(data, session.inputs, limit=limit, what="data")
    done = 0
    with contextlib.nullcontext() if out_dir is None else update_folder(out_dir, _PARTS) as home:
        with (
            contextlib.nullcontext()
            if home is None or not keep
            else DumpFolder(home / TENSORS_FOLDER) as kept
        ):
            recorder = Recorder(
                session, per_channel=per_channel, on_tensor=None if kept is None else kept.add
            )
            for feeds, _ in source.batches(batch):
                for name, array, q in session.tensors(feeds):
                    recorder.add(name, array, q)
                done += min((len(array) for array in feeds.values()), default=1)
                if progress is not None:
                    progress("profiling", done, None)
            recorded = recorder.profile()
            recorded.select(prefixes, types)
        if home is not None:
            recorded.table(home, prefixes, types, with_stack)
            name = "the model" if isinstance(model, Session) else ir.model_label(model)
            write_text(home / PAGE_FILE, render_profile_page(recorded, name, prefixes, types))
            save_profile(recorded, home / PROFILE_FILE)
            if tensorboard:
                recorded.tensorboard(home, prefixes, types, per_channel)
    return recorded


class RecordedSession(Session):
    """A model whose tensors were kept in a profile's folder.

    `taps` reads what is there of the samples it is fed.
    Raises DataError where the folder has no tensors, or those of another model, or samples not on
    axis 0.
    """

    def __init__(self, session: Session, path: str | os.PathLike[str]) -> None:
        vars(self).update(vars(session))  # the same model; nothing is compiled for it
        self._watches = []
        self._home = Path(path)
        if load_profile(self._home).model != ir.compute_digest(session.model):
            raise DataError(f"the profile {self._home} was made of another model; make it again")
        self._kept = _load_recorded_tensors(self._home)
        lost = [spec.name for spec in self.inputs if spec.axis != 0 or spec.name not in self._kept]
        if lost:
            raise DataError(
                f"the profile {self._home} does not hold one sample of '{lost[0]}' after another "
                "on axis 0; "
                "give the model itself"
            )
        self.samples = len(self._kept[self.inputs[0].name][0])
        self._places = {
            digest: place
            for place in range(self.samples)
            for digest in self._digests(
                {n: self._kept[n][0][place : place + 1] for n in self._input_names}
            )
        }

    def batches(self, size: int = 16) -> Iterator[dict[str, np.ndarray]]:
        """Yield the inputs that the model was fed, in batches of at most `size` samples."""
        for start in range(0, self.samples, size):
            yield {
                spec.name: np.asarray(self._kept[spec.name][0][start : start + size])
                for spec in self.inputs
            }

    def tensors(
        self,
        feeds: Mapping[str, ArrayLike],
        names: Sequence[str] | None = None,
        force: Mapping[str, np.ndarray] | None = None,
    ) -> Stream:
        """Yield the tensors of samples that were run; DataError where one was not.

        Nothing can be forced.
        Tensors that do not hold the same number of rows for each sample are left out.
        """
        if force:
            raise ConfigError(
                "tensors that were kept cannot be computed again from other inputs; give the model "
                "itself"
            )
        places = [self._places.get(digest) for digest in self._digests(feeds)]
        if None in places:
            raise DataError(
                f"sample {places.index(None)} of the batch is not among those of the profile "
                f"{self._home}; "
                "give the data that it was made of"
            )
        for name, (array, q) in self._kept.items():
            rows, rest = divmod(len(array), self.samples)
            if not rest and (names is None or name in names):
                pieces = [
                    array[place * rows : (place + 1) * rows]
                    for place in places
                    if place is not None
                ]
                yield name, np.concatenate(pieces), q

    @property
    def _input_names(self) -> list[str]:
        return [spec.name for spec in self.inputs]

    def _digests(self, feeds: Mapping[str, ArrayLike]) -> Iterator[bytes]:
        """Yield a digest of each sample; DataError where it has no array for an input."""
        if lost := [name for name in self._input_names if name not in feeds]:
            raise DataError(
                f"the profile {self._home} has an input '{lost[0]}'; the other model has "
                f"{', '.join(feeds)}"
            )
        arrays = [np.asarray(feeds[name]) for name in self._input_names]
        for place in range(len(arrays[0])):
            hasher = hashlib.sha256()
            for array in arrays:
                hasher.update(np.ascontiguousarray(array[place]).tobytes())
            yield hasher.digest()


class _RecordedSource(IntegerSource):
    """An integer graph whose tensors were kept: its layers cannot be computed one by one."""

    has_isolated_layers = False

    def run_isolated(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Yield nothing."""
        return iter(())


def open_recorded_source(
    model: ir.ModelLike | Session, path: str | os.PathLike[str]
) -> tuple[TensorSource, RecordedSession]:
    """Return what `compare` takes for a model whose tensors were kept in the profile's folder `path`, and the session.

    Raises as `RecordedSession` does.
    """
    session = RecordedSession(model if isinstance(model, Session) else Session(model), path)
    return _RecordedSource(session) if session.is_integer else FloatSource(session), session


def compare_kept(
    float_model: ir.ModelLike | Session,
    quant_model: ir.ModelLike | Session,
    profiles: tuple[str | os.PathLike[str], str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Comparison:
    """Compare two models as `compare` does, from what their profiles kept: nothing is run.

    profiles : the folder of each. settings : of `compare`. There are no local errors. Raises
    DataError where a folder has no tensors, or those of another model, or where the two were not
    run on the same samples.
    """
    (base, recorded), (other, _) = (
        open_recorded_source(m, p)
        for m, p in zip((float_model, quant_model), profiles, strict=True)
    )
    return compare(base, other, list(recorded.batches()), out, **settings)


def _load_recorded_tensors(home: Path) -> dict[str, tuple[np.ndarray, Affine | None]]:
    """Return {tensor: (all samples, mapped from disk; how it is held)} of a profile's folder."""
    try:
        return load_dump(home / TENSORS_FOLDER)
    except FileNotFoundError as error:
        raise DataError(
            f"the profile {home} has no tensors: make it with --keep, or by ModelProfiler"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{home / TENSORS_FOLDER} is no dump that lingeronnx wrote ({type(error).__name__}); "
            "profile again with "
            "--keep"
        ) from error
