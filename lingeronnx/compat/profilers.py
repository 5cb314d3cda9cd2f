"""`Dumper` and `ModelProfiler`: statistics of the tensors of a model, recorded during its calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
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
from ..common.errors import ConfigError, DataError
from ..common.files import ensure_folder, write_text
from ..ir.name_mapping import get_module_name
from ..quantization import QuantizedModel
from ..runtime.dump import DumpFolder
from ..runtime.session import Session
from .inputs import is_initialised, is_module

__all__ = ["EXPORTED_FILE", "Dumper", "InfoManager", "ModelProfiler"]

#: Name of the exported torch module in the folder of its profile.
EXPORTED_FILE = "model.onnx"


# ---- output tables ------------------------------------------------------------------------------

#: An operator type, a class of modules, or a function, which is refused with the reason.
_OperatorKind = str | type | Callable[..., Any]

_ROOT = "root."  # prefix of the layer names


class Dumper:
    """Statistics of layer outputs over all calls in a ``with`` block.

        with Dumper() as d:
            d.analyse_layer_output(session, match_pattern="root.")
            session(x)
            d.save_out_analyse_log(save_log_path="Analyse_layer_output.log")

    A layer is named ``root.`` followed by the name of its node, or by its path in a torch module.
    The pattern is a regular expression that is searched in this name. Memory use is constant; for
    the exactness of the statistics see `analysis.profile.outliers`.
    """

    def __init__(self) -> None:
        """Start without models to record and without statistics."""
        self._tables: list[OutputCollector] = []
        self._watches = ExitStack()

    def __enter__(self) -> Dumper:
        """Return this dumper; recording begins with `analyse_layer_output`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop recording all models; the statistics stay."""
        self._watches.close()

    def analyse_layer_output(self, model: object, match_pattern: str = "root.") -> object:
        """Record all further calls of a model.

        Parameters
        ----------
        model
            A `Session`, a `QuantizedModel`, a torch module, or a path, for which a session is
            opened. Of a net after `lo.torch.init` the tensors of its integer graph are recorded,
            named by modules where these have written them.
        match_pattern
            Regular expression for the names of the layers to record.

        Returns
        -------
        object
            The model to call: `model`, or the session that was opened.

        Raises
        ------
        ConfigError
            If `model` is anything else, or no layer matches; in a net after `lo.torch.init` that is
            found at its first call.
        """
        if isinstance(model, str | os.PathLike):
            model = Session(model)
        if is_initialised(model):
            self._watch_integer_calls(model, match_pattern)
            return model
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
                lambda name, array, qparams: table.add(f"{_ROOT}{name}", array, qparams),
            )
            self._watches.enter_context(watch)
        else:
            raise ConfigError(
                f"cannot record a {type(model).__name__}; pass a path or a QuantizedModel"
            )
        self._tables.append(table)
        return model

    def _watch_integer_calls(self, net: Any, match_pattern: str) -> None:  # noqa: ANN401 - torch
        """Record the integer graph of a net after `lo.torch.init` at all further calls of the net.

        Raises ConfigError, at the first call, if no layer has a name that matches.
        """
        from ..torch.training_api.observed_net import mirror_integer_calls

        def watch(model: QuantizedModel) -> None:
            """Record the runs of the session of `model` from now on."""
            layers = _name_layers_by_module(model.runner, match_pattern)
            table = OutputCollector(layers, model.runner)
            self._watches.enter_context(model.runner.watched(table.add))
            self._tables.append(table)

        self._watches.enter_context(mirror_integer_calls(net, watch))

    def save_out_analyse_log(
        self, save_log_path: str | os.PathLike[str] = "Analyse_layer_output.log"
    ) -> list[OutlierRow]:
        """Write the table of the statistics of all recorded models to a file, and return its rows.

        Raises
        ------
        DataError
            If the model was not called.
        """
        rows = [row for table in self._tables for row in table.rows()]
        if not rows:
            raise DataError(
                "no calls recorded: call the model between analyse_layer_output and "
                "save_out_analyse_log"
            )
        write_text(save_log_path, format_outlier_table(rows, OUTPUT_COLUMNS))
        return rows


def _name_layers_by_module(session: Session, match_pattern: str) -> dict[str, str]:
    """Return {tensor: layer name} of the node outputs of an integer graph whose names match.

    The last tensor of a torch module is named ``root.`` and the path of the module, others by the
    path and their node. Raises ConfigError if none matches.
    """
    matches = compile_name_filter(match_pattern, _ROOT)
    path_by_tensor: dict[str, str] = {}
    last_tensors: dict[str, str] = {}
    for node in session.model.graph:
        for value in node.outputs:
            path = get_module_name(node)
            path_by_tensor[str(value.name)] = path
            last_tensors[path] = str(value.name)
    layers = {}
    for tensor, path in path_by_tensor.items():
        layer = path if last_tensors[path] == tensor else f"{path}.{tensor.split('/')[-1]}"
        if matches(layer):
            layers[tensor] = _ROOT + layer
    if not layers:
        raise ConfigError(f"no layer has a name that matches '{match_pattern}'")
    return layers


# ---- profiles -----------------------------------------------------------------------------------


class ModelProfiler:
    """Profile of the operands of all operators over all calls in a ``with`` block.

        with ModelProfiler(session, "profile") as p:
            session(x)
        p.get_info_manager.table()
        p.get_info_manager.tensorboard()

    Parameters
    ----------
    model
        A `Session`, a `QuantizedModel`, a torch module, which is exported at its first call, or a
        path, for which a session is opened: call `p.model` then. Of a net after `lo.torch.init` the
        integer graph is profiled.
    out_dir
        Folder for profile.npz and, in tensors/, the values of all tensors, which `QuantAnalysis`
        can read.

    Raises
    ------
    ConfigError
        On entering the block, if `model` is anything else.
    """

    def __init__(self, model: object, out_dir: str | os.PathLike[str] = ".") -> None:
        """Store the model to profile: a session, quantized model, torch module, or path of a model.

        A session is opened for a path. Recording begins with the `with` block; files are written to
        `out_dir`.
        """
        self.model: Any = Session(model) if isinstance(model, str | os.PathLike) else model
        self.out_dir = Path(out_dir)
        self._recorder: Recorder | None = None
        self._open = ExitStack()

    def __enter__(self) -> ModelProfiler:
        """Start recording the runs of the model; a torch module's calls run on its ONNX export too.

        Raises ConfigError for an object that cannot be profiled.
        """
        ensure_folder(self.out_dir)
        if isinstance(self.model, QuantizedModel | Session):
            session = self.model if isinstance(self.model, Session) else self.model.runner
            self._watch_session(session)
        elif is_initialised(self.model):
            from ..torch.training_api.observed_net import mirror_integer_calls

            self._open.enter_context(
                mirror_integer_calls(self.model, self._watch_integer_graph, keep_stacks=True)
            )
        elif is_module(self.model):
            from ..torch.exporter.hooks import mirror_calls

            self._open.enter_context(
                mirror_calls(self.model, self.out_dir / EXPORTED_FILE, self._watch_session)
            )
        else:
            raise ConfigError(
                f"cannot profile a {type(self.model).__name__}; pass a path or lo.Session(path)"
            )
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error_info: Any) -> None:
        """Stop recording, and save the profile if no error occurred and the model has run."""
        self._open.__exit__(error_type, *error_info)
        if error_type is None and self._recorder is not None and self._recorder.has_run:
            save_profile(self._recorder.profile(), self.out_dir / PROFILE_FILE)

    def _watch_integer_graph(self, model: QuantizedModel) -> None:
        """Save the integer graph of a net after `lo.torch.init`, and record its session."""
        model.save(self.out_dir / EXPORTED_FILE)
        self._watch_session(model.runner)

    def _watch_session(self, session: Session) -> None:
        """Record all tensors of the calls of `session` until the block ends.

        Their values are also dumped into the folder `tensors` of the profile.
        """
        dump = self._open.enter_context(DumpFolder(self.out_dir / TENSORS_FOLDER))
        self._recorder = Recorder(session, on_tensor=dump.add)
        self._open.enter_context(session.watched(self._recorder.add))

    @property
    def get_info_manager(self) -> InfoManager:
        """The object that writes tables and histograms of the recorded profile.

        Raises ConfigError if recording has not begun: for a torch module it begins with its first
        call, otherwise on entering the block.
        """
        if self._recorder is None:
            raise ConfigError("no data recorded; call the model first")
        modules = self.model.named_modules() if is_module(self.model) else ()
        return InfoManager(self._recorder, self.out_dir, dict(modules))


class InfoManager:
    """Writes the tables and histograms of a profile.

    Parameters
    ----------
    recorder
        The recorder of `ModelProfiler`.
    out_dir
        Default folder of all files.
    modules
        Submodules of a torch module by path.
    """

    def __init__(
        self, recorder: Recorder, out_dir: Path, modules: Mapping[str, object] | None = None
    ) -> None:
        """Store the recorder, the default folder of files, and the torch modules by path."""
        self._recorder, self._out_dir, self._modules = recorder, out_dir, modules or {}

    def table(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        prefixes: Sequence[str] | None = None,
        types: Sequence[_OperatorKind] | None = None,
        with_stack: bool = False,
    ) -> Path:
        """Write the statistics of the operators to statistic.txt and return its path.

        Parameters
        ----------
        out_dir
            Folder to write to, by default that of the profiler.
        prefixes
            Include only operators whose name begins with one of these.
        types
            Include only these operator types, such as "Conv", or for a torch module these classes,
            such as nn.Conv2d.
        with_stack
            Whether to add a column with the source locations of the operators.
        """
        profile = self._filter_by_class(self._recorder.profile(), types)
        return profile.table(out_dir or self._out_dir, prefixes, _operator_types(types), with_stack)

    def tensorboard(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        prefixes: Sequence[str] | None = None,
        types: Sequence[_OperatorKind] | None = None,
        force_per_channel: bool = False,
    ) -> Path:
        """Write histograms to the folder tensorboard in `out_dir` and return its path.

        Parameters
        ----------
        out_dir
            Parent of the folder, by default that of the profiler.
        prefixes
            Include only operators whose name begins with one of these.
        types
            Include only these operator types, such as "Conv", or for a torch module these classes,
            such as nn.Conv2d.
        force_per_channel
            Whether to write one histogram per channel.
        """
        if force_per_channel:
            profile = self._profile_channels()
        else:
            profile = self._recorder.profile()
        profile = self._filter_by_class(profile, types)
        return profile.tensorboard(
            out_dir or self._out_dir, prefixes, _operator_types(types), force_per_channel
        )

    def _profile_channels(self) -> Profile:
        """Return a profile with distributions per channel, computed from the dumped tensors."""
        recorded = RecordedSession(self._recorder.session, self._out_dir)
        recorder = Recorder(recorded, per_channel=True)
        for feeds in recorded.batches():
            for name, array, qparams in recorded.tensors(feeds):
                recorder.add(name, array, qparams)
        return recorder.profile()

    def _filter_by_class(self, profile: Profile, types: Sequence[_OperatorKind] | None) -> Profile:
        """Return a copy of `profile` with the entries of modules of the classes in `types`.

        Entries of operator types in `types` are included too. If `types` has no class, `profile` is
        returned unchanged.

        Raises
        ------
        ConfigError
            If no entry remains, or for a function such as F.interpolate.
        """
        requested = _as_tuple(types)
        for item in requested:
            if not isinstance(item, str | type):
                operators = ", ".join(sorted({entry.op for entry in profile.entries}))
                raise ConfigError(
                    f"types: {getattr(item, '__name__', item)} is a function, and operators do not "
                    f"know the function that called them; pass operator types ({operators}) or "
                    "classes of modules"
                )
        classes = tuple(item for item in requested if isinstance(item, type))
        if not classes:
            return profile
        operator_types = {item for item in requested if isinstance(item, str)}
        paths = {path for path, module in self._modules.items() if isinstance(module, classes)}
        entries = [
            entry for entry in profile.entries if entry.path in paths or entry.op in operator_types
        ]
        if not entries:
            class_names = ", ".join(item.__name__ for item in classes)
            raise ConfigError(
                f"types: no operator of the profile belongs to a module of class {class_names}; "
                "for a model from a file pass operator types"
            )
        return replace(profile, entries=entries)


def _as_tuple(types: Sequence[_OperatorKind] | None) -> tuple[_OperatorKind, ...]:
    """Return the argument `types`, which may be a single item or None, as a tuple."""
    if types is None:
        return ()
    if isinstance(types, str) or callable(types):
        return (types,)
    return tuple(types)


def _operator_types(types: Sequence[_OperatorKind] | None) -> list[str] | None:
    """Return the operator types (texts) in `types`, or None if it also has classes.

    None selects everything, because entries were selected by class already.
    """
    requested = _as_tuple(types)
    operator_types = [item for item in requested if isinstance(item, str)]
    return operator_types if len(operator_types) == len(requested) else None
