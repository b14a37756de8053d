"""Comparison of a required value with a resource's value, by the kind that the configuration declares.

Source of the rules: RFC #7.
"""

from dataclasses import dataclass
from enum import StrEnum

from requirements.record.declarations import Declaration, MatchRule, ValueKind, kind_of
from requirements.values import Scalar, Value, as_number, key, normal


class ReasonKind(StrEnum):
    """Why a requirement fails at a resource."""

    ABSENT = "absent"  #: the resource has no such parameter
    TYPE = "type"  #: the kinds of the two values cannot be compared
    TOO_SMALL = "too_small"  #: a capacity below the required number
    DIFFERENT = "different"  #: one value each, not equal
    NOT_AMONG = "not_among"  #: the resource has none of the required values
    NOT_ALL = "not_all"  #: the resource has only some of the required values (`match: all`)
    EXPRESSION = "expression"  #: an expression is false, or not a boolean
    UNDEFINED = "undefined"  #: an expression refers to a parameter that the resource does not have
    ERROR = "error"  #: an expression cannot be evaluated with the resource's values


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One requirement that fails at a resource."""

    requirement: str  #: its name, or `Requirements` for an expression
    wanted: str  #: the required value, formatted
    has: str | None  #: the resource's value; None: it has none
    kind: ReasonKind

    def __str__(self) -> str:
        has = "nothing of that name" if self.has is None else self.has
        return f"{self.requirement}: wanted {self.wanted}, has {has} ({self.kind})"


_UNDECLARED = Declaration(name="")


def mismatch(wanted: Value, has: Value | None, declaration: Declaration | None) -> ReasonKind | None:
    """Return why the value `has` of a resource does not fulfil `wanted`; None if it does."""
    declared = declaration or _UNDECLARED
    if has is None:
        return ReasonKind.ABSENT
    wanted, has = _read(wanted, declared), _read(has, declared)
    # A required list of one is its value, but `[4000]` of a resource is not a capacity of 4000.
    wanted = normal(wanted)
    is_scalar_kind = declared.kind is not None and declared.kind is not ValueKind.LIST
    if is_scalar_kind and any(kind_of(item) is not declared.kind for item in _several(wanted)):
        return ReasonKind.TYPE
    if isinstance(wanted, tuple) or declared.kind is ValueKind.LIST:
        return _list_mismatch(_several(wanted), _several(has), declared.match)
    if isinstance(has, tuple):
        return _list_mismatch((wanted,), has, MatchRule.ANY)
    return _scalar_mismatch(wanted, has)


def _read(value: Value, declared: Declaration) -> Value:
    if declared.kind is not ValueKind.NUMBER:
        return value
    return tuple(as_number(item) for item in value) if isinstance(value, tuple) else as_number(value)


def _several(value: Value) -> tuple[Scalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def _scalar_mismatch(wanted: Scalar, has: Scalar) -> ReasonKind | None:
    kind = kind_of(wanted)
    if kind_of(has) is not kind:
        return ReasonKind.TYPE
    if kind is ValueKind.NUMBER:
        return None if key(has) >= key(wanted) else ReasonKind.TOO_SMALL
    return None if key(has) == key(wanted) else ReasonKind.DIFFERENT


def _list_mismatch(
    wanted: tuple[Scalar, ...], has: tuple[Scalar, ...], match: MatchRule
) -> ReasonKind | None:
    required, present = {key(item) for item in wanted}, {key(item) for item in has}
    if match is MatchRule.ALL and required and required <= present:
        return None
    if required & present:
        return None if match is MatchRule.ANY else ReasonKind.NOT_ALL
    kinds = {kind_of(item) for item in wanted} & {kind_of(item) for item in has}
    return ReasonKind.NOT_AMONG if kinds or not has or not wanted else ReasonKind.TYPE
