"""Scales of weights per channel: those of the channels one by one, also for equal bytes."""

import numpy as np
import pytest

from lingeronnx.quantization.calibration.statistics import TensorStats
from lingeronnx.quantization.scales import scales
from lingeronnx.quantization.scales.scale_policy import TensorScalePolicy

VALUES = np.random.default_rng(0).standard_normal(24).astype(np.float32)


@pytest.mark.parametrize("shape", ((2, 12), (4, 6), (4, 2, 3)))
@pytest.mark.parametrize("bits", (4, 8, 16))
@pytest.mark.parametrize("calibrator", ("max", "percentile", "mse", "kl"))
@pytest.mark.parametrize("power_of_two", (False, True))
def test_scales_are_those_of_the_channels(shape, bits, calibrator, power_of_two, monkeypatch):
    """Weights of equal bytes differ by shape and policy; a known weight is not measured again."""
    setting = TensorScalePolicy(bits, None, calibrator, 99.99, power_of_two=power_of_two)
    values = VALUES.reshape(shape)
    expected = [setting.choose_scale(TensorStats.from_array(row)) for row in values]
    for _ in range(2):
        qparams = scales._weight_qparams(values.copy(), 0, setting)
        assert qparams.scales.reshape(-1).tolist() == expected
        monkeypatch.setattr(TensorScalePolicy, "choose_row_scales", None)


def test_zeros_get_the_smallest_scale_of_the_others():
    setting = TensorScalePolicy(8, None, "max", 99.99, power_of_two=False)
    values = np.array([[1.0, -2.0], [0.0, 0.0], [0.5, 0.25]], np.float32)
    result = scales._weight_qparams(values, 0, setting).scales.reshape(-1)
    assert result[1] == result.min()
    assert result[0] < result[2]
