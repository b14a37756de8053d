"""What keeps a job from running at this moment, in words, the weightiest first.

Each holder looks at one thing; what a claim must also respect (limits, throttles, bans) belongs here as a
holder that asks the same code as the claim.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from matcher import closures, rules
from matcher.applicants import Applicant
from matcher.parts import Demand
from matcher.survey import Survey
from requirements import evaluator
from requirements.problem import MOST_HINTS
from requirements.suggestion import did_you_mean
from requirements.values import fold
from taskqueue import pilot_activity, waiting_place
from taskqueue.jobs import Job
from taskqueue.states import PREPARING, JobStatus

#: Minor status of jobs whose pool has queues, or that have none.
WAITS_FOR_PILOT = "Pilot Agent Submission"
#: Closed places that are named.
_TOLD = 3
#: How long a pilot's last request counts as news.
LATELY = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that holders may look at."""

    job: Job | None  #: None: a description that was not submitted
    applicant: Applicant
    demand: Demand
    survey: Survey
    eligible: int  #: queues, as a set of the survey
    config: Configuration
    now: datetime


Holder = Callable[[Connection, Situation], Iterable[str]]


def holding(conn: Connection, situation: Situation) -> list[str]:
    """Everything that holds the job now; nothing if it runs or is done."""
    job = situation.job
    if job is not None and job.status not in PREPARING | {JobStatus.WAITING}:
        return list(_ended(job))
    return [text for holder in HOLDERS for text in holder(conn, situation)]


def _ended(job: Job) -> Iterator[str]:
    if job.status is JobStatus.STALLED:
        yield "its pilot is silent"
    elif job.status is JobStatus.FAILED:
        yield f"it has failed: {job.application_status or job.minor_status}"


def _optimizers(_: Connection, situation: Situation) -> Iterator[str]:
    job = situation.job
    if job is None or job.status is JobStatus.WAITING:
        return
    if job.status is not JobStatus.CHECKING:
        yield "the optimizers have not looked at it yet"
        return
    until = f", goes on at {job.due_at.isoformat(timespec='seconds')}" if job.due_at else ""
    yield f"held by the optimizers: {job.application_status or job.minor_status}{until}"


def _queues(_: Connection, situation: Situation) -> Iterator[str]:
    if not situation.survey.candidates:
        yield "its VO may use no queue at all"
    elif not situation.eligible:
        yield "no eligible queue: it becomes matchable when the configuration has one"
        if situation.job is not None and situation.job.minor_status == WAITS_FOR_PILOT:
            yield (
                f"its minor status, {WAITS_FOR_PILOT}, speaks of its Requirements alone: what else it asks "
                "only a pilot can refuse, which may be in a queue that the configuration does not know"
            )


def _places(_: Connection, situation: Situation) -> Iterator[str]:
    asked = situation.demand.asked
    sites, ces = situation.config.sites, situation.survey.ces
    for keyword, what, names, known in (
        ("Site", "site", asked.sites, sites),
        ("BannedSites", "site", asked.banned_sites, sites),
        ("GridCE", "CE", asked.grid_ces, ces),
    ):
        for name, meant in _unknown(names, known):
            hint = f", did you mean {meant}?" if meant else ""
            yield f"the configuration knows no {what} {name} ({keyword}){hint}"


def _unknown(names: Collection[str], known: Collection[str]) -> Iterator[tuple[str, str | None]]:
    """Names that are not known, each with what was probably meant; of very many the first."""
    folded = set(map(fold, known)) if names else set()
    for name in sorted(name for name in names if fold(name) not in folded)[:MOST_HINTS]:
        yield name, did_you_mean(name, known)


def _platforms(_: Connection, situation: Situation) -> Iterator[str]:
    """Platforms of which nothing knows; a queue that states none takes such a job all the same."""
    offered = situation.survey.distinct("Platform", situation.survey.everything)
    listed = (value if isinstance(value, tuple) else (value,) for value in offered)
    known = [str(name) for names in listed for name in names]
    for platform, others in situation.config.os_compatibility.items():
        known += [platform, *others]
    for name, meant in _unknown(situation.demand.asked.platforms, known):
        hint = f", did you mean {meant}?" if meant else "; leave out Platform if any will do"
        yield f"no queue offers the Platform {name}, and OSCompatibility does not list it{hint}"


def _switched_off(_: Connection, situation: Situation) -> Iterator[str]:
    """Queues that would do were they not switched off."""
    survey = situation.survey
    failed = 0
    for failure in survey.failures(situation.demand):
        failed |= failure.queues
    drained = survey.admitted & ~survey.enabled & ~failed
    if drained and not situation.eligible:
        example = survey.first(drained).address
        number = drained.bit_count()
        yield f"{number} queues that would do are switched off (Enabled: false), such as {example}"


