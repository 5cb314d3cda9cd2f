"""A device against the simulator: dumps that agree, and faults that are found: the layer, the
element, the cause.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lingeronnx import api
from lingeronnx.cli import main
from lingeronnx.common.errors import ConfigError, DataError, ModelError
from lingeronnx.deployment import comparison, verify
from lingeronnx.deployment.fault_hypotheses import FaultHypothesis
from lingeronnx.ir import ir
from lingeronnx.luna import VENUS
from lingeronnx.runtime.session import Session
from tests.deployment.faulty_devices import FaultyDevice, relu
from tests.ops.test_recurrent_forms import WIDTH, T, streaming
from tests.oracles import recurrent as naive
from tests.oracles.elementwise import add_shift

ROOT = Path(__file__).resolve().parents[2]


def real_dumps():
    """Return the folder with dumps of the vendor's executor, where there is one."""
    named = os.environ.get("LINGERONNX_GOLDEN")
    return (Path(named) if named else ROOT.parent / "shared" / "golden") / "packer" / "dump"


@pytest.fixture(scope="module")
def digits():
    """Return a chip graph of the digits net, and three samples, loud enough to saturate."""
    x = np.load(ROOT / "models" / "digits_test.npz")["input"][:3].astype(np.float32) * 1.9
    graph = api.quantize(
        ROOT / "models" / "digits_cnn.onnx", ROOT / "models" / "digits_calib.npz", effort="fast"
    ).graph
    return graph, x


@pytest.fixture(scope="module")
def device(digits):
    return FaultyDevice(digits[0])


@pytest.fixture(scope="module")
def clean(device, digits):
    return device.run({"input": digits[1][:1]})


# ---- dumps of the vendor's executor ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not real_dumps().is_dir(), reason="no dumps of the executor here")
@pytest.mark.parametrize("chip", ("venus", "arcs", "venusA"))
def test_real_dumps(chip, tmp_path):
    """All that the executor dumped is equal, as files and as raw output; one changed integer is
    found.
    """
    folder = real_dumps() / chip
    x = np.fromfile(folder / "input.bin", np.int8).reshape(1, 1, 8, 8)
    found = verify(folder / "graph.onnx", {"input": x}, dump=folder)
    assert found.agrees
    assert len(found.compared) == 12
    assert not found.unknown
    assert verify(folder / "graph.onnx", {"input": x}, output=folder / "output.bin").agrees
    for file in (folder / "data").iterdir():
        text = file.read_text()
        if "block1" in file.name:
            lines = text.split()
            lines[37] = str(int(lines[37]) + 3)
            text = "\n".join(lines)
        (tmp_path / file.name).write_text(text)
    first = verify(folder / "graph.onnx", {"input": x}, dump=tmp_path).first
    assert first.index == (0, 2, 1, 1)  # element 37 of [1, 32, 4, 4]
    assert (first.found - first.expected, first.differing, first.largest) == (3, 1, 3)
    assert first.tensor == "/block1/act/Relu_output_0"


# ---- planted faults --------------------------------------------------------------------------------------------------

STEM, DEPTH, POINT = (
    f"/{n}/bn/BatchNormalization_output_0" for n in ("stem", "depthwise", "pointwise")
)
ONE, TWO, WIDEN = (f"/{n}/bn/BatchNormalization_output_0" for n in ("block1", "block2", "widen"))
ACTS = {
    STEM: "/stem/act/Relu_output_0",
    DEPTH: "/depthwise/act/Clip_output_0",
    ONE: "/block1/act/Relu_output_0",
    WIDEN: "/widen/act/Relu_output_0",
}
POOL, ADD, BLOCK = "/pool/MaxPool_output_0", "/Add_output_0", "/block_act/Relu_output_0"
AVERAGE = "/average/GlobalAveragePool_output_0"


def bit(place, number):
    """Return what flips one bit of a weight."""

    def change(weight):
        weight[place] = np.int8(np.uint8(weight[place] & 255) ^ np.uint8(1 << number))
        return weight

    return change


def turned(weight):
    """Return weights [O, I, h, w] read as if they lay there as [O, h, w, I]."""
    o, i, h, w = weight.shape
    return weight.reshape(o, h, w, i).transpose(0, 3, 1, 2)


def as_nhwc(array):
    """Return the values of NCHW stored as NHWC."""
    return array.transpose(0, 2, 3, 1).reshape(array.shape)


