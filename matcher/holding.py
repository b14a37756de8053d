"""What keeps a job from running at this moment, in words, the weightiest first.

Each holder looks at one thing; what a claim must also respect (limits, throttles, bans) belongs here as a
holder that asks the same code as the claim.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from matcher import rules
from matcher.parts import Demand
from matcher.survey import Offer, Survey
from requirements.suggestion import did_you_mean
from requirements.values import fold
from taskqueue import pilot_activity, waiting_place
from taskqueue.jobs import Job
from taskqueue.states import PREPARING, JobStatus

#: How long a pilot's last request counts as news.
LATELY = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that holders may look at."""

    job: Job | None  #: None: a description that was not submitted
    demand: Demand
    survey: Survey
    eligible: int  #: queues, as a set of the survey
    known_sites: frozenset[str]
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


def _places(_: Connection, situation: Situation) -> Iterator[str]:
    asked = situation.demand.asked
    known = {fold(site) for site in situation.known_sites}
    for keyword, names in (("Site", asked.sites), ("BannedSites", asked.banned_sites)):
        for name in sorted(name for name in names if fold(name) not in known):
            meant = did_you_mean(name, situation.known_sites)
            hint = f", did you mean {meant}?" if meant else ""
            yield f"the configuration knows no site {name} ({keyword}){hint}"
    ces = list(dict.fromkeys(queue.address.ce for queue in situation.survey.queues))
    for name in sorted(name for name in asked.grid_ces if fold(name) not in set(map(fold, ces))):
        meant = did_you_mean(name, ces)
        yield f"the configuration knows no CE {name} (GridCE)" + (f", did you mean {meant}?" if meant else "")


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
    asked, queues = situation.demand.asked, [queue.resource for queue in _eligible(situation)]
    for what, asks, silent in (
        (
            f"Platform {', '.join(sorted(asked.platforms))}",
            asked.platforms,
            all(each.platforms is None for each in queues),
        ),
        (
            f"{rules.ram_needed(asked)} MB of memory",
            rules.ram_needed(asked),
            all(each.max_ram is None for each in queues),
        ),
    ):
        if asks and queues and silent:
            yield f"no queue says that it has {what}; what the {len(queues)} eligible ones have is not stated"


def _pilots(conn: Connection, situation: Situation) -> Iterator[str]:
    if not situation.eligible:
        return
    vo = situation.demand.asked.vo
    seen = pilot_activity.by_queue(conn, vo, since=situation.now - LATELY)
    fits = [seen[queue.address] for queue in _eligible(situation) if queue.address in seen]
    asked, coming = sum(each.asked for each in fits), sum(each.coming for each in fits)
    total, minutes = sum(each.asked for each in seen.values()), LATELY // timedelta(minutes=1)
    if not asked:
        others = f"; {total} asked from other queues" if total else ""
        yield f"no pilot of an eligible queue has asked for work in the last {minutes} minutes{others}"
    else:
        yield f"{asked} pilots of eligible queues asked for work in the last {minutes} minutes"
    if coming:
        yield f"{coming} pilots for eligible queues wait in their batch systems"


def _eligible(situation: Situation) -> Iterator[Offer]:
    mask = f"{situation.eligible:b}"[::-1]
    return (queue for queue, bit in zip(situation.survey.queues, mask, strict=False) if bit == "1")


def _line(conn: Connection, situation: Situation) -> Iterator[str]:
    place = waiting_place.of_job(conn, situation.job.job_id) if situation.job else None
    if place is not None and place.before:
        yield f"{place.before} of the {place.waiting} jobs of its task queue are handed out before it"


#: In the order in which they are told.
HOLDERS: tuple[Holder, ...] = (_optimizers, _queues, _places, _switched_off, _unsaid, _pilots, _line)
