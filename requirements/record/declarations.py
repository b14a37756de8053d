"""Declarations of requirement names in the configuration: `Operations/JobDescription/<Name>`."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from requirements.errors import InvalidInput, Problem
from requirements.values import Value, fold


class ValueKind(StrEnum):
    """Type of a value."""

    NUMBER = "number"
    STRING = "string"
    BOOLEAN = "boolean"
    LIST = "list"


class MatchRule(StrEnum):
    """Number of values of a list that the resource must have."""

    ANY = "any"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Meaning of one name in requirements."""

    name: str
    kind: ValueKind | None = None  #: None: taken from the two values
    match: MatchRule = MatchRule.ANY  #: for lists
    unit: str | None = None  #: for people; values are never converted
    resource: str | None = None  #: parameter of the resource to compare with, if it has another name
    minimum: float | None = None  #: smallest allowed value
    maximum: float | None = None  #: largest allowed value


def kind_of(value: Value) -> ValueKind:
    """Return the kind of a value."""
    if isinstance(value, bool):
        return ValueKind.BOOLEAN
    if isinstance(value, int | float):
        return ValueKind.NUMBER
    return ValueKind.STRING if isinstance(value, str) else ValueKind.LIST


def compared_parameter(name: str, declaration: Declaration | None) -> str:
    """Return the parameter of a resource that is compared with this name."""
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
        """Create the declarations; raises `InvalidInput` if two of the names differ only in case."""
        return cls(tuple(declared))

    def get(self, name: str) -> Declaration | None:
        """Return the declaration of a name, in any case of letters; None if there is none."""
        return self._by_fold.get(fold(name))

    def names(self) -> tuple[str, ...]:
        """Return the declared names as spelled in the configuration."""
        return tuple(declaration.name for declaration in self.declared)
