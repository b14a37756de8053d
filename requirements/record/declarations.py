"""What the configuration says about names of requirements: `Operations/JobDescription/<Name>`."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from requirements.errors import InvalidInput, Problem
from requirements.values import Value, fold


class ValueKind(StrEnum):
    """What a value is."""

    NUMBER = "number"
    STRING = "string"
    BOOLEAN = "boolean"
    LIST = "list"


class MatchRule(StrEnum):
    """How many values of a list the resource must have."""

    ANY = "any"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What one name means wherever it is asked for."""

    name: str
    kind: ValueKind | None = None  #: None: the kind follows from the two values
    match: MatchRule = MatchRule.ANY  #: for lists
    unit: str | None = None  #: for people; values are never converted
    resource: str | None = None  #: the parameter of the resource that it is compared with, if named otherwise
    minimum: float | None = None  #: smallest value that may be asked for
    maximum: float | None = None  #: largest value that may be asked for


def kind_of(value: Value) -> ValueKind:
    """The kind that a value shows by itself."""
    if isinstance(value, bool):
        return ValueKind.BOOLEAN
    if isinstance(value, int | float):
        return ValueKind.NUMBER
    return ValueKind.STRING if isinstance(value, str) else ValueKind.LIST


def compared_parameter(name: str, declaration: Declaration | None) -> str:
    """The parameter of a resource that a name of requirements is compared with."""
    return (declaration.resource if declaration else None) or name


@dataclass(frozen=True, slots=True)
class Declarations:
    """All declared names; looked up without case."""

    declared: tuple[Declaration, ...] = ()
    _by_fold: dict[str, Declaration] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_fold: dict[str, Declaration] = {}
        for declaration in self.declared:
            other = by_fold.setdefault(fold(declaration.name), declaration)
            if other is not declaration:
                message = f"declared twice, the other one is {other.name}"
                raise InvalidInput([Problem(path=declaration.name, message=message)])
        object.__setattr__(self, "_by_fold", by_fold)

    @classmethod
    def find(cls, declared: Iterable[Declaration]) -> "Declarations":
        """The declarations of these names.

        Raises:
            InvalidInput: Two of the names differ only in case.
        """
        return cls(tuple(declared))

    def get(self, name: str) -> Declaration | None:
        """What is declared for a name, in any case of letters; None if nothing is."""
        return self._by_fold.get(fold(name))

    def names(self) -> tuple[str, ...]:
        """The declared names as they are spelled in the configuration."""
        return tuple(declaration.name for declaration in self.declared)
