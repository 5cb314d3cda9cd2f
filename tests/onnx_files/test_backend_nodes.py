"""onnx's own node tests as models: each is quantized, or refused in one line, on every platform."""

import re
import warnings

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.errors import LingerOnnxError
from tests.onnx_files.helpers import save

#: Names of onnx's test cases, behind ``test_``.
FAMILIES = (
    "add", "averagepool", "basic_conv", "batchnorm", "clip", "concat", "constant", "conv", "convtranspose",
    "depthtospace", "div", "dropout", "elu", "expand", "flatten", "gather", "gelu", "gemm", "globalaveragepool",
    "globalmaxpool", "gru", "hardsigmoid", "hardswish", "identity", "if", "instancenorm", "layer_normalization",
    "leakyrelu", "logsoftmax", "loop", "lstm", "matmul", "max", "maxpool", "mean", "min", "mul", "pow", "prelu",
    "qlinearconv", "quantizelinear", "reduce_max", "reduce_mean", "reduce_sum", "relu", "reshape", "resize", "rnn",
    "scan", "sequence", "shape", "sigmoid", "slice", "softmax", "spacetodepth", "split", "squeeze", "sub", "sum",
    "tanh", "tile", "transpose", "unsqueeze", "upsample", "where",
)  # fmt: skip

#: Cases that must come out as integer graphs on `generic`: a change that loses one is seen.
MUST = (
    "averagepool_2d_default", "averagepool_2d_strides", "basic_conv_with_padding", "conv_with_strides_no_padding",
    "globalaveragepool", "maxpool_2d_default", "maxpool_2d_same_upper", "relu",
)  # fmt: skip


@pytest.fixture(scope="module")
def cases():
    """Return onnx's node test cases of the families, by name; making them takes some ten seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx overflows on purpose
        from onnx.backend.test.case.node import collect_testcases

        found = {case.name.removeprefix("test_"): case for case in collect_testcases()}
    pattern = re.compile(rf"({'|'.join(FAMILIES)})(_|$)")
    return {name: case for name, case in found.items() if case.model is not None and pattern.match(name)}


def attempt(case, platform, path):
    """Quantize on the case's own input; return whether it was quantized."""
    names = [value.name for value in case.model.graph.input]
    given = case.data_sets[0][0]
    plain = all(isinstance(array, np.ndarray) for array in given)  # not a list of arrays, for a sequence
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # zeros, infinities and NaN in onnx's data
@pytest.mark.parametrize("platform", PLATFORMS)
def test_node_cases(cases, platform, tmp_path):
    """No other exception than the user's kind, whatever the case; the cases are dealt out to the platforms."""
    dealt = list(cases)[PLATFORMS.index(platform) :: len(PLATFORMS)]
    dealt += [name for name in MUST if platform == "generic" and name not in dealt]
    done = check({name: cases[name] for name in dealt}, platform, tmp_path / "case.onnx")
    assert len(dealt) > 500 // len(PLATFORMS)
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
