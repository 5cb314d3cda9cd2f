"""Checkpoints onto exported graphs: whatever fits gives the graph of the module itself; what does
not is named.
"""

import os

import numpy as np
import pytest
import torch
from torch import nn

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError, ModelError
from lingeronnx.ir import ir
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.torch.checkpoint.parameters import (
    is_parameter,
    load_checkpoint,
    load_module_checkpoint,
    read_checkpoint,
    save_checkpoint,
    state_dict,
)
from tests.torch.models import Cnn, Rnn, Tagger, seeded


def graph_of(model, x, path, **settings):
    lo.export(model, x, path, exporter="torchscript", **settings)
    return ir.load(path)


def outputs(graph, **feed):
    names = [str(v.name) for v in graph.graph.outputs]
    found = {name: array for name, array, _ in FloatRunner(graph, names).run(feed)}
    return [found[name] for name in names]


def other(kind, *args, **settings):
    """Return the same module with other weights."""
    model = seeded(kind, *args, **settings)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.1)
    return model


@pytest.fixture
def cnn(tmp_path):
    """Return the graph of a `Cnn`, and another `Cnn`."""
    return graph_of(seeded(Cnn), torch.randn(1, 2, 6, 6), tmp_path / "cnn.onnx"), other(Cnn)


WRAPPINGS = {
    "plain": lambda state: state,
    "module.": lambda state: {f"module.{k}": v for k, v in state.items()},
    "model.": lambda state: {"state_dict": {f"model.{k}": v for k, v in state.items()}, "epoch": 3},
    "any prefix": lambda state: {f"net.backbone.{k}": v for k, v in state.items()},
    "compiled": lambda state: {f"_orig_mod.{k}": v for k, v in state.items()},
    "compiled inside": lambda state: {
        k.replace("layer1.0.", "layer1.0._orig_mod."): v for k, v in state.items()
    },
    "model and optimizer": lambda state: {
        "model": state,
        "optimizer": {"state": {0: {"step": torch.ones(1)}}, "param_groups": []},
    },
    "one unknown key": lambda state: {"student": state, "lr": 0.1},
    "nested": lambda state: {"model": {"state_dict": state}},
    "half": lambda state: {k: v.half() if v.is_floating_point() else v for k, v in state.items()},
    "bfloat16": lambda state: {
        k: v.bfloat16() if v.is_floating_point() else v for k, v in state.items()
    },
    "without counters": lambda state: {k: v for k, v in state.items() if "num_batches" not in k},
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", WRAPPINGS)
def test_fits(name, cnn, tmp_path):
    """The graph computes what the checkpoint's module computes, before and after normalisation."""
    graph, model = cnn
    path = tmp_path / "best.pt"
    torch.save(WRAPPINGS[name](model.state_dict()), path)
    before = path.read_bytes()
    loaded = load_checkpoint(graph, path)
    assert path.read_bytes() == before
    assert set(loaded.names) == {k for k in model.state_dict() if "num_batches" not in k}
    assert (loaded.unexpected, loaded.missing) == ((), ())
    x = torch.rand(3, 2, 6, 6)
    with torch.no_grad():
        want = model.eval()(x).numpy()
    exact = name not in ("half", "bfloat16")
    assert np.allclose(outputs(graph, image=x.numpy())[0], want, rtol=1e-5 if exact else 0.3)


def test_batch_norm_folds_what_was_loaded(cnn):
    """Loaded before normalisation, whose passes fold: the quantized graph follows the
    checkpoint.
    """
    graph, model = cnn
    load_checkpoint(graph, model)
    x = torch.rand(32, 2, 6, 6)
    result = lo.quantize(graph, x.numpy(), platform="generic", effort="fast")
    assert "BatchNormalization" not in {node.op_type for node in result.float_graph.graph}
    with torch.no_grad():
        want = model.eval()(x).numpy()
    assert np.abs(result.session()(x.numpy()) - want).max() < 0.05 * np.abs(want).max()


@pytest.mark.sweep
@pytest.mark.parametrize("kind", (nn.LSTM, nn.GRU))
@pytest.mark.parametrize(
    "settings", ({}, {"bidirectional": True, "num_layers": 2}, {"bias": False}), ids=str
)
def test_recurrent(kind, settings, tmp_path):
    """The weights are turned into ONNX's order on the way."""
    graph = graph_of(seeded(Rnn, kind, **settings), torch.randn(1, 5, 4), tmp_path / "rnn.onnx")
    model = other(Rnn, kind, **settings)
    load_checkpoint(graph, model.state_dict())
    x = torch.randn(3, 5, 4)
    with torch.no_grad():
        assert np.allclose(outputs(graph, x=x.numpy())[0], model(x), atol=1e-5)
    back = state_dict(graph)
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())


