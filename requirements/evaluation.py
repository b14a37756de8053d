"""Evaluation of ClassAd expressions over a resource by HTCondor's own library."""

from collections.abc import Mapping
from dataclasses import dataclass

from requirements.rules import ReasonKind
from requirements.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingPart:
    """A part of an expression that is not true, so that the whole is not."""

    text: str  #: the part as it was written
    has: str | None  #: what the resource says of the attributes in it
    kind: ReasonKind


def is_true(text: str, resource: Mapping[str, Value]) -> bool:
    """Whether the expression is true of the resource."""
    raise NotImplementedError


def failing_parts(text: str, resource: Mapping[str, Value]) -> tuple[FailingPart, ...]:
    """The parts that are not true."""
    raise NotImplementedError
