"""Plans of other tools: AIMET's encodings in every version, and esp-ppq's JSON.

`files/` has what the tools wrote for planned_by_peers.onnx, a convolution, an average and a linear
layer: aimet_*.encodings are from aimet-onnx 2.42's
`QuantizationSimModel.export(encoding_version=...)`, esp_ppq_espdl.json is from the exporter of
esp-ppq 1.3.12 for ESPDL_INT8, esp_ppq_onnxruntime.json from that for onnxruntime, which gives
tensors names of its own.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.common.errors import ConfigError, LingerOnnxError
from lingeronnx.interchange.qdq.encodings import read_plan
from lingeronnx.ir import ir
from tests.case_selection import limit_examples

FILES = Path(__file__).parent / "files"
MODEL = FILES / "planned_by_peers.onnx"
FEED = {"x": np.random.default_rng(7).normal(size=(16, 2, 6, 6)).astype(np.float32)}
WRITTEN = sorted(path.name for path in FILES.iterdir() if path.suffix in (".encodings", ".json"))


def written(tmp_path, body):
    path = tmp_path / "peer.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


def sqnr(made):
    want = ort.InferenceSession(MODEL).run(None, FEED)[0]
    return 10 * np.log10((want**2).sum() / ((made.session().run(None, FEED)[0] - want) ** 2).sum())


# ---- what the tools wrote ----------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("name", WRITTEN)
def test_on_generic_every_scale_is_taken_over(name):
    made = lo.quantize(MODEL, FEED, platform="generic", plan=read_plan(FILES / name))
    assert {one.tensor for one in made.report.taken} >= {"x", "r", "p", "y", "w1", "w2"}
    assert all(one.kept for one in made.report.taken)
    assert sqnr(made) > (
        10 if "ppq" in name else 35
    )  # esp-ppq cut a tensor at half its range, having seen 16 samples


def test_the_versions_of_aimet_say_the_same():
    plans = [
        lo.quantize(MODEL, FEED, platform="generic", plan=read_plan(FILES / name)).plan
        for name in WRITTEN
        if name.startswith("aimet")
    ]
    assert len(plans) == 3
    for plan in plans[1:]:
        for tensor in ("x", "r", "p", "y", "w1", "w2"):
            assert plan.tensors[tensor].scales == pytest.approx(
                plans[0].tensors[tensor].scales, rel=1e-6
            )
            assert np.array_equal(
                plan.tensors[tensor].zero_points, plans[0].tensors[tensor].zero_points
            )


@pytest.mark.sweep
@pytest.mark.parametrize("name", WRITTEN)
def test_on_a_chip_scales_become_powers_of_two(name):
    made = lo.quantize(MODEL, FEED, platform="venus", plan=read_plan(FILES / name))
    assert made.report.chip_ready
    assert all(
        q.power_of_two and q.axis is None and not q.shifted for q in made.plan.tensors.values()
    )
    notes = "\n".join(made.report.notes)
    if name.startswith("aimet"):
        assert "rounded to powers of two: 'x'" in notes
        assert sqnr(made) > 30
    else:
        assert "esp-ppq: " in notes


def test_a_chips_scales_that_are_powers_of_two_stay():
    made = lo.quantize(MODEL, FEED, platform="venus", plan=read_plan(FILES / "esp_ppq_espdl.json"))
    assert {one.tensor for one in made.report.taken if one.kept} >= {"x", "r", "y"}
    assert made.plan.tensors["x"].scale == 32


def test_tensors_with_names_of_the_exporter_are_found_by_their_node():
    made = lo.quantize(
        MODEL, FEED, platform="generic", plan=read_plan(FILES / "esp_ppq_onnxruntime.json")
    )
    body = json.loads((FILES / "esp_ppq_onnxruntime.json").read_text())
    config = body["configs"]["conv"]["PPQ_Variable_0"]  # the first of its node: the input
    assert made.plan.tensors["x"].scale == pytest.approx(
        1 / body["values"][str(config["dominator"])]["scale"]
    )
    assert "PPQ_Variable_0" not in made.report.refused


def test_command(tmp_path):
    path, out = FILES / "aimet_1.0.0.encodings", tmp_path / "q.onnx"
    np.savez(tmp_path / "x.npz", **FEED)
    arguments = [
        "quantize",
        str(MODEL),
        "-o",
        str(out),
        "--calib",
        str(tmp_path / "x.npz"),
        "--plan",
        str(path),
        "--json",
    ]
    done = CliRunner().invoke(cli.main, arguments)
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    assert {one["tensor"] for one in body["scales_taken"]} == {"x", "r", "p", "y", "w1", "w2"}
    assert body["scales_refused"] == {}
    assert out.exists()


def test_fine_tuning_begins_with_it():
    pytest.importorskip("torch")
    made = lo.finetune(
        MODEL, FEED, platform="venus", plan=read_plan(FILES / "aimet_2.0.0.encodings"), epochs=1
    )
    assert made.plan.tensors["x"].power_of_two


# ---- by hand -----------------------------------------------------------------------------------------------------


def zeroth(scale=0.03, offset=-128, bits=8, symmetric="True", **more):
    return {
        "bitwidth": bits,
        "dtype": "int",
        "is_symmetric": symmetric,
        "offset": offset,
        "scale": scale,
        **more,
    }


def first(name, scale=0.03, offset=-128, bits=8, symmetric=True, **more):
    return {
        "name": name,
        "enc_type": "PER_TENSOR",
        "dtype": "INT",
        "bw": bits,
        "is_sym": symmetric,
        "scale": [scale],
        "offset": [offset],
        **more,
    }


def second(**entry):
    return {"version": "2.0.0", "encodings": [{"name": "x", **entry}]}


def ppq(**tensors):
    """Return esp-ppq's JSON for the node conv: {tensor: (scale, changes of its entry)}."""
    body = {"configs": {"conv": {}}, "dispatchings": {}, "values": {}}
    for number, (name, (scale, changes)) in enumerate(tensors.items()):
        body["configs"]["conv"][name] = {
            "bit_width": 8,
            "policy": {"LINEAR": True, "SYMMETRICAL": True},
            "state": "ACTIVATED",
            "quant_min": -128,
            "quant_max": 127,
            "hash": number,
            "dominator": number,
            **changes,
        }
        body["values"][str(number)] = {"scale": scale, "zero_point": 0.0}
    return body