def test_shared_weights(tmp_path):
    """A checkpoint holds a shared weight once per name; the graph has it once."""
    args = {"batch": {"ids": torch.zeros(1, 5, dtype=torch.int64), "features": torch.zeros(1, 3)}}
    graph = graph_of(seeded(Tagger), args, tmp_path / "tagger.onnx")
    model = other(Tagger)
    assert "second.weight" in model.state_dict()
    load_checkpoint(graph, model.state_dict())
    assert torch.equal(state_dict(graph)["first.weight"], model.first.weight)
    apart = {**model.state_dict(), "second.weight": torch.ones(4, 4)}
    with pytest.raises(ModelError, match="the model has no second.weight"):
        load_checkpoint(graph, apart)


def test_the_graph_may_have_the_prefix(tmp_path):
    """The exported module wrapped the one whose checkpoint it is."""

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = seeded(Cnn)

        def forward(self, x):
            return torch.softmax(self.net(x), 1)

    graph = graph_of(Wrapped(), torch.randn(1, 2, 6, 6), tmp_path / "m.onnx")
    model = other(Cnn)
    assert load_checkpoint(graph, model).prefix == "+net."
    assert torch.equal(state_dict(graph)["net.fc.weight"], model.fc.weight)


# ---- what does not fit -------------------------------------------------------------------------------------------


def changed(state, **changes):
    state = {**state, **changes}
    return {name: tensor for name, tensor in state.items() if tensor is not None}


@pytest.mark.sweep
@pytest.mark.parametrize(
    "changes, message",
    (
        ({"fc.weight": None}, r"does not match the model: it lacks fc\.weight$"),
        (
            {"head.weight": torch.ones(3)},
            r"does not match the model: the model has no head\.weight",
        ),
        ({"fc.weight": torch.ones(5, 4)}, r"different shapes: fc\.weight \[5, 4\], not \[3, 4\]"),
        (
            {"stem.bias": None, "stem.bais": torch.ones(4)},
            r"lacks stem\.bias; did you mean 'stem\.bais'\?",
        ),
        (
            {"fc.bias": None, "extra": torch.ones(9), "fc.weight": torch.ones(3)},
            r"lacks fc\.bias; the model has no extra; different shapes: fc\.weight \[3\], not \[3, 4\]",
        ),
        (
            {"fc.bias": torch.tensor([1.0, float("nan"), 0])},
            r"'fc\.bias' in the checkpoint contains NaN or infinity",
        ),
        (
            {"fc.bias": torch.ones(3, dtype=torch.complex64)},
            r"'fc\.bias' .* not a dense tensor of real numbers",
        ),
        (
            {"fc.bias": torch.ones(3, dtype=torch.int64)},
            r"'fc\.bias' in the checkpoint is int64, in the graph float32",
        ),
    ),
)
def test_does_not_fit(changes, message, cnn):
    """One line that names everything; the graph is as it was."""
    graph, model = cnn
    before = ir.to_proto(graph).SerializeToString(deterministic=True)
    with pytest.raises(ModelError, match=message) as caught:
        load_checkpoint(graph, changed(model.state_dict(), **changes))
    assert "\n" not in str(caught.value)
    assert ir.to_proto(graph).SerializeToString(deterministic=True) == before


def test_many_names_are_cut(cnn):
    """The message stays one line a reader can take in."""
    graph, model = cnn
    extra = {f"aux.{i}": torch.full((2,), float(i + 7)) for i in range(20)}
    with pytest.raises(ModelError, match=r"aux\.7 and 12 more"):
        load_checkpoint(graph, {**model.state_dict(), **extra})


def test_not_strict(cnn):
    """What only one side has is left alone and told; another shape is an error all the same."""
    graph, model = cnn
    old = state_dict(graph)
    part = {"fc.weight": model.fc.weight.detach(), "aux.weight": torch.full((3,), 9.0)}
    loaded = load_checkpoint(graph, part, strict=False)
    assert loaded.names == ("fc.weight",)
    assert loaded.unexpected == ("aux.weight",)
    assert "fc.bias" in loaded.missing
    assert torch.equal(state_dict(graph)["fc.weight"], model.fc.weight)
    assert torch.equal(state_dict(graph)["fc.bias"], old["fc.bias"])
    with pytest.raises(ModelError, match="different shapes"):
        load_checkpoint(graph, {"fc.weight": torch.ones(1)}, strict=False)


