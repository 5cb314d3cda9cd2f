"""The interface between the core and a chip.

`Target` is a frozen description of a chip; nothing derives from it. If a chip comes with code of
its own (a packer, computed limits, rewrites before the file is written), its vendor derives from
`Vendor`. The defaults of all methods suit a target without a packer. `Target` passes copies to
methods that modify a graph. Calibration, rounding methods and node grouping do not belong here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import (
    TYPE_CHECKING,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    final,
)

from ..common.deprecation import accept_old_parameters, keep_old_members
from ..common.errors import ConfigError, InternalError, ModelError
from .arithmetic import Arithmetic
from .latency import Latency
from .limits import (
    ConvLimits,
    LayerNormLimits,
    Limits,
    MatrixLimits,
    PoolLimits,
    RecurrentLimits,
    SigmoidLimits,
    SoftmaxLimits,
    TransposeLimits,
)
from .verdict import PackerArguments, require_latency

if TYPE_CHECKING:
    import onnx

    from ..ir import ir
    from ..ir.name_mapping import NameMapping
    from .board_profile import BoardProfile
    from .board_support import BoardSupport
    from .timing_calibration import TimingCalibration

__all__ = [
    "AppliedRewrite",
    "Fault",
    "LimitCheck",
    "OperatorSupport",
    "Target",
    "Vendor",
    "format_limit_rule",
    "format_platform_name",
    "make_support_rows",
    "split_platform_name",
    "describe_unmeasured",
    "require_measured",
]

_Kind = TypeVar("_Kind")

#: A limit of a node: it takes a node, float or integer, and the target, and returns the value that
#: breaks the limit, or None. Its docstring is the rule that users read, ``rule | remedy``, with
#: placeholders for columns of `target`.
LimitCheck: TypeAlias = "Callable[[ir.Node, Target], object]"


class Fault(Protocol):
    """A known defect of an executor.

    key : short name in reports.
    text : the description that users read.
    """

    @property
    def key(self) -> str:
        """The short name of the fault in reports."""

    @property
    def text(self) -> str:
        """The defect, and how the quantizer works around it, as users read it."""


@dataclass(frozen=True)
class AppliedRewrite:
    """An applied rewrite.

    Attributes
    ----------
    node, what
        The node, and a description of the change.
    cost
        "exact" if the results follow from the same algebra, else what the rewrite costs.
    checked_samples
        Number of samples on which the outputs of the graphs before and after the rewrites were
        compared and found equal: floats up to rounding, integers exactly. 0 if they were not.
    """

    node: str
    what: str
    cost: str
    checked_samples: int = 0

    @property
    def cost_text(self) -> str:
        """The cost for the report.

        "exact" becomes "exact by construction" if no samples were checked.
        """
        if self.cost.startswith("exact") and not self.checked_samples:
            return self.cost.replace("exact", "exact by construction", 1)
        return self.cost


@dataclass(frozen=True)
class Vendor:
    """Code of a target. The defaults are those of a target without a packer."""

    @property
    def packer_command(self) -> str:
        """The command of the packer; "" for this base, which has no packer."""
        return ""

    def get_limit_checks(self, operator: str) -> tuple[LimitCheck, ...]:
        """Return the limits of an integer operator beyond the columns of the target.

        They are checked on the float nodes that are lowered to it. This base has none: ().
        """
        return ()

    def has_limit(self, limit: LimitCheck, target: Target) -> bool:
        """Whether `limit`, one of `get_limit_checks`, applies to `target`; this base returns True.

        Vendors return False if the limit's number is not set. Used by pages that list the limits.
        """
        return True

    def get_limits_fixed_by(self, rewrite_name: str) -> tuple[LimitCheck, ...]:
        """Return the limits that legalization rewrite `rewrite_name` satisfies.

        The rewrite acts on nodes that break one of them. This base has none: ().
        """
        return ()

    def explain_rejected_weight_bits(self, node: ir.Node, bits: int, target: Target) -> str | None:
        """Explain why float `node` cannot have weights of `bits` bits; None if it can.

        Called if the target supports this width for some operators. This base rejects nothing.
        """
        return None

    def find_triggered_faults(self, node: ir.Node, target: Target) -> Sequence[Fault]:
        """Return the executor faults that float `node` would trigger, which the quantizer avoids.

        This base knows none: ().
        """
        return ()

    def run_backend_passes(
        self, graph: ir.Model, target: Target
    ) -> tuple[ir.Model, Sequence[AppliedRewrite]]:
        """Run the passes that the executor needs on integer `graph`, whose results do not change.

        Returns the graph, which may be modified in place, and the applied rewrites. This base
        returns it unchanged.
        """
        return graph, ()

    def assign_resident_constants(
        self, graphs: Sequence[ir.Model], target: Target
    ) -> Sequence[PackerArguments | None]:
        """Choose which parts of one model keep their constants in shared memory, and mark them.

        `graphs` are the parts, marked in place. Returns the chosen packer arguments of each part,
        or None for a part without; empty if nothing was chosen, as always in this base.
        """
        return ()

    def names(self, graph: ir.Model) -> NameMapping:
        """Return the names that are not valid in a file for the target, with their replacements.

        This base replaces none.
        """
        from ..ir.name_mapping import NameMapping

        return NameMapping()

    def evaluate_packing(
        self, graph: ir.Model | onnx.ModelProto, target: Target, argv: Sequence[str] | None
    ) -> PackerArguments:
        """Evaluate the part of a graph that runs on the chip, with the vendor's packer rules.

        `argv` are the packer's arguments; None selects the best ones. This base has no packer and
        always raises ConfigError; vendors override it.
        """
        raise ConfigError(f"{target.name} has no packer; choose a chip")

    def explain_missing_timing(self, target: Target) -> str:
        """Explain why latencies on `target` cannot be estimated; vendors return "" if they can.

        This base always has a reason: it has no timing model.
        """
        return f"no timing model for {target.name}; select a chip"

    def with_timing_calibration(self, calibration: TimingCalibration, target: Target) -> Vendor:
        """Return a copy of the vendor with the kernel costs of a calibrated board.

        Vendors raise ConfigError if the calibration is of another chip; this base always does, as
        it has no timing model.
        """
        raise ConfigError(f"a timing file needs a chip; {self.explain_missing_timing(target)}")

    def analyze_board_log(
        self,
        graphs: Sequence[ir.Model],
        target: Target,
        argv: Sequence[str] | None,
        log_text: str,
        clock_mhz: float | None,
    ) -> BoardProfile:
        """Compare a board's log with the latency model, and fit kernel costs to it.

        This base has no latency model and always raises ConfigError; vendors override it.

        Parameters
        ----------
        graphs
            The integer graphs of the chip's parts.
        argv
            The packer's arguments; None selects the best ones.
        clock_mhz
            Clock of the board in MHz; None if unknown.

        Raises
        ------
        ConfigError
            If the log does not belong to these graphs.
        """
        raise ConfigError(f"a board log needs a chip; {self.explain_missing_timing(target)}")

    @property
    def clock_mhz(self) -> float | None:
        """The chip's clock in MHz, if a timing calibration contains it; None in this base."""
        return None

    def convert_dialect(self, graph: ir.Model, domain: str, target: Target) -> Sequence[str]:
        """Rename the operators of `graph` to those of domain `domain`, in place.

        Returns notes on operators that have another meaning there. This base has no other domain
        and always raises ModelError.
        """
        raise ModelError(
            f"a graph for {target.name} cannot be written in domain {domain}, which supports "
            "chips only"
        )

    def format_packer_command(self, argv: Sequence[str], graph_path: str, package_path: str) -> str:
        """Return the packer's command line for two files, quoted for a shell.

        "" in this base, which has no packer.
        """
        return ""

    def get_board_support(self) -> BoardSupport:
        """Return names of the chip's SDK for firmware; this base knows none."""
        from .board_support import BoardSupport

        return BoardSupport()


