"""Law: what an older version wrote is read by this one, and computes the same integers.

A folder beside this file for each version; `make.py` wrote it, its README.md says how. Where a test
here fails, the code is wrong, not the file.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.deployment.c_program import host_source
from tests.files.make import COMMANDS, STANDARD, options
from tests.flow.test_json_schemas import check as against_schema

HERE = Path(__file__).parent
VERSIONS = sorted(path for path in HERE.iterdir() if re.fullmatch(r"\d+\.\d+", path.name))
GRAPHS = [path for folder in VERSIONS for path in sorted(folder.glob("*_*.onnx"))]
INTEGER = [path for path in GRAPHS if not path.stem.endswith(STANDARD)]
CONVERTED = [path for path in GRAPHS if path.stem.endswith((*STANDARD, "linger"))]


def name(path):
    return f"{path.parent.name}/{path.stem}"


def origin(path):
    """Return the name of the graph that a converted one was made of."""
    return re.sub(f"_({'|'.join((*STANDARD, 'linger'))})$", "", path.stem)


def data(path):
    return path.parent / f"{path.stem.split('_')[0]}.npz"


def commands(folder):
    """Return {file: the command that wrote it, without the program's name}, as the folder's
    README.md has them.
    """
    return dict(
        re.findall(
            r"^\| `(.*?)` \| `lingeronnx (.*)` \|$",
            (folder / "README.md").read_text(),
            re.MULTILINE,
        )
    )


def run(words, *more, fine=(0,)):
    done = CliRunner().invoke(cli.main, [*shlex.split(words), *map(str, more)])
    assert done.exit_code in fine, done.output
    return done.stdout


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def there(request, tmp_path, monkeypatch):
    """Stand in a copy of a version's folder."""
    folder = tmp_path / "files"
    shutil.copytree(request.param, folder)
    monkeypatch.chdir(folder)
    return folder


def arrays(path):
    """Return what an .npz file holds, the file closed."""
    with np.load(path) as found:
        return dict(found)


def integers(graph, feeds, tmp_path):
    """Return what `simulate` writes for the first samples."""
    out = tmp_path / "out.npz"
    run(f"simulate {options(Path(graph).stem)}", graph, "--input", feeds, "-o", out)
    return arrays(out)


def same(found, expected):
    """Compare the tensors of two runs; the host's float ones but for their rounding."""
    assert found.keys() >= expected.keys()
    for tensor, want in expected.items():
        assert found[tensor].dtype == want.dtype, tensor
        if want.dtype.kind == "f":
            np.testing.assert_allclose(found[tensor], want, rtol=1e-5, atol=1e-6, err_msg=tensor)
        else:
            np.testing.assert_array_equal(found[tensor], want, err_msg=tensor)


def test_the_folders_are_whole():
    """Each version has all files that its script names, its README names each of them, and all of
    it is small.
    """
    for folder in VERSIONS:
        listed = commands(folder)
        assert [file for file in listed if not (folder / file).exists()] == []
        assert folder is not VERSIONS[-1] or listed == COMMANDS
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 1_500_000


# ---- graphs --------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("path", INTEGER, ids=name)
def test_a_graph_gives_the_same_integers(path, tmp_path):
    """Every tensor, in both generations' names; `Session` gives the same outputs."""
    expected = arrays(path.parent / "expected" / f"{path.stem}.npz")
    same(integers(path, data(path), tmp_path), expected)
    session = lo.Session(str(path))
    names = [output.name for output in session.get_outputs()]
    found = session.run(
        None,
        {
            key: array[:, :2] if array.shape[0] == 1 else array[:2]
            for key, array in arrays(data(path)).items()
        },
    )
    floats = dict(zip(names, found, strict=True))
    same(floats, {output: expected[output] for output in names if output in expected})


@pytest.mark.sweep
@pytest.mark.parametrize("path", CONVERTED, ids=name)
def test_a_converted_graph_goes_back(path, tmp_path):
    """The other generation's, QDQ and QOperator files become the graph they were made of: the same
    integers.
    """
    platform = origin(path).split("_")[1]
    more = ["--platform", platform if platform in ("venus", "arcs", "venusA") else "generic"]
    back = tmp_path / "back.onnx"
    run("convert --to thinker", path, "-o", back, *(more if path.stem.endswith(STANDARD) else ()))
    whole = origin(path)
    outputs = [
        output.name for output in lo.Session(str(path.parent / f"{whole}.onnx")).get_outputs()
    ]
    expected = arrays(path.parent / "expected" / f"{whole}.npz")
    found = integers(back, data(path), tmp_path)
    same(found, {output: expected[output] for output in outputs})


@pytest.mark.sweep
@pytest.mark.parametrize("path", INTEGER, ids=name)
def test_check_judges(path):
    """What was for a platform is for it still; whether it is right may be judged anew."""
    told = json.loads(run("check --json", path, fine=(0, 1)))
    for platform in ("generic", "venus", "arcs", "venusA"):
        if path.stem.split("_")[1] == platform:
            assert told["platform"] == platform


# ---- what else commands read ----------------------------------------------------------------------------------------


def scales(graph):
    """Return {tensor: its scale} of the integers of a graph, for a sample."""
    feeds = {key: array[:1] for key, array in arrays("conv.npz").items()}
    return {name: scale for name, _, scale in lo.Session(graph).taps(feeds) if scale is not None}


def test_a_plan_is_accepted(there):
    """The tensors of the graph have the plan's scales, as those of the graph that it was saved
    with.
    """
    run("quantize conv.onnx --calib conv.npz --plan conv_plan.json --platform arcs -o again.onnx")
    assert (
        scales("again.onnx").items() >= scales("conv_plan.onnx").items()
    )  # a form of today may have more of them
    assert against_schema(json.loads(Path("conv_plan.json").read_text()), "plan") == []


def test_a_configuration_is_accepted(there, tmp_path):
    run("quantize conv.onnx --calib conv.npz --config conv.yaml -o again.onnx")
    same(integers("again.onnx", "conv.npz", tmp_path), arrays("expected/conv_config.npz"))


def test_a_report_has_all_that_it_had(there):
    """Who reads reports finds each field where it was, as the schema describes it; there may be
    more.
    """
    wrong = against_schema(json.loads(Path("conv_report.json").read_text()), "report")
    assert [fault for fault in wrong if ": no " not in fault] == []


def cut(path, lines):
    """Leave so many lines of a journal, and a part of the next one, as a killed process does."""
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:lines]) + whole[lines][:20])
    return whole


