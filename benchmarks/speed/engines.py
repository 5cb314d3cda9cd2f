"""The engines that are compared.

The integer simulator, onnxruntime with float32 and with its own int8 graphs, and OpenVINO with the
QDQ file of the simulator's graph (where it is installed: the extra "bench").
onnxruntime's int8 graphs are what its `quantize_static` makes of the model (QuantizeLinear and
DequantizeLinear, scales per tensor) after its own preparation, which folds batch normalisation:
"u8s8" with unsigned activations and signed weights, "s8s8" with both signed. Where it cannot, the
reason takes the engine's place.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .nets import Net, random_feed

__all__ = [
    "ONNXRUNTIME_VARIANTS",
    "integer_graph",
    "RIVALS",
    "limit_threads",
    "make_calls",
    "make_onnxruntime_int8",
    "make_openvino_call",
    "write_qdq",
]

ONNXRUNTIME_VARIANTS = ("float32", "u8s8", "s8s8")
_MAX_QDQ_NODES = 2000  # 3,397 took OpenVINO 2026.4 15 s to compile
RIVALS = (*ONNXRUNTIME_VARIANTS, "OpenVINO")


def integer_graph(net: Net) -> Any:
    """Return what lingeronnx makes of the net, and its multiply-accumulates for a sample."""
    import lingeronnx as lo
    from lingeronnx.ir import ir
    from lingeronnx.operators.macs import count_macs

    made = lo.quantize(
        ir.from_proto(net.model),
        net.calib,
        platform=net.platform,
        effort="fast",
        state=dict(net.state) or None,
    )
    return made.graph, sum(count_macs(node) for node in made.float_graph.graph)


class _Reader:
    def __init__(self, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        """Return the next feed, None after the last."""
        return next(self._feeds, None)


def make_onnxruntime_int8(net: Net) -> dict[str, bytes | str]:
    """Return onnxruntime's int8 graphs as bytes, or in one line why there is none."""
    import onnxruntime as ort
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.getLogger().setLevel(logging.ERROR)
    ort.set_default_logger_severity(3)
    found: dict[str, bytes | str] = {}
    feeds = [net.sample(1)] if net.feed else [random_feed(net.model, seed) for seed in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        source, prepared, target = (
            Path(folder) / f"{name}.onnx" for name in ("float", "prepared", "int8")
        )
        onnx.save(net.model, source)
        for name, activations in (("u8s8", QuantType.QUInt8), ("s8s8", QuantType.QInt8)):
            try:
                if not prepared.exists():
                    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
                quantize_static(
                    str(prepared),
                    str(target),
                    _Reader(feeds),
                    quant_format=QuantFormat.QDQ,
                    activation_type=activations,
                    weight_type=QuantType.QInt8,
                )
                found[name] = target.read_bytes()
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    return found


@contextmanager
def limit_threads(threads: int) -> Any:
    """Let the simulator build programs for so many threads."""
    before = os.environ.get("LINGERONNX_THREADS")
    os.environ["LINGERONNX_THREADS"] = str(threads)
    try:
        yield
    finally:
        if before is None:
            del os.environ["LINGERONNX_THREADS"]
        else:
            os.environ["LINGERONNX_THREADS"] = before


def make_calls(
    graph: Any, models: Mapping[str, bytes | str], threads: int
) -> dict[str, Callable[[Mapping[str, np.ndarray]], object]]:
    """Return for every engine the call that takes a feed.

    "simulator" and those of `models` that there are.
    """
    import onnxruntime as ort

    import lingeronnx as lo

    session = lo.Session(graph)
    taken = [spec.name for spec in session.inputs]
    found: dict[str, Callable[[Mapping[str, np.ndarray]], object]] = {
        "simulator": lambda feed: session.run(None, {name: feed[name] for name in taken})
    }
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = (
        threads,
        1,
        3,
    )
    for name, model in models.items():
        if isinstance(model, bytes):
            rival = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            inputs = [value.name for value in rival.get_inputs()]
            found[name] = lambda feed, rival=rival, inputs=inputs: rival.run(
                None, {k: feed[k] for k in inputs}
            )
    return found


def write_qdq(graph: Any) -> bytes | str:
    """Return the QDQ file of an integer graph, or in one line why there is none."""
    import lingeronnx as lo
    from lingeronnx.ir import ir

    if importlib.util.find_spec("openvino") is None:
        return "openvino is not installed: pip install 'lingeronnx[bench]'"
    try:
        converted = lo.convert(graph, "qdq").graph
    except lo.LingerOnnxError as error:
        return str(error).splitlines()[0][:100]
    count = len(list(converted.graph))
    if count > _MAX_QDQ_NODES:
        return f"{count:,} nodes, a recurrent layer step by step, which OpenVINO compiles for long"
    return ir.to_bytes(converted)


def make_openvino_call(
    model: bytes, threads: int, feed: Mapping[str, np.ndarray]
) -> Callable[[], object] | str:
    """Return a call of OpenVINO on `feed`, or in one line why it cannot run.

    The file is compiled for the shapes of the feed, as static shapes give it more choice.
    """
    import openvino

    core = openvino.Core()
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    try:
        network = core.read_model(model)
        names = [value.get_any_name() for value in network.inputs]
        network.reshape({name: list(feed[name].shape) for name in names})
        request = core.compile_model(network, "CPU", settings).create_infer_request()
        arrays = {name: feed[name] for name in names}
        request.infer(arrays, share_inputs=True)
    except RuntimeError as error:
        return " ".join(str(error).split())[-100:]
    return lambda: request.infer(arrays, share_inputs=True)