def plus_bias(channel, much):
    def change(bias):
        bias[channel] += much
        return bias

    return change


def floor(acc, shift):
    return min(max(acc >> shift, -128), 127)


def wrap(acc, shift):
    value = (acc + (1 << (shift - 1))) >> shift
    return (value + 128) % 256 - 128


def overwritten(array):
    flat = array.copy().reshape(-1)
    flat[100:164] = 85
    return flat.reshape(array.shape)


def add(device, arrays, by):
    """Return x + y where y comes `by` bits too small."""
    node = device.makers[ADD]
    scale = [ir.get_attr(node, f"scale_{key}") for key in "xyo"]
    shifts = [int(np.log2(scale[0] / scale[2])), int(np.log2(scale[1] / scale[2])) + by]
    return add_shift(*(arrays[str(v.name)] for v in node.inputs), *shifts, 8, 1).astype(np.int8)


#: (fault, kinds that name it, tensor that is wrong first, what the device makes of (device, its clean tensors, inputs))
FAULTS = (
    ("swapped layout", {"layout"}, ACTS[ONE], lambda d, a, x: as_nhwc(a[ACTS[ONE]])),
    ("transposed output", {"transposed"}, POINT, lambda d, a, x: a[POINT].swapaxes(2, 3)),
    (
        "shift 1 too far, conv",
        {"shift"},
        ACTS[WIDEN],
        lambda d, a, x: relu(d.layer(a, WIDEN, shift=1)),
    ),
    (
        "shift 2 too short, linear",
        {"shift"},
        "logits_q",
        lambda d, a, x: d.layer(a, "logits_q", shift=-2),
    ),
    (
        "weight bit, first conv",
        {"weight"},
        ACTS[STEM],
        lambda d, a, x: relu(d.layer(a, STEM, weight=bit((5, 0, 1, 2), 6))),
    ),
    (
        "weight bit, depthwise",
        {"weight"},
        ACTS[DEPTH],
        lambda d, a, x: relu(d.layer(a, DEPTH, weight=bit((7, 0, 1, 1), 7))),
    ),
    (
        "weight bit, linear",
        {"weight"},
        "logits_q",
        lambda d, a, x: d.layer(a, "logits_q", weight=bit((4, 9), 7)),
    ),
    (
        "bias of one channel",
        {"weight"},
        TWO,
        lambda d, a, x: d.layer(a, TWO, bias=plus_bias(3, 5000)),
    ),
    ("no bias", {"bias"}, POINT, lambda d, a, x: d.layer(a, POINT, bias=lambda b: b * 0)),
    ("no Relu behind conv", {"relu"}, ACTS[STEM], lambda d, a, x: a[STEM]),
    ("no Relu behind add", {"relu"}, BLOCK, lambda d, a, x: a[ADD]),
    ("rounded down", {"rounding"}, TWO, lambda d, a, x: d.layer(a, TWO, finish=floor)),
    (
        "wraps, does not saturate",
        {"saturation"},
        POINT,
        lambda d, a, x: d.layer(a, POINT, finish=wrap),
    ),
    (
        "input scale 2 times",
        {"input scale"},
        ACTS[STEM],
        lambda d, a, x: relu(
            d.layer(a, STEM, x=np.clip(np.floor(x[:1] * 128 + 0.5), -128, 127).astype(np.int64))
        ),
    ),
    (
        "input transposed",
        {"input layout"},
        ACTS[STEM],
        lambda d, a, x: relu(d.layer(a, STEM, x=a["input_q"].swapaxes(2, 3))),
    ),
    ("stale buffer", {"stale"}, POOL, lambda d, a, x: d.run({"input": x[1:2]})[POOL]),
    ("another sample", {"stale"}, ACTS[STEM], lambda d, a, x: d.run({"input": x[1:2]})[ACTS[STEM]]),
    ("operand of add shifted", {"shift"}, ADD, lambda d, a, x: add(d, a, 1)),
    ("not computed", {"not computed"}, AVERAGE, lambda d, a, x: a[AVERAGE] * 0),
    ("overwritten", {"unexplained"}, POOL, lambda d, a, x: overwritten(a[POOL])),
    (
        "weights in another layout",
        {"weight layout"},
        ACTS[ONE],
        lambda d, a, x: relu(d.layer(a, ONE, weight=turned)),
    ),
    ("pads on the other side", {"pads"}, TWO, lambda d, a, x: d.layer(a, TWO, pads=[2, 2, 0, 0])),
    ("holds another tensor", {"overwritten"}, BLOCK, lambda d, a, x: a[POOL]),
    ("rows upside down", {"order"}, ACTS[WIDEN], lambda d, a, x: a[ACTS[WIDEN]][:, :, ::-1]),
)


