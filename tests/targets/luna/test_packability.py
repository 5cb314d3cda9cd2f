"""Law: the output of `quantize` packs with the printed command, runs, and is right by tests/packer.

Each net is quantized with defaults for each chip and must be chip-ready with all its MACs in
integers. `READY_NOT` names the exceptions with their reasons.
"""

import copy

import onnx
import pytest

from lingeronnx.ir import ir
from tests import nets, packability
from tests.artefacts import quantized
from tests.case_selection import mark_rest_slow
from tests.packer import judge

SEQUENCES = ("models/digits_attention", "shared/fsdd_attention", "shared/fsdd_attention_op13")

#: (net, platform) -> why it cannot be chip-ready there
READY_NOT = {
    (name, "venus"): "softmax is not measured on venus and stays on the host" for name in SEQUENCES
}
#: random nets hold layers that no chip takes; of these the judge only asks that the report says so
RANDOM = tuple(f"zoo/stress{seed}" for seed in range(12))

#: nets whose outputs the host decodes by products, and the fraction of MACs that the chip computes
DECODED = {"models/shapes_detector": 0.999}

OWN = sorted(f"models/{path.stem}" for path in packability.MODELS.glob("*.onnx"))
ZOO = [f"zoo/{name}" for name in packability.ZOO]
SHARED = [f"shared/{name}" for name in packability.LOADERS]
#: of these, those that are quantized in about a second
QUICK = ("shared/mlperf_tiny_kws", "shared/fsdd_dscnn", "shared/fsdd_lstm", *SEQUENCES[1:])


def check(name, platform):
    """Assert that one net passes the gate on one chip."""
    report, verdict = packability.verdict(name, platform)
    if (name, platform) in READY_NOT or (name in RANDOM and not report.chip_ready):
        assert not report.chip_ready
        assert report.float_nodes
        assert all(node.why for node in report.float_nodes)
        return
    assert report.chip_ready
    assert name in RANDOM or report.integer_macs >= DECODED.get(name, 1)
    assert verdict.problems == []
    assert verdict.warnings == []
    assert verdict.packs
    assert verdict.right


@pytest.mark.sweep
@pytest.mark.parametrize("platform", packability.CHIPS)
@pytest.mark.parametrize("name", mark_rest_slow(len(OWN) + 3, [*OWN, *ZOO]))
def test_gate(name, platform):
    """Our own models, the small nets of the tests, random chains."""
    check(name, platform)


@pytest.mark.slow
@pytest.mark.parametrize("platform", packability.CHIPS)
@pytest.mark.parametrize("name", QUICK)
def test_gate_of_small_trained_models(name, platform):
    """Trained models, where they lie beside the repository."""
    test_gate_of_trained_models(name, platform)


@pytest.mark.deep
@pytest.mark.parametrize("platform", packability.CHIPS)
@pytest.mark.parametrize("name", [name for name in SHARED if name not in QUICK])
def test_gate_of_trained_models(name, platform):
    """The larger trained models, where they lie beside the repository."""
    if not (packability.SHARED / "models").is_dir():
        pytest.skip("no models beside the repository")
    check(name, platform)


@pytest.mark.slow
@pytest.mark.parametrize("platform", packability.CHIPS)
def test_random_nets_are_mostly_ready(platform):
    """The gate would be empty if nothing were chip-ready."""
    assert sum(packability.verdict(name, platform)[0].chip_ready for name in RANDOM) >= 6


def test_conv1d_stays_one_dimensional():
    """Layers of one dimension are no two-dimensional ones in disguise, where the chip has them."""
    assert packability.verdict("zoo/conv1d", "venus")[0].layers["Conv1dInt"] == 2


# ---- the judge itself can fail -----------------------------------------------------------------


def measured_form(net, platform):
    """Return the graph of a net with names that the packer accepts."""
    result = quantized(net(), platform, effort="fast")
    model = ir.to_proto(result.graph if result.chip is None else result.chip)
    graph = model.graph
    for value in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        value.name = value.name.replace("@", "_at_")
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [text.replace("@", "_at_") for text in names]
    return model


@pytest.fixture(scope="module")
def good():
    """Return graphs for venus that are right and between them hold the operators below."""
    zoo = (nets.plain, nets.residual, nets.depthwise, nets.concat, nets.branches)
    models = [measured_form(net, "venus") for net in zoo]
    assert [judge(model, "venus", "-p venus").problems for model in models] == [[]] * len(models)
    ops = set()
    for model in models:
        ops |= {node.op_type for node in model.graph.node}
    assert ops >= {
        "Conv2dInt",
        "LinearInt",
        "MaxPool",
        "AvgPool2dInt",
        "iqAdd",
        "iqMul",
        "iqCat",
        "Relu",
        "Transpose",
    }
    return models