@limit_examples(40)
@given(step=st.floats(1e-4, 10), zero=st.integers(0, 255))
def test_every_version_holds_the_same_grid(tmp_path_factory, step, zero):
    """Law: the integers of one tensor, unsigned with 0 at `zero`, are the same grid in each
    file.
    """
    model, folder = ir.load(MODEL), tmp_path_factory.mktemp("encodings")
    bodies = (
        {
            "version": "0.6.1",
            "activation_encodings": {"x": [zeroth(step, -zero, 8, "False")]},
            "param_encodings": {},
        },
        {
            "version": "1.0.0",
            "activation_encodings": [first("x", step, -zero, 8, False)],
            "param_encodings": [],
        },
        second(output_dtype="uint8", y_scale=step, y_zero_point=zero),
        second(output_dtype="int8", y_scale=step, y_zero_point=zero - 128),
    )
    for body in bodies:
        (grid,) = read_plan(written(folder, body)).resolve_for(model).activations.values()
        real = np.arange(256.0) * step - zero * step  # what the 256 integers stand for
        assert grid.ends == pytest.approx((real[0], real[-1]), rel=1e-6, abs=1e-9)
        assert (grid.bits, grid.signed_zero) == (8, zero - 128)


def test_integers_around_zero_without_the_lowest(tmp_path):
    """A strictly symmetric grid has offset -127 in the older versions: 0 is still 0."""
    body = {
        "version": "0.6.1",
        "activation_encodings": {"x": [zeroth(0.5, -127)]},
        "param_encodings": {},
    }
    assert (
        read_plan(written(tmp_path, body)).resolve_for(ir.load(MODEL)).activations["x"].shifted == 0
    )


def test_what_is_refused_is_named_with_its_reason(tmp_path):
    body = {
        "version": "1.0.0",
        "activation_encodings": [
            first("x"),
            first("q", 0.1),
            {"name": "r", "enc_type": "PER_TENSOR", "dtype": "FLOAT", "bw": 16},
            first("p", enc_type="LPBQ"),
        ],
        "param_encodings": [first("w1", 1.0), first("w2", bits=32)],
    }
    made = lo.quantize(MODEL, FEED, platform="venus", plan=read_plan(written(tmp_path, body)))
    refused = made.report.refused
    assert set(refused) == {"q", "r", "p", "w1"}
    assert refused["q"] == "the model has no tensor of that name"
    assert "FLOAT" in refused["r"]
    assert "blocks" in refused["p"]
    assert "does not match these weights" in refused["w1"]
    assert any(note.startswith("no imported scale for ") for note in made.report.notes)
    assert [one.tensor for one in made.report.taken] == ["x"]


