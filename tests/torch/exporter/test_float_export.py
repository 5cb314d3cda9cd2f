"""Export of torch modules: what the file holds, and that the module and older files stay as they
were.
"""

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError, ModelError
from lingeronnx.ir import ir
from lingeronnx.torch.checkpoint.parameters import state_dict
from lingeronnx.torch.exporter.exporters import _get_scope_name, _module_path
from tests.artefacts import folder_of
from tests.case_selection import mark_rest_slow
from tests.torch.models import (
    CNN_NODES,
    Attention,
    Cnn,
    Rnn,
    Tagger,
    Unsupported,
    seeded,
)

EXPORTERS = ("dynamo", "torchscript")
#: dynamo takes a second for each model.
each = pytest.mark.parametrize(
    "exporter", (pytest.param("dynamo", marks=pytest.mark.slow), "torchscript")
)


def run(path, **feed):
    """Return the outputs of the file in onnxruntime."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.asarray(value) for name, value in feed.items()})


def export_shared(kind, shape, exporter):
    """Return the path of a file, exported once for all tests that only read it: a seeded model, a
    batch of 1.
    """

    def build(folder):
        lo.export(seeded(kind), torch.ones(1, *shape), folder / "model.onnx", exporter=exporter)

    return folder_of("exported", [kind.__name__, shape, exporter], build) / "model.onnx"


def names(path):
    """Return the names of the nodes."""
    return [node.name for node in onnx.load(path).graph.node]


def sizes(values):
    """Return the sizes of graph inputs or outputs."""
    return {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values
    }


@pytest.fixture
def out(tmp_path):
    return tmp_path / "model.onnx"


# ---- what the file holds -----------------------------------------------------------------------------------------


@each
def test_cnn(exporter, out):
    """Nodes by module path, initializers by state_dict name, normalisation unfolded; the same from
    both.
    """
    model = seeded(Cnn)
    done = lo.export(model, torch.randn(2, 2, 6, 6), out, exporter=exporter)
    proto = onnx.load(out)
    onnx.checker.check_model(proto, full_check=True)
    pool = {
        "/ReduceMean": "/GlobalAveragePool",
        "/Reshape": "/Flatten",
    }  # the exporters' choice of operator
    assert [pool.get(name, name) for name in names(out)] == CNN_NODES
    parameters = {name: t for name, t in model.state_dict().items() if "num_batches" not in name}
    held = {
        t.name: onnx.numpy_helper.to_array(t)
        for t in proto.graph.initializer
        if not t.name.startswith("/")
    }
    assert list(held) == list(parameters)  # in the order of use, here that of the module
    assert all(np.array_equal(held[name], tensor.numpy()) for name, tensor in parameters.items())
    assert all(n.output[0] == f"{n.name}_output_0" for n in proto.graph.node[:-1])
    assert not [
        n for n in proto.graph.node if n.op_type in ("Identity", "Dropout", "Constant", "Shape")
    ]
    assert not any(n.metadata_props or n.doc_string for n in proto.graph.node)
    assert sizes(proto.graph.input) == {"image": ["N", 2, 6, 6]}
    assert sizes(proto.graph.output) == {"output": ["N", 3]}
    assert (done.nodes, done.exporter, done.opset) == (len(proto.graph.node), exporter, 18)
    assert done.parameters == sum(t.numel() for t in parameters.values())
    assert done.difference < 1e-5
    x = torch.randn(7, 2, 6, 6)
    assert np.allclose(run(out, image=x)[0], model.eval()(x).detach(), atol=1e-5)


@each
def test_equal_parameters_stay_apart(exporter, out):
    """A new model has many equal parameters, zeros and ones; each keeps its own initializer."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.BatchNorm2d(2), nn.BatchNorm2d(2))
    lo.export(model, torch.randn(1, 1, 4, 4), out, exporter=exporter)
    held = {t.name for t in onnx.load(out).graph.initializer}
    assert held == {name for name in model.state_dict() if "num_batches" not in name}