def spoil(op_type, attribute, value):
    """Return a change of one attribute of the first such node (value None: drop it)."""

    def change(model):
        node = next(n for n in model.graph.node if n.op_type == op_type)
        old = next(a for a in node.attribute if a.name == attribute)
        node.attribute.remove(old)
        if value is not None:
            node.attribute.append(onnx.helper.make_attribute(attribute, value))

    return change


def retype(index, dtype):
    """Return a change of the type of input `index` of the first convolution that has one."""

    def change(model):
        node = next(
            n for n in model.graph.node if n.op_type == "Conv2dInt" and len(n.input) > index
        )
        tensor = next(t for t in model.graph.initializer if t.name == node.input[index])
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(
                onnx.numpy_helper.to_array(tensor).astype(dtype), tensor.name
            )
        )

    return change


def rename(op_type, new_op_type):
    """Return a change of the first such node to another operator."""

    def change(model):
        next(n for n in model.graph.node if n.op_type == op_type).op_type = new_op_type

    return change


def call(text):
    """Return a change of the name of the first tensor between two nodes."""

    def change(model):
        old = model.graph.node[1].output[0]
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [text if name == old else name for name in names]

    return change


SPOILED = {
    "kernel": (spoil("Conv2dInt", "kernel_shape", [7, 7]), "kernel [7, 7]"),
    "stride": (spoil("Conv2dInt", "strides", [3, 1]), "stride [3, 1]"),
    "stride above kernel": (spoil("Conv2dInt", "strides", [4, 1]), "above the kernel"),
    "pads": (spoil("Conv2dInt", "pads", [4, 0, 0, 0]), "above the kernel"),
    "dilation": (spoil("Conv2dInt", "dilations", [1, 2]), "dilation"),
    "scale": (spoil("Conv2dInt", "scale_w", 3.0), "no power of 2"),
    "read": (spoil("Conv2dInt", "scale_x", 2.0**9), "that was written at"),
    "platform": (spoil("Conv2dInt", "platform_quant", None), "platform_quant is missing"),
    "weight": (retype(1, "int16"), "not int8"),
    "bias": (retype(2, "int16"), "not int32"),
    "operator": (rename("Relu", "Sigmoid"), "no such operator"),
    "clip": (rename("Relu", "Clip"), "not on venus"),
    "add": (spoil("iqAdd", "scale_o", 2.0**15), "written at"),
    "mul": (spoil("iqMul", "scale_o", 2.0**28), "written at"),
    "cat": (spoil("iqCat", "scale_x_1", None), "scale_x_1 is missing"),
    "pool scale": (spoil("AvgPool2dInt", "scale_o", 2.0), "written at"),
    "pool form": (spoil("AvgPool2dInt", "ceil_mode", None), "ceil_mode is missing"),
    "dequant": (spoil("Dequant", "scale_o", 0.5), "written at"),
    "constants": (lambda model: model.graph.ClearField("initializer"), "no earlier node wrote"),
    "order": (
        lambda model: model.graph.node.insert(0, model.graph.node.pop()),
        "no earlier node wrote",
    ),
    "scale name": (call("Scale_1"), "begins with 'Scale'"),
    "buffer name": (call("dma_buffer1"), "takes the place of a prefetch buffer"),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", SPOILED)
def test_the_judge_can_fail(name, good):
    """Each kind of mistake is found in some graph that was right before."""
    change, text = SPOILED[name]
    problems = []
    for model in good:
        spoiled = copy.deepcopy(model)
        try:
            change(spoiled)
        except StopIteration:
            continue
        problems += judge(spoiled, "venus", "-d False -p venus").problems
    assert any(text in line for line in problems), problems


ARGUMENTS = {
    "-p venusA": "must be one of",
    "-p arcs": "is not the platform",
    "-p venus -m t0": "not name:place",
    "-p venus -m t0:share_mem": "is not psram",
    "-p venus -r 100": "bytes needed",
    "-p venus -m x:flash": "lies in flash",
}


@pytest.mark.parametrize("args", ARGUMENTS)
def test_arguments_can_fail(args, good):
    """A wrong argument list is found, shell words or one string."""
    assert any(ARGUMENTS[args] in line for line in judge(good[0], "venus", args).problems)
    assert judge(good[0], "venus", args) == judge(good[0], "venus", args.split())
