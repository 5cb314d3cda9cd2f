"""`lo.torch.export`: the float graph of a module, or after `init` the integer graph, with the keywords people know.

Owns: what the keywords mean for an integer graph, and the reason where one is refused. The graph
itself comes from `quantized_net`, a float one from `float_export`.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import onnx
import torch
from torch import nn

from ...errors import ConfigError, suggest_nearest
from ...files import created_folder, temporary_folder, write_text
from ...flow import QuantizedModel
from ...formats import DEQUANT
from ...graph import ir
from ...graph.batch_axes import BATCH_AXES_KEY
from ..exporter.float_export import Exported
from ..exporter.float_export import export as export_float
from ..exporter.signature import resolve_dynamic_axes
from .quantized_net import QatState, QuantizedNet, get_qat_state

__all__ = ["export", "export_debug", "patch_torch_onnx_export"]

OutputTarget = str | os.PathLike[str] | IO[bytes]

#: Other keywords of torch's export -> the values that change nothing here.
_IGNORED_KEYWORDS: Mapping[str, tuple[Any, ...]] = {
    "do_constant_folding": (True,),
    "keep_initializers_as_inputs": (None, False),
    "training": (None, torch.onnx.TrainingMode.EVAL),
    "custom_opsets": (None, {}),
    "export_modules_as_functions": (False,),
    # how torch's exporters write, which are not asked for an integer graph
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
    """Write the integer graph of an initialised `net`, or the float graph of another module, and return what it is.

    Parameters
    ----------
    args
        What `net` is called with; its sizes.
    path
        A path, or a binary file that can be written to.
    input_names, output_names
        In the order of the tensors; default those that the trace found.
    dynamic_axes
        ``{"x": [0]}``, ``{"x": {0: "N"}}`` or both mixed. In an integer graph only the batch can be
        dynamic, and on a chip nothing is.
    opset_version
        Of a float graph; an integer graph has the one of its format.
    is_update_dequant
        False leaves the Dequants out: float outputs and float operators then read integers. (There
        are no Identities to be taken out.)
    is_scoped_info
        False calls nodes and inner tensors by operator and number instead of module path.
    debug_dump
        True or a folder: every intermediate graph is kept, True in a folder beside `path`.
    verbose
        Print the graph.
    others
        Further keywords of torch's export, as far as their values change nothing.

    Raises
    ------
    ConfigError
        For what cannot be honoured, one reason each.
    """
    _check_keywords(export_params, operator_export_type, others)
    folder = _dump_folder(path, debug_dump)
    if not isinstance(net, QuantizedNet):
        names = {
            "input_names": input_names,
            "output_names": output_names,
            "dynamic_axes": dynamic_axes,
        }
        settings = {**names, "opset": opset_version, "scopes": is_scoped_info}
        return _write_float(net, args, path, settings, folder, verbose)
    state = _ensure_traced(net, args)
    result = _rename_io(
        state.build_quantized_model(), _map_io_names(state, input_names, output_names)
    )
    result = _apply_dynamic_axes(result, net, args, state, dynamic_axes, input_names)
    result = _apply_form_options(result, opset_version, is_scoped_info, is_update_dequant)
    if folder is not None:
        _dump(folder, state, result)
    _write(result, path, verbose)
    return result


def _ensure_traced(net: nn.Module, args: Any) -> QatState:
    """Return the state of `net`, which is traced on `args` where it was not yet."""
    state = get_qat_state(net)
    if state.traced is None:
        positional = args if isinstance(args, tuple) else () if isinstance(args, dict) else (args,)
        state.trace(net, positional, args if isinstance(args, dict) else {})
    return state


def _apply_form_options(
    model: QuantizedModel, opset: int | None, scoped: bool, dequants: bool
) -> QuantizedModel:
    """Return `model` with module paths in names or without, with Dequants or without.

    ConfigError for its opset.
    """
    result = model if scoped else _drop_scopes(model)
    result = result if dequants else _without_dequants(result)
    written = result.graph.opset_imports[""]
    if opset not in (None, written):
        raise ConfigError(
            f"opset_version {opset}: this integer graph has opset {written}; leave it out"
        )
    return result


def _check_keywords(
    export_params: bool, operator_export_type: Any, others: Mapping[str, Any]
) -> None:
    """Raise ConfigError for keywords of torch's export that cannot be honoured."""
    if not export_params:
        raise ConfigError(
            "export_params=False: an integer graph is its weights; the packer takes no graph "
            "without"
        )
    kind = getattr(operator_export_type, "name", operator_export_type)
    if kind not in (None, "ONNX", "ONNX_ATEN_FALLBACK"):  # nothing has to fall back
        raise ConfigError(
            f"operator_export_type {kind}: the packer reads no aten node; leave it out, or ONNX"
        )
    for name, value in others.items():
        if name not in _IGNORED_KEYWORDS:
            raise ConfigError(
                "export has no keyword "
                f"'{name}'{suggest_nearest(name, [*_IGNORED_KEYWORDS, *_KEYWORDS])}"
            )
        if value not in _IGNORED_KEYWORDS[name]:
            raise ConfigError(f"{name}={value!r} cannot be honoured; leave it out")


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
    """Do what `export` does: its other name."""
    return export(net, args, path, **settings)


