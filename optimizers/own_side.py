"""What `MY.X` is in the expressions of a job: what its description says under the name X."""

import re
from collections.abc import Mapping
from typing import Final

from cs_config import keywords
from requirements import job_attributes
from requirements.classads import Unevaluated
from requirements.grammar import read_expression
from requirements.own_attributes import OutOfScopeError, Own
from requirements.source import Source
from requirements.values import as_value, fold

_OWN: Final = re.compile(r"\b(?:my|self)\b", re.IGNORECASE)
_EVALUATED: Final = frozenset({"requirements", "requirement", "rank"})
#: How an expression is written where only JSON values can stand.
_EXPRESSION = "expression"
#: Who a job belongs to is settled beside its description.
_NOT_HERE = frozenset({"owner", "owner_group", "vo"})
#: Where 0 says that nothing was stated.
_NOT_STATED = frozenset({"max_ram_mb"})


def of(values: Mapping[str, object], others: Mapping[str, object]) -> Own:
    """What a description has.

    Args:
        values: Of our keywords, by their attribute of `JobDescription`.
        others: Everything else by its name: expressions, and keywords that only the configuration knows.
    """
    by_name = {fold(name): value for name, value in others.items()}

    def own(name: str) -> object:
        keyword = keywords.find(name)
        if keyword is None:
            return by_name.get(fold(name))
        if keyword.attribute in _NOT_HERE:
            raise OutOfScopeError(f"MY.{name}: whose a job is, its description does not say")
        value = values.get(keyword.attribute)
        is_nothing = value in ("", ()) or (value == 0 and keyword.attribute in _NOT_STATED)
        return None if is_nothing else job_attributes.seen(keyword.name, value)

    return own


def may_be_asked(text: str) -> bool:
    """Whether an expression in a text may ask for what the description says: then it is read for each job."""
    return _OWN.search(text) is not None


def is_asked(raw: Mapping[str, object]) -> bool:
    """The same of a description as read."""
    return any(
        may_be_asked(value.text if isinstance(value, Unevaluated) else str(value))
        for name, value in raw.items()
        if isinstance(value, Unevaluated | Mapping) or fold(name) in _EVALUATED
    )


def expression(value: object) -> object:
    """What stands for an expression where it has to be one: a text is read as one."""
    if isinstance(value, str):
        return Unevaluated(value)
    return further(value, "") if _is_expression(value) else value


def further(value: object, name: str) -> object:
    """The value of a keyword that only the configuration knows; perhaps an expression.

    Raises:
        InvalidInput: It is neither.
    """
    if _is_expression(value):
        value = Unevaluated(str(value[_EXPRESSION]))  # type: ignore[index]
    if isinstance(value, Unevaluated):
        place = Source(text=value.text, path=name, file=value.file, line=value.line, column=value.column)
        read_expression(place)
    else:
        as_value(value, name)
    return value


def as_json(value: object) -> object:
    """A value of a keyword as a stored description has it."""
    return {_EXPRESSION: value.text} if isinstance(value, Unevaluated) else value


def _is_expression(value: object) -> bool:
    return isinstance(value, Mapping) and list(value) == [_EXPRESSION] and isinstance(value[_EXPRESSION], str)