def planted(device, clean, x, fault):
    """Return all tensors of the device with a fault."""
    _, _, tensor, make = fault
    wrong = np.ascontiguousarray(make(device, clean, x)).astype(clean[tensor].dtype)
    assert not np.array_equal(wrong, clean[tensor]), "the fault must show"
    return device.run({"input": x[:1]}, {tensor: wrong}), wrong


@pytest.mark.sweep
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.slow if i % 6 else (), id=fault[0])
        for i, fault in enumerate(FAULTS)
    ],
)
def test_planted_faults(device, clean, digits, fault, tmp_path):
    """The layer, the element and the counts are right, and the cause is named if enough values
    differ to tell it from chance.
    """
    graph, x = digits
    arrays, wrong = planted(device, clean, x, fault)
    tensor = fault[2]
    found = verify(graph, {"input": x}, dump=device.dump(tmp_path / "d", arrays))
    first = found.first
    assert first.tensor == tensor
    off = np.argwhere(wrong != clean[tensor])
    gap = np.abs(wrong.astype(int) - clean[tensor])
    assert (first.index, first.differing, first.largest) == (tuple(off[0]), len(off), gap.max())
    assert (first.found, first.expected) == (wrong[tuple(off[0])], clean[tensor][tuple(off[0])])
    print(f"\n{fault[0]:28} {tensor:44} {first.causes[0].kind:16} {first.causes[0].text}")
    expected_kinds = fault[1] if len(off) >= 16 else {"unexplained"}
    assert first.causes[0].kind in expected_kinds, first.causes


@pytest.mark.slow
def test_a_stale_state(tmp_path):
    """The state of the call before last, and one that is never fed back: the layer that reads it,
    and the input. The state has enough values to tell that from chance.
    """
    model, rng = streaming("LSTM", units=40), np.random.default_rng(0)
    calls = [{"x": rng.standard_normal((4, T, WIDTH)).astype(np.float32)} for _ in range(5)]
    state = {"h_out": "h", "c_out": "c"}
    graph = api.quantize(model, calls, platform="arcs", state=state, effort="fast").graph
    device = FaultyDevice(graph)
    run, held = Session(graph).stream(state), []
    for call in calls[:3]:
        held.append(run.state)
        run.run(None, {"x": call["x"][:1]})
    for name, old in (
        ("stale", held[1]),
        ("never fed back", {k: v * 0 for k, v in held[1].items()}),
    ):
        feeds = {"x": calls[2]["x"][:1], **held[2], "h": old["h"]}
        folder = device.dump(tmp_path / name, device.run(feeds))
        found = verify(graph, calls, dump=folder, sample=2, state=state)
        assert not found.agrees
        cause = found.first.causes[0]
        print(f"\n{name:28} {found.first.tensor:44} {cause.kind:16} {cause.text}")
        assert cause.exact
        assert cause.kind == "stale"
        assert "input 'h'" in cause.text
    right = device.dump(tmp_path / "right", device.run({"x": calls[2]["x"][:1], **held[2]}))
    assert verify(graph, calls, dump=right, sample=2, state=state).agrees


# ---- other ways to see a device --------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("index", (0, 2, 9, 14))
def test_checksums(device, clean, digits, index, tmp_path):
    """A board's log is enough for the layer, and for causes that give exactly its bytes."""
    graph, x = digits
    log = device.log(tmp_path / "right.log", clean)
    right = verify(graph, {"input": x}, log=log)
    assert right.agrees
    assert any("silicon" in note for note in right.notes)
    fault = FAULTS[index]
    arrays, _ = planted(device, clean, x, fault)
    first = verify(graph, {"input": x}, log=device.log(tmp_path / "wrong.log", arrays)).first
    assert (first.tensor, first.differing) == (fault[2], None)
    assert first.causes[0].kind in fault[1]
    assert first.causes[0].exact


