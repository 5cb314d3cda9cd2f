"""What other packages ask of an operator is an attribute of it: which operators have which."""

from lingeronnx.operators.integer_ops import INTEGER_OPS, TRAINING_ONLY_OPS
from lingeronnx.operators.lowerings import LOWERING_RULES

FORMATS = (*INTEGER_OPS, *TRAINING_ONLY_OPS)


def names(attribute):
    return {form.name for form in FORMATS if getattr(form, attribute)}


def test_operators_that_round_inside():
    rounding = {"GRUInt", "LSTMInt", "LayerNormInt", "LogSoftmaxInt", "SoftmaxInt"}
    assert names("rounds_inside") >= rounding
    assert not names("rounds_inside") & {"Conv2dInt", "LinearInt", "iqAdd", "iqTable", "Relu"}


def test_operators_with_states():
    assert {form.name: list(form.states) for form in FORMATS if form.states} == {
        "GRUInt": ["h"],
        "LSTMInt": ["h", "c"],
    }


def test_operators_of_single_samples():
    assert names("needs_single_sample") == {
        "AvgPool2dInt",
        "BatchNorm1dInt",
        "BatchNorm2dInt",
        "Conv1dInt",
        "Conv2dInt",
        "ConvTranspose2dInt",
        "MaxPool",
    }


def test_operators_between_float_and_integers():
    assert names("converts_to_or_from_float") == {"Dequant", "Quant"}


def test_widths_of_input_and_weight():
    axes = {form.name: tuple(form.width_axes) for form in FORMATS if form.width_axes}
    expected = {
        "BatchNorm1dInt": (1, 0, False),
        "BatchNorm2dInt": (1, 0, False),
        "Conv1dInt": (1, 1, True),
        "Conv2dInt": (1, 1, True),
        "ConvTranspose2dInt": (1, 0, False),
        "GRUInt": (-1, -1, False),
        "LSTMInt": (-1, -1, False),
        "LayerNormInt": (-1, -1, False),
        "LinearInt": (-1, -1, False),
    }
    assert axes.items() >= expected.items()


def test_rules_that_pass_factors_of_channels():
    assert {rule.name for rule in LOWERING_RULES if rule.passes_channel_factors} == {
        "AvgPool2dInt",
        "LeakyRelu (composed)",
        "MaxPool",
        "Relu",
        "iqAdd",
        "iqTable",  # of LeakyRelu
    }
