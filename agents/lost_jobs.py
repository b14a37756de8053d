"""Lost-job agent: reschedules or fails jobs whose pilots have gone silent.

A job that is not started in time becomes Waiting again. A running job without heartbeats becomes Stalled
until the next heartbeat; after the grace time it is Rescheduled, or Failed once the VO's limit of
reschedulings is reached. All these times count only while at least one process of the service was up:
otherwise pilots had nowhere to send their heartbeats.
"""

from collections.abc import Callable, Iterable, Sequence
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
        return self != LostResult()


def cycle(engine: Engine, config: Configuration, *, now: datetime, holder: str) -> LostResult | None:
    """Handle every job whose pilot is overdue; None while another process is the leader."""
    leadership = leader.acquire(engine, NAME, holder=holder, now=now)
    if leadership is None:
        return None
    with database.reading(engine) as conn:
        vos = sorted(ownership.list_vos(conn))
        up = uptime.read(conn)
    # Give up before marking as stalled, so that no job goes through both in one cycle.
    given_up = leadership.serve_each(vos, lambda vo: _give_up(leadership, config, up, vo))

    def serve_silent(
        vos: Iterable[str], change: Callable[..., Sequence[int]], seconds: Callable[[str], float]
    ) -> dict[str, int]:
        return leadership.serve_each(
            vos, lambda vo: _change_silent(change, leadership, up, vo, seconds=seconds(vo))
        )

    waiting = serve_silent(vos, expiry.expire_leases, lambda vo: options_for(config, vo).leases.time)
    closed = serve_silent(vos, expiry.close_killed, lambda vo: options_for(config, vo).leases.time)
    stalled = serve_silent(
        given_up, expiry.mark_stalled, lambda vo: options_for(config, vo).leases.stalled_time
    )
    result = LostResult(
        waiting=sum(waiting.values()),
        closed=sum(closed.values()),
        stalled=sum(stalled.values()),
        rescheduled=sum(again for again, _ in given_up.values()),
        failed=sum(failed for _, failed in given_up.values()),
        broken=tuple(vo for vo in vos if vo not in stalled or vo not in waiting or vo not in closed),
    )
    leadership.finish()
    return result


def _change_silent(
    change: Callable[..., Sequence[int]], leadership: Leadership, up: Uptime, vo: str, *, seconds: float
) -> int:
    """Change the jobs whose pilots have been silent for so long, and return their number."""
    silent_since, now = up.go_back(leadership.now, seconds=seconds), leadership.now
    return leadership.repeat(
        lambda conn: len(change(conn, vo=vo, silent_since=silent_since, now=now, most=_MOST)),
        most=_MOST,
        rounds=_ROUNDS,
    )


def _give_up(leadership: Leadership, config: Configuration, up: Uptime, vo: str) -> tuple[int, int]:
    """Return the numbers of rescheduled and of failed jobs."""
    options = options_for(config, vo)
    again = failed = 0

    def step(conn: Connection) -> int:
        nonlocal again, failed
        back, ended = expiry.give_up_stalled(
            conn,
            vo=vo,
            silent_since=up.go_back(leadership.now, seconds=options.leases.stalled_time),
            stalled_since=up.go_back(leadership.now, seconds=options.leases.stalled_grace),
            max_rescheduling=options.job_scheduling.max_rescheduling,
            now=leadership.now,
            most=_MOST,
        )
        again += len(back)
        failed += len(ended)
        return len(back) + len(ended)

    leadership.repeat(step, most=_MOST, rounds=_ROUNDS)
    return again, failed
