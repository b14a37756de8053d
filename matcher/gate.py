"""The gate of one place: which jobs it lets through now, and in one word why not."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sqlalchemy import Connection

from matcher import job_ads, kinds_waiting
from matcher.candidates import pieces
from matcher.doorkeeper import Doorkeeper
from matcher.kinds_waiting import KnownKinds
from matcher.limits import Condition
from matcher.standings import Standing
from requirements.values import Value, fold
from taskqueue import choosing, claims, reservations
from taskqueue.choosing import Passing, Waiting
from taskqueue.claims import Place, Taken
from taskqueue.kinds import Kind
from taskqueue.task_queues import TaskQueue

BANNED = "banned"
LIMITS = "limits"
THROTTLED = "throttled"
#: The only type of jobs that a banned site gets.
TEST = "Test"


class Gate:
    """What one place lets through; each request goes through it alone."""

    def __init__(
        self,
        standing: Sequence[Standing],
        conditions: Sequence[Condition],
        *,
        banned: bool,
        keeper: Doorkeeper | None = None,
        kinds: KnownKinds,
    ) -> None:
        self._kinds = kinds
        self.keeper = keeper  #: speaks for queues that tell jobs apart; None: they need not be asked any more
        self._standing = standing
        self._conditions = conditions
        self._banned = banned
        self._refused: tuple[Kind, ...] = ()  # kinds of jobs that throttles let none of in, as they stand
        self.refused: str | None = BANNED if banned else None  #: one word, once something was kept out
        self.reserved: list[tuple[str, reservations.Key]] = []

    @property
    def asks_job(self) -> bool:
        """Whether it has to be asked for each job."""
        return bool(self._conditions) or self._looks_at_jobs

    @property
    def _looks_at_jobs(self) -> bool:
        """Whether something other than a limit or delay asks who a job is."""
        asking = self._banned or self.keeper is not None
        return asking or any(each.asks_job for each in self._standing)

    def passing(self, *vos: str) -> Passing:
        """Which jobs of these VOs are worth a look."""
        kept_out = {
            (each.rule.limit.attribute, vo, fold(each.rule.limit.value))
            for each in self._conditions
            if each.full
            for vo in vos
            if each.rule.is_about(vo)
        }
        return Passing(
            job_type=fold(TEST) if self._banned else "",
            kept_out=frozenset(kept_out),
            refused=(*(() if self.keeper is None else self.keeper.refused), *self._refused),
        )

    def most(self, wanted: int) -> int:
        """How many of the wanted jobs may be taken at once."""
        rooms = [room for each in self._standing if (room := each.room().jobs) is not None]
        most = min((wanted, *rooms))
        if most <= 0 < wanted:
            self.refused = self.refused or THROTTLED
        return 1 if most > 1 and self.asks_job else max(most, 0)

    def concerns(self, task_queue: TaskQueue) -> bool:
        """Whether jobs of this task queue may be worth a look at all."""
        if self._banned and not any(map(is_test, task_queue.requirement_class.job_types)):
            return False
        if any(each.full and each.rule.concerns_all(task_queue) for each in self._conditions):
            self.refused = self.refused or LIMITS
            return False
        asking = [each.throttled for each in self._standing if each.asks_owner_only]
        if asking and not all(each.admits(_owner(task_queue)) for each in asking):
            self.refused = self.refused or THROTTLED
            return False
        return True

    def worth(self, conn: Connection, task_queues: Sequence[TaskQueue], place: Place) -> list[TaskQueue]:
        """Those of the task queues that have a job which is worth a look; of none else one is read."""
        some = [each for each in task_queues if self.concerns(each)]
        passing = self.passing(*{each.vo for each in some})
        if not some or passing == Passing():
            return some
        ids = {each.task_queue_id for each in some}
        kept_out = claims.left(
            conn, ids - choosing.left(conn, ids, place=place, passing=passing), place=place
        )
        if kept_out and passing.kept_out:
            self.refused = self.refused or LIMITS
        # One that has no job at all stays: whoever tries it finds that out.
        return [each for each in some if each.task_queue_id not in kept_out]

    def admits_any(self, conn: Connection, task_queues: Iterable[TaskQueue], place: Place) -> bool:
        """Whether a job of the task queues may be taken next, as far as a look tells."""
        asks_job = any(each.asks_job for each in self._standing)
        worth = (each for some in pieces(task_queues) for each in self.worth(conn, some, place))
        return any(not asks_job or any(True for _ in self.admitted(conn, each, place)) for each in worth)

    def admitted(
        self, conn: Connection, task_queue: TaskQueue, place: Place, *, most: float = math.inf
    ) -> Iterator[Waiting]:
        """The jobs of a task queue that may be taken next, in order.

        Where a whole page of them is refused, the others are asked kind by kind instead of one by one.

        Args:
            conn: Read only.
            task_queue: Where they wait.
            place: Where they would run.
            most: Jobs that are asked one by one.
        """
        asked = 0
        for page in choosing.pages(
            conn, task_queue.task_queue_id, place=place, passing=lambda: self.passing(task_queue.vo)
        ):
            some = False
            for job in page:
                if self.admits(job):
                    some = True
                    yield job
            asked += len(page)
            if asked >= most or not (some or self._has_other_kinds(conn, task_queue)):
                return

    def _has_other_kinds(self, conn: Connection, task_queue: TaskQueue) -> bool:
        """Whether the throttles may let in some kind of the jobs; those that they refuse are noted."""
        asking = [each for each in self._standing if each.asks_job]
        if not asking:
            return True
        kinds = self._kinds.waiting_in(conn, task_queue.task_queue_id)
        refused = {kind for each in asking for kind in each.refused(kinds)}
        self._refused = tuple(refused.union(self._refused))[: kinds_waiting.MOST_REFUSED]
        return len(refused) < len(kinds) or len(kinds) == kinds_waiting.MOST

    def admits(self, job: Waiting) -> bool:
        """Whether this job may be taken next."""
        if self.keeper is not None and not self.keeper.admits(job):
            return False
        if any(each.keeps_out(job) for each in self._conditions):
            self.refused = self.refused or LIMITS
            return False
        if not all(each.admits(job) for each in self._standing):
            self.refused = self.refused or THROTTLED
            return False
        return True

    def is_told_by(self, task_queue: TaskQueue) -> bool:
        """Whether it takes no look at the jobs of a task queue to say if one may come."""
        return not self._looks_at_jobs and all(each.rule.is_told_by(task_queue) for each in self._conditions)

    def count(self, task_queue: TaskQueue, jobs: int) -> None:
        """Count jobs of a task queue that tells all, as if they were taken; fewer than none were not."""
        for each in self._standing:
            each.matched(jobs)
        for condition in self._conditions:
            if condition.rule.is_used_by_all(task_queue):
                condition.matched(jobs)

    def reserve(self, job_id: int, epoch: int) -> None:
        """Note what was counted, now that it has been taken."""
        self.reserved += ((each.scope.scope, (job_id, epoch)) for each in self._standing)

    def kept_out(self, task_queue: TaskQueue) -> None:
        """A task queue that has jobs has none that is worth a look."""
        if self.passing(task_queue.vo).kept_out:
            self.refused = self.refused or LIMITS

    def passed(self, taken: Iterable[Taken], job: Waiting | None = None) -> None:
        """Count jobs that were taken; `job` where it had to be asked for."""
        rows = list(taken)
        self._refused = ()
        for each in self._standing:
            each.matched(len(rows))
        for row in rows:
            self.reserve(row.job_id, row.epoch)
        for condition in self._conditions:
            if job is not None and condition.rule.is_used_by(job):
                condition.matched()


def _owner(task_queue: TaskQueue) -> Mapping[str, Value]:
    return job_ads.identity(vo=task_queue.vo, owner=task_queue.owner, owner_group=task_queue.owner_group)


def is_test(job_type: str) -> bool:
    """Whether jobs of this type go to banned sites."""
    return fold(job_type) == fold(TEST)
