"""`Dumper` and `ModelProfiler`: tables of what a model computes, followed while it is called."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..analysis.profile.outliers import (
    OUTPUT_COLUMNS,
    OutlierRow,
    OutputCollector,
    compile_name_filter,
    format_outlier_table,
    select_layers,
)
from ..analysis.profile.profile import Profile, Recorder
from ..analysis.profile.profile_file import PROFILE_FILE, save_profile
from ..analysis.profile.recording import TENSORS_FOLDER, RecordedSession
from ..errors import ConfigError, DataError
from ..files import ensure_folder, write_text
from ..flow import QuantizedModel
from ..run.dump import DumpFolder
from ..run.session import Session
from .inputs import is_module

__all__ = ["EXPORTED_FILE", "Dumper", "InfoManager", "ModelProfiler"]

#: The export of a torch module, in its profile's folder.
EXPORTED_FILE = "model.onnx"


# ---- weight and output tables ------------------------------------------------------------------------------------

_ROOT = "root."  # what the names of layers begin with


class Dumper:
    """Tables of what the layers of a model put out, over all calls in a ``with`` block.

        with Dumper() as d:
            d.analyse_layer_output(session, match_pattern="root.")
            session(x)
            d.save_out_analyse_log(save_log_path="Analyse_layer_output.log")

    Layers are called ``root.`` and their nodes' names (in a torch module their paths), and the
    pattern, a regular expression, is looked for in that name. Constant memory; exactness as in
    `analysis.outliers`.
    """

    def __init__(self) -> None:
        self._tables: list[OutputCollector] = []
        self._watches = ExitStack()

    def __enter__(self) -> Dumper:
        return self

    def __exit__(self, *_: object) -> None:
        self._watches.close()

    def analyse_layer_output(self, model: object, match_pattern: str = "root.") -> object:
        """Follow a model: each call of it counts from now on. Return what is to be called.

        model : a `Session`, a `QuantizedModel` or a torch module; of a path a session is opened,
        and returned. Raises ConfigError for anything else, and where no layer fits.
        """
        if isinstance(model, str | os.PathLike):
            model = Session(model)
        if isinstance(model, QuantizedModel | Session):
            session = model if isinstance(model, Session) else model.runner
            table = OutputCollector(select_layers(session, match_pattern, _ROOT), session)
            self._watches.enter_context(session.watched(table.add))
        elif is_module(model):
            from ..torch.exporter.hooks import watch_outputs

            table = OutputCollector()
            watch = watch_outputs(
                model,
                compile_name_filter(match_pattern, _ROOT),
                lambda name, array, held: table.add(f"{_ROOT}{name}", array, held),
            )
            self._watches.enter_context(watch)
        else:
            raise ConfigError(
                f"a {type(model).__name__} cannot be followed; give a path or a QuantizedModel"
            )
        self._tables.append(table)
        return model

    def save_out_analyse_log(
        self, save_log_path: str | os.PathLike[str] = "Analyse_layer_output.log"
    ) -> list[OutlierRow]:
        """Write the table and return its rows; DataError where the model was not called."""
        rows = [row for table in self._tables for row in table.rows()]
        if not rows:
            raise DataError(
                "nothing was seen: call the model between analyse_layer_output and "
                "save_out_analyse_log"
            )
        write_text(save_log_path, format_outlier_table(rows, OUTPUT_COLUMNS))
        return rows


# ---- a profile ---------------------------------------------------------------------------------------------------


class ModelProfiler:
    """What the operators of a model read and write, over all calls in a ``with`` block.

        with ModelProfiler(session, "profile") as p:
            session(x)
        p.get_info_manager.table()
        p.get_info_manager.tensorboard()

    model : a `Session`, a `QuantizedModel`, or a torch module, which is exported at its first call;
    of a path a session is opened, and `p.model` is what to call. The folder, default the current
    one, gets profile.npz and, in tensors/, all that was seen, from which `QuantAnalysis` can go on;
    see `analysis.profiling`.
    """

    def __init__(self, model: object, out_dir: str | os.PathLike[str] = ".") -> None:
        self.model: Any = Session(model) if isinstance(model, str | os.PathLike) else model
        self.out_dir = Path(out_dir)
        self._recorder: Recorder | None = None
        self._open = ExitStack()

    def __enter__(self) -> ModelProfiler:
        ensure_folder(self.out_dir)
        if isinstance(self.model, QuantizedModel | Session):
            self._watch_session(
                self.model if isinstance(self.model, Session) else self.model.runner
            )
        elif is_module(self.model):
            from ..torch.exporter.hooks import mirror_calls

            self._open.enter_context(
                mirror_calls(self.model, self.out_dir / EXPORTED_FILE, self._watch_session)
            )
        else:
            raise ConfigError(
                f"a {type(self.model).__name__} cannot be followed; give a path or lo.Session(path)"
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self._open.__exit__(kind, *rest)
        if kind is None and self._recorder is not None and self._recorder.has_run:
            save_profile(self._recorder.profile(), self.out_dir / PROFILE_FILE)

    def _watch_session(self, session: Session) -> None:
        kept = self._open.enter_context(DumpFolder(self.out_dir / TENSORS_FOLDER))
        self._recorder = Recorder(session, on_tensor=kept.add)
        self._open.enter_context(session.watched(self._recorder.add))

    @property
    def get_info_manager(self) -> InfoManager:
        """The tables of what was seen; ConfigError where the model was not called."""
        if self._recorder is None:
            raise ConfigError("nothing to profile; call the model on data first")
        modules = self.model.named_modules() if is_module(self.model) else ()
        return InfoManager(self._recorder, self.out_dir, dict(modules))


class InfoManager:
    """Writes what `ModelProfiler` saw; `out_dir` is the profiler's where none is given.

    modules : of a torch module its parts, by path.
    """

    def __init__(
        self, recorder: Recorder, out_dir: Path, modules: Mapping[str, object] | None = None
    ) -> None:
        self._recorder, self._out_dir, self._modules = recorder, out_dir, modules or {}

    def table(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        prefixes: Sequence[str] | None = None,
        types: Sequence[str | type] | None = None,
        with_stack: bool = False,
    ) -> Path:
        """Write statistic.txt; of operators whose name begins with one of `prefixes` and whose type is in `types`.

        types : of operators, such as "Conv"; of a torch module also its classes, such as nn.Conv2d.
        """
        found = self._recorder.profile()
        return self._filter_by_class(found, types).table(
            out_dir or self._out_dir, prefixes, _operator_types(types), with_stack
        )

    def tensorboard(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        prefixes: Sequence[str] | None = None,
        types: Sequence[str | type] | None = None,
        force_per_channel: bool = False,
    ) -> Path:
        """Write histograms into `out_dir`/tensorboard; force_per_channel : one for each channel."""
        found = self._recorder.profile()
        if force_per_channel:  # from the tensors that were kept: nobody asked for channels before
            again = Recorder(
                recorded := RecordedSession(self._recorder.session, self._out_dir), per_channel=True
            )
            for feeds in recorded.batches():
                for name, array, held in recorded.tensors(feeds):
                    again.add(name, array, held)
            found = again.profile()
        chosen = self._filter_by_class(found, types)
        return chosen.tensorboard(
            out_dir or self._out_dir, prefixes, _operator_types(types), force_per_channel
        )

    def _filter_by_class(self, profile: Profile, types: Sequence[str | type] | None) -> Profile:
        """Return the rows of the modules whose class is among `types`, and of operators of these types; all for none.

        Raises ConfigError where no module is of such a class.
        """
        given = (types,) if isinstance(types, str | type) else tuple(types or ())
        classes = tuple(kind for kind in given if isinstance(kind, type))
        if not classes:
            return profile
        paths = {path for path, module in self._modules.items() if isinstance(module, classes)}
        words = {kind for kind in given if isinstance(kind, str)}
        rows = [row for row in profile.entries if row.path in paths or row.op in words]
        if not rows:
            told = ", ".join(kind.__name__ for kind in classes)
            raise ConfigError(
                f"types: no operator of the profile comes from a {told}; of a file give types of "
                "operators"
            )
        return replace(profile, entries=rows)


def _operator_types(types: Sequence[str | type] | None) -> list[str] | None:
    """Return the types to choose by; none where classes have chosen already."""
    given = (types,) if isinstance(types, str | type) else tuple(types or ())
    words = [kind for kind in given if isinstance(kind, str)]
    return words if len(words) == len(given) else None
