"""THE evaluator: whether a resource has what a job asks, with every reason why not."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from requirements.canonical import Requirements
from requirements.declarations import Declarations
from requirements.values import Value


class ReasonKind(StrEnum):
    """Why one requirement fails at a resource."""

    ABSENT = "absent"
    TYPE = "type"
    TOO_SMALL = "too_small"
    DIFFERENT = "different"
    NOT_AMONG = "not_among"
    NOT_ALL = "not_all"
    EXPRESSION = "expression"
    UNDEFINED = "undefined"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One requirement that fails at a resource."""

    requirement: str  #: its name, or `Requirements` for an expression
    wanted: str  #: what is asked, for a person
    has: str | None  #: what the resource has; None: nothing of that name
    kind: ReasonKind


def failing(
    requirements: Requirements, resource: Mapping[str, Value], declarations: Declarations
) -> tuple[Reason, ...]:
    """Every requirement that the resource does not fulfil; empty means that it is eligible."""
    raise NotImplementedError


def eligible(requirements: Requirements, resource: Mapping[str, Value], declarations: Declarations) -> bool:
    """Whether the resource fulfils all requirements."""
    return not failing(requirements, resource, declarations)
