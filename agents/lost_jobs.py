"""Lost-job agent: reschedules or fails jobs whose pilots have gone silent.

A job that is not started in time becomes Waiting again. A running job without heartbeats becomes Stalled
until the next heartbeat. Silence counts only while at least one process of the service was up: otherwise
pilots had nowhere to send their heartbeats. A Stalled job is Rescheduled, or Failed once the VO's limit of
reschedulings is reached, when its payload cannot run any more:

- its pilot has ended, and a short grace time is over; or
- the grace time is over, and the last answer to its pilot was given longer ago than `Leases/RunOnTime` and a
  margin: a pilot that hears nothing for that long ends its payload.

To find silent jobs all open attempts are read, in one pass for all VOs, sixty times in the shortest
`Leases/StalledTime`. All else is found by indexes, in each cycle.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from sqlalchemy import Connection, Engine

from agents import leader, retries
from agents.leader import Leadership
from agents.waiting import held_time, relaxing, waiting_ttl
from agents.waiting.held_time import HeldTime
from agents.waiting.waiting_pass import WaitingPass
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from taskqueue import ownership
from taskqueue.db import database
from taskqueue.leases import attempts, expiry, uptime
from taskqueue.leases.attempts import AttemptTimes
from taskqueue.leases.expiry import OpenPass
from taskqueue.leases.retries import RetryPlan
from taskqueue.leases.uptime import Uptime
from taskqueue.pilots import pilots

NAME: Final = "lost-jobs"
#: Jobs per transaction, and transactions per rule and cycle.
_MOST: Final = 1000
_ROUNDS: Final = 100
#: Seconds for which a job whose pilot has ended stays Stalled: several heartbeats, if the report is wrong.
_ENDED_GRACE: Final = 60.0
#: Passes over all open attempts in the shortest `StalledTime`, and the longest time between two.
_PASSES: Final = 60
_SLOWEST: Final = timedelta(minutes=1)
#: Multiple of `RunOnTime` after which a silent pilot has ended its payload: that takes time.
_RUN_ON_MARGIN: Final = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LostResult:
    """Numbers of jobs that a cycle changed."""

    waiting: int = 0  #: not started in time
    closed: int = 0  #: killed, without a live pilot
    stalled: int = 0
    rescheduled: int = 0
    failed: int = 0
    unmatched: int = 0  #: failed, for they waited longer for a match than they may
    relaxed: int = 0  #: gave something up, for they waited long
    pilots: int = 0  #: that nobody has reported on for days
    broken: tuple[str, ...] = ()  #: VOs whose work failed

    def __bool__(self) -> bool:
        return self != LostResult()


@dataclass(slots=True, kw_only=True)
class LostJobsState:
    """What a process remembers from cycle to cycle."""

    waiting: WaitingPass = field(default_factory=WaitingPass)
    held: HeldTime = field(default_factory=HeldTime)
    relaxing: WaitingPass = field(default_factory=WaitingPass)
    passed: datetime | None = None  #: when all open attempts were read last; None: not yet

    def is_due(self, config: Configuration, vos: Collection[str], now: datetime) -> bool:
        """Whether all open attempts are to be read again; also after the clock was set back."""
        times = [options_for(config, vo).leases.stalled_time for vo in vos]
        pause = min(_SLOWEST, timedelta(seconds=min(times, default=0) / _PASSES))
        return self.passed is None or not self.passed <= now < self.passed + pause


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceRules:
    """Times since which jobs of one VO must have been silent to count as lost in this cycle."""

    unstarted: datetime  #: of a job that was not started, and of one that was killed
    stalled: datetime  #: without heartbeats
    lost: datetime  #: without heartbeats: then the payload has ended
    grace: datetime  #: Stalled
    ended_grace: datetime  #: Stalled, the pilot having ended
    max_rescheduling: int


#: Rules by `expiry.make_key`.
_Rules = Mapping[str, SilenceRules]


def cycle(
    engine: Engine,
    config: Configuration,
    *,
    now: datetime,
    holder: str,
    memory: LostJobsState | None = None,
) -> LostResult | None:
    """Handle every job whose pilot is overdue; None while another process is the leader.

    `memory` is the same object in each cycle of a process; None: all open attempts and all waiting jobs are
    looked at.
    """
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        with database.reading(engine) as conn:
            vos = sorted(ownership.list_vos(conn))
            up, own = uptime.read(conn), attempts.list_own_times(conn)
        state = LostJobsState() if memory is None else memory
        reads_all = state.is_due(config, vos, now)
        with leadership.writing() as conn:
            expiry.correct_future_times(conn, now=now)
        rules = leadership.serve_each(vos, lambda vo: _build_rules(config, up, vo, own.get(vo, ()), now))
        changed: Counter[str] = Counter()
        # Give up before marking as stalled, so that no job goes through both in one cycle.
        ruled_vos = [vo for vo in rules if retries.has_rules(config, vo)]
        give_up: _Rule = partial(_give_up, retries.make_plan(config, now), ruled_vos)
        for apply in (give_up, _expire, _close_killed):

            def serve(some: Mapping[str, _Rules], apply: _Rule = apply) -> None:
                step = partial(_count, apply, _merge(some), now, changed)
                leadership.repeat(step, most=_MOST, rounds=_ROUNDS)

            leadership.serve_together(rules, serve)
        if reads_all:
            leadership.serve_together(rules, partial(_mark_stalled, leadership, changed))
        if reads_all and not leadership.unfinished:
            state.passed = now
        changed["pilots"] += leadership.repeat(
            partial(_abort_lost_pilots, up=up, now=now), most=_MOST, rounds=_ROUNDS
        )
        with leadership.isolating("what holds waiting jobs is looked at in the next cycle"):
            watched = {*waiting_ttl.list_ttls(config, vos), *relaxing.list_ruled(engine, config, vos)}
            leadership.serve_each(
                sorted(watched), partial(held_time.watch_vo, leadership, config, state.held)
            )
        with leadership.isolating("jobs that nothing matches are looked at in the next cycle"):
            changed["unmatched"] += waiting_ttl.fail_unmatched(leadership, config, vos, up, state.waiting)
        with leadership.isolating("jobs that wait long are looked at in the next cycle"):
            changed["relaxed"] += relaxing.relax_waiting(leadership, config, vos, up, state.relaxing)
        return LostResult(**changed, broken=tuple(sorted(leadership.broken)))


def _abort_lost_pilots(conn: Connection, *, up: Uptime, now: datetime) -> int:
    """End pilots of directors that were taken out of service, with the jobs that they may have."""
    before = up.go_back(now, seconds=pilots.LOST_AFTER.total_seconds())
    stamps = pilots.abort_lost(conn, before=before, now=now, most=_MOST)
    expiry.mark_pilots_ended(conn, stamps, now=now)
    return len(stamps)


def _build_rules(config: Configuration, up: Uptime, vo: str, own: Collection[str], now: datetime) -> _Rules:
    """The rules of a VO, also for the attempts with each of these times of their own."""
    of_vo = _build_general_rules(config, up, vo, now)
    return {
        expiry.make_key(vo): of_vo,
        **{expiry.make_key(vo, times): _build_own_rules(of_vo, up, times, now) for times in own},
    }


def _build_general_rules(config: Configuration, up: Uptime, vo: str, now: datetime) -> SilenceRules:
    options = options_for(config, vo)
    leases = options.leases
    stalled = up.go_back(now, seconds=leases.stalled_time)
    return SilenceRules(
        unstarted=up.go_back(now, seconds=leases.time),
        stalled=stalled,
        lost=min(stalled, now - timedelta(seconds=_RUN_ON_MARGIN * leases.run_on_time)),
        grace=up.go_back(now, seconds=leases.stalled_grace),
        ended_grace=up.go_back(now, seconds=min(_ENDED_GRACE, leases.stalled_grace)),
        max_rescheduling=options.job_scheduling.max_rescheduling,
    )


def _build_own_rules(of_vo: SilenceRules, up: Uptime, text: str, now: datetime) -> SilenceRules:
    """The rules for attempts with times of their own: their pilots may go on without an answer."""
    times = AttemptTimes.from_text(text)
    stalled, grace = (up.go_back(now, seconds=each) for each in (times.stalled, times.grace))
    return replace(
        of_vo,
        unstarted=up.go_back(now, seconds=times.lease),
        ended_grace=up.go_back(now, seconds=max(_ENDED_GRACE, times.grace)),
        stalled=stalled,
        lost=stalled,
        grace=grace,
    )


#: Applies rules to some jobs, and returns how many became what, by field of `LostResult`.
_Rule = Callable[[Connection, _Rules, datetime], Counter[str]]


def _merge(rules: Mapping[str, _Rules]) -> _Rules:
    """The rules of several VOs in one."""
    return {key: each for of_vo in rules.values() for key, each in of_vo.items()}


def _count(rule: _Rule, rules: _Rules, now: datetime, changed: Counter[str], conn: Connection) -> int:
    done = rule(conn, rules, now)
    changed += done
    return done.total()


def _give_up(
    retry: RetryPlan, ruled_vos: Collection[str], conn: Connection, rules: _Rules, now: datetime
) -> Counter[str]:
    again, failed = expiry.give_up_stalled(
        conn,
        silent_since={vo: each.lost for vo, each in rules.items()},
        stalled_since={vo: each.grace for vo, each in rules.items()},
        ended_since={vo: each.ended_grace for vo, each in rules.items()},
        max_rescheduling={vo: each.max_rescheduling for vo, each in rules.items()},
        retry=retry,
        ruled_vos=ruled_vos,
        now=now,
        most=_MOST,
    )
    return Counter(rescheduled=len(again), failed=len(failed))


def _expire(conn: Connection, rules: _Rules, now: datetime) -> Counter[str]:
    since = {vo: each.unstarted for vo, each in rules.items()}
    return Counter(waiting=len(expiry.expire_leases(conn, silent_since=since, now=now, most=_MOST)))


def _close_killed(conn: Connection, rules: _Rules, now: datetime) -> Counter[str]:
    since = {vo: each.unstarted for vo, each in rules.items()}
    return Counter(closed=len(expiry.close_killed(conn, silent_since=since, now=now, most=_MOST)))


def _mark_stalled(leadership: Leadership, changed: Counter[str], rules: Mapping[str, _Rules]) -> None:
    """Read all open attempts once."""
    since = {key: each.stalled for key, each in _merge(rules).items()}
    over = OpenPass()

    def mark_some(conn: Connection) -> int:
        marked = expiry.mark_stalled(conn, silent_since=since, now=leadership.now, most=_MOST, over=over)
        changed["stalled"] += len(marked)
        return over.found

    leadership.repeat(mark_some, most=_MOST, rounds=_ROUNDS)
