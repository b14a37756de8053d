"""Admission of jobs by the queues of a place, evaluated for as many jobs at once as possible.

Once per task queue if the conditions read only the owner, once per job group if the attributes that they
read are equal for all of a description, else once per job.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row

from cs_config.cache import Cache
from cs_config.tree.address import QueueAddress
from cs_config.tree.admission import Admission
from cs_config.tree.configuration import Configuration
from matcher.limits import job_groups
from matcher.limits.job_groups import WaitingJobRow, group_key, is_same_for_group, reads_owner_only
from requirements.resource import Location
from taskqueue.db import sql
from taskqueue.leases import candidate_jobs
from taskqueue.leases.candidate_jobs import JobKind
from taskqueue.task_queues.task_queues import TaskQueue

#: Cached job groups, and cached places.
_CACHED: Final = 50_000
_PLACES: Final = 10_000


class AdmissionPolicy:
    """Admission by the queues of one place; each of them must admit the job."""

    def __init__(self, config: Configuration, queues: Sequence[QueueAddress]) -> None:
        self._config = config
        self._queues = queues
        self._admissions: dict[str, tuple[Admission, ...]] = {}
        self._kinds: dict[JobKind, bool] = {}  # whether a job of the group may be admitted
        self.refused: tuple[JobKind, ...] = ()  #: recently refused job groups

    def admits(self, job: WaitingJobRow) -> bool:
        """Whether this job is admitted."""
        if not (rules := self._rules_for(job.vo)):
            return True
        ad = job_groups.job_ad(job, self._config)
        return all(each.admits(ad) for each in rules)

    def depends_on_job(self, task_queue: TaskQueue) -> bool:
        """Whether admission can differ between jobs of the task queue."""
        rules = self._rules_for(task_queue.requirement_class.vo)
        return not all(reads_owner_only(each.asks) for each in rules)

    def open_to(self, conn: Connection, task_queues: Sequence[TaskQueue]) -> list[TaskQueue]:
        """The task queues with a job that may be admitted."""
        undecided = [each.task_queue_id for each in task_queues if self.depends_on_job(each)]
        closed: set[int] = set()
        for some in sql.split_batches(undecided):
            closed |= self._closed(conn, some)
        return [each for each in task_queues if each.task_queue_id not in closed and self._admits_owner(each)]

    def _admits_owner(self, task_queue: TaskQueue) -> bool:
        identity = job_groups.owner_ad(task_queue)
        rules = self._rules_for(task_queue.requirement_class.vo)
        return all(each.admits(identity) for each in rules if reads_owner_only(each.asks))

    def _closed(self, conn: Connection, task_queue_ids: Sequence[int]) -> set[int]:
        rows = candidate_jobs.list_kinds(conn, task_queue_ids, most=job_groups.MOST)
        if len(rows) == job_groups.MOST:
            return set()
        self._judge(conn, rows)
        may = {row.task_queue_id for row in rows if self._kinds.get(group_key(row), True)}
        return set(task_queue_ids) - may

    def _judge(self, conn: Connection, rows: Sequence[Row[Any]]) -> None:
        if len(self._kinds) > _CACHED:
            self._kinds.clear()
        for row, ad in job_groups.read_group_ads(
            conn, [row for row in rows if group_key(row) not in self._kinds], self._config
        ):
            # False only if it is certain for every job of the group.
            certain = (each for each in self._rules_for(row.vo) if is_same_for_group(each.asks, ad))
            self._kinds[group_key(row)] = all(each.admits(ad) for each in certain)
        refused = dict.fromkeys(group_key(row) for row in rows if not self._kinds.get(group_key(row), True))
        self.refused = tuple(dict.fromkeys((*refused, *self.refused)))[: job_groups.MOST_REFUSED]

    def _rules_for(self, vo: str) -> tuple[Admission, ...]:
        if vo not in self._admissions:
            found = (self._config.admission(queue, vo) for queue in self._queues)
            self._admissions[vo] = tuple(each for each in found if each is not None)
        return self._admissions[vo]


class AdmissionPolicies:
    """Admission policies of all places, cached until the configuration changes.

    Use one instance per database, because descriptions are cached by their ids.
    """

    def __init__(self) -> None:
        self._known: Cache[tuple[Location, frozenset[str]], AdmissionPolicy | None] = Cache(_PLACES)

    def policy_at(
        self, config: Configuration, place: Location, vos: frozenset[str]
    ) -> AdmissionPolicy | None:
        """The policy of a place; None: no queue there has conditions on jobs.

        If the queue is unknown, every queue of the place that one of the VOs may use must admit; without a
        site, none.
        """
        if not place.site or not config.has_admission:
            return None
        return self._known.get((place, vos), lambda: _build_policy(config, place, vos), config)


def _build_policy(config: Configuration, place: Location, vos: frozenset[str]) -> AdmissionPolicy | None:
    checking = [
        queue
        for queue in config.queues_at(place.site, place.ce, place.queue)
        if any(config.usable(queue, vo) and config.admission(queue, vo) for vo in vos)
    ]
    return AdmissionPolicy(config, checking) if checking else None
