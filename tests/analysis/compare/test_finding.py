"""A finding is made of its row: who, where, how much is lost."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from lingeronnx.analysis.compare.finding import format_distinct_from, format_override, make_finding
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
    return ComparedTensor(
        "t 1", ("Conv", "Conv2dInt"), ("conv", "conv_q"), module="net.conv", arrived=Measured(sqnr)
    )


@pytest.mark.parametrize(
    "sqnr, level, weight", [(20.0, None, 15.0), (50.0, None, 0.0), (20.0, 5.0, 30.0)]
)
def test_the_weight_is_what_is_missing_to_8_bits(sqnr, level, weight):
    finding = make_finding(
        row(sqnr),
        kind="scale too large",
        measured="m",
        limit="l",
        remedy="r",
        options=("--o",),
        order=1,
        sqnr_db=level,
    )
    assert finding.weight == weight
    assert (finding.layer, finding.node, finding.operator, finding.module) == (
        "t 1",
        "conv",
        "Conv",
        "net.conv",
    )
    assert finding.to_dict()["options"] == ["--o"]
    assert finding.place == "net.conv: Conv conv 't 1'"  # the user's own name first


def test_an_option_is_ready_to_paste():
    assert format_override(row(1.0), "bits:16") == "--override 't 1=bits:16'"


def test_an_option_with_a_name_that_cannot_be_seen():
    """A shell reads the name from the escapes; the text turns no writing round."""
    name = "t\u202egnp"
    given = ComparedTensor(name, ("Conv", "Conv2dInt"), ("conv", "conv_q"), arrived=Measured(1.0))
    word = format_override(given, "bits:16")
    assert word.isprintable()
    bash = shutil.which("bash")
    if bash is not None:
        result = subprocess.run(
            [bash, "-c", f"printf %s {word.split(' ', 1)[1]}"],
            capture_output=True,
            check=True,
            env={"LC_ALL": "C.UTF-8"},
        )
        assert result.stdout.decode() == f"{name}=bits:16"


@pytest.mark.parametrize(
    "value, limit, text",
    [(10.04, 10.0, "10.04"), (12.0, 10.0, "12.0"), (0.3, 10.0, "0.3"), (9.9999, 10.0, "9.9999")],
)
def test_a_number_never_reads_as_its_limit(value, limit, text):
    assert format_distinct_from(value, limit) == text
