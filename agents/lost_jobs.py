"""Lost-job agent: reschedules or fails jobs whose pilots have gone silent.

A job that is not started in time becomes Waiting again. A running job without heartbeats becomes Stalled
until the next heartbeat; after the grace time it is Rescheduled, or Failed once the VO's limit of
reschedulings is reached. All these times count only while at least one process of the service was up:
otherwise pilots had nowhere to send their heartbeats.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Engine

from agents import leader
from agents.leader import Leadership
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from taskqueue import ownership
from taskqueue.db import database
from taskqueue.leases import expiry, uptime
from taskqueue.leases.uptime import Uptime

NAME: Final = "lost-jobs"
#: Jobs per transaction, and transactions per rule and cycle.
_MOST: Final = 1000
_ROUNDS: Final = 100

#: Passes the ids of rescheduled jobs to the optimizers, after the commit.
RescheduleCallback = Callable[[Sequence[int]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostResult:
    """Numbers of jobs that a cycle changed."""

    waiting: int = 0  #: not started in time
    closed: int = 0  #: killed, without a live pilot
    stalled: int = 0
    rescheduled: int = 0
    failed: int = 0
    broken: tuple[str, ...] = ()  #: VOs whose work failed

    def __bool__(self) -> bool:
        return any((self.waiting, self.closed, self.stalled, self.rescheduled, self.failed, self.broken))


def cycle(
    engine: Engine,
    config: Configuration,
    *,
    now: datetime,
    holder: str,
    ring: RescheduleCallback | None = None,
) -> LostResult | None:
    """Handle every job whose pilot is overdue; None while another process is the leader.

    Args:
        engine: The database.
        config: The current configuration.
        now: Start of the cycle.
        holder: A name that is unique to this process.
        ring: Receives the ids of rescheduled jobs; without it the sweep finds them.
    """
    leadership = leader.acquire(engine, NAME, holder=holder, now=now)
    if leadership is None:
        return None
    with database.reading(engine) as conn:
        vos = sorted(ownership.list_vos(conn))
        up = uptime.read(conn)
    # Give up before marking as stalled, so that no job goes through both in one cycle.
    given_up = leadership.serve_each(vos, lambda vo: _give_up(leadership, config, up, vo))
    ended = given_up.values()
    waiting = leadership.serve_each(
        vos, lambda vo: _end_leases(expiry.expire_leases, leadership, config, up, vo)
    )
    closed = leadership.serve_each(
        vos, lambda vo: _end_leases(expiry.close_killed, leadership, config, up, vo)
    )
    stalled = leadership.serve_each(given_up, lambda vo: _mark_stalled(leadership, config, up, vo))
    result = LostResult(
        waiting=sum(waiting.values()),
        closed=sum(closed.values()),
        stalled=sum(stalled.values()),
        rescheduled=sum(len(again) for again, _ in ended),
        failed=sum(failed for _, failed in ended),
        broken=tuple(vo for vo in vos if vo not in stalled or vo not in waiting or vo not in closed),
    )
    leadership.finish()
    if ring is not None:
        ring([job_id for again, _ in ended for job_id in again])
    return result


def _end_leases(
    end: Callable[..., list[int]], leadership: Leadership, config: Configuration, up: Uptime, vo: str
) -> int:
    silent_since = up.go_back(leadership.now, seconds=options_for(config, vo).leases.time)
    return _repeat(
        leadership, lambda conn: end(conn, vo=vo, silent_since=silent_since, now=leadership.now, most=_MOST)
    )


def _mark_stalled(leadership: Leadership, config: Configuration, up: Uptime, vo: str) -> int:
    silent_since = up.go_back(leadership.now, seconds=options_for(config, vo).leases.stalled_time)
    return _repeat(
        leadership,
        lambda conn: expiry.mark_stalled(
            conn, vo=vo, silent_since=silent_since, now=leadership.now, most=_MOST
        ),
    )


def _give_up(leadership: Leadership, config: Configuration, up: Uptime, vo: str) -> tuple[list[int], int]:
    """Return the ids of rescheduled jobs and the number of failed ones."""
    options = options_for(config, vo)
    again: list[int] = []
    failed: list[int] = []

    def step(conn: Connection) -> int:
        back, ended = expiry.give_up_stalled(
            conn,
            vo=vo,
            silent_since=up.go_back(leadership.now, seconds=options.leases.stalled_time),
            stalled_since=up.go_back(leadership.now, seconds=options.leases.stalled_grace),
            max_rescheduling=options.job_scheduling.max_rescheduling,
            now=leadership.now,
            most=_MOST,
        )
        again.extend(back)
        failed.extend(ended)
        return len(back) + len(ended)

    leadership.repeat(step, most=_MOST, rounds=_ROUNDS)
    return again, len(failed)


def _repeat(leadership: Leadership, step: Callable[[Connection], Sequence[int]]) -> int:
    return leadership.repeat(lambda conn: len(step(conn)), most=_MOST, rounds=_ROUNDS)
