"""The settings that type checkers know are those that are checked when a model is quantized."""

import inspect

import lingeronnx as lo
from lingeronnx.flow.settings import QuantSettings


def test_every_setting_is_known_to_type_checkers():
    named = set(inspect.signature(lo.quantize).parameters)
    assert named.isdisjoint(QuantSettings.__annotations__)
    assert {*QuantSettings.__annotations__} == {*lo.QuantConfig.model_fields} - named
