"""The words that options of `quantize` accept are those of the settings."""

from typing import get_args

import click
import pytest

from lingeronnx.cli.models.quantize import quantize
from lingeronnx.flow import settings

CHOICES = {option.name: option.type for option in quantize.params}


@pytest.mark.parametrize(
    "name", ["activations", "calibrator", "cells", "effort", "notes", "objective"]
)
def test_an_option_has_the_words_of_its_setting(name):
    alias = {"notes": "NotesLength"}.get(name, name.capitalize())
    assert isinstance(CHOICES[name], click.Choice)
    assert sorted(CHOICES[name].choices) == sorted(get_args(getattr(settings, alias)))