def test_part_of_a_recurrent_layer(tmp_path):
    """B holds two biases; one alone keeps the other."""
    graph = graph_of(seeded(Rnn), torch.randn(1, 5, 4), tmp_path / "rnn.onnx")
    old = state_dict(graph)
    load_checkpoint(graph, {"rnn.bias_hh_l0": torch.arange(24.0)}, strict=False)
    new = state_dict(graph)
    assert torch.equal(new["rnn.bias_hh_l0"], torch.arange(24.0))
    assert torch.equal(new["rnn.bias_ih_l0"], old["rnn.bias_ih_l0"])


# ---- files -------------------------------------------------------------------------------------------------------


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_nothing_in_a_file_is_executed(tmp_path):
    path, mark = tmp_path / "evil.pt", tmp_path / "mark"
    torch.save({"state_dict": Evil(mark)}, path)
    with pytest.raises(
        ModelError, match=r"cannot read the checkpoint .*evil\.pt: .* save model.state_dict\(\)"
    ):
        read_checkpoint(path)
    assert not mark.exists()


def test_files_that_are_none(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        read_checkpoint(tmp_path / "none.pt")
    with pytest.raises(ConfigError, match="a int is not a checkpoint"):
        read_checkpoint(3)
    (tmp_path / "text.pt").write_text("weights")
    with pytest.raises(ModelError, match="not a file of torch.save"):
        read_checkpoint(tmp_path / "text.pt")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "short.pt")
    (tmp_path / "short.pt").write_bytes((tmp_path / "short.pt").read_bytes()[:300])
    with pytest.raises(ModelError, match="not a file of torch.save"):
        read_checkpoint(tmp_path / "short.pt")
    torch.save([torch.ones(1)], tmp_path / "list.pt")
    with pytest.raises(ModelError, match="contains a list"):
        read_checkpoint(tmp_path / "list.pt")
    with pytest.raises(ModelError, match="contains no unique state_dict; its keys are epoch, a, b"):
        read_checkpoint({"epoch": 3, "a": {"w": torch.ones(1)}, "b": {"w": torch.ones(1)}})


def test_save(cnn, tmp_path):
    """A graph's weights as a checkpoint that the module loads."""
    graph, model = cnn
    load_checkpoint(graph, model)
    path = tmp_path / "out.pt"
    save_checkpoint(graph, path)
    again = seeded(Cnn)
    found = again.load_state_dict(torch.load(path, weights_only=True), strict=False)
    assert found.unexpected_keys == []
    assert all("num_batches" in name for name in found.missing_keys)
    assert all(
        torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True)
    )
    with pytest.raises(ConfigError, match="cannot write"):
        save_checkpoint(graph, tmp_path / "no" / "out.pt")


def test_nothing_to_save(tmp_path):
    graph = graph_of(nn.ReLU(), torch.ones(1, 2), tmp_path / "relu.onnx")
    with pytest.raises(ModelError, match="nothing to save"):
        save_checkpoint(graph, tmp_path / "out.pt")


@pytest.mark.parametrize("name", ("fc.weight", "position", "0.bias", "a.lin_0", "rnn.bias_l0"))
def test_names_of_parameters(name):
    assert is_parameter(name)


@pytest.mark.parametrize(
    "name", ("/fc/Constant", "onnx::Conv_12", "val_3", "Constant_7", "Constant_7_output_0")
)
def test_names_of_constants(name):
    assert not is_parameter(name)


# ---- into a module -----------------------------------------------------------------------------------------------


def test_load_into():
    """The same rules for the module that is exported; shared weights may be there once."""
    model, source = seeded(Tagger), other(Tagger)
    state = {
        f"module.{k}": v.half() for k, v in source.state_dict().items() if k != "second.weight"
    }
    load_module_checkpoint(model, {"state_dict": state})
    assert torch.allclose(model.second.weight, source.second.weight, atol=1e-3)
    assert model.second.weight is model.first.weight
    with pytest.raises(ModelError, match=r"lacks table\.weight"):
        load_module_checkpoint(
            model, {k: v for k, v in source.state_dict().items() if k != "table.weight"}
        )
    with pytest.raises(ModelError, match=r"the model has no more"):
        load_module_checkpoint(model, {**source.state_dict(), "more": torch.full((1,), 7.5)})
    with pytest.raises(ModelError, match="NaN"):
        load_module_checkpoint(
            model, {**source.state_dict(), "first.bias": torch.full((4,), float("nan"))}
        )