_VERSION_MARK = "@"


def format_platform_name(chip: str, version: str) -> str:
    """Return the name of a platform, such as "venus@3.0.10": a chip with an executor's version."""
    return f"{chip}{_VERSION_MARK}{version}"


def split_platform_name(name: str) -> tuple[str, str | None]:
    """Return (chip, version of its executor) of a platform's name; None for a name without one."""
    chip, mark, version = name.partition(_VERSION_MARK)
    return chip, version if mark else None


@dataclass(frozen=True)
class OperatorSupport:
    """Support of one integer operator on a target.

    arithmetic : how it computes.
    limits : its limits; None if it supports everything that its definition allows.
    miscompiled : whether it packs but does not compute the defined operator. A graph with it is
    simulated as the chip computes it, but the quantizer writes something else.
    weight_bits : weight widths besides those of the target.
    """

    arithmetic: Arithmetic = Arithmetic()
    limits: Limits | None = None
    miscompiled: bool = False
    weight_bits: tuple[int, ...] = ()


class SupportColumns(TypedDict, total=False):
    """The fields of `OperatorSupport`, each of which may be replaced."""

    arithmetic: Arithmetic
    limits: Limits | None
    miscompiled: bool
    weight_bits: tuple[int, ...]


def make_support_rows(
    arithmetic: Arithmetic, *operators: str, limits: Limits | None = None, miscompiled: bool = False
) -> dict[str, OperatorSupport]:
    """Return {operator: support} with one shared support for all `operators`."""
    return dict.fromkeys(operators, OperatorSupport(arithmetic, limits, miscompiled))


