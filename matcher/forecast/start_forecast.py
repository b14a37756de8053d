"""When a job will probably start, by the starts of jobs like it, and how often such forecasts held.

A forecast is refused where nothing was seen from which it could follow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Final

from sqlalchemy import Connection

from cs_config.tree.configuration import Configuration
from matcher.explain import queue_set, waiting_reason
from matcher.explain.job_conditions import JobDemand
from matcher.explain.queue_set import QueueSet
from matcher.forecast import start_interval
from matcher.forecast.start_interval import HeldForecasts
from matcher.limits.job_groups import JobView
from requirements.errors import format_duration
from taskqueue import day_record, past_forecasts
from taskqueue.day_record import Series
from taskqueue.past_forecasts import StartInterval
from taskqueue.pilots import pilots
from taskqueue.sites import closures
from taskqueue.task_queues import listing
from taskqueue.task_queues.listing import PlaceInClass

_HOUR: Final = timedelta(hours=1)
#: Times over which starts are counted: the shortest with enough of them, else the longest.
_WINDOWS: Final = (_HOUR, 6 * _HOUR, 24 * _HOUR)
_ENOUGH: Final = 10
_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForecast:
    """When a job will probably start."""

    estimate: float | None  #: seconds, not corrected; None: refused
    interval: StartInterval | None  #: None: refused
    record: HeldForecasts  #: of such forecasts of its VO
    refusal: str = ""  #: why there is none

    @property
    def text(self) -> str:
        """The forecast in one sentence."""
        if self.interval is None:
            return f"No forecast of its start: {self.refusal}."
        held, of = self.record.held, self.record.of
        rate = f" ({100 * held / of:.0f} % of the last {of} such forecasts held)" if of else ""
        return f"Starts probably {format_interval(self.interval)}{rate}."


def forecast_start(
    conn: Connection, config: Configuration, *, job_id: int, task_queue_id: int, now: datetime
) -> StartForecast:
    """Forecast the start of a waiting job."""
    demand = waiting_reason.read_demand(conn, config, job_id, task_queue_id)
    place = listing.find_place(conn, job_id)
    if demand is None or place is None:
        return refuse("it does not wait in a task queue")
    return _forecast(conn, config, demand, place, now)


def forecast_start_of_new(
    conn: Connection, config: Configuration, demand: JobDemand, job: JobView, *, now: datetime
) -> StartForecast:
    """Forecast the start of a job that would be submitted now."""
    place = listing.find_place_of_new(
        conn, demand.asked, owner=job.owner, owner_group=job.owner_group, priority=job.priority
    )
    return _forecast(conn, config, demand, place, now)


def _forecast(
    conn: Connection, config: Configuration, demand: JobDemand, place: PlaceInClass | None, now: datetime
) -> StartForecast:
    """The forecast of a job with a place in its class; None: the class has no task queue."""
    vo = demand.asked.vo
    survey = queue_set.all_queues(config, vo)
    eligible = survey.eligible(demand)
    if fault := waiting_reason.find_fault(conn, survey, demand, now):
        return refuse(fault)
    if not eligible:
        return refuse("no queue is eligible")
    starts = _read_starts(conn, place.class_id, now) if place else {}
    open_share = _measure_open_share(conn, survey, vo, eligible, now)
    if open_share is None and not any(now - at <= _HOUR for at in starts):
        return refuse("no pilot that fits came in the last hour")
    if place is None or not starts:
        return refuse("no job like it started in the last 24 hours")
    if open_share == 0:
        return refuse("those of its queues at which pilots asked in the last hour are closed now")
    estimate = (place.before + 1) / (_find_rate(starts, now) * (open_share or 1))
    if estimate > start_interval.LONGEST:
        return refuse("at the rate of the last 24 hours it would wait for more than a year")
    past = past_forecasts.list_past(conn, vo, now=now)
    interval = start_interval.find_interval(estimate, past)
    record = start_interval.count_held(past)
    if interval is None:
        number = sum(each.has_started for each in past)
        refusal = (
            f"it is made once the jobs of {start_interval.LEAST} earlier forecasts of {vo} have started, "
            f"{number} have so far"
        )
        return StartForecast(estimate=estimate, interval=None, record=record, refusal=refusal)
    if interval.most is None and interval.least < _MINUTE.total_seconds():
        refusal = f"too many jobs of earlier forecasts of {vo} still wait"
        return StartForecast(estimate=estimate, interval=None, record=record, refusal=refusal)
    return StartForecast(estimate=estimate, interval=interval, record=record)


def refuse(why: str) -> StartForecast:
    """No forecast, for a reason."""
    return StartForecast(estimate=None, interval=None, record=HeldForecasts(held=0, of=0), refusal=why)


def _read_starts(conn: Connection, class_id: int, now: datetime) -> Mapping[datetime, int]:
    """Starts of a class in the longest window, by minute."""
    subject = (str(class_id),)
    longest = _WINDOWS[-1]
    found = day_record.read_since(conn, Series.STARTS, now - longest, [subject])
    # The record begins with the whole minute.
    return {at: number for at, number in found.get(subject, {}).items() if now - at <= longest}


def _find_rate(starts: Mapping[datetime, int], now: datetime) -> float:
    """Starts in a second; a class that is younger than a window is measured since its first start."""
    for window in _WINDOWS:
        number = sum(each for at, each in starts.items() if now - at <= window)
        if number >= _ENOUGH:
            break
    return number / max(min(window, now - min(starts)), _MINUTE).total_seconds()


def _measure_open_share(
    conn: Connection, survey: QueueSet, vo: str, eligible: int, now: datetime
) -> float | None:
    """The share of queues that are not closed in the pilots of the last hour; None: there were none."""
    asked = {
        here: each.asked
        for queue, each in pilots.count_by_queue(conn, vo, since=now - _HOUR).items()
        if each.asked and (here := survey.within(str(queue)) & eligible)
    }
    if not asked:
        return None
    sites = [site for site, here in survey.sites.items() if here & eligible]
    closed = reduce(
        or_, (survey.within(each.place) for each in closures.read_closures(conn, sites, now=now)), 0
    )
    return sum(number for here, number in asked.items() if here & ~closed) / sum(asked.values())


def format_interval(interval: StartInterval) -> str:
    """The interval as people are told it."""
    least = format_duration(interval.least)
    if interval.most is None:
        return f"not before {least} from now"
    most = format_duration(max(interval.most, 60))
    if interval.least < _MINUTE.total_seconds():
        return f"within {most}"
    if least == most:
        return f"in about {most}"
    return f"between {least} and {most} from now"
