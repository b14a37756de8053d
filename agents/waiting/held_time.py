"""Part of the lost-job agent: finds when no queue took the jobs of a task queue, all being closed or off.

Directors send no pilots there, so no answer to a pilot tells it. Passes through the task queues of each VO
look at each of them, again and again. Time between two looks of which one finds it held is stored as a cause
of its wait: the jobs could not be matched, or not all that time.

From the end of the first pass of a process to the begin of its last one the VO was watched, which is stored
as well: what nobody saw, since the agent was away, counts for no job. So it does not matter how far apart two
looks are, nor what a process that ends has seen last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from agents.leader import Leadership
from agents.waiting.waiting_pass import WaitingPass
from cs_config.tree.configuration import Configuration
from matcher.explain import waiting_reason
from taskqueue.db import database
from taskqueue.sites import closures
from taskqueue.task_queues import task_queues, wait_causes, watched_times
from taskqueue.task_queues.wait_causes import BAN_CAUSE, WaitCause

#: Task queues of one page, pages in a cycle, and judgements after which the cycle ends: several queries each.
_PAGE: Final = 200
_PAGES: Final = 50
_JUDGED: Final = 1000
#: After a longer time without a cycle the agent was away: its next pass is a first one.
_AWAY: Final = timedelta(minutes=10)
#: Length of a watched time from which on the next one begins at its end: old ones can be deleted.
_LONGEST: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a task queue found."""

    at: datetime
    is_held: bool


@dataclass(slots=True)
class WatchedVo:
    """What a process remembers of the task queues of a VO with waiting jobs."""

    walk: WaitingPass = field(default_factory=WaitingPass)
    looks: dict[int, Look] = field(default_factory=dict)  #: the last at each
    looked_at: set[int] = field(default_factory=set)  #: in this pass
    previous: datetime | None = None  #: begin of the last pass that was completed; None: none was
    since: datetime | None = None  #: from when on it is watched; None: not yet
    at: datetime | None = None  #: the last cycle
    #: Class of each task queue, and whether it is held, with one configuration and one set of closed places.
    known: dict[int, tuple[int, bool]] = field(default_factory=dict)
    judged_with: object = None

    def is_away(self, now: datetime) -> bool:
        """Whether the agent was away since the last cycle, or the clock was set back."""
        return self.at is not None and not self.at <= now <= self.at + _AWAY

    def judge(
        self, conn: Connection, config: Configuration, page: Mapping[int, int], now: datetime
    ) -> tuple[dict[int, bool], int]:
        """Whether each task queue of a page (class by id) is held, and for how many that was not known yet.

        Without those that have no jobs.
        """
        judged_with = config.version, config.expiries, closures.list_closed(conn, now=now)
        if judged_with != self.judged_with:
            self.known, self.judged_with = {}, judged_with
        new = [each for each, class_id in page.items() if self.known.get(each, (None,))[0] != class_id]
        for task_queue_id, [job_id] in task_queues.list_first_jobs(conn, new, 1).items():
            is_held = waiting_reason.is_held(conn, config, job_id, task_queue_id, now)
            self.known[task_queue_id] = page[task_queue_id], is_held
        return {each: self.known[each][1] for each in page if each in self.known}, len(new)

    def list_causes(self, found: Mapping[int, bool], now: datetime) -> list[WaitCause]:
        """The times since the last looks at some task queues that were held then, or are now.

        A task queue that had no jobs in the last pass has jobs since a time after its begin.
        """
        causes: list[WaitCause] = []
        for task_queue_id, is_held in found.items():
            last = self.looks.get(task_queue_id)
            since = self.previous if last is None else last.at
            if since is not None and (is_held or (last is not None and last.is_held)):
                causes.append(WaitCause(task_queue_id=task_queue_id, cause=BAN_CAUSE, since=since, until=now))
        return causes

    def note_looks(self, found: Mapping[int, bool], now: datetime) -> None:
        """Remember what the looks have found."""
        self.looks |= {task_queue_id: Look(now, is_held) for task_queue_id, is_held in found.items()}
        self.looked_at.update(found)

    def end_pass(self, now: datetime) -> None:
        """Forget the task queues that have no waiting jobs any more; a watched time of a day ends."""
        self.known = {each: found for each, found in self.known.items() if each in self.looked_at}
        self.looks = {each: look for each, look in self.looks.items() if each in self.looked_at}
        self.looked_at = set()
        self.previous, self.walk.after = self.walk.began, 0
        if self.since is None:
            self.since = now
        elif self.previous is not None and self.previous - self.since >= _LONGEST:
            self.since = self.previous


@dataclass(slots=True)
class HeldTime:
    """What a process remembers of the VOs that it watches, as long as no other process leads the agent."""

    fence: int | None = None  #: of the leadership
    vos: dict[str, WatchedVo] = field(default_factory=dict)

    def keep_vo(self, leadership: Leadership, vo: str) -> WatchedVo:
        """What is remembered of a VO: nothing, if another process was the leader or the agent was away."""
        if leadership.fence != self.fence:
            self.fence, self.vos = leadership.fence, {}
        if vo not in self.vos or self.vos[vo].is_away(leadership.now):
            self.vos[vo] = WatchedVo()
        return self.vos[vo]


def watch_vo(leadership: Leadership, config: Configuration, held: HeldTime, vo: str) -> None:
    """Look at the next task queues of a VO, and store what held them since the last looks."""
    now, state = leadership.now, held.keep_vo(leadership, vo)
    left = _JUDGED
    for _ in range(_PAGES if state.walk.is_due(now) else 0):
        with database.reading(leadership.engine) as conn:
            page = task_queues.read_page(conn, vo, after=state.walk.after, most=_PAGE)
            found, judged = state.judge(conn, config, page, now)
        if causes := state.list_causes(found, now):
            with leadership.writing() as conn:
                wait_causes.record_causes(conn, causes)
        state.note_looks(found, now)
        if len(page) < _PAGE:
            _end_pass(leadership, vo, state)
            break
        state.walk.after, left = max(page), left - judged
        if left <= 0:
            break
    state.at = now


def _end_pass(leadership: Leadership, vo: str, state: WatchedVo) -> None:
    """Store until when the VO was watched: at the begin of this pass nothing was behind what it has seen.

    And what held the jobs of task queues that have none any more: these were moved, or matched.
    """
    began = state.walk.began
    left = dict.fromkeys(state.looks.keys() - state.looked_at, False)
    causes = state.list_causes(left, leadership.now)
    with leadership.writing() as conn:
        wait_causes.record_causes(conn, causes)
        if state.since is not None and began is not None:
            watched_times.extend(conn, vo, since=state.since, until=began)
    state.end_pass(leadership.now)