def test_a_search_is_resumed(there):
    """After two of its attempts, and with all of them: what the journal has is not tried again."""
    log = Path("wish_search.jsonl")
    whole = cut(log, 3)
    run(commands(there)[log.name], "--resume")
    found = log.read_text().splitlines(keepends=True)
    assert found[:3] == whole[:3]
    tried = [json.dumps(json.loads(line)["attempt"]) for line in found[1:]]
    assert len(tried) == len(set(tried)) > 2
    run(commands(there)[log.name], "--resume")
    assert log.read_text().splitlines(keepends=True) == found


def test_a_ranking_is_resumed(there):
    """Two of its three blocks are there; the rest is computed, and the order is the same."""
    report = Path("sensitivity/sensitive_ops.json")
    before = json.loads(report.read_text())
    whole = cut(Path("sensitivity/sensitivity.jsonl"), 3)
    run(commands(there)["sensitivity"], "--resume")
    assert (
        Path("sensitivity/sensitivity.jsonl").read_text().splitlines(keepends=True)[:3] == whole[:3]
    )
    now = json.loads(report.read_text())
    assert [row[:3] for row in now] == [row[:3] for row in before]
    for new, old in zip(now, before, strict=True):
        assert [v is None for v in new] == [v is None for v in old]
        np.testing.assert_allclose([v for v in new[3:] if v], [v for v in old[3:] if v], rtol=1e-4)


@pytest.mark.parametrize("board, samples", (("board", 2), ("board_stream", 2)))
def test_a_deployed_folder_is_verified(there, board, samples, monkeypatch):
    """A device's dumps are compared with the part for the chip; the folder may be deployed to
    again, without C here.
    """
    (chip,) = Path(board).glob("*_chip.onnx")
    for number in range(samples):
        golden = Path(board, "golden", str(number))
        run("verify", chip, "--input", golden / "input.npz", "--device-dump", golden / "data")
        dump = next(path for path in sorted((golden / "data").iterdir()))
        lines = dump.read_text().splitlines()
        dump.write_text("\n".join([str(int(lines[0]) ^ 1), *lines[1:]]) + "\n")
        run(
            "verify",
            chip,
            "--input",
            golden / "input.npz",
            "--device-dump",
            golden / "data",
            fine=(1,),
        )
    monkeypatch.setattr(host_source, "explain_missing_generator", lambda: "no C is asked for")
    assert not list(written_c(deploy_again(there, board)))


@pytest.mark.slow
@pytest.mark.parametrize("board", ("board", "board_stream"))
def test_a_deployed_folder_gets_another_program(there, board):
    """Where the folder is deployed to again, with the C of its host parts."""
    before = {path.name for path in written_c(Path(board))}
    assert {path.name for path in written_c(deploy_again(there, board))} >= before | {"main.c"}


def deploy_again(there, board):
    """Run the command that wrote a folder; return the folder."""
    run(commands(there)[board])
    return Path(board)


def written_c(folder):
    """Return the C files of a folder."""
    return folder.rglob("*.c")


def test_dumps_and_profiles_are_compared(there):
    """A folder of tensors in place of a model, and two kept profiles without running anything."""
    run("compare conv.onnx dump --data conv.npz --limit 1 -o dumped")
    run("compare conv.onnx conv_venus.onnx --profiles profile_float profile_venus -o profiled")
    for folder in ("dumped", "profiled"):
        assert "logits" in Path(folder, "compare_per_layer_out.txt").read_text()


def test_training_goes_on(there):
    """From the checkpoint of one epoch to the second."""
    words = commands(there)["conv_training.pt"].replace("--epochs 1", "--epochs 2")
    told = json.loads(run(words, "--resume", "--json"))
    assert len(told["training"]) == 2


def test_checkpoints_change_their_layout(there):
    """Of each layout back to torch's: the weights are those of the layer that it was made of."""
    import torch

    for file in ("one_asr.pt", "one_plain.pt", "two_ub.pt"):
        run(f"checkpoint {file} -o back.pt --to torch")
        back = torch.load("back.pt")
        want = torch.load(f"{file[:3]}_torch.pt")
        for key in (key for key in want if key.startswith("weight")):
            one = key.removesuffix("_reverse")
            prefix = (
                ""
                if file.startswith("one")
                else "forward_lstmp."
                if one == key
                else "backward_lstmp."
            )
            torch.testing.assert_close(back[prefix + one], want[key], rtol=0, atol=0)
