"""What kept the jobs of a task queue from pilots until their time to wait was over."""

from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from cs_config.options.keywords import BY_ATTRIBUTE
from cs_config.tree.configuration import Configuration
from matcher.explain import queue_set
from matcher.explain.explanation import explain
from matcher.explain.job_conditions import JobDemand
from matcher.explain.queue_set import QueueSet
from matcher.limits import job_groups
from requirements import canonical
from requirements.errors import format_count, shorten
from taskqueue.jobs.waiting_ttl import QUEUE_CAUSE, WaitingReason
from taskqueue.pools import mapping
from taskqueue.sites import closures
from taskqueue.task_queues import listing
from taskqueue.task_queues.wait_causes import TURN_CAUSE

#: The word and the text of each cause that needs no look at the queues.
_BY_CAUSE: Final = {
    TURN_CAUSE: WaitingReason(word="turn", text="pilots that fit it got other jobs"),
    "limits": WaitingReason(word="limits", text="limits of running jobs were reached where it fits"),
    "throttled": WaitingReason(word="throttled", text="the sites where it fits took no further jobs"),
    "node": WaitingReason(
        word="node", text="the nodes of the pilots that asked do not fulfil what it requires"
    ),
}
NO_PILOT: Final = "no_pilot"
NO_QUEUE: Final = "no_eligible_queue"
#: The word of every reason.
WORDS: Final = (*(each.word for each in _BY_CAUSE.values()), NO_PILOT, NO_QUEUE)
#: Characters of a requirement, or of a change of one, in a reason.
MOST_TOLD: Final = 200


def find_reason(
    conn: Connection, config: Configuration, job_id: int, task_queue_id: int, cause: str, now: datetime
) -> WaitingReason | None:
    """The reason by the cause that kept the jobs of a task queue longest; `job_id` is one of them.

    None while the configuration, a closure or a fault of ours keeps them: they do not fail for it.
    """
    demand = read_demand(conn, config, job_id, task_queue_id)
    if demand is None:
        return None
    survey = queue_set.all_queues(config, demand.asked.vo)
    is_outdated = cause == QUEUE_CAUSE and survey.eligible(demand)  # its pool is not refreshed yet
    if is_outdated or find_fault(conn, survey, demand, now):
        return None
    return _BY_CAUSE.get(cause) or _describe_queues(survey, demand)


def is_held(conn: Connection, config: Configuration, job_id: int, task_queue_id: int, now: datetime) -> bool:
    """Whether the configuration or closures keep the jobs of a task queue from all queues that fit."""
    demand = read_demand(conn, config, job_id, task_queue_id)
    if demand is None:
        return False
    survey = queue_set.all_queues(config, demand.asked.vo)
    return find_fault(conn, survey, demand, now) is not None


def read_demand(conn: Connection, config: Configuration, job_id: int, task_queue_id: int) -> JobDemand | None:
    """The demand of a waiting job; None: its task queue is gone, or only a later release can read it."""
    asked = listing.read_requirement_class(conn, task_queue_id)
    if asked is None:
        return None
    pool = asked.submit_pool
    original = mapping.read_originals(conn, [pool]).get(pool) if pool else None
    if pool and original is None:
        return None
    rows = listing.read_jobs(conn, [job_id]) if config.has_admission else ()
    return JobDemand(
        asked=asked,
        requirements=None if original is None else canonical.from_json(original),
        job=job_groups.job_ad(rows[0], config) if rows else None,
    )


def find_fault(conn: Connection, survey: QueueSet, demand: JobDemand, now: datetime) -> str | None:
    """What of the configuration, or which closure, keeps jobs from all queues now; None: nothing does."""
    eligible = survey.eligible(demand)
    if not survey.candidates:
        return "its VO may use no queue now"
    if not eligible:
        fits = survey.admitted
        for failure in survey.failures(demand):
            fits &= ~failure.queues
        if fits:
            return "queues that fit are switched off, or their parameters contradict each other"
        return _find_excluding_default(survey, demand)
    if any(map(closures.is_test, demand.asked.job_types)):
        return None
    sites = [site for site, queues in survey.sites.items() if queues & eligible]
    for closure in closures.read_closures(conn, sites, now=now):
        eligible &= ~survey.within(closure.place)
    return None if eligible else "all queues that fit are closed by bans or downtimes"


def _find_excluding_default(survey: QueueSet, demand: JobDemand) -> str | None:
    """Which default of its VO excludes all sites where jobs could run; None: no queue would be eligible."""
    defaults = [each for each in ("sites", "banned_sites") if not demand.asked.states(each)]
    without: dict[str, Any] = {each: frozenset[str]() for each in defaults}
    anywhere = replace(demand.asked, **without)
    if not survey.eligible(replace(demand, asked=anywhere)):
        return None
    names = " and ".join(BY_ATTRIBUTE[each].name for each in defaults if getattr(demand.asked, each))
    return f"the default of {names} (Operations/JobDescription) leaves no queue that fits"


def _describe_queues(survey: QueueSet, demand: JobDemand) -> WaitingReason:
    if number := survey.eligible(demand).bit_count():
        queues = format_count(number, "eligible queue")
        return WaitingReason(word=NO_PILOT, text=f"no pilot of {queues} came that fits it")
    return WaitingReason(word=NO_QUEUE, text=describe_stuck(survey, demand))


def describe_stuck(survey: QueueSet, demand: JobDemand, switched_off: str = "") -> str:
    """Why no queue is eligible for a demand: the requirement that most queues fail that its VO may use.

    Before that comes where queues that would be eligible are switched off, as a text.
    """
    if switched_off:
        return f"no queue is eligible: {switched_off}"
    if not survey.candidates:
        return f"no queue is eligible: {describe_unusable(survey)}"
    found = explain(survey, demand.asked.vo, demand)
    worst = next((each for each in found.exclusions if each.closed is None), None)
    why = ""
    if worst is not None:
        wanted = shorten(worst.wanted, most=MOST_TOLD)  # as long as a description, such as all sites
        fail = "fails" if worst.excluded == 1 else "fail"
        why = f": {worst.excluded} of {found.candidate_queues} {fail} {worst.requirement}, {wanted}"
    return f"no queue is eligible{why}"


def describe_unusable(survey: QueueSet) -> str:
    """Why a VO may use no queue now."""
    are_off = survey.admitted and not survey.admitted & survey.enabled
    return f"its VO may use no queue {'that is switched on' if are_off else 'at all'}"