def test_words_of_a_checksum(device, clean, digits, tmp_path):
    """Where one of the three words differs, the element is known."""
    graph, x = digits
    wrong = {**clean, POOL: clean[POOL].copy()}
    wrong[POOL].reshape(-1)[-2] += 5
    first = verify(graph, {"input": x}, log=device.log(tmp_path / "b.log", wrong)).first
    assert first.index == (0, 31, 3, 2)
    assert first.found - first.expected == 5


def test_binary_dumps_and_outputs(device, clean, digits, tmp_path):
    """Raw dumps; the output alone, raw and as text."""
    graph, x = digits
    assert verify(graph, {"input": x}, dump=device.dump(tmp_path / "b", clean, binary=True)).agrees
    arrays, _ = planted(device, clean, x, FAULTS[2])
    first = verify(graph, {"input": x}, dump=device.dump(tmp_path / "c", arrays, binary=True)).first
    assert (first.tensor, first.causes[0].kind) == (ACTS[WIDEN], "shift")
    (tmp_path / "o.txt").write_text("\n".join(map(str, clean["logits_q"].reshape(-1).tolist())))
    assert verify(graph, {"input": x}, output=tmp_path / "o.txt").agrees
    (tmp_path / "o.bin").write_bytes(clean["logits_q"].tobytes())
    assert verify(graph, {"input": x}, output=tmp_path / "o.bin").agrees


@pytest.mark.slow
def test_a_fault_seen_in_the_output_alone(device, clean, digits, tmp_path):
    """The fault may lie in any layer; ten logits cannot tell it from chance."""
    graph, x = digits
    arrays, _ = planted(device, clean, x, FAULTS[2])
    (tmp_path / "o.bin").write_bytes(arrays["logits_q"].tobytes())
    first = verify(graph, {"input": x}, output=tmp_path / "o.bin").first
    assert first.tensor == "logits_q"
    assert len(first.nodes) > 10
    assert (first.causes[0].kind, first.causes[0].exact) == ("unexplained", False)
    assert "fewer than 16 may do so by chance" in first.causes[0].text


def test_other_samples(device, digits, tmp_path):
    """`sample` says which one was run."""
    graph, x = digits
    folder = device.dump(tmp_path / "d", device.run({"input": x[2:]}))
    assert verify(graph, {"input": x}, dump=folder, sample=2).agrees
    assert not verify(graph, {"input": x}, dump=folder, sample=1).agrees
    alone = verify(graph, {"input": x[:1]}, dump=folder)
    assert alone.notes[-1].startswith("every tensor differs: the device probably ran another input")
    with pytest.raises(DataError, match="--sample 3"):
        verify(graph, {"input": x}, dump=folder, sample=3)


def test_names(device, clean, digits, tmp_path):
    """The packer's own tensors are listed; long names are cut, unsafe ones changed; the user's are
    spoken of.
    """
    graph, x = digits
    long = "a/very/" + "long" * 20
    other = graph.clone()
    ir.rename(other, {POOL: long, ADD: "Scale:of@add"}, {})
    shown = {
        {POOL: long, ADD: "scale_of_add"}.get(name, name): a
        for name, a in device.shown(clean).items()
    }
    for name, array in {**shown, "pad_of_block1": np.zeros((1, 2), np.int8)}.items():
        title = f"{name.replace('/', '_')[:70]}##{''.join(f'_{n}' for n in array.shape)}.txt"
        (tmp_path / title).write_text("\n".join(map(str, array.reshape(-1).tolist())))
    found = verify(other, {"input": x}, dump=tmp_path)
    assert found.agrees
    assert found.unknown == ("pad_of_block1",)
    assert {long, "Scale:of@add"} <= set(found.compared)
    assert set(found.unseen) == {STEM, DEPTH, ONE, WIDEN}
    ir.save(VENUS.with_safe_names(other), tmp_path / "m.onnx")
    again = verify(tmp_path / "m.onnx", {"input": x}, dump=tmp_path)
    assert (again.compared, again.unknown) == (found.compared, found.unknown)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_refusals(device, clean, digits, tmp_path):
    """Each mistake is one sentence."""
    graph, x = digits
    folder = device.dump(tmp_path / "d", clean)
    data = {"input": x}
    with pytest.raises(ConfigError, match="pass exactly one of"):
        verify(graph, data)
    with pytest.raises(ConfigError, match="pass exactly one of"):
        verify(graph, data, dump=folder, log=folder)
    with pytest.raises(ModelError, match="no integer operator"):
        verify(ROOT / "models" / "digits_cnn.onnx", data, dump=folder)
    with pytest.raises(DataError, match="no dumps found"):
        verify(graph, data, dump=tmp_path)
    with pytest.raises(DataError, match="not a directory"):
        verify(graph, data, dump=tmp_path / "nothing")
    with pytest.raises(DataError, match="cannot read"):
        verify(graph, data, log=tmp_path / "nothing")
    (tmp_path / "o").write_bytes(b"123")
    with pytest.raises(DataError, match="has no line"):
        verify(graph, data, log=tmp_path / "o")
    with pytest.raises(DataError, match="has 3 bytes; the outputs need 10"):
        verify(graph, data, output=tmp_path / "o")
    only = tmp_path / "e"
    only.mkdir()
    (only / "foreign##_1_2.txt").write_text("1\n2\n")
    with pytest.raises(DataError, match="pass the graph that was packed"):
        verify(graph, data, dump=only)
    (only / "foreign##_1_2.txt").write_text("1\nx\n")
    with pytest.raises(DataError, match="one integer per line"):
        verify(graph, data, dump=only)


