"""Write golden vectors: the simulator's tensors for a few samples, in the executor's dump format.

    golden/0/input0.bin     input 0 of the chip as raw little-endian integers
    golden/0/input.npz      the inputs by name, as `verify` accepts them
    golden/0/output0.bin    output 0 of the chip, raw
    golden/0/data/          every integer tensor as text (`dumps`)

A device dumps fewer tensors, because it fuses nodes, and additional ones of the packer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from ..runtime.dump import write_npz
from .dumps import format_dump, make_dump_name, to_raw_bytes
from .ports import Port, Ports
from .simulation import SampleRun

__all__ = ["write_golden"]


def write_golden(
    folder: Path,
    sample_runs: Mapping[int, SampleRun],
    ports: Ports,
    computed: Collection[str],
    subfolder: str = "",
    canonical_names: Mapping[str, str] | None = None,
) -> None:
    """Write the golden vectors of one chip part for every sample.

    Parameters
    ----------
    folder
        Output folder; it gets one subfolder per sample, with inputN.bin, outputN.bin and input.npz
        (integers at the ports), and data/ with a dump of each computed tensor. The subfolders must
        not exist.
    sample_runs
        Tensors of each sample, by the names of the chip's file.
    ports
        Inputs and outputs of the chip part.
    computed
        Tensors that the chip's nodes compute; others are not dumped.
    subfolder
        Name of the part below each sample's folder, if there are several chip parts.
    canonical_names
        {tensor: name in the packed file}, if an equal part is packed instead of this one.
    """
    packed_names = canonical_names or {}
    for index, run in sample_runs.items():
        sample_folder = folder / str(index) / subfolder
        (sample_folder / "data").mkdir(parents=True)
        for position, port in enumerate(ports.inputs):
            data = to_raw_bytes(_get_array(run, port))
            (sample_folder / f"input{position}.bin").write_bytes(data)
        for position, port in enumerate(ports.outputs):
            data = to_raw_bytes(_get_array(run, port))
            (sample_folder / f"output{position}.bin").write_bytes(data)
        inputs = {
            packed_names.get(port.name, port.name): np.ascontiguousarray(_get_array(run, port))
            for port in ports.inputs
        }
        write_npz(sample_folder / "input.npz", inputs)
        for name, array in run.integers.items():
            if name in computed:
                file = make_dump_name(packed_names.get(name, name), array.shape)
                text = format_dump(array)
                (sample_folder / "data" / file).write_text(text, encoding="ascii")


def _get_array(run: SampleRun, port: Port) -> np.ndarray:
    """Return the array of a port's tensor in `run`, integers if it has them, else floats."""
    return run.integers[port.tensor] if port.tensor in run.integers else run.floats[port.tensor]
