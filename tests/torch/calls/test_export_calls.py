"""`lo.torch.export` after `lo.torch.init`: each keyword is honoured, or refused in one line."""

import io

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError, DataError, ModelError
from lingeronnx.ir import ir
from lingeronnx.ir.lower_opset import lower_opset
from lingeronnx.torch.exporter.exporters import suppress_output

QValue = lo.torch.QuantMode.QValue


def initialised(platform):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    x = torch.randn(5, 3, 4, 4)
    lo.torch.init(net, mode=QValue, out_bits=8, platform=platform, example_inputs=x)
    return net.eval(), x


@pytest.fixture(scope="module")
def generic():
    return initialised("generic")


@pytest.fixture(scope="module")
def venus():
    return initialised("venus")


def written(net, x, **settings):
    """Return the graph that `export` writes to an open file."""
    file = io.BytesIO()
    lo.torch.export(net, x, file, **settings)
    return onnx.load_from_string(file.getvalue())


def sizes(value):
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def same(model, net, x, tmp_path):
    """Assert that the graph computes what the net does."""
    onnx.save(model, tmp_path / "same.onnx")
    with torch.no_grad():
        want = net(x).numpy()
    np.testing.assert_array_equal(lo.Session(tmp_path / "same.onnx")(x.numpy()), want)


@pytest.mark.parametrize(
    "axes, batch",
    (
        (None, "N"),
        ({"x": [0]}, "N"),
        ({"x": {0: "batch"}}, "batch"),
        ({"x": {0: "batch"}, "y": [0]}, "batch"),
        ({}, 5),
    ),
)
def test_dynamic_axes_in_three_forms(generic, axes, batch, tmp_path):
    """Lists, dicts, both mixed; {} for none."""
    net, x = generic
    model = written(net, x, input_names=["x"], output_names=["y"], dynamic_axes=axes)
    assert sizes(model.graph.input[0]) == [batch, 3, 4, 4]
    assert sizes(model.graph.output[0]) == [batch, 2]
    if batch != 5:
        same(model, net, torch.cat([x, x]), tmp_path)
    same(model, net, x, tmp_path)


@pytest.mark.parametrize(
    "axes, told",
    (
        (
            {"input": [2]},
            "axis 2 of 'input' is fixed in an integer graph; only the batch can be dynamic",
        ),
        ({"inptu": [0]}, "no input or output 'inptu'; did you mean 'input'?"),
        ({"input": "N"}, "pass a list of axes or a dict"),
    ),
)
def test_dynamic_axes_that_are_not(generic, venus, axes, told):
    """Sizes are fixed, on a chip the batch too."""
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")):
        written(*generic, dynamic_axes=axes)
    with pytest.raises(ConfigError, match="graphs for venus contain one sample"):
        written(*venus, dynamic_axes={"input": {0: "N"}})


class Sum(nn.Module):
    """Two inputs of one size."""

    def forward(self, x, y):
        return torch.relu(x + y)


@pytest.mark.parametrize(
    "axes, names",
    (
        ({"x": {0: "N", 3: "W"}, "y": [0, 3]}, ["N", "W"]),
        ({"x": [0], "y": {0: "B"}}, ["B"]),
    ),
)
def test_axes_that_two_inputs_share(axes, names, tmp_path):
    """Mixed forms of dynamic_axes: a size without a name is that of the other input."""
    x = torch.randn(2, 3, 4, 5)
    path = tmp_path / "sum.onnx"
    done = lo.torch.export(
        Sum(), (x, x), path, input_names=["x", "y"], output_names=["z"], dynamic_axes=axes
    )
    for shape in (*done.inputs.values(), *done.outputs.values()):
        assert [size for size in shape if isinstance(size, str)] == names
    assert any("only if sizes of its inputs are equal" in note for note in done.notes)


def test_names_of_inputs_and_outputs(generic, tmp_path):
    """In the order of the tensors; they may change places."""
    net, x = generic
    model = written(net, x, input_names=["image"], output_names=["input"])
    assert [v.name for v in (*model.graph.input, *model.graph.output)] == ["image", "input"]
    same(model, net, x, tmp_path)
    with pytest.raises(ConfigError, match="2 input names for 1 inputs"):
        written(net, x, input_names=["a", "b"])
    with pytest.raises(ConfigError, match="names of inputs and outputs must differ"):
        written(net, x, input_names=["a"], output_names=["a"])
    with pytest.raises(ConfigError, match="'0.weight' is the name of another tensor"):
        written(net, x, input_names=["0.weight"])


