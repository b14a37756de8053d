"""Alternatives to one failing condition of a job that would make more queues eligible.

They rewrite one condition of an expression such that some queues fulfil it, within a budget of work.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from cs_config.options import keywords
from cs_config.tree.inheritance import as_tuple
from matcher.explain import work_budget
from matcher.explain.job_conditions import ClassCondition, JobDemand, RequirementCondition
from matcher.explain.queue_set import QueueSet
from matcher.explain.unmet_conditions import UnmetCondition, advise_places, names_place
from matcher.explain.work_budget import WorkBudget
from matcher.remedies import LEFT_OUT, OTHER, SPELLING, Refusal, nearness, smaller_steps
from requirements import evaluator
from requirements.canonical import Requirements
from requirements.classad import expression
from requirements.classad.expression import AttributeComparison, Expression
from requirements.errors import did_you_mean
from requirements.record import Record, ValueKind
from requirements.values import Scalar, Value, as_number, fold, format_value, job_attributes, key
from taskqueue.task_queues import class_derivation

_AT_LEAST = frozenset({">", ">="})
_AT_MOST = frozenset({"<", "<="})

#: Values, each with the queues that have it.
OfferedValues = Sequence[tuple[Value, int]]
#: The effort of the change, its description, and the new condition.
Rewrite = tuple[float, str, str]


def rewrite_condition(condition: str, queues: int, survey: QueueSet, budget: WorkBudget) -> Iterator[Rewrite]:
    """The condition with other names and values, the likeliest intended one first.

    `queues` is the set of failing queues to win. Rewrites end once the budget is spent.
    """
    budget.spend(2 * len(condition))
    yield from _names_of(condition, survey, budget)
    for each in expression.comparisons(condition):
        if not budget.spend(work_budget.SEARCH):
            return
        present = condition[each.whole.start : each.whole.end]
        for effort, changed in _values(each, queues, survey):
            new = expression.replace_part(condition, each.whole, changed)
            yield effort, f"write `{changed}` instead of `{present}`", new


def _names_of(condition: str, survey: QueueSet, budget: WorkBudget) -> Iterator[Rewrite]:
    known = {fold(name) for name in survey.names}
    for attribute, place in expression.attributes(condition):
        name = expression.unscoped_name(attribute)
        if fold(name) in known:
            continue
        if not budget.spend(work_budget.SEARCH):
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
    texts = [item for value, _ in there for item in as_tuple(value) if isinstance(item, str)]
    if wanted != comparison.value:
        yield SPELLING, expression.render_comparison(comparison, comparison.operator, wanted)
    similar = did_you_mean(wanted, texts) if isinstance(wanted, str) else None
    if similar:
        yield SPELLING, expression.render_comparison(comparison, comparison.operator, similar)
    common = _most_offered(here)
    if common is not None and common != similar:
        changed = expression.render_comparison(comparison, comparison.operator, common)
        yield nearness(wanted, common), changed


def _most_offered(values: OfferedValues) -> Scalar | None:
    """The item that most queues have; None: they have no value."""
    queues: Counter[tuple[int, float, str]] = Counter()
    items: dict[tuple[int, float, str], Scalar] = {}
    for value, mask in values:
        alike = {key(item): item for item in as_tuple(value)}
        queues.update(dict.fromkeys(alike, mask.bit_count()))
        items.update(alike)
    return next((items[most] for most, _ in queues.most_common(1)), None)


def _numbers(
    comparison: AttributeComparison, wanted: float, here: OfferedValues
) -> Iterator[tuple[float, str]]:
    """The same bound at values that queues offer; each value counts once per queue."""
    if wanted != comparison.value:
        yield SPELLING, expression.render_comparison(comparison, comparison.operator, wanted)
    offered = [
        value
        for value, mask in here
        if isinstance(value, int | float) and not isinstance(value, bool)
        for _ in range(mask.bit_count())
    ]
    if comparison.operator in _AT_LEAST:
        for step in smaller_steps(each for each in offered if each <= wanted):
            yield nearness(wanted, step), expression.render_comparison(comparison, ">=", step)
    else:
        for step in smaller_steps(-each for each in offered if each >= wanted):
            yield nearness(wanted, -step), expression.render_comparison(comparison, "<=", -step)


def _unquoted_number(wanted: Scalar, here: OfferedValues) -> Scalar:
    """The number in a quoted value, where queues have numbers."""
    numbers = any(isinstance(item, int | float) for value, _ in here for item in as_tuple(value))
    return as_number(wanted) if numbers else wanted


#: The effort of a change (see `remedies.SPELLING`), its description, and the changed demand.
Alternative = tuple[float, str, JobDemand]


def list_alternatives(
    failure: UnmetCondition, demand: JobDemand, queues: int, survey: QueueSet, budget: WorkBudget
) -> Iterator[Alternative]:
    """Changed demands that remedy a failure, the smallest change first.

    `queues` is the set of failing queues to win. Once the budget is spent, the only alternative for an
    expression is to leave it out.
    """
    part = failure.part
    if isinstance(part, RequirementCondition):
        yield from _requirement_alternatives(failure, part.asked, demand, queues, survey, budget)
    elif isinstance(part, ClassCondition):  # only the queue's configuration can change other conditions
        refusal = Refusal(
            asked=part.isolated,
            job=class_derivation.fill_in(demand.asked.statements, survey.options),
            winnable=survey.members(queues),
            queues=survey.queues,
            cpu_segments=survey.options.job_scheduling.cpu_segments,
            spell=lambda attribute: keywords.BY_ATTRIBUTE[attribute].name,
        )
        for effort, text, edits in part.demand.remedy(refusal):
            yield effort, text, _restate(demand, edits, survey)


def _restate(demand: JobDemand, edits: dict[str, Any], survey: QueueSet) -> JobDemand:
    """The demand of the job if its description stated something else."""
    asked, stated = demand.asked, demand.asked.statements | edits
    changed = class_derivation.derive_class(
        asked.vo,
        {name: value for name, value in stated.items() if value is not None},
        survey.options,
        replicas=asked.replicas,
        submit_pool=asked.submit_pool,
    )
    if demand.job is None:
        return replace(demand, asked=changed)
    new = vars(class_derivation.fill_in(dict(changed.stated or ()), survey.options))
    shown = {keywords.BY_ATTRIBUTE[name].name: new[name] for name in edits}
    listed = {name: sorted(it) if isinstance(it, frozenset) else it for name, it in shown.items()}
    kept = {name: value for name, value in demand.job.items() if name not in set(map(fold, listed))}
    own = {fold(name): value for name, value in job_attributes(listed).items()}
    return replace(demand, asked=changed, job=kept | own)


def list_values(before: JobDemand, after: JobDemand) -> dict[str, object]:
    """The values by which an edit of the description makes one demand of the other; None takes one away.

    By keyword, or by name in a record of Requirements: `Requirements.NAME` where that is a keyword, too.
    Empty: there is no such edit.
    """
    old, new = before.asked.statements, after.asked.statements
    changed = {name: new.get(name) for name in old | new if old.get(name) != new.get(name)}
    if not changed.keys() <= keywords.BY_ATTRIBUTE.keys():
        return {}
    values: dict[str, object] = {
        keywords.BY_ATTRIBUTE[name].name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in sorted(changed.items())
    }
    return values | _list_parts(before.requirements, after.requirements)


def _list_parts(old: Requirements | None, new: Requirements | None) -> dict[str, object]:
    if old == new:
        return {}
    if isinstance(new, Expression):
        return {"Requirements": new.original_text}
    if isinstance(old, Expression):
        return {"Requirements": None}
    had, has = dict(old.values if old else ()), dict(new.values if new else ())
    changed = [name for name in had | has if had.get(name) != has.get(name)]
    return {
        f"{keywords.PART}{name}" if keywords.find_keyword(name) else name: list(it)
        if isinstance(it := has.get(name), tuple)
        else it
        for name in changed
    }


def _requirement_alternatives(
    failure: UnmetCondition,
    part: Requirements,
    demand: JobDemand,
    queues: int,
    survey: QueueSet,
    budget: WorkBudget,
) -> Iterator[Alternative]:
    requirements = demand.requirements
    if not isinstance(requirements, Record) or not isinstance(part, Record):
        whole = requirements or part
        size = len(evaluator.format_requirement(whole, survey.declarations))
        for effort, text, new in (
            () if budget.over else rewrite_condition(failure.wanted, queues, survey, budget)
        ):
            if not budget.spend(size):
                break
            changed = evaluator.replace_operand(whole, failure.wanted, new)
            yield effort, text, replace(demand, requirements=changed)
        budget.spend(size)
        left = evaluator.replace_operand(whole, failure.wanted, None)
        text = f"leave out `{failure.wanted}` of the Requirements{_advise(failure.wanted, survey)}"
        yield LEFT_OUT, text, replace(demand, requirements=left)
        return
    [(name, wanted)] = part.values
    for effort, text, entry in _entry_alternatives(name, wanted, queues, survey):
        kept = [each for each in requirements.values if each[0] != name]
        values = tuple(sorted([*kept, *([entry] if entry else [])], key=lambda each: fold(each[0])))
        if len({fold(each[0]) for each in values}) == len(values):
            yield effort, text, replace(demand, requirements=Record(values=values) if values else None)


def _advise(condition: str, survey: QueueSet) -> str:
    """How to name the places that a condition names and that no queue shows to it; empty: it names none."""
    names = map(expression.unscoped_name, dict.fromkeys(each for each, _ in expression.attributes(condition)))
    unseen = (each for each in names if names_place(each) and not survey.distinct(each, survey.everything))
    return next((f" ({advise_places(each)})" for each in unseen), "")


_Entry = tuple[str, Value]


def _entry_alternatives(
    name: str, wanted: Value, queues: int, survey: QueueSet
) -> Iterator[tuple[float, str, _Entry | None]]:
    declaration = survey.declarations.get(name)
    [parameter] = evaluator.parameters(Record(values=((name, wanted),)), survey.declarations)
    there = survey.distinct(parameter, survey.candidates)
    if not there:
        known = [*survey.names, *survey.declarations.names()]
        similar = None if declaration else did_you_mean(name, known)
        if similar and fold(similar) != fold(name):
            yield SPELLING, f"write {similar} instead of {name}", (similar, wanted)
    else:
        if declaration and declaration.kind is ValueKind.NUMBER and isinstance(wanted, str):
            wanted = as_number(wanted)
        yield from _value_alternatives(name, wanted, there, survey.distinct(parameter, queues))
    yield LEFT_OUT, f"leave out {name}", None


def _value_alternatives(
    name: str, wanted: Value, there: OfferedValues, winnable: OfferedValues
) -> Iterator[tuple[float, str, _Entry]]:
    number = _number(wanted)
    if number is not None:
        offered = (_number(value) for value, mask in winnable for _ in range(mask.bit_count()))
        for step in smaller_steps(each for each in offered if each is not None and each < number):
            text = f"lower {name} from {format_value(wanted)} to {format_value(step)}"
            yield nearness(number, step), text, (name, step)
        return
    known = {key(item): item for value, _ in there for item in as_tuple(value)}
    texts = [item for item in known.values() if isinstance(item, str)]
    for item in as_tuple(wanted):
        similar = did_you_mean(item, texts) if isinstance(item, str) and key(item) not in known else None
        if similar:
            changed = tuple(similar if key(each) == key(item) else each for each in as_tuple(wanted))
            text = f"write {name} {similar} instead of {format_value(item)}"
            yield SPELLING, text, (name, changed[0] if len(changed) == 1 else changed)
    other = _most_offered(winnable)
    if other is not None:
        text = f"allow {name} {format_value(other)} as well"
        yield OTHER, text, (name, (*as_tuple(wanted), other))


def _number(value: Value) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
