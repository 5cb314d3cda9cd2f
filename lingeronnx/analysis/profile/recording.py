"""Record a profile by running a model over data, and compare models from stored tensors.

The folder of a profile:

    statistic.txt   the table                 tensorboard/   histograms
    profile.html    the same as a page        tensors/       with `keep`: every tensor of every
    profile.npz     see `profile_file`                       sample, a dump as of `simulate --dump`

`RecordedSession` replaces a model whose tensors were stored: it reads them instead of computing
them, so that `compare` need not run the model again.
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

from ...common.errors import ConfigError, DataError
from ...common.files import update_folder, write_text
from ...ir import ir
from ...ir.plan import Affine
from ...runtime.data import Data, Progress
from ...runtime.dump import DumpFolder
from ...runtime.provenance import load_fixed_arrays
from ...runtime.runners import Stream
from ...runtime.session import Session
from ..compare.compare import compare
from ..compare.comparison import Comparison
from ..compare.sources import FloatSource, IntegerSource, Item, TensorSource, load_dump
from .page import render_profile_page
from .profile import TABLE_FILE, Profile, Recorder
from .profile_file import PROFILE_FILE, load_profile, save_profile

__all__ = ["TENSORS_FOLDER", "RecordedSession", "compare_kept", "open_recorded_source", "profile"]

#: The page, and the folder with the tensors, in a profile's folder.
PAGE_FILE, TENSORS_FOLDER = "profile.html", "tensors"

#: Files and folders of an older profile, which a new profile in the same folder replaces.
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
    """Run an integer or float model on data and return its profile.

    Parameters
    ----------
    model
        The model.
    data
        Input data, in any form that other commands take.
    out_dir
        Folder for statistic.txt, profile.html and profile.npz, which are always written there, and
        what `tensorboard` and `keep` add; None writes nothing.
    prefixes, types
        Prefixes of names, and operator types, to show in statistic.txt, profile.html and
        tensorboard/; None shows all. profile.npz contains all.
    with_stack
        Whether statistic.txt has a column with source locations.
    tensorboard
        Whether to write histograms for TensorBoard.
    per_channel
        Whether to record a distribution per channel.
    keep
        Whether to write all tensors too, for `compare_kept`.
    batch
        Largest batch size.
    limit
        Largest number of samples.
    progress
        Progress callback.

    Raises
    ------
    DataError, ConfigError
        If the data do not fit the model, or if options contradict each other.
    """
    session = model if isinstance(model, Session) else Session(model)
    if keep and out_dir is None:
        raise ConfigError("keep writes tensors into a folder: pass out_dir")
    fixed = load_fixed_arrays(session.model)
    source = Data(data, session.inputs, limit=limit, label="data", fixed=fixed)
    if out_dir is None:
        recorder = Recorder(session, per_channel=per_channel)
        return _record(recorder, source, batch, progress)
    with update_folder(out_dir, _PARTS) as folder:
        with contextlib.ExitStack() as stack:
            on_tensor = None
            if keep:
                on_tensor = stack.enter_context(DumpFolder(folder / TENSORS_FOLDER)).add
            recorder = Recorder(session, per_channel=per_channel, on_tensor=on_tensor)
            recorded = _record(recorder, source, batch, progress)
            recorded.select(prefixes, types)
        recorded.table(folder, prefixes, types, with_stack)
        name = "the model" if isinstance(model, Session) else ir.model_label(model)
        write_text(folder / PAGE_FILE, render_profile_page(recorded, name, prefixes, types))
        save_profile(recorded, folder / PROFILE_FILE)
        if tensorboard:
            recorded.tensorboard(folder, prefixes, types, per_channel)
    return recorded


def _record(recorder: Recorder, source: Data, batch: int, progress: Progress | None) -> Profile:
    """Run the recorder's session over all of the data in batches of `batch`; return the profile.

    `progress` is called after each batch with the samples so far. Raises ConfigError if the data
    are empty.
    """
    sample_count = 0
    for feeds, _ in source.batches(batch):
        for name, array, q in recorder.session.tensors(feeds):
            if isinstance(array, np.ndarray):  # not a sequence of tensors
                recorder.add(name, array, q)
        sample_count += min((len(array) for array in feeds.values()), default=1)
        if progress is not None:
            progress("profiling", sample_count, None)
    return recorder.profile()


class RecordedSession(Session):
    """A session that reads the tensors stored in a profile's folder instead of computing them.

    Parameters
    ----------
    session
        Session of the model that was profiled.
    path
        Folder of the profile.

    Raises
    ------
    DataError
        If the folder has no tensors, or those of another model, or if samples are not on axis 0.
    """

    def __init__(self, session: Session, path: str | os.PathLike[str]) -> None:
        """Read the tensors recorded in the folder `path`, instead of computing them later.

        `session` is of the profiled model. Samples are found by a digest of their inputs, which
        must be recorded along axis 0.

        Raises
        ------
        DataError
            If the profile cannot be read, is of another model, has no tensors, or lacks the inputs.
        """
        vars(self).update(vars(session))  # the same model, without compiling it again
        self._watches = []
        self._folder = Path(path)
        if load_profile(self._folder).model != ir.compute_digest(session.model):
            raise DataError(f"the profile {self._folder} is of another model; profile this model")
        self._stored_tensors = _load_recorded_tensors(self._folder)
        for spec in self.inputs:
            if spec.axis != 0 or spec.name not in self._stored_tensors:
                raise DataError(
                    f"the profile {self._folder} does not store the samples of '{spec.name}' along "
                    "axis 0; pass the model itself"
                )
        self.samples = len(self._stored_tensors[self.inputs[0].name][0])
        self._sample_index: dict[bytes, int] = {}  # digest of the inputs -> index
        for index in range(self.samples):
            feeds = {n: self._stored_tensors[n][0][index : index + 1] for n in self._input_names}
            for digest in self._digests(feeds):
                self._sample_index[digest] = index

    def batches(self, size: int = 16) -> Iterator[dict[str, np.ndarray]]:
        """Yield the recorded model inputs as {input: array} in batches of at most `size` samples.

        They are in the order of recording; the last batch may be smaller.
        """
        for start in range(0, self.samples, size):
            batch = slice(start, start + size)
            yield {
                name: np.asarray(self._stored_tensors[name][0][batch]) for name in self._input_names
            }

    def tensors(
        self,
        feeds: Mapping[str, ArrayLike],
        names: Sequence[str] | None = None,
        force: Mapping[str, np.ndarray] | None = None,
    ) -> Stream:
        """Yield (name, array, quantization parameters or None) of recorded tensors.

        The samples of `feeds` are looked up by a digest of their inputs; each array has their rows
        in the order of `feeds`, as they were stored. Tensors whose rows do not divide evenly among
        the recorded samples are left out, and those not in `names`, unless it is None.

        Raises
        ------
        ConfigError
            If `force` is given: recorded tensors cannot be computed again.
        DataError
            If a sample was not recorded.
        """
        if force:
            raise ConfigError(
                "recorded tensors cannot be computed again from other inputs; pass the model itself"
            )
        indices: list[int] = []
        for position, digest in enumerate(self._digests(feeds)):
            if digest not in self._sample_index:
                raise DataError(
                    f"sample {position} of the batch is not in the profile {self._folder}; use the "
                    "data that were profiled"
                )
            indices.append(self._sample_index[digest])
        for name, (array, q) in self._stored_tensors.items():
            row_count, remainder = divmod(len(array), self.samples)
            if remainder or (names is not None and name not in names):
                continue
            rows = [array[index * row_count : (index + 1) * row_count] for index in indices]
            yield name, np.concatenate(rows), q

    @property
    def _input_names(self) -> list[str]:
        """The names of the model's inputs, in order."""
        return [spec.name for spec in self.inputs]

    def _digests(self, feeds: Mapping[str, ArrayLike]) -> Iterator[bytes]:
        """Yield a SHA-256 digest of the inputs of each sample (axis 0), in order.

        Raises
        ------
        DataError
            If an input of the model has no array in `feeds`.
        """
        missing = [name for name in self._input_names if name not in feeds]
        if missing:
            raise DataError(
                f"the profile {self._folder} has an input '{missing[0]}'; the other model has "
                f"{', '.join(feeds)}"
            )
        arrays = [np.asarray(feeds[name]) for name in self._input_names]
        for index in range(len(arrays[0])):
            hasher = hashlib.sha256()
            for array in arrays:
                hasher.update(np.ascontiguousarray(array[index]).tobytes())
            yield hasher.digest()