def test_is_scoped_info(generic, tmp_path):
    """False: operators and numbers instead of module paths, and the same integers."""
    net, x = generic
    assert any("/0/" in node.name for node in written(net, x).graph.node)
    model = written(net, x, is_scoped_info=False)
    names = [node.name for node in model.graph.node]
    assert "Conv2dInt_0" in names
    assert not any("/" in name for node in model.graph.node for name in (node.name, *node.output))
    same(model, net, x, tmp_path)


def test_is_update_dequant(venus, tmp_path):
    """False leaves the Dequants out; the repair of old graphs puts them back."""
    net, x = venus
    model = written(net, x, is_update_dequant=False, output_names=["y"])
    assert "Dequant" not in {node.op_type for node in model.graph.node}
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.INT8
    with torch.no_grad():
        want = net(x).numpy()
    onnx.save(model, tmp_path / "bare.onnx")
    got = lo.Session(tmp_path / "bare.onnx")(x.numpy())
    scale = lo.torch.export(net, x, io.BytesIO(), output_names=["y"]).plan.tensors["output"].scale
    np.testing.assert_array_equal(got / np.float32(scale), want)


def test_debug_dump(venus, tmp_path):
    """Every intermediate graph, beside the file or in a folder; an open file has none beside it."""
    net, x = venus
    lo.torch.export_debug(net, x, tmp_path / "net.onnx", debug_dump=True)
    found = sorted(path.name for path in (tmp_path / "net_debug").iterdir())
    assert found == ["1_float.onnx", "2_normalised.onnx", "3_plan.json", "4_integer.onnx"]
    written(net, x, debug_dump=tmp_path / "other")
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == found
    with pytest.raises(ConfigError, match="debug_dump=True: an open file has no folder"):
        written(net, x, debug_dump=True)


def test_path_and_open_file_hold_the_same(venus, tmp_path):
    """A path or a file-like object; export_debug is the same call."""
    net, x = venus
    lo.torch.export(net, x, tmp_path / "net.onnx")
    file = io.BytesIO()
    lo.torch.export_debug(net, x, file)
    assert file.getvalue() == (tmp_path / "net.onnx").read_bytes()


def test_verbose_prints_the_graph(venus, capsys):
    written(*venus, verbose=True)
    assert "Conv2dInt" in capsys.readouterr().out


@pytest.mark.parametrize(
    "settings, told",
    (
        (
            {"export_params": False},
            "export_params=False: an integer graph always includes its weights",
        ),
        (
            {"operator_export_type": "ONNX_ATEN"},
            "operator_export_type ONNX_ATEN: the packer does not support aten nodes",
        ),
        (
            {"opset_version": 9},
            "opset_version 9: this integer graph has opset 12, and can be written in 11 or newer",
        ),
        ({"do_constant_folding": False}, "do_constant_folding=False is not supported"),
        (
            {"keep_initializers_as_inputs": True},
            "keep_initializers_as_inputs=True is not supported",
        ),
        ({"training": torch.onnx.TrainingMode.TRAINING}, "is not supported; omit it"),
        (
            {"opset_versoin": 12},
            "export has no keyword 'opset_versoin'; did you mean 'opset_version'?",
        ),
    ),
)
def test_refused(venus, settings, told):
    """One line each, with the reason."""
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")) as error:
        written(*venus, **settings)
    assert "\n" not in str(error.value)


def test_honoured_as_they_are(venus):
    """What says what is done anyway."""
    kind = torch.onnx.OperatorExportTypes.ONNX_ATEN_FALLBACK
    more = {
        "do_constant_folding": True,
        "training": torch.onnx.TrainingMode.EVAL,
        "keep_initializers_as_inputs": None,
    }
    assert written(
        *venus, opset_version=12, operator_export_type=kind, export_params=True, **more
    ).graph.node


