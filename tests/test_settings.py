"""Settings of `quantize`: model, keyword arguments and options are those of `SETTINGS`."""

import inspect
import types
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

import click
import pytest

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.quantization.config import Override
from lingeronnx.quantization.recipe import EFFORTS
from lingeronnx.quantization.settings import OVERRIDE_SETTINGS, SETTINGS, Effort, QuantSettings

#: Settings without an option of their own.
NO_OPTION = {"percentile"}
QUANTIZING_COMMANDS = ("quantize", "finetune", "deploy", "sensitivity")


def kinds(hint):
    """Return the alternatives of a type hint, without None, as comparable values."""
    origin = get_origin(hint)
    args = get_args(hint)
    if hint is type(None) or origin is PathLike:
        return frozenset()
    if origin in (Union, types.UnionType):
        return frozenset().union(*map(kinds, args))
    if origin is Annotated:
        return kinds(args[0])
    if origin is Literal:
        return frozenset(args)
    if origin is Mapping:
        return frozenset({("mapping", kinds(args[1]))})
    if origin in (tuple, Sequence):
        return frozenset({("sequence", kinds(args[0]))})
    return frozenset({hint})


@pytest.mark.parametrize(
    "model, settings", ((lo.QuantConfig, SETTINGS), (Override, OVERRIDE_SETTINGS))
)
def test_a_field_has_default_description_and_words_of_its_setting(model, settings):
    assert list(model.model_fields) == list(settings)
    for name, field in model.model_fields.items():
        setting = settings[name]
        assert field.default == setting.default, name
        assert field.description == setting.description, name
        if setting.choices:
            assert get_args(field.annotation) == setting.choices, name
        if model is lo.QuantConfig and get_origin(field.annotation) is Literal:
            assert setting.choices, name


def test_type_checkers_know_the_settings_and_their_types():
    named = set(inspect.signature(lo.quantize).parameters)
    hints = get_type_hints(QuantSettings)
    assert named.isdisjoint(hints)
    assert set(hints) == set(SETTINGS) - named
    fields = get_type_hints(lo.QuantConfig, include_extras=True)
    for name, hint in hints.items():
        words = {"auto"} if name == "weight_bits" else set()  # converted to AUTO_WEIGHT_BITS
        assert kinds(hint) == kinds(fields[name]) | words, name


def test_efforts_are_those_of_the_recipes():
    assert get_args(Effort) == EFFORTS


def test_every_setting_is_an_option_of_quantize():
    options = {option.name: option for option in cli.main.commands["quantize"].params}
    assert set(SETTINGS) - set(options) == NO_OPTION
    for name, setting in SETTINGS.items():
        if name in NO_OPTION:
            continue
        option = options[name]
        assert option.help.startswith(setting.description)
        assert setting.default_label in option.help
        assert option.multiple == setting.is_repeatable
        assert option.metavar == setting.metavar


@pytest.mark.parametrize("command", QUANTIZING_COMMANDS)
def test_an_option_of_a_setting_is_the_same_in_all_commands(command):
    options = {option.name: option for option in cli.main.commands["quantize"].params}
    shared = [p for p in cli.main.commands[command].params if p.name in SETTINGS]
    assert len(shared) >= 19
    for option in shared:
        assert option.to_info_dict() == options[option.name].to_info_dict()


def parse(argv):
    command = cli.main.commands["quantize"]
    return command.make_context("quantize", ["m.onnx", *argv], **cli.main.context_settings)


@pytest.mark.parametrize(
    "argv, expected",
    (
        ((), dict.fromkeys(("bits", "fit", "requantize", "require_chip", "fix"))),
        (("--fit", "--no-requantize"), {"fit": True, "requantize": False}),
        (("--no-fit", "--require-chip"), {"fit": False, "require_chip": True}),
        (("--weight-bits", "auto", "--calls", "all"), {"weight_bits": "auto", "calls": "all"}),
        (("--weight-bits", "4", "--calls", "3"), {"weight_bits": 4, "calls": 3}),
        (("--override", "a=bits:16", "--override", "b=bits:8"), {"overrides": ("a=bits:16", "b=bits:8")}),
        (("--timing", "t.json", "--clock", "300"), {"timing": Path("t.json"), "clock": 300.0}),
        (("--input-shape", "x=1,3", "--batch-axis", "x=none"), {"input_shape": {"x": (1, 3)}, "batch_axis": {"x": None}}),
        (("--seed", "7", "--parts", "1", "--skip", "a"), {"seed": 7, "parts": 1, "skip": ("a",)}),
    ),
)  # fmt: skip
def test_options_are_parsed(argv, expected):
    values = parse(argv).params
    assert {name: values[name] for name in expected} == expected


@pytest.mark.parametrize(
    "argv",
    (
        ("--effort", "slow"),
        ("--seed", "-1"),
        ("--parts", "2"),
        ("--batch", "0"),
        ("--bits", "eight"),
        ("--weight-bits", "aut"),
        ("--calls", "0"),
        ("--clock", "fast"),
    ),
)
def test_options_are_refused(argv):
    with pytest.raises(click.UsageError) as caught:
        parse(argv)
    assert argv[0] in caught.value.format_message()
