"""Time in which no queue took the jobs of a task queue, since all that fit were closed or switched off.

Directors send no pilots there, so no answer to a pilot tells it. A pass through the waiting jobs looks at
each task queue; from a look that finds it held to the next one that does, its jobs could not be matched. That
is stored as a cause of its wait, with a minute before the first such look and after the last: it began and
ended between two looks. What was before the first look of a process is not known.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cs_config.tree.configuration import Configuration
from matcher.explain import waiting_reason
from taskqueue.leases import uptime
from taskqueue.leases.uptime import Uptime
from taskqueue.sites import closures
from taskqueue.task_queues.wait_causes import BAN_CAUSE, WaitCause

#: Task queues of one page that are judged at a time, each with several queries. Later looks judge the others.
_MOST: Final = 200
#: Two looks are half a minute apart, more on a busy machine or with very many jobs.
_EDGE: Final = timedelta(minutes=1)


@dataclass(slots=True)
class HeldTime:
    """What a process remembers of the task queues with waiting jobs."""

    #: Whether each is held, with one version of the configuration and one set of closed places.
    known: dict[int, bool] = field(default_factory=dict)
    judged_with: object = None
    seen: dict[int, datetime] = field(default_factory=dict)  #: until when each is known to be held
    looked_at: set[int] = field(default_factory=set)  #: in this pass

    def list_causes(
        self, conn: Connection, config: Configuration, waiting: Mapping[int, int], up: Uptime, now: datetime
    ) -> Iterator[WaitCause]:
        """The time since the last look at some task queues, each with one job, that were and are held.

        Without that in which the service was down, which does not count anyway.
        """
        if waiting:
            self._judge(conn, config, waiting, now)
        until = min(now, up.latest)
        if until == uptime.NEVER:
            return
        for task_queue_id in waiting:
            is_held = self.known.get(task_queue_id)  # None: not judged yet
            seen = self.seen.get(task_queue_id)
            if is_held:
                since, end, self.seen[task_queue_id] = seen or until - _EDGE, until, until
            elif seen is not None and is_held is False:
                since, end = seen, min(until, seen + _EDGE)
                del self.seen[task_queue_id]
            else:
                continue
            if seconds := up.measure(since, end):
                since = end - timedelta(seconds=seconds)
                yield WaitCause(task_queue_id=task_queue_id, cause=BAN_CAUSE, since=since, until=end)

    def end_pass(self) -> None:
        """Forget the task queues that have no waiting jobs any more."""
        self.known = {each: held for each, held in self.known.items() if each in self.looked_at}
        self.seen = {each: at for each, at in self.seen.items() if each in self.looked_at}
        self.looked_at = set()

    def _judge(
        self, conn: Connection, config: Configuration, waiting: Mapping[int, int], now: datetime
    ) -> None:
        self.looked_at.update(waiting)
        judged_with = config.version, closures.list_closed(conn, now=now)
        if judged_with != self.judged_with:
            self.known, self.judged_with = {}, judged_with
        for task_queue_id in [each for each in waiting if each not in self.known][:_MOST]:
            job_id = waiting[task_queue_id]
            self.known[task_queue_id] = waiting_reason.is_held(conn, config, job_id, task_queue_id, now)
