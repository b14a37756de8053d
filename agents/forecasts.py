"""Forecast agent: forecasts the starts of a sample of the waiting jobs, and stores what came of them.

Their record corrects the next forecasts, also those that users see. Each VO has as many in the sample,
however many jobs it has; one whose jobs wait long gets new ones as others start, and one in about ten minutes
in place of one that still waits: otherwise jobs that wait for weeks would soon be the whole sample.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Final

from sqlalchemy import Connection, Engine

from agents import leader
from cs_config.tree.configuration import Configuration
from matcher.forecast import start_forecast
from taskqueue import past_forecasts
from taskqueue.db import database
from taskqueue.past_forecasts import NewForecast
from taskqueue.task_queues import listing, task_queues

NAME: Final = "forecasts"
#: Jobs of a VO, and VOs, in one cycle.
_JOBS: Final = 3
_VOS: Final = 30
#: Share of the cycles in which a VO with a full sample gives one up: half of the jobs are followed for 58 h.
_GIVEN_UP: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastsResult:
    """Forecasts that were made, and those whose jobs have started."""

    made: int = 0
    settled: int = 0

    def __bool__(self) -> bool:
        return False  # routine: not worth a line in the log


def cycle(
    engine: Engine, config: Configuration, *, now: datetime, holder: str, random: Random
) -> ForecastsResult | None:
    """Settle forecasts and make new ones; None while another process is the leader."""
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        with leadership.writing() as conn:
            settled = past_forecasts.settle(conn)
            for vo, number in sorted(past_forecasts.count_open(conn).items()):
                if number >= past_forecasts.MOST and random.random() < _GIVEN_UP:
                    past_forecasts.give_up(conn, vo, random, now=now)
        with database.reading(engine) as conn:
            made = list(_make(conn, config, random, now))
        with leadership.writing() as conn:
            past_forecasts.store(conn, made, now=now)
        return ForecastsResult(made=len(made), settled=settled)


def _make(conn: Connection, config: Configuration, random: Random, now: datetime) -> Iterator[NewForecast]:
    occupied, stored = listing.list_occupied(conn), past_forecasts.count_open(conn)
    room = {vo: min(_JOBS, past_forecasts.MOST - stored.get(vo, 0)) for vo in occupied}
    wanted = [vo for vo, number in room.items() if number > 0]
    for vo in random.sample(wanted, min(_VOS, len(wanted))):
        chosen = random.sample(occupied[vo], min(room[vo], len(occupied[vo])))
        for task_queue_id, waiting in sorted(task_queues.count_waiting(conn, chosen).items()):
            job_id = listing.read_job_at(conn, task_queue_id, random.randrange(waiting))
            if job_id is None:
                continue
            found = start_forecast.forecast_start(
                conn, config, job_id=job_id, task_queue_id=task_queue_id, now=now
            )
            if found.estimate is not None:
                yield NewForecast(job_id=job_id, vo=vo, estimate=found.estimate, interval=found.interval)
