"""`lo.torch.export`: write the float graph of a module, or the integer graph of a net after `init`.

The call has the keywords of `torch.onnx.export` and of the vendor's library. This module owns their
meaning for an integer graph and the error messages for unsupported ones. Integer graphs come from
`quantized_net`, float graphs from `float_export`.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import onnx
import torch
from torch import nn

from ...common.errors import ConfigError, ModelError, suggest_nearest
from ...common.escaping import escape_invisible, escape_lines
from ...common.files import created_folder, temporary_folder, write_text
from ...ir import ir
from ...ir.batch_axes import BATCH_AXES_KEY
from ...ir.folded_factors import FOLDED_FACTORS_KEY
from ...ir.lower_opset import lower_opset
from ...operators.integer_ops import DEQUANT
from ...quantization import QuantizedModel
from ..exporter.float_export import Exported
from ..exporter.float_export import export as export_float
from ..exporter.signature import resolve_dynamic_axes
from .quantized_net import QatState, QuantizedNet, get_qat_state

__all__ = ["export", "export_debug", "patch_torch_onnx_export"]

#: The oldest opset of integer graphs; the packer was made for opset 11 and 12.
_MIN_OPSET = 11

OutputTarget = str | os.PathLike[str] | IO[bytes]

#: Other keywords of torch's export -> the values that have no effect and are accepted.
_IGNORED_KEYWORDS: Mapping[str, tuple[Any, ...]] = {
    "do_constant_folding": (True,),
    "keep_initializers_as_inputs": (None, False),
    "training": (None, torch.onnx.TrainingMode.EVAL),
    "custom_opsets": (None, {}),
    "export_modules_as_functions": (False,),
    # options of torch's exporters, which do not write integer graphs
    **dict.fromkeys(
        ("autograd_inlining", "dynamo", "external_data", "optimize"), (None, True, False)
    ),
}


def export(
    net: nn.Module,
    args: Any,
    path: OutputTarget,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Mapping[str, Any] | None = None,
    opset_version: int | None = None,
    is_update_dequant: bool = True,
    is_scoped_info: bool = True,
    debug_dump: bool | str | os.PathLike[str] = False,
    export_params: bool = True,
    verbose: bool = False,
    operator_export_type: Any = None,
    **others: Any,
) -> QuantizedModel | Exported:
    """Write the integer graph of an initialised net, or the float graph of another module.

    Parameters
    ----------
    net
        The module.
    args
        Arguments of a call of `net`; they determine the shapes.
    path
        A path, or a writable binary file.
    input_names, output_names
        Names in the order of the tensors; by default those of the trace.
    dynamic_axes
        ``{"x": [0]}``, ``{"x": {0: "N"}}``, or a mixture. In an integer graph only the batch can be
        dynamic, and for a chip no axis can.
    opset_version
        Opset of the graph. The standard operators of an integer graph can be written in an older
        opset than that of its format, from 11 on; a newer one is refused.
    is_update_dequant
        False omits the Dequants: float outputs and float operators read integers then. (There are
        no Identity nodes to remove.)
    is_scoped_info
        False names nodes and inner tensors by operator and number instead of module path.
    debug_dump
        Folder for all intermediate graphs, or True for a folder next to `path`.
    export_params
        Must be True.
    verbose
        Whether to print the graph.
    operator_export_type
        None, ONNX or ONNX_ATEN_FALLBACK.
    others
        Further keywords of torch's export, with values that have no effect.

    Returns
    -------
    QuantizedModel or Exported
        The integer graph, or the exported float graph.

    Raises
    ------
    ConfigError
        If an argument is not supported.
    """
    _check_keywords(export_params, operator_export_type, others)
    folder = _dump_folder(path, debug_dump)
    if not isinstance(net, QuantizedNet):
        settings = {
            "input_names": input_names,
            "output_names": output_names,
            "dynamic_axes": dynamic_axes,
            "opset": opset_version,
            "scopes": is_scoped_info,
        }
        return _write_float(net, args, path, settings, folder, verbose)
    state = _ensure_traced(net, args)
    io_names = _map_io_names(state, input_names, output_names)
    model = _rename_io(state.build_quantized_model(), io_names)
    model = _apply_dynamic_axes(model, net, args, state, dynamic_axes, input_names)
    model = _apply_format_options(model, opset_version, is_scoped_info, is_update_dequant)
    if folder is not None:
        _dump(folder, state, model)
    _write(model, path, verbose)
    return model


class _OpsetError(ConfigError):
    """The integer graph cannot be written in the requested opset."""


def _ensure_traced(net: nn.Module, args: Any) -> QatState:
    """Return the quantization state of `net`, an initialised net; trace it with `args` if needed.

    Raises ConfigError if `net` is not initialised.
    """
    state = get_qat_state(net)
    if state.traced is None:
        state.trace_on_example(net, args)
    return state


def _apply_format_options(
    model: QuantizedModel, opset: int | None, has_scopes: bool, has_dequants: bool
) -> QuantizedModel:
    """Return `model` in an older opset, with or without module paths in names and Dequants.

    `opset` is the requested one, None for that of the graph; raises ConfigError if the graph cannot
    be written in it.
    """
    graph_opset = model.graph.opset_imports[""]
    if opset not in (None, graph_opset):
        model = _lower_opset(model, int(opset), graph_opset)
    if not has_scopes:
        model = _drop_scopes(model)
    if not has_dequants:
        model = _without_dequants(model)
    return model


def _lower_opset(model: QuantizedModel, opset: int, graph_opset: int) -> QuantizedModel:
    """Return `model`, whose graph has `graph_opset`, in the older `opset`.

    Raises ConfigError for a newer opset, one that is older than `_MIN_OPSET`, and where an operator
    has no form in it.
    """
    if not _MIN_OPSET <= opset < graph_opset:
        raise _OpsetError(
            f"opset_version {opset}: this integer graph has opset {graph_opset}, and can be "
            f"written in {_MIN_OPSET} or newer ones up to that; omit the keyword"
        )
    try:
        return replace(model, graph=lower_opset(model.graph, opset))
    except ModelError as error:
        raise _OpsetError(
            f"opset_version {opset}: {error}; omit the keyword, and the graph has opset "
            f"{graph_opset}"
        ) from error


def _check_keywords(
    export_params: bool, operator_export_type: Any, others: Mapping[str, Any]
) -> None:
    """Raise ConfigError for keywords of torch's export that are not supported.

    `export_params` must be True, `operator_export_type` None, ONNX or ONNX_ATEN_FALLBACK. `others`
    may have only keywords that are known to have no effect, with one of the values accepted for
    them.
    """
    if not export_params:
        raise ConfigError(
            "export_params=False: an integer graph always includes its weights, which the packer "
            "needs"
        )
    type_name = getattr(operator_export_type, "name", operator_export_type)
    if type_name not in (None, "ONNX", "ONNX_ATEN_FALLBACK"):  # no operator needs a fallback
        raise ConfigError(
            f"operator_export_type {type_name}: the packer does not support aten nodes; omit it or "
            "use ONNX"
        )
    for name, value in others.items():
        if name not in _IGNORED_KEYWORDS:
            raise ConfigError(
                "export has no keyword "
                f"'{name}'{suggest_nearest(name, [*_IGNORED_KEYWORDS, *_KEYWORDS])}"
            )
        if value not in _IGNORED_KEYWORDS[name]:
            raise ConfigError(f"{name}={value!r} is not supported; omit it")


_KEYWORDS = (
    "input_names",
    "output_names",
    "dynamic_axes",
    "opset_version",
    "is_update_dequant",
    "is_scoped_info",
    "debug_dump",
    "export_params",
    "verbose",
    "operator_export_type",
)


def export_debug(
    net: nn.Module, args: Any, path: OutputTarget, **settings: Any
) -> QuantizedModel | Exported:
    """Write the integer or float graph of `net` to `path`; another name for `export`.

    All arguments are passed on, and the result is that of `export`. Nothing is dumped in addition.
    """
    return export(net, args, path, **settings)


def patch_torch_onnx_export() -> None:
    """Make `torch.onnx.export` write the integer graph if it is called with an initialised net.

    Scripts for the chips call it after `init`. For other modules it is unchanged. A requested opset
    that the integer graph cannot be written in causes a warning.
    """
    torch_export = torch.onnx.export
    if getattr(torch_export, "knows_initialised", False):
        return

    @functools.wraps(torch_export)
    def dispatch(model: Any, args: Any = (), f: Any = None, *options: Any, **settings: Any) -> Any:
        """Export a net after `init` as an integer graph, and any other model with torch's export.

        Raises ConfigError for a net after `init` without a path or with more positional arguments.
        Warns if the integer graph cannot be written in `opset_version`, and returns None.
        """
        if not isinstance(model, QuantizedNet):
            return torch_export(model, args, f, *options, **settings)
        if options or f is None:
            raise ConfigError(
                "torch.onnx.export of a net after init: pass a path, and all further arguments by "
                "keyword"
            )
        requested_opset = settings.pop("opset_version", None)
        settings["verbose"] = bool(settings.get("verbose"))
        try:
            export(model, args, f, opset_version=requested_opset, **settings)
        except _OpsetError as error:
            warnings.warn(str(error), stacklevel=2)
            export(model, args, f, **settings)
        return None

    dispatch.knows_initialised = True  # type: ignore[attr-defined]
    torch.onnx.export = dispatch


# ---- files --------------------------------------------------------------------------------------


def _dump_folder(path: OutputTarget, debug_dump: bool | str | os.PathLike[str]) -> Path | None:
    """Return the folder for intermediate graphs, or None if `debug_dump` is false.

    True stands for the folder "<stem>_debug" next to the file `path`; raises ConfigError for an
    open file then.
    """
    if not debug_dump:
        return None
    if not isinstance(debug_dump, bool):
        return Path(debug_dump)
    if not isinstance(path, str | os.PathLike):
        raise ConfigError("debug_dump=True: an open file has no folder; pass a folder")
    return Path(path).with_name(f"{Path(path).stem}_debug")


def _write(model: QuantizedModel, path: OutputTarget, verbose: bool) -> None:
    """Write the integer graph to a path or open binary file, and print it if `verbose`.

    To a path the part for the packer is written too, if there is one.
    """
    if isinstance(path, str | os.PathLike):
        model.write(path)
    else:
        with temporary_folder() as folder:
            model.save(folder / "net.onnx")
            path.write((folder / "net.onnx").read_bytes())
    if verbose:
        print(escape_lines(onnx.printer.to_text(ir.to_proto(model.graph))))


def _write_float(
    net: nn.Module,
    args: Any,
    path: OutputTarget,
    settings: Mapping[str, Any],
    folder: Path | None,
    verbose: bool,
) -> Exported:
    """Write the float graph of a module to a path or open binary file, and print it if `verbose`.

    Returns the record of the export.

    Parameters
    ----------
    settings
        Keywords of `float_export.export`: names, dynamic axes, opset and scopes.
    folder
        Folder for intermediate graphs, or None.
    """
    with temporary_folder() as temporary:
        target = path if isinstance(path, str | os.PathLike) else temporary / "net.onnx"
        exported = export_float(net, args, target, debug_dump=folder, **settings)
        for line in exported.data_reads:
            warnings.warn(escape_invisible(line), stacklevel=3)
        if not isinstance(path, str | os.PathLike):
            path.write(exported.path.read_bytes())
        if verbose:
            proto = onnx.load(exported.path, load_external_data=False)
            print(escape_lines(onnx.printer.to_text(proto)))
    return exported


def _dump(folder: Path, state: QatState, model: QuantizedModel) -> None:
    """Write the intermediate graphs of an integer export into `folder`, which is created.

    These are 1_float.onnx, 2_normalised.onnx (current weights), 3_plan.json and 4_integer.onnx. The
    net must have been traced.
    """
    assert state.traced is not None
    with created_folder(folder, parents=True):
        ir.save(state.traced.planned.prepared.original, folder / "1_float.onnx")
        ir.save(state.traced.qat_module.export_float_graph(), folder / "2_normalised.onnx")
        write_text(folder / "3_plan.json", model.plan.to_json())
        ir.save(model.graph, folder / "4_integer.onnx")


# ---- names --------------------------------------------------------------------------------------


def _map_io_names(
    state: QatState, inputs: Sequence[str] | None, outputs: Sequence[str] | None
) -> dict[str, str]:
    """Return name in the trace -> requested name, for inputs and outputs whose name changes.

    `inputs` and `outputs` are the requested names in order, None to keep all. Raises ConfigError
    for too few or many names, and for duplicate or empty ones.
    """
    assert state.traced is not None
    traced_outputs = [name for name in state.traced.outputs if name is not None]
    names: dict[str, str] = {}
    for kind, traced_names, new_names in (
        ("input", list(state.traced.inputs), inputs),
        ("output", traced_outputs, outputs),
    ):
        if new_names is None:
            continue
        if len(new_names) != len(traced_names):
            raise ConfigError(
                f"{len(new_names)} {kind} names for {len(traced_names)} {kind}s "
                f"({', '.join(traced_names)})"
            )
        names.update(zip(traced_names, new_names, strict=True))
    if len(set(names.values())) < len(names) or not all(names.values()):
        raise ConfigError(
            f"names of inputs and outputs must differ and not be empty: {', '.join(names.values())}"
        )
    return {old: new for old, new in names.items() if old != new}


def _rename_io(model: QuantizedModel, names: Mapping[str, str]) -> QuantizedModel:
    """Return `model` with inputs and outputs renamed; `names` maps old names to new ones.

    Names of other tensors are ignored. Raises ConfigError if a new name is that of another tensor.
    """
    if not names:
        return model
    reserved_names = ir.get_tensor_names(model.graph) - names.keys()
    conflicts = reserved_names.intersection(names.values())
    if conflicts:
        raise ConfigError(
            f"'{min(conflicts)}' is the name of another tensor of the graph; choose another name"
        )
    io_names = _get_io_names(model)
    io_renames = {old: new for old, new in names.items() if old in io_names}
    return replace(model, graph=_rename_graph(model.graph, io_renames, {}))


def _get_io_names(model: QuantizedModel) -> set[str]:
    """Return the names of the inputs and outputs of the integer graph of `model`."""
    graph = model.graph.graph
    return {str(value.name) for value in (*graph.inputs, *graph.outputs)}


def _rename_graph(
    graph: ir.Model, tensors: Mapping[str, str], nodes: Mapping[str, str]
) -> ir.Model:
    """Return a copy of `graph` with renamed tensors and nodes, also in its metadata.

    Both mappings are old -> new; names may be exchanged.
    """
    copy = graph.clone()
    temporary: dict[str, str] = {}
    if not tensors.keys().isdisjoint(tensors.values()):
        # A new name is also an old one: rename in two steps.
        temporary = {old: ir.unique_tensor_name(copy, f"{old}_aside") for old in tensors}
        ir.rename(copy, temporary, {})
    ir.rename(copy, {temporary.get(old, old): new for old, new in tensors.items()}, nodes)
    for key in (BATCH_AXES_KEY, FOLDED_FACTORS_KEY, "lingeronnx.transforms"):
        if key in copy.metadata_props:
            entries = json.loads(copy.metadata_props[key])
            renamed = {tensors.get(name, name): value for name, value in entries.items()}
            copy.metadata_props[key] = json.dumps(renamed)
    return copy


def _drop_scopes(model: QuantizedModel) -> QuantizedModel:
    """Return `model` with nodes named "<operator>_<number>" instead of by their module path.

    Numbers count from 0 for each operator; inner tensors are named "<node>_output_<index>". Names
    of graph inputs and outputs stay.
    """
    io_names = _get_io_names(model)
    tensors: dict[str, str] = {}
    nodes: dict[str, str] = {}
    counts = Counter[str]()
    for node in model.graph.graph:
        label = f"{node.op_type}_{counts[node.op_type]}"
        counts[node.op_type] += 1
        nodes[str(node.name)] = label
        for index, value in enumerate(node.outputs):
            if value.name and value.name not in io_names:
                tensors[str(value.name)] = f"{label}_output_{index}"
    return replace(model, graph=_rename_graph(model.graph, tensors, nodes))


def _without_dequants(model: QuantizedModel) -> QuantizedModel:
    """Return `model` without its nodes from integers to floats (Dequant).

    Their consumers read the integers then. A graph output keeps its name, unless the integers are
    an output themselves.
    """
    copy = model.graph.clone()
    for node in list(copy.graph):
        if node.op_type != DEQUANT.name or node.domain != DEQUANT.domain:
            continue
        source, result = ir.require_input(node), node.outputs[0]
        output_name = None
        if result.is_graph_output() and not source.is_graph_output():
            output_name = str(result.name)
        result.replace_all_uses_with(source, replace_graph_outputs=True)
        copy.graph.remove(node, safe=True)
        if output_name is not None:
            source.name = output_name
    return replace(model, graph=copy)


# ---- dynamic axes -------------------------------------------------------------------------------


def _apply_dynamic_axes(
    model: QuantizedModel,
    net: nn.Module,
    args: Any,
    state: QatState,
    dynamic_axes: Mapping[str, Any] | None,
    names: Sequence[str] | None,
) -> QuantizedModel:
    """Return `model` with the batch of inputs and outputs named, or fixed to that of `args`.

    Parameters
    ----------
    args
        Arguments of a call; their shapes are compared with the trace.
    dynamic_axes
        Tensor -> axes or axis -> label, as for torch's export; None returns `model` unchanged.
    names
        New names of the inputs, or None for those of the trace.

    Raises
    ------
    ConfigError
        If an axis cannot be dynamic in an integer graph.
    DataError
        If the shapes of `args` do not fit the trace.
    """
    traced = state.traced
    assert traced is not None
    feed = traced.get_feed(net, args, {})
    if dynamic_axes is None:
        return model
    new_names = dict(zip(traced.inputs, names or traced.inputs, strict=True))
    inputs = {new_names[name]: tensor for name, tensor in feed.items()}
    output_ranks = {
        str(value.name): torch.empty([1] * len(ir.get_shape(value) or ()))
        for value in model.graph.graph.outputs
    }
    axes, output_labels, *_ = resolve_dynamic_axes(dynamic_axes, inputs, output_ranks)
    batch_axes = {new_names[name]: axis for name, axis in traced.batch_axes.items()}
    _check_dynamic_axes(model, axes, batch_axes)
    shapes = {name: tensor.shape for name, tensor in inputs.items()}
    graph = _set_batch_dimensions(model.graph, axes, output_labels, shapes, batch_axes)
    return replace(model, graph=graph)


def _check_dynamic_axes(
    model: QuantizedModel,
    axes: Mapping[str, Mapping[int, str]],
    batch_axes: Mapping[str, int | None],
) -> None:
    """Raise ConfigError if an axis other than the batch is dynamic, or any axis for a chip.

    `axes` is tensor -> axis -> label, `batch_axes` tensor -> batch axis or None.
    """
    for name, labels in axes.items():
        if labels and model.platform.single_sample:
            raise ConfigError(
                f"dynamic axes: graphs for {model.platform.name} contain one sample, and all sizes "
                "are fixed; omit dynamic_axes"
            )
        for axis in labels:
            if axis != batch_axes.get(name):
                raise ConfigError(
                    f"dynamic axes: axis {axis} of '{name}' is fixed in an integer graph; only the "
                    "batch can be dynamic"
                )


def _set_batch_dimensions(
    graph: ir.Model,
    axes: Mapping[str, Mapping[int, str]],
    output_labels: Mapping[str, Mapping[int, str]],
    shapes: Mapping[str, Sequence[int]],
    batch_axes: Mapping[str, int | None],
) -> ir.Model:
    """Return a copy of `graph` with the batch dimension of inputs and outputs named or fixed.

    Parameters
    ----------
    axes
        Input name -> axis -> label of the dynamic axes.
    output_labels
        Output name -> axis -> label of the dynamic axes.
    shapes
        Shapes of the inputs, for a batch without a label.
    batch_axes
        Batch axis of each input, or None.
    """
    copy = graph.clone()
    for value in copy.graph.inputs:
        name, axis = str(value.name), batch_axes.get(str(value.name))
        if axis is not None:
            dims: list[Any] = list(ir.get_shape(value) or ())
            dims[axis] = axes.get(name, {}).get(axis, shapes[name][axis])
            value.shape = ir.Shape(dims)
    batch = _get_batch_dimension(axes, shapes, batch_axes)
    for value in copy.graph.outputs:
        labels = output_labels.get(str(value.name), {})
        dims = [batch if dim is None else dim for dim in ir.get_shape(value) or ()]
        value.shape = ir.Shape([labels.get(axis, dim) for axis, dim in enumerate(dims)])
    return copy


def _get_batch_dimension(
    axes: Mapping[str, Mapping[int, str]],
    shapes: Mapping[str, Sequence[int]],
    batch_axes: Mapping[str, int | None],
) -> str | int:
    """Return the label of the first dynamic batch axis, else the batch size of the first input.

    `axes` is input -> axis -> label, `batch_axes` input -> batch axis or None. Without any batch
    axis it is 1.
    """
    for name, labels in axes.items():
        axis = batch_axes.get(name)
        if axis is not None and labels.get(axis):
            return labels[axis]
    for name, axis in batch_axes.items():
        if axis is not None:
            return shapes[name][axis]
    return 1
