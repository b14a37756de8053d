"""The retention agent's pass over ended jobs: one for all VOs, each with its own times.

A pass reads jobs by their status and the time of their end, and goes on in the next cycle where it stopped.
The first of a day begins with the oldest, since what was kept before may go now; the others read only those
that have become old since the last one.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from agents.leader import Leadership
from cs_config.options.options import RetentionOptions
from requirements.states import FINAL, JobStatus
from taskqueue import retention
from taskqueue.db import database
from taskqueue.retention import LONG_AGO, EndedWindow, OldJobs

#: From the deletion of a job by its owner to that of its rows.
_DELETED: Final = timedelta(days=1)
#: From the end of a job until its log is counted.
_LATE: Final = timedelta(hours=1)

#: What is removed of ended jobs, in this order.
REMOVALS: Final[Mapping[str, Callable[[Connection, OldJobs], int]]] = {
    "jobs": retention.remove_jobs,
    "outputs": retention.detach_outputs,
    "logs": retention.remove_logs,
}

#: A VO's times by status and kind of `REMOVALS`: that of jobs that ended before goes.
Cutoffs = Mapping[tuple[JobStatus, str], datetime]


@dataclass(slots=True)
class EndedPass:
    """How far a process has read ended jobs."""

    windows: list[EndedWindow] = field(default_factory=list)  #: that are still to be read
    cutoffs: Mapping[str, Cutoffs] = field(default_factory=dict)  #: by VO, when the pass began
    began: date | None = None  #: day of the last pass that began with the oldest

    def begin(self, cutoffs: Mapping[str, Cutoffs], *, today: date) -> None:
        """Begin a pass, from where the last one ended."""
        last = self.cutoffs if self.began == today else {}
        self.windows = merge_windows(
            [
                EndedWindow(
                    status=status, since=last.get(vo, {}).get((status, kind), LONG_AGO), before=before
                )
                for vo, of_vo in cutoffs.items()
                for (status, kind), before in of_vo.items()
            ]
        )
        self.cutoffs, self.began = cutoffs, today


def merge_windows(windows: Sequence[EndedWindow]) -> list[EndedWindow]:
    """Windows that have each job once, with those that ended shortly before."""
    merged: list[EndedWindow] = []
    for each in sorted(windows, key=lambda window: (window.status, window.since)):
        since, last = each.since - _LATE, merged[-1] if merged else None
        if last is not None and last.status == each.status and since <= last.before:
            merged[-1] = replace(last, before=max(last.before, each.before))
        else:
            merged.append(replace(each, since=since))
    return merged


def find_cutoffs(keep: RetentionOptions, now: datetime) -> Cutoffs:
    """The times of a VO that keeps its jobs so long."""
    days = {"jobs": keep.jobs, "outputs": keep.outputs, "logs": keep.logs}
    cutoffs = {
        (status, kind): now - timedelta(days=each) for status in sorted(FINAL) for kind, each in days.items()
    }
    deleted = JobStatus.DELETED, "jobs"
    return {**cutoffs, deleted: max(cutoffs[deleted], now - _DELETED)}


def remove(
    leadership: Leadership,
    ended: EndedPass,
    cutoffs: Mapping[str, Cutoffs],
    *,
    readers: frozenset[str],
    limit: int,
    most: int,
) -> Counter[str]:
    """Go on with the pass, `limit` jobs in a transaction, until it is over or has read `most` jobs.

    A process that ends in between has removed of each job all that was due, or nothing. A VO whose work fails
    is left out until the next cycle, and its jobs come again with the next day.
    """
    removed: Counter[str] = Counter()
    if not ended.windows:
        ended.begin(cutoffs, today=leadership.now.date())
    read = 0
    while ended.windows:
        if read >= most:
            leadership.unfinished.append(ended)
            break
        window = ended.windows[0]
        with database.reading(leadership.engine) as conn:
            job_ids, rest = window.read(conn, most=min(limit, most - read))

        def remove_of(
            some: Mapping[str, Cutoffs], job_ids: Sequence[int] = job_ids, window: EndedWindow = window
        ) -> None:
            done: Counter[str] = Counter()
            with leadership.writing() as conn:
                for kind, remove_some in REMOVALS.items():
                    before = {vo: of_vo[window.status, kind] for vo, of_vo in some.items()}
                    done[kind] = remove_some(conn, OldJobs(job_ids=job_ids, before=before, readers=readers))
            removed.update(done)

        if job_ids:
            left = {vo: of_vo for vo, of_vo in cutoffs.items() if vo not in leadership.broken}
            leadership.serve_together(left, remove_of)
        ended.windows[:1] = [rest] if rest is not None else []
        read += len(job_ids)
    return removed