class _RecordedSource(IntegerSource):
    """Source of an integer graph with recorded tensors, whose layers cannot run in isolation."""

    has_isolated_layers = False

    def run_isolated(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Yield nothing: recorded tensors cannot be computed again for single layers."""
        return iter(())


def open_recorded_source(
    model: ir.ModelLike | Session, path: str | os.PathLike[str]
) -> tuple[TensorSource, RecordedSession]:
    """Open the tensors recorded in a profile's folder as a source for `compare`.

    Parameters
    ----------
    model
        The model that was profiled.
    path
        Folder of the profile.

    Returns
    -------
    source : TensorSource
        Source of the recorded tensors.
    session : RecordedSession
        Session behind the source.

    Raises
    ------
    DataError
        If the profile cannot be read, is of another model, has no tensors, or does not store the
        samples of each input along axis 0.
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
    """Compare two models from the tensors in their profiles, without running anything.

    There are no local errors.

    Parameters
    ----------
    float_model, quant_model
        The models.
    profiles
        Folder of each model's profile.
    out
        Folder for the files of `compare`.
    **settings
        Further settings of `compare`.

    Raises
    ------
    DataError
        If a folder has no tensors or those of another model, or if the profiles are not of the same
        samples.
    """
    base, recorded = open_recorded_source(float_model, profiles[0])
    other, _ = open_recorded_source(quant_model, profiles[1])
    return compare(base, other, list(recorded.batches()), out, **settings)


def _load_recorded_tensors(folder: Path) -> dict[str, tuple[np.ndarray, Affine | None]]:
    """Load the dump in a profile's folder: {tensor: (array, quantization parameters or None)}.

    Arrays contain all samples and are mapped from disk.

    Raises
    ------
    DataError
        If the profile in `folder` has no tensors, or they cannot be read.
    """
    try:
        return load_dump(folder / TENSORS_FOLDER)
    except FileNotFoundError as error:
        raise DataError(
            f"the profile {folder} has no tensors: record it with --keep, or by ModelProfiler"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder / TENSORS_FOLDER} is not a lingeronnx dump ({type(error).__name__}); profile "
            "again with --keep"
        ) from error