def test_torchs_own_export_writes_the_integer_graph(venus, tmp_path):
    """Behind init it is our export; of any other module torch's own. A warning tells of an opset
    that it cannot have.
    """
    net, x = venus
    with pytest.warns(UserWarning, match="opset_version 13: this integer graph has opset 12"):
        torch.onnx.export(
            net,
            x,
            tmp_path / "net.onnx",
            export_params=True,
            opset_version=13,
            input_names=["image"],
        )
    want = written(net, x, input_names=["image"])
    got = onnx.load(tmp_path / "net.onnx")
    assert [node.op_type for node in got.graph.node] == [node.op_type for node in want.graph.node]
    assert got.graph.input[0].name == "image"
    with pytest.raises(ConfigError, match="all further arguments by keyword"):
        torch.onnx.export(net, x)
    with suppress_output():
        torch.onnx.export(
            nn.Linear(2, 2).eval(), (torch.zeros(1, 2),), tmp_path / "plain.onnx", dynamo=False
        )
    assert [node.op_type for node in onnx.load(tmp_path / "plain.onnx").graph.node] == ["Gemm"]


class Mixed(nn.Module):
    """Layers between operators whose forms changed after opset 12, which stay in float."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.LayerNorm(6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        x = nn.functional.hardswish(self.conv(x))
        first, second = torch.split(torch.softmax(x, 1), [2, 4], 1)
        x = torch.cat([second, first], 1).mean((2, 3))
        return torch.log_softmax(self.fc(self.norm(x).unsqueeze(1)).squeeze(1), 1)


def test_the_opset_of_old_scripts(tmp_path):
    """`opset_version=12, out_bits=None`: float operators between the layers have older forms."""
    torch.manual_seed(0)
    net, x = Mixed(), torch.randn(2, 3, 4, 4)
    lo.torch.init(net, (nn.Conv2d, nn.Linear), out_bits=None)
    net(x)
    net.eval()
    new = lo.torch.export(net, x, tmp_path / "new.onnx")
    assert new.graph.opset_imports[""] == 18
    lo.torch.export_debug(
        net, x, tmp_path / "old.onnx", input_names=["x"], output_names=["y"], opset_version=12
    )
    old = onnx.load(tmp_path / "old.onnx")
    assert {entry.domain: entry.version for entry in old.opset_import}[""] == 12
    for node in old.graph.node:
        if not node.domain:
            onnx.checker.check_node(node, checker_context(12))
    expected = lo.Session(tmp_path / "new.onnx")(x.numpy())
    actual = lo.Session(tmp_path / "old.onnx")(x.numpy())
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
    torch.onnx.export(net, x, tmp_path / "patched.onnx", opset_version=12)
    assert len(onnx.load(tmp_path / "patched.onnx").graph.node) == len(old.graph.node)


def checker_context(opset):
    """Return the context of onnx's checker for nodes of `opset`."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 6, {"": opset}
    return context


def test_an_operator_without_an_older_form():
    """The message names the node, and says what the graph has."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[1,2,4,4] x, float[1,4,4,2] at) => (float[1,2,4,4] y) {
            [sample] y = GridSample (x, at)
        }"""
    )
    with pytest.raises(ModelError, match="GridSample sample cannot be written in opset 12: the op"):
        lower_opset(ir.as_model(model), 12)


def test_other_sizes(generic):
    """The graph has the sizes of the trace; the batch may differ."""
    net, x = generic
    written(net, x[:2])
    for call in (lambda x: written(net, x), net):
        with pytest.raises(
            DataError, match=r"'input' is \[5, 3, 6, 6\]; the net was traced with \['N', 3, 4, 4\]"
        ):
            call(torch.randn(5, 3, 6, 6))


@pytest.mark.slow
def test_before_init_it_is_the_float_graph(tmp_path):
    """A module that was not initialised is exported as it is; one that was not traced is traced on
    the arguments.
    """
    net, x = nn.Sequential(nn.Linear(3, 2)), torch.randn(2, 3)
    done = lo.torch.export(
        net, x, tmp_path / "net.onnx", input_names=["x"], opset_version=13, is_scoped_info=False
    )
    assert (done.inputs, done.opset) == ({"x": ["N", 3]}, 13)
    assert written(net, x).graph.node[0].op_type == "Gemm"
    lo.torch.init(net, mode=QValue, out_bits=8)
    assert "LinearInt" in {node.op_type for node in written(net, x).graph.node}
