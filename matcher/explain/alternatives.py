"""Alternatives to one failing condition of a job that would make more queues eligible.

They rewrite one condition of an expression such that some queues fulfil it, within a budget of work.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from cs_config.options import keywords
from matcher import rules
from matcher.explain import work_budget
from matcher.explain.job_conditions import ClassCondition, JobDemand, RequirementCondition
from matcher.explain.queue_columns import QueueView, UnmetCondition
from matcher.explain.queue_set import QueueSet
from matcher.explain.work_budget import WorkBudget
from requirements import evaluator, requirement_class
from requirements.canonical import Requirements
from requirements.classad import expression
from requirements.classad.expression import AttributeComparison
from requirements.errors import MOST_HINTS, did_you_mean
from requirements.record import Record, ValueKind
from requirements.values import Scalar, Value, as_number, fold, format_value, job_attributes, key, lookup
from taskqueue.task_queues import class_derivation

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
    texts = [item for value, _ in there for item in list_items(value) if isinstance(item, str)]
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
        alike = {key(item): item for item in list_items(value)}
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
    numbers = any(isinstance(item, int | float) for value, _ in here for item in list_items(value))
    return as_number(wanted) if numbers else wanted


def list_items(value: Value) -> tuple[Scalar, ...]:
    """The items of a list, or the single value."""
    return value if isinstance(value, tuple) else (value,)


#: The effort of a change (see `rewrites.SPELLING`), its description, and the changed demand.
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
        job = class_derivation.fill_in(demand.asked.statements, survey.options)
        find = _BY_KIND[part.kind.requirement]
        for effort, text, edits in find(part, job, survey.members(queues), survey):
            yield effort, text, _restate(demand, edits, survey)


#: Changes of what a job states, by attribute of a description; None: the keyword is left out.
_Edits = dict[str, Any]


def _restate(demand: JobDemand, edits: _Edits, survey: QueueSet) -> JobDemand:
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


_Found = Iterator[tuple[float, str, _Edits]]
#: Of a condition, what the job states or has by default, the queues to win, and all.
_AlternativeFinder = Callable[[ClassCondition, SimpleNamespace, list[QueueView], QueueSet], _Found]


def _cpu_time(part: ClassCondition, _: SimpleNamespace, offered: list[QueueView], survey: QueueSet) -> _Found:
    wanted = part.isolated.cpu_time
    times = [
        max(fitting)
        for queue in offered
        if (
            fitting := [
                each for each in survey.options.job_scheduling.cpu_segments if each <= queue.offered.cpu_time
            ]
        )
    ]
    for time in smaller_steps(each for each in times if each < wanted):
        yield nearness(wanted, time), f"lower CPUTime from {wanted} to {time} s", {"cpu_time": int(time)}


def _ram(part: ClassCondition, _: SimpleNamespace, offered: list[QueueView], __: QueueSet) -> _Found:
    asked = part.isolated
    needed, cores = rules.needed_ram(asked), asked.processors_min
    for ram in smaller_steps(
        queue.offered.max_ram for queue in offered if (queue.offered.max_ram or 0) < needed
    ):
        per_core = min(asked.min_ram_per_core, int(ram) // cores)
        own = min(asked.min_ram, int(ram) - per_core * cores)
        numbers = {
            "min_ram_mb": (asked.min_ram, own),
            "min_ram_per_core_mb": (asked.min_ram_per_core, per_core),
        }
        lowered = {name: (old, new) for name, (old, new) in numbers.items() if new < old}
        text = " and ".join(f"{_lower(name, old, new)} MB" for name, (old, new) in lowered.items())
        yield nearness(needed, ram), text, {name: new for name, (_, new) in lowered.items()}


def _lower(attribute: str, old: float, new: float) -> str:
    return f"lower {keywords.BY_ATTRIBUTE[attribute].name} from {old} to {new:.0f}"


#: The numbers of cores that a job may state.
_NUMBERS = ("processors", "min_processors", "max_processors")


def _processors(_: ClassCondition, job: SimpleNamespace, offered: list[QueueView], __: QueueSet) -> _Found:
    """Lower all that requires more cores than a queue has: numbers, tags, and a whole node."""
    for number in smaller_steps(queue.offered.processors or 1 for queue in offered):
        cores = int(number)
        # A larger maximum is no obstacle, unless it makes the job one of several cores.
        above = [name for name in _NUMBERS if (getattr(job, name) or 0) > cores]
        lowered = [name for name in above if cores == 1 or name != "max_processors"]
        tags = sorted(tag for tag in job.tags if requirement_class.count_tagged_cores(tag) > cores)
        texts = [_lower(name, getattr(job, name), cores) for name in lowered]
        texts += [f"leave out the tag {tag}" for tag in tags]
        edits: dict[str, Any] = dict.fromkeys(lowered, cores)
        if cores == 1 and job.min_processors and not (job.max_processors or job.processors):
            edits["max_processors"] = 1
            texts.append("state MaxNumberOfProcessors 1")
        if tags:
            edits["tags"] = frozenset(job.tags).difference(tags)
        effort = nearness(max((getattr(job, name) for name in lowered), default=0), cores)
        if edits:
            yield effort, ", and ".join(texts), edits
        for more, text, whole in _do_without_whole_node(job):
            tagged = {"tags": whole["tags"].difference(tags)}
            yield effort + more if edits else more, ", and ".join((*texts, text)), edits | whole | tagged


def _do_without_whole_node(job: SimpleNamespace) -> _Found:
    tags = frozenset(tag for tag in job.tags if fold(tag) != "wholenode")
    if job.whole_node or len(tags) < len(job.tags):
        yield LEFT_OUT, "do without WholeNode", {"whole_node": False, "tags": tags}


def _gpus(part: ClassCondition, _: SimpleNamespace, offered: list[QueueView], __: QueueSet) -> _Found:
    wanted = part.isolated.gpus
    for number in smaller_steps(queue.offered.gpus for queue in offered):
        yield nearness(wanted, number), _lower("gpus", wanted, number), {"gpus": int(number)}


def _tag(part: ClassCondition, job: SimpleNamespace, _: list[QueueView], survey: QueueSet) -> _Found:
    tag = part.names  # each condition holds one tag
    rest = frozenset(job.tags) - {tag}
    similar = did_you_mean(tag, [name for queue in survey.queues for name in _list_values(queue, "Tag")])
    if similar:
        yield SPELLING, f"write the tag {similar} instead of {tag}", {"tags": rest | {similar}}
    yield LEFT_OUT, f"leave out the tag {tag}", {"tags": rest}


def _required_tag(
    part: ClassCondition, job: SimpleNamespace, offered: list[QueueView], __: QueueSet
) -> _Found:
    have = rules.fold_names(part.isolated.tags)
    wanted = Counter(frozenset(queue.offered.required_tags - have) for queue in offered)
    for missing, _count in wanted.most_common(2):
        names = frozenset(_find_spelling(offered, "RequiredTag", missing))
        if names:
            yield OTHER, f"add the tag {', '.join(sorted(names))}", {"tags": names.union(job.tags)}


def _banned_sites(_: ClassCondition, job: SimpleNamespace, offered: list[QueueView], __: QueueSet) -> _Found:
    banned = rules.fold_names(frozenset(job.banned_sites))
    here = Counter(site for queue in offered if (site := fold(queue.address.site)) in banned)
    for site, _count in here.most_common(3):
        left = frozenset(name for name in job.banned_sites if fold(name) != site)
        spelled = next(name for name in job.banned_sites if fold(name) == site)
        yield OTHER, f"take {spelled} off BannedSites", {"banned_sites": left}
    if len(here) > 1:
        yield LEFT_OUT, "leave out BannedSites", {"banned_sites": None}


def _sites(part: ClassCondition, job: SimpleNamespace, offered: list[QueueView], survey: QueueSet) -> _Found:
    """Other sites; those that the job bans have to be taken off its list, too."""
    banned = rules.fold_names(frozenset(job.banned_sites))
    named = rules.fold_names(requirement_class.names_without_any(job.sites))
    yield from _banned_sites(
        part, job, [each for each in offered if fold(each.address.site) in named], survey
    )
    for effort, text, edits in _name_sites(part, job, offered, survey):
        new = edits["sites"]
        allowed = None if new is None else rules.fold_names(new)
        won = [each for each in offered if allowed is None or fold(each.address.site) in allowed]
        if not won or any(fold(each.address.site) not in banned for each in won):
            yield effort, text, edits
            continue
        for more, further, other in _banned_sites(part, job, won, survey):
            yield effort + more, f"{text}, and {further}", edits | other


def _names(keyword: str, attribute: str, has: Callable[[QueueView], Iterable[str]]) -> _AlternativeFinder:
    """Alternatives for a list of names, one of which a queue must have."""

    def find(_: ClassCondition, job: SimpleNamespace, offered: list[QueueView], survey: QueueSet) -> _Found:
        names = requirement_class.names_without_any(getattr(job, attribute))
        known = list(dict.fromkeys(name for queue in survey.queues for name in has(queue)))
        folded = rules.fold_names(known)
        for name in sorted(names)[:MOST_HINTS]:
            similar = None if fold(name) in folded else did_you_mean(name, known)
            if similar:
                text = f"write {keyword} {similar} instead of {name}"
                yield SPELLING, text, {attribute: names - {name} | {similar}}
        for other, _count in Counter(name for queue in offered for name in has(queue)).most_common(1):
            yield OTHER, f"allow {keyword} {other} as well", {attribute: names | {other}}
        yield LEFT_OUT, f"leave out {keyword}", {attribute: None}

    return find


_name_sites = _names("Site", "sites", lambda queue: [queue.address.site])
_BY_KIND: Mapping[str, _AlternativeFinder] = {
    "CPUTime": _cpu_time,
    "Site": _sites,
    "BannedSites": _banned_sites,
    "GridCE": _names("GridCE", "grid_ces", lambda queue: [queue.address.ce]),
    "Platform": _names("Platform", "platforms", lambda queue: _list_values(queue, "Platform")),
    "InputData": lambda *_: iter(()),  # a replica elsewhere is not ours to make
    "JobType": lambda *_: iter(()),  # another JobType would make it another job
    "Tags": _tag,
    "RequiredTag": _required_tag,
    "MinRAM": _ram,
    "NumberOfProcessors": _processors,
    "GPUs": _gpus,
    "WholeNode": lambda _, job, *__: _do_without_whole_node(job),
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
        text = f"leave out `{failure.wanted}` of the Requirements"
        yield LEFT_OUT, text, replace(demand, requirements=left)
        return
    [(name, wanted)] = part.values
    for effort, text, entry in _entry_alternatives(name, wanted, queues, survey):
        kept = [each for each in requirements.values if each[0] != name]
        values = tuple(sorted([*kept, *([entry] if entry else [])], key=lambda each: fold(each[0])))
        if len({fold(each[0]) for each in values}) == len(values):
            yield effort, text, replace(demand, requirements=Record(values=values) if values else None)


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
    known = {key(item): item for value, _ in there for item in list_items(value)}
    texts = [item for item in known.values() if isinstance(item, str)]
    for item in list_items(wanted):
        similar = did_you_mean(item, texts) if isinstance(item, str) and key(item) not in known else None
        if similar:
            changed = tuple(similar if key(each) == key(item) else each for each in list_items(wanted))
            text = f"write {name} {similar} instead of {format_value(item)}"
            yield SPELLING, text, (name, _value(changed))
    other = _most_offered(winnable)
    if other is not None:
        text = f"allow {name} {format_value(other)} as well"
        yield OTHER, text, (name, (*list_items(wanted), other))


def _number(value: Value) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _value(items: tuple[Scalar, ...]) -> Value:
    return items[0] if len(items) == 1 else items


def _list_values(queue: QueueView, name: str) -> list[str]:
    value = lookup(queue.values, name)
    return [] if value is None else [str(item) for item in list_items(value)]


def _find_spelling(offered: list[QueueView], name: str, folded: frozenset[str]) -> Iterator[str]:
    spelled = {fold(text): text for queue in offered for text in _list_values(queue, name)}
    return (spelled.get(each, each) for each in folded)
