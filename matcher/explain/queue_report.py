"""Report for one queue: jobs it could run, requirements that exclude others, changes that would win more.

Computed from the configuration tree alone, without bans, limits and throttles.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_set
from matcher.explain.explanation import FAULTY, MEANINGFUL, queues_failing_one
from matcher.explain.job_conditions import AdmissionCondition, JobAds, RequirementCondition
from matcher.explain.queue_set import QueueSet
from matcher.explain.queue_views import QueueView
from matcher.explain.unmet_conditions import UnmetCondition
from requirements import evaluator
from requirements.bitset import list_positions
from requirements.record import Record
from requirements.values import as_number, fold, format_value, lookup
from taskqueue.task_queues.listing import WaitingClass

#: Suggestions that are returned.
_MOST_SUGGESTIONS = 10
#: A class with the conditions that some queue fails.
CheckedClass = tuple[WaitingClass, Sequence[UnmetCondition]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNeed:
    """A change of the queue that a job needs.

    Needs of equal text are one; a larger number also fulfils the needs with smaller ones.
    """

    text: str  #: contains `{number}` if there is a number
    number: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSuggestion:
    """A change of the queue, and the additional jobs that it could run then."""

    offer: str
    gains: Annotated[int, Field(description="Additional waiting jobs that it could run.")]
    vos: Annotated[tuple[str, ...], Field(description="VOs of these jobs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingWork:
    """Waiting jobs, and the number of their classes."""

    jobs: int
    classes: Annotated[int, Field(description="Distinct sets of their requirements.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedJob:
    """A job that a queue cannot run: the oldest one of the largest class."""

    vo: str
    job_id: Annotated[
        int | None, Field(description="Id of the job; null: it is of a VO that the token is not for.")
    ]
    wanted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedWork:
    """The waiting jobs that one requirement excludes."""

    requirement: str
    has: Annotated[str | None, Field(description="The queue's value; null: it has no such parameter.")]
    jobs: Annotated[int, Field(description="Waiting jobs that fail it.")]
    classes: int
    only_this: Annotated[int, Field(description="Jobs that fail only this.")]
    example: ExcludedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """Served and excluded waiting jobs of one queue."""

    served: Mapping[str, WaitingWork]  #: by VO
    excluded: tuple[ExcludedWork, ...]  #: most jobs first
    offers: tuple[QueueSuggestion, ...]  #: largest gain first


def report_queue(
    config: Configuration,
    address: QueueAddress,
    waiting: Iterable[WaitingClass],
    jobs: JobAds = MappingProxyType({}),
) -> QueueReport:
    """Report for one queue over the waiting classes."""
    seen: list[CheckedClass] = []
    surveys: dict[str, QueueSet] = {}
    needs: list[tuple[QueueNeed, WaitingClass]] = []
    for vo, here, checked in check_classes(config, [address], waiting, jobs):
        surveys[vo] = here
        seen += checked
        needs += ((need, each) for _, need, each in _list_needs(here, checked))
    return QueueReport(
        served=sum_work(each for each, failures in seen if not failures),
        excluded=tuple(_list_excluded(seen, surveys)),
        offers=tuple(suggest_changes(needs)),
    )


def suggest_offers(
    config: Configuration,
    addresses: Iterable[QueueAddress],
    waiting: Iterable[WaitingClass],
    jobs: JobAds = MappingProxyType({}),
) -> dict[QueueAddress, list[QueueSuggestion]]:
    """Suggested changes of several queues, from one pass over the waiting classes."""
    needs: defaultdict[QueueAddress, list[tuple[QueueNeed, WaitingClass]]] = defaultdict(list)
    for _, here, checked in check_classes(config, list(addresses), waiting, jobs):
        for queue, need, each in _list_needs(here, checked):
            needs[here.queues[queue].address].append((need, each))
    return {address: suggest_changes(of_queue) for address, of_queue in needs.items()}


def check_classes(
    config: Configuration, addresses: Sequence[QueueAddress], waiting: Iterable[WaitingClass], jobs: JobAds
) -> Iterator[tuple[str, QueueSet, list[CheckedClass]]]:
    """Each VO with its view of some queues, and the conditions of its classes that they fail."""
    by_vo: defaultdict[str, list[WaitingClass]] = defaultdict(list)
    for each in waiting:
        by_vo[each.asked.vo].append(each)
    for vo, classes in sorted(by_vo.items()):
        here = queue_set.some_queues(config, vo, addresses)
        closed = [
            UnmetCondition(part=None, requirement=requirement, wanted=wanted, queues=queues)
            for requirement, wanted, queues in (
                ("VO", vo, here.everything & ~here.admitted),
                ("Enabled", "true", here.everything & ~here.enabled),
                (FAULTY, MEANINGFUL, here.faulty),
            )
            if queues
        ]
        asked = ((each, job_conditions.waiting_conditions(each, jobs)) for each in classes)
        yield vo, here, [(each, [*closed, *here.failures_among(conditions)]) for each, conditions in asked]


def sum_work(waiting: Iterable[WaitingClass]) -> dict[str, WaitingWork]:
    """The jobs and classes of each VO."""
    jobs: defaultdict[str, list[int]] = defaultdict(list)
    for each in waiting:
        jobs[each.asked.vo].append(each.jobs)
    return {vo: WaitingWork(jobs=sum(these), classes=len(these)) for vo, these in jobs.items()}


def _list_excluded(seen: Sequence[CheckedClass], surveys: Mapping[str, QueueSet]) -> list[ExcludedWork]:
    groups: defaultdict[str, list[tuple[WaitingClass, UnmetCondition, bool]]] = defaultdict(list)
    for each, failures in seen:
        first = {failure.requirement: failure for failure in reversed(failures)}
        for requirement, failure in first.items():
            groups[requirement].append((each, failure, len(first) == 1))
    found = [_group(members, surveys) for members in groups.values()]
    return sorted(found, key=lambda each: (-each.jobs, -each.only_this, each.requirement))


def _group(
    members: Sequence[tuple[WaitingClass, UnmetCondition, bool]], surveys: Mapping[str, QueueSet]
) -> ExcludedWork:
    largest, failure, _ = max(members, key=lambda each: (each[2], each[0].jobs))
    return ExcludedWork(
        requirement=failure.requirement,
        has=_describe_value(surveys[largest.asked.vo], failure),
        jobs=sum(each.jobs for each, *_ in members),
        classes=len(members),
        only_this=sum(each.jobs for each, _, alone in members if alone),
        example=ExcludedJob(vo=largest.asked.vo, job_id=largest.first_job, wanted=failure.wanted),
    )


def _describe_value(here: QueueSet, failure: UnmetCondition) -> str | None:
    [queue] = here.queues
    if failure.requirement == FAULTY:
        return queue.fault
    if failure.part is None:
        vos = lookup(queue.values, "VO")
        return "false" if failure.requirement == "Enabled" else None if vos is None else format_value(vos)
    if isinstance(failure.part, AdmissionCondition):
        return "not true of these jobs"  # not everybody who may see the queue may see their attributes
    return here.failed.describe(failure, queue, next(here.failed.list_values(failure))[0])


def _list_needs(
    here: QueueSet, checked: Iterable[CheckedClass]
) -> Iterator[tuple[int, QueueNeed, WaitingClass]]:
    """The needs of each class, for the queues (by number) that it fails for one reason only."""
    for each, failures in checked:
        single = queues_failing_one(failures)
        for failure in failures:
            for queue in list_positions(failure.queues & single):
                if (need := _find_need(failure, here, queue)) is not None:
                    yield queue, need, each


def _find_need(failure: UnmetCondition, here: QueueSet, queue: int) -> QueueNeed | None:
    """The change with which a queue would fulfil the condition; None: no change of the queue would."""
    part = failure.part
    if part is None:
        text = {"VO": f"admit the VO {failure.wanted}", "Enabled": "switch the queue on (Enabled: true)"}
        return QueueNeed(text=text[failure.requirement]) if failure.requirement in text else None
    if isinstance(part, RequirementCondition):
        return _need_of_requirement(part, failure.wanted, here, here.queues[queue])
    if isinstance(part, AdmissionCondition):
        return QueueNeed(text=f"do without `{failure.wanted}`")
    change, need, asked = part.demand.change, part.condition.need, part.isolated
    if change is None:
        return None
    if need is None or "{number}" not in change:
        return QueueNeed(text=change.format(names=part.demand.format_names(asked)))
    # A job may demand several processors by a tag alone.
    return QueueNeed(text=change, number=max(2, need(asked)) if asked.tags else need(asked))


def _need_of_requirement(
    part: RequirementCondition, wanted: str, here: QueueSet, queue: QueueView
) -> QueueNeed:
    if not isinstance(part.asked, Record):
        return QueueNeed(text=f"be such that `{wanted}`")
    [(_, value)] = part.asked.values
    [parameter] = evaluator.parameters(part.asked, here.declarations)
    if parameter in queue.nodes:
        return QueueNeed(text=f"have nodes with {parameter} {format_value(value)}")
    number = None if isinstance(value, tuple) else as_number(value)
    if isinstance(number, str | bool | None) or isinstance(lookup(queue.values, parameter), tuple):
        return QueueNeed(text=f"offer {parameter} {format_value(value)}")
    return QueueNeed(text=f"offer {parameter} {{number}}", number=number)


def suggest_changes(needs: Iterable[tuple[QueueNeed, WaitingClass]]) -> list[QueueSuggestion]:
    """Suggested changes of one queue by needs and the classes that have them; largest gain first.

    For needs with numbers the nearest step and the one that fulfils all.
    """
    by_text: defaultdict[str, list[tuple[float, WaitingClass]]] = defaultdict(list)
    for need, each in needs:
        by_text[need.text].append((need.number or 0, each))
    found = []
    for text, members in by_text.items():
        numbers = sorted({number for number, _ in members})
        for number in dict.fromkeys(numbers[:1] + numbers[-1:]):
            served = [each for least, each in members if least <= number]
            found.append(
                QueueSuggestion(
                    offer=text.replace("{number}", f"{number:.15g}"),
                    gains=sum(each.jobs for each in served),
                    vos=tuple(sorted({each.asked.vo for each in served})),
                )
            )
    return sorted(found, key=lambda each: (-each.gains, each.offer))[:_MOST_SUGGESTIONS]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterImpact:
    """Waiting jobs that a parameter excludes."""

    jobs: int = 0
    only_this: Annotated[int, Field(description="Jobs that only this parameter excludes.")] = 0


def parameter_impacts(
    config: Configuration, address: QueueAddress, waiting: Iterable[WaitingClass], jobs: JobAds
) -> Mapping[str, ParameterImpact]:
    """Excluded jobs by folded parameter name; each class is checked with the parameters for its VO."""
    impacts: defaultdict[str, ParameterImpact] = defaultdict(ParameterImpact)
    for _, here, checked in check_classes(config, [address], waiting, jobs):
        for each, failures in checked:
            found = [
                _parameters(here, failure)
                for failure in failures
                if failure.part is not None or failure.requirement != FAULTY
            ]
            for name in frozenset[str]().union(*found):
                known, alone = impacts[name], all(name in names for names in found)
                only_this = known.only_this + (each.jobs if alone else 0)
                impacts[name] = ParameterImpact(jobs=known.jobs + each.jobs, only_this=only_this)
    return dict(impacts)


def _parameters(here: QueueSet, failure: UnmetCondition) -> frozenset[str]:
    if failure.part is None:
        return frozenset({fold(failure.requirement)})
    return frozenset(job_conditions.list_parameters(failure.part, failure.requirement, here.declarations))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnableJobs:
    """How many waiting jobs the queues could run."""

    config: Configuration
    eligible: Mapping[tuple[str, int], int]  #: by VO and set of eligible queues, which many classes share
    by_site: Mapping[str, int]  #: a job that several queues of a site could run counts once

    def count_by_queue(self, site: str) -> Counter[QueueAddress]:
        """The jobs that each queue of a site could run; a job counts for each of its eligible queues."""
        found: Counter[QueueAddress] = Counter()
        for (vo, queues), number in self.eligible.items():
            whole = queue_set.all_queues(self.config, vo)
            for position in list_positions(queues & whole.sites.get(site, 0)):
                found[whole.queues[position].address] += number
        return found


def count_runnable(config: Configuration, waiting: Iterable[WaitingClass], jobs: JobAds) -> RunnableJobs:
    """How many waiting jobs each site and queue could run; sites that could run none are omitted."""
    eligible: Counter[tuple[str, int]] = Counter()
    for each in waiting:
        whole = queue_set.all_queues(config, each.asked.vo)
        queues = whole.fulfilling(job_conditions.waiting_conditions(each, jobs))
        eligible[each.asked.vo, queues] += each.jobs
    by_site: Counter[str] = Counter()
    for (vo, queues), number in eligible.items():
        for site, there in queue_set.all_queues(config, vo).sites.items():
            if queues & there:
                by_site[site] += number
    return RunnableJobs(config=config, eligible=eligible, by_site=by_site)