def patch_torch_onnx_export() -> None:
    """Let `torch.onnx.export` write the integer graph of an initialised net.

    Of any other module it does what it did.
    Scripts for these chips call it behind `init`. Of an opset that the integer graph does not have,
    a warning tells.
    """
    own = torch.onnx.export
    if getattr(own, "knows_initialised", False):
        return

    @functools.wraps(own)
    def through(model: Any, args: Any = (), f: Any = None, *rest: Any, **settings: Any) -> Any:
        if not isinstance(model, QuantizedNet):
            return own(model, args, f, *rest, **settings)
        if rest or f is None:
            raise ConfigError(
                "torch.onnx.export of a net after init: give a path, and everything behind it by "
                "keyword"
            )
        wanted = settings.pop("opset_version", None)
        written = export(model, args, f, **{**settings, "verbose": bool(settings.get("verbose"))})
        assert isinstance(written, QuantizedModel)
        if wanted not in (None, opset := written.graph.opset_imports[""]):
            warnings.warn(
                f"opset_version {wanted}: the integer graph has opset {opset}", stacklevel=2
            )
        return None

    through.knows_initialised = True  # type: ignore[attr-defined]
    torch.onnx.export = through


# ---- files -------------------------------------------------------------------------------------------------------


def _dump_folder(path: OutputTarget, wanted: bool | str | os.PathLike[str]) -> Path | None:
    if not wanted:
        return None
    if not isinstance(wanted, bool):
        return Path(wanted)
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(
            "debug_dump=True: an open file has no folder beside it; give debug_dump a folder"
        )
    return Path(path).with_name(f"{Path(path).stem}_debug")


def _write(model: QuantizedModel, path: OutputTarget, verbose: bool) -> None:
    """Write the graph, and to a path also the part for the packer, where there is one.

    Print it if `verbose`.
    """
    if isinstance(path, str | os.PathLike):
        model.write(path)
    else:
        with temporary_folder() as folder:
            model.save(folder / "net.onnx")
            path.write((folder / "net.onnx").read_bytes())
    if verbose:
        print(onnx.printer.to_text(ir.to_proto(model.graph)))


def _write_float(
    net: nn.Module,
    args: Any,
    path: OutputTarget,
    settings: Mapping[str, Any],
    folder: Path | None,
    verbose: bool,
) -> Exported:
    with temporary_folder() as place:
        home = path if isinstance(path, str | os.PathLike) else place / "net.onnx"
        exported = export_float(net, args, home, debug_dump=folder, **settings)
        if not isinstance(path, str | os.PathLike):
            path.write(exported.path.read_bytes())
        if verbose:
            print(onnx.printer.to_text(onnx.load(exported.path, load_external_data=False)))
    return exported


def _dump(folder: Path, state: QatState, model: QuantizedModel) -> None:
    """Write the float graph, the normalised one with its weights, the plan and the integer graph."""
    assert state.traced is not None
    with created_folder(folder, parents=True):
        ir.save(state.traced.planned.original, folder / "1_float.onnx")
        ir.save(state.traced.bridge.export_float_graph(), folder / "2_normalised.onnx")
        write_text(folder / "3_plan.json", model.plan.to_json())
        ir.save(model.graph, folder / "4_integer.onnx")


# ---- names -------------------------------------------------------------------------------------------------------


def _map_io_names(
    state: QatState, inputs: Sequence[str] | None, outputs: Sequence[str] | None
) -> dict[str, str]:
    """Return {name in the trace: the name that is wanted}."""
    assert state.traced is not None
    found: dict[str, str] = {}
    own = {
        "input": list(state.traced.inputs),
        "output": [n for n in state.traced.outputs if n is not None],
    }
    for kind, wanted in (("input", inputs), ("output", outputs)):
        if wanted is None:
            continue
        if len(wanted) != len(own[kind]):
            raise ConfigError(
                f"{len(wanted)} {kind} names for {len(own[kind])} {kind}s ({', '.join(own[kind])})"
            )
        found.update(zip(own[kind], wanted, strict=True))
    if len({*found.values()}) < len(found) or not all(found.values()):
        raise ConfigError(
            f"names of inputs and outputs must differ and not be empty: {', '.join(found.values())}"
        )
    return {old: new for old, new in found.items() if old != new}


def _rename_io(model: QuantizedModel, names: Mapping[str, str]) -> QuantizedModel:
    """Return `model` with other names for inputs and outputs."""
    if not names:
        return model
    ends = {str(v.name) for v in (*model.graph.graph.inputs, *model.graph.graph.outputs)}
    taken = ir.get_tensor_names(model.graph) - names.keys()
    if both := taken.intersection(names.values()):
        raise ConfigError(
            f"'{min(both)}' is the name of another tensor of the graph; choose another"
        )
    return replace(
        model,
        graph=_rename_graph(
            model.graph, {old: new for old, new in names.items() if old in ends}, {}
        ),
    )


