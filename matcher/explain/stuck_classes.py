"""Requirement classes with waiting jobs for which no queue is eligible."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from cs_config.cache import Cache, derived
from cs_config.tree.configuration import Configuration
from matcher.explain import closed_places, queue_set, waiting_reason
from matcher.explain.job_conditions import JobDemand, list_conditions
from matcher.explain.work_budget import CLASS, QUEUE_REPORT, WorkBudget
from requirements import canonical
from taskqueue.db import sql
from taskqueue.task_queues import listing, task_queues
from taskqueue.task_queues.listing import OccupiedClass, StoredClass

#: Classes of which it is known whether a queue is eligible, about 200 bytes each.
MOST_KNOWN = 20_000


@derived
def _known(_: Configuration) -> Cache[str, bool]:
    """Whether no queue is eligible, by digest of the class."""
    return Cache(MOST_KNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckWork:
    """Waiting jobs that no queue is eligible for."""

    vos: frozenset[str]  #: of these jobs
    classes: int
    jobs: int
    first_job: int  #: id of one of them
    why: str  #: no queue is eligible for this one


def find_stuck(
    conn: Connection,
    config: Configuration,
    vos: Collection[str] | None,
    *,
    without_pools: Collection[str],
    most: int,
) -> StuckWork | None:
    """The waiting jobs of some VOs (None: all) without an eligible queue, of which `most` are counted.

    Jobs in `without_pools` are left out. Conditions of queues on jobs themselves are not looked at. One call
    evaluates a bounded number of classes that are new with the configuration; the next goes on.
    """
    stuck = _list_stuck(conn, config, vos)
    asked = listing.read_classes(conn, [each.class_id for each in stuck])
    demands = {
        number: demand
        for each in stuck
        if (demand := asked.get(each.class_id)) and demand.asked.submit_pool not in without_pools
        for number in each.task_queue_ids
    }
    waiting = listing.count_waiting_at_most(conn, demands, most=most)
    task_queue_id = task_queues.find_by_job(conn, waiting.first_job) if waiting else None
    if waiting is None or task_queue_id is None:  # the last one was taken just now
        return None
    example = demands[task_queue_id]
    survey = queue_set.all_queues(config, example.asked.vo)
    asked_for = _demand(example)
    off = closed_places.find_switched_off(survey, asked_for)
    # Their marks stay until retention looks: no pilot ever finds such a task queue empty.
    filled = [demands[each].asked for each in task_queues.find_filled(conn, demands)]
    return StuckWork(
        vos=frozenset(each.vo for each in filled),
        classes=len({each.digest for each in filled}),
        jobs=waiting.jobs,
        first_job=waiting.first_job,
        why=waiting_reason.describe_stuck(
            survey,
            asked_for,
            closed_places.describe_switched_off(conn, config, survey, example.asked.vo, off),
        ),
    )


def find_task_queues(conn: Connection, config: Configuration, vo: str) -> frozenset[int]:
    """The task queues of a VO that no queue is eligible for: no pilot ever draws them.

    As `find_stuck`, one call evaluates a bounded number of classes.
    """
    return frozenset(number for each in _list_stuck(conn, config, [vo]) for number in each.task_queue_ids)


def _list_stuck(conn: Connection, config: Configuration, vos: Collection[str] | None) -> list[OccupiedClass]:
    """The classes with waiting jobs of these VOs for which no queue is eligible, as far as it is known."""
    occupied = listing.list_occupied_classes(conn, vos)
    _evaluate(conn, config, [each for each in occupied if _known(config).find(each.digest) is None])
    return [each for each in occupied if _known(config).find(each.digest)]


def _evaluate(conn: Connection, config: Configuration, new: Sequence[OccupiedClass]) -> None:
    """Note for as many of these classes as one request may evaluate whether no queue is eligible."""
    budget = WorkBudget(left=QUEUE_REPORT)
    for batch in sql.split_growing(new):
        asked = listing.read_classes(conn, [each.class_id for each in batch])
        for each in batch:
            if (stored := asked.get(each.class_id)) is None:
                continue
            survey, demand = queue_set.all_queues(config, stored.asked.vo), _demand(stored)
            budget.spend(CLASS + survey.measure_work(list_conditions(demand)))
            _known(config).store(each.digest, not survey.eligible(demand))
            if budget.over:  # not before: one class beyond the whole budget would keep all after it unknown
                return


def _demand(stored: StoredClass) -> JobDemand:
    required = stored.requirements
    return JobDemand(
        asked=stored.asked, requirements=None if required is None else canonical.from_json(required)
    )
