"""Golden vectors: what the simulator computes of a few samples, in the form in which an executor dumps a run.

    golden/0/input0.bin     what the chip reads, raw, in the order of its inputs     (raw integers,
    little-endian) golden/0/input.npz      the same by the inputs' names, as `verify` takes it
    golden/0/output0.bin    what it writes
    golden/0/data/          every integer tensor as text, as `dumps` says

A device shows fewer tensors, for it fuses nodes, and some that the packer put in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from ..run.dump import write_npz
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
    names: Mapping[str, str] | None = None,
) -> None:
    """Write the vectors of every run in `sample_runs` into `folder`, which is made.

    All names are those of the chip's file.
    computed : the tensors that the chip's nodes write. part : a folder below each sample's, where
    there are several. names : {tensor: its name in the file that is packed}, where that is an equal
    part's.
    """
    named = names or {}
    for number, run in sample_runs.items():
        place = folder / str(number) / subfolder
        (place / "data").mkdir(parents=True)
        for word, side in (("input", ports.inputs), ("output", ports.outputs)):
            for index, port in enumerate(side):
                (place / f"{word}{index}.bin").write_bytes(to_raw_bytes(_get_array(run, port)))
        write_npz(
            place / "input.npz",
            {
                named.get(port.name, port.name): np.ascontiguousarray(_get_array(run, port))
                for port in ports.inputs
            },
        )
        for name, array in run.integers.items():
            if name in computed:
                (place / "data" / make_dump_name(named.get(name, name), array.shape)).write_text(
                    format_dump(array), encoding="ascii"
                )


def _get_array(run: SampleRun, port: Port) -> np.ndarray:
    return run.integers[port.tensor] if port.tensor in run.integers else run.floats[port.tensor]
