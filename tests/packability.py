"""What the packability tests judge: the nets, and `verdict` of a file as `quantize` writes it with
what it prints.
"""

import functools
import importlib.util
import shlex
from pathlib import Path

import numpy as np

from lingeronnx.ir import ir
from tests import nets
from tests.artefacts import quantized
from tests.packer import judge

HERE = Path(__file__).resolve()
MODELS = HERE.parents[1] / "models"
SHARED = HERE.parents[2] / "shared"
CHIPS = ("venus", "arcs", "venusA")
SAMPLES = 16

#: model of ../shared/models -> its loader in ../shared/data/loaders.py
LOADERS = {
    "mlperf_tiny_resnet8": "resnet8_calib",
    "mlperf_tiny_resnet8_fix": "resnet8_calib",
    "cifar_resnet_bn": "resnet_bn_calib",
    "cifar_mobilenetv2": "mobilenetv2_calib",
    "cifar_mobilenetv2_uneven": "mobilenetv2_calib",
    "mlperf_tiny_vww": "vww_calib",
    "mlperf_tiny_kws": "kws_calib",
    "mlperf_tiny_ad": "ad_calib",
    "fsdd_dscnn": "dscnn_calib",
    "fsdd_lstm": "sequence_calib",
    "fsdd_gru": "sequence_calib",
    "fsdd_attention": "sequence_calib",
    "fsdd_attention_op13": "sequence_calib",
}


def stress(seed):
    """Return a seeded random chain of layers, shortcuts, concatenations and pools of many sizes."""
    rng = np.random.default_rng(seed)
    net = nets.Net(int(rng.integers(1, 7)), 16, int(rng.integers(9, 20)), seed=seed)
    x, channels = "x", net.shape[0]
    for _ in range(int(rng.integers(3, 7))):
        kind = rng.choice(["conv", "depthwise", "block", "cat", "bn", "relu6", "wide"])
        k = int(rng.choice([1, 2, 3, 5]))
        pads = [int(p) for p in rng.integers(0, k, 4)]
        gain = float(rng.choice([0.1, 1.0, 6.0]))
        if kind == "conv":
            wide = int(rng.integers(2, 12))
            x = net.conv(
                x, (wide, channels, k, k), pads=pads, gain=gain, bias=bool(rng.integers(2))
            )
            channels = wide
        elif kind == "depthwise":
            x = net.node(
                "Relu", net.conv(x, (channels, 1, 3, 3), group=channels, pads=[1] * 4, gain=gain)
            )
        elif kind == "block":
            inner = net.node("Relu", net.conv(x, (4, channels, 1, 1), gain=gain))
            x = net.node(
                "Relu", net.node("Add", net.conv(inner, (channels, 4, 3, 3), pads=[1] * 4), x)
            )
        elif kind == "cat":
            x = net.node(
                "Concat", x, net.conv(x, (3, channels, 3, 3), pads=[1] * 4, gain=gain), axis=1
            )
            channels += 3
        elif kind == "bn":
            four = [net.const(rng.uniform(0.5, 1.5, channels).astype(np.float32)) for _ in range(4)]
            x = net.node("BatchNormalization", net.node("Relu", x), *four)
        elif kind == "relu6":
            x = net.relu6(net.conv(x, (channels, channels, 1, 1), gain=gain))
        else:
            x = net.conv(x, (channels, channels, 1, 1), strides=[2, 1], gain=gain)
    pool = net.node("GlobalAveragePool", net.conv(x, (6, channels, 3, 3), pads=[1] * 4))
    return net.graph(net.linear(net.node("Flatten", pool), (6, 3), out="y"))


def conv1d():
    """One-dimensional layers and the reshaping around them."""
    net = nets.Net(4, 20, seed=8)
    c = net.node("Relu", net.conv("x", (6, 4, 3), pads=[1, 1]))
    u = net.node("Unsqueeze", c, net.const(np.array([3])))
    p = net.node("MaxPool", u, kernel_shape=[2, 1], strides=[2, 1])
    net.conv(net.node("Squeeze", p, net.const(np.array([3]))), (3, 6, 5), out="y")
    return net.graph("y")


ZOO = {net.__name__: net for net in nets.NETS} | {"conv1d": conv1d}
ZOO |= {f"stress{seed}": functools.partial(stress, seed) for seed in range(12)}


def load_own_model(name):
    """Return (model, real samples) of a model of models/."""
    if name == "shapes_detector":
        pictures, _ = module(MODELS / "drawn_shapes.py").draw(SAMPLES, 1)
        return ir.load(MODELS / f"{name}.onnx"), {"pictures": pictures}
    samples = np.load(MODELS / "digits_calib.npz")["input"][:SAMPLES]
    return ir.load(MODELS / f"{name}.onnx"), {"input": samples}


def module(path):
    """Return the module of a file that no package holds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@functools.cache
def shared_feeds(name):
    """Return the first real samples of a model of ../shared/models."""
    loaders = module(SHARED / "data" / "loaders.py")
    feeds, _ = getattr(loaders, LOADERS[name])()[0]
    return {key: array[:SAMPLES] for key, array in feeds.items()}


@functools.cache
def quantize_net(name, platform):
    """Return `quantize` with defaults of a net of the zoo ("zoo/NAME"), of models/ or of
    ../shared/models.
    """
    group, name = name.split("/")
    if group == "zoo":
        model = ZOO[name]()
        return quantized(model, platform, nets.samples(model, SAMPLES))
    if group == "models":
        model, feeds = load_own_model(name)
        return quantized(model, platform, feeds)
    return quantized(ir.load(SHARED / "models" / f"{name}.onnx"), platform, shared_feeds(name))


@functools.cache
def verdict(name, platform):
    """Return (report, Verdict) of the written chip part with the arguments of the printed
    command.
    """
    result = quantize_net(name, platform)
    return result.report, evaluate_result(result, platform)


def evaluate_result(result, platform):
    """Return the Verdict on what `quantize` returned."""
    part = result.graph if result.chip is None else result.chip
    return judge(ir.to_proto(part), platform, get_printed_arguments(result.report))


def get_printed_arguments(report):
    """Return the arguments of the printed command as shell words."""
    return shlex.split(report.packer)[1:]
