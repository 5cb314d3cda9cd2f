"""What goes into a deployed folder, part by part.

Graphs, program, packer's script, golden vectors, README.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from ..errors import ConfigError, ConstraintError
from ..graph import ir, onnx_file
from ..run.parts_runner import PartRun, PartsRunner
from ..run.program_parts import PartitionedProgram, ProgramPart, split_into_parts
from ..targets import DEFAULT_LATENCY_OPTIONS, CallLatency, LatencyOptions, PackerArguments, Target
from .c_program.footprint import format_footprints
from .c_program.host_proof import prove_program
from .c_program.known_answers import measure_tolerance
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
from .ports import Ports, make_ports
from .readme import make_readme
from .simulation import SampleRun, SimulatedGraph

__all__ = ["DeploymentContents", "PartitionedGraph", "partition_graph", "ports_to_dict"]


@dataclass(frozen=True)
class PartitionedGraph:
    """The parts of a graph by the names of the chip's files.

    arguments : the packer's arguments of chip parts, by name. firsts : of each part the first that
    is equal to it, and {its own tensor: that one's}.
    """

    parts: PartitionedProgram
    arguments: Mapping[str, PackerArguments]
    canonical_parts: Mapping[str, tuple[str, Mapping[str, str]]]
    call_latency: CallLatency = field(default_factory=CallLatency)

    @property
    def unique_parts(self) -> tuple[ProgramPart, ...]:
        """The parts that are equal to none before them."""
        return tuple(
            part for part in self.parts.parts if self.canonical_parts[part.name][0] == part.name
        )

    @property
    def alone(self) -> bool:
        """Whether there is one chip part."""
        return len(self.parts.chip) == 1

    def get_file_name(self, stem: str, part: ProgramPart) -> str:
        """Return the name of a part's ONNX file; equal parts have one."""
        part = next(
            one for one in self.unique_parts if one.name == self.canonical_parts[part.name][0]
        )
        if not self.alone:
            return f"{stem}_{part.name}.onnx"
        if part.chip:
            return f"{stem}_chip.onnx"
        order = self.parts.parts
        return f"{stem}_host_{'head' if order.index(part) < order.index(self.parts.chip[0]) else 'tail'}.onnx"


def partition_graph(
    graph: SimulatedGraph, latency_options: LatencyOptions = DEFAULT_LATENCY_OPTIONS
) -> PartitionedGraph:
    """Split a graph into program parts.

    Raises
    ------
    ConstraintError
        If the chip cannot run a part, or a call takes longer than `latency_options` allows.
    """
    target = latency_options.apply_to(graph.target)
    if not target.has_packer:
        raise ConstraintError(
            f"platform {target.name} is no chip: there is nothing to deploy; quantize for a chip"
        )
    parts = split_into_parts(target.with_safe_names(graph.session.model), target)
    if not parts.chip:
        raise ConstraintError(
            "every node is left in float, nothing is for the chip; lingeronnx check says what helps"
        )
    equal = find_equal_parts(parts.parts)
    choices = {part.name: part.choice for part in parts.chip if equal[part.name][0] == part.name}
    for name, choice in choices.items():
        if not choice.verdict.is_chip_ready:
            finding = next(f for f in choice.verdict.findings if f.level != "plan")
            where = "" if len(parts.chip) == 1 else f"{name}: "
            raise ConstraintError(
                f"not chip-ready on {target.name}: {where}{finding}; "
                "or quantize with --max-parts 16: what the chip refuses goes to the host"
            )
    verdicts = [choices[equal[part.name][0]].verdict for part in parts.chip]
    time = latency_options.estimate_call(target, verdicts, has_host_parts=bool(parts.host_parts))
    if time.budget_finding is not None:
        raise ConstraintError(f"too slow: {time.budget_finding}")
    return PartitionedGraph(parts, choices, equal, time)


@dataclass(frozen=True)
class DeploymentContents:
    """All that is written. program : None where the C cannot be made, and without says why."""

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
        cut: PartitionedGraph,
        stem: str,
        found: Mapping[int, SampleRun],
        pairs: Mapping[str, str],
        many: bool,
    ) -> DeploymentContents:
        """Return the folder's contents for the runs `found`; pairs : {output: input} of states."""
        runner = PartsRunner(cut.parts, "executor", graph.target)
        calls = [list(runner.iter_parts(run.feeds)) for run in found.values()]
        ports = make_ports(cut.parts.graph, cut.parts.chip[0].graph, found[0], pairs)
        program, without = None, ""
        files = {part.name: cut.get_file_name(stem, part) for part in cut.parts.parts}
        try:
            equal = {name: first for name, (first, _) in cut.canonical_parts.items()}
            program = build_program(
                cut.parts,
                graph.target,
                calls[0],
                pairs,
                stem=stem,
                choices=cut.arguments,
                files=files,
                canonical_names=equal,
            )
            feeds = [run.feeds for run in found.values()]
            limits = [
                compute_host_tolerances(runs[0].part, runs)
                for runs in zip(*calls, strict=True)
                if not runs[0].part.chip
            ]
            program = replace(
                program,
                host_tolerances={name: one for some in limits for name, one in some.items()},
            )
            program = replace(
                program, tolerance=measure_tolerance(program, cut.parts, calls, feeds)
            )
        except (ConfigError, ConstraintError) as error:
            program = None
            without = f"no C program is written: {error}"
        return cls(
            target=graph.target,
            partition=cut,
            stem=stem,
            sample_runs=found,
            calls=calls,
            state_pairs=pairs,
            ports=ports,
            program=program,
            missing_program_reason=without,
            separate_packages=many,
        )

    def notes(self) -> list[str]:
        """Return what the user should know."""
        found = []
        for name, choice in self.partition.arguments.items():
            if choice.verdict.has_overrun_warning:
                where = "" if self.partition.alone else f"{name} is "
                found += [
                    f"{where}written past the plan: {f}"
                    for f in choice.verdict.findings
                    if f.level == "plan"
                ]
        if self.program is None:
            return [*found, self.missing_program_reason]
        need, most = StaticMemory(self.program).psram_bytes, self.target.external_memory
        if most is not None and need > most:
            fewer = (
                "; fewer parts take less: quantize with --max-parts "
                f"{len(self.partition.parts.chip) - 1}"
            )
            less = "" if self.partition.alone else fewer
            found.append(
                f"psram: {need} bytes with the executor's objects, and {self.target.name} has "
                f"{most}{less}"
            )
        return found

    # ---- files -------------------------------------------------------------------------------------------------------

    def write_files(self, made: Path) -> list[str]:
        """Write graphs, program, script and golden vectors; return the packer's lines."""
        ir.save(self.partition.parts.graph, made / f"{self.stem}.onnx")
        for part in self.partition.unique_parts:
            path = made / self.partition.get_file_name(self.stem, part)
            if part.chip:
                ir.save(part.graph, path)
            else:
                onnx_file.write_model(ir.to_proto(part.graph), path, ir.MAX_MODEL_BYTES)
        commands = self._write_pack_script(made)
        if self.program is None:
            _write(made / f"{self.stem}.h", make_header(self.stem, self.target.name, self.ports))
        else:
            lines = make_constant_lines(self.stem, self.ports) if self.partition.alone else []
            write_program(made, self.program, self.calls, self.separate_packages, "\n".join(lines))
        self._write_golden(made / "golden")
        return commands

    def _write_pack_script(self, made: Path) -> list[str]:
        """Write pack.sh; return the packer's lines."""
        if self.program is not None:
            text, commands = make_pack_script(
                made, self.program, self.target, self.separate_packages
            )
        else:
            names = {
                part.name: self.partition.get_file_name(self.stem, part)
                for part in self.partition.unique_parts
                if part.chip
            }
            commands = [
                self.target.vendor.format_packer_command(
                    self.partition.arguments[part].argv,
                    file,
                    file.replace("_chip", "").replace(".onnx", ".pkg"),
                )
                for part, file in names.items()
            ]
            what = (
                f"# Packs {', '.join(names.values())} for {self.target.name}; needs tpacker, "
                "the vendor's, on the PATH."
            )
            text = "\n".join(["#!/bin/sh", what, "set -eu", 'cd "$(dirname "$0")"', *commands, ""])
        _write(made / "pack.sh", text).chmod(0o755)
        return commands

    def _write_golden(self, folder: Path) -> None:
        for index, part in enumerate(self.partition.parts.chip):
            ports = (
                self.ports
                if index == 0
                else make_ports(self.partition.parts.graph, part.graph, self.sample_runs[0], {})
            )
            made = {str(v.name) for node in part.graph.graph for v in node.outputs}
            place = "" if self.partition.alone else part.name
            names = self.partition.canonical_parts[part.name][1]
            write_golden(
                folder,
                self.sample_runs,
                ports,
                made - {p.tensor for p in ports.inputs},
                place,
                names,
            )
        if self.program is not None:
            write_golden_calls(
                folder, self.program, self.calls, [run.feeds for run in self.sample_runs.values()]
            )

    def prove(self, made: Path, data: object, state: Mapping[str, str] | None) -> Proof:
        """Compile the program in `made` and prove it; ConfigError where the proof fails."""
        assert self.program is not None
        proof = prove_program(
            self.program,
            self.partition.parts,
            made,
            self.calls,
            [run.feeds for run in self.sample_runs.values()],
        )
        if proof.failed:
            raise ConfigError(f"--try: {proof.failed[0]}")
        proof.cores = format_footprints(self.program, made)
        return proof

    def _compute_absolute_tolerances(self, program: BoardProgram) -> dict[str, float]:
        """Return how far off each float of a host part may be, of its range in the golden calls."""
        return {
            name: limit
            * max_magnitude(
                run.outputs[name] for runs in self.calls for run in runs if name in run.outputs
            )
            for name, limit in program.host_tolerances.items()
        }

    def write_texts(
        self,
        made: Path,
        commands: Sequence[str],
        notes: Sequence[str],
        manifest: Callable[[Path, Mapping[str, object]], None],
    ) -> None:
        """Write README and manifest, behind all else."""
        costs = {name: choice.verdict.cost for name, choice in self.partition.arguments.items()}
        weights = sum(
            value.const_value.nbytes
            for part in self.partition.unique_parts
            if part.chip
            for value in part.graph.graph.initializers.values()
            if value.const_value is not None
        )
        sizes = {
            str(f.relative_to(made)): f.stat().st_size
            for f in sorted(made.rglob("*"))
            if f.is_file()
        }
        text = make_readme(
            self.stem,
            self.target.name,
            "; ".join(commands),
            self.ports,
            sizes,
            weights=weights,
            costs=costs,
            notes=notes,
            time=self.partition.call_latency,
            program=self.program,
        )
        _write(made / "README.md", text)
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
            "parts": {file: _read_io_names(made / file) for file in files},
        }
        if self.program is not None:
            body["program"] = {
                **describe_program(self.program),
                HOST_LIMITS_KEY: self._compute_absolute_tolerances(self.program),
            }
        manifest(made, body)


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _read_io_names(path: Path) -> dict[str, list[str]]:
    """Return what a model reads and writes."""
    graph = onnx.load(path, load_external_data=False).graph
    return {"inputs": [v.name for v in graph.input], "outputs": [v.name for v in graph.output]}


def ports_to_dict(ports: Ports) -> dict[str, object]:
    """Return ports as JSON-ready values."""
    sides = {"inputs": ports.inputs, "outputs": ports.outputs}
    return {
        **{
            key: [{**vars(p), "shape": list(p.shape), "bytes": p.bytes} for p in side]
            for key, side in sides.items()
        },
        "states": [vars(state) for state in ports.states],
        "states_on_host": dict(ports.host_states),
    }
