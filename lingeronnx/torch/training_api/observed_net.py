"""Observation of a net after `init`: its calls, repeated on the integer graph.

The submodules of such a net are not called: the planned graph runs in their place. So the tensors
that tools look at are those of the integer graph, which gives what the net gives in evaluation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from ...quantization import QuantizedModel
from ...runtime.session import Session
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
    net: QuantizedNet, on_session: Callable[[QuantizedModel], None]
) -> Iterator[None]:
    """Run each call of a net after `init` within a context also on its integer graph.

    The graph has the parameters and scales of the first call; so the net should be in evaluation
    mode.

    Parameters
    ----------
    on_session
        Called with the quantized model, before the first run of its session.
    """
    session: Session | None = None

    def hook(_module: nn.Module, args: Any, kwargs: Any, _output: Any) -> None:
        """Run the integer graph on the tensors of this call; its results are dropped.

        Calls that the trace itself makes are ignored.
        """
        nonlocal session
        state = get_qat_state(net)
        if state.traced is None:
            return
        if session is None:
            model = state.build_quantized_model()
            session = model.runner
            on_session(model)
        feed = state.traced.get_feed(net, args, kwargs)
        session.run(None, {name: tensor.detach().cpu().numpy() for name, tensor in feed.items()})

    handle = net.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
