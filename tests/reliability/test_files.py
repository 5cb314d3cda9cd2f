"""What is written is whole: kills, links, devices, folders that stay empty, names; through the real
commands.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from lingeronnx.common import files
from lingeronnx.common.errors import ConfigError
from tests.cli.helpers import CommandFolder, samples, write_model

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="kills, locks and links as POSIX has them"
)


def fails(here: CommandFolder, words: str, *args: object) -> None:
    """Run a command that must fail in one line with `words`, and change nothing."""
    before = here.files()
    result = here(*args)
    assert result.exit_code == 1, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert here.files() == before


@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_a_share_of_the_faults(kills: int) -> None:
    """Kills at some changes of the file system, full disks: old or new, and nothing stays."""
    args = ("--commands", "deploy", "simulate", "--kinds", "kill", "full", "--kills", str(kills))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.reliability.command_faults", *args],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n| deploy") == done.stdout.count("\n| simulate") == 1


# ---- folders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", [True, False], ids=["one call", "without that call"])
def test_a_folder_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    """Nothing of the old one stays, nor a temporary name."""
    if not exchange:
        monkeypatch.setattr(files, "_try_atomic_swap", lambda one, other: False)
    for text in ("old", "new"):
        with files.replace_folder(tmp_path / "place") as made:
            (made / text).write_text(text)
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["place", "place/new"]


def test_a_folder_that_was_moved_aside_comes_back(tmp_path: Path) -> None:
    """Without the exchange a kill may leave no folder: the next run that writes there puts the old
    one back.
    """
    old = tmp_path / ".place.lingeronnx-1-00000000-old"
    old.mkdir()
    (old / "a").write_text("a")
    files._cleaned_folders.clear()
    files.write_text(tmp_path / "other", "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "place"]
    assert (tmp_path / "place" / "a").read_text() == "a"


def test_the_folder_one_is_in_is_not_replaced(quant: CommandFolder) -> None:
    """A shell would be left in a folder that is gone."""
    place = quant.folder / "board"
    place.mkdir()
    os.chdir(place)
    fails(quant, "it is the folder this command runs in", "deploy", "../tiny_quant.onnx", "-o", ".")


def test_a_dump_leaves_other_files(quant: CommandFolder) -> None:
    """Those of an older dump go, others stay, and are the same files."""
    dump = quant.folder / "dump"
    (dump / "mine").mkdir(parents=True)
    (dump / "mine" / "note.txt").write_text("note")
    run = (
        "simulate",
        "tiny_quant.onnx",
        "--input",
        "test.npz",
        "--dump",
        "dump",
        "-o",
        "dump/out.npz",
    )
    quant.run_ok(*run)
    first = quant.files()
    quant.run_ok(*run, "--taps", "y")
    assert (dump / "mine" / "note.txt").read_text() == "note"
    assert (dump / "out.npz").is_file()
    left = {name for name in quant.files() if name.startswith("dump/0")}
    assert 0 < len(left) < sum(name.startswith("dump/0") for name in first)


def test_no_empty_folder_stays(here: CommandFolder) -> None:
    """A command that fails leaves no new folder."""
    np.savez("bad.npz", z=samples(), a=samples())
    for args in (
        ("sensitivity", "tiny.onnx", "--calib", "bad.npz", "-o", "sens"),
        ("profile", "tiny.onnx", "--data", "bad.npz", "-o", "prof"),
        ("quantize", "gone.onnx", "--debug-dump", "debug"),
    ):
        assert here(*args).exit_code == 1
    assert not [p for p in here.folder.iterdir() if p.is_dir()]


# ---- what is there -----------------------------------------------------------------------------------------------


def test_devices_and_pipes_are_not_replaced(quant: CommandFolder) -> None:
    """They are refused before any work."""
    os.mkfifo("pipe")
    for target, what in (("/dev/null", "a device"), ("pipe", "a pipe")):
        fails_to = f"cannot write {target}: it is {what}, no regular file"
        result = quant("simulate", "tiny_quant.onnx", "--input", "test.npz", "-o", target)
        assert (result.exit_code, fails_to in result.stderr) == (1, True), result.output
    assert Path("pipe").is_fifo()


def test_links_stay_links(quant: CommandFolder) -> None:
    """The file that a link leads to is replaced, one that is not there is made; a link to itself is
    refused.
    """
    Path("far").mkdir()
    Path("far/a.onnx").write_text("old")
    for name, target in (("a.onnx", "far/a.onnx"), ("b.onnx", "far/b.onnx"), ("c.onnx", "c.onnx")):
        Path(name).symlink_to(target)
    for name in ("a.onnx", "b.onnx"):
        quant.run_ok("convert", "tiny_quant.onnx", "--to", "qdq", "-o", name)
        assert Path(name).is_symlink()
        assert onnx.load(f"far/{name}").graph.node
    result = quant("convert", "tiny_quant.onnx", "--to", "qdq", "-o", "c.onnx")
    assert (result.exit_code, "a link to itself" in result.stderr) == (1, True), result.output
    assert sorted(p.name for p in Path("far").iterdir()) == ["a.onnx", "b.onnx"]


def test_what_a_living_run_writes_is_not_touched(tmp_path: Path) -> None:
    """Names without a lock go, those of other programs and those that are locked stay."""
    for name in (
        ".a.onnx.lingeronnx-999999-0123abcd.onnx",
        ".a.onnx.tmp",
        "b.lingeronnx-1-0123abcd",
    ):
        (tmp_path / name).write_text("")
    with files.replace_file(tmp_path / "living") as living:
        files._cleaned_folders.clear()
        files.write_text(tmp_path / "c", "")
        assert living.exists()
        found = sorted(p.name for p in tmp_path.iterdir())
    assert found == sorted([".a.onnx.tmp", "b.lingeronnx-1-0123abcd", "c", living.name])


def test_a_full_folder_name_is_told(tmp_path: Path) -> None:
    """What cannot be made is told in one line."""
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match="cannot make the folder"),
        files.created_folder(tmp_path / "file"),
    ):
        pytest.fail("it was made")


def test_a_folder_is_checked_before_it_is_made(tmp_path: Path) -> None:
    """A file in the way is told, of the folder itself and of a parent; nothing is made."""
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        with pytest.raises(
            ConfigError, match=rf"cannot write into .*{name}: .*file is a file; give a folder"
        ):
            files.check_writable_folder(tmp_path / name)
    for name in ("", "new", "new/below"):
        files.check_writable_folder(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# ---- names -------------------------------------------------------------------------------------------------------


def test_names_in_a_readme_are_shown_as_they_are() -> None:
    """Bars, tags and line breaks make no cell, no element and no line."""
    from lingeronnx.common.escaping import escape_markdown

    assert escape_markdown("a_b/c.1:0") == "a_b/c.1:0"
    assert escape_markdown("a|b<img src=x>\n# c`d`") == "a&#124;b&#60;img src=x>\\n# c&#96;d&#96;"


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["labels", "label", "x.npy", "a|b<i>", "file", "日本"])
def test_verify_takes_golden_inputs_of_any_name(here: CommandFolder, name: str) -> None:
    """What deploy wrote for `verify` is what verify takes."""
    model = onnx.load(write_model(here.folder / "named.onnx", TEXT))
    model.graph.input[0].name = model.graph.node[0].input[0] = name
    onnx.save(model, "named.onnx")
    np.save("data.npy", samples(4))
    here.run_ok("deploy", "named.onnx", "--calib", "data.npy", "-o", "board")
    chip, golden = "board/named_quant_chip.onnx", "board/golden/0"
    here.run_ok("verify", chip, "--input", f"{golden}/input.npz", "--device-dump", f"{golden}/data")
    line = next(
        line
        for line in Path("board/README.md").read_text().splitlines()
        if line.startswith("| input 0")
    )
    assert line.replace("&#124;", "").count("|") == 7


TEXT = """
<ir_version: 8, opset_import: ["": 13]>
named (float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y) {
    c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w, b)
    y = Relu(c)
}
"""
