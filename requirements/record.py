"""Requirements as a record of named values, their declarations in the configuration, and their comparison.

A required value is compared with the value of a resource by the kind that `Operations/JobDescription/<Name>`
declares.

Source of the rules: RFC #7.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from requirements.errors import MOST_HINTS, InvalidInput, Problem, did_you_mean
from requirements.values import (
    Scalar,
    Value,
    as_number,
    as_short_value,
    as_value,
    find_excess,
    fold,
    format_value,
    key,
    normal,
    text_fault,
)
from requirements.written_reals import WrittenReal


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
    ERROR = "error"  #: an expression cannot be evaluated with the values; a required value is too long


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
    if find_excess(wanted):
        return ReasonKind.ERROR
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Required values by name, as spelled by the user.

    In Python `True == 1`, so records are identified by their `pool_id`, never used as keys.
    """

    values: tuple[tuple[str, Value], ...]  #: sorted by the folded name
    #: Texts of numbers that lose their last zeros, with the names.
    written: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)


def parse_record(
    raw: Mapping[str, object],
    declarations: Declarations,
    path: str = "Requirements",
    *,
    is_accepted: bool = False,
) -> Record:
    """Parse the record in a job description or a request, as read from a JDL, YAML or JSON.

    One that `is_accepted` already, of a stored job, is judged by no declarations, and may have values that
    are too long: no resource fulfils these.

    Raises:
        InvalidInput: With every problem: invalid values, values that are too long, names that differ only in
            case, and those found by `record_problems`.
    """
    if is_accepted:
        declarations = Declarations()
    problems = list(_name_problems(raw, path, is_accepted=is_accepted))
    if problems:
        raise InvalidInput(problems)
    values: list[tuple[str, Value]] = []
    for name, item in raw.items():
        try:
            values.append((name, (as_value if is_accepted else as_short_value)(item, f"{path}/{name}")))
        except InvalidInput as error:
            problems.extend(error.problems)
    written = tuple(
        (name, each.text)
        for name, item in raw.items()
        for each in (item if isinstance(item, list | tuple) else (item,))
        if isinstance(each, WrittenReal)
    )
    record = Record(values=tuple(sorted(values, key=lambda entry: fold(entry[0]))), written=written)
    problems.extend(record_problems(record, declarations, path))
    if problems:
        raise InvalidInput(problems)
    return record


def _name_problems(raw: Mapping[str, object], path: str, *, is_accepted: bool) -> Iterator[Problem]:
    if not raw:
        yield Problem(path=path, message="is empty; leave it out")
    spelled: dict[str, str] = {}
    for name in raw:
        if fault := text_fault(name) or (None if name.strip() else "a name is empty"):
            yield Problem(path=path, message=fault)
        elif not is_accepted and (excess := find_excess(name)):
            yield Problem(path=path, message=f"a name {excess}")
        elif (other := spelled.setdefault(fold(name), name)) != name:
            yield Problem(path=f"{path}/{name}", message=f"named twice, the other time as {other}")


def record_problems(record: Record, declarations: Declarations, path: str = "Requirements") -> list[Problem]:
    """Check a record against the current declarations; empty if it is valid."""
    problems: list[Problem] = []
    for name, value in record.values:
        declaration = declarations.get(name)
        for message in _faults(value, declaration):
            is_hinted = declaration is None and len(problems) < MOST_HINTS
            suggestion = did_you_mean(name, declarations.names()) if is_hinted else None
            problems.append(Problem(path=f"{path}/{name}", message=message, suggestion=suggestion))
    return problems


def _faults(value: Value, declaration: Declaration | None) -> Iterator[str]:
    if value == ():
        yield "the list is empty, no resource has one of its values"
    if declaration is None:
        return
    for scalar in value if isinstance(value, tuple) else (value,):
        if fault := _kind_fault(scalar, declaration) or _range_fault(scalar, declaration):
            yield fault


def _kind_fault(scalar: Scalar, declaration: Declaration) -> str | None:
    wanted = declaration.kind
    if wanted is None or wanted is ValueKind.LIST:
        return None
    kind = kind_of(as_number(scalar) if wanted is ValueKind.NUMBER else scalar)
    if kind is wanted:
        return None
    unit = f" of {declaration.unit}" if declaration.unit else ""
    return f"{format_value(scalar)!r} is a {kind}, {declaration.name} is a {wanted}{unit}"


def _range_fault(scalar: Scalar, declaration: Declaration) -> str | None:
    number = as_number(scalar) if declaration.kind is ValueKind.NUMBER else scalar
    if isinstance(number, str | bool):
        return None
    low, high = declaration.minimum, declaration.maximum
    if low is not None and number < low:
        return f"{format_value(number)} is too small, allowed is at least {format_value(low)}"
    if high is not None and number > high:
        return f"{format_value(number)} is too large, allowed is at most {format_value(high)}"
    return None