@final
@keep_old_members(
    "0.3",
    arithmetic="find_arithmetic",
    breaks="needs_rewrite",
    broken_transposes="unsupported_perms",
    bytes_only="is_int8_only",
    computes="get_arithmetic",
    conv="conv_limits",
    curve="sigmoid_limits",
    finish="run_backend_passes",
    latency="estimate_latency",
    limits="get_limits",
    linear="linear_limits",
    named="with_safe_names",
    norm="layer_norm_limits",
    packs="has_packer",
    pool="pool_limits",
    power_of_two="needs_power_of_two_scales",
    recurrent="recurrent_limits",
    right="is_computed_correctly",
    runs="can_run",
    softmax="softmax_limits",
    timed="with_timing_calibration",
    translated="convert_dialect",
    verdict="evaluate_packing",
    weight_bits="get_weight_bits",
    weight_widths="all_weight_bits",
)
@dataclass(frozen=True)
class Target:
    """One target: a chip with its executor, or the generic one.

    ops : the integer operators that the target runs.
    also : further operators that the quantizer never writes, and how a graph with them is computed.
    weight_scales : granularities of weight scales: "tensor", "channel" (one per output channel) or
    "group" (one per group of a row).
    zero_points : whether activations may have a zero point other than 0.
    single_sample : whether graphs are written for one sample, with a batch of 1.
    out_bits : output widths of a fully connected layer whose output becomes float.
    curve_bits : output widths, besides 8, of one whose output only a sigmoid or tanh uses.
    exponents : bounds of the exponents of power-of-two activation scales.
    shared_memory, external_memory : in bytes.
    opset : version of the standard operators in written files.
    ir_version : IR version of written files without functions.
    node_attributes : attributes to add by operator; "" for every integer node.
    why : integer operator -> why it does not exist or is not written.
    unmeasured : integer operator -> why it is not measured on this executor; "" for all of them.
    training : dialect -> operator -> how the training software computes it.
    vendor : code of the target.
    """

    name: str
    executor: str
    title: str
    modes: tuple[str, ...]
    bits: tuple[int, ...]
    ops: Mapping[str, OperatorSupport]
    also: Mapping[str, Arithmetic] = field(default_factory=dict)
    weight_scales: tuple[str, ...] = ("tensor",)
    zero_points: bool = False
    single_sample: bool = False
    out_bits: tuple[int, ...] = (8,)
    curve_bits: tuple[int, ...] = ()
    exponents: tuple[int, int] = (-126, 126)
    shared_memory: int | None = None
    external_memory: int | None = None
    opset: int = 12
    ir_version: int = 6
    node_attributes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    training: Mapping[int, Mapping[str, Arithmetic]] = field(default_factory=dict)
    vendor: Vendor = field(default_factory=Vendor)

    def __init_subclass__(cls) -> None:
        """Raise TypeError for every subclass: the class is final."""
        raise TypeError("Target is final: add data as a column, and code to a subclass of Vendor")

    def __str__(self) -> str:
        """Return the target's name."""
        return self.name

    @property
    def chip(self) -> str:
        """The name of the chip, without the version of its executor."""
        return split_platform_name(self.name)[0]

    @property
    def needs_power_of_two_scales(self) -> bool:
        """Whether all scales must be powers of two, because the target rescales by shifts."""
        return self.modes == ("q-value",)

    @property
    def is_int8_only(self) -> bool:
        """Whether 8 bits is the only width of operands; biases then have 32 bits."""
        return self.bits == (8,)

    @property
    def all_weight_bits(self) -> tuple[int, ...]:
        """The widths, ascending, that weights of at least one operator may have."""
        widths = set(self.bits)
        for support in self.ops.values():
            widths.update(support.weight_bits)
        return tuple(sorted(widths))

    def get_weight_bits(self, operator: str) -> tuple[int, ...]:
        """Return the widths, ascending, that the weights of `operator` may have.

        Those of the target, and further ones of the operator.
        """
        operator_bits = self.ops[operator].weight_bits if operator in self.ops else ()
        return tuple(sorted({*self.bits, *operator_bits}))

    def with_op(self, operator: str, **columns: Unpack[SupportColumns]) -> Target:
        """Return a copy in which `columns` replace fields of the support of `operator`.

        Raises KeyError if the target does not have the operator.
        """
        return replace(self, ops={**self.ops, operator: replace(self.ops[operator], **columns)})

    def can_run(self, operator: str) -> bool:
        """Whether the target has the integer operator, computed correctly or not."""
        return operator in self.ops

    def is_computed_correctly(self, operator: str) -> bool:
        """Whether the target has the operator and computes it as it is defined.

        If not, the quantizer writes other operators instead.
        """
        return operator in self.ops and not self.ops[operator].miscompiled

    def find_arithmetic(self, operator: str) -> Arithmetic | None:
        """Return the arithmetic of `operator` on the target, or None if it is not known.

        Operators that the quantizer never writes are included.
        """
        support = self.ops.get(operator)
        return self.also.get(operator) if support is None else support.arithmetic

    @accept_old_parameters("0.3", kind="arithmetic_type")
    def get_arithmetic(self, operator: str, arithmetic_type: type[_Kind]) -> _Kind | None:
        """Return the arithmetic of `operator`, or None if the target does not have it.

        Raises InternalError if it is not an `arithmetic_type`.
        """
        return self._check_type(
            operator,
            self.ops[operator].arithmetic if operator in self.ops else None,
            arithmetic_type,
        )

    @accept_old_parameters("0.3", kind="limits_type")
    def get_limits(self, operator: str, limits_type: type[_Kind]) -> _Kind | None:
        """Return the limits of `operator`; None if it has none or the target does not have it.

        Raises InternalError if they are not a `limits_type`.
        """
        return self._check_type(
            operator, self.ops[operator].limits if operator in self.ops else None, limits_type
        )

    def _check_type(self, operator: str, value: object, expected_type: type[_Kind]) -> _Kind | None:
        """Return `value` if it is None or an `expected_type`, else raise InternalError.

        `operator` is named in the message.
        """
        if value is None or isinstance(value, expected_type):
            return value
        raise InternalError(
            f"platform {self.name}: {operator} has {type(value).__name__}, expected "
            f"{expected_type.__name__}"
        )

    # ---- limits that rules quote, or that several operators use ----------------------------------

    @property
    def conv_limits(self) -> ConvLimits | None:
        """Limits of Conv2dInt that rewrites aim at; None without limits."""
        return self.get_limits("Conv2dInt", ConvLimits)

    @property
    def pool_limits(self) -> PoolLimits | None:
        """Limits of AvgPool2dInt that rewrites aim at; None without limits."""
        return self.get_limits("AvgPool2dInt", PoolLimits)

    @property
    def linear_limits(self) -> MatrixLimits | None:
        """Limits of LinearInt, the fully connected layer; None without limits."""
        return self.get_limits("LinearInt", MatrixLimits)

    @property
    def recurrent_limits(self) -> RecurrentLimits | None:
        """Limits of LSTMInt; None without limits."""
        return self.get_limits("LSTMInt", RecurrentLimits)

    @property
    def transpose(self) -> TransposeLimits | None:
        """Limits of Transpose; None without limits."""
        return self.get_limits("Transpose", TransposeLimits)

    @property
    def unsupported_perms(self) -> tuple[tuple[int, ...], ...]:
        """Permutations of a Transpose that are not written; () without limits.

        Each is replaced by two others.
        """
        return () if self.transpose is None else self.transpose.unsupported_perms

    @property
    def softmax_limits(self) -> SoftmaxLimits | None:
        """Limits of the rows of SoftmaxInt; None without limits."""
        return self.get_limits("SoftmaxInt", SoftmaxLimits)

    @property
    def layer_norm_limits(self) -> LayerNormLimits | None:
        """Limits of LayerNormInt; None without limits."""
        return self.get_limits("LayerNormInt", LayerNormLimits)

    @property
    def sigmoid_limits(self) -> SigmoidLimits | None:
        """Limits of iqSigmoid where a GluInt computes it; None without limits."""
        return self.get_limits("iqSigmoid", SigmoidLimits)

    # ---- methods of the vendor -------------------------------------------------------------------

    @property
    def has_packer(self) -> bool:
        """Whether the target has a packer, so that a graph can be chip-ready for it."""
        return bool(self.vendor.packer_command)

    @accept_old_parameters("0.3", rewrite="rewrite_name")
    def needs_rewrite(self, node: ir.Node, rewrite_name: str) -> bool:
        """Whether `node` breaks a limit that legalization rewrite `rewrite_name` satisfies.

        False for a rewrite that the vendor does not know.
        """
        return any(
            limit(node, self) is not None for limit in self.vendor.get_limits_fixed_by(rewrite_name)
        )

    def run_backend_passes(self, graph: ir.Model) -> tuple[ir.Model, Sequence[AppliedRewrite]]:
        """Return a copy of integer `graph` as the executor needs it, and the applied rewrites.

        The copy computes the same integers and all its nodes have names.
        """
        from ..ir import ir

        model, rewrites = self.vendor.run_backend_passes(graph.clone(), self)
        ir.assign_node_names(model)
        return model, rewrites

    @accept_old_parameters("0.3", to="domain")
    def convert_dialect(self, graph: ir.Model, domain: str) -> tuple[ir.Model, Sequence[str]]:
        """Return a copy of integer `graph` with the operators of domain `domain`, and notes.

        Notes are on operators that have another meaning there. Raises ModelError if the target does
        not support the domain, or an operator has no counterpart.
        """
        copy = graph.clone()
        return copy, self.vendor.convert_dialect(copy, domain, self)

    def with_safe_names(self, graph: ir.Model, names: NameMapping | None = None) -> ir.Model:
        """Return `graph` with names that are valid in a file for the target.

        The original names are stored in the metadata. `names` is the mapping of a larger graph that
        `graph` is part of; None computes one.
        """
        from ..ir.name_mapping import apply_file_names

        return apply_file_names(graph, self.vendor.names(graph) if names is None else names)

    @accept_old_parameters("0.3", words="argv")
    def evaluate_packing(
        self, graph: ir.Model | onnx.ModelProto, argv: Sequence[str] | None = None
    ) -> PackerArguments:
        """Evaluate the part of a graph that runs on the chip: the packer's verdict and arguments.

        Parameters
        ----------
        argv
            The packer's arguments; None selects the best ones.

        Raises
        ------
        ConfigError
            If the target has no packer, or the packer does not have one of the arguments.
        """
        return self.vendor.evaluate_packing(graph, self, argv)

    @accept_old_parameters("0.3", row="calibration")
    def with_timing_calibration(self, calibration: TimingCalibration) -> Target:
        """Return a copy with the kernel costs of a calibrated board.

        Raises ConfigError if the calibration is of another chip, or the target has no timing model.
        """
        return replace(self, vendor=self.vendor.with_timing_calibration(calibration, self))

    @accept_old_parameters("0.3", words="argv")
    def estimate_latency(
        self, graph: ir.Model | onnx.ModelProto, argv: Sequence[str] | None = None
    ) -> Latency:
        """Estimate the cycles of the part of a graph that runs on the chip.

        Parameters
        ----------
        argv
            The packer's arguments; None selects the best ones.

        Raises
        ------
        ConfigError
            If there is no timing model of the target, or the graph does not pack.
        """
        if reason := self.vendor.explain_missing_timing(self):
            raise ConfigError(reason)
        return require_latency(self.evaluate_packing(graph, argv).verdict)