def test_another_size(device, clean, digits, tmp_path):
    """A tensor of another size differs, and it is said."""
    graph, x = digits
    folder = device.dump(tmp_path / "d", clean)
    (file,) = folder.glob("*MaxPool*")
    file.write_text("1\n2\n")
    first = verify(graph, {"input": x}, dump=folder).first
    assert (first.tensor, first.index) == (POOL, None)
    assert "the device has 2 elements, the simulator 512" in first.remarks


def test_command(device, clean, digits, tmp_path):
    """Exit codes, the text, JSON."""
    graph, x = digits
    ir.save(graph, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", input=x)
    arrays, _ = planted(device, clean, x, FAULTS[2])
    common = [
        "verify",
        str(tmp_path / "m.onnx"),
        "--input",
        str(tmp_path / "x.npz"),
        "--device-dump",
    ]
    good = CliRunner().invoke(main, [*common, str(device.dump(tmp_path / "right", clean))])
    assert good.exit_code == 0, good.output
    assert "14 tensors compared, all equal" in good.output
    bad = CliRunner().invoke(
        main, [*common, str(device.dump(tmp_path / "wrong", arrays)), "--json"]
    )
    assert bad.exit_code == 1
    body = json.loads(bad.stdout)
    assert body["first"]["tensor"] == ACTS[WIDEN]
    assert body["first"]["causes"][0]["kind"] == "shift"
    assert "scale_o" in bad.stderr
    none = CliRunner().invoke(main, common[:-1])
    assert none.exit_code == 1
    assert none.output.startswith("error: pass exactly one of --device-dump")


def test_the_other_generation(device, clean, digits, tmp_path):
    """A graph of generation 3 is compared with the executor's integers too, not with the training
    side's.
    """
    graph, x = digits
    other = api.convert(graph, "linger").graph
    assert verify(other, {"input": x}, dump=device.dump(tmp_path / "d", clean)).agrees
    arrays, _ = planted(device, clean, x, FAULTS[4])
    first = verify(other, {"input": x}, dump=device.dump(tmp_path / "w", arrays)).first
    assert (first.tensor, first.causes[0].kind) == (FAULTS[4][2], "weight")


@pytest.mark.slow
def test_an_lstm(tmp_path):
    """All that an LSTMInt writes is compared; of one that goes on from the sample
    before, the steps that differ are described.
    """
    graph = api.quantize(
        ROOT / "models" / "digits_lstm.onnx", ROOT / "models" / "digits_calib.npz", effort="fast"
    ).graph
    x = np.load(ROOT / "models" / "digits_test.npz")["input"][:1].astype(np.float32)
    device = FaultyDevice(graph)
    arrays = device.run({"input": x})
    found = verify(graph, {"input": x}, dump=device.dump(tmp_path / "d", arrays))
    assert found.agrees
    lstm = next(node for node in graph.graph if node.op_type == "LSTMInt")
    assert {v.name for v in lstm.outputs if v.name} & arrays.keys() <= set(found.compared)
    a = {name: ir.get_attr(lstm, name) for name in lstm.attributes}
    bits = {key: int(np.log2(a[key])) for key in ("scale_x", "scale_iw", "scale_hw", "scale_o")}
    shifts = bits["scale_x"] + bits["scale_iw"] - 11, bits["scale_o"] + bits["scale_hw"] - 11
    parts = arrays[ir.input_name(lstm)], *(ir.const_value(v) for v in lstm.inputs[1:]), *shifts
    rest = (1 << 30, 30 + 14 - bits["scale_o"], 8), "q11", "venus", True
    first, h, c = naive.lstm(*parts, *rest)
    tensor = ir.output_name(lstm)
    np.testing.assert_array_equal(np.array(first), arrays[tensor])
    again = np.array(naive.lstm(*parts, *rest, start=np.array(h), cells=np.array(c))[0]).astype(
        np.int8
    )
    wrong = device.run({"input": x}, {tensor: again})
    found = verify(graph, {"input": x}, dump=device.dump(tmp_path / "w", wrong)).first
    assert (found.tensor, found.index[:2]) == (tensor, (0, 0))
    assert (found.causes[0].kind, found.causes[0].exact) == ("unexplained", False)
    assert found.remarks[0] == "it differs from the first step on"


#: Faults that no hypothesis reproduces: (name, remark, tensor, what the device makes of it).
UNFORESEEN = (
    (
        "two channels' weights",
        "only channels 3, 9 of axis 1 differ",
        TWO,
        lambda d, a: d.layer(
            a,
            TWO,
            weight=lambda w: w // (1 + np.isin(np.arange(len(w)), (3, 9)))[:, None, None, None],
        ),
    ),
    (
        "last row missing",
        "only indices 7 of axis 2 differ",
        ACTS[STEM],
        lambda d, a: a[ACTS[STEM]] * (np.arange(8) < 7)[:, None],
    ),
    (
        "every third value one off",
        "all differences are +1",
        BLOCK,
        lambda d, a: (
            a[BLOCK]
            + (np.arange(512) % 3 == 0).reshape(1, 32, 4, 4) * np.where(a[BLOCK] < 127, 1, -1)
        ),
    ),
    (
        "noise",
        None,
        POOL,
        lambda d, a: a[POOL] ^ np.random.default_rng(0).integers(0, 99, (32, 4, 4), np.int8),
    ),
)


@pytest.mark.sweep
@pytest.mark.parametrize("fault", UNFORESEEN, ids=[name for name, *_ in UNFORESEEN])
def test_unforeseen_faults(device, clean, digits, fault, tmp_path):
    """The layer is right, the difference unexplained, and its pattern a remark without a cause."""
    graph, x = digits
    wrong = fault[3](device, clean).astype(np.int8)
    folder = device.dump(tmp_path / "d", device.run({"input": x[:1]}, {fault[2]: wrong}))
    first = verify(graph, {"input": x}, dump=folder).first
    assert first.tensor == fault[2]
    assert first.differing == (wrong != clean[fault[2]]).sum()
    print(f"\n{fault[0]:28} {fault[2]:44} {first.causes[0].kind:16} {first.causes[0].text}")
    assert [(cause.kind, cause.exact) for cause in first.causes] == [("unexplained", False)]
    assert f"reproduces all {first.differing} values" in first.causes[0].text
    assert list(first.remarks)[:1] == ([] if fault[1] is None else [fault[1]])


@pytest.mark.parametrize("as_log", (False, True))
@pytest.mark.parametrize(
    "differing, reproduced, kind",
    ((16, 16, "planted"), (15, 15, "unexplained"), (40, 39, "unexplained"), (1, 1, "unexplained")),
)
def test_explanation_needs_evidence(
    device, clean, digits, differing, reproduced, kind, as_log, tmp_path, monkeypatch
):
    """A fault is named if it reproduces all differing values and these are at least 16, whether the
    values are known or only their checksum.
    """
    graph, x = digits

    def flip(count):
        array = clean[POOL].copy()
        array.reshape(-1)[:count] ^= 1
        return array

    monkeypatch.setattr(
        comparison,
        "iterate_hypotheses",
        lambda *args: iter([FaultHypothesis("planted", "planted fault", flip(reproduced))]),
    )
    arrays = {**clean, POOL: flip(differing)}
    shown = {"log": device.log(tmp_path / "b.log", arrays)}
    if not as_log:
        shown = {"dump": device.dump(tmp_path / "d", arrays)}
    first = verify(graph, {"input": x}, **shown).first
    assert first.tensor == POOL
    assert [(cause.kind, cause.exact) for cause in first.causes] == [(kind, kind == "planted")]
