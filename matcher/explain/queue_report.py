"""Report for one queue: jobs it could run, requirements that exclude others, changes that would win more."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher import rules
from matcher.explain import job_conditions, queue_set
from matcher.explain.explanation import FAULTY, MEANINGFUL
from matcher.explain.job_conditions import AdmissionCondition, JobCondition, JobDemand, RequirementCondition
from matcher.explain.queue_columns import QueueView
from matcher.explain.queue_set import QueueSet
from matcher.explain.unmet_conditions import UnmetCondition
from requirements import canonical, evaluator
from requirements.bitset import list_positions
from requirements.record.record import Record
from requirements.values import Scalar, Value, as_number, fold, format_value, lookup
from taskqueue.task_queues.listing import WaitingClass
from taskqueue.task_queues.requirement_class import RequirementClass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNeed:
    """A change of the queue that a job needs.

    Needs of equal text are one; a larger number also fulfils the needs with smaller ones.
    """

    text: str  #: contains `{number}` if there is a number
    number: float | None = None


def find_need(part: JobCondition, wanted: str, here: QueueSet, queue: int) -> QueueNeed | None:
    """The change with which the queue would fulfil a failing condition; None: no change of the queue can.

    `wanted` is the demanded value, as text for people; `queue` its number in `here`.
    """
    if isinstance(part, RequirementCondition):
        return _need_of_requirement(part, wanted, here, here.queues[queue])
    if isinstance(part, AdmissionCondition):
        return QueueNeed(text=_literal(f"do without `{wanted}`"))
    asked = part.isolated
    number = {
        "CPUTime": ("offer CPUTime {number} s", asked.cpu_time),
        "MinRAM": ("offer MaxRAM {number} MB", rules.needed_ram(asked)),
        "NumberOfProcessors": ("offer NumberOfProcessors {number}", max(2, asked.processors_min)),
        "GPUs": ("offer GPUs {number}", asked.gpus),
    }.get(part.kind.requirement)
    if number is not None:
        return QueueNeed(text=number[0], number=number[1])
    text = {
        "Platform": f"offer the Platform {wanted}",
        "JobType": f"have a job manager for the JobType {', '.join(sorted(asked.job_types))}",
        "Tags": f"offer the Tag {wanted}",
        "RequiredTag": "require no Tag (RequiredTag)",
        "WholeNode": "offer WholeNode: true",
    }.get(part.kind.requirement)
    return None if text is None else QueueNeed(text=_literal(text))


def _need_of_requirement(
    part: RequirementCondition, wanted: str, here: QueueSet, queue: QueueView
) -> QueueNeed:
    if not isinstance(part.asked, Record):
        return QueueNeed(text=_literal(f"be such that `{wanted}`"))
    [(_, value)] = part.asked.values
    [parameter] = evaluator.parameters(part.asked, here.declarations)
    if parameter in queue.nodes:
        return QueueNeed(text=_literal(f"have nodes with {parameter} {format_value(value)}"))
    number = None if isinstance(value, tuple) else _number(value)
    has = next((each for other, each in queue.values.items() if fold(other) == fold(parameter)), None)
    if number is not None and not isinstance(has, tuple):
        return QueueNeed(text=_literal(f"offer {parameter} ") + "{number}", number=number)
    return QueueNeed(text=_literal(f"offer {parameter} {format_value(value)}"))


def _number(value: Scalar) -> float | None:
    number = as_number(value)
    return None if isinstance(number, str | bool) else number


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


#: Suggestions that are returned.
_MOST_SUGGESTIONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSuggestion:
    """A change of the queue, and the additional jobs that it could run then."""

    text: str
    gains: int
    vos: tuple[str, ...]  #: owners of these jobs


def suggest_changes(needs: Iterable[tuple[QueueNeed, WaitingClass]]) -> list[QueueSuggestion]:
    """Suggested changes of one queue by needs and the classes that have them; largest gain first."""
    by_text: defaultdict[str, list[tuple[QueueNeed, WaitingClass]]] = defaultdict(list)
    for each in needs:
        by_text[each[0].text].append(each)
    found = [offer for members in by_text.values() for offer in _suggest_number(members)]
    return sorted(found, key=lambda each: (-each.gains, each.text))[:_MOST_SUGGESTIONS]


def _suggest_number(members: Sequence[tuple[QueueNeed, WaitingClass]]) -> Iterator[QueueSuggestion]:
    """One suggestion; for numbers the nearest step and the one that fulfils all."""
    numbers = sorted({need.number for need, _ in members if need.number is not None})
    if not numbers:
        yield _build_suggestion(members[0][0].text.format(), [each for _, each in members])
    for number in dict.fromkeys(numbers[:1] + numbers[-1:]):
        served = [each for need, each in members if need.number is not None and need.number <= number]
        yield _build_suggestion(members[0][0].text.format(number=f"{number:.15g}"), served)


def _build_suggestion(text: str, served: Sequence[WaitingClass]) -> QueueSuggestion:
    vos = tuple(sorted({each.asked.vo for each in served}))
    return QueueSuggestion(text=text, gains=sum(each.jobs for each in served), vos=vos)


#: Hides the attributes of jobs: not everybody who may see the queue may see them.
_UNREPORTED = "not true of these jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingWork:
    """Waiting jobs, and the number of their classes."""

    jobs: int = 0
    classes: int = 0

    def __add__(self, other: "WaitingWork") -> "WaitingWork":
        """Sum of both."""
        return WaitingWork(jobs=self.jobs + other.jobs, classes=self.classes + other.classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedWork:
    """The waiting jobs that one requirement excludes."""

    requirement: str
    wanted: str  #: value demanded by most of the jobs
    has: str | None  #: the queue's value; None: it has no such parameter
    work: WaitingWork
    only_this: int  #: jobs that fail this and nothing else
    vo: str  #: VO of the example
    example_job: int  #: the oldest job of the largest class


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """Served and excluded waiting jobs of one queue."""

    served: Mapping[str, WaitingWork]  #: by VO
    waiting: Mapping[str, WaitingWork]  #: by VO, served or not
    excluded: tuple[ExcludedWork, ...]  #: most jobs first
    offers: tuple[QueueSuggestion, ...]  #: largest gain first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Miss:
    """One reason why queues cannot serve a class."""

    requirement: str
    wanted: str
    failure: UnmetCondition | None  #: None: the queue is closed to the VO, disabled or faulty
    queues: int  #: the queues concerned, as a bit set


_SeenConditions = tuple[WaitingClass, tuple[_Miss, ...]]


def report_queue(
    config: Configuration,
    address: QueueAddress,
    waiting: Iterable[WaitingClass],
    jobs: Mapping[int, Mapping[str, Value]] = MappingProxyType({}),
) -> QueueReport:
    """Report for one queue over the waiting classes.

    `jobs` holds the first job of each class by id, for queues with conditions on jobs; it represents its
    class.
    """
    seen: list[_SeenConditions] = []
    surveys: dict[str, QueueSet] = {}
    needs: list[tuple[int, QueueNeed, WaitingClass]] = []
    for vo, here, judged in _judge_queues(config, [address], waiting, jobs):
        surveys[vo] = here
        seen += judged
        needs += _list_needs(here, vo, judged)
    return QueueReport(
        served=_sum_work(each for each, misses in seen if not misses),
        waiting=_sum_work(each for each, _ in seen),
        excluded=tuple(_excluded(seen, surveys)),
        offers=tuple(suggest_changes((need, each) for _, need, each in needs)),
    )


def suggest_offers(
    config: Configuration,
    addresses: Iterable[QueueAddress],
    waiting: Iterable[WaitingClass],
    jobs: Mapping[int, Mapping[str, Value]] = MappingProxyType({}),
) -> dict[QueueAddress, list[QueueSuggestion]]:
    """Suggested changes of several queues, from one pass over the waiting classes."""
    needs: defaultdict[QueueAddress, list[tuple[QueueNeed, WaitingClass]]] = defaultdict(list)
    for vo, here, judged in _judge_queues(config, list(addresses), waiting, jobs):
        for queue, need, each in _list_needs(here, vo, judged):
            needs[here.queues[queue].address].append((need, each))
    return {address: suggest_changes(of_queue) for address, of_queue in needs.items()}


def _judge_queues(
    config: Configuration,
    addresses: Sequence[QueueAddress],
    waiting: Iterable[WaitingClass],
    jobs: Mapping[int, Mapping[str, Value]],
) -> Iterator[tuple[str, QueueSet, list[_SeenConditions]]]:
    """Each VO with its view of the queues, and the reasons why they cannot serve its classes."""
    by_vo: defaultdict[str, list[WaitingClass]] = defaultdict(list)
    for each in waiting:
        by_vo[each.asked.vo].append(each)
    for vo, classes in sorted(by_vo.items()):
        here = queue_set.some_queues(config, vo, addresses)
        yield vo, here, [(each, _misses(here, vo, each, jobs.get(each.first_job))) for each in classes]


def _misses(
    here: QueueSet, vo: str, waiting: WaitingClass, job: Mapping[str, Value] | None
) -> tuple[_Miss, ...]:
    asked = class_conditions(waiting.asked, waiting.requirements)
    applying = () if job is None else (AdmissionCondition(job=job),)
    return (*_closed(here, vo), *_failing(here, (*asked, *applying)))


def _closed(here: QueueSet, vo: str) -> Iterator[_Miss]:
    if closed := here.everything & ~here.admitted:
        yield _Miss(requirement="VO", wanted=vo, failure=None, queues=closed)
    if off := here.everything & ~here.enabled:
        yield _Miss(requirement="Enabled", wanted="true", failure=None, queues=off)
    if here.faulty:
        yield _Miss(requirement=FAULTY, wanted=MEANINGFUL, failure=None, queues=here.faulty)


def _failing(here: QueueSet, asked: Sequence[JobCondition]) -> Iterator[_Miss]:
    for failure in here.failures_among(asked):
        if failure.queues:
            yield _Miss(
                requirement=failure.requirement,
                wanted=failure.wanted,
                failure=failure,
                queues=failure.queues,
            )


@lru_cache(maxsize=20_000)
def class_conditions(asked: RequirementClass, requirements: str | None) -> tuple[JobCondition, ...]:
    """The conditions of a class, cached."""
    read = None if requirements is None else canonical.from_json(requirements)
    return tuple(job_conditions.list_conditions(JobDemand(asked=asked, requirements=read)))


def _has(here: QueueSet, miss: _Miss) -> str | None:
    if miss.requirement == FAULTY:
        return here.queues[0].fault
    if miss.failure is None:
        vos = lookup(here.queues[0].values, "VO")
        return "false" if miss.requirement == "Enabled" else None if vos is None else format_value(vos)
    if isinstance(miss.failure.part, AdmissionCondition):
        return _UNREPORTED
    return here.failed.describe(miss.failure, here.queues[0], next(here.failed.list_values(miss.failure))[0])


def _sum_work(waiting: Iterable[WaitingClass]) -> dict[str, WaitingWork]:
    sums: defaultdict[str, WaitingWork] = defaultdict(WaitingWork)
    for each in waiting:
        sums[each.asked.vo] += WaitingWork(jobs=each.jobs, classes=1)
    return dict(sums)


def _excluded(seen: Sequence[_SeenConditions], surveys: Mapping[str, QueueSet]) -> list[ExcludedWork]:
    groups: defaultdict[str, list[tuple[WaitingClass, _Miss, bool]]] = defaultdict(list)
    for each, misses in seen:
        for requirement, miss in {miss.requirement: miss for miss in reversed(misses)}.items():
            alone = all(other.requirement == requirement for other in misses)
            groups[requirement].append((each, miss, alone))
    found = [_group(members, surveys) for members in groups.values()]
    return sorted(found, key=lambda each: (-each.work.jobs, -each.only_this, each.requirement))


def _group(
    members: Sequence[tuple[WaitingClass, _Miss, bool]], surveys: Mapping[str, QueueSet]
) -> ExcludedWork:
    largest, miss, _ = max(members, key=lambda each: (each[2], each[0].jobs))
    return ExcludedWork(
        requirement=miss.requirement,
        wanted=miss.wanted,
        has=_has(surveys[largest.asked.vo], miss),
        work=WaitingWork(jobs=sum(each.jobs for each, *_ in members), classes=len(members)),
        only_this=sum(each.jobs for each, _, alone in members if alone),
        vo=largest.asked.vo,
        example_job=largest.first_job,
    )


def _list_needs(
    here: QueueSet, vo: str, judged: Iterable[_SeenConditions]
) -> Iterator[tuple[int, QueueNeed, WaitingClass]]:
    """The needs of each class, for the queues (by number) that it fails for one reason only."""
    for each, misses in judged:
        once = twice = 0
        for miss in misses:
            once, twice = once | miss.queues, twice | once & miss.queues
        for miss in misses:
            for queue in list_positions(miss.queues & ~twice):
                found = _find_need(here, vo, miss, queue)
                if found is not None:
                    yield queue, found, each


def _find_need(here: QueueSet, vo: str, miss: _Miss, queue: int) -> QueueNeed | None:
    if miss.failure is not None:
        return find_need(miss.failure.part, miss.wanted, here, queue)
    if miss.requirement == FAULTY:
        return None
    return QueueNeed(
        text=f"admit the VO {vo}" if miss.requirement == "VO" else "switch the queue on (Enabled: true)"
    )