def _unsaid(_: Connection, situation: Situation) -> Iterator[str]:
    """What nobody checks before a pilot is there, since the queues do not say what they have."""
    asked, eligible = situation.demand.asked, situation.eligible
    for field, asks, what in (
        ("platforms", bool(asked.platforms), f"Platform {', '.join(sorted(asked.platforms))}"),
        ("max_ram", bool(rules.ram_needed(asked)), f"{rules.ram_needed(asked)} MB of memory"),
    ):
        if asks and eligible and situation.survey.silent(field, eligible):
            number = eligible.bit_count()
            yield f"no queue says that it has {what}; what the {number} eligible ones have is not stated"


def _nodes(_: Connection, situation: Situation) -> Iterator[str]:
    """Queues that leave something to their nodes."""
    survey, asked = situation.survey, situation.demand.requirements
    undecided = survey.undecided(situation.demand) & situation.eligible
    if asked is None or not undecided:
        return
    example = (undecided & -undecided).bit_length() - 1
    left = survey.residue(asked, example)
    names = ", ".join(evaluator.parameters(left, survey.declarations)) if left else ""
    yield (
        f"{undecided.bit_count()} of the {situation.eligible.bit_count()} eligible queues decide only at the "
        f"node: a pilot there must measure what it asks of {names}, such as at "
        f"{survey.queues[example].address}"
    )


def _pilots(conn: Connection, situation: Situation) -> Iterator[str]:
    if not situation.eligible:
        return
    vo = situation.demand.asked.vo
    seen = pilot_activity.by_queue(conn, vo, since=situation.now - LATELY)
    fits = [each for queue, each in seen.items() if situation.survey.within(str(queue)) & situation.eligible]
    asked, coming = sum(each.asked for each in fits), sum(each.coming for each in fits)
    total, minutes = sum(each.asked for each in seen.values()), LATELY // timedelta(minutes=1)
    if not asked:
        others = f"; {total} asked from other queues" if total else ""
        yield f"no pilot of an eligible queue has asked for work in the last {minutes} minutes{others}"
    else:
        yield f"{_pilots_told(asked)} of eligible queues asked for work in the last {minutes} minutes"
    if coming:
        yield f"{coming} pilots for eligible queues wait in their batch systems"


def _pilots_told(number: int) -> str:
    return f"{number} pilot" if number == 1 else f"{number or 'no'} pilots"


def pilots_at(conn: Connection, address: QueueAddress, vos: Collection[str], now: datetime) -> Iterator[str]:
    """Whether pilots of these VOs have asked from a queue lately."""
    minutes = LATELY // timedelta(minutes=1)
    for vo in sorted(vos):
        seen = pilot_activity.by_queue(conn, vo, since=now - LATELY).get(address)
        asked, coming = (seen.asked, seen.coming) if seen else (0, 0)
        more = f"; {coming} wait in the batch system" if coming else ""
        yield f"{_pilots_told(asked)} of {vo} asked from here in the last {minutes} minutes{more}"


def _closures(conn: Connection, situation: Situation) -> Iterator[str]:
    """Bans, limits, delays and throttles that keep the job out of queues that would do."""
    survey, eligible = situation.survey, situation.eligible
    sites = [site for site, queues in survey.sites.items() if queues & eligible]
    shut = 0
    told: list[tuple[int, str]] = []
    for each in closures.of(conn, situation.config, situation.applicant, sites, situation.now):
        if here := survey.within(each.scope) & eligible:
            shut |= here
            told.append((here.bit_count(), each.text))
    told.sort(key=lambda each: -each[0])
    yield from (text for _, text in told[:_TOLD])
    if len(told) > _TOLD:
        others = len(told) - _TOLD
        yield f"{others} other {'place does' if others == 1 else 'places do'} not let it in either"
    if shut:
        yield _shut(shut.bit_count(), eligible.bit_count())


def _shut(shut: int, eligible: int) -> str:
    if shut < eligible:
        return (
            f"{shut} of the {eligible} eligible queues {'takes' if shut == 1 else 'take'} no job like it now"
        )
    which = "the only eligible queue takes" if eligible == 1 else f"all {eligible} eligible queues take"
    return f"{which} no job like it now"


def _line(conn: Connection, situation: Situation) -> Iterator[str]:
    place = waiting_place.of_job(conn, situation.job.job_id) if situation.job else None
    if place is not None and place.before:
        yield f"{place.before} of the {place.waiting} jobs of its task queue are handed out before it"


#: In the order in which they are told.
HOLDERS: tuple[Holder, ...] = (
    _optimizers,
    _queues,
    _places,
    _platforms,
    _switched_off,
    _unsaid,
    _closures,
    _nodes,
    _pilots,
    _line,
)
