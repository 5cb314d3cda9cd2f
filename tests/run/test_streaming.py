"""Models called again and again: sessions that remember, calibration over calls."""

import numpy as np
import pytest
from click.testing import CliRunner

from lingeronnx import api
from lingeronnx.api import quantize
from lingeronnx.cli import main
from lingeronnx.common.errors import ConfigError, DataError
from lingeronnx.deployment.simulation import read_integer_graph, run_samples
from lingeronnx.ir import ir
from lingeronnx.runtime.session import Session
from lingeronnx.runtime.streaming import _select_loud_calls, unroll_calls
from tests.ops.test_recurrent_forms import WIDTH, H, T, float_outputs, sqnr, streaming

STATES = {"LSTM": {"h_out": "h", "c_out": "c"}, "GRU": {"h_out": "h"}}


def chunks(count=4, calls=5, seed=0):
    """Return the inputs of some calls, for `count` streams at a time."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((count, T, WIDTH)).astype(np.float32) for _ in range(calls)]


def by_hand(session, pairs, inputs):
    """Feed states back without any help; return the first output of every call."""
    state = {name: np.zeros((1, len(inputs[0]), H), np.float32) for name in pairs.values()}
    outputs = [str(v.name) for v in session.model.graph.outputs]
    found = []
    for x in inputs:
        have = dict(zip(outputs, session.run(None, {"x": x, **state}), strict=True))
        state = {name: have[output] for output, name in pairs.items()}
        found.append(have[outputs[0]])
    return found


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("row", ("generic", "arcs"))
def test_stream(row, kind):
    """Integers stay close to the float model over many calls; a reset begins anew, alone or with
    values.
    """
    model, inputs = streaming(kind), chunks(calls=8)
    found = quantize(
        model, [{"x": x} for x in inputs], platform=row, state=STATES[kind], effort="fast"
    )
    assert "states are fed back over 8 calls" in found.report.notes
    session = found.session()
    stream = session.stream(STATES[kind])
    assert stream.state == {}
    first = [stream.run(None, {"x": x})[0] for x in inputs]
    want = by_hand(Session(model), STATES[kind], inputs)
    assert all(sqnr(a, b) > 20 for a, b in zip(want, first, strict=True))
    for a, b in zip(by_hand(session, STATES[kind], inputs), first, strict=True):
        np.testing.assert_array_equal(a, b)
    held = stream.state
    stream.reset()
    again = [stream.run([str(model.graph.outputs[0].name)], {"x": x})[0] for x in inputs[:2]]
    np.testing.assert_array_equal(np.array(again), np.array(first[:2]))
    after = stream.run(None, {"x": inputs[0]})[0]
    stream.reset(held)
    assert not np.array_equal(after, stream.run(None, {"x": inputs[0]})[0])
    other = session.stream(STATES[kind], start=held)
    other.run(None, {"x": inputs[0]})
    for name, array in stream.state.items():
        np.testing.assert_array_equal(other.state[name], array)


@pytest.mark.parametrize("kind", STATES)
def test_float_sessions_stream_too(kind):
    """The baseline."""
    session, inputs = Session(streaming(kind)), chunks(3, 3)
    stream = session.stream(STATES[kind])
    have = [stream.run(None, {"x": x})[0] for x in inputs]
    np.testing.assert_array_equal(have, by_hand(session, STATES[kind], inputs))


def test_one_stream_or_many():
    """Rows of a batch do not touch each other."""
    model, inputs = streaming("LSTM"), chunks()
    session = quantize(
        model, [{"x": x} for x in inputs], platform="generic", state=STATES["LSTM"], effort="fast"
    ).session()
    whole, one = session.stream(STATES["LSTM"]), session.stream(STATES["LSTM"])
    for x in inputs:
        np.testing.assert_array_equal(
            whole.run(None, {"x": x})[0][2:3], one.run(None, {"x": x[2:3]})[0]
        )


def test_unrolled():
    """The states of each call are those that the call before left; given ones, and other batches,
    begin anew.
    """
    model, inputs = streaming("GRU"), chunks(2, 3)
    start = np.full((1, 2, H), 0.5, np.float32)
    calls = [{"x": inputs[0]}, {"x": inputs[1]}, {"x": inputs[2], "h": start}, {"x": inputs[0][:1]}]
    found = unroll_calls(model, calls, STATES["GRU"])
    (feeds,) = found.items
    assert (found.call_count, found.held) == (4, False)
    assert {name: array.shape for name, array in feeds.items()} == {
        "x": (7, T, WIDTH),
        "h": (1, 7, H),
    }
    ends = float_outputs(model, {"x": inputs[0], "h": np.zeros((1, 2, H), np.float32)})["h_out"]
    np.testing.assert_array_equal(feeds["h"][:, :2], 0 * start)
    np.testing.assert_array_equal(feeds["h"][:, 2:4], ends)
    np.testing.assert_array_equal(feeds["h"][:, 4:6], start)
    np.testing.assert_array_equal(feeds["h"][:, 6:], 0 * start[:, :1])
    np.testing.assert_array_equal(feeds["x"][:2], inputs[0])


@pytest.mark.parametrize("silent", (60, 40))
def test_measured_on_calls_that_tell(silent):
    """Calls in a row are held back: the last ones, or, where a stream ends in silence, those that
    are loud enough.
    """
    model = streaming("GRU")
    inputs = [x * (0.0 if number >= silent else 1.0) for number, x in enumerate(chunks(1, 60))]
    found = unroll_calls(model, [{"x": x} for x in inputs], {"h_out": "h"}, hold_out=True)
    first = next(
        n for n, x in enumerate(inputs) if np.array_equal(x, found.evaluation_calls[0]["x"])
    )
    assert all(
        np.array_equal(a["x"], b)
        for a, b in zip(found.evaluation_calls, inputs[first : first + 12], strict=True)
    )
    assert first == 48 if silent == 60 else 30 <= first < 48 - 4
    rest = np.concatenate([*inputs[:first], *inputs[first + 12 :]])
    np.testing.assert_array_equal(found.items[0]["x"], rest)
    assert (found.call_count, found.held) == (60, True)


def test_the_loudness_of_calls():
    """Each output counts by its own power; all zeros are as loud as can be."""
    power = np.zeros((10, 3))
    power[:, 0], power[:5, 1] = 1e6, 1e-6
    assert _select_loud_calls(power, 3) == slice(
        7, 10
    )  # half of what both have on average: the first has all of its own
    power[:, 0] = 0
    assert _select_loud_calls(power, 3) == slice(4, 7)  # the latest with one loud call of three
    assert _select_loud_calls(power[5:], 3) == slice(2, 5)
    assert _select_loud_calls(np.zeros((4, 0)), 4) == slice(0, 4)


def test_calls_without_an_end(monkeypatch):
    """A generator of calls that never ends gets one line; with a limit so many samples are taken,
    of a list all.
    """
    monkeypatch.setattr("lingeronnx.runtime.streaming.MAX_UNBOUNDED_SAMPLES", 5)
    model, x = streaming("GRU"), chunks(2)[0]

    def endless():
        while True:
            yield {"x": x}

    with pytest.raises(
        DataError, match="read 5 samples from a source of unknown length; set --limit"
    ):
        unroll_calls(model, endless, STATES["GRU"])
    assert unroll_calls(model, endless, STATES["GRU"], limit=8).call_count == 4
    assert unroll_calls(model, [{"x": x}] * 6, STATES["GRU"], limit=8).call_count == 6
    made = quantize(model, endless, platform="generic", state=STATES["GRU"], limit=8, effort="fast")
    assert "states are fed back over 4 calls" in made.report.notes


def test_calibration_over_calls_matters():
    """A state that builds up over calls gets a scale that holds it; samples by themselves would not
    show it.
    """
    model, inputs = streaming("LSTM"), chunks(calls=6)
    fed = quantize(
        model, [{"x": x} for x in inputs], platform="generic", state=STATES["LSTM"], effort="fast"
    )
    alone = [
        {"x": x, "h": np.zeros((1, 4, H), np.float32), "c": np.zeros((1, 4, H), np.float32)}
        for x in inputs
    ]
    seen = {
        kind: unroll_calls(model, calls, STATES["LSTM"]).items[0]["h"]
        for kind, calls in (("fed", [{"x": x} for x in inputs]), ("alone", alone))
    }
    assert np.abs(seen["fed"]).max() > 0.3
    assert not seen["alone"].any()
    (node,) = [n for n in fed.graph.graph if n.op_type == "LSTMInt"]
    assert ir.get_attr(node, "scale_o") >= 64


def test_one_call_is_told_of():
    """With calls=1, a file of samples is one call of many streams."""
    model = streaming("GRU")
    notes = quantize(
        model,
        {"x": chunks(8, 1)[0]},
        platform="generic",
        state=STATES["GRU"],
        calls=1,
        effort="fast",
    ).report.notes
    assert any("contain a single call" in note for note in notes)


def test_calls_with_states_of_their_own_are_told_of():
    model = streaming("GRU")
    calls = [{"x": x, "h": np.full((1, 4, H), 0.1, np.float32)} for x in chunks(calls=3)]
    notes = quantize(
        model, calls, platform="generic", state=STATES["GRU"], effort="fast"
    ).report.notes
    assert any(
        note.startswith("each of the 3 calls of the data has states of its own") for note in notes
    )
    assert not any("fed back over" in note for note in notes)
    mixed = [*calls, {"x": chunks()[0]}]
    notes = quantize(
        model, mixed, platform="generic", state=STATES["GRU"], effort="fast"
    ).report.notes
    assert "states are fed back over 4 calls" in notes


AMBIGUOUS = (
    "one item of 6 samples may be 6 consecutive calls, or one call of 6 .*--calls all.*--calls 1"
)


def _npz(folder, x):
    np.savez(folder / "calls.npz", x=x)
    return folder / "calls.npz"


@pytest.mark.parametrize(
    "make",
    [
        _npz,
        lambda folder, x: _npz(folder, x) and folder,
        lambda folder, x: {"x": x},
        lambda folder, x: [{"x": x}],
        lambda folder, x: lambda: {"x": x},
    ],
    ids=["npz", "folder", "dict", "list", "function"],
)
def test_one_item_of_many_samples_has_two_readings(make, tmp_path):
    model, x = streaming("GRU"), chunks(6, 1)[0]
    data, state = make(tmp_path, x), STATES["GRU"]
    with pytest.raises(DataError, match=f"calibration data: {AMBIGUOUS}"):
        quantize(model, data, platform="generic", state=state, effort="fast")
    for calls, expected in (
        ("all", [{"x": row[None]} for row in x]),
        (3, [{"x": x[:2]}, {"x": x[2:4]}, {"x": x[4:]}]),
    ):
        divided = unroll_calls(model, data, state, calls_per_item=calls)
        listed = unroll_calls(model, expected, state)
        assert divided.call_count == len(expected)
        np.testing.assert_equal(divided.items, listed.items)
        np.testing.assert_equal(divided.evaluation_calls, listed.evaluation_calls)
    assert unroll_calls(model, data, state, calls_per_item=1).call_count == 1
    with pytest.raises(DataError, match="item 0: 6 samples cannot be divided into 4 calls"):
        unroll_calls(model, data, state, calls_per_item=4)


def test_a_large_file_is_one_item(tmp_path, monkeypatch):
    monkeypatch.setattr("lingeronnx.runtime.data.archives._CHUNK_BYTES", 64)
    path = _npz(tmp_path, chunks(6, 1)[0])
    with pytest.raises(DataError, match=AMBIGUOUS):
        unroll_calls(streaming("GRU"), path, STATES["GRU"])


def test_one_reading():
    """A single sample, a sequence of items, and samples with their states are clear."""
    model, (x, other) = streaming("GRU"), chunks(6, 2)
    states = np.full((1, 6, H), 0.5, np.float32)
    for data, count in (
        ({"x": x[:1]}, 1),
        ([{"x": x}, {"x": other}], 2),
        ({"x": x, "h": states}, 1),
    ):
        assert unroll_calls(model, data, STATES["GRU"]).call_count == count


def test_every_divided_item_is_a_sequence():
    """Its states begin at zeros, for both models."""
    model, (x, other) = streaming("GRU"), chunks(3, 2)
    both = unroll_calls(model, [{"x": x}, {"x": other}], STATES["GRU"], calls_per_item="all")
    alone = unroll_calls(model, {"x": other}, STATES["GRU"], calls_per_item="all")
    np.testing.assert_array_equal(both.items[0]["h"][:, 3:], alone.items[0]["h"])
    assert [call.keys() - {"x"} for call in both.evaluation_calls] == [set()] * 3 + [{"h"}] + [
        set()
    ] * 2


def test_calls_need_states_and_a_number():
    model, x = streaming("GRU"), chunks(6, 1)[0]
    with pytest.raises(ConfigError, match="--state OUT=IN, or drop --calls"):
        quantize(model, {"x": x, "h": np.zeros((1, 6, H), np.float32)}, calls="all")
    for calls in (0, "each", 2.5, True):
        with pytest.raises(ConfigError, match="calls"):
            quantize(model, {"x": x}, state=STATES["GRU"], calls=calls)


def test_other_commands_divide_items_too(tmp_path):
    """Both models, and golden vectors, get the same calls."""
    model, x = streaming("LSTM"), chunks(6, 1)[0]
    data, listed, state = _npz(tmp_path, x), [{"x": row[None]} for row in x], STATES["LSTM"]
    result = quantize(model, data, platform="arcs", state=state, calls="all", effort="fast")
    for run in (
        lambda **calls: api.compare(model, result, data, state=state, **calls),
        lambda **calls: api.deploy(result, tmp_path / "board", data, state=state, **calls),
        lambda **calls: api.verify(
            result, data, dump=tmp_path / "no dump", state=state, sample=2, **calls
        ),
        lambda **calls: api.sensitivity(
            model, data, state=state, platform="arcs", what="weight", **calls
        ),
    ):
        with pytest.raises(DataError, match=AMBIGUOUS):
            run()
    compared = api.compare(model, result, data, state=state, calls="all")
    expected = api.compare(model, result, listed, state=state)
    assert compared.to_dict()["layers"] == expected.to_dict()["layers"]
    with pytest.raises(ConfigError, match="name the states"):
        api.compare(model, result, data, calls="all")
    graph = read_integer_graph(result.graph)
    runs = run_samples(graph, data, 0, 6, state, "all")
    expected_runs = run_samples(graph, listed, 0, 6, state)
    assert len(runs) == 6
    for index, run in runs.items():
        np.testing.assert_equal(run.integers, expected_runs[index].integers)


def test_wrong_names():
    """Errors name what is meant."""
    session = Session(streaming("GRU"))
    wrong = (
        ({"h_ou": "h"}, "no output 'h_ou'.*h_out"),
        ({"h_out": "hh"}, "no input 'hh'.*'h'"),
        ({"h_out": "h", "t8": "h"}, "two outputs|no output"),
        ({}, "pass the tensors to feed back"),
    )
    for state, words in wrong:
        with pytest.raises(ConfigError, match=words):
            session.stream(state)
    stream = session.stream(STATES["GRU"])
    with pytest.raises(ConfigError, match="'x' is not a state input"):
        stream.reset({"x": np.zeros(3)})
    with pytest.raises(DataError, match="fed back from the last call"):
        stream.run(None, {"x": chunks()[0], "h": np.zeros((1, 4, H), np.float32)})
    with pytest.raises(DataError, match="no array for input 'x'"):
        stream.run(None, {})
    with pytest.raises(DataError, match=r'Session.stream\({"h_out": "h"}\) feeds it back'):
        session.run(None, {"x": chunks()[0]})
    zeros = np.zeros((1, 4, H), np.float32)
    with pytest.raises(DataError, match="no array for input 'x'; the data have h; try y"):
        unroll_calls(
            streaming("GRU"), [{"h": zeros}], STATES["GRU"], advice=lambda missing: "try y"
        )


def test_unknown_size_of_a_state():
    """Zeros need a size."""
    model = streaming("GRU")
    model.graph.inputs[1].shape = ir.Shape([1, "N", "H"])
    with pytest.raises(DataError, match="unknown size"):
        Session(model).stream(STATES["GRU"]).run(None, {"x": chunks()[0]})


def test_command_line(tmp_path):
    """`--state`, and items of a folder as calls."""
    ir.save(streaming("GRU"), tmp_path / "m.onnx")
    folder = tmp_path / "calls"
    folder.mkdir()
    for number, x in enumerate(chunks(2, 3)):
        np.save(folder / f"{number}.npy", x)
    arguments = [
        "quantize",
        str(tmp_path / "m.onnx"),
        "--calib",
        str(folder),
        "--platform",
        "generic",
    ]
    done = CliRunner().invoke(main, [*arguments, "--state", "h_out=h"])
    assert done.exit_code == 0, done.output
    assert "fed back over 3 calls" in done.output
    assert CliRunner().invoke(main, [*arguments, "--state", "h_out"]).exit_code == 1
    np.savez(tmp_path / "calls.npz", x=chunks(6, 1)[0])
    arguments[3] = str(tmp_path / "calls.npz")
    refused = CliRunner().invoke(main, [*arguments, "--state", "h_out=h"])
    assert refused.exit_code == 1
    assert "--calls all" in refused.output
    done = CliRunner().invoke(main, [*arguments, "--state", "h_out=h", "--calls", "all"])
    assert done.exit_code == 0, done.output
    assert "fed back over 6 calls" in done.output
    assert CliRunner().invoke(main, [*arguments, "--calls", "0"]).exit_code == 2


def test_without_data():
    """Synthetic calls feed states back, too, and names are checked."""
    model = streaming("LSTM")
    notes = quantize(model, platform="generic", state=STATES["LSTM"], effort="fast").report.notes
    assert "states are fed back over 4 calls" in notes
    with pytest.raises(ConfigError, match="no output 'h_ou'"):
        quantize(model, platform="generic", state={"h_ou": "h"})
