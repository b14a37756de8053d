"""Rewrites of one condition of an expression, such that some queues fulfil it, and their work budget."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from matcher.explain.queue_set import QueueSet
from requirements.classad import edit_expression
from requirements.classad.edit_expression import AttributeComparison
from requirements.errors import did_you_mean
from requirements.values import Scalar, Value, as_number, fold


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

#: A description of the change, and the new condition.
Rewrite = tuple[str, str]


def rewrite_condition(
    condition: str, queues: int, survey: QueueSet, budget: ExplanationBudget
) -> Iterator[Rewrite]:
    """The condition with other names and values, the likeliest intended one first.

    `queues` is the set of failing queues to win. Rewrites end once the budget is spent.
    """
    budget.spend(2 * len(condition))
    yield from _names(condition, survey, budget)
    for each in edit_expression.comparisons(condition):
        if not budget.spend(SEARCH):
            return
        present = condition[each.whole.start : each.whole.end]
        for changed in _values(each, queues, survey):
            new = edit_expression.replace_part(condition, each.whole, changed)
            yield f"write `{changed}` instead of `{present}`", new


def _names(condition: str, survey: QueueSet, budget: ExplanationBudget) -> Iterator[Rewrite]:
    known = {fold(name) for name in survey.names}
    for attribute, place in edit_expression.attributes(condition):
        name = edit_expression.unscoped_name(attribute)
        if fold(name) in known:
            continue
        if not budget.spend(SEARCH):
            return
        similar = did_you_mean(name, survey.names)
        if similar:
            new = attribute.removesuffix(name) + similar
            yield f"write {new} instead of {attribute}", edit_expression.replace_part(condition, place, new)


def _values(comparison: AttributeComparison, queues: int, survey: QueueSet) -> Iterator[str]:
    """Comparisons of the same attribute that some queues fulfil."""
    here = survey.distinct(comparison.name, queues)
    wanted = _unquoted_number(comparison.value, here)
    if comparison.operator in _AT_LEAST | _AT_MOST:
        if isinstance(wanted, int | float) and not isinstance(wanted, bool):
            yield from _numbers(comparison, wanted, here)
        return
    there = survey.distinct(comparison.name, survey.candidates)
    texts = [item for value in there for item in list_items(value) if isinstance(item, str)]
    if wanted != comparison.value:
        yield edit_expression.render_comparison(comparison, comparison.operator, wanted)
    similar = did_you_mean(wanted, texts) if isinstance(wanted, str) else None
    offered: Counter[tuple[type, Scalar]] = Counter()
    for value, mask in here.items():
        offered.update({(type(item), item): mask.bit_count() for item in list_items(value)})
    common = [item for (_, item), _ in offered.most_common(1)]
    for value in dict.fromkeys([*([similar] if similar else []), *common]):
        yield edit_expression.render_comparison(comparison, comparison.operator, value)


def _numbers(comparison: AttributeComparison, wanted: float, here: dict[Value, int]) -> Iterator[str]:
    """The same bound at values that queues offer; each value counts once per queue."""
    if wanted != comparison.value:
        yield edit_expression.render_comparison(comparison, comparison.operator, wanted)
    offered = [
        value
        for value, mask in here.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
        for _ in range(mask.bit_count())
    ]
    if comparison.operator in _AT_LEAST:
        for step in smaller_steps(each for each in offered if each <= wanted):
            yield edit_expression.render_comparison(comparison, ">=", step)
    else:
        for step in smaller_steps(-each for each in offered if each >= wanted):
            yield edit_expression.render_comparison(comparison, "<=", -step)


def _unquoted_number(wanted: Scalar, here: dict[Value, int]) -> Scalar:
    """The number in a quoted value, where queues have numbers."""
    numbers = any(isinstance(item, int | float) for value in here for item in list_items(value))
    return as_number(wanted) if numbers else wanted


def list_items(value: Value) -> tuple[Scalar, ...]:
    """The items of a list, or the single value."""
    return value if isinstance(value, tuple) else (value,)
