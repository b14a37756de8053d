"""How a condition of an expression could be said so that some queues fulfil it."""

from collections import Counter
from collections.abc import Iterator

from matcher.effort import SEARCH, Effort
from matcher.steps import steps
from matcher.survey import Survey
from requirements import rewriting
from requirements.rewriting import Comparison
from requirements.suggestion import did_you_mean
from requirements.values import Scalar, Value, as_number, fold

_AT_LEAST = frozenset({">", ">="})
_AT_MOST = frozenset({"<", "<="})

#: What to do, and the condition as it would be.
Rewording = tuple[str, str]


def of(condition: str, queues: int, survey: Survey, effort: Effort) -> Iterator[Rewording]:
    """The condition with other names and values, what was probably meant first.

    Args:
        condition: As it was written.
        queues: Some that fail it, which should be won.
        survey: All queues.
        effort: The work that may still be done; when it is over, so are the rewordings.
    """
    effort.spend(2 * len(condition))
    yield from _names(condition, survey, effort)
    for each in rewriting.comparisons(condition):
        if not effort.spend(SEARCH):
            return
        for told in _values(each, queues, survey):
            new = rewriting.replaced(condition, each.whole, told)
            yield f"write `{told}` instead of `{_written(condition, each)}`", new


def _names(condition: str, survey: Survey, effort: Effort) -> Iterator[Rewording]:
    known = {fold(name) for name in survey.names}
    for attribute, place in rewriting.attributes(condition):
        name = rewriting.unscoped(attribute)
        if fold(name) in known:
            continue
        if not effort.spend(SEARCH):
            return
        meant = did_you_mean(name, survey.names)
        if meant:
            new = attribute.removesuffix(name) + meant
            yield f"write {new} instead of {attribute}", rewriting.replaced(condition, place, new)


def _values(comparison: Comparison, queues: int, survey: Survey) -> Iterator[str]:
    """Comparisons of the same attribute that some queues fulfil."""
    here = survey.distinct(comparison.name, queues)
    wanted = _as_there(comparison.value, here)
    if comparison.operator in _AT_LEAST | _AT_MOST:
        if isinstance(wanted, int | float) and not isinstance(wanted, bool):
            yield from _numbers(comparison, wanted, here)
        return
    there = survey.distinct(comparison.name, survey.candidates)
    texts = [item for value in there for item in _several(value) if isinstance(item, str)]
    if wanted != comparison.value:
        yield rewriting.compared(comparison, comparison.operator, wanted)
    meant = did_you_mean(wanted, texts) if isinstance(wanted, str) else None
    offered: Counter[tuple[type, Scalar]] = Counter()
    for value, mask in here.items():
        offered.update({(type(item), item): mask.bit_count() for item in _several(value)})
    common = [item for (_, item), _ in offered.most_common(1)]
    for value in dict.fromkeys([*([meant] if meant else []), *common]):
        yield rewriting.compared(comparison, comparison.operator, value)


def _numbers(comparison: Comparison, wanted: float, here: dict[Value, int]) -> Iterator[str]:
    """The same bound where queues keep it; each number as often as there are queues that have it."""
    if wanted != comparison.value:
        yield rewriting.compared(comparison, comparison.operator, wanted)
    offered = [
        value
        for value, mask in here.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
        for _ in range(mask.bit_count())
    ]
    if comparison.operator in _AT_LEAST:
        for step in steps(each for each in offered if each <= wanted):
            yield rewriting.compared(comparison, ">=", step)
    else:
        for step in steps(-each for each in offered if each >= wanted):
            yield rewriting.compared(comparison, "<=", -step)


def _as_there(wanted: Scalar, here: dict[Value, int]) -> Scalar:
    """A number that was put between quotes, where queues have numbers."""
    numbers = any(isinstance(item, int | float) for value in here for item in _several(value))
    if not numbers or not isinstance(wanted, str):
        return wanted
    number = as_number(wanted)
    return wanted if isinstance(number, str) else number


def _several(value: Value) -> tuple[Scalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def _written(condition: str, comparison: Comparison) -> str:
    return condition[comparison.whole.start : comparison.whole.end]
