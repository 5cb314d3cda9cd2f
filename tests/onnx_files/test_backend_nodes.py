"""onnx's own node tests as models: each is quantized, or refused in one line, on every platform."""

import importlib
import pkgutil
import re
import warnings

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import LingerOnnxError
from tests.onnx_files.helpers import save

#: Names of onnx's test cases, behind ``test_``.
FAMILIES = (
    "add",
    "averagepool",
    "basic_conv",
    "batchnorm",
    "clip",
    "concat",
    "constant",
    "conv",
    "convtranspose",
    "depthtospace",
    "div",
    "dropout",
    "elu",
    "expand",
    "flatten",
    "gather",
    "gelu",
    "gemm",
    "globalaveragepool",
    "globalmaxpool",
    "gru",
    "hardsigmoid",
    "hardswish",
    "identity",
    "if",
    "instancenorm",
    "layer_normalization",
    "leakyrelu",
    "logsoftmax",
    "loop",
    "lstm",
    "matmul",
    "max",
    "maxpool",
    "mean",
    "min",
    "mul",
    "pow",
    "prelu",
    "qlinearconv",
    "quantizelinear",
    "reduce_max",
    "reduce_mean",
    "reduce_sum",
    "relu",
    "reshape",
    "resize",
    "rnn",
    "scan",
    "sequence",
    "shape",
    "sigmoid",
    "slice",
    "softmax",
    "spacetodepth",
    "split",
    "squeeze",
    "sub",
    "sum",
    "tanh",
    "tile",
    "transpose",
    "unsqueeze",
    "upsample",
    "where",
)

#: Cases that must come out as integer graphs on `generic`: a change that loses one is seen.
MUST = (
    "averagepool_2d_default",
    "averagepool_2d_strides",
    "basic_conv_with_padding",
    "conv_with_strides_no_padding",
    "globalaveragepool",
    "maxpool_2d_default",
    "maxpool_2d_same_upper",
    "relu",
)


@pytest.fixture(scope="module")
def cases():
    """Return onnx's node test cases of the families, by name; importing the module of an operator
    makes its cases.
    """
    from onnx.backend.test.case import node

    stems = tuple(
        family.replace("_", "") for family in (*FAMILIES, "pad")
    )  # with the cases named constant_pad
    modules = [
        name
        for _, name, _ in pkgutil.iter_modules(node.__path__)
        if name.replace("_", "").startswith(stems)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx overflows on purpose
        for name in modules:
            importlib.import_module(f"{node.__name__}.{name}")
    case_by_name = {case.name.removeprefix("test_"): case for case in node._NodeTestCases}
    pattern = re.compile(rf"({'|'.join(FAMILIES)})(_|$)")
    return {
        name: case
        for name, case in case_by_name.items()
        if case.model is not None and pattern.match(name)
    }


def describe_structure(model):
    """Return what two models share that differ in numbers only: nodes with attributes, types and
    ranks of tensors.
    """
    nodes = [
        (
            node.op_type,
            node.domain,
            len(node.output),
            *map(bool, node.input),
            *sorted(map(str, node.attribute)),
        )
        for node in model.graph.node
    ]
    types = [
        (
            value.type.WhichOneof("value"),
            value.type.tensor_type.elem_type,
            len(value.type.tensor_type.shape.dim),
        )
        for value in (*model.graph.input, *model.graph.output)
    ]
    return str((nodes, types, [(opset.domain, opset.version) for opset in model.opset_import]))


def attempt(case, platform, path):
    """Quantize on the case's own input; return whether it was quantized."""
    names = [value.name for value in case.model.graph.input]
    given = case.data_sets[0][0]
    plain = all(
        isinstance(array, np.ndarray) for array in given
    )  # not a list of arrays, for a sequence
    feeds = [dict(zip(names, given, strict=False))] if plain else None
    try:
        lo.quantize(save(case.model, path), feeds, platform=platform, effort="fast")
        reason = None
    except LingerOnnxError as error:
        reason = str(error)
    assert reason is None or re.fullmatch(r".*\w \w.*", reason)  # one line, of words
    return reason is None


def check(cases, platform, path):
    """Quantize the cases; return the names of those that were."""
    done = set()
    for name, case in cases.items():
        try:
            if attempt(case, platform, path):
                done.add(name)
        except BaseException:
            print(f"case {name}")
            raise
    return done


PLATFORMS = ("generic", "venus", "arcs", "venusA")


def test_plain_node_cases(cases, tmp_path):
    """Operators that every platform has are quantized."""
    assert check({name: cases[name] for name in MUST}, "generic", tmp_path / "case.onnx") == {*MUST}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # zeros, infinities and NaN in onnx's data
@pytest.mark.parametrize("platform", PLATFORMS)
def test_node_cases(cases, platform, tmp_path):
    """No other exception than the user's kind; one case of each structure is dealt out to the
    platforms.
    """
    assert len(cases) > 500
    distinct = list(
        {describe_structure(case.model): name for name, case in reversed(cases.items())}.values()
    )
    dealt = distinct[PLATFORMS.index(platform) :: len(PLATFORMS)]
    dealt += [name for name in MUST if platform == "generic" and name not in dealt]
    done = check({name: cases[name] for name in dealt}, platform, tmp_path / "case.onnx")
    assert len(dealt) > 400 // len(PLATFORMS)
    assert len(done) > len(dealt) // 3
    assert platform != "generic" or done.issuperset(MUST)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("platform", PLATFORMS)
def test_all_node_cases(cases, platform, tmp_path):
    """The same, all of them on every platform."""
    done = check(cases, platform, tmp_path / "case.onnx")
    assert len(cases) > 500
    assert len(done) > len(cases) // 3
    assert platform != "generic" or done.issuperset(MUST)