@pytest.mark.sweep
@pytest.mark.parametrize("kind", (nn.LSTM, nn.GRU))
@pytest.mark.parametrize(
    "settings", ({}, {"bidirectional": True, "num_layers": 2}, {"bias": False}), ids=str
)
@each
def test_recurrent(exporter, kind, settings, out, capfd):
    """One node per layer, its weights ready in ONNX's order, and the state_dict comes back to the
    bit.

    Nothing is written on the terminal. The exporters touch the flat weights of recurrent layers;
    gradients flow as before.
    """
    model = seeded(Rnn, kind, **settings)
    lo.export(model, torch.randn(1, 5, 4), out, exporter=exporter)
    assert capfd.readouterr() == ("", "")
    graph = onnx.load(out).graph
    cells = [node for node in graph.node if node.op_type == kind.__name__]
    assert [n.name for n in cells] == [
        f"/rnn/{kind.__name__}{end}" for end in ("", "_1")[: settings.get("num_layers", 1)]
    ]
    stored = {tensor.name for tensor in graph.initializer}
    assert all(cell.input[1] in stored and cell.input[2] in stored for cell in cells)
    assert {"Slice", "Concat", "Unsqueeze", "Shape"}.isdisjoint(node.op_type for node in graph.node)
    back = state_dict(ir.load(out))
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())
    model(torch.randn(3, 5, 4)).sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


@each
def test_both_exporters_name_attention_alike(exporter):
    """The state_dict is there; linear layers on sequences keep it by a Transpose of the weight."""
    model, out = seeded(Attention), export_shared(Attention, (5, 8), exporter)
    found = names(out)
    assert {
        "/q/MatMul",
        "/k/MatMul",
        "/out/Transpose",
        "/Softmax",
        "/norm/LayerNormalization",
    } <= set(found)
    assert len(found) == len(set(found))
    back = state_dict(ir.load(out))
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())


def test_attention_of_torch(out):
    """MultiheadAttention has a fast path at inference that has no ONNX form; it is left, and set
    again afterwards.
    """
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert torch.backends.mha.get_fastpath_enabled()
    lo.export(layer, torch.randn(1, 5, 8), out, exporter="torchscript")
    assert torch.backends.mha.get_fastpath_enabled()
    assert "/self_attn/Softmax" in names(out)


@each
def test_no_scopes(exporter, out):
    """Operator and number."""
    lo.export(seeded(Cnn), torch.randn(1, 2, 6, 6), out, exporter=exporter, scopes=False)
    found = names(out)
    assert found[:5] == ["Conv_0", "Conv_1", "BatchNormalization_0", "Add_0", "Relu_0"]
    assert found[-3:] == ["Gemm_0", "Gemm_1", "Gemm_2"]
    assert state_dict(ir.load(out)).keys() == {
        n for n in Cnn().state_dict() if "num_batches" not in n
    }


@each
def test_nested_arguments_and_results(exporter, out):
    """Dicts, numbers and None in and out; every tensor has a name made of keys and places."""
    args = ({"ids": torch.randint(0, 10, (1, 5)), "features": torch.randn(1, 3)}, 3.0)
    model = seeded(Tagger)
    done = lo.export(model, args, out, kwargs={"mask": torch.ones(1, 5)}, exporter=exporter)
    assert done.inputs == {"batch.ids": ["N", 5], "batch.features": ["N", 3], "mask": ["N", 5]}
    assert done.outputs == {"tags": ["N", 5, 4], "rest.0": ["N", 4], "rest.2": ["N", 3]}
    ids, features, mask = torch.randint(0, 10, (4, 5)), torch.randn(4, 3), torch.rand(4, 5)
    with torch.no_grad():
        want = model.eval()({"ids": ids, "features": features}, 3.0, mask=mask)
    found = run(out, **{"batch.ids": ids, "batch.features": features, "mask": mask})
    for have, tensor in zip(found, (want["tags"], want["rest"][0], want["rest"][2]), strict=True):
        assert np.allclose(have, tensor, atol=1e-5)


@each
def test_shared_weights(exporter, out):
    """One initializer, under the first of its names; a buffer that is not in the state_dict is a
    constant.
    """
    args = {"batch": {"ids": torch.zeros(1, 5, dtype=torch.int64), "features": torch.zeros(1, 3)}}
    lo.export(seeded(Tagger), args, out, exporter=exporter)
    held = {t.name for t in onnx.load(out).graph.initializer if not t.name.startswith("/")}
    assert held == {"table.weight", "first.weight", "first.bias", "second.bias"}