@pytest.mark.parametrize("axis", [4, -5])
def test_an_axis_outside_the_tensor_is_refused(tmp_path, axis):
    """The other tensors of the file are taken over; -4 is the first of four axes."""
    encodings = [
        {"name": "w1", "output_dtype": "int8", "y_scale": [0.01] * 4, "axis": axis},
        {"name": "x", "output_dtype": "int8", "y_scale": [0.1] * 2, "axis": axis},
        {"name": "w2", "output_dtype": "int8", "y_scale": 0.01},
    ]
    body = {"version": "2.0.0", "encodings": encodings}
    made = lo.quantize(MODEL, FEED, platform="generic", plan=read_plan(written(tmp_path, body)))
    reason = f"it has scales along axis {axis}, and the tensor 4 axes"
    assert made.report.refused == {"w1": reason, "x": reason}
    for entry in encodings:
        entry["axis"] = -4
    read_plan(written(tmp_path, body)).resolve_for(lo.Session(str(MODEL)).model)


def test_scales_from_before_and_after_batch_normalization_was_folded_in(tmp_path):
    """A weight's scale fits the numbers before folding, per channel multiplied by it, or the
    numbers after it.
    """
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[N, 2, 4, 4] x) => (float[N, 3, 4, 4] y)
        <float[3, 2, 1, 1] w, float[3] g, float[3] b, float[3] m, float[3] v>
        { c = Conv (x, w)  y = BatchNormalization (c, g, b, m, v) }"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(3, 2, 1, 1)).astype(np.float32), np.array([8, 9, 10], np.float32)
    held = {"w": w, "g": g, "b": np.zeros(3), "m": np.zeros(3), "v": np.ones(3)}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in held.items()
    )
    onnx.save(proto, tmp_path / "m.onnx")
    feed = {"x": rng.normal(size=(8, 2, 4, 4)).astype(np.float32)}
    for factor in (np.ones(3), g):
        tops = np.abs(w).max(axis=(1, 2, 3)) * factor
        entry = {
            "name": "w",
            "output_dtype": "int8",
            "y_scale": [float(top / 127) for top in tops],
            "axis": 0,
        }
        others = [{"name": name, "output_dtype": "int8", "y_scale": 0.03} for name in ("x", "c")]
        path = written(tmp_path, {"version": "2.0.0", "encodings": [entry, *others]})
        made = lo.quantize(tmp_path / "m.onnx", feed, platform="generic", plan=read_plan(path))
        (weight,) = [one for one in made.report.taken if one.sqnr is None and one.bits_lost is None]
        assert weight.qparams.scales == pytest.approx(
            127 / (np.abs(w).max(axis=(1, 2, 3)) * g), rel=1e-4
        )
        assert list(made.report.refused) == ["c"]  # between the two
        assert "not a separate integer tensor here" in made.report.refused["c"]


@pytest.mark.parametrize(
    "changes, word",
    (
        ({"state": "FP32"}, "float"),
        ({"policy": {"FLOATING": True}}, "floating"),
        ({"policy": {"DYNAMIC": True}}, "dynamic"),
        ({"dominator": 9}, "no scale"),
    ),
)
def test_what_ppq_has_no_fixed_integers_for(tmp_path, changes, word):
    made = read_plan(written(tmp_path, ppq(x=(0.05, {}), r=(0.05, changes)))).resolve_for(
        ir.load(MODEL)
    )
    assert word in made.rejected["r"]
    assert set(made.activations) == {"x"}


def test_wide_integers_on_generic(tmp_path):
    body = {
        "version": "2.0.0",
        "encodings": [{"name": "y", "output_dtype": "int16", "y_scale": 1e-3}],
    }
    made = lo.quantize(MODEL, FEED, platform="generic", plan=read_plan(written(tmp_path, body)))
    assert (made.plan.tensors["y"].bits, made.plan.tensors["y"].scale) == (16, pytest.approx(1000))


# ---- damage ------------------------------------------------------------------------------------------------------

