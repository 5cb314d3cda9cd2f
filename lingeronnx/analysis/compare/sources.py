"""Sources of tensors to compare: float models, plans computed in float, integer graphs, dumps.

A `TensorSource` runs a batch and yields its tensors under the user's names, each with its stored
form. Integer tensors that represent a user's tensor (after a Quant, before a Dequant) have its
name, and the factors of equalized channels are part of the stored form. This module knows sessions
and dumps, but no measures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import NamedTuple, Protocol

import numpy as np
import onnx

from ...common.errors import ConfigError, DataError
from ...ir import ir
from ...ir.folded_factors import FoldedFactor, load_folded_factors
from ...ir.plan import Affine, Plan, Transform
from ...quantization import QuantizedModel
from ...quantization.lower import extract_plan
from ...quantization.scales.fake_quant import build_fake_quantized_graph, split_at_tensors
from ...runtime.data import InputSpec, require_equal_inputs
from ...runtime.dump import INDEX_FILE, qparams_from_json
from ...runtime.provenance import apply_fixed_inputs
from ...runtime.runners import FloatRunner
from ...runtime.session import Session
from ..stats.stored_form import StoredForm, matching_factors
from .clipped_inputs import MIN_OPSET, duplicate_with_clipped_inputs

__all__ = [
    "DumpSource",
    "FloatSource",
    "IntegerSource",
    "Item",
    "PlannedSource",
    "TensorSource",
    "open_source",
    "open_source_pair",
]

#: The user's name of a tensor, its stored values, and its stored form (None: the user's float
#: values).
Item = tuple[str, np.ndarray, StoredForm | None]


class TensorSource(Protocol):
    """Source of the values of a model's tensors.

    Attributes
    ----------
    kind : str
        The kind of source as one word.
    has_isolated_layers : bool
        Whether layers can be computed one by one, see `run_isolated`.
    """

    kind: str
    has_isolated_layers: bool

    @property
    def graph(self) -> ir.Model | None:
        """The graph of the model, or None for a dump."""
        ...

    @property
    def inputs(self) -> Sequence[InputSpec]:
        """The inputs that a batch must contain; empty for a dump."""
        ...

    def run(self, feeds: Mapping[str, np.ndarray]) -> Iterator[Item]:
        """Run a batch and yield (user's name, array, stored form) of every tensor, in graph order.

        The stored form says how integers represent the user's values; None for float values.
        """
        ...

    def run_isolated(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Run each layer on the baseline's values and yield (user's name, array, stored form).

        `real` has these values by the user's tensor name. Yields nothing if `has_isolated_layers`
        is False. Must be called after `run` on the same feeds.
        """
        ...

    def node(self, name: str) -> ir.Node | None:
        """Return the node that produces the user's tensor `name`; None for inputs."""
        ...


def _producers_by_output(graph: ir.Model) -> dict[str, ir.Node]:
    """Return {tensor: node that produces it} of the main graph."""
    return {str(value.name): node for node in graph.graph for value in node.outputs}


class FloatSource:
    """A float model in onnxruntime."""

    kind = "float"
    has_isolated_layers = False

    def __init__(self, session: Session) -> None:
        """Make the source of the model of a float session; nothing is run."""
        self.session, self.inputs = session, session.inputs
        self.graph: ir.Model = session.model
        self._nodes = _producers_by_output(self.graph)
        self._clipped_model: _ClippedModel | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the session only; unpickling creates the source from it again."""
        return FloatSource, (self.session,)

    def run(self, feeds: Mapping[str, np.ndarray]) -> Iterator[Item]:
        """Run a batch and yield (name, array, None) of every tensor of the float model.

        Values that are no arrays, such as sequences, are left out.
        """
        for name, array, _ in self.session.tensors(feeds):
            if isinstance(array, np.ndarray):
                yield name, array, None

    def run_isolated(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Yield nothing: layers of a float model have no quantization error of their own."""
        return iter(())

    def run_with_clipped_inputs(
        self,
        feeds: Mapping[str, np.ndarray],
        real: Mapping[str, np.ndarray],
        stored_forms: Mapping[str, StoredForm],
    ) -> dict[str, np.ndarray]:
        """Run each layer on inputs clipped to the range of their integers, and return its tensors.

        The model with clipped inputs is kept for further calls with the same stored forms.

        Parameters
        ----------
        feeds
            Inputs of the model.
        real
            Tensors of the model, as `run` yields them.
        stored_forms
            How tensors are stored as integers, by name; those that `real` lacks are ignored.

        Returns
        -------
        dict of str to array
            All tensors of the nodes by name. Empty if no value is out of range, and for models of
            opset 7 and older, whose operators cannot clip per channel.
        """
        stored_forms = {name: form for name, form in stored_forms.items() if name in real}
        if not _has_values_out_of_range(stored_forms, real):
            return {}
        if self.graph.graph.opset_imports.get("", 0) < MIN_OPSET:
            return {}
        if self._clipped_model is None or self._clipped_model.stored_forms != stored_forms:
            graph, names = duplicate_with_clipped_inputs(self.graph, stored_forms, real)
            runner = FloatRunner(graph, {*names}, splits_batches=True)
            self._clipped_model = _ClippedModel(stored_forms, runner, names)
        known = {spec.name for spec in self.inputs}
        inputs = {name: array for name, array in feeds.items() if name in known}
        original_names = self._clipped_model.original_names
        items = self._clipped_model.runner.run(inputs)
        return {original_names[name]: array for name, array, _ in items}

    def node(self, name: str) -> ir.Node | None:
        """Return the node that produces a tensor, or None for an input or unknown name."""
        return self._nodes.get(name)


@dataclass(frozen=True)
class _ClippedModel:
    """A float model with clipped layer inputs, for `FloatSource.run_with_clipped_inputs`.

    `original_names` maps its outputs to tensors of the model.
    """

    stored_forms: Mapping[str, StoredForm]
    runner: FloatRunner
    original_names: Mapping[str, str]


def _has_values_out_of_range(
    stored_forms: Mapping[str, StoredForm], tensors: Mapping[str, np.ndarray]
) -> bool:
    """Whether any tensor of `stored_forms` has values that its integers cannot represent."""
    for name, form in stored_forms.items():
        low, high = form.representable_range(tensors[name].ndim)
        if ((tensors[name] < low) | (tensors[name] > high)).any():
            return True
    return False


class IntegerSource:
    """An integer graph in the simulator.

    Attributes
    ----------
    plan : Plan
        Quantization parameters of all tensors, from the graph's attributes.
    user_plan : Plan
        The same by the user's tensors, with folded factors as transforms.
    user_names : dict of str to str
        User's tensor by tensor of the graph (integer or float), each user's tensor once.
    """

    kind = "integer"
    has_isolated_layers = True

    def __init__(self, session: Session) -> None:
        """Read the plan of an integer session's graph, and map its tensors to the user's names.

        If several tensors hold the same user's tensor, only the first in graph order is mapped; a
        tensor that is a float copy of an integer one is left out.
        """
        self.session, self.inputs = session, session.inputs
        self.graph: ir.Model = session.model
        self.plan = extract_plan(self.graph)
        self._nodes = _producers_by_output(self.graph)
        folded_factors = {
            name: folded
            for name, folded in load_folded_factors(self.graph).items()
            if name in self.plan.tensors
        }
        self.user_plan = _rename_plan(self.plan, folded_factors)
        self.user_names: dict[str, str] = {}
        self._stored_types: dict[str, _StoredType] = {}
        float_names = session.floats
        integer_represented = set(float_names.values())
        assigned: set[str] = set()
        for value in ir.iter_values(self.graph):
            name = str(value.name)
            float_name = float_names.get(name, name)
            is_float_copy = name not in float_names and name in integer_represented
            if float_name in assigned or is_float_copy:
                continue  # another copy of the same tensor
            folded = folded_factors.get(float_name)
            self.user_names[name] = float_name if folded is None else folded.user_name
            assigned.add(float_name)
        self._graph_names = {user_name: name for name, user_name in self.user_names.items()}

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the session only; unpickling creates the source from it again."""
        return IntegerSource, (self.session,)

    def graph_name(self, name: str) -> str:
        """Return the graph's name of the user's tensor `name`; `name` itself if it has no other."""
        return self._graph_names.get(name, name)

    def node(self, name: str) -> ir.Node | None:
        """Return the node whose output holds the user's tensor `name`, or None."""
        return self._nodes.get(self.graph_name(name))

    def run(self, feeds: Mapping[str, np.ndarray]) -> Iterator[Item]:
        """Run a batch and yield (user's name, array, stored form or None) of every tensor.

        Further copies of a user's tensor are left out. Shapes and types are stored for
        `run_isolated`.
        """
        self._stored_types = {}
        for name, array, q in self.session.tensors(feeds):
            user_name = self.user_names.get(name)
            if user_name is None:
                continue
            form = self._stored_form(user_name, array, q)
            self._stored_types[name] = _StoredType(array.shape, array.dtype, form)
            yield user_name, array, form

    def run_isolated(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Run every node on quantized values of the baseline, and yield its tensors.

        Yields (user's name, array, stored form or None). `real` has the baseline's values by the
        user's name. Tensors that `real` lacks or has in another size, and those in `feeds`, keep
        the computed values; a float tensor of the graph gets the value of `real` as it is. `run`
        must have been called before, because it records shapes and types.
        """
        forced = {}
        for name, stored in self._stored_types.items():
            array = real.get(self.user_names[name])
            if array is None or array.size != np.prod(stored.shape) or name in feeds:
                continue
            array = array.reshape(stored.shape)
            if stored.form is not None:
                forced[name] = stored.form.quantize(array, stored.dtype)
            elif stored.dtype.kind == "f":
                forced[name] = array.astype(stored.dtype)
        return self._run_forced(feeds, forced)

    def _run_forced(
        self, feeds: Mapping[str, np.ndarray], forced: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Run a batch while consumers of the tensors in `forced` read the values given there.

        `forced` has arrays as stored, by the graph's tensor name. Yields (user's name, array as
        computed, stored form or None) of every tensor.
        """
        for name, array, q in self.session.tensors(feeds, force=forced):
            if name in self.user_names:
                user_name = self.user_names[name]
                yield user_name, array, self._stored_form(user_name, array, q)

    def _stored_form(
        self, user_name: str, array: np.ndarray, qparams: Affine | None
    ) -> StoredForm | None:
        """Return the stored form of a tensor of the graph, or None if `qparams` is None (float).

        The bit width of `qparams` is replaced by the plan's, if the plan has the tensor, and the
        factors per channel are those of the plan's transform if they match the array's channels.
        """
        if qparams is None:
            return None
        planned = self.user_plan.tensors.get(user_name)
        transform = self.user_plan.transforms.get(user_name)
        factor = (1.0,) if transform is None else matching_factors(transform.factor, array)
        return StoredForm(
            qparams if planned is None else qparams.changed(bits=planned.bits), factor
        )


def _rename_plan(plan: Plan, folded_factors: Mapping[str, FoldedFactor]) -> Plan:
    """Return `plan` with folded factors as transforms of the user's tensors.

    `folded_factors` is keyed by tensors of `plan`.
    """
    tensors, transforms = dict(plan.tensors), dict(plan.transforms)
    for name, (user_name, folded_factor) in folded_factors.items():
        tensors[user_name] = tensors.pop(name)
        factors = transforms.pop(name, Transform((1.0,))).factor
        transforms[user_name] = Transform(tuple(factor * folded_factor for factor in factors))
    return replace(plan, tensors=tensors, transforms=transforms)


class _StoredType(NamedTuple):
    """Shape, data type and stored form of a tensor in the last run."""

    shape: tuple[int, ...]
    dtype: np.dtype
    form: StoredForm | None


class PlannedSource:
    """A plan computed in float: the normalized graph with weights and tensors on its grid."""

    kind = "fake-quantized"
    has_isolated_layers = True

    def __init__(self, graph: ir.Model, plan: Plan) -> None:
        """Build the graph with the plan's fake quantization, and open a float session of it."""
        self.plan = plan
        self.graph: ir.Model = graph
        fake_quantized, self.user_names = build_fake_quantized_graph(graph, plan)
        self._session = Session(fake_quantized)
        self.inputs: Sequence[InputSpec] = self._session.inputs
        self._split_model: _SplitModel | None = None
        self._nodes = _producers_by_output(graph)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the serialized graph and the plan.

        Unpickling creates the source from them again.
        """
        return _unpickle_planned_source, (ir.to_bytes(self.graph), self.plan)

    def node(self, name: str) -> ir.Node | None:
        """Return the node that produces a tensor, or None for an input or unknown name."""
        return self._nodes.get(name)

    def run(self, feeds: Mapping[str, np.ndarray]) -> Iterator[Item]:
        """Run a batch in float with fake quantization.

        Yield (user's name, array, stored form or None). Planned tensors have a stored form; the
        float tensors between them have None.
        """
        for name, array, _ in self._session.tensors(feeds):
            if name in self.user_names:
                yield self.user_names[name], array, self._stored_form(self.user_names[name])

    def run_isolated(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Yield every planned tensor, computed from the values in `real` on the plan's grid.

        The graph is split at the tensors of `real`; their values, rounded and clipped to the plan's
        integers, are the inputs of the pieces. The split model is kept for the next call with the
        same tensors. All tensors of `real` must be in the plan. Yields (user's name, float array,
        stored form or None).
        """
        split_at = frozenset(real)
        if self._split_model is None or self._split_model.split_at != split_at:
            graph, input_names, output_names = split_at_tensors(self.graph, self.plan, split_at)
            runner = FloatRunner(graph, {*output_names}, splits_batches=True)
            self._split_model = _SplitModel(split_at, runner, input_names, output_names)
        inputs = dict(feeds)
        for name, user_name in self._split_model.input_names.items():
            form = self._stored_form(user_name)
            assert form is not None
            integers = form.quantize(real[user_name], np.dtype(np.int64))
            inputs[name] = form.q.real(integers).astype(np.float32)
        user_names = self._split_model.output_names
        return (
            (user_names[name], array, self._stored_form(user_names[name]))
            for name, array, _ in self._split_model.runner.run(inputs)
        )

    def _stored_form(self, user_name: str) -> StoredForm | None:
        """Return the stored form of a tensor in the plan; None if the plan keeps it in float."""
        q, transform = self.plan.tensors.get(user_name), self.plan.transforms.get(user_name)
        if q is None:
            return None
        return StoredForm(q, (1.0,) if transform is None else tuple(transform.factor))


class _SplitModel(NamedTuple):
    """A plan's graph split at tensors, for `PlannedSource.run_isolated`.

    The names map inputs and outputs of the split graph to the user's tensors.
    """

    split_at: frozenset[str]
    runner: FloatRunner
    input_names: Mapping[str, str]
    output_names: Mapping[str, str]


def _unpickle_planned_source(content: bytes, plan: Plan) -> PlannedSource:
    """Return the source of a plan for the graph that `ir.to_bytes` serialized."""
    return PlannedSource(ir.from_bytes(content), plan)


def load_dump(folder: Path) -> dict[str, tuple[np.ndarray, Affine | None]]:
    """Load {tensor: (all samples, mapped from disk; quantization parameters or None)} from a dump.

    Raises
    ------
    OSError, ValueError, KeyError, TypeError
        If the folder contains no dump, or a damaged one.
    """
    tensors = {}
    for entry in json.loads((folder / INDEX_FILE).read_text(encoding="utf-8")):
        try:
            array = np.load(folder / entry["file"], mmap_mode="r", allow_pickle=False)
        except (EOFError, SyntaxError, SystemError, TokenError) as error:  # a damaged header
            raise ValueError(f"{entry['file']} has no readable header") from error
        tensors[str(entry["name"])] = array, qparams_from_json(entry, array.dtype)
    return tensors


class DumpSource:
    """Stored tensors, with the samples concatenated on axis 0.

    Parameters
    ----------
    dump
        Folder written by `simulate --dump`, or (array, quantization parameters or None) by tensor,
        such as from a device or another simulator.
    """

    kind = "dump"
    has_isolated_layers = False
    graph = None
    inputs: Sequence[InputSpec] = ()

    def __init__(
        self, dump: str | os.PathLike[str] | Mapping[str, tuple[np.ndarray, Affine | None]]
    ) -> None:
        """Take (array, parameters or None) by tensor name, or load them from the folder of a dump.

        Raises
        ------
        DataError
            If the folder has no readable dump.
        """
        self._arrays: dict[str, tuple[np.ndarray, Affine | None]] = {}
        self._factors: dict[str, tuple[float, ...]] = {}
        self._position = 0
        if isinstance(dump, Mapping):
            self._arrays = dict(dump)
            return
        folder = Path(dump)
        try:
            self._arrays = load_dump(folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{folder} is not a dump with a readable {INDEX_FILE} ({error}); dump the model "
                "again"
            ) from error

    def renamed_for(self, source: IntegerSource) -> DumpSource:
        """Return the same dump with the user's names and the channel factors of an integer graph.

        Tensors without a user's name are left out. Reading starts at the first sample. This dump is
        not modified.
        """
        user_names = source.user_names
        dump = DumpSource(
            {user_names[name]: item for name, item in self._arrays.items() if name in user_names}
        )
        for name, transform in source.user_plan.transforms.items():
            dump._factors[name] = tuple(transform.factor)
        return dump

    def node(self, name: str) -> ir.Node | None:
        """Return None: a dump has no nodes."""
        return None

    def run(self, feeds: Mapping[str, np.ndarray]) -> Iterator[Item]:
        """Yield (name, array, stored form or None) of the next samples in the order of the dump.

        Their number is the largest length of the arrays of `feeds` on axis 0 (1 if all are
        scalars); the contents of `feeds` are not read. Raises DataError if the dump has fewer
        samples left.
        """
        count = max((len(array) for array in feeds.values() if array.ndim), default=1)
        start, self._position = self._position, self._position + count
        for name, (array, q) in self._arrays.items():
            if len(array) < self._position:
                raise DataError(f"the dump has only {len(array)} samples of '{name}'; pass --limit")
            samples = np.asarray(array[start : self._position])
            factor = self._factors.get(name, (1.0,))
            yield name, samples, None if q is None else StoredForm(q, factor)

    def run_isolated(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Yield nothing: a dump cannot be computed again."""
        return iter(())


def open_source_pair(float_model: object, quant_model: object) -> tuple[TensorSource, TensorSource]:
    """Open the sources of two models: (baseline, analysed model).

    Model inputs that were fixed to constants when the second model was quantized are fixed in the
    float model too. Raises DataError if an input has other shapes in both.
    """
    base, other = open_source(float_model), open_source(quant_model)
    if isinstance(base, FloatSource) and other.graph is not None:
        graph = apply_fixed_inputs(base.graph, other.graph)
        base = base if graph is base.graph else FloatSource(Session(graph))
    require_equal_inputs(base.inputs, other.inputs)
    return base, other


def open_source(model: object) -> TensorSource:
    """Open the source of a model, from which `compare` reads tensors.

    `model` is a model's path, graph or session, a `QuantizedModel`, a dump (a folder or a mapping),
    or a source, which is returned as it is. Integer models get a source of the simulator, others
    one of onnxruntime. Raises ConfigError for anything else.
    """
    if isinstance(model, FloatSource | IntegerSource | PlannedSource | DumpSource):
        return model
    if isinstance(model, QuantizedModel):
        return IntegerSource(model.session())
    if isinstance(model, str | os.PathLike) and Path(model).is_dir():
        return DumpSource(model)
    if isinstance(model, Mapping):
        return DumpSource(model)
    if not isinstance(model, str | os.PathLike | onnx.ModelProto | ir.Model | Session):
        raise ConfigError(
            f"a {type(model).__name__} cannot be compared; pass a model, a session or a dump"
        )
    session = model if isinstance(model, Session) else Session(model)
    return IntegerSource(session) if session.is_integer else FloatSource(session)