@each
def test_tensors_with_two_roles(exporter, out):
    """An input that is an output, one result twice, a parameter and a constant as results, an input
    nobody reads.
    """

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3))

        def forward(self, x, unused):
            y = x + self.w
            return x, y, y, self.w, torch.arange(3)

    model = Odd()
    done = lo.export(model, (torch.randn(1, 3), torch.randn(1, 2)), out, exporter=exporter)
    assert list(done.inputs) == ["x"]
    assert list(done.outputs) == [f"output_{i}" for i in range(5)]
    assert done.notes == ["input 'unused' has no effect on the outputs and is removed"]
    x = torch.randn(2, 3)
    for have, want in zip(run(out, x=x), model(x, None), strict=True):
        assert np.array_equal(have, want.detach())


@pytest.mark.slow
@pytest.mark.parametrize(
    "opset, exporter",
    mark_rest_slow(3, ((9, "torchscript"), (13, "torchscript"), (20, "dynamo"), (18, "dynamo"))),
)
def test_opset(opset, exporter, out):
    """The exporter follows from the opset, unless one is named."""
    done = lo.export(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.randn(1, 3), out, opset=opset)
    assert (done.opset, done.exporter) == (opset, exporter)
    assert onnx.load(out).opset_import[0].version == opset


@pytest.mark.parametrize(
    "settings", ({"opset": 8}, {"opset": 99}, {"opset": 13, "exporter": "dynamo"}), ids=str
)
def test_opset_refused(settings, out):
    with pytest.raises(
        ConfigError, match="does not support opset .*dynamo 18 to .*, torchscript 9 to 20"
    ):
        lo.export(nn.Linear(3, 2), torch.randn(1, 3), out, **settings)


