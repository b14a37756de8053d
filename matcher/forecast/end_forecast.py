"""When the last waiting job of a group probably starts, and when the group is probably done.

Each task queue is one forecast, of the job that it hands out last. So the number of forecasts is that of task
queues, which is bounded, not that of jobs. The end is the last start and the median run time, for which jobs
that still run count as well: those that are done are the shorter ones.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from cs_config.tree.configuration import Configuration
from matcher.forecast import start_forecast
from matcher.forecast.product_limit import ProductLimit
from matcher.forecast.start_forecast import StartForecast
from requirements.errors import format_count, format_duration
from taskqueue.jobs import groups
from taskqueue.jobs.groups import GroupCounts, LastWaiting, StartedJobs
from taskqueue.jobs.search import JobSelector
from taskqueue.past_forecasts import StartInterval

#: Task queues with jobs of one group beyond which there is no forecast.
MOST_TASK_QUEUES: Final = 20
_MOST_RUN: Final = "most of its jobs still run, so how long they take is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndForecast:
    """When a group of jobs is probably done."""

    waiting: int  #: jobs that no pilot has
    start: StartForecast | None  #: of the job that starts last; None: none waits
    end: StartInterval | None  #: seconds until its end; None: refused
    run_time: float | None  #: seconds, the median; None: too few jobs are done
    done: int  #: done jobs by which it is known
    running: int  #: and running ones
    is_cut: bool  #: jobs were not looked at, since there are many newer ones
    refusal: str = ""  #: why there is no end

    @property
    def text(self) -> str:
        """The forecast in sentences."""
        said = []
        if self.start is not None:
            said.append(f"The last of {format_count(self.waiting, 'waiting job')}: {self.start.text}")
        if self.end is None:
            said.append(f"No forecast of the end: {self.refusal}.")
        else:
            jobs = format_count(self.done, "done job") + (
                f" and {self.running:,} running" if self.running else ""
            )
            half = "" if self.run_time is None else f", half run {format_duration(self.run_time)} or more"
            said.append(f"Done probably {start_forecast.format_interval(self.end)}: by {jobs}{half}.")
        if self.is_cut:
            said.append(f"Of each status only the newest {groups.MAX_OF_STATUS:,} jobs were looked at.")
        return " ".join(said)


def forecast_end(
    conn: Connection, config: Configuration, which: JobSelector, *, now: datetime
) -> EndForecast:
    """Forecast when the last of these jobs starts, and when they are done."""
    last = groups.list_last_waiting(conn, which, limit=MOST_TASK_QUEUES + 1)
    run = groups.list_run_times(conn, which, now=now)
    known = ProductLimit(run.times)
    run_time = known.find(0.5)
    start = _forecast_last(conn, config, last, now) if last.groups else None
    none_done = (
        f"{'next to none' if run.done else 'none'} of its jobs is done, so how long they run is not known"
    )
    if start is None:
        end = _find_end_of_started(groups.count_started(conn, which), known, none_done, now)
    else:
        end = _find_end(start, known, none_done)
    return EndForecast(
        waiting=sum(each.count for each in last.groups),
        start=start,
        end=None if isinstance(end, str) else end,
        run_time=run_time,
        done=len(known.times),
        running=len(run.times) - len(known.times),
        is_cut=last.is_cut,
        refusal=end if isinstance(end, str) else "",
    )


def _find_end(start: StartForecast, known: ProductLimit, none_done: str) -> StartInterval | str:
    """When the job that starts last ends; or why that is not known."""
    if start.interval is None:
        return "when its last job starts is not known"
    run_time = known.find(0.5)
    if run_time is None:
        return _MOST_RUN if known.times else none_done
    most = start.interval.most
    return StartInterval(
        least=start.interval.least + run_time, most=None if most is None else most + run_time
    )


def _find_end_of_started(
    started: StartedJobs, known: ProductLimit, none_done: str, now: datetime
) -> StartInterval | str:
    """The same where all have started."""
    if not started.count:
        return "no job of the group waits or runs"
    if not known.times:
        return none_done
    so_far = (now - started.last_at).total_seconds() if started.last_at else 0.0
    run_time = known.find(0.5, longer_than=so_far)
    if run_time is None:
        return "too few of its jobs are done that ran longer than the last one has so far"
    return StartInterval(least=run_time - so_far, most=run_time - so_far)


def _forecast_last(
    conn: Connection, config: Configuration, last: GroupCounts[LastWaiting], now: datetime
) -> StartForecast:
    """The start of the job that starts last: the later begin and end of all intervals."""
    if len(last.groups) > MOST_TASK_QUEUES:
        return start_forecast.refuse(f"its jobs wait in more than {MOST_TASK_QUEUES} task queues")
    found: list[StartForecast] = []
    for each in last.groups:
        if each.task_queue_id is None:
            return start_forecast.refuse(f"job {each.job_id} is in no task queue yet")
        one = start_forecast.forecast_start(
            conn, config, job_id=each.job_id, task_queue_id=each.task_queue_id, now=now
        )
        if one.interval is None:
            return start_forecast.refuse(f"job {each.job_id}: {one.refusal}")
        found.append(one)
    intervals = [each.interval for each in found if each.interval]
    ends = [each.most for each in intervals if each.most is not None]
    return StartForecast(
        estimate=max(each.estimate or 0.0 for each in found),
        interval=StartInterval(
            least=max(each.least for each in intervals),
            most=max(ends) if len(ends) == len(intervals) else None,
        ),
        record=found[-1].record,
    )
