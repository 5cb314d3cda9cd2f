"""Observation of a net after `init`: its calls, repeated on the integer graph.

The submodules of such a net are not called: the planned graph runs in their place. So the tensors
that tools look at are those of the integer graph, which gives what the net gives in evaluation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from ...common.files import temporary_folder
from ...ir import ir
from ...ir.name_mapping import get_module_name
from ...quantization import QuantizedModel
from ...runtime.session import Session
from ..exporter.cleanup import STACK_KEY
from ..exporter.float_export import export
from ..exporter.hooks import count_module_calls
from .module_wrappers import original_classes
from .quantized_net import QuantizedNet, get_qat_state

__all__ = ["count_float_calls", "get_quantized_model", "mirror_integer_calls"]


def get_quantized_model(net: object, example: Any = None) -> QuantizedModel | None:
    """Return the integer graph of a net after `init` with its current parameters and scales.

    Parameters
    ----------
    net
        Any object; the result is None unless it is a net after `init`.
    example
        Arguments of a call, if the net has not been called yet.

    Raises
    ------
    ConfigError
        If the net was not called yet, and there is no example.
    """
    if not isinstance(net, QuantizedNet):
        return None
    state = get_qat_state(net)
    if state.traced is None and example is not None:
        state.trace_on_example(net, example)
    return state.build_quantized_model()


def count_float_calls(net: nn.Module, args: Any) -> list[tuple[str, str, int]]:
    """Count how often one call of the float net calls each leaf module of a net after `init`.

    Arguments and result are those of `count_module_calls`.
    """
    with original_classes(net):
        return count_module_calls(net, args)


@contextlib.contextmanager
def mirror_integer_calls(
    net: QuantizedNet, on_session: Callable[[QuantizedModel], None], keep_stacks: bool = False
) -> Iterator[None]:
    """Run each call of a net after `init` within a context also on its integer graph.

    The graph has the parameters and scales of the first call; so the net should be in evaluation
    mode.

    Parameters
    ----------
    on_session
        Called with the quantized model, before the first run of its session.
    keep_stacks
        Whether the integer nodes note their place in the source, for which the float net is
        exported once more at the first call.
    """
    session: Session | None = None
    is_exporting = False  # the export calls the net again

    def hook(_module: nn.Module, args: Any, kwargs: Any, _output: Any) -> None:
        """Run the integer graph on the tensors of this call; its results are dropped.

        Calls that the trace itself makes are ignored.
        """
        nonlocal session, is_exporting
        state = get_qat_state(net)
        if state.traced is None or is_exporting:
            return
        if session is None:
            model = state.build_quantized_model()
            if keep_stacks:
                is_exporting = True
                try:
                    _note_stacks(model.graph, _export_with_stacks(net, args, kwargs))
                finally:
                    is_exporting = False
            session = model.runner
            on_session(model)
        feed = state.traced.get_feed(net, args, kwargs)
        session.run(None, {name: tensor.detach().cpu().numpy() for name, tensor in feed.items()})

    handle = net.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _export_with_stacks(net: QuantizedNet, args: Any, kwargs: Any) -> ir.Model:
    """Return the float graph of a net after `init` for this call, with the stacks of its nodes."""
    exporter = get_qat_state(net).settings.exporter
    with original_classes(net), temporary_folder() as folder:
        path = folder / "net.onnx"
        export(net, args, path, kwargs=kwargs or None, exporter=exporter, keep_stacks=True)
        return ir.load(path)


def _note_stacks(graph: ir.Model, float_graph: ir.Model) -> None:
    """Copy the stacks of float nodes, in place, to the integer nodes that come from them.

    A node comes from that with its name, else from the last one of its module. Others, such as the
    Quant of an input or the Dequant of an output, have that of a node next to them.
    """
    by_node: dict[str, str] = {}
    by_module: dict[str, str] = {}
    for node in float_graph.graph:
        if stack := node.metadata_props.get(STACK_KEY):
            by_node[str(node.name)] = by_module[get_module_name(node)] = stack
    for node in graph.graph:
        stack = by_node.get(str(node.name)) or by_module.get(get_module_name(node))
        if stack is None:
            neighbours = [ir.producer(node.inputs[0]), *(u.node for u in node.outputs[0].uses())]
            stacks = (by_node.get(str(other.name)) for other in neighbours if other is not None)
            stack = next(filter(None, stacks), None)
        if stack is not None:
            node.metadata_props[STACK_KEY] = stack