def _rename_graph(
    graph: ir.Model, tensors: Mapping[str, str], nodes: Mapping[str, str]
) -> ir.Model:
    """Return a copy of `graph` with other names, in what its metadata say of tensors as well."""
    copy = ir.clone(graph)
    both = set(tensors.values()) & set(
        tensors
    )  # an old name may be another's new one: by way of names of no one
    aside = {old: ir.unique_tensor_name(copy, f"{old}_aside") for old in tensors} if both else {}
    if aside:
        ir.rename(copy, aside, {})
    ir.rename(copy, {aside.get(old, old): new for old, new in tensors.items()}, nodes)
    for key in (BATCH_AXES_KEY, "lingeronnx.transforms"):
        if key in copy.metadata_props:
            held = json.loads(copy.metadata_props[key])
            copy.metadata_props[key] = json.dumps(
                {tensors.get(name, name): value for name, value in held.items()}
            )
    return copy


def _drop_scopes(model: QuantizedModel) -> QuantizedModel:
    """Return `model` with nodes and inner tensors called by operator and number."""
    ends = {str(v.name) for v in (*model.graph.graph.inputs, *model.graph.graph.outputs)}
    tensors, nodes, count = dict[str, str](), dict[str, str](), dict[str, int]()
    for node in model.graph.graph:
        number = count[node.op_type] = count.get(node.op_type, -1) + 1
        nodes[str(node.name)] = f"{node.op_type}_{number}"
        for index, value in enumerate(node.outputs):
            if value.name and value.name not in ends:
                tensors[str(value.name)] = f"{node.op_type}_{number}_output_{index}"
    return replace(model, graph=_rename_graph(model.graph, tensors, nodes))


def _without_dequants(model: QuantizedModel) -> QuantizedModel:
    """Return `model` without its Dequants: what read them reads the integers."""
    copy = ir.clone(model.graph)
    for node in [
        node
        for node in copy.graph
        if node.op_type == DEQUANT.name and node.domain == DEQUANT.domain
    ]:
        source, result = ir.require_input(node), node.outputs[0]
        name = str(result.name)
        given = result.is_graph_output() and not source.is_graph_output()
        ir.replace_all_uses(result, source)
        copy.graph.remove(node, safe=True)
        if given:
            source.name = name
    return replace(model, graph=copy)


# ---- dynamic axes ------------------------------------------------------------------------------------------------


def _apply_dynamic_axes(
    model: QuantizedModel,
    net: nn.Module,
    args: Any,
    state: QatState,
    given: Mapping[str, Any] | None,
    names: Sequence[str] | None,
) -> QuantizedModel:
    """Return `model` with the sizes that `given` leaves open.

    ConfigError where an integer graph fixes one of them.
    """
    traced = state.traced
    assert traced is not None
    feed = traced.get_feed(net, args, {})
    if given is None:
        return model
    renamed = dict(zip(traced.inputs, names or traced.inputs, strict=True))
    inputs = {renamed[name]: tensor for name, tensor in feed.items()}
    graph = model.graph.graph
    ranks = {str(v.name): torch.empty([1] * len(ir.get_shape(v) or ())) for v in graph.outputs}
    axes, labels, _ = resolve_dynamic_axes(given, inputs, ranks)
    batch = {renamed[name]: spec_axis for name, spec_axis in traced.batch_axes.items()}
    for name, free in axes.items():
        for axis in free:
            if model.platform.single_sample:
                raise ConfigError(
                    f"dynamic axes: graphs for {model.platform.name} hold one sample, and all "
                    "sizes are fixed; leave "
                    "dynamic_axes out"
                )
            if axis != batch.get(name):
                raise ConfigError(
                    f"dynamic axes: axis {axis} of '{name}' is fixed in an integer graph; only the "
                    "batch can be dynamic"
                )
    return replace(
        model,
        graph=_open_batch_axes(
            model.graph, axes, labels, {n: t.shape for n, t in inputs.items()}, batch
        ),
    )


def _open_batch_axes(
    graph: ir.Model,
    axes: Mapping[str, Mapping[int, str]],
    labels: Mapping[str, Mapping[int, str]],
    sizes: Mapping[str, Sequence[int]],
    batch: Mapping[str, int | None],
) -> ir.Model:
    """Return a copy of `graph` in which the batch has the name that is wanted, or the size where no name is."""
    copy = ir.clone(graph)
    for value in copy.graph.inputs:
        name, axis = str(value.name), batch.get(str(value.name))
        if axis is not None:
            dims: list[Any] = list(ir.get_shape(value) or ())
            dims[axis] = axes.get(name, {}).get(axis, sizes[name][axis])
            value.shape = ir.make_shape(dims)
    open_name = next(
        (
            free[k]
            for name, free in axes.items()
            if (k := batch.get(name)) is not None and k in free
        ),
        None,
    )
    count = next((sizes[name][axis] for name, axis in batch.items() if axis is not None), 1)
    for value in copy.graph.outputs:
        dims = list(ir.get_shape(value) or ())
        own = labels.get(str(value.name), {})
        value.shape = ir.make_shape(
            [own.get(i, (open_name or count) if d is None else d) for i, d in enumerate(dims)]
        )
    return copy
