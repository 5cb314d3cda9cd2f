"""A finding is made of its row: who, where, how much is lost."""

from __future__ import annotations

import pytest

from lingeronnx.analysis.compare.finding import finding_of, override
from lingeronnx.analysis.compare.join import ComparedTensor
from lingeronnx.analysis.stats.pair_measures import PairMeasures


class Measured(PairMeasures):
    """Measures whose SQNR is told."""

    def __init__(self, sqnr: float) -> None:
        super().__init__()
        self._told = sqnr

    @property
    def sqnr(self) -> float:
        return self._told


def row(sqnr):
    return ComparedTensor("t 1", ("Conv", "Conv2dInt"), ("conv", "conv_q"), module="net.conv", pair=Measured(sqnr))


@pytest.mark.parametrize("sqnr, level, weight", [(20.0, None, 15.0), (50.0, None, 0.0), (20.0, 5.0, 30.0)])
def test_the_weight_is_what_is_missing_to_8_bits(sqnr, level, weight):
    finding = finding_of(
        row(sqnr), kind="scale too large", measured="m", limit="l", remedy="r", options=("--o",), order=1, level=level
    )
    assert finding.weight == weight
    assert (finding.layer, finding.node, finding.operator, finding.module) == ("t 1", "conv", "Conv", "net.conv")
    assert finding.to_dict()["options"] == ["--o"]
    assert finding.place.startswith("Conv ")
    assert finding.place.endswith("'t 1'")


def test_an_option_is_ready_to_paste():
    assert override(row(1.0), "bits:16") == "--override 't 1=bits:16'"
