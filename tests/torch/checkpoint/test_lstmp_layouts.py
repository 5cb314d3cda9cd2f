"""Checkpoints of LSTM layers with projection: every layout into every other, and what is no such
layout.
"""

import json
import pickle

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.common.errors import ConfigError, ModelError
from lingeronnx.torch.checkpoint.lstmp_layouts import (
    LAYOUTS,
    convert_checkpoint,
    convert_state_dict,
)
from lingeronnx.torch.training_api.lstmp import LSTMP, UBLSTMP, FastUBLSTMP
from tests.case_selection import limit_examples

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

WIDTH, P, C = 5, 3, 6


def state_of(module, prefix=""):
    return {f"{prefix}{key}": tensor.clone() for key, tensor in module.state_dict().items()}


def pair(prefix="enc.lstmp", seed=0):
    """Two directions in layout plain, and a tensor that is none of theirs."""
    torch.manual_seed(seed)
    one, two = LSTMP(WIDTH, P, C), LSTMP(WIDTH, P, C, go_forward=False)
    return {
        **state_of(one, f"{prefix}."),
        **state_of(two, f"{prefix}2."),
        "fc.weight": torch.randn(2, 2 * P),
    }


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def as_asr(tensor):
    """Exchange the last two of four gates, by hand."""
    parts = np.split(tensor.numpy(), 4)
    return torch.from_numpy(np.concatenate([parts[0], parts[1], parts[3], parts[2]]))


# ---- laws --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", LAYOUTS)
def test_from_plain_and_back(to):
    """Bit for bit, keys in their order; other tensors untouched."""
    state = pair()
    there = convert_state_dict(state, to)
    assert (there.layout, there.to, there.kept) == ("plain", to, ("fc.weight",))
    back = convert_state_dict(there.state, "plain", to)
    assert same(back.state, state)
    assert list(back.state) == list(state)
    assert same(convert_state_dict(there.state, "plain").state, state)  # found without being told


@limit_examples(100)
@given(
    st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.integers(0, 99)
)
def test_ways_agree(first, second, third, seed):
    """Whatever layouts a checkpoint has gone through, plain is plain."""
    state = pair(seed=seed)
    for layout in (first, second, third):
        state = convert_state_dict(state, layout).state
    assert same(convert_state_dict(state, "plain").state, pair(seed=seed))


def test_keys_and_gates():
    """The names and the order of gates that each layout has, by hand."""
    state = pair()
    asr = convert_state_dict(state, "asr").state
    for end in ("", "2"):
        of = {
            key: state[f"enc.lstmp{end}.{key}"]
            for key in (
                "input_linearity.weight",
                "input_linearity.bias",
                "state_linearity.weight",
                "state_projection.weight",
            )
        }
        assert torch.equal(asr[f"enc.lstmp{end}.weight_x"], as_asr(of["input_linearity.weight"]))
        assert torch.equal(
            asr[f"enc.lstmp{end}.weight_bias"], as_asr(of["input_linearity.bias"])[None]
        )
        assert torch.equal(asr[f"enc.lstmp{end}.weight_r"], as_asr(of["state_linearity.weight"]))
        assert torch.equal(asr[f"enc.lstmp{end}.weight_p"], of["state_projection.weight"])
    of_torch = convert_state_dict(state, "torch").state
    reverse = {key.removesuffix("_reverse") for key in of_torch if key.endswith("_reverse")}
    assert reverse == {
        f"enc.lstmp.{name}_l0"
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    }
    assert not of_torch["enc.lstmp.bias_hh_l0"].any()
    assert torch.equal(
        of_torch["enc.lstmp.bias_ih_l0_reverse"], state["enc.lstmp2.input_linearity.bias"]
    )
    assert set(convert_state_dict(state, "ub").state) == {
        "fc.weight",
        *(
            f"enc.lstmp.{side}_lstmp.{key.removeprefix('enc.lstmp.')}"
            for side in ("forward", "backward")
            for key in state
            if key.startswith("enc.lstmp.")
        ),
    }


