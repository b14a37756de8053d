"""Requirements as a record of named values, all of which must be fulfilled.

Source of the rules: RFC #7, with the kinds that the configuration declares.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from requirements.errors import MOST_HINTS, InvalidInput, Problem, did_you_mean
from requirements.record.declarations import Declaration, Declarations, ValueKind, kind_of
from requirements.values import (
    Scalar,
    Value,
    as_number,
    as_value,
    fold,
    format_value,
    text_fault,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Required values by name, as spelled by the user.

    In Python `True == 1`, so records are identified by their `pool_id`, never used as keys.
    """

    values: tuple[tuple[str, Value], ...]  #: sorted by the folded name


def parse_record(raw: Mapping[str, object], declarations: Declarations, path: str = "Requirements") -> Record:
    """Parse the record in a job description or a request, as read from a JDL, YAML or JSON.

    Raises:
        InvalidInput: With every problem: invalid values, names that differ only in case, and those found by
            `record_problems`.
    """
    problems = list(_name_problems(raw, path))
    if problems:
        raise InvalidInput(problems)
    values: list[tuple[str, Value]] = []
    for name, item in raw.items():
        try:
            values.append((name, as_value(item, f"{path}/{name}")))
        except InvalidInput as error:
            problems.extend(error.problems)
    record = Record(values=tuple(sorted(values, key=lambda entry: fold(entry[0]))))
    problems.extend(record_problems(record, declarations, path))
    if problems:
        raise InvalidInput(problems)
    return record


def _name_problems(raw: Mapping[str, object], path: str) -> Iterator[Problem]:
    if not raw:
        yield Problem(path=path, message="is empty; leave it out")
    spelled: dict[str, str] = {}
    for name in raw:
        if fault := text_fault(name) or (None if name.strip() else "a name is empty"):
            yield Problem(path=path, message=fault)
        elif (other := spelled.setdefault(fold(name), name)) != name:
            yield Problem(path=f"{path}/{name}", message=f"named twice, the other time as {other}")


def record_problems(record: Record, declarations: Declarations, path: str = "Requirements") -> list[Problem]:
    """Check a record against the current declarations; empty if it is valid.

    The optimizers repeat the check, since declarations may have changed after the submission.
    """
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
