"""Whether the queues of a place admit jobs, asked once for as many of them as possible.

Where only the owner makes a difference, that is once for a task queue; else once for each kind of jobs,
where what a queue looks at is the same for all of a description; else for each job.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row

from cs_config import admissions
from cs_config.address import QueueAddress
from cs_config.admission import Admission
from cs_config.configuration import Configuration
from matcher import job_ads, places
from matcher.job_ads import Job
from requirements.values import Value
from taskqueue import kinds
from taskqueue.claims import Place
from taskqueue.kinds import Kind
from taskqueue.task_queues import TaskQueue

#: Task queues in one statement; SQLite takes no more than 32,766 values.
_BATCH: Final = 1000
#: Kinds that are looked at before a claim; beyond that it is left to the claim to look.
_MOST_KINDS: Final = 5000
#: Refused kinds that a claim is told to leave out.
_MOST_REFUSED: Final = 500
#: Kinds that are remembered; beyond that we start anew.
_REMEMBERED: Final = 50_000
#: What tells jobs of one kind apart.
_OF_EACH: Final = frozenset({"jobid", "jobname", "priority"})
_OF_OWNER: Final = frozenset(job_ads.identity(vo="", owner="", owner_group=""))


class Doorkeeper:
    """Speaks for the queues of one place; a job must be admitted by each of them."""

    def __init__(self, config: Configuration, queues: Sequence[QueueAddress]) -> None:
        self._config = config
        self._queues = queues
        self._admissions: dict[str, tuple[Admission, ...]] = {}
        self._kinds: dict[Kind, bool] = {}  # whether one of the kind may be admitted
        self._refused: tuple[Kind, ...] = ()

    def admits(self, job: Job) -> bool:
        """Whether this very job may come."""
        asked = self._of(job.vo)
        return not asked or self._all(asked, job_ads.of(job))

    @property
    def refused(self) -> tuple[Kind, ...]:
        """Kinds of which no job may come, as far as they are known."""
        return self._refused

    def asks_job(self, task_queue: TaskQueue) -> bool:
        """Whether jobs of the task queue may be told apart here."""
        return any(not _OF_OWNER.issuperset(each.asks) for each in self._of(task_queue.requirement_class.vo))

    def open_to(self, conn: Connection, task_queues: Sequence[TaskQueue]) -> list[TaskQueue]:
        """The task queues that have a job which may be admitted."""
        undecided = [each.task_queue_id for each in task_queues if self.asks_job(each)]
        closed: set[int] = set()
        for start in range(0, len(undecided), _BATCH):
            closed |= self._closed(conn, undecided[start : start + _BATCH])
        return [each for each in task_queues if each.task_queue_id not in closed and self._owner_may(each)]

    def _owner_may(self, task_queue: TaskQueue) -> bool:
        vo = task_queue.requirement_class.vo
        whose = job_ads.identity(vo=vo, owner=task_queue.owner, owner_group=task_queue.owner_group)
        decided = (each for each in self._of(vo) if _OF_OWNER.issuperset(each.asks))
        return self._all(decided, whose)

    def _closed(self, conn: Connection, task_queue_ids: Sequence[int]) -> set[int]:
        """Those of the task queues of which every kind is refused."""
        rows = kinds.waiting_in(conn, task_queue_ids, most=_MOST_KINDS)
        if len(rows) == _MOST_KINDS:
            return set()
        self._judge(conn, rows)
        may = {row.task_queue_id for row in rows if self._kinds.get(_kind(row), True)}
        return set(task_queue_ids) - may

    def _judge(self, conn: Connection, rows: Sequence[Row[Any]]) -> None:
        if len(self._kinds) > _REMEMBERED:
            self._kinds.clear()
        new = [row for row in rows if _kind(row) not in self._kinds]
        ids = sorted({row.description_id for row in new})
        bodies: dict[int, str] = {}
        for start in range(0, len(ids), _BATCH):
            bodies |= kinds.bodies(conn, ids[start : start + _BATCH])
        for row in new:
            if (body := bodies.get(row.description_id)) is not None:
                self._kinds[_kind(row)] = self._may_be_admitted(row, job_ads.described(body, None))
        refused = dict.fromkeys(_kind(row) for row in rows if not self._kinds.get(_kind(row), True))
        self._refused = tuple(dict.fromkeys((*refused, *self._refused)))[:_MOST_REFUSED]

    def _may_be_admitted(self, kind: Row[Any], stated: Mapping[str, Value]) -> bool:
        """False only where it is certain of every job of the kind."""
        ad = job_ads.of_kind(kind, stated)
        certain = [each for each in self._of(kind.vo) if _is_of_kind(each, ad)]
        return self._all(certain, ad)

    def _of(self, vo: str) -> tuple[Admission, ...]:
        if vo not in self._admissions:
            found = (admissions.of(self._config, queue, vo) for queue in self._queues)
            self._admissions[vo] = tuple(each for each in found if each is not None)
        return self._admissions[vo]

    @staticmethod
    def _all(asked: Iterator[Admission] | Sequence[Admission], ad: Mapping[str, Value]) -> bool:
        return all(each.admits(ad) for each in asked)


class Doorkeepers:
    """Those of all places, remembered with what they have said as long as the configuration stays.

    What they remember is about the jobs of one database.
    """

    def __init__(self) -> None:
        self._config: Configuration | None = None
        self._known: dict[tuple[Place, frozenset[str]], Doorkeeper | None] = {}

    def at(self, config: Configuration, place: Place, vos: frozenset[str]) -> Doorkeeper | None:
        """Who speaks for a place; None: nobody there asks anything of jobs.

        Without its queue, every queue there that one of the VOs may use has to admit; without a site, none.
        """
        if not place.site or not admissions.configured(config):
            return None
        if self._config is not config:
            self._config, self._known = config, {}
        known = self._known
        if (place, vos) not in known:
            known[place, vos] = _at(config, place, vos)
        return known[place, vos]


def _at(config: Configuration, place: Place, vos: frozenset[str]) -> Doorkeeper | None:
    asking = [
        queue
        for queue in places.queues(config, place)
        if any(config.usable(queue, vo) and admissions.of(config, queue, vo) for vo in vos)
    ]
    return Doorkeeper(config, asking) if asking else None


def _kind(row: Row[Any]) -> Kind:
    return row.description_id, row.job_type, row.job_group


def _is_of_kind(admission: Admission, ad: Mapping[str, Value]) -> bool:
    """Whether all jobs of a kind look the same to it: what it asks for has no placeholders."""
    asked = (ad.get(name) for name in admission.asks)
    return _OF_EACH.isdisjoint(admission.asks) and not any("%" in str(value) for value in asked)