def test_paths_stay(tmp_path):
    """`checkpoint --to ub` and back: the path of the module is the beginning of all its keys."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"lstmp": nn.LSTM(5, 4, proj_size=3, bidirectional=True)})
    net = nn.ModuleDict({"enc": net, "lstmp": nn.LSTM(5, 4, proj_size=3, bidirectional=True)})
    torch.save(net.state_dict(), tmp_path / "torch.pt")
    assert "lstmp.weight_ih_l0" in net.state_dict()
    source = tmp_path / "torch.pt"
    for layout in LAYOUTS:
        path = tmp_path / f"{layout}.pt"
        convert_checkpoint(source, path, layout)
        keys = torch.load(path, weights_only=True)
        assert {key.split(".")[0].removesuffix("2") for key in keys} == {"enc", "lstmp"}
        nested = {key.split(".")[1] for key in keys if key.startswith("enc.")}
        assert {name.removesuffix("2") for name in nested} == {"lstmp"}
        source = path
    ub = convert_state_dict(net.state_dict(), "ub").state
    assert "lstmp.backward_lstmp.state_projection.weight" in ub
    back = convert_state_dict(convert_state_dict(ub, "plain").state, "ub").state
    assert same(back, ub)


def test_torch_modules_compute_the_same():
    """nn.LSTM, bidirectional, its checkpoint in a UBLSTMP, and that one's in a FastUBLSTMP: equal
    outputs.
    """
    torch.manual_seed(3)
    reference = nn.LSTM(WIDTH, C, proj_size=P, bidirectional=True, batch_first=True)
    done = convert_state_dict(state_of(reference), "ub")
    assert done.notes == ("bias_ih and bias_hh are added: one bias remains",)
    ub, fast = UBLSTMP(WIDTH, P, C), FastUBLSTMP(WIDTH, P, C)
    ub.load_state_dict(done.state)  # a layer without a path has none there
    fast.load_state_dict(convert_state_dict(ub.state_dict(), "torch").state)
    again = nn.LSTM(WIDTH, C, proj_size=P, bidirectional=True, batch_first=True)
    plain = convert_state_dict(state_of(reference, "rnn."), "plain")
    assert {key.partition(".")[0] for key in plain.state} == {"rnn", "rnn2"}
    again.load_state_dict(
        {
            key.removeprefix("rnn."): t
            for key, t in convert_state_dict(plain.state, "torch").state.items()
        }
    )
    x = torch.randn(2, 7, WIDTH)
    want = reference(x)[0]
    for module in (ub, fast, again):
        torch.testing.assert_close(module(x)[0], want, rtol=0, atol=1e-6)


def test_one_direction_and_strangers():
    """A single module stays single; ordinary LSTM and GRU layers are passed on; a missing bias is
    zero.
    """
    single = state_of(LSTMP(WIDTH, P, C), "net.")
    others = {**state_of(nn.LSTM(4, 3), "plain."), **state_of(nn.GRU(4, 3), "gru.")}
    done = convert_state_dict({**single, **others}, "torch")
    assert done.kept == tuple(others)
    assert done.layers == ("net.weight_hr_l0",)
    assert same(convert_state_dict(done.state, "plain").state, {**single, **others})
    bare = convert_state_dict(state_of(nn.LSTM(WIDTH, C, proj_size=P, bias=False)), "plain").state
    assert bare.keys() == LSTMP(WIDTH, P, C).state_dict().keys()
    assert not bare["input_linearity.bias"].any()


def test_layers_of_other_sizes_are_no_pair():
    """`lstmp` and `lstmp2` are two directions only where all sizes agree."""
    state = {**state_of(LSTMP(WIDTH, P, C), "lstmp."), **state_of(LSTMP(P, P, C), "lstmp2.")}
    done = convert_state_dict(state, "torch")
    assert done.layers == ("lstmp.weight_hr_l0", "lstmp2.weight_hr_l0")
    assert not done.notes
    assert convert_state_dict(pair(), "torch").notes == (
        "enc.lstmp and enc.lstmp2 are treated as the two directions of one layer",
    )


# ---- what is refused ---------------------------------------------------------------------------------------------


def without(state, key):
    return {name: tensor for name, tensor in state.items() if name != key}


PLAIN = {key: tensor for key, tensor in pair("lstmp").items() if key != "fc.weight"}

WRONG = (
    ({"a": torch.zeros(2)}, {}, "contains no LSTM with projection in a known layout"),
    (state_of(nn.LSTM(4, 3)), {}, "contains no LSTM with projection in a known layout"),
    (PLAIN, {"layout": "asr"}, "in layout asr; it is in layout plain"),
    (
        {**PLAIN, **convert_state_dict(PLAIN, "ub").state},
        {},
        (
            r"more than one layout \(plain: lstmp; ub: "
            r"lstmp.forward_lstmp\)"
        ),
    ),
    (
        without(PLAIN, "lstmp.state_linearity.weight"),
        {},
        "'lstmp' in layout plain lacks lstmp.state_linearity.weight$",
    ),
    (
        {**PLAIN, "lstmp.state_linearity.weight": torch.zeros(24, 4)},
        {},
        (
            r"'lstmp' in layout plain: R has shape \[24, 4\], not \[24, 3\], for a projection of shape "
            r"\[3, 6\]"
        ),
    ),
    (
        {**PLAIN, "lstmp.input_linearity.bias": torch.zeros(1, 24)},
        {},
        r"b has shape \[1, 24\], not \[24\]",
    ),
    (
        {**PLAIN, "lstmp.input_linearity.bias": torch.zeros(24, dtype=torch.int8)},
        {},
        "is int8; weights must be floats",
    ),
    (
        {**PLAIN, "lstmp.state_projection.weight": torch.zeros(3)},
        {},
        "it has another layout or is no LSTM",
    ),
    (
        {"lstmp.weight_x": torch.zeros(24, 5)},
        {},
        "lacks lstmp.weight_bias, lstmp.weight_r, lstmp.weight_p",
    ),
    (
        state_of(nn.LSTM(5, 6, num_layers=2, proj_size=3), "rnn."),
        {"target_layout": "asr"},
        r"'rnn' has several layers \(rnn.weight_hr_l1\)",
    ),
    (
        without(state_of(nn.LSTM(5, 6, proj_size=3)), "bias_hh_l0"),
        {"target_layout": "asr"},
        "lacks bias_hh_l0",
    ),
    (
        state_of(LSTMP(5, 3, 6), "net."),
        {"target_layout": "ub"},
        "'net' has one direction, but layout ub has two: 'net2' does not",
    ),
    (
        {**PLAIN, "lstmp.weight_hr_l0": torch.zeros(3, 6)},
        {"layout": "plain", "target_layout": "torch"},
        "'lstmp.weight_hr_l0' would be written twice",
    ),
)


@pytest.mark.parametrize("state, settings, text", WRONG)
def test_wrong_layouts(state, settings, text):
    """One line that names the module and what is wrong."""
    with pytest.raises(ModelError, match=text) as error:
        convert_state_dict(state, **{"target_layout": "plain", **settings})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings, wrong",
    (({"target_layout": "keras"}, "keras"), ({"target_layout": "asr", "layout": "onnx"}, "onnx")),
)
def test_no_such_layout(settings, wrong):
    with pytest.raises(ConfigError, match=f"there is no layout '{wrong}' of projected LSTMs; use "):
        convert_state_dict(PLAIN, **settings)


# ---- files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args):
    return CliRunner().invoke(cli.main, ["checkpoint", *map(str, args)])


def test_command(here):
    """The file holds the state_dict; what was done is told, also as JSON."""
    torch.save({"state_dict": pair(), "epoch": 3}, "old.pt")
    result = run("old.pt", "-o", "new.pt", "--to", "torch")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "old.pt (plain) -> new.pt (torch): 2 layers, 1 other tensors unchanged"
    assert lines[1:] == [
        "  enc.lstmp.weight_hr_l0",
        "  enc.lstmp.weight_hr_l0_reverse",
        "  note: enc.lstmp and enc.lstmp2 are treated as the two directions of one layer",
    ]
    assert same(torch.load("new.pt", weights_only=True), convert_state_dict(pair(), "torch").state)
    found = json.loads(
        run("new.pt", "-o", "back.pt", "--from", "torch", "--to", "plain", "--json").stdout
    )
    assert (found["from"], found["to"], found["kept"]) == ("torch", "plain", ["fc.weight"])
    assert same(torch.load("back.pt", weights_only=True), pair())


def test_command_says_no(here):
    """One line, exit code 1, nothing written; pickled objects are not loaded."""
    torch.save(pair(), "in.pt")
    (here / "object.pt").write_bytes(pickle.dumps(np.random.default_rng(0)))
    for args, text in (
        (("in.pt", "-o", "out.pt", "--to", "keras"), "there is no layout 'keras'"),
        (
            ("in.pt", "-o", "out.pt", "--to", "asr", "--from", "torch"),
            "in layout torch; it is in layout plain",
        ),
        (("gone.pt", "-o", "out.pt", "--to", "asr"), "there is no such file"),
        (
            ("object.pt", "-o", "out.pt", "--to", "asr"),
            "not a file of torch.save with tensors only",
        ),
        (("in.pt", "-o", "in.pt", "--to", "asr"), "would be overwritten"),
        (("in.pt", "-o", "no/out.pt", "--to", "asr"), "there is no folder no"),
    ):
        result = run(*args)
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        assert text in result.stderr
    assert sorted(path.name for path in here.iterdir()) == ["in.pt", "object.pt"]


def test_in_python(here):
    """`convert_checkpoint` reads and writes files; weights keep their type."""
    torch.save({key: tensor.bfloat16() for key, tensor in pair().items()}, "in.pt")
    done = convert_checkpoint("in.pt", "out.pt", "asr")
    assert done.layers == ("enc.lstmp", "enc.lstmp2")
    assert {tensor.dtype for tensor in torch.load("out.pt", weights_only=True).values()} == {
        torch.bfloat16
    }


@pytest.mark.slow
def test_old_checkpoint_to_a_chip(here):
    """A checkpoint in layout asr, in the module, exported and quantized: the story from end to
    end.
    """
    torch.save(convert_state_dict(pair("lstmp"), "asr").state, "old.pt")
    convert_checkpoint("old.pt", "new.pt", "ub")
    net = UBLSTMP(WIDTH, P, C)
    state = torch.load("new.pt", weights_only=True)
    lo.export(
        net,
        torch.randn(2, 5, WIDTH),
        "m.onnx",
        exporter="torchscript",
        checkpoint={key: tensor for key, tensor in state.items() if key != "fc.weight"},
    )
    data = np.random.default_rng(0).standard_normal((32, 5, WIDTH)).astype(np.float32)
    done = lo.quantize("m.onnx", data, effort="fast")
    assert done.report.integer_macs == 1
