"""Former names of public members and parameters still work, and warn."""

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from lingeronnx.analysis.check.structure import Structure
from lingeronnx.analysis.compare.comparison import Comparison
from lingeronnx.analysis.compare.join import ComparedTensor
from lingeronnx.analysis.compare.option_trials import OptionTrialResult
from lingeronnx.analysis.profile.outliers import OutlierRow
from lingeronnx.analysis.profile.profile import Profile, RecordedTensor
from lingeronnx.common.deprecation import _OldMember, accept_old_parameters, keep_old_members
from lingeronnx.interchange.repair.engine import Repaired
from lingeronnx.quantization.report.program import ProgramReport
from lingeronnx.quantization.report.quantized_model import WrittenFiles
from lingeronnx.search.goal import Goal
from lingeronnx.targets import Target, get_target
from lingeronnx.targets.arithmetic import LayerArithmetic
from lingeronnx.targets.board_profile import BoardProfile
from lingeronnx.targets.latency import LayerLatency
from lingeronnx.targets.verdict import GraphCost, PackerArguments, Verdict

VENUS = get_target("venus")


@keep_old_members("9.9", old_size="size", area="get_area")
@dataclass(frozen=True)
class Box:
    size: int = 2

    def get_area(self, scale=1):
        return scale * self.size**2


def test_old_field():
    with pytest.warns(
        DeprecationWarning,
        match=r"^Box\.old_size is deprecated and will be removed in 9\.9; use Box\.size$",
    ):
        assert Box(3).old_size == 3


def test_old_method():
    with pytest.warns(DeprecationWarning, match=r"Box\.area is deprecated .*; use Box\.get_area"):
        assert Box(3).area(scale=2) == 18


def test_old_constructor_keyword():
    with pytest.warns(
        DeprecationWarning, match="parameter old_size of __init__ is deprecated .*; use size"
    ):
        box = Box(old_size=5)
    assert box == Box(5)


def test_new_names_do_not_warn(recwarn):
    assert Box(size=3).get_area() == 9
    assert not recwarn


def test_both_names_are_an_error():
    @accept_old_parameters("9.9", old="new")
    def double(new):
        return 2 * new

    with pytest.raises(TypeError, match="got both 'new' and its former name 'old'"):
        double(new=1, old=1)


def test_target_parameters():
    with pytest.warns(
        DeprecationWarning,
        match="parameter kind of get_arithmetic is deprecated .*; use arithmetic_type",
    ):
        old = VENUS.get_arithmetic("Conv2dInt", kind=LayerArithmetic)
    assert old == VENUS.get_arithmetic("Conv2dInt", arithmetic_type=LayerArithmetic)


MEMBERS = [
    (Comparison, "advice", "format_advice"),
    (Comparison, "table", "to_rows"),
    (Structure, "used", "use_counts"),
    (Repaired, "checked", "trial_run"),
    (OptionTrialResult, "now", "baseline_sqnr"),
    (OutlierRow, "largest", "max_abs"),
    (Profile, "seen", "tensors"),
    (RecordedTensor, "spread", "distribution"),
    (WrittenFiles, "parts", "chip_parts"),
    (Goal, "fills", "is_limits_only"),
    (Verdict, "packs", "is_packable"),
    (PackerArguments, "line", "command_line"),
    (LayerLatency, "total", "total_cycles"),
    (GraphCost, "table", "format_table"),
    (ComparedTensor, "called", "display_name"),
    (BoardProfile, "row", "calibration"),
    (ProgramReport, "host", "host_parts"),
]


@pytest.mark.parametrize(("cls", "old", "new"), MEMBERS, ids=lambda value: str(value))
def test_members_of_results(cls, old, new):
    former = [value for value in vars(cls).values() if isinstance(value, _OldMember)]
    assert {value._new for value in former} >= {new}
    for value in former:  # each names a member that exists
        assert hasattr(cls, value._new) or value._new in cls.__dataclass_fields__
    member = object.__new__(cls)
    with (
        pytest.warns(
            DeprecationWarning, match=rf"{cls.__name__}\.{old} is .*use {cls.__name__}\.{new}$"
        ),
        contextlib.suppress(Exception),
    ):  # the object holds no values
        getattr(member, old)


@pytest.mark.parametrize("cls", sorted({cls for cls, _, _ in MEMBERS} | {Target}, key=str))
def test_former_names_are_documented(cls):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "stability.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith(f"| `{cls.__name__}` |")]
    former = {
        name: value._new for name, value in vars(cls).items() if isinstance(value, _OldMember)
    }
    assert dict(re.findall(r"`(\w+)`: `(\w+)`", line)) == former
