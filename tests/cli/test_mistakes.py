"""Mistakes on the command line: exit code, one line, nothing left behind."""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from lingeronnx import api
from lingeronnx.common.errors import InternalError
from lingeronnx.runtime import dump
from tests.cli.helpers import GAP, CommandFolder, samples, write_model
from tests.each import check_each


def fails(here: CommandFolder, code: int, words: str, *args: object) -> Result:
    """Run a command that must fail with `words` and leave every file as it was; a bug's archive is
    the only new one.
    """
    before = here.files()
    result = here(*args)
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert result.stdout == ""
    new = here.files().keys() - before.keys()
    assert len(new) == (code == 70), new
    assert {name: content for name, content in here.files().items() if name not in new} == before
    if code == 1:
        assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
    return result


def write_bad_files(folder: Path) -> None:
    good = (folder / "tiny.onnx").read_bytes()
    x = samples()
    holed = x.copy()
    holed[3, 0, 1, 1] = np.nan
    (folder / "cut.onnx").write_bytes(good[: len(good) // 2])
    (folder / "noise.onnx").write_bytes(np.random.default_rng(0).bytes(2000))
    (folder / "nothing.onnx").write_bytes(b"")
    (folder / "cut.npz").write_bytes((folder / "calib.npz").read_bytes()[:300])
    np.savez(folder / "empty.npz")
    np.savez(folder / "none.npz", x=x[:0])
    np.savez(folder / "name.npz", a=x, b=x)
    np.savez(folder / "shape.npz", x=x[:, :, :3])
    np.savez(folder / "batch.npz", x=x[0])
    np.savez(folder / "nan.npz", x=holed)
    np.savez(folder / "labels.npz", x=x, labels=np.full(len(x), 9))
    (folder / "key.yaml").write_text("calibrater: max\n")
    (folder / "cut.yaml").write_text("skip: [\n")
    (folder / "build").write_text("a file")
    (folder / "plan.json").write_text('{"lingeronnx_plan": 1}')
    write_model(folder / "gap.onnx", GAP, {"e": "gap"})


QUANTIZE = ("quantize", "tiny.onnx", "--calib", "calib.npz")
SIMULATE = ("simulate", "tiny.onnx", "--input", "test.npz")


#: (arguments, the message) of mistakes that are found before any work, and of those that are found after it.
EARLY_MISTAKES = (
    (("quantize", "gone.onnx"), "cannot read the model gone.onnx: it does not exist"),
    (("quantize", "cut.onnx"), "cannot read the model cut.onnx: not a valid ONNX file"),
    (("quantize", "noise.onnx"), "cannot read the model noise.onnx: not a valid ONNX file"),
    (("quantize", "nothing.onnx"), "cannot use the model nothing.onnx: its graph has no node"),
    (("quantize", 300 * "a" + ".onnx"), "File name too long"),
    ((*QUANTIZE[:3], "gone.npz"), "calibration data: cannot read gone.npz"),
    ((*QUANTIZE[:3], "cut.npz"), "calibration data: cut.npz is not a readable .npz file"),
    ((*QUANTIZE[:3], "empty.npz"), "no array for input 'x'; the data have none"),
    ((*QUANTIZE[:3], "none.npz"), "calibration data is empty"),
    ((*QUANTIZE[:3], "name.npz"), "'a' is not an input of the model"),
    (
        (*QUANTIZE[:3], "shape.npz"),
        "input 'x' has shape [20, 2, 3, 4], the model takes [N, 2, 4, 4]",
    ),
    ((*QUANTIZE[:3], "batch.npz"), "add the batch axis"),
    ((*QUANTIZE[:3], "nan.npz"), "input 'x' has NaN or infinity in sample 3"),
    ((*QUANTIZE, "--platform", "venuss"), "unknown platform 'venuss'; did you mean 'venus'?"),
    ((*QUANTIZE, "--mode", "max-value"), "mode max-value on platform venus"),
    ((*QUANTIZE, "--bits", "4"), "bits 4 on platform venus"),
    (
        (*QUANTIZE, "--skip", "con"),
        "selector 'con' matches no node or tensor; did you mean 'conv'?",
    ),
    ((*QUANTIZE, "--override", "conv"), "override 'conv': write SELECTOR=KEY:VALUE"),
    ((*QUANTIZE, "--override", "conv=calibratr:max"), "unknown key 'calibratr'"),
    (
        (*QUANTIZE, "--weight-bits", "4"),
        "weight_bits 4 on platform venus: it supports 8 bits only",
    ),
    (
        (*QUANTIZE, "--platform", "arcs", "--bits", "4"),
        "bits 4 on platform arcs: it supports 8 bits only",
    ),
    ((*QUANTIZE, "--platform", "arcs", "--weight-bits", "16"), "it supports 4, 8 bits only"),
    ((*QUANTIZE, "--override", "nope=scale:2^3"), "selector 'nope' matches no node or tensor"),
    ((*QUANTIZE, "--config", "key.yaml"), "unknown key 'calibrater'; did you mean 'calibrator'?"),
    ((*QUANTIZE, "--config", "cut.yaml"), "the configuration cut.yaml is not YAML"),
    ((*QUANTIZE, "--config", "gone.yaml"), "cannot read the configuration gone.yaml"),
    ((*QUANTIZE, "--plan", "gone.json"), "cannot read the plan gone.json"),
    ((*QUANTIZE, "--plan", "plan.json"), "the plan plan.json is not a lingeronnx plan"),
    ((*QUANTIZE, "--plan", "calib.npz"), "the plan calib.npz is not a lingeronnx plan"),
    ((*QUANTIZE, "-o", "gone/q.onnx"), "cannot write gone/q.onnx: there is no folder gone"),
    ((*QUANTIZE, "-o", "."), "it is a folder"),
    ((*QUANTIZE, "-o", "tiny.onnx"), "tiny.onnx would be overwritten"),
    ((*QUANTIZE, "-o", "calib.npz"), "calib.npz would be overwritten"),
    ((*QUANTIZE, "-o", "q.onnx", "--save-plan", "./q.onnx"), "q.onnx would be overwritten"),
    ((*QUANTIZE, "--save-plan", "gone/plan.json"), "there is no folder gone"),
    (
        (*QUANTIZE, "--min-sqnr", "9", "-o", "q.onnx", "--save-plan", "q_search.jsonl"),
        "q_search.jsonl would be overwritten",
    ),
    (("simulate", "cut.onnx", "--input", "test.npz"), "not a valid ONNX file"),
    ((*SIMULATE[:3], "shape.npz"), "the model takes [N, 2, 4, 4]"),
    ((*SIMULATE, "--taps", "q"), "the model has no tensor 'q'"),
    ((*SIMULATE, "--at", "nope"), "the model has no tensor 'nope'"),
    ((*SIMULATE, "--integers"), "a float model has no integers"),
    ((*SIMULATE, "-o", "test.npz"), "test.npz would be overwritten"),
    ((*SIMULATE, "--dump", "build"), "cannot dump into build: it is a file"),
    ((*SIMULATE, "--dump", "."), "--dump .: the folder contains the input data"),
    ((*SIMULATE, "--dump", "gone/out"), "cannot dump into gone/out: No such file or directory"),
    (("evaluate", "tiny.onnx", "--data", "calib.npz"), "the data have no labels"),
    (
        ("evaluate", "tiny.onnx", "--data", "test.npz", "--metric", "mse"),
        "metric mse compares two models",
    ),
    (
        ("evaluate", "tiny.onnx", "--data", "test.npz", "--output", "z"),
        "the model has no tensor 'z'",
    ),
    (("platforms", "venu"), "unknown platform 'venu'; did you mean 'venus'?"),
)
LATE_MISTAKES = (
    ((*QUANTIZE, "--eval", "test.npz", "--metric", "top2"), "unknown metric 'top2'"),
    ((*QUANTIZE, "--eval", "calib.npz", "--metric", "top1"), "metric top1 needs labels"),
    ((*QUANTIZE, "--eval", "labels.npz"), "label 9 is beyond the 3 classes"),
    (
        ("quantize", "gap.onnx", "--calib", "calib.npz", "--require-chip"),
        "not chip-ready: Erf gap is kept in float",
    ),
)
USAGE_ERRORS = (
    ((), "Usage: "),
    (("quantise",), "No such command 'quantise'"),
    (("quantize",), "Missing argument 'MODEL'"),
    ((*QUANTIZE, "--bit", "8"), "No such option '--bit'"),
    ((*QUANTIZE, "--calibrator", "kld"), "'kld' is not one of 'max', 'percentile', 'mse', 'kl'"),
    ((*QUANTIZE, "--metric", "top1"), "--metric needs --eval DATA"),
    ((*QUANTIZE, "--batch", "0"), "0 is not in the range"),
    (("platforms", "venus", "--markdown"), "--markdown prints one page on all platforms"),
    ((*QUANTIZE, "--seed", "-1"), "-1 is not in the range"),
    (("simulate", "tiny.onnx"), "Missing option '--input'"),
)


def check_mistake(here: CommandFolder, args: tuple[str, ...], words: str) -> None:
    """Check that a mistake is told in one line and leaves no file, with and without --json."""
    fails(here, 1, words, *args)
    fails(here, 1, words, *args, "--json")


def test_mistakes_found_before_any_work_get_one_line_and_leave_no_file(here: CommandFolder) -> None:
    write_bad_files(here.folder)
    check_each(partial(check_mistake, here), EARLY_MISTAKES)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "args, words",
    LATE_MISTAKES,
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None,
)
def test_mistakes_found_late_get_one_line_and_leave_no_file(
    here: CommandFolder, args: tuple[str, ...], words: str
) -> None:
    write_bad_files(here.folder)
    check_mistake(here, args, words)


def test_wrong_options_are_usage_errors(here: CommandFolder) -> None:
    check_each(lambda args, words: fails(here, 2, words, *args), USAGE_ERRORS)


@pytest.mark.parametrize(
    "error", [RuntimeError("oops"), InternalError("oops"), RecursionError("oops")]
)
def test_our_bugs_show_a_traceback(
    here: CommandFolder, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fall(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(api, "quantize", fall)
    result = fails(here, 70, "this is a bug in lingeronnx: please report it", *QUANTIZE, "--json")
    assert "Traceback (most recent call last)" in result.stderr


def test_ctrl_c(here: CommandFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "quantize", stop)
    assert fails(here, 130, "interrupted", *QUANTIZE).stderr == "interrupted\n"


@pytest.mark.parametrize(
    "error, code", [(KeyboardInterrupt(), 130), (OSError(28, "No space left on device"), 1)]
)
def test_a_write_that_breaks_off_leaves_the_old_files(
    quant: CommandFolder, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    (quant.folder / "old.npz").write_bytes(b"old")
    (quant.folder / "dump").mkdir()
    (quant.folder / "dump" / "index.json").write_text("old")

    def half(file: io.IOBase, *_: object, **__: object) -> None:
        file.write(b"half")
        raise error

    simulate = ("simulate", "tiny_quant.onnx", "--input", "test.npz")
    monkeypatch.setattr(dump.np.lib.format, "write_array", half)
    fails(quant, code, "", *simulate, "-o", "old.npz")
    monkeypatch.setattr(dump, "_write_npy_header", half)
    fails(quant, code, "", *simulate, "-o", "new.npz", "--dump", "dump")
    fails(quant, code, "", *simulate, "-o", "new.npz", "--dump", "new")
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: half(self.open("wb")))
    fails(quant, code, "", *QUANTIZE, "-o", "tiny_quant.onnx")


def test_an_evaluation_that_fails_leaves_the_old_graph(quant: CommandFolder) -> None:
    write_bad_files(quant.folder)
    fails(
        quant,
        1,
        "label 9 is beyond",
        *QUANTIZE,
        "--eval",
        "labels.npz",
        "--save-plan",
        "plan2.json",
    )
