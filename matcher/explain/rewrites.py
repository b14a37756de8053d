"""Rewrites of one condition of an expression, such that some queues fulfil it, and their work budget."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from matcher.explain.queue_set import QueueSet
from requirements.classad import expression
from requirements.classad.expression import AttributeComparison
from requirements.errors import did_you_mean
from requirements.values import Scalar, Value, as_number, fold

#: How much a change demands of the author of a job: it is listed the earlier, the less. A nearer value is
#: between `NEARER` and `OTHER`, by the share of the old value that is given up.
SPELLING, NEARER, OTHER, LEFT_OUT, BY_OTHERS = 0.0, 1.0, 2.0, 3.0, 4.0


def nearness(old: object, new: object) -> float:
    """The effort of another number in place of an old one."""
    if not isinstance(old, int | float) or not isinstance(new, int | float) or not old:
        return OTHER
    return NEARER + min(1.0, abs(old - new) / max(abs(old), abs(new)))


def smaller_steps(values: Iterable[float | None]) -> list[float]:
    """Up to three of the offered values: the highest, the median and the lowest, each winning more queues."""
    ordered = sorted((value for value in values if value is not None), reverse=True)
    return list(dict.fromkeys([*ordered[:1], *ordered[len(ordered) // 2 :][:1], *ordered[-1:]]))


#: Characters of expressions parsed for one explanation; parsing dominates the time.
_CHARACTERS = 40_000
#: Cost of a search for one similar name or value, in characters.
SEARCH = 400


@dataclass(slots=True)
class ExplanationBudget:
    """A budget of work in characters of parsed expressions: counted, not timed, so it is reproducible."""

    left: int = _CHARACTERS

    @property
    def over(self) -> bool:
        """Whether an alternative was or will be left out."""
        return self.left < 0

    def spend(self, characters: int) -> bool:
        """Take this much; False once the budget is exceeded."""
        self.left -= characters
        return not self.over


_AT_LEAST = frozenset({">", ">="})
_AT_MOST = frozenset({"<", "<="})

#: The effort of the change, its description, and the new condition.
Rewrite = tuple[float, str, str]


def rewrite_condition(
    condition: str, queues: int, survey: QueueSet, budget: ExplanationBudget
) -> Iterator[Rewrite]:
    """The condition with other names and values, the likeliest intended one first.

    `queues` is the set of failing queues to win. Rewrites end once the budget is spent.
    """
    budget.spend(2 * len(condition))
    yield from _names(condition, survey, budget)
    for each in expression.comparisons(condition):
        if not budget.spend(SEARCH):
            return
        present = condition[each.whole.start : each.whole.end]
        for effort, changed in _values(each, queues, survey):
            new = expression.replace_part(condition, each.whole, changed)
            yield effort, f"write `{changed}` instead of `{present}`", new


def _names(condition: str, survey: QueueSet, budget: ExplanationBudget) -> Iterator[Rewrite]:
    known = {fold(name) for name in survey.names}
    for attribute, place in expression.attributes(condition):
        name = expression.unscoped_name(attribute)
        if fold(name) in known:
            continue
        if not budget.spend(SEARCH):
            return
        similar = did_you_mean(name, survey.names)
        if similar:
            new = attribute.removesuffix(name) + similar
            changed = expression.replace_part(condition, place, new)
            yield SPELLING, f"write {new} instead of {attribute}", changed


def _values(comparison: AttributeComparison, queues: int, survey: QueueSet) -> Iterator[tuple[float, str]]:
    """Comparisons of the same attribute that some queues fulfil, each with its effort."""
    here = survey.distinct(comparison.name, queues)
    wanted = _unquoted_number(comparison.value, here)
    if comparison.operator in _AT_LEAST | _AT_MOST:
        if isinstance(wanted, int | float) and not isinstance(wanted, bool):
            yield from _numbers(comparison, wanted, here)
        return
    there = survey.distinct(comparison.name, survey.candidates)
    texts = [item for value in there for item in list_items(value) if isinstance(item, str)]
    if wanted != comparison.value:
        yield SPELLING, expression.render_comparison(comparison, comparison.operator, wanted)
    similar = did_you_mean(wanted, texts) if isinstance(wanted, str) else None
    offered: Counter[tuple[type, Scalar]] = Counter()
    for value, mask in here.items():
        offered.update({(type(item), item): mask.bit_count() for item in list_items(value)})
    common = [item for (_, item), _ in offered.most_common(1)]
    for value in dict.fromkeys([*([similar] if similar else []), *common]):
        changed = expression.render_comparison(comparison, comparison.operator, value)
        yield SPELLING if value == similar else nearness(wanted, value), changed


def _numbers(
    comparison: AttributeComparison, wanted: float, here: dict[Value, int]
) -> Iterator[tuple[float, str]]:
    """The same bound at values that queues offer; each value counts once per queue."""
    if wanted != comparison.value:
        yield SPELLING, expression.render_comparison(comparison, comparison.operator, wanted)
    offered = [
        value
        for value, mask in here.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
        for _ in range(mask.bit_count())
    ]
    if comparison.operator in _AT_LEAST:
        for step in smaller_steps(each for each in offered if each <= wanted):
            yield nearness(wanted, step), expression.render_comparison(comparison, ">=", step)
    else:
        for step in smaller_steps(-each for each in offered if each >= wanted):
            yield nearness(wanted, -step), expression.render_comparison(comparison, "<=", -step)


def _unquoted_number(wanted: Scalar, here: dict[Value, int]) -> Scalar:
    """The number in a quoted value, where queues have numbers."""
    numbers = any(isinstance(item, int | float) for value in here for item in list_items(value))
    return as_number(wanted) if numbers else wanted


def list_items(value: Value) -> tuple[Scalar, ...]:
    """The items of a list, or the single value."""
    return value if isinstance(value, tuple) else (value,)
