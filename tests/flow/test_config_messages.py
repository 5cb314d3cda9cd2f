"""A configuration file that is refused: one line with file, path, value, allowed values, remedy."""

import json

import pytest
import yaml

import lingeronnx as lo
from tests import nets

CASES = (
    ("skip: conv", "skip = 'conv': expected a list of strings"),
    ("skip: [1]", "skip[0] = 1: expected a string"),
    (
        "calibrator: msee",
        "calibrator = 'msee': expected max, percentile, mse or kl; did you mean 'mse'?",
    ),
    ("bits: x", "bits = 'x': expected an integer"),
    ("bits: 8.5", "bits = 8.5: expected an integer"),
    ("batch: 0", "batch = 0: expected an integer >= 1"),
    ("seed: -1", "seed = -1: expected an integer >= 0"),
    ("percentile: 10", "percentile = 10: expected a number > 50 and <= 100"),
    ("memory: 0", "memory = 0: expected a number > 0 and <= 1e+06"),
    ("fit: maybe", "fit = 'maybe': expected true or false"),
    ("parts: 2", "parts = 2: expected an integer equal to 1 or null"),
    ("calls: al", "calls = 'al': expected an integer >= 1, all or null; did you mean 'all'?"),
    ("weight_bits: aut", "weight_bits = 'aut': expected an integer or auto; did you mean 'auto'?"),
    (
        "fix: {x: [1, a]}",
        "fix.x = [1, 'a']: expected a number, a string or a list of numbers",
    ),
    ("state: h", "state = 'h': expected a mapping of names to strings"),
    ("batch_axis: {x: a}", "batch_axis.x = 'a': expected an integer or null"),
    ("input_shape: {x: [1, two]}", "input_shape.x[1] = 'two': expected an integer"),
    (
        "overrides: {'a/b.c': {calibrator: mx}}",
        (
            "overrides['a/b.c'].calibrator = 'mx': expected max, percentile, mse, kl or null; "
            "did you mean 'max'?"
        ),
    ),
    (
        "overrides: {conv: {out_bits: 9}}",
        "overrides.conv.out_bits = 9: expected 8, 16, 32, float or null",
    ),
    (
        "overrides: {conv: {calibratr: max}}",
        (
            "unknown key 'calibratr' in overrides.conv; did you mean 'calibrator'?; known: calibrator, "
            "percentile, scale, bits, weight_bits, out_bits"
        ),
    ),
    (
        "overrides: {conv: 3}",
        (
            "overrides.conv = 3: expected a mapping with the keys calibrator, percentile, scale, bits, "
            "weight_bits, out_bits"
        ),
    ),
    ("weight_scales: 3", "weight_scales = 3: it must be tensor, channel, or group:N for groups of"),
    ("bitz: 8", "unknown key 'bitz'; did you mean 'bits'?; known: platform, allow_unmeasured, "),
    ("1: 8", "unknown key '1'; known: platform, allow_unmeasured, "),
)


@pytest.mark.parametrize("form", ("yaml", "json"))
@pytest.mark.parametrize("text, message", CASES)
def test_a_refused_value(tmp_path, text, message, form):
    path = tmp_path / f"quant.{form}"
    path.write_text(text if form == "yaml" else json.dumps(yaml.safe_load(text)))
    with pytest.raises(lo.ConfigError) as caught:
        lo.QuantConfig.read(path)
    assert str(caught.value).startswith(f"the configuration {path}: {message}")


def test_a_value_that_is_not_finite():
    with pytest.raises(lo.ConfigError, match="^the options: clock = inf: expected a finite number"):
        lo.QuantConfig.of({"clock": float("inf")})


def test_a_long_value_is_shortened():
    with pytest.raises(lo.ConfigError) as caught:
        lo.QuantConfig.of({"skip": "a" * 10_000})
    assert str(caught.value) == f"the options: skip = 'a{'a' * 98}...: expected a list of strings"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"plan": {}}, "plan is of type dict; pass a Plan, the result of lingeronnx.read_plan"),
        ({"plan": 3}, "plan is of type int"),
        ({"plan": "gone.json"}, "the plan gone.json"),
        ({"config": 3}, "config is of type int; pass a QuantConfig, a mapping of settings"),
        ({"skip": 3}, "skip = 3: expected a list of strings"),
        ({"skip": "type:Conv"}, "skip = 'type:Conv': expected a list of strings"),
    ],
)
def test_an_argument_of_another_type(arguments, message):
    with pytest.raises(lo.ConfigError) as caught:
        lo.quantize(nets.plain(), nets.samples(nets.plain(), 4), **arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plan_is_read_from_its_path(tmp_path):
    """The same integers as with the plan as a value."""
    net = nets.plain()
    first = lo.quantize(net, nets.samples(net, 8), platform="generic", effort="fast")
    (tmp_path / "plan.json").write_text(first.plan.to_json())
    for path in (tmp_path / "plan.json", str(tmp_path / "plan.json")):
        second = lo.quantize(net, platform="generic", effort="fast", plan=path)
        assert second.plan.tensors == first.plan.tensors
