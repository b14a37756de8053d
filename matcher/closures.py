"""Where a job would not be let in at this moment, and why: asked of the gates that a claim goes through."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from matcher import gate, limits, standings, throttles
from matcher.applicants import Applicant
from matcher.survey import Survey
from taskqueue import bans, scopes
from taskqueue.bans import Ban

#: Scopes in one statement.
_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """A place that does not let a job in."""

    scope: str  #: `Site`, `Site/CE` or `Site/CE/Queue`
    reason: str  #: the word that a pilot there is told: banned, limits, throttled
    text: str  #: for a person


def of(
    conn: Connection, config: Configuration, job: Applicant, sites: Collection[str], now: datetime
) -> list[Closure]:
    """Every place at these sites that lets the job not in; where one is above another, both."""
    here = frozenset(sites)
    return [
        *_banned(conn, job, here, now),
        *_limited(conn, config, job, here, now),
        *_throttled(conn, config, job, here, now),
    ]


def closed(conn: Connection, config: Configuration, job: Applicant, survey: Survey, now: datetime) -> int:
    """The queues, as a set of the survey, that do not let the job in at this moment."""
    found = 0
    for each in of(conn, config, job, survey.sites.keys(), now):
        found |= survey.within(each.scope)
    return found


def at_queue(
    conn: Connection,
    config: Configuration,
    address: QueueAddress,
    now: datetime,
    *,
    vos: Collection[str] | None,
) -> Iterator[str]:
    """What holds at a queue, its CE and its site at this moment, whatever job comes; for a person.

    Args:
        conn: Any connection.
        config: The current configuration.
        address: The queue.
        now: The time.
        vos: Whose own limits are told, beside those of all; None: of every VO.
    """
    line = scopes.line(str(address))
    for ban in bans.current(conn, now=now):
        if ban.site == address.site:
            yield _told(ban)
    limited = [scope for scope in line if scope in limits.rules(config)]
    for scope, conditions in limits.conditions(conn, config, limited, now).items():
        yield from (f"{scope} {each.why}" for each in conditions if each.full and each.rule.may_be_told(vos))
    found = scopes.read(conn, [scope for scope in line if scope in config.throttles])
    for scope, standing in standings.of(conn, config, found.values(), now).items():
        room, policy = standing.room(), config.throttles[scope].policy
        if room.jobs is not None and room.jobs <= 0:
            yield f"{scope} is throttled ({room.why})"
        elif standing.asks_job:
            yield f"{scope} decides job by job ({throttles.REQUIREMENTS} of its throttle)"
        elif room.jobs is not None:
            yield f"{scope} may take {room.jobs} jobs more (throttle {policy})"


def _told(ban: Ban) -> str:
    until = f" until {ban.until.isoformat(timespec='seconds')}" if ban.until else ""
    return f"{ban.site} is banned{until}: {ban.reason}; only jobs of type {gate.TEST} run there"


def _banned(conn: Connection, job: Applicant, sites: frozenset[str], now: datetime) -> Iterator[Closure]:
    if gate.is_test(job.job_type):
        return
    for ban in bans.current(conn, now=now):
        if ban.site in sites:
            yield Closure(scope=ban.site, reason=gate.BANNED, text=_told(ban))


def _limited(
    conn: Connection, config: Configuration, job: Applicant, sites: frozenset[str], now: datetime
) -> Iterator[Closure]:
    concerned = [
        scope
        for scope, rules in limits.rules(config).items()
        if scopes.site_of(scope) in sites and any(rule.concerns(job) for rule in rules)
    ]
    for scope, conditions in limits.conditions(conn, config, concerned, now).items():
        for each in conditions:
            if each.keeps_out(job):
                yield Closure(scope=scope, reason=gate.LIMITS, text=f"{scope} {each.why}")


def _throttled(
    conn: Connection, config: Configuration, job: Applicant, sites: frozenset[str], now: datetime
) -> Iterator[Closure]:
    names = [scope for scope in config.throttles if scopes.site_of(scope) in sites]
    for start in range(0, len(names), _PAGE):
        found = scopes.read(conn, names[start : start + _PAGE])
        for scope, standing in standings.of(conn, config, found.values(), now).items():
            if why := standing.why_not(job):
                yield Closure(scope=scope, reason=gate.THROTTLED, text=f"{scope} is throttled ({why})")