def format_limit_rule(limit: Callable[..., object], target: Target) -> tuple[str, str]:
    """Return (rule, remedy) of `limit` as users read them.

    The docstring of the limit is filled in from the target and split at " | "; without a remedy
    there, a general one is used. The placeholders `target` and `own` are the target and its vendor.
    """
    text = " ".join((limit.__doc__ or "").split()).format(target=target, own=target.vendor)
    rule, _, remedy = text.partition(" | ")
    return rule.rstrip("."), remedy.rstrip(".") or "change the model or leave the node in float"


def describe_unmeasured(target: Target, operators: Iterable[str] = ()) -> list[str]:
    """Return a line for the executor of `target` and each of `operators` that was never measured.

    Only the line on the executor if nothing of it was measured; empty if all was.
    """
    if "" in target.unmeasured:
        return [f"{target.name} is not measured: {target.unmeasured['']}"]
    return [
        f"{operator} on {target.name} is not measured: {target.unmeasured[operator]}"
        for operator in dict.fromkeys(operators)
        if operator in target.unmeasured
    ]


def require_measured(
    target: Target, operators: Iterable[str] = (), allow_unmeasured: bool = False
) -> list[str]:
    """Return the lines of `describe_unmeasured`, which a report repeats.

    Raises
    ------
    ConfigError
        If there are any and `allow_unmeasured` is False.
    """
    lines = describe_unmeasured(target, operators)
    if lines and not allow_unmeasured:
        raise ConfigError(
            f"not allowed without --allow-unmeasured: {lines[0]}; choose a version or operator "
            "that was measured"
        )
    return lines
