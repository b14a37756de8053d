"""What the expressions of a site say of a job, whatever the site has written or advertised.

What an expression cannot be asked with closes its throttle and nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence

from requirements import two_sided
from requirements.errors import InvalidInput
from requirements.two_sided import TwoSided
from requirements.values import Value


def read(text: Value) -> TwoSided:
    """What was advertised is checked before it is stored; anything else is not true."""
    try:
        return two_sided.read(str(text).lower() if isinstance(text, bool) else str(text))
    except InvalidInput:
        return two_sided.read("false")


def are_true(expressions: Sequence[TwoSided], own: Mapping[str, Value], job: Mapping[str, Value]) -> bool:
    """Whether all are true of a job."""
    try:
        return all(each.is_true(own, job) for each in expressions)
    except InvalidInput:
        return False


def refusing(
    expressions: Sequence[TwoSided], own: Mapping[str, Value], job: Mapping[str, Value]
) -> Iterator[str]:
    """The conditions that are not true of a job, with what both sides say."""
    return (_told(part, own, job) for each in expressions for part in _failing(each, own, job))


def closing(expressions: Sequence[TwoSided], own: Mapping[str, Value]) -> Iterator[str]:
    """The conditions about the site alone that are not true, so that no job can make the whole true."""
    parts = (part for each in expressions for part in each.parts or (each,))
    return (_told(part, own, {}) for part in parts if not part.asks_other and _is_false(part, own))


def _is_false(part: TwoSided, own: Mapping[str, Value]) -> bool:
    """A number may count as true beside another condition."""
    return bool(_failing(part, own, {})) and type(part.value(own)) not in (int, float)


def _failing(
    expression: TwoSided, own: Mapping[str, Value], job: Mapping[str, Value]
) -> tuple[TwoSided, ...]:
    """None that could be told where a value is nothing to compare with."""
    try:
        return expression.failing(own, job)
    except InvalidInput:
        return ()


def _told(part: TwoSided, own: Mapping[str, Value], job: Mapping[str, Value]) -> str:
    said = f": {part.has(own, job)}" if part.compiled.names else ""
    return f"{part.text} is not true{said}"
