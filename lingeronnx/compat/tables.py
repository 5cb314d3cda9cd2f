"""`Dumper` and `ModelProfiler`: tables of what a model computes, followed while it is called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..analysis.profile.outliers import OUTPUTS, OutlierRow, Outputs, grid, layers_of, matcher
from ..analysis.profile.profile import Recorder
from ..analysis.profile.profile_file import FILE, save_profile
from ..analysis.profile.recording import TENSORS, RecordedSession
from ..errors import ConfigError, DataError
from ..files import folder, write_text
from ..flow import QuantizedModel
from ..run.dump import Folder
from ..run.session import Session

__all__ = ["Dumper", "InfoManager", "ModelProfiler"]


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

    def analyse_layer_output(self, model: object, match_pattern: str = "root.") -> None:
        """Follow a `Session`, a `QuantizedModel` or a torch module: each call of it counts from now on.

        Raises ConfigError for anything else, and where no layer fits.
        """
        if isinstance(model, QuantizedModel | Session):
            session = model if isinstance(model, Session) else model.runner
            table = Outputs(layers_of(session, match_pattern, "root."), session)
            self._watching.enter_context(session.watched(table.add))
        elif hasattr(model, "named_modules"):
            from ..torch.exporter.hooks import watched

            table = Outputs()
            self._watching.enter_context(watched(model, matcher(match_pattern, "root."), table.add))
        else:
            raise ConfigError(f"a {type(model).__name__} cannot be followed; give lo.Session(path) or a QuantizedModel")
        self._tables.append(table)

    def save_out_analyse_log(
        self, save_log_path: str | os.PathLike[str] = "Analyse_layer_output.log"
    ) -> list[OutlierRow]:
        """Write the table and return its rows; DataError where the model was not called."""
        rows = [row for table in self._tables for row in table.rows()]
        if not rows:
            raise DataError("nothing was seen: call the model between analyse_layer_output and save_out_analyse_log")
        write_text(save_log_path, grid(rows, OUTPUTS))
        return rows


# ---- a profile ---------------------------------------------------------------------------------------------------


class ModelProfiler:
    """What the operators of a model read and write, over all calls in a ``with`` block.

        with ModelProfiler(session, "profile") as p:
            session(x)
        p.get_info_manager.table()
        p.get_info_manager.tensorboard()

    model : a `Session`, a `QuantizedModel`, or a torch module, which is exported at its first call. The folder gets
    profile.npz and, in tensors/, all that was seen, from which `QuantAnalysis` can go on; see `analysis.profiling`.
    """

    def __init__(self, model: object, out_dir: str | os.PathLike[str]) -> None:
        self._model, self.out_dir = model, Path(out_dir)
        self._recorder: Recorder | None = None
        self._open = ExitStack()

    def __enter__(self) -> ModelProfiler:
        folder(self.out_dir)
        if isinstance(self._model, QuantizedModel | Session):
            self._follow(self._model if isinstance(self._model, Session) else self._model.runner)
        elif hasattr(self._model, "named_modules"):
            from ..torch.exporter.hooks import followed

            self._open.enter_context(followed(self._model, self.out_dir / "model.onnx", self._follow))
        else:
            raise ConfigError(f"a {type(self._model).__name__} cannot be followed; give lo.Session(path)")
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self._open.__exit__(kind, *rest)
        if kind is None and self._recorder is not None and self._recorder.called:
            save_profile(self._recorder.profile(), self.out_dir / FILE)

    def _follow(self, session: Session) -> None:
        kept = self._open.enter_context(Folder(self.out_dir / TENSORS))
        self._recorder = Recorder(session, on_tensor=kept.add)
        self._open.enter_context(session.watched(self._recorder.add))

    @property
    def get_info_manager(self) -> InfoManager:
        """The tables of what was seen; ConfigError where the model was not called."""
        if self._recorder is None:
            raise ConfigError("nothing to profile: the model was not called")
        return InfoManager(self._recorder, self.out_dir)


class InfoManager:
    """Writes what `ModelProfiler` saw; `out_dir` is the profiler's where none is given."""

    def __init__(self, recorder: Recorder, out_dir: Path) -> None:
        self._recorder, self._out_dir = recorder, out_dir

    def table(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        prefixes: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        with_stack: bool = False,
    ) -> Path:
        """Write statistic.txt; of operators whose name begins with one of `prefixes` and whose type is in `types`."""
        return self._recorder.profile().table(out_dir or self._out_dir, prefixes, types, with_stack)

    def tensorboard(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        prefixes: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        force_per_channel: bool = False,
    ) -> Path:
        """Write histograms into `out_dir`/tensorboard; force_per_channel : one for each channel."""
        found = self._recorder.profile()
        if force_per_channel:  # from the tensors that were kept: nobody asked for channels before
            again = Recorder(recorded := RecordedSession(self._recorder.session, self._out_dir), per_channel=True)
            for feeds in recorded.batches():
                for name, array, held in recorded.tensors(feeds):
                    again.add(name, array, held)
            found = again.profile()
        return found.tensorboard(out_dir or self._out_dir, prefixes, types, force_per_channel)
