"""Deployed folders with a program, made once: what stands between parts is what several tests look
at.
"""

import pickle
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lingeronnx import api
from lingeronnx.common.escaping import make_c_identifier
from lingeronnx.deployment.c_program.program import BoardProgram
from lingeronnx.runtime.program_parts import PartitionedProgram
from tests import artefacts, nets
from tests.ops.test_recurrent_forms import WIDTH, T

STATE = {"h_out": "h", "c_out": "c"}


@dataclass
class DeployedCase:
    """A folder, and what it was made of."""

    folder: Path
    program: BoardProgram
    parts: PartitionedProgram
    calls: list
    feeds: list
    graph: object


def make_two_chip_parts():
    """Two chip parts, a host part between them and one behind, an input that both chip parts
    read.
    """
    net = nets.Net(3, 8, 8, seed=11)
    a = net.node("Relu", net.conv("x", (6, 3, 3, 3), pads=[1] * 4))
    e = net.node("Softmax", net.node("Mul", a, net.const(np.float32(0.7))), axis=1)
    b = net.node(
        "Concat",
        net.conv(e, (4, 6, 3, 3), pads=[1] * 4),
        net.conv("x", (4, 3, 3, 3), pads=[1] * 4),
        axis=1,
    )
    flat = net.node("Flatten", net.node("Relu", b))
    return net.graph(net.node("Softmax", net.linear(flat, (512, 5)), axis=1, out="y"))


def make_small_output_net():
    """One chip part, and exponentials of what it gives on the host: nearly 0 where the input is far
    below it.
    """
    net = nets.Net(3, 8, 8, seed=4)
    same = net.const(np.eye(3, dtype=np.float32)[:, :, None, None])
    return net.graph(net.node("Exp", net.node("Conv", "x", same), out="y"))


def faint_calls():
    """Return two calls of `make_small_output_net`: outputs are 3e-4 at most in the first one, and
    up to some 7 in the
    second.
    """
    rng = np.random.default_rng(0)
    return [{"x": (low - rng.random((1, 3, 8, 8)) * 4).astype(np.float32)} for low in (-8, 2)]


def make_single_part():
    """One chip part and nothing else."""
    net = nets.Net(3, 8, 8, seed=3)
    return net.graph(net.conv(net.node("Relu", net.conv("x", (4, 3, 3, 3))), (4, 4, 3, 3), out="y"))


def make_many_outputs(count=66):
    """One chip part with many outputs."""
    net = nets.Net(2, 3, 3, seed=5)
    return net.graph(*(net.conv("x", (1, 2, 1, 1), out=f"y{number}") for number in range(count)))


def stream_calls(count=5):
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((1, T, WIDTH)).astype(np.float32)} for _ in range(count)]


def deploy_case(folder, model, data, stem, state=None, samples=3, many=False, **settings):
    """Quantize, deploy to `folder`, and return what a proof needs; test files with equal programs
    share the work.
    """

    def build(place):
        found = api.quantize(model, data, effort="fast", state=state, **settings)
        how = {
            "stem": stem,
            "samples": samples,
            "state": state,
            "packages": "many" if many else "one",
        }
        board = api.deploy(found, place / "board", data, **how).contents
        assert board.program is not None, board.missing_program_reason
        assert make_c_identifier(stem) == board.program.prefix
        feeds = [run.feeds for run in board.sample_runs.values()]
        result = DeployedCase(
            folder, board.program, board.partition.parts, board.calls, feeds, found.graph
        )
        (place / "made.pickle").write_bytes(pickle.dumps(result))

    shared = artefacts.folder_of(
        "program", (model, data, stem, state, samples, many, settings), build
    )
    shutil.copytree(shared / "board", folder)
    return replace(pickle.loads((shared / "made.pickle").read_bytes()), folder=folder)