def test_names_of_inputs_and_outputs(out):
    model = nn.Linear(3, 2)
    done = lo.export(
        model, torch.randn(1, 3), out, exporter="torchscript", input_names=["a"], output_names=["b"]
    )
    assert (list(done.inputs), list(done.outputs)) == (["a"], ["b"])
    for settings, message in (
        ({"input_names": ["a", "b"]}, "2 input names for 1 inputs"),
        ({"output_names": ["a", "b"]}, "2 output names for 1 outputs"),
        (
            {"input_names": ["a"], "output_names": ["a"]},
            "'a' is the name of an input and of an output",
        ),
        ({"input_names": [""]}, "must differ and not be empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            lo.export(model, torch.randn(1, 3), out, exporter="torchscript", **settings)


# ---- dynamic axes ------------------------------------------------------------------------------------------------


class Pair(nn.Module):
    """[A, B, 3] and [A, B] -> [A, B, 2] and [B, A]."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, mask):
        y = self.fc(x) * mask.unsqueeze(-1)
        return y.reshape(x.shape[0], -1, 2), mask.transpose(0, 1)


PAIR = (torch.ones(2, 4, 3), torch.ones(2, 4))

FORMS = {
    "index lists": ({"x": [0], "mask": [0]}, ["N", 4, 3], ["N", 4], ["N", 4, 2]),
    "named dicts": (
        {"x": {0: "A", 1: "B"}, "mask": {0: "A", 1: "B"}},
        ["A", "B", 3],
        ["A", "B"],
        ["A", "B", 2],
    ),
    "negative": ({"x": {-3: "A"}, "mask": {-2: "A"}}, ["A", 4, 3], ["A", 4], ["A", 4, 2]),
    "default": (None, ["N", 4, 3], ["N", 4], ["N", 4, 2]),
    "none": ({}, [2, 4, 3], [2, 4], [2, 4, 2]),
}


@pytest.mark.sweep
@pytest.mark.parametrize("form", FORMS)
@each
def test_dynamic_axes(exporter, form, out):
    """All customary forms; outputs are named after the inputs' sizes, and other sizes run."""
    axes, x, mask, y = FORMS[form]
    model = seeded(Pair)
    lo.export(model, PAIR, out, exporter=exporter, dynamic_axes=axes)
    graph = onnx.load(out).graph
    assert sizes(graph.input) == {"x": x, "mask": mask}
    assert sizes(graph.output) == {"output_0": y, "output_1": [mask[1], mask[0]]}
    free = {"A": 5, "B": 7, "N": 3}
    x_in, mask_in = (torch.rand([free.get(d, d) for d in dims]) for dims in (x, mask))
    with torch.no_grad():
        want = model(x_in, mask_in)
    for have, tensor in zip(run(out, x=x_in, mask=mask_in), want, strict=True):
        assert np.allclose(have, tensor, atol=1e-6)


@each
def test_dynamic_axes_mixed(exporter, out):
    """A list for one tensor, names for another, and a name for the size of an output."""

    class Two(nn.Module):
        def forward(self, x, bias):
            return x.relu(), bias * 2

    axes = {"x": {0: "B", 2: "T"}, "bias": [0, 1], "output_0": {2: "frames"}}
    done = lo.export(
        Two(), (torch.ones(2, 3, 4), torch.ones(5, 6)), out, exporter=exporter, dynamic_axes=axes
    )
    assert done.inputs == {"x": ["B", 3, "T"], "bias": ["N", "bias_1"]}
    assert done.outputs == {"output_0": ["B", 3, "frames"], "output_1": ["N", "bias_1"]}
    assert len(done.sizes) == 3
    assert run(out, x=np.ones((1, 3, 9), np.float32), bias=np.ones((8, 1), np.float32))[
        1
    ].shape == (8, 1)


@pytest.mark.parametrize(
    "axes, message",
    (
        ({"y": [0]}, "no input or output 'y'"),
        ({"mas": [0]}, "no input or output 'mas'; did you mean 'mask'"),
        ({"x": [3]}, "of 'x': there is no axis 3; it has 3 axes"),
        ({"x": ["0"]}, "there is no axis '0'"),
        ({"x": {0: "a b"}}, "'a b' is not a valid name of a size"),
        ({"x": 0}, "pass a list of axes or a dict"),
        ({"x": {0: "A", 1: "A"}}, "'A' is 2 on one axis and 4 on axis 1 of 'x'"),
    ),
)
def test_dynamic_axes_refused(axes, message, out):
    with pytest.raises(ConfigError, match=message):
        lo.export(Pair(), PAIR, out, exporter="torchscript", dynamic_axes=axes)
    assert not out.exists()


class Fixed(nn.Module):
    """Runs with a batch of 2 only."""

    def forward(self, x):
        return x.reshape(2, -1) + torch.ones(2, 12)


@each
def test_a_fixed_batch_is_not_dynamic(exporter, out):
    """By default the batch is dynamic where the model lets it be; asked for, it is an error where
    not.
    """
    done = lo.export(Fixed(), torch.ones(2, 3, 4), out, exporter=exporter)
    assert done.inputs == {"x": [2, 3, 4]}
    assert done.notes == ["no axis is dynamic: the model itself runs at N 2 only"]
    with pytest.raises(ConfigError, match="the model itself runs at N 2 only"):
        lo.export(Fixed(), torch.ones(2, 3, 4), out, exporter=exporter, dynamic_axes={"x": [0]})


def test_inputs_without_a_common_batch(out):
    class Product(nn.Module):
        def forward(self, a, b):
            return a @ b

    done = lo.export(Product(), (torch.ones(2, 3), torch.ones(3, 4)), out, exporter="torchscript")
    assert done.inputs == {"a": [2, 3], "b": [3, 4]}
    assert done.notes == [
        "no axis is dynamic: inputs differ on axis 0 (a 2, b 3); set dynamic_axes to change this"
    ]


# ---- the comparison with torch -----------------------------------------------------------------------------------


def test_a_trace_that_holds_at_one_size_only(out):
    """What tracing loses shows at another batch size."""

    class Depends(nn.Module):
        def forward(self, x):
            return x * 2 if x.shape[0] == 2 else x - 1

    with pytest.raises(ModelError, match=r"output 'output' .* differs from torch \(N 1\)"):
        lo.export(Depends(), torch.ones(1, 3), out, exporter="torchscript")
    assert not out.exists()


def test_tolerance(out):
    """The limit is the caller's."""
    model, x = seeded(Cnn), torch.randn(1, 2, 6, 6)
    with pytest.raises(ModelError, match="of its range, limit 0"):
        lo.export(model, x, out, exporter="torchscript", tolerance=0)


def test_the_exporter_speaks_of_the_model(out):
    """A branch that tracing decides is a note; the exporters' other chatter is not."""

    class Branch(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x - 1

    done = lo.export(Branch(), torch.ones(1, 3), out, exporter="torchscript")
    assert len(done.notes) == 1
    assert "test_float_export.py line" in done.notes[0]
    assert "depends on the data (bool())" in done.notes[0]
    with pytest.raises(
        ModelError,
        match=r"cannot trace the model \(test_float_export.py line \d+\): .*try --exporter",
    ):
        lo.export(Branch(), torch.ones(1, 3), out, exporter="dynamo")


# ---- what stays as it was ----------------------------------------------------------------------------------------


def flags(model):
    """Return the mode of every submodule."""
    return {name: part.training for name, part in model.named_modules()}


@pytest.mark.sweep
@pytest.mark.parametrize("model, works", ((Cnn, True), (Unsupported, False)))
@each
def test_the_module_is_as_it_was(exporter, model, works, out):
    """Training flags per submodule, parameters, buffers and gradients, whether the export works or
    not.
    """
    model = seeded(model)
    model.train()
    mixed = [part for name, part in model.named_modules() if name in ("layer1.0.bn", "head.1")]
    assert mixed
    mixed[0].eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, modes = copy.deepcopy(model.state_dict()), flags(model)
    x = torch.randn(2, 2, 6, 6) if works else torch.randn(2, 3)
    if works:
        lo.export(model, x, out, exporter=exporter)
    else:
        with pytest.raises(ModelError):
            lo.export(model, x, out, exporter=exporter)
    assert flags(model) == modes
    assert set(modes.values()) == {True, False}
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.requires_grad and bool((p.grad == 1).all()) for p in model.parameters())
    assert torch.is_grad_enabled()


@each
def test_an_older_file_survives_a_failure(exporter, tmp_path, capfd):
    """Not half overwritten, no temporary file left; nothing on the terminal, whether it fails or
    not.
    """
    out = tmp_path / "model.onnx"
    out.write_bytes(b"precious")
    with pytest.raises(ModelError):
        lo.export(Unsupported(), torch.ones(1, 3), out, exporter=exporter)
    assert out.read_bytes() == b"precious"
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    lo.export(nn.Linear(3, 3), torch.ones(1, 3), out, exporter=exporter)
    assert names(out) == ["/Gemm"]
    assert capfd.readouterr() == ("", "")


@each
def test_the_same_bytes_again(exporter, tmp_path):
    """Same module, same file."""
    lo.export(seeded(Cnn), torch.ones(1, 2, 6, 6), tmp_path / "again.onnx", exporter=exporter)
    assert (tmp_path / "again.onnx").read_bytes() == export_shared(
        Cnn, (2, 6, 6), exporter
    ).read_bytes()


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "exporter, operator",
    mark_rest_slow(1, (("torchscript", "aten::special_bessel_j0"), ("dynamo", "bessel_j0"))),
)
def test_operator_without_onnx_form(exporter, operator, out):
    """Named with the path of its module, and with the other exporter as a way out."""
    other = next(name for name in EXPORTERS if name != exporter)
    message = rf"operator \S*{operator}\S* in module 'head.1.0' has no ONNX equivalent .*try --exporter {other}"
    with pytest.raises(ModelError, match=message):
        lo.export(Unsupported(), torch.ones(1, 3), out, exporter=exporter)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float64))