DAMAGED = {
    "no JSON": "{",
    "a list": [],
    "nothing known": {"scales": {}},
    "another version": {"version": "3.0.0", "encodings": []},
    "a version that is no text": {"version": 2, "encodings": []},
    "no tensor of the model": {
        "version": "1.0.0",
        "activation_encodings": [first("nowhere")],
        "param_encodings": [],
    },
    "nothing at all": {"version": "1.0.0", "activation_encodings": [], "param_encodings": []},
    "no name": {"version": "1.0.0", "activation_encodings": [{"bw": 8}], "param_encodings": []},
    "no scale": {
        "version": "1.0.0",
        "activation_encodings": [first("x", scale=None)],
        "param_encodings": [],
    },
    "a negative scale": {
        "version": "1.0.0",
        "activation_encodings": [first("x", -1.0)],
        "param_encodings": [],
    },
    "an infinite scale": second(output_dtype="int8", y_scale=float("inf")),
    "a scale that is too small": second(output_dtype="int8", y_scale=1e-320),
    "an integer scale beyond the float range": second(output_dtype="int8", y_scale=10**400),
    "a zero point beyond the float range": second(
        output_dtype="int8", y_scale=1.0, y_zero_point=-(10**400)
    ),
    "an offset beyond the float range": {
        "version": "1.0.0",
        "activation_encodings": [first("x", offset=10**400)],
        "param_encodings": [],
    },
    "a quant_min beyond the float range": ppq(x=(0.1, {"quant_min": -(10**400)})),
    "a type of thousands of digits": second(output_dtype="int" + "9" * 5000, y_scale=1.0),
    "fewer offsets": {
        "version": "1.0.0",
        "activation_encodings": [first("x", offset=0) | {"offset": []}],
    },
    "no bits": {
        "version": "1.0.0",
        "activation_encodings": [first("x", bits="8")],
        "param_encodings": [],
    },
    "100 bits": {
        "version": "2.0.0",
        "encodings": [{"name": "x", "output_dtype": "int100", "y_scale": 1.0}],
    },
    "a zero point outside": {
        "version": "2.0.0",
        "encodings": [{"name": "x", "output_dtype": "int8", "y_scale": 1.0, "y_zero_point": 200}],
    },
    "an axis that is no number": {
        "version": "2.0.0",
        "encodings": [{"name": "w1", "output_dtype": "int8", "y_scale": [1.0] * 4, "axis": "0"}],
    },
    "no encoding": {"version": "0.6.1", "activation_encodings": {"x": []}, "param_encodings": {}},
    "encodings of the other version": {"version": "0.6.1", "activation_encodings": [first("x")]},
    "configs that are a list": {"configs": [], "values": {}},
    "a range upside down": ppq(x=(0.1, {"quant_min": 5, "quant_max": -5})),
    "no state": ppq(x=(0.1, {"state": None})),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_told_in_one_line(tmp_path, name):
    path = written(tmp_path, DAMAGED[name])
    with pytest.raises(ConfigError) as caught:
        lo.quantize(MODEL, FEED, plan=read_plan(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("scale", "shown"),
    [
        pytest.param(10**400, "of 401 digits", id="large"),
        pytest.param(-(10**400), "of 401 digits", id="negative"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_a_scale_that_is_no_finite_float_is_told_with_the_limit(tmp_path, scale, shown):
    path = written(tmp_path, second(output_dtype="int8", y_scale=scale))
    with pytest.raises(ConfigError) as caught:
        read_plan(path)
    assert str(caught.value) == (
        f"the plan {path}, 'x': found scale {shown}; expected a finite number below 1.8e308 in "
        "magnitude"
    )


def test_a_large_integer_within_the_float_range_is_read(tmp_path):
    entry = {"output_dtype": "int8", "y_scale": 10**300}
    (encoding,) = read_plan(written(tmp_path, second(**entry))).entries
    assert encoding.qparams.scale == 1e-300


@pytest.mark.sweep
@pytest.mark.parametrize("name", WRITTEN)
def test_damage_at_random(tmp_path, name):
    """Law: a value that is put in the place of another is read, or refused in one line; never
    anything else.
    """
    rng = np.random.default_rng(3)
    for _ in range(60):
        body = json.loads((FILES / name).read_text())
        places = [
            (holder, key)
            for holder in _holders(body)
            for key in (holder if isinstance(holder, dict) else range(len(holder)))
        ]
        holder, key = places[rng.integers(len(places))]
        holder[key] = [None, -1, 0, "x", [], {}, 1e30, True][rng.integers(8)]
        path, told = written(tmp_path, body), ""
        try:
            read_plan(path).resolve_for(ir.load(MODEL))
        except LingerOnnxError as error:
            told = str(error)
        assert "\n" not in told


def _holders(body):
    if isinstance(body, dict | list):
        if body:
            yield body
        for value in body.values() if isinstance(body, dict) else body:
            yield from _holders(value)


def test_a_quantized_model_has_scales_of_its_own(tmp_path):
    lo.convert(lo.quantize(MODEL, FEED).graph, "qdq").save(tmp_path / "q.onnx")
    with pytest.raises(ConfigError, match="quantized already"):
        lo.quantize(tmp_path / "q.onnx", FEED, plan=read_plan(FILES / "aimet_1.0.0.encodings"))
