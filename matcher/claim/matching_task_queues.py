"""Task queues that a resource may serve at this moment, with the first jobs of each; for directors."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Connection

from matcher.limits.place_policy import PlacePolicy
from taskqueue.leases import selection
from taskqueue.leases.assignment import Location
from taskqueue.task_queues import task_queues
from taskqueue.task_queues.task_queues import TaskQueue

#: Job ids per task queue in a listing.
_NAMED_JOBS = 100
#: Jobs of a task queue that are checked one by one for admission.
_ASKED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingTaskQueue:
    """A task queue that a resource may serve now."""

    task_queue: TaskQueue
    waiting: int  #: jobs that limits, delays and bans do not exclude
    job_ids: tuple[int, ...]  #: the first to be handed out, at most 100


def list_matching(
    conn: Connection, candidates: Collection[TaskQueue], place: Location, gate: PlacePolicy | None
) -> list[MatchingTaskQueue]:
    """The candidates with a job that a claim at the place would take now; `gate` None: no conditions."""
    by_id = {each.task_queue_id: each for each in candidates}
    if gate is None or not gate.depends_on_job:
        return [] if gate is not None and not gate.most(1) else list(_list_all(conn, by_id))
    if not gate.most(1):
        return []
    concerned = gate.list_passing(conn, [each for _, each in sorted(by_id.items())], place)
    shown = [_list_admitted(conn, each, place, gate) for each in concerned]
    return [each for each in shown if each.job_ids]


def _list_all(conn: Connection, by_id: dict[int, TaskQueue]) -> Iterator[MatchingTaskQueue]:
    waiting = task_queues.count_waiting(conn, by_id)
    for task_queue_id in sorted(waiting):
        ids = task_queues.list_first_jobs(conn, task_queue_id, _NAMED_JOBS)
        yield MatchingTaskQueue(
            task_queue=by_id[task_queue_id], waiting=waiting[task_queue_id], job_ids=tuple(ids)
        )


def _list_admitted(
    conn: Connection, task_queue: TaskQueue, place: Location, gate: PlacePolicy
) -> MatchingTaskQueue:
    admitted = islice(gate.admitted(conn, task_queue, place, most=_ASKED), _NAMED_JOBS)
    job_ids = tuple(job.job_id for job in admitted)
    passing = gate.passing(task_queue.vo)
    return MatchingTaskQueue(
        task_queue=task_queue,
        waiting=selection.count_candidates(conn, task_queue.task_queue_id, place=place, passing=passing),
        job_ids=job_ids,
    )