def test_other_float_types(dtype, out):
    """Refused, with the remedy; a file is in float32."""
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(
        ModelError, match=rf"'weight' of the model is {kind}, but .* export model.float\(\)"
    ):
        lo.export(nn.Linear(3, 2).to(dtype), torch.ones(1, 3, dtype=dtype), out)
    with pytest.raises(ModelError, match=rf"input 'input' is {kind}, but .* pass input.float\(\)"):
        lo.export(nn.Linear(3, 2), torch.ones(1, 3, dtype=dtype), out)


class Opaque:
    """Nothing torch knows how to take apart."""


class Returns(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.result = result

    def forward(self, x):
        return self.result


@pytest.mark.parametrize(
    "model, args, error, message",
    (
        (3, torch.ones(1), ConfigError, "cannot export a int"),
        (nn.Linear(3, 2), None, ConfigError, "no inputs given"),
        (nn.Linear(3, 2), (1.0,), ConfigError, "contain no tensor"),
        (
            nn.Linear(3, 2),
            torch.ones(1, 4),
            ModelError,
            "the model fails on the given inputs .RuntimeError",
        ),
        (Returns(Opaque()), torch.ones(1), ModelError, "returns a Opaque"),
        (Returns({"a": 3}), torch.ones(1), ModelError, "returns no tensor"),
    ),
)
def test_refused(model, args, error, message, out):
    with pytest.raises(error, match=message):
        lo.export(model, args, out)


def test_places_that_cannot_be_written(tmp_path):
    model, x = nn.Linear(3, 2), torch.ones(1, 3)
    with pytest.raises(ConfigError, match="it is a folder"):
        lo.export(model, x, tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        lo.export(model, x, tmp_path / "no" / "model.onnx")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make the folder"):
        lo.export(model, x, tmp_path / "model.onnx", debug_dump=tmp_path / "file")


# ---- debugging ---------------------------------------------------------------------------------------------------


@each
def test_debug_dump(exporter, tmp_path):
    """The traced program and every graph on the way, in order, each a file that loads."""
    folder = tmp_path / "dump"
    out = tmp_path / "model.onnx"
    lo.export(seeded(Rnn), torch.randn(1, 5, 4), out, exporter=exporter, debug_dump=folder)
    found = sorted(path.name for path in folder.iterdir())
    assert [name.partition("_")[0] for name in found] == [str(i) for i in range(len(found))]
    steps = [name.partition("_")[2] for name in found]
    assert steps[:3] == ["traced.txt", "exported.onnx", "folded.onnx"]
    assert steps[-3:] == ["packed.onnx", "named.onnx", "final.onnx"]
    counts = [len(onnx.load(folder / name).graph.node) for name in found[1:]]
    assert counts[0] > counts[-1]
    assert (folder / found[-1]).read_bytes() == out.read_bytes()
    assert "lstm" in (folder / found[0]).read_text().lower()


@pytest.mark.slow
def test_debug_dump_of_a_failure(tmp_path):
    """What was reached is there."""
    with pytest.raises(ModelError):
        lo.export(
            Unsupported(),
            torch.ones(1, 3),
            tmp_path / "m.onnx",
            exporter="dynamo",
            debug_dump=tmp_path / "dump",
        )
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["0_traced.txt"]


# ---- module paths of the torchscript exporter --------------------------------------------------------------------

PATHS = [
    "",
    "model",
    "model.a",
    "model.a.b",
    "model.a.b.0",
    "model.a.l.3",
    "model.fc",
    "model.0",
    "model.0.0",
]


@pytest.mark.parametrize(
    "scope, path",
    (
        ("model/a/b/b.0", "model.a.b.0"),  # a Sequential that is called
        ("model/a/l.3", "model.a.l.3"),  # a ModuleList, which is not
        ("model/fc_1", "model.fc"),  # the second call
        ("model/model.0/model.0.0", "model.0.0"),  # numbers carry the name in front of them
        ("model/other", "model.other"),  # what nobody knows keeps its name
        ("", ""),
    ),
)
def test_module_path(scope, path):
    assert _module_path([step for step in scope.split("/") if step], PATHS) == path


def test_called():
    assert [_get_scope_name(path) for path in ("a.b", "a.b.0.1", "0.1")] == ["b", "b.0.1", "0.1"]


# ---- quantization of what was exported ---------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("model, shape", ((Cnn, (2, 6, 6)), (Rnn, (5, 4)), (Attention, (5, 8))))
@each
def test_quantize(exporter, model, shape):
    """All of it in integers, close to torch, nodes by the module's own names."""
    net = seeded(model)
    x = torch.randn(64, *shape)
    out = export_shared(model, shape, exporter)
    result = lo.quantize(out, x.numpy(), platform="generic", effort="fast")
    assert result.report.integer_macs == 1
    assert not result.report.float_nodes
    with torch.no_grad():
        want = net.eval()(x).numpy()
    have = result.session()(x.numpy())
    assert np.dot(want.ravel(), have.ravel()) / np.linalg.norm(want) / np.linalg.norm(have) > 0.99
    known = {name.replace(".", "/") for name, _ in net.named_modules()}
    layers = [
        str(node.name)
        for node in result.graph.graph
        if node.op_type in ("Conv2dInt", "LinearInt", "LSTMInt")
    ]
    assert layers
    assert all(name.lstrip("/").rpartition("/")[0] in known for name in layers)


@each
def test_a_weight_that_is_nan(exporter, tmp_path):
    """A diverged module is not exported: the error names the weight and the position."""
    module = nn.Sequential(nn.Linear(4, 3))
    with torch.no_grad():
        module[0].weight[2, 1] = float("nan")
    with pytest.raises(ModelError, match=rf"torch's {exporter} exporter: .* is nan at \["):
        lo.export(module, torch.ones(2, 4), tmp_path / "m.onnx", exporter=exporter)
    assert not list(tmp_path.iterdir())
