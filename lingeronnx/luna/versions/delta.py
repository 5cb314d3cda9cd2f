"""Apply the changes of a version to the target of the version before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from ...targets._target import OperatorSupport, Target, format_platform_name
from ...targets.arithmetic import Arithmetic
from ..faults import LunaFault, build_unsupported_reasons
from ..packer_profile import PackerProfile, PackerVendor

__all__ = [
    "COMMON_REFUSALS",
    "OPTIONAL_ATTRIBUTES",
    "READ_ONLY",
    "VersionDelta",
    "build_versions",
    "list_other_operators",
]

_Value = TypeVar("_Value")

#: Why a version is not measured, if its packer and executor were compared as text only.
READ_ONLY = "known from its source text only; packer and executor were not run"

#: Refusals of the packer's text of 2026-08-20 on all chips; keys of `packer.version_rules`.
COMMON_REFUSALS = (
    "lstm batch",
    "lstm psram",
    "lstm state scale",
    "gru attributes",
    "norm scales",
    "batch norm psram",
    "pad psram",
    "average stride",
    "average ceil",
    "max pool stride",
    "pad below kernel",
    "one sample",
    "relu shift",
    "slice step",
    "softmax axis",
    "requant psram",
    "dequant scale",
    "prelu shifts",
    "div shift",
    "div psram",
)

#: Attributes that the packer's text of 2026-08-20 no longer needs.
OPTIONAL_ATTRIBUTES = MappingProxyType({"AvgPool2dInt": ("ceil_mode",)})


def list_other_operators(profile: PackerProfile, measured: Iterable[str]) -> tuple[str, ...]:
    """Return the operators of a packer, and Quant and Dequant, without those of `measured`."""
    known = ("Quant", "Dequant", *profile.operators)
    return tuple(operator for operator in known if operator not in set(measured))


@dataclass(frozen=True, kw_only=True)
class VersionDelta:
    """Changes of a version against the version before it, on one chip.

    version : name of the version.
    unmeasured : why nothing of the version was measured; "" if its packer and executor were run.
    ops : operator -> fields of its support to replace, or a complete support. Operators that the
    chip did not have must be complete.
    removed_ops : operators that the chip no longer has.
    read_operators : operator -> why it is not measured in this version, although others are; ""
    ends an entry of an earlier version.
    arithmetic : operator -> how it is computed; an operator that is not in `ops` is simulated, but
    never written.
    fixed_faults, new_faults : known faults that end and begin.
    packing : fields of the packer profile to replace; a mapping replaces fields of a nested value.
    node_attributes : operator -> attributes to write, in addition to those of the version before.
    """

    version: str
    unmeasured: str = ""
    ops: Mapping[str, OperatorSupport | Mapping[str, Any]] = field(default_factory=dict)
    removed_ops: tuple[str, ...] = ()
    read_operators: Mapping[str, str] = field(default_factory=dict)
    arithmetic: Mapping[str, Arithmetic] = field(default_factory=dict)
    fixed_faults: tuple[LunaFault, ...] = ()
    new_faults: tuple[LunaFault, ...] = ()
    packing: Mapping[str, Any] = field(default_factory=dict)
    node_attributes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


def build_versions(base: Target, deltas: Iterable[VersionDelta]) -> tuple[Target, ...]:
    """Return the targets of the versions after `base`, oldest first.

    Each is named ``CHIP@VERSION``. Every delta is applied to the version before it.
    """
    versions: list[Target] = []
    target = base
    for delta in deltas:
        target = _apply_delta(target, delta)
        versions.append(target)
    return tuple(versions)


def _apply_delta(target: Target, delta: VersionDelta) -> Target:
    """Return the target of the version that `delta` describes, from that of the version before."""
    vendor = target.vendor
    assert isinstance(vendor, PackerVendor)
    ops = {name: support for name, support in target.ops.items() if name not in delta.removed_ops}
    for operator, change in delta.ops.items():
        if isinstance(change, OperatorSupport):
            ops[operator] = change
        else:
            ops[operator] = replace(ops[operator], **change)
    simulated_only = dict(target.also)
    for operator, arithmetic in delta.arithmetic.items():
        if operator in ops:
            ops[operator] = replace(ops[operator], arithmetic=arithmetic)
        else:
            simulated_only[operator] = arithmetic
    faults = [fault for fault in target.faults if fault not in delta.fixed_faults]
    faults += delta.new_faults
    attributes = dict(target.node_attributes)
    for operator, added in delta.node_attributes.items():
        attributes[operator] = MappingProxyType({**attributes.get(operator, {}), **added})
    return replace(
        target,
        name=format_platform_name(target.chip, delta.version),
        executor=delta.version,
        ops=MappingProxyType(ops),
        also=MappingProxyType(simulated_only),
        node_attributes=MappingProxyType(attributes),
        faults=tuple(faults),
        why=build_unsupported_reasons(fault for fault in faults if isinstance(fault, LunaFault)),
        unmeasured=_merge_unmeasured(target.unmeasured, delta),
        vendor=replace(vendor, packing=_replace_fields(vendor.packing, delta.packing)),
    )


def _merge_unmeasured(previous: Mapping[str, str], delta: VersionDelta) -> Mapping[str, str]:
    """Return operator -> why it is not measured in the version of `delta`; "" for all operators.

    Entries of operators are inherited from `previous`, that of the whole version is not.
    """
    reasons = {**previous, **delta.read_operators, "": delta.unmeasured}
    return MappingProxyType({operator: reason for operator, reason in reasons.items() if reason})


def _replace_fields(value: _Value, changes: Mapping[str, Any]) -> _Value:
    """Return a copy of dataclass `value` with `changes`, nested ones by mappings.

    A mapping replaces single fields of a dataclass, and adds to a mapping.
    """
    fields: dict[str, Any] = {}
    for name, change in changes.items():
        current = getattr(value, name)
        if isinstance(change, Mapping) and is_dataclass(current):
            fields[name] = _replace_fields(current, change)
        elif isinstance(change, Mapping) and isinstance(current, Mapping):
            fields[name] = MappingProxyType({**current, **change})
        else:
            fields[name] = change
    return replace(value, **fields)  # type: ignore[type-var]
