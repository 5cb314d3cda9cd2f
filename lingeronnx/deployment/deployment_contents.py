"""Contents of a deployed folder: graphs, C program, packer script, golden vectors and README."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from ..common.errors import ConfigError, ConstraintError
from ..common.escaping import escape_comment
from ..common.files import write_text
from ..ir import ir, onnx_file
from ..runtime.parts_runner import PartRun, PartsRunner
from ..runtime.program_parts import PartitionedProgram, ProgramPart, split_into_parts
from ..targets import DEFAULT_LATENCY_OPTIONS, CallLatency, LatencyOptions, PackerArguments, Target
from .c_program.footprint import format_footprints
from .c_program.host_proof import prove_program
from .c_program.known_answers import measure_tolerance
from .c_program.object_sizes import ProgramSizes, get_program_sizes
from .c_program.program import BoardProgram, build_program
from .c_program.program_files import (
    describe_program,
    make_pack_script,
    write_golden_calls,
    write_program,
)
from .c_program.proof import Proof
from .c_program.source_files import StaticMemory
from .canonical import find_equal_parts
from .dumps import max_magnitude
from .golden import write_golden
from .header import make_constant_lines, make_header
from .host_dumps import HOST_LIMITS_KEY
from .host_tolerances import compute_host_tolerances
from .ports import Port, Ports, make_ports
from .readme import FolderFacts, make_details, make_readme
from .simulation import SampleRun, SimulatedGraph

__all__ = ["DeploymentContents", "PartitionedGraph", "partition_graph", "ports_to_dict"]


@dataclass(frozen=True)
class PartitionedGraph:
    """The program parts of a graph, with the tensor names of the chip's files.

    arguments : packer arguments of the unique chip parts, by part name. canonical_parts : for each
    part name the first part that is equal to it, and {its tensor: that part's tensor}. call_latency
    : estimated time of a call on the chip.
    """

    parts: PartitionedProgram
    arguments: Mapping[str, PackerArguments]
    canonical_parts: Mapping[str, tuple[str, Mapping[str, str]]]
    call_latency: CallLatency = field(default_factory=CallLatency)

    @property
    def unique_parts(self) -> tuple[ProgramPart, ...]:
        """The parts that are not equal to an earlier one but for names, in order."""
        return tuple(
            part for part in self.parts.parts if self.canonical_parts[part.name][0] == part.name
        )

    @property
    def has_one_chip_part(self) -> bool:
        """Whether there is exactly one chip part."""
        return len(self.parts.chip) == 1

    def get_file_name(self, stem: str, part: ProgramPart) -> str:
        """Return the name of a part's ONNX file; parts that are equal but for names share one file.

        With one chip part these are STEM_chip, and STEM_host_head and STEM_host_tail for parts
        before and after it, else STEM_PART.
        """
        first_name, _ = self.canonical_parts[part.name]
        first = next(unique for unique in self.unique_parts if unique.name == first_name)
        if not self.has_one_chip_part:
            return f"{stem}_{first.name}.onnx"
        if first.chip:
            return f"{stem}_chip.onnx"
        order = self.parts.parts
        is_upstream = order.index(first) < order.index(self.parts.chip[0])
        return f"{stem}_host_{'head' if is_upstream else 'tail'}.onnx"


def partition_graph(
    graph: SimulatedGraph, latency_options: LatencyOptions = DEFAULT_LATENCY_OPTIONS
) -> PartitionedGraph:
    """Split a graph into program parts and plan the packing of its chip parts.

    Parts that are equal but for names are packed once.

    Raises
    ------
    ConstraintError
        If the platform is not a chip, no node runs on it, it cannot run a part, or a call takes
        longer than `latency_options` allows.
    """
    target = latency_options.apply_to(graph.target)
    if not target.has_packer:
        raise ConstraintError(
            f"cannot deploy for platform {target.name}: it is not a chip; quantize for a chip "
            "target"
        )
    parts = split_into_parts(graph.packed, target)
    if not parts.chip:
        raise ConstraintError(
            "no node runs on the chip: all were left in float; run `lingeronnx check` for advice"
        )
    equal_parts = find_equal_parts(parts.parts)
    arguments = {
        part.name: part.choice for part in parts.chip if equal_parts[part.name][0] == part.name
    }
    for name, choice in arguments.items():
        if not choice.verdict.is_chip_ready:
            location = "" if len(parts.chip) == 1 else f"{name}: "
            _raise_not_chip_ready(target, location, choice)
    verdicts = [arguments[equal_parts[part.name][0]].verdict for part in parts.chip]
    call_latency = latency_options.estimate_call(
        target, verdicts, has_host_parts=bool(parts.host_parts)
    )
    if call_latency.budget_finding is not None:
        raise ConstraintError(f"too slow: {call_latency.budget_finding}")
    return PartitionedGraph(parts, arguments, equal_parts, call_latency)


def _raise_not_chip_ready(target: Target, location: str, choice: PackerArguments) -> None:
    """Raise ConstraintError with the first finding of the packer that is not of level "plan".

    Such a finding is about the packer's memory plan. `location` begins the message: "" or "PART: ".
    """
    finding = next(f for f in choice.verdict.findings if f.level != "plan")
    raise ConstraintError(
        f"not chip-ready on {target.name}: {location}{finding}; "
        "or quantize with --max-parts 16, so that the host runs unsupported nodes"
    )


@dataclass(frozen=True)
class DeploymentContents:
    """The data that a deployed folder is written from.

    stem : beginning of the file names. sample_runs : run of each golden sample. calls : for each of
    them the inputs and outputs of every part. state_pairs : {output: input} of states. ports : of
    the first chip part. program : None if no C program can be written; `missing_program_reason`
    says why. separate_packages : whether each chip part is a package file, instead of one blob.
    """

    target: Target
    partition: PartitionedGraph
    stem: str
    sample_runs: Mapping[int, SampleRun]
    calls: Sequence[Sequence[PartRun]]
    state_pairs: Mapping[str, str]
    ports: Ports
    program: BoardProgram | None
    missing_program_reason: str
    separate_packages: bool

    @classmethod
    def build(
        cls,
        graph: SimulatedGraph,
        partition: PartitionedGraph,
        stem: str,
        sample_runs: Mapping[int, SampleRun],
        state_pairs: Mapping[str, str],
        separate_packages: bool,
    ) -> DeploymentContents:
        """Run all parts on the samples, and build the ports and the C program.

        If no program can be built it is None, with the reason in `missing_program_reason`. Also
        measures the tolerances of the program's floats. `state_pairs` maps outputs to the inputs
        that they feed.
        """
        parts = partition.parts
        runner = PartsRunner(parts, "executor", graph.target)
        calls = [list(runner.iter_parts(run.feeds)) for run in sample_runs.values()]
        ports = make_ports(parts.graph, parts.chip[0].graph, sample_runs[0], state_pairs)
        program, missing_program_reason = None, ""
        try:
            program = build_program(
                parts,
                graph.target,
                calls[0],
                state_pairs,
                stem=stem,
                choices=partition.arguments,
                files={part.name: partition.get_file_name(stem, part) for part in parts.parts},
                canonical_names={
                    name: first for name, (first, _) in partition.canonical_parts.items()
                },
            )
            program = replace(program, host_tolerances=_compute_program_tolerances(calls))
            feeds = [run.feeds for run in sample_runs.values()]
            program = replace(program, tolerance=measure_tolerance(program, parts, calls, feeds))
        except (ConfigError, ConstraintError) as error:
            program = None
            missing_program_reason = f"no C program is written: {error}"
        return cls(
            target=graph.target,
            partition=partition,
            stem=stem,
            sample_runs=sample_runs,
            calls=calls,
            state_pairs=state_pairs,
            ports=ports,
            program=program,
            missing_program_reason=missing_program_reason,
            separate_packages=separate_packages,
        )

    def notes(self) -> list[str]:
        """Return remarks for the user; empty if there are none.

        They are about parts whose nodes write past the memory plan, about PSRAM if the program
        needs more than the target has, and why there is no C program.
        """
        notes = []
        for name, choice in self.partition.arguments.items():
            if choice.verdict.has_overrun_warning:
                subject = "" if self.partition.has_one_chip_part else f"{name} is "
                plan_findings = [f for f in choice.verdict.findings if f.level == "plan"]
                notes += [f"{subject}written past the plan: {finding}" for finding in plan_findings]
        if self.program is None:
            return [*notes, self.missing_program_reason]
        required, limit = StaticMemory(self.program).psram_bytes, self.target.external_memory
        if limit is not None and required > limit:
            notes.append(self._describe_psram_overrun(required, limit))
        return notes

    def _describe_psram_overrun(self, required: int, limit: int) -> str:
        """Return a remark that the program needs `required` bytes of PSRAM, more than `limit`.

        With several chip parts it advises fewer parts.
        """
        remedy = ""
        if not self.partition.has_one_chip_part:
            max_parts = len(self.partition.parts.chip) - 1
            remedy = f"; fewer parts take less: quantize with --max-parts {max_parts}"
        return (
            f"psram: {required} bytes including the executor's objects; {self.target.name} has "
            f"{limit}{remedy}"
        )

    def write_files(self, folder: Path) -> list[str]:
        """Write graphs, C program (without one: a header), pack.sh and golden vectors to `folder`.

        Returns the packer command of each unique chip part.
        """
        ir.save(self.partition.parts.graph, folder / f"{self.stem}.onnx")
        for part in self.partition.unique_parts:
            path = folder / self.partition.get_file_name(self.stem, part)
            if part.chip:
                ir.save(part.graph, path)
            else:
                onnx_file.write_model(ir.to_proto(part.graph), path, onnx_file.MAX_MODEL_BYTES)
        commands = self._write_pack_script(folder)
        if self.program is None:
            write_text(
                folder / f"{self.stem}.h", make_header(self.stem, self.target.name, self.ports)
            )
        else:
            constant_lines = (
                make_constant_lines(self.stem, self.ports)
                if self.partition.has_one_chip_part
                else []
            )
            write_program(
                folder,
                self.program,
                self.target,
                self.calls,
                self.separate_packages,
                "\n".join(constant_lines),
            )
        self._write_golden(folder / "golden")
        return commands

    def _write_pack_script(self, folder: Path) -> list[str]:
        """Write pack.sh, executable, for the program's packages; return the packer commands.

        Without a C program there is one plain package per unique chip part.
        """
        if self.program is not None:
            text, commands = make_pack_script(
                folder, self.program, self.target, self.separate_packages
            )
        else:
            files, commands = [], []
            for part in self.partition.unique_parts:
                if part.chip:
                    file = self.partition.get_file_name(self.stem, part)
                    package = file.replace("_chip", "").replace(".onnx", ".pkg")
                    argv = self.partition.arguments[part.name].argv
                    files.append(file)
                    commands.append(self.target.vendor.format_packer_command(argv, file, package))
            comment = (
                f"# Packs {escape_comment(', '.join(files))} for {self.target.name}; "
                "needs the vendor's tpacker on the PATH."
            )
            lines = ["#!/bin/sh", comment, "set -eu", 'cd "$(dirname "$0")"', *commands, ""]
            text = "\n".join(lines)
        write_text(folder / "pack.sh", text)
        (folder / "pack.sh").chmod(0o755)
        return commands

    def _write_golden(self, folder: Path) -> None:
        """Write golden vectors of every chip part, and of calls of the program if there is one.

        Only the first chip part has the ports with states, and several parts have a folder each.
        """
        for index, part in enumerate(self.partition.parts.chip):
            ports = self.ports
            if index > 0:
                graph = self.partition.parts.graph
                ports = make_ports(graph, part.graph, self.sample_runs[0], {})
            outputs = {str(value.name) for node in part.graph.graph for value in node.outputs}
            write_golden(
                folder,
                self.sample_runs,
                ports,
                outputs - {port.tensor for port in ports.inputs},
                "" if self.partition.has_one_chip_part else part.name,
                self.partition.canonical_parts[part.name][1],
            )
        if self.program is not None:
            feeds = [run.feeds for run in self.sample_runs.values()]
            write_golden_calls(folder, self.program, self.calls, feeds)

    def measure_sizes(self, folder: Path) -> ProgramSizes | None:
        """Return the sizes of the program's object files, or None if there is no program.

        They are measured if a cross compiler is on the PATH, else computed.
        """
        return None if self.program is None else get_program_sizes(self.program, folder)

    def prove(self, folder: Path) -> Proof:
        """Compile the program in `folder`, run it, and compare it with the simulator.

        Also measures its footprint for the cores whose compilers are installed. There must be a
        program.

        Raises
        ------
        ConfigError
            With the first failure, if the proof fails.
        """
        assert self.program is not None
        feeds = [run.feeds for run in self.sample_runs.values()]
        proof = prove_program(self.program, self.partition.parts, folder, self.calls, feeds)
        if proof.failed:
            raise ConfigError(f"--try: {proof.failed[0]}")
        proof.cores = format_footprints(self.program, folder)
        return proof

    def _compute_absolute_tolerances(self, program: BoardProgram) -> dict[str, float]:
        """Return {tensor: absolute tolerance} of the floats that host parts output.

        It is the relative tolerance times the largest magnitude in the golden calls.
        """
        part_runs = list(itertools.chain.from_iterable(self.calls))
        tolerances = {}
        for name, relative_tolerance in program.host_tolerances.items():
            arrays = (run.outputs[name] for run in part_runs if name in run.outputs)
            tolerances[name] = relative_tolerance * max_magnitude(arrays)
        return tolerances

    def write_texts(
        self,
        folder: Path,
        commands: Sequence[str],
        notes: Sequence[str],
        write_manifest: Callable[[Path, Mapping[str, object]], None],
        object_sizes: ProgramSizes | None = None,
    ) -> None:
        """Write README.md, DETAILS.md and the manifest, which list the other, existing files.

        Parameters
        ----------
        folder
            The deployed folder.
        commands
            Packer commands.
        notes
            Remarks for both.
        write_manifest
            Function that writes a manifest with the given contents to a folder.
        object_sizes
            Sizes of the program in `folder`, if there is one.
        """
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        facts = FolderFacts(
            self.stem,
            self.target.name,
            "; ".join(commands),
            self.ports,
            {str(path.relative_to(folder)): path.stat().st_size for path in paths},
            weights=self._count_weight_bytes(),
            costs={name: choice.verdict.cost for name, choice in self.partition.arguments.items()},
            notes=notes,
            time=self.partition.call_latency,
            program=self.program,
            object_sizes=object_sizes,
        )
        write_text(folder / "README.md", make_readme(facts))
        write_text(folder / "DETAILS.md", make_details(facts))
        files = [
            self.partition.get_file_name(self.stem, part) for part in self.partition.unique_parts
        ]
        body = {
            "stem": self.stem,
            "platform": self.target.name,
            "packer": "; ".join(commands),
            **ports_to_dict(self.ports),
            "notes": list(notes),
            "samples": len(self.sample_runs),
            "parts": {file: _read_io_names(folder / file) for file in files},
        }
        if self.program is not None:
            body["program"] = {
                **describe_program(self.program),
                **({} if object_sizes is None else {"sizes": object_sizes.to_dict()}),
                HOST_LIMITS_KEY: self._compute_absolute_tolerances(self.program),
            }
        write_manifest(folder, body)

    def _count_weight_bytes(self) -> int:
        """Return the bytes of all constants of the chip parts; parts that are equal count once."""
        weight_bytes = 0
        for part in self.partition.unique_parts:
            if part.chip:
                for value in part.graph.graph.initializers.values():
                    if value.const_value is not None:
                        weight_bytes += value.const_value.nbytes
        return weight_bytes


def _read_io_names(path: Path) -> dict[str, list[str]]:
    """Return the names of a model's inputs and outputs, as JSON-ready values."""
    graph = onnx.load(path, load_external_data=False).graph
    return {"inputs": [v.name for v in graph.input], "outputs": [v.name for v in graph.output]}


def ports_to_dict(ports: Ports) -> dict[str, object]:
    """Return ports as JSON-ready values: inputs, outputs, states and states_on_host."""
    return {
        "inputs": [_port_to_dict(port) for port in ports.inputs],
        "outputs": [_port_to_dict(port) for port in ports.outputs],
        "states": [vars(state) for state in ports.states],
        "states_on_host": dict(ports.host_states),
    }


def _port_to_dict(port: Port) -> dict[str, object]:
    """Return the fields of `port`, and its bytes, as JSON-ready values."""
    return {**vars(port), "shape": list(port.shape), "bytes": port.bytes}


def _compute_program_tolerances(calls: Sequence[Sequence[PartRun]]) -> dict[str, float]:
    """Return {tensor: relative tolerance} of each float tensor that a host part outputs.

    `calls` has the runs of all parts, call by call.
    """
    tolerances: dict[str, float] = {}
    for runs in zip(*calls, strict=True):
        if not runs[0].part.chip:
            tolerances.update(compute_host_tolerances(runs[0].part, runs))
    return tolerances
